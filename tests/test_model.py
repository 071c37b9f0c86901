"""A model made of parts: samples that depend on (seed, index) alone; energy, score and log-density in the data's units."""

import math
import re

import numpy as np
import pytest
import torch

import springwell
from springwell.energy import FourierMLP, ScaledEnergy
from springwell.energy.prior import Prior
from springwell.energy.residual import LevelEnergy, NoiseUNet, ResidualEnergy
from springwell.errors import UserError
from springwell.level import LevelSampler
from springwell.likelihood.quadrature import plane_grid
from springwell.model import LogZ, Model
from springwell.samplers import langevin
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy, check_moments
from tests.plane import trained_model

MEAN, VARIANCE = 0.4, 0.6
SHIFT, SCALE = torch.tensor([2.0, -1.0]), torch.tensor([3.0, 0.5])


@pytest.fixture(scope="module")
def model():
    """A network of two dimensions, trained for a moment."""
    return trained_model(60)[0]


def gaussian_model(dim=2, shift=None, scale=None, **options):
    """Data x = shift + scale u, u ~ N(MEAN, VARIANCE I), by a plain function and exact at every level."""
    schedule = NoiseSchedule.log_snr(6, 4.0, -5.0)
    energy = GaussianEnergy(schedule, MEAN, VARIANCE)
    width = (1 / energy.variance + schedule.spring_precision).rsqrt().float()
    shift = torch.zeros(dim) if shift is None else shift
    return Model(lambda y, t: energy(y, t), schedule, LevelSampler("mala", 25, 0.9 * width), shift, scale, **options)


def moments(model, level=0):
    """Mean and variance ``[dim]`` of x_t in the data's units, float64."""
    a, sigma = float(model.schedule.a_cum[level]), float(model.schedule.sigma_cum[level])
    shift, scale = model.shift.double(), model.scale.double()
    return shift + scale * a * MEAN, scale**2 * (a**2 * VARIANCE + sigma**2)


def points(model, num=20):
    generator = torch.Generator().manual_seed(0)
    return model.shift + model.scale * torch.randn(num, *model.event_shape, generator=generator)


# ------------------------------------------------------------------------------------------------------------------ samples


def test_a_sample_depends_on_seed_and_index_alone(model):
    """The number asked for changes nothing; another batch size changes nothing but the rounding of matrix products."""
    reference = model.sample(200, seed=3, batch=200)
    assert torch.equal(model.sample(70, seed=3, batch=200), reference[:70])
    for batch in (1, 7, 64, 500):
        torch.testing.assert_close(model.sample(100, seed=3, batch=batch), reference[:100], rtol=0, atol=2e-4)
    assert not bool((model.sample(200, seed=4, batch=200) == reference).any())


def test_an_index_can_be_drawn_alone(model):
    *_, (_, some, _) = model.trajectory(torch.tensor([17, 3] * 8), seed=3)
    torch.testing.assert_close(some[:2], model.sample(20, seed=3)[[17, 3]], rtol=0, atol=2e-4)


def test_trajectory_goes_from_noise_to_data(model):
    levels = [t for t, _, _ in model.trajectory(torch.arange(50), seed=0)]
    assert levels == [4, 3, 2, 1, 0]


def test_a_plain_function_is_sampled_in_the_datas_units():
    model = gaussian_model(shift=SHIFT, scale=SCALE)
    x, (mean, variance) = model.sample(8000, seed=1), moments(model)
    for i in range(2):
        # x_T is drawn from N(0, I) though it has a mean, of which the springs leave less than 0.02 standard deviations.
        check_moments((x[:, i].double() - mean[i]) / variance[i].sqrt(), 0.0, 1.0, slack=0.02)


def test_watching_sees_every_level_in_the_datas_units():
    model, seen = gaussian_model(shift=SHIFT, scale=SCALE), {}
    (x,) = model.sample_batches(30, 2, watch=lambda first, sample: seen.setdefault(sample.t, (first, sample.x)))
    assert sorted(seen) == list(range(7))
    assert torch.equal(seen[0][1], x)
    for t, u, _ in model.trajectory(torch.arange(30), 2):
        torch.testing.assert_close(seen[t][1], SHIFT + SCALE * u, rtol=1e-4, atol=1e-4)


def test_denoising_is_the_posterior_mean():
    """E[x_data | x_0] of a Gaussian, for every sample of the model without denoising."""
    plain, denoised = (gaussian_model(shift=SHIFT, scale=SCALE, denoise=denoise) for denoise in (False, True))
    u = (plain.sample(50, seed=4) - SHIFT) / SCALE
    a, sigma = float(plain.schedule.a_cum[0]), float(plain.schedule.sigma_cum[0])
    gain = a * VARIANCE / (a**2 * VARIANCE + sigma**2)
    torch.testing.assert_close(
        denoised.sample(50, seed=4), SHIFT + SCALE * (MEAN + gain * (u - a * MEAN)), rtol=1e-4, atol=1e-4
    )


