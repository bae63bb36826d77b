"""Encoders that classify texts against Transformers: tiny random ones, with each option of a configuration on in one of them.

`evalq-worker eval` reads what save_pretrained() writes, and arrays of tokens with their padding. The mean loss is within a
millionth of a float64 forward of Transformers, and the accuracies are equal.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import unittest
from typing import Any, Dict, List, Tuple

from peers import DEADLINE, needs

needs("torch", "transformers", "safetensors", "numpy", "accelerate", "tokenizers")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

BUILD = os.environ.get("EVALQ_TEST_BUILD", os.path.join(os.path.dirname(__file__), "../../build/default"))
WORKER = os.path.join(BUILD, "bin", "evalq-worker")
SEED = 20261126
VOCABULARY = 131
LENGTHS = (61, 3, 17, 1, 64, 40, 33, 2)  # Of the texts, again and again; 64 is the longest that the models take.
TEXTS = 96
SHAPE: Dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "num_labels": 5,
}
MODERN: Dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
DISTIL: Dict[str, Any] = {"hidden_dim": 80}
ROWS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "bert two labels": ("Bert", dict(num_labels=2, layer_norm_eps=1e-3)),
    "bert gelu_new, more types": ("Bert", dict(hidden_act="gelu_new", type_vocab_size=4)),
    "roberta": ("Roberta", dict(max_position_embeddings=66)),
    "roberta pad 0, relu": ("Roberta", dict(max_position_embeddings=65, pad_token_id=0, hidden_act="relu")),
    "xlm-roberta": ("XLMRoberta", dict(max_position_embeddings=66, type_vocab_size=1)),
    "camembert": ("Camembert", dict(max_position_embeddings=66, layer_norm_eps=1e-5)),
    "distilbert": ("DistilBert", DISTIL),
    "distilbert relu, sinusoidal": ("DistilBert", dict(**DISTIL, activation="relu", sinusoidal_pos_embds=True)),
    "modernbert": ("ModernBert", MODERN),
    "modernbert mean": ("ModernBert", dict(**MODERN, classifier_pooling="mean", local_attention=11)),
    "modernbert all biases": (
        "ModernBert", dict(**MODERN, norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, norm_eps=1e-3),
    ),
    "modernbert layers, other activations": (
        "ModernBert",
        dict(**MODERN, layer_types=["sliding_attention", "full_attention", "sliding_attention"], local_attention=2,
             hidden_activation="silu", classifier_activation="relu"),
    ),
    "modernbert yarn, linear": (
        "ModernBert",
        dict(**MODERN, local_attention=20, rope_parameters={
            "full_attention": {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16},
            "sliding_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
        }),
    ),
}
SEEN = {"_name_or_path": "/data/run", "torch_dtype": "float32", "gradient_checkpointing": False, "use_flash_attention_2": True}
SUITE = """
roots: {{here: .}}
suites:
  texts:
    tasks:
      - name: held
        type: text_classification
        top_k: 2
        data: {{format: tokens, tokens: tokens.npy, mask: mask.npy, labels: labels.npy{more}}}
