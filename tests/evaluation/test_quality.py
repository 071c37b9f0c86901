"""FID of a model against its parts, going on after an interruption, the FID over iterations, and the tables."""

import json
from dataclasses import replace

import pytest
import torch

import springwell as sw
from springwell.app.api import save
from springwell.app.cli import main
from springwell.app.config import to_dict, with_fields
from springwell.app.presets import preset
from springwell.data.pictures import to_bytes
from springwell.energy.residual import Classes
from springwell.errors import DivergenceError, UserError
from springwell.evaluation import quality as module
from springwell.evaluation.metrics import fid, kid
from springwell.evaluation.quality import Drawn, quality
from springwell.evaluation.sources import Images, open_source
from springwell.evaluation.weights import DIGEST
from springwell.paper import ablation, common, tables
from springwell.paper.common import coarse_ladder
from springwell.progress import Silent
from springwell.store.files import read_lines
from springwell.store.run import Run
from tests.evaluation.test_metrics import Tiny
from tests.images import small_model
from tests.listener import Listener
from tests.training.test_images import tiny_digits
from tests.training.tiny import train


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def digits(split):
    from springwell.data.formats import digits

    return getattr(digits(), split)


@pytest.mark.parametrize("split", ["train", "test"])
def test_samples_are_compared_with_the_split(split):
    model, network = small_model(), Tiny()
    result = quality(model, open_source(f"digits@{split}"), network, Drawn(60, seed=4))
    samples = network(torch.from_numpy(to_bytes(model.sample(60, seed=4))).permute(0, 3, 1, 2))
    reference = network(torch.from_numpy(digits(split)))
    assert result["fid"] == pytest.approx(fid(samples, reference), rel=1e-6)
    assert result["kid"] == pytest.approx(kid(samples, reference, 30)[0], rel=1e-6)
    assert result["reference"] == f"digits@{split}"
    assert (result["num_samples"], result["num_reference"]) == (60, len(digits(split)))
    assert result["inception_score"] is None


def test_samples_of_the_integrator_are_measured_where_its_evaluations_are_given():
    model, network = small_model(), Tiny()
    result = quality(model, open_source("digits@test"), network, Drawn(60, seed=4, evaluations=3))
    samples = network(torch.from_numpy(to_bytes(model.sample(60, seed=4, evaluations=3))).permute(0, 3, 1, 2))
    assert result["fid"] == pytest.approx(fid(samples, network(torch.from_numpy(digits("test")))), rel=1e-6)
    assert result["evaluations"] == 3


def test_samples_given_their_class_are_as_many_of_each_class(tmp_path):
    small = {"data": "digits", "width": 8, "multipliers": (1,), "num_levels": 4, "iterations": 2, "batch": 8, "unshuffle": 1}
    model = sw.train(with_fields(preset("digits-density"), **small, classes=("all",)), out=tmp_path / "run")
    with torch.no_grad():
        for site in model.energy_function.modules():
            if isinstance(site, Classes):
                site.weight.normal_()
    network = Tiny()
    # 6 of every class, and the noise of a sample depends on its place alone.
    parts = [model.given(c).sample(6 * (c + 1), seed=4)[6 * c :] for c in range(10)]
    assert not torch.equal(parts[1], model.sample(12, seed=4)[6:])
    samples = network(torch.from_numpy(to_bytes(torch.cat(parts))).permute(0, 3, 1, 2))
    result = quality(model, open_source("digits@test"), network, Drawn(60, seed=4, by_class=True))
    assert result["fid"] == pytest.approx(fid(samples, network(torch.from_numpy(digits("test")))), rel=1e-6)
    assert result["by_class"]
    # Parts that end inside a class.
    images = module.model_images("model", [model.given(c) for c in range(10)], 60, seed=4)
    assert torch.equal(torch.cat([images.rows(a, a + 15) for a in range(0, 60, 15)]), images.rows(0, 60))
    with pytest.raises(UserError, match="knows no classes"):
        quality(small_model(), open_source("digits@test"), network, Drawn(60, by_class=True))


def test_an_interrupted_measurement_goes_on(tmp_path, monkeypatch):
    model, network, reference = small_model(), Tiny(), open_source("digits@train")
    drawn: list[int] = []
    whole = module.model_images

    def few(name, model, num, seed, sampler):
        images = whole(name, model, num, seed, sampler)

        def rows(start, stop):
            if len(drawn) == 2:
                drawn.append(-1)
                raise KeyboardInterrupt
            drawn.append(start)
            return images.rows(start, stop)

        return Images(images.name, images.num, images.shape, rows, together=32)

    monkeypatch.setattr(module, "model_images", few)
    with pytest.raises(KeyboardInterrupt):
        quality(model, reference, network, Drawn(150), parts=tmp_path / "parts")
    result = quality(model, reference, network, Drawn(150), parts=tmp_path / "parts")
    assert drawn == [0, 32, -1, 64, 96, 128]
    monkeypatch.setattr(module, "model_images", whole)
    assert result["fid"] == pytest.approx(quality(model, reference, network, Drawn(150))["fid"], rel=1e-9)


