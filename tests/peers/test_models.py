"""Language models against Transformers: tiny random ones of every family, in every layout a training leaves behind.

Each is saved as its framework saves it, read by evalq's own code (tests/peers/lm_scores.c), and compared, token by
token, with a float64 forward of Transformers' code on the same weights: the mean within 1e-6 of itself (bf16 within 1e-3).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Optional

from model_table import GPT2_SHAPE, REWRITTEN, ROWS, VOCABULARY, YARN, chosen, make
from peers import DEADLINE, needs

needs("torch", "transformers", "safetensors")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

BUILD = os.environ.get("EVALQ_TEST_BUILD", os.path.join(os.path.dirname(__file__), "../../build/default"))
SCORES = os.path.join(BUILD, "bin", "lm_scores")
torch.set_num_threads(1)  # For models as small as these, more only wait for each other.
TEXTS = ((5, 61), (3, 17))  # Sequences and their length; one list a size.
SEED = 20261121


def lines(rows: torch.Tensor) -> str:
    return "".join(" ".join(str(token) for token in row) + "\n" for row in rows.tolist())


def gpt2(**more: Any) -> transformers.PreTrainedModel:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**GPT2_SHAPE, **more}))


MODELS = {name: functools.partial(make, name) for name in ROWS}


def randomized(model: transformers.PreTrainedModel, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """Weights far from their quiet start, so that a wrong place of any of them shows."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (0.3 if parameter.dim() > 1 else 0.5) + (1.0 if parameter.dim() == 1 else 0.0))
            parameter.data = parameter.data.to(dtype)  # Not model.to(): that rounds the rotary frequencies too.
    return model.eval()


