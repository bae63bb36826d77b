"""Quantised language models against Transformers, which dequantises the same files as it loads them.

FP8 as Qwen3-FP8 is saved, for every family; MXFP4 as gpt-oss is released; and mixtures of experts in both layouts of their
files. The reference is the float64 forward of test_models.py on the weights that Transformers dequantised in fp32.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from typing import Any, Dict, Optional, Tuple

from peers import needs

needs("torch", "transformers", "safetensors", "accelerate")

import torch  # noqa: E402
import transformers  # noqa: E402
from model_table import SHAPE  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from test_models import MODELS, SCORES, SEED, Scenes, randomized  # noqa: E402

PLAIN = ("embed", "wte", "wpe", "head", "embed_out", "norm", "ln_", "mlp.gate.", "block_sparse_moe.gate.", "router")
Block = Optional[Tuple[int, int]]
EXPERTS = ("mixtral", "mixtral five of seven", "qwen3 moe", "qwen3 moe dense layers", "olmoe")


def quantised(weight: torch.Tensor, block: Block, scales: torch.dtype) -> Tuple[torch.Tensor, torch.Tensor]:
    """FP8 values, and the scale of each block; block None: one scale."""
    rows, columns = weight.shape
    down, across = block or (rows, columns)
    grid = (-(-rows // down), -(-columns // across))
    if rows % grid[0] or columns % grid[1]:
        raise ValueError(f"{rows} x {columns} does not divide into {block}")
    blocks = weight.reshape(grid[0], rows // grid[0], grid[1], columns // grid[1])
    scale = (blocks.abs().amax((1, 3)) / 448.0).to(scales)
    values = (blocks / scale.float()[:, None, :, None]).reshape(rows, columns).clamp(-448, 448)
    return values.to(torch.float8_e4m3fn), scale if block else scale.reshape(())


class Quantised(Scenes):
    def edit(self, folder: str, **more: Any) -> None:
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**values, **more}, file)

    def state(self, folder: str, change: Any) -> None:
        path = os.path.join(folder, "model.safetensors")
        save_file(change(load_file(path)), path, {"format": "pt"})

    def fp8(self, row: str, block: Block = (2, 4), scales: torch.dtype = torch.float32, **more: Any) -> str:
        """The row's model as FP8; more: of its quantization_config."""
        folder = self.path(f"{row} {block}")
        randomized(MODELS[row]()).save_pretrained(folder)

        def change(state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
            out = {}
            for name, value in state.items():
                out[name] = value
                if value.dim() == 2 and name.endswith(".weight") and not any(part in name for part in PLAIN):
                    out[name], out[f"{name}_scale_inv"] = quantised(value, block, scales)
            self.assertGreater(len(out), len(state))
            return out

        self.state(folder, change)
        settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "modules_to_not_convert": ["lm_head"]}
        self.edit(folder, quantization_config={**settings, "weight_block_size": block, **more})
        return folder

    def loaded(self, folder: str) -> transformers.PreTrainedModel:
        config = transformers.AutoConfig.from_pretrained(folder)
        kind = {"fp8": transformers.FineGrainedFP8Config, "mxfp4": transformers.Mxfp4Config}
        method = kind[config.quantization_config["quant_method"]](dequantize=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=method)
        self.assertEqual({parameter.dtype for parameter in model.parameters()}, {torch.float32})
        return model.eval()

    def report(self, name: str, folder: str) -> None:
        report = self.agree(self.loaded(folder), folder)
        off = report["mean_off"] / report["nll"]
        print(f"  {name:34} nll {report['nll']:.6f}  mean off by {off:.1e} of it  worst {report['worst']:.1e}")


class Fp8(Quantised):
    def test_every_family_in_blocks(self) -> None:
        for row in MODELS:
            if not row.startswith("gpt-oss"):  # Transformers loads its experts without their scales.
                with self.subTest(row):
                    self.report(row, self.fp8(row))

    def test_other_blocks_and_scales(self) -> None:
        for block in ((16, 16), (1, 16), (8, 1), (128, 128), None):
            for scales in (torch.float32, torch.bfloat16):
                with self.subTest(block=block, scales=scales):
                    self.report(f"llama {block} {scales}"[:34], self.fp8("llama", block, scales))

    def test_what_transformers_cannot_load_is_refused(self) -> None:
        up = "model.layers.0.mlp.up_proj.weight"
        folder = self.fp8("llama")
        self.edit(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [32, 4]})
        self.refused(folder, "_scale_inv", "24 x 12 scales for 48 x 48 values", "32 x 4")
        folder = self.fp8("llama")
        self.state(folder, lambda state: {name: value for name, value in state.items() if name != f"{up}_scale_inv"})
        self.refused(folder, up, "its scales are missing")
        folder = self.fp8("llama")
        self.edit(folder, quantization_config=None)
        self.refused(folder, "_scale_inv", "has no place")

    def test_other_methods_name_the_model_server(self) -> None:
        folder = self.path("other")
        randomized(MODELS["llama"]()).save_pretrained(folder)
        for method in ("bitsandbytes", "gptq", "awq", "compressed-tensors", "torchao", "fbgemm_fp8", "mxfp8", "nvfp4", "mxfp4"):
            self.edit(folder, quantization_config={"quant_method": method})
            self.refused(folder, f"'{method}'", "the model server")


