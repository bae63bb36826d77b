"""A scene whose suites keep samples, for the tests of samples."""

from __future__ import annotations

import gzip
import json
import os
from typing import Any, ClassVar, Dict, List, Tuple

from scene import NATIVE, PACKAGE, SceneTest

# A command that answers 400 questions. Step 2 has ten more right than step 1 and two fewer.
COMMAND = r"""
import json, os
job = json.load(open(os.environ["EVALQ_JOB"]))
step = job["step"]
bad = job["params"].get("bad", "")
folder = os.path.dirname(os.environ["EVALQ_RESULT"])
with open(os.path.join(folder, "samples.jsonl"), "w") as file:
    right = 0
    for i in range(10 if bad == "fewer" else 0, 400):
        is_right = i % 4 != 0 if step == 1 else (i % 4 != 0 or i < 40) and i not in (41, 42)
        right += is_right
        said = "yes" if is_right else "no \x1b[31m\u202e\u009b of step %d" % step
        scores = {"acc": float(is_right), "chars": i * 0.5 + (step == 3)}
        item = {"id": f"q{i}", "scores": scores, "target": "yes", "output": said}
        item["cluster"] = f"group {i // 4}"
        if not job["params"].get("clusters"):
            del item["cluster"]
        if bad == "twice" and i == 7:
            item["id"] = "q6"
        if bad == "nan" and i == 7:
            item["scores"]["acc"] = float("nan")
        file.write(json.dumps(item) + "\n")
    if bad == "utf8":
        file.flush()
        file.buffer.write(b'{"id": "\xff"}\n')
    if bad == "long":
        file.write('{"id": "long", "output": "' + "x" * (9 << 20) + '"}\n')
json.dump({"acc": right / 400, "n": 400}, open(os.environ["EVALQ_RESULT"], "w"))
"""

CONFIG = NATIVE.replace(
    "suites:",
    """
samples: {directory: $OUT/samples}
evaluators:
  quiz: {kind: command, argv: [$PYTHON, $OUT/quiz.py]}
suites:
  quiz: {evaluator: quiz, samples: true}
  few: {evaluator: quiz, samples: {limit: 5}}
""",
)


class SamplesScene(SceneTest):
    config = CONFIG
    workers = False
    programs: ClassVar[Dict[str, str]] = {}  # More evaluators: the text of each, by its name.

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for name, text in {"quiz": COMMAND, **cls.programs}.items():
            with open(os.path.join(cls.scene.out, name + ".py"), "w", encoding="utf-8") as file:
                file.write(text)
        cls.scene.variables["PYTHONPATH"] = PACKAGE
        cls.scene.start_worker()

    def submit(self, run: str, step: int, suite: str, **params: str) -> Dict[str, Any]:
        """Evaluates a checkpoint and returns its only or last result."""
        path = self.scene.checkpoint(f"{run}-{step}.safetensors")
        words = [word for key, value in params.items() for word in ("--param", f"{key}={value}")]
        words += ["--run", run, "--step", str(step), "--suite", suite, "--wait", "--json"]
        done = self.scene.evalq("submit", path, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(json.loads(done.stdout)["results"][-1])

    def kept(self, job: str, task: str) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
        path = os.path.join(self.scene.out, "samples", job, task + ".jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header, *items, end = [json.loads(line) for line in file]
        self.assertEqual(end["evalq_samples_end"], len(items))
        return header, items

    def ok(self, *words: str) -> Any:
        done = self.scene.evalq(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)
