"""Objectives as objects: their loss by hand, their weights, their levels."""

import pytest
import torch
from scipy import stats

from springwell.conditional import Conditional
from springwell.errors import UserError
from springwell.level import LevelSampler, Truth
from springwell.noise import Noise
from springwell.objectives import DSM, STATISTICS, Marginal, Recovery, random_levels, stratified_levels
from springwell.schedule import NoiseSchedule

SCHEDULE = NoiseSchedule.from_sigmas([0.4, 0.6, 0.8], 0.1)
N = 12
T = torch.arange(N) % 3


class Quadratic(torch.nn.Module):
    """f(y, t) = -theta_t |y|^2 / 2, whose gradient is -theta_t y."""

    def __init__(self, num_levels=3):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.linspace(0.5, 1.5, num_levels, dtype=torch.float64))

    def forward(self, y, t):
        return -0.5 * self.theta[t] * y.flatten(1).square().sum(-1)


def noise(stream=0):
    return Noise(7, torch.arange(N), stream, dtype=torch.float64)


def data():
    return Noise(8, torch.arange(N), dtype=torch.float64).normal(2, 2)


def pair(schedule, x, t, drawn):
    """y_t and x_{t+1}, written out, from the first two normals."""
    a_cum, sigma_cum, scale = (v[t].view(-1, 1, 1) for v in (schedule.a_cum, schedule.sigma_cum, schedule.scale))
    x_t = a_cum * x + sigma_cum * drawn.normal(2, 2)
    return scale * x_t, schedule.a[t + 1].view(-1, 1, 1) * x_t + schedule.sigma[t + 1].view(-1, 1, 1) * drawn.normal(2, 2)


@pytest.mark.parametrize("start", ["noisy", "data", "denoised"])
@pytest.mark.parametrize("num_steps", [0, 4])
def test_recovery_is_f_of_negatives_less_f_of_data(start, num_steps):
    energy, x = Quadratic(), data()
    sampler = LevelSampler("mala", num_steps, 0.3, start)
    outcome = Recovery(energy, SCHEDULE, sampler)(x, noise(), T)
    drawn = noise()
    y_t, x_next = pair(SCHEDULE, x, T, drawn)
    y_neg, acceptance = sampler.draw(Conditional(energy, SCHEDULE, T, x_next), drawn, Truth(x, y_t))
    f_pos, f_neg = energy(y_t, T), energy(y_neg, T)
    torch.testing.assert_close(outcome.loss, f_neg - f_pos)
    assert tuple(outcome.statistics) == ("level", *STATISTICS)
    assert Recovery.names == STATISTICS
    assert torch.equal(outcome.statistics["level"], T)
    travelled = (y_neg - x_next).square().mean((1, 2)).sqrt() / SCHEDULE.sigma[T + 1]
    for name, value in zip(STATISTICS, (f_pos.detach(), f_neg.detach(), travelled, acceptance), strict=True):
        assert not outcome.statistics[name].requires_grad
        torch.testing.assert_close(outcome.statistics[name], value)
    # Chains give no gradient: only the two evaluations of f do, d/dtheta of -theta |y|^2 / 2.
    (gradient,) = torch.autograd.grad(outcome.loss.sum(), energy.theta)
    by_hand = 0.5 * (y_t.square().sum((1, 2)) - y_neg.square().sum((1, 2)))
    torch.testing.assert_close(gradient, torch.zeros(3, dtype=torch.float64).index_add(0, T, by_hand))


def test_without_chains_the_negative_is_the_normal_approximation_with_the_noise_of_the_data():
    """f = -theta |y|^4 / 4, for which the approximation is not exact: y^- = x' + sigma^2 grad f(x') + sigma eps, with the eps
    that y_t has about its mean given x' and the data."""
    x, theta = data(), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)

    def energy(y, t):
        return -theta[t] * y.pow(4).sum((1, 2)) / 4

    outcome = Recovery(energy, SCHEDULE, LevelSampler("mala", 0))(x, noise(), T)
    y_t, x_next = pair(SCHEDULE, x, T, noise())
    sigma, scale, a, spread = (
        v.view(-1, 1, 1) for v in (SCHEDULE.sigma[T + 1], SCHEDULE.scale[T], SCHEDULE.a_cum[T], SCHEDULE.sigma_cum[T])
    )
    prior, spring = (scale * spread) ** -2, sigma**-2
    eps = (y_t - (prior * scale * a * x + spring * x_next) / (prior + spring)) * (prior + spring).sqrt()
    y_neg = (x_next - sigma**2 * theta[T].view(-1, 1, 1) * x_next**3 + sigma * eps).detach()
    torch.testing.assert_close(outcome.loss, energy(y_neg, T) - energy(y_t, T))
    (gradient,) = torch.autograd.grad(outcome.loss.sum(), theta)
    by_hand = (y_t.pow(4).sum((1, 2)) - y_neg.pow(4).sum((1, 2))) / 4
    torch.testing.assert_close(gradient, torch.zeros(3, dtype=torch.float64).index_add(0, T, by_hand))


