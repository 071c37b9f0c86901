"""Chains and losses on torch's meta device, which has no values: what runs here reads nothing back and mixes no devices.

A step that asks a tensor for its value (``bool``, ``item``, ``tolist``, a branch) fails on this device, as it would make an
accelerator wait; so does an operation that meets a tensor of the CPU. NUTS is left out: its trees grow by what chains find.
"""

import copy

import pytest
import torch
import torch._dynamo

from springwell.applications.inpaint import inpaint_levels
from springwell.applications.restore import Measurement, Posterior
from springwell.conditional import Conditional
from springwell.energy import EnergyResNet, EnergyUNet, FourierMLP, ScaledEnergy
from springwell.generate import denoise, progressive
from springwell.level import LevelSampler
from springwell.noise import Noise
from springwell.objectives import DSM, Marginal, Recovery
from springwell.samplers import make_kernel, run_chain
from springwell.schedule import NoiseSchedule

N = 4
IMAGE, VECTOR = (1, 8, 8), (2,)
SCHEDULE = NoiseSchedule.from_sigmas([0.5, 0.7, 0.9], 0.1)
NETWORKS = {
    "resnet": (lambda: EnergyResNet(1, 8, (1, 2), 1), IMAGE),
    "unet": (lambda: EnergyUNet(1, 8, (1, 2), 1, dense_units=4, image_size=(8, 8)), IMAGE),
    "mlp": (lambda: FourierMLP(2, 3, 8, 2, 8, (1.5, 8.0)), VECTOR),
}


def moved(schedule):
    """The schedule on the meta device. Its own ``to`` looks at the values."""
    other = copy.copy(schedule)
    for name in ("sigma", "spring"):
        object.__setattr__(other, name, getattr(schedule, name).to("meta"))
    for name in [name for name in vars(other) if name not in ("sigma", "spring")]:
        del other.__dict__[name]
    return other


def noise(dtype=torch.float32):
    return Noise(0, torch.arange(N, device="meta"), dtype=dtype)


def meta(*shape):
    return torch.empty(N, *shape, device="meta")


def levels():
    return torch.zeros(N, dtype=torch.long, device="meta")


@pytest.fixture(params=NETWORKS)
def energy(request):
    make, shape = NETWORKS[request.param]
    scaled = ScaledEnergy(make(), SCHEDULE, "learned", 1.0).to("meta")
    scaled.shape = shape
    return scaled


@pytest.mark.parametrize("kernel", ["langevin", "mala", "hmc"])
def test_chains(energy, kernel):
    conditional = Conditional(energy, moved(SCHEDULE), levels(), meta(*energy.shape))
    y, acceptance = run_chain(make_kernel(kernel), meta(*energy.shape), conditional, meta(), 2, noise(), check=False)
    assert (y.device.type, y.shape, acceptance.shape) == ("meta", (N, *energy.shape), (N,))


@pytest.mark.parametrize("start", ["noisy", "data", "denoised", "ancestral"])
@pytest.mark.parametrize("num_steps", [0, 6])
def test_recovery(energy, start, num_steps):
    sampler = LevelSampler("mala", num_steps, 0.1, start, jump_proposals=2)
    loss_fn = Recovery(energy, SCHEDULE, sampler)
    loss_fn.schedule = moved(SCHEDULE)
    outcome = loss_fn(meta(*energy.shape), noise())
    outcome.loss.mean().backward()
    assert all(parameter.grad.device.type == "meta" for parameter in energy.parameters())


def test_score_matching(energy):
    loss_fn = DSM(energy, SCHEDULE)
    loss_fn.schedule = moved(SCHEDULE)
    loss_fn(meta(*energy.shape), noise()).loss.mean().backward()
    assert all(parameter.grad.device.type == "meta" for parameter in energy.parameters() if parameter.grad is not None)


def test_marginal_likelihood():
    schedule = NoiseSchedule.marginal(0.1)
    energy = ScaledEnergy(NETWORKS["mlp"][0](), schedule, "none").to("meta")
    loss_fn = Marginal(energy, schedule, LevelSampler("langevin", 3, 0.1))
    loss_fn.schedule = moved(schedule)
    loss_fn(meta(2), noise()).loss.mean().backward()


