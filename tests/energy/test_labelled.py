"""Energies that know classes: what a label changes, and what guidance is."""

import math

import pytest
import torch

from springwell.app.build import measurable_data
from springwell.energy.labelled import Labelled, posterior
from springwell.energy.prior import Prior
from springwell.energy.residual import LevelEnergy, NoiseMLP, NoiseUNet, ResidualEnergy, know_classes
from springwell.errors import UserError
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.normalised import Normalised
from springwell.schedule import NoiseSchedule

SCHEDULE = NoiseSchedule.log_snr(4, 5.0, -5.0)


def energy(image: bool, num_classes: int = 3) -> ResidualEnergy:
    """An energy with random weights, none of them 0."""
    torch.manual_seed(0)
    shape = (1, 8, 8) if image else (2,)
    network = NoiseUNet(shape, 2, 8, (1, 2), 1, 1, 16) if image else NoiseMLP(2, 2, 16, 2)
    if num_classes:
        know_classes(network, num_classes)
    made = ResidualEnergy(network, Prior.fit(torch.randn(500, *shape)))
    for parameter in made.network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return made


def model() -> Model:
    known = LevelEnergy(energy(False), SCHEDULE, ("cat", "dog", "7"))
    return Model(known, SCHEDULE, LevelSampler("mala", 2, 0.4 * SCHEDULE.sigma[1:].float()), event_shape=(2,))


def test_data_of_all_classes_do_not_measure_one() -> None:
    with pytest.raises(UserError, match="model: is given the class 'dog', and its data have all classes; measure the model"):
        measurable_data(model().given("dog"))


def points(image: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(5, *((1, 8, 8) if image else (2,)), generator=generator)
    return y, torch.full((5,), 0.7)


@pytest.mark.parametrize("image", [False, True])
def test_a_label_changes_the_density_and_none_does_not(image):
    f, (y, sigma) = energy(image), points(image)
    by_label = [f(y, sigma, label=torch.full((5,), c)) for c in (-1, 0, 1, 2)]
    assert torch.equal(by_label[0], f(y, sigma))
    assert min((a - b).abs().min() for i, a in enumerate(by_label) for b in by_label[:i]) > 1e-4
    mixed = f(y, sigma, label=torch.tensor([-1, 0, 1, 2, 0]))
    torch.testing.assert_close(mixed, torch.stack([by_label[c + 1][i] for i, c in enumerate([-1, 0, 1, 2, 0])]))


@pytest.mark.parametrize("image", [False, True])
def test_a_network_begins_without_classes(image):
    """Numbers of classes start at 0, so that a trained model without classes may become one with them."""
    f, (y, sigma) = energy(image, 0), points(image)
    before = f(y, sigma)
    know_classes(f.network, 3)
    assert torch.equal(f(y, sigma, label=torch.tensor([0, 1, 2, -1, 0])), before)


def test_every_class_learns_from_its_own_samples_and_none_from_a_withheld_label():
    level = LevelEnergy(energy(False), SCHEDULE)
    weight = level.energy.network.classes.weight
    x, label = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 2
    for dropout, learns in ((0.0, [True, True, False]), (1.0, [False, False, False])):
        weight.grad = None
        Normalised(level, SCHEDULE, label_dropout=dropout)(x, Noise(0, torch.arange(64)), label=label).loss.sum().backward()
        assert (weight.grad.abs().sum(-1) > 0).tolist() == learns


def test_guidance_is_the_density_of_all_data_times_a_power_of_the_class():
    f, (y, sigma) = energy(False), points()
    every = f(y, sigma).detach()
    by_class = torch.stack([f(y, sigma, label=torch.full((5,), c)).detach() for c in range(3)], -1)
    one = by_class[:, 1]
    assert torch.equal(Labelled(f, 1, 0.0, 1 / 3, 3)(y, sigma), every)
    assert torch.equal(Labelled(f, 1, 1.0, 1 / 3, 3)(y, sigma), one)
    # Near both ends it goes over into them.
    for weight, end in ((1e-7, every), (-1e-7, every), (1 - 1e-7, one), (1 + 1e-7, one)):
        torch.testing.assert_close(Labelled(f, 1, weight, 1 / 3, 3)(y, sigma).detach(), end, rtol=1e-4, atol=1e-4)
    joint = by_class.exp() * torch.tensor([0.25, 0.5, 0.25])
    log_posterior = (joint[:, 1] / joint.sum(-1)).log()
    expected = {2.5: one + 1.5 * log_posterior, 0.3: every + 0.3 * (one - every), -1.0: every - log_posterior}
    for weight, value in expected.items():
        torch.testing.assert_close(Labelled(f, 1, weight, 0.5, 3)(y, sigma).detach(), value, rtol=1e-4, atol=1e-4)


def test_a_class_among_many_is_compared_with_all_data():
    """Two passes, and log p(y | c) - log p(y) + log p(c) is at most 0."""
    f, (y, sigma) = energy(False, 9), points()
    every, one = f(y, sigma).detach(), f(y, sigma, label=torch.full((5,), 1)).detach()
    ratio = one - every
    share = math.exp(-float(ratio.median()))
    assert (ratio + math.log(share) > 0).any()
    log_posterior = (ratio + math.log(share)).clamp(max=0)
    for weight, value in {2.5: one + 1.5 * log_posterior, 0.3: every + 0.3 * ratio, -1.0: every - log_posterior}.items():
        torch.testing.assert_close(Labelled(f, 1, weight, share, 9)(y, sigma).detach(), value, rtol=1e-4, atol=1e-4)


def test_bayes_rule_of_densities():
    log_prob = torch.tensor([[0.0, -1.0, 2.0]])
    joint = log_prob.exp() * torch.tensor([0.2, 0.6, 0.2])
    torch.testing.assert_close(posterior(log_prob, 1, 0.6).exp(), joint[:, 1] / joint.sum(-1))


def test_a_given_model_is_an_ordinary_one():
    whole = model()
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(2))
    for c, name in enumerate(whole.classes):
        one = whole.given(name)
        log_density = -one.energy(x).double() - one.claimed_log_z()
        torch.testing.assert_close(log_density, whole.class_log_prob(x)[:, c], rtol=1e-4, atol=1e-4)
        assert one.label == name
    assert torch.equal(whole.given("dog", guidance=0).energy(x), whole.energy(x))
    assert torch.equal(whole.given("dog", guidance=1).energy(x), whole.given("dog").energy(x))
    assert torch.equal(whole.given("dog", guidance=0).sample(4), whole.sample(4))
    assert torch.equal(whole.given("dog", guidance=1, rejection=True).sample(4), whole.given("dog").sample(4))
    assert whole.given("dog").claimed_log_z() == pytest.approx(whole.claimed_log_z())
    # A guided density has a normaliser that nobody has told it.
    assert whole.given("dog", guidance=2).claimed_log_z() is None
    assert len({m.fingerprint() for m in (whole, whole.given(0), whole.given(1), whole.given(1, guidance=2))}) == 4
    assert whole.given(0).sample(4).shape == (4, 2)


