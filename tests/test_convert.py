"""The authors' checkpoints: names as their code writes them, without TensorFlow."""

import numpy as np
import pytest
import torch

from springwell.app.api import load, save
from springwell.app.build import config_of
from springwell.app.convert import convert, official_model, official_names
from springwell.energy import EnergyResNet
from springwell.errors import UserError

END = "/.ATTRIBUTES/VARIABLE_VALUE"
WIDTH, MULTIPLIERS, BLOCKS = 8, (1, 2, 2, 2), 2


def layers():
    """(our name, their path, shape of the weight, spectral) of every layer."""
    time = 4 * WIDTH
    yield "conv_in", "conv2d_in/conv", (3, 3, 3, WIDTH), True
    yield "temb.dense0", "temb_dense_0/dense", (WIDTH, time), True
    yield "temb.dense1", "temb_dense_1/dense", (time, time), True
    yield "temb.dense_final", "temb_dense_2/dense", (time, WIDTH * MULTIPLIERS[-1]), False
    before = WIDTH
    for i, multiplier in enumerate(MULTIPLIERS):
        for j in range(BLOCKS):
            ours, theirs, out = f"level{i}.block{j}.", f"res_levels/{i}/{j}/", WIDTH * multiplier
            yield ours + "conv1", theirs + "conv2d_1/conv", (3, 3, before, out), True
            yield ours + "conv2", theirs + "conv2d_2/conv", (3, 3, out, out), True
            yield ours + "temb_proj", theirs + "dense/dense", (time, out), True
            if before != out:
                yield ours + "shortcut", theirs + "conv2d_shortcut/conv", (3, 3, before, out), True
            before = out


def checkpoint(root, seed):
    """Variables under their names, and the same under ours."""
    numbers = np.random.default_rng(seed)
    theirs, ours = {}, {}
    for name, path, shape, spectral in layers():
        values = {"W": numbers.normal(0, 0.1, shape), "b": numbers.normal(0, 0.1, shape[-1])}
        if name.endswith("conv2"):
            values["g"] = numbers.normal(1, 0.1, shape[-1])
        if spectral:
            values["sn_u"] = numbers.normal(0, 1, (1, shape[-1]))
        for kind, value in values.items():
            value = value.astype(np.float32)
            ours[f"{name}.{kind}"] = value
            inner = {"W": "w", "sn_u": "sn_u"}.get(kind, f"layer/{kind}") if spectral else kind
            theirs[f"{root}/net/{path}/{inner}{END}"] = value
            if spectral and kind == "W":
                theirs[f"{root}/net/{path}/layer/W{END}"] = np.zeros_like(value)
    return theirs, ours


def bookkeeping():
    slot = f"model/net/conv2d_in/conv/w/.OPTIMIZER_SLOT/opt_c/m{END}"
    return {name: np.zeros(()) for name in ("_CHECKPOINTABLE_OBJECT_GRAPH", f"opt_c/iter{END}", f"i_iter_var{END}", slot)}


def test_names_are_mapped_to_raw_weights_of_the_moving_average():
    plain, _ = checkpoint("model", 0)
    average, expected = checkpoint("model_ema", 1)
    variables = {**plain, **average, **bookkeeping()}
    mapped = official_names(variables)
    assert mapped.keys() == expected.keys()
    assert all(variables[theirs] is expected[ours] for ours, theirs in mapped.items())
    assert mapped["level1.block0.shortcut.W"] == f"model_ema/net/res_levels/1/0/conv2d_shortcut/conv/w{END}"


def test_without_moving_average_the_plain_weights_are_taken():
    plain, expected = checkpoint("model", 0)
    assert {ours: plain[theirs].tobytes() for ours, theirs in official_names({**plain, **bookkeeping()}).items()} == {
        name: value.tobytes() for name, value in expected.items()
    }


def test_the_model_is_the_authors_network(tmp_path):
    _, arrays = checkpoint("model", 2)
    model = official_model(arrays, iteration=240_000)
    network = config_of(model).network
    assert (network.width, network.multipliers, network.num_blocks) == (WIDTH, MULTIPLIERS, BLOCKS)
    assert model.event_shape == (3, 32, 32)
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.iteration == 240_000
    assert again.step_size.tolist() == pytest.approx(again.schedule.langevin_step.tolist(), rel=1e-6)
    y, t = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 4, 5])
    with torch.no_grad():
        expected = EnergyResNet.from_official(arrays).eval()(y, t)
        # f is the network's output over the squared step size.
        torch.testing.assert_close(again.f(y, t) * again.schedule.langevin_step[t].float() ** 2, expected)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["some/other/thing" + END], "not a checkpoint of the authors' code"),
        ([f"model/net/attn_s/16/0/nin_q/nin/W{END}"], "'model/net/attn_s/16/0/nin_q/nin/W.*': not a variable of the network"),
        ([f"model/net/res_levels/0/0/nin_shortcut/nin/w{END}"], "not a variable of the network"),
    ],
)
def test_foreign_names_are_one_line(names, words):
    with pytest.raises(UserError, match=words) as caught:
        official_names(names)
    assert "\n" not in str(caught.value)


def test_missing_weights_are_named():
    _, arrays = checkpoint("model", 0)
    del arrays["level2.block1.conv2.g"]
    with pytest.raises(UserError, match=r"level2\.block1\.conv2\.g"):
        official_model(arrays)


def test_an_unusual_number_of_levels_needs_a_preset():
    _, arrays = checkpoint("model", 0)
    three = {name: value for name, value in arrays.items() if not name.startswith("level3")}
    with pytest.raises(UserError, match=r"a network of 3 levels.*--preset"):
        official_model(three)
    assert official_model(three, name="cifar10-t6").metadata["config"]["network"]["multipliers"] == [1, 2, 2]


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "something").touch()
    with pytest.raises(UserError, match="exists and is not empty"):
        convert(tmp_path / "ckpt", tmp_path)
