"""Runs of the normalised objective: resumed to the bit, sampled by the ancestral guess, with a normaliser that they know."""

import math

import pytest
import torch
from safetensors.torch import load_file

from springwell.app.api import load
from springwell.app.config import with_fields
from springwell.app.presets import preset
from springwell.conditional import Conditional
from springwell.errors import UserError
from springwell.schedule import NoiseSchedule
from springwell.store.run import Run
from tests.training.tiny import train


def config(**fields):
    small = {"width": 32, "depth": 1, "num_features": 32, "num_levels": 12, "log_snr": (5.0, -6.0), "start": "ancestral"}
    often = {"iterations": 40, "batch": 64, "warmup": 5, "log_every": 10, "checkpoint_every": 10, "preview_every": 0}
    kinds = {"objective": "normalised", "network": "residual-mlp", "schedule": "log-snr", "kernel": "none"}
    return with_fields(preset("rings"), **{**kinds, **small, **often, "lr": 3e-3, **fields})


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path):
    train(config(), tmp_path / "whole")
    for piece in (13, 7, None):
        train(config(), tmp_path / "pieces", stop_after=piece)
    whole, pieces = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "pieces"))
    assert whole.keys() == pieces.keys()
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)
    assert "energy.energy.prior.mean" in whole
    assert "energy.level_error" in whole


def test_chains_finish_what_scores_began_and_their_steps_follow_their_acceptance(tmp_path):
    """Steps that start far too short grow where chains are run, at the levels that the noise is drawn from."""
    chains = {"recovery_weight": 0.1, "kernel": "mala", "num_steps": 2, "start": "data", "step_fraction": 0.05}
    train(config(**chains, focus_share=0.5), tmp_path / "run")
    lines = Run(tmp_path / "run").read_metrics()
    assert all(0.3 < accepted <= 1 for line in lines for accepted in line["acceptance"] if accepted is not None)
    first = 0.05 * load(tmp_path / "run").schedule.sigma[1:].float()
    assert bool((torch.tensor(lines[-1]["step_size"]) > 1.2 * first).all())


def test_the_claim_nears_quadrature_as_training_goes_on(tmp_path):
    """An untrained energy is normalised exactly; a trained one has learned the data and stays normalised nearly."""
    train(config(iterations=1, lr=1e-6), tmp_path / "untrained")
    untrained = load(tmp_path / "untrained")
    assert abs(untrained.log_z().correction) < 1e-3
    train(config(iterations=400, batch=256), tmp_path / "trained")
    z = load(tmp_path / "trained").log_z()
    assert z.claim == pytest.approx(-2 * math.log(float(untrained.schedule.scale[0])))
    assert abs(z.correction) < 0.1
    assert z.correction == z.value - z.claim


def test_the_ancestral_guess_has_the_mean_of_the_conditional():
    """Gaussian data of variance v: E[y_t | x_{t+1}] in closed form, at every level, from the score of the level above."""
    schedule, v = NoiseSchedule.log_snr(6, 5.0, -12.0), 0.4
    variance = schedule.a_cum**2 * v + schedule.sigma_cum**2

    def energy(y, t):
        return -y.double().square().sum(-1) / (2 * (schedule.scale**2 * variance[:-1])[t])

    t, x_next = torch.arange(6), torch.randn(6, 3, dtype=torch.float64)
    found = Conditional(energy, schedule, t, x_next).ancestral(torch.zeros(6, 3, dtype=torch.float64))
    # Cov(y_t, x_{t+1}) / Var x_{t+1}, y_t = scale_t x_t; x_T is taken for standard normal, which it is here to 1e-5.
    slope = schedule.scale * schedule.a[1:] * variance[:-1] / variance[1:]
    torch.testing.assert_close(found, slope[:, None] * x_next, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"network": "mlp"}, "objective='normalised': does not go with network='mlp'"),
        ({"objective": "recovery"}, "objective='recovery': does not go with network='residual-mlp'"),
        ({"schedule": "linear"}, "has no initial noise, which a density needs"),
    ],
)
def test_what_does_not_go_together_is_said(fields, words):
    with pytest.raises(UserError) as found:
        with_fields(config(), **fields).validate()
    assert words in str(found.value)
