"""Loads the weights of a checkpoint, in any format that evalq knows, as a dictionary of tensors."""

from __future__ import annotations

import errno
import os
import re
import sys
import zipfile
from importlib.util import find_spec
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from .dcp import dcp_directory, load_dcp
from .deepspeed import deepspeed_file
from .inert_pickle import Inert, load_inert
from .safetensors import (
    HUB_TORCH_NAMES,
    indexed_files,
    read_safetensors,
    read_safetensors_torch,
    safetensors_files,
)

# The keys under which a file may have a state dict. The native evaluator uses the same lists
# (docs/checkpoints.md), so that both find the same weights in a file.
_REGULAR_KEYS = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights",
)  # fmt: skip
_VARIANT_KEYS = (
    "{}_state_dict", "state_dict_{}", "{}", "model_{}", "{}_model", "{}_model_state_dict",
    "params_{}", "{}_params",
)  # fmt: skip
# Prefixes of tensor names: those of a variant, and those that DistributedDataParallel and
# torch.compile add.
_VARIANT_PREFIXES = ("{}_model.", "model_{}.", "{}.")
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
_ADVICE = (
    "save the state dict alone, or allow its classes in the evaluator with"
    " torch.serialization.add_safe_globals"
)


def load_weights(
    path: str, variant: str = "regular", framework: Optional[str] = None
) -> Dict[str, Any]:
    """Returns all weights of the checkpoint at path, on the CPU. Checkpoint.load() describes the
    arguments and the errors. The messages begin with the cause, because a job's reason is cut."""
    chosen = _choose_framework(framework)
    ema_directory = os.path.join(path, "pytorch_ema_model_fsdp_0")
    if variant == "ema" and os.path.isdir(ema_directory):  # It holds only EMA weights.
        return load_weights(ema_directory, "regular", framework)
    files = safetensors_files(path)
    if files:
        return without_wrapper_prefixes(_load_safetensors(path, files, chosen))
    if chosen == "numpy":
        raise ValueError(f"'{path}' is not a safetensors file: reading it needs torch")
    has_hub_name = any(os.path.isfile(os.path.join(path, name)) for name in HUB_TORCH_NAMES)
    directory = None if has_hub_name else dcp_directory(path)
    if directory is not None:
        if variant == "ema" and directory != path:
            raise ValueError(f"there are no EMA weights beside '{directory}'")
        return without_wrapper_prefixes(
            find_state_dict(load_dcp(directory), variant, directory)
        )
    values: Dict[str, Any] = {}
    for name in torch_files(path):
        values.update(find_state_dict(load_torch(name), variant, name))
    return without_wrapper_prefixes(values)


def _choose_framework(framework: Optional[str]) -> str:
    if framework not in (None, "torch", "numpy"):
        raise ValueError(f"framework is '{framework}', expected torch or numpy")
    chosen = framework or ("torch" if _is_installed("torch") else "numpy")
    if not _is_installed(chosen):
        needed = framework or "torch or numpy"
        raise ImportError(f"load() needs {needed}, which {sys.executable} does not have")
    return chosen


def _is_installed(package: str) -> bool:
    return sys.modules.get(package) is not None or find_spec(package) is not None


def _load_safetensors(path: str, files: List[str], framework: str) -> Dict[str, Any]:
    read = read_safetensors_torch if framework == "torch" else read_safetensors
    values: Dict[str, Any] = {}
    for file in files:
        part = read(file)
        twice = min(values.keys() & part.keys(), default=None)
        if twice is not None:
            raise ValueError(
                f"two files hold '{twice}', so it is not clear which one to use: '{path}' has"
                f" {len(files)} files"
            )
        values.update(part)
    return values


def torch_files(path: str) -> List[str]:
    """The files of torch.save() that hold the weights at path. FileNotFoundError: there are
    none."""
    if not os.path.isdir(path):
        return [path]
    for name in (*HUB_TORCH_NAMES, "model.pt", "model.pth", "model.bin", "adapter_model.bin"):
        if os.path.isfile(os.path.join(path, name)):
            if name.endswith(".json"):
                return indexed_files(path, name)
            return [os.path.join(path, name)]
    deepspeed = deepspeed_file(path)
    if deepspeed is not None:
        return [deepspeed]
    raise FileNotFoundError(f"no weights were found in the directory '{path}'")


