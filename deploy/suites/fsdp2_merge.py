#!/usr/bin/env python3
"""Joins what each rank of FSDP2 saved into one checkpoint that Transformers reads; a `prepare` command (docs/lmms.md).

    fsdp2_merge.py [--dtype keep|bfloat16|float16|float32]     as `prepare`: $EVALQ_CHECKPOINT to $EVALQ_OUTPUT
    fsdp2_merge.py --keep                                      as evaluator: what was prepared, to where /merge wants it
    fsdp2_merge.py [--dtype ...] SOURCE VARIANT OUTPUT         by hand

SOURCE holds pytorch_model_fsdp_0/ (regular weights) or pytorch_ema_model_fsdp_0/ (averages) with a file
model_world_size_W_rank_R.pt for each rank, or a distributed checkpoint (.metadata). Each tensor is put together as its own
placements say, so that parts that happen to be equal are still parts. Without --dtype weights become bfloat16, as LMMs-Engine's
own merger has them. Needs torch and safetensors, for a distributed checkpoint evalq's Python package too, and no process group.
"""
import argparse
import json
import os
import re
import shutil
import sys

FINAL = os.EX_DATAERR  # The exit status that says: trying again is of no use.
FOLDERS = {"regular": "pytorch_model_fsdp_0", "ema": "pytorch_ema_model_fsdp_0"}
RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
BESIDE = (".json", ".txt", ".model", ".jinja", ".py", ".tiktoken", ".spm")
NOT_BESIDE = ("trainer_state.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")  # As they are named here.
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
PART_BYTES = 5 << 30
PACKAGE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "producer", "python")  # Of a checkout.


class Refused(Exception):
    """It cannot be joined, now or later."""


def rank_files(folder):
    """The files of all ranks, in their order."""
    worlds = {}
    for name in os.listdir(folder):
        match = RANK_FILE.fullmatch(name)
        if match:
            worlds.setdefault(int(match[1]), {})[int(match[2])] = os.path.join(folder, name)
    if len(worlds) != 1:
        raise Refused(f"'{folder}' holds the files of {len(worlds)} worlds of ranks (model_world_size_W_rank_R.pt), expected one")
    ((world, ranks),) = worlds.items()
    missing = [rank for rank in range(world) if rank not in ranks]
    if missing:
        raise Refused(f"'{folder}' lacks rank {missing[0]} of {world}")
    return [ranks[rank] for rank in range(world)]


def load(path):
    """Nothing but tensors and what places them is made of the file: it is data, and may come from anybody."""
    import torch
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import _dtensor_spec as spec

    safe = [dt.DTensor, DeviceMesh, dt.Shard, dt.Replicate, dt.Partial, spec.DTensorSpec, spec.TensorMeta]
    for module, name in (("torch.distributed._mesh_layout", "_MeshLayout"), ("torch.distributed.tensor.placement_types", "_StridedShard"),
                         ("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry")):
        try:
            safe.append(getattr(__import__(module, fromlist=[name]), name))
        except (ImportError, AttributeError):
            pass  # Of other versions of torch.
    with torch.serialization.safe_globals(safe):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def plain_name(name):
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def join_placed(name, parts):
    """A tensor of which parts[R] is what rank R holds, by its placements on the mesh."""
    import torch
    from torch.distributed.tensor import Replicate, Shard

    spec = parts[0]._spec
    mesh = spec.mesh.mesh

    def join(ranks, placements):
        if not placements:
            return parts[int(ranks)]._local_tensor
        placement = placements[0]
        if isinstance(placement, Replicate):
            return join(ranks[0], placements[1:])
        if type(placement) is not Shard:
            raise Refused(f"'{name}' is placed as {placement}, which is not joined here")
        return torch.cat([join(row, placements[1:]) for row in ranks], dim=placement.dim)

    whole = join(mesh, spec.placements)
    if whole.shape != spec.tensor_meta.shape:
        raise Refused(f"'{name}' has the shape {tuple(whole.shape)} when joined, expected {tuple(spec.tensor_meta.shape)}")
    return whole


def join_plain(parts):
    """Without placements: the same on every rank is whole, anything else was cut along the first dimension."""
    import torch

    if all(part.shape == parts[0].shape and torch.equal(part, parts[0]) for part in parts[1:]):
        return parts[0]
    return torch.cat(parts, dim=0)


def joined_ranks(folder):
    """(name, tensor) in the order of the names."""
    ranks = [load(path) for path in rank_files(folder)]
    names = set(ranks[0])
    if any(set(rank) != names for rank in ranks):
        raise Refused(f"the ranks of '{folder}' do not hold the same tensors")
    for name in sorted(names):
        parts = [rank.pop(name) for rank in ranks]
        if not hasattr(parts[0], "shape"):
            continue  # An extra state; no weight.
        placed = hasattr(parts[0], "_spec")
        yield plain_name(name), join_placed(name, parts) if placed else join_plain(parts)


def joined_dcp(folder):
    """By the package's reader: that of torch would run what the index says."""
    sys.path.append(PACKAGE)
    try:
        from evalq._checkpoint.weights import load_weights
    except ImportError as fault:
        raise Refused(f"'{folder}' is a distributed checkpoint, which evalq's Python package reads: {fault}") from fault
    try:
        state = load_weights(folder)
    except ValueError as fault:
        raise Refused(str(fault)) from fault
    for name in sorted(state):
        yield plain_name(name), state[name]


