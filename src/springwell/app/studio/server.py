"""The server: the page and its files, one websocket for jobs, uploads, downloads and runs. It computes nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from springwell.app.studio.guard import TOO_LARGE, Guard, TooLargeError, is_loopback
from springwell.app.studio.options import Options
from springwell.app.studio.pool import Job, Pool, Settings
from springwell.app.studio.tasks import FILES
from springwell.app.studio.wire import MAX_MESSAGE, pack, unpack
from springwell.errors import UserError

STATIC = Path(__file__).parent / "static"
# Messages that may wait for a page that reads slowly.
MAX_BACKLOG = 2000
TYPES = {".png": "image/png", ".gif": "image/gif", ".npz": "application/zip", ".csv": "text/csv; charset=utf-8"}


@dataclass(frozen=True)
class Place:
    """Where the studio is.

    Attributes:
        host: The name or address it listens at.
        port: The port.
        token: What the page has to know.
    """

    host: str
    port: int
    token: str

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        return f"http://{host}:{self.port}/?token={self.token}"


class Studio:
    """The pages that are open, and the answers to what they ask.

    Args:
        settings: What the processes need to know.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.pages: dict[str, set[asyncio.Queue[bytes]]] = {}
        self.pool: Pool | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Starts the first process before the first request, so that no page waits for torch."""
        self.pool = Pool(self.settings, self._send)
        await self._call("models", {})
        yield
        self.pool.close()

    async def _call(self, task: str, values: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> Any:
        assert self.pool is not None
        return await self.pool.call(task, values, arrays)

    def _send(self, page: str, message: bytes) -> None:
        for queue in self.pages.get(page, ()):
            if queue.qsize() < MAX_BACKLOG:
                queue.put_nowait(message)

    def routes(self) -> list[Any]:
        return [
            Route("/", self.page),
            Route("/models", self.models),
            Route("/run", self.run),
            Route("/preview", self.preview),
            Route("/report", self.report),
            Route("/model", self.model),
            Route("/upload", self.upload, methods=["POST"]),
            Route("/download/{page}/{job}/{file}", self.download),
            WebSocketRoute("/link", self.link),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    async def page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")

    async def models(self, request: Request) -> Response:
        fields, _ = await self._call("models", {})
        return JSONResponse(fields)

    async def run(self, request: Request) -> Response:
        fields, _ = await self._call("run", {"name": request.query_params.get("name", "")})
        return JSONResponse(fields["run"])

    async def preview(self, request: Request) -> Response:
        values = {name: request.query_params.get(name, "") for name in ("name", "file")}
        _, arrays = await self._call("preview", values)
        return Response(arrays["file"].tobytes(), media_type="image/png")

    async def report(self, request: Request) -> Response:
        """A run as a single HTML file, to be kept and not to be shown here."""
        _, arrays = await self._call("page", {"name": request.query_params.get("name", "")})
        name = {"Content-Disposition": 'attachment; filename="report.html"'}
        return Response(arrays["file"].tobytes(), media_type="text/html; charset=utf-8", headers=name)

    async def model(self, request: Request) -> Response:
        """A trained model as a .zip."""
        fields, arrays = await self._call("archive", {"name": request.query_params.get("name", "")})
        name = {"Content-Disposition": f'attachment; filename="{fields["title"]}.zip"'}
        return Response(arrays["file"].tobytes(), media_type="application/zip", headers=name)

    async def upload(self, request: Request) -> Response:
        """Decodes a file to an image of the shape of a model's; the body is the file."""
        body = await request.body()
        if not body:
            raise UserError("the file is empty")
        values = {"of": request.query_params.get("model", "")}
        _, arrays = await self._call("decode", values, {"file": np.frombuffer(body, np.uint8)})
        return Response(pack({}, arrays), media_type="application/octet-stream")

    async def download(self, request: Request) -> Response:
        """A file of a job's result."""
        assert self.pool is not None
        page, number, file = (request.path_params[name] for name in ("page", "job", "file"))
        job = self.pool.jobs.get((page, number))
        if job is None or not job.result:
            return PlainTextResponse("this result is gone; make it again\n", 404)
        _, arrays = await self._call("download", {"task": job.task, "file": file}, job.result)
        name = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Response(arrays["file"].tobytes(), media_type=TYPES[Path(file).suffix], headers=name)

    async def link(self, socket: WebSocket) -> None:
        """A page's connection: jobs come in, what they tell goes out."""
        await socket.accept()
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        page = ""
        writer = asyncio.create_task(_write(socket, queue))
        try:
            while True:
                frame = await socket.receive_bytes()
                try:
                    page = self._hear(frame, page, queue)
                except UserError as error:
                    queue.put_nowait(pack({"event": "refused", "text": str(error)}))
        except (WebSocketDisconnect, RuntimeError, KeyError):
            pass
        finally:
            writer.cancel()
            self.pages.get(page, set()).discard(queue)
            if not self.pages.get(page):
                self.pages.pop(page, None)

    def _hear(self, frame: bytes, page: str, queue: asyncio.Queue[bytes]) -> str:
        """Acts on a message; returns the page's name."""
        assert self.pool is not None
        header, arrays = unpack(frame)
        options = Options(header)
        kind = options.choice("kind", ("hello", "start", "cancel"))
        if kind == "hello":
            name = options.text("page", 64)
            self.pages.get(page, set()).discard(queue)
            self.pages.setdefault(name, set()).add(queue)
            for message in [*self.pool.again(name), pack({"event": "welcome"})]:
                queue.put_nowait(message)
            return name
        if not page:
            raise UserError("message: the first one must be hello")
        number = options.text("job", 64)
        if kind == "cancel":
            self.pool.cancel(page, number)
            return page
        values = header.get("options")
        model = options.text("model")
        if not isinstance(values, dict) or model == FILES:
            raise UserError("options: needs an object, and the model a name")
        try:
            self.pool.start(Job(number, page, options.text("task", 40), model, values, arrays))
        except UserError as error:
            queue.put_nowait(pack({"event": "failed", "job": number, "text": str(error)}))
        return page


