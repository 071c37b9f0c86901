"""A page of the studio without a browser: the same messages over the same websocket."""

import contextlib
import itertools
import secrets
from dataclasses import dataclass
from pathlib import Path

from websockets.sync.client import connect

from springwell.app.studio.wire import pack, unpack

LAST = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Server:
    """Where a studio runs."""

    folder: Path
    port: int
    token: str

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self):
        return f"{self.origin}/?token={self.token}"


class Page(contextlib.ExitStack):
    """A page's connection."""

    def __init__(self, server, name=None):
        super().__init__()
        self.server, self.name, self.numbers = server, name or secrets.token_hex(8), itertools.count(1)
        self.again = []

    def __enter__(self):
        super().__enter__()
        address = f"ws://127.0.0.1:{self.server.port}/link"
        headers = {"Authorization": f"Bearer {self.server.token}"}
        self.socket = self.enter_context(connect(address, additional_headers=headers, max_size=None))
        self.send(kind="hello", page=self.name)
        while (message := self.hear())[0]["event"] != "welcome":
            self.again.append(message)
        return self

    def send(self, arrays=None, **header):
        self.socket.send(pack(header, arrays))

    def hear(self):
        return unpack(self.socket.recv(timeout=120))

    def start(self, task, model, arrays=None, /, **options):
        """Starts a job and returns its number."""
        number = str(next(self.numbers))
        self.send(arrays, kind="start", job=number, task=task, model=model, options=options)
        return number

    def until(self, *events):
        """Messages up to the first one of some events."""
        messages = [self.hear()]
        while messages[-1][0]["event"] not in events:
            messages.append(self.hear())
        return messages

    def do(self, task, model, arrays=None, /, **options):
        """Does a job; returns all its messages, the last of which says how it ended."""
        self.start(task, model, arrays, **options)
        return self.until(*LAST)
