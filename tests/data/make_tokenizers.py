"""Writes tests/data/tokenizers/: small tokenizers with exactly the settings of the ones people use, trained here because the
original files are large and not ours, and golden.txt, what Hugging Face `tokenizers` makes of awkward texts with them.

Run by hand, with tokenizers 0.23; what it wrote is committed. tests/peers/test_tokenizer.py trains larger ones by build().
Lines of golden.txt, tab-separated: tokenizer, "special" or "plain", the text in hexadecimal, its tokens. Lines of pairs.txt:
tokenizer, most tokens, both texts in hexadecimal ("-": there is no second), tokens, type ids.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from typing import Any, Dict, Iterable, List

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
MADE = os.path.join(HERE, "tokenizers")
UNDER = "\u2581"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN3_5 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
SEED = QWEN2.replace(r"\p{N}|", r"\p{N}{1}|").replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+").replace(
    r"\r", "\r").replace(r"\n", "\n")  # With line ends as they are, as its file has them.
ANY, TITLE, SMALL = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEHIND = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"{ANY}{TITLE}*{SMALL}+{BEHIND}|{ANY}{TITLE}+{SMALL}*{BEHIND}"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = O200K.replace(BEHIND, "").replace("{1,3}", "")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
            "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

KINDS = ["gpt2", "gpt2_prefix", "gpt2_split", "llama3", "qwen2", "qwen3_5", "digits", "llama2", "llama2_across",
         "mistral", "metaspace", "metaspace_never", "unknown", "bert", "bert_cased", "roberta",
         "o200k", "tekken", "seed", "deepseek", "folded", "gemma"]
PAIRS = ["llama3", "metaspace_never", "bert", "bert_cased", "roberta"]  # A template, none, and the three of encoders.


def byte_level(*patterns: str, behavior: str = "isolated", invert: bool = False) -> Any:
    return pre_tokenizers.Sequence([*(pre_tokenizers.Split(Regex(pattern), behavior, invert) for pattern in patterns),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(tokenizer: Tokenizer, texts: Iterable[str], size: int, alphabet: List[str]) -> Dict[str, Any]:
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, limit_alphabet=len(alphabet) + 200)
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())


def build_byte_level(kind: str, texts: List[str], size: int) -> Dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = {
        "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
        "roberta": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
        "gpt2_prefix": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
        "gpt2_split": lambda: byte_level(GPT2, behavior="removed", invert=True),
        "llama3": lambda: byte_level(LLAMA3),
        "qwen2": lambda: byte_level(QWEN2),
        "qwen3_5": lambda: byte_level(QWEN3_5),
        "o200k": lambda: byte_level(O200K),
        "tekken": lambda: byte_level(TEKKEN),
        "seed": lambda: byte_level(SEED),
        "deepseek": lambda: byte_level(*DEEPSEEK),
        "folded": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        "digits": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    }[kind]()
    if kind.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    if kind == "folded":
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, texts, size, pre_tokenizers.ByteLevel.alphabet())


def build_characters(kind: str, texts: List[str], size: int) -> Dict[str, Any]:
    """As sentencepiece leaves it: <unk>, <s>, </s>, 256 bytes, then the rest. Trained on words with their spaces before them, or
    (across) on whole lines, where a merge may join a word's end to the next one's space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if kind != "llama2_across":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(UNDER + "+[^" + UNDER + "]*"), "isolated")
    lines = [part.replace(" ", UNDER)[:200] for text in texts for part in text.split("\n")]
    made = train(tokenizer, lines, size, list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:'\"!?-()\n\t" + UNDER))
    old = made["model"]["vocab"]
    first = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if kind != "unknown" else [])
    names = first + sorted((name for name in old if name not in first), key=lambda name: old[name])
    made["model"].update(vocab={name: i for i, name in enumerate(names)}, unk_token="<unk>", fuse_unk=kind != "unknown",
                         byte_fallback=kind != "unknown")
    made["pre_tokenizer"] = None
    return made


