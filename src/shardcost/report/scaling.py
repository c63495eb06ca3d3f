"""The report on one option that varies, or two (`shardcost.estimate.scaling`): text, data, CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from textwrap import shorten
from typing import Any, Final

from shardcost.estimate.result import Estimate
from shardcost.estimate.scaling import Grid, Row, Scaling
from shardcost.estimate.warnings import CaveatReason
from shardcost.report import interval
from shardcost.report.describe import attributes, plain
from shardcost.report.estimate import as_remarks, details, title
from shardcost.report.estimate_data import caveats_as_data
from shardcost.report.text import heading, paragraph, paragraphs, table, width
from shardcost.units import format_bytes, format_percent, format_time, format_tokens

HEADLINES: Final = {"train": "step", "prefill": "TTFT", "decode": "TPOT"}
"""What the time of each phase is called."""
_PER_S: Final = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
OUT_OF_MEMORY: Final = "OOM"
_GOT: Final = re.compile(r", got [^,]*$")
_WHERE: Final = re.compile(r"^(layout|Layout) must be possible( for [^:]+| as [^:]+)?: ")
_REASON_CHARACTERS: Final = 75
_DIVIDES: Final = ("gpus", "tp", "cp", "ep", "pp", "dp", "virtual_stages")
"""What divides a given work, so that more of it should make the step shorter."""


def as_text(report: Scaling | Grid, caveats: Sequence[str] = (), *, notes: bool = False) -> str:
    """Return the report for a terminal; with `notes`, caveats about little of the time too."""
    if isinstance(report, Grid):
        return _grid_as_text(report, caveats, notes=notes)
    scaling = report
    sections = [table(HEAD, lines(scaling), right="0123456")]
    reasons = [f"{scaling.name} {row.value}: {row.reason}" for row in scaling.rows if row.reason]
    if reasons:
        sections.append(paragraphs(reasons))
    if scaling.possible:
        estimate = scaling.possible[0][1]
        first = f"{scaling.name} varies; first: {title(estimate)}, {details(estimate)}"
        closing = paragraph(f"Summary: {'; '.join(sentences(scaling))}.", "  ")
        sections = [heading(paragraph(first, "  ")), *sections, closing]
        remarks = _remarks([each for _, each in scaling.possible], caveats, notes=notes)
        if remarks:
            sections.append(paragraphs(remarks))
    return "\n\n".join(sections)


def _remarks(estimates: Sequence[Estimate], caveats: Sequence[str], *, notes: bool) -> list[str]:
    """Return warnings and notes of all estimates, but for memory, which the table states."""
    known = [
        caveat
        for each in estimates
        for caveat in each.caveats
        if caveat.reason is not CaveatReason.DOES_NOT_FIT
    ]
    return as_remarks(known, [*caveats, *_mixed_software(estimates)], every=notes)


def _mixed_software(estimates: Sequence[Estimate]) -> list[str]:
    """Return that machines are compared by different software, where each has its default."""
    where: dict[str, list[str]] = {}
    for each in estimates:
        where.setdefault(each.software.name, []).append(each.cluster.name)
    machines = {name: list(dict.fromkeys(places)) for name, places in where.items()}
    if len(machines) < 2 or len({tuple(places) for places in machines.values()}) == 1:
        return []  # or software is what varies
    words = "; ".join(f"{name} on {', '.join(places)}" for name, places in machines.items())
    return [f"the software differs: {words} (--software names one for all)"]


def as_data(report: Scaling | Grid, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report as plain data."""
    if isinstance(report, Grid):
        return _grid_as_data(report, caveats)
    scaling = report
    return plain(
        {
            "vary": scaling.name,
            "phase": scaling.phase,
            "rows": [_row_as_data(row, scaling.efficiency) for row in scaling.rows],
            "crossover": scaling.crossover(),
            "words": list(sentences(scaling)) if scaling.possible else [],
            "notes": [*caveats, *_mixed_software([each for _, each in scaling.possible])],
        }
    )


HEAD: Final = ("value", "GPUs", "time", "tok/s/GPU", "eff.", "comm", "memory", "fits")


def lines(scaling: Scaling) -> list[tuple[str, ...]]:
    """Return a line of cells under `HEAD` for each value."""
    return [
        (row.value, *("-" for _ in HEAD[2:]), "impossible")
        if row.found is None
        else (
            row.value,
            f"{row.found.devices:,}",
            format_time(row.found.time_s),
            format_tokens(row.found.tokens_per_s_per_gpu),
            format_percent(scaling.efficiency(row.found)),
            format_percent(row.found.comm_share),
            format_bytes(row.found.memory_bytes),
            "yes" if row.fits else "no",
        )
        for row in scaling.rows
    ]


