"""What evalq reads of checkpoints that the frameworks themselves just wrote: tensor by tensor what they read back."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import tempfile
import types
import unittest
from typing import Any, Dict, List, Optional

import peers
from peers import HERE, needs

needs("torch", "safetensors")
import torch  # noqa: E402

DUMP = os.path.join(peers.BIN, "dump_tensors")
if not os.path.exists(DUMP):
    print("not run: the build has no dump_tensors (its tests are off)")
    raise SystemExit(77)

DATA = os.path.join(os.path.dirname(HERE), "data")
NAMES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16", torch.uint32: "U32",
         torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16",
         torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
TYPES = {name: dtype for dtype, name in NAMES.items()}
State = Dict[str, torch.Tensor]


class Checkpoints(unittest.TestCase):
    place: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.place = tempfile.TemporaryDirectory(prefix="evalq-checkpoints-")
        cls.root = cls.place.name

    @classmethod
    def tearDownClass(cls) -> None:
        cls.place.cleanup()

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def read(self, path: str, key: str = "", variant: str = "regular", base: str = "") -> State:
        done = subprocess.run([DUMP, self.root, path, key, variant, base], capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        out, at, data = {}, 0, done.stdout
        while at < len(data):
            end = data.index(b"\n", at)
            name, dtype, text = data[at:end].decode().split("\t")
            shape = [int(size) for size in text.split(",") if size]
            count = 1
            for size in shape:
                count *= size
            raw = count * torch.empty(0, dtype=TYPES[dtype]).element_size()
            value = torch.frombuffer(bytearray(data[end + 1:end + 1 + raw]), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
            value = value.view(TYPES[dtype]).reshape(shape)
            floats = data[end + 1 + raw:end + 1 + raw + 4 * count]
            as_float = torch.frombuffer(bytearray(floats), dtype=torch.float32).reshape(shape) if count else torch.empty(shape)
            self.assertTrue(torch.equal(as_float.nan_to_num(7), value.to(torch.float32).nan_to_num(7)), f"{path}: {name} as float32")
            out[name] = value
            at = end + 1 + raw + 4 * count
        return out

    def same(self, got: State, want: State, tolerance: float = 0.0) -> None:
        self.assertEqual(sorted(got), sorted(want))
        for name, value in want.items():
            self.assertEqual(got[name].dtype, value.dtype, name)
            self.assertEqual(list(got[name].shape), list(value.shape), name)
            if tolerance == 0.0:
                bytes_of = lambda tensor: tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else None
                self.assertTrue(value.numel() == 0 or torch.equal(bytes_of(got[name]), bytes_of(value)), name)
            else:
                difference = (got[name].double() - value.double()).abs().max().item()
                self.assertTrue(difference <= tolerance, f"{name}: {difference}")

    def refuses(self, path: str, words: str) -> None:
        done = subprocess.run([DUMP, self.root, path], capture_output=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(words, done.stderr.decode())

    def state(self) -> State:
        out: State = collections.OrderedDict()
        for i, dtype in enumerate(NAMES):
            out[f"layer.{i}.{NAMES[dtype]}"] = (torch.rand(3, 5) * 100).to(dtype)
        big = torch.randn(64, 48)
        out.update(turned=big.t(), rows=big[3:9], columns=big[:, ::3], one=torch.tensor(2.5), none=torch.empty(0, 4), tied=big)
        return out

    def test_torch_save_of_today_and_of_before_1_6(self) -> None:
        state = self.state()
        torch.save(state, self.path("zip.pt"))
        self.same(self.read("zip.pt"), torch.load(self.path("zip.pt")))
        torch.save({"model": state, "step": 3}, self.path("nested.pt"), pickle_protocol=4)
        self.same(self.read("nested.pt"), state)
        old = {name: value for name, value in state.items() if not name.rsplit(".", 1)[-1].startswith(("U16", "U32", "U64", "F8"))}
        torch.save(old, self.path("legacy.pt"), _use_new_zipfile_serialization=False)
        self.same(self.read("legacy.pt"), torch.load(self.path("legacy.pt")))

    def test_transformers_whole_and_in_shards(self) -> None:
        needs("transformers")
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=64,
                                             intermediate_size=96, vocab_size=101, tie_word_embeddings=False)).to(torch.bfloat16)
        model.save_pretrained(self.path("whole"))
        model.save_pretrained(self.path("shards"), max_shard_size="40KB")
        self.assertTrue(os.path.exists(self.path("shards/model.safetensors.index.json")))
        self.same(self.read("whole"), dict(model.state_dict()))
        self.same(self.read("shards"), dict(model.state_dict()))

    def test_distributed_checkpoints_of_four_processes(self) -> None:
        sys.path.insert(0, DATA)
        import make_distributed

        os.makedirs(self.path("fsdp"))
        make_distributed.make(self.root, port=29711)

        def flat(value: Any, name: str, out: State) -> State:
            for key, item in value.items():
                inner = f"{name}.{key}" if name else key
                if isinstance(item, torch.Tensor):
                    out[inner] = item
                elif isinstance(item, dict):
                    flat(item, inner, out)
            return out

        nested = make_distributed.load(self.path("dcp"))
        self.same(self.read("dcp"), flat(nested["model"], "", {}))
        self.same(self.read("dcp", variant="ema"), flat(nested["ema"], "", {}))
        self.same(self.read("dcp", key="optimizer"), flat(nested["optimizer"], "", {}))
        self.same(self.read("dcp_grid"), flat(make_distributed.load(self.path("dcp_grid")), "", {}))

    def test_deepspeed_layout(self) -> None:
        """Written by torch.save as DeepSpeed's save_checkpoint does for stages 0 to 2, with a class that is not installed."""
        half = {name: value.to(torch.bfloat16) for name, value in {"a.weight": torch.randn(7, 3), "a.bias": torch.randn(7)}.items()}
        module = types.ModuleType("deepspeed_pretended")
        module.Scaler = type("Scaler", (), {"__module__": "deepspeed_pretended"})  # type: ignore[attr-defined]
        sys.modules["deepspeed_pretended"] = module
        os.makedirs(self.path("zero/global_step7"))
        torch.save({"module": half, "optimizer": {"loss_scaler": module.Scaler()}, "param_shapes": [{"a.weight": torch.Size([7, 3])}],
                    "mp_world_size": 1, "ds_config": {"zero_optimization": {"stage": 2}}},
                   self.path("zero/global_step7/mp_rank_00_model_states.pt"))
        torch.save({"optimizer_state_dict": {}}, self.path("zero/global_step7/zero_pp_rank_0_mp_rank_00_optim_states.pt"))
        with open(self.path("zero/latest"), "w", encoding="utf-8") as file:
            file.write("global_step7")
        self.same(self.read("zero"), half)
        torch.save({}, self.path("zero/global_step7/zero_pp_rank_0_mp_rank_00_model_states.pt"))
        self.refuses("zero", "zero_to_fp32.py")

    def test_adapters_equal_merge_and_unload(self) -> None:
        needs("transformers", "peft")
        from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

        llama = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=64,
                                             intermediate_size=96, vocab_size=101, tie_word_embeddings=False))
        gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=101, n_positions=16))
        llama.save_pretrained(self.path("llama"))
        gpt2.save_pretrained(self.path("gpt2"))
        cases: List[Any] = [
            ("llama", LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")),
            ("llama", LoraConfig(r=4, lora_alpha=2, target_modules=["q_proj", "embed_tokens", "lm_head"], use_rslora=True,
                                 rank_pattern={"layers.1.self_attn.q_proj": 6}, alpha_pattern={"embed_tokens": 3})),
            ("gpt2", LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, bias="all")),
            ("gpt2", LoraConfig(r=2, lora_alpha=5, target_modules=["attn.c_proj"], fan_in_fan_out=True, modules_to_save=["ln_f"])),
        ]
        for number, (base, config) in enumerate(cases):
            kind = LlamaForCausalLM if base == "llama" else GPT2LMHeadModel
            model = get_peft_model(kind.from_pretrained(self.path(base)), config)
            for value in model.parameters():
                if value.requires_grad:
                    value.data = torch.randn_like(value) * 0.1
            name = f"adapter{number}"
            model.save_pretrained(self.path(name))
            merged = PeftModel.from_pretrained(kind.from_pretrained(self.path(base)), self.path(name)).merge_and_unload()
            held = set(self.read(base))
            want = {key: value for key, value in merged.state_dict().items() if key in held}
            self.same(self.read(name), want, tolerance=1e-5)  # The base by its absolute path,
            self.same(self.read(name, base=base), want, tolerance=1e-5)  # and by the option.
        other = get_peft_model(kind.from_pretrained(self.path("gpt2")), IA3Config(target_modules=["c_attn"], feedforward_modules=[]))
        other.save_pretrained(self.path("ia3"))
        self.refuses("ia3", "'IA3' is not merged")

    def test_lightning_with_and_without_averages(self) -> None:
        needs("lightning")
        import lightning
        from lightning.pytorch.callbacks import EMAWeightAveraging

        class Net(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.save_hyperparameters({"width": 4})
                self.body = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))

            def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
                return self.body(batch).square().mean()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        def train(callbacks: Optional[List[Any]], name: str) -> None:
            trainer = lightning.Trainer(max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=callbacks,
                                        enable_progress_bar=False, enable_model_summary=False)
            save = lightning.pytorch.callbacks.LambdaCallback(
                on_train_batch_end=lambda trainer, *rest: trainer.save_checkpoint(self.path(name)))
            trainer.callbacks.append(save)
            trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4))

        train(None, "plain.ckpt")
        whole = torch.load(self.path("plain.ckpt"), weights_only=False)
        self.same(self.read("plain.ckpt"), whole["state_dict"])
        train([EMAWeightAveraging(decay=0.5)], "averaged.ckpt")
        whole = torch.load(self.path("averaged.ckpt"), weights_only=False)
        self.assertIn("current_model_state", whole)
        self.same(self.read("averaged.ckpt"), whole["current_model_state"])
        self.same(self.read("averaged.ckpt", variant="ema"), whole["state_dict"])
        self.assertFalse(torch.equal(whole["state_dict"]["body.0.weight"], whole["current_model_state"]["body.0.weight"]))


if __name__ == "__main__":
    torch.manual_seed(int(os.environ.get("SEED", "3")))
    unittest.main()
