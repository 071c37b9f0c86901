"""Products, mixtures and tempered energies against their exact densities."""

import pytest
import torch

from springwell.applications.compose import Mixture, Product, mixture, product, tempered
from springwell.data.toy import toy_data
from springwell.errors import UserError
from springwell.generate import progressive
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule
from tests.exact import CorrelatedEnergy, GaussianEnergy, MixtureEnergy, ToyEnergy, check_gaussian, within

SCHEDULE = NoiseSchedule.from_sigmas([0.6, 0.7, 0.8, 0.95], 0.05)


def draw(energy, n, event_shape, sweeps, jumps=0, fraction=0.4):
    sampler = LevelSampler("mala", 5, fraction * SCHEDULE.sigma[1:], jump_proposals=jumps)
    noise = Noise(0, torch.arange(n), dtype=torch.float64)
    *_, (_, x, _) = progressive(energy, SCHEDULE, sampler, event_shape, noise, sweeps)
    return x


def test_product_of_gaussians():
    """N(m_1, C_1) N(m_2, C_2) is Gaussian: precisions add. C is the covariance at level 0, with its initial noise."""
    n, a, noise = 3000, float(SCHEDULE.a_cum[0]), float(SCHEDULE.sigma_cum[0] ** 2)
    means = [torch.tensor(m, dtype=torch.float64) for m in ([1.0, 0.0], [-0.5, 0.5])]
    covariances = [torch.tensor(c, dtype=torch.float64) for c in ([[0.8, 0.5], [0.5, 0.6]], [[0.3, -0.1], [-0.1, 0.9]])]
    experts = [CorrelatedEnergy(SCHEDULE, m, c) for m, c in zip(means, covariances, strict=True)]
    precisions = [torch.linalg.inv(a**2 * c + noise * torch.eye(2)) for c in covariances]
    covariance = torch.linalg.inv(precisions[0] + precisions[1])
    mean = covariance @ (precisions[0] @ (a * means[0]) + precisions[1] @ (a * means[1]))
    check_gaussian(draw(Product(experts), n, (2,), sweeps=12), mean, covariance)
    # Noise and product do not commute, and a test of this size must see it.
    with pytest.raises(AssertionError):
        check_gaussian(draw(Product(experts), n, (2,), sweeps=0), mean, covariance)


def test_product_with_a_toy_density():
    """Eight Gaussians times N(m, s^2 I): the weights of the modes, each Gaussian too, are known."""
    n, a, noise = 2000, float(SCHEDULE.a_cum[0]), float(SCHEDULE.sigma_cum[0] ** 2)
    m, s2 = torch.tensor([0.8, 0.3], dtype=torch.float64), 0.6
    other = CorrelatedEnergy(SCHEDULE, m, s2 * torch.eye(2, dtype=torch.float64))
    toy = toy_data("eight_gaussians")
    x = draw(Product([ToyEnergy(toy, SCHEDULE), other]), n, (2,), sweeps=20, jumps=16, fraction=0.25)
    angle = torch.arange(8, dtype=torch.float64) * torch.pi / 4
    centres = 1.4 * a * torch.stack([angle.cos(), angle.sin()], -1)
    total = a**2 * (0.1**2 + s2) + 2 * noise
    share = torch.softmax(-(centres - a * m).square().sum(-1) / (2 * total), 0)
    found = torch.bincount(torch.cdist(x, centres).argmin(-1), minlength=8) / n
    for p, q in zip(found.tolist(), share.tolist(), strict=True):
        assert within(p, q, (q * (1 - q) / n) ** 0.5)


def test_tempering_divides_the_variance():
    """p^2 of N(m, v I) is N(m, v / 2 I)."""
    x = draw(tempered(GaussianEnergy(SCHEDULE, 0.5, 0.4), 2.0), 4000, (1,), sweeps=12)
    a, noise = float(SCHEDULE.a_cum[0]), float(SCHEDULE.sigma_cum[0] ** 2)
    variance = torch.tensor([[(a**2 * 0.4 + noise) / 2]], dtype=torch.float64)
    check_gaussian(x, torch.tensor([a * 0.5], dtype=torch.float64), variance)


def test_a_mixture_is_the_mixture():
    """Two normalised Gaussians of one width, mixed 0.3 to 0.7, are MixtureEnergy, up to a constant of each level."""
    centre, width = 1.5, 0.2
    parts = [GaussianEnergy(SCHEDULE, m, width**2) for m in (-centre, centre)]
    mixture = Mixture(parts, torch.tensor([0.3, 0.7]).log().tolist())
    exact = MixtureEnergy(SCHEDULE, 0.3, centre, width)
    y = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    for level in range(4):
        t = torch.full((9,), level)
        torch.testing.assert_close(mixture(y, t), exact(y, t), rtol=1e-6, atol=1e-6)


