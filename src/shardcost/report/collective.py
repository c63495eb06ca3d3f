"""The report on a collective: how long it takes, what runs and why, and what else there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from shardcost.catalog import tuner_table
from shardcost.checks import anywhere
from shardcost.cluster import Link, Source
from shardcost.collectives import ALGORITHMS, PROTOCOLS
from shardcost.collectives.group import nominal_rate
from shardcost.collectives.interval import interval_of
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.paths import total
from shardcost.collectives.receipts import path_receipts
from shardcost.collectives.tuner import PathName, tables
from shardcost.errors import BadValueError
from shardcost.machine import provenance
from shardcost.machine.constants import stated
from shardcost.machine.libraries import ENGINES, TUNER, generation, name_and_version
from shardcost.receipt import Receipt, identifiers, in_unit
from shardcost.records import NamedTuple
from shardcost.report import interval
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.describe import attributes, number, plain, provenance_data
from shardcost.report.text import bar, heading, paragraph, paragraphs, sparkline, table, width
from shardcost.units import format_bytes, format_rate, format_time

if TYPE_CHECKING:
    from shardcost.validate.shipped import Point

NOTHING_TO_SEND: Final = "one GPU by itself sends nothing"
_FASTER_THAN_A_RING: Final = (
    "busbw counts as if a ring ran; a tree, or a switch that adds up, sends less, so that busbw may"
    " exceed the link"
)
_COLUMNS: Final = ("algorithm", "protocol", "algbw_bytes_per_s", "busbw_bytes_per_s", "link_share")
_HEAD: Final = ("size", "time", "path", "algbw", "busbw", "of link")
_SWITCH: Final = "<- switch"
_NARROWEST_BAR: Final = 4
_WIDEST_BAR: Final = 20
_NEGLIGIBLE: Final = 1e-3
"""Weights below this are not worth a line."""


class Alternative(NamedTuple):
    """A path that can run, its time, and the library's own rule on it."""

    path: PathName
    time_s: float
    weight: float
    """How much it counts in the prediction, of 1."""
    estimate_s: float | None
    """By NCCL's own model, where NCCL chooses by it."""
    limit_bytes: float | None
    """Up to which size the engine runs it, where it says so; infinite for any size."""


def title(result: CollectiveTime, subject: str) -> str:
    """Return the request, such as ``all_reduce of 64 MiB over 8 x h100_sxm, nccl``."""
    group = result.group
    nodes = f" on {group.nodes} nodes" if group.nodes > 1 else ""
    network = f" ({group.cluster.network.name})" if group.domains > 1 else ""  # type: ignore[union-attr]
    mode = ", eager" if result.mode == "eager" else ""
    place = f"{group.ranks} x {group.cluster.name}{nodes}{network}"
    forced = f", forced to {result.forced}" if result.forced else ""
    return f"{result.collective} of {subject} over {place}, {result.library}{mode}{forced}"


def as_text(
    result: CollectiveTime, *, explain: bool = False, sweep: CollectiveTime | None = None
) -> str:
    """Return the report on one size for a terminal.

    Args:
        result: The prediction for one size.
        explain: Add the arithmetic.
        sweep: The same over many sizes, to show where on the curve the one is.
    """
    sections = [
        heading(paragraph(title(result, exact_bytes(result.size_bytes)), "  ")),
        table(("figure", "value", "meaning"), figures(result), right="1"),
    ]
    if result.group.ranks > 1:
        sections += [] if sweep is None else [_curve(result, sweep)]
        sections.append(_alternatives_table(result))
    if result.group.ranks > 1 and explain:
        reason = paragraph(f"Why {result.algorithm} {result.protocol}: {why(result)}.", "  ")
        sections += [reason, _parts_table(result), *_symbols_table(result)]
    return "\n\n".join([*sections, *_remarks(result, cited=explain)])


