"""The HTTP server: its socket, its address, and limits on slow and oversized connections."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shardcost.errors import BadValueError
from shardcost.web.app import create_app
from shardcost.web.guard import HEAD_TOO_LARGE, LOOPBACK
from shardcost.web.limits import (
    ANSWER_LOOKS,
    CONNECTIONS,
    HEAD_BYTES,
    HEAD_S,
    IDLE_CONNECTIONS,
)

_EVERYWHERE: Final = ("0.0.0.0", "::", "[::]")  # noqa: S104  these are warned of
_DOCUMENTATION_ADDRESS: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


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
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise BadValueError("--host", host, "an address of this machine") from None
        reason = (error.strerror or str(error)).lower()
        raise BadValueError("--port", port, f"one that is free on {host} ({reason})") from None
    listening.listen(CONNECTIONS)
    return listening


def url(listening: socket.socket, host: str) -> str:
    """Return an address at which a browser reaches the server."""
    name = _own_address(listening.family) if host in _EVERYWHERE else host.strip("[]")
    return f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}"


def _own_address(family: int) -> str:
    """Return the address by which this machine reaches the network, else its loopback address."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_DOCUMENTATION_ADDRESS[socket.AddressFamily(family)], 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "::1" if family == socket.AF_INET6 else "127.0.0.1"


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


class _Connection(HttpToolsProtocol):
    """Closes a connection whose head is too large, or that is too slow to send or to receive.

    Connections without a request that is being answered give way to newer ones: the oldest of the
    same address where that has too many, else the oldest of all where the server has too many. So
    whoever opens many and sends nothing shuts out nobody.
    """

    _seen: RequestResponseCycle | None = None
    _looks = 0
    _turns = count()
    _turn = 0
    """When it was opened or last began to be answered, in order: the loop's clock is coarse."""
    _head_bytes = 0
    """Since the last event other than a header: httptools itself keeps any number."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(HEAD_S, self._look)
        self._turn = next(self._turns)
        every = cast("set[_Connection]", self.connections)
        idle = [each for each in every if each is not self and each._is_idle()]
        mine = [each for each in idle if each._address() == self._address()]
        if len(mine) >= IDLE_CONNECTIONS:
            _drop_oldest(mine)
        elif idle and len(every) >= CONNECTIONS:
            _drop_oldest(idle)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            if self._is_idle():
                self.transport.write(
                    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n"
                    b"Content-Type: text/plain\r\n\r\n" + HEAD_TOO_LARGE.encode()
                )
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._turn = next(self._turns)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _is_idle(self) -> bool:
        """Return whether no request is being answered."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def _look(self) -> None:
        """Close the connection if it has made no progress since the last look."""
        if self.transport.is_closing():
            return
        self._looks = self._looks + 1 if self.cycle is self._seen else 0
        if self._looks >= (1 if self._is_idle() else ANSWER_LOOKS):
            self.transport.abort()
            return
        self._seen = self.cycle
        asyncio.get_running_loop().call_later(HEAD_S, self._look)


def _drop_oldest(idle: list[_Connection]) -> None:
    oldest = min(idle, key=lambda each: each._turn)
    # Its place is free now, not when the loop has closed it.
    cast("set[_Connection]", oldest.connections).discard(oldest)
    oldest.transport.abort()


class _Server(uvicorn.Server):
    """Calls `ready` once it is started."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()


def serve(listening: socket.socket, host: str, ready: Callable[[], None]) -> None:
    """Serve the page on a socket until the process is ended.

    Args:
        listening: The socket.
        host: The address as given.
        ready: Called once the server accepts requests.
    """
    config = uvicorn.Config(
        create_app(hosts_of(host)),
        http=_Connection,
        ws="none",
        log_level="error",  # invalid requests are no news
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=2,
    )
    _Server(config, ready).run(sockets=[listening])
