"""What the page's server stands: time of each answer, start, 100 clients at once, bad company.

    python benchmarks/serve.py                    # all of it, half a minute for each crowd
    python benchmarks/serve.py --seconds 5 --clients 20
    python benchmarks/serve.py --json

Clients run in a process of their own, on bare sockets, so that they take little of the processor
from the server that they measure. Every question is one that was not asked before.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import Any, NamedTuple
from urllib.parse import urljoin

HEAD = "POST /api/estimate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen2.5-72b")
CLUSTERS = ("h100_sxm", "h200_sxm", "a100_sxm", "b200_sxm")
NAMED = re.compile(r"""(?:src|href|from|import)\s*[=(]?\s*["']([^"']+\.(?:js|css|svg))""")
NEVER_ENDING = {
    "model": "gpt3-175b",
    "on": "a100_sxm",
    "network": "ib_8x200g",
    "gpus": [256, 512, 1024],
    "phase": "train",
    "batch": 1536,
    "sequence_length": 2048,
}


def estimate_ask(luck: random.Random) -> dict[str, Any]:
    """Return a question about a layout that nobody asked before, probably."""
    tp = luck.choice((1, 2, 4, 8))
    place = {"model": luck.choice(MODELS), "on": luck.choice(CLUSTERS), "tp": tp}
    if luck.random() < 0.3:
        train = {"phase": "train", "batch": 8 * luck.randint(8, 512), "sequence_length": 4096}
        return place | train | {"network": "ib_8x400g", "gpus": 64, "pp": luck.choice((1, 2))}
    if luck.random() < 0.3:
        return place | {"phase": "prefill", "batch": 1, "prompt_tokens": luck.randint(64, 32768)}
    tokens = luck.randint(64, 32768)
    return place | {"phase": "decode", "batch": luck.randint(1, 256), "context_tokens": tokens}


def _collective_ask(luck: random.Random) -> dict[str, Any]:
    gpus = luck.choice((2, 4, 8))
    return {"collective": "all_reduce", "gpus": gpus, "on": luck.choice(CLUSTERS)}


QUESTIONS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "estimate": estimate_ask,
    "advice": estimate_ask,
    "timeline layer": lambda luck: estimate_ask(luck) | {"of": "layer"},
    "timeline step": lambda luck: estimate_ask(luck) | {"of": "step"},
    "scaling": estimate_ask,
    "roofline": estimate_ask,
    "messages": estimate_ask,
    "commands": estimate_ask,
    "why": lambda luck: estimate_ask(luck) | {"figure": luck.choice(("time_s", "memory_bytes"))},
    "collective": lambda luck: _collective_ask(luck) | {"size": luck.randint(1, 2**30)},
    "collective sweep": lambda luck: (
        _collective_ask(luck) | {"sweep": f"{luck.randint(1, 1024)}:8GiB"}
    ),
    "schedule": lambda luck: {
        "collective": "all_reduce",
        "algorithm": luck.choice(("ring", "recursive_doubling", "double_binary_tree")),
        "ranks": luck.choice((2, 4, 8, 16)),
        "size": luck.randint(1024, 2**30),
        "on": "h100_sxm",
        "network": "ib_8x400g",
    },
}
"""What is asked of each path, by the path and a word."""


class Server(NamedTuple):
    """A server that runs."""

    port: int
    start_s: float
    """From the command to the line that says it is ready."""
    first_byte_s: float
    """From the command to the first byte of the page."""


@contextmanager
def served(environment: dict[str, str] | None = None) -> Iterator[Server]:
    """Run a server on a port of its own, in this or another environment."""
    began = time.perf_counter()
    words = [sys.executable, "-m", "shardcost", "serve", "--port", "0", "--no-open"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None  # noqa: S101
        line = process.stdout.readline()
        start_s = time.perf_counter() - began
        port = int(line.split("://")[1].split()[0].rpartition(":")[2])
        fetched(port, "/")
        yield Server(port, start_s, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()


def fetched(port: int, path: str) -> tuple[bytes, int]:
    """Return a file of the page, and the bytes that were sent of it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    zipped = answer.getheader("Content-Encoding") == "gzip"
    return gzip.decompress(content) if zipped else content, len(content)


def transfer(port: int) -> dict[str, int]:
    """Return the bytes of each file that the page loads: what its files name, and theirs."""
    found: dict[str, int] = {}
    left = ["/", "/api/catalog"]
    while left:
        path = left.pop()
        if path in found:
            continue
        content, found[path] = fetched(port, path)
        text = content.decode(errors="replace")
        named = re.findall(
            r"""(?:src|href|from|import)\s*[=(]?\s*["']([^"']+\.(?:js|css|svg))""", text
        )
        left += [urljoin(path, each) for each in named if not each.startswith("http")]
    return found


def answer_times(port: int, times: int) -> dict[str, dict[str, float]]:
    """Return how long the server takes for each kind of answer, in milliseconds."""
    luck = random.Random(1)  # noqa: S311
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    found = {}
    for name, ask in QUESTIONS.items():
        path = f"/api/{name.split()[0]}"
        taken, refused = [], 0
        for _ in range(times):
            began = time.perf_counter()
            connection.request(
                "POST", path, json.dumps(ask(luck)), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            answer.read()
            taken.append(1e3 * (time.perf_counter() - began))
            refused += answer.status == 422
            if answer.status not in {200, 422}:
                raise RuntimeError(f"{path}: {answer.status}")
        found[name] = {**spread(taken), "refused": refused}
    return found


def spread(taken: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the most of some times."""
    ordered = sorted(taken)
    return {
        "median_ms": ordered[len(ordered) // 2],
        "p99_ms": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "most_ms": ordered[-1],
    }


async def _client(port: int, seed: int, until: float, taken: list[float], bad: list[str]) -> None:
    """Ask one question after another on one connection."""
    luck = random.Random(seed)  # noqa: S311
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        body = json.dumps(estimate_ask(luck))
        began = time.perf_counter()
        writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        taken.append(1e3 * (time.perf_counter() - began))
        status = head[9:12].decode()
        if status not in {"200", "422"}:
            bad.append(status)
    writer.close()


async def _clients(port: int, clients: int, seconds: float) -> dict[str, Any]:
    taken: list[float] = []
    bad: list[str] = []
    until = time.perf_counter() + seconds
    ended = await asyncio.gather(
        *(_client(port, seed, until, taken, bad) for seed in range(clients)),
        return_exceptions=True,
    )
    bad += [repr(each) for each in ended if isinstance(each, Exception)]
    per_s = len(taken) / seconds
    return {"requests": len(taken), "per_s": per_s, "errors": len(bad), "which": bad[:3]} | spread(
        taken
    )


def _crowd_in_process(port: int, clients: int, seconds: float, answer: Any) -> None:
    answer.send(asyncio.run(_clients(port, clients, seconds)))


def crowd(port: int, clients: int, seconds: float) -> dict[str, Any]:
    """Return what many clients at once see of the server."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_crowd_in_process, args=(port, clients, seconds, there))
    process.start()
    found: dict[str, Any] = here.recv()
    process.join()
    return found


@contextmanager
def bad_company(port: int) -> Iterator[dict[str, int]]:
    """Let others send garbage, too much, too slowly, and leave in the middle of searches."""
    over = threading.Event()
    counted: dict[str, int] = {}

    def again(act: Callable[[], None], pause_s: float) -> None:
        while not over.wait(pause_s):
            counted[act.__name__] = counted.get(act.__name__, 0) + 1
            with suppress(OSError, http.client.HTTPException):
                act()

    threads = [
        threading.Thread(target=again, args=(act, pause_s), daemon=True)
        for act, pause_s in (
            (lambda_named("garbage", lambda: _sent(port, os.urandom(4096))), 0.05),
            (lambda_named("huge", lambda: _huge(port)), 0.2),
            (lambda_named("slow", lambda: _slow(port, over)), 0.2),
            (lambda_named("gone", lambda: _gone(port)), 1.0),
        )
    ]
    for thread in threads:
        thread.start()
    yield counted
    over.set()
    for thread in threads:
        thread.join(30)


def lambda_named(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Return what to do, under a name that it is counted by."""
    act.__name__ = name
    return act


def _sent(port: int, content: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(content)
        connection.recv(1024)


def _huge(port: int) -> None:
    """Send a body without end in pieces, and say nothing of its length."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(64):
            connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        connection.recv(1024)


def _slow(port: int, over: threading.Event) -> None:
    """Send a body a byte at a time."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"{HEAD}Content-Length: 1000\r\n\r\n".encode())
        while not over.wait(0.5):
            connection.sendall(b" ")


def _gone(port: int) -> None:
    """Begin a search and leave."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    kind = {"Content-Type": "application/json"}
    connection.request("POST", "/api/plan", json.dumps(NEVER_ENDING), kind)
    connection.sock.shutdown(socket.SHUT_RD)
    time.sleep(0.05)  # so that it is read
    connection.close()


def measured(times: int, clients: int, seconds: float) -> dict[str, Any]:
    """Return all that is measured."""
    with served() as server:
        files = transfer(server.port)
        time.sleep(2)  # the processes that compute are getting ready
        found: dict[str, Any] = {
            "start_s": server.start_s,
            "first_byte_s": server.first_byte_s,
            "files": len(files),
            "transfer_bytes": sum(files.values()),
            "answers": answer_times(server.port, times),
            "crowd": crowd(server.port, clients, seconds),
        }
        with bad_company(server.port) as counted:
            found["crowd_in_bad_company"] = crowd(server.port, clients, seconds)
        found["bad_company"] = counted
    return found


def show(found: dict[str, Any], clients: int) -> None:
    """Print what was measured."""
    print(f"ready {found['start_s']:.2f} s after the command, page {found['first_byte_s']:.2f} s")
    print(f"{found['files']} files, {found['transfer_bytes'] / 1e3:.0f} kB sent")
    print(f"\n{'answer':<18}{'median':>10}{'p99':>10}{'most':>10}   ms")
    for name, each in found["answers"].items():
        print(
            f"{name:<18}{each['median_ms']:>10.1f}{each['p99_ms']:>10.1f}{each['most_ms']:>10.1f}"
        )
    print(f"\n{clients} clients{'requests':>12}{'per s':>8}{'errors':>8}{'p50 ms':>8}{'p99 ms':>8}")
    for title, name in (("alone", "crowd"), ("bad company", "crowd_in_bad_company")):
        each = found[name]
        print(
            f"{title:<11}{each['requests']:>12,}{each['per_s']:>8.0f}{each['errors']:>8}"
            f"{each['median_ms']:>8.0f}{each['p99_ms']:>8.0f}  {' '.join(each['which'])}"
        )
    company = ", ".join(f"{count} x {name}" for name, count in found["bad_company"].items())
    print(f"bad company: {company}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--times", type=int, default=100, help="questions of each kind")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measured(given.times, given.clients, given.seconds)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        show(found, given.clients)


if __name__ == "__main__":
    main()
