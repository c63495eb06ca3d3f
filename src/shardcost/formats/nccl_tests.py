"""The text that nccl-tests and rccl-tests print: tables of sizes, times and bandwidths.

A log is what a user has: the output of every process, each line with the prefix of mpirun, srun or
a pod, between warnings and debug output, several tests in a row, or a few lines of a table without
any header. So a row is looked for anywhere in a line, by its shape: two whole numbers, a number
format, then the columns that the header names, or those that are usual where there is none.

The time of a row must agree with its algbw, which is size / time. That shows other units, shifted
columns and damaged lines. What the log does not say, which collective ran and on how many GPUs,
follows from busbw / algbw (`bus_ratio`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from shardcost.dtypes import canonical_dtype
from shardcost.errors import FormatError, ShardcostError
from shardcost.formats.bus_ratio import (
    Interval,
    as_printed,
    collective_of,
    contradicts,
    likeliest_ranks,
    ranks_allowed,
    ratio_of,
)
from shardcost.formats.collective_names import canonical_collective
from shardcost.formats.log_lines import PassedOver, lines_of
from shardcost.formats.reading import LEAST_US, MOST_RUNS, MeasurementLog, Point, Run, Tick, no_tick
from shardcost.units import GIGA

KIND: Final = "nccl-tests"
_ROW: Final = re.compile(
    r"(?<![\w.])([0-9]{1,40})[ \t]+([0-9]{1,40})[ \t]+([a-z][a-z0-9_]{2,15})(?=[ \t])(.*)"
)
_RANK: Final = re.compile(
    r"#[ \t]*Rank[ \t]+([0-9]{1,9})[ \t]+(?:Group[ \t]+([0-9]{1,9})[ \t]+)?"
    r"Pid[ \t]+([0-9]{1,12})[ \t]+on[ \t]+(\S+)[ \t]+device[ \t]+[0-9]+[ \t]+\[[^\]]*\][ \t]*(.*)"
)
_PROCESS_SHAPE: Final = re.compile(r"nThreads?:?[ \t]+([0-9]{1,6})[ \t]+nGpus:?[ \t]+([0-9]{1,6})")
_PROCESSES: Final = re.compile(r"[ \t](?:-np|-n|--ntasks)[ =]?([0-9]{1,6})\b")
_GPUS: Final = re.compile(r"[ \t](?:-g|--ngpus)[ =]?([0-9]{1,6})\b")
_WORD_AT_END: Final = re.compile(r"[a-z_]{1,40}$")
_VERSION: Final = re.compile(r"\b(NCCL|RCCL) version:?[ \t]+([0-9][0-9.]{0,20})")
_LIBRARY_CODE: Final = re.compile(r"(nccl|rccl)-library=([0-9]{4,6})")
_SOURCE: Final = re.compile(r"[ \t]*(?:\[[0-9]+,([0-9]+)\]<std\w+>|([0-9]+)):")
_HEADER_WORDS: Final = ("algbw", "busbw", "time")
_FORMATS: Final = ("float", "half", "int", "double", "f8", "fp8", "char")
"""What names of number formats contain: a line without any of these is no row, which is cheaper to
see than by the regular expression."""
_ROW_ENDS: Final = 1000
_TELLING: Final = ("#", "_perf", "CCL version", "ccl-tests", "nThread")
"""A line without any of these says nothing about a test."""
_NUMBER: Final = re.compile(r"[0-9]{1,25}(?:\.[0-9]{0,25})?(?:[eE][+-]?[0-9]{1,2})?")
_ROOT: Final = re.compile(r"-?[0-9]{1,7}")
_BLANK_HALF: Final = re.compile(r"[ \t]{30}")
"""Where the columns out of place are left blank."""
_MOST_BYTES: Final = 2**62
_MOST_US: Final = 1e12
_MOST_ROWS: Final = 10_000
_AGREES: Final = 0.005
"""Relative: how far algbw may be from size / time beyond what rounding explains."""

_USUAL: Final = ("time", "algbw", "busbw", "wrong")
_PER_ITERATION: Final = ("i_min", "i_max", "i_p99", "i_cv%")
_USUAL_LAYOUTS: Final = tuple(
    (half, half) for half in (_USUAL, _USUAL[:3], _USUAL + _PER_ITERATION)
)
"""The columns of a row after its parameters: each half, out of place and in place, in order."""


def looks_like(head: str) -> bool:
    """Return whether a file begins like a log of nccl-tests, or holds rows of its tables."""
    if "_perf" in head and ("nThread" in head or "algbw" in head):
        return True
    lines = (line for line in head.replace("|", " ").splitlines() if len(line) < _ROW_ENDS)
    return any(_is_header(line) or _is_whole_row(line) for line in lines)


def read(path: Path, tick: Tick = no_tick) -> MeasurementLog:
    """Return the runs that a log holds."""
    passed_over = PassedOver()
    log = _Log(passed_over)
    for number, line in lines_of(path, passed_over, tick):
        log.take(number, line)
        if log.rows >= _MOST_ROWS:
            passed_over.add(number + 1, f"all after {_MOST_ROWS:,} rows")
            break
    drafts = [draft for draft in log.drafts if draft.halves]
    unread = passed_over.unread()
    if not drafts:
        why = f" ({unread[0].reason}: {unread[0].count})" if unread else ""
        raise FormatError(str(path), f"holds no row of nccl-tests that can be read{why}")
    return MeasurementLog(
        file=str(path),
        kind=KIND,
        runs=tuple(_run(draft, log) for draft in drafts),
        unread=unread,
    )


class Half(NamedTuple):
    """One half of a row: out of place or in place."""

    size_bytes: int
    time_us: float
    algbw: Interval
    """GB/s, as printed and by size / time."""
    busbw: Interval
    wrong: str
    in_place: bool
    dtype: str
    line: int


class _RankLine(NamedTuple):
    rank: int
    group: int
    pid: str
    host: str
    device: str


class _Listed(NamedTuple):
    """What a list of ranks says, of the group that prints: that of the first rank."""

    ranks: int
    hosts: int
    processes: int
    """Of the ranks that are numbered from 0 on without a gap."""
    shared: bool
    """Whether a process drives several of them."""
    groups: int
    """That are in the list."""
    device: str

    @classmethod
    def of(cls, ranks: Sequence[_RankLine]) -> _Listed:
        if not ranks:
            return cls(0, 0, 0, shared=False, groups=0, device="")
        group = min(ranks, key=lambda each: each.rank).group
        own = [each for each in ranks if each.group == group]
        numbers = len({each.rank for each in own})
        return cls(
            ranks=numbers,
            hosts=len({each.host for each in own}),
            processes=len({(each.host, each.pid) for each in ranks if each.rank < numbers}),
            shared=len({(each.host, each.pid) for each in own}) < len(own),
            groups=len({each.group for each in ranks}),
            device=ranks[0].device,
        )


@dataclass
class _Draft:
    """What is known of one table so far."""

    test: str = ""
    """The name of the program, where the log says it."""
    certain: bool = False
    """Whether the program itself said its name, so that a mention does not change it."""
    ranks: list[_RankLine] = field(default_factory=list)
    per_process: int = 0
    """Threads times GPUs of each process."""
    layout: tuple[tuple[str, ...], ...] = ()
    """The halves of a row; empty as long as there was no header."""
    parameters: tuple[str, ...] = ()
    """Number format, reduction and root of its rows, as far as they were printed."""
    halves: list[Half] = field(default_factory=list)
    last_size: int = 0
    blocking: bool = False
    beyond: bool = False
    """Whether there were too many tables before it, so that its rows are only counted."""

    def follower(self) -> _Draft:
        """Return the draft of a table that the same program prints next."""
        return replace(self, halves=[], last_size=0, parameters=(), certain=False)


@dataclass
class _Log:
    """A log being read, line by line: a draft in progress for each process that prints."""

    passed_over: PassedOver
    drafts: list[_Draft] = field(default_factory=list)
    current: dict[str, _Draft] = field(default_factory=dict)
    mentioned: str = ""
    """The test that a command line named last."""
    processes: int = 0
    """As such a command line says."""
    per_process: int = 0
    """GPUs of each, likewise."""
    rows: int = 0
    library: str = "nccl"
    version: str = ""
    lists: dict[int, _Listed] = field(default_factory=dict)
    """What lists of ranks say, by the identity of the list: tables of one program share one."""

    def listed(self, draft: _Draft) -> _Listed:
        """Return what a draft's list of ranks says, once all lines are read."""
        key = id(draft.ranks)
        if key not in self.lists:
            self.lists[key] = _Listed.of(draft.ranks)
        return self.lists[key]

    def take(self, number: int, line: str) -> None:
        """Understand one line."""
        line = line.replace("|", " ")  # a table pasted into a document
        row = _row_in(line)
        telling = any(word in line for word in _TELLING)
        if row is None and not telling:
            self.passed_over.add(number, "lines of other output")
            return
        found = _SOURCE.match(line)
        source = (found[1] or found[2]) if found else ""
        if row is not None and "#" not in line[: row.start()]:
            self._take_row(number, row, source)
        elif telling:
            self._take_comment(line, source)

    def _draft(self, source: str) -> _Draft:
        if source not in self.current:
            if len(self.drafts) >= MOST_RUNS:
                return _Draft(beyond=True)
            self._begin(source, _Draft(test=self.mentioned))
        return self.current[source]

    def _begin(self, source: str, draft: _Draft) -> _Draft:
        self.current[source] = draft
        draft.beyond = len(self.drafts) >= MOST_RUNS
        if not draft.beyond:
            self.drafts.append(draft)
        return draft

    def _take_comment(self, line: str, source: str) -> None:
        self._take_versions(line)
        rank = _RANK.search(line) if "Rank" in line else None
        shape = _PROCESS_SHAPE.search(line) if "nThread" in line else None
        if "test starting:" in line or shape or rank or "Using devices" in line:
            draft = self._preamble(source)
            if shape:
                draft.per_process = int(shape[1]) * int(shape[2])
            if rank and len(draft.ranks) < _MOST_ROWS:
                group = int(rank[2] or 0)
                draft.ranks.append(
                    _RankLine(int(rank[1]), group, rank[3], rank[4], rank[5].strip()[:100])
                )
        if "Blocking Enabled" in line:
            self._draft(source).blocking = True
        if _is_header(line):
            self._take_header(line, source)
        else:
            self._take_name(line, source)

    def _preamble(self, source: str) -> _Draft:
        """Return the draft that a program's first lines are about: a new one after a table."""
        draft = self._draft(source)
        return self._begin(source, _Draft(test=self.mentioned)) if draft.halves else draft

    def _take_header(self, line: str, source: str) -> None:
        draft = self._draft(source)
        if draft.halves:
            draft = self._begin(source, draft.follower())
            draft.test = self.mentioned or draft.test
        draft.layout = _layout(line)

    def _take_name(self, line: str, source: str) -> None:
        """Keep the name of a test, from the program's own words or from a command line."""
        place = line.find("_perf")
        word = _WORD_AT_END.search(line[max(0, place - 40) : max(0, place)])
        if not word:
            return
        if "test starting:" in line or "test concluded:" in line:
            draft = self._draft(source)
            draft.test, draft.certain, self.mentioned = word[0], True, ""
            return
        self.mentioned = word[0]
        processes, gpus = _PROCESSES.search(line[:place]), _GPUS.search(line[place:])
        self.processes = int(processes[1]) if processes else self.processes
        self.per_process = int(gpus[1]) if gpus else self.per_process
        for draft in self.current.values():
            if not draft.halves and not draft.certain:
                draft.test = word[0]

    def _take_versions(self, line: str) -> None:
        named = _VERSION.search(line) if "CCL version" in line else None
        coded = _LIBRARY_CODE.search(line) if "ccl-library=" in line else None
        if named:
            self.library, self.version = named[1].lower(), named[2].rstrip(".")
        elif coded:
            self.library, self.version = coded[1], version_of(int(coded[2]))
        elif "rccl-tests" in line:
            self.library = "rccl"

    def _take_row(self, number: int, row: re.Match[str], source: str) -> None:
        draft = self._draft(source)
        self.rows += 1
        if draft.beyond:
            self.passed_over.add(number, "rows of too many tables")
            return
        size, dtype, rest = int(row[1]), row[3], row[4]
        parsed = _parsed_row(rest, size, draft.layout)
        reason = parsed if isinstance(parsed, str) else ""
        if not 0 < size <= _MOST_BYTES:
            reason = "rows of 0 bytes" if size == 0 else "sizes beyond 4 EiB"
        if reason or isinstance(parsed, str):
            kind, _, example = reason.partition(" (first")
            self.passed_over.add(number, kind, reason if example else "")
            return
        parameters = (dtype, *parsed.parameters)
        if size < draft.last_size or draft.parameters not in {(), parameters}:
            draft = self._begin(source, draft.follower())
        draft.last_size, draft.parameters = size, parameters
        for half in parsed.halves:
            draft.halves.append(half._replace(dtype=dtype, line=number))
        if parsed.cut_off:
            self.passed_over.add(number, "rows whose end is missing")


