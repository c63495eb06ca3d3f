"""The report on one option that varies (`shardcost.estimate.scaling`), as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from shardcost.estimate.result import Estimate
from shardcost.estimate.scaling import Row, Scaling
from shardcost.report.estimate import as_remarks, details, plain, title
from shardcost.report.text import heading, paragraph, table
from shardcost.units import format_bytes, format_percent, format_time, format_tokens

_DIVIDES: Final = ("gpus", "tp", "cp", "ep", "pp", "dp", "virtual_stages")
"""What divides a given work, so that more of it should make the step shorter."""


def as_text(scaling: Scaling, caveats: Sequence[str] = ()) -> str:
    """Return the report for a terminal."""
    sections = [table(HEAD, lines(scaling), right="0123456")]
    reasons = [f"{scaling.name} {row.value}: {row.reason}" for row in scaling.rows if row.reason]
    if reasons:
        sections.append("\n".join(paragraph(reason, "  ") for reason in reasons))
    if scaling.possible:
        found = scaling.possible[0][1]
        first = f"{scaling.name} varies; first: {title(found)}, {details(found)}"
        sections = [heading(paragraph(first, "  ")), *sections, _closing(scaling)]
        warnings = (warning for _, each in scaling.possible for warning in _beyond_memory(each))
        remarks = as_remarks(warnings, caveats)
        if remarks:
            sections.append("\n".join(paragraph(remark, "  ") for remark in remarks))
    return "\n\n".join(sections)


def as_data(scaling: Scaling, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report as plain data."""
    return plain(  # type: ignore[no-any-return]
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
    return [_line(scaling, row) for row in scaling.rows]


def _line(scaling: Scaling, row: Row) -> tuple[str, ...]:
    found = row.found
    if found is None:
        return (row.value, *("-" for _ in HEAD[2:]), "impossible")
    return (
        row.value,
        f"{found.devices:,}",
        format_time(found.time_s),
        format_tokens(found.tokens_per_s_per_gpu),
        format_percent(scaling.efficiency(found)),
        format_percent(found.comm_share),
        format_bytes(found.memory_bytes),
        "yes" if row.fits else "no",
    )


def _row_as_data(scaling: Scaling, row: Row) -> dict[str, Any]:
    found = row.found
    verdict = {
        "value": row.value,
        "possible": found is not None,
        "feasible": row.fits,
        "reason": row.reason,
    }
    split = row.split
    if found is None or split is None:
        return verdict
    return {
        **verdict,
        "gpus": found.devices,
        "layout": found.layout.short(),
        "time_s": found.time_s,
        **split._asdict(),
        "tokens_per_s": found.tokens_per_s,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
        "efficiency": scaling.efficiency(found),
        "comm_share": found.comm_share,
        "mfu": found.mfu,
        "memory_bytes": found.memory_bytes,
        "fits": row.fits,
        "warnings": list(found.warnings),
    }


def _closing(scaling: Scaling) -> str:
    """Return what the table comes to in one sentence."""
    return paragraph("Crossover: " + "; ".join(sentences(scaling)) + ".", "  ")


def sentences(scaling: Scaling) -> Iterator[str]:
    """Yield what the curve comes to: where it changes its nature, and where it is best."""
    name, found = scaling.name, scaling.crossover()
    half, low = found["communication_above_half"], found["efficiency_below_80_pct"]
    fit = 0 < len(scaling.feasible) < len(scaling.possible)
    among = " among those that fit" if fit else ""
    yield (
        f"from {name} {half} on communication is more than half of the step"
        if half
        else "communication stays below half of the step"
    )
    if low:
        yield f"from {name} {low} on throughput per GPU is below 80 % of the first"
    if name in _DIVIDES:
        fastest, last = found["fastest"], (scaling.feasible or scaling.possible)[-1][0]
        beyond = ", the last" if fastest == last else " and no shorter beyond"
        yield f"the step is shortest at {name} {fastest}{among}{beyond}"
    else:
        yield f"throughput per GPU is highest at {name} {found['most_tokens_per_s_per_gpu']}{among}"


def _beyond_memory(found: Estimate) -> Iterator[str]:
    """Yield the warnings that the column of memory does not say already."""
    full = found.memory.reason(found.cluster.device)
    yield from (warning for warning in found.warnings if warning != full)