def clear(output):
    """Before other weights come: whoever finds one file beside several would read that one, and parts of both have one name."""
    for name in os.listdir(output):
        if WEIGHTS.fullmatch(name):
            os.unlink(os.path.join(output, name))


def write(tensors, output, dtype):
    """Into model.safetensors, or into parts of at most 5 GB with their index."""
    import torch
    from safetensors.torch import save_file

    wanted = None if dtype == "keep" else getattr(torch, dtype)
    part, part_bytes, parts, total = {}, 0, [], 0

    def flush():
        nonlocal part, part_bytes
        path = os.path.join(output, f".part-{len(parts)}")
        save_file(part, path, metadata={"format": "pt"})
        parts.append((path, list(part)))
        part, part_bytes = {}, 0

    for name, tensor in tensors:
        if wanted is not None and tensor.is_floating_point():
            tensor = tensor.to(wanted)
        tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()
        if part and part_bytes + size > PART_BYTES:
            flush()
        # A copy: what was read ahead goes, and two names of one tensor are two tensors.
        part[name] = tensor.clone()
        part_bytes += size
        total += size
    if not part and not parts:
        raise Refused("there are no weights in it")
    flush()
    clear(output)
    if len(parts) == 1:
        os.replace(parts[0][0], os.path.join(output, "model.safetensors"))
        return total
    weight_map = {}
    for number, (path, names) in enumerate(parts):
        target = f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors"
        os.replace(path, os.path.join(output, target))
        weight_map.update(dict.fromkeys(names, target))
    with open(os.path.join(output, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=1)
    return total


def merge(source, variant, output, dtype):
    if variant not in FOLDERS:
        raise Refused(f"the variant is '{variant}', expected {' or '.join(FOLDERS)}")
    folder = os.path.join(source, FOLDERS[variant])
    if not os.path.isdir(folder):
        if variant != "regular" or not any(RANK_FILE.fullmatch(name) for name in os.listdir(source)):
            raise Refused(f"Checkpoint type '{variant}' not found at {folder}")
        folder = source
    distributed = os.path.exists(os.path.join(folder, ".metadata"))
    total = write(joined_dcp(folder) if distributed else joined_ranks(folder), output, dtype)
    for name in sorted(os.listdir(source)):
        path = os.path.join(source, name)
        if os.path.isfile(path) and name.endswith(BESIDE) and name not in NOT_BESIDE:
            shutil.copyfile(path, os.path.join(output, name))
    print(f"fsdp2_merge: {folder}: {total} bytes of weights", flush=True)


def allowed(directory):
    real = os.path.realpath(directory)
    bases = [os.path.realpath(base) for base in os.environ.get("EVALQ_LMMS_OUTPUT", "").split(":") if base]
    return any(base == "/" or real == base or real.startswith(base + "/") for base in bases)


def keep():
    """Copies the prepared checkpoint to where POST /merge promised it."""
    with open(os.environ["EVALQ_JOB"], encoding="utf-8") as file:
        job = json.load(file)
    output = json.loads(job["params"].get("lmms_merge", "{}")).get("output", "")
    if not output or not allowed(output):
        raise Refused(f"'{output}' is beneath no directory of $EVALQ_LMMS_OUTPUT")
    os.makedirs(output, exist_ok=True)
    if os.path.samefile(output, job["checkpoint"]):  # Of a suite without prepare: its weights would go.
        raise Refused(f"'{output}' is the checkpoint itself")
    clear(output)
    count = size = 0
    for name in sorted(os.listdir(job["checkpoint"])):
        for left in os.listdir(output):  # By an attempt that was killed.
            if re.fullmatch(re.escape(f".{name}.") + r"\d+", left):
                os.unlink(os.path.join(output, left))
        partial = os.path.join(output, f".{name}.{os.getpid()}")
        try:
            shutil.copyfile(os.path.join(job["checkpoint"], name), partial)
            size += os.path.getsize(partial)
            os.replace(partial, os.path.join(output, name))
        except OSError:
            if os.path.exists(partial):
                os.unlink(partial)  # Of a disk that is full it would take the rest.
            raise
        count += 1
    with open(os.environ["EVALQ_RESULT"], "w", encoding="utf-8") as file:
        json.dump({"files": count, "bytes": size}, file)


def main():
    parser = argparse.ArgumentParser(prog="fsdp2_merge.py", description="Joins what each rank of FSDP2 saved.")
    parser.add_argument("--dtype", choices=("keep", "bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("places", nargs="*", metavar="SOURCE VARIANT OUTPUT")
    options = parser.parse_args()
    try:
        if options.keep:
            keep()
        elif len(options.places) == 3:
            os.makedirs(options.places[2], exist_ok=True)
            merge(*options.places, options.dtype)
        elif not options.places and "EVALQ_OUTPUT" in os.environ:
            with open(os.environ["EVALQ_JOB"], encoding="utf-8") as file:
                variant = json.load(file)["variant"]
            merge(os.environ["EVALQ_CHECKPOINT"], variant, os.environ["EVALQ_OUTPUT"], options.dtype)
        else:
            parser.error("SOURCE VARIANT OUTPUT are needed, or a worker that runs it")
    except Refused as fault:
        print(f"fsdp2_merge: {fault}", file=sys.stderr)
        return FINAL
    return 0


if __name__ == "__main__":
    sys.exit(main())
