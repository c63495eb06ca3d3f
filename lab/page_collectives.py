"""Collectives on the validation page: errors by every split, simpler models, what was left out.

Figures are computed; only what explains them is typed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from lab import cross_validation, markdown
from lab.baselines import MODELS, is_predicted, kind_of, model_stats, repeats
from lab.cross_validation import LeftOut, pooled_by_library
from lab.few_points import POINTS, all_points, few_points
from lab.refit_collectives import usable
from shardcost.calibrate.fit import Curve, curves
from shardcost.catalog import cluster_named
from shardcost.errors import ShardcostError
from shardcost.formats.tables import Row, Table
from shardcost.validate.collectives import population
from shardcost.validate.validation import Stats, Validation, stats, validate

_REPEATS: Final = """\
No model can be closer than measurements are to each other: the {rows:,} rows that measure what
another row measures as well are {median_pct:.1f} % (median) and {p90_pct:.1f} % (p90) from the
middle one."""

_POPULATIONS: Final = """\
### By kind of measurement

*NCCL family*: NCCL, RCCL and oneCCL as their benchmarks run them. *Engines, graph*: the all-reduces
of TensorRT-LLM, vLLM and SGLang, launched from a CUDA graph. *Eager* rows contain the host's launch
of each call, rows of a *single process* its launches on all GPUs."""

_VERSIONS: Final = """\
An engine's kernels change between versions, and a row says which one was measured in the name of
its data set. Without that, every row predicted by the newest kernels (`--ignore-versions`):"""

_BASELINES: Final = """\
### Beside simpler models

All rows but eager and single-process ones, of curves with {points} sizes or more: a line with two
constants of its own meets shorter ones by itself. *Plain ring* and *NCCL's tuner* have nothing
fitted; the *best rate* and the *alpha-beta line* are fitted to the very curve that they are tried
on, one or two constants for each curve, where shardcost has at most 24 for all curves of a system
and library (23 for NCCL, 8 to 15 for an engine and up to 8 sizes at which it switches). NCCL's
tuner covers all-reduce, all-gather and reduce-scatter on NVIDIA devices. Median / p90, in
percent:"""

_LEAST_POINTS: Final = 5

_LEFT_OUT: Final = """\
### Collectives: a GPU count

The constants of a system are fitted without the rows of one GPU count, then tried on these. What
the remaining rows do not cover (in-switch reduction, if only eight GPUs use it) comes from the
family's other systems, fitted without this one. Over PCIe this cannot work well: how much of a
pair's rate is left to four or eight GPUs is a matter of the machine's host bridges, which no other
GPU count shows."""

_ENGINES_LEFT_OUT: Final = """\
The same for the kernels of engines, each GPU count left out in turn. NCCL, which they fall back on,
is known, and so are the sizes at which an engine switches:"""

_SYSTEMS: Final = """\
### Collectives: a system

A system is predicted from its datasheet and its family's constants alone, and the family is fitted
as if the system did not exist: latencies in clock cycles, rates as shares of the nominal rate."""

_NO_SWITCH: Final = """\
Systems over PCIe lend each other little, for the reason above:"""

_NETWORKS: Final = """\
### Collectives: a network

A network is predicted from what it inherits of its kind, and the others are fitted as if it did not
exist. Kinds of which only one network was measured say little of each other."""

_ON_NETWORKS: Final = """\
The constants of a network fitted without the rows of one system, then tried on these. Sites differ
more than systems do: the names `ib` and `tcp` stand for networks of unstated speed."""

_NODES: Final = """\
The same without the rows of one number of nodes:"""

_FEW_POINTS: Final = """\
### Collectives: calibrated on {points} points

As `shardcost calibrate` would on a system that the catalog does not have: a fit that starts from
the family's constants, those of the catalog, sees {points} points of one all-reduce curve, sizes
evenly spread, and is tried on all other points of the data set, other GPU counts and collectives
among them; every data set and GPU count of a system in turn. Over PCIe, points of few GPUs say
nothing of what the host's bridges leave to more."""

_ALL_POINTS: Final = """\
The same with all points of the data set, tried on those very points:"""

_SPLITS: Final = {
    ("cluster", "library"): "By system and library",
    ("collective",): "By collective",
    ("num_gpus",): "By number of GPUs",
    ("size_band",): "By size",
}


def left_out(table: Table, say: Callable[[str], None]) -> str:
    """Return what fits are worth on rows that they have not seen. Takes minutes."""
    known = usable([table])
    sections = []
    for part in (_gpu_counts, _systems, _networks):
        say(f"collectives: {(part.__doc__ or '').partition('.')[0]}")
        sections.append(part(known))
    say("collectives: few points")
    sections.append(_few_points(table))
    return "\n\n".join(sections)