def load_torch(path: str) -> Any:
    """Returns what torch.save() wrote, on the CPU. No code in the file runs.

    ValueError: the file is damaged, or is no checkpoint. torch calls a damaged file unsafe and
    advises weights_only=False, which runs code in the file. So its message is not passed on, not
    even as the cause of this error.
    """
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        # torch raises EINVAL if it seeks beyond the end of a cut file.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        refused = re.search(r"GLOBAL ([\w.]+)|class ([\w.]+)", str(error))
    is_zip = zipfile.is_zipfile(path)
    if is_zip and _is_torchscript(path):
        raise ValueError(
            f"'{path}' is a TorchScript program, not a state dict: save model.state_dict()"
        )
    if refused and not is_zip:
        name = refused.group(1) or refused.group(2)
        raise ValueError(f"'{path}' holds more than tensors and plain values ({name}); {_ADVICE}")
    try:
        loaded = load_inert(path)
    except (OSError, MemoryError):
        raise
    except Exception:
        loaded = None
    if loaded is None:
        raise ValueError(f"'{path}' is damaged: {_find_damage(path)}; save the checkpoint again")
    return loaded


def _is_torchscript(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("/constants.pkl") for name in file.namelist())
    except zipfile.BadZipFile:
        return False


def _find_damage(path: str) -> str:
    """Says what is wrong with a file that torch.load() cannot read."""
    with open(path, "rb") as file:
        first = file.read(4)
    if not first:
        return "it is empty"
    if not zipfile.is_zipfile(path):
        if first == b"PK\x03\x04":
            return "its end is missing"
        return "it is neither a zip archive nor a whole pickle"
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except Exception:
        return "its list of parts cannot be read"
    return f"the checksum of its part {bad} is wrong" if bad else "its pickle cannot be read"


