"""Every model that ships still gives the f and the samples that it gave when it was shipped (tools/pin.py wrote them)."""

import json
from pathlib import Path

import pytest
import torch
from tools.pin import pins

from springwell.store import zoo

PINS = json.loads((Path(__file__).parent / "fixtures" / "pins.json").read_text())


def test_every_shipped_model_is_pinned():
    assert sorted(PINS) == zoo.names()


@pytest.mark.parametrize("name", sorted(PINS))
def test_f_and_samples_are_what_they_were(name):
    found = pins(name)
    for t, f in PINS[name]["f"].items():
        torch.testing.assert_close(torch.tensor(found["f"][int(t)]), torch.tensor(f), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(torch.tensor(found["samples"]), torch.tensor(PINS[name]["samples"]), rtol=1e-5, atol=1e-5)
