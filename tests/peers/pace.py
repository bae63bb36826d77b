"""How fast the training programs of these tests go, and where they stand still."""

import os
import time


class Pace:
    """Takes `seconds` more for each step; after step `hold` it waits until go_on() is called. folder/at-step says how far it is."""

    def __init__(self, folder, seconds=0.0, hold=None):
        self.folder, self.seconds, self.hold = folder, seconds, hold

    def step(self, at):
        time.sleep(self.seconds)
        with open(os.path.join(self.folder, "at-step"), "w") as file:
            file.write(str(at))
        while at == self.hold and not os.path.exists(os.path.join(self.folder, "go-on")):
            time.sleep(0.01)


def go_on(folder):
    with open(os.path.join(folder, "go-on"), "w"):
        pass


def at_step(folder):
    """How far it is; 0: not begun."""
    try:
        with open(os.path.join(folder, "at-step")) as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0