def find_state_dict(loaded: Any, variant: str, path: str) -> Dict[str, Any]:
    """Returns the variant's tensors in a loaded checkpoint. path is for messages only. ValueError:
    the checkpoint has no such tensors."""
    import torch

    _refuse_inert(loaded)
    found = None
    if isinstance(loaded, Mapping):
        found = _find_variant(loaded, variant, path)
        inner = [value for value in loaded.values() if isinstance(value, Mapping)]
        if found is None and len(inner) == 1:  # {"app": {"model": ..., "optim": ...}}
            _refuse_inert(*loaded.values())
            found = _find_variant(inner[0], variant, path)
    if found is None:
        keys = ", ".join(_REGULAR_KEYS)
        raise ValueError(
            f"'{path}' holds no state dict: expected tensors by name, or one of {keys}"
        )
    _refuse_inert(*found.values())
    return {str(name): value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _refuse_inert(*values: Any) -> None:
    """Raises ValueError if a value is an object of an unknown class, because it may be, or hold,
    the weights."""
    for value in values:
        if isinstance(value, Inert):
            kind = type(value).__name__
            raise ValueError(f"the weights may be in a {kind}, which evalq never opens: {_ADVICE}")


def _is_state_dict(value: Any) -> bool:
    import torch

    _refuse_inert(value)
    return isinstance(value, Mapping) and any(
        isinstance(item, torch.Tensor) for item in value.values()
    )


def _find_variant(
    loaded: Mapping[str, Any], variant: str, path: str
) -> Optional[Mapping[str, Any]]:
    regular = _find_under(loaded, _REGULAR_KEYS)
    # Lightning's WeightAveraging stores the averages as state_dict, and the regular weights apart.
    averaged = all(
        _find_under(loaded, [key]) is not None for key in ("state_dict", "current_model_state")
    )
    if variant == "regular":
        if averaged:
            return _find_under(loaded, ["current_model_state"])
        if regular is None:  # If there are only EMA weights, then these are the weights.
            _refuse_inert(*loaded.values())
            regular = _find_under(loaded, [key.format("ema") for key in _VARIANT_KEYS])
    else:
        found = _find_other_variant(loaded, variant)
        if found is None and variant == "ema" and averaged:
            return regular
        if found is None:
            found = _find_prefixed(regular if regular is not None else loaded, variant)
        if found is not None:
            return found
        if regular is not None and variant == "ema":
            keys = ", ".join(str(key) for key in loaded)
            raise ValueError(
                "there are no EMA weights, and regular weights would give a wrong metric:"
                f" '{path}' holds {keys}"
            )
    if regular is not None:
        return regular
    return loaded if _is_state_dict(loaded) else None


def _find_other_variant(loaded: Mapping[str, Any], variant: str) -> Optional[Mapping[str, Any]]:
    """Looks under the variant's keys, in the checkpoint and in the states of Lightning
    callbacks."""
    keys = [key.format(variant) for key in _VARIANT_KEYS]
    found = _find_under(loaded, keys)
    callbacks = loaded.get("callbacks")
    if found is None and isinstance(callbacks, Mapping):
        for state in callbacks.values():
            if not found and isinstance(state, Mapping):
                found = _find_under(state, keys)
    return found


def _find_prefixed(state: Mapping[str, Any], variant: str) -> Optional[Mapping[str, Any]]:
    """The tensors whose names begin with a prefix of the variant, without the prefix."""
    for prefix in (pattern.format(variant) for pattern in _VARIANT_PREFIXES):
        found = {
            name[len(prefix) :]: value
            for name, value in state.items()
            if str(name).startswith(prefix)
        }
        if _is_state_dict(found):
            return found
    return None


def _find_under(within: Mapping[str, Any], keys: Iterable[str]) -> Optional[Mapping[str, Any]]:
    """The first state dict under one of the keys, or one level deeper under a regular key."""
    for key in keys:
        value = within.get(key)
        if _is_state_dict(value):
            return value
        found = _find_under(value, _REGULAR_KEYS) if isinstance(value, Mapping) else None
        if found is None and isinstance(value, (Mapping, list, tuple)):
            # The parts of a model, such as {"encoder": {...}, "decoder": {...}}.
            parts = dict(_flatten(value))
            found = parts if _is_state_dict(parts) else None
        if found is not None:
            return found
    return None


def _flatten(value: Any, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """The leaves of nested mappings and lists, with their keys joined by dots."""
    for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(part, (Mapping, list, tuple)):
            yield from _flatten(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def without_wrapper_prefixes(values: Dict[str, Any]) -> Dict[str, Any]:
    """Removes the prefixes that DistributedDataParallel and torch.compile put before all names."""
    found = True
    while found:
        found = False
        for prefix in _WRAPPER_PREFIXES:
            if values and all(name.startswith(prefix) for name in values):
                values = {name[len(prefix) :]: value for name, value in values.items()}
                found = True
    return values


def load_into(model: Any, values: Mapping[str, Any], path: str) -> None:
    """Copies weights into a torch model, in place. path is for messages only.

    The names of parts that torch.compile wrapped, in the model or in the file, match the names of
    unwrapped parts. ValueError: a parameter is missing, or the file has other names. Of tied
    parameters, one is enough.
    """
    names = {_unwrapped_name(name): name for name in model.state_dict()}
    unwrapped = {_unwrapped_name(name): value for name, value in values.items()}
    renamed = {names.get(name, name): value for name, value in unwrapped.items()}
    result = model.load_state_dict(renamed, strict=False)
    missing = set(result.missing_keys)
    if missing:
        state = model.state_dict(keep_vars=True)
        loaded = {state[name].data_ptr() for name in state if name not in missing}
        missing = {name for name in missing if state[name].data_ptr() not in loaded}
    if missing or result.unexpected_keys:
        counts = f"{len(missing)} missing, {len(result.unexpected_keys)} unexpected"
        examples = ", ".join([*sorted(missing)[:3], *sorted(result.unexpected_keys)[:3]])
        # The message is short, because a job's reason keeps only 64 bytes of it.
        raise ValueError(f"wrong weights: {counts}: {examples} in '{path}'")
    if hasattr(model, "tie_weights"):
        model.tie_weights()


def _unwrapped_name(name: str) -> str:
    return name.replace("_orig_mod.", "")
