"""The objective's optimum is the truth: at the exact density its expected gradient vanishes in every parameter."""

import math
from functools import lru_cache

import pytest
import torch
from scipy import stats
from torch import Tensor

from springwell.energy.prior import Prior
from springwell.energy.residual import LevelEnergy, NoiseMLP, NoiseUNet, ResidualEnergy
from springwell.errors import UserError
from springwell.level import LevelSampler
from springwell.noise import Noise
from springwell.normalised import Focus, Normalised, Weights, classifier_loss, noise_target, normalised_losses
from springwell.objectives import Outcome, Recovery
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand

NUM = 200_000


class Mixture:
    """log-density of x + sigma eps, x from two Gaussians of ``dim`` dimensions, with free parameters."""

    def __init__(self, weight: float = 0.2, centre: float = 3.0, width: float = 0.3, offset: float = 0.0, dim: int = 1):
        self.dim = dim
        self.logit = torch.tensor(math.log(weight / (1 - weight)), dtype=torch.float64, requires_grad=True)
        self.centre = torch.tensor(centre, dtype=torch.float64, requires_grad=True)
        self.log_width = torch.tensor(math.log(width), dtype=torch.float64, requires_grad=True)
        self.slope = torch.tensor(offset, dtype=torch.float64, requires_grad=True)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.logit, self.centre, self.log_width, self.slope]

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        first = torch.rand(num, 1, generator=generator, dtype=torch.float64) < torch.sigmoid(self.logit)
        x = torch.where(first, self.centre, -self.centre) / self.dim**0.5
        return (x + self.log_width.exp() * torch.randn(num, self.dim, generator=generator, dtype=torch.float64)).detach()

    def __call__(self, y: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma.view(len(y), -1)
        v, c = (2 * self.log_width).exp() + sigma**2, self.centre / self.dim**0.5
        parts = [(-((y - side * c) ** 2) / (2 * v) - 0.5 * (2 * math.pi * v).log()).sum(-1) for side in (1, -1)]
        logs = [torch.nn.functional.logsigmoid(self.logit), torch.nn.functional.logsigmoid(-self.logit)]
        # slope is an error of normalisation that differs between levels: invisible in space.
        return torch.logaddexp(parts[0] + logs[0], parts[1] + logs[1]) + self.slope * sigma.log().mean(-1)


@lru_cache(maxsize=1)
def draws(num: int = NUM, seed: int = 0, dim: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = Mixture(dim=dim).sample(num, generator)
    sigma = torch.exp(math.log(0.1) + math.log(100) * torch.rand(num, generator=generator, dtype=torch.float64))
    return x, sigma, torch.randn(num, dim, generator=generator, dtype=torch.float64)


def gradient(energy: Mixture, term: str, limit: float = 0.0, groups: int = 50, num: int = NUM) -> tuple[Tensor, Tensor]:
    """Mean gradient ``[4]`` of a term of the loss, and its standard error."""
    x, sigma, eps = draws(num, dim=energy.dim)
    rows = []
    for part in torch.arange(len(x)).chunk(groups):
        if term == "classifier":
            other = sigma[part.flip(0)]
            loss = classifier_loss(energy, x[part] + sigma[part, None] * eps[part], sigma[part], other).mean()
        else:
            loss = getattr(normalised_losses(energy, x[part], sigma[part], eps[part], limit), term).mean()
        grads = torch.autograd.grad(loss, energy.parameters, allow_unused=True)
        rows.append(
            torch.stack([torch.zeros_like(p) if g is None else g for p, g in zip(energy.parameters, grads, strict=True)])
        )
    found = torch.stack(rows)
    return found.mean(0), found.std(0) / groups**0.5


@pytest.mark.parametrize("term", ["space", "noise", "total", "classifier"])
def test_the_truth_is_stationary(term: str) -> None:
    mean, error = gradient(Mixture(), term)
    assert bool((mean.abs() <= 4.5 * error + 1e-12).all()), (mean, error)


@pytest.mark.parametrize("term", ["noise", "total"])
@pytest.mark.parametrize("limit", [1.0, math.inf])
def test_the_truth_is_stationary_under_the_control_variate_and_less_noisy(term: str, limit: float) -> None:
    mean, error = gradient(Mixture(), term, limit)
    assert bool((mean.abs() <= 4.5 * error + 1e-12).all()), (mean, error)
    # The gradients of all four parameters vary less; the mean over 50 groups tells 10 % or more.
    plain = gradient(Mixture(), term)[1]
    assert float((error / plain).mean()) < 0.9


@pytest.mark.parametrize("term", ["noise", "total", "classifier"])
def test_wrong_weights_and_wrong_normalisation_are_seen(term: str) -> None:
    mean, error = gradient(Mixture(weight=0.5), term)
    assert float(mean[0]) > 10 * float(error[0])
    mean, error = gradient(Mixture(offset=0.2), term)
    assert float(mean[3]) > 10 * float(error[3])


@pytest.mark.parametrize("term", ["space", "noise", "total", "classifier"])
@pytest.mark.parametrize(("dim", "num"), [(64, 20_000), (784, 8_000)])
def test_the_truth_is_stationary_in_many_dimensions_and_nothing_else_is(dim: int, num: int, term: str) -> None:
    mean, error = gradient(Mixture(dim=dim), term, num=num)
    assert bool((mean.abs() <= 4.5 * error + 1e-12).all()), (mean, error)
    mean, error = gradient(Mixture(width=0.4, dim=dim), term, num=num)
    assert float(mean[2]) > 10 * float(error[2])
    if term in ("space", "noise"):
        # The weights of the modes are in few of so many numbers; these two terms tell them from few samples.
        mean, error = gradient(Mixture(weight=0.5, dim=dim), term, num=num)
        assert float(mean[0]) > 10 * float(error[0])


def test_space_alone_is_blind_to_normalisation() -> None:
    mean, _ = gradient(Mixture(offset=0.2), "space")
    assert float(mean[3]) == 0


@pytest.mark.parametrize("limit", [0.0, math.inf])
@pytest.mark.parametrize("dim", [2, 64, 784])
def test_gaussian_errors_have_their_closed_form(dim: int, limit: float) -> None:
    """For data N(0, s^2 I) and the exact f, with v = s^2 + sigma^2: space is s^2 / v, and c = 1.

    noise and total are 1 - (sigma^2 / v)^2 with the plain target, and (s^2 / v)^2 with the whole control variate.
    """
    generator = torch.Generator().manual_seed(1)
    num, s_square, sigma_square = 400_000 // dim, 0.5, 0.8
    v = s_square + sigma_square
    x = s_square**0.5 * torch.randn(num, dim, generator=generator, dtype=torch.float64)
    eps = torch.randn(num, dim, generator=generator, dtype=torch.float64)
    sigma = torch.full((num,), sigma_square**0.5, dtype=torch.float64)

    def energy(y: Tensor, noise: Tensor) -> Tensor:
        w = s_square + noise.square()
        return (-0.5 * y.square() / w - 0.5 * (2 * math.pi * w).log()).sum(-1)

    losses = normalised_losses(energy, x, sigma, eps, limit)
    noise = 1 - (sigma_square / v) ** 2 if limit == 0 else (s_square / v) ** 2
    expected = {"space": s_square / v, "noise": noise, "total": noise, "excess": 0.0}
    for name, value in expected.items():
        found = getattr(losses, name).detach()
        assert abs(float(found.mean()) - value) <= 4.5 * float(found.std()) / num**0.5, name
    difference = losses.inner - losses.square
    assert abs(float(difference.mean())) <= 4.5 * float(difference.std()) / num**0.5


SCHEDULE = NoiseSchedule.log_snr(9, 6.0, -5.0)


def level_energy() -> LevelEnergy:
    torch.manual_seed(0)
    network = NoiseMLP(2, 2, width=16, depth=1)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return LevelEnergy(ResidualEnergy(network, Prior.gaussian(torch.zeros(2), 1.0)), SCHEDULE)


def test_the_objective_is_the_weighted_sum_of_its_terms() -> None:
    """Written out with the same noise: position along the levels, sigma, eps, the terms, the balance of a first batch."""
    energy, num = level_energy(), 64
    x, t = torch.randn(num, 2), torch.arange(num) % 9
    weights = Weights(noise=0.7, total=0.2, classifier=0.3, recovery=0.1, balance=0.0, limit=0.8)
    sampler = LevelSampler("mala", 2, 0.1)
    loss_fn = Normalised(energy, SCHEDULE, weights, recovery=Recovery(energy, SCHEDULE, sampler))
    found = loss_fn(x, Noise(3, torch.arange(num)), t)
    noise = Noise(3, torch.arange(num))
    place = t + noise.uniform().double()
    log_sigma = (SCHEDULE.sigma_cum / SCHEDULE.a_cum).log()
    level = place.long()
    sigma = torch.lerp(log_sigma[level], log_sigma[level + 1], place - level).exp().float()
    eps = noise.normal(2)
    losses = normalised_losses(energy, x, sigma, eps, 0.8)
    other_place = (noise.uniform().double() * 9).long() + noise.uniform().double()
    other = torch.lerp(log_sigma[other_place.long()], log_sigma[other_place.long() + 1], other_place % 1).exp().float()
    expected = losses.space + 0.7 * losses.noise + 0.2 * losses.total
    expected = expected + 0.3 * classifier_loss(energy, x + expand(sigma, x) * eps, sigma, other)
    expected = expected + 0.1 * Recovery(energy, SCHEDULE, sampler)(x, noise, t).loss
    torch.testing.assert_close(found.loss, expected)
    assert torch.equal(found.statistics["level"], level)
    torch.testing.assert_close(found.statistics["score_error"], losses.space.detach())
    assert torch.autograd.grad(found.loss.sum(), list(energy.parameters()))[0].abs().sum() > 0


def test_the_objective_drops_what_the_network_drops() -> None:
    """The same draws in the same order: sigma, eps, then the numbers that are dropped."""
    prior = Prior.gaussian(torch.zeros(1, 4, 4), 1.0)
    network = NoiseUNet((1, 4, 4), 2, width=4, unshuffle=1, dense_units=4, dropout=0.5)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    energy = LevelEnergy(ResidualEnergy(network, prior), SCHEDULE)
    loss_fn = Normalised(energy, SCHEDULE, Weights(balance=0.0))
    x, t = torch.randn(8, 1, 4, 4), torch.arange(8)
    found = loss_fn(x, Noise(3, torch.arange(8)), t)
    noise = Noise(3, torch.arange(8))
    sigma, _ = loss_fn.draw_noise(t, noise.uniform(), x.dtype)
    eps = noise.normal(1, 4, 4)
    losses = normalised_losses(lambda y, s: energy(y, s, noise), x, sigma, eps)
    torch.testing.assert_close(found.loss, losses.space + losses.noise + 0.01 * losses.total)
    kept = normalised_losses(energy, x, sigma, eps)
    assert bool((found.loss != kept.space + kept.noise + 0.01 * kept.total).all())


def test_chains_run_at_the_levels_that_the_noise_is_drawn_from() -> None:
    """A focus moves both, so that the acceptance of a level is that of its own chains."""
    asked: list[Tensor] = []

    def recovery(x: Tensor, noise: Noise, t: Tensor) -> Outcome:
        asked.append(t)
        return Outcome(torch.zeros(len(x)), {"displacement": t.float(), "acceptance": t / 9})

    loss_fn = Normalised(level_energy(), SCHEDULE, Weights(recovery=1.0), Focus(0.9, 0.3, 0.5), recovery)  # type: ignore[arg-type]
    found = loss_fn(torch.randn(64, 2), Noise(0, torch.arange(64)), torch.arange(64) % 9).statistics
    assert torch.equal(asked[0], found["level"])
    assert not torch.equal(found["level"], torch.arange(64) % 9)
    assert torch.equal(found["acceptance"], found["level"] / 9)
    assert set(loss_fn.names) == set(found) - {"level"}


def test_levels_are_balanced_by_their_errors() -> None:
    energy, x = level_energy(), torch.randn(900, 2)
    loss_fn = Normalised(energy, SCHEDULE, Weights(balance=1.0))
    t = torch.arange(900) % 9
    for i in range(30):
        found = loss_fn(x, Noise(i, torch.arange(900)), t)
    by_level = torch.zeros(9).index_add_(0, found.statistics["level"], found.loss.detach()) / 100
    torch.testing.assert_close(by_level, torch.ones(9), rtol=0.35, atol=0)


def test_the_focus_draws_its_share_and_keeps_the_law_uniform_elsewhere() -> None:
    loss_fn = Normalised(level_energy(), SCHEDULE, focus=Focus(0.5, 0.3, 0.5))
    num = 200_000
    place = (torch.arange(num) + 0.5) / num * 9
    sigma, level = loss_fn.draw_noise(place.long(), place % 1, torch.float64)
    log_sigma = (SCHEDULE.sigma_cum / SCHEDULE.a_cum).log()
    assert bool((sigma.log() >= log_sigma[level] - 1e-9).all() & (sigma.log() <= log_sigma[level + 1] + 1e-9).all())
    near = ((sigma.log() - math.log(0.3)).abs() < 0.5).double().mean()
    evenly = 1.0 / float(log_sigma[-1] - log_sigma[0])
    # Half of a normal law within one standard deviation, and half of the even one.
    assert float(near) == pytest.approx(0.5 * 0.6827 + 0.5 * evenly, abs=0.01)


def test_what_cannot_work_is_said() -> None:
    with pytest.raises(UserError, match=r"energy: is a function; .* needs a LevelEnergy"):
        Normalised(lambda y, t: y.sum(-1), SCHEDULE)
    with pytest.raises(UserError, match="has no initial noise"):
        Normalised(level_energy(), NoiseSchedule.t1k())
    fine = NoiseSchedule.log_snr(4, 31.0, -6.0)
    with pytest.raises(
        UserError, match=r"starts at the noise 1.9e-07, at which float32 .* nats; set initial_noise to 8.4e-07 or more"
    ):
        Normalised(LevelEnergy(level_energy().energy, fine), fine)
    with pytest.raises(UserError, match="no recovery objective is given"):
        Normalised(level_energy(), SCHEDULE, Weights(recovery=1.0))


def test_the_focus_reaches_from_the_lowest_noise_to_the_highest() -> None:
    loss_fn = Normalised(level_energy(), SCHEDULE, focus=Focus(0.5, 0.3, 0.5))
    sigma, level = loss_fn.draw_noise(torch.tensor([0, 8]), torch.tensor([0.0, 1.0]).double(), torch.float64)
    torch.testing.assert_close(sigma, (SCHEDULE.sigma_cum / SCHEDULE.a_cum)[[0, -1]], rtol=1e-6, atol=0)
    assert level.tolist() == [0, 8]


def test_the_plain_target_has_no_control_variate() -> None:
    eps, u = torch.tensor([[0.5, -2.0]]), torch.tensor([[1.0, 3.0]])
    torch.testing.assert_close(noise_target(eps, u), torch.tensor([[-0.75, 3.0]]))
    # With the limit 2: 2 min(u, 2) (eps + u) more.
    torch.testing.assert_close(noise_target(eps, u, 2.0), torch.tensor([[-0.75 + 3.0, 3.0 + 4.0]]))


def test_an_objective_of_weight_zero_is_not_computed() -> None:
    def recovery(*arguments: object) -> None:
        raise AssertionError("chains were run for nothing")

    loss_fn = Normalised(level_energy(), SCHEDULE, recovery=recovery)  # type: ignore[arg-type]
    assert bool(loss_fn(torch.randn(4, 2), Noise(0, torch.arange(4))).loss.isfinite().all())


def test_a_focus_is_log_normal_around_three_tenths_unless_another_is_given() -> None:
    """Cut off at the lowest and at the highest noise; the law is kept on a grid of 0.003 in log sigma."""
    quantile = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    place = quantile * SCHEDULE.num_levels
    loss_fn = Normalised(level_energy(), SCHEDULE, focus=Focus(1.0))
    sigma, _ = loss_fn.draw_noise(place.long(), place % 1, torch.float64)
    low, high = (float(end.log()) - math.log(0.3) for end in loss_fn.energy.sigma[[0, -1]])
    expected = stats.truncnorm(low, high, loc=math.log(0.3)).ppf(quantile.numpy())
    torch.testing.assert_close(sigma.log(), torch.from_numpy(expected), rtol=0, atol=3e-3)
