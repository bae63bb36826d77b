"""Instructions that a server executes while something is done, counted by callgrind: they repeat on a busy machine."""

import glob
import re
import subprocess
import tempfile
import time


class Counter:
    """Put `words` before those of one server."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory()
        self.words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=" + self.dir.name + "/count"]
        self.dumps = 0

    def control(self, pid, *words):
        subprocess.run(["callgrind_control", *words, str(pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def count(self, pid, work):
        """Instructions of the server with this pid while work runs."""
        self.control(pid, "-z")
        work()
        self.control(pid, "-d", "part")
        self.dumps += 1
        deadline = time.monotonic() + 60
        while True:  # The dump is written when the server next runs.
            for name in glob.glob(self.dir.name + "/count.%d" % self.dumps):
                with open(name) as file:
                    found = re.search(r"^(?:summary|totals): (\d+)", file.read(), re.M)
                if found:
                    return int(found[1])
            if time.monotonic() > deadline:
                raise SystemExit("callgrind: no dump within a minute")
            time.sleep(0.02)

    def close(self):
        self.dir.cleanup()