"""


def fresh(name: str) -> transformers.PreTrainedModel:
    family, more = ROWS[name]
    values = {**SHAPE, **more}
    if "hidden_dim" in values:  # DistilBERT's name of it.
        del values["intermediate_size"]
    return getattr(transformers, f"{family}ForSequenceClassification")(getattr(transformers, f"{family}Config")(**values)).eval()


def make(name: str) -> transformers.PreTrainedModel:
    return randomized(fresh(name))


def randomized(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Weights far from their quiet start, so that a wrong place of any of them shows."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (0.3 if parameter.dim() > 1 else 0.5) + (1.0 if parameter.dim() == 1 else 0.0))
    return model.eval()


class Scenes(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-classifiers-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def evaluate(self, suite: str, file: str = "model") -> subprocess.CompletedProcess:
        with open(self.path("evalq.yaml"), "w", encoding="utf-8") as config:
            config.write(suite)
        command = [WORKER, "eval", file, "--config", "evalq.yaml", "--suite", "texts", "--json"]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=DEADLINE)

    def metrics(self, suite: str, file: str = "model") -> Dict[str, float]:
        done = self.evaluate(suite, file)
        self.assertEqual(done.returncode, 0, done.stderr)
        found: Dict[str, float] = json.loads(done.stdout)["tasks"]["held"]["metrics"]
        return found

    def refused(self, suite: str, *words: str) -> None:
        done = self.evaluate(suite)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for word in words:
            self.assertIn(word, done.stdout + done.stderr)

    def agree(self, name: str, found: Dict[str, float], logits: torch.Tensor, labels: torch.Tensor) -> None:
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        off = abs(found["cross_entropy"] - loss) / loss
        print(f"  {name:32} loss {loss:.6f}  off by {off:.1e} of it  accuracy {found['accuracy']:.3f}")
        self.assertTrue(off <= 1e-6, f"loss {found['cross_entropy']} instead of {loss}")  # A NaN fails.
        self.assertEqual(found["accuracy"], (logits.argmax(-1) == labels).double().mean().item())
        top = (logits.topk(2).indices == labels[:, None]).any(-1).double().mean().item()
        self.assertEqual(found["top2_accuracy"], top)


class Texts(Scenes):
    def arrays(self, types: int, classes: int) -> Dict[str, torch.Tensor]:
        """Texts of several lengths with padding behind them, as a tokenizer returns them."""
        generator = torch.Generator().manual_seed(SEED + 1)
        lengths = torch.tensor([LENGTHS[i % len(LENGTHS)] for i in range(TEXTS)])
        size = (TEXTS, int(lengths.max()))
        mask = (torch.arange(size[1])[None] < lengths[:, None]).long()
        made = {
            "tokens": torch.randint(3, VOCABULARY, size, generator=generator) * mask,
            "mask": mask,
            "types": torch.randint(0, types, size, generator=generator) * mask,
            "labels": torch.randint(0, classes, (TEXTS,), generator=generator),
        }
        for name, values in made.items():
            numpy.save(self.path(f"{name}.npy"), values.numpy())
        return made

    def test_every_option_is_within_a_millionth(self) -> None:
        for name in ROWS:
            with self.subTest(name):
                model = make(name)
                model.save_pretrained(self.path("model"))
                types = model.config.type_vocab_size if ROWS[name][0] == "Bert" else 0
                made = self.arrays(max(types, 1), model.config.num_labels)
                words = {"input_ids": made["tokens"], "attention_mask": made["mask"]}
                words.update({"token_type_ids": made["types"]} if types else {})
                with torch.no_grad():
                    logits = model.double()(**words).logits
                found = self.metrics(SUITE.format(more=", types: types.npy" if types else ""))
                self.agree(name, found, logits, made["labels"])


    def test_bf16_compute_is_within_1e_3(self) -> None:
        for name in ROWS:
            with self.subTest(name):
                torch.manual_seed(SEED)  # Quiet weights, as a trained model has: bf16 itself is this coarse.
                model = fresh(name)
                for parameter in model.parameters():
                    parameter.data = parameter.data.to(torch.bfloat16)
                model.save_pretrained(self.path("model"))
                made = self.arrays(1, model.config.num_labels)
                suite = SUITE.format(more="").replace("top_k: 2", "compute: bf16")
                done = self.evaluate(suite)
                if "does not multiply bf16" in done.stdout + done.stderr:
                    self.skipTest(done.stderr)
                with torch.no_grad():
                    logits = model.double()(input_ids=made["tokens"], attention_mask=made["mask"]).logits
                loss = torch.nn.functional.cross_entropy(logits, made["labels"]).item()
                found = self.metrics(suite)["cross_entropy"]
                self.assertTrue(abs(found - loss) <= 1e-3 * loss, f"loss {found} instead of {loss}")


    def agree_with(self, name: str, model: transformers.PreTrainedModel, file: str = "model") -> None:
        made = self.arrays(1, model.config.num_labels)
        with torch.no_grad():
            logits = model.double()(input_ids=made["tokens"], attention_mask=made["mask"]).logits
        self.agree(name, self.metrics(SUITE.format(more=""), file), logits, made["labels"])

    def test_configurations_with_every_key(self) -> None:
        for name in ("bert", "roberta", "modernbert", "xlm-roberta", "camembert", "distilbert"):
            with self.subTest(name):
                model = make(name)
                model.save_pretrained(self.path("model"))
                with open(self.path("model/config.json"), "w", encoding="utf-8") as file:
                    whole = {**model.config.to_dict(), **SEEN, "architectures": [type(model).__name__]}
                    json.dump(whole, file, default=str)
                self.agree_with(f"{name}, every key", model)

    def test_modernbert_as_transformers_4_wrote_it(self) -> None:
        make("modernbert").save_pretrained(self.path("model"))
        with open(self.path("model/config.json"), encoding="utf-8") as file:
            values = json.load(file)
        for key in ("layer_types", "rope_parameters", "dtype"):
            values.pop(key, None)
        values.update(global_attn_every_n_layers=2, global_rope_theta=900.0, local_rope_theta=70.0, local_attention=12,
                      layer_norm_eps=1e-5, position_embedding_type="absolute", reference_compile=None, repad_logits_with_grad=False)
        with open(self.path("model/config.json"), "w", encoding="utf-8") as file:
            json.dump(values, file)
        loaded = transformers.AutoModelForSequenceClassification.from_pretrained(self.path("model"), dtype=torch.float32)
        self.assertEqual(loaded.config.layer_types, ["full_attention", "sliding_attention", "full_attention"])
        self.agree_with("modernbert, older", loaded.eval())

    def test_state_dict_under_a_wrapper(self) -> None:
        for name in ("bert", "roberta", "modernbert"):
            with self.subTest(name):
                model = make(name)
                model.config.architectures = [type(model).__name__]
                model.config.save_pretrained(self.path("model"))
                state = {f"module.{key}": value for key, value in model.state_dict().items()}
                torch.save({"model_state_dict": state}, self.path("model/weights.pt"))
                self.agree_with(f"{name}, state dict", model, "model/weights.pt")

    def test_model_without_a_head_is_refused(self) -> None:
        made = make("bert")
        made.bert.save_pretrained(self.path("model"))
        self.arrays(1, 5)
        self.refused(SUITE.format(more=""), "names the architecture BertModel", "command or persistent")


VIT: Dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "num_labels": 5, "image_size": 12,
    "patch_size": 4,
}
PICTURES: Dict[str, Dict[str, Any]] = {
    "vit": {},
    "vit without qkv_bias, relu": dict(qkv_bias=False, hidden_act="relu", layer_norm_eps=1e-3),
    "vit gray, wide": dict(num_channels=1, image_size=[8, 15], patch_size=[4, 3]),
    "vit with a rest": dict(image_size=14, num_labels=2),
}
IMAGES = """
roots: {{here: .}}
suites:
  texts:
    tasks:
      - name: held
        type: classification
        top_k: 2
        data: {{format: npy, inputs: images.npy, labels: labels.npy, {numbers}}}