class Scenes(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-models-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def requires(self, module: str) -> None:
        if importlib.util.find_spec(module) is None:
            self.skipTest(f"{module} is not installed")

    def texts(self, vocabulary: int = VOCABULARY) -> List[torch.Tensor]:
        generator = torch.Generator().manual_seed(SEED + 1)
        return [torch.randint(0, vocabulary, size, generator=generator) for size in TEXTS]

    def scores(self, checkpoint: str, texts: List[torch.Tensor], options: Dict[str, str]) -> subprocess.CompletedProcess:
        tokens = self.path("tokens")
        with open(tokens, "w", encoding="ascii") as file:
            file.write("".join(lines(rows) for rows in texts))
        words = ["--bf16"] if options.pop("compute", "fp32") == "bf16" else []
        words += [f"{key}={value}" for key, value in options.items()]
        return subprocess.run([SCORES, checkpoint, tokens, *words], capture_output=True, text=True, timeout=DEADLINE)

    def wanted(self, model: transformers.PreTrainedModel, texts: List[torch.Tensor]) -> List[List[float]]:
        """By the same weights, computed in float64."""
        found: List[List[float]] = []
        exact = model.double()
        if hasattr(exact, "set_experts_implementation"):
            exact.set_experts_implementation("eager")  # The others compute no float64.
        with torch.no_grad():
            for rows in texts:
                logits = exact(rows, attention_mask=torch.ones_like(rows)).logits[:, :-1]
                logprobs = torch.log_softmax(logits, -1).gather(-1, rows[:, 1:, None])[..., 0]
                found += logprobs.tolist()
        return found

    def agree(
        self,
        model: transformers.PreTrainedModel,
        checkpoint: str,
        mean: Optional[float] = None,
        each: float = 5e-4,
        **options: str,
    ) -> Dict[str, Any]:
        """mean: the largest difference of the mean NLL; None: a millionth of it."""
        texts = self.texts(model.config.vocab_size)
        done = self.scores(checkpoint, texts, options)
        self.assertEqual(done.returncode, 0, done.stderr)
        got = json.loads(done.stdout)
        wanted = self.wanted(model, texts)
        self.assertEqual([len(row) for row in got["logprobs"]], [len(row) for row in wanted])
        pairs = [(a, b) for left, right in zip(got["logprobs"], wanted) for a, b in zip(left, right)]
        worst = max(abs(a - b) for a, b in pairs)
        nll = -sum(b for _, b in pairs) / len(pairs)
        # Written so that a NaN fails.
        limit = mean if mean is not None else 1e-6 * nll
        self.assertTrue(abs(got["nll"] - nll) <= limit, f"mean NLL {got['nll']} instead of {nll} (worst {worst})")
        self.assertTrue(worst <= each, f"a log-probability is off by {worst}")
        return {"nll": got["nll"], "mean_off": abs(got["nll"] - nll), "worst": worst, "digest": got["digest"]}

    def refused(self, checkpoint: str, *words: str, **options: str) -> str:
        done = self.scores(checkpoint, self.texts(), options)
        self.assertEqual(done.returncode, 1, done.stdout)
        for word in words:
            self.assertIn(word, done.stderr)
        return done.stderr


class EveryFamily(Scenes):
    def test_fp32_is_within_a_millionth(self) -> None:
        for name in chosen(MODELS):
            with self.subTest(name):
                model = randomized(MODELS[name]())
                model.save_pretrained(self.path(name))
                report = self.agree(model, self.path(name))
                off = report["mean_off"] / report["nll"]
                print(f"  {name:28} nll {report['nll']:.6f}  mean off by {off:.1e} of it  worst {report['worst']:.1e}")

    def test_half_weights_compute_in_fp32(self) -> None:
        for dtype in (torch.float16, torch.bfloat16):
            for name in ("gpt2", "llama llama3", "qwen2 tied", "qwen3", "gemma", "gemma 3", "phi 4 longrope", "gpt-neox"):
                with self.subTest(name, dtype=dtype):
                    model = randomized(MODELS[name](), dtype)
                    model.save_pretrained(self.path("half"))
                    self.agree(model, self.path("half"))

    def test_bf16_compute_is_within_1e_3(self) -> None:
        for name in chosen(MODELS):
            with self.subTest(name):
                # Quiet weights, as a trained model has: bf16 itself is this coarse.
                torch.manual_seed(SEED)
                model = MODELS[name]().eval()
                for parameter in model.parameters():
                    parameter.data = parameter.data.to(torch.bfloat16)
                model.save_pretrained(self.path("bf16"))
                texts = self.texts()
                done = self.scores(self.path("bf16"), texts, {"compute": "bf16"})
                if done.returncode == 1 and done.stderr.startswith("unsupported"):
                    self.skipTest(done.stderr)
                self.agree(model, self.path("bf16"), mean=1e-3, each=0.1, compute="bf16")

    def test_configurations_of_older_versions(self) -> None:
        model = randomized(MODELS["llama llama3"]())
        model.save_pretrained(self.path("old"))
        config = self.path("old/config.json")
        with open(config, encoding="utf-8") as file:
            values = json.load(file)
        rope = values.pop("rope_parameters")
        values["rope_theta"] = rope.pop("rope_theta")
        rope["type"] = rope.pop("rope_type")
        values["rope_scaling"] = rope
        values["head_dim"] = None
        values["torch_dtype"] = values.pop("dtype", "float32")
        values["num_hidden_layers"] = 3.0
        values["initializer_range"] = float("nan")  # Python writes NaN, and Infinity.
        values["attention_dropout"] = float("-inf")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(values, file)
        self.agree(model, self.path("old"))

    def test_configurations_written_by_others(self) -> None:
        for name, (row, missing, more) in REWRITTEN.items():
            with self.subTest(name):
                randomized(MODELS[row]()).save_pretrained(self.path(name))
                config = self.path(f"{name}/config.json")
                with open(config, encoding="utf-8") as file:
                    values = {key: value for key, value in json.load(file).items() if key not in missing}
                with open(config, "w", encoding="utf-8") as file:
                    json.dump({**values, **more}, file)
                loaded = transformers.AutoModelForCausalLM.from_pretrained(self.path(name), dtype=torch.float32)
                self.agree(loaded.eval(), self.path(name))

    def test_rope_scaling_put_into_a_newer_configuration(self) -> None:
        model = randomized(MODELS["llama linear"]())
        model.save_pretrained(self.path("both"))
        config = self.path("both/config.json")
        with open(config, encoding="utf-8") as file:
            values = json.load(file)
        values["rope_scaling"] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
        with open(config, "w", encoding="utf-8") as file:
            json.dump(values, file)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(self.path("both"), dtype=torch.float32)
        self.agree(loaded.eval(), self.path("both"))


class BrieflyTrained(Scenes):
    """Every family after a few steps on a language that is easy to guess: weights as training leaves them, texts that it knows."""

    def texts(self, vocabulary: int = VOCABULARY) -> List[torch.Tensor]:
        return [self.language(SEED + 2 + i, size, vocabulary) for i, size in enumerate(TEXTS)]

    def language(self, seed: int, size: Any, vocabulary: int) -> torch.Tensor:
        """Each token follows from the one before it, but for one in eight."""
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(0, vocabulary, size, generator=generator)
        strays = torch.rand(size, generator=generator) < 0.125
        for i in range(1, rows.shape[-1]):
            rows[:, i] = torch.where(strays[:, i], rows[:, i], (3 * rows[:, i - 1] + 1) % vocabulary)
        return rows

    def trained(self, name: str) -> transformers.PreTrainedModel:
        torch.manual_seed(SEED)
        model = MODELS[name]().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(60):
            rows = self.language(1000 + step, (16, 24), model.config.vocab_size)
            loss = model(input_ids=rows, labels=rows).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model.eval()

    def test_trained_models_agree_in_fp32_and_bf16(self) -> None:
        for name in ("gpt2", "llama llama3", "mistral window", "qwen2 tied", "qwen3", "gemma"):
            with self.subTest(name):
                model = self.trained(name)
                model.save_pretrained(self.path("fp32"))
                report = self.agree(model, self.path("fp32"))
                print(f"  {name:28} nll {report['nll']:.6f}  mean off {report['mean_off']:.1e}  worst {report['worst']:.1e}")
                self.assertLess(report["nll"], 0.9 * math.log(model.config.vocab_size))  # It has learned.
                for parameter in model.parameters():
                    parameter.data = parameter.data.to(torch.bfloat16)
                model.save_pretrained(self.path("bf16"))
                done = self.scores(self.path("bf16"), self.texts(), {"compute": "bf16"})
                if done.returncode == 1 and done.stderr.startswith("unsupported"):
                    continue
                report = self.agree(model, self.path("bf16"), mean=1e-3, each=0.2, compute="bf16")
                print(f"  {name + ', bf16':28} nll {report['nll']:.6f}  mean off {report['mean_off']:.1e}  worst {report['worst']:.1e}")


class EveryLayout(Scenes):
    def test_sharded(self) -> None:
        for name in ("gpt2", "qwen3"):
            with self.subTest(name):
                model = randomized(MODELS[name]())
                model.save_pretrained(self.path(name), max_shard_size="60KB")
                self.assertTrue(os.path.exists(self.path(f"{name}/model.safetensors.index.json")))
                self.agree(model, self.path(name))

    def test_bare_model_without_a_head(self) -> None:
        model = randomized(MODELS["gpt2"]())
        model.transformer.save_pretrained(self.path("bare"))
        self.agree(model, self.path("bare"))

    def test_own_head_beside_a_backbone(self) -> None:
        backbone = randomized(MODELS["gpt2"]()).transformer
        own = torch.nn.ModuleDict({"backbone": backbone, "head": torch.nn.Linear(48, VOCABULARY, bias=False)})
        os.makedirs(self.path("own"))
        backbone.config.save_pretrained(self.path("own"))
        torch.save(own.state_dict(), self.path("own/pytorch_model.bin"))
        self.refused(self.path("own"), "head.weight", "is not one of the", "ignore")

    def test_value_head_of_trl_changes_no_score(self) -> None:
        model = randomized(MODELS["llama"]())
        os.makedirs(self.path("ppo"))
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(self.path("ppo"))
        for before in ("", "pretrained_model."):
            with self.subTest(prefix=before):
                state = {before + key: value for key, value in model.state_dict().items()}
                state.update({"v_head.summary.weight": torch.ones(1, 48), "v_head.summary.bias": torch.ones(1)})
                torch.save(state, self.path("ppo/pytorch_model.bin"))
                self.agree(model.float(), self.path("ppo"))

    def test_torch_save_under_wrappers(self) -> None:
        for name in ("gpt2", "llama", "qwen2 tied"):
            for prefix in ("", "module.", "_orig_mod.", "module._orig_mod.", "anything.net."):
                with self.subTest(name, prefix=prefix):
                    model = randomized(MODELS[name]())
                    os.makedirs(self.path("w"), exist_ok=True)
                    model.config.save_pretrained(self.path("w"))
                    model.config.architectures = [type(model).__name__]
                    state = {prefix + key: value for key, value in model.state_dict().items()}
                    torch.save({"epoch": 3, "model_state_dict": state}, self.path("w/weights.pt"))
                    self.agree(model, self.path("w/weights.pt"))

    def test_config_path_and_family_by_option(self) -> None:
        model = randomized(MODELS["llama"]())
        model.config.save_pretrained(self.path("elsewhere"))
        torch.save(model.state_dict(), self.path("alone.pt"))
        self.agree(model, self.path("alone.pt"), config_path=self.path("elsewhere/config.json"), family="llama")
        self.refused(self.path("alone.pt"), "no config.json", "family")

    def test_lightning(self) -> None:
        self.requires("lightning")
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self, model: transformers.PreTrainedModel) -> None:
                super().__init__()
                self.model = model

            def training_step(self, batch: torch.Tensor, at: int) -> torch.Tensor:
                return self.model(batch, labels=batch).loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.01)

        for name in ("gpt2", "llama"):
            with self.subTest(name):
                module = Module(randomized(MODELS[name]()))
                trainer = lightning.Trainer(
                    max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, barebones=False,
                )
                trainer.fit(module, torch.utils.data.DataLoader(self.texts()[0], batch_size=1))
                os.makedirs(self.path(name))
                trainer.save_checkpoint(self.path(f"{name}/step.ckpt"))
                module.model.config.save_pretrained(self.path(name))
                self.agree(module.model.eval(), self.path(f"{name}/step.ckpt"))

    def test_adapter_on_its_base(self) -> None:
        self.requires("peft")
        import peft

        for name, modules in (("gpt2", ["c_attn", "c_proj"]), ("llama", ["q_proj", "v_proj", "down_proj"])):
            with self.subTest(name):
                base = randomized(MODELS[name]())
                base.save_pretrained(self.path(f"{name}-base"))
                settings = peft.LoraConfig(r=4, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM")
                model = peft.get_peft_model(base, settings)
                generator = torch.Generator().manual_seed(SEED + 2)
                with torch.no_grad():
                    for key, parameter in model.named_parameters():
                        if "lora_" in key:
                            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
                model.save_pretrained(self.path(name))
                self.agree(model.eval(), self.path(name), base=f"{name}-base")

    def test_adapter_in_the_directory_of_its_model(self) -> None:
        self.requires("peft")
        import peft

        base = randomized(MODELS["llama"]())
        base.save_pretrained(self.path("both"))
        settings = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
        peft.get_peft_model(base, settings).save_pretrained(self.path("both"))
        loaded = transformers.AutoModelForCausalLM.from_pretrained(self.path("both"), dtype=torch.float32).eval()
        self.assertTrue(any("lora_A" in name for name, _ in loaded.named_parameters()))  # Transformers applies it.
        self.refused(self.path("both"), "holds both", "adapter: apply")
        self.agree(loaded, self.path("both"), adapter="apply")
        self.agree(randomized(MODELS["llama"]()), self.path("both"), adapter="ignore")

    def test_adapter_of_a_tied_embedding(self) -> None:
        self.requires("peft")
        import peft

        base = randomized(MODELS["qwen2 tied"]())
        base.save_pretrained(self.path("tied-base"))
        for more in ({"target_modules": ["q_proj", "embed_tokens"]}, {"modules_to_save": ["embed_tokens"]}):
            with self.subTest(str(more)):
                settings = peft.LoraConfig(**{"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **more})
                peft.get_peft_model(randomized(MODELS["qwen2 tied"]()), settings).save_pretrained(self.path("tied"))
                self.refused(self.path("tied"), "the adapter changes", "embed_tokens.weight", base="tied-base")

    def test_distributed_checkpoint(self) -> None:
        import torch.distributed.checkpoint as dcp

        for name in ("gpt2", "qwen3"):
            with self.subTest(name):
                model = randomized(MODELS[name]())
                dcp.save({"model": model.state_dict()}, checkpoint_id=self.path(name))
                model.config.architectures = [type(model).__name__]
                model.config.save_pretrained(self.path(name))
                self.agree(model, self.path(name))

    def test_trainer(self) -> None:
        self.requires("accelerate")
        model = gpt2()
        rows = [{"input_ids": row, "labels": row} for row in self.texts()[0]]
        settings = transformers.TrainingArguments(
            self.path("out"), max_steps=2, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
            logging_strategy="no",
        )
        transformers.Trainer(model, settings, train_dataset=rows).train()
        self.agree(model.eval(), self.path("out/checkpoint-2"))


def nano_state(model: transformers.PreTrainedModel, bias: bool) -> Dict[str, torch.Tensor]:
    """nanoGPT's state dict of the same model: Linear keeps [out, in], and the head is written too."""
    state = {}
    for name, value in model.state_dict().items():
        if name.endswith(("attn.bias", "attn.masked_bias")) and "c_attn" not in name:
            continue
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            value = value.t().contiguous()
        if bias or not name.endswith(".bias"):
            state["_orig_mod." + name] = value
    return state


class NanoGpt(Scenes):
    def save(self, model: transformers.PreTrainedModel, bias: bool, args: Optional[Dict[str, Any]] = None) -> str:
        args = args or {
            "n_layer": 3, "n_head": 4, "n_embd": 48, "block_size": 64, "bias": bias, "vocab_size": VOCABULARY,
            "dropout": 0.0,
        }
        saved = {"model": nano_state(model, bias), "optimizer": {}, "model_args": args, "iter_num": 7, "config": {}}
        torch.save(saved, self.path("ckpt.pt"))
        return self.path("ckpt.pt")

    def test_as_it_is_written(self) -> None:
        model = randomized(gpt2(activation_function="gelu"))
        self.agree(model, self.save(model, True))

    def test_without_biases(self) -> None:
        model = randomized(gpt2(activation_function="gelu"))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(".bias"):
                    parameter.zero_()
        self.agree(model, self.save(model, False))

    def test_older_ones_had_tanh(self) -> None:
        model = randomized(gpt2())
        self.agree(model, self.save(model, True), activation_function="gelu_tanh")

    def test_state_dict_alone_with_options(self) -> None:
        model = randomized(gpt2(activation_function="gelu"))
        torch.save(nano_state(model, True), self.path("alone.pt"))
        sizes = {"n_layer": "3", "n_head": "4", "n_embd": "48", "block_size": "64", "vocab_size": str(VOCABULARY)}
        self.agree(model, self.path("alone.pt"), family="gpt2", **sizes)


class Refusals(Scenes):
    def saved(self, name: str = "llama", **edit: Any) -> str:
        model = randomized(MODELS[name]())
        folder = self.path("bad")
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        config = os.path.join(folder, "config.json")
        with open(config, encoding="utf-8") as file:
            values = json.load(file)
        values.update(edit)
        with open(config, "w", encoding="utf-8") as file:
            json.dump(values, file)
        return folder

    def test_what_is_not_handled_is_named(self) -> None:
        bad = (
            ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM", "command or persistent"),
            ({"rope_parameters": {"rope_type": "proportional", "factor": 2.0}}, "proportional", "yarn"),
            ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1]}}, "short_factor.1 is not known"),
            ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
            ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ by the type of layer"),
            ({"hidden_act": "gelu_10"}, "gelu_10", "silu"),
            ({"quantization_config": {"quant_method": "gptq"}}, "quantis"),
            ({"num_attention_heads": 7}, "7", "2 key-value"),
            ({"num_key_value_heads": 4}, "6", "4"),
            ({"hidden_size": "many"}, "hidden_size", "'many'", "whole number"),
            ({"num_hidden_layers": -1}, "num_hidden_layers", "'-1'"),
            ({"max_position_embeddings": 20}, "61 tokens", "20"),
            ({"is_causal": False}, "is_causal"),
        )
        for edit, *words in bad:
            with self.subTest(str(edit)):
                self.refused(self.saved(**edit), *words)

    def test_what_ministral_3_lacks_is_named(self) -> None:
        scaled = {**YARN, "llama_4_scaling_beta": 0.1}  # It scales the queries from position 16 on.
        self.refused(self.saved("ministral 3", rope_parameters=None), "rope_parameters.rope_type is not known")
        self.refused(self.saved("ministral 3", rope_scaling=scaled), "61 tokens", "at most 16")
        self.refused(self.saved("ministral 3", original_max_position_embeddings=16), "61 tokens", "at most 16")
        self.refused(self.saved("ministral 3", layer_types=["full_attention"] * 3), "layer_types")

    def test_shapes_and_names(self) -> None:
        # The configuration says another size than the tensors have.
        self.refused(self.saved(vocab_size=140), "model.embed_tokens.weight", "model.safetensors", "[131, 48]", "[140, 48]")
        self.refused(self.saved(intermediate_size=81), "mlp.gate_proj.weight", "[80, 48]", "[81, 48]")
        self.refused(self.saved(num_hidden_layers=4), "layers.3.", "missing")
        self.refused(self.saved(num_hidden_layers=2), "layers.2.", "has no place")
        self.refused(self.saved(attention_bias=True), "bias", "missing")
        self.refused(self.saved(num_key_value_heads=6), "k_proj.weight", "[16, 48]", "[48, 48]")
        self.refused(self.saved("gpt2", n_embd=52), "wte.weight", "[131, 48]", "[131, 52]")
        self.refused(self.saved("gpt2", tie_word_embeddings=False), "lm_head.weight", "missing")

    def test_a_task_of_samples_options_and_broken_json(self) -> None:
        folder = self.saved()
        self.refused(folder, "family", "nonsense", family="nonsense")
        self.refused(folder, "n_layerz", n_layerz="3")
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            file.write('{"architectures": ["LlamaForCausalLM"], "hidden_size": 48')
        self.refused(folder, "config.json", "JSON ends")


if __name__ == "__main__":
    if not os.path.exists(SCORES):
        print(f"not run: {SCORES} is not built (ninja lm_scores)")
        sys.exit(77)
    unittest.main(verbosity=2)
