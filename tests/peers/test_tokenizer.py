"""Token for token: evalq's tokenizers against Hugging Face `tokenizers`, on mixed text and on awkward texts.

Vocabularies are trained here with the settings of the tokenizers people use (tests/data/make_tokenizers.py); EVALQ_GPT2, a
directory with GPT-2's own vocab.json and merges.txt, adds that one. EVALQ_TOKENIZERS, directories separated by ':', adds others;
EVALQ_KINDS, words separated by ':', trains these only.
"""

from __future__ import annotations

import array
import glob
import gzip
import importlib.util
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from typing import Any, Dict, Iterator, List, Optional, Tuple

os.environ["TOKENIZERS_PARALLELISM"] = "false"
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "data"))
import peers  # noqa: E402

peers.needs("tokenizers")

import make_tokenizers  # noqa: E402
import numpy  # noqa: E402
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

SEED = int(os.environ.get("EVALQ_SEED") or random.randrange(1 << 30))
BYTES = 10_500_000
AWKWARD = 4000
VOCABULARY = 6000
ENCODE = os.path.join(peers.BIN, "encode_text")
if not os.path.exists(ENCODE):
    print("not run: the build has no encode_text (its tests are off)")
    raise SystemExit(77)


def take(paths: List[str], limit: int, rng: random.Random) -> Iterator[bytes]:
    """What a seeded choice of files holds, at most limit bytes, at most 200 kB of each."""
    rng.shuffle(paths)
    for path in paths:
        try:
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                data = file.read(200_000)
        except OSError:
            continue
        yield data[:limit]
        limit -= len(data)
        if limit <= 0:
            return


def generated(limit: int, rng: random.Random) -> bytes:
    """Runs of letters of one script, marks upon them, numbers, spaces, emoji and anything else that Unicode has."""
    assigned = [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
    groups = {g: [c for c in assigned if unicodedata.category(c)[0] == g] for g in "LMNPSZC"}
    parts: List[str] = []
    size = 0
    while size < limit:
        kind = rng.choice("LLLLMNPSZCE")
        if kind == "L":
            start = rng.randrange(len(groups["L"]))
            part = "".join(rng.choice(groups["L"][start : start + 40]) + (rng.choice(groups["M"]) if rng.random() < 0.1 else "")
                           for _ in range(rng.randint(1, 12)))
            part = unicodedata.normalize(rng.choice(("NFC", "NFD", "NFKD")), part)
        elif kind == "E":
            part = "\u200d".join(chr(rng.randint(0x1F300, 0x1FAFF)) for _ in range(rng.randint(1, 4)))
        else:
            part = "".join(rng.choice(groups[kind]) for _ in range(rng.randint(1, 4)))
        parts.append(rng.choice(("", " ", " ", "  ", "\n", "\r\n", "\t")) + part)
        size += len(parts[-1].encode())
    return "".join(parts).encode()


def mixed(rng: random.Random) -> bytes:
    """Manual pages and message catalogues of every language installed (these are binary in part), code, generated Unicode."""
    pages = glob.glob("/usr/share/man/*/man?/*.gz") or glob.glob("/usr/share/man/man?/*.gz")
    catalogues = glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo")
    code = glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")) + glob.glob(os.path.join(HERE, "..", "..", "shared", "*.[ch]"))
    with open(os.path.join(HERE, "..", "data", "tinyshakespeare.txt"), "rb") as file:
        parts = [file.read()]
    for paths, share in ((pages, 3_500_000), (catalogues, 2_500_000), (code, 1_500_000)):
        parts += take(sorted(paths), share, rng)
    parts.append(generated(BYTES - sum(map(len, parts)), rng))
    return b"\n".join(parts)


def ours(directory: str, texts: List[bytes], special: bool) -> List[List[int]]:
    """What encode_text makes of each."""
    command = [ENCODE, directory, "--documents"] + (["--special"] if special else [])
    given = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True, timeout=peers.DEADLINE)
    tokens = array.array("i", done.stdout)
    result, at = [], 0
    while at < len(tokens):
        result.append(list(tokens[at + 1 : at + 1 + tokens[at]]))
        at += 1 + tokens[at]
    assert len(result) == len(texts)
    return result


def our_pairs(directory: str, texts: List[bytes], most: int) -> List[Tuple[List[int], List[int]]]:
    """Tokens and type ids of each two texts."""
    given = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    done = subprocess.run([ENCODE, directory, "--documents", f"--pairs={most}"], input=given, stdout=subprocess.PIPE, check=True,
                          timeout=peers.DEADLINE)
    tokens = array.array("i", done.stdout)
    result, at = [], 0
    while at < len(tokens):
        count, at = tokens[at], at + 1
        result.append((list(tokens[at : at + count]), list(tokens[at + count : at + 2 * count])))
        at += 2 * count
    return result


