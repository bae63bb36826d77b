"""How the harnesses' own records of each item become evalq's samples.

The records have the shape of lm-eval 0.4.13, lmms-eval 0.7.3, inspect_ai 0.3.285 and lighteval
0.13. tests/peers/test_harnesses.py runs the harnesses themselves.
"""

from __future__ import annotations

import os
import tempfile
import unittest
from types import SimpleNamespace as Record
from typing import Any, Dict, List

import scene  # noqa: F401  It makes evalq importable.

from evalq._harness_samples import (
    of_file,
    of_inspect,
    of_lighteval,
    of_lm_eval,
    of_lmms_eval,
    stable_id,
)
from evalq.model_server.harnesses import Target


def target(keeps: bool = True) -> Target:
    return Target("http://x/v1", "k", "m", "/c", 256, lambda *words, **more: None, None, keeps)


def lm_eval_line(number: int, words: str = "none", **more: Any) -> Dict[str, Any]:
    line = {
        "doc_id": number,
        "doc": {"question": "?"},
        "target": "4",
        "arguments": [(f"2+{number}=", {"until": ["\n"]})],
        "resps": [["5"]],
        "filtered_resps": ["5"],
        "filter": words,
        "metrics": ["exact_match"],
        "doc_hash": "d" * 64,
        "prompt_hash": f"{number:064x}",
        "target_hash": "t" * 64,
        "exact_match": float(number % 2),
    }
    return {**line, **more}


class LmEvalTest(unittest.TestCase):
    def test_generation_is_that_of_the_first_filter(self) -> None:
        lines = [lm_eval_line(i, words) for words in ("strict", "flexible") for i in range(3)]
        items = of_lm_eval({"gsm8k": lines})
        self.assertEqual([item["id"] for item in items], [f"{i}-{i:064x}"[:18] for i in range(3)])
        self.assertEqual(items[1]["scores"], {"exact_match,strict": 1.0})
        self.assertEqual((items[1]["output"], items[1]["target"]), ("5", "4"))
        self.assertEqual(of_lm_eval({"gsm8k": [lm_eval_line(0, target=0)]})[0]["target"], "0")

    def test_field_of_the_doc_names_the_cluster(self) -> None:
        docs = [{"passage": "a"}, {"passage": "a"}, {"passage": 7}]
        lines = [lm_eval_line(i, doc=doc) for i, doc in enumerate(docs)]
        items = of_lm_eval({"boolq": lines}, "passage")
        self.assertEqual([item["cluster"] for item in items], ["a", "a", "7"])
        self.assertNotIn("cluster", of_lm_eval({"boolq": lines})[0])
        with self.assertRaisesRegex(ValueError, "doc 0 has no field 'page', which the task's cluster"):
            of_lm_eval({"boolq": lines}, "page")

    def test_choice_is_shown_as_its_text(self) -> None:
        asked = [("The sky is", " red"), ("The sky is", " blue")]
        told = [(-4.5, False), (-1.25, True)]
        more = {"arguments": asked, "filtered_resps": told, "target": 0, "metrics": ["acc"]}
        item = of_lm_eval({"sky": [lm_eval_line(0, **more, acc=0.0)]})[0]
        self.assertEqual((item["output"], item["target"]), (" blue", " red"))
        asked = [("The red", " sky"), ("The blue", " sky")]  # As winogrande asks.
        item = of_lm_eval({"sky": [lm_eval_line(0, **{**more, "arguments": asked}, acc=0.0)]})[0]
        self.assertEqual((item["output"], item["target"]), ("[[-4.5, false], [-1.25, true]]", "0"))

    def test_parts_of_a_group_have_ids_of_their_own_and_common_scores(self) -> None:
        other = lm_eval_line(0, metrics=["exact_match", "f1"], f1=0.5)
        items = of_lm_eval({"easy": [lm_eval_line(0)], "hard": [other]})
        self.assertEqual([item["id"][:7] for item in items], ["easy-0-", "hard-0-"])
        self.assertEqual([list(item["scores"]) for item in items], [["exact_match,none"]] * 2)

    def test_pairs_behind_a_perplexity_are_no_scores(self) -> None:
        line = lm_eval_line(0, metrics=["word_perplexity"], word_perplexity=(-12.0, 3))
        self.assertEqual(of_lm_eval({"wikitext": [line]}), [])


