"""The one place that draws y_t given x_{t+1}: which start, which noise and which target each choice takes."""

import pytest
import torch

from springwell.conditional import FARTHEST, Conditional
from springwell.errors import UserError
from springwell.level import LevelSampler, Truth
from springwell.noise import Noise
from springwell.samplers import Kernel, langevin, mala
from springwell.samplers.base import Info, State
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy, check_moments

SCHEDULE = NoiseSchedule.from_sigmas([0.4, 0.7], 0.2)
ENERGY = GaussianEnergy(SCHEDULE, 0.3, 0.5)
N = 6
T = torch.arange(N) % 2

# Chains of this kernel stay where they start, and so show it.
STILL = Kernel(lambda y, f: State(y), lambda state, f, delta, noise: (state, Info(None)), tested=False)


def column(values):
    return values[T][:, None]


def pair():
    noise = Noise(1, torch.arange(N), dtype=torch.float64)
    x = noise.normal(3)
    return x, *SCHEDULE.pair(x, T, noise)


def gradient(y):
    """Of the Gaussian energy, written out."""
    return -(y - column(ENERGY.mean)) / column(ENERGY.variance)


def written_out(x_next, eps, damped, cut):
    """The Gaussian guess of y_t, term by term."""
    sigma, share = column(SCHEDULE.sigma[1:]), column(SCHEDULE.posterior_share)
    if not damped:
        return x_next + sigma**2 * gradient(x_next) + sigma * eps
    drift = share * sigma**2 * gradient(x_next)
    if cut:
        longest = (1 + FARTHEST / (2 * 3) ** 0.5) * (1 - share).sqrt() * sigma
        drift = drift * (longest / drift.square().mean(-1, keepdim=True).sqrt()).clamp(max=1)
    return x_next + drift + share.sqrt() * sigma * eps


def residual(x, y_t, x_next):
    """The noise of y_t about its mean given x_{t+1} and the data, in precisions."""
    prior = 1 / column((SCHEDULE.scale * SCHEDULE.sigma_cum[:-1]) ** 2)
    spring = 1 / column(SCHEDULE.sigma[1:] ** 2)
    mean = (prior * column(SCHEDULE.scale * SCHEDULE.a_cum[:-1]) * x + spring * x_next) / (prior + spring)
    return (y_t - mean) * (prior + spring).sqrt()


@pytest.mark.parametrize("training", [False, True], ids=["generation", "training"])
@pytest.mark.parametrize("num_steps", [0, 3])
@pytest.mark.parametrize("start", ["noisy", "data", "denoised"])
def test_where_a_draw_starts(start, num_steps, training):
    """Chains that do not move show their start; K = 0 returns the guess, in which training shares the noise of y_t."""
    x, y_t, x_next = pair()
    sampler = LevelSampler(STILL, num_steps, 0.1, start)
    seen = Noise(2, torch.arange(N), dtype=torch.float64)
    y, acceptance = sampler.draw(Conditional(ENERGY, SCHEDULE, T, x_next), seen, Truth(x, y_t) if training else None)
    eps = residual(x, y_t, x_next) if training else Noise(2, torch.arange(N), dtype=torch.float64).normal(3)
    if num_steps == 0:
        expected = written_out(x_next, eps, damped=start == "denoised", cut=training)
    elif start == "denoised":
        expected = written_out(x_next, eps, damped=True, cut=training)
    else:
        expected = y_t if start == "data" and training else x_next
    torch.testing.assert_close(y, expected)
    assert acceptance.tolist() == [1.0] * N


@pytest.mark.parametrize("start", ["noisy", "data", "denoised"])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_guess_is_damped_but_for_the_papers_normal_approximation(start, num_steps):
    """Whoever asks a sampler with chains for a guess, as starts of long chains do, gets the damped one."""
    _, _, x_next = pair()
    eps = Noise(3, torch.arange(N), dtype=torch.float64).normal(3)
    guess = LevelSampler("mala", num_steps, 0.1, start).guess(Conditional(ENERGY, SCHEDULE, T, x_next), eps)
    torch.testing.assert_close(guess, written_out(x_next, eps, damped=num_steps > 0 or start == "denoised", cut=False))