class _Row(NamedTuple):
    parameters: tuple[str, ...]
    halves: list[Half]
    cut_off: bool


def _row_in(line: str) -> re.Match[str] | None:
    """Return where a row stands in a line, after whatever prefix."""
    if any(word in line for word in _FORMATS):
        return _ROW.search(line, 0, _ROW_ENDS)
    return None


def _is_header(line: str) -> bool:
    return all(word in line for word in _HEADER_WORDS) and ("size" in line or "bytes" in line)


def _is_whole_row(line: str) -> bool:
    row = _row_in(line)
    return row is not None and isinstance(_parsed_row(row[4], int(row[1]), ()), _Row)


def _layout(line: str) -> tuple[tuple[str, ...], ...]:
    """Return the halves that a header names: each begins with the time."""
    words = [word.lstrip("#") for word in line.split() if word != "timestamp"]
    starts = [i for i, word in enumerate(words) if word in {"time", "cputime"}]
    bounds = [*starts, len(words)]
    return tuple(tuple(words[start:end]) for start, end in pairwise(bounds))


def _parsed_row(rest: str, size: int, layout: tuple[tuple[str, ...], ...]) -> _Row | str:
    """Return a row from what follows its number format, or why there is none.

    The reduction and the root may be blank, and columns differ between versions. What is right is
    what makes the times agree with the bandwidths; if nothing does, the row is not to be trusted.
    """
    if layout and "cputime" in layout[0]:
        return "rows of host time (-C 1), which is not how long a collective takes"
    refused = ""
    for parameters, columns in _readings(rest.split()):
        for halves in [layout] if layout else _USUAL_LAYOUTS:
            blank = bool(_BLANK_HALF.search(rest)) and len(columns) < sum(map(len, halves))
            found = _halves(columns, halves[1:] if blank else halves, size, in_place=blank)
            if isinstance(found, str):
                refused = refused or found
            else:
                expected = len(halves) - blank
                return _Row(parameters, found, len(found) < expected)
    return refused or "rows without a time"


