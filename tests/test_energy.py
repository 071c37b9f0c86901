"""Energies: the output-scaling rules, the chain's view of a network, and gradients."""

import pytest
import torch

from springwell.energy import FourierMLP, ScaledEnergy, at_level
from springwell.schedule import NoiseSchedule

SCHEDULE = NoiseSchedule.t6()


def network(dim=2, num_levels=6, **options):
    torch.manual_seed(0)
    net = FourierMLP(dim, num_levels, width=16, num_features=12, **options)
    torch.nn.init.normal_(net.out.weight)
    return net


def test_step_rule_makes_the_networks_drift_half_its_gradient():
    """f = net / s_t^2 and Langevin's (s_t^2 / 2) grad f is 0.5 grad net; the loss weight turns f back into net."""
    energy = ScaledEnergy(network(), SCHEDULE, "step")
    y, t = torch.randn(6, 2, requires_grad=True), torch.arange(6)
    (grad_f,) = torch.autograd.grad(energy(y, t).sum(), y)
    (grad_net,) = torch.autograd.grad(energy.network(y, t).sum(), y)
    s = SCHEDULE.langevin_step.float()
    torch.testing.assert_close(s[:, None] ** 2 / 2 * grad_f, 0.5 * grad_net, rtol=1e-5, atol=1e-7)
    weighted = energy.loss_weight[t] * energy(y, t)
    torch.testing.assert_close(weighted, SCHEDULE.loss_weight.float() * energy.network(y, t), rtol=1e-5, atol=1e-6)


def test_learned_rule_starts_at_the_inverse_noise_and_learns():
    energy = ScaledEnergy(network(), SCHEDULE, "learned")
    torch.testing.assert_close(energy.log_scale.exp().detach(), 1 / SCHEDULE.sigma_cum[:-1].float(), rtol=1e-5, atol=0)
    energy(torch.randn(6, 2), torch.arange(6)).sum().backward()
    assert float(energy.log_scale.grad.abs().min()) > 0
    without = NoiseSchedule.t1k()
    assert bool(torch.isfinite(ScaledEnergy(network(num_levels=1000), without, "learned").log_scale).all())


def test_variance_rule_starts_at_the_inverse_variance():
    energy = ScaledEnergy(network(), SCHEDULE, "variance")
    torch.testing.assert_close(energy.log_scale.exp().detach(), SCHEDULE.sigma_cum[:-1].float() ** -2, rtol=1e-5, atol=0)
    torch.testing.assert_close(energy.loss_weight, SCHEDULE.sigma_cum[:-1].float())


def test_base_term():
    energy = ScaledEnergy(network(), SCHEDULE, "none", base_precision=0.7)
    y, t = torch.randn(5, 2), torch.zeros(5, dtype=torch.long)
    torch.testing.assert_close(energy(y, t), energy.network(y, t) - 0.35 * y.square().sum(-1))


@pytest.mark.parametrize("schedule", [SCHEDULE, NoiseSchedule.t1k()], ids=["t6", "t1k"])
def test_a_base_term_of_the_noise_is_the_noisy_density_of_zero(schedule):
    """y_t of the data point 0 is scale_t sigmabar_t eps, whose score is -y / (scale_t sigmabar_t)^2. Level 0 of T1k has no
    noise and takes that of level 1."""
    energy = ScaledEnergy(lambda y, t: 0 * y.sum(-1), schedule, "none", base_precision="noise")
    t = torch.arange(schedule.num_levels)
    y = torch.randn(len(t), 3, requires_grad=True)
    (slope,) = torch.autograd.grad(energy(y, t).sum(), y)
    noise = schedule.sigma_cum[:-1].clone()
    noise[0] = noise[0] or schedule.sigma[1]
    torch.testing.assert_close(slope, -y / ((schedule.scale * noise) ** 2).float()[:, None], rtol=1e-5, atol=0)


@pytest.mark.parametrize("rule", ["step", "learned", "variance", "none"])
@pytest.mark.parametrize("dim", [1, 2, 7])
def test_a_chain_sees_the_same_energy(rule, dim):
    energy = ScaledEnergy(network(dim, depth=3), SCHEDULE, rule, 0.5)
    y, t = torch.randn(40, dim), torch.arange(40) % 6
    torch.testing.assert_close(at_level(energy, t)(y), energy(y, t), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", ["step", "learned"])
@pytest.mark.parametrize("precision", [0.0, 0.5, "noise"])
@pytest.mark.parametrize(("dim", "depth"), [(1, 1), (2, 2), (7, 4)])
def test_the_gradient_in_closed_form_is_that_of_the_energy(rule, precision, dim, depth):
    energy = ScaledEnergy(network(dim, depth=depth), SCHEDULE, rule, precision).double()
    y, t = torch.randn(40, dim, dtype=torch.float64, requires_grad=True), torch.arange(40) % 6
    f = energy(y, t)
    (expected,) = torch.autograd.grad(f.sum(), y)
    value, grad = at_level(energy, t).value_and_grad(y)
    assert not value.requires_grad
    assert not grad.requires_grad
    torch.testing.assert_close(value, f.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(at_level(energy, t).grad(y), grad)


def test_chains_leave_no_gradient_on_the_weights():
    energy = ScaledEnergy(network(), SCHEDULE, "learned", 0.5)
    y = torch.randn(4, 2, requires_grad=True)
    at_level(energy, torch.arange(4))(y).sum().backward()
    assert y.grad is not None
    assert all(p.grad is None for p in energy.parameters())


def test_any_callable_is_an_energy():
    f = at_level(lambda y, t: y.sum(-1) * t, torch.tensor([2, 3]))
    assert f(torch.ones(2, 3)).tolist() == [6, 9]


def test_gradients_match_finite_differences():
    energy = ScaledEnergy(network(), SCHEDULE, "learned", 0.5).double()
    y = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: energy.network(z, torch.tensor([0, 2, 5])), y)


def test_a_new_model_is_its_base_term():
    torch.manual_seed(0)
    net = FourierMLP(2, 4)
    assert not bool(net(torch.randn(10, 2), torch.zeros(10, dtype=torch.long)).any())


def test_sharp_edges_can_be_represented():
    """Least squares on the frozen features alone fits a step of width 0.05 to 0.1 in the mean: they are fine enough."""
    torch.manual_seed(0)
    net = FourierMLP(2, 1, num_features=512)
    y = torch.rand(4000, 2) * 2 - 1
    target = torch.tanh(y[:, :1] / 0.05)
    features = torch.sin(torch.nn.functional.linear(y, net.frequencies, net.phases))
    features = torch.cat([features, torch.ones(len(y), 1)], 1).double()
    solution = torch.linalg.lstsq(features[:3000], target[:3000].double()).solution
    error = (features[3000:] @ solution - target[3000:]).abs().mean()
    assert float(error) < 0.1
