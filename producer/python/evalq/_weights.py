"""The weights of a checkpoint, whatever training framework wrote it, as one dictionary of name to tensor."""

from __future__ import annotations

import errno
import os
import re
import sys
import zipfile
from importlib.util import find_spec
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from ._dcp import dcp_directory, load_dcp
from ._deepspeed import deepspeed_file
from ._inert_pickle import Inert, load_inert
from ._tensors import HUB_TORCH, indexed_files, read_safetensors, read_safetensors_torch, safetensors_files

# As the worker's own reader has them (docs/checkpoints.md): the same file gives the same weights to either.
_REGULAR_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights")
_VARIANT_KEYS = ("{}_state_dict", "state_dict_{}", "{}", "model_{}", "{}_model", "{}_model_state_dict", "params_{}", "{}_params")
_VARIANT_PARTS = ("{}_model.", "model_{}.", "{}.")
_PREFIXES = ("module.", "_orig_mod.")
_ADVICE = "save the state dict alone, or allow its classes in the evaluator with torch.serialization.add_safe_globals"


def load_weights(path: str, variant: str = "regular", framework: Optional[str] = None) -> Dict[str, Any]:
    """Everything the checkpoint at path holds as weights, on the CPU."""
    given = framework
    if framework not in (None, "torch", "numpy"):
        raise ValueError(f"framework is '{framework}', expected torch or numpy")
    if framework is None:
        framework = "torch" if _has("torch") else "numpy"
    if not _has(framework):  # A job's reason is cut: this comes first.
        raise ImportError(f"load() needs {framework if given else 'torch or numpy'}, which {sys.executable} has not")
    averages = os.path.join(path, "pytorch_ema_model_fsdp_0")
    if variant == "ema" and os.path.isdir(averages):  # Nothing else is in there.
        return load_weights(averages, "regular", given)
    files = safetensors_files(path)
    if files:
        read = read_safetensors_torch if framework == "torch" else read_safetensors
        values: Dict[str, Any] = {}
        for name in files:
            part = read(name)
            twice = min(values.keys() & part.keys(), default=None)
            if twice is not None:
                raise ValueError(f"two files hold '{twice}', which one is meant is not known: '{path}' has {len(files)} files")
            values.update(part)
        return without_prefixes(values)
    if framework == "numpy":
        raise ValueError(f"'{path}' is no safetensors file: torch reads it")
    values = {}
    named = any(os.path.isfile(os.path.join(path, name)) for name in HUB_TORCH)
    directory = None if named else dcp_directory(path)
    if directory is not None:
        if variant == "ema" and directory != path:
            raise ValueError(f"there are no EMA weights beside '{directory}'")
        return without_prefixes(_state_dict(load_dcp(directory), variant, directory))
    for name in torch_files(path):
        values.update(_state_dict(load_torch(name), variant, name))
    return without_prefixes(values)


def _has(framework: str) -> bool:
    return framework in sys.modules and sys.modules[framework] is not None or find_spec(framework) is not None


def torch_files(path: str) -> List[str]:
    """The files of torch.save that hold the weights at path."""
    if not os.path.isdir(path):
        return [path]
    for name in (*HUB_TORCH, "model.pt", "model.pth", "model.bin", "adapter_model.bin"):
        if os.path.isfile(os.path.join(path, name)):
            return indexed_files(path, name) if name.endswith(".json") else [os.path.join(path, name)]
    file_name = deepspeed_file(path)
    if file_name is not None:
        return [file_name]
    raise FileNotFoundError(f"no weights were found in the directory '{path}'")


