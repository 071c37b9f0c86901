"""One process at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(folder: Path, busy: Callable[[], None], warn: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of ``folder``, which ends with the process, however that ends.

    Args:
        folder: An existing folder.
        busy: Is called if another process holds it, before waiting for that; may raise instead.
        warn: Is told if the file system knows no locks.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            warn(f"{folder} cannot be locked; do not write to it by two commands at the same time")
        yield
    finally:
        os.close(handle)
