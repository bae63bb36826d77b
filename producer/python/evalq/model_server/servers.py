"""The kinds of model servers. Each knows how to start its server, how to replace the weights, and
how to ask for log-probabilities."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .config import Refused, Settings, server_words
from .http import Http, ServerError
from .process import Process

MODEL = "model"  # The name under which the server serves every checkpoint.
ADAPTER = "adapter"  # The name under which it serves the checkpoint with an adapter.
RELOAD_SECONDS = 600.0
_LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch")
_PORT_TRIES = 3


class StartFailed(Exception):
    """The server did not start with this checkpoint."""


class Server:
    """A server with OpenAI's API. It has at most one process. One thread calls start() and
    stop()."""

    name = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.key = secrets.token_hex(32)  # Without "-", which may begin an option.
        self.http = Http(0, self.key)
        self.process: Optional[Process] = None
        self.version = ""
        self.model = MODEL  #: The model that requests name.

    # -- each kind has its own

    def command(self, path: str, port: int) -> List[str]:
        """The command that starts the server with the checkpoint at path."""
        raise NotImplementedError

    def reload(self, path: str, seconds: float) -> None:
        """Replaces the weights of the running server. Raises ServerError; then the server must be
        started again."""
        raise NotImplementedError

    def reset_caches(self) -> None:
        """Makes the server forget everything that it computed with the old weights."""
        raise NotImplementedError

    def add_adapter(self, path: str) -> None:
        """Loads a LoRA adapter. Later requests use the model with this adapter."""
        raise Refused(
            f"{self.name} takes no adapters: without the option enable_lora evalq merges them"
        )

    def drop_adapter(self) -> None:
        """Removes the adapter. Later requests use the model itself."""

    def read_version(self) -> str:
        return ""

    def counters(self) -> Tuple[float, float, float]:
        """Returns (answered requests, generated tokens, running requests). All are -1 if the server
        has no counters."""
        return -1.0, -1.0, -1.0

    def score(self, ids: List[int]) -> "Tuple[List[float], float]":
        """Returns the log-probabilities of all tokens except the first, and that of the likeliest
        next token."""
        body = {
            "model": self.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 1,
            "echo": True,
        }
        values = self.http.ask("POST", "/v1/completions", body, self.canary_seconds)["choices"][0][
            "logprobs"
        ]["token_logprobs"]
        if len(values) != len(ids) + 1 or any(value is None for value in values[1:]):
            raise ServerError(
                f"the server gave {len(values)} log-probabilities for a prompt of {len(ids)} tokens"
            )
        return [float(value) for value in values[1:-1]], float(values[-1])

    def next_token(self, ids: List[int]) -> float:
        """Returns the log-probability of the likeliest next token. The server uses its caches, as
        for every generation."""
        body = {
            "model": self.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 1,
        }
        answer = self.http.ask("POST", "/v1/completions", body, self.canary_seconds)
        return float(answer["choices"][0]["logprobs"]["token_logprobs"][0])

    # -- common to all kinds

    @property
    def canary_seconds(self) -> float:
        return min(60.0, self.settings.hang_seconds)

    def environment(self) -> Dict[str, str]:
        environment = dict(os.environ, EVALQ_SERVER_KEY=self.key)
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (_LAUNCH, environment.get("PYTHONPATH")) if part
        )
        environment.pop("EVALQ_MODEL_SERVER", None)
        return environment

    def lives(self) -> bool:
        return self.process is not None and self.process.ended() is None

    def healthy(self, seconds: float = 10.0) -> bool:
        try:
            self.http.ask("GET", "/health", seconds=seconds)
            return True
        except ServerError:
            return False

    def start(self, path: str, tick: Callable[[], None]) -> None:
        """Starts the server with the checkpoint at path. Calls tick() while it waits; an exception
        of tick() ends the start."""
        self.stop()
        for attempt in range(_PORT_TRIES):
            port = _free_port()
            self.http = Http(port, self.key)
            self.process = Process(self.command(path, port), self.environment(), self.key)
            try:
                self._wait(tick)
                self.version = self.read_version()
                return
            except StartFailed:
                taken = any("ddress already in use" in line for line in self.process.tail)
                self.stop()
                if not taken or attempt == _PORT_TRIES - 1:
                    raise
            except BaseException:
                self.stop()
                raise

    def _wait(self, tick: Callable[[], None]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + self.settings.start_seconds
        pause = 0.02
        while not (self.lives() and self.healthy(2.0)):
            tick()
            ended = self.process.ended()
            if ended is not None:
                self._explain()
                raise StartFailed(
                    f"{self.name} {ended} while it started: {self.process.last_lines()}"
                )
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"{self.name} was not ready within start_seconds"
                    f" ({self.settings.start_seconds:g} s)"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)

    def _explain(self) -> None:
        """Raises Refused if the server ended because of an unknown or wrong option. The message
        names the option and the nearest known one."""
        assert self.process is not None
        self.process.last_lines()
        text = "\n".join(self.process.tail)
        found = re.search(r"unrecognized arguments: --(\S+)", text)
        if found is None:
            wrong = re.search(r"error: (argument --.*)", text)
            if wrong is not None:
                raise Refused(
                    f"evaluators.{self.settings.name}.options: {self.name} says: {wrong[1]}"
                )
            return
        given = found[1].replace("-", "_")
        near = difflib.get_close_matches(given, self._known_options(), 1)
        hint = f", did you mean '{near[0]}'?" if near else ""
        raise Refused(
            f"evaluators.{self.settings.name}.options: {self.name} has no option '{given}'{hint}"
        )

    def help_command(self) -> List[str]:
        """The command that prints the server's options; []: there is none."""
        return []

    def _known_options(self) -> List[str]:
        command = self.help_command()
        if not command:
            return []
        try:
            text = subprocess.run(
                command,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=120,
                check=False,
                text=True,
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            return []
        return sorted({word.replace("-", "_") for word in re.findall(r"--([a-z][a-z0-9-]*)", text)})

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
            self.process = None
        self.model = MODEL


class Vllm(Server):
    name = "vLLM"
    _module = "vllm.entrypoints.openai.api_server"

    def command(self, path: str, port: int) -> List[str]:
        words = [
            self.settings.python,
            "-m",
            self._module,
            "--model",
            path,
            "--served-model-name",
            MODEL,
        ]
        words += [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--middleware",
            "evalq_server_key.Guard",
        ]
        return words + server_words(self.settings.options)

    def help_command(self) -> List[str]:
        return [self.settings.python, "-m", self._module, "--help=all"]

    def environment(self) -> Dict[str, str]:
        own = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        }
        return {**super().environment(), **own}

    def add_adapter(self, path: str) -> None:
        self.drop_adapter()
        try:
            self.http.ask(
                "POST",
                "/v1/load_lora_adapter",
                {"lora_name": ADAPTER, "lora_path": os.path.abspath(path)},
                RELOAD_SECONDS,
            )
        except ServerError as error:
            if 400 <= error.status < 500:  # The adapter is wrong, and the server goes on.
                raise Refused(
                    f"{self.name} did not take the adapter '{path}', evalq merges it without"
                    f" enable_lora: {error}"
                ) from None
            raise
        self.model = ADAPTER
        self.reset_caches()  # The cache knows adapters only by name, and all have the same name.

    def drop_adapter(self) -> None:
        if self.model != MODEL:
            self.http.ask("POST", "/v1/unload_lora_adapter", {"lora_name": self.model})
            self.model = MODEL

    def reload(self, path: str, seconds: float) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": os.path.abspath(path)}}
        self.http.ask("POST", "/collective_rpc", body, seconds)

    def reset_caches(self) -> None:
        self.http.ask("POST", "/reset_prefix_cache")
        for path in ("/reset_mm_cache", "/reset_encoder_cache"):
            try:
                self.http.ask("POST", path)
            except ServerError as error:
                if error.status != 404:  # Older versions have no such cache.
                    raise

    def read_version(self) -> str:
        return str(self.http.ask("GET", "/version").get("version", ""))

    def counters(self) -> Tuple[float, float, float]:
        return _counters(
            self.http,
            "vllm:request_success_total",
            "vllm:generation_tokens_total",
            "vllm:num_requests_running",
        )


