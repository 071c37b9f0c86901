"""Bad input to chains: refused before the first step or named after the last one, and never a silent constant chain."""

import math
import warnings

import pytest
import torch

from springwell.conditional import Conditional
from springwell.errors import DivergenceError, UserError
from springwell.noise import Noise
from springwell.samplers import hmc, langevin, make_kernel, mala, nuts, record_chain, run_chain
from springwell.schedule import NoiseSchedule

KERNELS = {name: make_kernel(name) for name in ("langevin", "mala", "hmc", "nuts")}
METROPOLIS = [name for name in KERNELS if name != "langevin"]


def gaussian(y):
    return -0.5 * y.square().sum(-1)


class AtLevel:
    """A log-density that names its levels."""

    def __init__(self, logdensity, level):
        self.logdensity, self.level = logdensity, level

    def __call__(self, y):
        return self.logdensity(y)


def run(name, logdensity=gaussian, step=0.5, y=None, num_steps=12, **options):
    y = torch.zeros(6, 2) if y is None else y
    step = torch.full((len(y),), step) if isinstance(step, float) else step
    return run_chain(KERNELS[name], y, logdensity, step, num_steps, Noise(0, torch.arange(len(y))), **options)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("value", [0.0, -0.1, math.nan, math.inf])
def test_step_sizes_must_be_positive(name, value):
    step = torch.tensor([0.5, 0.5, value, 0.5, value, 0.5])
    with pytest.raises(UserError, match=rf"step size {value:g} of 2 of 6 chains, first chain 2 \(level 7\): must be positive"):
        run(name, AtLevel(gaussian, 7), step=step)


def test_the_step_size_that_is_named_is_the_one_that_is_bad():
    with pytest.raises(UserError, match=r"step size -0.3 of chain 4: must be positive"):
        run("mala", step=torch.tensor([0.5, 0.5, 0.5, 0.5, -0.3, 0.5]))


@pytest.mark.parametrize("name", KERNELS)
def test_step_sizes_must_be_one_per_chain(name):
    with pytest.raises(UserError, match=r"step size: has shape \[4\]; needs \[6\]"):
        run(name, step=torch.ones(4))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("wrong", [lambda y: y.sum(), lambda y: y.sum(-1, keepdim=True), lambda y: y])
def test_wrong_shapes_of_the_log_density(name, wrong):
    with pytest.raises(UserError, match=r"log-density: returned shape .* needs \[6\], one number per chain"):
        run(name, wrong)


@pytest.mark.parametrize("name", METROPOLIS)
def test_wrong_shapes_of_an_energy_behind_a_spring(name):
    schedule = NoiseSchedule.from_sigmas([0.5], 0.1)
    t = torch.zeros(6, dtype=torch.long)
    conditional = Conditional(lambda y, t: y.sum(-1, keepdim=True), schedule, t, torch.zeros(6, 2))
    with pytest.raises(UserError, match=r"log-density: returned shape \[6, 1\]"):
        run(name, conditional, check=False)


