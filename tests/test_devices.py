"""Memory: what a backward pass would keep is counted, and nothing of it stays."""

import gc
import weakref

import torch

from springwell.devices import kept_tensors


def count_and_forget():
    y = torch.ones(1000, requires_grad=True)
    # exp keeps its result, which sin keeps as its argument: one piece of memory.
    kept = kept_tensors(lambda: y.exp().sin())
    assert [tensor.untyped_storage().nbytes() for tensor in kept] == [4000]
    return weakref.ref(y)


def test_kept_tensors_are_counted_by_storage_and_let_go():
    alive = count_and_forget()
    gc.collect()
    assert alive() is None
