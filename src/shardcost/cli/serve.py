"""``shardcost serve``: the page, and the API beneath it."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from shardcost.cli import options

_EXAMPLES: Final = """\
  shardcost serve
  shardcost serve --port 0 --no-open
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser("serve", "The page: look at layouts in a browser.", _EXAMPLES)
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1")
    parser.add_argument("--port", metavar="N", default="8765")
    parser.add_argument("--no-open", action="store_true")
    return parser


def run(given: Namespace) -> int:
    """Serve until it is ended."""
    import uvicorn

    from shardcost.web.app import create_app

    print(f"shardcost: http://{given.host}:{given.port} (Ctrl-C ends)", flush=True)
    uvicorn.run(create_app(), host=given.host, port=int(given.port), log_level="warning")
    return 0
