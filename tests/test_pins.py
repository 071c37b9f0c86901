"""Every model that ships still gives the f and the samples that it gave when it was shipped (tools/pin.py wrote them)."""

import json
from pathlib import Path

import pytest
import torch
from tools.pin import pins, precise

import springwell as sw
from springwell.store import zoo

PINS = json.loads((Path(__file__).parent / "fixtures" / "pins.json").read_text())


def close(found, pinned):
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64), torch.tensor(pinned, dtype=torch.float64), rtol=1e-5, atol=1e-5
    )


def test_every_shipped_model_is_pinned():
    assert sorted(PINS) == zoo.names()


@pytest.mark.parametrize("name", sorted(PINS))
def test_f_and_samples_are_what_they_were(name):
    found = pins(name)
    for t, f in PINS[name]["f"].items():
        close(found["f"][int(t)], f)
    close(found["samples"], PINS[name]["samples"])


@pytest.mark.parametrize("name", ["checkerboard", "digits-density"])
def test_models_draw_in_the_precision_of_their_units(name):
    found, pinned = sw.load(name).sample(2, seed=3), precise(name).sample(2, seed=3)
    assert (found.dtype, pinned.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(found.double(), pinned, rtol=1e-4, atol=1e-4)
