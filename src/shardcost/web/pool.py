"""`WorkerPool`: the processes that compute, seen from the server.

The server process only reads and writes. Everything that takes time runs in a worker process
(`shardcost.web.worker`), one task at a time each, so that the cores are shared fairly and a task
that takes too long can be ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from shardcost.web.limits import START_S
from shardcost.web.worker import SIZES, Progress, packed

_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
_ATTEMPTS: Final = 2


class BusyError(Exception):
    """Too many tasks are waiting."""


class LateError(Exception):
    """The task took too long, or its process ended."""


@dataclass(frozen=True)
class Reply:
    """The reply of a worker to a task."""

    head: dict[str, Any]
    content: bytes

    @property
    def state(self) -> str:
        """One of done, refused, unable, broken."""
        return str(self.head["state"])


class _Worker:
    """One process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.ready = False

    @classmethod
    async def started(cls, warm: Sequence[str]) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "shardcost.web.worker", *warm,
            stdin=PIPE, stdout=PIPE, env=os.environ | _ONE_THREAD,
        )  # fmt: skip
        return cls(process)

    async def wait_until_ready(self) -> None:
        """Wait until the process has imported what it needs."""
        while not self.ready:
            self.ready = (await self._received()).state == "ready"

    async def run(self, message: bytes, progress: Progress | None) -> Reply:
        """Send a task and wait for its reply."""
        stdin = self.process.stdin
        assert stdin is not None  # noqa: S101  it is a pipe
        if stdin.is_closing():
            raise EOFError
        stdin.write(message)
        await stdin.drain()
        while True:
            reply = await self._received()
            if reply.state != "progress":
                return reply
            if progress is not None:
                progress(reply.head["done"], reply.head["cells"])

    async def _received(self) -> Reply:
        stdout = self.process.stdout
        assert stdout is not None  # noqa: S101  it is a pipe
        head, body = SIZES.unpack(await stdout.readexactly(SIZES.size))
        return Reply(json.loads(await stdout.readexactly(head)), await stdout.readexactly(body))

    async def end(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class WorkerPool:
    """A few processes that run one task at a time each.

    Args:
        size: Processes at a time.
        kept: Processes that stay when there is nothing to do.
        waiting: Tasks that may wait for a process.
        warm: Tasks that an idle process prepares for; or `shardcost.web.worker.LOW_PRIORITY`.
    """

    def __init__(self, size: int, kept: int, waiting: int, warm: Sequence[str] = ()) -> None:
        self.kept, self.most_waiting, self.warm = kept, waiting, warm
        self.slots = asyncio.Semaphore(size)
        self.waiting = 0
        self.idle: list[_Worker] = []
        self.ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the processes that stay."""
        self.idle += await asyncio.gather(*(_Worker.started(self.warm) for _ in range(self.kept)))

    async def run(
        self,
        head: dict[str, Any],
        body: bytes = b"",
        *,
        within_s: float,
        progress: Progress | None = None,
    ) -> Reply:
        """Return the reply of a worker.

        Raises:
            BusyError: Too many tasks are waiting.
            LateError: There is no reply within the time.
        """
        if self.slots.locked() and self.waiting >= self.most_waiting:
            raise BusyError
        self.waiting += 1
        try:
            await self.slots.acquire()
        finally:
            self.waiting -= 1
        try:
            return await self._attempt(packed(head, body), within_s, progress)
        finally:
            self.slots.release()

    async def _attempt(self, message: bytes, within_s: float, progress: Progress | None) -> Reply:
        for attempt in range(_ATTEMPTS):
            worker = await self._next_worker()
            try:
                async with asyncio.timeout(START_S):
                    await worker.wait_until_ready()
                async with asyncio.timeout(within_s):
                    reply = await worker.run(message, progress)
            except (EOFError, ConnectionError) as error:  # it ended by itself: out of memory, say
                self._dismiss(worker)
                if attempt + 1 == _ATTEMPTS:
                    raise LateError("the process that computed this ended") from error
            except TimeoutError:
                self._dismiss(worker)
                raise LateError(f"this takes longer than {within_s:g} s; ask for less") from None
            except BaseException:
                self._dismiss(worker)
                raise
            else:
                if reply.head.get("retire") or len(self.idle) >= self.kept:
                    self._dismiss(worker)
                else:
                    self.idle.append(worker)
                return reply
        raise AssertionError

    async def _next_worker(self) -> _Worker:
        """Return an idle or new process; a machine without room for one is late, not broken."""
        try:
            return self.idle.pop() if self.idle else await _Worker.started(self.warm)
        except OSError as error:
            raise LateError("no process can be started to compute this; ask again later") from error

    def _dismiss(self, worker: _Worker) -> None:
        task = asyncio.get_running_loop().create_task(worker.end())
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def end(self) -> None:
        """End all processes."""
        while self.idle:
            self._dismiss(self.idle.pop())
        await asyncio.gather(*self.ending, return_exceptions=True)
