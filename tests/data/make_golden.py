"""Writes tests/data/checkpoints/made/ and golden.txt: what torch and safetensors themselves read from every fixture.

Run by hand, with torch 2.13 and safetensors 0.8; what it wrote is committed. Lines of golden.txt, tab-separated:
  F  file
  T  name  dtype  shape  fnv1a-64 of the C-contiguous bytes  the same of the values as float32, or -
"""
import argparse
import collections
import json
import os
import shutil
import sys
import types
import unittest.mock
import warnings

import safetensors.torch
import torch

import make_adapters
import make_distributed

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoints")
MADE = os.path.join(HERE, "made")
NAMES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
         torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64", torch.float16: "F16",
         torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
         torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64", torch.complex128: "C128"}
UNTYPED = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value:016x}"


def raw(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def floats(tensor):
    value = tensor.to(torch.float32)
    return raw(torch.where(torch.isnan(value), torch.full_like(value, float("nan")), value))  # One NaN for all.


def flatten(value, name, out):
    if isinstance(value, torch.Tensor):
        out[name] = value
    elif isinstance(value, torch.nn.Module):
        flatten(dict(value.state_dict()), name, out)
    elif isinstance(value, dict):
        for key, item in value.items():
            flatten(item, f"{name}.{key}" if name else str(key), out)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            flatten(item, f"{name}.{i}" if name else str(i), out)


class Config:  # A class that no reader knows.
    def __init__(self):
        self.width = 3
        self.anchor = torch.ones(2)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        self.register_buffer("scale", torch.tensor([0.5, 2.0]))


class Masked(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(2, 2), persistent=False)  # Pickled, but not of the state dict.


def source_of(item):  # The legacy stream holds the source of modules: of these a line, and no path of the machine.
    return [f"class {item.__name__}(Module):\n", "    ...\n"], 0, "train.py"


def pretend(module, name, **attributes):
    """An object of a class that a package which is not installed would define."""
    made = types.ModuleType(module)
    setattr(made, name, type(name, (), {"__module__": module}))
    parts = module.split(".")
    for i in range(1, len(parts)):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    sys.modules[module] = made
    value = getattr(made, name)()
    value.__dict__.update(attributes)
    return value


def make():
    os.makedirs(MADE, exist_ok=True)
    for name in os.listdir(MADE):
        path = os.path.join(MADE, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif not name.startswith("legacy"):
            os.unlink(path)
    torch.manual_seed(7)
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    save = lambda value, name, **more: torch.save(value, os.path.join(MADE, name), **more)
    save({"transposed": base.t(), "column": base[:, 2], "rows": base[1:3], "expanded": base[0, :1].expand(5, 6),
          "stepped": base[::2, ::3], "one": base[2:3, 1:2], "permuted": torch.arange(24.).reshape(2, 3, 4).permute(2, 0, 1),
          "tied": base, "tied_too": base, "none": torch.empty(0, 5), "bytes": torch.arange(9, dtype=torch.uint8)[3:8]},
         "views.pt")
    every = {}
    for dtype, name in NAMES.items():
        values = torch.tensor([0, 1, 2, 3, 5, 7, 100, 0.5, 1.75, 448.0, 6e-5, 0.013])
        every[name] = values.abs().to(dtype) if not dtype.is_complex else torch.complex(values, -values).to(dtype)
    every["f16_all"] = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)[::97].contiguous()
    every["e4m3_all"] = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    every["e5m2_all"] = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e5m2)
    every["big"] = torch.tensor([2**63 - 1, -2**63, 16777217], dtype=torch.int64)
    every["f64_far"] = torch.tensor([1e300, -1e300, 1e-300, 1.0000000596046448], dtype=torch.float64)
    save(every, "dtypes.pt")
    listed = {k: v for k, v in every.items() if k != "C128"}
    safetensors.torch.save_file(listed, os.path.join(MADE, "dtypes.safetensors"), metadata={"format": "pt"})
    model = collections.OrderedDict(w=base * 2, b=base[0])
    ema = collections.OrderedDict(w=base * 3, b=base[1])
    save({"state_dict": model, "ema_state_dict": ema, "optimizer_states": [{"state": {0: {"exp_avg": base}}}],
          "epoch": 3, "global_step": 2**40, "hyper_parameters": Config(), "lr": 1e-4,
          "note": "\u00fc\U0001f600", "raw": b"\x00\xff", "neg": -2**70, "set": {1, 2}}, "lightning.ckpt")
    prefixed = {"_orig_mod." + k: v for k, v in model.items()}
    save({"model": prefixed, "optimizer": {"state": {}}, "model_args": {"n_layer": 1, "bias": False, "dropout": None},
          "iter_num": 10, "best_val_loss": torch.tensor(3.25), "config": {"device": "cuda"}}, "nanogpt.pt")
    save({"state_dict": model, "epoch": 1, "callbacks": {"ModelCheckpoint{'monitor': None}": {"best": ""},
          "EMA{'decay': 0.99}": {"ema_state_dict": ema, "decay": 0.99}}}, "ema_callback.ckpt")
    save({"state_dict": ema, "current_model_state": model, "averaging_state": {"n_averaged": torch.tensor(3)}}, "ema_lightning.ckpt")
    save({"state_dict": {f"{part}.{k}": v for part, value in (("model", model), ("ema_model", ema)) for k, v in value.items()},
          "epoch": 1}, "ema_part.ckpt")
    save({"model": model, "model_ema": ema}, "ema_timm.pth")
    save({"app": {"model": model, "optim": {"state": {0: {"exp_avg": base}}}}}, "nested.pt")
    save({"app": {"model": model, "model_ema": ema}, "epoch": 1}, "nested_ema.pt")
    double = lambda factor: {"0.weight": torch.eye(2) * factor, "0.bias": torch.zeros(2)}  # A layer that multiplies.
    save({"state_dict": double(1.0), "ema_state_dict": double(2.0)}, "ema_mlp.ckpt")
    save(model, "protocol4.pt", pickle_protocol=4)
    save(model, "protocol5.pt", pickle_protocol=5)
    net = Net()
    save(net, "module.pt")
    for protocol in (2, 4):  # The set of such buffers is written in two ways.
        save(Masked(), f"module_masked{protocol}.pt", pickle_protocol=protocol)
    save({"net": torch.nn.DataParallel(net).state_dict()}, "wrapped.pth")
    save([base, [base[0], base[1]]], "list.pt")
    save({"a": torch.nn.Parameter(base), 7: {3: base[3]}}, "numbers.pt")
    if not os.path.exists(os.path.join(MADE, "legacy_views.pt")):  # They hold addresses: other bytes each time.
        old = {"_use_new_zipfile_serialization": False}
        views = torch.load(os.path.join(MADE, "views.pt"))
        save(views, "legacy_views.pt", **old)
        typed = {k: v for k, v in every.items() if v.dtype not in UNTYPED}  # torch does not read the rest back.
        save(typed, "legacy_dtypes.pt", **old)
        with unittest.mock.patch("torch.serialization.get_source_lines_and_file", source_of):
            save(net, "legacy_module.pt", **old)
        save({"epoch": 2, "state_dict": model, "optimizer": {"state": {0: {"exp_avg": base + 1, "step": 7}}}}, "legacy.pth.tar", **old)
        save(model, "legacy_protocol4.pt", pickle_protocol=4, **old)
        save({"n": 3, "none": torch.empty(0, 2)}, "legacy_empty.pt", **old)
    torch.manual_seed(7)
    for kind in ("bin", "safetensors"):
        folder = os.path.join(MADE, "sharded_" + kind)
        os.makedirs(folder)
        stem, weights = ("pytorch_model", {}) if kind == "bin" else ("model", {})
        for i in range(3):
            shard = {f"layer.{i}.{k}": torch.randn(2 + i, 3) for k in ("weight", "bias")}
            name = f"{stem}-{i + 1:05d}-of-00003.{kind}"
            weights.update({k: name for k in shard})
            path = os.path.join(folder, name)
            torch.save(shard, path) if kind == "bin" else safetensors.torch.save_file(shard, path)
        index = "pytorch_model.bin.index.json" if kind == "bin" else "model.safetensors.index.json"
        with open(os.path.join(folder, index), "w") as file:
            json.dump({"metadata": {"total_size": 216}, "weight_map": weights}, file, indent=2)
            file.write("\n")
    make_distributed.make(MADE)
    make_adapters.make(os.path.join(MADE, "lora"))
    zero = os.path.join(MADE, "zero", "global_step20")
    os.makedirs(zero)
    half = {"layer.weight": base.to(torch.bfloat16), "layer.bias": base[0].to(torch.bfloat16)}
    scaler = pretend("deepspeed.runtime.fp16.loss_scaler", "LossScaler", cur_scale=1.0)
    stage = pretend("deepspeed.runtime.zero.config", "ZeroStageEnum", value=2)
    states = {"module": half, "buffer_names": [], "optimizer": None, "param_shapes": [collections.OrderedDict(
        (k, v.shape) for k, v in half.items())], "dp_world_size": 2, "mp_world_size": 1, "global_steps": 20, "ds_version": "0.18.2",
        "ds_config": {"zero_optimization": {"stage": 2}}, "shared_params": {}, "lr_scheduler": None}
    save(states, "zero/global_step20/mp_rank_00_model_states.pt")
    for rank in range(2):
        flat = torch.cat([v.flatten().float() for v in half.values()]).chunk(2)[rank] + 1e-4
        save({"optimizer_state_dict": {"zero_stage": stage, "loss_scaler": scaler, "partition_count": 2,
              "single_partition_of_fp32_groups": [flat]}, "ds_version": "0.18.2"},
             f"zero/global_step20/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    with open(os.path.join(MADE, "zero", "latest"), "w") as file:
        file.write("global_step20")
    save({"model": {"w": torch.arange(35, dtype=torch.float32).reshape(5, 7) - 4}}, "dcp_one.pt")  # As in fsdp.


def load(path):
    if os.path.isdir(path):
        out = {}
        if os.path.exists(os.path.join(path, "latest")):
            pretend("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
            pretend("deepspeed.runtime.zero.config", "ZeroStageEnum")
            return load(os.path.join(path, "global_step20", "mp_rank_00_model_states.pt"))
        inner = os.path.join(path, "pytorch_model_fsdp_0")
        if os.path.isdir(inner):
            return load(inner)
        if os.path.exists(os.path.join(path, ".metadata")):
            flatten(make_distributed.load(path), "", out)
            return out
        for name in sorted(os.listdir(path)):
            if not name.endswith(".json"):
                out.update(load(os.path.join(path, name)))
        return out
    if path.endswith(".safetensors"):
        return safetensors.torch.load_file(path)
    out = {}
    try:
        value = torch.load(path, map_location="cpu", weights_only=False)
    except RuntimeError:
        module = torch.jit.load(path)
        value = dict(module.named_parameters()) | dict(module.named_buffers())
    flatten(value, "", out)
    return out


def main():
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true", help="do not write made/ again")
    if not parser.parse_args().keep:
        make()
    paths = []
    for folder in ("safetensors", "torch_zip", "torch_legacy", "made"):
        paths += [f"{folder}/{name}" for name in sorted(os.listdir(os.path.join(HERE, folder))) if name != "lora"]
    with open(os.path.join(HERE, "golden.txt"), "w") as out:
        for path in paths:
            if path.endswith("broken.pt"):
                continue
            print("F", path, sep="\t", file=out)
            for name, tensor in sorted(load(os.path.join(HERE, path)).items()):
                shape = ",".join(str(n) for n in tensor.shape)
                as_float = "-" if tensor.dtype.is_complex else fnv(floats(tensor))
                print("T", name, NAMES[tensor.dtype], shape, fnv(raw(tensor)), as_float, sep="\t", file=out)


if __name__ == "__main__":
    sys.exit(main())