def in_sample(validation: Validation) -> str:
    """Return errors by every split, beside those of simpler models."""
    table = validation.table
    ordinary = table.where(_is_ordinary)
    spread = repeats(usable([table]))
    sections = [
        *([_REPEATS.format(**asdict(spread))] if spread.rows else []),
        _populations(table),
        _baselines([curve for curve in curves(ordinary) if is_predicted(curve)]),
        *(_split(ordinary, by) for by in _SPLITS),
    ]
    return "\n\n".join(sections)


def _is_ordinary(row: Row) -> bool:
    """Return whether a row is neither eager nor of a single process, and makes sense at all."""
    try:
        return population(row) not in {"eager", "single process"}
    except ShardcostError:
        return False


def _populations(table: Table) -> str:
    validation = validate(table, ("population",))
    blind = validate(table, ("population",), ignore_versions=True)
    engines = [group for group in blind.groups if group.key["population"].startswith("engines")]
    return "\n\n".join(
        [_POPULATIONS, markdown.grouped(validation.groups), _VERSIONS, markdown.grouped(engines)]
    )


def _split(ordinary: Table, by: tuple[str, ...]) -> str:
    """Return the section with the errors by some columns."""
    groups = validate(ordinary, by).groups
    rest = "Eager and single-process rows apart."
    return f"### {_SPLITS[by]}\n\n{rest}\n\n{markdown.grouped(groups)}"


def _baselines(known: Sequence[Curve]) -> str:
    text = _BASELINES.format(points=_LEAST_POINTS)
    kinds: dict[str, list[Curve]] = {}
    for curve in known:
        if curve.size_bytes.size < _LEAST_POINTS:
            continue
        kinds.setdefault(kind_of(curve), []).append(curve)
    lines = []
    for kind in sorted(kinds):
        results = [model_stats(name, kinds[kind]) for name in MODELS]
        lines.append((kind, f"{results[0].rows:,}", *map(_median_and_p90, results)))
    if not lines:
        return f"{text}\n\n{markdown.NO_ROWS}"
    shown = markdown.table(("rows of", "rows", *MODELS), lines, right=1 + len(MODELS))
    return f"{text}\n\n{shown}"


def _median_and_p90(errors: Stats) -> str:
    return f"{errors.median_pct:.1f} / {errors.p90_pct:.1f}" if errors.rows else ""


def _gpu_counts(known: Sequence[Curve]) -> str:
    """GPU counts left out."""
    rings = list(cross_validation.gpu_counts(known))
    kernels = pooled_by_library(cross_validation.gpu_counts(known, of_engines=True))
    return "\n\n".join(
        [
            _LEFT_OUT,
            _left_out(rings, "left out"),
            _ENGINES_LEFT_OUT,
            _left_out(kernels, "each count in turn"),
        ]
    )


def _systems(known: Sequence[Curve]) -> str:
    """Systems left out."""
    result = list(cross_validation.systems(known))
    switched = [entry for entry in result if _kind_of_links(entry.system) == "nvswitch"]
    others = [entry for entry in result if entry not in switched]
    return "\n\n".join(
        [_SYSTEMS, _left_out(switched, "left out"), _NO_SWITCH, _left_out(others, "left out")]
    )


def _networks(known: Sequence[Curve]) -> str:
    """Networks left out."""
    result = list(cross_validation.networks(known))
    parts = {"network": _NETWORKS, "cluster": _ON_NETWORKS, "nodes": _NODES}
    return "\n\n".join(
        f"{text}\n\n{_left_out([one for one in result if one.library == what], 'left out')}"
        for what, text in parts.items()
    )


def _few_points(table: Table) -> str:
    """Return what few points of a system are worth."""
    few, every = (
        _left_out(pooled_by_library(result(table)), "library")
        for result in (few_points, all_points)
    )
    return "\n\n".join([_FEW_POINTS.format(points=POINTS), few, _ALL_POINTS, every])


def _kind_of_links(system: str) -> str:
    return cluster_named(system).tiers[0].kind


def _left_out(left_out_rows: Sequence[LeftOut], head: str) -> str:
    if not left_out_rows:
        return markdown.NO_ROWS
    rows = [((entry.system, entry.what), stats(entry.error_pct)) for entry in left_out_rows]
    together = stats(np.concatenate([entry.error_pct for entry in left_out_rows]))
    return markdown.errors(("system", head), [*rows, (("all", ""), together)])
