"""What stands before the application: who may ask, how much, how fast; and the headers.

A server on one's own machine can be reached by every page that one's browser shows. So nothing is
answered that a foreign page could have asked: the name of the host has to be this server's own
(a foreign name may be made to point here), and what is sent has to be of a kind that browsers send
to other hosts only after asking them first, which is always refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Collection
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardcost.web.limits import BODY_S, FILE_BYTES, JSON_BYTES

MISTAKE: Final = "a mistake in shardcost; the server's log says where"
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
FILE_PATH: Final = "/api/file"
FILE_HEADER: Final = "x-shardcost"
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
"""On every answer."""


_HEARD_OUT: Final = 4
"""So many times the size that is taken is read before it is refused."""
_log = logging.getLogger("shardcost.web")


class _RefusedError(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class _GoneError(Exception):
    """Whoever asked has left."""


class Guard:
    """Lets through only requests that are whole, small enough, and from this server's own page.

    Args:
        app: What is behind.
        hosts: Names by which the server may be called; ``*`` stands for any address in numbers,
            which unlike a name cannot be made to point here.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)

    def _is_known(self, name: str) -> bool:
        """Return whether the server may be called by a name."""
        return name in self.hosts or ("*" in self.hosts and _is_address(name))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, hand it on, and put the headers on its answer."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # there is nothing else here, such as WebSockets
        began = time.perf_counter()
        answered = False

        async def sent(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                _dress(message, scope["path"], 1e3 * (time.perf_counter() - began))
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
            _check_kind(scope["path"], headers)


def _check_kind(path: str, headers: Headers) -> None:
    if path == FILE_PATH:
        if headers.get(FILE_HEADER) != "1":
            raise _RefusedError(403, "a file is sent with the header X-Shardcost: 1")
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _RefusedError(415, "Content-Type must be application/json")


def _host_of(origin: str) -> str:
    """Return the host and port of an origin; nothing where it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """Return a host's name without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (not name.endswith(":")) else host


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


async def _whole_body(scope: Scope, receive: Receive) -> bytes:
    """Return a request's body once all of it is there: soon, and not too much.

    Of what is too large the rest is read and dropped, within reason: who is hung up on while it
    still sends does not hear why.
    """
    most = FILE_BYTES if scope["path"] == FILE_PATH else JSON_BYTES
    too_large = _RefusedError(413, f"the request is larger than {most // 2**20} MiB")
    said = Headers(scope=scope).get("content-length", "0")
    if not said.isascii() or not said.isdigit() or int(said[:20]) > _HEARD_OUT * most:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in _pieces(receive):
                size += len(piece)
                if size > _HEARD_OUT * most:
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


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a body as it arrives."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        more = message.get("more_body", False)
        yield message.get("body", b"")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body that was read, then what else comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _dress(message: Message, path: str, took_ms: float) -> None:
    """Put on the headers that every answer has."""
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
