"""Finds the open W&B and MLflow runs of this process, so that results reach the same runs."""

from __future__ import annotations

import sys
from typing import Any, Dict, Mapping, Optional


def _wandb(module: Any) -> Dict[str, Any]:
    run = getattr(module, "run", None)
    if run is None:
        return {}
    attributes = {"project": "project", "entity": "entity", "group": "group", "run_id": "id"}
    return {f"wandb_{key}": getattr(run, name, None) for key, name in attributes.items()}


def _mlflow(module: Any) -> Dict[str, Any]:
    active = getattr(module, "active_run", None)
    run = active() if active is not None else None
    return {} if run is None else {"mlflow_run_id": run.info.run_id}


def open_trackers(given: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    """Returns given, and adds the open runs of the trackers that the training has imported."""
    found: Dict[str, Any] = {}
    for name, find in (("wandb", _wandb), ("mlflow", _mlflow)):
        module = sys.modules.get(name)
        if module is not None:
            try:
                found.update(find(module))
            except Exception:  # An error in a tracker must not prevent the submit.
                continue
    known = {key: str(value) for key, value in found.items() if value}
    return {**known, **(given or {})}