@pytest.mark.parametrize("num_steps", [0, 2])
def test_progressive_sampling(energy, num_steps):
    schedule, sampler = moved(SCHEDULE), LevelSampler("mala", num_steps, 0.1, "denoised")
    *_, (t, x, _) = progressive(energy, schedule, sampler, energy.shape, noise(), sweeps=1)
    assert t == 0
    assert denoise(energy, schedule, x).shape == (N, *energy.shape)


@pytest.mark.parametrize("num_steps", [0, 2])
def test_inpainting(energy, num_steps):
    hidden = torch.zeros(energy.shape, dtype=torch.bool)
    hidden[..., :1] = True
    sampler = LevelSampler("mala", num_steps, 0.1)
    # Where values are hidden is known on the host.
    *_, (_, x, _) = inpaint_levels(energy, moved(SCHEDULE), sampler, meta(*energy.shape), hidden, noise(), sweeps=1)
    assert x.shape == (N, *energy.shape)


def test_restoration(energy):
    """The operator's curvature is a number, found once, before the chains."""
    measurement = Measurement(lambda x: x[..., ::2], 0.1, energy.shape)
    posterior = Posterior(energy, SCHEDULE, measurement, meta(*measurement.shape))
    sampler = posterior.sampler(LevelSampler("mala", 2, 0.1), SCHEDULE).to("meta")
    for name in ("slope", "offset", "precision"):
        setattr(posterior, name, getattr(posterior, name).to("meta"))
    *_, (_, x, _) = progressive(posterior, moved(SCHEDULE), sampler, energy.shape, noise())
    assert x.device.type == "meta"


@pytest.mark.parametrize("kernel", ["langevin", "mala"])
@pytest.mark.parametrize("name", ["resnet", "unet"])
def test_a_chain_in_bfloat16(name, kernel):
    """On the CPU, since the meta device has no autocast: positions stay float32, near those of float32 and not the same."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    network, ends = make(), []
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    energy = ScaledEnergy(network, SCHEDULE, "learned", 1.0)
    x_next = torch.randn(N, *shape)
    for precision in (None, torch.bfloat16):
        network.accelerate(precision)
        conditional = Conditional(energy, SCHEDULE, torch.zeros(N, dtype=torch.long), x_next)
        ends.append(run_chain(make_kernel(kernel), x_next, conditional, 0.05, 2, Noise(0, torch.arange(N)), check=False)[0])
    assert ends[1].dtype == torch.float32
    assert 0 < float((ends[1] - ends[0]).norm() / (ends[0] - x_next).norm()) < 0.1


class Given(Noise):
    """Numbers that are tensors already, as a compiled step takes them."""

    def __init__(self, eps, u):
        self.eps, self.u = eps, u

    def __len__(self):
        return len(self.u)

    def normal(self, *event_shape):
        return self.eps

    def uniform(self, *event_shape):
        return self.u


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="this torch does not trace gradients")
@pytest.mark.parametrize("kernel", ["langevin", "mala", "hmc"])
def test_a_step_of_a_chain_is_one_graph(kernel):
    """``fullgraph`` refuses whatever the compiler cannot put into a graph; the values are those of the step itself."""
    torch.manual_seed(0)
    energy = ScaledEnergy(NETWORKS["mlp"][0](), SCHEDULE, "learned", 1.0).requires_grad_(False)
    made, t = make_kernel(kernel), torch.zeros(N, dtype=torch.long)
    conditional, delta = Conditional(energy, SCHEDULE, t, torch.randn(N, 2)), torch.full((N, 2), 0.1)
    state = made.init(torch.randn(N, 2), conditional)

    def step(state, eps, u):
        return made.step(state, conditional, delta, Given(eps, u))[0]

    numbers = torch.randn(N, 2), torch.rand(N)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(state, *numbers)
    torch.testing.assert_close(compiled.y, step(state, *numbers).y)
