"""The paper's own statements, checked by numbers."""

import math

import pytest
import torch

from springwell.conditional import Conditional
from springwell.data.toy import log_density, toy_data
from springwell.level import LevelSampler, Truth, _shared_noise
from springwell.noise import Noise
from springwell.objectives import DSM, Recovery
from springwell.samplers import langevin, value_and_grad
from springwell.schedule import NoiseSchedule
from tests.exact import with_pairs


def slope(x, y):
    """Slope of log y over log x, by least squares."""
    x, y = (torch.tensor(v, dtype=torch.float64).log() for v in (x, y))
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


@pytest.mark.parametrize("name", ["eight_gaussians", "two_moons", "rings"])
def test_scores_of_data_and_noisy_data_differ_in_second_order(name):
    """grad log p(x) and the score of x + sigma eps at the same point differ by O(sigma^2): measured slope 2 +- 0.05."""
    toy = toy_data(name)
    x = toy.sample(Noise(0, torch.arange(200), dtype=torch.float64))

    def score(sigma):
        return value_and_grad(lambda z: log_density(toy, z, 1.0, sigma), x)[1]

    clean, sigmas = score(0.0), [0.001, 0.002, 0.004, 0.008]
    difference = [float((score(s) - clean).norm(dim=-1).mean()) for s in sigmas]
    assert slope(sigmas, difference) == pytest.approx(2.0, abs=0.05)


class Family(torch.nn.Module):
    """f(y) = theta . features(y), one-dimensional."""

    def __init__(self):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor([0.8, -0.6, 0.3], dtype=torch.float64))

    @staticmethod
    def features(y):
        return torch.cat([torch.sin(y), 0.5 * y**2, torch.cos(2 * y)], -1)

    def forward(self, y, t=None):
        return self.features(y) @ self.theta


class Fixed(Noise):
    """In place of Noise: draw after draw of the normals that it is given; an objective makes a pair from the first two."""

    def __init__(self, *values):
        self.num, self.values = len(values[0]), list(values)

    def __len__(self):
        return self.num

    def normal(self, *shape):
        return self.values.pop(0).view(-1, *shape)


def unscaled(schedule, y_t):
    """The data that make y_t at level 0 of a schedule without initial noise."""
    assert float(schedule.sigma[0]) == 0
    return y_t / schedule.scale[0]


# Three-point Gauss-Hermite nodes with equal weights (1 : 4 : 1): exact for polynomials up to degree 5.
HERMITE = torch.tensor([-math.sqrt(3.0), 0, 0, 0, 0, math.sqrt(3.0)], dtype=torch.float64)


def pairs():
    """All (y, eps, eps') with y at the quantiles of a law of data and both noises at the nodes; x_next is y + sigma eps."""
    y = torch.special.ndtri((torch.arange(40, dtype=torch.float64) + 0.5) / 40) * 0.7 + 0.4
    return [v.reshape(-1, 1) for v in torch.meshgrid(y, HERMITE, HERMITE, indexing="ij")]


def normal_approximation_gradient(sigma):
    """Gradient of the recovery objective with K = 0."""
    family, schedule = Family(), NoiseSchedule.from_sigmas([sigma])
    y, eps, eps_neg = pairs()
    loss_fn = Recovery(family, schedule, LevelSampler("langevin", 0))
    # Without initial noise the first normals are not used, and the negative's are the fresh ones.
    outcome = loss_fn(unscaled(schedule, y), Fixed(0 * eps, eps, eps_neg), torch.zeros(len(y), dtype=torch.long))
    outcome.loss.mean().backward()
    return family.theta.grad


def dsm_gradient(sigma):
    family, schedule = Family(), NoiseSchedule.from_sigmas([sigma])
    y, eps, _ = pairs()
    t = torch.zeros(len(y), dtype=torch.long)
    DSM(family, schedule)(unscaled(schedule, y), Fixed(0 * eps, eps), t).loss.mean().backward()
    return family.theta.grad


def exact_recovery_gradient(sigma):
    """d/dtheta of -log p(y | x_next), the expectation under the conditional by dense quadrature."""
    family = Family()
    y, eps, _ = pairs()
    x_next = y + sigma * eps
    z = x_next + sigma * torch.linspace(-9, 9, 1201, dtype=torch.float64)
    with torch.no_grad():
        features = Family.features(z[..., None])
        log_p = features @ family.theta - (z - x_next) ** 2 / (2 * sigma**2)
        expected = (torch.softmax(log_p, -1)[..., None] * features).sum(1)
    return (expected - Family.features(y)).mean(0)


@pytest.mark.parametrize("other", [normal_approximation_gradient, dsm_gradient])
def test_gradients_agree_with_recovery_likelihood_as_sigma_vanishes(other):
    """The learning gradients of K = 0 and of score matching approach the exact one: relative error O(sigma^2)."""
    sigmas, errors = [0.4, 0.2, 0.1, 0.05], []
    for sigma in sigmas:
        exact = exact_recovery_gradient(sigma)
        errors.append(float((other(sigma) - exact).norm() / exact.norm()))
    assert errors[-1] < 0.01
    assert slope(sigmas[1:], errors[1:]) == pytest.approx(2.0, abs=0.3)


