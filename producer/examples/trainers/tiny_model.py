"""A tiny GPT-2 with random weights and a tokenizer of single characters, made on the spot."""

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
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)
