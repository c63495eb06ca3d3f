"""The server around the application: sockets, patience, and when it says that it is ready."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Any, Final

import uvicorn

from shardcost.errors import BadValueError
from shardcost.web.app import create_app
from shardcost.web.guard import LOOPBACK
from shardcost.web.limits import ANSWER_LOOKS, CONNECTIONS, HEAD_S

_EVERYWHERE: Final = ("0.0.0.0", "::", "[::]")  # noqa: S104  these are what is warned of


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        BadValueError: It cannot.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise BadValueError("--host", host, "an address of this machine") from None
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        reason = (error.strerror or str(error)).lower()
        raise BadValueError("--port", port, f"one that is free on {host} ({reason})") from None
    found.listen(CONNECTIONS)
    return found


def hosts_of(host: str) -> Collection[str]:
    """Return the names by which a server on an address may be called."""
    if host in _EVERYWHERE:
        return {*LOOPBACK, socket.gethostname(), socket.getfqdn(), "*"}
    return {*LOOPBACK, host, f"[{host}]"}


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False


def _patient(protocol: type[Any]) -> type[Any]:
    """Return a protocol that hangs up on who sends no request, or does not take its answer."""

    class Patient(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._looked_at, self._looks = None, 0
            asyncio.get_running_loop().call_later(HEAD_S, self._look)

        def _look(self) -> None:
            """See whether the same request, or none, is under way as at the last look."""
            if self.transport.is_closing():
                return
            cycle = getattr(self, "cycle", None)
            self._looks = self._looks + 1 if cycle is self._looked_at else 0
            idle = cycle is None or cycle.response_complete
            if self._looks >= (1 if idle else ANSWER_LOOKS):
                self.transport.abort()
                return
            self._looked_at = cycle
            asyncio.get_running_loop().call_later(HEAD_S, self._look)

    return Patient


def _protocol() -> type[Any]:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return _patient(H11Protocol)
    return _patient(HttpToolsProtocol)


class _Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()


def serve(listening: socket.socket, host: str, ready: Callable[[], None]) -> None:
    """Serve the page on a socket until the process is told to end.

    Args:
        listening: The socket.
        host: The address as it was given.
        ready: Called once the page can be asked for.
    """
    config = uvicorn.Config(
        create_app(hosts_of(host)),
        http=_protocol(),
        ws="none",
        log_level="error",  # garbage that somebody sends is no news
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=2,
    )
    _Server(config, ready).run(sockets=[listening])
