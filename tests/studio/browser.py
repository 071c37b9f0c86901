"""A real browser for tests: Debian's Chromium by playwright, and a cable to the server that can be cut."""

import contextlib
import shutil
import socket
import threading

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable():
    """Where a Chromium is; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Cable:
    """Forwards 127.0.0.2 to 127.0.0.1 at the server's port; cut, it ends all connections and takes no new ones."""

    def __init__(self, port):
        self.port, self.whole, self.sockets = port, True, []
        self.listener = socket.create_server(("127.0.0.2", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                if not self.whole:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.port))
                self.sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.whole = False
        for end in self.sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.sockets = []

    def mend(self):
        self.whole = True

    def close(self):
        self.cut()
        self.listener.close()