def test_chains_that_stand_still_are_named_by_their_level(model):
    kept = model.sampler
    for size, words in ((1e3, "level 2: acceptance .* the chains stand still"), (1e-7, "level 2: acceptance 1 over")):
        steps = kept.step_size.clone()
        steps[2] = size
        model.sampler = kept.with_steps(steps)
        with pytest.warns(RuntimeWarning, match=words):
            model.sample(50)
    model.sampler = kept


def test_impossible_requests(model):
    for options in ({"num": 0}, {"num": 5, "batch": 0}, {"num": 5, "num_steps": -1}, {"num": 5, "noise_scale": 0.9}):
        with pytest.raises(UserError):
            model.sample(**options)


def test_other_steps_and_another_noise_scale():
    model = gaussian_model()
    assert model.level_sampler() is model.sampler
    assert model.level_sampler(3).num_steps == 3
    assert model.level_sampler(noise_scale=1.0) is model.sampler
    model.sampler = LevelSampler(langevin(), 4, 0.05)
    assert model.level_sampler(2, 0.5).description()["options"] == {"noise_scale": 0.5}
    assert not torch.equal(model.sample(5, noise_scale=0.5), model.sample(5))


# --------------------------------------------------------------------------------------------------- energy, score, density


@pytest.mark.parametrize("level", [0, 3, 5])
def test_energy_and_score_are_those_of_the_noisy_data(level):
    """-grad energy = score = -(x - mean) / variance of x_t, in the data's units."""
    model = gaussian_model(shift=SHIFT, scale=SCALE)
    (mean, variance), x = moments(model, level), points(model)
    expected = -(x.double() - mean) / variance
    torch.testing.assert_close(model.score(x, level).double(), expected, rtol=1e-4, atol=1e-4)
    x.requires_grad_()
    energy = model.energy(x, level)
    (slope,) = torch.autograd.grad(energy.sum(), x)
    torch.testing.assert_close(-slope.double(), expected, rtol=1e-4, atol=1e-4)
    square = ((x.detach().double() - mean) ** 2 / (2 * variance)).sum(-1)
    torch.testing.assert_close(energy.detach().double(), square, rtol=1e-4, atol=1e-4)


def test_the_score_of_a_network_is_the_derivative_of_its_energy(model):
    x = points(model)
    for level in range(4):
        h = 1e-2
        direction = torch.randn(20, 2, generator=torch.Generator().manual_seed(1))
        slope = (model.energy(x - h * direction, level) - model.energy(x + h * direction, level)) / (2 * h)
        found = (model.score(x, level) * direction).sum(-1)
        torch.testing.assert_close(found, slope, rtol=0.02, atol=0.02 * float(found.abs().max()))


def test_the_score_is_differentiable_and_leaves_no_graph_otherwise():
    model, x = gaussian_model(shift=SHIFT, scale=SCALE), points(gaussian_model(shift=SHIFT, scale=SCALE))
    assert not model.score(x).requires_grad
    with torch.no_grad():
        assert not model.score(x.clone().requires_grad_()).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(model.score(x), model.score(x))
    x.requires_grad_()
    (second,) = torch.autograd.grad(model.score(x).sum(), x)
    _, variance = moments(model)
    torch.testing.assert_close(second.double(), (-1 / variance).expand(20, 2), rtol=1e-4, atol=1e-4)


def test_log_prob_in_the_plane_is_exact():
    """By quadrature, with the change of units; and its derivative is the score."""
    model = gaussian_model(shift=SHIFT, scale=SCALE)
    (mean, variance), x = moments(model), points(model)
    expected = torch.distributions.Normal(mean, variance.sqrt()).log_prob(x.double()).sum(-1)
    x.requires_grad_()
    log_prob = model.log_prob(x)
    assert log_prob.dtype == torch.float64
    torch.testing.assert_close(log_prob.detach(), expected, rtol=1e-5, atol=1e-5)
    (slope,) = torch.autograd.grad(log_prob.sum(), x)
    torch.testing.assert_close(slope, model.score(x).detach(), rtol=1e-5, atol=1e-5)


def test_log_prob_integrates_to_one(model):
    grid = plane_grid(6.0, 240)
    total = float(model.log_prob(grid).exp().sum()) * 0.05**2
    assert total == pytest.approx(1, abs=1e-3)


