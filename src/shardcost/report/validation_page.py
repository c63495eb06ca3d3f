"""The page ``docs/validation.md``: how far predictions are from measurements, written by command.

    shardcost validate collectives.csv --page docs/validation.md

Its figures are computed; only what explains them is typed by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from shardcost.catalog import cluster_named
from shardcost.errors import ShardcostError
from shardcost.evidence import cross_validation
from shardcost.evidence.baselines import MODELS, is_predicted, kind_of, model_stats, repeats
from shardcost.evidence.collectives import population
from shardcost.evidence.cross_validation import LeftOut, pooled_by_library
from shardcost.evidence.fit import Curve, curves
from shardcost.evidence.refit import usable
from shardcost.evidence.tables import Row, Table
from shardcost.evidence.validate import GroupStats, Stats, stats, validate

_OPENING: Final = """\
# Validation

How far `collective_time` is from what people measured. This page is written by a command and not
by hand; it needs a table of measurements, which is not part of the project (`SHARDCOST_EVIDENCE`
points the tests at one), and SciPy for the fits of the cross-validation:

    shardcost validate collectives.csv --page docs/validation.md

Errors are |predicted - measured| in percent of the measurement, over all rows of a kind: half of
the rows are closer than the *median*, nine of ten closer than *p90*. What the constants are and
how they are fitted is in [collectives](collectives.md)."""

_REPEATS: Final = """\
No model can be closer than measurements are to each other: the {rows:,} rows that measure what
another row measures as well are {median_pct:.1f} % (median) and {p90_pct:.1f} % (p90) from the
middle one."""

_POPULATIONS: Final = """\
## By kind of measurement

*NCCL family*: NCCL, RCCL and oneCCL as their benchmarks run them. *Engines, graph*: the all-reduces
of TensorRT-LLM, vLLM and SGLang, launched from a CUDA graph. *Eager* rows contain the host's launch
of each call, rows of a *single process* its launches on all GPUs."""

_VERSIONS: Final = """\
An engine's kernels change between versions, and a row says which one was measured in the name of
its data set. Without that, every row predicted by the newest kernels (`--ignore-versions`):"""

_BASELINES: Final = """\
## Beside simpler models

All rows but eager and single-process ones. *Plain ring* and *NCCL's tuner* have nothing fitted;
the *best rate* and the *alpha-beta line* are fitted to the very curve that they are tried on, one
or two constants for each curve, where shardcost has at most 24 for all curves of a system and
library (23 for NCCL, 8 to 15 for an engine and up to 8 sizes at which it switches). NCCL's tuner
covers all-reduce, all-gather and reduce-scatter on NVIDIA devices."""

_LEFT_OUT: Final = """\
## What was left out of the fit

### A GPU count

The constants of a system are fitted without the rows of one GPU count, then tried on these. What
the remaining rows do not speak of (in-switch reduction, if only eight GPUs use it) comes from the
family's other systems, fitted without this one. Over PCIe this cannot work well: how much of a
pair's rate is left to four or eight GPUs is a matter of the machine's host bridges, which no other
GPU count shows."""

_ENGINES_LEFT_OUT: Final = """\
The same for the kernels of engines, each GPU count left out in turn. NCCL, which they fall back on,
is known, and so are the sizes at which an engine switches:"""

_SYSTEMS: Final = """\
### A system

A system is predicted from its datasheet and its family's constants alone, and the family is fitted
as if the system did not exist: latencies in clock cycles, rates as shares of the nominal rate."""

_NO_SWITCH: Final = """\
Systems over PCIe lend each other little, for the reason above:"""

_NETWORKS: Final = """\
### A system on a network

The constants of a network are fitted without the rows of one system, then tried on these. Sites
differ more than systems do: the names `ib` and `tcp` stand for networks of unstated speed."""

_CAUTIONS: Final = {
    "aic_l40s_sglang_0.5.12": """\
- Machines of one name differ. Two L40S machines in the tables are a factor of 5 apart with four
  GPUs, two RTX PRO 6000 machines a factor of 2.6 with two: one model of both is wrong on one.""",
    "vtrain_a100": """\
- `vtrain_a100` was measured with an NCCL years older than the other rows of the A100; it is
  predicted, and counted above, but its rows are not fitted.""",
    "aic_b60_oneccl_2021.17.2": """\
- oneCCL's all-gather rows count one rank's block, not the whole array: their times are those of a
  ring over n times the size that they state. They are read that way.""",
    "oci_b300_alltoall_16": """\