def test_recovery_estimate_has_the_predicted_variance():
    """Estimating the mean of N(mu, s^2) by recovery likelihood, 800 times over, with the library's objective and chains.

    Of the information 1 / s^2 that y carries, the 1 / (s^2 + sigma^2) that x_next carries by itself is lost (the recovery
    likelihood conditions on it), so n Var = s^2 (s^2 + sigma^2) / sigma^2 instead of the maximum-likelihood s^2.
    """
    replicates, n, mu, s, sigma = 800, 60, 0.5, 0.7, 0.7
    schedule = NoiseSchedule.from_sigmas([sigma] * replicates)
    t = torch.arange(replicates).repeat_interleave(n)
    noise = Noise(0, torch.arange(replicates * n))
    y = mu + s * noise.normal(1)
    x_next = y + sigma * noise.normal(1)

    class Location(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.nn.Parameter(torch.zeros(replicates))

        def forward(self, y, t):
            return -((y[:, 0] - self.mean[t]) ** 2) / (2 * s**2)

    energy = Location()
    sampler = LevelSampler("mala", 8, 1.1 * s * sigma / math.hypot(s, sigma), "data")
    loss_fn = Recovery(energy, with_pairs(schedule, y, x_next), sampler)
    information = sigma**2 / (s**2 * (s**2 + sigma**2))
    warm, averaged, total = 40, 120, torch.zeros(replicates)
    for i in range(warm + averaged):
        outcome = loss_fn(y, Noise(1, torch.arange(len(y)), i), t)
        energy.mean.grad = None
        (outcome.loss.sum() / n).backward()
        with torch.no_grad():
            energy.mean -= 0.3 * energy.mean.grad / information
            total += energy.mean * (i >= warm)
    estimate = (total / averaged).double()

    closed_form = (((s**2 + sigma**2) * y - s**2 * x_next) / sigma**2).view(replicates, n).mean(1).double()
    variance = s**2 * (s**2 + sigma**2) / (n * sigma**2)
    # The chains' noise, averaged over the iterations, adds 1 / averaged of the variance; an average of AR(1) noise twice that.
    assert float((estimate - closed_form).square().mean()) < 3 * variance / averaged + 1e-4 * variance
    assert abs(float(estimate.mean()) - mu) < 4.5 * math.sqrt(variance / replicates)
    ratio = float(estimate.var()) / variance
    assert abs(ratio - 1) < 4.5 * math.sqrt(2 / replicates) + 3 / averaged
    # The maximum-likelihood estimate of the same data is the better one, by exactly the information lost.
    mle = y.view(replicates, n).mean(1).double()
    assert float(mle.var()) / (s**2 / n) == pytest.approx(1, abs=4.5 * math.sqrt(2 / replicates))
    assert 1 / (n * variance) == pytest.approx(1 / s**2 - 1 / (s**2 + sigma**2))


def test_score_matching_learns_the_noisy_score():
    """Of Gaussian data, f = -theta y^2 / 2 has its least score-matching loss at theta = 1 / (s^2 + sigma^2)."""
    s, sigma = 0.8, 0.5
    schedule = NoiseSchedule.from_sigmas([sigma])
    y = (torch.special.ndtri((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000) * s)[:, None]
    y, eps = y.repeat_interleave(6, 0), HERMITE.repeat(4000)[:, None]
    s_square = float(y.square().mean())
    theta = torch.tensor(1 / (s_square + sigma**2), dtype=torch.float64, requires_grad=True)
    energy = lambda z, t: -0.5 * theta * z[:, 0] ** 2  # noqa: E731
    t = torch.zeros(len(y), dtype=torch.long)
    DSM(energy, schedule)(unscaled(schedule, y), Fixed(0 * eps, eps), t).loss.mean().backward()
    assert theta.grad is not None
    assert abs(float(theta.grad)) < 1e-12


def test_one_sign():
    """Gradient descent on the loss raises f at data and lowers it at negatives."""
    family, schedule = Family(), NoiseSchedule.from_sigmas([0.5])
    y = torch.full((4, 1), 0.9, dtype=torch.float64)
    sampler = LevelSampler(langevin(), 3, torch.full((1,), 0.2))
    t = torch.zeros(4, dtype=torch.long)
    noise = Noise(0, torch.arange(4), dtype=torch.float64)
    outcome = Recovery(family, with_pairs(schedule, y, y), sampler)(y, noise, t)
    gap = float((outcome.statistics["f_pos"] - outcome.statistics["f_neg"]).mean())
    assert float(outcome.loss.detach().mean()) == pytest.approx(-gap)
    before = float(family(y).mean().detach())
    outcome.loss.mean().backward()
    negatives, _ = sampler.run(Conditional(family, schedule, t, y), y, Noise(0, torch.arange(4), dtype=torch.float64))
    low = float(family(negatives).mean().detach())
    with torch.no_grad():
        family.theta -= 0.1 * family.theta.grad
    after, later = float(family(y).mean().detach()), float(family(negatives).mean().detach())
    assert after - later > before - low


def test_shared_noise_is_standard_normal_and_independent_of_the_observation():
    schedule, n = NoiseSchedule.linear(1000), 200_000
    noise = Noise(3, torch.arange(n), dtype=torch.float64)
    t = torch.arange(n) % 1000
    x = 0.5 + 0.8 * noise.normal(1)
    y_t, x_next = schedule.pair(x, t, noise)
    eps = _shared_noise(Conditional(lambda y, t: y[:, 0], schedule, t, x_next), Truth(x, y_t), noise)
    error = 1 / math.sqrt(n)
    assert abs(float(eps.mean())) < 4 * error
    assert abs(float(eps.var()) - 1) < 4 * math.sqrt(2) * error
    for other in (x_next, x, x_next**2):
        standardised = (other - other.mean()) / other.std()
        assert abs(float((eps * standardised).mean())) < 4 * error


def test_shared_noise_leaves_the_gradient_of_k_0_and_takes_its_variance():
    """Data N(0, 0.7^2), f = theta y at theta = 0.3: per-sample gradients y^- - y_t with shared and with fresh noise."""
    schedule, n = NoiseSchedule.linear(1000), 200_000
    t = torch.full((n,), 200)
    noise = Noise(5, torch.arange(n), dtype=torch.float64)
    x = 0.7 * noise.normal(1)
    y_t, x_next = schedule.pair(x, t, noise)
    sampler = LevelSampler("langevin", 0)
    theta = torch.full((n,), 0.3, dtype=torch.float64, requires_grad=True)

    def energy(y, t):
        return theta.repeat(len(y) // n) * y[:, 0]

    outcome = Recovery(energy, with_pairs(schedule, y_t, x_next), sampler)(x, noise, t)
    (shared,) = torch.autograd.grad(outcome.loss.sum(), theta)
    fresh = (sampler.draw(Conditional(energy, schedule, t, x_next), noise)[0] - y_t)[:, 0].detach()
    difference = fresh - shared
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / math.sqrt(n)
    # What is left is the spread of E[y_t | x_{t+1}, x] about x_{t+1}, against twice sigma^2.
    sigma = schedule.sigma[201]
    spread = (schedule.scale[200] * schedule.sigma_cum[200]) ** 2
    share = sigma**2 / (sigma**2 + spread)
    left = share**2 * (spread + sigma**2) + ((1 - share).sqrt() - 1) ** 2 * sigma**2
    assert float(shared.var()) == pytest.approx(float(left), rel=0.05)
    assert float(shared.var()) < 0.05 * float(fresh.var())


def test_denoised_start_is_exact_for_one_data_point():
    """Data at a single point: the start has the law of y_t given x_{t+1} at every hop, and with shared noise is y_t itself.

    But for one x_{t+1} in several thousand, which in one dimension is so far off that its drift is cut.
    """
    schedule, n = NoiseSchedule.log_snr(5, 4, -4), 50_000
    noise = Noise(1, torch.arange(n), dtype=torch.float64)
    t, x = torch.arange(n) % 5, torch.full((n, 1), 0.6, dtype=torch.float64)
    y_t, x_next = schedule.pair(x, t, noise)
    centre, spread = (schedule.scale * schedule.a_cum[:-1] * 0.6)[t, None], (schedule.scale * schedule.sigma_cum[:-1])[t, None]
    near = ((x_next - centre).abs() < 3.8 * (spread**2 + schedule.sigma[t + 1, None] ** 2).sqrt())[:, 0]
    assert 0.9995 < float(near.double().mean()) < 1
    noise = Noise(1, torch.arange(n)[near], dtype=torch.float64)
    t, x, y_t, x_next, centre, spread = (value[near] for value in (t, x, y_t, x_next, centre, spread))

    def energy(y, t):
        return -((y - centre) ** 2 / (2 * spread**2)).sum(-1)

    conditional = Conditional(energy, schedule, t, x_next)
    shared = _shared_noise(conditional, Truth(x, y_t), noise)
    torch.testing.assert_close(conditional.normal_approximation(shared, damped=True), y_t)
    for num_steps in (0, 1):
        sampler = LevelSampler("mala", num_steps, 1e-9, "denoised")
        loss_fn = Recovery(energy, with_pairs(schedule, y_t, x_next), sampler, differentiated=energy_twice(energy))
        outcome = loss_fn(x, noise, t)
        assert float(outcome.loss.abs().max()) < 1e-5


def energy_twice(energy):
    """For positives and negatives in one call."""
    return lambda y, t: torch.cat([energy(part, t) for part in y.chunk(2)])