def test_the_fid_is_measured_on_the_way_and_once(tmp_path):
    measured = []

    def measure(model):
        measured.append(model.iteration)
        return {"fid": float(model.iteration), "num_samples": 5}

    config = tiny_digits(fid_every=4)
    for stop in (8, 3, 20):
        train(config, tmp_path / "run", "cpu", Silent(), measure=measure, stop_after=stop)
    assert [line["iteration"] for line in read_lines(Run(tmp_path / "run").fid_path)] == [4, 8, 12]
    assert measured == [4, 8, 12]
    # A checkpoint whose measurement was lost is measured when the run goes on from it.
    train(config, tmp_path / "other", "cpu", Silent(), measure=measure, stop_after=8)
    Run(tmp_path / "other").fid_path.write_text('{"iteration": 4, "fid": 4.0, "num_samples": 5}\n{"itera')
    train(config, tmp_path / "other", "cpu", Silent(), measure=measure)
    assert read_lines(Run(tmp_path / "other").fid_path) == read_lines(Run(tmp_path / "run").fid_path)


def test_training_from_the_command_line_measures_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("springwell.evaluation.weights.load_inception", lambda *_, **__: Tiny())
    options = (
        "--iterations 4 --batch 8 --width 8 --num-levels 2 --fid-every 2 --fid-samples 30 --preview-every 0 --device cpu --json"
    )
    with pytest.raises(SystemExit) as stopped:
        main(["train", "digits", *options.split(), "--out", "run"])
    assert stopped.value.code == 0
    lines = read_lines(Run("run").fid_path)
    assert [(line["iteration"], line["num_samples"], line["num_reference"]) for line in lines] == [(2, 30, 1498), (4, 30, 1498)]
    assert all(line["fid"] > 0 for line in lines)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["evaluate", "run", "--num", "100", "--reference", "test", "--device", "cpu", "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])["evaluation"]
    assert result["quality"]["num_reference"] == 299
    assert result["quality"]["num_samples"] == 100
    for name in ("report.png", "levels.png", "neighbours.png", "curves.png"):
        assert (tmp_path / "run" / name).read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "run" / ".quality").exists()
    # What took long is kept by an evaluation that leaves it out, but not as that of other weights.
    quick = ["evaluate", "run", "--no-fid", "--device", "cpu"]
    with pytest.raises(SystemExit):
        main([*quick, "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["evaluation"]["quality"] == result["quality"]
    path = tmp_path / "run" / "evaluation.json"
    path.write_text(json.dumps({**result, "weights": "0" * 64}))
    with pytest.raises(SystemExit):
        main(quick)
    assert "fid" not in capsys.readouterr().out
    assert "quality" not in json.loads(path.read_text())


def test_weights_are_looked_for_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPRINGWELL_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SPRINGWELL_INCEPTION", raising=False)
    monkeypatch.setattr("springwell.evaluation.weights.URL", "http://127.0.0.1:1/inception.pth")
    save(small_model(), tmp_path / "run")
    arguments = ["evaluate", str(tmp_path / "run"), "--num", "100", "--device", "cpu"]

    def call(*more, code):
        with pytest.raises(SystemExit) as stopped:
            main([*arguments, *more])
        assert stopped.value.code == code
        return capsys.readouterr().err

    assert "no FID: no weights of Inception here" in call(code=0)
    assert "quality" not in json.loads((tmp_path / "run" / "evaluation.json").read_text())
    monkeypatch.setattr("springwell.evaluation.images.evaluate_images", lambda *_: pytest.fail("measured first"))
    assert "--inception absent.pth: no such file" in call("--inception", "absent.pth", code=2)
    monkeypatch.setenv("SPRINGWELL_INCEPTION", "absent.pt")
    assert "SPRINGWELL_INCEPTION absent.pt: no such file" in call(code=2)


def test_a_measurement_outlives_a_picture_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("springwell.evaluation.weights.load_inception", lambda *_, **__: Tiny())
    save(small_model(), tmp_path / "run")
    (tmp_path / "run" / "report.png").mkdir()
    arguments = ["evaluate", "run", "--reference", "test", "--device", "cpu"]
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--num", "120"])
    assert stopped.value.code == 2
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())["quality"]
    assert found["num_samples"] == 120
    (tmp_path / "run" / "report.png").rmdir()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*arguments, "--num", "100"])
    said = capsys.readouterr()
    assert f"replaces an FID that was measured with more samples; fid        {found['fid']:.2f}   120 samples" in said.err
    assert "digits: grey images" in said.err
    assert "100 samples, 299 reference images, digits@test" in said.out