class GptOss(Quantised):
    def released(self, hidden: int = 64, inner: int = 96) -> str:
        """Files and a configuration as of openai/gpt-oss-20b, with experts of random bits."""
        folder = self.path("gpt-oss")
        layers = ["sliding_attention", "full_attention"]
        config = transformers.GptOssConfig(
            **{
                **SHAPE, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 2, "head_dim": 16,
                "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7, "layer_types": layers,
            }
        )
        model = randomized(transformers.GptOssForCausalLM(config), torch.bfloat16)
        model.save_pretrained(folder)
        generator = torch.Generator().manual_seed(SEED)
        state = {}
        for name, value in load_file(os.path.join(folder, "model.safetensors")).items():
            if name.endswith(("gate_up_proj", "down_proj")):
                experts, columns, rows = value.shape
                shape = (experts, rows, columns // 32)
                state[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
                state[f"{name}_scales"] = torch.randint(117, 126, shape, dtype=torch.uint8, generator=generator)
            else:
                state[name] = value
        os.remove(os.path.join(folder, "model.safetensors"))
        places = {}
        for part in range(2):
            file = f"model-0000{part}-of-00002.safetensors"
            names = sorted(state)[part::2]  # A tensor and its scales are in different files.
            save_file({name: state[name].contiguous() for name in names}, os.path.join(folder, file), {"format": "pt"})
            places.update({name: file for name in names})
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as out:
            json.dump({"metadata": {"total_size": 1}, "weight_map": places}, out)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as out:
            values = json.load(out)
        for key in ("rope_parameters", "dtype", "swiglu_alpha"):
            values.pop(key, None)
        values.update(
            attention_bias=True, experts_per_token=2, hidden_act="silu", initial_context_length=16, output_router_logits=False,
            rope_theta=150000, router_aux_loss_coef=0.9, swiglu_limit=7.0, transformers_version="4.55.0.dev0", use_cache=True,
            rope_scaling={
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "original_max_position_embeddings": 16, "rope_type": "yarn",
                "truncate": False,
            },
            quantization_config={
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
                "quant_method": "mxfp4",
            },
        )
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as out:
            json.dump(values, out)
        return folder

    def test_released_files(self) -> None:
        self.report("gpt-oss as released", self.released())

    def test_faults_are_named(self) -> None:
        folder = self.released()
        self.edit(folder, intermediate_size=80)
        self.refused(folder, "80 wide", "multiples of 32")
        self.edit(folder, intermediate_size=64)
        self.refused(folder, "gate_up_proj_blocks", "[5, 192, 2, 16]", "[5, 128, 2, 16]")
        self.edit(folder, intermediate_size=96, quantization_config=None)
        self.refused(folder, "gate_up_proj", "missing")


class Experts(Quantised):
    def test_a_tensor_for_each_expert_or_for_all(self) -> None:
        for row in EXPERTS:
            model = randomized(MODELS[row]())
            for split in (True, False):
                with self.subTest(row, split=split):
                    folder = self.path(f"{row} {split}")
                    model.float().save_pretrained(folder, save_original_format=split)
                    names = load_file(os.path.join(folder, "model.safetensors"))
                    self.assertEqual(any(name.endswith("experts.gate_up_proj") for name in names), not split)
                    self.agree(model, folder)

    def test_a_state_dict_in_bf16(self) -> None:
        for row in EXPERTS:
            with self.subTest(row):
                model = randomized(MODELS[row](), torch.bfloat16)
                folder = self.path(row)
                model.config.architectures = [type(model).__name__]
                model.config.save_pretrained(folder)
                torch.save({"model": model.state_dict()}, os.path.join(folder, "weights.pt"))
                self.agree(model, os.path.join(folder, "weights.pt"))

    def test_numbers_of_experts_that_differ(self) -> None:
        folder = self.path("both")
        randomized(MODELS["olmoe"]()).save_pretrained(folder)
        self.edit(folder, num_local_experts=8)
        self.refused(folder, "num_experts is 9, but num_local_experts is 8")


if __name__ == "__main__":
    if not os.path.exists(SCORES):
        print(f"not run: {SCORES} is not built (ninja lm_scores)")
        sys.exit(77)
    unittest.main(verbosity=2)
