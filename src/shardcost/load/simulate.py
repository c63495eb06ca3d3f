"""The event simulation: every request from its arrival to its last token.

::

    stream ──► front end ──► router ──► worker ──► first token … last token
                                    └─► prefill worker ──► KV transfer ──► decode worker

Events are arrivals and ends of steps. What a step takes comes from `StepTimes`, what is in it from
`Worker`; here requests are handed on and counted. The same seed gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np

from shardcost.errors import BadValueError
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.requests import Requests, Stream
from shardcost.load.result import TTFT_PARTS, Limits, Load
from shardcost.load.steps import StepTimes
from shardcost.load.worker import GAP_BINS, KVRoom, Request, Worker

_ARRIVAL, _STEP, _MOVED = range(3)
_NONE: Final[Sequence[int]] = ()
_MOST_RANKS: Final = 2**16
"""Workers times their data-parallel ranks: each has a queue and a cache, made before it begins."""
Progress = Callable[[int, int], None]


def simulate(
    deployment: Deployment,
    requests: Requests,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Load:
    """Return latencies and throughput of requests at a deployment.

    Args:
        deployment: What serves them.
        requests: When they come and how long they are.
        limits: Of latency, which the result is held against where it is shown.
        progress: Called now and then with the requests that have ended, and all.
    """
    load = _Simulation(deployment, requests, requests.stream()).run(progress)
    return load if limits is None else replace(load, limits=limits)


class _Simulation:
    def __init__(self, deployment: Deployment, requests: Requests, stream: Stream) -> None:
        self.deployment, self.requests, self.stream = deployment, requests, stream
        self.longest = int((stream.prompt_tokens + stream.output_tokens).max())
        self.pools = [self._workers(pool) for pool in deployment.pools]
        self.events: list[tuple[float, int, int, Any]] = []
        self.order = 0
        self.next = 0
        self.frontend_s = 0.0
        self.rejected = 0
        count = len(stream)
        self.transfers_s = deployment.transfer_s(stream.prompt_tokens)
        self.parts_s = np.zeros((count, len(TTFT_PARTS)))
        self.arrival_s = np.full(count, np.nan)
        self.first_s, self.finished_s = np.full(count, np.nan), np.full(count, np.nan)

    def _workers(self, pool: Pool) -> list[Worker]:
        if (ranks := pool.workers * int(pool.engine.layout.dp)) > _MOST_RANKS:
            rule = f"at most {_MOST_RANKS} in a pool whose queues are simulated"
            raise BadValueError("workers x dp", ranks, rule)
        stream, scheduler = self.stream, pool.engine.software.scheduler
        prompt = int(stream.prompt_tokens.max())
        users = stream.users or len(stream)
        room = KVRoom(pool.engine, self.longest)
        if room.blocks < 1:
            need = "one that leaves memory for a KV cache beside the weights (more tp or pp, or a"
            need += " narrower number format)"
            raise BadValueError("layout", pool.engine.layout.short(), need)
        most = min(scheduler.max_num_seqs, users, max(1, room.blocks))
        times = StepTimes(
            pool.engine,
            most_context=self.longest,
            most_prompt=prompt,
            most_sequences=most,
        )
        decodes = pool is self.deployment.serving
        return [
            Worker(
                number, pool.engine, times, room, decodes=decodes,
                prefix_block=stream.prefix_block_tokens, shared_tokens=stream.shared_tokens,
            )
            for number in range(pool.workers)
        ]  # fmt: skip

    def run(self, progress: Progress | None) -> Load:
        stream = self.stream
        for _ in range(min(stream.users or 1, len(stream))):
            self._send_next(0.0)
        ended, total = 0, len(stream)
        while self.events:
            now, _, kind, item = heappop(self.events)
            if kind == _ARRIVAL:
                if stream.users is None:
                    self._send_next(0.0)  # at its own time, however long the front end takes
                self._route(self.pools[0], item, now)
            elif kind == _MOVED:
                self._route(self.pools[1], item, now)
            else:
                worker, version = item
                if version != worker.version or worker.ends_s is None or worker.ends_s > now:
                    continue
                ended += self._end_step(worker, now)
                if progress is not None:
                    progress(ended + self.rejected, total)
        return self._result()

    def _push(self, when: float, kind: int, item: Any) -> None:
        self.order += 1
        heappush(self.events, (when, self.order, kind, item))

    def _send_next(self, now: float) -> None:
        """Let the next request of the stream arrive: at its time, or `now` that a user is free."""
        stream = self.stream
        while self.next < len(stream):
            index = self.next
            self.next += 1
            sent = max(now, float(stream.arrival_s[index]))
            prefixes = _NONE if stream.prefixes is None else stream.prefixes[index]
            request = Request(
                index,
                sent,
                int(stream.prompt_tokens[index]),
                int(stream.output_tokens[index]),
                prefixes,
            )
            if not all(workers[0].fits(request) for workers in self.pools):
                self.rejected += 1
                continue
            self.arrival_s[index] = sent
            scheduler = self.pools[0][0].scheduler
            each_s = scheduler.frontend_per_request_s / len(self.pools[0])
            self.frontend_s = max(self.frontend_s, sent) + each_s
            own_s = scheduler.frontend_s + scheduler.frontend_per_token_s * request.prompt
            self._push(self.frontend_s + own_s, _ARRIVAL, request)
            return

    def _route(self, workers: list[Worker], request: Request, now: float) -> None:
        worker = min(workers, key=lambda each: each.load) if len(workers) > 1 else workers[0]
        sooner = worker.submit(request, now)
        if worker.ends_s is None:
            worker.begin(now)
            sooner = worker.ends_s is not None
        if sooner:
            worker.version += 1
            self._push(worker.ends_s, _STEP, (worker, worker.version))  # type: ignore[arg-type]

    def _end_step(self, worker: Worker, now: float) -> int:
        firsts, ended = worker.finish(now)
        for request in firsts:
            scheduled_s = now if request.scheduled_s is None else request.scheduled_s
            self.parts_s[request.index] = (
                request.came_s - request.arrival_s,
                scheduled_s - request.came_s,
                now - scheduled_s,
                0.0 if worker.decodes else self.transfers_s[request.index],
            )
            if worker.decodes:
                self.first_s[request.index] = now
            else:
                moved_s = now + self.transfers_s[request.index]
                self.first_s[request.index] = moved_s
                request.prefilled, request.first_s = True, moved_s
                if request.output > 1:
                    self._push(moved_s, _MOVED, request)
                else:
                    ended.append(request)
        for request in ended:
            if worker.decodes and request.prefilled and request.first_s is not None:
                # Its client hears through the worker that decodes, once that has room for it.
                self.parts_s[request.index, 1] += request.first_s - self.first_s[request.index]
                self.first_s[request.index] = request.first_s
            self.finished_s[request.index] = max(now, self.first_s[request.index])
            if self.stream.users is not None:
                self._send_next(now)
        worker.begin(now)
        if worker.ends_s is not None:
            self._push(worker.ends_s, _STEP, (worker, worker.version))
        return len(ended)

    def _result(self) -> Load:
        served = np.flatnonzero(np.isfinite(self.finished_s))
        every = [worker for workers in self.pools for worker in workers]
        serving = self.pools[-1]
        gaps: dict[int, float] = {}
        waits: dict[str, float] = {}
        for worker in every:
            for name, seconds in worker.waits_s.items():
                waits[name] = waits.get(name, 0.0) + seconds
        for worker in serving:
            for key, count in worker.gaps.items():
                gaps[key] = gaps.get(key, 0.0) + count
        span = float(np.nanmax(self.finished_s, initial=0.0)) or 1.0
        names = ("prefill", "decode") if len(self.pools) > 1 else ("serving",)
        return Load(
            deployment=self.deployment,
            requests=self.requests,
            arrival_s=self.arrival_s[served],
            first_token_s=self.first_s[served],
            finished_s=self.finished_s[served],
            output_tokens=self.stream.output_tokens[served],
            served=served,
            ttft_parts_s=dict(
                zip(TTFT_PARTS, self.parts_s[served].mean(axis=0).tolist(), strict=True)
            )
            if len(served)
            else dict.fromkeys(TTFT_PARTS, 0.0),
            rejected=self.rejected,
            preemptions=sum(worker.preemptions for worker in every),
            gaps_s=np.exp(np.array(sorted(gaps), dtype=float) / GAP_BINS),
            gap_counts=np.array([gaps[key] for key in sorted(gaps)]),
            kv_peak_share=max(worker.peak for worker in serving),
            busy_share={
                name: float(np.mean([worker.busy_s for worker in workers])) / span
                for name, workers in zip(names, self.pools, strict=True)
            },
            waits_s=waits,
            mean_running=sum(worker.running_time for worker in serving) / span,
            mean_waiting=sum(worker.waiting_time for worker in every) / span,
            moments=[moment for worker in serving for moment in worker.moments],
        )
