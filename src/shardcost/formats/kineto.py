"""Traces of the PyTorch profiler (Kineto): what each rank computed and sent when.

Kernels that communicate carry what was asked for (`shardcost.formats.kineto_names`). On older
traces they do not; then the CPU operation that launched them is looked for
(`shardcost.formats.kineto_names.Launched`).

A trace of gigabytes is read in one pass: calls are kept in columns, and of compute only when it was
busy (`shardcost.formats.time_sets`). A file may hold several devices, each of which is a rank; the
traces that `shardcost.formats.chrome_trace` writes do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import FormatError
from shardcost.formats.json_stream import JsonStream
from shardcost.formats.kineto_names import (
    Call,
    Columns,
    CommGroup,
    Kind,
    Launched,
    Whole,
    call_of,
    call_of_annotation,
    collective_of_kernel,
    communicates,
    completed,
    listed_groups,
    plain,
    whole,
)
from shardcost.formats.opened import chunks_of, members_of
from shardcost.formats.reading import MOST_US, PassedOver, Reading, Tick, library_on, no_tick
from shardcost.formats.time_sets import Floats, Intervals, Union

KIND: Final = "kineto"
EVENTS: Final = "traceEvents"
HEAVIEST: Final = 10
"""Compute kernels that are named."""
_MOST_CALLS: Final = 2_000_000
_MOST_OPERATIONS: Final = 2_000_000
_MOST_LAUNCHES: Final = 2_000_000
_MOST_KINDS: Final = 65_536
_MOST_DEVICES: Final = 4_096
_MOST_NAMES: Final = 20_000
_LONGEST_NAME: Final = 160
_LATEST_US: Final = 1e17
_EVENT: Final = re.compile(r'\{\s{0,80}"ph"\s{0,8}:')
_BETWEEN: Final = re.compile(r'\}\s*,\s*\{(?=\s*"ph"\s*:)')
_UNUSED: Final = re.compile(
    r'\s*"ph"\s*:\s*(?:"[^X]"|"X"\s*,\s*"cat"\s*:\s*"(?:'
    r'(?:cpu_op|Operator)"\s*,\s*"name"\s*:\s*"(?!record_param_comms)'
    r'|python_function"|gpu_user_annotation"|overhead"))'
)
"""How events begin that say nothing here: most of a trace is what the host did."""
_ENDS_LIST: Final = re.compile(r"\}\s*\]")
_OTHERS: Final = "(other kernels)"
_NUMBERS: Final = frozenset({int, float})
_STRANGE: Final = "events that are no JSON objects with a category"
_NO_TIME: Final = "kernels without a time and duration that make sense"


class Calls(NamedTuple):
    """Calls of collectives in columns."""

    kinds: tuple[Kind, ...]
    kind: Whole
    """Number of its kind."""
    seq: Whole
    """Its number in its group, -1 where none is given."""
    size_bytes: Whole
    """As nccl-tests counts, 0 where it is unknown."""
    start_s: Floats
    duration_s: Floats
    stream: Whole


class Kernel(NamedTuple):
    """A compute kernel, all its launches together."""

    name: str
    time_s: float
    launches: int


@dataclass(frozen=True, eq=False)
class RankTrace:
    """What one device did. Times count from the first kernel in the file."""

    rank: int
    calls: Calls
    compute: Intervals
    communication: Intervals
    copies: Intervals
    span_s: float
    kernels: tuple[Kernel, ...]
    """The heaviest compute kernels."""
    launches: int
    """Of all compute kernels."""

    @property
    def busy(self) -> tuple[Intervals, ...]:
        """When it computes, communicates and copies."""
        return self.compute, self.communication, self.copies


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace(Reading):
    """What a profiler saw."""

    world_size: int
    backend: str
    device: str
    """As its driver names it."""
    ranks: tuple[RankTrace, ...]
    """Those whose kernels the file holds, mostly one."""

    @property
    def library(self) -> str:
        """The library behind PyTorch's ``nccl``, which is RCCL on AMD's devices."""
        return library_on(self.device, self.backend)


def looks_like(head: str) -> bool:
    """Return whether a file begins like a trace."""
    start = head.lstrip()[:1]
    if start == "[":
        return '"ph"' in head and '"ts"' in head
    has_devices = '"schemaVersion"' in head and '"deviceProperties"' in head
    return start == "{" and (f'"{EVENTS}"' in head or has_devices)


def read(path: Path, tick: Tick = no_tick) -> Trace:
    """Return what a trace holds, plain or gzipped."""
    reader = _Reader(PassedOver())
    with chunks_of(path, tick) as chunks:
        stream = JsonStream(chunks, str(path), {EVENTS}, _EVENT, reader.thinned)
        reader.passed_over = stream.passed_over
        for name, values in stream.parts():
            if name in {EVENTS, ""}:
                reader.take(values)
            elif name in {"distributedInfo", "deviceProperties"}:
                reader.about[name] = values[0]
    if not reader.events:
        unread = stream.passed_over.unread()
        why = f" (line {unread[0].first_line}: {unread[0].reason})" if unread else ""
        raise FormatError(str(path), f"holds no events of a trace{why}")
    return reader.trace(str(path))


class _Device:
    """What is gathered about one device."""

    def __init__(self) -> None:
        self.compute, self.communication, self.copies = Union(), Union(), Union()
        self.kernels: dict[str, list[float]] = {}
        self.calls = Columns("qqqddq")  # kind, seq, bytes, start, duration, stream
        self.orphans = Columns("qqq")  # call, external id, correlation

    def computed(self, name: str, duration: float) -> None:
        name = name[:_LONGEST_NAME]
        known = self.kernels.get(name)
        if known is None:
            if len(self.kernels) >= _MOST_NAMES:
                name = _OTHERS
            known = self.kernels.setdefault(name, [0.0, 0])
        known[0] += duration
        known[1] += 1

    def done(self, rank: int, kinds: tuple[Kind, ...], joined: Launched) -> RankTrace:
        """Return all of it, calls that do not say what they are joined with those that do.

        Times of start are still those of the file.
        """
        kind, seq, size, start, duration, stream = self.calls.arrays()
        calls, external, correlation = self.orphans.arrays()
        if len(calls):
            operation = joined.operation_of(external, correlation)
            known = operation >= 0
            for column, said in zip((kind, seq, size), joined.said, strict=True):
                column[calls[known]] = said[operation[known]]
        order = np.argsort(start, kind="stable")
        columns: list[NDArray[Any]] = [kind, seq, size, start, duration * 1e-6, stream]
        heaviest = sorted(self.kernels.items(), key=lambda item: -item[1][0])[:HEAVIEST]
        return RankTrace(
            rank=rank,
            calls=Calls(kinds, *(column[order] for column in columns)),
            compute=self.compute.intervals(),
            communication=self.communication.intervals(),
            copies=self.copies.intervals(),
            span_s=0.0,
            kernels=tuple(
                Kernel(plain(name, _LONGEST_NAME), totals[0] * 1e-6, int(totals[1]))
                for name, totals in heaviest
            ),
            launches=int(sum(totals[1] for totals in self.kernels.values())),
        )

    @property
    def busy(self) -> tuple[Union, ...]:
        return self.compute, self.communication, self.copies


class _Reader:
    """Takes events as they come."""

    def __init__(self, passed_over: PassedOver) -> None:
        self.passed_over = passed_over
        self.about: dict[str, Any] = {}
        self.events = 0
        self.devices: dict[int, _Device] = {}
        self.kinds: dict[Kind, int] = {}
        self.operations = Columns("qddqqqq")  # thread, start, end, external, kind, seq, bytes
        self.launches = Columns("qqd")  # correlation, thread, start
        self._names: dict[str, bool] = {}
        self._handlers = {
            **dict.fromkeys(("kernel", "Kernel"), self._kernel),
            **dict.fromkeys(("gpu_memcpy", "gpu_memset", "Memcpy", "Memset"), self._copied),
            **dict.fromkeys(("cpu_op", "Operator"), self._operation),
            "user_annotation": self._annotation,
            **dict.fromkeys(
                ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime"), self._launch
            ),
        }

    def thinned(self, text: str) -> str:
        """Return events without those that say nothing here, told by how they begin.

        What may hold the end of the list of events is kept. A text that does not fall into events
        as it seems to is no JSON without some of its pieces, and so is decoded as a whole.
        """
        if not (text.startswith("{") and text.endswith("}")):
            return text
        unused, ends = _UNUSED.match, _ENDS_LIST.search
        pieces = _BETWEEN.split(text[1:-1])
        kept = [piece for piece in pieces if not unused(piece) or ends(piece)]
        self.events += len(pieces) - len(kept)
        return f"{{{'},{'.join(kept)}}}" if kept else ""

    def take(self, events: list[Any]) -> None:
        """Take a batch of events."""
        handler_of = self._handlers.get
        self.events += len(events)
        for event in events:
            try:
                handler = handler_of(event.get("cat"))
            except (AttributeError, TypeError):
                self.passed_over.add(0, _STRANGE)
                self.events -= 1
                continue
            if handler is not None:
                handler(event)
        for device in self.devices.values():
            for intervals in device.busy:
                intervals.settle()

    def _device(self, event: Mapping[str, Any], args: Mapping[str, Any]) -> _Device | None:
        number = args.get("device", event.get("pid"))
        if type(number) is not int or abs(number) >= 2**62:
            number = 0
        device = self.devices.get(number)
        if device is None:
            if len(self.devices) >= _MOST_DEVICES:
                self.passed_over.add(0, f"kernels of devices beyond the first {_MOST_DEVICES:,}")
                return None
            device = self.devices[number] = _Device()
        return device

    def _kernel(self, event: Mapping[str, Any]) -> None:
        start, duration = _timed(event)
        name = event.get("name")
        if duration < 0 or not isinstance(name, str):
            self.passed_over.add(0, _NO_TIME)
            return
        args = _args(event)
        device = self._device(event, args)
        if device is None:
            return
        if self._communicates(name):
            union = device.communication
            self._called(device, event, args, start, duration)
        else:
            union = device.compute
            device.computed(name, duration)
        union.starts.append(start)
        union.ends.append(start + duration)

    def _communicates(self, name: str) -> bool:
        is_communication = self._names.get(name)
        if is_communication is None:
            is_communication = communicates(name)
            if len(self._names) < _MOST_NAMES and len(name) < 1024:
                self._names[name] = is_communication
        return is_communication

    def _called(
        self,
        device: _Device,
        event: Mapping[str, Any],
        args: Mapping[str, Any],
        start: float,
        duration: float,
    ) -> None:
        if len(device.calls) >= _MOST_CALLS:
            self.passed_over.add(0, f"collectives beyond the first {_MOST_CALLS:,}")
            return
        call = call_of(args)
        if call is None:
            call = Call(Kind(collective_of_kernel(event["name"]), CommGroup()), -1, 0)
            device.orphans.add(
                len(device.calls),
                whole(args.get("External id")) or 0,
                whole(args.get("correlation")) or 0,
            )
        stream = whole(args.get("stream", event.get("tid"))) or 0
        device.calls.add(self._kind(call), call.seq, call.size_bytes, start, duration, stream)

    def _kind(self, call: Call) -> int:
        """Return the number of a call's kind."""
        if call.doubt:
            self.passed_over.add(0, call.doubt)
        number = self.kinds.get(call.kind)
        if number is None:
            kind = call.kind
            if len(self.kinds) >= _MOST_KINDS:
                self.passed_over.add(0, f"groups beyond the first {_MOST_KINDS:,}")
                kind = Kind(kind.collective[:20], CommGroup())
            number = self.kinds.setdefault(kind, len(self.kinds))
        return number

    def _copied(self, event: Mapping[str, Any]) -> None:
        start, duration = _timed(event)
        if duration < 0:
            self.passed_over.add(0, _NO_TIME)
            return
        device = self._device(event, _args(event))
        if device is not None:
            device.copies.starts.append(start)
            device.copies.ends.append(start + duration)

    def _operation(self, event: Mapping[str, Any]) -> None:
        if event.get("name") == "record_param_comms":
            args = _args(event)
            call = call_of(args)
            if call is not None:
                self._launching(event, args, call)

    def _annotation(self, event: Mapping[str, Any]) -> None:
        name = event.get("name")
        if isinstance(name, str) and name.startswith("nccl:"):
            args = _args(event)
            self._launching(event, args, call_of_annotation(name, args))

    def _launching(self, event: Mapping[str, Any], args: Mapping[str, Any], call: Call) -> None:
        """Keep a CPU operation that launches a collective."""
        start, duration = _timed(event)
        if duration < 0 or len(self.operations) >= _MOST_OPERATIONS:
            return
        external = whole(args.get("External id")) or 0
        kind, thread = self._kind(call._replace(doubt="")), _thread(event)
        self.operations.add(
            thread, start, start + duration, external, kind, call.seq, call.size_bytes
        )

    def _launch(self, event: Mapping[str, Any]) -> None:
        name: Any = event.get("name")
        start: Any = event.get("ts")
        if not isinstance(name, str) or "aunch" not in name or type(start) not in _NUMBERS:
            return
        correlation = _args(event).get("correlation")
        if type(correlation) is not int or not 0 < correlation < 2**62:
            return
        correlations, threads, starts = self.launches.columns
        if abs(start) < _LATEST_US and len(starts) < _MOST_LAUNCHES:
            correlations.append(correlation)
            threads.append(_thread(event))
            starts.append(start)

    def trace(self, file: str) -> Trace:
        """Return all that was found."""
        about = members_of(self.about.get("distributedInfo"))
        groups = listed_groups(about.get("pg_config"))
        kinds = tuple(kind._replace(group=completed(kind.group, groups)) for kind in self.kinds)
        joined = Launched(self.operations, self.launches)
        stated = whole(about.get("rank"))
        several = len(self.devices) > 1
        ranks = _from_the_first(
            tuple(
                device.done(number if several or stated is None else stated, kinds, joined)
                for number, device in sorted(self.devices.items())
            )
        )
        closed = sum(union.closed for device in self.devices.values() for union in device.busy)
        if closed:
            reason = "short gaps between kernels, of which there are too many"
            self.passed_over.add(0, reason, count=closed)
        backend = about.get("backend")
        devices = self.about.get("deviceProperties")
        name = members_of(devices[0]).get("name") if isinstance(devices, list) and devices else None
        return Trace(
            file=file,
            kind=KIND,
            world_size=whole(about.get("world_size")) or 0,
            backend=plain(backend, 20) if isinstance(backend, str) else "",
            device=plain(name, 80) if isinstance(name, str) else "",
            ranks=ranks,
            unread=self.passed_over.unread(),
            notes=_notes(ranks),
        )