class LmmsEvalTest(unittest.TestCase):
    def line(self, number: int, **more: Any) -> Dict[str, Any]:
        line = {
            "doc_id": number,
            "doc": {},
            "target": "cat",
            "arguments": ["What is this?", {"max_new_tokens": 6}, number, "task", "test"],
            "resps": [["dog"]],
            "filtered_resps": ["dog"],
            "token_counts": [None],
            "doc_hash": "<PIL.Image at 0x7f00>",
            "exact_match": float(number % 2),
        }
        return {**line, **more}

    def test_scores_have_the_names_of_the_metrics(self) -> None:
        metrics = ["exact_match,none", "exact_match_stderr,none", "n"]
        items = of_lmms_eval({"pets": [self.line(0), self.line(1), self.line(0)]}, metrics)
        self.assertEqual([item["scores"] for item in items],
                         [{"exact_match,none": 0.0}, {"exact_match,none": 1.0}])  # fmt: skip
        self.assertEqual((items[0]["output"], items[0]["target"]), ("dog", "cat"))
        moved = of_lmms_eval({"pets": [self.line(0, doc_hash="<PIL.Image at 0x7fff>")]}, metrics)
        self.assertEqual(moved[0]["id"], items[0]["id"])
        asked = ["What is that?", {}]
        changed = of_lmms_eval({"pets": [self.line(0, arguments=asked)]}, metrics)
        self.assertNotEqual(changed[0]["id"], items[0]["id"])

    def test_score_in_an_object_counts(self) -> None:
        line = self.line(0, mme={"question_id": 7, "score": 1.0}, other={"answer": "x"})
        item = of_lmms_eval({"mme": [line]}, ["mme,none"])[0]
        self.assertEqual(item["scores"], {"exact_match": 0.0, "mme,none": 1.0})


class InspectTest(unittest.TestCase):
    def log(self, samples: List[Any], metrics: Any = (), **scorers: Any) -> Any:
        scores = [
            Record(name=name, scorer=name, metrics=metrics) for name, metrics in scorers.items()
        ]
        return Record(
            samples=samples,
            results=Record(scores=scores),
            eval=Record(scorers=[Record(name="exact", metrics=list(metrics))]),
        )

    def sample(self, number: int, value: Any = "C", **more: Any) -> Any:
        fields: Dict[str, Any] = {
            "id": number,
            "epoch": 1,
            "input": f"2+{number}=",
            "choices": None,
            "target": ["4"],
            "scores": {"exact": Record(value=value)},
            "output": Record(completion="5"),
            "metadata": {},
        }
        return Record(**{**fields, **more})

    def test_score_has_the_name_of_its_mean(self) -> None:
        values = ("C", "I", "P", "N", True, "no", "0.25", 0.75)
        log = self.log([self.sample(i, value) for i, value in enumerate(values)],
                       exact={"accuracy": 0, "stderr": 0})  # fmt: skip
        items = of_inspect(log)
        self.assertEqual([item["scores"]["accuracy"] for item in items],
                         [1.0, 0.0, 0.5, 0.0, 1.0, 0.0, 0.25, 0.75])  # fmt: skip
        self.assertEqual((items[0]["output"], items[0]["target"]), ("5", "4"))
        self.assertEqual(len({item["id"] for item in items}), len(items))

    def test_sample_without_a_score_is_left_out(self) -> None:
        samples = [self.sample(0), self.sample(1, float("nan")), self.sample(2, scores=None)]
        self.assertEqual(len(of_inspect(self.log(samples, exact={"mean": 0}))), 1)

    def test_several_scorers_and_scores_of_several_values(self) -> None:
        both = {"exact": Record(value="C"), "judge": Record(value={"judge": 3})}
        log = self.log([self.sample(0, scores=both)], exact={"accuracy": 0}, judge={"max": 0})
        self.assertEqual(of_inspect(log)[0]["scores"], {"exact/accuracy": 1.0, "judge/judge": 3.0})

    def test_repetitions_are_one_cluster(self) -> None:
        samples = [self.sample(i, epoch=epoch) for i in range(2) for epoch in (1, 2)]
        items = of_inspect(self.log(samples, exact={"accuracy": 0}))
        self.assertEqual([item["cluster"] for item in items], ["0", "0", "1", "1"])
        self.assertEqual(len({item["id"] for item in items}), 4)

    def test_cluster_is_that_of_the_standard_error(self) -> None:
        metrics = [Record(name="accuracy", options={}),
                   {"*": [Record(name="stderr", options={"cluster": "story"})]}]  # fmt: skip
        samples = [self.sample(i, metadata={"story": f"s{i // 2}"}) for i in range(4)]
        items = of_inspect(self.log(samples, metrics, exact={"accuracy": 0}))
        self.assertEqual([item["cluster"] for item in items], ["s0", "s0", "s1", "s1"])

    def test_id_does_not_depend_on_what_inspect_draws_for_a_message(self) -> None:
        def asked(drawn: str, content: str) -> str:
            message = Record(id=drawn, role="user", content=content)
            log = self.log([self.sample(0, input=[message])], exact={"mean": 0})
            return str(of_inspect(log)[0]["id"])

        self.assertEqual(asked("a", "2+2="), asked("b", "2+2="))
        self.assertNotEqual(asked("a", "2+2="), asked("a", "2+3="))


