"""Chains and losses on torch's meta device, which has no values: what runs here reads nothing back and mixes no devices.

A step that asks a tensor for its value (``bool``, ``item``, ``tolist``, a branch) fails on this device, as it would make an
accelerator wait; so does an operation that meets a tensor of the CPU. NUTS is left out: its trees grow by what chains find.

Estimators read a value where they begin or end, and nowhere between: ``walk`` checks its first state and its last weights,
``level_ratios`` asks at its start whether every level has its spring, ``NoisePath`` reads its lowest and highest noise when it
is made, and ``normaliser``, ``pooled`` and ``bennett`` return numbers. Pilots read an acceptance at every stop, by which they
tune the next. Tests below say so where they go around such a reading.
"""

import ast
import contextlib
import copy
import importlib
import inspect
import pkgutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo

from springwell.applications.compose import Mixture, Product, Term
from springwell.applications.inpaint import inpaint_levels
from springwell.applications.interpolate import blended, blended_take, corner_weights
from springwell.applications.operators import average_pool, blur, enlarged, gaussian_kernel, median_filter
from springwell.applications.restore import Measurement, Posterior
from springwell.conditional import Conditional
from springwell.energy import EnergyResNet, EnergyUNet, FourierMLP, ScaledEnergy
from springwell.energy.columns import ColumnEnergy, ColumnNetwork
from springwell.energy.labelled import Labelled
from springwell.energy.mixture import Mixture as Gaussians
from springwell.energy.prior import Prior
from springwell.energy.residual import LevelEnergy, NoiseMLP, NoiseUNet, ResidualEnergy, know_classes
from springwell.generate import denoise, progressive
from springwell.integrate import Integrator
from springwell.level import LevelSampler
from springwell.likelihood import annealed
from springwell.likelihood.annealed import Walkers, _Systems, level_path
from springwell.likelihood.bits import log_volume
from springwell.likelihood.decoder import decoded_volume
from springwell.likelihood.diffusion import Moves, denoising_walk, noising_walk
from springwell.likelihood.quadrature import evaluate
from springwell.likelihood.ratios import level_ratios
from springwell.noise import MixedNoise, Noise
from springwell.normalised import Focus, Normalised, Weights
from springwell.objectives import DSM, Marginal, Objective, Recovery
from springwell.samplers import DualAveraging, Welford, gradient, hmc, make_kernel, run_chain, value_and_grad
from springwell.samplers.base import begin
from springwell.schedule import NoiseSchedule
from springwell.training.options import TrainingOptions
from springwell.training.step import Step

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


def stepping(sampler, step_size):
    """The sampler with step sizes on the meta device. A sampler looks at the values of step sizes when it is made."""
    other = copy.copy(sampler)
    object.__setattr__(other, "step_size", step_size.to("meta"))
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
    sampler = posterior.sampler(LevelSampler("mala", 2, 0.1), SCHEDULE)
    sampler = stepping(sampler, sampler.step_size)
    for name in ("slope", "offset", "precision"):
        setattr(posterior, name, getattr(posterior, name).to("meta"))
    *_, (_, x, _) = progressive(posterior, moved(SCHEDULE), sampler, energy.shape, noise())
    assert x.device.type == "meta"


def residual(name):
    """An energy that knows its noise, on the CPU."""
    if name == "mlp":
        return LevelEnergy(ResidualEnergy(NoiseMLP(2, 2, width=8, depth=1), Prior.outline(VECTOR)), SCHEDULE), VECTOR
    network = NoiseUNet(IMAGE, 2, 8, (1, 2), 1, 1, 16)
    return LevelEnergy(ResidualEnergy(network, Prior.outline(IMAGE)), SCHEDULE), IMAGE


@pytest.mark.parametrize("name", ["mlp", "unet"])
@pytest.mark.parametrize(
    ("weights", "focus"),
    [
        (Weights(), Focus()),
        (Weights(limit=1.0, classifier=0.5, recovery=0.1, balance=1.0), Focus(0.8)),
        (Weights(balance=0), Focus()),
    ],
)
def test_normalised(name, weights, focus):
    """Every term, the draw of the noise and the balance of the levels. The checks of a new objective read the schedule."""
    energy, shape = residual(name)
    recovery = Recovery(energy, SCHEDULE, LevelSampler("mala", 2, 0.1))
    loss_fn = Normalised(energy, SCHEDULE, weights, focus, recovery)
    energy.to("meta")
    loss_fn.schedule = recovery.schedule = moved(SCHEDULE)
    outcome = loss_fn(meta(*shape), noise())
    outcome.loss.mean().backward()
    assert outcome.loss.shape == (N,)
    assert {value.device.type for value in outcome.statistics.values()} == {"meta"}
    assert any(parameter.grad is not None for parameter in energy.parameters())


