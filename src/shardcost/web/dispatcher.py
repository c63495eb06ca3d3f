"""`Dispatcher`: which worker pool runs a task, the cache of replies, and searches as `Jobs`.

A search outlives the request that starts it: further requests poll it by its name, and it ends when
nobody does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from shardcost.web import asks, limits
from shardcost.web.pool import BusyError, LateError, Reply, WorkerPool
from shardcost.web.worker import LOW_PRIORITY

_SLOW_TASKS: Final = ("html", "plan_check", "load", "ratio")
"""Tasks that may take seconds: plots are drawn, every split of the GPUs is listed, requests are
followed one by one."""
_SWEEP_EVERY_S: Final = 1.0
_OVER: Final = ("done", "cancelled", "failed")
_log = logging.getLogger("shardcost.web")


class Dispatcher:
    """The worker pools: one for quick tasks, one for slow ones, one for searches."""

    def __init__(self) -> None:
        cores = max(1, min(4, os.cpu_count() or 1))
        self.quick = WorkerPool(
            cores, kept=cores, waiting=limits.TASKS_WAITING, warm=list(asks.FIRST)
        )
        self.slow = WorkerPool(
            limits.FILES, kept=1, waiting=limits.FILES_WAITING, warm=(LOW_PRIORITY,)
        )
        self.jobs = Jobs()
        self.cache: OrderedDict[tuple[str, str, bool], Reply] = OrderedDict()

    async def start(self) -> None:
        """Start the processes that stay."""
        for pool in (self.quick, self.slow, self.jobs.pool):
            await pool.start()

    async def end(self) -> None:
        """End all searches and processes."""
        await self.jobs.end()
        await self.slow.end()
        await self.quick.end()

    async def run(self, task: str, fields: asks.Asked | None, *, zipped: bool) -> Reply:
        """Return the reply to a task, computed or cached."""
        text = "{}" if fields is None else fields.model_dump_json()
        key = task, text, zipped
        if key in self.cache:
            self.cache.move_to_end(key)
            reply = self.cache[key]
            return Reply(reply.head | {"seconds": 0.0}, reply.content)
        head = {"task": task, "fields": json.loads(text), "gzip": zipped}
        if task in _SLOW_TASKS:
            reply = await self.slow.run(head, within_s=limits.FILE_S)
        else:
            reply = await self.quick.run(head, within_s=limits.TASK_S)
        size = len(text) + len(reply.content)
        if reply.state in {"done", "refused"} and size <= limits.CACHED_BYTES:
            self.cache[key] = reply
            if len(self.cache) > limits.CACHED:
                self.cache.popitem(last=False)
        return reply


@dataclass
class Job:
    """One search."""

    name: str
    cells: int
    state: str = "waiting"
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    polled: float = field(default_factory=time.monotonic)
    result: dict[str, Any] = field(default_factory=dict)
    """The plan, or why there is none."""
    task: asyncio.Task[None] | None = None

    def as_data(self) -> dict[str, Any]:
        """Return its state."""
        until = time.monotonic() if self.ended is None else self.ended
        return {
            "job": self.name,
            "state": self.state,
            "done": self.done,
            "cells": self.cells,
            "seconds": until - self.began,
            **self.result,
        }

    def progress(self, done: int, cells: int) -> None:
        """Record how many layouts have been evaluated."""
        self.done, self.cells = done, cells

    def end(self, state: str, result: dict[str, Any]) -> None:
        """Record how it ended, once."""
        if self.state not in _OVER:
            self.state, self.result, self.ended = state, result, time.monotonic()


class Jobs:
    """The searches of all users; a few run at a time, a few more wait."""

    def __init__(self) -> None:
        self.pool = WorkerPool(
            limits.SEARCHES, kept=1, waiting=limits.SEARCHES_WAITING, warm=(LOW_PRIORITY,)
        )
        self.slots = asyncio.Semaphore(limits.SEARCHES)
        self.by_name: dict[str, Job] = {}
        self.sweeper: asyncio.Task[None] | None = None

    def begin(self, task: str, fields: dict[str, Any], cells: int) -> Job:
        """Start a search.

        Args:
            task: ``plan`` or ``plan_load``.
            fields: What is looked for.
            cells: How much there is to look at, 0 if that is not known yet.

        Raises:
            BusyError: Too many are waiting.
        """
        if sum(job.state == "waiting" for job in self.by_name.values()) >= limits.SEARCHES_WAITING:
            raise BusyError
        job = Job(secrets.token_urlsafe(12), cells)
        self.by_name[job.name] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job, task, fields))
        if self.sweeper is None:
            self.sweeper = asyncio.get_running_loop().create_task(self._sweep())
        return job

    def poll(self, name: str) -> Job | None:
        """Return a search, which stays alive for being polled."""
        job = self.by_name.get(name)
        if job is not None:
            job.polled = time.monotonic()
        return job

    def cancel(self, job: Job) -> None:
        """End a search."""
        job.end("cancelled", {"detail": "the search was cancelled"})
        if job.task is not None:
            job.task.cancel()

    async def _run(self, job: Job, task: str, fields: dict[str, Any]) -> None:
        async with self.slots:
            job.state = "running"
            head = {"task": task, "fields": fields}
            try:
                within_s = limits.SEARCH_S + limits.REVIEW_S
                reply = await self.pool.run(head, within_s=within_s, progress=job.progress)
            except (BusyError, LateError) as error:
                job.end("failed", {"detail": str(error) or "too many searches at a time"})
                return
        if reply.state == "done":
            job.done = job.cells
            job.end("done", json.loads(reply.content))
        elif reply.state == "broken":
            _log.error("search: %s", reply.head["detail"])
            job.end("failed", {"detail": "the search failed; the server's log says why"})
        else:
            job.end("failed", {"detail": reply.head["detail"]})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            self.tidy(time.monotonic())

    def tidy(self, now: float) -> None:
        """Cancel searches that are no longer polled; delete old results and surplus ones."""
        for job in list(self.by_name.values()):
            if job.ended is None and now - job.polled > limits.ABANDONED_S:
                self.cancel(job)
            elif job.ended is not None and now - job.ended > limits.KEPT_S:
                del self.by_name[job.name]
        over = [job for job in self.by_name.values() if job.ended is not None]
        for job in over[: max(0, len(over) - limits.KEPT_SEARCHES)]:  # the oldest
            del self.by_name[job.name]

    async def end(self) -> None:
        """End all searches."""
        tasks = [job.task for job in self.by_name.values() if job.task is not None]
        tasks += [self.sweeper] if self.sweeper is not None else []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.pool.end()
