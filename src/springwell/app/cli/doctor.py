"""springwell doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from springwell.app.cli import common as cli


@dataclass(frozen=True)
class DoctorCommand(cli.Command):
    """Check the installation, and run a self-test whose answers are known."""

    data_root: cli.DataRoot = None


def doctor_command(command: DoctorCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app.doctor import examine

    checks = []
    for check in examine(context.device(), command.data_root):
        checks.append(check._asdict())
        context.tell(f"{check.verdict:<8}{check.name:<18}{check.found}")
    failed = [check["name"] for check in checks if check["verdict"] == "failed"]
    context.tell(f"\nfailed: {', '.join(failed)}" if failed else "\nall is well")
    return {"checks": checks, "failed": failed, "status": "failed" if failed else "ok"}
