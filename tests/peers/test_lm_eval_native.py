"""The harness's model `evalq`, evalq's native engine, against the harness's own `hf`: the same requests of real tasks over local
files, scored by both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from typing import Any, Dict, List, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "python"), HERE]

import test_harness as tasks  # noqa: E402  It also says "not run" if a package is missing.
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from scene import BIN, DEADLINE, PACKAGE  # noqa: E402

os.environ["PATH"] = BIN + os.pathsep + os.environ["PATH"]
from evalq.lm_eval_model import EvalqLM  # noqa: E402

SEED = 20261126
LIMIT = 60  # Items of each task.
torch.set_num_threads(1)  # For models as small as these, more threads only wait for each other.
Scores = Dict[Tuple[str, int, int], Tuple[float, bool]]


def tokenizer(kind: str) -> transformers.PreTrainedTokenizerFast:
    file = os.path.join(tasks.DATA, "tokenizers", kind, "tokenizer.json")
    ends = {"bos_token": "<s>", "eos_token": "</s>"} if kind == "llama2" else {"eos_token": "<|endoftext|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_file=file, **ends)


def make_checkpoint(directory: str, words: transformers.PreTrainedTokenizerFast, seed: int) -> str:
    """A random model, sharp enough that choices differ: a Llama if texts begin with <s>, else a GPT-2."""
    words.save_pretrained(directory)
    torch.manual_seed(seed)
    if words.bos_token_id is not None:
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=len(words), max_position_embeddings=tasks.LENGTH, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id,
        ))
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=len(words), n_positions=tasks.LENGTH, n_embd=32, n_layer=2, n_head=4, bos_token_id=words.eos_token_id,
            eos_token_id=words.eos_token_id,
        ))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return directory


class NativeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.out = tempfile.mkdtemp(prefix="evalq-lm-eval-")
        cls.addClassCleanup(shutil.rmtree, cls.out, ignore_errors=True)
        tasks.write_data(cls.out)
        tasks.write_tasks(cls.out)
        cls.manager = TaskManager(include_path=os.path.join(cls.out, "tasks"), include_defaults=False)
        print(f"seed {SEED}")

    def checkpoint(self, kind: str, seed: int = SEED) -> str:
        return make_checkpoint(os.path.join(self.out, f"{kind}-{seed}"), tokenizer(kind), seed)

    def evaluate(self, model: Any) -> Tuple[Dict[str, Any], Scores]:
        names = list(tasks.NAMES.values())
        results = simple_evaluate(
            model=model, tasks=names, task_manager=self.manager, limit=LIMIT, bootstrap_iters=0, log_samples=True
        )
        scores: Scores = {}
        for name in names:
            for sample in results["samples"][name]:
                for at, (answer,) in enumerate(sample["resps"]):
                    logprob, greedy = answer if isinstance(answer, (tuple, list)) else (answer, False)
                    scores[name, sample["doc_id"], at] = (float(logprob), greedy)
        return results["results"], scores

    def agree(self, ours: Any, path: str) -> None:
        results, found = self.evaluate(ours)
        wanted_results, wanted = self.evaluate(HFLM(pretrained=path, device="cpu", dtype="float32", batch_size=4))
        self.assertEqual(list(found), list(wanted))
        worst = 0.0
        for key, (logprob, greedy) in wanted.items():
            off = abs(found[key][0] - logprob) / max(1.0, abs(logprob))
            self.assertTrue(off <= 1e-5, f"{key}: {found[key]}, expected {wanted[key]}")  # A NaN fails.
            self.assertEqual(found[key][1], greedy, key)
            worst = max(worst, off)
        for name, metrics in wanted_results.items():
            for metric in ("acc,none", "acc_norm,none", "acc_bytes,none"):
                self.assertEqual(results[name].get(metric), metrics.get(metric), (name, metric))
        print(f"{os.path.basename(path)}: {len(wanted)} requests, worst {worst:.1e}")

    def test_two_checkpoints_in_one_process_agree_with_hf(self) -> None:
        for kind in ("gpt2", "llama2"):
            first, second = self.checkpoint(kind), self.checkpoint(kind, SEED + 1)
            model = EvalqLM(pretrained=first, threads=1)
            process = model._engine._process
            self.agree(model, first)
            model.load_checkpoint(second)
            self.agree(model, second)
            self.assertIs(model._engine._process, process)
            self.assertIsNone(process.poll())

    def test_each_variant_of_a_file_has_its_own_scores(self) -> None:
        regular, average = self.checkpoint("gpt2"), self.checkpoint("gpt2", SEED + 1)
        folder = shutil.copytree(regular, os.path.join(self.out, "both"))
        os.unlink(os.path.join(folder, "model.safetensors"))
        file = os.path.join(folder, "both.pt")
        load = transformers.GPT2LMHeadModel.from_pretrained
        torch.save({"state_dict": load(regular).state_dict(), "ema_state_dict": load(average).state_dict()}, file)
        request = [types.SimpleNamespace(args=("It was", " the best of times"))]
        model = EvalqLM(pretrained=file, variant="ema", threads=1)
        found = [model.loglikelihood(request)]
        for path in (file, regular, average):
            model.load_checkpoint(path)
            found.append(model.loglikelihood(request))
        self.assertEqual(found, [found[3], found[2], found[2], found[3]])
        self.assertNotEqual(found[2], found[3])

    def test_another_tokenizer_comes_from_transformers(self) -> None:
        """evalq cannot read WordLevel, so the harness's own way makes the tokens."""
        path = os.path.join(self.out, "words")
        known = set("ABCD")  # With few words, choices would be the same tokens and as likely.
        for name in ("piqa", "hellaswag", "pages", "letters", "lambada"):
            folder = os.path.join(tasks.DATA, "tasks") if name == "lambada" else self.out
            with open(os.path.join(folder, name + ".jsonl"), encoding="utf-8") as file:
                known.update(file.read().replace('"', " ").split())
        pieces = {word: at for at, word in enumerate(["<s>", "<unk>", *sorted(known)])}
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, unk_token="<unk>"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<unk>")
        make_checkpoint(path, fast, SEED)
        model = EvalqLM(pretrained=path, threads=1)
        self.assertFalse(model._reads_text)
        self.agree(model, path)

    def test_refuses_in_one_sentence(self) -> None:
        path = self.checkpoint("gpt2")
        model = EvalqLM(pretrained=path, threads=1)
        with self.assertRaisesRegex(NotImplementedError, "generates no text: .* an evaluator of kind model_server$"):
            model.generate_until([])
        for words, said in (
            ({"dtype": "float64"}, "^dtype 'float64' is not one of auto, float32, bfloat16$"),
            ({"peft": "x"}, "'peft'"),
            ({"max_length": 1000}, "length is 1000 tokens, but the model takes sequences of at most"),
            ({"tokenizer": self.out}, "needs a tokenizer|tokenizer"),
        ):
            with self.subTest(**words), self.assertRaisesRegex((ValueError, OSError), said):
                EvalqLM(pretrained=path, threads=1, **words)

    def test_command_of_the_harness(self) -> None:
        command = [
            sys.executable, "-m", "evalq.lm_eval_model", "--model", "evalq", "--model_args",
            f"pretrained={self.checkpoint('gpt2')},dtype=float32", "--tasks", "letters", "--include_path",
            os.path.join(self.out, "tasks"), "--batch_size", "auto",
        ]  # fmt: skip
        environment = dict(os.environ, PYTHONPATH=PACKAGE)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("|letters|", done.stdout)


if __name__ == "__main__":
    unittest.main()
