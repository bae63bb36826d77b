"""The samples on the gateway's page, in headless Chromium: lists and filters of items, two
checkpoints side by side, and curves that say which steps differ significantly."""

from __future__ import annotations

import unittest
from typing import Any, List

import peers  # noqa: F401  It says where scene is.
from browser import Page, chromium
from scene import PACKAGE
from test_page import LIVE, Queue, evalq

CONFIG = """
roots: {out: $OUT}
worker: {slots: 1, devices: cpu}
samples: {directory: $OUT/samples}
evaluators:
  script: {kind: command, argv: [$PYTHON, $OUT/evaluate.py]}
suites:
  quiz: {evaluator: script, samples: true}
  plain: {evaluator: script}
"""
# 240 questions. The first `known` of them are right; step 4 is like step 3 but for two items.
EVALUATE = r"""
import json, os
job = json.load(open(os.environ["EVALQ_JOB"]))
known = {1: 60, 2: 150, 3: 200, 4: 198}[job["step"]]
folder = os.path.dirname(os.environ["EVALQ_RESULT"])
with open(os.path.join(folder, "samples.jsonl"), "w") as file:
    for i in range(240):
        right = i < known
        said = "The square of the number %d is %s, I think." % (i, i * i if right else "not known")
        if i == 239:
            said = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
            said += "\x1b[31mred\x1b[0m \x07\u202edesrever\u202c \u009b\u200b\n" + "step %d" % job["step"]
        if i == 238:
            said = "long " * 3000
        item = {"id": "square <b>%d</b>" % i, "scores": {"acc": right, "chars": len(said)}}
        file.write(json.dumps({**item, "target": "The square is %d." % (i * i), "output": said}) + "\n")
json.dump({"acc": known / 240, "n": 240}, open(os.environ["EVALQ_RESULT"], "w"))
"""
# 160 steps, more than a chart marks. Of 30 questions, the first steps have 2 right and the others 30.
STEPS = 160
LONG = f"""
import evalq

def evaluate(checkpoint, task, report):
    known = 2 if checkpoint.step <= {STEPS // 2} else 30
    for i in range(30):
        report.samples.append({{"id": str(i), "scores": {{"acc": i < known}}}})
    return {{"acc": known / 30, "n": 30}}

evalq.serve(evaluate)
"""
# A metric with standard errors and no samples.
ERRORS = """
import json, os
step = json.load(open(os.environ["EVALQ_JOB"]))["step"]
json.dump({"acc": 0.5 + step / 100, "acc_stderr": 0.01}, open(os.environ["EVALQ_RESULT"], "w"))
"""
ITEMS = "document.querySelectorAll('#samples-items .item').length"
SAID = "document.querySelector('#%s .said').textContent"


