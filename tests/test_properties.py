"""What holds for every schedule, batch, mask, config and spec, on inputs that Hypothesis makes up and shrinks."""

import json
import math

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from springwell.app.config import from_dict, to_dict, with_fields
from springwell.app.presets import PRESETS, preset
from springwell.applications.inpaint import Hidden
from springwell.data.spec import KINDS, SPLITS, Spec, parse_source
from springwell.evaluation.outliers import typicality
from springwell.noise import Noise
from springwell.objectives import stratified_levels
from springwell.schedule import NoiseSchedule, spread_levels

quickly = settings(max_examples=40, deadline=None, derandomize=True)
sigmas = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=12)
schedules = st.builds(NoiseSchedule.from_sigmas, sigmas, st.floats(0.0, 0.9), st.booleans())
seeds = st.integers(-(2**63), 2**63 - 1)


@quickly
@given(schedules)
def test_noise_and_signal_of_every_level_add_up_to_one(schedule):
    one = torch.ones(schedule.num_levels + 1, dtype=torch.float64)
    torch.testing.assert_close(schedule.a**2 + schedule.sigma**2, one)
    torch.testing.assert_close(schedule.a_cum**2 + schedule.sigma_cum**2, one)
    assert bool((schedule.sigma_cum.diff() > 0).all())
    assert torch.equal(schedule.scale, torch.where(schedule.spring, schedule.a[1:], 1.0))
    assert torch.equal(schedule.spring_precision > 0, schedule.spring)


@quickly
@given(schedules)
def test_a_ladder_is_known_by_its_noise_levels(schedule):
    again = NoiseSchedule.from_noise_levels(schedule.sigma_cum, bool(schedule.spring[-1]))
    # sigma^2 is a difference of numbers near 1.
    torch.testing.assert_close(again.sigma, schedule.sigma, rtol=1e-6, atol=1e-6)
    assert torch.equal(again.spring, schedule.spring)


@quickly
@given(sigmas, st.floats(0.01, 0.9), st.floats(-2, 2), st.floats(-2, 2))
def test_the_posterior_adds_precisions(values, initial, x, x_next):
    """y_t given data and x_{t+1}: the precision is the sum of both, the mean weighs by them."""
    schedule = NoiseSchedule.from_sigmas(values, initial)
    t = torch.arange(schedule.num_levels)
    column = torch.ones(len(t), 1, dtype=torch.float64)
    mean, std = schedule.posterior(x * column, x_next * column, t)
    prior, spring = (schedule.scale * schedule.sigma_cum[:-1]) ** -2, schedule.sigma[1:] ** -2
    torch.testing.assert_close(std[:, 0] ** -2, prior + spring)
    weighed = (prior * schedule.scale * schedule.a_cum[:-1] * x + spring * x_next) / (prior + spring)
    torch.testing.assert_close(mean[:, 0], weighed, atol=1e-9, rtol=1e-7)


@quickly
@given(st.integers(1, 40), st.integers(1, 200), st.floats(0, 1, exclude_max=True), st.integers(0, 200))
def test_every_level_gets_its_share_of_a_batch_however_it_is_cut(num_levels, total, offset, cut):
    index, offset = torch.arange(total), torch.tensor([offset], dtype=torch.float64)
    t = stratified_levels(num_levels, index, total, offset)
    counts = torch.bincount(t, minlength=num_levels)
    assert len(counts) == num_levels
    assert bool(((counts - total / num_levels).abs() < 1 + 1e-9).all())
    parts = [stratified_levels(num_levels, part, total, offset) for part in (index[:cut], index[cut:])]
    assert torch.equal(torch.cat(parts), t)


@quickly
@given(st.integers(1, 2000), st.integers(1, 60))
def test_levels_are_spread_from_the_first_to_the_last(num_levels, most):
    levels = spread_levels(num_levels, most)
    assert levels == sorted(set(levels))
    assert len(levels) == min(num_levels, most)
    assert levels[0] == 0
    assert most == 1 or levels[-1] == num_levels - 1


@quickly
@given(seeds, st.lists(st.integers(0, 2**40), min_size=1, max_size=6, unique=True), st.integers(1, 5), st.integers(1, 4))
def test_noise_belongs_to_its_sample_whatever_is_beside_it(seed, index, size, ahead):
    index = torch.tensor(index)
    together, draws = Noise(seed, index, 3, ahead), 3
    for i, noise in enumerate([Noise(seed, index[i : i + 1], 3) for i in range(len(index))]):
        beside = Noise(seed, index, 3, ahead)
        for _ in range(draws):
            assert torch.equal(beside.normal(size)[i], noise.normal(size)[0])
            assert torch.equal(beside.uniform()[i], noise.uniform()[0])
    u = together.uniform(50)
    assert bool(((u > 0) & (u < 1)).all())


@quickly
@given(st.lists(st.booleans(), min_size=2, max_size=20), st.integers(1, 3))
def test_a_mask_divides_a_sample_into_what_is_held_and_what_is_not(mask, num):
    hidden = torch.tensor(mask)
    assume(bool(hidden.any()) and not bool(hidden.all()))
    held, m = torch.arange(num * len(mask), dtype=torch.float32).view(num, -1), -torch.ones(num, int(hidden.sum()))
    whole = Hidden(lambda y, t: y.sum(-1), held, hidden.nonzero()[:, 0]).whole(m)
    assert torch.equal(whole[:, ~hidden], held[:, ~hidden])
    assert bool((whole[:, hidden] == -1).all())


@quickly
@given(
    st.sampled_from(sorted(PRESETS)),
    st.fixed_dictionaries(
        {},
        optional={
            "iterations": st.integers(1, 10**9),
            "batch": st.integers(1, 10**6),
            "lr": st.floats(1e-9, 1.0),
            "seed": st.integers(0, 2**63 - 1),
            "clip": st.none() | st.floats(1e-3, 1e6),
            "ema": st.floats(0, 0.9999),
            "adam_eps": st.floats(1e-12, 1.0),
            "idle_start": st.booleans(),
        },
    ),
)
def test_a_config_comes_back_from_json(name, values):
    config = with_fields(preset(name), **values)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@quickly
@given(
    st.sampled_from(sorted(KINDS)),
    st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="/._-"), min_size=1, max_size=20),
    st.sampled_from(["", *sorted(SPLITS)]),
)
def test_a_spec_is_its_kind_its_place_and_its_split(kind, place, split):
    text = f"{kind}:{place}" + (f"@{split}" if split else "")
    assert parse_source(text) == (Spec(kind, place, split) if split else Spec(kind, place))


@quickly
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(-200, 200))
def test_typicality_is_a_share_and_does_not_know_which_side_is_which(reference, value):
    reference, value = torch.tensor(reference, dtype=torch.float64).numpy(), torch.tensor([value]).double().numpy()
    found = typicality(value, reference)[0]
    assert 0 <= found <= 1
    assert found == pytest.approx(typicality(-value, -reference)[0])
    assert math.isfinite(found)
