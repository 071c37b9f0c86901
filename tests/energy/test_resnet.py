"""The image network against the authors' own numbers, and against what its docstring promises."""

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from springwell import NoiseSchedule, UserError
from springwell.conditional import Conditional
from springwell.energy import EnergyResNet, ScaledEnergy, at_level
from springwell.level import LevelSampler
from springwell.noise import Noise
from springwell.objectives import Recovery
from springwell.samplers import gradient
from tests.energy.rounding import bfloat16_error
from tests.exact import with_pairs

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(params=[32, 64])
def golden(request):
    return dict(np.load(FIXTURES / f"official_{request.param}.npz"))


def nchw(array):
    return torch.from_numpy(np.moveaxis(array, -1, -3).copy())


class GivenNoise(Noise):
    """Normals that were written down, in place of drawn ones."""

    def __init__(self, draws):
        self.num, self.draws = len(draws[0]), iter(draws)

    def __len__(self):
        return self.num

    def normal(self, *event_shape):
        return next(self.draws)


def official(golden):
    schedule = NoiseSchedule.t6()
    network = EnergyResNet.from_official(golden)
    return network, ScaledEnergy(network, schedule, "step"), schedule, torch.from_numpy(golden["t"]).long()


def small(**options):
    torch.manual_seed(0)
    network = EnergyResNet(1, 8, (1, 2), 1, **options)
    with torch.no_grad():
        for layer in network.modules():
            if hasattr(layer, "gain"):
                layer.weight.normal_(std=0.3)
    return network.eval()


def test_infers_the_architecture(golden):
    network, *_ = official(golden)
    width, levels = golden["conv_in.W"].shape[-1], {32: 4, 64: 5}[golden["x"].shape[1]]
    assert (network.width, len(network.levels)) == (width, levels)
    assert sum(p.numel() for p in network.parameters()) == sum(
        a.size for name, a in golden.items() if name.rpartition(".")[2] in ("W", "b", "g")
    )


@pytest.mark.parametrize("prepared", [False, True])
def test_f_is_the_authors(golden, prepared):
    network, _, _, t = official(golden)
    x = nchw(golden["x"])
    f = at_level(network, t)(x) if prepared else network(x, t)
    assert (f.detach() - torch.from_numpy(golden["f"])).abs().max() < 2e-6


def test_gradient_is_the_authors(golden):
    """Relative to the largest entry of each image's, and up to a kink: a unit within rounding error of its kink has the slope
    of either side, so one of a few inputs that differ by less than rounding must agree."""
    network, _, _, t = official(golden)
    x, theirs = nchw(golden["x"]), nchw(golden["df_dx"])
    nudges = [torch.zeros_like(x)] + [1e-6 * Noise(i, torch.arange(len(t))).normal(*x.shape[1:]) for i in range(8)]
    size = theirs.abs().amax((1, 2, 3))
    errors = torch.stack([(gradient(at_level(network, t), x + d) - theirs).abs().amax((1, 2, 3)) / size for d in nudges])
    assert errors.amin(0).max() < 1e-4
    assert (errors[0] < 1e-4).sum() >= len(t) - 1


def test_langevin_chain_is_the_authors(golden):
    _, energy, schedule, t = official(golden)
    noise = GivenNoise(nchw(golden["langevin.noise"]))
    sampler = LevelSampler("langevin", int(golden["langevin.num_steps"]), schedule.langevin_step.float())
    x_next = nchw(golden["langevin.x_tp1"])
    y, _ = sampler.draw(Conditional(energy, schedule, t, x_next), noise)
    x_t = y / schedule.scale[t].float()[:, None, None, None]
    assert (x_t - nchw(golden["langevin.x_t"])).abs().max() < 1e-5


def test_loss_is_the_authors(golden):
    _, energy, schedule, t = official(golden)
    scale = schedule.scale[t].float()[:, None, None, None]
    positive, negative = scale * nchw(golden["loss.x_pos"]), scale * nchw(golden["loss.x_neg"])
    # A chain with so small a step stays at its start, which makes the given x_neg the negative sample.
    still = LevelSampler("langevin", 1, torch.full((6,), 1e-30))
    noise = Noise(0, torch.arange(len(t)))
    outcome = Recovery(energy, with_pairs(schedule, positive, negative), still)(positive, noise, t)
    assert abs(outcome.loss.mean().item() - golden["loss.value"]) < 1e-5


def test_missing_and_misshapen_official_weights_are_named(golden):
    with pytest.raises(UserError, match=r"'level1.block0.conv2.g' is missing"):
        EnergyResNet.from_official({name: a for name, a in golden.items() if name != "level1.block0.conv2.g"})
    with pytest.raises(UserError, match=r"'conv_in.W'"):
        EnergyResNet.from_official({"x": golden["x"]})
    with pytest.raises(UserError, match=r"'temb.dense1.b' is \[3\]"):
        EnergyResNet.from_official({**golden, "temb.dense1.b": np.zeros(3, np.float32)})


