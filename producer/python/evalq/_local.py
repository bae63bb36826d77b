"""Everything on this machine: `evalq up` started and ended from Python."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import time
from types import TracebackType
from typing import Any, Dict, List, Optional, Sequence, Type, Union

from . import _arguments, _library, _programs
from ._library import EvalqError
from .client import Client

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_VARIABLES = ("EVALQ_URL", "EVALQ_CONFIG", "EVALQ_REDIS_PASSWORD_FILE")


def program(name: str) -> str:
    """The path of one of evalq's programs: the wheel's own, else beside $EVALQ_LIBRARY's build, else on the path."""
    places = []
    native = _library.native_directory()
    if native is not None:
        places.append(os.path.join(native, name))
    library = os.environ.get("EVALQ_LIBRARY")
    if library:
        places.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(library))), "bin", name))
    for place in places:
        if os.access(place, os.X_OK):
            return place
    found = shutil.which(name)
    if found is None:
        raise EvalqError(f"the program '{name}' was not found: install the evalq wheel, or put it on the path")
    return found


class LocalStack:
    """A private Redis, workers and the logger, until stop(). While it runs, clients of this process, and of
    programs that it starts, find it by themselves."""

    def __init__(self, process: "subprocess.Popen[bytes]", directory: str, log_path: str) -> None:
        self._process = process
        self._saved: Dict[str, Optional[str]] = {}
        self.directory = directory  #: Data, logs and results.
        self.log_path = log_path
        self.url = ""
        self.config = ""

    def _await(self) -> None:
        url = os.path.join(self.directory, "url")
        deadline = time.monotonic() + _START_SECONDS
        while "the logger are up" not in self._words() or not os.path.exists(url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end(signal.SIGKILL)
                raise EvalqError(f"evalq up did not start: {self._last_words()}")
            time.sleep(0.02)
        with open(url, encoding="utf-8") as file:
            self.url = file.read().strip()

    def _words(self) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def _last_words(self) -> str:
        lines = self._words().strip().splitlines()
        return " / ".join(lines[-5:]) or "it said nothing"

    def _announce(self, config: str) -> None:
        self.config = config
        values = (self.url, config, os.path.join(self.directory, "password"))
        for name, value in zip(_VARIABLES, values):
            self._saved[name] = os.environ.get(name)
            os.environ[name] = value

    def client(self, run: Optional[str] = None, **options: Any) -> Client:
        """A client of this stack."""
        return Client(self.url, run, **{"config": self.config, **options})

    def stop(self) -> None:
        """Running evaluations finish, within the workers' drain time; then everything ends."""
        for name, value in self._saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._saved = {}
        self._end(signal.SIGTERM)
        atexit.unregister(self.stop)

    def _end(self, how: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> "LocalStack":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.stop()


def _device_names(devices: Union[str, int, Sequence[int]]) -> str:
    """As --devices has them; which of them are there is the workers' to say."""
    if isinstance(devices, str):
        return _arguments.text("devices", devices)
    try:
        if isinstance(devices, bytes):
            raise TypeError
        numbers = [devices] if isinstance(devices, int) else list(devices)
        return ",".join(str(_arguments.whole("devices", number)) for number in numbers)
    except (TypeError, EvalqError):
        raise EvalqError(f"devices is {_arguments.shown(devices)}, expected GPU numbers such as [1], or auto, or cpu") from None


def local(
    dir: Union[str, "os.PathLike[str]", None] = None,
    workers: Optional[int] = None,
    devices: Union[None, str, int, Sequence[int]] = None,
    *,
    config: Union[str, "os.PathLike[str]", None] = None,
    slots: Optional[int] = None,
) -> LocalStack:
    """Starts Redis, workers and the logger on this machine; returns when they are up. They end with this process.

    dir      All data, logs and results. Default: ./.evalq
    workers  Worker processes. Default: 2, or 1 with GPUs.
    devices  GPUs that evaluate, such as [1] or 1 beside a training on GPU 0; "auto": all; None or "cpu": none.
    config   Default: $EVALQ_CONFIG, ./evalq.yaml, else one is written with the working directory as its only root.

        with evalq.local(devices=[1]) as stack, stack.client("digits") as client:
            ...

    EvalqError: it did not start, with the reason.
    """
    directory = os.path.abspath(_arguments.optional_path("dir", dir) or ".evalq")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        raise EvalqError(f"evalq up did not start: dir: {error}") from error
    environment = {name: value for name, value in os.environ.items() if name not in ("EVALQ_URL",)}
    environment["PATH"] = _programs.path_with_server()
    chosen = _arguments.optional_path("config", config) or environment.get("EVALQ_CONFIG") or ""
    if not chosen:
        here = os.path.abspath("evalq.yaml")
        chosen = here if os.path.exists(here) else os.path.join(directory, "evalq.yaml")
    elif not os.path.exists(chosen):
        raise EvalqError(f"the configuration '{chosen}' does not exist")
    else:
        environment["EVALQ_CONFIG"] = os.path.abspath(chosen)
    # Should this process be killed, nobody would call stop().
    arguments: List[str] = [program("evalq"), "up", "--dir", directory, "--parent", str(os.getpid())]
    if workers is not None:
        arguments += ["--workers", str(workers)]
    if slots is not None:
        arguments += ["--slots", str(slots)]
    if devices is not None:
        arguments += ["--devices", _device_names(devices) or "cpu"]
    log_path = os.path.join(directory, "up.log")
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    stack = LocalStack(process, directory, log_path)
    stack._await()
    stack._announce(os.path.abspath(chosen))
    atexit.register(stack.stop)
    return stack