def build_words(kind: str, texts: List[str], size: int) -> Tokenizer:
    """BERT's: uncased with a TemplateProcessing, as Transformers writes it, or cased with a BertProcessing and a shorter longest
    word."""
    cased = kind == "bert_cased"
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20 if cased else 100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased, strip_accents=None, clean_text=True, handle_chinese_chars=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, show_progress=False, limit_alphabet=100,
                                        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.train_from_iterator(texts, trainer)
    ends = {name: tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    tokenizer.post_processor = (processors.BertProcessing(("[SEP]", ends["[SEP]"]), ("[CLS]", ends["[CLS]"])) if cased else
                                processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", list(ends.items())))
    tokenizer.add_tokens([AddedToken("caf\u00e9", normalized=True), AddedToken("WORD", single_word=True, normalized=True)])
    return tokenizer


def finish(kind: str, made: Dict[str, Any]) -> Tokenizer:
    """The settings that come after training, and the added tokens."""
    if kind.startswith("llama2") or kind == "unknown":
        made["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": UNDER}, {"type": "Replace", "pattern": {"String": " "}, "content": UNDER}]}
    if kind == "gemma":
        made["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": UNDER}
        made["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    if kind in ("mistral", "metaspace", "metaspace_never"):
        scheme = {"mistral": "first", "metaspace": "always", "metaspace_never": "never"}[kind]
        made["pre_tokenizer"] = {"type": "Metaspace", "replacement": UNDER, "prepend_scheme": scheme, "split": kind == "metaspace"}
    if kind in ("llama3", "gpt2_split", "o200k", "tekken"):
        made["model"]["ignore_merges"] = True
    if kind in ("gpt2", "qwen2", "llama2"):  # As older versions wrote them.
        made["model"]["merges"] = [" ".join(pair) for pair in made["model"]["merges"]]
    tokenizer = Tokenizer.from_str(json.dumps(made))
    if made["model"]["unk_token"] == "<unk>":
        tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
        tokenizer.add_tokens([AddedToken("[INST]", normalized=True), AddedToken("</doc>", normalized=True, lstrip=True)])
        if kind != "metaspace_never":
            tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
        return tokenizer
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", AddedToken("<|left|>", lstrip=True, special=True),
                                  AddedToken("<|right|>", rstrip=True, special=True), "<|end"])
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("caf\u00e9", normalized=True),
                          AddedToken("  ", normalized=False, rstrip=True), AddedToken("<both>", lstrip=True, rstrip=True)])
    if kind == "llama3":
        bos = tokenizer.token_to_id("<|endoftext|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", bos)])])
    if kind == "roberta":
        ends = [(name, tokenizer.token_to_id(name)) for name in ("<|im_end|>", "<|im_start|>")]
        tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    if kind == "qwen3_5":
        eos = tokenizer.token_to_id("<|im_end|>")
        tokenizer.post_processor = processors.TemplateProcessing("$A <|im_end|>", None, [("<|im_end|>", eos)])
    return tokenizer


def build(kind: str, texts: List[str], size: int) -> Tokenizer:
    if kind.startswith("bert"):
        return build_words(kind, texts, size)
    characters = kind in ("llama2", "llama2_across", "mistral", "metaspace", "metaspace_never", "unknown", "gemma")
    return finish(kind, (build_characters if characters else build_byte_level)(kind, texts, size))