def _readings(words: list[str]) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    """Yield the ways to split words into parameters (reduction, root) and columns."""
    reduction = [] if not words or _ROOT.fullmatch(words[0]) or _is_number(words[0]) else words[:1]
    others = words[len(reduction) :]
    if others and _ROOT.fullmatch(others[0]):
        yield (*reduction, others[0]), others[1:]
    yield tuple(reduction), others


def _is_number(word: str) -> bool:
    return _NUMBER.fullmatch(word) is not None


def _halves(
    columns: list[str], layout: Sequence[tuple[str, ...]], size: int, *, in_place: bool
) -> list[Half] | str:
    """Return the halves of a row that are whole, all of them sound, or why not."""
    found: list[Half] = []
    for names in layout:
        cells = dict(zip(names, columns, strict=False))
        if not {"algbw", "busbw"} <= cells.keys():
            break
        half = _half(cells, size, in_place=in_place)
        if isinstance(half, str):
            return half
        found.append(half)
        columns, in_place = columns[len(names) :], True
    return found or "rows whose end is missing"


def _half(cells: dict[str, str], size: int, *, in_place: bool) -> Half | str:
    if not all(_is_number(cells[name]) for name in ("time", "algbw", "busbw")):
        return "rows whose time or bandwidth is no number"
    time = as_printed(cells["time"])
    if not LEAST_US <= float(cells["time"]) < _MOST_US:
        return "rows with a time of 0" if float(cells["time"]) < 1 else "times beyond 11 days"
    printed = as_printed(cells["algbw"])
    computed = Interval(
        size / time.high * 1e6 / GIGA,
        size / max(time.low, 1e-9) * 1e6 / GIGA,
    )
    allowed = Interval(computed.low * (1 - _AGREES), computed.high * (1 + _AGREES))
    if size and not printed.meets(allowed):
        return (
            "rows whose size / time is not their algbw (first:"
            f" {cells['algbw']} GB/s is printed, {size / float(cells['time']) / 1e3:.4g} follows;"
            " other units?)"
        )
    algbw = printed.within(computed) if printed.meets(computed) else computed
    wrong = cells.get("wrong", cells.get("error", ""))
    us = float(cells["time"])
    return Half(size, us, algbw, as_printed(cells["busbw"]), wrong, in_place, "", 0)