def as_data(result: CollectiveTime) -> dict[str, Any]:
    """Return the report on one size as plain data."""
    return {
        **question_as_data(result),
        "size_bytes": number(result.size_bytes),
        **_answer(result),
        "link": {**link(result)._asdict(), "source": link(result).source._asdict()},
        "alternatives": [_alternative_as_data(path) for path in alternatives(result)],
        "parts": {part.name: part.value for part in parts(result)},
        "formulas": [
            attributes(part, "name formula numbers time_s=value") for part in parts(result)
        ],
        "why": why(result),
        **_foundation(result),
    }


def parts(result: CollectiveTime) -> list[Receipt]:
    """Return the parts of the path that runs. For one cell only."""
    return path_receipts(result, (result.algorithm, result.protocol))


def sweep_as_text(result: CollectiveTime) -> str:
    """Return the report on many sizes for a terminal; says where the library switches paths."""
    sizes = _rows(result)
    cells = [
        (
            exact_bytes(row["size_bytes"]),
            format_time(row["time_s"]),
            f"{row['algorithm']} {row['protocol']}",
            *_rates_as_text(row),
        )
        for row in sizes
    ]
    room = width() - sum(max(map(len, column)) + 2 for column in zip(_HEAD, *cells, strict=True))
    most = max(1.0, *(row["link_share"] for row in sizes))
    wide = min(room - len(_SWITCH) - 1, _WIDEST_BAR)
    from shardcost.collectives.sweep import switches

    switched = {switch.place for switch in switches(result)}
    rows = []
    for place, (row, cell) in enumerate(zip(sizes, cells, strict=True)):
        drawn = bar(row["link_share"] / most, wide) if wide >= _NARROWEST_BAR else ""
        if place in switched:
            drawn = f"{drawn.ljust(wide)} {_SWITCH}" if wide >= _NARROWEST_BAR else _SWITCH
        rows.append((*cell, drawn))
    return "\n\n".join(
        [
            heading(paragraph(title(result, f"{rows[0][0]} to {rows[-1][0]}"), "  ")),
            table((*_HEAD, ""), rows, right="01345"),
            *_remarks(result),
        ]
    )


def _curve(result: CollectiveTime, sweep: CollectiveTime) -> str:
    """Return the bus bandwidth over sizes as a line, the requested size in brackets."""
    import numpy as np

    sizes = sweep.size_bytes
    place = int(np.argmin(np.abs(np.log(sizes / result.size_bytes))))
    drawn = sparkline(sweep.busbw_bytes_per_s.tolist(), mark=place)
    return f"busbw by size, {format_bytes(sizes[0])} {drawn} {format_bytes(sizes[-1])}"


def sweep_as_data(result: CollectiveTime) -> dict[str, Any]:
    """Return the report on many sizes as plain data."""
    return {
        **question_as_data(result),
        "rows": _rows(result),
        "interval": interval.about(interval_of(result)),
        **_foundation(result),
    }


def curves_as_data(sweep: CollectiveTime, points: Iterable[Point] = ()) -> dict[str, Any]:
    """Return a sweep over sizes as columns, one entry per size, and measured points beside it."""
    import numpy as np

    from shardcost.collectives.sweep import switches

    if sweep.group.ranks == 1:
        raise BadValueError("gpus", 1, "at least 2 for a curve: one by itself sends nothing")
    nominal, shape = link(sweep), sweep.time_s.shape
    columns = {path: np.broadcast_to(total(parts), shape) for path, parts in sweep.paths.items()}
    return {
        **question_as_data(sweep),
        **_columns(sweep),
        "interval": interval.about(interval_of(sweep)),
        "bound_s": np.broadcast_to(sweep.bound_s, shape).tolist(),
        "paths": [
            {"algorithm": algorithm, "protocol": protocol}
            | {"time_s": [float(cell) if np.isfinite(cell) else None for cell in column]}
            for (algorithm, protocol), column in columns.items()
        ],
        "switches": [
            {"size_bytes": number(switch.size_bytes)} | attributes(switch, "algorithm protocol")
            for switch in switches(sweep)
        ],
        "link": attributes(nominal, "bytes_per_s name"),
        "points": [point._asdict() | {"size_bytes": number(point.size_bytes)} for point in points],
        "notes": notes(sweep),
    }


