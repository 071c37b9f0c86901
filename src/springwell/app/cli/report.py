"""springwell report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from springwell.app.cli import common as cli
from springwell.errors import UserError


@dataclass(frozen=True)
class ReportCommand(cli.Command):
    """Write the page of one run as a single HTML file."""

    run: cli.ModelName
    out: cli.File = None
    """File to write, with a name that ends in .html. Default: report.html in the run directory, or ./NAME-report.html for other
    models."""
    overwrite: cli.Overwrite = False


def report_command(command: ReportCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app.api import find
    from springwell.app.studio.report import report
    from springwell.store.files import write_atomically
    from springwell.store.run import Run

    out = cli.place(command.run, command.out, "report.html", "report.html")
    if out.suffix != ".html":
        raise UserError(f"--out {out}: unknown kind '{out.suffix}'; use .html")
    cli.check_new(command.out, command.overwrite)
    folder = find(command.run)
    if not Run(folder).config_path.exists():
        raise UserError(f"{command.run}: not a run (it has no config.json); give a directory that `springwell train` wrote")
    cli.writable(out.parent)
    with cli.write_errors(out):
        write_atomically(out, report(command.run, folder))
    context.tell(f"{out}: the page of {command.run}, {out.stat().st_size // 1024} KiB")
    return {"run": command.run, "out": str(out)}