def test_training_cuts_a_drift_that_data_cannot_make_and_generation_does_not():
    steep, x_next = GaussianEnergy(SCHEDULE, 50.0, 1e-3), torch.zeros(N, 3, dtype=torch.float64)
    conditional, sampler = Conditional(steep, SCHEDULE, T, x_next), LevelSampler(STILL, 2, 0.1, "denoised")
    sigma, share = column(SCHEDULE.sigma[1:]), column(SCHEDULE.posterior_share)
    longest = (1 + FARTHEST / 6**0.5) * (1 - share).sqrt() * sigma
    eps = torch.zeros_like(x_next)
    torch.testing.assert_close(sampler.guess(conditional, eps, cut=True), longest.expand(N, 3))
    assert bool((sampler.guess(conditional, eps) > 2 * longest).all())
    # Training and generation draw their starts so.
    x, y_t, _ = pair()
    cut, _ = sampler.draw(conditional, Noise(0, torch.arange(N), dtype=torch.float64), Truth(x, y_t))
    torch.testing.assert_close(cut, longest + share.sqrt() * sigma * residual(x, y_t, x_next))
    free, _ = sampler.draw(conditional, Noise(0, torch.arange(N), dtype=torch.float64))
    drift = share * sigma**2 * (column(steep.mean) - x_next) / column(steep.variance)
    eps = Noise(0, torch.arange(N), dtype=torch.float64).normal(3)
    torch.testing.assert_close(free, drift + share.sqrt() * sigma * eps)


def test_without_initial_noise_the_guess_of_training_has_noise_of_its_own():
    schedule = NoiseSchedule.from_sigmas([0.5])
    x, t = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.zeros(4, dtype=torch.long)
    energy, x_next = GaussianEnergy(schedule, 0.0, 1.0), 2 * x
    sampler, noise = LevelSampler("mala", 0), Noise(5, torch.arange(4), dtype=torch.float64)
    y, _ = sampler.draw(Conditional(energy, schedule, t, x_next), noise, Truth(x, schedule.scale[0] * x))
    eps = Noise(5, torch.arange(4), dtype=torch.float64).normal(3)
    torch.testing.assert_close(y, x_next - 0.25 * x_next / energy.variance[0] + 0.5 * eps)


def test_every_level_has_its_own_step_size():
    """One Langevin step, written out with delta_t of the chain's own level."""
    _, _, x_next = pair()
    steps = torch.tensor([0.05, 0.3], dtype=torch.float64)
    conditional = Conditional(ENERGY, SCHEDULE, T, x_next)
    y, _ = LevelSampler(langevin(0.7), 1, steps).draw(conditional, Noise(3, torch.arange(N), dtype=torch.float64))
    delta, eps = column(steps), Noise(3, torch.arange(N), dtype=torch.float64).normal(3)
    # At x_{t+1} the spring pulls nowhere.
    torch.testing.assert_close(y, x_next + delta**2 / 2 * gradient(x_next) + 0.7 * delta * eps)
    one = LevelSampler(langevin(), 1, 0.05)
    assert one.steps(T).tolist() == pytest.approx([0.05] * N)
    assert one.with_steps(steps).steps(T).tolist() == steps[T].tolist()


def test_jumps_come_before_every_fifth_step():
    calls = []

    def take(candidates, chosen):
        calls.append(candidates.shape)
        return candidates[0]

    _, _, x_next = pair()
    sampler = LevelSampler(STILL, 11, 0.1, jump_proposals=4, take=take)
    y, _ = sampler.draw(Conditional(ENERGY, SCHEDULE, T, x_next), Noise(0, torch.arange(N), dtype=torch.float64))
    assert calls == [(5, N, 3)] * 3
    assert torch.equal(y, x_next)


def test_acceptance_is_the_mean_over_all_steps():
    """Chains in pieces between jumps: seven steps are one piece of five and one of two."""
    rates = iter([1.0] * 5 + [0.3] * 2)

    def step(state, f, delta, noise):
        return state, Info(torch.full((N,), next(rates)))

    kernel = Kernel(lambda y, f: State(y), step)
    sampler = LevelSampler(kernel, 7, 0.1, jump_proposals=1, take=lambda candidates, chosen: candidates[0])
    _, acceptance = sampler.draw(Conditional(ENERGY, SCHEDULE, T, pair()[2]), Noise(0, torch.arange(N)))
    torch.testing.assert_close(acceptance, torch.full((N,), (5 * 1.0 + 2 * 0.3) / 7))


