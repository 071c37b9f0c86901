"""The command line: springwell COMMAND, one of COMMANDS below.

Parsing imports nothing heavy; a command imports torch when it runs. Results go to stdout, everything else to stderr. With
``--json`` the last line of stdout is one JSON object. Exit codes: 0 done, 1 diverged (or, with --strict, doubtful), 2 a value
that cannot be used, 130 interrupted (run the same command to go on).
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from springwell import __version__
from springwell.app.cli.applications import (
    InpaintCommand,
    InterpolateCommand,
    RestoreCommand,
    inpaint_command,
    interpolate_command,
    restore_command,
)
from springwell.app.cli.chains import DiagnoseCommand, LongrunCommand, diagnose_command, longrun_command
from springwell.app.cli.common import Context, is_main_process
from springwell.app.cli.data import ConvertCommand, DataCommand, convert_command, data_command
from springwell.app.cli.doctor import DoctorCommand, doctor_command
from springwell.app.cli.evaluate import EvaluateCommand, FidCommand, evaluate_command, fid_command
from springwell.app.cli.likelihood import LikelihoodCommand, ScoreCommand, likelihood_command, score_command
from springwell.app.cli.reproduce import ReproduceCommand, reproduce_command
from springwell.app.cli.sample import SampleCommand, sample_command
from springwell.app.cli.train import PresetsCommand, TrainCommand, presets_command, train_command
from springwell.app.config import KIND_FIELDS, Config, with_fields
from springwell.app.presets import PRESETS, preset
from springwell.errors import DivergenceError, InterruptionError, UserError

COMMANDS: dict[str, tuple[type, Callable[[Any, Context], dict[str, Any]]]] = {
    "presets": (PresetsCommand, presets_command),
    "train": (TrainCommand, train_command),
    "sample": (SampleCommand, sample_command),
    "evaluate": (EvaluateCommand, evaluate_command),
    "fid": (FidCommand, fid_command),
    "likelihood": (LikelihoodCommand, likelihood_command),
    "score": (ScoreCommand, score_command),
    "diagnose": (DiagnoseCommand, diagnose_command),
    "longrun": (LongrunCommand, longrun_command),
    "interpolate": (InterpolateCommand, interpolate_command),
    "inpaint": (InpaintCommand, inpaint_command),
    "restore": (RestoreCommand, restore_command),
    "reproduce": (ReproduceCommand, reproduce_command),
    "convert-official": (ConvertCommand, convert_command),
    "data": (DataCommand, data_command),
    "doctor": (DoctorCommand, doctor_command),
}


def parse(arguments: Sequence[str]) -> tuple[str, Any]:
    """The command's name and its typed options. Raises UserError for anything that does not parse."""
    name, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if name in ("-h", "--help", "help"):
        print(_usage())
        raise SystemExit(0)
    if name in ("-V", "--version"):
        print(f"springwell {__version__}")
        raise SystemExit(0)
    if name not in COMMANDS:
        raise UserError(f"command '{name}': unknown; choose {', '.join(COMMANDS)}")
    cls, _ = COMMANDS[name]
    if name != "train":
        return name, _tyro(cls, rest, name)
    if not rest or rest[0].startswith("-"):
        if "-h" in rest or "--help" in rest:
            print(f"springwell train PRESET [overrides]\n\npresets: {', '.join(PRESETS)}\n")
            print(f"The overrides, with the values of '{next(iter(PRESETS))}':\n")
            rest, chosen = ["--help"], next(iter(PRESETS))
        else:
            raise UserError(f"train: no preset given; choose {', '.join(PRESETS)}")
    else:
        chosen, rest = rest[0], rest[1:]
    command = _tyro(cls, rest, f"train {chosen}", default=TrainCommand(_kinds(preset(chosen), rest)))
    return name, dataclasses.replace(command, out=command.out or Path("runs") / chosen)


def _kinds(config: Config, arguments: Sequence[str]) -> Config:
    """``config`` with the kinds of schedule, network and chains that are asked for, so that their options are known."""
    for name in KIND_FIELDS.values():
        for i, argument in enumerate(arguments):
            option, equals, value = argument.partition("=")
            if option == f"--{name}" and (equals or i + 1 < len(arguments)):
                config = with_fields(config, **{name: value if equals else arguments[i + 1]})
    return config


def _tyro(cls: type, arguments: list[str], name: str, **options: Any) -> Any:
    """tyro's parser, with its error box made one line."""
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands)
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return tyro.cli(cls, args=arguments, prog=f"springwell {name}", config=config, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        # Colours, the box around the message and the rulers in it are for the eye.
        text = re.sub(r"\x1b\[[0-9;]*m", "", caught.getvalue())
        lines = [line.strip("│| ") for line in text.splitlines() if not line.startswith(("╭", "╰", "+"))]
        end = next((i for i, line in enumerate(lines) if not line.strip("─-")), len(lines))
        message = " ".join(lines[:end]).rstrip(".") or "cannot be parsed"
        raise UserError(f"{message}; see springwell {name} --help") from None


def _usage() -> str:
    lines = [f"springwell {__version__}: energy-based models by diffusion recovery likelihood", ""]
    for name, (cls, _) in COMMANDS.items():
        lines.append(f"  springwell {name:<18}{(cls.__doc__ or '').splitlines()[0]}")
    return "\n".join([*lines, "", "springwell COMMAND --help lists the options of a command."])


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    """A warning of our own in one line; others as Python writes them."""
    ours = category is RuntimeWarning
    sys.stderr.write(f"warning: {message}\n" if ours else warnings.formatwarning(message, category, filename, lineno, line))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``springwell``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    warnings.showwarning = _warn
    try:
        name, command = parse(arguments)
        result = COMMANDS[name][1](command, Context(command.common))
        code = {"interrupted": 130, "failed": 1, "doubtful": 1}.get(result.get("status", ""), 0)
    except UserError as error:
        result, code = {"error": str(error)}, 2
    except DivergenceError as error:
        result, code = {"error": str(error)}, 1
    except InterruptionError as error:
        result, code = {"error": str(error)}, 130
    except BrokenPipeError:
        result, code = {}, 0
    except OSError as error:
        result, code = {"error": f"{error.filename or 'file system'}: {error.strerror or error}"}, 2
    except MemoryError as error:
        result, code = {"error": f"out of memory ({error}); use a smaller --num, --batch or --image-size"}, 2
    except KeyboardInterrupt:
        result, code = {"error": "interrupted"}, 130
    except Exception as error:
        if os.environ.get("SPRINGWELL_DEBUG"):
            raise
        what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        result, code = {"error": f"unexpected {what} (SPRINGWELL_DEBUG=1 shows where)"}, 1
    if "error" in result and is_main_process():
        print(f"springwell: {result['error']}", file=sys.stderr)
    try:
        if as_json and is_main_process():
            print(json.dumps({"command": arguments[0] if arguments else "", **result}))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read stdout has enough, as `head` does. Python would complain once more when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
