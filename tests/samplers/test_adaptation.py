"""Dual averaging, the paper's rule of a pilot in a band, and masses estimated over chains."""

import pytest
import torch

from springwell.errors import UserError
from springwell.noise import Noise
from springwell.samplers import DualAveraging, Tuning, Welford, hmc, langevin, mala, nuts, run_chain, tune_step_size
from springwell.samplers.adaptation import interpolate
from springwell.shapes import expand
from tests.samplers import laws

# Three levels whose widths differ by a factor of 10 each.
WIDTH = torch.tensor([0.01, 0.1, 1.0])


class Levels:
    """A log-density that names its levels."""

    def __init__(self, f, level):
        self.f, self.level = f, level

    def __call__(self, y):
        return self.f(y)


def group_means(values, group, num_groups):
    total = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, group, values.double())
    return total / torch.bincount(group, minlength=num_groups)


def levels(n):
    level = torch.arange(n) % 3
    width = WIDTH[level][:, None]
    # Unequal frequencies, since a single one is in resonance with some trajectories and makes acceptance rise and fall.
    return level, width, lambda y: -0.5 * (y / width * torch.linspace(1, 2, y.shape[1])).square().sum(-1)


@pytest.mark.parametrize(("kernel", "num_steps"), [(mala(), 200), (hmc(3), 200), (nuts(6), 80)])
def test_dual_averaging_settles_at_the_target(kernel, num_steps):
    """One step size per level, from guesses 100 times too small and too large: 0.8 +- 0.03 after freezing, in proportion."""
    n, target = 600, 0.8
    level, width, f = levels(n)
    averaging, random = DualAveraging.start(torch.tensor([1.0, 0.1, 0.01])), Noise(0, torch.arange(n))
    state = kernel.init(width * Noise(1, torch.arange(n)).normal(4), f)
    for _ in range(num_steps):
        state, info = kernel.step(state, f, expand(averaging.step_size[level], state.y), random)
        averaging = averaging.update(group_means(info.acceptance, level, 3), target)
    frozen = averaging.frozen
    _, acceptance = run_chain(kernel, state.y, f, frozen[level].float(), 20, random)
    torch.testing.assert_close(group_means(acceptance, level, 3), torch.full((3,), target).double(), rtol=0, atol=0.03)
    torch.testing.assert_close(frozen / frozen[2], (WIDTH / WIDTH[2]).double(), rtol=0.1, atol=0)


