"""Explains why a request failed: a sentence, and a kind that evalq's programs know."""

from __future__ import annotations

import errno
import random
import re
import threading
from typing import Any, Callable, TypeVar

# The package of each scheme, and where that package finds credentials.
SCHEMES = {
    "s3": ("s3fs", "AWS_ACCESS_KEY_ID or AWS_PROFILE"),
    "gs": ("gcsfs", "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": ("adlfs", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    "abfs": ("adlfs", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    "hf": ("huggingface_hub", "HF_TOKEN"),
    "http": ("aiohttp", "evalq sends none to a web server"),
    "https": ("aiohttp", "evalq sends none to a web server"),
    "sftp": ("paramiko", "your ssh agent and keys"),
}


TRIES = 6
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 15.0
Result = TypeVar("Result")


class Failure(Exception):
    """kind: gone, changed, full, setup, invalid, corrupt or retry."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _status(error: Any) -> int:
    """The HTTP status behind an error of any store; 0: none is known."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for value in (getattr(error, "status", 0), getattr(error, "status_code", 0), getattr(error, "code", 0)):
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return int(getattr(response, "status_code", 0) or 0)


def repeat(action: Callable[[], Result], stop: threading.Event, tries: int = TRIES) -> Result:
    """Calls the action until it succeeds, with pauses that double. Raises the error of the last try, or
    the first permanent error."""
    pause = PAUSE_SECONDS
    for attempt in range(tries):
        try:
            return action()
        except Exception as error:  # pylint: disable=broad-except
            if is_permanent(error) or attempt == tries - 1:
                raise
        if stop.wait(pause * random.uniform(0.75, 1.25)):
            raise Failure("retry", "stopped")
        pause = min(2 * pause, PAUSE_SECONDS_MAX)
    raise AssertionError("unreachable")


def is_permanent(error: BaseException) -> bool:
    """Whether another try would fail too."""
    return explain(error, "").kind != "retry"


def explain(error: BaseException, address: str) -> Failure:
    if isinstance(error, Failure):
        return error
    chain = [error]
    while len(chain) < 8 and (chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)  # type: ignore[arg-type]
    text = _one_line(error)
    scheme = address.split("://")[0]
    package, credentials = SCHEMES.get(scheme, ("fsspec", "the environment"))
    if isinstance(error, ImportError):
        return Failure("setup", f"'{scheme}' addresses need the package {package}: pip install 'evalq[remote]' ({text})")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure("full", f"the disk of worker.cache is full: {text}")
    statuses = [status for status in map(_status, chain) if status]
    status = statuses[0] if statuses else 0
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return Failure("gone", f"the store does not have '{address}'")
    names = " ".join(type(one).__name__ for one in chain)
    if re.search("BadHostKey|SSHException", names) and ("known_hosts" in text or "BadHostKey" in names):
        return Failure("setup", f"~/.ssh/known_hosts has no key of this host, or another key: {text}")
    refused = isinstance(error, PermissionError) or status in (401, 403) or re.search("Credential|Authenti", names)
    # S3 answers 400 when a session has expired.
    if refused or (status == 400 and re.search("expired|token", text, re.I)):
        return Failure("setup", f"credentials are wrong or expired ({credentials}): the store refuses '{address}': {text}")
    return Failure("retry", f"the store failed: {text} at '{address}'")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    # An address in a library's message may contain a signature after the '?'.
    text = re.sub(r"\?[^\s'\"]*", "?...", text)[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
