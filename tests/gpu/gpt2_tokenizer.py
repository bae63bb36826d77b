"""Writes the tokenizer.json of GPT-2's own vocab.json and merges.txt. Needs no package.

    gpt2_tokenizer.py SOURCE DIRECTORY
"""

import json
import os
import sys

END = "<|endoftext|>"


def main(source: str, directory: str) -> None:
    with open(os.path.join(source, "vocab.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)
    with open(os.path.join(source, "merges.txt"), encoding="utf-8") as file:
        merges = [line.rstrip("\n") for line in file if line.strip() and not line.startswith("#version")]
    end = {"id": vocabulary[END], "content": END, "special": True, "normalized": False}
    tokenizer = {
        "added_tokens": [end],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
    os.makedirs(directory)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", {"eos_token": END})):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(content, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
