"""One real server for the tests of the studio, in a folder of its own, with a small run in it."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from springwell.app.plots import preview
from springwell.progress import Silent
from tests.studio.client import Page, Server
from tests.training.tiny import tiny, train


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the studio runs: runs/tiny is a finished run of the plane."""
    path = tmp_path_factory.mktemp("studio")
    train(tiny(preview_every=10), path / "runs" / "tiny", "cpu", Silent(), preview=preview)
    return path


@pytest.fixture(scope="session")
def server(folder):
    command = [sys.executable, "-m", "springwell", "studio", "--no-browser", "--port", "0", "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", line)
        assert found, (line, (folder / "log").read_text())
        yield Server(folder, int(found[1]), found[2])
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert (folder / "log").read_text() == ""


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.origin, headers={"Authorization": f"Bearer {server.token}"}, timeout=120) as client:
        yield client


@pytest.fixture
def page(server):
    with Page(server) as opened:
        yield opened