def link(result: CollectiveTime) -> Link:
    """Return the slowest link on the way, at its nominal rate."""
    collective, group = result.collective, result.group
    cluster, network = group.cluster, group.cluster.network
    rate = float(nominal_rate(collective, group))
    unknown = Source("given by the caller")
    to_one = collective == "send_recv"
    inside = group.pair_bytes_per_s if to_one else group.link_bytes_per_s
    if collective == "all_to_all":
        inside = group.exchange_bytes_per_s
    if network is not None and rate < inside:
        together = "per node" if group.domains == group.nodes else "per domain"
        share = "per GPU" if to_one or collective == "all_to_all" else together
        source = network.sources.get("nic_bytes_per_s", unknown)
        return Link(rate, f"network ports of {network.name}, {share}", source)
    reach = "GPU to GPU" if to_one and rate < group.tier.bytes_per_s else "per GPU"
    source = cluster.sources.get("tiers.bytes_per_s", unknown)
    if group.tier.kind == "torus":
        along = "x".join(f"{axis:g}" for axis in group.torus.axes)
        reach = f"{reach}, {along} of the axes"
    return Link(rate, f"{group.tier.title} links of {cluster.name}, {reach}", source)


def alternatives(result: CollectiveTime) -> list[Alternative]:
    """Return every path that can run on the group, fastest first. For one cell only."""
    if result.group.ranks == 1:
        return []
    estimates = result.estimates if result.library != TUNER else {}
    limits, shares = result.limits, weights(result)

    def known(by_path: Mapping[PathName, Any], path: PathName) -> float | None:
        return float(by_path[path]) if path in by_path else None

    return [
        Alternative(path, time_s, shares[path], known(estimates, path), known(limits, path))
        for path, time_s in result.alternatives()
    ]


def weights(result: CollectiveTime) -> dict[PathName, float]:
    """Return how much each path counts, of 1. For one cell only."""
    total_weight = sum(map(float, result.weights.values()))
    return {path: float(weight) / total_weight for path, weight in result.weights.items()}


def why(result: CollectiveTime) -> str:
    """Return by which rule the library chose the path that runs."""
    engine, version = name_and_version(result.library)
    by_tuner = f"NCCL runs what its own model puts lowest ({tables()['source']})"
    chosen = (
        by_tuner if result.estimates else "no rule of the library is known, so the fastest counts"
    )
    if result.forced:
        return f"forced to {result.forced}; of what that leaves, {chosen}"
    if result.collective != "all_reduce" or engine not in ENGINES:
        return chosen
    if all(protocol != "direct" for _, protocol in result.paths):
        return f"{engine} has no kernel of its own for this group and falls back; {chosen}"
    limits = {path[0]: format_bytes(limit) for path, limit in result.limits.items()}
    source = tuner_table(engine)["source"]
    if result.calibrations[0].chooser == "fastest":
        tuned = f"{engine} tunes its choice, so the fastest of its kernels and its fallback counts"
        most = format_bytes(max(result.limits.values()))
        return f"{tuned} up to {most} ({source}); beyond, {chosen}"
    named = f"{engine} {version or 'since ' + generation(engine, None)}"
    kernels = ", ".join(f"{kernel} up to {limit}" for kernel, limit in limits.items())
    return f"{named} prefers {kernels}, in that order ({source}); beyond, {chosen}"


def question_as_data(result: CollectiveTime) -> dict[str, Any]:
    """Return the request, but for the size."""
    group = result.group
    return plain(
        {
            "collective": result.collective,
            "system": group.cluster.name,
            "network": group.cluster.network.name if group.cluster.network else None,
            **attributes(group, "gpus=ranks nodes domains"),
            **attributes(result, "library mode"),
            "forced": result.forced.chosen or None,
        }
    )


def _answer(result: CollectiveTime) -> dict[str, Any]:
    """Return the time and the rates of one cell."""
    return plain(
        {
            "time_s": result.time_s,
            "measured_over_formula": result.factor,
            **interval.as_data(interval_of(result)),
            **attributes(result, "algorithm protocol bound_s"),
            **attributes(result, "algbw_bytes_per_s busbw_bytes_per_s link_share"),
        }
    )


