"""Interpreters that start at once, for tests of the real command line.

Most of what a short command costs is the import of torch and its like. One process imports them, and nothing of springwell.
For each program that a test runs it forks a child, which takes over the program's standard streams, folder and environment
and runs it as ``python`` would. So a program still has a process of its own, with exit codes and signals.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# What commands import sooner or later. torch imports its compiler the first time that a device is a context.
SLOW = [
    "torch",
    "torch._dynamo",
    "torch.optim",
    "torch.distributed",
    "torch.utils.flop_counter",
    "accelerate",
    "safetensors.torch",
    "numpy",
    "pandas",
    "pyarrow",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "PIL.Image",
    "sklearn.datasets",
    "sklearn.neighbors",
    "scipy.linalg",
    "tyro",
    "msgspec",
    "rich.progress",
    "huggingface_hub",
    "filelock",
]


class Interpreter:
    """Runs programs in children of a server, which :func:`interpreter` starts."""

    def __init__(self, address: str):
        self.address = address

    def start(
        self,
        words: Sequence[str],
        streams: Sequence[int],
        cwd: Path | str = ".",
        env: Mapping[str, str] = os.environ,
        stand_in: int = 0,
    ) -> Program:
        """Starts ``python WORDS``; the streams are stdin, stdout and stderr. If a signal ends it, ``stand_in`` is killed."""
        link = socket.socket(socket.AF_UNIX)
        link.connect(self.address)
        request = json.dumps({"words": list(words), "cwd": str(cwd), "env": dict(env), "stand_in": stand_in}).encode()
        socket.send_fds(link, [len(request).to_bytes(4, "big")], list(streams))
        link.sendall(request)
        return Program(link)

    def run(self, words: Sequence[str], timeout: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
        """As :func:`subprocess.run` with captured text. Kills the program that takes longer than ``timeout`` seconds."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as nothing:
            with self.start(words, [nothing.fileno(), out.fileno(), err.fileno()], **options) as program:
                code = program.wait(timeout)
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(words, code, out.read(), err.read())

    def command(self, *words: str) -> list[str]:
        """A command that runs ``python WORDS`` in a child of the server, for launchers that start programs themselves."""
        return [sys.executable, "-S", "-E", __file__, "join", self.address, *words]

    def run_together(
        self, words: Sequence[str], cwd: Path | str = ".", env: Mapping[str, str] = os.environ, num: int = 2
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in ``num`` processes that find one another as those of ``torchrun`` do."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        known = {
            **env,
            "WORLD_SIZE": str(num),
            "LOCAL_WORLD_SIZE": str(num),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        ranks = [{**known, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num)]
        with ThreadPoolExecutor(num) as pool:
            ended = list(pool.map(lambda rank: self.run(words, cwd=cwd, env=rank), ranks))
        out, err = ("".join(getattr(process, stream) for process in ended) for stream in ("stdout", "stderr"))
        return subprocess.CompletedProcess(words, max(abs(process.returncode) for process in ended), out, err)


class Program(contextlib.AbstractContextManager["Program"]):
    """A program that runs."""

    def __init__(self, link: socket.socket):
        self.link, self.lines = link, link.makefile()
        self.pid, self.returncode = int(self.lines.readline()), None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal that ended the program."""
        if self.returncode is None:
            self.link.settimeout(timeout)
            self.returncode = int(self.lines.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def __exit__(self, *_: object) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait(60)
        self.lines.close()
        self.link.close()


def join(address: str, words: list[str]) -> int:
    """Stands for a program: passes signals on to it, ends with its exit code, and is killed when a signal ends it."""
    with Interpreter(address).start(words, [0, 1, 2], os.getcwd(), stand_in=os.getpid()) as program:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: program.send_signal(number))
        return program.wait()


@contextlib.contextmanager
def interpreter() -> Iterator[Interpreter]:
    """A server and what runs programs in its children."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/socket"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.interpreter", "serve", address]
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield Interpreter(address)
            server.terminate()


def receive(link: socket.socket) -> dict[str, Any]:
    """The program that a client asks for, with its streams put in the place of ours."""
    size, streams, _, _ = socket.recv_fds(link, 4, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    file = link.makefile("rb")
    request: dict[str, Any] = json.loads(file.read(int.from_bytes(size, "big")))
    file.detach()
    return request


def kill_when_left(link: socket.socket, child: int) -> None:
    """Ends a program that nobody waits for any more, unless it has ended by itself."""
    link.recv(1)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def serve(address: str) -> list[str]:
    """Serves for ever. Returns only in the child that is to be a program, with the words of that program."""
    with socket.socket(socket.AF_UNIX) as door:
        # Who has waited for a program ends; this process reaps it.
        signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))
        door.bind(address)
        door.listen(16)
        print("ready", flush=True)
        while True:
            # Whoever started this process holds the other end of stdin, and lets go of it at the latest when it ends.
            if sys.stdin in select.select([door, sys.stdin], [], [])[0]:
                os._exit(0)
            link, _ = door.accept()
            # The one who waits for the program is a child too, so that many may run at once.
            if os.fork() == 0:
                break
            link.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = receive(link)
    child = os.fork()
    if child:
        link.sendall(f"{child}\n".encode())
        threading.Thread(target=kill_when_left, args=(link, child), daemon=True).start()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0 and request["stand_in"]:
            os.kill(request["stand_in"], signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            link.sendall(f"{code}\n".encode())
        os._exit(0)
    link.close()
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    return request["words"]


def execute(words: list[str]) -> int:
    """Runs ``python WORDS`` for the words -m MODULE, -c CODE or FILE, with arguments; its exit code."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:1] = [str(Path(words[0]).parent.resolve()) if words[0].endswith(".py") else os.getcwd(), *folders]
    sys.argv = words if words[0].endswith(".py") else ["-c", *words[2:]]
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def main(address: str) -> None:
    for name in SLOW:
        importlib.import_module(name)
    # The children's collectors leave alone what they share with this process, which is cheap as long as nobody writes to it.
    gc.freeze()
    code = execute(serve(address))
    # Python's own end would take every module to pieces, for seconds; what has an effect outside of the process comes before.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "join":
        sys.exit(join(sys.argv[2], sys.argv[3:]))
    main(sys.argv[2])
