"""The name of a variant: what a trainer calls it, and what the queue may have in its place."""

from __future__ import annotations

import re
from typing import Tuple

_MAPPED = "?"  # Stands for a hash; in no name of the queue.


def curve(variant: str) -> str:
    """The name, or what the queue's name for it begins with, as evq_job_map_name() makes it: a hash follows."""
    if re.fullmatch(r"(?!\.\.?$)[A-Za-z0-9._-]{1,32}", variant or "regular"):
        return variant or "regular"
    return re.sub(r"-?[^A-Za-z0-9._-]+", "-", variant)[:23].rstrip("-") + _MAPPED


def curves(queued: str) -> Tuple[str, ...]:
    """Those that the queue may call so: the one of that very name first."""
    mapped = re.fullmatch(r"(.*?)-?[0-9a-f]{8}", queued)
    return (queued, mapped[1] + _MAPPED) if mapped else (queued,)
