"""The parts of the documentation site that are made and not written: a hook of mkdocs (see mkdocs.yml).

The command line's pages come from its parser, the fields of a configuration from their docstrings, the notebooks' pages from
the notebooks with their stored outputs. Pictures of the models that ship lie in the package; pages link to them there, and the
site gets copies.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import re
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from springwell.app.cli import COMMANDS, find
from springwell.app.cli.parsing import _MARKERS, _REGISTRY, subcommands
from springwell.app.config import SECTIONS
from springwell.app.presets import TABLE

ROOT = Path(__file__).parent.parent
ZOO = ROOT / "src" / "springwell" / "store" / "zoo"
_ZOO_LINK = re.compile(r"\]\((?:\.\./)+src/springwell/store/zoo/([a-z0-9-]+)/report\.png\)")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SECTIONS = {
    "objective": "What training maximises",
    "schedule": "Noise levels",
    "network": "The energy network",
    "sampler": "How a level is sampled",
    "training": "Optimisation",
    "images": "How images are read",
}


# ------------------------------------------------------------------------------------------------------------ the hook itself


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is made to the files of the site."""

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    add("reference/cli.md", cli_page())
    add("reference/config.md", config_page())
    for page in ("CHANGELOG", "CONTRIBUTING"):
        add(f"notes/{page.lower()}.md", _outside(ROOT / f"{page}.md"))
    for picture in sorted(ZOO.glob("*/report.png")):
        add(f"figures/zoo-{picture.parent.name}.png", picture.read_bytes())
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(notebook)
        add(f"notebooks/{notebook.stem}.md", text)
        for name, content in pictures.items():
            add(f"notebooks/{name}", content)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Sends links to the package's pictures and to notebooks to what the site has of them."""
    up = "../" * page.file.src_uri.count("/")
    markdown = _ZOO_LINK.sub(rf"]({up}figures/zoo-\1.png)", markdown)
    return re.sub(r"\]\(([^)\s]+)\.ipynb\)", r"](\1.md)", markdown)


def _outside(path: Path) -> str:
    """A page of the repository's root, whose links begin with docs/."""
    text = re.sub(r"\]\(docs/([^)]+)\)", r"](../\1)", path.read_text())
    # Other files of the repository are not part of the site.
    return re.sub(r"\[([^\]]+)\]\((?!https?:|\.\./|#)[^)]+\)", r"`\1`", text)


# ----------------------------------------------------------------------------------------------------------- the command line


def cli_page() -> str:
    """Every command with its options, as the parser knows them."""
    lines = [
        "# The command line",
        "",
        "This page is made from the parser. `springwell COMMAND --help` prints the same.",
        "",
        "| command | what it does |",
        "|---|---|",
        *[f"| [`{name}`](#{_anchor(name)}) | {_cell(about)} |" for name, (_, about) in COMMANDS.items()],
    ]
    for name, (_, about) in COMMANDS.items():
        lines += ["", f"## springwell {name}", "", html.escape(about, quote=False), ""]
        if name == "train":
            lines += [*_train(), ""]
            continue
        lines += _options(name, find(name)[0], about)
    return "\n".join(lines) + "\n"


def _train() -> Iterator[str]:
    from springwell.app.cli.tables import ABOUT, TableCommand
    from springwell.app.cli.train import train_options

    yield "The options are the fields of the [configuration](config.md), and these:"
    yield ""
    yield from _options("train", train_options(TABLE["checkerboard"].config), "", groups=("options", "common options"))
    yield ""
    yield f"### springwell train table\n\n{html.escape(ABOUT, quote=False)}\n"
    yield from _options("train table", TableCommand, "")
    yield "\n### Presets\n"
    yield "| preset | what it is | minutes of one CPU core |"
    yield "|---|---|---|"
    for name, row in TABLE.items():
        yield f"| `{name}` | {_cell(row.about)} | {'' if row.minutes is None else f'{row.minutes:g}'} |"


