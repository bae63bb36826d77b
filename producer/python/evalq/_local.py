"""Starts and stops `evalq up` from Python: a queue, workers and the logger on this machine."""

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
_POLL_SECONDS = 0.02
_STARTED = "the logger are up"  # `evalq up` prints this when everything runs.


def program(name: str) -> str:
    """The path of one of evalq's programs. The wheel's own comes first, then the build directory
    that contains $EVALQ_LIBRARY, then $PATH. EvalqError: there is none."""
    paths = []
    native = _library.native_directory()
    if native is not None:
        paths.append(os.path.join(native, name))
    library = os.environ.get("EVALQ_LIBRARY")
    if library:
        build = os.path.dirname(os.path.dirname(os.path.abspath(library)))
        paths.append(os.path.join(build, "bin", name))
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found is None:
        raise EvalqError(
            f"the program '{name}' was not found: install the evalq wheel, or put it on the path"
        )
    return found


class LocalStack:
    """A private Redis, workers and the logger, which run until stop().

    While it runs, evalq's clients in this process, and in programs that it starts, use it without
    settings: its addresses are in environment variables. Also a context manager that calls stop().
    """

    def __init__(self, process: "subprocess.Popen[bytes]", directory: str, log_path: str) -> None:
        self._process = process
        self._saved_variables: Dict[str, Optional[str]] = {}
        self.directory = directory  #: All data, logs and results.
        self.log_path = log_path  #: The output of `evalq up`.
        self.url = ""  #: The address of Redis.
        self.config = ""  #: The path of the configuration.

    def _wait_until_started(self) -> None:
        url_path = os.path.join(self.directory, "url")
        deadline = time.monotonic() + _START_SECONDS
        while _STARTED not in self._read_log() or not os.path.exists(url_path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end_process(signal.SIGKILL)
                lines = self._read_log().strip().splitlines()
                reason = " / ".join(lines[-5:]) or "it printed nothing"
                raise EvalqError(f"evalq up did not start: {reason}")
            time.sleep(_POLL_SECONDS)
        with open(url_path, encoding="utf-8") as file:
            self.url = file.read().strip()

    def _read_log(self) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def _set_variables(self, config: str) -> None:
        self.config = config
        variables = {
            "EVALQ_URL": self.url,
            "EVALQ_CONFIG": config,
            "EVALQ_REDIS_PASSWORD_FILE": os.path.join(self.directory, "password"),
        }
        self._saved_variables = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    def client(self, run: Optional[str] = None, **options: Any) -> Client:
        """Opens a client of this stack. The options are those of evalq.Client."""
        return Client(self.url, run, **{"config": self.config, **options})

    def stop(self) -> None:
        """Waits until running evaluations have ended, within the workers' drain time and at most a
        minute, and ends all programs. A second call does nothing."""
        for name, value in self._saved_variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._saved_variables = {}
        self._end_process(signal.SIGTERM)
        atexit.unregister(self.stop)

    def _end_process(self, signal_number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal_number)
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


def _devices_argument(devices: Union[str, int, Sequence[int]]) -> str:
    """The value of --devices. The workers check whether the devices exist."""
    if isinstance(devices, str):
        return _arguments.text("devices", devices)
    try:
        if isinstance(devices, bytes):
            raise TypeError
        numbers = [devices] if isinstance(devices, int) else list(devices)
        return ",".join(str(_arguments.whole("devices", number)) for number in numbers)
    except (TypeError, EvalqError):
        given = _arguments.shown(devices)
        raise EvalqError(
            f"devices is {given}, expected GPU numbers such as [1], or auto, or cpu"
        ) from None


def _find_config(config: Optional[str], directory: str) -> str:
    """The absolute path of the configuration. `evalq up` writes it if nobody chose one."""
    chosen = config or os.environ.get("EVALQ_CONFIG")
    if chosen:
        if not os.path.exists(chosen):
            raise EvalqError(f"the configuration '{chosen}' does not exist")
        return os.path.abspath(chosen)
    here = os.path.abspath("evalq.yaml")
    return here if os.path.exists(here) else os.path.join(directory, "evalq.yaml")


def local(
    dir: Union[str, "os.PathLike[str]", None] = None,
    workers: Optional[int] = None,
    devices: Union[None, str, int, Sequence[int]] = None,
    *,
    config: Union[str, "os.PathLike[str]", None] = None,
    slots: Optional[int] = None,
) -> LocalStack:
    """Starts Redis, workers and the logger on this machine, and returns when all are running.

    dir      The directory of all data, logs and results. Default: ./.evalq
    workers  How many worker processes. Default: 2, or 1 with GPUs.
    devices  The GPUs that evaluate, such as [1] or 1 beside a training on GPU 0; "auto": all GPUs;
             None or "cpu": none.
    config   The configuration. Default: $EVALQ_CONFIG, then ./evalq.yaml. If there is none, evalq
             writes one whose only root is the working directory.
    slots    How many evaluations each worker runs at the same time.

        with evalq.local(devices=[1]) as stack, stack.client("digits") as client:
            ...

    The programs end with this process, even if it is killed. EvalqError: they did not start; the
    message has the reason.
    """
    directory = os.path.abspath(_arguments.optional_path("dir", dir) or ".evalq")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        raise EvalqError(f"evalq up did not start: dir: {error}") from error
    environment = {name: value for name, value in os.environ.items() if name != "EVALQ_URL"}
    environment["PATH"] = _programs.path_with_server()
    given = _arguments.optional_path("config", config)
    chosen = _find_config(given, directory)
    if given or environment.get("EVALQ_CONFIG"):
        environment["EVALQ_CONFIG"] = chosen
    arguments: List[str] = [program("evalq"), "up", "--dir", directory]
    arguments += ["--parent", str(os.getpid())]  # It ends when this process does.
    if workers is not None:
        arguments += ["--workers", str(workers)]
    if slots is not None:
        arguments += ["--slots", str(slots)]
    if devices is not None:
        arguments += ["--devices", _devices_argument(devices) or "cpu"]
    log_path = os.path.join(directory, "up.log")
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    stack = LocalStack(process, directory, log_path)
    stack._wait_until_started()
    stack._set_variables(chosen)
    atexit.register(stack.stop)
    return stack
