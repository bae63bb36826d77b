"""A tiny GPT-2 with random weights and a tokenizer of single characters, made on the spot.

`python tiny_model.py` writes them and some data, for the examples of Axolotl and LLaMA-Factory.
"""

import json

import tokenizers
import transformers

CHARACTERS = "0123456789+="


def make_tokenizer():
    names = ["<pad>", "<eos>", *CHARACTERS]
    words = tokenizers.models.WordLevel({name: at for at, name in enumerate(names)}, "<pad>")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )


def make_model():
    transformers.set_seed(1)
    config = transformers.GPT2Config(
        vocab_size=2 + len(CHARACTERS),
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        resid_pdrop=0.0,  # With dropout, a training that evaluates itself takes another course.
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


if __name__ == "__main__":
    make_model().save_pretrained("tiny")
    make_tokenizer().save_pretrained("tiny")
    with open("sums.jsonl", "w", encoding="utf-8") as file:
        for a in range(60):
            for b in range(10):
                row = {"text": f"{a}+{b}={a + b}", "prompt": f"{a}+{b}=", "answer": f"{a + b}"}
                file.write(json.dumps(row) + "\n")
    columns = {"prompt": "prompt", "response": "answer"}
    with open("dataset_info.json", "w", encoding="utf-8") as file:  # LLaMA-Factory reads it.
        json.dump({"sums": {"file_name": "sums.jsonl", "columns": columns}}, file)
