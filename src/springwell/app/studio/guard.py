"""Who may ask the studio: the page that was opened by the address with the token, from this machine, and nobody else.

token    in the first address, as ``?token=``; then a cookie that scripts cannot read and other sites cannot send
Host     must name this machine, so that a foreign name that is made to point here (DNS rebinding) gets nothing
Origin   where a browser says that another page asks, it is refused
body     is read up to a limit, whatever its length claims
"""

from __future__ import annotations

import ipaddress
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_UPLOAD = 32 << 20
TOO_LARGE = f"the file is too large; at most {MAX_UPLOAD >> 20} MiB are taken"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class TooLargeError(Exception):
    """A body that goes on beyond the limit."""


class Guard:
    """Lets requests pass that may ask, and refuses the others in one line.

    Args:
        app: What they ask.
        token: The token.
        host: The name or address that the server listens at.
        port: Its port.
    """

    def __init__(self, app: ASGIApp, token: str, host: str, port: int):
        self.app, self.token, self.host, self.port = app, token, host.lower(), port

    @property
    def cookie(self) -> str:
        """The cookie's name. Cookies do not know ports, and two studios may run at once."""
        return f"springwell-{self.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self.refusal(scope)
        if refusal is not None:
            await _refuse(scope, receive, send, *refusal)
            return
        await self.app(scope, _limited(receive), self._answering(scope, send))

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the reason why a request may not pass; None if it may."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self.is_ours(host):
            return 421, f"Host {host!r} is not this studio; open the address that springwell studio printed"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            return 403, f"requests from {origin} are refused; only the studio's own page may ask"
        asks = headers.get("sec-fetch-site", "same-origin")
        if asks not in ("same-origin", "none") and headers.get("sec-fetch-mode") != "navigate":
            return 403, "requests from another site are refused; only the studio's own page may ask"
        if not self.has_token(scope, headers):
            return 401, "the token is missing or wrong; open the address that springwell studio printed"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_UPLOAD:
            return 413, TOO_LARGE
        return None

    def is_ours(self, host: str) -> bool:
        """Whether a Host header names this machine: by an address, as localhost, or as the server was told."""
        name, _, port = host.lower().rpartition(":") if not host.endswith("]") else (host.lower(), "", "")
        if not name:
            name, port = port, ""
        if (port or "80") != str(self.port):
            return False
        if name in ("localhost", self.host):
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return address.is_loopback or not is_loopback(self.host)

    def has_token(self, scope: Scope, headers: Headers) -> bool:
        """Whether the address, the cookie or the header Authorization holds the token."""
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        given = [*query.get("token", []), headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            morsel = None
        given.append(morsel.value if morsel is not None else "")
        return any(secrets.compare_digest(value.encode(), self.token.encode()) for value in given)

    def _answering(self, scope: Scope, send: Send) -> Send:
        """Adds the headers that keep other pages out, and, to the page itself, the cookie."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = dict(_HEADERS)
                if scope["path"] == "/":
                    added["Set-Cookie"] = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                known = [pair for pair in message.get("headers", []) if pair[0].decode().title() not in added]
                message["headers"] = [*known, *((name.lower().encode(), value.encode()) for name, value in added.items())]
            await send(message)

        return answer


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, which no other can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _limited(receive: Receive) -> Receive:
    taken = 0

    async def read() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > MAX_UPLOAD:
                raise TooLargeError
        return message

    return read


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "http":
        await PlainTextResponse(f"{reason}\n", status, headers=_HEADERS)(scope, receive, send)
        return
    # A websocket that is closed before it is accepted is answered by 403.
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})
