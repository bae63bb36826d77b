"""Compares a variant's name in the training with its name in the queue, which may be shortened and
hashed."""

from __future__ import annotations

import re
from typing import Tuple

_MAPPED = "?"  # Stands for the hash; no name in the queue contains it.


def curve(variant: str) -> str:
    """The variant's name. If the queue maps it (evq_job_map_name()), the part before the hash,
    followed by "?"."""
    if re.fullmatch(r"(?!\.\.?$)[A-Za-z0-9._-]{1,32}", variant or "regular"):
        return variant or "regular"
    return re.sub(r"-?[^A-Za-z0-9._-]+", "-", variant)[:23].rstrip("-") + _MAPPED


def curves(queued: str) -> Tuple[str, ...]:
    """The names that curve() may return for a name in the queue; the name itself comes first."""
    mapped = re.fullmatch(r"(.*?)-?[0-9a-f]{8}", queued)
    return (queued, mapped[1] + _MAPPED) if mapped else (queued,)