def _from_the_first(ranks: tuple[RankTrace, ...]) -> tuple[RankTrace, ...]:
    """Return ranks with times in seconds that count from the first kernel of all."""
    busy = [intervals for rank in ranks for intervals in rank.busy if len(intervals.starts)]
    origin = min((float(intervals.starts[0]) for intervals in busy), default=0.0)
    end = max((float(intervals.ends[-1]) for intervals in busy), default=0.0)
    return tuple(
        replace(
            rank,
            calls=rank.calls._replace(start_s=(rank.calls.start_s - origin) * 1e-6),
            compute=rank.compute.shifted(origin, 1e-6),
            communication=rank.communication.shifted(origin, 1e-6),
            copies=rank.copies.shifted(origin, 1e-6),
            span_s=(end - origin) * 1e-6,
        )
        for rank in ranks
    )


def _notes(ranks: tuple[RankTrace, ...]) -> tuple[str, ...]:
    if not ranks:
        return ("no GPU kernels: the profiler was not told to record them",)
    calls = sum(len(rank.calls.kind) for rank in ranks)
    if not calls:
        return ("no collective is in it",)
    blind = sum(int(np.count_nonzero(rank.calls.size_bytes == 0)) for rank in ranks)
    said = f"{blind:,} of {calls:,} collectives do not say their size"
    return (said,) if blind else ()


def _timed(event: Mapping[str, Any]) -> tuple[float, float]:
    """Return start and duration in microseconds; a negative duration where they are absurd."""
    start: Any = event.get("ts")
    duration: Any = event.get("dur")
    if (
        event.get("ph") == "X"
        and type(start) in _NUMBERS
        and type(duration) in _NUMBERS
        and -_LATEST_US < start < _LATEST_US
        and 0 <= duration < MOST_US
    ):
        return float(start), float(duration)
    return 0.0, -1.0


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return members_of(event.get("args"))


def _thread(event: Mapping[str, Any]) -> int:
    thread = event.get("tid")
    return thread if type(thread) is int and abs(thread) < 2**62 else hash(str(thread)) >> 2
