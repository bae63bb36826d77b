"""Lightning's Trainer.validate() for each checkpoint, with module, data and imports kept warm."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from ._serving import Checkpoint, Function, Metrics, Report, Task, renewed, serve
from ._weights import load_into


def serve_lightning(factory: Callable[[], Any]) -> None:
    """Evaluates every checkpoint with trainer.validate(), under the names that the module logs.

    factory() is called once, and again after an evaluation that failed or was cancelled half-way; it returns
    (trainer, module, data): data is one dataloader, several, or a datamodule.
    For each checkpoint (.ckpt, of which no code runs, or safetensors) its weights are loaded into the module.
    """
    serve(lightning_function(factory))


def lightning_function(factory: Callable[[], Any]) -> Function:
    """What serve_lightning() serves."""
    return renewed(lambda: LightningFunction(*factory()))


class LightningFunction:
    """trainer.validate() as an evaluator's function."""

    def __init__(self, trainer: Any, module: Any, data: Any) -> None:
        self._trainer = trainer
        self._module = module
        self._data = data
        self._loaded: Optional[Checkpoint] = None
        self._report: Optional[Report] = None
        trainer.loggers = []  # Results reach the trackers through evalq's logger.
        trainer.callbacks.append(_progress_callback(self, trainer))

    def __call__(self, checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        if self._loaded is not checkpoint:  # Not by the job's name: its weights may be others the next time.
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
        if self._report is not None:
            self._report(done, total)


def _progress_callback(function: LightningFunction, trainer: Any) -> Any:
    """Of the framework, under either of its import names, that the trainer is of."""
    from importlib import import_module

    package = "pytorch_lightning" if type(trainer).__module__.startswith("pytorch_lightning") else "lightning.pytorch"
    base: Any = import_module(package).Callback

    class Progress(base):  # type: ignore[misc,unused-ignore]
        def on_validation_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
        ) -> None:
            batches = trainer.num_val_batches
            total = batches[dataloader_idx] if isinstance(batches, list) and dataloader_idx < len(batches) else -1
            function.progress(batch_idx + 1, int(total) if total != float("inf") else -1)

    return Progress()