def test_training_goes_on_where_nothing_can_be_measured(tmp_path):
    def measure(model):
        raise UserError("too few")

    listener = Listener()
    result = train(tiny_digits(fid_every=4), tmp_path / "run", "cpu", listener, measure=measure)
    assert result.status == "finished"
    assert any("no FID of iteration 4: too few" in line for line in listener.said)


def test_tables_show_only_what_was_measured(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "table1", "--json"])
    rows = {row["row"]: row for row in json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]}
    ours = [row for row in rows.values() if row["preset"]]
    assert len(ours) == 7
    assert all(row["ours"] == ["not run", "not run"] for row in ours)

    model = small_model()
    recipe = with_fields(preset("cifar10-t6"), precision="bf16", seed=5)
    replace_config(model, recipe)
    run = tmp_path / "runs" / "mine"
    save(model, run)
    last = recipe.training.iterations
    found = {"fid": 12.5, "num_samples": 1000, "num_reference": 5000, "reference": "cifar10@test", "inception_score": None}
    found["inception_sha256"] = DIGEST
    (run / "evaluation.json").write_text(json.dumps({"iteration": last, "quality": found}))
    # Of several runs of a preset the one with the most samples counts; other weights and what is no number count for nothing.
    for name, measured in (
        ("fewer", {**found, "num_samples": 999}),
        ("none", None),
        ("other-weights", {**found, "num_samples": 5000, "inception_sha256": "0"}),
        ("nan", {**found, "num_samples": 5000, "fid": float("nan")}),
    ):
        save(model, tmp_path / "runs" / name)
        values = {"iteration": last} if measured is None else {"iteration": last, "quality": measured}
        (tmp_path / "runs" / name / "evaluation.json").write_text(json.dumps(values))
    # Runs of another recipe, runs that are sampled otherwise, and measurements on the way, are not the preset's.
    for name, config, iteration in (
        ("recipe", with_fields(recipe, lr=1.0), last),
        ("sampling", with_fields(recipe, sample_steps=300), last),
        ("way", recipe, last - 1),
    ):
        other = tmp_path / "runs" / name
        save(replace_config(model, config), other)
        (other / "evaluation.json").write_text(json.dumps({"iteration": iteration, "quality": {**found, "fid": 1.0}}))
    result = tables.reproduce("table1", tmp_path / "out", tmp_path / "runs")
    cells = {row["preset"]: row["ours"] for row in result["rows"] if row["preset"]}
    assert cells.pop("cifar10-t6") == ["12.50 (1,000 samples, 5,000 of cifar10@test)", "not run"]
    assert all(row == ["not run", "not run"] for row in cells.values())
    assert "12.50" in (tmp_path / "out" / "table1.md").read_text()
    assert next(row["runs"] for row in result["rows"] if row["preset"] == "cifar10-t6") == [str(run), None]
    assert ours_of("table3", tmp_path) == {"celeba-t6": ["not run"], "celeba-ladder": ["not run"]}
    assert ours_of("table-bpd", tmp_path) == {"cifar10-t1k": ["not run"], "cifar10-ladder": ["not run"]}

    run = tmp_path / "runs" / "bits"
    save(replace_config(model, preset("cifar10-t1k")), run)
    bits = {"verdict": "loose", "split": "test", "num_images": 1000, "bits_per_dim_standard_error_data": 0.02}
    bits |= {"bits_per_dim_optimistic": 3.1, "bits_per_dim_conservative": 3.4}
    for iteration, expected in (
        (5, "not run"),
        (
            preset("cifar10-t1k").training.iterations,
            "3.10 ... 3.40 +- 0.02 (log Z from below and above: loose; 1,000 test images)",
        ),
    ):
        (run / "likelihood.json").write_text(json.dumps({"iteration": iteration, **bits}))
        assert ours_of("table-bpd", tmp_path) == {"cifar10-t1k": [expected], "cifar10-ladder": ["not run"]}


def replace_config(model, config):
    model.metadata = {"name": config.data, "config": to_dict(config)}
    return model


def ours_of(name, folder):
    rows = tables.reproduce(name, folder / "out", folder / "runs")["rows"]
    return {row["preset"]: row["ours"] for row in rows if row["preset"]}