@pytest.mark.parametrize("resample", [False, True])
def test_annealing(energy, resample, monkeypatch):
    """AIS and SMC through the levels, but for the checks of the first state and of the last weights, which read values."""
    monkeypatch.setattr(annealed, "begin", partial(begin, check=False))
    path = level_path(energy, moved(SCHEDULE), energy.shape)
    systems = Noise(1, torch.arange(2, device="meta"), dtype=torch.float64) if resample else None
    walkers = Walkers(path.start(noise()), noise(), 2, systems)
    found = _Systems(walkers, hmc(2), path.at(0.0, N))
    for s in (0.5, 1.0, 2.3, 3.0):
        found.weigh(path.at(s, N))
        found.move(torch.tensor(0.1))
    log_w = found.weights.log_w
    assert (log_w.device.type, log_w.shape, log_w.dtype) == ("meta", (2, N // 2), torch.float64)
    assert found.integral.device.type == "meta"


@pytest.mark.parametrize("name", ["mlp", "unet"])
@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("num_leapfrog", [0, 2])
def test_walks_along_the_noise(name, resample, num_leapfrog):
    """Down, and up and down again; the places of the noise are known on the host."""
    energy, shape = residual(name)
    energy = energy.energy.to("meta")
    sigma = torch.tensor([0.1, 0.5, 2.0, 9.0], dtype=torch.float64)
    moves = Moves(energy, num_leapfrog, [0.1] * len(sigma)) if num_leapfrog else None
    systems = Noise(1, torch.arange(2, device="meta"), dtype=torch.float64) if resample else None
    down, y = denoising_walk(energy, sigma, noise(), 2, systems, moves=moves)
    up = noising_walk(energy, sigma, meta(*shape)[:2], noise(), systems, moves)
    assert (y.device.type, y.shape) == ("meta", (N, *shape))
    assert {found.log_ratio.device.type for found in (down, up)} == {"meta"}
    assert down.partial.shape == up.partial.shape == (2, len(sigma))


@pytest.mark.parametrize("num_steps", [0, 2])
def test_ratios_of_levels(energy, num_steps, monkeypatch):
    schedule = moved(SCHEDULE)
    # Whether every level has its spring is read once, before the chains.
    monkeypatch.setattr(torch.Tensor, "all", lambda self, *args: torch.tensor(True))
    found = level_ratios(energy, schedule, energy.shape, noise(), num_steps, torch.full((3,), 0.1, device="meta"))
    assert (found.log_ratio.device.type, found.log_ratio.shape, found.acceptance.shape) == ("meta", (3, N), (3,))


@pytest.mark.parametrize(("sigma", "dequantised"), [(0.0, True), (0.1, True), (0.1, False)])
def test_volumes_of_grey_values(sigma, dequantised):
    assert log_volume(meta(*IMAGE), 0.9, sigma, 0.125, dequantised).device.type == "meta"
    values, log_pi = torch.zeros(N, *IMAGE, dtype=torch.long, device="meta"), torch.zeros(17, *IMAGE, device="meta")
    assert decoded_volume(meta(*IMAGE), values, log_pi, 0.9, 0.1, 0.125).shape == (N,)


def test_values_of_quadrature():
    energy = ScaledEnergy(NETWORKS["mlp"][0](), SCHEDULE, "learned", 1.0).to("meta")
    points = torch.empty(40_000, 2, dtype=torch.float64, device="meta")
    found = evaluate(lambda y: energy(y, torch.zeros(len(y), dtype=torch.long, device="meta")), points)
    assert (found.device.type, found.shape, found.dtype) == ("meta", (40_000,), torch.float64)


@pytest.mark.parametrize("joined", ["product", "mixture", "term"])
def test_composition(energy, joined):
    schedule = moved(SCHEDULE)
    unit = SimpleNamespace(schedule=schedule, shift=torch.zeros((), device="meta"), scale=torch.ones((), device="meta"))
    term = Term(lambda x: -x.flatten(1).square().sum(-1), unit)
    parts = {
        "product": Product([energy, energy], [1.5, -0.5]),
        "mixture": Mixture([energy, energy], [0.0, -1.0]),
        "term": Product([energy, term]),
    }
    sampler = LevelSampler("mala", 2, 0.1)
    *_, (t, x, _) = progressive(parts[joined], schedule, sampler, energy.shape, noise(), sweeps=2)
    assert (t, x.device.type, x.shape) == (0, "meta", (N, *energy.shape))


@pytest.mark.parametrize("kernel", ["langevin", "mala", "hmc"])
@pytest.mark.parametrize("tests", ["own", "blended"])
@pytest.mark.parametrize("corners", [2, 4])
def test_interpolation(energy, kernel, tests, corners):
    """Mixed noise, shared tests and shared jumps."""
    rows = corner_weights(corners, N if corners == 2 else 2).to("meta")
    mixed = MixedNoise([Noise(seed, torch.zeros(N, dtype=torch.long, device="meta")) for seed in range(corners)], rows)
    sampler = LevelSampler(kernel, 2, 0.1, jump_proposals=2)
    if tests == "blended":
        share = rows.square()
        sampler = replace(sampler, kernel=blended(sampler.made, share), take=blended_take(share))
    *_, (t, x, _) = progressive(energy, moved(SCHEDULE), sampler, energy.shape, mixed)
    assert (t, x.device.type, x.shape) == (0, "meta", (N, *energy.shape))


@pytest.mark.parametrize("stochastic", [False, True])
def test_integrator(energy, stochastic, monkeypatch):
    """Its hops are numbers of the host: two lists of the schedule, read before the first hop."""
    known = iter([SCHEDULE.a_cum.tolist(), SCHEDULE.sigma_cum.tolist()])
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: next(known))
    *_, (t, x, _) = Integrator(3, stochastic).trajectory(energy, moved(SCHEDULE), energy.shape, noise())
    assert (t, x.device.type, x.shape) == (0, "meta", (N, *energy.shape))


@pytest.mark.parametrize("name", ["mlp", "unet"])
@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_one_of_several_classes(name, guidance):
    """Training with labels, then chains at the density of one class, guided or not."""
    energy, shape = residual(name)
    know_classes(energy.energy.network, 3)
    loss_fn = Normalised(energy, SCHEDULE, Weights(classifier=0.5), Focus())
    energy.to("meta")
    loss_fn.schedule = moved(SCHEDULE)
    loss_fn(meta(*shape), noise(), label=levels()).loss.mean().backward()
    one = LevelEnergy(Labelled(energy.energy, 1, guidance), SCHEDULE).to("meta")
    *_, (t, x, _) = progressive(one, moved(SCHEDULE), LevelSampler("mala", 2, 0.1), shape, noise())
    assert (t, x.device.type, x.shape) == (0, "meta", (N, *shape))


def test_energies_of_rows():
    """The loss of one energy per column; the density and the score of Gaussians."""
    columns = ColumnEnergy(ColumnNetwork(3, width=8), torch.tensor([2, 0, 1])).to("meta")
    (-columns(meta(3)).mean()).backward()
    assert {p.grad.device.type for p in columns.parameters()} == {"meta"}
    gaussians = Gaussians.outline(2, 3).to("meta")
    value, grad = value_and_grad(gaussians, meta(3))
    assert (value.device.type, grad.shape) == ("meta", gaussians.score(meta(3)).shape)


def test_step_sizes_and_masses():
    state = DualAveraging.start(torch.full((3,), 0.1, device="meta"))
    state = state.update(torch.empty(3, device="meta"), 0.6, torch.ones(3, dtype=torch.bool, device="meta"))
    assert {state.step_size.device.type, state.frozen.device.type} == {"meta"}
    masses = Welford.start(meta(2)).update(meta(2))
    assert masses.variance.device.type == "meta"


OPERATORS = [average_pool(2), blur(gaussian_kernel(1.0)), median_filter, lambda x: enlarged(x, (3, 9, 9))]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators(operator):
    """A blur's kernel is moved to its image; the gradient is what restoration needs."""
    assert gradient(lambda x: operator(x).flatten(1).sum(-1), meta(*IMAGE)).device.type == "meta"


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_iteration_of_training(energy, accumulate):
    """The draw of the levels, the loss, the clip, Adam, the average and the step sizes; accelerate itself needs a device."""
    sampler = stepping(LevelSampler("mala", 2), torch.full((3,), 0.1))
    options = TrainingOptions(batch=N, accumulate=accumulate, clip=1.0, idle_start=True)
    data = SimpleNamespace(sample=lambda noise: meta(*energy.shape)[: len(noise)])
    objective = Recovery(energy, SCHEDULE, sampler)
    objective.schedule = moved(SCHEDULE)
    state = SimpleNamespace(
        energy=energy,
        average=copy.deepcopy(energy),
        adam=torch.optim.AdamW(energy.parameters()),
        step_size=sampler.step_size,
        statistics=torch.zeros(3, 2 + len(objective.names), dtype=torch.float64, device="meta"),
    )
    task = SimpleNamespace(
        options=options, data=data, labels=None, sampler=sampler, schedule=SCHEDULE, adapts=True, target_acceptance=0.6
    )
    accelerator = SimpleNamespace(
        num_processes=1,
        process_index=0,
        device="meta",
        prepare_optimizer=lambda optimizer: optimizer,
        no_sync=lambda module: contextlib.nullcontext(),
        backward=lambda loss: loss.backward(),
        clip_grad_norm_=torch.nn.utils.clip_grad_norm_,
        reduce=lambda sums: sums,
    )
    step = Step(task, state, objective, accelerator)
    norm = step(3, map(step.draw, range(3 * accumulate, 4 * accumulate)))
    assert norm.device.type == "meta"
    assert len(state.adam.state) == sum(p.grad is not None for p in energy.parameters()) > 0


@pytest.mark.parametrize("kernel", ["langevin", "mala", "hmc"])
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


# What runs under another name in a test of this file, and what has nothing that could run on a device.
ELSEWHERE = {
    # Networks: the parts of one, and what their makers use.
    "Classes": "part of NoiseMLP and NoiseUNet",
    "ClassSite": "base class",
    "DenseMap": "part of EnergyUNet",
    "ImageEnergy": "base class",
    "ResBlock": "part of EnergyResNet",
    "SpectralLayer": "part of EnergyResNet",
    "UNetBlock": "part of EnergyUNet",
    # Samplers.
    "Info": "record",
    "Kernel": "record",
    "LogDensity": "type",
    "State": "record",
    "Target": "type",
    "Trace": "record",
    "Tuned": "record",
    "Tuning": "record of numbers",
    "adapt_step_size": "part of Step",
    "langevin": "made by make_kernel",
    "mala": "made by make_kernel",
    "nuts": "its trees grow by what chains find",
    "record_chain": "run_chain and a list; checks its start and its end",
    "tune_step_size": "a pilot, which reads an acceptance after every round",
    # Objectives.
    "Objective": "base class",
    # Likelihood.
    "Bracket": "record of numbers",
    "Estimate": "record of numbers",
    "Normaliser": "record of numbers",
    "Path": "made by level_path",
    "Plan": "record of numbers",
    "Ratios": "record",
    "Settings": "record of numbers",
    "Walk": "record",
    "bennett": "returns a number",
    "bracket": "returns numbers",
    "estimate": "returns numbers",
    "normaliser": "returns a number; evaluate is its part on the device",
    "pilot": "reads an acceptance at every stop",
    "plain_path": "level_path with one level",
    "to_bits": "a division",
    "tune_steps": "a pilot",
    "walk": "Walkers and _Systems, between checks of its first state and its last weights",
    # Applications of a Model, whose units are on its device; their chains are tested.
    "Draws": "record of numbers",
    "Restoration": "record",
    "inpaint": "inpaint_levels",
    "interpolate": "MixedNoise, blended and progressive",
    "mixture": "Mixture",
    "product": "Product",
    "restore": "Posterior",
    "spherical": "corner_weights",
    "tempered": "Product of one",
}


def public_names():
    """Networks, samplers, objectives, estimators and applications: what the packages export, and the classes of some kinds."""
    for package in ("samplers", "likelihood", "applications"):
        yield from importlib.import_module(f"springwell.{package}").__all__
    energies = importlib.import_module("springwell.energy").__path__
    modules = [f"springwell.energy.{found.name}" for found in pkgutil.iter_modules(energies)]
    for name in [*modules, "springwell.objectives", "springwell.normalised", "springwell.integrate"]:
        for key, value in vars(importlib.import_module(name)).items():
            own = inspect.isclass(value) and value.__module__ == name and not key.startswith("_")
            if own and not {torch.nn.Module, Objective, Integrator}.isdisjoint(value.__mro__):
                yield key


def test_every_public_name_is_here():
    """A network, sampler, objective, estimator or application that is new has to run on the meta device, or say why not."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(public_names)))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "public_names"]
    values = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    used = {node.id for part in [*functions, *values] for node in ast.walk(part) if isinstance(node, ast.Name)}
    names = set(public_names())
    assert names - used - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() - names == set(), "no longer exist"
    assert ELSEWHERE.keys() & used == set(), "run in a test, so they need no reason"