@unittest.skipUnless(chromium(), "NOT RUN: no Chromium (apt: chromium)")
class SamplesPageTest(unittest.TestCase):
    queue: Queue

    @classmethod
    def setUpClass(cls) -> None:
        cls.queue = Queue(evaluate=EVALUATE, config=CONFIG)
        cls.addClassCleanup(cls.queue.scene.close)
        cls.queue.scene.start_worker()
        for step in (1, 2, 3, 4):
            cls.queue.submit(step, "quiz")
        evalq(cls.queue.scene, "wait", "digits", "--timeout", "120")

    def open(self, address: str, ready: str, what: str) -> Page:
        page = Page(self.queue.url + address)
        self.addCleanup(page.close)
        page.wait(f"{LIVE} && {ready}", what)
        return page

    def texts(self, page: Page, selector: str) -> List[Any]:
        return list(page.ask(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)"))

    def choose(self, page: Page, box: str, name: str) -> None:
        page.ask(f"document.querySelector('#{box} .chips [data-key={name}]').click()")

    def test_items_are_filtered_searched_and_turned(self) -> None:
        page = self.open("#/samples/digits/1", f"{ITEMS} === 20", "the first page of the only task")
        self.assertEqual(page.ask(SAID % "samples-items"), "Items 1 to 20 of 240")
        self.assertEqual(self.texts(page, "#samples-items .chips button"), ["all240", "right60", "wrong180"])
        self.choose(page, "samples-items", "wrong")
        page.wait(f"{SAID % 'samples-items'} === 'Items 1 to 20 of 180'", "the wrong ones alone")
        self.assertEqual(self.texts(page, "#samples-items .item h3")[0], "square <b>60</b>")
        self.assertIn("?show=wrong", page.ask("location.hash"))
        page.ask("document.querySelector('#samples-items .next').click()")
        page.wait(f"{SAID % 'samples-items'} === 'Items 21 to 40 of 180'", "the next page")
        page.ask("window.before = true; location.reload()")
        page.wait(f"!window.before && {LIVE} && {SAID % 'samples-items'} === 'Items 21 to 40 of 180'", "a reload shows the same page")
        search = "(() => { const one = document.querySelector('#samples-items .search'); one.value = %r; one.dispatchEvent(new Event('input')); })()"
        page.ask(search % "number 77 ")
        page.wait(f"{SAID % 'samples-items'} === 'Items 1 to 1 of 1'", "the search finds one")
        page.ask(search % "nobody says this")
        page.wait(f"{SAID % 'samples-items'} === 'No item matches.'", "the search finds none")
        page.ask("(() => { const one = document.getElementById('samples-metric'); one.value = 'chars'; one.dispatchEvent(new Event('change')); })()")
        page.ask(search % "")
        page.wait("document.querySelectorAll('#samples-items .chips button').length === 1", "no length is right or wrong")

    def test_an_address_of_samples_leads_to_what_flipped(self) -> None:
        page = self.open("#/samples/digits/2", f"{ITEMS} === 20", "the samples of the address")
        page.ask("window.before = true; location.reload()")
        link = "document.getElementById('samples-flipped')"
        page.wait(f"!window.before && {LIVE} && !{link}.hidden", "the earlier step is known after a reload")
        self.assertEqual(page.ask(f"{link}.textContent"), "Flipped since step 1")
        self.assertIn("digits@1,digits@2", page.ask(f"{link}.href"))

    def test_what_a_model_says_is_only_text(self) -> None:
        page = self.open("#/samples/digits/1?grep=onerror", f"{ITEMS} === 1", "the hostile item")
        (text,) = self.texts(page, "#samples-items .text-block:nth-of-type(2) .model-text")
        self.assertIn("<img src=x onerror=\"document.title='hacked'\"><script>", text)
        self.assertIn("\\x1b[31mred\\x1b[0m \\x07\\u202edesrever\\u202c \\x9b\\u200b\nstep 1", text)
        self.assertEqual(page.ask("document.querySelectorAll('#samples-items :is(img, script, b)').length"), 0)
        self.assertEqual(page.ask("document.querySelectorAll('#samples-items .control').length"), 5)
        shown = page.ask("document.documentElement.outerHTML")
        for character in "\x1b\x07\u202e\x9b":
            self.assertNotIn(character, shown)
        self.assertEqual(page.ask("document.title"), "evalq main")

    def test_a_long_text_is_cut_until_it_is_asked_for(self) -> None:
        page = self.open("#/samples/digits/1?grep=long", f"{ITEMS} === 1", "the long item")
        length = "[...document.querySelectorAll('#samples-items .model-text')].at(-1).textContent.length"
        self.assertEqual(page.ask(length), 4096)
        page.ask("document.querySelector('#samples-items .whole').click()")
        page.wait(f"{length} === 15000", "the whole text is loaded")

    def test_two_checkpoints_are_compared_side_by_side(self) -> None:
        items = "document.querySelectorAll('#sides-items .item').length"
        page = self.open("#/compare/digits@1,digits@2", f"{items} === 20", "the items that flipped")
        rows = "[...document.querySelectorAll('#sides-table tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
        acc, chars = page.ask(rows)
        self.assertEqual(acc[:5], ["quiz: acc", "B is better", "0.25", "0.625", "+0.375"])
        self.assertEqual(acc[7], "90/0/150")
        self.assertIn("McNemar", acc[8])
        self.assertIn("chars", chars[0])
        self.assertIn("Holm's method for 2 comparisons", page.ask("document.getElementById('sides-said').textContent"))
        self.assertEqual(self.texts(page, "#sides-items .chips button"), ["flipped90", "better90", "worse0", "all240"])
        first = "#sides-items .item:first-child "
        self.assertEqual(self.texts(page, first + "h3"), ["square <b>60</b>"])
        self.assertEqual(self.texts(page, first + "mark.only-a"), ["not known"])
        self.assertEqual(self.texts(page, first + "mark.only-b"), ["3600"])
        self.choose(page, "sides-items", "worse")
        page.wait(f"{SAID % 'sides-items'} === 'No item matches.'", "none became worse")
        page.ask("document.querySelector('#sides-table tbody tr:nth-child(2) a').click()")
        page.wait("document.getElementById('sides-items-title').textContent === 'Items of quiz by chars'", "another score")
        page.ask("document.getElementById('sides-swap').click()")
        page.wait(f"({rows})[0]?.[4] === '-0.375'", "the sides are swapped")
        page.ask("location.hash = '#/compare/digits@1,digits@2/regular/quiz/quiz?show=all&grep=onerror'")
        page.wait(f"{items} === 1", "the hostile item")
        self.assertEqual(page.ask("document.querySelectorAll('#sides-items :is(img, script, b)').length"), 0)
        self.assertIn("1", self.texts(page, "#sides-items mark.only-a"))
        self.assertEqual(page.ask("document.title"), "evalq main")

    def test_what_is_missing_is_said(self) -> None:
        said = SAID % "samples-items"
        page = self.open("#/samples/digits/99", f"{said}.startsWith('digits@99 has no samples')", "no samples")
        for address, sentence in (
            ("#/samples/digits/1/regular/quiz/riddles", "has no samples of task riddles"),
            ("#/samples/digits/x", "is no checkpoint"),
            ("#/samples/..%2F../1", "is no checkpoint"),
            ("#/samples/digits/1/regular/quiz/quiz?show=wrong&metric=chars", "choose another metric"),
        ):
            page.ask(f"location.hash = {address!r}")
            page.wait(f"{said}.includes({sentence!r})", sentence)
            self.assertEqual(page.ask(ITEMS), 0)
        said = "document.getElementById('sides-said').textContent"
        for address, sentence in (
            ("#/compare/digits@1", "needs two checkpoints"),
            ("#/compare/digits@1,digits@99", "digits@99 has no samples"),
        ):
            page.ask(f"location.hash = {address!r}")
            page.wait(f"{said}.includes({sentence!r})", sentence)
            self.assertTrue(page.ask("document.getElementById('sides-items').hidden"))

    def test_a_curve_has_its_band_and_marks_what_differs(self) -> None:
        card = "document.querySelector('#charts article')"
        page = self.open("#/run/digits", f"{card}?.querySelectorAll('.differs').length > 0", "the marks are drawn")
        self.assertEqual(page.ask(f"{card}.querySelectorAll('.plot .differs').length"), 2)  # Not the steps 3 and 4.
        self.assertEqual(page.ask(f"{card}.querySelectorAll('.plot .point').length"), 4)
        self.assertEqual(page.ask(f"{card}.querySelectorAll('.band').length"), 1)
        label = page.ask(f"{card}.querySelector('svg[role=img]').getAttribute('aria-label')")
        self.assertIn("2 of 3 steps differ significantly from step 3", label)
        legend = page.ask(f"{card}.querySelector('.legend').textContent")
        self.assertIn("shaded: 95 % interval", legend)
        self.assertIn("hollow: differs significantly from the best", legend)
        page.ask(f"{card}.querySelector('svg[role=img]').focus()")
        tip = "document.getElementById('tip').textContent"
        for _ in range(2):
            page.call("Input.dispatchKeyEvent", type="rawKeyDown", key="ArrowRight", windowsVirtualKeyCode=39)
        page.wait(f"{tip}.includes('step 2: 0.625, 95 % interval 0.562')", "a point says its interval")
        self.assertIn("differs significantly from step 3 (p ", page.ask(tip))
        page.call("Input.dispatchKeyEvent", type="rawKeyDown", key="Enter", windowsVirtualKeyCode=13)
        page.wait(f"location.hash === '#/samples/digits/2/regular/quiz/quiz' && {ITEMS} === 20", "Enter shows the samples")
        page.wait("document.getElementById('samples-flipped').hidden === false", "there is an earlier step")
        page.ask("document.getElementById('samples-flipped').click()")
        page.wait("location.hash === '#/compare/digits@1,digits@2/regular/quiz/quiz'", "what flipped since then")
        page.ask("history.back()")
        page.wait(f"location.hash.startsWith('#/samples/') && {ITEMS} === 20", "back returns to the samples")

    def test_a_job_leads_to_its_samples(self) -> None:
        page = self.open("#/job/digits/3/regular/quiz", "!document.getElementById('job-samples').hidden", "the job has samples")
        page.ask("document.getElementById('job-samples').click()")
        page.wait(f"location.hash === '#/samples/digits/3/regular/quiz/quiz' && {ITEMS} === 20", "they are shown")
        self.assertFalse(page.ask("document.getElementById('job').open"))

    def test_it_fits_a_phone_and_loads_nothing_from_elsewhere(self) -> None:
        page = self.open("#/samples/digits/1", f"{ITEMS} === 20", "the items")
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        for address, ready in (("#/samples/digits/1?grep=onerror", f"{ITEMS} === 1"), ("#/compare/digits@1,digits@2", "document.querySelectorAll('#sides-items .item').length === 20")):
            page.ask(f"location.hash = {address!r}")
            page.wait(ready, address)
            self.assertLessEqual(page.ask("document.documentElement.scrollWidth"), 390)
        others = f"performance.getEntriesByType('resource').filter((one) => !one.name.startsWith('{self.queue.url}')).length"
        self.assertEqual(page.ask(others), 0)


@unittest.skipUnless(chromium(), "NOT RUN: no Chromium (apt: chromium)")
class LongCurvePageTest(unittest.TestCase):
    def test_of_a_long_curve_what_differs_is_marked_and_zooming_marks_all(self) -> None:
        queue = Queue(evaluate=LONG, config=CONFIG.replace("kind: command", "kind: persistent, env_pass: [PYTHONPATH]"))
        self.addCleanup(queue.scene.close)
        queue.scene.variables["PYTHONPATH"] = PACKAGE
        queue.scene.start_worker()
        with queue.scene.client() as client:
            for step in range(1, STEPS + 1):
                client.submit(queue.scene.checkpoint(f"step-{step}.safetensors"), step=step, suites="quiz")
        evalq(queue.scene, "wait", "digits", "--timeout", "120")
        page = Page(queue.url + "#/run/digits")
        self.addCleanup(page.close)
        chart = "document.querySelector('#charts article')"
        marks = f"[...{chart}.querySelectorAll('.plot .point')].map((mark) => mark.getBBox())"
        page.wait(f"{chart}?.querySelectorAll('.plot .differs').length > 0", "the marks are drawn", 60)
        boxes = page.ask(f"{marks}.map(({{x, y, width}}) => [x, y, width])")
        self.assertEqual(len(boxes), page.ask(f"{chart}.querySelectorAll('.plot .differs').length"))
        self.assertGreater(len(boxes), 15)  # Half of the chart is full of them.
        for (x, y, width), (after, height, _) in zip(boxes, boxes[1:]):
            self.assertGreaterEqual(after, x + width)
            self.assertAlmostEqual(height, y, 1)  # None is on the upper half of the curve.
        page.ask(f"{chart}.querySelector('svg[role=img]').focus()")
        page.call("Input.dispatchKeyEvent", type="keyDown", text="+", key="+")
        page.wait(f"{marks}.length > {STEPS // 4}", "all points in view are marked")
        self.assertGreater(page.ask(f"{chart}.querySelectorAll('.plot .differs').length"), 0)
        self.assertLess(page.ask(f"{chart}.querySelectorAll('.plot .point').length"), STEPS)


@unittest.skipUnless(chromium(), "NOT RUN: no Chromium (apt: chromium)")
class ErrorsPageTest(unittest.TestCase):
    def test_standard_errors_become_a_band(self) -> None:
        queue = Queue(evaluate=ERRORS, config=CONFIG)
        self.addCleanup(queue.scene.close)
        queue.scene.start_worker()
        queue.submit(1, "plain")
        page = Page(queue.url)
        self.addCleanup(page.close)
        page.wait("document.querySelectorAll('.chart .bars').length === 1", "one result has a bar")
        queue.submit(2, "plain")
        page.wait("document.querySelectorAll('.chart .band').length === 1", "two results have a band")
        self.assertEqual(page.ask("document.querySelectorAll('.chart .bars').length"), 0)
        self.assertEqual(page.ask("document.querySelectorAll('.chart .plot .differs').length"), 0)


if __name__ == "__main__":
    unittest.main()