def _columns(sweep: CollectiveTime) -> dict[str, list[Any]]:
    """Return the times and rates of a sweep, an entry for each size."""
    ends = interval_of(sweep)
    return {
        "size_bytes": [number(size) for size in sweep.size_bytes],
        "time_s": sweep.time_s.tolist(),
        "low_s": ends.low_s.tolist(),
        "high_s": ends.high_s.tolist(),
    } | {name: getattr(sweep, name).tolist() for name in _COLUMNS}


def _rows(sweep: CollectiveTime) -> list[dict[str, Any]]:
    """Return the same by size."""
    columns = _columns(sweep)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _foundation(result: CollectiveTime) -> dict[str, Any]:
    return {
        "notes": notes(result),
        "provenance": provenance_data(result.machine),
        "calibrations": [
            {name: value for name, value in noun_as_data(own).items() if name != "residuals"}
            | {"constants": stated(own.constants), "stated_by": str(own.source())}
            for own in result.calibrations
        ],
    }


def _alternative_as_data(alternative: Alternative) -> dict[str, Any]:
    limit = alternative.limit_bytes
    return {
        **dict(zip(("algorithm", "protocol"), alternative.path, strict=True)),
        **attributes(alternative, "time_s weight nccl_estimate_s=estimate_s"),
        "limit_bytes": limit if limit is not None and isfinite(limit) else None,
    }


def notes(result: CollectiveTime) -> list[str]:
    """Return the caveats of a prediction."""
    if result.group.ranks == 1:
        return [NOTHING_TO_SEND]
    beyond = anywhere(result.link_share > 1)
    machine = provenance.in_words(result.machine)
    whose = [f"constants {machine}"] if machine else []
    return [*result.notes, *whose, *([_FASTER_THAN_A_RING] if beyond else [])]


def figures(result: CollectiveTime) -> list[tuple[str, str, str]]:
    """Return the rows of the first table: each figure with its unit and what it means."""
    if result.group.ranks == 1:
        return [("time", format_time(result.time_s), "per call")]
    answer = _answer(result)
    algbw, busbw, share = _rates_as_text(answer)
    slowest, known = link(result), interval.rows_in_words(interval_of(result))
    bound = "bytes on the busiest link / its nominal rate"
    return [
        ("time", format_time(answer["time_s"]), _mixture_in_words(result)),
        *_formula_alone(result),
        ("interval", interval.ends(answer["low_s"], answer["high_s"]), known),
        ("algorithm", result.algorithm, ALGORITHMS[result.algorithm]),
        ("protocol", result.protocol, PROTOCOLS[result.protocol]),
        ("at least", format_time(answer["bound_s"]), bound),
        ("algbw", algbw, "size / time"),
        ("busbw", busbw, "what each link of a ring would carry in that time"),
        ("link", format_rate(slowest.bytes_per_s), f"{slowest.name}, one way, nominal"),
        ("share of link", share, "busbw / link"),
    ]


def _formula_alone(result: CollectiveTime) -> list[tuple[str, str, str]]:
    """Return the row of the formula's time, where measurements of the machine correct it."""
    if result.factor == 1:
        return []
    words = f"alone; measured on this machine: x {result.factor:.3g} of it"
    return [("formula", format_time(result.time_s / result.factor), words)]


def _rates_as_text(answer: Mapping[str, Any]) -> tuple[str, str, str]:
    share = 100 * answer["link_share"]
    return (
        format_rate(answer["algbw_bytes_per_s"]),
        format_rate(answer["busbw_bytes_per_s"]),
        "< 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %",
    )


def _mixture_in_words(result: CollectiveTime) -> str:
    counted = _counted_paths(result)
    if len(counted) == 1:
        eager = result.mode == "eager"
        return "per call, each launched by the host" if eager else "per call, one after another"
    shares = ", ".join(f"{100 * path.weight:.1f} % {' '.join(path.path)}" for path in counted)
    return f"near a switch, so a mean: {shares}"


