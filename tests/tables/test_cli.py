"""Tables on the command line: what is written, what is refused, and what the numbers are."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from springwell.app.cli import main
from springwell.app.tables import load_table
from springwell.data.tables import read_table, write_csv
from springwell.evaluation.outliers import multiscale, percentile, typicality


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object], str]:
    with pytest.raises(SystemExit) as done:
        main([*words, "--json"])
    captured = capsys.readouterr()
    return int(done.value.code or 0), json.loads(captured.out.splitlines()[-1]), captured.err


def write(path: Path, rows: np.ndarray, first: int = 0) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", "height", "weight"])
        writer.writerows([f"p{first + i}", *row] for i, row in enumerate(rows.tolist()))


def people(num: int, seed: int) -> np.ndarray:
    z = np.random.default_rng(seed).normal(size=(num, 2))
    return np.stack([170 + 10 * z[:, 0], 70 + 8 * z[:, 0] + 6 * z[:, 1]], 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    write(folder / "people.csv", people(300, 0))
    write(folder / "new.csv", people(200, 1), 300)
    words = ["train", "table", "--data", f"csv:{folder / 'people.csv'}", "--iterations", "0", "--transform", "standard"]
    with pytest.raises(SystemExit) as done:
        main([*words, "--out", str(folder / "run")])
    assert done.value.code == 0
    return folder


def test_the_density_is_the_normal_law_of_the_table(folder: Path) -> None:
    rows = people(200, 1)
    z = (rows[:, 0] - 170) / 10, (rows[:, 1] - 70 - 0.8 * (rows[:, 0] - 170)) / 6
    truth = -0.5 * (z[0] ** 2 + z[1] ** 2) - np.log(2 * np.pi * 60)
    loss = truth - load_table(folder / "run").density.log_prob(rows)
    # Five parameters from 300 rows cost 5 / 600 nats on average; ten times as much is allowed.
    assert -3 * loss.std() / np.sqrt(200) < loss.mean() < 10 * 5 / 600


def test_samples_have_the_header_of_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result, _ = run(capsys, "sample", str(folder / "run"), "--num", "500", "--out", str(folder / "drawn.csv"))
    drawn = read_table(str(folder / "drawn.csv"))
    assert (code, result["num"], drawn.columns) == (0, 500, ["height", "weight"])
    assert abs(drawn.values[:, 0].mean() - 170) < 4 * 10 * (500**-0.5 + 300**-0.5)


def test_scores_name_rows_and_drivers_and_are_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = people(50, 3)
    rows[7, 1] += 100
    write(folder / "odd.csv", rows, 0)
    words = ["score", str(folder / "run"), f"csv:{folder / 'odd.csv'}", "--out", str(folder / "scores")]
    code, result, _ = run(capsys, *words, "--against", f"csv:{folder / 'new.csv'}")
    assert code == 0
    assert result["least_likely"][0] == "p7"
    # Two samples of one law are told apart by chance alone.
    assert abs(result["auroc"] - 0.5) < 4 * result["auroc_standard_error"]
    with (folder / "scores" / "scores.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert lines[7]["row"] == "p7"
    assert lines[7]["driver_1"] == "weight"
    # The largest component of the score, in units of the column's spread; negative, for the weight is too large.
    model = load_table(folder / "run")
    pull = model.density.drivers(rows)[7]
    assert float(lines[7]["pull_1"]) == pytest.approx(pull[1], rel=1e-3)
    assert pull[1] < -abs(pull[0])
    assert float(lines[7]["percentile"]) == 0
    before = (folder / "scores" / "scores.csv").read_bytes()
    code, result, _ = run(capsys, *words)
    assert code == 2
    assert "exists" in str(result["error"])
    assert (folder / "scores" / "scores.csv").read_bytes() == before


def test_one_row_has_no_standard_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "one.csv", people(1, 5), 0)
    words = [f"csv:{folder / 'one.csv'}", "--against", f"csv:{folder / 'new.csv'}", "--out", str(folder / "one")]
    with pytest.raises(SystemExit) as done:
        main(["score", str(folder / "run"), *words])
    told = capsys.readouterr().out
    assert (done.value.code, "auroc" in told, "+-" in told) == (0, True, False)
    result = json.loads((folder / "one" / "scores.json").read_text())
    assert (result["mean_standard_error"], result["auroc_standard_error"]) == (None, None)


@pytest.mark.parametrize("method", ["density", "typicality", "multiscale"])
def test_each_method_finds_rows_far_away(folder: Path, capsys: pytest.CaptureFixture[str], method: str) -> None:
    write(folder / "far.csv", people(100, 4) + np.array([80, 0]), 0)
    words = ["--against", f"csv:{folder / 'far.csv'}", "--method", method, "--out", str(folder / f"far-{method}")]
    code, result, _ = run(capsys, "score", str(folder / "run"), f"csv:{folder / 'new.csv'}", *words)
    assert code == 0
    assert result["auroc"] > 0.95


def test_evaluate_draws_pairs_and_quantiles(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result, _ = run(capsys, "evaluate", str(folder / "run"), "--out", str(folder / "evaluation"))
    assert code == 0
    found = result["evaluation"]
    # The fit's own error adds about one null width.
    assert max(found["kolmogorov"].values()) < 2 * found["kolmogorov_95"]
    assert all((folder / "evaluation" / name).stat().st_size > 1000 for name in ("pairs.png", "quantiles.png"))


def test_parquet_and_npy_are_the_same_table(folder: Path) -> None:
    import pandas

    rows = people(30, 5)
    pandas.DataFrame(rows, columns=["height", "weight"]).to_parquet(folder / "t.parquet")
    np.save(folder / "t.npy", rows)
    assert np.array_equal(read_table(f"parquet:{folder / 't.parquet'}").values, rows)
    assert np.array_equal(read_table(f"npy:{folder / 't.npy'}").values, rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,\n5,6\n", "row 1, column 'b' is nan"),
        ("a,b\n1,2\n3,inf\n5,6\n", "row 1, column 'b' is inf"),
        ("a,b\n1,2\n3,red\n", "column 'b' is text ('red' in row 1)"),
        ("a,b\n1,2\n", "has 1 row"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3\n", "row 1 has 1 cells"),
        ("a,b\n1,2\n3,NA\n5,6\n", "row 1, column 'b' is nan"),
        ("a,b\n1,2\n1e300,4\n5,6\n", "row 1, column 'a' is 1e+300"),
        ("a,a\n1,2\n3,4\n", "two columns are called 'a'"),
        ("a;b\n1;2\n3;4,5\n", "column 'b' is text ('4,5' in row 1), a number with a decimal comma: write a point"),
        (
            "a,area m2,b,the 'c',town\n1,2,3,4,\n1,2,yes,4,Oslo\n1,NA,no,4,5\n",
            "column 'b' is text ('yes' in row 1); column 'town' is text ('Oslo' in row 1); make them numbers, "
            """or leave them out by --columns a 'area m2' 'the '"'"'c'"'"''""",
        ),
        ("who,a\np,red\n", "column 'a' is text ('red' in row 0); make it numbers"),
        ("", "no rows"),
        ("\0\0", "cannot be read"),
    ],
)
def test_bad_tables_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "bad.csv").write_text(text)
    code, result, err = run(capsys, "train", "table", "--data", f"csv:{tmp_path / 'bad.csv'}", "--out", str(tmp_path / "run"))
    assert code == 2
    assert message in str(result["error"])
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("height\n170\n180\n", "missing: weight"),
        ("height,mass\n170,70\n", "has no column weight; its columns are height, mass"),
        ("height,weight\n170,70\n180,\n", "row 1, column 'weight' is nan"),
    ],
)
def test_tables_that_do_not_fit_the_model_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (folder / "other.csv").write_text(text)
    code, result, _ = run(capsys, "score", str(folder / "run"), str(folder / "other.csv"), "--out", str(folder / "other"))
    assert code == 2
    assert message in str(result["error"])
    assert not (folder / "other").exists()


def test_columns_are_found_by_name_in_any_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = people(5, 6)
    (folder / "turned.csv").write_text("weight,age,height\n" + "\n".join(f"{w},30,{h}" for h, w in rows.tolist()))
    code, result, _ = run(capsys, "score", str(folder / "run"), str(folder / "turned.csv"), "--out", str(folder / "turned"))
    assert code == 0
    assert result["mean"] == pytest.approx(load_table(folder / "run").density.log_prob(rows).mean())


MIXED = "who,height,colour,weight\n" + "".join(f"p{i},{h},red,{w}\n" for i, (h, w) in enumerate(people(40, 3).tolist()))


def test_columns_are_chosen_and_incomplete_rows_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "mixed.csv", str(tmp_path / "run")
    data.write_text(MIXED + "short,170,red,\n")
    words = ["train", "table", "--data", str(data), "--out", out, "--iterations", "0"]
    assert "leave it out by --columns" in str(run(capsys, *words)[1]["error"])
    wrong = str(run(capsys, *words, "--columns", "heigth")[1]["error"])
    assert wrong.endswith("has no column 'heigth'; did you mean height?")
    words += ["--columns", "weight", "height"]
    refused = str(run(capsys, *words)[1]["error"])
    assert "row 40, column 'weight' is nan" in refused
    assert refused.endswith("--drop-missing leaves out the 1 of 41 rows that miss a cell")
    code, result, err = run(capsys, *words, "--drop-missing")
    assert (code, result["rows"], result["columns"]) == (0, 40, ["weight", "height"])
    assert "1 of 41 rows miss a cell and are left out" in err
    # The same file can be scored, though it has text and a row that misses a cell.
    code, result, _ = run(capsys, "score", out, str(data), "--drop-missing")
    assert (code, result["num"]) == (0, 40)
    law = load_table(Path(out)).density
    assert result["mean"] == pytest.approx(law.log_prob(people(40, 3)[:, ::-1].copy()).mean())


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_columns_of_other_files_are_chosen(tmp_path: Path, kind: str) -> None:
    rows, path = people(5, 0), tmp_path / f"t.{kind}"
    if kind == "npy":
        np.save(path, rows)
    else:
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame({"x0": rows[:, 0], "colour": ["red"] * 5, "x1": rows[:, 1]}).to_parquet(path)
    assert np.array_equal(read_table(str(path), columns=["x1", "x0"]).values, rows[:, ::-1])


WAYS = {
    "commas": "a,b\n1,2.5\n3,-4\n",
    "semicolons": "a;b\n1;2.5\n3;-4\n",
    "tabs": "a\tb\n1\t2.5\n3\t-4\n",
    "Windows": "a,b\r\n1,2.5\r\n3,-4\r\n",
    "a mark of byte order": "\ufeffa,b\n1,2.5\n3,-4\n",
    "spaces and empty lines": "a, b\n1, 2.5\n\n3, -4\n\n",
    "an index without a name": ",a,b\n0,1,2.5\n1,3,-4\n",
    "names of rows": "who,a,b\nx,1,2.5\ny,3,-4\n",
    "quotes": '"a","b"\n"1","2.5"\n3,-4\n',
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_is_the_same_however_it_is_written(tmp_path: Path, way: str) -> None:
    (tmp_path / "t.csv").write_bytes(WAYS[way].encode())
    table = read_table(str(tmp_path / "t.csv"))
    assert table.values.tolist() == [[1, 2.5], [3, -4]]
    assert table.columns == ["a", "b"]
    assert list(table.rows) == (["x", "y"] if way == "names of rows" else ["0", "1"] if "index" in way else [0, 1])


def test_names_may_hold_commas_and_a_header_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"height, cm",b\n1,2\n')
    assert read_table(str(tmp_path / "t.csv")).columns == ["height, cm", "b"]
    (tmp_path / "t.csv").write_text("1,2\n3,4\n")
    table = read_table(str(tmp_path / "t.csv"))
    assert (table.columns, table.values.tolist()) == (["x0", "x1"], [[1, 2], [3, 4]])


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    header, rows = ["who", "height, cm"], [["a;b", 1.5], ['"c"', -2.0]]
    write_csv(tmp_path / "t.csv", header, rows)
    table = read_table(str(tmp_path / "t.csv"))
    assert (table.columns, list(table.rows), table.values[:, 0].tolist()) == (["height, cm"], ["a;b", '"c"'], [1.5, -2.0])


def test_typicality_is_two_sided_and_uniform_on_the_reference() -> None:
    reference = np.arange(1000.0)
    assert typicality(np.array([-1.0, 499.5, 2000.0]), reference).tolist() == [0.0, 1.0, 0.0]
    assert abs(typicality(reference, reference).mean() - 0.5) < 0.01
    assert percentile(np.array([250.0]), reference)[0] == 25


def test_multiscale_prefers_the_scores_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    reference, same, smaller = (np.exp(rng.normal(size=(400, 5)) - shift) for shift in (0.0, 0.0, 4.0))
    usual, odd = map(multiscale(reference), (same, smaller))
    assert np.median(usual) > np.quantile(odd, 0.99)
