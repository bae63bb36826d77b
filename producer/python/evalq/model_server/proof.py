"""Proves that a server has the weights of a checkpoint.

At every checkpoint, the server gets the same fixed prompt, the canary. Its log-probabilities are
compared with those of evalq's native engine, and with those of earlier checkpoints: equal weights
must give equal numbers, and other weights must give other numbers.

The canary also detects a stale cache. It is long enough to fill a block of the server's prefix
cache. The server is asked twice: first to generate a token, which uses the cache, then for the
log-probabilities of all tokens, which does not. If the cache belongs to the old weights, the two
answers differ.
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

from .checkpoint_contents import Contents, in_background, worker_program
from .servers import Server

CANARY_TOKENS = 160  # A block of vLLM's prefix cache has 16 tokens on a GPU and 128 on a CPU.
NATIVE_SECONDS = 120.0
_SEED = 20260101
_SCORED_MIN = 8


class ProofFailed(Exception):
    """The server does not have the weights of the checkpoint."""


@dataclass
class Measured:
    """The server's log-probabilities of the canary."""

    ids: List[int]  #: The tokens of the canary.
    values: List[float]  #: Log-probabilities of all tokens except the first.
    fresh: float  #: Log-probability of the likeliest next token, computed without the cache.
    cached: float  #: The same, computed with the prefix cache.
    digest: str = ""  #: The digest of the weights.

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


@dataclass
class Known:
    """All measurements so far. The key has the digest of the weights, the architecture and the
    tokens of the canary, because the numbers depend on all three."""

    by_digest: Dict[str, Measured] = field(default_factory=dict)


