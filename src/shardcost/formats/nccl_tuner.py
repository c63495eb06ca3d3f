"""Files of NCCL's tuner plugin: rules that tell it what to run, and the measurements behind them.

A rule is a line ``allreduce,65536,262143,ring,ll128,-1,1,8,-1,-1``: for that collective and those
bytes (both ends included), on so many nodes and ranks, run that algorithm and protocol with so many
channels. -1 is *any* for what a rule matches, and *leave it to NCCL* for the channels. The last two
columns may be missing. What begins with ``#`` is a comment; the plugin has no heading, so a heading
stands in a comment.

The companion table has one measured time a row, ``collective,size_bytes,algorithm,…,latency_us``.
Its ``bandwidth_gbps`` is in GB/s; the time is taken from ``latency_us`` and the two are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from shardcost.errors import BadValueError, FormatError
from shardcost.formats.opened import text_of
from shardcost.formats.reading import (
    MeasurementLog,
    PassedOver,
    Point,
    Reading,
    Run,
    Tick,
    canonical_collective,
    no_tick,
    unsound,
)

RULES: Final = "nccl-tuner"
MEASUREMENTS: Final = "nccl-tuner-measurements"
COLLECTIVES: Final[Mapping[str, str]] = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_reduce": "allreduce",
}
"""What the plugin calls the collectives that it can tune."""
ALGORITHMS: Final = (
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat",
)  # fmt: skip
PROTOCOLS: Final = ("ll", "ll128", "simple")
HEADING: Final = (
    "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,"
    "numPipeOps,regBuff"
)

_MOST_LINES: Final = 20_000
_MOST_BYTES: Final = 2**63 - 1
_MOST_RANKS: Final = 10**7
_FEWEST_CELLS, _MOST_CELLS = 8, 10
_NEEDED: Final = ("collective", "size_bytes", "latency_us")
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?")
_MOST_COMPARED: Final = 32
"""Ranges of one group that later rules are compared with."""
_ALIKE: Final = 2.0
"""Rates that differ by more than this factor are not of the same time."""


@dataclass(frozen=True)
class TunerRule:
    """What to run for one collective and a range of sizes."""

    collective: str
    """By shardcost's name."""
    min_bytes: int
    max_bytes: int
    """Itself included. Bytes of the whole array, as nccl-tests counts."""
    algorithm: str
    protocol: str
    channels: int = -1
    nodes: int = -1
    ranks: int = -1
    pipe_ops: int = -1
    reg_buff: int = -1

    def __post_init__(self) -> None:
        """A rule is one that the plugin understands."""
        for name, value, known in (
            ("collective", self.collective, COLLECTIVES),
            ("algorithm", self.algorithm, ALGORITHMS),
            ("protocol", self.protocol, PROTOCOLS),
        ):
            if value not in known:
                raise BadValueError(name, value, f"one of {', '.join(known)}")
        if not 0 <= self.min_bytes <= self.max_bytes <= _MOST_BYTES:
            ends = (self.min_bytes, self.max_bytes)
            raise BadValueError("bytes", ends, "from a smaller size to a larger one")
        for name in ("channels", "nodes", "ranks", "pipe_ops", "reg_buff"):
            if not -1 <= getattr(self, name) <= _MOST_RANKS:
                raise BadValueError(name, getattr(self, name), "-1 for any, or a number from 0 on")

    def __str__(self) -> str:
        """Return the rule as a line of the plugin's file."""
        cells = (
            COLLECTIVES[self.collective], self.min_bytes, self.max_bytes, self.algorithm,
            self.protocol, self.channels, self.nodes, self.ranks, self.pipe_ops, self.reg_buff,
        )  # fmt: skip
        return ",".join(map(str, cells))


@dataclass(frozen=True, kw_only=True)
class TunerFile(Reading):
    """The rules of a file, in order: the plugin takes the first that matches."""

    rules: tuple[TunerRule, ...]


Line: TypeAlias = TunerRule | str
"""A rule, or the text of a comment."""


def looks_like(head: str) -> bool:
    """Return whether a file begins as the plugin's rules or their measurements do."""
    return kind_of(head) is not None


def kind_of(head: str) -> str | None:
    """Return which of the two kinds a file is; None if neither."""
    if HEADING[:40] in head[:4096].replace(" ", ""):
        return RULES
    first = next((line for _, line in _content(head[:8192])), "")
    cells = _cells(first)
    if cells[:2] == ["collective_type", "min_bytes"]:
        return RULES
    if set(_NEEDED) <= set(cells) and "algorithm" in cells:
        return MEASUREMENTS
    sound = len(cells) >= _FEWEST_CELLS and cells[3] in ALGORITHMS and cells[4] in PROTOCOLS
    return RULES if sound and cells[0] in COLLECTIVES.values() else None


def read(path: Path, tick: Tick = no_tick) -> TunerFile | MeasurementLog:
    """Return the rules, or the measurements, that a file holds."""
    text = text_of(path, tick)
    if kind_of(text[: 2**16]) == MEASUREMENTS:
        return _measurements(text, path)
    return _rules(text, str(path))


def as_csv(lines: Iterable[Line]) -> str:
    """Return rules and comments as the content of a file that the plugin reads."""
    written = (
        str(line) if isinstance(line, TunerRule) else f"# {' '.join(line.split())}".rstrip()
        for line in lines
    )
    return "".join(f"{line}\n" for line in written)


