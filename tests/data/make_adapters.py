"""Writes tests/data/checkpoints/made/lora: bases, LoRA adapters as PEFT saves them, and what merge_and_unload() makes of them.

Run by make_golden.py, with peft 0.21 and transformers 5.23. FOLDER/NAME is an adapter, FOLDER/NAME.merged.safetensors the result.
"""
import json
import os
import sys
import warnings

import safetensors.torch
import torch


def bases():
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    yield "gpt2", GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=4)), torch.float32
    yield "llama", LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, hidden_size=8,
                                                intermediate_size=12, vocab_size=11, tie_word_embeddings=False)), torch.bfloat16


def adapters():
    from peft import LoraConfig

    yield "plain", "gpt2", True, LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, bias="all")
    yield "square", "gpt2", True, LoraConfig(r=1, lora_alpha=3, target_modules=["attn.c_proj"], fan_in_fan_out=True)
    yield "patterns", "gpt2", False, LoraConfig(
        r=2, lora_alpha=4, target_modules=["wte", "c_fc", "c_attn"], fan_in_fan_out=True, modules_to_save=["ln_f"], bias="lora_only",
        use_rslora=True, rank_pattern={"h.0.mlp.c_fc": 3}, alpha_pattern={"c_fc": 7, "^transformer.h.0.attn.c_attn": 1})
    yield "half", "llama", False, LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj", "down_proj", "lm_head"])


def make(folder):
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    from peft import PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    os.makedirs(folder)
    before = os.getcwd()
    os.chdir(folder)  # Paths in the adapters are relative.
    for name, model, dtype in bases():
        model.to(dtype).save_pretrained(name)
        if os.path.exists(f"{name}/generation_config.json"):
            os.unlink(f"{name}/generation_config.json")
    for name, base, safe, config in adapters():
        torch.manual_seed(len(name))
        peft = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
        for key, value in peft.named_parameters():
            if value.requires_grad:
                value.data = torch.randn_like(value) * 0.3
        peft.save_pretrained(name, safe_serialization=True)
        if os.path.exists(f"{name}/README.md"):
            os.unlink(f"{name}/README.md")
        if not safe:  # As older versions of PEFT save.
            torch.save(safetensors.torch.load_file(f"{name}/adapter_model.safetensors"), f"{name}/adapter_model.bin")
            os.unlink(f"{name}/adapter_model.safetensors")
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), name)
        merged = loaded.merge_and_unload()
        held = set(safetensors.torch.load_file(f"{base}/model.safetensors"))
        values = {key: value.contiguous() for key, value in merged.state_dict().items() if key in held}
        assert set(values) == held, held - set(values)
        safetensors.torch.save_file(values, f"{name}.merged.safetensors")
        with open(f"{name}/adapter_config.json") as file:
            text = json.load(file)
        text["base_model_name_or_path"] = base
        if isinstance(text["target_modules"], list):
            text["target_modules"].sort()  # A set: in another order each time.
        with open(f"{name}/adapter_config.json", "w") as file:
            json.dump(text, file, indent=2, sort_keys=True)
            file.write("\n")
    os.chdir(before)


if __name__ == "__main__":
    sys.exit(make(sys.argv[1]))
