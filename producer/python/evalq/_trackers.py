"""Which runs the trackers of this process have open, so that results find their way to them."""

from __future__ import annotations

import sys
from typing import Any, Dict, Mapping, Optional


def _wandb(module: Any) -> Dict[str, Any]:
    run = getattr(module, "run", None)
    if run is None:
        return {}
    named = {"project": "project", "entity": "entity", "group": "group", "run_id": "id"}
    return {f"wandb_{name}": getattr(run, attribute, None) for name, attribute in named.items()}


def _mlflow(module: Any) -> Dict[str, Any]:
    active = getattr(module, "active_run", None)
    run = active() if active is not None else None
    return {} if run is None else {"mlflow_run_id": run.info.run_id}


def open_trackers(given: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    """What was given, and besides it what those trackers say that the training has imported itself."""
    found: Dict[str, Any] = {}
    for name, ask in (("wandb", _wandb), ("mlflow", _mlflow)):
        module = sys.modules.get(name)
        if module is not None:
            try:
                found.update(ask(module))
            except Exception:  # A tracker's own trouble is no reason to submit nothing.
                continue
    known = {key: str(value) for key, value in found.items() if value}
    return {**known, **(given or {})}
