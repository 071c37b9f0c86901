"""Measures of a classifier against what they mean."""

import torch

from springwell.evaluation.classifier import calibration_error, measures, suspects


def test_probabilities_that_are_shares_are_calibrated():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(200_000, 3, generator=generator, dtype=torch.float64)
    p = p / p.sum(-1, keepdim=True)
    label = torch.multinomial(p, 1, generator=generator)[:, 0]
    # 15 bins of about 13,000 data each: 0.003 is four standard errors.
    assert calibration_error(p.log(), label) < 0.006
    sharper = (4 * p.log()).log_softmax(-1)
    assert calibration_error(sharper, label) > 0.1
    assert measures(sharper, label)["accuracy"] == measures(p.log(), label)["accuracy"]


def test_measures_of_four_data():
    log_prob = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], dtype=torch.float64).log()
    label = torch.tensor([0, 1, 1, 0])
    found = measures(log_prob, label)
    assert found["accuracy"] == 0.75
    torch.testing.assert_close(found["nll"], -float(torch.tensor([0.9, 0.2, 0.7, 0.6], dtype=torch.float64).log().mean()))
    # Four bins with one datum each: 0.1, 0.8, 0.3 and 0.4 away.
    torch.testing.assert_close(found["ece"], 0.4)
    assert suspects(log_prob, label).tolist() == [1, 3, 2, 0]