def _options(name: str, command: Any, about: str, groups: tuple[str, ...] = ()) -> list[str]:
    """A table of the options of a command, or of some groups of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kinds = subcommands({name: (command, about), "other": (_Nothing, "")})
        parser = tyro.extras.get_parser(kinds, prog="springwell", config=_MARKERS, registry=_REGISTRY)
    (choices,) = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    actions = [action for action in choices[name]._actions if "--help" not in action.option_strings]
    actions = [action for action in actions if not groups or action.container.title in groups]
    words = ["PRESET"] * (name == "train") + [str(action.metavar) for action in actions if not action.option_strings]
    lines = ["```text", " ".join(["springwell", name, *words, "[OPTIONS]"]), "```", "", "| | |", "|---|---|"]
    for action in actions:
        text = re.sub(r"\((required|default: (False|None))\)", "", action.help or "").strip()
        names = ", ".join(action.option_strings) or str(action.metavar)
        value = f" {action.metavar}" if action.option_strings and action.metavar else ""
        lines.append(f"| `{(names + value).replace('|', chr(0x2223))}` | {_cell(text)} |")
    return lines


@dataclasses.dataclass(frozen=True)
class _Nothing:
    """A second command, without which tyro makes no subcommands."""


# ---------------------------------------------------------------------------------------------------------- the configuration


def config_page() -> str:
    """Every field of a configuration: its type, its default and what it means."""
    lines = [
        "# Configuration fields",
        "",
        "A run is described by one `Config`. On the command line a field is an option (`--num-steps 10`), in Python a keyword",
        "(`sw.train('digits', num_steps=10)`); its saved form is the `config.json` of a run. Sections come in kinds; the first",
        "field of a kind names it, and a config has the fields of its own kinds and no others. A preset gives other defaults:",
        "`springwell train PRESET --dry-run` prints them.",
    ]
    for section, kinds in SECTIONS.items():
        lines += ["", f"## {_SECTIONS.get(section, section)}"]
        for kind, cls in kinds.items():
            if kind:
                lines += ["", f"### {section}: {kind}"]
            lines += [
                "",
                html.escape(" ".join((cls.__doc__ or "").split()), quote=False),
                "",
                "| field | values | default | |",
                "|---|---|---|---|",
            ]
            about = tyro._docstrings.parse_docstring_from_object(cls)
            hints = typing.get_type_hints(cls)
            for field in dataclasses.fields(cls):
                default = "" if field.default is dataclasses.MISSING else json.dumps(field.default)
                lines.append(
                    f"| `{field.name}` | {_values(hints[field.name])} | `{default}` | {_cell(about.get(field.name, ''))} |"
                )
    return "\n".join(lines) + "\n"


def _values(hint: Any) -> str:
    """The type of a field in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _values(arguments[0])
    if origin is typing.Literal:
        return " ".join(f"`{word}`" for word in arguments)
    if origin is tuple:
        return "several numbers"
    if arguments:
        return " or ".join(_values(argument) for argument in arguments)
    names: dict[Any, str] = {int: "whole number", float: "number", bool: "yes or no", str: "text", type(None): "`None`"}
    return names.get(hint, str(hint))


# -------------------------------------------------------------------------------------------------------------- the notebooks


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page of Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            elif "text/html" in data and "<table" in (table := "".join(data["text/html"])):
                parts.append(re.sub(r"<style.*?</style>|\n\s*", "", table, flags=re.DOTALL))
            else:
                text = "".join(output.get("text") or data.get("text/plain", ""))
                if text.strip():
                    parts.append(f"```text\n{_ANSI.sub('', text).rstrip()}\n```")
    note = f"This page is the notebook `docs/notebooks/{path.name}` with its stored outputs."
    return "\n\n".join([parts[0], note, *parts[1:]]) + "\n", pictures


def _anchor(name: str) -> str:
    return f"springwell-{name}"


def _cell(text: str) -> str:
    """Text as a cell of a table; a shape in brackets is no link."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|").replace("[", "&#91;")
