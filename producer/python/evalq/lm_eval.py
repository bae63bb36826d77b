"""python -m evalq.lm_eval: lm-evaluation-harness as a persistent evaluator.

    evaluators:
      harness: {kind: persistent, argv: [python3, -m, evalq.lm_eval, --batch-size, "8"], start_seconds: 900}
    suites:
      lm:
        evaluator: harness
        tasks: [{name: hellaswag}, {name: arc, source: arc_easy}]

The harness, its tasks and their data stay loaded. A model that is a torch module (--model hf and the like) stays too,
with its tokenizer: a checkpoint of the same config.json and tokenizer only has its weights copied into it. A model of
another kind (vllm, sglang, an API) is made anew for each checkpoint. A task of the suite is the harness's task or group of its name, or of
its option `source`; metrics have the harness's names ("acc,none"). --tasks loads tasks before the first job.
"""

from __future__ import annotations

import argparse
import gc
import os
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from ._runnable import quietly, refuse
from ._serving import Checkpoint, Metrics, Report, Task, serve
from ._weights import load_into

_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_MODEL_FILES = (  # A model of these stays: what tells it from another of the same shape.
    _CONFIG, _ADAPTER, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
)  # fmt: skip
_MODEL_ENDINGS = (".model", ".jinja", ".py", ".tiktoken", ".bpe")  # Of tokenizers, templates, a model's own code.


class _Tasks:
    """A TaskManager that loads each list of tasks once."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._loaded: Dict[Tuple[str, ...], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def load(self, tasks: List[str]) -> Any:
        key = tuple(tasks)
        if key not in self._loaded:
            self._loaded[key] = self._manager.load(tasks)
        return self._loaded[key]


class Harness:
    """lm_eval.simple_evaluate() as an evaluator's function."""

    def __init__(self, options: argparse.Namespace) -> None:
        import lm_eval  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from lm_eval.tasks import TaskManager  # type: ignore[import-untyped,import-not-found,unused-ignore]

        self._lm_eval = lm_eval
        self._options = options
        self._tasks = _Tasks(TaskManager(include_path=options.include_path))
        self._lm: Any = None
        self._made_of: Optional[Dict[str, bytes]] = None
        self._loaded: Optional[Checkpoint] = None
        for name in options.tasks.split(",") if options.tasks else []:
            if hasattr(self._tasks._manager, "load"):
                self._tasks.load([name.strip()])

    def __call__(self, checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        if self._loaded is not checkpoint:  # Not by the job's name: its weights may be others the next time.
            report(0, -1, "load the model")
            self._load(checkpoint)
            self._loaded = checkpoint
        name = task.options.get("source", str(task))
        report(0, -1, name)
        options = self._options
        results = self._lm_eval.simple_evaluate(
            model=self._lm,
            tasks=[name],
            task_manager=self._tasks,
            num_fewshot=options.num_fewshot,
            limit=options.limit,
            log_samples=False,
            bootstrap_iters=options.bootstrap_iters,
            apply_chat_template=options.apply_chat_template,
            gen_kwargs=options.gen_kwargs,
        )
        return metrics_of(results, name)

    def _load(self, checkpoint: Checkpoint) -> None:
        made_of = _made_of(checkpoint.path)
        model = getattr(self._lm, "model", None)
        same = made_of == self._made_of and _CONFIG in made_of and _ADAPTER not in made_of
        if same and hasattr(model, "state_dict"):  # A torch module.
            load_into(model, checkpoint.load("torch"), checkpoint.path)
            return
        self._lm = model = None  # The next one needs its memory.
        gc.collect()
        from lm_eval.api.registry import get_model  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from lm_eval.utils import simple_parse_args_string  # type: ignore[import-untyped,import-not-found,unused-ignore]

        options = self._options
        arguments = {**simple_parse_args_string(options.model_args), "pretrained": checkpoint.path}  # A path may hold commas.
        extra = {"batch_size": options.batch_size, "max_batch_size": None, "device": options.device or _device()}
        self._lm = get_model(options.model).create_from_arg_obj(arguments, extra)
        self._made_of = made_of


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _made_of(path: str) -> Dict[str, bytes]:
    """The files of a checkpoint, beside its weights, that its model and tokenizer are made of: content by path."""
    files: Dict[str, bytes] = {}
    for folder in ("", "additional_chat_templates"):
        inside = os.path.join(path, folder)
        for name in os.listdir(inside) if os.path.isdir(inside) else []:
            file = os.path.join(inside, name)
            if (name in _MODEL_FILES or name.endswith(_MODEL_ENDINGS)) and os.path.isfile(file):
                with open(file, "rb") as content:
                    files[os.path.join(folder, name)] = content.read()
    return files


def metrics_of(results: Any, name: str) -> Metrics:
    """The numbers of one task or group, with the number of samples."""
    found = results["results"].get(name) or results.get("groups", {}).get(name)
    if found is None:
        raise ValueError(f"lm-evaluation-harness gave no results for '{name}'")
    metrics = {
        key: value
        for key, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key not in ("sample_len", "samples")
    }
    counts = results.get("n-samples", {})
    parts = results.get("group_subtasks", {}).get(name) or [name]
    if parts and all(part in counts for part in parts):
        metrics["n"] = sum(int(counts[part]["effective"]) for part in parts)
    return metrics


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value >= 1 else value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(f"{self.prog}: {message}")


def main() -> None:
    parser = _Parser(prog="python -m evalq.lm_eval", description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", default="", help="load these before the first job: a,b")
    parser.add_argument("--model", default="hf", help="the harness's kind of model; default hf")
    parser.add_argument("--model-args", default="", help="further arguments of the model: dtype=bfloat16,...")
    parser.add_argument("--num-fewshot", type=int)
    parser.add_argument("--batch-size", default="1")
    parser.add_argument("--limit", type=_number, help="samples of each task, or a part below 1")
    parser.add_argument("--device")
    parser.add_argument("--include-path", help="a directory of tasks of your own")
    parser.add_argument("--gen-kwargs")
    parser.add_argument("--bootstrap-iters", type=int, default=100000)
    parser.add_argument("--apply-chat-template", action="store_true")
    options = parser.parse_args()
    serve(quietly(lambda: Harness(options)))


if __name__ == "__main__":
    main()
