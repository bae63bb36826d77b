"""Finds the weights in a directory that DeepSpeed's save_checkpoint() wrote."""

from __future__ import annotations

import os
from typing import Optional

_WEIGHTS_NAME = "mp_rank_00_model_states.pt"


def deepspeed_file(path: str) -> Optional[str]:
    """The file of torch.save() that holds the weights at path, for ZeRO stages 0 to 2. None: path
    is of another format. ValueError: stage 3, which divides the weights over all ranks."""
    folder = path
    latest = os.path.join(path, "latest")
    if os.path.isfile(latest):
        with open(latest, encoding="utf-8") as file:
            name = file.read().strip()
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"'{latest}' names '{name}', which is not a folder beside it")
        folder = os.path.join(path, name)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if any(_is_stage_3(name) for name in names):
        raise ValueError(
            "ZeRO stage 3 divides the weights over all ranks: set"
            " stage3_gather_16bit_weights_on_model_save in training, or join the weights with"
            f" zero_to_fp32.py in a `prepare` command: '{path}'"
        )
    return os.path.join(folder, _WEIGHTS_NAME) if _WEIGHTS_NAME in names else None


def _is_stage_3(name: str) -> bool:
    return name.startswith("zero_pp_rank_") and name.endswith("_model_states.pt")