def version_of(code: int) -> str:
    """Return the version that NCCL's number stands for.

    >>> version_of(22304), version_of(2708)
    ('2.23.4', '2.7.8')
    """
    step = 10000 if code >= 10000 else 1000
    return f"{code // step}.{code % step // 100}.{code % 100}"


def _run(draft: _Draft, log: _Log) -> Run:
    """Return a table as a run, with what had to be inferred said in its notes."""
    listed = log.listed(draft)
    device = listed.device
    amd = any(word in device for word in ("AMD", "Instinct", "Radeon", "gfx"))
    collective, num_gpus, complete, notes = _question(draft, log)
    return Run(
        collective=collective,
        num_gpus=num_gpus,
        nodes=listed.hosts if complete else 0,
        library="rccl" if amd else log.library,
        version=log.version,
        device=device,
        single_process=listed.shared or (not draft.ranks and draft.per_process > 1),
        points=tuple(
            Point(
                each.size_bytes, each.time_us * 1e-6, each.in_place, dtype_of(each.dtype), each.line
            )
            for each in draft.halves
        ),
        notes=(*notes, *_remarks(draft, listed.groups)),
    )


def _question(draft: _Draft, log: _Log) -> tuple[str, int, bool, list[str]]:
    """Return the collective, its ranks, whether the log lists them all, and what was inferred."""
    notes: list[str] = []
    ratio = ratio_of((half.busbw, half.algbw) for half in draft.halves)
    collective = _named(draft, notes)
    if ratio and not draft.certain and contradicts(collective, ratio):
        collective = ""
    if ratio and not collective:
        collective = collective_of(ratio, **_traits(draft))
        if collective:
            middle = (ratio.low + ratio.high) / 2
            notes.append(
                f"the collective is not named; busbw / algbw of {middle:.4g} tells {collective}"
            )
            if collective == "all_reduce" and ratio.low <= 1:
                notes.append("a send_recv of any number of GPUs would look the same")
    listed, stated = _ranks_stated(draft, log)
    allowed = ranks_allowed(collective, ratio) if ratio else None
    if allowed is None or (allowed[0] <= stated <= allowed[1]):
        return collective, stated, 0 < listed == stated, notes
    inferred = likeliest_ranks(allowed)
    notes.append(_how_many(allowed, inferred, stated))
    return collective, inferred, False, notes