@pytest.mark.parametrize("name", METROPOLIS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_log_densities_that_are_not_finite_at_the_start(name, value):
    level = torch.tensor([3, 3, 3, 4, 4, 4])

    def broken(y):
        return torch.where(torch.arange(6) == 4, value, gaussian(y))

    with pytest.raises(UserError, match=rf"log-density {value:g} at the start of chain 4 \(level 4\)"):
        run(name, AtLevel(broken, level))


@pytest.mark.parametrize("name", KERNELS)
def test_starts_must_be_finite(name):
    y = torch.zeros(6, 2)
    y[5, 1] = math.nan
    with pytest.raises(UserError, match="start of chain 5: is not finite"):
        run(name, y=y)


def test_a_langevin_chain_that_runs_away_is_an_error():
    """On -|y|^4 with large steps; with a log-density that is nan throughout as well."""
    with pytest.raises(DivergenceError, match="6 of 6 chains, first chain 0: not finite after 50 steps; use a smaller step"):
        run("langevin", lambda y: -y.pow(4).sum(-1), step=2.0, num_steps=50)
    with pytest.raises(DivergenceError, match=r"chain 0 \(level 2\)"):
        run("langevin", AtLevel(lambda y: math.nan * y.sum(-1), 2))


@pytest.mark.parametrize("name", METROPOLIS)
def test_collapsed_acceptance_is_warned_of_by_level(name):
    """Level 0 has a good step, level 1 one that is far too large, level 2 one that is far too small."""
    y, level = Noise(1, torch.arange(60)).normal(20), torch.arange(60) % 3
    steps = torch.tensor([0.3, 50.0, 1e-6])[level]
    kernel = nuts(4) if name == "nuts" else KERNELS[name]
    with pytest.warns(RuntimeWarning) as caught:
        run_chain(kernel, y, AtLevel(lambda y: -0.25 * y.pow(4).sum(-1), level), steps, 12, Noise(2, torch.arange(60)))
    messages = sorted(str(w.message) for w in caught)
    assert len(messages) == 2
    assert messages[0].startswith("level 1: acceptance 0 over 12 steps: the chains stand still")
    assert messages[1].startswith("level 2: acceptance 1 over 12 steps: such small steps")


def test_single_chains_that_never_move_are_warned_of():
    y = torch.zeros(6, 2)
    target = lambda y: torch.where((torch.arange(6) == 3) & (y[:, 0] != 0), math.nan, gaussian(y))  # noqa: E731
    with pytest.warns(RuntimeWarning, match="1 of 6 chains never moved"):
        record_chain(mala(), y, target, torch.tensor(0.8), 30, Noise(3, torch.arange(6)))


@pytest.mark.parametrize("name", KERNELS)
def test_good_input_is_silent(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(name, step=0.9)


@pytest.mark.parametrize("name", ["langevin", "mala", "hmc"])
def test_checks_leave_values_and_number_of_evaluations_alone(name):
    calls = []

    def counted(y):
        calls.append(len(y))
        return gaussian(y)

    checked, _ = run(name, counted, num_steps=5)
    with_checks = len(calls)
    unchecked, _ = run(name, counted, num_steps=5, check=False)
    assert with_checks == len(calls) - with_checks
    assert torch.equal(checked, unchecked)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"step_size": "a"}, "step_size='a': is not a number"),
        ({"num_steps": 2.5}, "num_steps=2.5: is not a whole number"),
        ({"num_steps": -1}, "num_steps=-1: must be at least 0"),
        ({"logdensity": lambda y: None}, "log-density: returned None"),
        ({"logdensity": lambda y: y.detach().sum(-1)}, "log-density: has no gradient"),
    ],
)
def test_wrong_arguments_of_a_chain_are_one_sentence(arguments, words):
    given = {"logdensity": lambda y: -y.square().sum(-1), "step_size": 0.1, "num_steps": 2, **arguments}
    with pytest.raises(UserError, match=words):
        run_chain(mala(), torch.zeros(6, 2), noise=torch.Generator(), **given)


def test_leapfrog_steps_are_counted_in_whole_numbers():
    with pytest.raises(UserError, match="num_leapfrog='a': is not a whole number"):
        hmc("a")


@pytest.mark.parametrize("kernel", [langevin(0.5), mala(), hmc(3), nuts()], ids=lambda kernel: kernel.name)
def test_a_kernel_is_made_again_from_its_name_and_options(kernel):
    """A saved model has no more of its kernel than these."""
    again = make_kernel(kernel.name, **kernel.options)
    y, noise = torch.ones(6, 2), [Noise(0, torch.arange(6)) for _ in range(2)]
    first, second = (run_chain(k, y, gaussian, 0.3, 3, eps)[0] for k, eps in zip((kernel, again), noise, strict=True))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    "kernel",
    [hmc(inverse_mass=torch.ones(2)), nuts(inverse_mass=torch.ones(2)), nuts(max_depth=5), nuts(max_energy_error=10.0)],
)
def test_a_kernel_that_its_name_does_not_say_is_custom(kernel):
    assert kernel.name == "custom"
