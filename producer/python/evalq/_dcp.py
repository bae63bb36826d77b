"""Weights of torch.distributed.checkpoint (DCP): the directory that FSDP and Lightning's sharded strategies write."""

from __future__ import annotations

import os
import pickle
from typing import Any, Dict, Optional, Set

_INDEX = ".metadata"
_ACCELERATE = "pytorch_model_fsdp_0"
_CLASSES = {
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
}  # fmt: skip


def dcp_directory(path: str) -> Optional[str]:
    """Where the index lies of the checkpoint at path; None: it is of another kind."""
    for directory in (path, os.path.join(path, _ACCELERATE)):
        if os.path.isfile(os.path.join(directory, _INDEX)):
            return directory
    return None


def load_dcp(directory: str) -> Dict[str, Any]:
    """The tensors as they were nested when they were saved, {"model": {name: tensor}} say, without an optimizer's.
    No code of theirs runs."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ValueError(f"'{directory}' is a distributed checkpoint: reading it safely needs torch 2.6 or later")
    index = _read_index(os.path.join(directory, _INDEX))

    class Reader(FileSystemReader):  # type: ignore[misc,unused-ignore]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return index

    places = index.planner_data or {}
    flat: Dict[str, Any] = {}
    nested: Dict[str, Any] = {}
    for key, meta in index.state_dict_metadata.items():
        *parents, name = [str(part) for part in places.get(key, (key,))]
        if isinstance(meta, TensorStorageMetadata) and not any(part.startswith("optim") for part in parents):
            flat[key] = torch.empty(meta.size, dtype=meta.properties.dtype, device="cpu")
            into = nested
            for parent in parents:
                into = into.setdefault(parent, {})
            into[name] = flat[key]
    load(flat, storage_reader=Reader(directory))
    return nested


def _read_index(path: str) -> Any:
    with open(path, "rb") as file:
        index = _Unpickler(file).load()
    names: Set[str] = {str(info.relative_path) for info in index.storage_data.values()}
    for name in names:
        if os.path.basename(name) != name or name in ("", "..", "."):
            raise ValueError(f"'{path}' names '{name}', which is not a file beside it")
    return index


class _Unpickler(pickle.Unpickler):
    """Makes what an index holds and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch":
            import torch

            if isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
        raise ValueError(f"a distributed checkpoint's index does not hold {module}.{name}")
