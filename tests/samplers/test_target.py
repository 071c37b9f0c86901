"""What kernels accept: any callable, objects with gradients of their own, float step sizes, a torch.Generator; nothing else."""

import warnings

import pytest
import torch

from springwell.errors import UserError
from springwell.noise import GeneratorNoise, Noise, as_noise
from springwell.samplers import (
    Tuning,
    gradient,
    hmc,
    langevin,
    make_kernel,
    mala,
    nuts,
    record_chain,
    run_chain,
    tune_step_size,
    value_and_grad,
)
from tests.exact import check_moments

KERNELS = {"langevin": langevin(), "mala": mala(), "hmc": hmc(3), "nuts": nuts(4)}
TESTED = [name for name, kernel in KERNELS.items() if kernel.tested]


def gaussian(y):
    return -0.5 * y.square().sum(-1)


class Counted:
    """A Gaussian that knows its gradient and counts who asks for what."""

    def __init__(self):
        self.calls, self.gradients, self.both = 0, 0, 0

    def __call__(self, y):
        self.calls += 1
        return gaussian(y)

    def grad(self, y):
        self.gradients += 1
        return -y

    def value_and_grad(self, y):
        self.both += 1
        return gaussian(y), -y


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_a_target_computes_its_own_gradients(name, check):
    """No kernel differentiates it, none evaluates more than it needs, and chains are those of the plain function."""
    target, y = Counted(), Noise(0, torch.arange(5)).normal(2)
    own, _ = run_chain(KERNELS[name], y, target, 0.5, 4, Noise(1, torch.arange(5)), check)
    plain, _ = run_chain(KERNELS[name], y, gaussian, 0.5, 4, Noise(1, torch.arange(5)), check)
    torch.testing.assert_close(own, plain)
    assert target.calls == 0
    if name == "langevin":
        assert (target.gradients, target.both) == (4, 0)
    else:
        # The start, and then a gradient for every proposal or leapfrog step.
        expected = {"mala": 1 + 4, "hmc": 1 + 4 * 3}.get(name, target.both)
        assert (target.gradients, target.both) == (0, expected)
        assert target.both > 4


@pytest.mark.parametrize("name", KERNELS)
def test_traces_and_tuning_use_it_too(name):
    target, y = Counted(), Noise(0, torch.arange(5)).normal(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        record_chain(KERNELS[name], y, target, 0.5, 4, Noise(1, torch.arange(5)))
        if KERNELS[name].tested:
            tune_step_size(KERNELS[name], target, y, 0.5, Noise(1, torch.arange(5)), tuning=Tuning(num_steps=4, max_rounds=1))
    assert target.calls == 0
    assert target.gradients + target.both >= 4


@pytest.mark.parametrize("check", [True, False])
def test_one_of_the_two_methods_is_enough(check):
    class Both:
        def __init__(self):
            self.count = 0

        def __call__(self, y):
            raise AssertionError("a target with gradients of its own was differentiated")

        def value_and_grad(self, y):
            self.count += 1
            return gaussian(y), -y

    target, y = Both(), torch.ones(3, 2)
    moved, _ = run_chain(langevin(), y, target, 0.5, 4, Noise(0, torch.arange(3)), check)
    assert target.count == 4
    torch.testing.assert_close(moved, run_chain(langevin(), y, gaussian, 0.5, 4, Noise(0, torch.arange(3)))[0])


def test_values_and_gradients_of_any_callable():
    y = Noise(2, torch.arange(4)).normal(3)
    value, grad = value_and_grad(gaussian, y)
    torch.testing.assert_close(value, gaussian(y))
    torch.testing.assert_close(grad, -y)
    torch.testing.assert_close(gradient(gaussian, y), -y)
    assert not any(v.requires_grad for v in (value, grad, y))
    with torch.no_grad():
        torch.testing.assert_close(gradient(gaussian, y), -y)


class AtLevel:
    def __init__(self, f, level):
        self.f, self.level = f, level

    def __call__(self, y):
        return self.f(y)


@pytest.mark.parametrize("level", [5, torch.tensor([4, 5, 5, 5])], ids=["one", "each"])
@pytest.mark.parametrize("name", KERNELS)
def test_an_attribute_names_the_level_of_a_bad_start(name, level):
    y = torch.zeros(4, 2)
    y[2] = torch.nan
    with pytest.raises(UserError, match=r"start of chain 2 \(level 5\): is not finite"):
        run_chain(KERNELS[name], y, AtLevel(gaussian, level), 0.5, 2, Noise(0, torch.arange(4)))


@pytest.mark.parametrize("name", TESTED)
@pytest.mark.parametrize("run", [run_chain, record_chain])
def test_an_attribute_names_the_level_of_chains_that_stand_still(name, run):
    y, level = Noise(0, torch.arange(20)).normal(30), torch.arange(20) % 2 + 3
    steps = torch.where(level == 3, 0.3, 80.0)
    with pytest.warns(RuntimeWarning, match="^level 4: acceptance 0 over 3 steps: the chains stand still") as caught:
        run(KERNELS[name], y, AtLevel(lambda y: -y.pow(4).sum(-1), level), steps, 3, Noise(1, torch.arange(20)))
    assert not any("level 3" in str(w.message) and "stand still" in str(w.message) for w in caught)


@pytest.mark.parametrize("name", KERNELS)
def test_a_float_is_a_step_size(name):
    y, noise = torch.zeros(6, 2), lambda: Noise(3, torch.arange(6))
    for one in (0.4, 1):
        whole, _ = run_chain(KERNELS[name], y, gaussian, one, 3, noise())
        each, _ = run_chain(KERNELS[name], y, gaussian, torch.full((6,), float(one)), 3, noise())
        assert torch.equal(whole, each)
        trace = record_chain(KERNELS[name], y, gaussian, one, 3, noise())
        assert torch.equal(trace.draws[-1], whole)


def test_a_float_is_a_first_step_size():
    y = Noise(4, torch.arange(200)).normal(5)
    one = tune_step_size(mala(), gaussian, y, 0.1, Noise(5, torch.arange(200)))
    same = tune_step_size(mala(), gaussian, y, torch.tensor([0.1]), Noise(5, torch.arange(200)))
    assert torch.equal(one.step_size, same.step_size)
    assert 0.6 <= float(one.acceptance) <= 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TESTED)
