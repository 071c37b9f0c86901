"""Data sets: where training batches come from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from springwell.data.images import prepare_images as prepare_images
    from springwell.data.source import DataSource as DataSource, open_data as open_data
    from springwell.data.toy import TOY_DATA as TOY_DATA, ToyData as ToyData, log_density as log_density, toy_data as toy_data

_NAMES = {
    "images": ("prepare_images",),
    "source": ("DataSource", "open_data"),
    "toy": ("TOY_DATA", "ToyData", "log_density", "toy_data"),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    # Imported when used: processes that decode images import this package and must not load torch.
    if name not in _WHERE:
        raise AttributeError(f"module 'springwell.data' has no attribute '{name}'")
    return getattr(import_module(f"springwell.data.{_WHERE[name]}"), name)
