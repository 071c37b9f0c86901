"""A reporter that remembers."""

from springwell.progress import Silent


class Listener(Silent):
    """Keeps what it is told."""

    def __init__(self):
        self.said = []

    def say(self, line):
        self.said.append(line)

    def warn(self, line):
        self.said.append(f"warning: {line}")
