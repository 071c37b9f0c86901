"""Eight steps of our training with the authors' images, levels and noise, against what their code made of them.

The fixture holds their weights before and after, and the average; the images; and where in a stream of numpy's
normals the noise of every step begins. The recording ran with a learning rate of 1e-3 min(1, i / 4) at step i.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from springwell import NoiseSchedule
from springwell.app.config import with_fields
from springwell.app.presets import preset
from springwell.data.source import DataSource
from springwell.energy import EnergyResNet, ScaledEnergy
from springwell.level import LevelSampler
from springwell.objectives import Recovery
from springwell.training import step as training_step
from springwell.training.state import TrainingState
from springwell.training.step import Step
from springwell.training.task import Task
from tests.energy.test_resnet import GivenNoise, nchw

SHAPE, BATCH, K = (3, 32, 32), 4, 4


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(Path(__file__).parents[1] / "fixtures" / "official_training_32.npz"))


def network(golden, which):
    """The network with their weights ``before`` or ``after`` the eight steps, or with the average of them, ``ema``."""
    return EnergyResNet.from_official({name.removeprefix(f"{which}."): array for name, array in golden.items()})


def batches(golden):
    """t, and the noise and x, of every step."""
    size = BATCH * 32 * 32 * 3
    normals = np.random.default_rng(int(golden["noise_seed"])).standard_normal(golden["noise_offset"][-1] + (2 + K) * size)
    for t, offset, x in zip(golden["t"], golden["noise_offset"], golden["x"], strict=True):
        next_, now, *chain = nchw(normals[offset:].astype(np.float32)[: (2 + K) * size].reshape(-1, BATCH, 32, 32, 3))
        yield torch.from_numpy(t).long(), (GivenNoise([now, next_, *chain]), nchw(x), {})


def recovery(energy, schedule, sampler, differentiated):
    return Recovery(energy, schedule, sampler, differentiated=differentiated)


@pytest.fixture(scope="module")
def replayed(golden):
    """The state after eight steps of ours, with the loss and the norm of the gradient of each."""
    schedule = NoiseSchedule.t6()
    sampler = LevelSampler("langevin", K, schedule.langevin_step.float())
    # Adam, the warm-up and the average are the preset's.
    options = with_fields(preset("cifar10-t6"), batch=BATCH, lr=1e-3, warmup=4).training
    data = DataSource(SHAPE, None, None, torch.zeros(SHAPE), torch.ones(SHAPE))
    energy = ScaledEnergy(network(golden, "before"), schedule, "step")
    task = Task(energy, schedule, sampler, sampler, recovery, data, options)
    state = TrainingState(task, torch.device("cpu"))
    objective = recovery(state.energy, schedule, sampler, None)
    state.statistics = state.statistics.new_zeros(schedule.num_levels, 2 + len(objective.names))
    step = Step(task, state, objective, Accelerator(cpu=True))
    losses, norms = [], []
    with pytest.MonkeyPatch.context() as patched:
        for i, (t, batch) in enumerate(batches(golden)):
            patched.setattr(training_step, "stratified_levels", lambda *arguments, t=t: t)
            state.statistics.zero_()
            norms.append(float(step(i, iter([batch]))))
            losses.append(float(state.statistics[:, 1].sum()) / BATCH)
    return state, losses, norms


def test_losses_and_gradients_are_the_authors(golden, replayed):
    _, losses, norms = replayed
    np.testing.assert_allclose(losses, golden["loss"], rtol=0.01)
    np.testing.assert_allclose(norms, golden["grad_norm"], rtol=0.01)


@pytest.mark.parametrize(("which", "ours"), [("after", "energy"), ("ema", "average")])
def test_weights_and_their_average_are_the_authors(golden, replayed, which, ours):
    """Of how far weights went, rounding may change a few per cent: Adam divides small gradients by their own size."""
    begin, end = (network(golden, when).state_dict() for when in ("before", which))
    found = getattr(replayed[0], ours).network
    names = [name for name, _ in found.named_parameters()]
    moved = torch.stack([(end[name] - begin[name]).norm() for name in names])
    errors = torch.stack([(found.state_dict()[name] - end[name]).norm() for name in names]) / moved
    assert errors.max() < 0.05
    assert errors.median() < 0.01


def test_adam_has_the_authors_epsilon(replayed):
    """Eight steps cannot tell it from torch's."""
    assert {group["eps"] for group in replayed[0].adam.param_groups} == {1e-7}