def canary(contents: Contents, length_max: int) -> List[int]:
    """Returns the tokens of the canary: ordinary tokens of the vocabulary, drawn with a fixed seed.
    The same tokenizer always gives the same canary."""
    config = contents.config
    vocabulary = int(
        config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size") or 0
    )
    ids = _ordinary(contents.files.get("tokenizer.json"))
    ids = [number for number in ids if number < vocabulary] or list(
        range(vocabulary // 8, max(vocabulary // 2, 1))
    )
    return random.Random(_SEED).choices(ids, k=min(CANARY_TOKENS, max(length_max - 2, 2)))


def _ordinary(tokenizer: Optional[bytes]) -> List[int]:
    """Returns the tokens of a tokenizer.json that are not special; [] if there is no file."""
    if tokenizer is None:
        return []
    parsed = json.loads(tokenizer)
    words = (parsed.get("model") or {}).get("vocab")
    special = {item["id"] for item in parsed.get("added_tokens") or []}
    numbers = words.values() if isinstance(words, dict) else range(len(words or []))
    return sorted({int(number) for number in numbers} - special)


def measure(server: Server, ids: List[int]) -> Measured:
    """Asks the server for its log-probabilities of the canary."""
    cached = server.next_token(ids)
    values, fresh = server.score(ids)
    return Measured(ids, values, fresh, cached)


class Proof:
    """The proof of one checkpoint in the server. native: the mean log-probability of the canary by
    the native engine, or why there is none."""

    def __init__(
        self,
        contents: Contents,
        measured: Measured,
        native: "Future[Union[float, str]]",
        known: Known,
        exact: bool,
        started: bool,
    ) -> None:
        self._contents = contents
        self.measured = measured
        self._native = native
        self._known = known
        self._exact = exact  # The server computes in fp32.
        self._started = started  # The server was started with this checkpoint.
        self._sentence = ""  # The result of finish().

    def mean_tolerance(self, mean: float) -> float:
        """The allowed difference of the mean log-probability of the canary.

        bf16 keeps 8 bits, so each logit has a relative error of up to 2^-9. The layers add errors,
        and the mean averages them away; about twice this error is left. In fp32, only the order
        of the sums differs.
        """
        return max(abs(mean), 1.0) * (1e-4 if self._exact else 2.0**-8)

    def token_tolerance(self) -> float:
        """The allowed difference of one token's log-probability. In bf16, the last bit of a logit
        from 8 to 16 is 2^-4."""
        return 1e-3 if self._exact else 2.0**-4

    def check_cache(self) -> None:
        """Raises ProofFailed if the prefix cache belongs to other weights."""
        measured = self.measured
        if not all(value == value for value in [*measured.values, measured.fresh]):
            # NaN: the model has diverged, and its metrics are NaN too. finish() then compares with
            # the native engine.
            return
        if not abs(measured.cached - measured.fresh) <= self.token_tolerance():
            raise ProofFailed(
                "a stale cache: the token after the canary has the log-probability"
                f" {measured.cached:.6f} through the cache and {measured.fresh:.6f} without it"
            )

    def finish(self) -> str:
        """Waits for the digest and the native engine. Returns in words what proves the weights.
        Raises ProofFailed."""
        if not self._sentence:
            parts = [part for part in (self._by_native(), self._by_digest()) if part]
            self._sentence = "; ".join(parts)
        return self._sentence

    def _by_native(self) -> str:
        """Compares the mean log-probability with that of the native engine."""
        native = self._native.result()
        if isinstance(native, str):
            return f"not held against the native engine: {native}"
        mean = self.measured.mean
        if native != native and mean != mean:
            return "NaN here and in the native engine"
        if not abs(mean - native) <= self.mean_tolerance(native):
            raise ProofFailed(
                f"the canary's mean log-probability is {mean:.6f} in the server and {native:.6f} in"
                f" the native engine, allowed difference {self.mean_tolerance(native):.6f}"
            )
        return f"native engine {native:.6f}, server {mean:.6f}"

    def _by_digest(self) -> str:
        """Compares with earlier checkpoints. Equal digests must have equal numbers, and other
        digests other numbers."""
        digest = self._contents.digest.result()
        known, measured = self._known, self.measured
        measured.digest = digest
        key = f"{digest} {self._contents.architecture()} {measured.ids}"
        same = known.by_digest.get(key)
        sentence = f"digest {digest[:8]}"
        if same is not None and not (
            same.mean != same.mean
            or abs(same.mean - measured.mean) <= self.mean_tolerance(same.mean)
        ):
            raise ProofFailed(
                f"the canary's mean log-probability is {measured.mean:.9g}, and was {same.mean:.9g}"
                f" with the same weights ({digest[:8]})"
            )
        twin = next(
            (one for one in known.by_digest.values() if one.values == measured.values), None
        )
        if twin is not None and same is None:
            if not self._started:
                raise ProofFailed(
                    f"the canary's mean log-probability is {measured.mean:.9g}, the very same as"
                    f" with other weights ({twin.digest[:8]} before, {digest[:8]} now)"
                )
            # A new server cannot have the old weights, so the weights differ in a part that does
            # not change the canary.
            sentence += ", by a fresh start"
        known.by_digest[key] = measured
        return sentence


def native_in_background(
    contents: Contents, ids: List[int], options: Dict[str, Any]
) -> "Future[Union[float, str]]":
    """Starts native_mean() on another thread. options: those of the server, which may change the
    numbers so that there is nothing to compare."""
    for name in ("quantization", "load_format"):
        if options.get(name) not in (None, "auto", "safetensors"):
            done: "Future[Union[float, str]]" = Future()
            done.set_result(f"the server's option {name} changes the numbers")
            return done
    return in_background(native_mean, contents, ids)


def native_mean(
    contents: Contents, ids: List[int], seconds: float = NATIVE_SECONDS
) -> Union[float, str]:
    """Returns the canary's mean log-probability by evalq's own forward pass in fp32, or why there
    is none."""
    if len(ids) <= _SCORED_MIN:
        return f"the server takes only {len(ids)} tokens"
    # A parameter takes 4 bytes in fp32. The rest is for the file data that is read at a time.
    need, have = contents.parameters * 6, _memory_available() // 2
    if need > have:
        return (
            f"the model needs {need >> 20} MiB, half of this host's free memory is {have >> 20} MiB"
        )
    with tempfile.TemporaryDirectory(prefix="evalq-canary-") as folder:
        tokens = os.path.join(folder, "canary.u32")
        with open(tokens, "wb") as file:
            file.write(struct.pack(f"<{len(ids)}I", *ids))
        data = {"format": "tokens", "tokens": tokens, "dtype": "u32"}
        task: Dict[str, Any] = {
            "name": "canary",
            "type": "perplexity",
            "mode": "blocks",
            "compute": "fp32",
            "length": len(ids) - 1,
            "data": data,
        }
        settings: Dict[str, Any] = {"suites": {"canary": {"tasks": [task]}}}
        if contents.base:
            task["model"] = {"base": contents.base}
            settings["roots"] = {"base": os.path.dirname(contents.base)}
        config = os.path.join(folder, "evalq.yaml")
        with open(config, "w", encoding="utf-8") as out:
            json.dump(settings, out)  # Every JSON text is also YAML.
        argv = [
            worker_program(),
            "eval",
            contents.path,
            "--suite",
            "canary",
            "--devices",
            "cpu",
            "--json",
            "--config",
            config,
        ]
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
