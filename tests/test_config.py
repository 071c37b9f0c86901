"""Configs: values out of range are named, and what is saved comes back."""

import json

import pytest

from springwell.app.config import (
    Config,
    GuessConfig,
    HMCConfig,
    UNetConfig,
    difference,
    flat,
    from_dict,
    to_dict,
    with_absolute_paths,
    with_fields,
)
from springwell.app.presets import PRESETS, preset
from springwell.errors import UserError
from tests.training.tiny import changed


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_survive_json(name):
    config = preset(name)
    config.validate()
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"schedule": "log-snr", "num_levels": 0}, "num_levels=0: expected int >= 1"),
        ({"sigmas": (0.5, 1.5)}, "sigmas=(0.5, 1.5): expected float <= 1.0"),
        ({"sigmas": ()}, "sigmas=(): expected array of length >= 1"),
        ({"initial_noise": 1.0}, "initial_noise=1.0: expected float < 1.0"),
        ({"num_steps": -1}, "num_steps=-1: expected int >= 0"),
        ({"target_acceptance": 1.5}, "target_acceptance=1.5: expected float < 1.0"),
        ({"noise_scale": 0.99}, "noise_scale: belongs to kernel='langevin', not to kernel='mala'"),
        ({"batch": 0}, "batch=0: expected int >= 1"),
        ({"lr": 0.0}, "lr=0.0: expected float > 0.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": float("inf")}, "lr=inf"),
        ({"iterations": 0}, "iterations=0"),
        ({"ema": 1.0}, "ema=1.0"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": float("inf")}, "clip=inf"),
        ({"log_snr": (float("inf"), 0.0), "schedule": "log-snr"}, "log_snr=(inf, 0.0)"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"weight_decay": 100.0, "lr": 0.01}, "weight_decay=100.0: out of range"),
        ({"accumulate": 3, "batch": 2}, "accumulate=3: out of range"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "seed=9223372036854775808"),
        ({"width": 0}, "width=0"),
        ({"network": "unet", "dense_units": -1}, "dense_units=-1"),
        ({"bandwidths": (0.0,)}, "bandwidths=(0.0,)"),
        ({"base_precision": 1e308}, "base_precision=1e+308"),
        ({"base_precision": "nois"}, "base_precision='nois': unknown; choose noise, a number"),
        ({"objective": "nonsense"}, "objective='nonsense': unknown; choose recovery, dsm, marginal, normalised"),
        ({"kernel": "nuts"}, "kernel='nuts': unknown; choose none, langevin, mala, hmc"),
        ({"widht": 3}, "widht: unknown field; did you mean width?"),
        ({"learning_rate": 3}, "learning_rate: unknown field; did you mean lr?"),
        ({"epochs": 3}, "epochs: unknown field; did you mean iterations?"),
        ({"verbose": 3}, "verbose: unknown field; the fields are data, objective, "),
        (
            {"multipliers": (1, 2)},
            "multipliers: belongs to network='resnet' or network='unet' or network='residual-unet', not to network='mlp'",
        ),
        ({"flip": True}, "network='mlp': takes vectors"),
        ({"precision": "bf16"}, "precision='bf16': works with network='resnet'"),
        ({"compile": True}, "compile=True: works with network='resnet'"),
        ({"num_steps": 0, "sample_steps": None}, "num_steps=0: there are no chains"),
        ({"kernel": "none", "output_scale": "step"}, "output_scale='step': needs a step size"),
    ],
)
def test_values_out_of_range_are_named(values, words):
    with pytest.raises(UserError) as caught:
        with_fields(Config(), **values).validate()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objectives_that_need_springs_say_so():
    t6 = with_fields(Config(), schedule="t6")
    for values in ({"objective": "dsm"}, {"num_steps": 0}, {"kernel": "none"}, {"start": "denoised"}):
        with pytest.raises(UserError, match="needs the spring of every level"):
            with_fields(t6, **values).validate()
    with pytest.raises(UserError, match="use schedule='marginal'"):
        with_fields(Config(), objective="marginal").validate()
    with pytest.raises(UserError, match="no normal approximation"):
        with_fields(Config(), objective="marginal", schedule="marginal", num_steps=0).validate()