def _row_as_data(row: Row, efficiency: Callable[[Estimate], float] | None) -> dict[str, Any]:
    """Return a value with its main figures; without `efficiency` where nothing is compared."""
    estimate, split = row.found, row.split
    verdict = {"value": row.value, "possible": estimate is not None}
    verdict |= attributes(row, "feasible=fits reason")
    if estimate is None or split is None:
        return verdict
    known = interval.as_data(estimate.interval)
    return {
        **verdict,
        "gpus": estimate.devices,
        "layout": estimate.layout.short(),
        "time_s": estimate.time_s,
        "low_s": known["low_s"],
        "high_s": known["high_s"],
        **attributes(estimate, "ttft_s tpot_s tokens_per_s_per_user"),
        **split._asdict(),
        **attributes(estimate, "tokens_per_s tokens_per_s_per_gpu"),
        **({} if efficiency is None else {"efficiency": efficiency(estimate)}),
        **attributes(estimate, "comm_share mfu hfu memory_bytes"),
        "fits": row.fits,
        **caveats_as_data(estimate),
    }


def sentences(scaling: Scaling) -> Iterator[str]:
    """Yield what the curve shows: where it is best, and where it crosses a threshold."""
    name, crossover = scaling.name, scaling.crossover()
    half, low = crossover["communication_above_half"], crossover["efficiency_below_80_pct"]
    in_order = all(row.value[:1].isdigit() for row in scaling.rows)  # names have no "from … on"
    fit = 0 < len(scaling.feasible) < len(scaling.possible)
    among = " that fits" if fit else ""
    if name in _DIVIDES:
        fastest, last = crossover["fastest"], (scaling.feasible or scaling.possible)[-1][0]
        largest = f" (largest{among or ' tried'})" if fastest == last else ""
        yield f"fastest{among}: {name} {fastest}{largest}"
    else:
        best = crossover["most_tokens_per_s_per_gpu"]
        yield f"most throughput per GPU{among}: {name} {best}"
    if half is None:
        yield "communication below 50 %"
    elif in_order:
        yield f"communication above 50 % from {name} {half}"
    if low and in_order:
        yield f"throughput per GPU below 80 % of the first from {name} {low}"


# ------------------------------------------------------------------------ two options that vary


def _grid_as_text(grid: Grid, caveats: Sequence[str], *, notes: bool) -> str:
    """Return a table of times, and one of throughput, for a terminal."""
    estimates = [row.found for _, row in grid.cells() if row.found is not None]
    reasons = list(dict.fromkeys(short_reason(row) for _, row in grid.cells() if not row.found))
    sections = list(_grid_tables(grid, reasons))
    remarks = [*_memory_line(grid), *(f"[{k}] {text}" for k, text in enumerate(reasons, 1))]
    if remarks:
        sections.append(paragraphs(remarks))
    if estimates:
        first = f"{grid_title(grid)}; first: {title(estimates[0])}, {details(estimates[0])}"
        sections.insert(0, heading(paragraph(first, "  ")))
        words = "; ".join(grid_sentences(grid)) or "no cell fits into memory"
        sections.append(paragraph(f"Summary: {words}.", "  "))
        remarks = _remarks(estimates, caveats, notes=notes)
        if remarks:
            sections.append(paragraphs(remarks))
    return "\n\n".join(sections)


def grid_title(grid: Grid) -> str:
    """Return which options vary."""
    return f"{grid.name} (down) and {grid.across} (across) vary"


def headline_s(estimate: Estimate) -> float:
    """Return the time of an estimate by which its phase is known: step, TTFT or TPOT."""
    return float(estimate.time_s if estimate.tpot_s is None else estimate.tpot_s)


def _grid_tables(grid: Grid, reasons: Sequence[str]) -> Iterator[str]:
    """Yield the tables of the grid, each cut into pieces where it is wider than the terminal."""
    times = [headline_s(row.found) for _, row in grid.cells() if row.found is not None]
    unit = format_time(min(times)).partition(" ")[2] if times else "ms"

    def time(found: Estimate) -> str:
        return _digits(headline_s(found) * _PER_S[unit])

    def throughput(found: Estimate) -> str:
        return format_tokens(found.tokens_per_s_per_gpu)

    for name, shown in ((f"{HEADLINES[grid.phase]}, {unit}", time), ("tok/s/GPU", throughput)):
        rows = [
            [f"{grid.name} {value}", *(_cell(row, shown, reasons) for row in scaling.rows)]
            for value, scaling in grid.lines
        ]
        yield from _pieces([name, *grid.columns], rows, grid.across)


