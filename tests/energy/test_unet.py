"""The U-Net energy: where it starts, how it grows, and what it shares with the ResNet."""

import math

import pytest
import torch

import springwell as sw
from springwell import NoiseSchedule, UserError
from springwell.app.config import with_fields
from springwell.app.presets import preset
from springwell.energy import EnergyUNet, ScaledEnergy, at_level
from springwell.samplers import gradient
from tests.energy.rounding import bfloat16_error


def small(multipliers=(1, 2), num_blocks=1, **options):
    """A network whose weights are all away from the zeros that some start at."""
    torch.manual_seed(0)
    network = EnergyUNet(1, 8, multipliers, num_blocks, **options)
    with torch.no_grad():
        for block in (block for part in (network.down, network.up) for level in part for block in level):
            block.conv2.weight.normal_(std=0.1)
        network.conv_out.weight.normal_()
        network.head.weight.normal_()
        if network.dense is not None:
            network.dense.restore.weight.normal_()
    return network.eval()


@pytest.mark.parametrize("dense_units", [0, 4])
def test_starts_at_the_base_term(dense_units):
    network = EnergyUNet(1, 8, (1, 2), 1, 2, dense_units, (8, 8))
    energy = ScaledEnergy(network, NoiseSchedule.log_snr(4), "learned", 0.7)
    y, t = torch.randn(4, 1, 8, 8), torch.arange(4)
    torch.testing.assert_close(energy(y, t), -0.35 * y.square().sum((1, 2, 3)))


@pytest.mark.parametrize("options", [{}, {"dense_units": 4, "image_size": (8, 8)}])
def test_grows_no_faster_than_its_input(options):
    """So that the base term wins, and f is integrable: |<y, bounded>| <= 8 |y|_1, and the pooled part is Lipschitz."""
    network = small(**options)
    y, t = torch.randn(16, 1, 8, 8), torch.arange(16) % 4
    size = y.abs().sum((1, 2, 3))
    near, far = (network(s * y, t).abs() / (s * size) for s in (1e5, 1e7))
    torch.testing.assert_close(near, far, rtol=0.01, atol=0.01)
    product_alone = small(**options)
    with torch.no_grad():
        product_alone.head.weight.zero_()
        product_alone.head.bias.zero_()
    assert bool((product_alone(1e6 * y, t).abs() <= 8 * 1e6 * size).all())


@pytest.mark.parametrize("multipliers", [(1,), (1, 2), (2, 1, 3)])
@pytest.mark.parametrize("unshuffle", [1, 2])
def test_sizes_and_chains(multipliers, unshuffle):
    network = small(multipliers, 2, unshuffle=unshuffle)
    network.check_size(8, 8)
    y, t = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 3, 2])
    f = network(y, t)
    assert f.shape == (5,)
    torch.testing.assert_close(at_level(network, t)(y), f)
    alone = torch.cat([network(y[i : i + 1], t[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(f, alone, rtol=1e-4, atol=1e-4)


def test_a_dense_map_joins_what_convolutions_keep_apart():
    """The slope in one corner depends on the other corner, 31 pixels away, only with the map; and chains see the same."""
    for dense_units in (0, 4):
        network = small((1, 2), dense_units=dense_units, image_size=(32, 32))
        f = at_level(network, torch.tensor([1]))
        y = torch.randn(1, 1, 32, 32)
        moved = y.clone()
        moved[0, 0, 31, 31] += 3.0
        torch.testing.assert_close(f(y), network(y, torch.tensor([1])))
        change = (gradient(f, moved) - gradient(f, y))[0, 0, 0, 0].abs()
        assert bool(change > 0) == bool(dense_units)


@pytest.mark.parametrize("options", [{}, {"dense_units": 4, "image_size": (8, 8)}])
def test_every_weight_and_every_pixel_counts(options):
    network = small(num_blocks=2, **options)
    y = torch.randn(6, 1, 8, 8, requires_grad=True)
    network(y, torch.arange(6)).sum().backward()
    assert all(bool(p.grad.any()) for p in network.parameters())
    assert bool((y.grad != 0).all())


def test_gradients_match_finite_differences():
    f = at_level(small(), torch.arange(16) % 4)
    y, v, h = torch.randn(16, 1, 8, 8), torch.randn(16, 1, 8, 8), 1e-2
    slope = (gradient(f, y) * v).sum((1, 2, 3))
    torch.testing.assert_close((f(y + h * v) - f(y - h * v)) / (2 * h), slope, rtol=0.01, atol=0.01 * float(slope.abs().max()))


def test_gradient_in_bfloat16_is_near_float32():
    assert 1e-4 < bfloat16_error(small()) < 0.1


def test_a_size_that_does_not_pool_is_refused():
    with pytest.raises(
        UserError, match=r"images of 28x28: height and width must be multiples of 8 \(unshuffle=2, halvings: 2\)"
    ):
        EnergyUNet(1, 8, (1, 1, 1), unshuffle=2).check_size(28, 28)


def test_log_density_of_noisy_data_is_an_inner_product_with_the_denoised():
    """The identity the module's docstring rests on: grad phi is the posterior mean, and f its phi less |y|^2 / 2."""
    torch.manual_seed(0)
    x, sigma = torch.randn(7, 3, dtype=torch.float64), 0.3
    y = torch.randn(11, 3, dtype=torch.float64, requires_grad=True)
    log_weight = (y @ x.T - x.square().sum(-1) / 2) / sigma**2
    phi = sigma**2 * log_weight.logsumexp(-1)
    (slope,) = torch.autograd.grad(phi.sum(), y, retain_graph=True)
    mean = log_weight.softmax(-1) @ x
    torch.testing.assert_close(slope, mean)
    f = (-(y[:, None] - x).square().sum(-1) / (2 * sigma**2)).logsumexp(-1)
    torch.testing.assert_close((phi - y.square().sum(-1) / 2) / sigma**2, f)
    sure = log_weight.softmax(-1).amax(-1) > 0.999999
    assert bool(sure.any())
    constant = x[log_weight.argmax(-1)].square().sum(-1) / 2
    torch.testing.assert_close(phi[sure], ((y * mean).sum(-1) - constant)[sure], rtol=1e-4, atol=1e-4)


def test_trains_and_comes_back(tmp_path):
    options = {"network": "unet", "width": 8, "dense_units": 4, "iterations": 3, "batch": 8, "preview_every": 0}
    config = with_fields(preset("digits"), **options)
    sw.train(config, out=tmp_path / "run", device="cpu", reporter=sw.Silent())
    model = sw.load(tmp_path / "run")
    assert type(model.energy_function.network) is EnergyUNet
    assert model.sample(2, seed=0).shape == (2, 1, 8, 8)


@pytest.mark.parametrize("u", [0.1, 5.0, -20.0])
def test_what_multiplies_the_input_is_bounded_by_a_tanh(u):
    """With U the same everywhere and no sum over pixels, net = 8 tanh(U / 8) sum y."""
    network, y = small(), torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        network.conv_out.weight.zero_()
        network.conv_out.bias.fill_(u)
        network.head.weight.zero_()
        network.head.bias.zero_()
    torch.testing.assert_close(network(y, torch.arange(3)), 8 * math.tanh(u / 8) * y.sum((1, 2, 3)), rtol=1e-5, atol=1e-4)