class Sglang(Server):
    """Follows SGLang's documentation. docs/generation.md says which of it was tried."""

    name = "SGLang"

    def command(self, path: str, port: int) -> List[str]:
        words = [
            self.settings.python,
            os.path.join(_LAUNCH, "evalq_sglang.py"),
            "--model-path",
            path,
            "--served-model-name",
            MODEL,
        ]
        words += ["--host", "127.0.0.1", "--port", str(port), "--enable-metrics"]
        return words + server_words(self.settings.options)

    def help_command(self) -> List[str]:
        return [self.settings.python, "-m", "sglang.launch_server", "--help"]

    def reload(self, path: str, seconds: float) -> None:
        answer = self.http.ask(
            "POST", "/update_weights_from_disk", {"model_path": path, "flush_cache": True}, seconds
        )
        if answer.get("success") is not True:
            raise ServerError(f"SGLang did not take the weights: {answer.get('message', '')}")

    def reset_caches(self) -> None:
        self.http.ask("POST", "/flush_cache")

    def read_version(self) -> str:
        return str(self.http.ask("GET", "/get_server_info").get("version", ""))

    def counters(self) -> Tuple[float, float, float]:
        return _counters(
            self.http,
            "sglang:num_requests_total",
            "sglang:generation_tokens_total",
            "sglang:num_running_reqs",
        )

    def _generate(self, ids: List[int], begin: int) -> Any:
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
        }
        return self.http.ask(
            "POST", "/generate", {**body, "logprob_start_len": begin}, self.canary_seconds
        )["meta_info"]

    def score(self, ids: List[int]) -> "Tuple[List[float], float]":
        answer = self._generate(ids, 0)
        values = [item[0] for item in answer["input_token_logprobs"]]
        if len(values) != len(ids) or any(value is None for value in values[1:]):
            raise ServerError(
                f"the server gave {len(values)} log-probabilities for a prompt of {len(ids)} tokens"
            )
        return [float(value) for value in values[1:]], float(answer["output_token_logprobs"][0][0])

    def next_token(self, ids: List[int]) -> float:
        return float(self._generate(ids, len(ids))["output_token_logprobs"][0][0])