@pytest.mark.parametrize(("num_levels", "factor"), [(12, 1.8), (72, 1.09)])
def test_the_damped_guess_alone_makes_slopes_too_steep_by_a_known_factor(num_levels, factor):
    """Data N(0, 1): y_t has precision 1 / a^2. Training rests where the guess has the variance of y_t, that is, at c / a^2
    with c = a^2 (1 - (1 - (1 + s) sigma^2)^(1/2)) / (s sigma^2), which is (1 + s) / 2s for small sigma; not at 1 / a^2."""
    schedule = NoiseSchedule.log_snr(num_levels, 7.0, -5.0)
    level, num = num_levels // 4, 1_000_000
    a_square, sigma_square, share = (
        float(v[level]) for v in (schedule.scale**2, schedule.sigma[1:] ** 2, schedule.posterior_share)
    )
    c = a_square * (1 - (1 - (1 + share) * sigma_square) ** 0.5) / (share * sigma_square)
    assert c == pytest.approx(factor, rel=0.03)
    assert c == pytest.approx((1 + share) / (2 * share), rel=0.05)
    x, t = Noise(3, torch.arange(num), dtype=torch.float64).normal(1, 1), torch.full((num,), level)
    errors = []
    for theta in (c / a_square, 1 / a_square):
        energy = Quadratic(num_levels)
        energy.theta.data.fill_(theta)
        objective = Recovery(energy, schedule, LevelSampler("mala", 0, 0.1, "denoised"))
        # The loss is linear in theta, so that each sample's derivative is its loss over theta.
        slope = objective(x, Noise(4, torch.arange(num), dtype=torch.float64), t).loss.detach() / theta
        errors.append(float(slope.mean() / (slope.std() / num**0.5)))
    assert abs(errors[0]) < 4.5
    assert abs(errors[1]) > 9


def test_marginal_is_recovery_on_one_level_without_spring():
    schedule, energy, x, t = NoiseSchedule.marginal(0.1), Quadratic(1), data(), torch.zeros(N, dtype=torch.long)
    sampler = LevelSampler("langevin", 3, 0.2)
    outcome = Marginal(energy, schedule, sampler)(x, noise(), t)
    drawn = noise()
    y_t, x_next = pair(schedule, x, t, drawn)
    # The chain starts at pure noise, x_1, and no spring holds it there.
    y = x_next
    for _ in range(3):
        y = y + 0.2**2 / 2 * (-0.5 * y) + 0.2 * drawn.normal(2, 2)
    torch.testing.assert_close(outcome.loss, energy(y, t) - energy(y_t, t), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", ["posterior", "sample"])
def test_score_matching_is_the_distance_of_the_denoised(target):
    """From y_t itself, or from its mean given x_{t+1} and the data, in precisions; that is the default."""
    energy, x = Quadratic(), data()
    outcome = DSM(energy, SCHEDULE, target=target)(x, noise(), T)
    y_t, x_next = pair(SCHEDULE, x, T, noise())
    sigma, theta = (v.view(-1, 1, 1) for v in (SCHEDULE.sigma[T + 1], energy.theta[T]))
    wanted = y_t
    if target == "posterior":
        scale, a, spread = (v[T].view(-1, 1, 1) for v in (SCHEDULE.scale, SCHEDULE.a_cum, SCHEDULE.sigma_cum))
        prior, spring = (scale * spread) ** -2, sigma**-2
        wanted = (prior * scale * a * x + spring * x_next) / (prior + spring)
        assert torch.equal(DSM(energy, SCHEDULE)(x, noise(), T).loss, outcome.loss)
    denoised = x_next - sigma**2 * theta * x_next
    torch.testing.assert_close(outcome.loss, (wanted - denoised).square().sum((1, 2)) / (2 * sigma[:, 0, 0] ** 2))
    assert tuple(outcome.statistics) == ("level", *DSM.names)
    moved = (sigma * theta * x_next).detach().square().mean((1, 2)).sqrt()
    torch.testing.assert_close(outcome.statistics["displacement"], moved)
    (gradient,) = torch.autograd.grad(outcome.loss.sum(), energy.theta)
    # d/dtheta of |y - (1 - sigma^2 theta) x|^2 / (2 sigma^2) is (y - (1 - sigma^2 theta) x) . x.
    by_hand = ((wanted - denoised) * x_next).sum((1, 2)).detach()
    torch.testing.assert_close(gradient, torch.zeros(3, dtype=torch.float64).index_add(0, T, by_hand))


def test_the_weight_is_that_given_or_the_energys_own_or_one():
    energy, sampler, x = Quadratic(), LevelSampler("mala", 2, 0.3), data()
    plain = Recovery(energy, SCHEDULE, sampler)(x, noise(), T).loss
    given = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)
    torch.testing.assert_close(Recovery(energy, SCHEDULE, sampler, given)(x, noise(), T).loss, given[T] * plain)
    energy.loss_weight = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    torch.testing.assert_close(Recovery(energy, SCHEDULE, sampler)(x, noise(), T).loss, energy.loss_weight[T] * plain)
    torch.testing.assert_close(Recovery(energy, SCHEDULE, sampler, given)(x, noise(), T).loss, given[T] * plain)


