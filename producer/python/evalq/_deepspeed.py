"""Weights in the directory that DeepSpeed's save_checkpoint() writes."""

from __future__ import annotations

import os
from typing import Optional

_WEIGHTS = "mp_rank_00_model_states.pt"


def deepspeed_file(path: str) -> Optional[str]:
    """The file of torch.save with the weights at path, of ZeRO stages 0 to 2; None: path is of another kind.
    ValueError for stage 3, whose weights are cut over all ranks."""
    folder = path
    latest = os.path.join(path, "latest")
    if os.path.isfile(latest):
        with open(latest, encoding="utf-8") as file:
            name = file.read().strip()
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"'{latest}' names '{name}', which is not a folder beside it")
        folder = os.path.join(path, name)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if any(name.startswith("zero_pp_rank_") and name.endswith("_model_states.pt") for name in names):
        raise ValueError(
            "ZeRO stage 3 cuts weights over ranks: set stage3_gather_16bit_weights_on_model_save in training, or join them with"
            f" zero_to_fp32.py in a `prepare` command: '{path}'"
        )
    return os.path.join(folder, _WEIGHTS) if _WEIGHTS in names else None