def _content(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither blank nor a comment, with their numbers."""
    lines = text.split("\n", _MOST_LINES)[:_MOST_LINES]
    for number, line in enumerate(lines, start=1):
        bare = line.strip()
        if bare and not bare.startswith("#"):
            yield number, bare


def _cells(line: str) -> list[str]:
    return [cell.strip().strip('"').lower() for cell in line.split(",", 40)]


def _pass_over_beyond(text: str, passed_over: PassedOver) -> None:
    """Count what is not read of a file of absurd length."""
    beyond = text.count("\n") + (not text.endswith("\n")) - _MOST_LINES
    if beyond > 0:
        reason = f"lines beyond the first {_MOST_LINES:,}"
        passed_over.add(_MOST_LINES + 1, reason, count=beyond)


def _rules(text: str, file: str) -> TunerFile:
    rules = []
    passed_over = PassedOver()
    for number, line in _content(text):
        cells = _cells(line)
        if cells[0] == "collective_type":
            continue
        try:
            rules.append(_rule(cells))
        except BadValueError as error:
            passed_over.add(number, f"a rule whose {error.argument} cannot be")
    if not rules:
        raise FormatError(file, "holds no rule of NCCL's tuner plugin")
    _pass_over_beyond(text, passed_over)
    # Of rules that match, the first is applied: one after it for the same groups and sizes is dead.
    ranges: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    count = 0
    for rule in rules:
        group = (rule.collective, rule.nodes, rule.ranks, rule.pipe_ops, rule.reg_buff)
        before = ranges.setdefault(group, [])
        if any(least <= rule.min_bytes and rule.max_bytes <= most for least, most in before):
            count += 1
        elif len(before) < _MOST_COMPARED:
            before.append((rule.min_bytes, rule.max_bytes))
    words = f"{count} of the rules never match: one before them covers the same groups and sizes"
    return TunerFile(
        file=file,
        kind=RULES,
        unread=passed_over.unread(),
        notes=(words,) if count else (),
        rules=tuple(rules),
    )


def _rule(cells: Sequence[str]) -> TunerRule:
    if not _FEWEST_CELLS <= len(cells) <= _MOST_CELLS:
        raise BadValueError("number of columns", len(cells), "8 to 10")
    own_names = {theirs: ours for ours, theirs in COLLECTIVES.items()}
    names = ("min_bytes", "max_bytes", "channels", "nodes", "ranks", "pipe_ops", "reg_buff")
    numbers = [
        _whole(name, cell) for name, cell in zip(names, [*cells[1:3], *cells[5:]], strict=False)
    ]
    return TunerRule(
        own_names.get(cells[0], cells[0]),
        numbers[0],
        numbers[1],
        cells[3],
        cells[4],
        *numbers[2:],
    )


def _whole(name: str, cell: str) -> int:
    if not _WHOLE.fullmatch(cell):
        raise BadValueError(name, cell, "a whole number")
    return int(cell)


def _measurements(text: str, path: Path) -> MeasurementLog:
    lines = _content(text)
    head = _cells(next(lines)[1])
    points: dict[tuple[str, ...], list[Point]] = {}
    passed_over = PassedOver()
    odd = 0
    for number, line in lines:
        row = dict(zip(head, _cells(line), strict=False))
        try:
            key, point = _measured(row, number)
        except BadValueError as error:
            passed_over.add(number, f"a row whose {error.argument} cannot be")
            continue
        points.setdefault(key, []).append(point)
        odd += _rates_apart(row, point)
    _pass_over_beyond(text, passed_over)
    note = f"in {odd} rows bandwidth_gbps is not size over latency_us, which is taken for the time"
    nothing = "holds no sound row of the tuner's measurements"
    runs = (_run(key, own) for key, own in points.items())
    notes = [note] if odd else []
    return MeasurementLog.of(path, MEASUREMENTS, runs, passed_over, nothing, notes)


def _measured(row: Mapping[str, str], line: int) -> tuple[tuple[str, ...], Point]:
    """Return a row's point, and what tells its run from others."""
    collective = canonical_collective(row.get("collective", ""))
    if collective is None:
        raise BadValueError("collective", row.get("collective", ""), "a known one")
    size = _whole("size_bytes", row.get("size_bytes", ""))
    if unsound("rows", size, 1.0):
        raise BadValueError("size_bytes", size, "above 0, at most 4 EiB")
    latency = row.get("latency_us", "")
    time_us = float(latency) if _DECIMAL.fullmatch(latency) else 0.0
    if unsound("rows", size, time_us):
        raise BadValueError("latency_us", latency, "a number above 0, below 11 days")
    counts = []
    for name in ("ranks", "nodes"):
        count = _whole(name, row.get(name, "-1"))
        if not -1 <= count <= _MOST_RANKS:
            raise BadValueError(name, count, "-1 or a number")
        counts.append(str(max(0, count)))  # 0 where any is meant
    how = (row.get("algorithm", ""), row.get("protocol", ""), row.get("channels", "-1"))
    shown = tuple("".join(c for c in word[:40] if c.isprintable()) for word in how)
    return (collective, *counts, *shown), Point(size, time_us * 1e-6, line=line)


def _rates_apart(row: Mapping[str, str], point: Point) -> bool:
    """Return whether a row's rate is not of its time, whichever way the rate counts."""
    cell = row.get("bandwidth_gbps", "")
    if not _DECIMAL.fullmatch(cell) or not float(cell):
        return False
    ratio = float(cell) * 1e9 * point.time_s / point.size_bytes
    return not 1 / _ALIKE <= ratio <= _ALIKE


def _run(key: tuple[str, ...], points: list[Point]) -> Run:
    collective, ranks, nodes, algorithm, protocol, channels = key
    channelled = f", {channels} channels" if channels not in {"", "-1"} else ""
    return Run(
        collective=collective,
        num_gpus=int(ranks),
        nodes=int(nodes),
        library="nccl",
        points=tuple(points),
        notes=(f"{algorithm} {protocol}{channelled}",),
    )