def test_log_prob_changes_variables(model):
    """Data in other units have the density of the transformed variable."""
    u = points(model, 50)
    other = Model(model.energy_function, model.schedule, model.sampler, SHIFT, SCALE)
    torch.testing.assert_close(other.log_prob(SHIFT + SCALE * u), model.log_prob(u) - math.log(1.5), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other.energy(SHIFT + SCALE * u, 2), model.energy(u, 2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other.score(SHIFT + SCALE * u, 2), model.score(u, 2) / SCALE, rtol=1e-3, atol=1e-4)


def test_log_prob_in_many_dimensions_takes_log_z_from_elsewhere():
    """The exact log-density of a Gaussian in 64 dimensions, the change of units included."""
    generator = torch.Generator().manual_seed(2)
    shift, scale = torch.randn(64, generator=generator), 0.1 + torch.rand(64, generator=generator)
    model = gaussian_model(64, shift, scale)
    x = points(model)
    with pytest.raises(UserError) as error:
        model.log_prob(x)
    assert "shape [64]: log Z is not known" in str(error.value)
    assert "model.use_log_z" in str(error.value)
    with pytest.raises(UserError, match="in 2 dimensions only"):
        model.normaliser()
    a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
    log_z = 0.5 * 64 * math.log(2 * math.pi * (a**2 * VARIANCE + sigma**2))
    mean, variance = moments(model)
    expected = torch.distributions.Normal(mean, variance.sqrt()).log_prob(x.double()).sum(-1)
    # A number is in the data's units.
    model.use_log_z(log_z + float(scale.double().log().sum()))
    x.requires_grad_()
    log_prob = model.log_prob(x)
    torch.testing.assert_close(log_prob.detach(), expected, rtol=1e-5, atol=1e-3)
    (slope,) = torch.autograd.grad(log_prob.sum(), x)
    torch.testing.assert_close(slope.double(), -(x.detach().double() - mean) / variance, rtol=1e-3, atol=1e-3)


def test_log_prob_of_an_energy_that_knows_its_normaliser_is_exact_and_follows_a_bracket():
    """The Gaussian of an untrained energy of 784 pixels, after the initial noise and in the data's units."""
    shape, schedule = (1, 28, 28), NoiseSchedule.log_snr(4, 5.0, -5.0)
    generator = torch.Generator().manual_seed(2)
    shift, scale = torch.randn(shape, generator=generator), 0.1 + torch.rand(shape, generator=generator)
    network = NoiseUNet(shape, 2, 4, unshuffle=2, dense_units=0)
    energy = LevelEnergy(ResidualEnergy(network, Prior.gaussian(torch.full(shape, 0.4), 0.3)), schedule)
    model = Model(energy, schedule, LevelSampler("mala", 1, 0.1), shift, scale)
    a, sigma = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    law = torch.distributions.Normal((shift + scale * a * 0.4).double(), scale.double() * math.sqrt(a**2 * 0.3 + sigma**2))
    x = (law.mean + law.stddev * torch.randn(5, *shape, generator=generator)).float()
    with pytest.warns(RuntimeWarning, match="no bracket has verified it"):
        claimed = model.log_prob(x)
    torch.testing.assert_close(claimed, law.log_prob(x.double()).flatten(1).sum(-1), rtol=0, atol=5e-3)
    claim = model.log_z().claim
    model.use_log_z(LogZ(claim + 2, claim + 1.9, claim + 2.1, 0.05))
    z = model.log_z()
    assert (z.claim, z.correction, z.verdict) == (claim, pytest.approx(2), "ok")
    torch.testing.assert_close(model.log_prob(x), claimed - 2)


def test_log_prob_in_three_dimensions_by_a_bracket_as_the_error_says():
    shift, scale = torch.tensor([1.0, -5.0, 0.0]), torch.tensor([0.1, 3.0, 20.0])
    model = gaussian_model(3, shift, scale)
    x = points(model)
    with pytest.raises(UserError) as error:
        model.log_prob(x)
    call = str(error.value).partition("as in ")[2].partition("; ")[0]
    eval(call, {"model": model, "springwell": springwell})
    mean, variance = moments(model)
    expected = torch.distributions.Normal(mean, variance.sqrt()).log_prob(x.double()).sum(-1)
    torch.testing.assert_close(model.log_prob(x), expected, rtol=0, atol=0.1)
    assert model.log_z().lower <= model.log_z().upper + 0.1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.sample(1.5), "num=1.5: is not a whole number"),
        (lambda m: m.sample("3"), "num='3': is not a whole number"),
        (lambda m: m.sample(0), "num=0: must be at least 1"),
        (lambda m: m.sample(2, batch=0), "batch=0: must be at least 1"),
        (lambda m: m.sample(2, seed=None), "seed=None: is not a whole number"),
        (lambda m: m.sample(2, seed=0.5), "seed=0.5: is not a whole number"),
        (lambda m: m.energy(torch.zeros(1, 2), level=1.5), "level=1.5: is not a whole number"),
        (lambda m: m.score(torch.zeros(1, 2), level=True), "level=True: is not a whole number"),
        (lambda m: m.f(np.zeros((1, 2))), "f: y is a ndarray"),
        (lambda m: m.use_log_z("3"), "log_z: is a str"),
        (lambda m: Model(m.energy_function, m.schedule, m.sampler, shift=1.0), "shift: is a float"),
        (lambda m: Model(m.energy_function, m.schedule, m.sampler, event_shape=2), "event_shape=2: is not a shape"),
        (lambda m: Model(m.energy_function, m.schedule, m.sampler, scale=torch.zeros(2)), "scale: has values"),
        (lambda m: Model(m.energy_function, m.schedule, m.sampler, torch.ones(2), event_shape=(3,)), "all need the shape"),
        (lambda m: Model(lambda y, t: y, m.schedule, m.sampler, event_shape=(2,)).sample(2), "returned shape"),
        (lambda m: Model(lambda y, t: None, m.schedule, m.sampler, event_shape=(2,)).sample(2), "returned None"),
        (lambda m: Model(lambda y, t: y.detach().sum(-1), m.schedule, m.sampler, event_shape=(2,)).sample(2), "no gradient"),
    ],
)
def test_wrong_arguments_are_one_sentence(call, words):
    with pytest.raises(UserError, match=re.escape(words)) as error:
        call(gaussian_model())
    assert "\n" not in str(error.value)


