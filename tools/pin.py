"""Writes f and samples of every shipped model at fixed inputs and seeds to tests/fixtures/pins.json.

    python tools/pin.py NAME ...

Run it only for a model that was trained anew: `tests/test_pins.py` compares the package against this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import springwell as sw
from springwell.store import zoo

PINS = Path(__file__).parents[1] / "tests" / "fixtures" / "pins.json"


def precise(name: str) -> sw.Model:
    """A shipped model whose weights and units are float64."""
    model = sw.load(name)
    assert isinstance(model.energy_function, torch.nn.Module)
    model.energy_function.double().eval()
    model.shift, model.scale = model.shift.double(), model.scale.double()
    return model


def pins(name: str) -> dict[str, object]:
    """f of four inputs at three levels, and two samples, of which 64 values each are kept.

    All is computed in float64. In float32 a chain multiplies the rounding of convolutions, which differs from one kind of
    processor to the next, a thousandfold.
    """
    model = precise(name)
    num_levels = model.schedule.num_levels
    # Rounded: processors differ in the last bit of a normal number, which a steep f multiplies.
    y = (256 * sw.Noise(7, torch.arange(4)).normal(*model.event_shape).double()).round() / 256
    f = {t: model.f(y, t).tolist() for t in sorted({0, num_levels // 2, num_levels - 1})}
    samples = model.sample(2, seed=3).flatten(1)
    stride = -(-samples.shape[1] // 64)
    return {"f": f, "samples": samples[:, ::stride].tolist()}


if __name__ == "__main__":
    known = json.loads(PINS.read_text())
    new = {name: pins(name) for name in sys.argv[1:]}
    PINS.write_text(json.dumps({name: {**known, **new}[name] for name in zoo.names()}) + "\n")