class Custom(Server):
    """Any other server, described in evalq.yaml:

        custom: {start: [argv], reload: {path, body}, reset: [paths], version: text}

    In these texts, {model} is the checkpoint's path and {port} the port. The server finds its key
    in $EVALQ_SERVER_KEY.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        custom = settings.custom
        known = {"start", "reload", "reset", "version"}
        for key in custom:
            if key not in known:
                raise Refused(
                    f"evaluators.{settings.name}.custom has no key '{key}', expected one of:"
                    f" {', '.join(sorted(known))}"
                )
        if (
            not isinstance(custom.get("start"), list)
            or not isinstance(custom.get("reload"), dict)
            or "path" not in custom["reload"]
        ):
            raise Refused(
                f"evaluators.{settings.name}.custom needs start (a list of words) and reload (a map"
                " with a path)"
            )
        self.name = os.path.basename(str(custom["start"][0]))

    def _fill(self, value: Any, path: str) -> Any:
        if isinstance(value, str):
            return (
                value.replace("{model}", path)
                .replace("{port}", str(self.http.port))
                .replace("{python}", self.settings.python)
            )
        if isinstance(value, list):
            return [self._fill(item, path) for item in value]
        if isinstance(value, dict):
            return {key: self._fill(item, path) for key, item in value.items()}
        return value

    def command(self, path: str, port: int) -> List[str]:
        words = [str(word) for word in self._fill(self.settings.custom["start"], path)]
        if "/" in words[0]:
            words[0] = self.settings.path(words[0])
        return words + server_words(self.settings.options)

    def reload(self, path: str, seconds: float) -> None:
        reload = self.settings.custom["reload"]
        self.http.ask(
            "POST",
            reload["path"],
            self._fill(reload.get("body") or {"model": "{model}"}, path),
            seconds,
        )

    def reset_caches(self) -> None:
        for path in self.settings.custom.get("reset") or []:
            self.http.ask("POST", path)

    def read_version(self) -> str:
        return str(self.settings.custom.get("version") or "")


def make(settings: Settings) -> Server:
    """Returns the server for the kind in the settings."""
    return {"vllm": Vllm, "sglang": Sglang, "custom": Custom}[settings.kind](settings)


def _free_port() -> int:
    """Returns a free port. If another program takes it before the server does, start() tries
    another port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _counters(http: Http, *names: str) -> Tuple[float, float, float]:
    """Reads three metrics of the server, each summed over its labels."""
    text = http.ask("GET", "/metrics", seconds=5.0)
    found = dict.fromkeys(names, 0.0)
    for line in str(text).splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name in found:
            found[name] += float(line.rsplit(" ", 1)[1])
    return found[names[0]], found[names[1]], found[names[2]]


def log(message: str) -> None:
    sys.stderr.write(f"evalq: {message}\n")
    sys.stderr.flush()