def first_difference(want: List[int], got: List[int]) -> Optional[int]:
    if want == got:
        return None
    return next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))


class TokenForToken(unittest.TestCase):
    """One text of all, the same in documents, and awkward texts."""

    @classmethod
    def setUpClass(cls) -> None:
        print(f"seed {SEED} (EVALQ_SEED repeats it)")
        rng = random.Random(SEED)
        cls.text = mixed(rng)
        cls.documents = [cls.text[i : i + 8192] for i in range(0, len(cls.text), 8192)]
        cls.awkward = make_tokenizers.awkward(SEED, AWKWARD, make_tokenizers.SAMPLES)
        # A NUL in the vocabulary is refused (docs/tokenizers.md).
        lines = [line for line in cls.text.decode("utf-8", "replace").split("\n") if "\0" not in line]
        cls.training = rng.sample(lines, min(len(lines), 30000)) + make_tokenizers.SAMPLES
        cls.directory = tempfile.TemporaryDirectory(prefix="evalq-tokenizers-")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.directory.cleanup()

    def compare(self, name: str, tokenizer: Tokenizer, directory: str) -> None:
        compared = 0
        for texts, special in (([self.text], False), (self.documents, True), (self.awkward, True), (self.awkward, False)):
            for text, got in zip(texts, ours(directory, texts, special)):
                encoding = tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=special)
                at = first_difference(encoding.ids, got)
                if at is not None:
                    begin = encoding.offsets[min(at, len(encoding.offsets) - 1)][0]
                    self.fail(f"{name}: token {at} differs: want {encoding.ids[at:at + 8]}, got {got[at:at + 8]} "
                              f"at {text.decode('utf-8', 'replace')[max(begin - 30, 0):begin + 30]!r}")
                compared += len(got)
        print(f"{name:16} {compared:>10} tokens equal, of {len(self.text)} bytes twice and {2 * AWKWARD} awkward texts")
        self.assertGreater(compared, 1_000_000)

    def compare_pairs(self, name: str, tokenizer: Tokenizer, directory: str) -> None:
        for most, side in ((16, "right"), (33, "left"), (1 << 20, "right")):
            tokenizer.enable_truncation(most, direction=side)
            with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as file:
                json.dump({"truncation_side": side}, file)
            got = our_pairs(directory, self.awkward, most)
            self.assertEqual(len(got), len(self.awkward) // 2)
            for i, (ids, types) in enumerate(got):
                theirs = tokenizer.encode(*(text.decode("utf-8", "replace") for text in self.awkward[2 * i : 2 * i + 2]))
                self.assertEqual((ids, types), (theirs.ids, theirs.type_ids), f"{name}, {most}: {self.awkward[2 * i : 2 * i + 2]}")
        tokenizer.no_truncation()

    def test_trained(self) -> None:
        for kind in (os.environ.get("EVALQ_KINDS") or ":".join(make_tokenizers.KINDS)).split(":"):
            with self.subTest(kind):
                tokenizer = make_tokenizers.build(kind, self.training, VOCABULARY)
                directory = make_tokenizers.save(kind, tokenizer, os.path.join(self.directory.name, kind))
                self.compare(kind, tokenizer, directory)
                self.compare_pairs(kind, tokenizer, directory)

    def test_gpt2_of_the_original_files(self) -> None:
        directory = os.environ.get("EVALQ_GPT2", "")
        if not os.path.exists(os.path.join(directory, "vocab.json")):
            self.skipTest("EVALQ_GPT2 names no directory with vocab.json and merges.txt")
        made = os.path.join(self.directory.name, "gpt2-original")
        tokenizer = make_tokenizers.original(directory, made)
        self.compare("gpt2 original", tokenizer, made)

    def test_others(self) -> None:
        directories = [name for name in os.environ.get("EVALQ_TOKENIZERS", "").split(":") if name]
        if not directories:
            self.skipTest("EVALQ_TOKENIZERS names no directory")
        for directory in directories:
            with self.subTest(directory):
                self.compare(directory, Tokenizer.from_file(os.path.join(directory, "tokenizer.json")), directory)


class EveryCharacter(unittest.TestCase):
    """Each character between letters and behind a space, through each normalizer and BertPreTokenizer."""

    TEXTS = [f"a{chr(c)}b {chr(c)}" for c in range(0x110000) if not 0xD800 <= c < 0xE000]

    def compare(self, tokenizer: Tokenizer) -> None:
        with tempfile.TemporaryDirectory(prefix="evalq-characters-") as directory:
            tokenizer.save(os.path.join(directory, "tokenizer.json"))
            for text, got in zip(self.TEXTS, ours(directory, [text.encode() for text in self.TEXTS], False)):
                if got != tokenizer.encode(text).ids:
                    self.fail(f"{text!r}: {got}")

    def test_normalizers(self) -> None:
        letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        for normalizer in (normalizers.BertNormalizer(), normalizers.BertNormalizer(lowercase=False), normalizers.Lowercase(),
                           normalizers.StripAccents(), normalizers.NFC(), normalizers.NFD()):
            with self.subTest(normalizer):
                tokenizer = Tokenizer(models.BPE(letters, []))  # Its tokens are the bytes of the normalized text.
                tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.ByteLevel(add_prefix_space=False)
                self.compare(tokenizer)

    def test_pre_tokenizer(self) -> None:
        tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self.compare(tokenizer)


class TokenFiles(unittest.TestCase):
    """evalq.tokenize, for a Unigram tokenizer, which the worker refuses, and for one that it reads."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="evalq-token-files-")
        self.addCleanup(directory.cleanup)
        self.folder = directory.name

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def run_it(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-m", "evalq.tokenize", *words], capture_output=True, text=True, timeout=peers.DEADLINE,
                              env={**os.environ, "PYTHONPATH": peers.PACKAGE}, cwd=self.folder, check=False)

    def unigram(self) -> Tokenizer:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.train_from_iterator(make_tokenizers.SAMPLES, trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
        tokenizer.enable_truncation(5)  # It must not count.
        tokenizer.save(self.path("tokenizer.json"))
        tokenizer.no_truncation()
        return tokenizer

    def test_unigram(self) -> None:
        tokenizer = self.unigram()
        refused = subprocess.run([ENCODE, self.folder], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("type 'Unigram', expected BPE or WordPiece; 'python -m evalq.tokenize'", refused.stderr)
        text = "\r\n".join(make_tokenizers.SAMPLES) * 3 + "\u2028\u0085"
        with open(self.path("text"), "wb") as file:
            file.write(text.encode() + b"\xff")
        done = self.run_it(self.folder, "text", "out.npy")
        self.assertEqual(done.returncode, 0, done.stderr)
        want = tokenizer.encode(text + "\ufffd", add_special_tokens=False).ids
        self.assertEqual(numpy.load(self.path("out.npy")).tolist(), want)
        self.assertEqual(done.stdout, f"{len(want)} tokens in out.npy\n")
        self.assertEqual(sorted(os.listdir(self.folder)), ["out.npy", "text", "tokenizer.json"])

    def test_documents_of_json_lines(self) -> None:
        tokenizer = self.unigram()
        texts = ["one two", "three\u2028 four", "\r"]
        with open(self.path("lines"), "w", encoding="utf-8") as file:
            file.write("\n".join(json.dumps({"a": [0, {"b": text}]}, ensure_ascii=False) for text in texts) + "\n\n")
        done = self.run_it("tokenizer.json", "lines", "out.npy", "--field", "a.1.b", "--end", "</s>", "--special")
        self.assertEqual(done.returncode, 0, done.stderr)
        want = [token for text in texts for token in [*tokenizer.encode(text).ids, 2]]
        self.assertEqual(numpy.load(self.path("out.npy")).tolist(), want)
        for field, words in (("a.2.b", []), ("a.1", []), ("a.1.b.c", []), ("a.1.b", ["--end", "<none>"])):
            done = self.run_it("tokenizer.json", "lines", "no.npy", "--field", field, *words)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (65, "", 1), done.stderr)
            self.assertIn("'<none>' is not a token" if words else f"'lines', line 1: field '{field}' is not text", done.stderr)
        self.assertFalse(os.path.exists(self.path("no.npy")))

    def test_what_is_wrong_is_said_in_one_sentence(self) -> None:
        with open(self.path("text"), "w", encoding="utf-8") as file:
            file.write("{\n")
        with open(self.path("empty"), "w", encoding="utf-8"):
            pass
        with open(self.path("half"), "w", encoding="utf-8") as file:
            file.write('{"a": "\\ud83d"}\n')
        with open(self.path("deep"), "w", encoding="utf-8") as file:
            file.write('{"a": ' + "[" * 100_000 + "\n")
        with open(self.path("no_unknown"), "w", encoding="utf-8") as file:
            json.dump({"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}}, file)
        known = os.path.join(make_tokenizers.MADE, "gpt2")
        for words, says in (((known, "half", "o", "--field", "a"), "field 'a' has half of a surrogate pair"),
                            ((known, "deep", "o", "--field", "a"), "'deep', line 1: maximum recursion depth"),
                            (("no_unknown", "text", "o"), "the tokenizer fails on a document: "),
                            ((self.folder, "text", "o"), "tokenizer.json' does not exist"), (("text", "text", "o"), "'text': "),
                            ((known, "none", "o"), "No such file"), ((known, "empty", "o"), "'empty' has no tokens"),
                            ((known, "text", "o", "--field", "a"), "'text', line 1: "), ((known, "text"), "output"),
                            ((known, "text", "none/o"), "none/o")):
            done = self.run_it(*words)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (65, "", 1), done.stderr)
            self.assertIn(says, done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["deep", "empty", "half", "no_unknown", "text"])

    def test_equals_the_worker(self) -> None:
        known = os.path.join(make_tokenizers.MADE, "deepseek")
        with open(self.path("text"), "w", encoding="utf-8", newline="") as file:
            file.write("".join(make_tokenizers.SAMPLES))
        self.assertEqual(self.run_it(known, "text", "out.npy").returncode, 0)
        self.assertEqual(numpy.load(self.path("out.npy")).tolist(), ours(known, ["".join(make_tokenizers.SAMPLES).encode()], False)[0])


class Classes(unittest.TestCase):
    """What the tokenizer classes of Transformers 5 save, each with a small vocabulary: the settings are those of its families."""

    def test_each_class_is_read(self) -> None:
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("transformers is not installed")
        import transformers

        for name, kind in (("BertTokenizer", "bert"), ("CohereTokenizer", "gpt2"), ("GPT2Tokenizer", "gpt2"), ("GPTNeoXTokenizer", "gpt2"),
                           ("GemmaTokenizer", "llama2"), ("LlamaTokenizer", "llama2"), ("Qwen2Tokenizer", "qwen2"),
                           ("RobertaTokenizer", "roberta")):
            with self.subTest(name), tempfile.TemporaryDirectory() as directory:
                with open(os.path.join(make_tokenizers.MADE, kind, "tokenizer.json"), encoding="utf-8") as file:
                    model = json.load(file)["model"]
                merges = {"merges": [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]} \
                    if "merges" in model else {}
                theirs = getattr(transformers, name)(vocab=model["vocab"], **merges)
                theirs.save_pretrained(directory)
                for special in (True, False):
                    texts = make_tokenizers.awkward(SEED, 500, make_tokenizers.SAMPLES)
                    for text, got in zip(texts, ours(directory, texts, special)):
                        want = theirs.backend_tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=special).ids
                        self.assertEqual(got, want, text)


CONFIGS: List[Tuple[str, Dict[str, Any], Dict[str, Any]]] = [  # Tokenizer, tokenizer_config.json, special_tokens_map.json.
    ("gpt2", {"tokenizer_class": "GPT2Tokenizer"}, {}),
    ("gpt2", {"tokenizer_class": "GPT2TokenizerFast", "bos_token": None}, {}),
    ("gpt2", {"tokenizer_class": "GPT2TokenizerFast", "eos_token": "<|im_end|>"}, {}),
    ("qwen2", {"tokenizer_class": "Qwen2Tokenizer"}, {}),
    ("qwen2", {"tokenizer_class": "Qwen2TokenizerFast", "bos_token": None, "eos_token": "<|im_end|>"}, {}),
    ("llama3", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}, {}),
    ("llama3", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    ("llama3", {"tokenizer_class": "PreTrainedTokenizerFast"}, {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}),
    ("mistral", {"tokenizer_class": "LlamaTokenizer"}, {}),
    ("mistral", {"tokenizer_class": "LlamaTokenizerFast", "eos_token": {"__type": "AddedToken", "content": "<unk>"}}, {}),
    ("mistral", {"tokenizer_class": "LlamaTokenizer", "bos_token": "<unk>"}, {"bos_token": "<s>", "eos_token": None}),
    ("mistral", {"tokenizer_class": "LlamaTokenizer", "bos_token": "<unk>", "added_tokens_decoder": {}}, {"bos_token": "<s>", "eos_token": "<s>"}),
]


class Ends(unittest.TestCase):
    """BOS and EOS as AutoTokenizer of transformers finds them."""

    def test_ends(self) -> None:
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("transformers is not installed")
        from transformers import AutoTokenizer

        for name, config, special in CONFIGS:
            with self.subTest(name=name, config=config, special=special), tempfile.TemporaryDirectory() as directory:
                shutil.copytree(os.path.join(make_tokenizers.MADE, name), directory, dirs_exist_ok=True)
                for file_name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
                    with open(os.path.join(directory, file_name), "w", encoding="utf-8") as file:
                        json.dump(content, file)
                theirs = AutoTokenizer.from_pretrained(directory)
                want = [-1 if token is None else token for token in (theirs.bos_token_id, theirs.eos_token_id)]
                done = subprocess.run([ENCODE, directory, "--ends"], stdout=subprocess.PIPE, check=True, text=True)
                self.assertEqual([int(word) for word in done.stdout.split()[:2]], want)


if __name__ == "__main__":
    unittest.main()
