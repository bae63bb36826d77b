"""Proof that a server has the weights of a checkpoint: what it says of a fixed prompt, held against what it must say.

The prompt (the canary) is long enough to fill a block of the server's prefix cache, and is asked at every checkpoint: first
as a generation, which goes through the cache, then with the log-probabilities of all its tokens, which does not. If the
cache is of weights that were replaced, the two differ.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import tempfile
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union

from .contents import Contents, in_background, worker_program
from .servers import Server

CANARY_TOKENS = 160  # A block of vLLM's prefix cache has 16 tokens on a GPU and 128 on a CPU.
NATIVE_SECONDS = 120.0
_SEED = 20260101
_SCORED_MIN = 8


class ProofFailed(Exception):
    """The server does not have the weights that it was given."""


@dataclass
class Measured:
    """What the server said of the canary."""

    ids: List[int]
    values: List[float]  #: Log-probabilities of all tokens but the first.
    fresh: float  #: Of the likeliest next token, computed from the whole prompt,
    cached: float  #: and by way of the cache.
    digest: str = ""  #: Of the weights.

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


@dataclass
class Known:
    """What this program has measured so far, by the digest of the weights and what else the numbers depend on."""

    by_digest: Dict[str, Measured] = field(default_factory=dict)


def canary(contents: Contents, length_max: int) -> List[int]:
    """Tokens of the vocabulary, no special ones among them, always the same for the same tokenizer."""
    config = contents.config
    vocabulary = int(config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size") or 0)
    ids = _ordinary(contents.files.get("tokenizer.json"))
    ids = [number for number in ids if number < vocabulary] or list(range(vocabulary // 8, max(vocabulary // 2, 1)))
    return random.Random(_SEED).choices(ids, k=min(CANARY_TOKENS, max(length_max - 2, 2)))


def _ordinary(tokenizer: Optional[bytes]) -> List[int]:
    if tokenizer is None:
        return []
    told = json.loads(tokenizer)
    words = (told.get("model") or {}).get("vocab")
    special = {item["id"] for item in told.get("added_tokens") or []}
    numbers = words.values() if isinstance(words, dict) else range(len(words or []))
    return sorted({int(number) for number in numbers} - special)


def measure(server: Server, ids: List[int]) -> Measured:
    cached = server.next_token(ids)
    values, fresh = server.score(ids)
    return Measured(ids, values, fresh, cached)


class Proof:
    """Of one checkpoint in the server. native: what the native engine says of the canary, or why it says nothing."""

    def __init__(
        self, contents: Contents, measured: Measured, native: "Future[Union[float, str]]", known: Known, exact: bool, started: bool
    ) -> None:
        self._contents = contents
        self.measured = measured
        self._native = native
        self._known = known
        self._exact = exact  # The server computes in fp32.
        self._started = started  # The server was started with this checkpoint.
        self._said = ""

    def mean_tolerance(self, mean: float) -> float:
        """Of a mean over the canary. bf16 keeps 8 bits, so each logit is off by up to 2^-9 of itself; what layers add and what the
        mean takes away leave about as much of the mean. In fp32 it is what different orders of summing leave."""
        return max(abs(mean), 1.0) * (1e-4 if self._exact else 2.0**-8)

    def token_tolerance(self) -> float:
        """Of one token. A logit from 8 to 16 has a last bit of 2^-4 in bf16."""
        return 1e-3 if self._exact else 2.0**-4

    def check_cache(self) -> None:
        """Needs nothing but what the server said."""
        measured = self.measured
        if not all(value == value for value in [*measured.values, measured.fresh]):
            return  # NaN: a model that has diverged, whose metrics are NaN too. The native engine has the last word.
        if not abs(measured.cached - measured.fresh) <= self.token_tolerance():
            raise ProofFailed(
                f"a stale cache: the token after the canary has the log-probability {measured.cached:.6f} through the cache"
                f" and {measured.fresh:.6f} without it"
            )

    def finish(self) -> str:
        """Waits for the digest and the native engine. What proves the weights, in words; raises ProofFailed."""
        if not self._said:
            said = [part for part in (self._by_native(), self._by_digest()) if part]
            self._said = "; ".join(said)
        return self._said

    def _by_native(self) -> str:
        native = self._native.result()
        if isinstance(native, str):
            return f"not held against the native engine: {native}"
        mean = self.measured.mean
        if native != native and mean != mean:
            return "NaN here and in the native engine"
        if not abs(mean - native) <= self.mean_tolerance(native):
            raise ProofFailed(
                f"the canary's mean log-probability is {mean:.6f} in the server and {native:.6f} in the native engine,"
                f" allowed difference {self.mean_tolerance(native):.6f}"
            )
        return f"native engine {native:.6f}, server {mean:.6f}"

    def _by_digest(self) -> str:
        digest = self._contents.digest.result()
        known, measured = self._known, self.measured
        measured.digest = digest
        key = f"{digest} {self._contents.architecture()} {measured.ids}"
        same = known.by_digest.get(key)
        said = f"digest {digest[:8]}"
        if same is not None and not (same.mean != same.mean or abs(same.mean - measured.mean) <= self.mean_tolerance(same.mean)):
            raise ProofFailed(
                f"the canary's mean log-probability is {measured.mean:.9g}, and was {same.mean:.9g} with the same weights ({digest[:8]})"
            )
        twin = next((one for one in known.by_digest.values() if one.values == measured.values), None)
        if twin is not None and same is None:
            if not self._started:
                raise ProofFailed(
                    f"the canary's mean log-probability is {measured.mean:.9g}, the very same as with other weights"
                    f" ({twin.digest[:8]} before, {digest[:8]} now)"
                )
            said += ", by a fresh start"  # Nothing of the weights before is left in it: they differ where the canary does not look.
        known.by_digest[key] = measured
        return said


def native_in_background(contents: Contents, ids: List[int], options: Dict[str, Any]) -> "Future[Union[float, str]]":
    for name in ("quantization", "load_format"):
        if options.get(name) not in (None, "auto", "safetensors"):
            done: "Future[Union[float, str]]" = Future()
            done.set_result(f"the server's option {name} changes the numbers")
            return done
    return in_background(native_mean, contents, ids)


def native_mean(contents: Contents, ids: List[int], seconds: float = NATIVE_SECONDS) -> Union[float, str]:
    """The canary's mean log-probability by evalq's own forward pass in fp32; or why there is none."""
    if len(ids) <= _SCORED_MIN:
        return f"the server takes only {len(ids)} tokens"
    need, have = contents.parameters * 6, _memory_available() // 2  # fp32, and what is read at a time.
    if need > have:
        return f"the model needs {need >> 20} MiB, half of this host's free memory is {have >> 20} MiB"
    with tempfile.TemporaryDirectory(prefix="evalq-canary-") as folder:
        tokens = os.path.join(folder, "canary.u32")
        with open(tokens, "wb") as file:
            file.write(struct.pack(f"<{len(ids)}I", *ids))
        data = {"format": "tokens", "tokens": tokens, "dtype": "u32"}
        task: Dict[str, Any] = {"name": "canary", "type": "perplexity", "mode": "blocks", "compute": "fp32", "length": len(ids) - 1, "data": data}
        told: Dict[str, Any] = {"suites": {"canary": {"tasks": [task]}}}
        if contents.base:
            task["model"] = {"base": contents.base}
            told["roots"] = {"base": os.path.dirname(contents.base)}
        config = os.path.join(folder, "evalq.yaml")
        with open(config, "w", encoding="utf-8") as out:
            json.dump(told, out)  # JSON is YAML.
        argv = [worker_program(), "eval", contents.path, "--suite", "canary", "--devices", "cpu", "--json", "--config", config]
        return _run_native(argv, folder, seconds)


def _run_native(argv: List[str], folder: str, seconds: float) -> Union[float, str]:
    process = subprocess.Popen(
        argv,
        env=dict(os.environ, TMPDIR=folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"its forward pass took longer than {seconds:g} s"
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        return lines[-1][-200:] if lines else f"evalq-worker eval ended with {process.returncode}"
    return -float(json.loads(out)["tasks"]["canary"]["metrics"]["loss"])


def _memory_available() -> int:
    with open("/proc/meminfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0
