"""A server of the page that really runs, and what a client says to it, byte by byte if need be."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

DECODE: Final[dict[str, Any]] = {
    "model": "llama3-8b",
    "on": "h100_sxm",
    "gpus": 8,
    "tp": 8,
    "phase": "decode",
    "batch": 64,
    "context_tokens": 4096,
}
TRAIN: Final[dict[str, Any]] = {
    "model": "llama3-8b",
    "on": "h100_sxm",
    "network": "ib_8x400g",
    "gpus": 64,
    "tp": 8,
    "pp": 2,
    "phase": "train",
    "batch": 64,
    "sequence_length": 4096,
}
JSON: Final = {"Content-Type": "application/json"}
_PATIENCE_S: Final = 60


@dataclass
class Answer:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def data(self) -> Any:
        """The JSON that it sent."""
        return json.loads(self.content)

    @property
    def detail(self) -> str:
        """Why it refused, in one line."""
        detail: str = self.data["detail"]
        assert detail.isprintable()
        return detail


@dataclass
class Client:
    """Speaks to a server."""

    port: int
    process: subprocess.Popen[str] = field(repr=False)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, names, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Ask for something."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("GET", path, headers=named)

    def post(self, path: str, body: Any) -> Answer:
        """Ask a question."""
        return self.ask("POST", f"/api/{path}", json.dumps(body), JSON)

    def answer(self, path: str, body: Any) -> Any:
        """Return the data that answers a question."""
        found = self.post(path, body)
        assert found.status == 200, found.content
        return found.data

    def refusal(self, path: str, body: Any) -> str:
        """Return the line that says why a question has no answer."""
        found = self.post(path, body)
        assert found.status == 422, found.content
        return found.detail

    def drop(self, name: str, content: bytes) -> Answer:
        """Drop a file on the page."""
        return self.ask("POST", f"/api/file?name={name}", content, {"X-Shardcost": "1"})

    def search(self, body: Any) -> Any:
        """Begin a search and wait for its end."""
        begun = self.post("plan", body)
        assert begun.status == 202, begun.content
        path = f"/api/plan/{begun.data['job']}"
        while (found := self.get(path).data)["state"] in {"waiting", "running"}:
            time.sleep(0.05)
        return found

    def socket(self) -> socket.socket:
        """Return a bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE_S)


@contextmanager
def served(*words: str, **limits: float) -> Iterator[Client]:
    """Run ``shardcost serve`` on a free port, with some of its `shardcost.web.limits` changed."""
    program = f"""\
import sys
from shardcost.web import limits
vars(limits).update({limits!r})
from shardcost.cli import main
sys.exit(main())
"""
    started = ["-c", program] if limits else ["-m", "shardcost"]
    command = [sys.executable, *started, "serve", "--port", "0", "--no-open", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("shardcost: http://"), line
        yield Client(int(line.split()[1].rpartition(":")[2]), process)
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()