def _ranks_stated(draft: _Draft, log: _Log) -> tuple[int, int]:
    """Return how many ranks a log lists, of the group that prints, and how many it says there are.

    Long lists are cut off, so that processes times the GPUs of each may be more.
    """
    found = log.listed(draft)
    if found.groups > 1:
        return found.ranks, found.ranks
    if draft.ranks:
        return found.ranks, max(found.ranks, draft.per_process * found.processes)
    each = draft.per_process or log.per_process
    return 0, each * (log.processes or (each > 1))


def _named(draft: _Draft, notes: list[str]) -> str:
    """Return the collective that the log names; the test's own name where it is another one."""
    if not draft.test:
        return ""
    bare = draft.test
    known = canonical_collective(draft.test)
    if known is None:
        notes.append(f"{bare} is not a collective that shardcost predicts")
    return known or bare


def _how_many(allowed: tuple[int, int], inferred: int, stated: int) -> str:
    fewest, most = allowed
    bounds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    but = f", not {stated} as listed" if stated else ""
    if inferred:
        choice = "" if fewest == most else f"; {inferred} is taken"
        return f"the number of GPUs follows from busbw / algbw: {bounds}{but}{choice}"
    return f"the number of GPUs is not told; busbw / algbw allows {bounds}{but}"


def _traits(draft: _Draft) -> dict[str, bool]:
    """Return what the rows show of their collective, besides bandwidths."""
    words = draft.parameters[1:]
    roots = [int(word) for word in words if _ROOT.fullmatch(word)]
    reduction = next((word for word in words if not _ROOT.fullmatch(word)), "none")
    checks = {half.in_place: half.wrong for half in draft.halves}
    return {
        "reduces": reduction != "none",
        "rooted": any(root >= 0 for root in roots),
        "in_place_unchecked": checks.get(True) == "N/A" != checks.get(False),
    }


def _remarks(draft: _Draft, groups: int) -> list[str]:
    """Return what else to mind about a table of one of so many groups."""
    remarks = []
    if groups > 1:
        remarks.append(f"{groups} groups ran side by side; bandwidths are of one of them")
    wrong = sum(_is_number(half.wrong) and float(half.wrong) > 0 for half in draft.halves)
    if wrong:
        remarks.append(f"{wrong} of {len(draft.halves)} times are of wrong results")
    if draft.blocking:
        remarks.append("each call was waited for, so times include the host's")
    return remarks


def dtype_of(name: str) -> str:
    """Return shardcost's name of a number format, or the name as it is where there is none."""
    try:
        return canonical_dtype(name)
    except ShardcostError:
        return name