- Rows of the B300 across nodes beat the rate of the network that they name (8 x 400 Gb/s), which
  no prediction may: the ports were probably twice as fast.""",
}
"""What to mind about rows, by the data set that it is about."""

_OUTLIERS: Final = """\
- First rows of some tables carry warm-up, and a few in the middle are outliers. All are in."""
_NO_ROWS: Final = "The table has no such rows."
_SPLITS: Final = {
    ("cluster", "library"): "By system and library",
    ("collective",): "By collective",
    ("num_gpus",): "By number of GPUs",
    ("size_band",): "By size",
}


def page(table: Table) -> str:
    """Return the page, in Markdown. Takes minutes: it fits families without their members."""
    known = usable([table])
    sections = [
        errors_in_sample(table),
        _gpu_counts(known),
        _systems(known),
        _networks(known),
        _cautions(table),
    ]
    return "\n\n".join(sections) + "\n"


def errors_in_sample(table: Table) -> str:
    """Return the first part of the page: errors by every split, beside those of simpler models."""
    ordinary = table.where(_is_ordinary)
    spread = repeats(usable([table]))
    sections = [
        _OPENING,
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


def _cautions(table: Table) -> str:
    """Return what to mind about the data sets of a table."""
    sets = set(table.columns["dataset"])
    said = [text for name, text in _CAUTIONS.items() if name in sets]
    return "## What to mind about the rows\n\n" + "\n".join([*said, _OUTLIERS])


def _populations(table: Table) -> str:
    found = validate(table, ("population",))
    blind = validate(table, ("population",), ignore_versions=True)
    skipped = [f"- {count:,} skipped: {reason}" for reason, count in found.skipped.items()]
    counted = f"{table.rows:,} rows, {found.predicted:,} predicted"
    engines = [each for each in blind.groups if each.key["population"].startswith("engines")]
    return "\n\n".join(
        [
            _POPULATIONS,
            counted + (":" if skipped else "; none is skipped."),
            *(["\n".join(skipped)] if skipped else []),
            _grouped(found.groups),
            _VERSIONS,
            _grouped(engines),
        ]
    )


def _split(ordinary: Table, by: tuple[str, ...]) -> str:
    """Return the section with the errors by some columns."""
    groups = validate(ordinary, by).groups
    return f"## {_SPLITS[by]}\n\nEager and single-process rows apart.\n\n{_grouped(groups)}"


def _baselines(known: Sequence[Curve]) -> str:
    kinds: dict[str, list[Curve]] = {}
    for curve in known:
        kinds.setdefault(kind_of(curve), []).append(curve)
    rows = [
        ((kind, name), found)
        for kind in sorted(kinds)
        for name in MODELS
        if (found := model_stats(name, kinds[kind])).rows
    ]
    return f"{_BASELINES}\n\n{_table(('rows of', 'model'), rows)}"


def _gpu_counts(known: Sequence[Curve]) -> str:
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
    found = list(cross_validation.systems(known))
    switched = [each for each in found if _kind_of_links(each.system) == "nvswitch"]
    others = [each for each in found if each not in switched]
    return "\n\n".join(
        [_SYSTEMS, _left_out(switched, "left out"), _NO_SWITCH, _left_out(others, "left out")]
    )


def _networks(known: Sequence[Curve]) -> str:
    return f"{_NETWORKS}\n\n{_left_out(list(cross_validation.networks(known)), 'left out')}"


def _kind_of_links(system: str) -> str:
    return cluster_named(system).tiers[0].kind


def _left_out(found: Sequence[LeftOut], head: str) -> str:
    if not found:
        return _NO_ROWS
    rows = [((each.system, each.what), stats(each.error_pct)) for each in found]
    together = stats(np.concatenate([each.error_pct for each in found]))
    return _table(("system", head), [*rows, (("all", ""), together)])


def _grouped(groups: Sequence[GroupStats]) -> str:
    if not groups:
        return _NO_ROWS
    head = tuple(groups[0].key)
    return _table(head, [(tuple(each.key.values()), each.stats) for each in groups])


def _table(head: Sequence[str], rows: Sequence[tuple[Sequence[str], Stats]]) -> str:
    """Return a Markdown table of errors."""
    lines = [
        f"| {' | '.join(head)} | rows | median % | p90 % | bias % |",
        f"|{'---|' * len(head)}---:|---:|---:|---:|",
    ]
    for key, each in rows:
        figures = f"{each.rows:,} | {each.median_pct:.1f} | {each.p90_pct:.1f}"
        lines.append(f"| {' | '.join(key)} | {figures} | {each.bias_pct:+.1f} |")
    return "\n".join(lines)
