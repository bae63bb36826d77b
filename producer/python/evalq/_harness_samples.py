"""Converts the harnesses' records of each item to evalq's samples (docs/samples.md).

These functions know the harnesses' data by its shape and import none of them. They raise if the
shape is another one; kept() then keeps the result without samples.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

Sample = Dict[str, Any]

FILE = "samples.jsonl"
_LINE_BYTES_MAX = 8 << 20
_NAME_LETTERS = 64
_DIGITS = 16
# The fields of a line of lmms-eval that are not scores.
_LMMS_FIELDS = {"doc_id", "doc", "target", "arguments", "input", "resps", "filtered_resps",
                "token_counts", "doc_hash", "input_media"}  # fmt: skip
_INSPECT_WORDS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0,
                  "false": 0.0}  # fmt: skip
# Metrics that are the mean of the items' scores. Inspect calls their standard error stderr.
INSPECT_MEANS = ("accuracy", "mean")


def kept(make: Callable[[], Iterable[Mapping[str, Any]]]) -> Tuple[List[Mapping[str, Any]], str]:
    """Returns the samples of make(), and "". If make() fails, returns no samples and the reason, so
    that the metrics are not lost."""
    try:
        return list(make()), ""
    except Exception as error:
        return [], f"samples were not kept: {type(error).__name__}: {error}"


def of_lm_eval(
    logged: Mapping[str, Sequence[Mapping[str, Any]]], cluster: str = ""
) -> List[Sample]:
    """logged: results["samples"], by task; those of a group are by its parts. A task with several
    filters has its items once for each; the first filter counts. cluster: "", or the field of a doc
    that names the item's cluster."""
    items = []
    for task, lines in logged.items():
        for line in lines:
            words = line["filter"]
            if words != lines[0]["filter"]:
                continue
            scores = {f"{name},{words}": number(line.get(name)) for name in line["metrics"]}
            asked = line["arguments"]
            choices = [str(each[1]) for each in asked if each[0] == asked[0][0] and len(each) > 1]
            if len(asked) < 2 or len(choices) < len(asked):
                choices = []  # A generation, or choices that differ in the context (winogrande).
            items.append(
                {
                    "id": _part(logged, task) + f"{line['doc_id']}-{line['prompt_hash'][:_DIGITS]}",
                    "scores": scores,
                    "output": _chosen(line["filtered_resps"], choices),
                    "target": _choice(line["target"], choices),
                    **_cluster(line, cluster),
                }
            )
    return _with_common_scores(items)


def of_lmms_eval(
    logged: Mapping[str, Sequence[Mapping[str, Any]]], metrics: Iterable[str], cluster: str = ""
) -> List[Sample]:
    """logged: as for lm-eval. metrics: the names in the result, such as "exact_match,none": a line
    has the name without its filter. A score may be an object with a number `score`."""
    names: Dict[str, str] = {}
    for name in metrics:
        names.setdefault(name.partition(",")[0], name)
    items = []
    for task, lines in logged.items():
        seen = set()
        for line in lines:
            if line["doc_id"] in seen:
                continue  # Another filter.
            seen.add(line["doc_id"])
            scores = {}
            for name in line:
                if name not in _LMMS_FIELDS:
                    value = line[name]
                    value = value.get("score") if isinstance(value, Mapping) else value
                    scores[names.get(name, name)] = number(value)
            # lmms-eval's doc_hash is not stable: it contains the address of an image object.
            name = _part(logged, task) + str(line["doc_id"])
            items.append(
                {
                    "id": stable_id(name, line["arguments"][0]),
                    "scores": scores,
                    "output": text(_single(line["filtered_resps"])),
                    "target": text(line["target"]),
                    **_cluster(line, cluster),
                }
            )
    return _with_common_scores(items)


def of_inspect(log: Any) -> List[Sample]:
    """The scores have the names of the metrics that are their means. A sample without a score is
    left out, as Inspect's metrics do. Repetitions of a sample are one cluster, and so are samples
    with the same metadata if a metric of the task is computed with `cluster`."""
    scorers = log.results.scores
    key = _inspect_cluster([scorer.metrics for scorer in log.eval.scorers or []])
    epochs = max((sample.epoch for sample in log.samples), default=1)
    items = []
    for sample in log.samples:
        scores = {}
        for scorer in scorers:
            found = (sample.scores or {}).get(scorer.scorer)
            value = found.value if found is not None else None
            value = value.get(scorer.name) if isinstance(value, Mapping) else value
            prefix = f"{scorer.name}/" if len(scorers) > 1 else ""
            mean = next((name for name in INSPECT_MEANS if name in scorer.metrics), None)
            scores[prefix + (mean or scorer.name)] = _inspect_number(value)
        if None in scores.values():
            continue
        asked = sample.input if isinstance(sample.input, str) else _inspect_texts(sample.input)
        item = {
            "id": stable_id(str(sample.id), [asked, sample.choices]),
            "scores": scores,
            "output": sample.output.completion,
            "target": text(_single(sample.target)),
        }
        if epochs > 1:
            item["id"] += f"-{sample.epoch}"
            item["cluster"] = str(sample.id)
        if key is not None:
            item["cluster"] = str(sample.metadata[key])
        items.append(item)
    return _with_common_scores(items)