def test_a_config_carries_the_fields_of_its_recipe_alone():
    names = {name: set(flat(preset(name))) for name in PRESETS}
    assert not names["checkerboard"] & {
        "multipliers",
        "spectral_norm",
        "dense_units",
        "image_size",
        "num_levels",
        "noise_scale",
    }
    assert not names["mnist"] & {"step_fraction", "num_steps", "target_acceptance", "depth", "sigmas", "spectral_norm"}
    assert not names["cifar10-t6"] & {"target_acceptance", "num_leapfrog", "log_snr", "top_spring", "dense_units"}
    assert {"target_acceptance", "num_steps", "step_fraction", "log_snr"} <= names["digits"]


def test_another_kind_keeps_what_both_kinds_have():
    config = with_fields(preset("digits"), network="unet", kernel="hmc", num_leapfrog=3)
    assert config.network == UNetConfig(width=32, multipliers=(1, 2), num_blocks=1)
    assert config.sampler == HMCConfig(
        num_steps=2,
        sample_steps=6,
        step_fraction=0.4,
        start="denoised",
        denoise=True,
        num_leapfrog=3,
        target_acceptance=0.6,
    )
    # The start "data" is of chains; a guess has its own two.
    assert with_fields(Config(), kernel="none").sampler == GuessConfig()


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
        {"network": {"network": "mlp", "multipliers": [1, 2]}},
        {"network": {"network": ["mlp"]}},
        {"network": {}},
        {"training": {"iterations": 10**400}},
    ],
)
def test_saved_configs_are_checked(values):
    with pytest.raises(UserError, match=r"^x: .*") as caught:
        from_dict(values, "x")
    assert "\n" not in str(caught.value)


def test_saved_configs_say_where():
    with pytest.raises(UserError, match=r"^config.json: training.lr='high': expected float, got str$"):
        from_dict({"training": {"lr": "high"}}, "config.json")
    with pytest.raises(UserError, match=r"^config.json: training.iteratons: unknown field; did you mean iterations\?$"):
        from_dict({"training": {"iteratons": 3}}, "config.json")


def test_difference_names_fields():
    config = preset("checkerboard")
    assert difference(config, config) == []
    assert difference(config, changed(config, "training", lr=0.5)) == [("lr", config.training.lr, 0.5)]


def test_gradient_evaluations_are_what_an_iteration_does():
    """Count calls of the energy by sample in one call of the objective."""
    import torch

    from springwell.level import LevelSampler
    from springwell.noise import Noise
    from springwell.objectives import Recovery
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
            sampler = LevelSampler(make_kernel(kernel, 3), steps, torch.ones(2), "data", jumps)
            Recovery(energy, schedule, sampler)(torch.zeros(3, 2), Noise(0, torch.arange(3)), t)
            leapfrog = {"num_leapfrog": 3} if kernel == "hmc" else {}
            config = with_fields(Config(), kernel=kernel, num_steps=steps, jump_proposals=jumps, **leapfrog)
            # The loss's one pass has the positives and the negatives; it counts as one evaluation.
            assert sum(rows) // 3 - 1 == config.gradient_evaluations()


@pytest.mark.parametrize("num_steps", [0, 3])
def test_recovery_beside_scores_costs_what_both_do(num_steps):
    chains = {"kernel": "mala", "num_steps": num_steps, "sample_steps": 3, "start": "data"}
    scores, recovery = preset("digits-density"), with_fields(Config(), jump_proposals=0, **chains)
    both = with_fields(scores, recovery_weight=0.1, **chains)
    assert both.gradient_evaluations() == scores.gradient_evaluations() + recovery.gradient_evaluations()


@pytest.mark.parametrize(
    ("name", "section", "values", "words"),
    [
        ("digits", "network", {"width": 5}, "width=5: the level embedding needs an even number"),
        ("digits", "schedule", {"schedule": "t6"}, "start='denoised': needs the spring of every level"),
        ("cifar10-t1k-dsm", "training", {"compile": True}, "compile=True"),
        ("digits", "network", {"multipliers": ()}, "multipliers=(): expected array of length >= 1"),
        ("digits", "images", {"image_size": 0}, "image_size=0"),
    ],
)
def test_values_that_images_cannot_have(name, section, values, words):
    with pytest.raises(UserError) as caught:
        changed(preset(name), section, **values).validate()
    assert words in str(caught.value)


def test_paths_of_data_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(with_fields(preset("digits"), data="folder:a/b", data_root="root"))
    assert (config.data, config.images.data_root) == (f"folder:{tmp_path}/a/b", f"{tmp_path}/root")
    assert with_absolute_paths(config) == config
    for name in ("digits", "lsun/bedroom", "hf:owner/name"):
        assert with_absolute_paths(with_fields(preset("digits"), data=name)).data == name
