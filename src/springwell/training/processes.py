"""Processes that train together: which device they take, when they stop, and what it means that one is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from accelerate import Accelerator, InitProcessGroupKwargs

from springwell.devices import automatic_device
from springwell.errors import UserError

# What the backends say when a process that they talk to is gone.
LOST_PEER = ("Connection reset by peer", "Connection closed by peer", "Broken pipe", "NCCL communicator was aborted")
# How often many processes ask each other whether one was told to stop; each time they wait for their devices.
STOP_EVERY = 10


def make_accelerator(device: str, precision: str = "fp32") -> Accelerator:
    """The accelerator for a device; ``auto`` takes the best there is."""
    cpu = device == "cpu" or (device == "auto" and automatic_device() == "cpu")
    if precision == "fp16" and cpu:
        raise UserError("precision='fp16': needs an accelerator; use bf16 or fp32 on the CPU")
    try:
        # The network casts by itself, in chains as in the loss; fp16 needs accelerate for the scaling of the loss.
        # The processes wait for each other while the first one decodes the images, which takes longer than is usual.
        patience = InitProcessGroupKwargs(timeout=timedelta(hours=2))
        accelerator = Accelerator(cpu=cpu, mixed_precision="fp16" if precision == "fp16" else "no", kwargs_handlers=[patience])
    except ValueError as error:
        raise UserError(f"precision={precision!r}: not available here ({str(error).splitlines()[0]}); use fp32") from None
    if accelerator.num_processes != (launched := int(os.environ.get("WORLD_SIZE", "1"))):
        what = f"{launched} processes were launched, but device={device!r} makes {accelerator.num_processes} of them"
        raise UserError(f"{what}; use device='cpu'")
    found = accelerator.device.type
    if device not in ("auto", found):
        raise UserError(f"device={device!r}: not available here; use auto{'' if found == 'cpu' else f', {found}'} or cpu")
    return accelerator


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turns the first Ctrl-C (or SIGTERM) into a set event; the second interrupts at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def on_signal(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def agree_to_stop(interrupted: threading.Event, accelerator: Accelerator, iteration: int) -> bool:
    """Whether to stop now. Many processes ask each other, now and then."""
    if accelerator.num_processes == 1:
        return interrupted.is_set()
    if iteration % STOP_EVERY:
        return False
    return anyone(interrupted.is_set(), accelerator)


def anyone(flag: bool, accelerator: Accelerator) -> bool:
    """Whether the flag is set in any process."""
    return bool(accelerator.reduce(torch.tensor(float(flag), device=accelerator.device)) > 0)