def of_lighteval(details: Mapping[str, Sequence[Mapping[str, Any]]]) -> List[Sample]:
    """details: those of the tracker, by task and number of examples."""
    items = []
    for task, lines in details.items():
        for line in lines:
            doc, said = line["doc"], line["model_response"]
            choices = [str(choice) for choice in doc["choices"] or []]
            gold = doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]]
            if said.get("logprobs"):
                output = _chosen([[value] for value in said["logprobs"]], choices)
            else:
                output = text(_single(said.get("text_post_processed") or said.get("text")))
            name = _part(details, task.partition("|")[0]) + str(doc["id"])
            items.append(
                {
                    "id": stable_id(name, doc["query"]),
                    "scores": {name: number(value) for name, value in line["metric"].items()},
                    "output": output,
                    "target": text(_single([_choice(index, choices) for index in gold])),
                }
            )
    return _with_common_scores(items)


def of_file(folder: str) -> Iterator[Sample]:
    """The lines that a function or program of the user wrote to samples.jsonl, if it did."""
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        for count, line in enumerate(iter(lambda: file.readline(_LINE_BYTES_MAX + 1), b""), 1):
            if len(line) > _LINE_BYTES_MAX:
                raise ValueError(f"'{path}', line {count}: more than {_LINE_BYTES_MAX >> 20} MiB")
            try:
                yield json.loads(line.decode("utf-8"))
            except ValueError as error:
                raise ValueError(f"'{path}', line {count}: not JSON: {error}") from None


def stable_id(name: str, asked: Any) -> str:
    """The harness's name of an item, with a digest of its input: if the input changes, the id does,
    so that the item is not compared with the old one."""
    told = json.dumps([name, asked], ensure_ascii=True, default=str).encode()
    printable = "".join(letter if letter.isprintable() else "_" for letter in name)
    return f"{printable[:_NAME_LETTERS]}-{hashlib.sha256(told).hexdigest()[:_DIGITS]}"


def number(value: Any) -> Optional[float]:
    """A score as a number; None if it is another thing, such as the pair behind a perplexity."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # It is a number of numpy or torch.
    return float(value) if isinstance(value, (bool, int, float)) else None


def text(value: Any) -> Optional[str]:
    """A text as it is, anything else as JSON."""
    if value is None:
        return None
    is_text = isinstance(value, str)
    return str(value) if is_text else json.dumps(value, default=str, ensure_ascii=False)


def _cluster(line: Mapping[str, Any], field: str) -> Dict[str, Optional[str]]:
    """Returns the cluster of a sample: the value of this field of its doc. field "": no cluster."""
    if not field:
        return {}
    if line["doc"].get(field) is None:
        raise ValueError(
            f"doc {line['doc_id']} has no field '{field}', which the task's cluster names"
        )
    return {"cluster": text(line["doc"][field])}


def _single(values: Any) -> Any:
    """Returns the only element of a list, or else the list."""
    return values[0] if isinstance(values, (list, tuple)) and len(values) == 1 else values


def _part(tasks: Mapping[str, Any], task: str) -> str:
    """Returns the prefix that distinguishes the ids of a group's parts."""
    return f"{task}-" if len(tasks) > 1 else ""


def _choice(target: Any, choices: Sequence[str]) -> Optional[str]:
    """Returns the text of a choice; target may be its number."""
    is_index = isinstance(target, int) and not isinstance(target, bool)
    if is_index and 0 <= target < len(choices):
        return choices[int(target)]
    return text(target)


def _chosen(answers: Any, choices: Sequence[str]) -> Optional[str]:
    """The choice with the highest log-probability, or the answer if there are no choices."""
    if len(choices) > 1 and len(answers) == len(choices):
        values = [number(answer[0]) for answer in answers if isinstance(answer, (list, tuple))]
        numbers = [value for value in values if value is not None]
        if len(numbers) == len(choices):
            return choices[max(range(len(numbers)), key=numbers.__getitem__)]
    return text(_single(answers))


def _inspect_number(value: Any) -> Optional[float]:
    """Reads a score as Inspect's value_to_float() does. NaN marks an item without a score."""
    if isinstance(value, str):
        value = _INSPECT_WORDS.get(value, _INSPECT_WORDS.get(value.lower(), value))
        try:
            value = float(value)
        except ValueError:
            return 0.0
    found = number(value)
    return None if found is None or found != found else found


def _inspect_texts(messages: Any) -> List[Any]:
    """Role and content of a chat, without the ids that Inspect draws for each message."""
    return [[message.role, text(_content(message.content))] for message in messages]


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [part.model_dump(mode="json") for part in content]


def _inspect_cluster(metrics: Any) -> Optional[str]:
    """The option `cluster` of the first metric that has one, in lists and maps of metrics."""
    if isinstance(metrics, Mapping):
        metrics = list(metrics.values())
    if isinstance(metrics, list):
        return next(filter(None, map(_inspect_cluster, metrics)), None)
    return (getattr(metrics, "options", None) or {}).get("cluster")


def _with_common_scores(items: List[Sample]) -> List[Sample]:
    """Leaves the scores that are a number in every item, because all samples of a task have the
    same scores. Without such a score there are no samples."""
    names = [
        name
        for name in (items[0]["scores"] if items else {})
        if all(item["scores"].get(name) is not None for item in items)
    ]
    if not names:
        return []
    return [{**item, "scores": {name: item["scores"][name] for name in names}} for item in items]