def test_a_sweep_holds_to_another_observation():
    """x_{t+1} ~ N(y, sigma^2) anew; then chains from y, or without chains the guess at it."""
    x, y_t, x_next = pair()
    conditional = Conditional(ENERGY, SCHEDULE, T, x_next)
    fresh = Noise(4, torch.arange(N), dtype=torch.float64)
    held, eps = y_t + column(SCHEDULE.sigma[1:]) * fresh.normal(3), fresh.normal(3)
    seen = []

    def init(y, f):
        seen.append((y, f))
        return State(y)

    watching = LevelSampler(Kernel(init, STILL.step, tested=False), 1, 0.1)
    y, _ = watching.sweep(conditional, y_t, Noise(4, torch.arange(N), dtype=torch.float64))
    assert torch.equal(y, y_t)
    ((start, target),) = seen
    assert torch.equal(start, y_t)
    torch.testing.assert_close(target.x_next, held)
    torch.testing.assert_close(target(x), Conditional(ENERGY, SCHEDULE, T, held)(x))
    for name, damped in (("noisy", False), ("denoised", True)):
        guessing = LevelSampler("mala", 0, start=name)
        y, _ = guessing.sweep(conditional, y_t, Noise(4, torch.arange(N), dtype=torch.float64))
        torch.testing.assert_close(y, written_out(held, eps, damped, cut=False))


def test_sweeps_leave_a_level_as_it_is():
    """Started at the exact law of y_0, few tested steps with steps of any size keep it."""
    n = 20_000
    mean, variance = float(ENERGY.mean[0]), float(ENERGY.variance[0])
    y = mean + variance**0.5 * Noise(0, torch.arange(n)).normal(1)
    conditional = Conditional(ENERGY, SCHEDULE, torch.zeros(n, dtype=torch.long), torch.zeros(n, 1))
    noise = Noise(1, torch.arange(n))
    for _ in range(3):
        y, acceptance = LevelSampler("mala", 2, 0.5).sweep(conditional, y, noise)
    assert 0.3 < float(acceptance.mean()) < 0.95
    check_moments(y, mean, variance)


def test_a_generator_serves_as_noise():
    _, _, x_next = pair()
    conditional = Conditional(ENERGY, SCHEDULE, T, x_next)
    for sampler in (LevelSampler("mala", 2, 0.1, "denoised", 2), LevelSampler("mala", 0)):
        drawn = [sampler.draw(conditional, torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)]
        assert torch.equal(drawn[0], drawn[1])
        assert not bool((drawn[0] == drawn[2]).any())
        assert drawn[0].dtype == torch.float64
        swept, _ = sampler.sweep(conditional, drawn[0], torch.Generator().manual_seed(3))
        assert swept.shape == x_next.shape


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "malla"}, "kernel='malla': unknown; choose langevin, mala, hmc, nuts"),
        ({"kernel": mala}, "kernel: is a function; give a Kernel or a name, for instance 'mala'"),
        ({"kernel": None}, "kernel: is None; give a Kernel or a name"),
        ({"num_steps": -1}, "num_steps=-1: must be at least 0"),
        ({"jump_proposals": -2}, "jump_proposals=-2: must be at least 0"),
        ({"step_size": -1}, "step_size=-1: must be positive and finite"),
        ({"step_size": torch.tensor(-1.0)}, "step_size=tensor(-1.): must be positive and finite"),
        ({"step_size": torch.tensor([0.1, torch.nan])}, "step_size=tensor([0.1000,    nan]): must be positive and finite"),
        ({"start": "cold"}, "start='cold': unknown; choose noisy, data, denoised"),
    ],
)
def test_what_a_sampler_cannot_be_made_of(options, words):
    with pytest.raises(UserError) as error:
        LevelSampler(**options)
    assert str(error.value).startswith(words)


def test_schedules_that_a_sampler_cannot_draw_from():
    springs, free = NoiseSchedule.log_snr(3), NoiseSchedule.t6(3)
    LevelSampler("mala", 0, torch.ones(3), "denoised").check(springs)
    LevelSampler("mala", 1, torch.ones(3)).check(free)
    LevelSampler("mala", 1, 0.1).check(free)
    for sampler, schedule, words in (
        (LevelSampler("mala", 5, torch.ones(2)), springs, r"step_size: has shape \[2\]; needs \[3\], one per level"),
        (LevelSampler("mala", 0), free, "num_steps=0: needs the spring of every level"),
        (LevelSampler("mala", 5, start="denoised"), free, "start='denoised': needs the spring of every level"),
    ):
        with pytest.raises(UserError, match=words):
            sampler.check(schedule)


def test_what_a_sampler_says_of_itself():
    sampler = LevelSampler(langevin(0.9), 3, 0.1, "data", 2)
    assert sampler.description() == {
        "kernel": "langevin",
        "options": {"noise_scale": 0.9},
        "num_steps": 3,
        "start": "data",
        "jump_proposals": 2,
    }
    assert not sampler.tested
    assert LevelSampler("hmc", 3).tested
    # Without steps there is nothing to test.
    assert not LevelSampler("hmc", 0).tested