def load_torch(path: str) -> Any:
    """What torch.save wrote, without running any code of it."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise  # It is EINVAL where PyTorch seeks beyond the ends of a cut file.
        # PyTorch takes a damaged file for an unsafe one and advises weights_only=False, which runs what the file says.
        # So its text goes no further, not even as the cause of this error.
        refused = re.search(r"GLOBAL ([\w.]+)|class ([\w.]+)", str(error))
        zipped = zipfile.is_zipfile(path)
    if zipped and _is_torchscript(path):
        raise ValueError(f"'{path}' is a TorchScript program, not a state dict: save model.state_dict()")
    if refused and not zipped:
        name = refused.group(1) or refused.group(2)
        raise ValueError(f"'{path}' holds more than tensors and plain values ({name}); {_ADVICE}")
    try:
        loaded = load_inert(path)
    except (OSError, MemoryError):
        raise
    except Exception:
        loaded = None
    if loaded is None:
        raise ValueError(f"'{path}' is damaged: {_damage(path)}; save the checkpoint again")
    return loaded


def _is_torchscript(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("/constants.pkl") for name in file.namelist())
    except zipfile.BadZipFile:
        return False  # Damaged.


def _damage(path: str) -> str:
    """What is wrong with a file that torch.load() cannot read."""
    with open(path, "rb") as file:
        first = file.read(4)
    if not first:
        return "it is empty"
    if not zipfile.is_zipfile(path):
        return "its end is missing" if first == b"PK\x03\x04" else "it is neither a zip archive nor a whole pickle"
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except Exception:
        return "its list of parts cannot be read"
    return f"the checksum of its part {bad} is wrong" if bad else "its pickle cannot be read"


def _is_state(value: Any) -> bool:
    import torch

    _refuse_inert(value)
    return isinstance(value, Mapping) and any(isinstance(item, torch.Tensor) for item in value.values())


def _refuse_inert(*values: Any) -> None:
    """Of classes that are not known nobody can tell whether they are, or hold, the weights."""
    for value in values:
        if isinstance(value, Inert):
            raise ValueError(f"weights are looked for in a {type(value).__name__}, which is not opened: {_ADVICE}")


def _state_dict(loaded: Any, variant: str, path: str) -> Dict[str, Any]:
    """The dictionary of tensors within what was saved."""
    import torch

    _refuse_inert(loaded)
    found = None
    if isinstance(loaded, Mapping):
        found = _chosen(loaded, variant, path)
        inner = [value for value in loaded.values() if isinstance(value, Mapping)]
        if found is None and len(inner) == 1:  # {"app": {"model": ..., "optim": ...}}, as PyTorch's pages have it.
            _refuse_inert(*loaded.values())
            found = _chosen(inner[0], variant, path)
    if found is None:
        raise ValueError(f"'{path}' holds no state dict: expected tensors by name, or one of {', '.join(_REGULAR_KEYS)}")
    _refuse_inert(*found.values())
    return {str(name): value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _chosen(loaded: Mapping[str, Any], variant: str, path: str) -> Optional[Mapping[str, Any]]:
    usual = _first(loaded, _REGULAR_KEYS)
    averaged = all(_first(loaded, [key]) is not None for key in ("state_dict", "current_model_state"))
    if variant == "regular":
        if averaged:  # Lightning's WeightAveraging: state_dict has the averages.
            return _first(loaded, ["current_model_state"])
        if usual is None:  # Nothing but averages: then they are the weights.
            _refuse_inert(*loaded.values())
            usual = _first(loaded, [key.format("ema") for key in _VARIANT_KEYS])
    else:
        keys = [key.format(variant) for key in _VARIANT_KEYS]
        found = _first(loaded, keys)
        if found is None and variant == "ema" and averaged:
            return usual
        callbacks = loaded.get("callbacks")
        for callback in callbacks.values() if found is None and isinstance(callbacks, Mapping) else ():
            found = found or (_first(callback, keys) if isinstance(callback, Mapping) else None)
        if found is not None:
            return found
        state = usual if usual is not None else loaded
        for part in (part.format(variant) for part in _VARIANT_PARTS):
            found = {name[len(part) :]: value for name, value in state.items() if str(name).startswith(part)}
            if _is_state(found):
                return found
        if usual is not None and variant == "ema":
            held = ", ".join(str(key) for key in loaded)
            raise ValueError(f"there are no EMA weights, the number would carry the wrong name: '{path}' holds {held}")
    return usual if usual is not None else loaded if _is_state(loaded) else None


def _first(within: Mapping[str, Any], keys: Iterable[str]) -> Optional[Mapping[str, Any]]:
    for key in keys:
        value = within.get(key)
        found = value if _is_state(value) else _first(value, _REGULAR_KEYS) if isinstance(value, Mapping) else None
        if found is None and isinstance(value, (Mapping, list, tuple)):  # Of parts: {"encoder": {...}, "decoder": {...}}.
            parts = dict(_parts(value))
            found = parts if _is_state(parts) else None
        if found is not None:
            return found
    return None


def _parts(value: Any, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """What lies in dicts of dicts, or of lists, by their names joined with dots."""
    for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(part, (Mapping, list, tuple)):
            yield from _parts(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def without_prefixes(values: Dict[str, Any]) -> Dict[str, Any]:
    """What DistributedDataParallel and torch.compile put before every name is taken away."""
    found = True
    while found:
        found = False
        for prefix in _PREFIXES:
            if values and all(name.startswith(prefix) for name in values):
                values = {name[len(prefix) :]: value for name, value in values.items()}
                found = True
    return values


def _as_if_not_compiled(name: str) -> str:
    return name.replace("_orig_mod.", "")


def load_into(model: Any, values: Mapping[str, Any], path: str) -> None:
    """Copies the weights into a torch model where it is; every parameter must be there, tied ones once. Parts that
    torch.compile has wrapped, here or there, have the names of what they wrap."""
    ours = {_as_if_not_compiled(name): name for name in model.state_dict()}
    named = {_as_if_not_compiled(name): value for name, value in values.items()}
    result = model.load_state_dict({ours.get(name, name): value for name, value in named.items()}, strict=False)
    missing = set(result.missing_keys)
    if missing:
        state = model.state_dict(keep_vars=True)
        known = {state[name].data_ptr() for name in state if name not in missing}
        missing = {name for name in missing if state[name].data_ptr() not in known}
    if missing or result.unexpected_keys:
        counts = f"{len(missing)} missing, {len(result.unexpected_keys)} unexpected"  # Reasons are cut: this comes first.
        names = ", ".join([*sorted(missing)[:3], *sorted(result.unexpected_keys)[:3]])
        raise ValueError(f"weights misfit: {counts}: {names} in '{path}'")
    if hasattr(model, "tie_weights"):
        model.tie_weights()
