"""Brackets of known partition functions, and the verdicts on brackets that cannot be believed."""

import json
import math
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from springwell.app.cli.likelihood import LikelihoodCommand
from springwell.errors import UserError
from springwell.evaluation.likelihood import Work, measure
from springwell.evaluation.points import Measurable
from springwell.likelihood.annealed import Estimate, plain_path
from springwell.likelihood.bracket import Round, Settings, bennett, bracket, judge
from springwell.likelihood.quadrature import normaliser
from springwell.noise import Noise, Stream
from springwell.progress import Bar, Silent
from springwell.store.parts import Parts
from tests.likelihood.targets import Mixture, noise, ring
from tests.plane import trained_model

FAR = Mixture(torch.tensor([[0.0, 0.0], [40.0, 0.0]]), 0.5)


def settings(tolerance, chains=64, **options):
    return Settings(tolerance, **{"densities": 32, "budget": 128, "chains": chains, "batch": 4096, **options})


def contains(found, log_z):
    """Whether the interval between the bounds, two standard errors wider on both sides, contains ``log_z``."""
    top = max(found.upper.values(), key=lambda e: e.value)
    return found.lower.value - 2 * found.lower.standard_error <= log_z <= top.value + 2 * top.standard_error


def test_a_mixture_gets_ok_and_its_value():
    target, s = Mixture(ring(8, 2.0), 0.3), settings(0.1, 256)
    found = bracket(plain_path(target, (2,)), {"a": target.sample(s.num, 1), "b": target.sample(s.num, 2)}, s)
    assert found.verdict == "ok"
    assert contains(found, 3.0)
    assert abs(found.value - 3.0) <= 4 * found.standard_error
    assert json.loads(json.dumps(found.record()))["verdict"] == "ok"


@pytest.mark.parametrize("source", ["one mode", "both modes"])
def test_a_missed_mode_is_suspected(source):
    """The forward run never reaches the far mode; chains that confirm it do not hide what held-out data know."""
    s = settings(0.1)
    confined = FAR.sample(2 * s.num, 1)[::2]
    assert float(confined.abs().max()) < 10
    chains = confined if source == "one mode" else FAR.sample(s.num, 1)
    found = bracket(plain_path(FAR, (2,)), {"chains": chains, "data": FAR.sample(s.num, 2)}, s)
    assert found.verdict == "missed-mode-suspected"
    # Half of Z is missed from below; the data still give the right value from above.
    assert abs(found.lower.value - (3.0 - np.log(2))) <= 4 * found.lower.standard_error + 0.02
    assert abs(found.upper["data"].value - 3.0) <= 4 * found.upper["data"].standard_error + 0.02


def test_sources_that_know_one_mode_alone_agree_on_half():
    """Why held-out data are needed: with every source confined, both bounds agree, and both are wrong by log 2."""
    s = settings(0.1)
    confined = {name: FAR.sample(2 * s.num, seed)[::2] for name, seed in (("a", 1), ("b", 2))}
    found = bracket(plain_path(FAR, (2,)), confined, s)
    assert found.verdict == "ok"
    assert abs(found.value - (3.0 - np.log(2))) < 0.05


def test_draws_of_another_density_cross():
    """Starts too far out, where f is lower than at exact draws, give an "upper bound" below the lower one."""
    target, s = Mixture(torch.zeros(1, 16), 0.3), settings(0.2, budget=32)
    exact = target.sample(s.num, 1)
    found = bracket(plain_path(target, (16,)), {"exact": exact, "stretched": 2 * exact}, s)
    assert found.verdict == "crossed"
    assert "stretched" in found.reason
    assert found.upper["stretched"].value < found.lower.value


def round_of(k, lower, **upper):
    def bound(value, error, kind):
        return Estimate(value, error, kind, 8, 512, k, 60.0, (0.6, 0.8), 100, value)

    return Round(k, bound(*lower, "lower"), bound(-99.0, 1.0, "lower"), {n: bound(*u, "upper") for n, u in upper.items()})


