"""Bytes that this process has sent over TCP, as the kernel counts them.

Linux tells of every TCP socket how many bytes of payload it has sent and how many of those again
(``struct tcp_info``, include/uapi/linux/tcp.h: tcpi_bytes_sent, tcpi_bytes_retrans, Linux 4.19 and
later). The difference, over all sockets of the process, is what its messages were, to the byte.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_OPEN_FILES: Final = Path("/proc/self/fd")
_INFO_BYTES: Final = 256
_NOT_SENT_AT: Final = 144
_SENT_AT: Final = 200
_KNOWN_BYTES: Final = 216
"""Of ``struct tcp_info``: where tcpi_notsent_bytes and tcpi_bytes_sent are, and where the field
after tcpi_bytes_sent, tcpi_bytes_retrans, ends."""
_SAME_READINGS: Final = 3
_APART_S: Final = 0.002
_PATIENCE_S: Final = 5.0


class Sent(NamedTuple):
    """What all sockets of the process have sent, and what waits in them to be sent."""

    payload_bytes: int
    waiting_bytes: int


def why_not() -> str | None:
    """Return why bytes cannot be counted on this system, None where they can."""
    if not sys.platform.startswith("linux"):
        return f"bytes are counted on Linux only, not on {sys.platform}"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if len(_info(probe)) < _KNOWN_BYTES:
            return "this kernel does not count the bytes of a socket (Linux 4.19 does)"
    return None


def sent() -> Sent:
    """Return what the TCP sockets of this process have sent so far."""
    payload = waiting = 0
    for link in _OPEN_FILES.iterdir():
        try:
            if not str(link.readlink()).startswith("socket:"):
                continue
            open_socket = socket.socket(fileno=int(link.name))
        except OSError:  # it was closed since
            continue
        try:
            info = _info(open_socket)
        finally:
            open_socket.detach()  # the socket is not ours to close
        if len(info) >= _KNOWN_BYTES:
            once, again = struct.unpack_from("=QQ", info, _SENT_AT)
            payload += once - again
            waiting += struct.unpack_from("=I", info, _NOT_SENT_AT)[0]
    return Sent(payload, waiting)


def settled(progress: Callable[[], object]) -> int:
    """Return the bytes sent once nothing waits and nothing changes.

    Args:
        progress: Called between readings: what a library needs to send what it has queued.
    """
    end = time.monotonic() + _PATIENCE_S
    last, same = sent(), 1
    while same < _SAME_READINGS and time.monotonic() < end:
        progress()
        time.sleep(_APART_S)
        now = sent()
        same = same + 1 if now == last and not now.waiting_bytes else 1
        last = now
    return last.payload_bytes


def _info(tcp: socket.socket) -> bytes:
    """Return a socket's ``struct tcp_info``; nothing of one that is not TCP."""
    try:
        return tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return b""
