"""Leapfrog: reversible, volume-preserving, of order two."""

import math

import pytest
import torch

from springwell.errors import UserError
from springwell.samplers import hmc, value_and_grad
from springwell.samplers.integrator import Phase, draw_momentum, hamiltonian, leapfrog
from tests.samplers import laws

MASSES = [None, torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)]


def phase(n, seed, logdensity):
    y, p = laws.noise(n, seed).normal(2, 3).unbind(1)
    return Phase(y, p, *value_and_grad(logdensity, y))


def integrate(z, logdensity, delta, num_steps, inverse_mass=None):
    for _ in range(num_steps):
        z = leapfrog(z, logdensity, torch.tensor(delta, dtype=torch.float64), inverse_mass)
    return z


@pytest.mark.parametrize("inverse_mass", MASSES, ids=["identity", "diagonal"])
def test_reversible_to_rounding(inverse_mass):
    f = laws.skewed().logdensity
    z = phase(50, 0, f)
    there = integrate(z, f, 0.2, 30, inverse_mass)
    back = integrate(there._replace(p=-there.p), f, 0.2, 30, inverse_mass)
    assert float((there.y - z.y).abs().max()) > 1
    torch.testing.assert_close(back.y, z.y, rtol=0, atol=1e-11)
    torch.testing.assert_close(-back.p, z.p, rtol=0, atol=1e-11)
    again = integrate(there, f, -0.2, 30, inverse_mass)
    torch.testing.assert_close(again.y, z.y, rtol=0, atol=1e-11)


@pytest.mark.parametrize("inverse_mass", MASSES, ids=["identity", "diagonal"])
def test_volume_preserving(inverse_mass, monkeypatch):
    """The determinant of the Jacobian, by differentiation through five steps, gradient of the target included."""
    f = laws.skewed().logdensity

    def differentiable(logdensity, y):
        value = logdensity(y)
        return value, torch.autograd.grad(value.sum(), y, create_graph=True)[0]

    monkeypatch.setattr("springwell.samplers.integrator.value_and_grad", differentiable)

    def flow(point):
        y, p = point[None, :3], point[None, 3:]
        z = integrate(Phase(y, p, *differentiable(f, y)), f, 0.3, 5, inverse_mass)
        return torch.cat([z.y, z.p], 1)[0]

    for point in laws.noise(5, 1).normal(6):
        jacobian = torch.autograd.functional.jacobian(flow, point)
        assert float((jacobian - torch.eye(6)).abs().max()) > 0.5
        assert abs(float(torch.linalg.det(jacobian)) - 1) < 1e-12


@pytest.mark.parametrize("inverse_mass", MASSES, ids=["identity", "diagonal"])
def test_order_two(inverse_mass):
    """Errors of the energy and of the position after time 1, over step sizes 1/16 ... 1/128, fall with the power 2."""
    f = laws.skewed().logdensity
    z = phase(200, 2, f)
    exact = integrate(z, f, 1 / 2048, 2048, inverse_mass)
    steps, energy, position = [16, 32, 64, 128], [], []
    for k in steps:
        end = integrate(z, f, 1 / k, k, inverse_mass)
        energy.append(float((hamiltonian(end, inverse_mass) - hamiltonian(z, inverse_mass)).abs().mean()))
        position.append(float((end.y - exact.y).abs().mean()))
    x = torch.tensor(steps).double().log()
    for error in (energy, position):
        y = torch.tensor(error).log().double()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
        assert abs(slope + 2) < 0.05


def test_momenta_have_the_mass_as_covariance():
    n, inverse_mass = 20_000, torch.tensor([0.25, 1.0, 9.0], dtype=torch.float64)
    p = draw_momentum(laws.noise(n, 3), torch.zeros(n, 3, dtype=torch.float64), inverse_mass)
    laws.check_law(p, laws.gaussian_law(torch.diag(1 / inverse_mass)))


def test_hmc_tells_the_energies_of_its_steps():
    """The energy of a step is the Hamiltonian where it ended, and the change decides on the acceptance."""
    law, n = laws.skewed(), 200
    y = laws.noise(n, 4).normal(3)
    delta = torch.tensor(0.4, dtype=torch.float64)
    kernel = hmc(3)
    state, info = kernel.step(kernel.init(y, law.logdensity), law.logdensity, delta, laws.noise(n, 5))
    z = Phase(y, laws.noise(n, 5).normal(3), *value_and_grad(law.logdensity, y))
    end = integrate(z, law.logdensity, 0.4, 3)
    moved = (state.y != y).any(1)
    assert 0.3 < float(moved.double().mean()) < 1
    torch.testing.assert_close(info.energy, torch.where(moved, hamiltonian(end), hamiltonian(z)))
    torch.testing.assert_close(info.energy_change, hamiltonian(end) - hamiltonian(z))
    torch.testing.assert_close(info.acceptance, (hamiltonian(z) - hamiltonian(end)).exp().clamp(max=1))
    torch.testing.assert_close(state.logdensity, law.logdensity(state.y))
    assert info.num_gradients == 3
    assert math.isfinite(float(info.energy.sum()))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_masses_must_be_positive(value):
    with pytest.raises(UserError, match="inverse mass"):
        hmc(2, torch.tensor([1.0, value]))