def _counted_paths(result: CollectiveTime) -> list[Alternative]:
    """Return the paths that count in a prediction, the heaviest first."""
    counted = [path for path in alternatives(result) if path.weight > _NEGLIGIBLE]
    return sorted(counted, key=lambda path: -path.weight)


def _alternatives_table(result: CollectiveTime) -> str:
    runs = (result.algorithm, result.protocol)
    own = float(total(result.paths[runs]))
    rows = []
    for path in alternatives(result):
        rule = "" if path.estimate_s is None else f"NCCL expects {format_time(path.estimate_s)}"
        if path.limit_bytes is not None:
            rule = f"up to {format_bytes(path.limit_bytes)}"
        behind = "runs" if path.path == runs else compared(path.time_s / own)
        rows.append((" ".join(path.path), format_time(path.time_s), behind, rule))
    known = "the library's rule" if any(row[3] for row in rows) else ""
    return table(("path", "time", "compared", known), rows, right="12")


def compared(ratio: float) -> str:
    """Return how much longer one time is than another, by their ratio.

    >>> compared(1.25), compared(4.0)
    ('+25 %', 'x 4')
    """
    return f"{100 * (ratio - 1):+.0f} %" if ratio < 3 else f"x {ratio:.3g}"


def part_rows(parts: Iterable[Receipt]) -> list[tuple[str, str, str]]:
    """Return each part of a time with its formula and, below it, the numbers put in."""
    rows = []
    for part in parts:
        rows.append((part.name, part.text, part.formula))
        if part.numbers != part.text:
            rows.append(("", "", f"= {part.numbers}"))
    return rows


def _parts_table(result: CollectiveTime) -> str:
    rows = part_rows(parts(result))
    own = float(total(result.paths[result.algorithm, result.protocol]))
    rows.append(("sum", format_time(own), f"of {result.algorithm} {result.protocol}"))
    counted = _counted_paths(result)
    if len(counted) > 1:
        mean = " + ".join(
            f"{in_unit(path.weight, '')} x {format_time(path.time_s)}" for path in counted
        )
        rows.append(("mean", format_time(result.time_s / result.factor), f"= {mean}"))
        if result.factor == 1:
            rows[-1] = ("time", *rows[-1][1:])
    if result.factor != 1:
        words = f"x {result.factor:.3g}: residual of the formula, measured on this machine"
        rows.append(("time", format_time(result.time_s), words))
    return table(("part", "time", "formula, and with its numbers"), rows, right="1")


def _symbols_table(result: CollectiveTime) -> list[str]:
    """Return the table of what stands in the formulas, and the sources it refers to."""
    names = set(identifiers([part.name for part in parts(result)]))
    terms = {term.name: term for part in parts(result) for term in part.terms}
    places: dict[str, int] = {}
    rows = []
    for term in terms.values():
        if term.name not in names:  # a part has its own line above
            number_of = places.setdefault(term.source, len(places) + 1) if term.source else 0
            origin = f"[{number_of}] " if number_of else ""
            rows.append((term.symbol, term.text, origin + term.meaning))
    cited = [paragraph(f"[{place}] {source}", "    ") for source, place in places.items()]
    nominal = paragraph(f"Link: {link(result).source}", "  ")
    symbols = table(("symbol", "value", "meaning or source"), rows, right="1")
    return [symbols, "\n".join([*cited, nominal])]


def _remarks(result: CollectiveTime, *, cited: bool = False) -> list[str]:
    """Return caveats, and how well the constants fit unless they are cited already.

    One GPU needs no constants; inherited ones are among the notes.
    """
    said = [f"Note: {note}" for note in notes(result)]
    if not cited and result.group.ranks > 1:
        said += [
            f"Fit of {own.title}: {own.fit.rows:,} rows, median error"
            f" {own.fit.median_pct:.1f} %, p90 {own.fit.p90_pct:.1f} %"
            for own in result.calibrations
            if not own.inherited_from and own.fit.rows
        ]
    return [paragraphs(said)] if said else []


def exact_bytes(size_bytes: float) -> str:
    """Return a size in the largest binary unit that holds it in whole numbers."""
    size = number(size_bytes)
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"