def _pieces(head: list[str], rows: list[list[str]], across: str) -> Iterator[str]:
    """Yield a table; as many columns in each piece as the terminal has room for."""
    sizes = [max(len(row[i]) for row in (head, *rows)) + 2 for i in range(len(head))]
    room, start = width() - sizes[0] - len(across), 1
    while start < len(head):
        end = start + 1
        while end < len(head) and sum(sizes[start : end + 1]) <= room:
            end += 1
        cut = [[row[0], *row[start:end], ""] for row in rows]
        right = "".join(map(str, range(1, end - start + 1)))
        yield table([head[0], *head[start:end], across], cut, right=right, narrowest=len(across))
        start = end


def _cell(row: Row, shown: Callable[[Estimate], str], reasons: Sequence[str]) -> str:
    if row.found is None:
        return f"[{reasons.index(short_reason(row)) + 1}]"
    return shown(row.found) if row.fits else OUT_OF_MEMORY


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _memory_line(grid: Grid) -> Iterator[str]:
    """Yield what cells without enough memory need."""
    short = [row.found for _, row in grid.cells() if row.found is not None and not row.fits]
    if short:
        needs = [float(found.memory_bytes) for found in short]
        some = format_bytes(min(needs))
        needed = some if min(needs) == max(needs) else f"{some} to {format_bytes(max(needs))}"
        sizes = dict.fromkeys(format_bytes(each.cluster.device.memory_bytes) for each in short)
        yield f"{OUT_OF_MEMORY}: needs {needed} of {' or '.join(sizes)}"


def short_reason(row: Row) -> str:
    """Return why a value is impossible, in a few words."""
    reason = _GOT.sub("", _WHERE.sub("", row.impossible))
    return shorten(reason, _REASON_CHARACTERS, placeholder=" …")


def _best_cells(grid: Grid) -> dict[str, tuple[str, Row] | None]:
    return {
        "fastest": grid.best(lambda each: -headline_s(each)),
        "most_tokens_per_s_per_gpu": grid.best(lambda each: each.tokens_per_s_per_gpu),
    }


def grid_sentences(grid: Grid) -> Iterator[str]:
    """Yield the cells that fit and are the fastest, and those with most throughput per GPU."""
    names = {"fastest": "fastest", "most_tokens_per_s_per_gpu": "most throughput per GPU"}
    for key, cell in _best_cells(grid).items():
        if cell is None or cell[1].found is None:
            continue
        found = cell[1].found
        figure = (
            f"{HEADLINES[grid.phase]} {format_time(headline_s(found))}"
            if key == "fastest"
            else f"{format_tokens(found.tokens_per_s_per_gpu)} tokens/s/GPU"
        )
        yield f"{names[key]}: {grid.name} {cell[0]}, {grid.across} {cell[1].value} ({figure})"


def _grid_as_data(grid: Grid, caveats: Sequence[str]) -> dict[str, Any]:
    """Return the report as plain data: a cell for each pair of values, line by line."""

    def cell(value: str, row: Row) -> dict[str, Any]:
        figures = _row_as_data(row, None)
        figures.pop("value")
        return {"values": {grid.name: value, grid.across: row.value}, **figures}

    return plain(
        {
            "vary": [grid.name, grid.across],
            "phase": grid.phase,
            "cells": [cell(value, row) for value, row in grid.cells()],
            "best": {
                key: None if best is None else {grid.name: best[0], grid.across: best[1].value}
                for key, best in _best_cells(grid).items()
            },
            "words": list(grid_sentences(grid)),
            "notes": [*caveats, *_mixed_software([row.found for row in grid.rows if row.found])],
        }
    )


def as_csv(report: Scaling | Grid) -> str:
    """Return a line for each value, or pair of values, with its main figures."""
    import csv
    from io import StringIO

    data = as_data(report)
    if isinstance(report, Grid):
        lines = [{**cell.pop("values"), **cell} for cell in data["cells"]]
    else:
        lines = [{report.name: row.pop("value"), **row} for row in data["rows"]]
    for line in lines:
        line.pop("caveats", None)
        line["warnings"] = "; ".join(line.get("warnings", ()))
    columns = dict.fromkeys(name for line in lines for name in line)
    text = StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
