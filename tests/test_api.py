"""The public functions as the README shows them: presets by name, data and networks of one's own, saving and loading."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import springwell as sw

FEW = {"iterations": 20, "batch": 32, "checkpoint_every": 10, "preview_every": 0, "reporter": sw.Silent()}


class Bowl(nn.Module):
    """An energy of one's own: a quadratic with learned curvature per level."""

    def __init__(self, num_levels=4, dim=2):
        super().__init__()
        self.curvature = nn.Parameter(torch.zeros(num_levels, dim))

    def forward(self, y, t):
        return -(self.curvature[t].exp() * y**2).flatten(1).sum(-1)


@pytest.fixture(scope="module")
def points():
    return torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 0.5]) + torch.tensor(
        [1.0, -2.0]
    )


@pytest.fixture(scope="module")
def own(points):
    return sw.train(data=points, network=Bowl(), **FEW)


def test_a_preset_by_name_takes_any_field(tmp_path):
    model = sw.train("checkerboard", width=16, num_steps=2, sample_steps=3, seed=1, out=tmp_path / "run", **FEW)
    assert model.metadata["config"]["training"]["iterations"] == 20
    assert model.metadata["config"]["training"]["seed"] == 1
    assert model.metadata["config"]["network"]["width"] == 16
    assert model.iteration == 20
    assert (tmp_path / "run" / "model.safetensors").exists()
    again = sw.train("checkerboard", width=16, num_steps=2, sample_steps=3, seed=1, out=tmp_path / "run", **FEW)
    assert torch.equal(again.sample(5), model.sample(5))


def test_nothing_is_written_without_out(points, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = sw.train(data=points, network=Bowl(), **FEW)
    assert list(tmp_path.iterdir()) == []
    assert model.source is None


def test_the_callers_network_is_copied(points):
    network = Bowl()
    model = sw.train(data=points, network=network, **FEW)
    assert float(network.curvature.detach().abs().sum()) == 0
    assert float(model.energy_function.network.curvature.detach().abs().sum()) > 0
    assert network.training


def test_training_by_data_of_one_s_own_uses_them_in_their_units(own, points):
    assert torch.allclose(own.shift, points.mean(0), atol=0.2)
    x = own.sample(2000, seed=0)
    assert x.shape == (2000, 2)
    # An untrained bowl with its base term is wider than the data, but it is centred on them, in their units.
    assert torch.allclose(x.mean(0), points.mean(0), atol=1.0)


@pytest.mark.parametrize("kind", ["array", "dataset", "list of arrays in a Dataset"])
def test_every_kind_of_data_gives_the_same_model(own, points, kind):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(points)

        def __getitem__(self, i):
            return points[i].numpy(), 0

    data = {"array": points.numpy(), "dataset": TensorDataset(points), "list of arrays in a Dataset": Rows()}[kind]
    model = sw.train(data=data, network=Bowl(), **FEW)
    assert torch.equal(model.sample(4), own.sample(4))


def test_log_prob_score_and_energy_belong_together(own, points):
    x = points[:5].clone().requires_grad_()
    log_p = own.log_prob(x)
    (grad,) = torch.autograd.grad(log_p.sum(), x)
    torch.testing.assert_close(own.score(points[:5]), grad.float(), rtol=1e-4, atol=1e-4)
    difference = own.energy(points[:1]) - own.energy(points[1:2])
    torch.testing.assert_close(difference.double(), (log_p[1:2] - log_p[:1]).detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own.log_prob(points[:5].numpy()), log_p.detach())


def test_a_model_of_one_s_own_network_is_saved_and_loaded_with_it(own, points, tmp_path):
    own.save(tmp_path / "mine")
    again = sw.load(tmp_path / "mine", network=Bowl())
    assert torch.equal(again.sample(6, seed=2), own.sample(6, seed=2))
    assert torch.equal(again.log_prob(points[:3]), own.log_prob(points[:3]))
    with pytest.raises(sw.UserError, match=r"is one of your own, .* load\(folder, MyEnergy\(\)\)"):
        sw.load(tmp_path / "mine")
    with pytest.raises(sw.UserError, match=r"'energy.network.curvature' is \[4, 2\], expected \[5, 2\]"):
        sw.load(tmp_path / "mine", network=Bowl(num_levels=5))


def test_a_model_of_parts_is_saved_and_loaded(tmp_path):
    schedule = sw.NoiseSchedule.from_sigmas([0.5, 0.7, 0.9])
    sampler = sw.LevelSampler(sw.samplers.hmc(num_leapfrog=3), 4, 0.3 * schedule.sigma[1:].float(), start="denoised")
    model = sw.Model(Bowl(3), schedule, sampler, shift=torch.tensor([1.0, 2.0]), scale=torch.tensor([2.0, 0.5]))
    model.save(tmp_path / "parts")
    again = sw.load(tmp_path / "parts", network=Bowl(3))
    assert again.sampler.description() == model.sampler.description()
    assert torch.equal(again.sample(7, seed=1), model.sample(7, seed=1))
    with pytest.raises(sw.UserError, match="its energy is one of your own"):
        sw.load(tmp_path / "parts")


def test_fine_tuning_begins_with_the_weights_of_another_model(own, points, tmp_path):
    own.save(tmp_path / "first")
    tuned = sw.train(data=points, network=Bowl(), init_from=tmp_path / "first", **{**FEW, "iterations": 1, "lr": 1e-9})
    torch.testing.assert_close(
        tuned.energy_function.network.curvature, own.energy_function.network.curvature, rtol=0, atol=1e-6
    )


def test_more_iterations_extend_a_finished_run(points, tmp_path):
    out = tmp_path / "run"
    first = sw.train(data=points, network=Bowl(), out=out, **FEW)
    longer = sw.train(data=points, network=Bowl(), out=out, **{**FEW, "iterations": 35})
    assert (first.iteration, longer.iteration) == (20, 35)
    with pytest.raises(sw.UserError, match="holds a run with iterations=35, not iterations=10"):
        sw.train(data=points, network=Bowl(), out=out, **{**FEW, "iterations": 10})


def test_a_lost_model_is_made_again_from_its_checkpoint(points, tmp_path):
    out = tmp_path / "run"
    model = sw.train(data=points, network=Bowl(), out=out, **FEW)
    (out / "model.safetensors").unlink()
    assert torch.equal(sw.load(out, network=Bowl()).sample(3), model.sample(3))
    sw.train(data=points, network=Bowl(), out=out, **FEW)
    assert (out / "model.safetensors").exists()


def test_a_finished_run_of_other_data_is_refused(points, tmp_path):
    sw.train(data=points, network=Bowl(), out=tmp_path / "run", **FEW)
    with pytest.raises(sw.UserError, match="its data are not what they were"):
        sw.train(data=2 * points + 1, network=Bowl(), out=tmp_path / "run", **FEW)


class Returning(nn.Module):
    """A module that returns what a function makes of it, y and t."""

    def __init__(self, function):
        super().__init__()
        self.function, self.level = function, nn.Embedding(2, 1)

    def forward(self, y, t):
        return self.function(self, y, t)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Bowl, "network: is the class Bowl; give an nn.Module"),
        (Returning(lambda module, y, t: y), r"network: returns torch.float32 \[2, 2\] at y \[2, 2\] and levels t = \[0, 3\]"),
        (Returning(lambda module, y, t: y.sum(-1, keepdim=True)), r"one number per sample, as f.squeeze\(1\) does"),
        (Returning(lambda module, y, t: y.sum(-1) / 0 * 0), "network: returns NaN at y = 0"),
        (Returning(lambda module, y, t: None), "network: returns None"),
        (Returning(lambda module, y, t: y.detach().sum(-1)), "network: has no gradient"),
        (Bowl().requires_grad_(False), "network: has no parameters that require a gradient"),
        (Returning(lambda module, y, t: module.level(t)[:, 0] + y.sum(-1)), "fails at .*IndexError: index out of range"),
        (nn.Linear(2, 1), "fails at .*TypeError"),
        ("own", "give the nn.Module itself"),
    ],
)
def test_networks_that_cannot_be_trained_are_refused_at_once(points, network, words):
    with pytest.raises(sw.UserError, match=words) as error:
        sw.train(data=points, network=network, **FEW)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(2), "has BatchNorm1d, so f of a sample depends on the others"),
        (nn.Dropout(0.2), "has Dropout, so f changes"),
    ],
)
def test_layers_that_make_f_depend_on_more_than_y_and_t_are_named(points, layer, words):
    network, seen = Bowl(), Warnings()
    network.layer = layer
    sw.train(data=points, network=network, **{**FEW, "reporter": seen})
    sw.train(data=points, network=Bowl(), **{**FEW, "reporter": seen})
    (line,) = seen.lines
    assert words in line


