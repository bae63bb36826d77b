"""Evaluates checkpoints with Lightning's Trainer.validate(), and keeps the module warm."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable, Dict, Optional

from ._evaluation import Checkpoint, Function, Metrics, Report, Task
from ._serving import recreated_after_failure, serve
from ._checkpoint.weights import load_into


def serve_lightning(factory: Callable[[], Any]) -> None:
    """Evaluates each checkpoint with the trainer, module and data that factory() returns.

    factory() returns (trainer, module, data), where data is one dataloader, several, or a
    datamodule. For each checkpoint (.ckpt or safetensors; no code in it runs), its weights are
    copied into the module, and trainer.validate() is called. The metrics have the names that the
    module logs. factory() is called once, and again after an evaluation that failed or was
    cancelled. Like serve(), it returns when the worker ends.
    """
    serve(make_lightning_evaluator(factory))


def make_lightning_evaluator(factory: Callable[[], Any]) -> Function:
    """Returns the function that serve_lightning() serves."""
    return recreated_after_failure(lambda: LightningEvaluator(*factory()))


class LightningEvaluator:
    """Evaluates checkpoints with one Lightning trainer. Removes the trainer's loggers, because
    evalq-logger reports the results."""

    def __init__(self, trainer: Any, module: Any, data: Any) -> None:
        self._trainer = trainer
        self._module = module
        self._data = data
        self._loaded: Optional[Checkpoint] = None
        self._report: Optional[Report] = None
        trainer.loggers = []
        trainer.callbacks.append(_progress_callback(self, trainer))

    def __call__(self, checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        if self._loaded is not checkpoint:  # A later job of the same name may have other weights.
            load_into(self._module, checkpoint.load(), checkpoint.path)
            self._loaded = checkpoint
        self._report = report
        report(0, -1, "validate")
        keyword = "datamodule" if hasattr(self._data, "val_dataloader") else "dataloaders"
        try:
            results = self._trainer.validate(self._module, verbose=False, **{keyword: self._data})
        finally:
            self._report = None
        metrics: Dict[str, Any] = {}
        for result in results:
            metrics.update(result)
        return metrics

    def progress(self, done: int, total: int) -> None:
        """Reports batches; total is -1 if it is unknown."""
        if self._report is not None:
            self._report(done, total)


def _progress_callback(evaluator: LightningEvaluator, trainer: Any) -> Any:
    """A callback that reports progress. Lightning has two import names, and a callback must have
    the base class of the name that the trainer has."""
    old_name = type(trainer).__module__.startswith("pytorch_lightning")
    base: Any = import_module("pytorch_lightning" if old_name else "lightning.pytorch").Callback

    class Progress(base):  # type: ignore[misc,unused-ignore]
        def on_validation_batch_end(
            self,
            trainer: Any,
            pl_module: Any,
            outputs: Any,
            batch: Any,
            batch_idx: int,
            dataloader_idx: int = 0,
        ) -> None:
            batches = trainer.num_val_batches
            total = -1
            if isinstance(batches, list) and dataloader_idx < len(batches):
                total = batches[dataloader_idx]
            evaluator.progress(batch_idx + 1, int(total) if total != float("inf") else -1)

    return Progress()
