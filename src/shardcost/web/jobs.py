"""Searches: begun by one request, asked about by others, ended when nobody asks any more."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from shardcost.web.crew import BusyError, Crew, LateError
from shardcost.web.limits import (
    KEPT_S,
    KEPT_SEARCHES,
    SEARCH_S,
    SEARCHES,
    SEARCHES_WAITING,
    UNASKED_S,
)
from shardcost.web.worker import IN_NO_HURRY

_LOOK_EVERY_S: Final = 1.0
_OVER: Final = ("done", "cancelled", "failed")
_log = logging.getLogger("shardcost.web")


@dataclass
class Job:
    """One search."""

    name: str
    cells: int
    state: str = "waiting"
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    asked: float = field(default_factory=time.monotonic)
    """When somebody last asked about it."""
    answer: dict[str, Any] = field(default_factory=dict)
    """What was found, or why nothing was."""
    task: asyncio.Task[None] | None = None

    def as_data(self) -> dict[str, Any]:
        """Return how it stands."""
        until = time.monotonic() if self.ended is None else self.ended
        return {
            "job": self.name,
            "state": self.state,
            "done": self.done,
            "cells": self.cells,
            "seconds": until - self.began,
            **self.answer,
        }

    def told(self, done: int, cells: int) -> None:
        """Note how far it is."""
        self.done, self.cells = done, cells

    def over(self, state: str, answer: dict[str, Any]) -> None:
        """Note how it ended, once."""
        if self.state not in _OVER:
            self.state, self.answer, self.ended = state, answer, time.monotonic()


class Jobs:
    """The searches of all who ask; a few run at a time, a few more wait."""

    def __init__(self) -> None:
        self.crew = Crew(SEARCHES, kept=1, waiting=SEARCHES_WAITING, warm=(IN_NO_HURRY,))
        self.places = asyncio.Semaphore(SEARCHES)
        self.by_name: dict[str, Job] = {}
        self.sweeper: asyncio.Task[None] | None = None

    def begin(self, asked: dict[str, Any], cells: int) -> Job:
        """Begin a search.

        Raises:
            BusyError: Too many wait already.
        """
        if sum(job.state == "waiting" for job in self.by_name.values()) >= SEARCHES_WAITING:
            raise BusyError
        job = Job(secrets.token_urlsafe(12), cells)
        self.by_name[job.name] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job, asked))
        if self.sweeper is None:
            self.sweeper = asyncio.get_running_loop().create_task(self._sweep())
        return job

    def find(self, name: str) -> Job | None:
        """Return a search that somebody asks about."""
        job = self.by_name.get(name)
        if job is not None:
            job.asked = time.monotonic()
        return job

    def cancel(self, job: Job) -> None:
        """End a search."""
        job.over("cancelled", {"detail": "the search was cancelled"})
        if job.task is not None:
            job.task.cancel()

    async def _run(self, job: Job, asked: dict[str, Any]) -> None:
        async with self.places:
            job.state = "running"
            head = {"task": "plan", "ask": asked}
            try:
                reply = await self.crew.ask(head, within_s=SEARCH_S, told=job.told)
            except (BusyError, LateError) as error:
                job.over("failed", {"detail": str(error) or "too many searches at a time"})
                return
        if reply.state == "done":
            job.done = job.cells
            job.over("done", json.loads(reply.content))
        elif reply.state == "broken":
            _log.error("search: %s", reply.head["detail"])
            job.over("failed", {"detail": "the search failed; the server's log says why"})
        else:
            job.over("failed", {"detail": reply.head["detail"]})

    async def _sweep(self) -> None:
        """End what nobody asks about, forget what is old."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.tidy(time.monotonic())

    def tidy(self, now: float) -> None:
        """End what nobody has asked about for a while, forget what is old or too much."""
        for job in list(self.by_name.values()):
            if job.ended is None and now - job.asked > UNASKED_S:
                self.cancel(job)
            elif job.ended is not None and now - job.ended > KEPT_S:
                del self.by_name[job.name]
        over = [job for job in self.by_name.values() if job.ended is not None]
        for job in over[: max(0, len(over) - KEPT_SEARCHES)]:  # the eldest
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
        await self.crew.end()