"""


class Images(Scenes):
    def test_every_option_is_within_a_millionth(self) -> None:
        for name, more in PICTURES.items():
            model = randomized(transformers.ViTForImageClassification(transformers.ViTConfig(**{**VIT, **more})))
            channels = model.config.num_channels
            sides = model.config.image_size
            height, width = sides if isinstance(sides, (list, tuple)) else (sides, sides)
            draw = numpy.random.default_rng(SEED)
            pixels = draw.integers(0, 256, (500, height, width, channels), dtype=numpy.uint8)
            labels = torch.from_numpy(draw.integers(0, model.config.num_labels, 500))
            numpy.save(self.path("labels.npy"), labels.numpy())
            model.save_pretrained(self.path("model"))
            with open(self.path("model/config.json"), "w", encoding="utf-8") as file:
                json.dump({**model.config.to_dict(), **SEEN, "architectures": [type(model).__name__]}, file, default=str)
            model = model.double()
            mean, std = [0.485, 0.456, 0.406][:channels], [0.229, 0.224, 0.225][:channels]
            for numbers, scale, shift in (
                ("scale: 2/255, shift: -1", 2 / 255, [-1.0] * channels),
                (f"scale: 1/255, mean: {mean}, std: {std}", [1 / 255 / s for s in std], [-m / s for m, s in zip(mean, std)]),
            ):
                wanted = torch.from_numpy(pixels * numpy.array(scale) + numpy.array(shift)).permute(0, 3, 1, 2)
                with torch.no_grad():
                    logits = model(pixel_values=wanted).logits
                for order, array in (("last", pixels), ("first", numpy.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))):
                    with self.subTest(name, channels=order, numbers=numbers):
                        numpy.save(self.path("images.npy"), array)
                        found = self.metrics(IMAGES.format(numbers=numbers))
                        self.agree(f"{name}, {order}", found, logits, labels)
                if channels == 1:
                    numpy.save(self.path("images.npy"), pixels[..., 0])
                    self.agree(f"{name}, no channels", self.metrics(IMAGES.format(numbers=numbers)), logits, labels)


GOOD, BAD = "good fine lovely superb Bright warm".split(), "bad awful Dull cold dreary grim".split()
OTHERS = "the film a story was and it seemed, very; quite (almost) unaffable café naïve 12 1990s x".split()
JSONL = """
roots: {{here: .}}
suites:
  texts:
    tasks:
      - name: held
        type: text_classification
        data: {{format: jsonl, text: held.jsonl, template: "{{first}}", max_length: {length}{more}}}
