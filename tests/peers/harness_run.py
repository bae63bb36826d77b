"""Runs one harness in its own interpreter, as the evaluator's process does; for test_harnesses.py.

The first argument is the directory, the second the suite's map `harness` as JSON. Each line on
standard input is a request, {"url", "key", "model", "tokenizer", "task", "samples", "keeps",
"cancel"}. Each line on standard output answers it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any, Dict

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "producer", "python")
)

from evalq.model_server import watch  # noqa: E402
from evalq.model_server.config import Harness  # noqa: E402
from evalq.model_server.harnesses import Target, make  # noqa: E402
from evalq.model_server.servers import Server  # noqa: E402


class Cancelled(BaseException):
    pass


class Lives(Server):
    """The server belongs to the test: here it is only looked at."""

    name = "vLLM"

    def __init__(self) -> None:
        self.process: Any = self

    def ended(self) -> None:
        return None

    def healthy(self, seconds: float = 10.0) -> bool:
        return True


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What a harness prints goes to the log.
    watch.TICK_SECONDS = 0.05
    runner = make(
        Harness.parse(json.dumps({"directory": sys.argv[1], "given": json.loads(sys.argv[2])}))
    )
    for line in sys.stdin:
        asked = json.loads(line)
        progress = watch.Progress()
        target = Target(
            asked["url"], asked["key"], asked["model"], asked["tokenizer"], 256, progress,
            asked.get("samples"), bool(asked.get("keeps")),
        )  # fmt: skip

        def report(
            done: int, total: int, words: str, wanted: bool = bool(asked.get("cancel"))
        ) -> None:
            if wanted and done > 0:
                raise Cancelled()

        answer: Dict[str, Any] = {}
        began = time.monotonic()
        try:
            with watch.Watch(Lives(), progress, report, 600.0):
                answer["metrics"] = {
                    name: float(value) for name, value in runner.run(target, asked["task"]).items()
                }
        except Cancelled:
            answer["cancelled"] = True
        except Exception as error:
            traceback.print_exc()
            answer["error"] = f"{type(error).__name__}: {error}"
        answer.update(
            seconds=time.monotonic() - began,
            done=progress.done,
            total=progress.total,
            tokens=progress.tokens,
            items=target.items,
            fault=target.fault,
        )
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