def save(kind: str, tokenizer: Tokenizer, directory: str) -> str:
    """Like the files of that time: merges as text in some, the rest as the library writes it. Returns the directory."""
    os.makedirs(directory, exist_ok=True)
    made = json.loads(tokenizer.to_str())
    if kind in ("gpt2", "qwen2", "llama2"):
        made["model"]["merges"] = [" ".join(pair) for pair in made["model"]["merges"]]
    with open(os.path.join(directory, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(made, file, ensure_ascii=False, separators=(",", ":"))
    return directory


def original(source: str, directory: str) -> Tokenizer:
    """GPT-2's own tokenizer of vocab.json and merges.txt in source; writes tokenizer.json into directory."""
    tokenizer = Tokenizer(models.BPE.from_file(*(os.path.join(source, name) for name in ("vocab.json", "merges.txt"))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    os.makedirs(directory, exist_ok=True)
    tokenizer.save(os.path.join(directory, "tokenizer.json"))
    return tokenizer


SAMPLES = [
    "The quick brown fox isn't lazy; it's 3.14159 times faster than 2718281828 dogs' tails. WE'LL SEE, I'VE HEARD, they'd say.",
    "Der \u00dcbermut tut selten gut. Les \u00e9l\u00e8ves na\u00effs re\u00e7oivent des cr\u00eapes. \u00bfQu\u00e9 pas\u00f3, se\u00f1or?",
    "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a. "
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd. \u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645 \u0661\u0662\u0663.",
    "\u4eca\u65e5\u306f\u4e16\u754c\u3001\u3053\u3093\u306b\u3061\u306f\u3002\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4. \u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0967\u0968\u0969. \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "def f(x):\n\treturn {'a': x ** 2, \"b\": [i for i in range(10)]}  # done\n\n\nclass A:\n    pass\r\n",
]

PIECES = ["'s", "'S", "'\u017f", "'re", "'RE", "'Ll", "'d", "''", "don't", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\u00a0",
          "\u3000", "\u2028", "\u0085", "1", "12", "1234567", "\u0663\u0664", "\u00bd", "\u2167", "a", "Z", "the", " the", "\u00e9", "e\u0301", "\u1e69", "s\u0323\u0307",
          "s\u0307\u0323", "\u212b", "\u00c5", "A\u030a", "\uac00", "\u1100\u1161", "\u1100\u1161\u11a8", "\uac01\u11a8", "\u0958", "\u0344", "\u2126", "\u0301\u0316\u0301", "\u0b47\u0b57",
          "\u4e2d\u6587", "\u65e5", "\u0e2a\u0e31\u0e2a", "\u0928\u0947", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\ufe0f", "\u200d", "!", "...", "->", " !", "!\n", "?\r\n\n",
          "<|endoftext|>", "<|im_start|>", "<|left|>", " <|left|> ", "<|right|>  \n", "<|end", "<|en", "word", "words", " word ", "caf\u00e9", "cafe\u0301",
          "<both>", " <both> ", "<s>", "</s>", "[INST]", " </doc>", "</doc>", "<unk>", "<0x41>", UNDER, UNDER + UNDER, "a" + UNDER, "\x00", "\x7f", "\ufffd", "\ufeff", "\U0010ffff",
          "\u1c89", "\ua7cb", "\U00011938", "\U00011935\U00011930", "\U0001e4ec", "\u0897", "camelCase", "HTTPServer's", "\u01c5a", "A\u0301B", "\u00aaB", "'LL", "/*", "!/\n/", "#include", "_x", "\u3042\u30a2\u30fb",
          "\u0130I", "\u1e9e", "\u00ad", "12\u0e51", "\u2460", "x" * 70, "ab" * 40, "-" * 60, "\u0301" * 5]


def awkward(seed: int, count: int, samples: List[str]) -> List[bytes]:
    """The samples, and texts of the pieces above in random order, some with broken UTF-8."""
    rng = random.Random(seed)
    texts = [b"", b" ", b"a", b"\n", b"\xff", b"\xe2\x82", b"a\xf0\x9f\x98 b", b"\xed\xa0\x80", b"\xc0\x80x", b"\xf4\x90\x80\x80"]
    texts += [sample.encode() for sample in samples]
    while len(texts) < count:
        data = bytearray("".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8))).encode())
        if data and rng.random() < 0.2:
            data[rng.randrange(len(data))] = rng.randrange(256)
        texts.append(bytes(data))
    return texts


def pairs(kind: str, number: int, tokenizer: Tokenizer) -> Iterable[str]:
    """Lines of pairs.txt."""
    texts = awkward(100 + number, 24, SAMPLES[:2])
    for i, (first, second) in enumerate(zip(texts, texts[7:])):
        most = (8, 17, 4096)[i % 3]
        tokenizer.enable_truncation(most)
        both = [text.decode("utf-8", "replace") for text in (first, second)]
        done = tokenizer.encode(*(both if i % 4 else both[:1]))
        yield "\t".join([kind, str(most), first.hex(), second.hex() if i % 4 else "-", " ".join(map(str, done.ids)),
                         " ".join(map(str, done.type_ids))])
    tokenizer.no_truncation()


def main() -> None:
    with open(os.path.join(HERE, "tinyshakespeare.txt"), encoding="utf-8") as file:
        texts = [file.read()[:60000]] + SAMPLES * 3
    shutil.rmtree(MADE, ignore_errors=True)
    with open(os.path.join(HERE, "tokenizers_golden.txt"), "w", encoding="ascii") as golden:
        for number, kind in enumerate(KINDS):
            tokenizer = build(kind, texts, 240 if kind == "unknown" else 360)
            save(kind, tokenizer, os.path.join(MADE, kind))
            for i, text in enumerate(awkward(number, 32, SAMPLES[number % len(SAMPLES) :][:2])):
                special = i % 2 == 0
                ids = tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=special).ids
                golden.write(f"{kind}\t{'special' if special else 'plain'}\t{text.hex()}\t{' '.join(map(str, ids))}\n")
    with open(os.path.join(MADE, "pairs.txt"), "w", encoding="ascii") as file:
        for number, kind in enumerate(PAIRS):
            lines = pairs(kind, number, Tokenizer.from_file(os.path.join(MADE, kind, "tokenizer.json")))
            file.write("".join(line + "\n" for line in lines))
    os.replace(os.path.join(HERE, "tokenizers_golden.txt"), os.path.join(MADE, "golden.txt"))


if __name__ == "__main__":
    main()
