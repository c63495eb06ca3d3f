"""Middleware: origin, size and duration of requests, and the security headers of responses.

Every page that a browser shows can send requests to a server on the same machine. So a request
must name this server as its host (against DNS rebinding), and a POST must be of a kind that
browsers send to other origins only after a preflight request, which is always refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardcost.web.limits import BODY_S, FILE_BYTES, HEAD_BYTES, JSON_BYTES

HEAD_TOO_LARGE: Final = f"the head of the request is larger than {HEAD_BYTES // 1024} KiB"
MISTAKE: Final = "a mistake in shardcost; the server's log says where"
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
FILE_PATH: Final = "/api/file"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""On every response."""
_READ_BEFORE_REFUSAL: Final = 4
"""Times the accepted size: a client that is cut off while it sends does not see the reason."""
_log = logging.getLogger("shardcost.web")


class _RefusedError(Exception):
    """The request is refused."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class _GoneError(Exception):
    """The client has closed the connection."""


class Guard:
    """Passes on requests that are complete, small enough, and from this server's own page.

    Args:
        app: The application.
        hosts: Host names of the server; ``*`` stands for any numeric address, which unlike a name
            cannot be made to point here.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)

    def _is_known(self, name: str) -> bool:
        if name in self.hosts:
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return "*" in self.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, and add the headers to its response."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no WebSockets
        began = time.perf_counter()
        answered = False

        async def sent(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                _add_headers(message, scope["path"], 1e3 * (time.perf_counter() - began))
            await send(message)

        try:
            self._check(scope)
            body = await _whole_body(scope, receive)
            await self.app(scope, _replayed(body, receive), sent)
        except _RefusedError as error:
            await _refuse(sent, error)
        except _GoneError:
            return
        except Exception:
            _log.exception("%s", scope["path"])
            if not answered:
                await _refuse(sent, _RefusedError(500, MISTAKE))

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        head = sum(len(name) + len(value) for name, value in headers.raw)
        if head + len(scope["raw_path"]) + len(scope["query_string"]) > HEAD_BYTES:
            raise _RefusedError(431, HEAD_TOO_LARGE)
        if len(headers.getlist("host")) > 1:
            raise _RefusedError(400, "a request has one Host header")
        host = headers.get("host", "").lower()
        if not self._is_known(_name_of(host)):
            raise _RefusedError(421, "this server is not known by that name")
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) != host:
            raise _RefusedError(403, "only this server's own page may ask")
        foreign = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        followed = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if foreign and not followed:  # a link from elsewhere may be followed
            raise _RefusedError(403, "only this server's own page may ask")
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if scope["path"] == FILE_PATH:
                if headers.get("x-shardcost") != "1":
                    raise _RefusedError(403, "a file is sent with the header X-Shardcost: 1")
            elif kind != "application/json":
                raise _RefusedError(415, "Content-Type must be application/json")


def _host_of(origin: str) -> str:
    """Return the host and port of an origin; "" if it is invalid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """Return a host's name without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (not name.endswith(":")) else host


async def _whole_body(scope: Scope, receive: Receive) -> bytes:
    """Return a request's body, within the limits of size and time."""
    most = FILE_BYTES if scope["path"] == FILE_PATH else JSON_BYTES
    too_large = _RefusedError(413, f"the request is larger than {most // 2**20} MiB")
    said = Headers(scope=scope).get("content-length", "0")
    if not said.isascii() or not said.isdigit() or int(said[:20]) > _READ_BEFORE_REFUSAL * most:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                more = message.get("more_body", False)
                piece = message.get("body", b"")
                size += len(piece)
                if size > _READ_BEFORE_REFUSAL * most:
                    raise too_large
                if size <= most:
                    pieces.append(piece)
                else:
                    pieces.clear()
    except TimeoutError:
        raise _RefusedError(408, f"the request took longer than {BODY_S:g} s to arrive") from None
    if size > most:
        raise too_large
    return b"".join(pieces)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was read, then further messages."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _add_headers(message: Message, path: str, took_ms: float) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")
    if path.startswith("/api"):
        computed = headers.get("server-timing")
        total = f"total;dur={took_ms:.2f}"
        headers["Server-Timing"] = f"{computed}, {total}" if computed else total


async def _refuse(send: Send, error: _RefusedError) -> None:
    content = json.dumps({"detail": error.detail}).encode()
    head: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),  # what else was sent is not read
    ]
    start: Any = {"type": "http.response.start", "status": error.status, "headers": head}
    await send(start)
    await send({"type": "http.response.body", "body": content})