@pytest.mark.parametrize("data", ["digits", "mnist"])
def test_the_rows_of_the_ablation_spend_the_same(data):
    rows = ablation.configs(data, 1_000_000)
    networks = {replace(config.network, output_scale="none", base_precision=0.0) for config in rows.values()}
    assert len(networks) == 1
    for config in rows.values():
        config.validate()
        one = config.training.batch * config.gradient_evaluations()
        assert abs(config.training.iterations * one - 1_000_000) <= one / 2


def test_the_ladder_of_the_experiments_is_that_of_digits():
    assert coarse_ladder("digits") == preset("digits")
    assert coarse_ladder("mnist").gradient_evaluations() == preset("digits").gradient_evaluations() > 2


def test_the_ablation_writes_its_table(tmp_path, monkeypatch, capsys):
    """At a thousandth of the budget, the rows that sample quickly, a network of six features, and one row that diverges."""
    monkeypatch.setattr(ablation, "load_inception", lambda **_: Tiny())
    monkeypatch.setattr(ablation, "BUDGET", {"digits": (3000, 40)})
    quick = ablation.configs("digits", 3000)
    quick = {name: quick[name] for name in ("T = 6, K = 10", "T = 6, K = 30", "ladder")}
    trained = common.trained

    def sometimes(config, *arguments):
        if config.sampler.num_steps == 30 and config.training.seed == 1:
            raise DivergenceError("ran away")
        return trained(config, *arguments)

    monkeypatch.setattr(common, "trained", sometimes)
    monkeypatch.setattr(ablation, "configs", lambda data, budget: quick)
    monkeypatch.setattr(ablation, "ordering", lambda rows: ["paper: one"])
    arguments = ["reproduce", "ablation", "--scale", "cpu", "--device", "cpu"]
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    numbers = json.loads((tmp_path / "figures" / "ablation-digits.json").read_text())
    for name, row in numbers["rows"].items():
        fids = [run["fid"] for run in row["runs"] if "fid" in run]
        if len(fids) == 2:
            assert row["fid"] == pytest.approx(sum(fids) / 2)
            assert row["fid_std"] == pytest.approx(abs(fids[0] - fids[1]) / 2**0.5)
            assert f"{row['fid']:.1f} +- {row['fid_std']:.1f}" in text
        assert (len(fids) < 2) == (name == "T = 6, K = 30")
    assert "diverged (1 of 2 seeds)" in text
    assert "40 samples of each against 1,498 training images" in text
    assert (tmp_path / "figures" / "ablation-digits.png").read_bytes().startswith(b"\x89PNG")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("quality/*/result.npz")}
    assert before
    with pytest.raises(SystemExit):
        main(arguments)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert json.loads((tmp_path / "figures" / "ablation-digits.json").read_text()) == numbers


def test_the_scale_of_mnist_is_that_data_set_whole(monkeypatch, capsys):
    seen = []

    def reproduce(study):
        seen.append((study.data, study.scale))
        return {"table": "", "written": []}

    monkeypatch.setattr(ablation, "reproduce", reproduce)
    for words in (["--scale", "mnist"], ["--scale", "0.5", "--data", "mnist"], ["--scale", "mnist", "--data", "digits"]):
        with pytest.raises(SystemExit) as stopped:
            main(["reproduce", "ablation", *words])
    assert seen == [("mnist", 1.0), ("mnist", 0.5)]
    assert stopped.value.code == 2
    assert "--scale mnist: is for --data mnist" in capsys.readouterr().err


def test_ordering_says_what_holds():
    def row(value, std=0.1):
        return {"fid": value, "fid_std": std, "runs": [{}, {}]}

    rows = {
        "T = 6, K = 50": row(10),
        "T = 6, K = 30": row(12),
        "T = 1000, DSM": row(11),
        "T = 1000, K = 0": row(17, 2.0),
        "T = 1, K = 180": {"fid": None, "fid_std": None, "runs": [{"diverged": "x"}]},
    }
    first, second, third, fourth, whole = ablation.ordering(rows)
    assert "K = 50 better than T = 6, K = 30; here that holds by 2.0 +- 0.1" in first
    assert "is reversed by 1.0" in second
    assert third.endswith("holds by 6.0 +- 1.4, which decides nothing")
    assert fourth.endswith("here not decided: one of them diverged")
    assert whole == "the paper's order as a whole does not hold here"
    rows |= {"T = 6, K = 30": row(10.5), "T = 1, K = 180": row(30)}
    assert ablation.ordering(rows)[-1].endswith("is not decided here")
    rows["T = 1000, K = 0"] = row(17)
    assert ablation.ordering(rows)[-1].endswith("as a whole holds here")
