"""What is asked of devices: which one to take, how much memory it has left, what a computation keeps in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from springwell.errors import UserError

OPERATIONS_PER_THREAD = 5e7


def automatic_device() -> str:
    """The accelerator, if there is one with float64, in which schedules and statistics are kept (Apple's has none)."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None or found.type == "mps" else found.type


def usable_device(name: torch.device | str) -> torch.device:
    """The device of that name, or the best one for ``auto``; refuses one that is not here or has no float64."""
    name = automatic_device() if name == "auto" else name
    try:
        float(torch.zeros(1, dtype=torch.float64, device=name))
        return torch.device(name)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        raise UserError(f"device={str(name)!r}: not available here; use auto or cpu") from None


def free_memory(device: torch.device) -> int | None:
    """Bytes; None where the backend does not tell, as the CPU's."""
    query = getattr(torch.get_device_module(device), "mem_get_info", None)
    return None if query is None else int(query(device)[0])


class Operations(TorchDispatchMode):
    """Counts operations. torch's FlopCounterMode does it by module, which energies that are differentiated inside refuse."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.total += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


def threads_for(operations: float) -> int:
    """How many CPU threads suit steps of so many operations: one for every 5e7 of them, and no more than torch has.

    Threads that wait for one another at every layer of a small network cost more than they give, all the more beside other
    programs. The number depends on the size of the work alone, so that the same command has the same rounding every time.
    """
    return max(1, min(torch.get_num_threads(), int(operations / OPERATIONS_PER_THREAD)))


def kept_tensors(compute: Callable[[], object]) -> list[Tensor]:
    """What ``compute`` keeps for its backward pass, one tensor for each piece of memory."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # With its own history the tensor would keep itself alive for ever.
        kept[tensor.untyped_storage()._cdata] = tensor = tensor.detach()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return list(kept.values())


def rank_and_world() -> tuple[int, int]:
    """The number of this process and how many there are, if they were joined; else (0, 1)."""
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if joined else (0, 1)


def gathered(x: Tensor) -> Tensor:
    """The rows of all processes, in their order."""
    if rank_and_world()[1] == 1:
        return x
    from accelerate import PartialState
    from accelerate.utils import gather

    PartialState(cpu=x.device.type == "cpu")
    return gather(x)


def shared_rows(
    start: int, num: int, share: int, compute: Callable[[int, int], Tensor], empty: Tensor
) -> Iterator[tuple[int, Tensor]]:
    """Rows ``start`` ... ``num - 1``, computed in shares by all processes: the first of some rows, and the rows, on the CPU.

    Args:
        start: The first row.
        num: Where to end.
        share: Rows that a process computes at a time.
        compute: (start, stop) -> these rows.
        empty: ``[share, ...]``: a tensor like those of a process that has none left to compute.
    """
    rank, world = rank_and_world()
    for first in range(start, num, share * world):
        mine, stop = first + share * rank, min(first + share * (rank + 1), num)
        rows = empty.clone()
        if mine < stop:
            rows[: stop - mine] = compute(mine, stop)
        # Only the last share of all is not full, so the gathered rows are in order and what is too much is at the end.
        yield first, gathered(rows)[: num - first].cpu()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any backend."""
    message = str(error).lower()
    said = "out of memory" in message or "allocate memory" in message
    return said or isinstance(error, (torch.OutOfMemoryError, MemoryError))
