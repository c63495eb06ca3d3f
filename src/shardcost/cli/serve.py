"""``shardcost serve``: the page, and the API beneath it, until Ctrl-C."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from argparse import Namespace
from threading import Thread
from typing import Final

from shardcost import values
from shardcost.cli import options
from shardcost.errors import BadValueError, MissingExtraError

_EXAMPLES: Final = """\
  shardcost serve
  shardcost serve --port 0 --no-open
  shardcost serve --host 192.168.1.20 --port 80
"""
_MOST_PORT: Final = 65535


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "serve",
        "Look at layouts in a browser: the page on this machine, and its API (/api). It asks"
        " nobody else and sends nothing anywhere.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="where to be reached; any other than this machine's own lets the network in"
        " (127.0.0.1)",
    )
    add("--port", metavar="N", default="8765", help="0 takes any that is free (8765)")
    add("--no-open", action="store_true", help="do not open a browser")
    return parser


def run(given: Namespace) -> int:
    """Serve until it is ended."""
    port = values.whole("--port", given.port)
    if not 0 <= port <= _MOST_PORT:
        raise BadValueError("--port", port, f"a port, 0 to {_MOST_PORT}")
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the page", str(error.name), "web") from None
    from shardcost.web.server import bound_socket, is_loopback, serve, url

    listening = bound_socket(given.host, port)
    address = url(listening, given.host)
    if not is_loopback(given.host):
        warning = f"anybody who reaches {given.host} over the network can use this page"
        print(f"shardcost: {warning}", file=sys.stderr, flush=True)

    def ready() -> None:
        line = json.dumps({"url": address}) if given.json else f"shardcost: {address} (Ctrl-C ends)"
        print(line, flush=True)
        if not given.no_open and _has_display():  # without waiting for the browser
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    try:
        serve(listening, given.host, ready)
    except KeyboardInterrupt:  # how it is meant to end
        pass
    finally:
        listening.close()
    return 0


def _has_display() -> bool:
    """Return whether a browser would have a place to show itself."""
    if sys.platform in {"darwin", "win32"}:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
