"""Tests the bash completion that each program writes with its manual pages, as at a prompt."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import unittest
from typing import Dict, List

from scene import BIN, DEADLINE, SOURCE, until

PROGRAMS = ("evalq", "evalq-worker", "evalq-logger", "evalq-gateway")
ASK = """
source "$1" || exit 1
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
function=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function"
printf '%s\\n' "${COMPREPLY[@]}"
"""

# Control-X writes the line to a file.
BASH = r"""leave() { printf '%s\n' "$READLINE_LINE" >$LINE; READLINE_LINE=
}
bind -x '"\C-x": leave'
bind '"\t": complete'
PS1=
source evalq-logger.bash
printf 'ready\n' >$LINE"""


def drain(terminal: int) -> None:
    """Reads the output of a shell so that the shell never blocks. It ends with the terminal."""
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        pass


class CompletionTest(unittest.TestCase):
    directory = ""

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.mkdtemp(prefix="evalq-completion-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        for program in PROGRAMS:
            if os.path.exists(f"{BIN}/{program}"):  # Not every build has the gateway.
                subprocess.run([f"{BIN}/{program}", "--write-man", cls.directory], check=True)
        os.mkdir(os.path.join(cls.directory, "folder"))

    def bash(self, *words: str) -> List[str]:
        script = f"{self.directory}/{words[0]}.bash"
        done = subprocess.run(
            ["bash", "-c", ASK, "bash", script, *words], cwd=self.directory, text=True, capture_output=True, check=False
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_offers_verbs_then_options_of_the_verb(self) -> None:
        self.assertEqual(self.bash("evalq", "sub"), ["submit"])
        self.assertIn("doctor", self.bash("evalq", ""))
        self.assertEqual(self.bash("evalq", "submit", "--sui"), ["--suite"])
        self.assertEqual(self.bash("evalq", "status", "--sui"), [])
        self.assertEqual(self.bash("evalq", "--jso"), ["--json"])
        self.assertEqual(self.bash("evalq", "status", "--jso"), ["--json"])
        self.assertEqual(self.bash("evalq", "submit", ""), [])  # bash completes file names itself.

    def test_bash_steps_over_values_before_the_verb(self) -> None:
        self.assertEqual(self.bash("evalq", "--queue", "submit", "stat"), ["status"])
        self.assertEqual(self.bash("evalq", "-Q", "submit", "stat"), ["status"])
        # bash splits words at "=".
        self.assertEqual(self.bash("evalq", "--queue", "=", "submit", "stat"), ["status"])
        self.assertEqual(self.bash("evalq", "--queue", "sub"), [])
        self.assertEqual(self.bash("evalq", "--queue", "main", "submit", "--sui"), ["--suite"])

    def test_bash_offers_the_values_of_choices(self) -> None:
        self.assertEqual(self.bash("evalq", "--color", "a"), ["auto", "always"])
        self.assertEqual(self.bash("evalq", "status", "--color", "=", "n"), ["never"])
        self.assertEqual(self.bash("evalq", "status", "--color", "="), ["auto", "always", "never"])
        self.assertIn("gateway", self.bash("evalq", "admin", "--role", ""))
        self.assertEqual(self.bash("evalq-logger", "--log-format", "j"), ["json"])
        self.assertEqual(self.bash("evalq-logger", "--directory", "fo"), ["folder"])

    def test_bash_offers_the_words_behind_a_verb(self) -> None:
        self.assertEqual(self.bash("evalq", "admin", ""), ["install", "acl", "suite", "limit"])
        self.assertEqual(self.bash("evalq", "--queue", "main", "admin", "li"), ["limit"])
        self.assertEqual(self.bash("evalq", "pause", "r"), ["run"])
        self.assertEqual(self.bash("evalq", "admin", "limit", "s"), [])

    def test_bash_knows_the_other_programs(self) -> None:
        self.assertEqual(self.bash("evalq-worker", "i"), ["inspect"])
        self.assertEqual(self.bash("evalq-worker", "--idle"), ["--idle-exit"])
        self.assertEqual(self.bash("evalq-worker", "eval", "--sui"), ["--suites", "--suite"])

    def test_every_option_of_every_help_is_offered(self) -> None:
        verbs = self.bash("evalq", "")
        self.assertGreater(len(verbs), 15)
        for verb in verbs:
            helped = subprocess.run([BIN + "/evalq", verb, "--help"], text=True, capture_output=True, check=True).stdout
            lines = [line[6:].split()[0] for line in helped.split("\n") if line[:2] == "  " and line[6:8] == "--"]
            self.assertEqual(sorted(self.bash("evalq", verb, "--")), sorted(lines), verb)

    def helps(self) -> Dict[str, str]:
        """The text of each --help on one line, by its command."""
        commands = [["evalq"], *(["evalq", verb] for verb in self.bash("evalq", "")), *([program] for program in PROGRAMS[1:])]
        return {
            " ".join(command): " ".join(subprocess.run([f"{BIN}/{command[0]}", *command[1:], "--help"], text=True, capture_output=True, check=True).stdout.split())
            for command in commands
            if os.path.exists(f"{BIN}/{command[0]}")
        }

    def test_every_help_has_an_example_that_the_program_understands(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EVALQ_")}
        environment.update(EVALQ_URL="unix:///nowhere", PATH=f"{BIN}:{os.environ['PATH']}", XDG_STATE_HOME=self.directory)
        for command, text in self.helps().items():
            found = re.search(r" Examples?: ((?:`[^`]+`(?:, )?)+) ", text)
            self.assertIsNotNone(found, command)
            examples = re.findall("`([^`]+)`", found.group(1) if found else "")
            self.assertIn(len(examples), (1, 2), command)
            for example in examples:
                self.assertEqual(example.split()[: len(command.split())], command.split())
                if command in ("evalq", "evalq up", "evalq-logger", "evalq-gateway"):
                    continue  # Those start servers; test_up_command and the tests of the programs run them.
                with tempfile.TemporaryDirectory() as folder:
                    done = subprocess.run(shlex.split(example), cwd=folder, env=environment, text=True, capture_output=True, timeout=DEADLINE, check=False)
                self.assertNotEqual(done.returncode, 2, f"{example}: {done.stderr}")

    def test_every_option_of_every_help_is_in_some_test(self) -> None:
        tests = ""
        for folder, _, names in os.walk(os.path.join(SOURCE, "tests")):
            for name in names:
                if name.endswith((".c", ".h", ".py", ".sh", ".txt")):
                    with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                        tests += file.read()
        by_up = {"--warm"}  # `evalq up` gives it to its workers, as test_up_command sees.
        for command, text in self.helps().items():
            for option in re.findall(r" (--[a-z-]+)(?= )", text.split(" Options: ")[-1]):
                if option not in by_up:
                    self.assertTrue(re.search(rf"{option}(?![a-z-])", tests), f"no test uses {option} of {command}")

    def prompt(self, shell: List[str], setup: str) -> int:
        """Starts a shell in a pseudo-terminal, and returns the terminal's other end."""
        environment = dict(os.environ, HOME=self.directory, ZDOTDIR=self.directory, TERM="dumb", LINE=self.directory + "/line")
        environment["INPUTRC"] = "/dev/null"
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        done = subprocess.Popen(
            shell, cwd=self.directory, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.addCleanup(done.wait)
        self.addCleanup(done.kill)
        threading.Thread(target=drain, args=(master,), daemon=True).start()
        os.write(master, setup.encode() + b"\r")
        return master

    def completed(self, prompt: int, typed: str) -> str:
        """Types text and a tab, and returns the completed line."""
        until(lambda: self.line() == "ready", "the shell is at its prompt")
        os.write(prompt, typed.encode() + b"\t\x18")
        # If the file is empty, the shell is still writing it.
        until(lambda: self.line() not in ("ready", ""), f"{typed!r} is completed")
        line = self.line()
        os.write(prompt, b"\x15printf 'ready\\n' >$LINE\r")
        return line

    def test_bash_quotes_names_of_directories(self) -> None:
        """A directory name that looks like a command must not be executed."""
        names = ("a b", "c$(touch executed)", "d'e", "f*")
        for name in names:
            os.mkdir(f"{self.directory}/odd-{name}")
            self.addCleanup(os.rmdir, f"{self.directory}/odd-{name}")
        prompt = self.prompt(["bash", "--norc", "--noprofile", "-i"], BASH)
        for name in names:
            words = shlex.split(self.completed(prompt, f"evalq-logger --directory odd-{name[0]}"))
            self.assertEqual(words[2:], [f"odd-{name}/"])
        self.assertFalse(os.path.exists(self.directory + "/executed"))

    def line(self) -> str:
        try:
            with open(self.directory + "/line", encoding="utf-8") as file:
                return file.read().rstrip("\n")
        except FileNotFoundError:
            return ""


if __name__ == "__main__":
    unittest.main()