def test_dual_averaging_is_the_published_recursion():
    """Two updates, by hand, from delta = 1: mu = log 10, gamma = 0.05, m_0 = 10, kappa = 0.75."""
    state = DualAveraging.start(torch.tensor([1.0, 1.0]))
    state = state.update(torch.tensor([0.6, 0.6]), 0.8)
    first = torch.log(torch.tensor(10.0)).double() - 1 / 0.05 * (0.2 / 11)
    torch.testing.assert_close(state.log_step, first.expand(2))
    torch.testing.assert_close(state.log_average, first.expand(2))
    state = state.update(torch.tensor([0.9, 0.9]), 0.8, present=torch.tensor([True, False]))
    error = (1 - 1 / 12) * (0.2 / 11) + (0.8 - 0.9) / 12
    second = torch.log(torch.tensor(10.0)).double() - 2**0.5 / 0.05 * error
    torch.testing.assert_close(state.log_step, torch.stack([second, first]), rtol=1e-6, atol=1e-6)
    average = 2**-0.75 * second + (1 - 2**-0.75) * first
    torch.testing.assert_close(state.log_average, torch.stack([average, first]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [mala(), hmc()])
def test_the_pilot_ends_in_the_band_at_every_level(kernel):
    """The paper's rule: 1000 chains, 100 steps, acceptance in [0.6, 0.9]; frozen, fresh chains have it as well."""
    n = 999
    level, width, f = levels(n)
    start = width * Noise(2, torch.arange(n)).normal(8)
    tuned = tune_step_size(kernel, f, start, torch.full((3,), 0.05), Noise(3, torch.arange(n)), group=level)
    assert bool(((tuned.acceptance >= 0.6) & (tuned.acceptance <= 0.9)).all())
    _, acceptance = run_chain(kernel, start, f, tuned.step_size[level], 50, Noise(4, torch.arange(n)))
    torch.testing.assert_close(group_means(acceptance, level, 3), tuned.acceptance, rtol=0, atol=0.02)
    assert tuned.num_steps <= 200
    assert tuned.step_size.dtype == torch.float32


def test_tuning_does_not_depend_on_other_levels():
    n = 300
    level, width, f = levels(n)
    start = width * Noise(5, torch.arange(n)).normal(4)
    tuning = Tuning(num_steps=60)
    whole = tune_step_size(mala(), f, start, torch.full((3,), 0.05), Noise(6, torch.arange(n)), level, tuning)
    rows = level == 1
    alone = tune_step_size(
        mala(),
        lambda y: -0.5 * (y / 0.1 * torch.linspace(1, 2, 4)).square().sum(-1),
        start[rows],
        torch.tensor([0.05]),
        Noise(6, torch.arange(n)[rows]),
        tuning=tuning,
    )
    torch.testing.assert_close(alone.step_size[0], whole.step_size[1], rtol=1e-4, atol=0)


def test_a_level_that_cannot_be_tuned_is_named():
    """Level 1 has its density on a single point: no step is ever accepted."""
    n = 60
    level = torch.arange(n) % 2

    def f(y):
        return torch.where((level == 1) & (y[:, 0] != 0), -torch.inf, -0.5 * y.square().sum(-1))

    for target, name in ((f, "group 1"), (Levels(f, 10 * level), "level 10")):
        with pytest.warns(RuntimeWarning, match=rf"^{name}: acceptance 0 at step size .* outside \[0.6, 0.9\]"):
            tuned = tune_step_size(
                mala(),
                target,
                torch.zeros(n, 2),
                torch.ones(2),
                Noise(7, torch.arange(n)),
                level,
                Tuning(num_steps=40, max_rounds=2),
            )
        assert 0.6 <= float(tuned.acceptance[0]) <= 0.9


@pytest.mark.parametrize("dual_averaging", [False, True])
def test_levels_without_chains_keep_their_step(dual_averaging):
    n = 100
    f = laws.correlated_pair().logdensity
    y, group = torch.zeros(n, 2), torch.ones(n, dtype=torch.long)
    first, tuning = torch.tensor([0.123, 5.0]), Tuning(dual_averaging=dual_averaging)
    tuned = tune_step_size(mala(), f, y, first, Noise(8, torch.arange(n)), group=group, tuning=tuning)
    assert float(tuned.step_size[0]) == pytest.approx(0.123)
    assert bool(tuned.acceptance[0].isnan())
    # The others leave a step that accepts next to nothing.
    assert 0.6 <= float(tuned.acceptance[1]) <= 0.9


def test_what_cannot_be_tuned_is_refused():
    y, f, noise = torch.zeros(4, 2), laws.correlated_pair().logdensity, Noise(9, torch.arange(4))
    with pytest.raises(UserError, match="no Metropolis test"):
        tune_step_size(langevin(), f, y, torch.ones(1), noise)
    with pytest.raises(UserError, match=r"band=\(0.9, 0.6\)"):
        tune_step_size(mala(), f, y, torch.ones(1), noise, tuning=Tuning((0.9, 0.6)))
    with pytest.raises(UserError, match="group"):
        tune_step_size(mala(), f, y, torch.ones(1), noise, group=torch.tensor([0, 0, 0, 1]))
    level = torch.tensor([0, 0, 0, 1])
    with pytest.raises(UserError, match=r"step size -1 of chain 3 \(level 1\)"):
        tune_step_size(mala(), Levels(f, level), y, torch.tensor([1.0, -1.0]), noise, level)


def test_welford_is_the_variance_of_all_draws():
    """Batches of different size, far from zero, where the naive formula would lose all digits."""
    batches = [1e6 + torch.tensor([1.0, 0.1]) * laws.noise(n, n).normal(3, 2) for n in (7, 1, 40, 200)]
    state = Welford.start(batches[0])
    for batch in batches:
        state = state.update(batch)
    together = torch.cat(batches)
    torch.testing.assert_close(state.mean, together.mean(0), rtol=1e-14, atol=0)
    torch.testing.assert_close(state.variance, together.var(0), rtol=1e-9, atol=0)
    weight = 248 / 253
    torch.testing.assert_close(state.inverse_mass, weight * state.variance + (1 - weight) * 1e-3)


def test_an_estimated_mass_makes_a_wide_target_round():
    """Scales 0.01, 0.1 and 1: with the pilot's masses the same acceptance costs a tenth of the leapfrog steps, at least."""
    n = 50
    f = lambda y: -0.5 * (y / WIDTH).square().sum(-1)  # noqa: E731
    y = WIDTH * Noise(10, torch.arange(n)).normal(3)
    inverse_mass = Welford.start(y).update(y).inverse_mass
    found, quick = [], Tuning(num_steps=16, max_rounds=2)
    for kernel, guess in ((nuts(), 0.01), (nuts(inverse_mass=inverse_mass), 1.0)):
        tuned = tune_step_size(kernel, f, y, torch.tensor([guess]), Noise(11, torch.arange(n)), tuning=quick)
        state = kernel.init(tuned.y, f)
        found.append(kernel.step(state, f, tuned.step_size, Noise(12, torch.arange(n)))[1].num_gradients.double().mean())
    assert float(found[0] / found[1]) > 10


def test_interpolation_is_exact_for_linear_functions_and_constant_beyond():
    at, every = torch.tensor([0, 3, 4, 9]), torch.arange(-1, 12)
    for dtype in (torch.float32, torch.float64):
        expected = 2.0 - 0.5 * every.clamp(0, 9).to(dtype)
        assert torch.allclose(interpolate(every, at, 2.0 - 0.5 * at.to(dtype)), expected)
    assert interpolate(every, torch.tensor([0]), torch.tensor([1.5])).tolist() == [1.5] * len(every)
    twice = torch.tensor([0.0, 1.0, 1.0, 2.0])
    assert interpolate(twice, twice, twice).tolist() == twice.tolist()


def test_a_group_of_one_chain_is_judged_like_any_other():
    """Steps that are far too large, and no time to shorten them."""
    short = Tuning(num_steps=2, max_rounds=1)
    with pytest.warns(RuntimeWarning, match=r"acceptance .* after 2 steps, outside \[0.6, 0.9\]"):
        tune_step_size(mala(), lambda y: -0.5 * y.square().sum(-1), torch.zeros(1, 20), 50.0, laws.noise(1, 0), tuning=short)
