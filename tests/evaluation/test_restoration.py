"""PSNR by hand."""

import math

import pytest
import torch

from springwell.evaluation.restoration import mean_psnr


def test_psnr_of_known_errors():
    """Errors of 0.2 and 0.02 everywhere are 20 and 40 dB below the range, 2."""
    clean = torch.zeros(2, 1, 4, 4)
    restored = torch.tensor([0.2, -0.02]).view(2, 1, 1, 1).expand_as(clean)
    found = mean_psnr(restored, clean)
    assert found["psnr"] == pytest.approx(30, abs=1e-4)
    assert found["standard_error"] == pytest.approx(math.sqrt(200) / math.sqrt(2), rel=1e-5)
    assert found["num"] == 2
    assert mean_psnr(restored[:1], clean[:1])["standard_error"] is None
