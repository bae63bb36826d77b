"""The gateway's web page in headless Chromium, over a real queue: it lives, explains gaps, cancels with a token, says what is
wrong, and fits a phone. Also what promtool says of /metrics, the alert rules and the scrape configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest
import urllib.request
from typing import Any, Dict, List

import peers  # noqa: F401  It says where scene is.
from browser import Page, chromium
from scene import BIN, SOURCE, Scene, free_port, until

CONFIG = """
roots: {out: $OUT}
worker: {slots: 1, devices: cpu}
logger: {directory: $OUT/results}
evaluators:
  script: {kind: command, command: [$PYTHON, $OUT/evaluate.py]}
suites:
  heldout: {evaluator: script, tasks: [{name: digits, type: any}]}
  other: {evaluator: script, tasks: [{name: digits, type: any}]}
  large: {evaluator: script, needs: {gpus: 8}, tasks: [{name: digits, type: any}]}
"""
EVALUATE = """
import json, os, sys
step = json.load(open(os.environ["EVALQ_JOB"]))["step"]
print("<img src=x onerror='document.title=1'> step", step, flush=True)
if step == 3:
    sys.exit(65)
json.dump({"accuracy": 0.5 + 0.1 * (step % 5), "loss": 2.0 / step}, open(os.environ["EVALQ_RESULT"], "w"))
"""
# Numbers that differ in their last bit, that are too large for a difference, and that are none.
ODD = """
import json, os
step = json.load(open(os.environ["EVALQ_JOB"]))["step"]
close = {1: 2.302585092994046, 2: 2.3025850929940455}.get(step, 2.302585092994046)
large = {1: 1.7e308, 2: -1.7e308}.get(step, -0.0)
none = {1: 0.5, 2: float("nan")}.get(step, float("-inf"))
json.dump({"close": close, "large": large, "none": none}, open(os.environ["EVALQ_RESULT"], "w"))
"""
# Names that turn the direction of the text around them: an override, and a word that is written from right to left.
TURNED = """
import json, os
json.dump({"a\\u202eb": 0.5, "\\u05d3\\u05d9\\u05d5\\u05e7": 0.25}, open(os.environ["EVALQ_RESULT"], "w"))
"""
TOKEN = "a-token-that-may-write-0123456789"
LIVE = "document.getElementById('live')?.className === 'badge on'"


def evalq(scene: Scene, *words: str, code: int = 0) -> None:
    done = subprocess.run([os.path.join(BIN, "evalq"), *words], env=scene.environment(), check=False, capture_output=True)
    if done.returncode != code:
        raise AssertionError(f"evalq {' '.join(words)}: {done.returncode}, expected {code}: {done.stderr.decode()}")


class Queue:
    """A scene with a gateway; with tokens when asked."""

    def __init__(self, tokens: bool = False, evaluate: str = EVALUATE, config: str = CONFIG) -> None:
        self.scene = Scene()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.words = ["--listen", f"127.0.0.1:{self.port}"]
        try:
            self.scene.write_config(config)
            self.scene.start_redis()
            with open(self.scene.out + "/evaluate.py", "w", encoding="utf-8") as file:
                file.write(evaluate)
            if tokens:
                path = self.scene.directory + "/tokens"
                with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
                    file.write(f"tester write {TOKEN}\n")
                self.words += ["--tokens", path]
            self.start_gateway()
        except BaseException:
            self.scene.close()
            raise

    def start_gateway(self) -> None:
        self.gateway = self.scene.start("evalq-gateway", *self.words)
        until(self.ready, "the gateway is ready")

    def stop_gateway(self) -> None:
        self.gateway.terminate()
        self.gateway.wait(30)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "readyz", timeout=10) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def submit(self, step: int, suite: str = "heldout", run: str = "digits") -> None:
        path = self.scene.checkpoint(f"step-{step}.safetensors")
        evalq(self.scene, "submit", path, "--run", run, "--step", str(step), "--suite", suite)

    def publish(self, run: str, jobs: int, kept: int) -> None:
        """Results of many jobs, of which retention keeps the last."""
        words = [os.path.join(BIN, "publish_results"), self.scene.url, run, str(jobs), "1"]
        subprocess.run(words, input=f"{jobs}\n".encode(), check=True, capture_output=True)
        self.scene.redis_call("HSET", "evalq:{main}:meta", "retain_count", str(kept))
        until(lambda: self.scene.redis_call("FCALL", "evalq_v1_gc", "1", "evalq:{main}:") == b"0\n", "retention has nothing left")


@unittest.skipUnless(chromium(), "NOT RUN: no Chromium (apt: chromium)")
class PageTest(unittest.TestCase):
    def open(self, queue: Queue, **options: Any) -> Page:
        self.addCleanup(queue.scene.close)
        page = Page(queue.url, **options)
        self.addCleanup(page.close)
        return page

    def test_it_grows_while_it_is_looked_at(self) -> None:
        queue = Queue()
        page = self.open(queue)
        page.wait(f"{LIVE} && !document.getElementById('runs-empty').hidden", "an empty queue says so")
        page.wait("!document.getElementById('workers-empty').hidden && !document.getElementById('sinks-empty').hidden", "no worker, no sink")
        page.ask("window.stays = true")
        queue.scene.start_worker()
        queue.scene.start("evalq-logger")
        queue.submit(1)
        points = "document.querySelectorAll('#charts article:first-child .point').length"
        page.wait(f"{points} === 1", "the first result is drawn")
        for step in (2, 3, 4):
            queue.submit(step)
        page.wait(f"{points} === 3", "three of four have numbers")
        page.wait("document.querySelectorAll('#charts article:first-child .gap.dead').length === 1", "the dead one is a gap")
        self.assertTrue(page.ask("window.stays"), "the page was loaded again")
        self.assertIn("best 0.9 at 4", page.ask("document.querySelector('#charts article:first-child p').textContent"))
        self.assertEqual(page.ask("document.querySelectorAll('#charts article:first-child .best').length"), 1)
        page.wait("document.querySelectorAll('#worker-list .card').length === 1", "the worker has a card")
        page.wait("document.querySelectorAll('#sink-table tbody tr').length >= 1", "the sinks have rows")
        self.assertEqual(page.ask("document.querySelectorAll('#charts article').length"), 2)

    def test_a_gap_is_explained_and_a_log_is_text(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        for step in (2, 3, 4):
            queue.submit(step)
        evalq(queue.scene, "wait", "digits", "--timeout", "60", code=4)
        page = self.open(queue)
        page.wait("document.querySelector('.gap.dead') !== null", "the gap is drawn")
        page.ask(
            "(() => { const line = document.querySelector('.gap.dead').getBoundingClientRect();"
            " document.querySelector('.chart > svg').dispatchEvent(new PointerEvent('pointermove',"
            " {clientX: line.x, clientY: line.y + 3, bubbles: true})); })()"
        )
        self.assertIn("step 3: dead, <img src=x onerror='document.title=1'> step 3 (evaluator 'script…", page.ask("document.getElementById('tip').textContent"))
        dead = "[...document.querySelectorAll('#job-table tr.job')].find((row) => row.textContent.includes('dead'))"
        page.wait(f"{dead} !== undefined", "the dead job is listed")
        page.ask(f"{dead}.click()")
        page.wait("document.getElementById('job-log').textContent.includes('<img src=x')", "the log is shown as it is")
        self.assertEqual(page.ask("document.querySelectorAll('#job img').length"), 0)
        self.assertNotEqual(page.ask("document.title"), "1")

    def test_numbers_of_every_kind_are_drawn(self) -> None:
        queue = Queue(evaluate=ODD)
        queue.scene.start_worker()
        for run in ("__proto__", "constructor"):
            for step in (1, 2, 3):
                queue.submit(step, run=run)
            evalq(queue.scene, "wait", run, "--timeout", "60")
        page = self.open(queue)
        page.wait("document.querySelectorAll('#charts article').length === 3", "there is a chart for each metric")
        drawn = "[...document.querySelectorAll('#charts article')].map((card) => [...card.querySelectorAll('.%s')].length).join()"
        page.wait(f"{drawn % 'point'} === '6,6,2'", "every number that is one has its point")
        self.assertEqual(page.ask(drawn % "gap.dead"), "0,0,4")  # The others have a mark each.
        self.assertNotIn("NaN", page.ask("[...document.querySelectorAll('path')].map((path) => path.getAttribute('d')).join()"))

    def test_no_text_turns_the_text_around_it(self) -> None:
        queue = Queue(evaluate=TURNED)
        queue.scene.start_worker()
        queue.submit(1)
        page = self.open(queue)
        page.wait("document.querySelectorAll('#charts article').length === 2", "there is a chart for each metric")
        titles = page.ask("[...document.querySelectorAll('#charts h3')].map((one) => one.textContent)")
        self.assertEqual(sorted(titles), ["a\\u202eb, digits (heldout)", "\u2068\u05d3\u05d9\u05d5\u05e7\u2069, digits (heldout)"])
        order = (
            "[...document.querySelectorAll('#charts h3')].map((one) => ['heldout', 'digits'].map((word) => { const range = document.createRange(),"
            " from = one.textContent.indexOf(word); range.setStart(one.firstChild, from); range.setEnd(one.firstChild, from + 1);"
            " return range.getBoundingClientRect().x; }))"
        )
        for suite, task in page.ask(order):
            self.assertLess(task, suite)
        # An event of the stream is read as well as the list of results.
        queue.submit(2)
        page.wait("document.querySelectorAll('.point').length === 4", "the second results are drawn")
        self.assertEqual(page.ask("document.querySelectorAll('#charts article').length"), 2)
        self.assertNotIn("\u202e", page.ask("document.documentElement.outerHTML"))

    def test_of_a_long_run_what_is_kept_is_shown(self) -> None:
        queue = Queue()
        queue.publish("long", 130, 70)
        page = self.open(queue)
        points = "document.querySelectorAll('#charts article:first-child .point').length"
        page.wait(f"{points} === 70", "what retention took hides nothing")
        rows = "document.querySelectorAll('#job-table tr.job').length"
        page.wait(f"{rows} === 50", "a page of jobs is listed")
        page.ask("document.getElementById('jobs-more').click()")
        page.wait(f"{rows} === 70", "the rest is, too")
        queue.submit(1, "large")
        page.wait("document.querySelector('#job-table [data-key^=\"digits/1/\"]') !== null", "the list is renewed")
        self.assertEqual(page.ask(rows), 70)  # Nobody is thrown back to the first page.

    def test_more_runs_than_it_lists_are_told_of(self) -> None:
        queue = Queue()
        for count, hidden in ((100, True), (101, False)):
            words = [word for number in range(count) for word in (str(number), f"run{number}")]
            queue.scene.redis_call("ZADD", "evalq:{main}:runs", *words)
            page = self.open(queue)
            page.wait("document.querySelectorAll('#run-list button').length === 100", "a hundred are listed")
            self.assertEqual(page.ask("document.getElementById('runs-more').hidden"), hidden)

    def test_it_stays_small_while_runs_come_and_go(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        page = self.open(queue)
        pressed = "[...document.querySelectorAll('#run-list button[aria-pressed=true]')].map((chip) => chip.dataset.key).sort().join()"
        for number in range(1, 11):
            queue.submit(1, run=f"run{number}")
            page.wait(f"{pressed}.includes('run{number}')", "the new run is shown")
        page.wait(f"{pressed} === 'run10,run8,run9'", "the newest three are shown")
        first = "document.querySelector('#charts article:first-child p')?.textContent"
        page.wait(f"{first}?.includes('run10: 0.6 at 1')", "it has a curve")
        evalq(queue.scene, "forget", "run10", "--yes")
        page.wait(f"!{pressed}.includes('run10')", "what is forgotten goes")
        queue.submit(2, run="run10")
        page.wait(f"{first}?.includes('run10: 0.7 at 2')", "the run that began anew is shown")
        points = "document.querySelectorAll('#charts article:first-child .point').length"
        page.wait(f"{points} === 3", "what was forgotten is not")

    def test_charts_stay_where_nothing_changed(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        for suite in ("heldout", "other"):
            queue.submit(1, suite)
        page = self.open(queue)
        cards = "[...document.querySelectorAll('#charts article')]"
        page.wait(f"{cards}.length === 4", "all charts are drawn")
        stays = f"{cards}.filter((card) => card.querySelector('.curve').stays).map((card) => card.textContent.includes('(heldout)')).join()"
        kept = []
        for count, step in enumerate((2, 4, 5, 6), 2):  # What is published before may be drawn once more: it is loaded, too.
            page.ask(f"{cards}.forEach((card) => (card.querySelector('.curve').stays = true))")
            queue.submit(step, "other")
            drawn = f"{cards}.filter((card) => card.querySelectorAll('.point').length === {count}).length === 2"
            page.wait(drawn, f"step {step} is drawn")
            kept.append(page.ask(stays))
        self.assertIn("true,true", kept)

    def test_calls_that_fail_are_made_again(self) -> None:
        """One too many in a second, and one that nobody answers for a minute (here: three seconds), beside which none is made."""
        queue = Queue()
        queue.submit(1, "large")
        page = self.open(queue)
        rows = "document.querySelectorAll('#job-table tr.job').length"
        page.wait(f"{LIVE} && {rows} === 1", "the job is listed")
        page.ask(
            "(() => { const real = fetch, after = AbortSignal.timeout; let refusals = 1, now = 0; window.silences = 1; window.most = 0;"
            " AbortSignal.timeout = (ms) => after.call(AbortSignal, ms / 20);"
            " const silence = (signal) => new Promise((_, no) => signal?.addEventListener('abort', () => no(signal.reason)));"
            " window.fetch = (path, options) => {"
            "  if (path.startsWith('/v1/jobs/') && refusals-- > 0) return Promise.resolve(new Response('{}', {status: 429}));"
            "  if (!path.startsWith('/v1/jobs?')) return real(path, options);"
            "  window.most = Math.max(window.most, ++now);"
            "  return (window.silences-- > 0 ? silence(options.signal) : real(path, options)).finally(() => now--); }; })()"
        )
        page.ask("document.querySelector('#job-table tr.job').click()")
        page.wait("document.getElementById('job-cause').textContent.includes('queued')", "it was asked again")
        self.assertEqual(page.ask("document.getElementById('job-answer').textContent"), "")
        queue.submit(2, "large")
        page.wait("window.silences === 0", "nobody answers")
        queue.submit(3, "large")
        page.wait(f"{rows} === 3", "it is asked again")
        self.assertEqual(page.ask("window.most"), 1)

    def test_a_token_reads_cancels_and_queues_again(self) -> None:
        queue = Queue(tokens=True)
        queue.submit(7, "large")
        page = self.open(queue)
        page.wait("document.getElementById('welcome')?.hidden === false", "it asks for a key")
        self.assertTrue(page.ask("document.getElementById('content').hidden"))
        page.ask(
            f"document.getElementById('token-input').value = '{TOKEN}';"
            "document.querySelector('#token-form button[value=ok]').click()"
        )
        page.wait(f"{LIVE} && document.querySelectorAll('#job-table tr.job').length === 1", "it reads")
        page.ask("document.querySelector('#job-table tr.job').click()")
        for button, state in (("cancel", "cancelled"), ("retry", "queued")):
            page.wait(f"!document.getElementById('job-{button}').disabled", f"{button} is offered")
            page.ask(f"document.getElementById('job-{button}').click()")
            page.wait(f"document.querySelector('#job-table tr.job').textContent.includes('{state}')", f"the list says {state}")

    def press(self, page: Page, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "char", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text="\r" if key == "Enter" else "")

    def test_it_is_used_by_keyboard_while_it_changes(self) -> None:
        queue = Queue()
        queue.submit(1)
        page = self.open(queue)
        rows = "document.querySelectorAll('#job-table tr.job').length"
        page.wait(f"{LIVE} && {rows} === 1", "the job is listed")
        page.ask("document.querySelector('#job-table .job-link').focus()")
        queue.submit(2)
        page.wait(f"{rows} === 2", "the list was renewed")
        self.assertEqual(page.ask("document.activeElement.dataset.key"), "digits/1/regular/heldout")
        self.press(page, "Enter", 13)
        page.wait("document.getElementById('job').open", "Enter opens the job")
        self.assertEqual(page.ask("document.getElementById('job-title').textContent"), "digits/1/regular/heldout")
        self.press(page, "Escape", 27)
        page.wait("!document.getElementById('job').open", "Escape closes it")
        page.ask("document.querySelector('#states button[data-key=queued]').focus()")
        self.press(page, "Enter", 13)
        page.wait("document.querySelector('#states button[data-key=queued]').getAttribute('aria-pressed') === 'true'", "it is pressed")
        self.assertEqual(page.ask("document.activeElement.dataset.key"), "queued")

    def test_a_broken_connection_is_said_and_mended(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        queue.submit(1)
        page = self.open(queue)
        points = "document.querySelectorAll('#charts article:first-child .point').length"
        page.wait(f"{LIVE} && {points} === 1", "it shows the first result")
        queue.stop_gateway()
        page.wait("document.getElementById('live').className === 'badge off'", "it says that nobody answers")
        page.wait("document.getElementById('notice').textContent.startsWith('The gateway does not answer')", "and what that means")
        queue.submit(2)
        evalq(queue.scene, "wait", "digits", "--timeout", "60")
        queue.start_gateway()
        page.wait(f"{LIVE} && {points} === 2", "what came meanwhile is there")
        queue.scene.stop_redis()
        said = "document.getElementById('notice').textContent"
        page.wait(f"{said}.startsWith('Redis does not answer the gateway.')", "it says that Redis is away")
        queue.scene.start_redis()
        queue.submit(3)
        page.wait(f"{points} === 2 && document.querySelectorAll('.gap.dead').length > 0", "what came since is there")
        page.wait("document.getElementById('notice').hidden", "it says so no longer")

    def publish_runs(self, queue: Queue, runs: Dict[str, List[int]]) -> None:
        for run, steps in runs.items():
            for step in steps:
                queue.submit(step, run=run)
            evalq(queue.scene, "wait", run, "--timeout", "60")

    def test_addresses_name_what_is_shown_and_back_returns(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        self.publish_runs(queue, {"one": [1, 2], "two": [1], "three": [1], "four": [1]})
        page = self.open(queue)
        shown = "[...document.querySelectorAll('#charts article:first-child .name')].map((one) => one.textContent).sort().join()"
        page.wait(f"{shown} === 'four,three,two'", "the newest three are shown")
        page.ask("document.querySelector('#run-list button[data-key=one]').click()")
        page.wait(f"{shown} === 'four,one,three,two' && location.hash.startsWith('#/compare/')", "the selection is in the address")
        page.ask("window.before = true; location.reload()")
        page.wait(f"!window.before && {LIVE} && {shown} === 'four,one,three,two'", "it survives a reload")
        page.ask("location.hash = '#/run/one'")
        page.wait(f"{shown} === 'one' && document.getElementById('runs-title').textContent === 'Run one'", "a run has its own address")
        page.wait("[...document.querySelectorAll('.job-link')].map((one) => one.dataset.key.split('/')[0]).join() === 'one,one'", "its jobs alone are listed")
        page.ask("document.querySelector('.job-link').click()")
        page.wait("document.getElementById('job').open && location.hash.startsWith('#/job/one/')", "a job has its own address")
        page.ask("history.back()")
        page.wait("!document.getElementById('job').open && location.hash === '#/run/one'", "back closes the job")
        page.ask("history.back()")
        page.wait(f"{shown} === 'four,one,three,two'", "back returns to the comparison")
        page.ask("location.hash = '#/run/nobody'")
        page.wait("!document.getElementById('run-missing').hidden", "a run that is not there is named")

    def test_a_chart_is_zoomed_smoothed_and_saved(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        self.publish_runs(queue, {"one": [1, 2, 4, 5, 6, 7, 8, 9]})
        page = self.open(queue)
        points = "document.querySelectorAll('#charts article:first-child .point').length"
        page.wait(f"{points} === 8", "the curve is drawn")
        place = page.ask("(() => { const box = document.querySelector('.chart > svg').getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; })()")
        ticks = "[...document.querySelectorAll('.chart text')].map((one) => one.textContent).join()"
        whole = page.ask(ticks)
        for kind, share in (("mousePressed", 0.3), ("mouseMoved", 0.4), ("mouseReleased", 0.6)):
            x, y = place[0] + share * place[2], place[1] + place[3] / 2
            page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        page.wait(f"{ticks} !== {whole!r} && !document.querySelector('.reset').hidden", "dragging zooms")
        page.ask("document.querySelector('.chart > svg').focus()")
        self.press(page, "0", 48)
        page.wait(f"{ticks} === {whole!r}", "0 shows the whole chart")
        page.ask("(() => { const one = document.getElementById('view-smooth'); one.value = 0.5; one.dispatchEvent(new Event('input')); })()")
        page.wait("document.querySelectorAll('.chart .smooth').length === 2 && document.querySelectorAll('.curve.raw').length === 2", "both curves are there")
        page.ask("document.getElementById('view-log').click()")
        page.ask("(() => { const one = document.getElementById('view-x'); one.value = 'elapsed'; one.dispatchEvent(new Event('change')); })()")
        page.ask("window.before = true; location.reload()")
        page.wait(
            "!window.before && document.querySelectorAll('.chart .smooth').length === 2 && document.getElementById('view-x').value === 'elapsed'",
            "the view survives a reload",
        )
        page.ask("window.saved = {}; URL.createObjectURL = (blob) => (window.saved[blob.type] = blob, 'blob:none');")
        page.ask("HTMLAnchorElement.prototype.click = () => {}; for (const one of document.querySelectorAll('.chart:first-child .tool')) one.click();")
        page.wait("Object.keys(window.saved).sort().join() === 'image/png,image/svg+xml,text/csv'", "three files are saved")
        csv = page.ask("window.saved['text/csv'].text()").split("\r\n")
        self.assertEqual(csv[0], "run,variant,step,epoch,finished,value,std_error")
        self.assertEqual(len(csv), 10)
        self.assertEqual(page.ask("createImageBitmap(window.saved['image/png']).then((image) => image.width > 1000)"), True)
        self.assertIn("#2f7de1", page.ask("window.saved['image/svg+xml'].text()"))

    def test_many_runs_and_equal_curves_stay_distinct(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        names = [f"run{number}" for number in range(12)]
        self.publish_runs(queue, {name: [1, 2] for name in names})
        page = self.open(queue)
        page.ask(f"location.hash = '#/compare/{','.join(names)}'")
        curves = "[...document.querySelectorAll('#charts article:first-child .curve')]"
        page.wait(f"{curves}.length === 12", "all curves are drawn")
        self.assertEqual(page.ask(f"new Set({curves}.map((one) => one.getAttribute('stroke'))).size"), 12)
        self.assertEqual(page.ask(f"new Set({curves}.map((one) => one.getAttribute('stroke-dashoffset'))).size"), 12)

    def test_many_jobs_are_found_and_changed_at_once(self) -> None:
        queue = Queue(tokens=True)
        for step in (1, 2, 3):
            queue.submit(step, "large")
        queue.submit(1, "large", run="other")
        page = Page(queue.url + "#key=" + TOKEN)
        self.addCleanup(queue.scene.close)
        self.addCleanup(page.close)
        rows = "document.querySelectorAll('#job-table tr.job').length"
        page.wait(f"{LIVE} && {rows} === 4", "the jobs are listed")
        self.assertNotIn(TOKEN, page.ask("location.href"))
        self.assertIn("no worker offers suite large", page.ask("document.querySelector('#job-table tr.job .reason').textContent"))
        page.ask("(() => { const one = document.getElementById('job-search'); one.value = 'digits'; one.dispatchEvent(new Event('input')); })()")
        page.wait(f"{rows} === 3", "the search narrows them")
        page.ask("document.querySelector('#job-table .group input').click(); document.getElementById('bulk-pause').click()")
        page.wait("document.getElementById('waiting').textContent.includes('run digits')", "their run is paused")
        page.ask("document.querySelector('#job-table .group input').click(); document.getElementById('bulk-cancel').click()")
        page.wait("document.getElementById('job-said').textContent.startsWith('Cancelled: 3 of 3')", "all three are cancelled")

    def test_a_suite_of_which_every_job_failed_is_shown(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        queue.submit(3)
        evalq(queue.scene, "wait", "digits", "--timeout", "60", code=4)
        page = self.open(queue)
        page.wait("document.querySelector('#charts h3')?.textContent === 'heldout: every job failed'", "the suite has a chart")
        self.assertIn("step 3: dead", page.ask("document.querySelector('#charts .note').textContent"))

    def test_it_loads_nothing_from_elsewhere(self) -> None:
        queue = Queue()
        page = self.open(queue)
        page.wait(LIVE, "it lives")
        self.assertEqual(page.ask(f"performance.getEntriesByType('resource').filter((one) => !one.name.startsWith('{queue.url}')).length"), 0)
        with urllib.request.urlopen(queue.url, timeout=30) as reply:
            policy = reply.headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'; script-src 'self';", policy)
        self.assertNotIn("unsafe-eval", policy)

    def test_it_fits_a_phone_in_the_dark(self) -> None:
        queue = Queue()
        queue.scene.start_worker()
        queue.submit(1)
        page = self.open(queue)
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.wait("document.querySelectorAll('#charts article').length === 2", "the charts are drawn")
        page.wait("document.querySelectorAll('#job-table tr.job').length === 1", "the job is listed")
        self.assertLessEqual(page.ask("document.documentElement.scrollWidth"), 390)
        self.assertEqual(page.ask("getComputedStyle(document.documentElement).backgroundColor"), "rgb(16, 21, 27)")


@unittest.skipUnless(shutil.which("promtool"), "NOT RUN: no promtool (apt: prometheus)")
class PromtoolTest(unittest.TestCase):
    def test_figures_pass_its_check(self) -> None:
        queue = Queue()
        self.addCleanup(queue.scene.close)
        queue.scene.start_worker()
        queue.submit(1)
        queue.submit(3)
        evalq(queue.scene, "wait", "digits", "--timeout", "60", code=4)

        def scraped() -> bytes:
            with urllib.request.urlopen(queue.url + "metrics", timeout=30) as reply:
                self.assertEqual(reply.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                return bytes(reply.read())

        until(lambda: b'evalq_jobs_ended_total{queue="main",suite="heldout",state="dead"} 1' in scraped(), "the end is counted")
        text = scraped()
        self.assertIn(b'task="digits",metric="loss",better="lower"} 2', text)
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, b""))

    def test_rules_and_scrape_configuration_pass_its_check(self) -> None:
        for words in (["rules", "alerts.yml"], ["config", "--syntax-only", "prometheus.yml"]):
            checked = subprocess.run(["promtool", "check", *words], cwd=SOURCE + "/deploy/grafana", capture_output=True, check=False)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    unittest.main()
