"""`evalq-worker score` and the class that talks to it: values, refusals, limits, closed pipes. That
texts are scored as lm-evaluation-harness does: tests/peers/test_lm_eval_native.py."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile
import unittest
from typing import Any, Dict, List

from scene import BIN, DEADLINE, SOURCE

from evalq._native_scores import NativeScores

MODELS = os.path.join(SOURCE, "tests", "data", "models")
TOKENIZER = os.path.join(SOURCE, "tests", "data", "tokenizers", "gpt2")
PROGRAM = os.path.join(BIN, "evalq-worker")
SEED = 20261126
VOCABULARY, WIDTH, CONTEXT = 370, 16, 32  # Of the model with a tokenizer.


def expected(family: str) -> Dict[str, List[float]]:
    """Tokens and log-probabilities in float64 of the first sequence of tests/data/models."""
    with open(os.path.join(MODELS, family, "expected.txt"), encoding="ascii") as file:
        lines = [line.split() for line in file.read().splitlines()[:2]]
    return {name: [float(value) for value in values] for name, *values in lines}


def write_gpt2(folder: str) -> str:
    """A random GPT-2 with the tokenizer of tests/data beside it."""
    rng = random.Random(SEED)
    block = {"ln_1.weight": [WIDTH], "ln_1.bias": [WIDTH], "ln_2.weight": [WIDTH], "ln_2.bias": [WIDTH]}
    for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
        block.update({f"{name}.weight": [rows * WIDTH, columns * WIDTH], f"{name}.bias": [columns * WIDTH]})
    shapes = {"wte.weight": [VOCABULARY, WIDTH], "wpe.weight": [CONTEXT, WIDTH], "ln_f.weight": [WIDTH], "ln_f.bias": [WIDTH]}
    shapes.update({f"h.0.{name}": shape for name, shape in block.items()})
    header: Dict[str, Any] = {}
    data = b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = struct.pack(f"<{count}f", *(rng.uniform(-1, 1) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    os.makedirs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    config = {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": WIDTH, "n_head": 2, "n_layer": 1}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token": "<|endoftext|>"}, file)
    shutil.copy(os.path.join(TOKENIZER, "tokenizer.json"), folder)
    return folder


class ScoreTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="evalq-score-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = dict(os.environ, PATH=BIN + os.pathsep + os.environ["PATH"])
        os.environ["PATH"] = self.environment["PATH"]
        self.engine = NativeScores(["--devices", "cpu", "--threads", "1"])
        self.addCleanup(lambda: self.engine.close())

    def load(self, path: str, **maps: Dict[str, str]) -> Dict[str, Any]:
        return self.engine.load(path, "regular", maps)

    def gpt2(self) -> str:
        return write_gpt2(os.path.join(self.folder, "gpt2"))

    def near(self, got: float, wanted: float) -> None:
        self.assertTrue(abs(got - wanted) <= 1e-5 * max(1.0, abs(wanted)), (got, wanted))  # A NaN fails.

    def refused(self, *requests: Dict[str, Any]) -> str:
        with self.assertRaises(ValueError) as caught:
            self.engine.score(requests)
        return str(caught.exception)

    def run_lines(self, *lines: bytes, words: "tuple[str, ...]" = ()) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [PROGRAM, "score", "--devices", "cpu", *words], input=b"\n".join(lines) + b"\n", capture_output=True, timeout=DEADLINE,
            check=False,
        )

    def test_two_checkpoints_in_one_process_have_their_own_scores(self) -> None:
        for family in ("gpt2", "llama", "gpt2"):
            answer = self.load(os.path.join(MODELS, family))
            self.assertEqual((answer["family"], answer["vocabulary"], answer["context"]), (family, 37, 24))
            self.assertIn("tokenizer", answer["no_tokenizer"])
            known = expected(family)
            tokens, logprobs = [int(token) for token in known["tokens"]], known["logprobs"]
            requests = [{"context": tokens[:at], "texts": [tokens[at:], tokens[at : at + 1]]} for at in range(1, 18)]
            scores = [logprob for logprob, _ in self.engine.score(requests)]
            for at in range(1, 18):
                self.near(scores[2 * at - 2], sum(logprobs[at - 1 :]))
                self.near(scores[2 * at - 1], logprobs[at - 1])
            best = [self.engine.score([{"context": tokens[:3], "texts": [[id] for id in range(37)]}])][0]
            self.assertEqual([greedy for _, greedy in best].count(True), 1)
            self.assertTrue(max(best)[1])
        self.assertIsNone(self.engine._process.poll())

    def test_progress_says_what_is_counted(self) -> None:
        told = []
        self.load(self.gpt2())
        self.engine.listener = lambda done, total, doing: told.append((done, total, doing))
        self.engine.score([{"texts": ["It was"]}])
        self.assertGreater(len(told), 0)
        for done, total, doing in told:
            self.assertLessEqual(done, total)
            self.assertTrue(doing.startswith("task the requests"), doing)

    def test_whole_texts_are_their_parts(self) -> None:
        self.assertEqual(self.load(self.gpt2())["no_tokenizer"], "")
        text = "It was the best"
        [(whole, _)] = self.engine.score([{"texts": [text]}])
        alone, first = self.engine.score([{"context": "", "texts": [text, "It"]}])
        [(rest, _)] = self.engine.score([{"context": "<|endoftext|>It", "texts": [text[2:]]}])
        [(moved, _)] = self.engine.score([{"context": "<|endoftext|>It ", "texts": [text[3:]]}])
        self.near(alone[0], whole)
        self.near(first[0] + rest, whole)
        self.near(moved, rest)  # A blank at the end of the context belongs to the continuation.
        long = self.engine.score([{"texts": [text * 9, "", text]}])  # Longer than the context: several windows.
        self.assertEqual(long[1], (0.0, True))
        self.near(long[2][0], whole)
        self.assertLess(long[0][0], 5 * whole)

    def test_refuses_requests_and_goes_on(self) -> None:
        self.assertIn("before a checkpoint was loaded", self.not_loaded())
        self.load(os.path.join(MODELS, "gpt2"))
        good = {"context": [1, 2], "texts": [[3]]}
        self.assertIn("only tokens can be scored: ", self.refused({"texts": ["text"]}))
        self.assertIn("token id 37, but the model's vocabulary ends at 36", self.refused({"context": [37], "texts": [[1]]}))
        self.assertIn("25 tokens are to be scored, but the model takes 24", self.refused({"context": [1], "texts": [[1] * 25]}))
        self.assertIn("a context has no tokens", self.refused({"context": [], "texts": [[1]]}))
        self.assertIn("a continuation has no tokens", self.refused(good, {"context": [1], "texts": [[]]}, good))
        self.assertIn("expected one kind", self.refused(good, {"texts": [[1]]}))
        self.assertIn("a text and tokens, expected the same", self.refused({"context": "a", "texts": [[1]]}))
        self.assertIn("needs a prefix", self.refused({"texts": [[1, 2]]}))
        self.assertEqual(self.engine.score([]), [])
        self.assertEqual(len(self.engine.score([good, good])), 2)
        self.load(self.gpt2())
        self.assertIn("nothing to score: '' gives no token", self.refused({"context": "a", "texts": [""]}))

    def not_loaded(self) -> str:
        done = self.run_lines(b'{"texts": ["a"]}', b'{"texts": ["a"]}', b'{"score": true}')
        self.assertEqual((done.returncode, done.stdout.count(b"\n")), (0, 1))
        return str(json.loads(done.stdout)["error"])

    def test_refuses_checkpoints_and_goes_on(self) -> None:
        gpt2 = os.path.join(MODELS, "gpt2")
        for words, path, maps in (
            ("No such file or directory", os.path.join(self.folder, "none"), {}),
            ("length is 25 tokens, but the model takes sequences of at most 24", gpt2, {"options": {"length": "25"}}),
            ("compute 'fp64' is not known", gpt2, {"options": {"compute": "fp64"}}),
            ("'mode'", gpt2, {"options": {"mode": "blocks"}}),
            ("'text'", gpt2, {"data": {"text": "x"}}),
            ("prefix", gpt2, {"data": {"prefix": "-2"}}),
            ("'colour'", gpt2, {"model": {"colour": "red"}}),
            ("an mlp reads samples, but this task scores tokens", os.path.join(SOURCE, "tests/data/mnist/mlp_784_512_128_32_10.safetensors"),
             {"model": {"family": "mlp", "activation": "relu"}}),
        ):
            with self.assertRaises(ValueError, msg=words) as caught:
                self.load(path, **maps)
            self.assertIn(words, str(caught.exception))
            self.assertIn("before a checkpoint was loaded", self.refused({"texts": [[1]]}))
        with self.assertRaisesRegex(ValueError, "the file holds no EMA weights"):
            self.engine.load(os.path.join(SOURCE, "tests/data/checkpoints/made/nanogpt.pt"), "ema", {})
        self.assertEqual(self.load(gpt2, options={"length": "8"})["context"], 8)
        mixed = self.gpt2()
        shutil.copy(os.path.join(MODELS, "gpt2", "config.json"), mixed)
        shutil.copy(os.path.join(MODELS, "gpt2", "model.safetensors"), mixed)
        self.load(mixed)
        self.assertIn("the tokenizer does not fit the model", self.refused({"texts": ["the best of"]}))

    def test_ends_at_a_line_that_is_no_request(self) -> None:
        for line, words in (
            (b"load", b"standard input is not a request: "),
            (b"[]", b"expected an object with load, texts or score"),
            (b'{"score": false}', b"expected an object with load, texts or score"),
            (b'{"load": 1}', b"load is not a path"),
            (b'{"load": "x", "variant": 1}', b"variant is not a name"),
            (b'{"load": "x", "data": []}', b"model, data and options are maps with at most 64 keys"),
            (b'{"load": "x", "data": {"prefix": 1}}', b"the values of model, data and options are strings"),
            (b'{"texts": []}', b"texts is not a list of 1 to 65536 texts"),
            (b'{"texts": [' + b"[]," * 65536 + b"[]]}", b"texts is not a list of 1 to 65536 texts"),
            (b'{"texts": [1]}', b"expected a text or a list of token ids"),
            (b'{"texts": [[-1]]}', b"a token id is not a whole number from 0 to 2147483647"),
            (b'{"texts": [[2147483648]]}', b"a token id is not a whole number from 0 to 2147483647"),
            (b'{"texts": [[1.5]]}', b"a token id is not a whole number from 0 to 2147483647"),
            (b'{"texts": ["\xff"]}', b"standard input is not a request: "),
            (b'"' + b" " * (64 << 20) + b'"', b"expected at most 67108864"),
        ):
            done = self.run_lines(line)
            self.assertEqual((done.returncode, done.stdout), (9, b""), line[:80])
            self.assertIn(words, done.stderr, line[:80])
            self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
        self.assertEqual(self.run_lines(words=("--json",)).returncode, 2)

    def test_a_closed_pipe_ends_the_process(self) -> None:
        process = subprocess.Popen([PROGRAM, "score", "--devices", "cpu"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(b'{"score": true}\n')
        process.stdin.flush()
        self.assertEqual(process.wait(DEADLINE), 1)
        self.assertIn(b"standard output cannot be written: Broken pipe", process.stderr.read())
        process.stderr.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()

    def test_a_process_that_ended_is_started_again(self) -> None:
        path = os.path.join(MODELS, "gpt2")
        request = {"context": [1, 2], "texts": [[3]]}
        self.load(path)
        wanted = self.engine.score([request])

        def broken() -> Any:
            yield request
            raise KeyError("the caller's own")

        with self.assertRaises(KeyError):
            self.engine.score(broken())
        with self.assertRaisesRegex(RuntimeError, "evalq-worker ended with exit code -9"):
            self.engine.score([request])
        self.load(path)
        self.assertEqual(self.engine.score([request]), wanted)
        with self.assertRaises(RuntimeError):
            self.engine.score([{"texts": 1}])
        self.load(path)
        self.assertEqual(self.engine.score([request]), wanted)


if __name__ == "__main__":
    print(f"seed {SEED}")
    unittest.main()