def test_gradients_go_through_the_energy_that_is_to_be_differentiated():
    """Under data parallelism that is a wrapper; chains go on with the energy itself."""
    chains, wrapper, x = Quadratic(), Quadratic(), data()
    with torch.no_grad():
        wrapper.theta.mul_(3)
    sampler = LevelSampler("mala", 2, 0.3)
    outcome = Recovery(chains, SCHEDULE, sampler, differentiated=wrapper)(x, noise(), T)
    torch.testing.assert_close(outcome.loss, 3 * Recovery(chains, SCHEDULE, sampler)(x, noise(), T).loss)
    outcome.loss.sum().backward()
    assert chains.theta.grad is None
    assert wrapper.theta.grad is not None


@pytest.mark.parametrize("objective", ["recovery", "dsm"])
def test_levels_are_drawn_uniformly_if_not_given(objective):
    """Chains and loss see the same levels, whose counts are compared with equal ones by chi-square."""
    n, x = 6000, torch.zeros(6000, 1)
    seen = []

    def energy(y, t):
        seen.append(t[:n])
        return -0.5 * y.square().sum(-1)

    loss_fn = DSM(energy, SCHEDULE) if objective == "dsm" else Recovery(energy, SCHEDULE, LevelSampler("mala", 1, 0.1))
    loss_fn(x, Noise(0, torch.arange(n)))
    assert all(torch.equal(t, seen[0]) for t in seen)
    assert stats.chisquare(torch.bincount(seen[0], minlength=3).numpy()).pvalue > 1e-4


def test_random_levels_reach_the_first_and_the_last():
    t = random_levels(7, Noise(1, torch.arange(70_000)))
    assert (int(t.min()), int(t.max())) == (0, 6)
    assert stats.chisquare(torch.bincount(t).numpy()).pvalue > 1e-4

    class Largest(Noise):
        def uniform(self, *shape):
            return torch.full((len(self), *shape), 1 - 2.0**-24)

    # A uniform that rounds to 1 does not reach beyond the last.
    assert random_levels(1000, Largest(0, torch.arange(2))).tolist() == [999, 999]


def test_stratified_levels_are_spread_evenly():
    """A batch of 96 over 7 levels has 13 or 14 of each, whatever the offset, and all of it is uniform over offsets."""
    offsets = Noise(2, torch.arange(4000)).uniform()
    counts = torch.zeros(7)
    for offset in offsets[:200]:
        t = stratified_levels(7, torch.arange(96), 96, offset[None])
        found = torch.bincount(t, minlength=7)
        assert set(found.tolist()) <= {13, 14}
        counts += found
    one = torch.stack([stratified_levels(7, torch.tensor([13]), 96, offset[None])[0] for offset in offsets])
    # Position 13 of 96 covers (13 ... 14) * 7 / 96 = 0.948 ... 1.021: level 0 with probability 5 / 7.
    share = float((one == 0).double().mean())
    assert abs(share - 5 / 7) < 4.5 * (5 / 7 * 2 / 7 / 4000) ** 0.5
    assert set(one.tolist()) == {0, 1}
    assert float(counts.max() / counts.min()) < 1.02


