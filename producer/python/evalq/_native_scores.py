"""Log-likelihoods by evalq's native engine: talks to `evalq-worker score` over two pipes."""

from __future__ import annotations

import json
import subprocess
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from ._programs import find_program

Score = Tuple[float, bool]  # Log-probability in nats; whether each token is the most likely one.


class NativeScores:
    """One process, which load() starts again if it ended. worker/score.h describes the requests.
    ValueError: the engine refuses the checkpoint or a request."""

    def __init__(self, words: List[str]) -> None:
        self._words = words
        self._process: Optional[subprocess.Popen[str]] = None
        self.close: Callable[[], Any] = lambda: None
        self.listener: Optional[Callable[[int, int, str], None]] = None

    def load(self, path: str, variant: str, maps: Dict[str, Dict[str, str]]) -> Dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [find_program("evalq-worker"), "score", *self._words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
            )  # fmt: skip
            self.close = weakref.finalize(self, _end, self._process)
        return self._ask([{"load": path, "variant": variant, **maps}])

    def score(self, requests: Iterable[Dict[str, Any]]) -> List[Score]:
        def lines() -> Iterable[Dict[str, Any]]:
            yield from requests
            yield {"score": True}

        return [(float(logprob), greedy) for logprob, greedy in self._ask(lines())["scores"]]

    def _ask(self, requests: Iterable[Dict[str, Any]]) -> Dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            try:
                for request in requests:
                    process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # The process has ended, so there is no answer either.
            for line in process.stdout:
                answer: Dict[str, Any] = json.loads(line)
                if "done" not in answer:
                    break
                if self.listener is not None:
                    self.listener(answer["done"], answer["total"], answer["doing"])
            else:
                raise RuntimeError(
                    f"evalq-worker ended with exit code {process.wait()}; standard error has its"
                    " message"
                )
        except BaseException:
            process.kill()  # Its answer would be taken for that of the next request.
            process.wait()
            raise
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


def _end(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except BrokenPipeError:
            pass
    process.wait()
