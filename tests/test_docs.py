"""The documentation is executed: its Python runs, its commands parse, its links and pictures exist."""

import re
import shlex
from pathlib import Path

import pytest

from springwell.app.cli import parse
from springwell.progress import Silent
from tests.training.tiny import tiny, train

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE = ("reference/cli.md", "reference/config.md", "notes/contributing.md", "notes/changelog.md")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_runs(page, tmp_path, monkeypatch):
    """All blocks of a page in order, in one namespace, beside a small trained run where the page expects one."""
    code = blocks(page, "python")
    if not code:
        return
    monkeypatch.chdir(tmp_path)
    train(tiny(), "runs/checkerboard", "cpu", Silent())
    exec(compile("\n".join(code), page.name, "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_parse(page):
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    commands = [part.strip() for line in lines for part in line.split("&&") if part.strip().startswith("springwell ")]
    for command in commands:
        arguments = shlex.split(command, comments=True)[1:]
        name, _ = parse(arguments)
        assert name == arguments[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """mkdocs checks the same of the site, with its anchors; some of its pages are made, by tools/site.py."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        place = (page.parent / target).resolve()
        if not target.startswith("http") and not str(place).endswith(MADE):
            assert place.exists(), target


def test_readme_names_the_commands_that_ci_runs():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "pip install -e '.[dev]' && python -m pytest" in readme
    assert "python -m pytest" in ci
    assert "mkdocs build --strict" in ci
    assert "pip install . && springwell train checkerboard" in readme
