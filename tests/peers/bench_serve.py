"""What serve_trainer and serve_lightning take over the evaluation itself, and how long submit_state_dict holds training.

    EVALQ_TEST_BUILD=build/peers/build build/peers/venv/bin/python tests/peers/bench_serve.py

One worker with a tiny GPT-2 and a tiny MLP: seconds from submit to result, beside those that the evaluation says it took. Then 500 MB:
the first submit_state_dict and later ones beside plain copies and torch.save, wall time and the thread's own time on the
processor, which says more on a busy machine. Ends with 1 where a bar is missed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Callable, List

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "python")]

import tiny_gpt2  # noqa: E402
import tiny_lightning  # noqa: E402
from scene import DEADLINE, Scene, until  # noqa: E402
from test_serve import CONFIG, LIGHTNING, TRAINER  # noqa: E402

OVER_SECONDS = 0.5
TIMES = 6  # The first starts the evaluator.


@dataclass(order=True)
class Took:
    """Seconds of a call."""

    wall: float
    processor: float

    def __str__(self) -> str:
        return f"{self.wall * 1e3:.0f} ({self.processor * 1e3:.0f})"


def timed(call: Callable[[], object]) -> Took:
    wall, processor = time.monotonic(), time.thread_time()
    call()
    return Took(time.monotonic() - wall, time.thread_time() - processor)


def save_gpt2(path: str) -> None:
    tiny_gpt2.make_trainer(path).save_model(path)


def save_mlp(path: str) -> None:
    torch.save({"state_dict": tiny_lightning.Regression().state_dict()}, path)


def serving(scene: Any, suite: str, save: Callable[[str], None]) -> bool:
    """The same checkpoint at several steps, one after the other; whether all but the first keep the bar."""
    first = os.path.join(scene.out, suite + "-0")
    save(first)
    over: List[float] = []
    with scene.client(suite, raise_errors=True) as client:
        for step in range(1, TIMES + 1):
            path = os.path.join(scene.out, f"{suite}-{step}")
            (shutil.copytree if os.path.isdir(first) else shutil.copy)(first, path)
            began = time.monotonic()
            client.submit(path, step=step, suites=suite)
            if not client.wait(DEADLINE):
                raise SystemExit(f"{suite}: step {step} has not come")
            took = time.monotonic() - began
            found = {result.metric: result.value for result in client.results() if not result.is_end}
            over.append(took - found.get("eval_runtime", 0.0))
    later = ", ".join(f"{each:.3f}" for each in over[1:])
    print(f"{suite}: over the evaluation itself, first checkpoint {over[0]:.2f} s, then {later} s")
    return max(over[1:]) <= OVER_SECONDS


def holding(scene: Any) -> bool:
    """Whether submit_state_dict holds the thread no longer than one copy to memory that is used does, half more at most."""
    state = {f"layer{at}.weight": torch.randn(1024, 1024 * 5) for at in range(25)}
    bytes_all = sum(value.numel() * 4 for value in state.values())
    torch.set_num_threads(1)  # So that the thread's own time is all of it.
    with scene.client("hold", raise_errors=True, snapshots=2) as client:
        client.reserve_state_dict(state)
        until(lambda: client._snapshots.reserved >= bytes_all, "the memory is ready")
        held = []
        for step in (1, 2, 3, 4):
            held.append(timed(lambda step=step: client.submit_state_dict(state, step=step, suites="nobody")))
            if not client.flush(DEADLINE):
                raise SystemExit(f"step {step} was not sent")
    fresh = torch.empty(bytes_all // 4)

    def copy() -> None:
        at = 0
        for value in state.values():
            fresh[at : at + value.numel()].view(value.shape).copy_(value)
            at += value.numel()

    copies = [timed(copy) for _ in range(4)]
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        saved = timed(lambda: torch.save(state, file.name))
    used = min(copies[1:])
    print(
        f"{bytes_all / 1e6:.0f} MB, wall (processor) ms: submit_state_dict first {held[0]}, later {min(held[1:])} to"
        f" {max(held[1:])}; one copy into used memory {used}, into new {copies[0]}; torch.save into /dev/shm {saved}"
    )
    return max(held[0], min(held[1:]), key=lambda took: took.processor).processor <= 1.5 * used.processor + 0.02


def main() -> int:
    scene = Scene()
    try:
        scene.write_config(CONFIG)
        for name, text in (("peer_trainer", TRAINER), ("peer_lightning", LIGHTNING)):
            with open(os.path.join(scene.out, name + ".py"), "w", encoding="utf-8") as file:
                file.write(text)
        scene.start_redis()
        scene.start_worker()
        kept = [serving(scene, "held-out", save_gpt2), serving(scene, "validate", save_mlp), holding(scene)]
    finally:
        scene.close()
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
