"""A small Llama that learns to add two numbers, and saves a checkpoint every so many steps as Transformers does.

    python addition.py OUT [--steps 600] [--every 200] [--submit]

Needs torch and transformers. With --submit each checkpoint is submitted to evalq.
"""

import argparse
import json
import os
import random

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LETTERS = ["<eos>", "<unk>"] + list("0123456789+=\n")
LENGTH = 12  # Letters of a line: "99+99=891\n", digits of the sum in reverse.


def tokenizer():
    made = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(LETTERS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", unk_token="<unk>", pad_token="<eos>")


def line(a, b):
    """The digits of the sum come in the order in which one adds by hand: the last one first."""
    return f"{a:02d}+{b:02d}={str(a + b)[::-1]}\n"


def write_task(folder, items=100, seed=1):
    """The items that lm-evaluation-harness asks, and the task that says how."""
    rng = random.Random(seed)
    os.makedirs(folder, exist_ok=True)
    data = os.path.join(folder, "addition.jsonl")
    with open(data, "w", encoding="utf-8") as file:
        for _ in range(items):
            a, b = rng.randrange(100), rng.randrange(100)
            question, _, answer = line(a, b).partition("=")
            file.write(json.dumps({"question": question + "=", "answer": answer.strip()}) + "\n")
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "tasks", "addition.yaml"), encoding="utf-8") as file:
        text = file.read()
    with open(os.path.join(folder, "addition.yaml"), "w", encoding="utf-8") as file:
        file.write(text.replace("DATA", data))


def batch(rng, letters, size):
    rows = []
    for _ in range(size):
        text = line(rng.randrange(100), rng.randrange(100)).ljust(LENGTH, "\n")
        rows.append([letters[letter] for letter in text])
    return torch.tensor(rows)


def train(out, steps, every, saved, seed=0):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    letters = {letter: number for number, letter in enumerate(LETTERS)}
    config = transformers.LlamaConfig(
        vocab_size=len(LETTERS), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=False, eos_token_id=0, bos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    words = tokenizer()
    for step in range(1, steps + 1):
        rows = batch(rng, letters, 128)
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - 0.9 * step / steps)
        if step % every == 0:
            path = os.path.join(out, f"checkpoint-{step}")
            words.save_pretrained(path)
            model.save_pretrained(path)
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
            saved(path, step)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--submit", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    client = None
    if options.submit:
        import evalq

        client = evalq.Client(run="addition")

    def saved(path, step):
        if client is not None:
            client.submit(path, step=step, suites="addition")

    train(options.out, options.steps, options.every, saved)
    if client is not None:
        client.close()


if __name__ == "__main__":
    main()
