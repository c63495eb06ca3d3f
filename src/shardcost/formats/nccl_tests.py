"""The text that nccl-tests and rccl-tests print: tables of sizes, times and bandwidths.

A log is what a user has: the output of every process, each line with the prefix of mpirun, srun or
a pod, between warnings and debug output, several tests in a row, or a few lines of a table without
any header. So a row is looked for anywhere in a line (`nccl_tests_rows`); other lines tell what the
rows are of. What the log does not say, which collective ran and on how many GPUs, follows from
busbw / algbw.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from shardcost.dtypes import canonical_dtype
from shardcost.errors import ShardcostError
from shardcost.formats.nccl_tests_rows import (
    ROW_ENDS,
    Half,
    collective_of,
    contradicts,
    is_header,
    is_number,
    is_root,
    is_whole_row,
    layout_of,
    likeliest_ranks,
    parsed_row,
    ranks_allowed,
    ratio_of,
    row_in,
)
from shardcost.formats.opened import lines_of, processes_in
from shardcost.formats.reading import (
    MOST_RUNS,
    MeasurementLog,
    PassedOver,
    Point,
    Run,
    Tick,
    canonical_collective,
    library_on,
    no_tick,
)

KIND: Final = "nccl-tests"
_RANK: Final = re.compile(
    r"#[ \t]*Rank[ \t]+([0-9]{1,9})[ \t]+(?:Group[ \t]+([0-9]{1,9})[ \t]+)?"
    r"Pid[ \t]+([0-9]{1,12})[ \t]+on[ \t]+(\S+)[ \t]+device[ \t]+[0-9]+[ \t]+\[[^\]]*\][ \t]*(.*)"
)
_PROCESS_SHAPE: Final = re.compile(r"nThreads?:?[ \t]+([0-9]{1,6})[ \t]+nGpus:?[ \t]+([0-9]{1,6})")
_GPUS: Final = re.compile(r"[ \t](?:-g|--ngpus)[ =]?([0-9]{1,6})\b")
_WORD_AT_END: Final = re.compile(r"[a-z_]{1,40}$")
_VERSION: Final = re.compile(r"\b(NCCL|RCCL) version:?[ \t]+([0-9][0-9.]{0,20})")
_LIBRARY_CODE: Final = re.compile(r"(nccl|rccl)-library=([0-9]{4,6})")
_SOURCE: Final = re.compile(r"[ \t]*(?:\[[0-9]+,([0-9]+)\]<std\w+>|([0-9]+)):")
_TELLING: Final = ("#", "_perf", "CCL version", "ccl-tests", "nThread")
"""A line without any of these says nothing about a test."""
_MOST_ROWS: Final = 10_000


def looks_like(head: str) -> bool:
    """Return whether a file begins like a log of nccl-tests, or holds rows of its tables."""
    if "_perf" in head and ("nThread" in head or "algbw" in head):
        return True
    lines = (line for line in head.replace("|", " ").splitlines() if len(line) < ROW_ENDS)
    return any(is_header(line) or is_whole_row(line) for line in lines)


def read(path: Path, tick: Tick = no_tick) -> MeasurementLog:
    """Return the runs that a log holds."""
    passed_over = PassedOver()
    log = _Log(passed_over)
    for number, line in lines_of(path, passed_over, tick):
        log.take(number, line)
        if log.rows >= _MOST_ROWS:
            passed_over.add(number + 1, f"all after {_MOST_ROWS:,} rows")
            break
    runs = (_run(draft, log) for draft in log.drafts if draft.halves)
    unread = passed_over.unread()
    why = f" ({unread[0].reason}: {unread[0].count})" if unread else ""
    nothing = f"holds no row of nccl-tests that can be read{why}"
    return MeasurementLog.of(path, KIND, runs, passed_over, nothing)


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
        group = min(ranks, key=lambda rank: rank.rank).group
        own = [rank for rank in ranks if rank.group == group]
        numbers = len({rank.rank for rank in own})
        return cls(
            ranks=numbers,
            hosts=len({rank.host for rank in own}),
            processes=len({(rank.host, rank.pid) for rank in ranks if rank.rank < numbers}),
            shared=len({(rank.host, rank.pid) for rank in own}) < len(own),
            groups=len({rank.group for rank in ranks}),
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
        row = row_in(line)
        telling = any(word in line for word in _TELLING)
        if row is None and not telling:
            self.passed_over.add(number, "lines of other output")
            return
        match = _SOURCE.match(line)
        source = (match[1] or match[2]) if match else ""
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
            draft = self._draft(source)  # that a program's first lines are about: new after a table
            if draft.halves:
                draft = self._begin(source, _Draft(test=self.mentioned))
            if shape:
                draft.per_process = int(shape[1]) * int(shape[2])
            if rank and len(draft.ranks) < _MOST_ROWS:
                group = int(rank[2] or 0)
                draft.ranks.append(
                    _RankLine(int(rank[1]), group, rank[3], rank[4], rank[5].strip()[:100])
                )
        if "Blocking Enabled" in line:
            self._draft(source).blocking = True
        if not is_header(line):
            self._take_name(line, source)
            return
        draft = self._draft(source)
        if draft.halves:
            draft = self._begin(source, draft.follower())
            draft.test = self.mentioned or draft.test
        draft.layout = layout_of(line)

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
        gpus = _GPUS.search(line[place:])
        self.processes = processes_in(line[:place]) or self.processes
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
        parsed = parsed_row(rest, size, draft.layout)
        if isinstance(parsed, str):
            kind, _, example = parsed.partition(" (first")
            self.passed_over.add(number, kind, parsed if example else "")
            return
        parameters = (dtype, *parsed.parameters)
        if size < draft.last_size or draft.parameters not in {(), parameters}:
            draft = self._begin(source, draft.follower())
        draft.last_size, draft.parameters = size, parameters
        for half in parsed.halves:
            draft.halves.append(half._replace(dtype=dtype, line=number))
        if parsed.cut_off:
            self.passed_over.add(number, "rows whose end is missing")


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
    collective, num_gpus, complete, notes = _question(draft, log)
    remarks = []
    if listed.groups > 1:
        remarks.append(f"{listed.groups} groups ran side by side; bandwidths are of one of them")
    wrong = sum(is_number(half.wrong) and float(half.wrong) > 0 for half in draft.halves)
    if wrong:
        remarks.append(f"{wrong} of {len(draft.halves)} times are of wrong results")
    if draft.blocking:
        remarks.append("each call was waited for, so times include the host's")
    return Run(
        collective=collective,
        num_gpus=num_gpus,
        nodes=listed.hosts if complete else 0,
        library=library_on(device, log.library),
        version=log.version,
        device=device,
        single_process=listed.shared or (not draft.ranks and draft.per_process > 1),
        points=tuple(
            Point(
                half.size_bytes, half.time_us * 1e-6, half.in_place, dtype_of(half.dtype), half.line
            )
            for half in draft.halves
        ),
        notes=(*notes, *remarks),
    )


def _question(draft: _Draft, log: _Log) -> tuple[str, int, bool, list[str]]:
    """Return the collective, its ranks, whether the log lists them all, and what was inferred."""
    notes: list[str] = []
    ratio = ratio_of((half.busbw, half.algbw) for half in draft.halves)
    known = canonical_collective(draft.test) if draft.test else ""
    if known is None:
        notes.append(f"{draft.test} is not a collective that shardcost predicts")
    collective = draft.test if known is None else known
    if ratio and not draft.certain and contradicts(collective, ratio):
        collective = ""
    if ratio and not collective:
        words = draft.parameters[1:]
        reduction = next((word for word in words if not is_root(word)), "none")
        checks = {half.in_place: half.wrong for half in draft.halves}
        collective = collective_of(
            ratio,
            reduces=reduction != "none",
            rooted=any(is_root(word) and int(word) >= 0 for word in words),
            in_place_unchecked=checks.get(True) == "N/A" != checks.get(False),
        )
        if collective:
            middle = (ratio.low + ratio.high) / 2
            notes.append(
                f"the collective is not named; busbw / algbw is {middle:.4g}, as of {collective}"
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
    listed = log.listed(draft)
    if listed.groups > 1:
        return listed.ranks, listed.ranks
    if draft.ranks:
        return listed.ranks, max(listed.ranks, draft.per_process * listed.processes)
    per_process = draft.per_process or log.per_process
    return 0, per_process * (log.processes or (per_process > 1))


def _how_many(allowed: tuple[int, int], inferred: int, stated: int) -> str:
    fewest, most = allowed
    bounds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    but = f", not {stated} as listed" if stated else ""
    if inferred:
        choice = "" if fewest == most else f"; {inferred} is taken"
        return f"the number of GPUs follows from busbw / algbw: {bounds}{but}{choice}"
    return f"the number of GPUs is not told; busbw / algbw allows {bounds}{but}"


def dtype_of(name: str) -> str:
    """Return shardcost's name of a number format, or the name as it is where there is none."""
    try:
        return canonical_dtype(name)
    except ShardcostError:
        return name
