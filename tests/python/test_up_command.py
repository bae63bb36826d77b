"""Tests `evalq up -- COMMAND`: no failure of evalq ends the training, and a stop gives it the time
that it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Callable, List, Sequence

from scene import BIN, DATA, DEADLINE, until
from terminal import Terminal

# It runs until it is told to end, also after a signal, and then it saves.
TRAINING = """
import os, signal, sys, time
def told(number, frame):
    os.write(1, b"told %s\\n" % signal.Signals(number).name.encode())  # print() may be at work on what it interrupts.
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
print("it trains", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("x" * 100_000, flush=True)  # More than a terminal holds unread.
open("saved", "w").close()
"""
CONFIG = """
roots: {work: .}
suites:
  quick:
    evaluator: script
evaluators:
  script: {kind: command, argv: [/bin/true]}
"""
PERSISTENT = f"""
roots: {{work: .}}
worker: {{slots: 1, scratch: ./scratch}}
suites:
  quick: {{evaluator: script, tasks: [{{name: t, type: any}}]}}
evaluators:
  script: {{kind: persistent, directory: ., command: [{sys.executable}, warm.py]}}
"""
EVALUATOR = """
import json, os, sys, time
with open("started", "a") as file:
    file.write("once\\n")
while not os.path.exists("go"):
    time.sleep(0.01)
print(json.dumps({"type": "ready"}), flush=True)
for line in sys.stdin:
    if json.loads(line)["type"] == "job":
        print(json.dumps({"type": "task", "task": "t", "metrics": {"loss": 0.5}}), flush=True)
        print(json.dumps({"type": "done"}), flush=True)
"""


class UpCommandTest(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-up-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.write("evalq.yaml", CONFIG)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("EVALQ_")}

    def write(self, name: str, text: str) -> None:
        with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
            file.write(text)

    def has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.directory, name))

    def said(self) -> str:
        with open(os.path.join(self.directory, "said"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def start(
        self, *command: str, before: Callable[[], Any] = lambda: None, options: Sequence[str] = ()
    ) -> "subprocess.Popen[bytes]":
        """Starts it with its output in the file `said`."""
        with open(os.path.join(self.directory, "said"), "wb") as said:
            process = subprocess.Popen(
                [os.path.join(BIN, "evalq"), "up", "--workers", "1", *options, "--", *command],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                preexec_fn=before,
            )

        def end() -> None:
            process.kill()
            process.wait()

        self.addCleanup(end)
        return process

    def train(self, before: Callable[[], Any] = lambda: None) -> "subprocess.Popen[bytes]":
        process = self.start(sys.executable, "-c", TRAINING, before=before)
        until(lambda: "it trains" in self.said() or process.poll() is not None, "the command runs")
        return process

    def workers(self, process: "subprocess.Popen[bytes]") -> List[int]:
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
        return [pid for pid in children if b"evalq-worker" in self.words(pid)]

    def words(self, pid: int) -> bytes:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return file.read()
        except OSError:
            return b""

    def test_a_stop_waits_until_the_command_has_saved(self) -> None:
        process = self.train()
        os.kill(process.pid, signal.SIGTERM)
        until(lambda: "told SIGTERM" in self.said(), "the command is told")
        until(lambda: "has not yet; a second Ctrl-C kills it" in self.said(), "it is said that the command is waited for")
        self.assertIsNone(process.poll())
        self.write("go", "")
        self.assertEqual(process.wait(DEADLINE), 130, self.said())
        self.assertTrue(self.has("saved"))

    def test_a_second_stop_kills_the_command(self) -> None:
        process = self.train()
        os.kill(process.pid, signal.SIGINT)
        until(lambda: "told SIGINT" in self.said(), "the command is told")
        os.kill(process.pid, signal.SIGINT)
        self.assertEqual(process.wait(DEADLINE), 130, self.said())
        self.assertFalse(self.has("saved"))

    def test_the_last_output_of_the_command_is_kept_on_a_terminal(self) -> None:
        words = ("up", "--workers", "1", "--", sys.executable, "-c", TRAINING)
        terminal = Terminal(self.environment, *words, cwd=self.directory)
        self.addCleanup(terminal.close)
        terminal.wait_for(b"it trains")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for(b"told SIGINT")
        self.write("go", "")
        terminal.wait_for(b"x" * 100)
        terminal.wait_for(b"stopping")
        until(lambda: self.has("saved"), "the command has saved")

    def test_results_do_not_tear_a_progress_bar_apart(self) -> None:
        shutil.copy(os.path.join(DATA, os.pardir, "checkpoints", "safetensors", "a.safetensors"), self.directory)
        metric = "a_metric_of_a_long_name"
        self.write("evaluate.sh", f"echo '{{\"{metric}\": 0.5}}' >$EVALQ_RESULT\n")
        self.write("evalq.yaml", CONFIG.replace("[/bin/true]", f"[/bin/sh, {self.directory}/evaluate.sh]") + "worker: {scratch: ./scratch}\n")
        command = (
            f"printf '\\rbar 1'; {BIN}/evalq submit a.safetensors --run named --step 7 --suite quick >submitted"
            f" && {BIN}/evalq wait named >ended; printf '\\rbar 2'; while ! [ -e go ]; do sleep 0.01; done; printf '\\rbar 3\\n'"
        )
        terminal = Terminal(self.environment, "up", "--workers", "1", "--", "/bin/sh", "-c", command, cwd=self.directory)
        self.addCleanup(terminal.close)
        seen = terminal.wait_for(b"run named: `evalq results named`")
        seen += terminal.wait_for(b"STEP")
        title = terminal.wait_for(b"WAIT")
        self.assertIn(metric[:13].encode(), title)
        seen += terminal.wait_for(b"bar 2")
        self.write("go", "")
        seen += terminal.wait_for(b"Summary")
        self.assertIn(b"bar 3\r\n", seen)
        self.assertNotIn(b"run named", seen)
        self.assertIsNone(re.search(rb"bar [123][^\r\n]+\S", seen), seen)

    def test_under_nohup_a_hangup_stops_nothing(self) -> None:
        process = self.train(before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        os.kill(process.pid, signal.SIGHUP)
        self.write("go", "")
        self.assertEqual(process.wait(DEADLINE), 0, self.said())
        self.assertTrue(self.has("saved"))

    def test_a_worker_that_cannot_run_any_more_does_not_end_the_training(self) -> None:
        process = self.train()
        [worker] = until(lambda: self.workers(process), "a worker")
        self.write("evalq.yaml", CONFIG + "nonsense: 1\n")
        os.kill(worker, signal.SIGKILL)
        # The first three are the worst. From the fourth on, it is started again anyway.
        until(lambda: self.said().count("worker-1 exited with status 8") == 2 or process.poll() is not None, "it was started again")
        self.write("go", "")
        self.assertEqual(process.wait(DEADLINE), 0, self.said())
        self.assertTrue(self.has("saved"))

    def test_jobs_without_any_worker_are_not_awaited(self) -> None:
        shutil.copy(os.path.join(DATA, os.pardir, "checkpoints", "safetensors", "a.safetensors"), self.directory)
        submit = f"{BIN}/evalq submit a.safetensors --run r --step 1 --suite other && echo it trains; while ! [ -e go ]; do sleep 0.01; done"
        process = self.start("/bin/sh", "-c", submit)
        until(lambda: "it trains" in self.said() or process.poll() is not None, "it is submitted")
        [worker] = until(lambda: self.workers(process), "a worker")
        self.write("evalq.yaml", CONFIG + "nonsense: 1\n")
        os.kill(worker, signal.SIGKILL)
        until(lambda: self.said().count("worker-1 exited with status 8") == 2 or process.poll() is not None, "it was started again")
        self.write("go", "")
        self.assertEqual(process.wait(DEADLINE), 8, self.said())
        self.assertIn("1 job is still open, and no worker is left for it; the next `evalq up` goes on: worker-1 exited with status 8: ", self.said())
        self.assertIn('unknown key "nonsense"', self.said().splitlines()[-1])

    def test_a_used_gateway_port_is_reported_with_advice(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.write("evalq.yaml", CONFIG + f"gateway: {{listen: '127.0.0.1:{taken.getsockname()[1]}'}}\n")
            process = self.start("/bin/echo", "it ran")
            self.assertEqual(process.wait(DEADLINE), 8, self.said())
        self.assertIn("Address already in use; stop the program that listens there, or choose another port", self.said())
        self.assertNotIn("it ran", self.said())

    def test_a_missing_gateway_is_reported_with_advice(self) -> None:
        self.write("evalq.yaml", CONFIG + "gateway: {listen: '127.0.0.1:0'}\n")
        programs = os.path.join(self.directory, "bin")
        os.mkdir(programs)
        for name in ("evalq", "evalq-worker", "evalq-logger"):
            shutil.copy2(os.path.join(BIN, name), programs)
        done = subprocess.run(
            [os.path.join(programs, "evalq"), "up", "--", "/bin/echo", "it ran"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("'evalq-gateway' is neither beside evalq nor in $PATH: install it, or remove the section `gateway` from ", done.stderr)

    def test_a_missing_server_is_said_with_what_to_do(self) -> None:
        self.environment["PATH"] = self.directory
        process = self.start("/bin/echo", "it ran")
        self.assertEqual(process.wait(DEADLINE), 3, self.said())
        self.assertIn("install one, for example with pip install 'evalq[server]'", self.said())
        self.assertNotIn("it ran", self.said())

    def test_the_command_begins_when_its_evaluators_are_ready(self) -> None:
        self.write("evalq.yaml", PERSISTENT)
        self.write("warm.py", EVALUATOR)
        shutil.copy(os.path.join(DATA, os.pardir, "checkpoints", "safetensors", "a.safetensors"), self.directory)
        submit = f"echo it ran; {BIN}/evalq submit a.safetensors --run r --step 1 --suite quick --wait"
        process = self.start("/bin/sh", "-c", submit)
        until(lambda: self.has("started") or process.poll() is not None, "the evaluator starts")
        until(lambda: "the evaluators start; " in self.said(), "it is said")
        self.assertNotIn("it ran", self.said())
        self.write("go", "")
        self.assertEqual(process.wait(DEADLINE), 0, self.said())
        self.assertLess(self.said().index("the evaluators are ready after"), self.said().index("it ran"))
        with open(os.path.join(self.directory, "started"), encoding="ascii") as file:
            # The job had the evaluator that was started before.
            self.assertEqual(file.read(), "once\n")

    def test_an_evaluator_that_cannot_start_is_no_ready_one(self) -> None:
        self.write("evalq.yaml", PERSISTENT)
        self.write("warm.py", "import sys\nprint('there is no make_trainer', file=sys.stderr)\nsys.exit(65)\n")
        process = self.start("/bin/sh", "-c", "echo it ran")
        self.assertEqual(process.wait(DEADLINE), 0, self.said())
        self.assertRegex(self.said(), "evalq: warning: there is no make_trainer .*; its jobs will fail")
        self.assertNotIn("evaluators are ready", self.said())

    def test_the_state_of_the_evaluators_decides_and_not_the_words_of_the_cause(self) -> None:
        for final, state, advice in ((True, "failed", "its jobs will fail"), (False, "retry", "the first job tries again")):
            self.write("evalq.yaml", PERSISTENT)
            error = {"type": "error", "final": final, "message": "the disk failed for good" if not final else "no data"}
            self.write("warm.py", f"print({json.dumps(json.dumps(error))}, flush=True)\nimport time\ntime.sleep(600)\n")
            process = self.start("/bin/sh", "-c", f"{BIN}/evalq status --json >status.json")
            self.assertEqual(process.wait(DEADLINE), 0, self.said())
            self.assertIn(f"evalq: warning: evaluator 'script': {error['message']}; {advice}", self.said())
            with open(os.path.join(self.directory, "status.json"), encoding="utf-8") as file:
                workers = json.load(file)["stats"]["workers"]
            alive = [worker["info"] for worker in workers if worker["state"] == "alive"]
            self.assertEqual({slot["evaluators"] for info in alive for slot in info["slots"]}, {state})

    def test_the_command_need_not_wait_for_evaluators(self) -> None:
        self.write("evalq.yaml", PERSISTENT)
        self.write("warm.py", EVALUATOR)
        process = self.start("/bin/sh", "-c", "while ! [ -e started ]; do sleep 0.01; done; echo it ran", options=["--at-once"])
        self.assertEqual(process.wait(DEADLINE), 0, self.said())
        self.assertIn("it ran", self.said())
        self.assertNotIn("evaluators are ready", self.said())

    def test_a_failed_evaluator_start_is_reported_before_the_command(self) -> None:
        self.write("evalq.yaml", PERSISTENT)
        self.write("warm.py", "import sys\nprint('no \\x1b[31mGPU', file=sys.stderr)\nraise SystemExit(3)")
        process = self.start("/bin/echo", "it ran")
        self.assertEqual(process.wait(DEADLINE), 0, self.said())
        self.assertIn("evalq: warning: evaluator 'script' died: exit status 3: no \\x1b[31mGPU; the first job tries again", self.said())
        self.assertIn("it ran", self.said())

    def test_a_failed_job_is_reported_with_its_whole_cause(self) -> None:
        shutil.copy(os.path.join(DATA, os.pardir, "checkpoints", "safetensors", "a.safetensors"), self.directory)
        cause = "ValueError: the data set 'heldout' has 0 samples after the filter of its language; "
        self.write("evaluate.sh", f"printf '%s\\033[2J the end\\n' \"{cause}\" >&2; exit 65\n")
        self.write("evalq.yaml", CONFIG.replace("[/bin/true]", f"[/bin/sh, {self.directory}/evaluate.sh]") + "worker: {scratch: ./scratch}\n")
        process = self.start(os.path.join(BIN, "evalq"), "submit", "a.safetensors", "--run", "r", "--step", "1", "--suite", "quick", "--wait")
        # This is the exit code of the command.
        self.assertEqual(process.wait(DEADLINE), 1, self.said())
        whole = cause + r"\x1b[2J the end (evaluator 'script' failed for good, exit status 65)"
        # `evalq up` prints this line.
        self.assertRegex(self.said(), r"(?m)^ +1 dead: " + re.escape(whole) + "$")
        # `evalq submit` prints this line.
        self.assertIn(f"evalq: r/1/regular/quick ended as dead: {whole}\n", self.said())
        self.assertNotIn("\x1b", self.said())

    def test_dead_jobs_of_earlier_trainings_are_named_at_the_start(self) -> None:
        shutil.copy(os.path.join(DATA, os.pardir, "checkpoints", "safetensors", "a.safetensors"), self.directory)
        self.write("evalq.yaml", CONFIG.replace("/bin/true", "/bin/sh, -c, exit 65") + "worker: {scratch: ./scratch}\n")
        submit = f"{BIN}/evalq submit a.safetensors --suite quick --wait --run"
        runs = " && ".join(f"! {submit} {run} --step 1" for run in "bcdea")
        process = self.start("/bin/sh", "-c", f"{runs} && ! {submit} a --step 2")
        process.wait(DEADLINE)
        self.assertNotIn("from an earlier training", self.said())
        # The same training again: its job does not run again, and nothing else would mention it.
        process = self.start("/bin/sh", "-c", f"echo it ran; {submit} a --step 1")
        process.wait(DEADLINE)
        said = self.said()
        self.assertIn("evalq: run a has 2 dead jobs from an earlier training: `evalq dead a` lists them, and `evalq retry --dead --run a` repeats them", said)
        self.assertEqual(said.count("from an earlier training"), 3, said)
        self.assertIn("evalq: run e has 1 dead job from an earlier training: `evalq dead e` lists it, ", said)
        self.assertIn("evalq: 2 more runs have dead jobs: `evalq dead` lists them", said)
        self.assertLess(said.index("2 more runs"), said.index("it ran"))

    def test_a_command_may_have_many_words(self) -> None:
        process = self.start("/bin/sh", "-c", "echo $# words", "sh", *(str(i) for i in range(300)))
        self.assertEqual(process.wait(DEADLINE), 0, self.said())
        self.assertIn("300 words", self.said())


if __name__ == "__main__":
    unittest.main()
