"""Reads what a checkpoint contains with evalq's own readers: its tensors, its model files and the
digest of its weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from .._library import native_directory
from ..lm_eval import _read_definition
from .config import Refused

# Keys of config.json that do not change the model.
_IGNORED_KEYS = ("_name_or_path", "torch_dtype", "dtype", "transformers_version", "use_cache")
_pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="evalq-look")


def worker_program() -> str:
    """Returns the path of evalq-worker: the one that started this program, else the one in this
    package, else the one on the PATH."""
    started_by = f"/proc/{os.getppid()}/exe"  # This works even if an upgrade replaced the file.
    try:
        if os.path.basename(os.readlink(started_by)).split(" ")[0] == "evalq-worker":
            return started_by
    except OSError:
        pass
    for found in (
        os.path.join(native_directory() or "", "evalq-worker"),
        shutil.which("evalq-worker"),
    ):
        if found and os.path.exists(found):
            return found
    raise Refused(
        "evalq-worker is not on the PATH: it reads the checkpoints for evalq.model_server"
    )


def in_background(function: Any, *arguments: Any) -> "Future[Any]":
    return _pool.submit(function, *arguments)


@dataclass
class Contents:
    """One checkpoint that a server may load."""

    path: str
    tensors: Dict[str, Tuple[int, ...]]
    parameters: int
    config: Dict[str, Any]
    files: Dict[str, bytes]  #: Files of model and tokenizer, except the weights and config.json.
    digest: "Future[str]"  #: The digest of the weights. Computing it reads all of them.
    #: If the checkpoint is an adapter, the directory of its base model. The other fields then
    #: describe the merged model.
    base: str = ""

    @classmethod
    def read(cls, path: str, base: str = "") -> "Contents":
        files = _read_definition(base or path)
        if "config.json" not in files:
            raise Refused(
                f"'{path}' is no Transformers directory: the suite's prepare must make one"
                " (docs/generation.md)"
            )
        words = ["--base", base] if base else []
        digest = in_background(_digest, path, words)
        found = _inspect(path, *words)
        config = json.loads(files.pop("config.json", b"{}"))
        return cls(
            path=path,
            tensors={item["name"]: tuple(item["shape"]) for item in found["tensors"]},
            parameters=int(found["parameters"]),
            config=config,
            files=files,
            digest=digest,
            base=base,
        )

    def architecture(self) -> Dict[str, Any]:
        """config.json without the keys that do not change the model."""
        return {key: value for key, value in self.config.items() if key not in _IGNORED_KEYS}

    def _shapes(self) -> Dict[str, Tuple[int, ...]]:
        """The shapes of the tensors by name, without a tied output matrix, because a checkpoint
        may or may not contain it."""
        tied = self.config.get("tie_word_embeddings") is True
        return {
            name: shape
            for name, shape in self.tensors.items()
            if not (tied and name.endswith("lm_head.weight"))
        }

    def differs_from(self, loaded: "Contents") -> str:
        """Returns why a server that has `loaded` cannot take these weights in place; "": it can.

        Raises Refused if the checkpoint is of the same model but lacks a tensor. vLLM would
        silently keep the old tensor.
        """
        if self.architecture() != loaded.architecture():
            keys = sorted(
                key
                for key in {**self.config, **loaded.config}
                if key not in _IGNORED_KEYS and self.config.get(key) != loaded.config.get(key)
            )
            return f"config.json differs in {', '.join(keys[:5])}"
        ours, theirs = self._shapes(), loaded._shapes()
        missing = sorted(name for name in theirs if name not in ours)
        added = sorted(name for name in ours if name not in theirs)
        if missing and not added:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise Refused(
                f"'{self.path}' lacks the tensor '{missing[0]}'{more}, which '{loaded.path}' with"
                " the same config.json has"
            )
        if missing or added:
            return f"the tensors differ: {(added or missing)[0]}"
        shapes = sorted(name for name in ours if ours[name] != theirs[name])
        if shapes:
            return f"the shape of {shapes[0]} differs"
        if self.files != loaded.files:
            names = sorted(
                name
                for name in {**self.files, **loaded.files}
                if self.files.get(name) != loaded.files.get(name)
            )
            return f"{', '.join(names[:5])} differs"
        return ""


def _inspect(path: str, *words: str) -> Any:
    done = subprocess.run(
        [worker_program(), "inspect", path, "--json", *words],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise Refused(
            said[-1] if said else f"evalq-worker inspect '{path}' ended with {done.returncode}"
        )
    return json.loads(done.stdout)


def _digest(path: str, words: List[str]) -> str:
    return str(_inspect(path, "--digest", *words)["digest"])


def is_adapter(path: str) -> bool:
    return os.path.exists(os.path.join(path, "adapter_config.json"))


def signature(path: str) -> List[Tuple[str, int, int, int]]:
    """Identifies the files of a directory. It stays equal as long as nobody writes to them."""
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            status = os.stat(os.path.join(folder, name))
            found.append(
                (os.path.join(folder, name), status.st_ino, status.st_size, status.st_mtime_ns)
            )
    return sorted(found)
