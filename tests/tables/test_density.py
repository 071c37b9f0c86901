"""Parts of a table's density: bijections with their slopes, mixtures in closed form, energies that integrate to 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from springwell.energy.columns import ColumnEnergy, ColumnNetwork, draw_correction, log_correction, pieces
from springwell.energy.mixture import Mixture
from springwell.tables.density import TableDensity
from springwell.tables.fit import fit_table
from springwell.tables.start import Coordinates, stacked
from springwell.tables.transform import KINDS, Transform


def odd_columns(num: int = 400) -> Tensor:
    """Normal, whole numbers, log-normal and Cauchy."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(num, 4, generator=g, dtype=torch.float64)
    return torch.stack(
        [3 * z[:, 0] + 1, (4 * z[:, 1]).round(), z[:, 2].exp(), torch.tan(math.pi * (torch.special.ndtr(z[:, 3]) - 0.5))], 1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_is_a_bijection_whose_slope_is_its_derivative(kind: str) -> None:
    x = odd_columns()
    transform = Transform.fit(kind, x)
    # Between and far beyond the data.
    at = torch.cat([x, 3 * x, x + 100]).requires_grad_()
    z, log_slope = transform(at)
    (slope,) = torch.autograd.grad(z.sum(), at)
    assert torch.allclose(slope.log(), log_slope, atol=1e-8)
    assert torch.allclose(transform.inverse(z), at, rtol=1e-7, atol=1e-7)


def wild_energy(dim: int, seed: int = 0) -> ColumnEnergy:
    """Random weights, so that g is far from 0."""
    g = torch.Generator().manual_seed(seed)
    energy = ColumnEnergy(ColumnNetwork(dim, 32, 1, 8), torch.randperm(dim, generator=g)).eval()
    with torch.no_grad():
        for p in energy.parameters():
            p.copy_(0.35 * torch.randn(p.shape, generator=g))
    return energy


def plane(half: float = 14.0, num: int = 561) -> tuple[Tensor, float]:
    axis = torch.linspace(-half, half, num, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis), (2 * half / (num - 1)) ** 2


def test_an_energy_of_random_weights_integrates_to_one() -> None:
    points, cell = plane()
    with torch.no_grad():
        f = wild_energy(2)(points)
    assert float(f.std()) > 1
    assert abs(float(f.exp().sum()) * cell - 1) < 2e-3


def test_a_column_does_not_depend_on_those_after_it() -> None:
    network = wild_energy(5).network
    u = torch.randn(1, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for i in range(5):
        (gradient,) = torch.autograd.grad(network(u)[0, i].sum(), u, retain_graph=True)
        assert (gradient[0, i:] == 0).all()
        assert i == 0 or (gradient[0, :i] != 0).all()


def test_pieces_and_draws_follow_the_piecewise_linear_energy() -> None:
    g = torch.tensor([0.0, 2.0, 2.0, -3.0], dtype=torch.float64)
    a, b = g[:-1], g[1:]
    exact = torch.where(a == b, a.exp(), (b.exp() - a.exp()) / torch.where(a == b, 1.0, b - a)) / 3
    assert torch.allclose(pieces(g), exact)
    w = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    v = draw_correction(g.expand(len(w), -1), w)
    # The distribution function of the draws is w, so its derivative 1 / (dv / dw) is the density.
    middle = 0.5 * (v[1:] + v[:-1])
    density = (w[1] - w[0]) / v.diff()
    expected = log_correction(g.expand(len(middle), -1), middle).exp()
    assert torch.allclose(density, expected, rtol=1e-3)


def test_exact_draws_have_the_entropy_of_the_energy() -> None:
    energy = wild_energy(2)
    points, cell = plane()
    with torch.no_grad():
        f = energy(points)
        drawn = energy(energy.sample(20_000, torch.Generator().manual_seed(0)))
    entropy = -float((f.exp() * f).sum()) * cell
    assert abs(float(-drawn.mean()) - entropy) < 4 * float(drawn.std()) / math.sqrt(len(drawn)) + 5e-3


def mixture() -> Mixture:
    g = torch.Generator().manual_seed(0)
    root = torch.randn(2, 3, 3, generator=g, dtype=torch.float64)
    mean = torch.randn(2, 3, generator=g, dtype=torch.float64)
    return Mixture(torch.tensor([0.3, 0.7]), mean, root @ root.mT + 0.2 * torch.eye(3))


def test_a_mixture_is_torchs_own() -> None:
    m = mixture()
    y = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    noisy = m.covariance() + 0.5**2 * torch.eye(3)
    normal = torch.distributions.MultivariateNormal(m.mean[:, None], noisy[:, None])
    exact = (normal.log_prob(y) + m.log_weight[:, None]).logsumexp(0)
    assert torch.allclose(m(y, 0.5), exact)
    assert torch.allclose(m.score(y.detach(), 0.5), torch.autograd.grad(exact.sum(), y)[0])


def test_conditionals_and_marginals_of_a_mixture_multiply_to_the_whole() -> None:
    m, known = mixture(), torch.tensor([False, True, False])
    y = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y[:, 1] = 0.4
    marginal = Mixture(m.log_weight.exp(), m.mean[:, known], m.covariance()[:, known][:, :, known])
    product = m.given(known, y[0, known])(y[:, ~known]) + marginal(y[:, known])
    assert torch.allclose(product, m(y))


def table(dim: int = 2) -> TableDensity:
    x = torch.randn(200, dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x[:, 1] = x[:, 1] + x[:, 0]
    m = Mixture(torch.ones(1), torch.zeros(1, dim), torch.eye(dim)[None])
    return TableDensity(Coordinates.fit("standard", x), m, [wild_energy(dim)], torch.tensor([0.5, 0.5]))


def test_the_density_of_given_columns_is_the_integral_over_the_others() -> None:
    density, known = table(), torch.tensor([True, False])
    found = density.sample_given(known, torch.tensor([0.3]), 4000, torch.Generator().manual_seed(0))
    axis = np.linspace(-15, 15, 6001)
    log_p = density.log_prob(np.stack([np.full_like(axis, 0.3), axis], 1))
    exact = np.exp(log_p).sum() * (axis[1] - axis[0])
    assert abs(found.log_density - math.log(exact)) < 4 * found.error
    mean = (axis * np.exp(log_p)).sum() / np.exp(log_p).sum()
    spread = math.sqrt((axis**2 * np.exp(log_p)).sum() / np.exp(log_p).sum() - mean**2)
    assert abs(float(found.x[:, 1].mean()) - mean) < 4 * spread * (found.effective**-0.5 + 4000**-0.5)


def test_missing_cells_are_integrated_out() -> None:
    density = table()
    axis = np.linspace(-15, 15, 6001)
    rows = np.array([[0.3, np.nan], [np.nan, -0.8], [0.3, -0.8], [np.nan, np.nan]])
    found, error = density.log_prob_given(rows)
    for i, cells in enumerate((np.stack([np.full_like(axis, 0.3), axis], 1), np.stack([axis, np.full_like(axis, -0.8)], 1))):
        exact = np.log(np.exp(density.log_prob(cells)).sum() * (axis[1] - axis[0]))
        assert 0 < error[i] < 0.05
        assert abs(found[i] - exact) < 4 * error[i]
    assert found[2] == density.log_prob(rows[2:3])[0]
    # The density of nothing is 1.
    assert (found[3], error[2], error[3]) == (0, 0, 0)


def test_missing_cells_of_a_mixture_are_integrated_out_exactly() -> None:
    x = odd_columns()[:, [0, 2]]
    density = TableDensity(
        Coordinates.fit("yeo-johnson", x), mixture().marginal(torch.tensor([True, True, False])), [], torch.ones(1)
    )
    axis = np.linspace(-200, 200, 400_001)
    found, error = density.log_prob_given(np.array([[np.nan, 2.0], [np.nan, 0.5]]))
    for value, log_p in zip((2.0, 0.5), found, strict=True):
        p = np.exp(density.log_prob(np.stack([axis, np.full_like(axis, value)], 1)))
        assert log_p == pytest.approx(np.log(p.sum() * (axis[1] - axis[0])), abs=1e-6)
    assert (error == 0).all()


def test_a_density_is_built_again_from_its_description_and_tensors() -> None:
    density = table()
    again = TableDensity.from_description(density.description())
    again.load_state_dict(density.state_dict())
    x = np.random.default_rng(0).normal(size=(9, 2))
    assert np.array_equal(again.log_prob(x), density.log_prob(x))


def test_stacking_prefers_the_truth_and_is_never_below_the_best_candidate() -> None:
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    log_densities = -0.5 * (x[:, None] / scales).square() - scales.log() - 0.5 * math.log(2 * math.pi)
    weights = stacked(log_densities)
    assert weights.argmax() == 1
    assert float((log_densities + weights.log()).logsumexp(1).mean()) >= float(log_densities.mean(0).max()) - 1e-3


def test_a_fit_leaves_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        fit_table(np.random.default_rng(0).normal(size=(30, 2)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