def test_bayes_rule():
    whole = model()
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(2))
    log_prob, prior = whole.class_log_prob(x), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    joint = log_prob.exp() * prior
    torch.testing.assert_close(whole.classify(x, prior=prior.tolist()).exp(), joint / joint.sum(-1, keepdim=True))
    noisy = whole.classify(x, level=2, draws=3)
    assert torch.equal(noisy, whole.classify(x, level=2, draws=3))
    assert not torch.allclose(noisy, whole.classify(x, level=2, draws=3, seed=1))


def test_the_density_of_a_level_is_taken_at_the_data_or_at_draws_of_its_noise():
    whole, c = model(), torch.full((6,), 1)
    x, t = torch.randn(6, 2, generator=torch.Generator().manual_seed(2)), torch.full((6,), 2)
    scale, a, f = SCHEDULE.scale[2].float(), SCHEDULE.a_cum[2].float(), whole.energy_function
    expected = f(scale * a * x, t, label=c).double().detach() + 2 * math.log(float(scale))
    torch.testing.assert_close(whole.class_log_prob(x, 2)[:, 1], expected)
    noise = whole.noise(0, torch.arange(6), Stream.CLASSES)
    drawn = [f(scale * SCHEDULE.diffuse(x, t, noise), t, label=c).double().detach() for _ in range(2)]
    expected = (drawn[0] + drawn[1]) / 2 + 2 * math.log(float(scale))
    torch.testing.assert_close(whole.class_log_prob(x, 2, draws=2)[:, 1], expected)


def test_images_are_classified_at_a_level_with_noise():
    fine, known = NoiseSchedule.log_snr(72, 11.0, -6.0), energy(True)
    sampler = LevelSampler("mala", 0, 1.0, "ancestral")
    images = Model(LevelEnergy(known, fine, ("a", "b", "c")), fine, sampler, event_shape=(1, 8, 8))
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    for std in (0.5, 1.0):
        known.data_std.fill_(std)
        level = images.classifying_level
        # A level's noise is 1.13 times that of the one below.
        assert float(fine.sigma_cum[level] / fine.a_cum[level]) == pytest.approx(0.1 * 8 * std, rel=0.07)
        assert torch.equal(images.classify(x), images.classify(x, level=level))
        assert not torch.allclose(images.classify(x), images.classify(x, level=level + 1))
    assert model().classifying_level == 0


def test_labels_that_cannot_be():
    whole = model()
    assert [whole.label_of(name) for name in ("cat", 1, "7", 7)] == [0, 1, 2, 2]
    with pytest.raises(UserError, match="label='bird': unknown; the classes are cat, dog, 7"):
        whole.given("bird")
    with pytest.raises(UserError, match="label=3: unknown"):
        whole.given(3)
    with pytest.raises(UserError, match="guidance=nan"):
        whole.given("cat", guidance=math.nan)
    with pytest.raises(UserError, match="prior="):
        whole.classify(torch.zeros(1, 2), prior=[1.0])
    plain = Model(LevelEnergy(energy(False, 0), SCHEDULE), SCHEDULE, whole.sampler, event_shape=(2,))
    with pytest.raises(UserError, match="knows no classes"):
        plain.given(0)
