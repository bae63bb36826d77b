"""Headless Chromium, spoken to over a pipe (the DevTools protocol), so that a test sees a page as people do."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any, Dict, Optional

from scene import until


def chromium() -> Optional[str]:
    """Its program; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """One page in a browser of its own; close() ends it."""

    def __init__(self, url: str, width: int = 1400, height: int = 1000) -> None:
        program = chromium()
        assert program is not None
        self.profile = tempfile.mkdtemp(prefix="evalq-chromium-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self.process = subprocess.Popen(
            # Chromium reads commands from descriptor 3 and answers on 4. Bash: dash knows no descriptor above 9.
            ["bash", "-c", 'exec "$0" "$@" 3<&%d 4>&%d' % (theirs_in, theirs_out), program]
            + ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
            + ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"]
            + ["--remote-debugging-pipe", f"--user-data-dir={self.profile}", f"--window-size={width},{height}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output, self.number, self.unread = ours_in, ours_out, 0, b""
        self.session: Optional[str] = None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Page.navigate", url=url)

    def call(self, method: str, **parameters: Any) -> Dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _message(self, deadline: float) -> Dict[str, Any]:
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.input], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self.input, 1 << 20) if ready else b""
            if not data:
                raise AssertionError("Chromium ended" if ready else "Chromium does not answer")
            self.unread += data
        text, _, self.unread = self.unread.partition(b"\0")
        return dict(json.loads(text))

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression: str, what: str, seconds: float = 60) -> Any:
        def asked() -> Any:
            try:
                return self.ask(expression)
            except AssertionError as error:
                if "Inspected target navigated" not in str(error):
                    raise
                return None  # The page is being loaded, for the first time or anew.

        return until(asked, what, seconds)

    def screenshot(self, path: str) -> bytes:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        with open(path, "wb") as file:
            file.write(data)
        return data

    def close(self) -> None:
        os.close(self.output)  # It ends when nobody commands it any more.
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.input)
        shutil.rmtree(self.profile, ignore_errors=True)
