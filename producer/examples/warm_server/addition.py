"""Trains a small Llama to add two numbers, and saves checkpoints in the form of Transformers.

    python addition.py OUT [--steps 600] [--every 200] [--submit]

It needs torch and transformers. With --submit, it submits each checkpoint to evalq.
"""

import argparse
import json
import os
import random

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TOKENS = ["<eos>", "<unk>"] + list("0123456789+=\n")
TOKEN_IDS = {token: number for number, token in enumerate(TOKENS)}
LINE_TOKENS = 12  # Every line is padded to so many tokens.
LEARNING_RATE = 2e-3


def make_tokenizer():
    tokenizer = Tokenizer(models.WordLevel(TOKEN_IDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>", pad_token="<eos>"
    )


def line(a, b):
    """One line of text, such as 99+99=891. The digits of the sum are in reverse, because that is
    the order in which people compute them."""
    return f"{a:02d}+{b:02d}={str(a + b)[::-1]}\n"


def write_task(folder, items=100, seed=1):
    """Writes a task for lm-evaluation-harness: the file with its items, and its definition."""
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


def make_batch(rng, size):
    rows = []
    for _ in range(size):
        text = line(rng.randrange(100), rng.randrange(100)).ljust(LINE_TOKENS, "\n")
        rows.append([TOKEN_IDS[token] for token in text])
    return torch.tensor(rows)


def train(out, steps, every, on_saved, seed=0):
    """Trains, and calls on_saved(path, step) after each save."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    tokenizer = make_tokenizer()
    for step in range(1, steps + 1):
        rows = make_batch(rng, 128)
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - 0.9 * step / steps)
        if step % every == 0:
            path = os.path.join(out, f"checkpoint-{step}")
            tokenizer.save_pretrained(path)
            model.save_pretrained(path)
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
            on_saved(path, step)


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

    def submit(path, step):
        if client is not None:
            client.submit(path, step=step, suites="addition")

    train(options.out, options.steps, options.every, submit)
    if client is not None:
        client.close()


if __name__ == "__main__":
    main()
