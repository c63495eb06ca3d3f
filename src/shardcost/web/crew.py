"""The processes that compute, as the server sees them: `Crew`.

The server itself only reads and writes; whatever takes time happens in these processes, a few at a
time, so that cores are shared fairly and whatever takes too long can be ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from shardcost.web.limits import START_S
from shardcost.web.worker import SIZES, packed

_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
_TRIES: Final = 2
Told = Callable[[int, int], None]


class BusyError(Exception):
    """Too many wait already."""


class LateError(Exception):
    """The answer took too long, or the process that was to give it ended."""


@dataclass(frozen=True)
class Reply:
    """What a process answered."""

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

    async def begin(self) -> None:
        """Wait until the process has imported what it needs."""
        while not self.ready:
            self.ready = (await self._heard()).state == "ready"

    async def ask(self, message: bytes, told: Told | None) -> Reply:
        """Send a message and wait for its answer."""
        stdin = self.process.stdin
        assert stdin is not None  # noqa: S101  it is a pipe
        if stdin.is_closing():
            raise EOFError
        stdin.write(message)
        await stdin.drain()
        while True:
            reply = await self._heard()
            if reply.state != "progress":
                return reply
            if told is not None:
                told(reply.head["done"], reply.head["cells"])

    async def _heard(self) -> Reply:
        stdout = self.process.stdout
        assert stdout is not None  # noqa: S101  it is a pipe
        head, body = SIZES.unpack(await stdout.readexactly(SIZES.size))
        return Reply(json.loads(await stdout.readexactly(head)), await stdout.readexactly(body))

    async def end(self) -> None:
        """End the process, whatever it does."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


async def _begun(warm: Sequence[str]) -> _Worker:
    """Return a new process; a machine that has no room for one is late, not broken."""
    try:
        return await _Worker.started(warm)
    except OSError as error:
        raise LateError("no process can be started to compute this; ask again later") from error


class Crew:
    """A few processes that answer one question at a time each.

    Args:
        size: Processes at a time.
        kept: Of these, how many stay when there is nothing to do.
        waiting: Questions that may wait for a process.
        warm: Tasks that a process makes itself ready for while it has nothing to do; or that it
            is in no hurry.
    """

    def __init__(self, size: int, kept: int, waiting: int, warm: Sequence[str] = ()) -> None:
        self.kept, self.most_waiting, self.warm = kept, waiting, warm
        self.places = asyncio.Semaphore(size)
        self.waiting = 0
        self.idle: list[_Worker] = []
        self.ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Have the processes that stay at hand before they are asked."""
        self.idle += await asyncio.gather(*(_Worker.started(self.warm) for _ in range(self.kept)))

    async def ask(
        self, head: dict[str, Any], body: bytes = b"", *, within_s: float, told: Told | None = None
    ) -> Reply:
        """Return the answer of a process.

        Raises:
            BusyError: Too many questions wait already.
            LateError: There is no answer within the time.
        """
        if self.places.locked() and self.waiting >= self.most_waiting:
            raise BusyError
        self.waiting += 1
        try:
            await self.places.acquire()
        finally:
            self.waiting -= 1
        try:
            return await self._asked(packed(head, body), within_s, told)
        finally:
            self.places.release()

    async def _asked(self, message: bytes, within_s: float, told: Told | None) -> Reply:
        for attempt in range(_TRIES):
            worker = self.idle.pop() if self.idle else await _begun(self.warm)
            try:
                async with asyncio.timeout(START_S):
                    await worker.begin()
                async with asyncio.timeout(within_s):
                    reply = await worker.ask(message, told)
            except (EOFError, ConnectionError) as error:  # it ended by itself: out of memory, say
                self._dismiss(worker)
                if attempt + 1 == _TRIES:
                    raise LateError("the process that computed this ended") from error
            except TimeoutError:
                self._dismiss(worker)
                raise LateError(f"this takes longer than {within_s:g} s; ask for less") from None
            except BaseException:
                self._dismiss(worker)
                raise
            else:
                self._done(worker, retire=bool(reply.head.get("retire")))
                return reply
        raise AssertionError

    def _done(self, worker: _Worker, *, retire: bool) -> None:
        if retire or len(self.idle) >= self.kept:
            self._dismiss(worker)
        else:
            self.idle.append(worker)

    def _dismiss(self, worker: _Worker) -> None:
        task = asyncio.get_running_loop().create_task(worker.end())
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def end(self) -> None:
        """End all processes."""
        while self.idle:
            self._dismiss(self.idle.pop())
        await asyncio.gather(*self.ending, return_exceptions=True)
