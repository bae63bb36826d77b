"""TensorBoard itself reads what evalq wrote: 1,000 results in a shuffled order, the logger killed 50 times and stopped
now and then, 0 points missing and 0 doubled, to its reader and on its page in a browser."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request
from typing import Dict, List, Tuple

from peers import needs

needs("tensorboard")
from browser import Page, chromium  # noqa: E402
from publishing import Logger, Publisher, all_taken, publish_and_kill, seed  # noqa: E402
from scene import Scene, free_port, until  # noqa: E402

COUNT, KILLS, STOPS = 1000, 50, 5
TAGS = ("eval/digits/accuracy", "eval/digits/loss,none")


def as_float32(value: float) -> float:
    """As the files carry it."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


class TensorBoardTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        # Nothing is held back: as many late points as can be.
        self.scene.write_config("logger: {sinks: [{kind: tensorboard, max_hold_seconds: 0}]}\n")
        self.scene.start_redis()
        self.results = os.path.join(self.scene.directory, "results")
        self.logdir = os.path.join(self.results, "tensorboard")

    def assert_series(self, what: str, tag: str, points: List[Tuple[int, float]]) -> None:
        at = TAGS.index(tag)
        steps = [step for step, _ in points]
        missing, doubled = set(self.values) - set(steps), len(steps) - len(set(steps))
        self.assertEqual((len(missing), doubled), (0, 0), f"{what}, {tag}: {len(missing)} missing, {doubled} doubled")
        self.assertEqual(steps, sorted(steps), f"{what}, {tag}: not in order")
        for step, value in points:
            want = as_float32(self.values[step][at])
            self.assertTrue(value == want or (math.isnan(value) and math.isnan(want)), f"{what}, {tag} at {step}: {value}")

    def read_back(self, what: str) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        reader = EventAccumulator(os.path.join(self.logdir, "digits"), size_guidance={"scalars": 0})
        reader.Reload()
        self.assertEqual((sorted(reader.Tags()["scalars"]), reader.Tags()["tensors"]), (sorted(TAGS), []))
        for tag in TAGS:
            self.assert_series(what, tag, [(event.step, event.value) for event in reader.Scalars(tag)])

    def fetched(self, url: str) -> Dict[str, List[Tuple[int, float]]]:
        """What TensorBoard's own backend gives its page, by tag."""
        found = {}
        for tag in TAGS:
            path = "/data/plugin/scalars/scalars?run=digits&tag=" + urllib.parse.quote(tag, safe="")
            with urllib.request.urlopen(url + path, timeout=30) as reply:
                rows = json.load(reply)
            found[tag] = [(int(step), float(value)) for _, step, value in rows]
        return found

    def serve(self, *words: str) -> str:
        url = f"http://127.0.0.1:{free_port()}"
        log = open(os.path.join(self.scene.directory, "tensorboard.log"), "ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", self.logdir, "--host", "127.0.0.1"]
            + ["--port", url.rsplit(":", 1)[1], "--samples_per_plugin", "scalars=100000", "--reload_interval", "1", *words],
            stdout=log,
            stderr=log,
        )
        log.close()
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

        def answers() -> bool:
            try:
                with urllib.request.urlopen(url + "/data/runs", timeout=5) as reply:
                    return "digits" in json.load(reply)
            except OSError:
                return False

        until(answers, "TensorBoard answers", 120)
        return url

    def assert_shown(self, url: str) -> None:
        """In the browser: a card for each tag, with a curve of all its points."""
        page = Page(url + "/#timeseries")
        self.addCleanup(page.close)
        text = "(document.body ? document.body.innerText : '').replace(/\\s+/g, ' ')"
        for tag in TAGS:
            folder, name = tag.rsplit("/", 1)
            page.wait(f"{text}.includes({json.dumps(folder + ' /' + name)})", f"a card of {tag}")
            # The card's own table, which says the last point of the curve that it drew.
            value = f"{as_float32(self.values[10 * COUNT][TAGS.index(tag)]):.4g}"
            row = page.wait(
                f"(() => {{ const rows = [...document.querySelectorAll('scalar-card')].filter(card =>"
                f" card.innerText.includes({json.dumps(name)})).map(card => card.innerText.replace(/\\s+/g, ' '));"
                f" return rows.find(text => text.includes('{10 * COUNT:,}')); }})()",
                f"the last step on the card of {tag}",
            )
            self.assertIn(value, row)
            path = "/data/plugin/scalars/scalars?run=digits&tag=" + urllib.parse.quote(tag, safe="")
            count = page.ask(f"fetch({json.dumps(path)}).then(reply => reply.json()).then(rows => rows.length)")
            self.assertEqual(count, COUNT, tag)
        self.assertEqual(page.ask("document.querySelectorAll('scalar-card canvas').length"), len(TAGS))
        shot = os.environ.get("EVALQ_TEST_SCREENSHOTS", self.scene.directory)
        self.assertGreater(len(page.screenshot(os.path.join(shot, "tensorboard.png"))), 10000)

    def test_1000_out_of_order_results_with_50_kills_are_each_there_once(self) -> None:
        number = seed()
        publisher = Publisher(self.scene, "digits", COUNT, number)
        logger = Logger(self.scene, self.results)
        url = ""
        for part in range(STOPS):
            publish_and_kill(publisher, logger, COUNT // STOPS, KILLS // STOPS, 0.1, number + part)
            all_taken(self.scene)
            if part == 1:
                url = self.serve("--load_fast=true")  # From here on it looks on, with its fast reader.
            if part % 2 == 0:
                logger.stop()  # Which compacts.
                logger.start()
        publisher.close()
        all_taken(self.scene)
        self.values = publisher.values
        self.assertEqual(len(self.values), COUNT)

        def looks_right() -> bool:
            return all(len(points) == COUNT for points in self.fetched(url).values())

        until(looks_right, "TensorBoard, which looked on, has every point", 60)
        for tag, points in self.fetched(url).items():
            self.assert_series("live", tag, points)
        logger.stop()
        self.read_back("EventAccumulator")
        slow = self.serve("--load_fast=false")
        for tag, points in self.fetched(slow).items():
            self.assert_series("the Python reader", tag, points)
        fresh = self.serve("--load_fast=true")
        for tag, points in self.fetched(fresh).items():
            self.assert_series("the fast reader", tag, points)
        if chromium() is None:
            print("not run: the page in a browser, for there is no Chromium")
        else:
            self.assert_shown(fresh)


if __name__ == "__main__":
    unittest.main(verbosity=2)
