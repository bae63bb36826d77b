"""Writes a file of tokens with Hugging Face's tokenizers: python -m evalq.tokenize.

    python -m evalq.tokenize TOKENIZER TEXT OUTPUT.npy

It is for tokenizers that evalq itself does not read, and needs the package tokenizers. TOKENIZER is
a tokenizer.json, or a directory that contains one. TEXT is a UTF-8 text, or JSON lines if --field
names the field with their texts (`a.b` and `a.0` are nested). A task with `format: tokens` reads
OUTPUT.npy.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import sys
from importlib import import_module
from typing import Any, Iterator, NoReturn

from ._program_module import refuse

_IDS_MAX = 1 << 31  # The reader of the worker takes smaller ids only.


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(f"{self.prog}: {message}")


def _member(value: Any, name: str) -> Any:
    """Returns a field of an object or an entry of a list; None if it does not exist."""
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        return value[int(name)]
    return None


def _documents(path: str, field: str) -> Iterator[str]:
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        if not field:
            yield file.read()
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"'{path}', line {number}: {error}") from None
            for name in field.split("."):
                value = _member(value, name)
            if not isinstance(value, str):
                raise ValueError(f"'{path}', line {number}: field '{field}' is not text")
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise ValueError(
                    f"'{path}', line {number}: field '{field}' has half of a surrogate pair"
                )
            yield value


def _open_tokenizer(path: str) -> Any:
    try:
        tokenizer_class = import_module("tokenizers").Tokenizer
    except ImportError:
        raise ValueError("the package tokenizers is missing: pip install tokenizers") from None
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    if not os.path.exists(path):
        raise ValueError(
            f"'{path}' does not exist (save_pretrained of a fast tokenizer writes it)"
        )
    try:
        return tokenizer_class.from_file(path)
    except Exception as error:  # The library raises no other class.
        raise ValueError(f"'{path}': {error}") from None


def _encode(tokenizer: Any, document: str, special: bool) -> Any:
    try:
        return tokenizer.encode(document, add_special_tokens=special).ids
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # A panic of the library is not even an Exception.
        raise ValueError(f"the tokenizer fails on a document: {error}") from None


def write_npy(path: str, ids: array.array[int]) -> None:
    """Writes ids of type "I" as one-dimensional uint32. The file appears when it is complete."""
    if sys.byteorder == "big":
        ids.byteswap()
    header = f"{{'descr': '<u4', 'fortran_order': False, 'shape': ({len(ids)},), }}"
    header += " " * (-(11 + len(header)) % 64) + "\n"  # The data begins at a multiple of 64.
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
            ids.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def tokenize(
    tokenizer_path: str,
    text: str,
    output: str,
    field: str = "",
    end: str = "",
    special: bool = False,
) -> int:
    """Writes the tokens of the documents in text to output. Returns how many there are. ValueError
    or OSError says in one sentence what is wrong."""
    tokenizer = _open_tokenizer(tokenizer_path)
    tokenizer.no_truncation()  # The file can ask for it.
    tokenizer.no_padding()
    last = tokenizer.token_to_id(end) if end else None
    if end and last is None:
        raise ValueError(f"'{end}' is not a token of '{tokenizer_path}'")
    ids = array.array("I")
    for document in _documents(text, field):
        found = _encode(tokenizer, document, special)
        if found and max(found) >= _IDS_MAX:
            raise ValueError(f"'{tokenizer_path}' has the id {max(found)}, expected below 2^31")
        ids.extend(found)
        if last is not None:
            ids.append(last)
    if not ids:
        raise ValueError(f"'{text}' has no tokens")
    write_npy(output, ids)
    return len(ids)


def main() -> None:
    parser = _Parser(prog="python -m evalq.tokenize", description=__doc__.split("\n")[0])
    parser.add_argument("tokenizer_path", metavar="tokenizer", help="tokenizer.json, or its directory")
    parser.add_argument("text", help="the text, or JSON lines")
    parser.add_argument("output", help="the file to write: NAME.npy")
    parser.add_argument("--field", default="", help="the field of JSON lines that holds the text")
    parser.add_argument("--end", default="", help="a token to put after each document: '</s>'")
    parser.add_argument(
        "--special", action="store_true", help="add the tokens of the template to each document"
    )
    words = parser.parse_args()
    try:
        count = tokenize(**vars(words))
    except (OSError, ValueError) as error:
        refuse(f"{parser.prog}: {error}")
    print(f"{count} tokens in {words.output}")


if __name__ == "__main__":
    main()