class Warnings(sw.Silent):
    def __init__(self):
        self.lines = []

    def warn(self, line):
        self.lines.append(line)


def test_a_model_is_not_saved_over_a_run_or_a_file(own, points, tmp_path):
    sw.train(data=points, network=Bowl(), out=tmp_path / "run", **FEW)
    with pytest.raises(sw.UserError, match="holds a run"):
        own.save(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(sw.UserError, match="cannot be written"):
        own.save(tmp_path / "file")
    for model, folder, words in ((3, tmp_path, "model: is an int"), (own, 3, "folder: is an int")):
        with pytest.raises(sw.UserError, match=words):
            sw.save(model, folder)


def test_wrong_sources_of_models_are_one_sentence(own, tmp_path):
    for source, words in (
        (None, "source: is None"),
        (3, "source: is an int"),
        ("chekerboard", "did you mean checkerboard"),
    ):
        with pytest.raises(sw.UserError, match=words):
            sw.load(source)
    own.save(tmp_path / "mine")
    for network, words in ((Bowl, "is the class Bowl"), ("mlp", "is a str"), (None, "one of your own")):
        with pytest.raises(sw.UserError, match=words):
            sw.load(tmp_path / "mine", network)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "needs the name of a preset"),
        ({"config": 3}, "config: is an int"),
        ({"config": "chekerboard"}, "did you mean checkerboard|chekerboard"),
        ({"data": torch.randn(100, 2), "network": "mlp2"}, "network='mlp2': unknown"),
        ({"data": torch.randn(100, 2), "network": 3}, "network: is an int"),
        ({"data": "nowhere"}, "data='nowhere': unknown"),
        ({"data": torch.full((100, 2), torch.nan)}, "not finite"),
        ({"data": np.zeros((100, 2))}, "constant"),
        ({"data": [1, 2, 3]}, "data: is a list"),
        ({"data": torch.randn(100, 2), "init_from": 3}, "init_from: is an int"),
        ({"config": "checkerboard", "iteratons": 3}, "iteratons"),
        ({"config": "checkerboard", "iterations": -1}, "iterations=-1"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, words):
    with pytest.raises(sw.UserError, match=words) as found:
        sw.train(**arguments, reporter=sw.Silent())
    assert "\n" not in str(found.value)


def test_every_exported_name_exists():
    for name in sw.__all__:
        assert getattr(sw, name) is not None