def test_verdicts():
    assert judge([round_of(64, (0, 0.01), a=(0.02, 0.01), b=(0.03, 0.01))], 0.1)[0] == "ok"
    assert judge([round_of(64, (0, 0.01), a=(0.5, 0.01), b=(0.5, 0.01))], 0.1)[0] == "loose"
    crossed = [round_of(64, (0, 0.01), a=(-0.3, 0.01), b=(0.02, 0.01))]
    assert judge(crossed, 0.1)[0] == judge(crossed, 0.1, bounded=True)[0] == "crossed"
    assert "unbounded" in judge(crossed, 0.1)[1]
    assert "unbounded" not in judge(crossed, 0.1, bounded=True)[1]
    assert judge([round_of(64, (0, 0.01), a=(0.01, 0.01), b=(0.69, 0.01))], 0.1)[0] == "missed-mode-suspected"
    # A source that is not known to agree is no evidence of a mode, unless it is certainly farther than the nearest.
    assert judge([round_of(64, (0, 0.01), a=(0.01, 0.01), b=(0.3, 0.2))], 0.1)[0] == "loose"
    halving = [round_of(64, (0, 0.01), a=(1.4, 0.01)), round_of(128, (0, 0.01), a=(0.7, 0.01))]
    assert judge(halving, 0.1)[0] == "loose"
    stuck = [round_of(64, (0, 0.01), a=(0.71, 0.01)), round_of(128, (0, 0.01), a=(0.7, 0.01))]
    assert judge(stuck, 0.1)[0] == "missed-mode-suspected"
    # Not known to be narrow is not ok, nor is a crossing that chance explains crossed.
    assert judge([round_of(64, (0, 0.2), a=(0.0, 0.2))], 0.1)[0] == "loose"
    assert judge([round_of(64, (0, 0.2), a=(-0.3, 0.2))], 0.1)[0] == "loose"
    # A wide crossing is never ok, however uncertain it is.
    assert judge([round_of(64, (0, 6.0), a=(-62.0, 14.0), b=(-74.0, 20.0))], 0.4)[0] == "crossed"
    assert judge([round_of(64, (0, 6.0), a=(-62.0, 40.0), b=(-74.0, 50.0))], 0.4)[0] == "loose"


def test_a_doubtful_source_is_never_ok():
    target, s = Mixture(ring(8, 2.0), 0.3), settings(0.5)
    sources = {"a": target.sample(s.num, 1), "b": target.sample(s.num, 2)}
    found = bracket(plain_path(target, (2,)), sources, s)
    assert found.verdict == "ok"
    doubted = found.doubted(["chains from b still drift"])
    assert (doubted.verdict, "still drift" in doubted.reason) == ("loose", True)


def test_bennett_is_exact_for_gaussian_work():
    """Work N(log Z - v / 2, v) forwards has N(log Z + v / 2, v) backwards (Crooks), whatever the numbers of chains."""
    v, num = 4.0, 16
    forward = 1.0 - v / 2 + 2.0 * noise(num, 1).normal(400)
    backwards = 1.0 + v / 2 + 2.0 * noise(num, 2).normal(800)
    value, error = bennett(forward, backwards)
    assert abs(value - 1.0) <= 4 * error
    assert error < 0.05


@pytest.fixture(scope="module")
def trained():
    return trained_model(150)


def test_a_network_in_the_plane_against_quadrature(trained):
    model, data = trained
    found = measure(model, Measurable(data, False), settings(0.02, 512, densities=32, budget=32), 500, burn=20).bracket
    z = model.normaliser()
    assert contains(found, z.log_z)
    assert found.highest.value - found.lower.value <= 0.02
    assert abs(found.value - z.log_z) <= 4 * found.standard_error + z.error
    for t, value in enumerate(reversed(found.log_z_levels)):
        assert value == pytest.approx(normaliser(lambda u, t=t: model.level_f(u, t)).log_z, abs=0.1)


def test_parts_are_kept_and_shared(trained, tmp_path):
    """Two processes that share a folder do half of the work each, and find what one finds."""
    (model, data), s = trained, settings(1.0, 8, systems=4, densities=6, budget=6, batch=16)

    def run(folder, **options):
        return measure(model, Measurable(data, False), s, 50, burn=3, work=Work(Parts(folder, **options))).record

    alone = run(tmp_path / "alone")
    kept = sorted(p.name for p in (tmp_path / "alone").iterdir())
    # The second process stops where it would wait for the first one's parts.
    with pytest.raises(UserError, match="Run the same command again"):
        run(tmp_path / "shared", rank=1, world=2)
    (tmp_path / "shared").mkdir(exist_ok=True)
    for path in (tmp_path / "alone").glob("forward*"):
        (tmp_path / "shared" / path.name).write_bytes(path.read_bytes())
    again = run(tmp_path / "shared")
    assert sorted(p.name for p in (tmp_path / "shared").iterdir()) == kept
    assert again == alone
    assert run(None) == alone


def test_bad_settings(trained):
    model, data = trained
    for options in ({"budget": 0}, {"densities": 0}, {"systems": 2}, {"tolerance": 0.0}):
        with pytest.raises(UserError):
            measure(model, Measurable(data, False), Settings(**{"tolerance": 0.1, **options}), 50)
    target = Mixture(ring(2, 1.0), 0.5)
    with pytest.raises(UserError, match="sources: 'a' has 3 rows; needs at least 16"):
        bracket(plain_path(target, (2,)), {"a": torch.zeros(3, 2)}, Settings(0.1))
    with pytest.raises(UserError, match=r"a: has shape \[64, 3\]; needs \[M, 2\]"):
        bracket(plain_path(target, (2,)), {"a": torch.zeros(64, 3)}, Settings(0.1))
    with pytest.raises(UserError, match=r"sources: have draws of the shapes \[2\] and \[3\]"):
        bracket(target, {"a": torch.zeros(64, 2), "b": torch.zeros(64, 3)})
    with pytest.raises(UserError, match="tolerance='a': must be positive"):
        bracket(target, {"a": torch.zeros(64, 2)}, tolerance="a")
    for num in (0, 7):
        with pytest.raises(UserError, match=f"sources: {num} given; give 1 to 6"):
            bracket(plain_path(target, (2,)), {str(i): torch.zeros(512, 2) for i in range(num)}, Settings(0.1))