def test_bad_compositions():
    energy = GaussianEnergy(SCHEDULE)
    with pytest.raises(UserError, match="2 weights"):
        Product([energy], [1.0, 2.0])
    with pytest.raises(UserError, match="2 energies and 1 weights"):
        Product([energy, energy], [1.0])
    with pytest.raises(UserError, match="0 energies"):
        Mixture([])
    with pytest.raises(UserError, match="beta -1"):
        tempered(energy, -1)
    with pytest.raises(UserError, match="beta inf"):
        tempered(energy, float("inf"))
    with pytest.raises(UserError, match="product: has the weights nan; all must be finite"):
        Product([energy], [float("nan")])


def gaussian(mean: float, variance: float) -> Model:
    """A model of N(mean, variance) on the line, whose energy is normalised at every level."""
    exact = GaussianEnergy(SCHEDULE, mean, variance)

    def energy(y, t):
        scale, a, sigma = SCHEDULE.scale[t], SCHEDULE.a_cum[t], SCHEDULE.sigma_cum[t]
        return exact(y, t) - 0.5 * torch.log(2 * torch.pi * scale**2 * (a**2 * variance + sigma**2))

    energy.log_z = 0.0
    sampler = LevelSampler("mala", 5, (0.4 * SCHEDULE.sigma[1:]).float())
    return Model(energy, SCHEDULE, sampler, torch.tensor([0.0]), torch.tensor([2.0]))


def test_a_product_of_models_and_a_term():
    """N(m, v) times exp(-(x - c)^2 / 2) at level 0, in the data's units."""
    a, noise = float(SCHEDULE.a_cum[0]), float(SCHEDULE.sigma_cum[0] ** 2)
    mean, variance = 2 * a * 0.5, 4 * (a**2 * 0.4 + noise)
    x = product([gaussian(0.5, 0.4), lambda x: -((x[:, 0] - 3.0) ** 2) / 2]).sample(4000)
    precision = 1 / variance + 1
    expected = torch.tensor([(mean / variance + 3.0) / precision], dtype=torch.float64)
    check_gaussian(x.double(), expected, torch.tensor([[1 / precision]], dtype=torch.float64))


def test_a_negative_weight_divides_a_density_out():
    """N(0, v_1) / N(0, v_2)^(1/2) is Gaussian: precisions subtract."""
    a, noise = float(SCHEDULE.a_cum[0]), float(SCHEDULE.sigma_cum[0] ** 2)
    narrow, wide = (4 * (a**2 * v + noise) for v in (0.3, 1.0))
    x = product([gaussian(0.0, 0.3), gaussian(0.0, 1.0)], [1.0, -0.5]).sample(4000)
    covariance = torch.tensor([[1 / (1 / narrow - 0.5 / wide)]], dtype=torch.float64)
    check_gaussian(x.double(), torch.zeros(1, dtype=torch.float64), covariance)


def test_a_mixture_of_models_has_the_shares_asked_for():
    """Whatever the normalisers of the two are; the integral is over the line, on which they do not overlap."""
    left, right = gaussian(-1.5, 0.05), gaussian(1.5, 0.05)
    right.energy_function = Mixture([right.energy_function], [2.0])
    right.energy_function.log_z = 2.0
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)[:, None]
    density = torch.exp(-mixture([left, right], [3.0, 1.0]).energy(x.float()).double())
    assert float(density[x[:, 0] < 0].sum() / density.sum()) == pytest.approx(0.75, abs=1e-4)
    # The energy of the mixture is a log-density of y_0, as those of its parts are up to their log Z.
    width = float(SCHEDULE.scale[0] * (x[1, 0] - x[0, 0]) / 2)
    assert float(density.sum()) * width == pytest.approx(1, abs=1e-4)


def test_compositions_that_cannot_be():
    one = gaussian(0.0, 1.0)
    other = Model(one.energy_function, SCHEDULE, one.sampler, event_shape=(1,))
    with pytest.raises(UserError, match="product: needs a model first"):
        product([lambda x: x])
    with pytest.raises(UserError, match="other levels or units"):
        product([one, other])
    with pytest.raises(UserError, match="product: has a str"):
        product([one, "x"])
    with pytest.raises(UserError, match="one per model"):
        mixture([one, one], [1.0])


def test_sweeps_are_counted_from_none():
    assert product([gaussian(0.0, 1.0)], sweeps=0).sweeps == 0
    # As many as give products of Gaussians their moments above.
    assert product([gaussian(0.0, 1.0)]).sweeps == 12
    with pytest.raises(UserError, match="sweeps=-1"):
        product([gaussian(0.0, 1.0)], sweeps=-1)
