"""The command line: springwell COMMAND, one of COMMANDS below.

Parsing imports nothing heavy; a command imports torch when it runs. Results go to stdout, everything else to stderr. With
``--json`` the last line of stdout is one JSON object. Exit codes: 0 done, 1 diverged (or, with --strict, doubtful), 2 a value
that cannot be used, 130 interrupted (run the same command to resume).
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from springwell import __version__
from springwell.app.cli.common import Context, is_main_process
from springwell.app.cli.parsing import parse_words, subcommands, with_kinds
from springwell.errors import DivergenceError, InterruptionError, UserError, did_you_mean

# The module of each command and what it does. Only the module of the command that is asked for is imported.
COMMANDS = {
    "presets": ("train", "List the presets, with what each costs and whether a trained model ships with the package."),
    "train": ("train", "Train a model, or resume an interrupted run."),
    "sample": ("sample", "Draw samples from a trained model."),
    "evaluate": ("evaluate", "Measure a trained model, and draw pictures of it."),
    "fid": ("evaluate", "Compare two sets of images by FID, KID, precision and recall: springwell fid A B."),
    "likelihood": ("likelihood", "Bound a model's log Z from below and above, and with it the bits per dimension of data."),
    "classify": (
        "classify",
        "Classify held-out data by class densities, and measure accuracy, calibration and robustness to noise.",
    ),
    "score": ("score", "Rank images, or the rows of a table, by their density under a model, to find outliers."),
    "diagnose": (
        "chains",
        "Measure how well chains mix at the levels of a model: R-hat, effective samples, acceptance, energies.",
    ),
    "longrun": (
        "chains",
        "Sample with more and more steps per level, then continue the chains without springs. The same command resumes.",
    ),
    "levels": ("walk", "Write the density and the score of every level of a two-dimensional model on a grid."),
    "walk": ("walk", "Run chains from your own starting points, at one level, with or without its spring."),
    "interpolate": ("interpolate", "Draw paths of samples that lead from one sample to another."),
    "inpaint": ("inpaint", "Fill in the hidden pixels of images, or the unknown coordinates of vectors (--given)."),
    "restore": (
        "restore",
        "Restore noisy, blurred or small images: samples of the posterior, their mean and standard deviation.",
    ),
    "reproduce": ("reproduce", "Make a figure or table of the paper, with its numbers in a file beside it."),
    "convert-official": ("data", "Convert the authors' released weights to a model: springwell convert-official CKPT OUT."),
    "data": (
        "data",
        "Decode a set of images once, for fast training: springwell data prepare SPEC OUT. The same command resumes.",
    ),
    "studio": ("studio", "Open a page in the browser that shows models of the plane, images and training runs."),
    "report": ("report", "Write the page of one run as a single HTML file."),
    "doctor": ("doctor", "Check the installation, and run a self-test whose answers are known."),
}


_CODES = {DivergenceError: 1, UserError: 2, InterruptionError: 130}


@dataclass(frozen=True)
class _Other:
    """A placeholder for the options of commands and presets that were not asked for."""


def find(name: str) -> tuple[type, Callable[[Any, Context], dict[str, Any]]]:
    """Returns the class of a command's options, NameCommand, and the function that runs it, name_command."""
    module, stem = import_module(f"springwell.app.cli.{COMMANDS[name][0]}"), name.partition("-")[0]
    return getattr(module, f"{stem.capitalize()}Command"), getattr(module, f"{stem}_command")


def parse(words: Sequence[str]) -> tuple[str, Any]:
    """Returns the command's name and its typed options. Raises UserError for anything that does not parse."""
    name, rest = (words[0], words[1:]) if words else ("--help", [])
    if name in ("-V", "--version"):
        print(f"springwell {__version__}")
        raise SystemExit(0)
    if name not in COMMANDS and name not in ("-h", "--help"):
        raise UserError(f"command '{name}': unknown{did_you_mean(name, COMMANDS) or '; choose ' + ', '.join(COMMANDS)}")
    commands: dict[str, tuple[Any, str]] = {other: (_Other, about) for other, (_, about) in COMMANDS.items()}
    if name in COMMANDS:
        commands[name] = _presets(rest) if name == "train" else find(name)[0], COMMANDS[name][1]
    about = f"springwell {__version__}: energy-based models by diffusion recovery likelihood."
    command = parse_words(subcommands(commands), words, about if name != "train" else "")
    return name, command.resolved(rest[0]) if name == "train" else command


def _presets(words: Sequence[str]) -> Any:
    """The subcommands of ``train``."""
    from springwell.app.cli.tables import ABOUT, TableCommand
    from springwell.app.cli.train import train_options
    from springwell.app.presets import PRESETS, SOME, TABLE, preset

    chosen = words[0] if words else ""
    if chosen not in ("-h", "--help"):
        if not chosen or chosen.startswith("-"):
            raise UserError(f"train: no preset given; choose {SOME}")
        if chosen != "table":
            preset(chosen)
    rows: dict[str, tuple[Any, str]] = {name: (_Other, row.about) for name, row in TABLE.items()}
    rows["table"] = TableCommand, ABOUT
    if chosen in TABLE:
        rows[chosen] = train_options(with_kinds(PRESETS[chosen], words)), TABLE[chosen].about
    return subcommands(rows)


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    """Prints a warning of this package in one line, and other warnings as Python formats them."""
    ours = category is RuntimeWarning
    sys.stderr.write(f"warning: {message}\n" if ours else warnings.formatwarning(message, category, filename, lineno, line))


def _out_of_memory(name: str) -> str:
    training = "lower --batch or --width, or raise --accumulate, which divides the batch"
    return f"out of memory; {training if name == 'train' else 'lower --batch or --num'}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``springwell``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json, name = "--json" in arguments, ""
    warnings.showwarning = _warn
    try:
        name, command = parse(arguments)
        result = find(name)[1](command, Context(command.common))
        code = {"interrupted": 130, "failed": 1, "doubtful": 1}.get(result.get("status", ""), 0)
    except (UserError, DivergenceError, InterruptionError) as error:
        from springwell.app.messages import as_options

        result, code = {"error": as_options(str(error))}, next(code for kind, code in _CODES.items() if isinstance(error, kind))
    except BrokenPipeError:
        result, code = {}, 0
    except OSError as error:
        result, code = {"error": f"{error.filename or 'file system'}: {error.strerror or error}"}, 2
    except MemoryError:
        result, code = {"error": _out_of_memory(name)}, 2
    except KeyboardInterrupt:
        result, code = {"error": "interrupted"}, 130
    except Exception as error:
        from springwell.devices import out_of_memory

        if out_of_memory(error):
            result, code = {"error": _out_of_memory(name)}, 2
        elif os.environ.get("SPRINGWELL_DEBUG"):
            raise
        else:
            what = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
            result, code = {"error": f"unexpected {what} (SPRINGWELL_DEBUG=1 shows where)"}, 1
    if "error" in result and is_main_process():
        print(f"springwell: {result['error']}", file=sys.stderr)
    try:
        if as_json and is_main_process():
            print(json.dumps({"command": arguments[0] if arguments else "", **result}))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout, such as `head`, has closed the pipe. Python would complain again when it closes its own end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
