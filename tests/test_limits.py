"""Every limit of an argument: values on its inner side are taken, and those on its outer side are refused."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch

import springwell as sw
from springwell.applications import Draws, Measurement, interpolate, mixture, product
from springwell.applications.batches import check_seed, checked_batch
from springwell.applications.compose import Mixture, Product, tempered
from springwell.applications.inpaint import check_hidden
from springwell.applications.operators import blur, named_blur
from springwell.errors import UserError
from springwell.integrate import Integrator
from springwell.likelihood import Ratios, Settings, Walkers, plain_path
from springwell.likelihood.annealed import Plan
from springwell.likelihood.bits import check_range
from springwell.likelihood.bracket import MAX_SOURCES, _checked
from springwell.samplers import Tuning, hmc, langevin, mala, nuts, record_chain, run_chain, tune_step_size
from springwell.samplers.checks import check_step_size, warn_if_collapsed
from springwell.samplers.diagnostics import split_rhat
from springwell.schedule import NoiseSchedule

TINY = 1e-12
NOISE = sw.Noise(0, torch.arange(2))
LADDER = NoiseSchedule.log_snr(4)
PLAN = Plan(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]), torch.ones(2), torch.ones(2), 2)
ONE_LEVEL = torch.tensor([0.5])


def bowl(y):
    return -y.square().flatten(1).sum(-1)


def sigmas(values, spring=False):
    return NoiseSchedule(torch.tensor(values), torch.full((len(values) - 1,), spring))


def chain(step_size=0.1, num_steps=1, kernel=None):
    return run_chain(kernel or mala(), torch.zeros(2, 2), bowl, step_size, num_steps, NOISE)


def group(number):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        tune_step_size(mala(), bowl, torch.zeros(2, 2), ONE_LEVEL, NOISE, torch.tensor([0, number]), Tuning(num_steps=2))


def walkers(num, num_systems):
    Walkers(torch.zeros(num, 2), NOISE, num_systems).check(plain_path(bowl, (2,)))


def sources(num, rows=8):
    return _checked({str(i): torch.zeros(rows, 2) for i in range(num)}, 4)


def seeds(*values):
    return interpolate(sw.load("checkerboard"), values, num=2, num_steps=0)


def ratios(num):
    return Ratios(torch.zeros(1, num, dtype=torch.float64), torch.ones(1)).estimate()


def mask(num_hidden):
    check_hidden(torch.arange(3) < num_hidden, (3,))


# What takes a value, values that it takes, and values that it refuses.
LIMITS = {
    "sigma_0": (lambda s: sigmas([s, 0.5]), [0.0, 1 - 1e-6], [-TINY, 1.0]),
    "sigma_t": (lambda s: sigmas([0.0, s]), [1e-6, 1.0], [0.0, 1 + 1e-6]),
    "sigma_t of a spring": (lambda s: sigmas([0.0, s], True), [1 - 1e-6], [1.0]),
    "number of sigmas": (lambda n: sigmas([0.1] * n), [2, 3], [1]),
    "levels": (NoiseSchedule.log_snr, [1, 2], [0, -1]),
    "levels of t6": (NoiseSchedule.t6, [1, 2], [0]),
    "levels of linear": (NoiseSchedule.linear, [1, 2], [0]),
    "log-SNR": (lambda low: NoiseSchedule.log_snr(2, 5.0, low), [4.99], [5.0, 5.01]),
    "initial noise": (lambda s: NoiseSchedule.log_snr(1, 5.0, 0.0, s), [0.7071], [math.sqrt(0.5), 0.7072]),
    "steps of a level": (lambda n: sw.LevelSampler(num_steps=n), [0, 1], [-1, 0.5, True]),
    "jumps of a level": (lambda n: sw.LevelSampler(jump_proposals=n), [0, 1], [-1, 0.5]),
    "step size of a level": (lambda s: sw.LevelSampler(step_size=s), [TINY, 1e6], [0.0, -1.0, math.inf, math.nan]),
    "step sizes of levels": (lambda n: sw.LevelSampler(step_size=[0.1] * n).check(LADDER), [4], [1, 3, 5]),
    "evaluations": (Integrator, [2, 3], [1, 0]),
    "evaluations of levels": (lambda n: Integrator(n).levels(4), [2, 4], [5]),
    "lowest acceptance": (lambda a: Tuning((a, 0.9)).check(), [TINY, 0.89], [0.0, 0.9, 0.91]),
    "highest acceptance": (lambda a: Tuning((0.6, a)).check(), [0.61, 1 - TINY], [0.6, 1.0]),
    "steps of a pilot": (lambda n: Tuning(num_steps=n).check(), [2, 3], [1, 0]),
    "rounds of a pilot": (lambda n: Tuning(max_rounds=n).check(), [1, 2], [0]),
    "group": (group, [0], [-1, 1]),
    "steps of a chain": (lambda n: chain(num_steps=n), [0, 1], [-1]),
    "step size of a chain": (chain, [TINY, 0.1], [0.0, -0.1, math.inf]),
    "step sizes of chains": (lambda n: check_step_size(torch.ones(n), 3), [1, 3], [2, 4]),
    "recorded steps": (lambda n: record_chain(mala(), torch.zeros(2, 2), bowl, 0.1, n, NOISE), [1, 2], [0]),
    "thinning": (lambda n: record_chain(mala(), torch.zeros(2, 2), bowl, 0.1, 3, NOISE, thin=n), [1, 3], [0, 4]),
    "recorded steps of a diagnostic": (lambda n: split_rhat(torch.randn(n, 3)), [4, 5], [3]),
    "leapfrogs": (hmc, [1, 2], [0, -1]),
    "inverse mass": (lambda m: hmc(inverse_mass=torch.tensor([1.0, m])), [TINY], [0.0, -1.0, math.inf]),
    "noise of Langevin steps": (langevin, [0, 1.0], [-TINY, 1.001]),
    "depth of a tree": (nuts, [1, 20], [0, 21]),
    "densities": (PLAN.places, [1, 2], [0]),
    "chains of systems": (lambda n: walkers(n, 2), [4, 6], [2, 3, 5]),
    "pixels": (lambda x: check_range(torch.tensor([0.0, x]), 0.1), [1.05, -1.05], [1.051, -1.051, math.inf]),
    "budget": (lambda n: Settings(0.1, budget=n).check(), [1], [0]),
    "first densities": (lambda n: Settings(0.1, densities=n).check(), [1], [0]),
    "systems": (lambda n: Settings(0.1, systems=n).check(), [4], [3]),
    "chains": (lambda n: Settings(0.1, chains=n).check(), [2], [1]),
    "tolerance": (lambda x: Settings(x).check(), [TINY, 1], [0.0, -1.0, math.nan, "0.1"]),
    "number of sources": (sources, [1, MAX_SOURCES], [0, MAX_SOURCES + 1]),
    "rows of a source": (lambda n: sources(1, n), [8, 9], [7]),
    "chains of ratios": (ratios, [16], [15]),
    "seed": (check_seed, [-(2**63), 2**64 - 1], [-(2**63) - 1, 2**64]),
    "batch": (lambda n: checked_batch(sw.load("checkerboard"), n), [1, 2], [0]),
    "samples of an observation": (lambda n: Draws(num=n), [1], [0]),
    "sweeps of an observation": (lambda n: Draws(sweeps=n), [0], [-1]),
    "number of an observation": (
        lambda n: Draws(numbers=[0, n]).numbered(2, torch.device("cpu")),
        [0, 2**44 - 1],
        [-1, 2**44],
    ),
    "numbers of observations": (lambda n: Draws(numbers=range(n)).numbered(2, torch.device("cpu")), [2], [1, 3]),
    "hidden pixels": (mask, [1, 2], [0, 3]),
    "samples of a path": (lambda n: interpolate(sw.load("checkerboard"), [0, 1], n, num_steps=0), [2], [1]),
    "ends of a path": (lambda n: seeds(*range(n)), [2, 4], [1, 3, 5]),
    "other end of a path": (lambda n: seeds(0, n), [1, 2**64 - 1], [0, 2**64]),
    "factor of a term": (lambda w: Product([bowl], [w]), [0.0, -1.0], [math.inf, math.nan]),
    "factors of terms": (lambda n: Product([bowl] * n, [1.0, 1.0]), [2], [0, 1, 3]),
    "terms": (lambda n: Mixture([bowl] * n, None), [1], [0]),
    "share of a mixture": (lambda w: mixture([sw.load("checkerboard")] * 2, [1.0, w]), [TINY], [0.0, -1.0, math.inf]),
    "shares of a mixture": (lambda n: mixture([sw.load("checkerboard")] * 2, [1.0] * n), [2], [1, 3]),
    "sweeps of a product": (lambda n: product([sw.load("checkerboard")], sweeps=n), [0, 1], [-1]),
    "temperature": (partial(tempered, bowl), [TINY, 2.0], [0.0, -1.0, math.inf]),
    "noise of a measurement": (lambda s: Measurement(bowl, s, (2,)), [TINY], [0.0, -1.0, math.inf]),
    "height of a kernel": (lambda n: blur(torch.ones(n, 3)), [1, 3], [2]),
    "width of a kernel": (lambda n: blur(torch.ones(3, n)), [1, 3], [2]),
    "width of a Gaussian": (lambda s: named_blur(f"gaussian:{s}", 8), [0.01, 8], [0, 8.01]),
    "size of a box": (lambda n: named_blur(f"box:{n}", 7), [1, 7], [0, 2, 9]),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LIMITS)
def test_the_limits_of_an_argument_are_where_they_are_said_to_be(name):
    call, taken, refused = LIMITS[name]
    for value in taken:
        call(value)
    for value in refused:
        with pytest.raises(UserError):
            call(value)


@pytest.mark.parametrize(("gap", "taken"), [(0.9e-3, True), (1.1e-3, False)])
def test_a_kernel_of_a_file_sums_to_one(tmp_path, gap, taken):
    np.save(tmp_path / "k.npy", np.full((1, 1), 1 + gap))
    try:
        named_blur(str(tmp_path / "k.npy"), 8)
    except UserError:
        assert not taken
    else:
        assert taken


@pytest.mark.parametrize(
    ("acceptance", "num_steps", "words"),
    [
        ([0.0099] * 2, 9, "stand still"),
        ([0.0101] * 2, 9, ""),
        ([0.9989] * 2, 9, ""),
        ([0.9991] * 2, 9, "hardly move"),
        ([0.99e-4, 0.9], 10, "1 of 2 chains never moved"),
        ([0.99e-4, 0.9], 9, ""),
        ([1.01e-4, 0.9], 10, ""),
    ],
)
def test_chains_that_stand_still_are_named_from_a_hundredth_and_tiny_steps_from_999_of_1000(acceptance, num_steps, words):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_collapsed(torch.tensor(acceptance, dtype=torch.float64), num_steps)
    assert [words in str(warning.message) for warning in caught] == [True] * bool(words)
