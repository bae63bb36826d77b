"""What a long run has behind it."""

import os


class Done:
    """Points of a long run, a line of a file each, so that it goes on where it was ended. A line that was torn then is taken away."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines = set()
        if path and os.path.exists(path):
            with open(path, "r+", encoding="utf-8") as file:
                *lines, torn = file.read().split("\n")
                file.truncate(os.path.getsize(path) - len(torn.encode()))
            self.lines = set(lines)

    def has(self, point: str) -> bool:
        return point in self.lines

    def add(self, point: str) -> None:
        self.lines.add(point)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(point + "\n")
