"""The report on one option that varies (`shardcost.estimate.scaling`), as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from shardcost.estimate.scaling import Row, Scaling
from shardcost.estimate.warnings import CaveatReason
from shardcost.report.describe import attributes, plain
from shardcost.report.estimate import as_remarks, details, title
from shardcost.report.estimate_data import caveats_as_data
from shardcost.report.text import heading, paragraph, paragraphs, table
from shardcost.units import format_bytes, format_percent, format_time, format_tokens

_DIVIDES: Final = ("gpus", "tp", "cp", "ep", "pp", "dp", "virtual_stages")
"""What divides a given work, so that more of it should make the step shorter."""


def as_text(scaling: Scaling, caveats: Sequence[str] = (), *, notes: bool = False) -> str:
    """Return the report for a terminal; with `notes`, caveats about little of the time too."""
    sections = [table(HEAD, lines(scaling), right="0123456")]
    reasons = [f"{scaling.name} {row.value}: {row.reason}" for row in scaling.rows if row.reason]
    if reasons:
        sections.append(paragraphs(reasons))
    if scaling.possible:
        estimate = scaling.possible[0][1]
        first = f"{scaling.name} varies; first: {title(estimate)}, {details(estimate)}"
        closing = paragraph(f"Summary: {'; '.join(sentences(scaling))}.", "  ")
        sections = [heading(paragraph(first, "  ")), *sections, closing]
        known = [  # but for the one that the column of memory states
            caveat
            for _, each in scaling.possible
            for caveat in each.caveats
            if caveat.reason is not CaveatReason.DOES_NOT_FIT
        ]
        remarks = as_remarks(known, caveats, every=notes)
        if remarks:
            sections.append(paragraphs(remarks))
    return "\n\n".join(sections)


def as_data(scaling: Scaling, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report as plain data."""
    return plain(
        {
            "vary": scaling.name,
            "phase": scaling.phase,
            "rows": [_row_as_data(scaling, row) for row in scaling.rows],
            "crossover": scaling.crossover(),
            "words": list(sentences(scaling)) if scaling.possible else [],
            "notes": list(caveats),
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


def _row_as_data(scaling: Scaling, row: Row) -> dict[str, Any]:
    estimate, split = row.found, row.split
    verdict = {"value": row.value, "possible": estimate is not None}
    verdict |= attributes(row, "feasible=fits reason")
    if estimate is None or split is None:
        return verdict
    return {
        **verdict,
        "gpus": estimate.devices,
        "layout": estimate.layout.short(),
        "time_s": estimate.time_s,
        **split._asdict(),
        **attributes(estimate, "tokens_per_s tokens_per_s_per_gpu"),
        "efficiency": scaling.efficiency(estimate),
        **attributes(estimate, "comm_share mfu memory_bytes"),
        "fits": row.fits,
        **caveats_as_data(estimate),
    }


def sentences(scaling: Scaling) -> Iterator[str]:
    """Yield what the curve shows: where it is best, and where it crosses a threshold."""
    name, crossover = scaling.name, scaling.crossover()
    half, low = crossover["communication_above_half"], crossover["efficiency_below_80_pct"]
    fit = 0 < len(scaling.feasible) < len(scaling.possible)
    among = " that fits" if fit else ""
    if name in _DIVIDES:
        fastest, last = crossover["fastest"], (scaling.feasible or scaling.possible)[-1][0]
        largest = f" (largest{among or ' tried'})" if fastest == last else ""
        yield f"fastest{among}: {name} {fastest}{largest}"
    else:
        best = crossover["most_tokens_per_s_per_gpu"]
        yield f"most throughput per GPU{among}: {name} {best}"
    yield f"communication above 50 % from {name} {half}" if half else "communication below 50 %"
    if low:
        yield f"throughput per GPU below 80 % of the first from {name} {low}"
