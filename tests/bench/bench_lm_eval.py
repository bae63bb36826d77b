"""lm-evaluation-harness with `--model evalq` and with `--model hf`, in turns in one process: seconds per checkpoint.

    EVALQ_TEST_BUILD=build/peers/build chrt -f 1 build/peers/venv/bin/python tests/bench/bench_lm_eval.py [LAYERS [ROUNDS]]

A GPT-2 with the sizes of the 124M one, of LAYERS layers (default 12) and random weights, and PIQA's items of tests/data in fp32:
each round loads the weights and scores all requests. The harness itself is left out: both get the same requests. hf has a batch
size of 8 and of 1.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "python"), os.path.join(os.path.dirname(HERE), "peers")]
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch  # noqa: E402
import transformers  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from scene import BIN, SOURCE  # noqa: E402

os.environ["PATH"] = BIN + os.pathsep + os.environ["PATH"]
from evalq.lm_eval_model import EvalqLM  # noqa: E402

DATA = os.path.join(SOURCE, "tests", "data")
ITEMS = 16


def make_checkpoint(path: str, layers: int) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=os.path.join(DATA, "tokenizers", "gpt2", "tokenizer.json"), eos_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(path)
    torch.manual_seed(20261126)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers)).save_pretrained(path)


def requests() -> List[Any]:
    """Instances as the harness makes them of PIQA: two continuations of each question."""
    made = []
    with open(os.path.join(DATA, "tasks", "piqa.jsonl"), encoding="utf-8") as file:
        for line in list(file)[:ITEMS]:
            item = json.loads(line)
            for choice in ("sol1", "sol2"):
                made.append(SimpleNamespace(args=(f"Question: {item['goal']}\nAnswer:", " " + item[choice])))
    return made


def main() -> None:
    layers, rounds = (int(sys.argv[1]) if len(sys.argv) > 1 else 12), (int(sys.argv[2]) if len(sys.argv) > 2 else 5)
    path = tempfile.mkdtemp(prefix="evalq-bench-")
    try:
        make_checkpoint(path, layers)
        weights = os.path.join(path, "model.safetensors")
        asked = requests()
        native = EvalqLM(pretrained=path)
        theirs = HFLM(pretrained=path, device="cpu", dtype="float32", batch_size=8)

        def evalq() -> Any:
            native.load_checkpoint(path)
            return native.loglikelihood(asked, disable_tqdm=True)

        def hf(size: int) -> Any:
            theirs.batch_size_per_gpu = size
            theirs._model.load_state_dict(load_file(weights), strict=False)  # The head is tied, so the file lacks it.
            return theirs.loglikelihood(asked, disable_tqdm=True)

        ways: Dict[str, Callable[[], Any]] = {"evalq": evalq, "hf, batch size 8": lambda: hf(8), "hf, batch size 1": lambda: hf(1)}
        took: Dict[str, List[float]] = {name: [] for name in ways}
        found = {}
        for _ in range(rounds + 1):  # The first is not counted.
            for name, call in ways.items():
                began = time.perf_counter()
                found[name] = call()
                took[name].append(time.perf_counter() - began)
        off = max(abs(a[0] - b[0]) / max(1.0, abs(b[0])) for a, b in zip(found["evalq"], found["hf, batch size 8"]))
        assert off <= 1e-5, off
        tokens = sum(len(theirs.tok_encode(a + b)) for a, b in (each.args for each in asked))
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {len(asked)} requests, {tokens} tokens; apart {off:.1e}")
        for name, each in took.items():
            print(f"{name:18} {statistics.median(each[1:]):7.3f} s ({min(each[1:]):.3f} to {max(each[1:]):.3f}), first {each[0]:.2f} s")
        print(f"hf / evalq: {min(statistics.median(v[1:]) for k, v in took.items() if k != 'evalq') / statistics.median(took['evalq'][1:]):.2f}")
    finally:
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