def test_a_generator_serves_as_noise():
    energy, x = Quadratic(), data()
    for loss_fn in (Recovery(energy, SCHEDULE, LevelSampler("mala", 2, 0.3)), DSM(energy, SCHEDULE)):
        losses = [loss_fn(x, torch.Generator().manual_seed(seed)).loss for seed in (0, 0, 1)]
        assert torch.equal(losses[0], losses[1])
        assert not torch.equal(losses[0], losses[2])
        assert losses[0].dtype == torch.float64


def test_wrong_parts_are_named():
    energy, sampler, x = Quadratic(), LevelSampler("mala", 2, 0.3), data()
    for make, words in (
        (lambda: Recovery(3, SCHEDULE, sampler), "energy: is an int; give a callable"),
        (lambda: Recovery(energy, [0.4, 0.6], sampler), "schedule: is a list; give a NoiseSchedule"),
        (lambda: Recovery(energy, SCHEDULE, "mala"), "sampler: is a str; give a LevelSampler"),
        (lambda: Recovery(energy, SCHEDULE, None), "sampler: is None; give a LevelSampler"),
        (lambda: Marginal(energy, None, sampler), "schedule: is None; give a NoiseSchedule"),
        (lambda: DSM(None, SCHEDULE), "energy: is None; give a callable"),
        (lambda: DSM(energy, 12), "schedule: is an int; give a NoiseSchedule"),
        (lambda: Marginal(energy, SCHEDULE, sampler), "one level without spring; use NoiseSchedule.marginal()"),
        (lambda: DSM(energy, NoiseSchedule.t6(3)), "needs the spring of every level"),
        (lambda: Recovery(energy, NoiseSchedule.t6(3), LevelSampler("mala", 0)), "num_steps=0: needs the spring"),
        (lambda: Recovery(energy, SCHEDULE, sampler)(x, 0), "noise: is an int; give Noise"),
        (lambda: DSM(energy, SCHEDULE)(x, None), "noise: is None; give Noise"),
        (lambda: DSM(energy, SCHEDULE)(x, Noise(0, torch.arange(3))), "noise: is for 3 samples, and there are 12"),
    ):
        with pytest.raises(UserError) as error:
            make()
        assert words in str(error.value)
        assert "\n" not in str(error.value)


def test_a_loop_of_ones_own_as_the_readme_writes_it():
    energy = Quadratic()
    before = energy.theta.detach().clone()
    optimizer = torch.optim.SGD([energy.theta], 0.1)
    for loss_fn in (Recovery(energy, SCHEDULE, LevelSampler("mala", 2, [0.1, 0.2, 0.3])), DSM(energy, SCHEDULE)):
        loss, statistics = loss_fn(data(), torch.Generator().manual_seed(0))
        loss.mean().backward()
        assert bool(((statistics["level"] >= 0) & (statistics["level"] < 3)).all())
    optimizer.step()
    assert not torch.equal(energy.theta, before)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e, s: Recovery(e, SCHEDULE, s)(data().numpy(), noise()), "x: is a ndarray"),
        (lambda e, s: Recovery(e, SCHEDULE, s)(data(), noise(), 3), "t: is an int"),
        (lambda e, s: Recovery(e, SCHEDULE, s)(data(), noise(), T[:2]), r"t: is \[2\]"),
        (lambda e, s: Recovery(e, SCHEDULE, s, weight=2.0), "weight=2.0: give a tensor"),
        (lambda e, s: DSM(e, SCHEDULE, s), "differentiated: is a LevelSampler.*takes no sampler"),
        (lambda e, s: DSM(e, SCHEDULE, target="foo"), "target='foo': unknown; choose posterior, sample"),
        (lambda e, s: LevelSampler("mala", 2.5), "num_steps=2.5: is not a whole number"),
        (lambda e, s: LevelSampler("mala", 2, -1.0), "step_size=-1.0: must be positive"),
        (lambda e, s: LevelSampler("mala", 2, "a"), "step_size='a': is not a number"),
        (lambda e, s: NoiseSchedule.log_snr(2.5), "num_levels=2.5: is not a whole number"),
        (lambda e, s: NoiseSchedule.from_sigmas("a"), "sigmas='a': needs numbers"),
    ],
)
def test_wrong_parts_are_one_sentence(call, words):
    with pytest.raises(UserError, match=words) as error:
        call(Quadratic(), LevelSampler("mala", 2, 0.1))
    assert "\n" not in str(error.value)
