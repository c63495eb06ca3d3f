"""The JSON that nccl-tests writes with ``-J``, without the environment that it holds.

Such a file dumps every variable of the environment, secrets among them: nothing of that is kept.
Truths are the texts ``"true"`` and ``"false"``, what is not a number is the text ``"nan"``, and a
half of a result may be null. Each process lists only its first device, so that the ranks are
threads times GPUs times the devices listed. A file whose end is missing is read as far as it goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from shardcost.errors import FormatError
from shardcost.formats.nccl_tests import KIND, dtype_of, version_of
from shardcost.formats.nccl_tests_rows import Interval, likeliest_ranks, ranks_allowed, ratio_of
from shardcost.formats.opened import MOST_JSON_BYTES, finite, members_of, parse_object, text_of_log
from shardcost.formats.reading import (
    MeasurementLog,
    PassedOver,
    Point,
    Run,
    Tick,
    canonical_collective,
    library_on,
    no_tick,
    unsound,
)
from shardcost.units import GIGA

_MOST_RANKS: Final = 10**7
_MOST_RESULTS: Final = 20_000
_AGREES: Final = 0.01
_RESULTS: Final = re.compile(r'"results"\s{0,100}:\s{0,100}\[')
_HALVES: Final = (("out_of_place", False), ("in_place", True))


def looks_like(head: str) -> bool:
    """Return whether a file begins like a report of nccl-tests."""
    begins = head.lstrip()[:1] == "{"
    known = ('"nccl_version"', '"minimum_bytes"', '"out_of_place"', '"env"')
    named = "_perf" in head or '"nthreads"' in head
    return begins and named and '"args"' in head and any(word in head for word in known)


def read(path: Path, tick: Tick = no_tick) -> MeasurementLog:
    """Return the runs that a report holds."""
    passed_over = PassedOver()
    report = _report(text_of_log(path, passed_over, MOST_JSON_BYTES, tick), str(path), passed_over)
    machine = _Machine.of(report)
    results = list(_results(report, passed_over))
    alike = groupby(results, key=lambda result: result.test)
    runs = (_run(list(members), machine) for _, members in alike)
    nothing = "is a report of nccl-tests without a result that can be read"
    return MeasurementLog.of(path, KIND, runs, passed_over, nothing)


class _Result(NamedTuple):
    test: tuple[str, str, str, str]
    """Name of the experiment, number format, reduction and root; alike within a run."""
    points: list[Point]
    rates: list[tuple[Interval, Interval]]
    """busbw and algbw of each point that has them."""
    wrong: int


class _Machine(NamedTuple):
    test: str
    num_gpus: int
    nodes: int
    device: str
    version: str
    single_process: bool
    notes: tuple[str, ...]

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> _Machine:
        """Return what a report says of the machine, the environment left aside."""
        config = members_of(report.get("config"))
        listed = config.get("devices")
        devices = [members_of(device) for device in listed] if isinstance(listed, list) else []
        per_process = _whole(config.get("nthreads")) * _whole(config.get("ngpus"))
        groups = {_whole(device.get("group")) for device in devices}
        first = _whole(devices[0].get("group")) if devices else 0
        own = [device for device in devices if _whole(device.get("group")) == first]
        args = report.get("args")
        name = args[0] if isinstance(args, list) and args and isinstance(args[0], str) else ""
        note = f"{len(groups)} groups ran side by side; bandwidths are of one of them"
        ranks = per_process * len(own)
        code = _whole(report.get("nccl_version"))
        return cls(
            test=name,
            num_gpus=ranks if ranks <= _MOST_RANKS else 0,
            nodes=len({str(device.get("hostname")) for device in own}),
            device=str(own[0].get("device_info") or "").strip()[:100] if own else "",
            version=version_of(code) if 1000 <= code < 10**6 else "",
            single_process=per_process > 1,
            notes=(note,) if len(groups) > 1 else (),
        )


def _report(text: str, file: str, passed_over: PassedOver) -> dict[str, Any]:
    """Return a report; of one whose end is missing, the results that are whole."""
    try:
        return parse_object(text, file)
    except FormatError as error:
        start = _RESULTS.search(text)
        if not start:
            raise
        head = text[: start.start()].rstrip().rstrip(",")
        report = parse_object(head + "}", file)
        results, end = _whole_results(text, start.end())
        line = text.count("\n", 0, end) + 1
        passed_over.add(line, "damaged", f"what follows the last whole result: {error.reason}")
        return report | {"results": results}


def _whole_results(text: str, place: int) -> tuple[list[Any], int]:
    """Return the results from a place on that are whole, and where the last of them ends."""
    decoder = json.JSONDecoder(
        parse_int=lambda digits: int(digits) if len(digits) <= 40 else None,
        parse_constant=lambda _: None,
    )
    results: list[Any] = []
    while len(results) < _MOST_RESULTS:
        gap = re.compile(r"[\s,]{0,1000}").match(text, place)
        place = gap.end() if gap else place
        try:
            result, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            break
        results.append(result)
    return results, place


def _results(report: Mapping[str, Any], passed_over: PassedOver) -> Iterator[_Result]:
    listed = report.get("results")
    for number, entry in enumerate(listed if isinstance(listed, list) else [], 1):
        if number > _MOST_RESULTS:
            passed_over.add(0, f"results after the first {_MOST_RESULTS:,}")
            return
        result = members_of(entry)
        size = _whole(result.get("size"))
        reason = unsound("results", size, 1.0)
        if reason:
            passed_over.add(0, reason)
            continue
        points, rates, wrong = _points(result, size, passed_over)
        if points:
            names = ("experiment_name", "type", "redop", "root")
            test = tuple(str(result.get(name) or "").strip()[:100] for name in names)
            yield _Result((test[0], test[1], test[2], test[3]), points, rates, wrong)


def _points(
    result: Mapping[str, Any], size: int, passed_over: PassedOver
) -> tuple[list[Point], list[tuple[Interval, Interval]], int]:
    points, rates, wrong = [], [], 0
    for name, in_place in _HALVES:
        half = result.get(name)
        if half is None:
            continue
        reason = _unsound(members_of(half), size)
        if reason:
            passed_over.add(0, reason)
            continue
        wrong += finite(half.get("nwrong")) > 0
        dtype = dtype_of(str(result.get("type") or "").strip()[:40])
        points.append(Point(size, finite(half["time"]) * 1e-6, in_place, dtype))
        rates.append((_as_written(half.get("bus_bw")), _as_written(half.get("alg_bw"))))
    return points, rates, wrong


def _as_written(value: Any) -> Interval:
    """Return which bandwidths are written like this, with six decimals; 0 says nothing."""
    number = finite(value)
    return Interval(max(0.0, number - 5e-7), number + 5e-7)


def _unsound(half: Mapping[str, Any], size: int) -> str:
    """Return why the time of a result is not to be trusted; empty if it is sound."""
    if "cpu_time" in half:
        return "host times (-C 1), which are not how long a collective takes"
    time_us, algbw = finite(half.get("time")), finite(half.get("alg_bw"))
    reason = unsound("results", size, time_us)
    if reason:
        return reason
    if algbw > 0 and abs(size / time_us * 1e6 / GIGA - algbw) > _AGREES * algbw + 1e-5:
        return "results whose size / time is not their alg_bw (other units?)"
    return ""


def _run(results: list[_Result], machine: _Machine) -> Run:
    named = results[0].test[0] or machine.test
    known = canonical_collective(named) or canonical_collective(machine.test)
    bare = (machine.test or named).rsplit("/", 1)[-1].removesuffix("_perf")[:100]
    notes = list(machine.notes)
    if known is None and bare:
        notes.append(f"{bare} is not a collective that shardcost predicts")
    wrong = sum(result.wrong for result in results)
    if wrong:
        notes.append(f"{wrong} times are of wrong results")
    num_gpus = machine.num_gpus  # unless bandwidths tell others
    ratio = ratio_of(rates for result in results for rates in result.rates if rates[1].low > 0)
    allowed = ranks_allowed(known or "", ratio) if ratio else None
    if allowed is not None and not allowed[0] <= num_gpus <= allowed[1]:
        notes.append("the number of GPUs follows from bus_bw / alg_bw")
        num_gpus = likeliest_ranks(allowed)
    return Run(
        collective=known or bare,
        num_gpus=num_gpus,
        nodes=machine.nodes if num_gpus == machine.num_gpus else 0,
        library=library_on(machine.device, "nccl"),
        version=machine.version,
        device=machine.device,
        single_process=machine.single_process,
        points=tuple(point for result in results for point in result.points),
        notes=tuple(notes),
    )


def _whole(value: Any) -> int:
    """Return a whole number of at least 0, also from a padded text; 0 for anything else."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value.strip()):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
