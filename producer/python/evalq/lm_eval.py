"""Serves lm-evaluation-harness as a persistent evaluator: python -m evalq.lm_eval.

    evaluators:
      harness:
        kind: persistent
        argv: [python3, -m, evalq.lm_eval, --batch-size, "8"]
        start_seconds: 900
    suites:
      lm:
        evaluator: harness
        tasks: [{name: hellaswag}, {name: arc, source: arc_easy}]

A task of the suite names a task or group of the harness; its option `source` gives that name if it
is another one. Metrics keep the harness's names, such as "acc,none".

The harness, its tasks and their data stay loaded. evalq's native engine (--model evalq, for
log-likelihoods) stays and reads the weights of each checkpoint. A model that is a torch module
(--model hf) stays too: a checkpoint with the same config.json and tokenizer only has its weights
copied into it. Other models (vllm, sglang, an API) are created again for each checkpoint. With
--tasks, tasks are loaded before the first job.
"""

from __future__ import annotations

import argparse
import gc
import os
from importlib import import_module
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from ._harness_samples import kept, of_lm_eval
from ._program_module import quietly, refuse
from ._evaluation import Checkpoint, Metrics, Report, Task
from ._serving import serve
from ._checkpoint.safetensors import safetensors_files
from ._checkpoint.weights import load_into

_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
# A model stays loaded if these files of two checkpoints are equal. They are all files, besides the
# weights, that define a model and its tokenizer: configurations, vocabularies, chat templates,
# code.
_DEFINITION_NAMES = (
    _CONFIG, _ADAPTER, "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
)  # fmt: skip
_DEFINITION_ENDINGS = (".model", ".jinja", ".py", ".tiktoken", ".bpe")


