"""What a checkpoint holds, as evalq's own readers tell it: tensors, model files, the digest of its weights."""

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

_NO_DIFFERENCE = ("_name_or_path", "torch_dtype", "dtype", "transformers_version", "use_cache")
_pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="evalq-look")


def worker_program() -> str:
    """evalq-worker: the one that started this program, else the package's, else the one on the PATH."""
    started_by = f"/proc/{os.getppid()}/exe"  # Runs also after an upgrade replaced the file.
    try:
        if os.path.basename(os.readlink(started_by)).split(" ")[0] == "evalq-worker":
            return started_by
    except OSError:
        pass
    for found in (os.path.join(native_directory() or "", "evalq-worker"), shutil.which("evalq-worker")):
        if found and os.path.exists(found):
            return found
    raise Refused("evalq-worker is not on the PATH: it reads the checkpoints for evalq.model_server")


def in_background(function: Any, *arguments: Any) -> "Future[Any]":
    return _pool.submit(function, *arguments)


@dataclass
class Contents:
    """One checkpoint that a server may load."""

    path: str
    tensors: Dict[str, Tuple[int, ...]]
    parameters: int
    config: Dict[str, Any]
    files: Dict[str, bytes]  #: Of model and tokenizer, without the weights and config.json.
    digest: "Future[str]"  #: Of the weights; reads all of them.
    base: str = ""  #: Of an adapter: the directory of its base. The rest then describes the two of them merged.

    @classmethod
    def look(cls, path: str, base: str = "") -> "Contents":
        files = _read_definition(base or path)
        if "config.json" not in files:
            raise Refused(f"'{path}' is no Transformers directory: the suite's prepare must make one (docs/generation.md)")
        words = ["--base", base] if base else []
        digest = in_background(_digest, path, words)
        told = _inspect(path, *words)
        config = json.loads(files.pop("config.json", b"{}"))
        return cls(
            path=path,
            tensors={item["name"]: tuple(item["shape"]) for item in told["tensors"]},
            parameters=int(told["parameters"]),
            config=config,
            files=files,
            digest=digest,
            base=base,
        )

    def architecture(self) -> Dict[str, Any]:
        return {key: value for key, value in self.config.items() if key not in _NO_DIFFERENCE}

    def _names(self) -> Dict[str, Tuple[int, ...]]:
        """A tied output matrix may be written or not."""
        tied = self.config.get("tie_word_embeddings") is True
        return {name: shape for name, shape in self.tensors.items() if not (tied and name.endswith("lm_head.weight"))}

    def differs_from(self, loaded: "Contents") -> str:
        """Why a server that has `loaded` cannot take these weights in place; "": it can. Refuses a checkpoint of the
        same model that lacks a tensor: vLLM would keep the old one and say nothing."""
        if self.architecture() != loaded.architecture():
            keys = sorted(
                key
                for key in {**self.config, **loaded.config}
                if key not in _NO_DIFFERENCE and self.config.get(key) != loaded.config.get(key)
            )
            return f"config.json differs in {', '.join(keys[:5])}"
        ours, theirs = self._names(), loaded._names()
        missing = sorted(name for name in theirs if name not in ours)
        added = sorted(name for name in ours if name not in theirs)
        if missing and not added:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise Refused(f"'{self.path}' lacks the tensor '{missing[0]}'{more}, which '{loaded.path}' with the same config.json has")
        if missing or added:
            return f"the tensors differ: {(added or missing)[0]}"
        shapes = sorted(name for name in ours if ours[name] != theirs[name])
        if shapes:
            return f"the shape of {shapes[0]} differs"
        if self.files != loaded.files:
            names = sorted(name for name in {**self.files, **loaded.files} if self.files.get(name) != loaded.files.get(name))
            return f"{', '.join(names[:5])} differs"
        return ""


def _inspect(path: str, *words: str) -> Any:
    done = subprocess.run([worker_program(), "inspect", path, "--json", *words], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise Refused(said[-1] if said else f"evalq-worker inspect '{path}' ended with {done.returncode}")
    return json.loads(done.stdout)


def _digest(path: str, words: List[str]) -> str:
    return str(_inspect(path, "--digest", *words)["digest"])


def is_adapter(path: str) -> bool:
    return os.path.exists(os.path.join(path, "adapter_config.json"))


def signature(path: str) -> List[Tuple[str, int, int, int]]:
    """Of a directory's files: equal as long as nobody wrote any of them."""
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            status = os.stat(os.path.join(folder, name))
            found.append((os.path.join(folder, name), status.st_ino, status.st_size, status.st_mtime_ns))
    return sorted(found)


