"""Loads checkpoints of torch.distributed.checkpoint (DCP), which FSDP and Lightning write."""

from __future__ import annotations

import enum
import os
import pickle
from typing import Any, Dict, Optional

_INDEX = ".metadata"
_ACCELERATE_FOLDER = "pytorch_model_fsdp_0"
_INDEX_CLASSES = {
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.planner": {  # Megatron Core keeps the plans of its save.
        "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType",
    },
}  # fmt: skip


def dcp_directory(path: str) -> Optional[str]:
    """The directory with the index of the DCP checkpoint at path. None: it is another format."""
    for directory in (path, os.path.join(path, _ACCELERATE_FOLDER)):
        if os.path.isfile(os.path.join(directory, _INDEX)):
            return directory
    return None


def load_dcp(directory: str) -> Dict[str, Any]:
    """Returns the tensors nested as they were saved, such as {"model": {name: tensor}}, on the CPU,
    without those of optimizers. No code in the checkpoint runs. ValueError: the index is damaged,
    or torch is older than 2.6."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ValueError(
            f"'{directory}' is a distributed checkpoint: reading it safely needs torch 2.6 or later"
        )
    index = _read_index(os.path.join(directory, _INDEX))

    class Reader(FileSystemReader):  # type: ignore[misc,unused-ignore]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return index  # torch's own method would execute the pickle.

    names_by_key = index.planner_data or {}
    flat: Dict[str, Any] = {}
    nested: Dict[str, Any] = {}
    for key, metadata in index.state_dict_metadata.items():
        *parents, name = [str(part) for part in names_by_key.get(key, (key,))]
        if not isinstance(metadata, TensorStorageMetadata):
            continue
        # Megatron Core saves flat names: "optimizer.state.exp_avg" has no parents.
        if any(part.startswith("optim") for part in parents or key.split(".")[:-1]):
            continue
        flat[key] = torch.empty(metadata.size, dtype=metadata.properties.dtype, device="cpu")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[name] = flat[key]
    load(flat, storage_reader=Reader(directory))
    return nested


def _read_index(path: str) -> Any:
    with open(path, "rb") as file:
        index = _IndexUnpickler(file).load()
    for name in {str(info.relative_path) for info in index.storage_data.values()}:
        if os.path.basename(name) != name or name in ("", "..", "."):
            raise ValueError(f"'{path}' names '{name}', which is not a file beside it")
    return index


class _IndexUnpickler(pickle.Unpickler):
    """Creates only objects that the index of a checkpoint consists of."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _INDEX_CLASSES.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if module == "torch":
            import torch

            if isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
        raise ValueError(
            f"the index of the distributed checkpoint names {module}.{name}, which is not allowed"
        )


def _enum_member(owner: Any, name: Any) -> Any:
    """Stands for getattr, with which Python 3.11.0 to 3.11.3 write the members of an Enum."""
    if isinstance(owner, enum.EnumMeta) and name in owner.__members__:
        return owner.__members__[name]
    raise ValueError(
        f"the index of the distributed checkpoint takes '{name}' from {owner!r}, which is no member"
        " of an Enum"
    )
