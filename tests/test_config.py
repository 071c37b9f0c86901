"""Configs: values out of range are named, and what is saved comes back."""

import json

import pytest

from springwell.app.config import Config, ScheduleConfig, difference, from_dict, to_dict
from springwell.app.presets import PRESETS, preset
from springwell.errors import UserError
from tests.training.tiny import changed


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_survive_json(name):
    config = preset(name)
    config.validate()
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("schedule", {"num_levels": 0}, "--num-levels 0"),
        ("schedule", {"sigmas": (0.5, 1.5)}, "--sigmas 1.5"),
        ("schedule", {"sigmas": ()}, "--sigmas: empty"),
        ("schedule", {"initial_noise": 1.0}, "--initial-noise 1.0"),
        ("sampler", {"num_steps": -1}, "--num-steps -1"),
        ("sampler", {"target_acceptance": 1.5}, "--target-acceptance 1.5"),
        ("sampler", {"noise_scale": 0.99}, "a Metropolis test needs 1"),
        ("training", {"batch": 0}, "--batch 0"),
        ("training", {"lr": 0.0}, "--lr 0.0"),
        ("training", {"lr": float("nan")}, "--lr nan"),
        ("training", {"lr": float("inf")}, "--lr inf"),
        ("training", {"iterations": 0}, "--iterations 0"),
        ("training", {"ema": 1.0}, "--ema 1.0"),
        ("training", {"clip": 0.0}, "--clip 0.0"),
        ("training", {"weight_decay": -0.1}, "--weight-decay -0.1"),
        ("training", {"weight_decay": 100.0, "lr": 0.01}, "--weight-decay 100.0"),
        ("training", {"seed": -1}, "--seed -1"),
        ("network", {"width": 0}, "--width 0"),
        ("network", {"dense_units": -1}, "--dense-units -1"),
        ("network", {"bandwidths": (0.0,)}, "--bandwidths 0.0"),
        ("network", {"base_precision": 1e308}, "--base-precision 1e.308"),
        ("training", {"precision": "bf16"}, "--precision bf16: for --network resnet"),
        ("training", {"compile": True}, "--compile: for --network resnet"),
    ],
)
def test_values_out_of_range_are_named(section, values, words):
    with pytest.raises(UserError, match=words):
        changed(Config(), section, **values).validate()


def test_objectives_that_need_springs_say_so():
    for objective, steps in (("dsm", 5), ("recovery", 0)):
        config = changed(
            Config(objective=objective, schedule=ScheduleConfig(schedule="t6", num_levels=6)), "sampler", num_steps=steps
        )
        with pytest.raises(UserError, match="needs the spring of every level"):
            config.validate()
    with pytest.raises(UserError, match="use --schedule marginal"):
        Config(objective="marginal").validate()


@pytest.mark.parametrize(
    "values",
    [
        [],
        {"nonsense": 1},
        {"data": 3},
        {"training": {"lr": "high"}},
        {"training": {"batch": 1.5}},
        {"training": {"tensorboard": 1}},
        {"schedule": {"log_snr": [1, 2, 3]}},
        {"schedule": {"schedule": "t7"}},
        {"training": 3},
    ],
)
def test_saved_configs_are_checked(values):
    with pytest.raises(UserError, match=r"^x"):
        from_dict(values, "x")


def test_difference_names_fields():
    config = preset("checkerboard")
    assert difference(config, config) == []
    assert difference(config, changed(config, "training", lr=0.5)) == [("lr", config.training.lr, 0.5)]


def test_gradient_evaluations_are_what_an_iteration_does():
    """Count calls of the energy by sample in one call of the objective."""
    import torch

    from springwell import objectives
    from springwell.level import Chains
    from springwell.noise import Noise
    from springwell.samplers import make_kernel
    from springwell.schedule import NoiseSchedule

    schedule = NoiseSchedule.from_sigmas([0.5, 0.6])
    for kernel in ("langevin", "mala", "hmc"):
        for steps, jumps in ((3, 0), (5, 4), (11, 2)):
            rows = []

            def energy(y, t, rows=rows):
                rows.append(len(y))
                return -y.square().sum(-1)

            t = torch.tensor([0, 1, 1])
            y = torch.zeros(3, 2)
            chains = Chains(make_kernel(kernel, 3), steps, torch.ones(2), jumps)
            objectives.recovery(energy, energy, schedule, chains, torch.ones(2), t, y, y, Noise(0, torch.arange(3)))
            config = changed(Config(), "sampler", kernel=kernel, num_leapfrog=3, num_steps=steps, jump_proposals=jumps)
            # The loss's one pass has the positives and the negatives; it counts as one evaluation.
            assert sum(rows) // 3 - 1 == config.gradient_evaluations()


@pytest.mark.parametrize(
    ("name", "section", "values", "words"),
    [
        ("digits", "network", {"width": 5}, "--width 5: the level embedding needs an even number"),
        ("digits", "schedule", {"schedule": "t6"}, "--chain-start denoised: needs the spring of every level"),
        ("cifar10-t1k-dsm", "training", {"compile": True}, "--compile"),
        ("digits", "network", {"multipliers": ()}, "--multipliers: empty"),
        ("digits", "images", {"image_size": 0}, "--image-size 0"),
    ],
)
def test_values_that_images_cannot_have(name, section, values, words):
    with pytest.raises(UserError) as caught:
        changed(preset(name), section, **values).validate()
    assert words in str(caught.value)