class LightevalTest(unittest.TestCase):
    def line(self, metric: Dict[str, Any], **said: Any) -> Dict[str, Any]:
        doc = {"id": "7", "query": "2+2=", "choices": ["3", "4"], "gold_index": [1]}
        told = {"text": [], "logprobs": [], **said}
        return {"doc": doc, "model_response": told, "metric": metric}

    def test_generation_and_choice(self) -> None:
        said = self.line({"em": 0, "corpus": object()}, text=[" 5"])
        chose = self.line({"em": 1}, logprobs=[-4.0, -0.5])
        items = of_lighteval({"addition|0": [said], "choice|0": [chose]})
        self.assertEqual([item["scores"] for item in items], [{"em": 0.0}, {"em": 1.0}])
        self.assertEqual([item["output"] for item in items], [" 5", "4"])
        self.assertEqual([item["target"] for item in items], ["4", "4"])
        self.assertEqual([item["id"].partition("-")[0] for item in items], ["addition", "choice"])
        said["doc"].update(choices=["sum"], gold_index=0)  # A generation has one choice.
        self.assertEqual(of_lighteval({"addition|0": [said]})[0]["target"], "sum")


class TargetTest(unittest.TestCase):
    def test_unknown_shape_loses_the_samples_alone(self) -> None:
        kept = target()
        kept.keep(lambda: of_lm_eval({"task": [{"filter": "none"}]}))
        self.assertEqual(kept.items, [])
        self.assertEqual(kept.fault, "samples were not kept: KeyError: 'metrics'")

    def test_suite_without_samples_asks_for_none(self) -> None:
        kept = target(keeps=False)
        kept.keep(lambda: self.fail("it was asked"))
        self.assertEqual((kept.items, kept.fault, kept.logs_samples), ([], "", False))

    def test_long_and_odd_names_stay_within_an_id(self) -> None:
        names = ["x" * 500 + "a", "x" * 500 + "b", "a\nb\x1b", "\ud800"]
        ids = [stable_id(name, "?") for name in names]
        self.assertEqual(len(set(ids)), 4)
        for each in ids:
            self.assertLessEqual(len(each.encode()), 128)
            self.assertTrue(each.isprintable(), ascii(each))


class FileTest(unittest.TestCase):
    def read(self, data: bytes) -> Any:
        with tempfile.TemporaryDirectory(prefix="evalq-py-") as folder:
            with open(os.path.join(folder, "samples.jsonl"), "wb") as file:
                file.write(data)
            kept = target()
            kept.keep(lambda: of_file(folder))
        return kept

    def test_lines_are_samples(self) -> None:
        kept = self.read(b'{"id": "a", "scores": {"acc": 1}}\n{"id": "b", "scores": {"acc": 0}}')
        self.assertEqual([item["id"] for item in kept.items], ["a", "b"])
        self.assertEqual(list(of_file("/nowhere")), [])

    def test_bad_lines_are_named(self) -> None:
        for data, said in (
            (b'{"id": "a"}\n{"id": "b"', "line 2: not JSON"),
            (b'{"id": "\xff"}\n', "line 1: not JSON: 'utf-8' codec"),
            (b'{"id": "' + b"x" * (9 << 20) + b'"}\n', "line 1: more than 8 MiB"),
        ):
            kept = self.read(data)
            self.assertIn(said, kept.fault)
            self.assertEqual(kept.items, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