def test_units_may_be_arrays():
    of_arrays = gaussian_model(shift=SHIFT.numpy(), scale=SCALE.numpy())
    assert torch.equal(of_arrays.sample(3), gaussian_model(shift=SHIFT, scale=SCALE).sample(3))


def test_a_bracket_that_is_not_ok_is_warned_of():
    model = gaussian_model(64)
    model.use_log_z(LogZ(3.0, 2.0, 4.0, 0.1, "loose"))
    with pytest.warns(RuntimeWarning, match=r"log Z is in 2 \.\.\. 4, verdict loose"):
        model.log_prob(points(model))


def test_arrays_are_taken_as_tensors_are():
    model = gaussian_model(shift=SHIFT, scale=SCALE)
    x = points(model)
    for array in (x.numpy(), x.double().numpy(), x.double()):
        torch.testing.assert_close(model.energy(array, 1), model.energy(x, 1), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(model.score(array, 1), model.score(x, 1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.log_prob(array), model.log_prob(x), rtol=1e-6, atol=1e-6)
    whole = np.array([[2, -1], [5, 0]])
    torch.testing.assert_close(model.energy(whole), model.energy(torch.tensor(whole, dtype=torch.float32)))


def test_gradients_are_kept_only_where_they_are_asked_for():
    torch.manual_seed(0)
    schedule = NoiseSchedule.log_snr(3)
    network = FourierMLP(2, 3, 8, 2, 8)
    torch.nn.init.normal_(network.out.weight)
    model = Model(ScaledEnergy(network, schedule), schedule, LevelSampler("mala", 2, 0.1), event_shape=(2,))
    x = points(model)
    assert not model.energy(x).requires_grad
    assert not model.log_prob(x).requires_grad
    x.requires_grad_()
    model.log_prob(x).sum().backward()
    assert bool((x.grad != 0).all())


# ------------------------------------------------------------------------------------------------------------ what is refused


def test_wrong_shapes_types_and_levels_are_named():
    model = gaussian_model()
    for call in (model.energy, model.score, model.log_prob):
        for x, words in (
            (torch.zeros(3), r"x: has shape \[3\]; needs \[N, 2\]"),
            (torch.zeros(3, 3), r"x: has shape \[3, 3\]; needs \[N, 2\]"),
            (torch.tensor(0.0), r"x: has shape \[\]; needs \[N, 2\]"),
            (torch.zeros(3, 2, dtype=torch.uint8), "x: is torch.uint8; give floats in the data's units"),
            (torch.zeros(3, 2, dtype=torch.bool), "x: is torch.bool; give floats"),
            ([[0.0, 0.0]], "x: is a list; give a tensor or an array"),
            ("x", "x: is a str; give a tensor or an array"),
            (np.array([[1, "a"]], dtype=object), "x: is an array of object; give numbers"),
        ):
            with pytest.raises(UserError, match=words):
                call(x)
    for level in (-1, 6):
        for call in (model.energy, model.score):
            with pytest.raises(UserError, match=f"level={level}: out of range; this model has levels 0 ... 5"):
                call(torch.zeros(3, 2), level)
    with pytest.raises(UserError, match=r"f: y has shape \[3\]; needs \[N, 2\]"):
        model.f(torch.zeros(3))


@pytest.mark.parametrize("array", [np.ones((3, 2), ">f4"), np.ones((6, 2))[::-2], np.ones((2, 3), np.float32).T])
def test_arrays_of_any_byte_order_and_strides(array):
    model = Model(lambda y, t: -y.square().sum(-1), NoiseSchedule.log_snr(3), LevelSampler("mala", 2, 0.1), event_shape=(2,))
    assert model.energy(array).tolist() == model.energy(torch.ones(3, 2)).tolist()
    assert model.score(array).tolist() == model.score(torch.ones(3, 2)).tolist()


@pytest.mark.parametrize("device", ["zz", "cuda:99", 1.5])
def test_a_device_that_is_not_here_is_named(device):
    model = Model(lambda y, t: -y.square().sum(-1), NoiseSchedule.log_snr(3), LevelSampler("mala", 2, 0.1), event_shape=(2,))
    with pytest.raises(UserError, match=f"^device='{device}': not available here; use auto or cpu$"):
        model.to(device)
    assert model.to("cpu").device.type == "cpu"


def test_wrong_parts_are_named():
    schedule, sampler = NoiseSchedule.log_snr(3), LevelSampler("mala", 2, 0.1)

    def energy(y, t):
        return -y.square().sum(-1)

    for arguments, options, words in (
        ((None, schedule, sampler), {"event_shape": (2,)}, "energy: is None; give a callable (y [N, ...], t [N]) -> [N]"),
        ((energy, 3, sampler), {"event_shape": (2,)}, "schedule: is an int; give a NoiseSchedule"),
        ((energy, schedule, "mala"), {"event_shape": (2,)}, "sampler: is a str; give a LevelSampler"),
        ((energy, schedule, None), {"event_shape": (2,)}, "sampler: is None; give a LevelSampler"),
        ((energy, schedule, sampler), {}, "event_shape: is not given, and neither are shift and scale"),
        (
            (energy, schedule, sampler, torch.zeros(2), torch.ones(3)),
            {},
            "shift, scale and event_shape: have the shapes [2] and [3]",
        ),
        (
            (energy, schedule, LevelSampler("mala", 2, torch.ones(4))),
            {"event_shape": (2,)},
            "step_size: has shape [4]; needs [3]",
        ),
        ((energy, NoiseSchedule.t6(3), LevelSampler("mala", 0)), {"event_shape": (2,)}, "num_steps=0: needs the spring"),
    ):
        with pytest.raises(UserError) as error:
            Model(*arguments, **options)
        assert str(error.value).startswith(words)
        assert "\n" not in str(error.value)


def test_repr_says_what_it_is(model):
    plain = gaussian_model()
    assert repr(plain) == "<springwell model Model: 6 levels, vectors 2, 25 MCMC steps per level>"
    plain.metadata["name"], plain.iteration, plain.sampler = "mine", 1200, LevelSampler("mala", 0)
    assert repr(plain) == "<springwell model mine: 6 levels, vectors 2, no chains, iteration 1,200>"
    number = sum(p.numel() for p in model.energy_function.parameters())
    assert f"4 levels, vectors 2, {number:,} parameters" in repr(model)
    image = Model(lambda y, t: -y.flatten(1).square().sum(-1), plain.schedule, plain.sampler, event_shape=(3, 8, 8))
    assert "images 3 x 8 x 8" in repr(image)


def test_the_fingerprint_is_that_of_the_weights(model):
    before = model.fingerprint()
    assert before == model.fingerprint()
    parameter = next(model.energy_function.parameters())
    with torch.no_grad():
        parameter.view(-1)[0] += 1
        changed = model.fingerprint()
        parameter.view(-1)[0] -= 1
    assert changed != before
    other = Model(model.energy_function, model.schedule, model.sampler, SHIFT, SCALE)
    assert other.fingerprint() != before


def test_the_fingerprint_of_a_function_is_that_of_its_values():
    def of(weight):
        sampler = LevelSampler("mala", 2, 0.5)
        return Model(lambda y, t: -weight * y.square().sum(-1), NoiseSchedule.log_snr(3), sampler, event_shape=(2,))

    assert of(0.5).fingerprint() == of(0.5).fingerprint() != of(0.51).fingerprint()
