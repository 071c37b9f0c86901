"""What runs in the processes that decode images. It imports no torch, so that they start at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from springwell.data.decode import Container, Decoded, Rule, decode_all

_stop: Any = None


def start(stop: Any) -> None:
    """Makes this process a worker.

    Args:
        stop: An event that calls all work off.
    """
    global _stop
    _stop = stop
    # Ctrl-C reaches the whole process group; the main process alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot stop its workers, which would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def work(container: Container, items: Sequence[tuple[str, Any]], rule: Rule) -> Decoded:
    """Decodes images until called off."""
    return decode_all(container, items, rule, _stop.is_set)
