"""The command line: springwell COMMAND, one of COMMANDS below.

Parsing imports nothing heavy; a command imports torch when it runs. Results go to stdout, everything else to stderr. With
``--json`` the last line of stdout is one JSON object. Exit codes: 0 done, 1 diverged (or, with --strict, doubtful), 2 a value
that cannot be used, 130 interrupted (run the same command to go on).
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from springwell import __version__
from springwell.app.cli.chains import DiagnoseCommand, LongrunCommand, diagnose_command, longrun_command
from springwell.app.cli.common import Context, is_main_process
from springwell.app.cli.data import ConvertCommand, DataCommand, convert_command, data_command
from springwell.app.cli.doctor import DoctorCommand, doctor_command
from springwell.app.cli.evaluate import EvaluateCommand, FidCommand, evaluate_command, fid_command
from springwell.app.cli.inpaint import InpaintCommand, inpaint_command
from springwell.app.cli.interpolate import InterpolateCommand, interpolate_command
from springwell.app.cli.likelihood import LikelihoodCommand, ScoreCommand, likelihood_command, score_command
from springwell.app.cli.parsing import parse_words, subcommands, with_kinds
from springwell.app.cli.reproduce import ReproduceCommand, reproduce_command
from springwell.app.cli.restore import RestoreCommand, restore_command
from springwell.app.cli.sample import SampleCommand, sample_command
from springwell.app.cli.tables import ABOUT, TableCommand
from springwell.app.cli.train import PresetsCommand, TrainCommand, presets_command, train_command, train_options
from springwell.app.config import did_you_mean
from springwell.app.messages import as_options
from springwell.app.presets import PRESETS, TABLE, preset
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


def parse(words: Sequence[str]) -> tuple[str, Any]:
    """The command's name and its typed options. Raises UserError for anything that does not parse."""
    name, rest = (words[0], words[1:]) if words else ("--help", [])
    if name in ("-V", "--version"):
        print(f"springwell {__version__}")
        raise SystemExit(0)
    if name not in COMMANDS and name not in ("-h", "--help"):
        raise UserError(f"command '{name}': unknown{did_you_mean(name, COMMANDS) or '; choose ' + ', '.join(COMMANDS)}")
    commands: dict[str, tuple[Any, str]] = {
        command: (cls, (cls.__doc__ or "").splitlines()[0]) for command, (cls, _) in COMMANDS.items()
    }
    if name == "train":
        commands["train"] = _presets(rest), commands["train"][1]
    about = f"springwell {__version__}: energy-based models by diffusion recovery likelihood."
    command = parse_words(subcommands(commands), words, about if name != "train" else "")
    if name == "train":
        command = command.resolved(rest[0])
    return name, command


def _presets(words: Sequence[str]) -> Any:
    """The subcommands of ``train``."""
    chosen = words[0] if words else ""
    if chosen not in ("-h", "--help"):
        if not chosen or chosen.startswith("-"):
            raise UserError(f"train: no preset given; choose {', '.join(PRESETS)}")
        if chosen != "table":
            preset(chosen)
    rows: dict[str, tuple[Any, str]] = {name: (TrainCommand, row.about) for name, row in TABLE.items()}
    rows["table"] = TableCommand, ABOUT
    if chosen in TABLE:
        rows[chosen] = train_options(with_kinds(PRESETS[chosen], words)), TABLE[chosen].about
    return subcommands(rows)


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    """A warning of our own in one line; others as Python writes them."""
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
        result = COMMANDS[name][1](command, Context(command.common))
        code = {"interrupted": 130, "failed": 1, "doubtful": 1}.get(result.get("status", ""), 0)
    except UserError as error:
        result, code = {"error": as_options(str(error))}, 2
    except DivergenceError as error:
        result, code = {"error": as_options(str(error))}, 1
    except InterruptionError as error:
        result, code = {"error": as_options(str(error))}, 130
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
        # Whoever read stdout has enough, as `head` does. Python would complain once more when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
