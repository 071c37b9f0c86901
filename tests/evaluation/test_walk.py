"""Chains from points of one's own: their density is the model's in the data's units, and a walk cut in two is the same walk."""

import pytest
import torch

import springwell as sw
from springwell.errors import UserError
from springwell.evaluation.walk import Walk
from springwell.samplers import hmc, value_and_grad


@pytest.fixture
def model():
    """The checkerboard in units of another shape."""
    plane = sw.load("checkerboard")
    shift, scale = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    return sw.Model(plane.energy_function, plane.schedule, plane.sampler, shift, scale)


@pytest.fixture
def x(model):
    return model.shift + model.scale * torch.randn(12, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("end", [None, (1.25, -3.5)])
def test_the_density_is_the_models_and_its_spring_in_the_datas_units(model, x, end):
    x = x.requires_grad_()
    expected = -model.energy(x, 1)
    if end is not None:
        # |x_{t+1} - y|^2 / (2 sigma^2) with y = scale_t u and x_{t+1} = scale_t u of the end.
        width = model.scale * model.schedule.sigma[2] / model.schedule.scale[1]
        expected = expected - ((x - torch.tensor(end)) / width).square().sum(-1) / 2
    (slope,) = torch.autograd.grad(expected.sum(), x)
    value, grad = value_and_grad(Walk(model, level=1, end=end).target(len(x)), x.detach())
    torch.testing.assert_close(value, expected.detach().float(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(grad, slope.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kernel", ["langevin", "mala", hmc(3), "nuts"])
def test_a_walk_that_is_cut_in_two_is_the_same_walk(model, x, kernel):
    walk = Walk(model, kernel, step_size=0.1, level=1, seed=4)
    whole = [position for position, _ in walk.steps(x, 7, first=2)]
    parts = [position for position, _ in walk.steps(x, 3, first=2)]
    parts += [position for position, _ in walk.steps(parts[-1], 4, first=5)]
    torch.testing.assert_close(torch.stack(parts), torch.stack(whole), atol=1e-6, rtol=1e-6)
    assert not torch.equal(whole[-1], whole[-2])


def test_levels_and_springs_that_a_model_lacks_are_refused(model):
    with pytest.raises(UserError, match=r"level=4: out of range; this model has levels 0 ... 3"):
        Walk(model, level=4)
    one = sw.Model(
        model.energy_function, sw.NoiseSchedule.marginal(), model.sampler.with_steps(torch.ones(1)), event_shape=(2,)
    )
    with pytest.raises(UserError, match="level 0: has no spring"):
        Walk(one, end=(0.0, 0.0))
