"""Publishes results in a shuffled order, as workers do, and kills a logger meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from typing import Any, Dict, List, Tuple

from scene import BIN, DEADLINE, Scene, until


class Publisher:
    """Publishes the steps 10, 20, ... of a run in an order that depends on the seed; close() ends
    it."""

    def __init__(self, scene: Scene, run: str, count: int, seed: int, **trackers: str) -> None:
        words = [f"{name}={value}" for name, value in trackers.items()]
        self.process = subprocess.Popen(
            [os.path.join(BIN, "publish_results"), scene.url, run, str(count), str(seed), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.order: List[int] = []
        # Step -> (accuracy, loss). Some losses are NaN.
        self.values: Dict[int, Tuple[float, float]] = {}
        self._line("ready")

    def _line(self, wanted: str) -> List[str]:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            if line.strip() == wanted:
                return lines
            lines.append(line)
        raise AssertionError(f"publish_results ended with {self.process.wait()}")

    def publish(self, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        for line in self._line("done"):
            step, accuracy, loss = line.split()
            self.order.append(int(step))
            self.values[int(step)] = (float(accuracy), float(loss))

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()


class Logger:
    """evalq-logger of a scene."""

    def __init__(self, scene: Scene, directory: str, **environment: str) -> None:
        self.scene, self.directory, self.environment = scene, directory, environment
        self.start()

    def start(self) -> None:
        self.scene.variables.update(self.environment)
        self.process = self.scene.start("evalq-logger", "--directory", self.directory)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.scene.processes.remove(self.process)

    def stop(self) -> None:
        self.process.terminate()
        if self.process.wait(DEADLINE) != 0:
            raise AssertionError("evalq-logger ended with " + str(self.process.returncode))
        self.scene.processes.remove(self.process)


def status(scene: Scene) -> Dict[str, Any]:
    """Returns the output of `evalq status --json`."""
    done = scene.evalq("status", "--json")
    done.check_returncode()
    return dict(json.loads(done.stdout))


def behind(scene: Scene) -> Dict[str, int]:
    """Returns for each sink how many results it has not acknowledged."""
    return {sink["name"]: sink["lag"] + sink["pending"] for sink in status(scene)["stats"]["sinks"]}


def all_taken(scene: Scene, seconds: float = 240) -> None:
    def done() -> bool:
        lags = behind(scene)  # If this is empty, the logger has not registered its sinks yet.
        return bool(lags) and not any(lags.values())

    until(done, "every sink has acknowledged everything", seconds)


def publish_and_kill(publisher: Publisher, logger: Logger, count: int, kills: int, within: float, seed: int) -> None:
    """Publishes count results in one part for each kill. A kill comes at a random moment while the
    logger may still be busy with the part."""
    dice = random.Random(seed)
    left = count
    for number in range(kills):
        part = left // (kills - number)
        publisher.publish(part)
        left -= part
        until_then = time.monotonic() + dice.random() * within
        while time.monotonic() < until_then:
            pass  # This sleeps, because the moment itself is random.
        logger.kill()
        logger.start()


def seed() -> int:
    """Returns a new seed and prints it. $EVALQ_TEST_SEED sets it."""
    made = int(os.environ.get("EVALQ_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print("seed", made, flush=True)
    return made