def test_chains_on_a_generator_sample_the_target(name, dtype):
    n = 20_000
    start = torch.full((n, 1), 2.0, dtype=dtype)
    # Three leapfrog steps of 0.5 are near a quarter of a period, after which HMC has forgotten its start.
    step, num_steps = {"mala": (0.9, 40), "hmc": (0.5, 10), "nuts": (0.5, 15)}[name]
    y, _ = run_chain(KERNELS[name], start, gaussian, step, num_steps, torch.Generator().manual_seed(0))
    assert y.dtype == dtype
    check_moments(y, 0.0, 1.0)


@pytest.mark.parametrize("name", KERNELS)
def test_a_generator_serves_traces_and_tuning(name):
    y = torch.zeros(6, 2)
    runs = [record_chain(KERNELS[name], y, gaussian, 0.5, 3, torch.Generator().manual_seed(s)).draws for s in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not bool((runs[0] == runs[2]).any())
    if KERNELS[name].tested:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            tuning = Tuning(num_steps=4, max_rounds=1)
            tune_step_size(KERNELS[name], gaussian, y, 0.5, torch.Generator().manual_seed(0), tuning=tuning)


def test_numbers_of_a_generator_are_its_own():
    noise = GeneratorNoise(torch.Generator().manual_seed(6), 50_000)
    other = torch.Generator().manual_seed(6)
    assert torch.equal(noise.normal(2), torch.randn(50_000, 2, generator=other))
    u = noise.uniform()
    assert torch.equal(u, torch.rand(50_000, 1, generator=other)[:, 0])
    assert u.shape == (50_000,)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert len(noise) == 50_000
    assert as_noise(noise, u) is noise


@pytest.mark.parametrize("run", [run_chain, record_chain])
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kernel": "mala"}, "kernel: is a str; give a Kernel, for instance mala() or hmc(num_leapfrog=2)"),
        ({"kernel": mala}, "kernel: is a function; give a Kernel"),
        ({"y": [[0.0, 0.0]]}, "y: is a list; give a tensor of floats [N, ...]"),
        ({"y": torch.zeros(3, 2, dtype=torch.long)}, "y: is a torch.int64 of shape [3, 2]; give a tensor of floats"),
        ({"y": torch.tensor(0.0)}, "y: is a torch.float32 of shape []; give a tensor of floats [N, ...]"),
        ({"logdensity": 3.0}, "logdensity: is a float; give a callable y [N, ...] -> [N]"),
        ({"noise": 0}, "noise: is an int; give Noise(seed, torch.arange(3)) or a torch.Generator"),
        ({"noise": Noise(0, torch.arange(4))}, "noise: is for 4 samples, and there are 3; give Noise(seed, torch.arange(3))"),
    ],
)
def test_wrong_types_are_one_sentence(run, changed, words):
    arguments = {
        "kernel": mala(),
        "y": torch.zeros(3, 2),
        "logdensity": gaussian,
        "noise": Noise(0, torch.arange(3)),
        **changed,
    }
    for call in (
        lambda kernel, y, logdensity, noise: run(kernel, y, logdensity, 0.5, 2, noise),
        lambda kernel, y, logdensity, noise: tune_step_size(kernel, logdensity, y, 0.5, noise),
    ):
        with pytest.raises(UserError) as error:
            call(**arguments)
        assert str(error.value).startswith(words)
        assert "\n" not in str(error.value)


def test_kernels_are_made_by_name():
    for name in ("langevin", "mala", "hmc", "nuts"):
        kernel = make_kernel(name)
        assert kernel.name == name
        assert kernel.tested == (name != "langevin")
        assert make_kernel(name, **kernel.options).options == kernel.options
    assert make_kernel("hmc", num_leapfrog=5).options == {"num_leapfrog": 5}
    assert make_kernel("langevin", noise_scale=0.9).options == {"noise_scale": 0.9}
    for make, words in (
        (lambda: make_kernel("malla"), "kernel='malla': unknown; choose langevin, mala, hmc, nuts"),
        (lambda: make_kernel("mala", noise_scale=0.9), "noise_scale=0.9: a Metropolis test needs 1"),
        (lambda: langevin(1.5), "noise_scale=1.5: out of range"),
        (lambda: hmc(0), "num_leapfrog=0: must be at least 1"),
    ):
        with pytest.raises(UserError) as error:
            make()
        assert str(error.value).startswith(words)


def test_the_gradients_of_a_trace_are_those_of_all_steps_since_the_last_draw():
    y = Noise(0, torch.arange(5)).normal(2)
    trace = record_chain(hmc(3), y, gaussian, 0.5, 7, Noise(1, torch.arange(5)), thin=2)
    assert torch.equal(trace.info.num_gradients, torch.full((3, 5), 2 * 3))