class _TaskCache:
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
    """Evaluates checkpoints with lm_eval.simple_evaluate(). options are those of main()."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._lm_eval: Any = import_module("lm_eval")
        manager: Any = import_module("lm_eval.tasks").TaskManager(include_path=options.include_path)
        if options.model == "evalq":
            import_module("evalq.lm_eval_model")  # Adds the model to those of the harness.
        warm: Any = import_module("evalq.model_server.harness_lm_eval")
        warm.keep_requests()
        warm.ask_no_machine()
        self._options = options
        self._tasks = _TaskCache(manager)
        self._lm: Any = None
        self._definition: Optional[Dict[str, bytes]] = None
        self._loaded: Optional[Checkpoint] = None
        for name in options.tasks.split(",") if options.tasks else []:
            if hasattr(manager, "load"):
                self._tasks.load([name.strip()])

    def __call__(self, checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        if self._loaded is not checkpoint:  # A later job of the same name may have other weights.
            report(0, -1, "load the model")
            self._load(checkpoint)
            self._loaded = checkpoint
        name = task.options.get("source", str(task))
        report(0, -1, name)
        if self._options.model == "evalq":
            self._lm.listen(lambda done, total, doing: report(done, total, f"{name}: {doing}"))
        options = self._options
        results = self._lm_eval.simple_evaluate(
            model=self._lm,
            tasks=[name],
            task_manager=self._tasks,
            num_fewshot=options.num_fewshot,
            limit=options.limit,
            log_samples=report.keeps_samples,
            bootstrap_iters=options.bootstrap_iters,
            apply_chat_template=options.apply_chat_template,
            gen_kwargs=options.gen_kwargs,
        )
        if report.keeps_samples:
            report.samples, report.note = kept(
                lambda: of_lm_eval(results["samples"], task.options.get("cluster", ""))
            )
        return metrics_of(results, name)

    def _load(self, checkpoint: Checkpoint) -> None:
        if self._lm is not None and self._options.model == "evalq":
            self._lm.load_checkpoint(checkpoint.path, checkpoint.variant)
            return
        definition = _read_definition(checkpoint.path)
        model = getattr(self._lm, "model", None)
        same = definition == self._definition and _CONFIG in definition
        if same and _ADAPTER not in definition and hasattr(model, "state_dict"):
            load_into(model, checkpoint.load("torch"), checkpoint.path)
            return
        self._lm = model = None  # This frees the memory that the next model needs.
        gc.collect()
        registry: Any = import_module("lm_eval.api.registry")
        utils: Any = import_module("lm_eval.utils")
        options = self._options
        arguments = utils.simple_parse_args_string(options.model_args)
        arguments = {**arguments, "pretrained": checkpoint.path}  # A path may contain commas.
        if options.model == "evalq":
            arguments["variant"] = checkpoint.variant
        more = {
            "batch_size": options.batch_size,
            "max_batch_size": None,
            "device": options.device or (None if options.model == "evalq" else _default_device()),
        }
        self._lm = registry.get_model(options.model).create_from_arg_obj(arguments, more)
        if options.model != "evalq" and _has_variants(checkpoint):
            model = getattr(self._lm, "model", None)
            if _ADAPTER in definition or not hasattr(model, "state_dict"):
                raise ValueError(
                    f"variant '{checkpoint.variant}' needs --model hf or evalq, not"
                    f" '{options.model}', or safetensors in a directory of its own instead of"
                    f" '{checkpoint.path}'"
                )
            load_into(model, checkpoint.load("torch"), checkpoint.path)
        self._definition = definition


def _has_variants(checkpoint: Checkpoint) -> bool:
    """Whether the variant may have weights other than those that the harness reads from the
    checkpoint. A directory with safetensors has one set of weights."""
    return checkpoint.variant != "regular" and not safetensors_files(checkpoint.path)


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _read_definition(path: str) -> Dict[str, bytes]:
    """The files that define the model and tokenizer at path: content by relative path."""
    files: Dict[str, bytes] = {}
    for folder in ("", "additional_chat_templates"):
        directory = os.path.join(path, folder)
        for name in os.listdir(directory) if os.path.isdir(directory) else []:
            file = os.path.join(directory, name)
            defines = name in _DEFINITION_NAMES or name.endswith(_DEFINITION_ENDINGS)
            if defines and os.path.isfile(file):
                with open(file, "rb") as content:
                    files[os.path.join(folder, name)] = content.read()
    return files


def metrics_of(results: Any, name: str) -> Metrics:
    """The metrics of one task or group, and the number of its samples as "n". results is what
    simple_evaluate() returned. ValueError: it has none for name."""
    found = results["results"].get(name) or results.get("groups", {}).get(name)
    if found is None:
        raise ValueError(f"lm-evaluation-harness gave no results for '{name}'")
    metrics = {
        key: value
        for key, value in found.items()
        if isinstance(value, (int, float))
        and not isinstance(value, bool)
        and key not in ("sample_len", "samples")
    }
    counts = results.get("n-samples", {})
    parts = results.get("group_subtasks", {}).get(name) or [name]
    if parts and all(part in counts for part in parts):
        metrics["n"] = sum(int(counts[part]["effective"]) for part in parts)
    return metrics


def _limit(text: str) -> float:
    value = float(text)
    return int(value) if value >= 1 else value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(f"{self.prog}: {message}")


def main() -> None:
    parser = _Parser(prog="python -m evalq.lm_eval", description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", default="", help="load these before the first job: a,b")
    parser.add_argument("--model", default="hf", help="the harness's kind of model; default hf")
    parser.add_argument(
        "--model-args", default="", help="more arguments of the model: dtype=bfloat16,..."
    )
    parser.add_argument("--num-fewshot", type=int)
    parser.add_argument("--batch-size", default="1")
    parser.add_argument("--limit", type=_limit, help="samples of each task, or a fraction below 1")
    parser.add_argument("--device")
    parser.add_argument("--include-path", help="a directory with your own tasks")
    parser.add_argument("--gen-kwargs")
    parser.add_argument("--bootstrap-iters", type=int, default=100000)
    parser.add_argument("--apply-chat-template", action="store_true")
    options = parser.parse_args()
    serve(quietly(lambda: Harness(options)))


if __name__ == "__main__":
    main()