class Told(Silent):
    """Remembers lines, and of every bar what was announced and how far it came."""

    def __init__(self):
        self.lines, self.bars = [], []

    def say(self, line):
        self.lines.append(line)

    @contextmanager
    def bar(self, what, total, start=0):
        self.bars.append([what, total, 0])
        bar = Bar()
        bar.advance = self.advance
        yield bar

    def advance(self, steps=1):
        self.bars[-1][2] += steps


class Half:
    """The parts of the first of two processes, which waits for no other."""

    world = 2

    def run(self, name, tasks, device):
        return [task() for task in tasks]


def test_every_round_tells_of_its_own_gap_and_smc_integrates_too():
    target, told = Mixture(torch.zeros(1, 2), 0.5, log_z=1.0), Told()
    s = settings(1e-9, 8, systems=4, densities=4, budget=16)
    found = bracket(target, {"a": target.sample(64, 1)}, s, reporter=told)
    gaps = [r.gap("a") for r in found.rounds]
    assert len(gaps) == 3
    for line, r, (gap, error) in zip(told.lines, found.rounds, gaps, strict=True):
        assert line.startswith(f"{r.num_densities} densities: widest gap {gap:.3g} +- {error:.2g} nats")
    assert all(done == total for _, total, done in told.bars)
    # Draws of the Gaussian set the coordinates, in which the target is nearly the path's start.
    value, error = found.thermodynamic
    assert abs(value - 1.0) <= 4.5 * error + 0.05


def test_a_bar_announces_the_share_of_one_process():
    """Three batches of two systems between two processes: two for the one that has more."""
    target, told = Mixture(torch.zeros(1, 2), 0.5), Told()
    s = settings(1.0, 8, systems=6, densities=4, budget=4, batch=16)
    bracket(target, {"a": target.sample(48, 1)}, s, reporter=told, parts=Half())
    assert [total for what, total, _ in told.bars if what.startswith("SMC")] == [2 * 4]


def test_one_density_is_a_budget():
    Settings(0.1, densities=1, budget=1).check()


def test_the_box_of_the_plane_is_twelve_wide():
    """The integral of 1 by the rule: 513 nodes a side, each with a cell of (12 / 512)^2."""
    assert normaliser(lambda x: torch.zeros(len(x))).log_z == pytest.approx(2 * math.log(12 * 513 / 512))


def test_batches_change_nothing_even_if_a_system_is_larger_than_one():
    target = Mixture(ring(3, 1.0), 0.5)
    small, large = (settings(5.0, chains=8, densities=4, budget=4, systems=4, batch=batch) for batch in (3, 4096))
    sources = {"a": target.sample(small.num, 1)}
    one, other = (bracket(plain_path(target, (2,)), sources, s) for s in (small, large))
    for part in ("forward", "smc"):
        assert getattr(one.rounds[-1], part).value == pytest.approx(getattr(other.rounds[-1], part).value)
    assert one.value == pytest.approx(other.value)


def test_every_walk_of_every_round_has_streams_of_its_own(monkeypatch):
    """16 streams for each number of densities, beside those of the pilot; walks of other rounds use other numbers."""
    used = []

    def recorded(seed, index, stream, **options):
        used.append(int(stream) - Stream.BRACKET)
        return Noise(seed, index, stream, **options)

    monkeypatch.setattr(sys.modules["springwell.likelihood.bracket"], "Noise", recorded)
    target, s = Mixture(ring(3, 1.0), 0.5), settings(1e-9, chains=8, densities=4, budget=16, systems=4)
    found = bracket(plain_path(target, (2,)), {"a": target.sample(s.num, 1), "b": target.sample(s.num, 2)}, s)
    densities = [r.num_densities for r in found.rounds]
    assert densities == [4, 8, 16]
    # The pilot; then SMC with what it resamples by, forward walks, and a walk from each source.
    assert used == [0, *(16 * k + stream for k in densities for stream in (0, 8, 1, 2, 3))]


def test_the_library_and_the_command_begin_with_the_same_round_and_end_at_their_budgets():
    library, command = Settings(0.1), LikelihoodCommand("model")
    assert (library.densities, library.seed) == (command.densities, command.seed)
    # Rounds double: the fifth one of the library and the third one of the command are the budget.
    assert (library.budget, command.budget) == (2**4 * library.densities, 2**2 * library.densities)
