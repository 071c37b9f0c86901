"""One step of the trainer, written out: its levels, its noise, the guess that it takes for negatives, and its weights."""

import torch
from accelerate import Accelerator

from springwell.app.build import build_task
from springwell.app.config import with_fields
from springwell.app.presets import preset
from springwell.conditional import FARTHEST
from springwell.data.source import open_data
from springwell.noise import Noise, Stream
from springwell.training import step as step_module
from springwell.training.state import TrainingState
from springwell.training.step import Step, stratified_levels
from tests.training.tiny import tiny

BATCH = 24


def test_a_step_shares_the_noise_of_the_data_cuts_drifts_and_weighs_levels():
    small = {"width": 8, "multipliers": (1, 2), "num_blocks": 1, "unshuffle": 1, "num_levels": 4}
    config = with_fields(preset("digits"), kernel="none", start="denoised", batch=BATCH, lr=1e-9, **small)
    task = build_task(config, open_data("digits", config.images))
    with torch.no_grad():
        # Steep enough that some drifts are cut.
        task.energy.log_scale += 4.0
    state = TrainingState(task, torch.device("cpu"))
    energy, schedule = state.energy, task.schedule
    objective = task.objective(energy, schedule, task.sampler, None)
    state.statistics = state.statistics.new_zeros(schedule.num_levels, 2 + len(objective.names))
    step = Step(task, state, objective, Accelerator(cpu=True))

    noise, x, _ = step.draw(0)
    offset = Noise(config.training.seed, torch.zeros(1, dtype=torch.long), Stream.LEVELS).uniform()
    t = ((torch.arange(BATCH) + offset.double()) * 4 / BATCH).long()
    y_t, x_next = schedule.pair(x, t, noise)
    sigma, scale, a, spread, share = (
        v[t].float()[:, None, None, None]
        for v in (schedule.sigma[1:], schedule.scale, schedule.a_cum, schedule.sigma_cum, schedule.posterior_share)
    )
    x_at = x_next.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(x_at, t).sum(), x_at)
    prior, spring = (scale * spread) ** -2, sigma**-2
    eps = (y_t - (prior * scale * a * x + spring * x_next) / (prior + spring)) * (prior + spring).sqrt()
    drift = share * sigma**2 * slope
    size = drift.square().mean((1, 2, 3), keepdim=True).sqrt()
    longest = (1 + FARTHEST / 128**0.5) * (1 - share).sqrt() * sigma
    assert 0 < int((size > longest).sum()) < BATCH
    y_neg = x_next + drift * (longest / size).clamp(max=1) + share.sqrt() * sigma * eps
    with torch.no_grad():
        # The rule "learned" weighs by the noise of the level.
        expected = schedule.sigma_cum[t].float() * (energy(y_neg, t) - energy(y_t, t))
    step(0, iter([step.draw(0)]))
    by_level = torch.zeros(4, dtype=torch.float64).index_add(0, t, expected.double())
    torch.testing.assert_close(state.statistics[:, 0], torch.bincount(t, minlength=4).double())
    torch.testing.assert_close(state.statistics[:, 1], by_level, rtol=1e-3, atol=1e-3)


def test_batches_and_levels_of_an_iteration_follow_from_its_number_and_the_attempt(monkeypatch):
    config, first = tiny(batch=8, accumulate=2), 2**36
    task = build_task(config, open_data("checkerboard"))
    state = TrainingState(task, torch.device("cpu"))
    objective = task.objective(state.energy, task.schedule, task.sampler, None)
    state.statistics = state.statistics.new_zeros(task.schedule.num_levels, 2 + len(objective.names))
    step = Step(task, state, objective, Accelerator(cpu=True), first_stream=first)
    offsets = []

    def recorded(num_levels, position, batch, offset):
        offsets.append(offset)
        return stratified_levels(num_levels, position, batch, offset)

    monkeypatch.setattr(step_module, "stratified_levels", recorded)
    for iteration in (0, 3):
        batches = [step.draw(2 * iteration + part) for part in range(2)]
        for part, (_, x, _) in enumerate(batches):
            noise = Noise(config.training.seed, torch.arange(4) + 4 * part, Stream.TRAINING + first + iteration)
            assert torch.equal(x, task.data.sample(noise))
        offsets.clear()
        step(iteration, iter(batches))
        own = Noise(config.training.seed, torch.tensor([0]), Stream.LEVELS + first + iteration).uniform()
        assert [float(offset) for offset in offsets] == [float(own)] * 2