"""


class Trained(Scenes):
    """A Trainer's fine-tuning of a tiny BERT on texts, with a WordPiece tokenizer of its own."""

    def examples(self, count: int, seed: int) -> List[Dict[str, Any]]:
        draw = random.Random(seed)
        made = []
        for _ in range(count):
            label = draw.randrange(2)
            words = draw.choices(OTHERS, k=draw.randrange(30)) + draw.choices(GOOD if label else BAD, k=draw.randrange(1, 3))
            draw.shuffle(words)
            pair = " ".join(draw.choices(OTHERS, k=draw.randrange(12)))
            made.append({"first": " ".join(words), "second": pair, "label": label})
        return made

    def tokenizer(self, texts: List[str]) -> transformers.PreTrainedTokenizerFast:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer()
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        made.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=260, special_tokens=special, show_progress=False))
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return transformers.BertTokenizerFast(tokenizer_object=made, model_max_length=24)

    def train(self, pairs: bool) -> transformers.Trainer:
        learn, held = self.examples(128, SEED), self.examples(50, SEED + 1)
        with open(self.path("held.jsonl"), "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(example, ensure_ascii=pairs) + "\n" for example in held))
        tokenizer = self.tokenizer([example["first"] for example in learn])
        torch.manual_seed(SEED)
        shape = {**SHAPE, "vocab_size": len(tokenizer), "max_position_embeddings": 24, "num_labels": 2}
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**shape))

        def encode(examples: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
            """Batched, as the examples of Transformers do it. One at a time, an empty second text would make no pair."""
            texts = [[example[key] for example in examples] for key in (("first", "second") if pairs else ("first",))]
            made = tokenizer(*texts, truncation=True)
            return [{**{key: made[key][i] for key in made}, "label": example["label"]} for i, example in enumerate(examples)]

        settings = transformers.TrainingArguments(
            self.path("out"), max_steps=48, save_steps=16, eval_strategy="steps", eval_steps=16, learning_rate=3e-3, report_to=[],
            use_cpu=True, disable_tqdm=True, logging_strategy="no", per_device_train_batch_size=16, seed=SEED % 1000,
        )
        trainer = transformers.Trainer(
            model, settings, train_dataset=encode(learn), eval_dataset=encode(held),
            processing_class=tokenizer, data_collator=transformers.DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda guess: {"accuracy": float((guess.predictions.argmax(-1) == guess.label_ids).mean())},
        )
        trainer.train()
        return trainer

    def test_every_checkpoint_has_the_accuracy_of_evaluate(self) -> None:
        for pairs in (False, True):
            with self.subTest(pairs=pairs):
                logged = [entry for entry in self.train(pairs).state.log_history if "eval_accuracy" in entry]
                self.assertEqual([entry["step"] for entry in logged], [16, 32, 48])
                for entry in logged:
                    shutil.rmtree(self.path("model"), ignore_errors=True)
                    shutil.copytree(self.path(f"out/checkpoint-{entry['step']}"), self.path("model"))
                    found = self.metrics(JSONL.format(length=24, more=", pair_template: '{second}'" if pairs else ""))
                    loss = found["cross_entropy"]
                    print(f"  pairs {pairs}, step {entry['step']:2}  accuracy {found['accuracy']}  loss {loss:.7f} ({entry['eval_loss']:.7f})")
                    self.assertEqual(found["accuracy"], entry["eval_accuracy"])
                    # A Trainer adds up means of batches in fp32.
                    self.assertTrue(abs(loss - entry["eval_loss"]) <= 2e-6 * loss, f"{loss} {entry}")
                self.assertGreater(logged[-1]["eval_accuracy"], 0.6)  # It has learned.
                shutil.rmtree(self.path("out"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
