"""The page of benchmarks keeps what earlier runs wrote. What the benchmarks themselves print is not tested here."""

import sys

import benchmarks.__main__ as benchmarks
import pytest


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``python -m benchmarks`` with benchmarks that only print their name and options; the page that it wrote."""

    def call(*words, code=0):
        def pretend(name, options):
            return benchmarks.Ran(code, f"`{name}`: 1 s\n\n```text\n# {' '.join([name, *options])}\n\n1.0\n```")

        monkeypatch.setattr(benchmarks, "run", pretend)
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(tmp_path / "page.md"), *words])
        with pytest.raises(SystemExit) as end:
            benchmarks.main()
        assert bool(end.value.code) == bool(code)
        return (tmp_path / "page.md").read_text()

    return call


def test_every_script_has_its_options_and_its_line_of_help():
    scripts = {path.stem for path in benchmarks.FOLDER.glob("*.py")} - {"__main__", "altered", "classifier"}
    assert scripts == set(benchmarks.QUICK)
    described = {line.split()[0] for line in benchmarks.__doc__.splitlines() if line and not line.startswith(" ")}
    assert scripts <= described


def test_a_page_is_known_by_its_sections(run):
    page = run("--quick")
    found = benchmarks.sections(page)
    assert list(found) == list(benchmarks.QUICK)
    assert benchmarks.page(found) == page
    assert "Not run" not in page


def test_a_run_adds_to_the_page_only_if_asked_to(run):
    run("toy", "scaling")
    page = run("images", "toy", "--quick", "--add")
    assert list(benchmarks.sections(page)) == ["toy", "images", "scaling"]
    assert "# toy --only chain\n" in page
    assert "# scaling\n" in page
    assert list(benchmarks.sections(run("load"))) == ["load"]
    assert "toy" in run("load").split("- Not run: ")[1].splitlines()[0]


def test_one_benchmark_may_have_its_own_options(run, capsys):
    assert "# density --minutes 30 --data mnist\n" in run("density", "--", "--minutes", "30", "--data", "mnist")
    run("toy", "images", "--", "--rounds", "1", code=2)
    assert "options after -- are those of one benchmark" in capsys.readouterr().err


def test_a_benchmark_that_fails_is_on_the_page_and_in_the_exit_code(run):
    assert "# toy\n" in run("toy", code=1)


def test_a_benchmark_runs_in_a_process_of_its_own(monkeypatch, tmp_path):
    (tmp_path / "rows.py").write_text("import sys; print('| a |')\nsys.exit('it broke' if sys.argv[1:] else 0)")
    monkeypatch.setattr(benchmarks, "FOLDER", tmp_path)
    good, bad = benchmarks.run("rows", []), benchmarks.run("rows", ["x y"])
    assert good.code == 0
    assert good.section.startswith("`python benchmarks/rows.py`: ")
    assert good.section.endswith("\n\n| a |")
    assert bad.code == 1
    assert "`python benchmarks/rows.py 'x y'`" in bad.section
    assert "it ended with code 1" in bad.section
    assert bad.section.endswith("it broke")
