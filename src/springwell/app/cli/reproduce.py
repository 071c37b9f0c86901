"""springwell reproduce."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from springwell.app.cli import common as cli
from springwell.errors import UserError

if TYPE_CHECKING:
    from springwell.app.config import Config

_Figure = Literal["fig2", "fig3", "fig-logz", "bpd", "ladder", "ablation", "longrun-hmc", "longrun-nuts"]
_Table = Literal["table1", "table3", "table-bpd"]
_Name = Literal[_Figure, _Table]


@dataclass(frozen=True)
class ReproduceCommand(cli.Command):
    """Make a figure or table of the paper, with its numbers in a file beside it."""

    name: tyro.conf.Positional[_Name]
    """Figure or table to make. fig2: recovery likelihood against marginal short-run training; fig3: samples and densities
    of every level; fig-logz: the paper's estimate of log Z on a T1k model; bpd: bits/dim of a T1k model and a ladder, over
    three seeds; ladder: the adapted ladder against the authors' rule on images, at equal gradient evaluations; ablation:
    the paper's settings and the ladder by FID, at equal gradient evaluations; longrun-hmc, longrun-nuts: more and more
    steps per level; table1, table3, table-bpd: the paper's tables, filled from evaluated runs."""
    data: str | None = None
    """Data set of the figure. Default: checkerboard for fig3; digits for fig-logz and bpd, which also take any data set with a
    finished run DATA-t1k below --runs, such as cifar10; digits for ladder and ablation, which also take mnist; models that
    ship for longrun."""
    out: Path = Path("figures")
    """Folder for the figure and its runs."""
    runs: Path = Path("runs")
    """Folder in which tables, fig-logz, bpd and longrun look for runs."""
    seed: int = 0
    """Seed of training and sampling. If there are several runs, it is the seed of the first."""
    scale: Annotated[
        str,
        tyro.conf.arg(
            help="Factor on the number of iterations or chains. Use less than 1 for a quick look. cpu means 1; mnist means 1 "
            "with --data mnist."
        ),
    ] = "cpu"


def reproduce_command(command: ReproduceCommand, context: cli.Context) -> dict[str, Any]:
    if command.scale == "mnist":
        if command.data not in (None, "mnist"):
            raise UserError(f"--scale mnist: is for --data mnist, but --data is {command.data}; leave one of them out")
        command = replace(command, data="mnist", scale="cpu")
    try:
        scale = 1.0 if command.scale == "cpu" else float(command.scale)
    except ValueError:
        scale = 0.0
    if not 0 < scale <= 10:
        raise UserError(f"--scale {command.scale}: out of range; use a value in (0, 10], cpu or mnist")
    cli.writable(command.out)
    if command.name.startswith("table"):
        # Imported by name, because the paper's figures and tables depend on the application and not the reverse.
        tables = import_module("springwell.paper.tables")
        return _shown(tables.reproduce(command.name, command.out, command.runs), context)
    context.set_threads()
    from springwell.app.cost import step_operations

    name, _, kernel = command.name.removeprefix("fig-").partition("-")
    reproduce = import_module(f"springwell.paper.{name}").reproduce
    if command.name == "fig2" and command.data is not None:
        raise UserError(f"--data {command.data}: fig2 shows its own two data sets; leave it out")

    def fit(config: Config) -> None:
        """Sets the number of threads that suits a training."""
        context.fit_threads(lambda: step_operations(config))

    place = (command.out, command.seed, scale, command.common.device, context.reporter, command.data, command.runs)
    study = import_module("springwell.paper.common").Study(*place, fit)
    return _shown(reproduce(study, kernel) if kernel else reproduce(study), context)


def _shown(result: dict[str, Any], context: cli.Context) -> dict[str, Any]:
    context.tell(*[f"{result['table']}\n"] * bool(result["table"]), f"written: {', '.join(result['written'])}")
    return result