async def _write(socket: WebSocket, queue: asyncio.Queue[bytes]) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await socket.send_bytes(await queue.get())


async def _refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 400)


async def _absent(request: Request, error: Exception) -> Response:
    return PlainTextResponse("the studio has no such page; open the address that springwell studio printed\n", 404)


async def _too_large(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{TOO_LARGE}\n", 413)


def make_app(place: Place, settings: Settings) -> Guard:
    """The whole application, behind its guard."""
    studio = Studio(settings)
    handlers: dict[Any, Any] = {UserError: _refused, TooLargeError: _too_large, 404: _absent}
    app = Starlette(routes=studio.routes(), lifespan=studio.lifespan, exception_handlers=handlers)
    return Guard(app, place.token, place.host, place.port)


def listen(host: str, port: int) -> socket.socket:
    """A socket at ``host`` and ``port``; port 0 takes any that is free. Raises UserError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} --port {port}: cannot be used ({why}); choose another --port") from None
    return bound


def serve(host: str, port: int, settings: Settings, ready: Callable[[Place], None]) -> None:
    """Serves the studio until it is interrupted.

    Args:
        host: The name or address to listen at.
        port: The port; 0 takes any that is free.
        settings: What the processes need to know.
        ready: Receives the place when the server listens.
    """
    import uvicorn

    with contextlib.closing(listen(host, port)) as bound:
        place = Place(host, bound.getsockname()[1], secrets.token_urlsafe(32))
        app = make_app(place, settings)
        config = uvicorn.Config(
            app,
            log_level="error",
            ws="websockets-sansio",
            ws_max_size=MAX_MESSAGE,
            timeout_graceful_shutdown=2,
            lifespan="on",
        )
        server = uvicorn.Server(config)

        async def main() -> None:
            serving = asyncio.create_task(server.serve([bound]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            if server.started:
                ready(place)
            await serving

        asyncio.run(main())


__all__ = ["Place", "is_loopback", "listen", "make_app", "serve"]
