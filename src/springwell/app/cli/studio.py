"""springwell studio."""

from __future__ import annotations

import contextlib
import tempfile
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from springwell.app.cli import common as cli
from springwell.errors import UserError

MISSING = "studio: needs starlette, uvicorn and websockets; pip install 'springwell[studio]'"


@dataclass(frozen=True)
class StudioCommand(cli.Command):
    """Open a page in the browser that shows models of the plane, images and training runs."""

    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder of runs. Models that are trained in the studio go there too."""
    host: str = "127.0.0.1"
    """Name or address to listen at. With any other than the default, other machines can reach the studio."""
    port: int = 8640
    """Port to listen at. 0 takes any free port."""
    no_browser: cli.Flag = False
    """Print the address instead of opening a browser."""


def studio_command(command: StudioCommand, context: cli.Context) -> dict[str, Any]:
    try:
        from springwell.app.studio.guard import is_loopback
        from springwell.app.studio.pool import Settings
        from springwell.app.studio.server import Place, serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("starlette", "uvicorn", "websockets", "anyio"):
            raise UserError(MISSING) from None
        raise
    threads = command.common.threads
    cli.in_range(("port", command.port, 0, 2**16 - 1), ("threads", threads, 1, 1024))
    if not is_loopback(command.host):
        context.reporter.warn(f"--host {command.host}: other machines can reach the studio; only the token protects it")
    device = "cpu" if command.common.device == "auto" else command.common.device

    def ready(place: Place) -> None:
        context.tell(f"studio at {place.address}", "Ctrl-C ends it")
        if not command.no_browser:
            _open(place.address, Path(folder))

    # Ctrl-C is the normal way to end the studio.
    with tempfile.TemporaryDirectory(prefix="springwell-studio-") as folder, contextlib.suppress(KeyboardInterrupt):
        serve(command.host, command.port, Settings(str(command.runs), device, threads), ready)
    return {"status": "ended"}


def _open(address: str, folder: Path) -> None:
    """Opens a browser on a file that only its owner can read, because every user can see the arguments of a command."""
    file = folder / "studio.html"
    file.touch(mode=0o600)
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}"><a href="{address}">studio</a>')
    webbrowser.open(file.as_uri())