def test_spectral_norms():
    """Divided out everywhere but in the second convolution of a block, where it is at most 1, and in the last layer."""
    network = small()
    for name, layer in network.named_modules():
        if not hasattr(layer, "normalised"):
            continue
        raw = torch.linalg.matrix_norm(layer.weight.double().flatten(1), 2)
        weight, _ = layer.normalised()
        used = torch.linalg.matrix_norm(weight.double().flatten(1), 2)
        expected = raw if name == "dense_final" else raw.clamp(max=1) if name.endswith("conv2") else torch.ones_like(raw)
        torch.testing.assert_close(used, expected, rtol=1e-5, atol=1e-5)
    block = network.levels[0][0]
    with torch.no_grad():
        block.conv2.weight.mul_(1e-3)
    network.eval()
    torch.testing.assert_close(block.conv2.normalised()[0], block.conv2.weight)


def test_power_iteration_follows_the_weights():
    network = small().train()
    layer = network.levels[1][0].conv1
    with torch.no_grad():
        layer.weight.normal_()
    true = torch.linalg.matrix_norm(layer.weight.double().flatten(1), 2)
    errors = []
    for _ in range(200):
        network.follow_weights()
        norm = torch.linalg.matrix_norm(layer.normalised()[0].detach().double().flatten(1), 2)
        errors.append(float(norm - 1))
    assert errors[0] > 0.01
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-3
    assert layer.weight.flatten(1).norm() > true  # the raw weight is left as it was


def test_evaluation_mode_is_exact_whatever_the_vectors_were():
    network = small()
    y, t = torch.randn(4, 1, 8, 8), torch.arange(4)
    f = network(y, t)
    for layer in network.modules():
        if hasattr(layer, "u"):
            layer.u.copy_(torch.nn.functional.normalize(torch.randn_like(layer.u), dim=0))
    assert not torch.allclose(network(y, t), f, rtol=1e-3)
    torch.testing.assert_close(network.eval()(y, t), f)


def test_chain_weights_have_no_gradient_and_are_prepared_once(monkeypatch):
    network = small()
    prepared = []
    original = EnergyResNet._prepare
    monkeypatch.setattr(EnergyResNet, "_prepare", lambda self, t: prepared.append(0) or original(self, t))
    schedule = NoiseSchedule.log_snr(4, 5, -5)
    t, x = torch.arange(4), torch.randn(4, 1, 8, 8)
    sampler = LevelSampler("langevin", 7, 0.1 * schedule.sigma[1:].float())
    y, _ = sampler.draw(Conditional(ScaledEnergy(network, schedule), schedule, t, x), Noise(0, torch.arange(4)))
    assert len(prepared) == 1
    assert not y.requires_grad
    assert all(p.grad is None for p in network.parameters())


@pytest.mark.parametrize(
    ("size", "channels", "multipliers", "unshuffle"),
    [(32, 3, (1, 2, 2, 2), 1), (28, 1, (1, 2, 2), 1), (28, 1, (1, 2), 2), (8, 1, (1, 2, 2, 2), 1)],
)
def test_sizes_that_pool(size, channels, multipliers, unshuffle):
    network = EnergyResNet(channels, 8, multipliers, 1, unshuffle)
    network.check_size(size, size)
    f = network(torch.randn(2, channels, size, size), torch.tensor([0, 3]))
    assert f.shape == (2,)
    assert torch.isfinite(f).all()


def test_a_size_that_does_not_pool_is_refused():
    with pytest.raises(
        UserError, match=r"images of 28x28: height and width must be multiples of 8 .*halvings: 3.*image_size=32"
    ):
        EnergyResNet(1, 8, (1, 1, 1, 1)).check_size(28, 28)


def test_samples_do_not_see_each_other():
    network = small()
    y, t = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 3, 2])
    together = network(y, t)
    alone = torch.cat([network(y[i : i + 1], t[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_gradient_in_bfloat16_is_near_float32():
    # bfloat16 keeps 8 bits. In each of a handful of layers some 2^-8 of the units fall on the other side of their kink, which
    # changes their slope by about its size: sqrt(5 2^-8) = 0.14.
    assert 1e-4 < bfloat16_error(small()) < 0.14


def test_half_precision_survives_a_large_scale():
    """The gradient of scale * net passes the network without the scale, so nothing overflows."""
    network = small()
    schedule = NoiseSchedule.t6()
    energy = ScaledEnergy(network, schedule, "step")
    energy.scale.fill_(1e6)
    y, t = torch.randn(4, 1, 8, 8), torch.arange(4)
    exact = gradient(energy.at(t), y)
    network.accelerate(torch.float16)
    half = gradient(energy.at(t), y)
    assert torch.isfinite(half).all()
    assert (half - exact).norm() / exact.norm() < 0.01


@pytest.mark.slow
def test_compiled_is_the_same():
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    network = small()
    y, t = torch.randn(4, 1, 8, 8), torch.arange(4)
    f, grad = network(y, t).detach(), gradient(at_level(network, t), y)
    network.accelerate(compiled=True)
    torch.testing.assert_close(network(y, t).detach(), f, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient(at_level(network, t), y), grad, rtol=1e-4, atol=1e-5)
