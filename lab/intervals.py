"""Writes the intervals of the catalog anew, from measured tables.

    python -m lab.intervals collectives.csv gemm.csv … [--output FOLDER] [--page docs/intervals.md]

For each table: what is left out is predicted (`intervals_left_out`), residuals are grouped, and
their reach is lengthened until it holds on parts that are left out (`intervals_groups`); groups are
written to ``catalog/errors/``. Files of kinds that no table is of stay as they are; but how much
farther off kernels are that nobody measured is a mean over all tables of kernels, so that a file
is right only if all of these are given. Tables of one kind are joined. Whether the intervals hold
is printed, by what was left out and by every fact, bold where it is not nine of ten; the whole
takes half an hour and needs SciPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lab import catalog_files
from lab.catalog_files import inline
from lab.command import ended, joined, parser_of, say
from lab.intervals_groups import (
    ENOUGH_TO_SHORTEN,
    INSIDE,
    Group,
    Level,
    Plan,
    Pool,
    Trial,
    groups,
    tried_on_others,
    weighted_quantile,
)
from lab.left_out import Tried, left_out
from shardcost.catalog.errors import (
    CONFIDENCE_PCT,
    MEASURED,
    OTHER_ARCHITECTURE,
    SAME_ARCHITECTURE,
    in_words,
)
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table

FOLDER: Final = catalog_files.CATALOG / "errors"
_HEAD: Final = (
    "Residuals, logarithms of measured over predicted, of rows left out of the fit, by",
    "`python -m lab.intervals`: not by hand.",
)


def _plan(finest: Level, *coarser: Level, **given: Any) -> Plan:
    return Plan((finest, *coarser, ()), **given)


PLANS: Final[Mapping[str, Plan]] = {
    "collectives": _plan(
        ("standing", "span", "links", "fit", "mode", "library", "collective", "band"),
        ("standing", "span", "links", "fit", "mode", "library", "band"),
        ("standing", "span", "links", "mode", "library"),
        ("standing", "span", "links"),
        ("standing", "links"),
        ("links",),
        beside=("vendor",),
        doubling="links",
    ),
    "gemm": _plan(
        ("standing", "format", "rows"),
        ("standing", "rows"),
        ("standing",),
    ),
    "attention": _plan(
        ("standing", "phase", "context"),
        ("standing", "phase"),
        ("standing",),
    ),
    "elementwise": _plan(("standing", "size"), ("standing",), enough=20),
    "elementwise_layer": _plan(("standing", "size"), ("standing",), enough=20),
    "experts": _plan(
        ("standing", "kernel", "weights", "rows"),
        ("standing", "kernel", "rows"),
        ("standing", "kernel"),
        ("standing",),
    ),
    "grouped_gemm": _plan(("standing", "rows"), ("standing",), enough=20),
    "fp8_conversion": _plan(("standing", "rows"), ("standing",), enough=20),
    "sustained": _plan(("standing", "figure"), ("standing",), enough=8),
    "linear_attention": _plan(
        ("standing", "kernel", "part"),
        ("standing", "part"),
        ("standing", "kernel"),
        ("standing",),
    ),
    "mla": _plan(
        ("standing", "scope", "kernel", "cached"),
        ("standing", "scope", "kernel"),
        ("standing", "scope"),
        ("standing",),
    ),
    "layers": _plan(("standing", "pass"), ("standing",)),
    "decode": _plan(("standing", "part"), ("standing",)),
    "overlap": _plan(("standing",)),
    "layer_ops": _plan(
        ("standing", "links", "operator"),
        ("standing", "links"),
        ("links",),
    ),
    "memory": _plan(("pipeline", "held"), ("held",), least=0.0),
    "memory_runs": _plan(
        ("figure", "layers", "held"), ("figure", "layers"), ("figure",), least=0.0, enough=20
    ),
    "training": _plan(
        ("layers", "software", "of", "span", "standing"),
        ("layers", "software", "of", "span"),
        ("layers", "software", "span", "standing"),
        ("layers", "software", "span"),
        ("layers", "software"),
        ("software",),
        beside=("vendor", "format"),
    ),
    "inference": _plan(
        ("software", "figure", "links", "standing", "of"),
        ("software", "figure", "links", "standing"),
        ("software", "figure", "links"),
        ("software", "figure"),
        ("figure",),
        beside=("vendor", "layers", "format"),
    ),
    "serving": _plan(
        ("software", "figure", "standing", "links", "of"),
        ("software", "figure", "standing", "links"),
        ("software", "figure", "standing"),
        ("software", "figure"),
        ("figure",),
        beside=("vendor", "layers", "format"),
    ),
    "requests": _plan(("figure",), least=0.0),
    "comm_fraction": _plan(("standing", "links"), ("links",), enough=20),
    "jitter": _plan(("figure", "size"), ("figure",), least=0.0),
    "jitter_steps": _plan(("figure", "logged"), ("figure",), least=0.0),
    "dispatch": _plan(
        ("standing", "whose", "launch", "kernels", "span"),
        ("standing", "whose", "launch", "kernels"),
        ("standing", "whose", "launch"),
        ("standing", "whose"),
        ("whose",),
    ),
}
"""By which facts the residuals of each kind are grouped."""


HOLDS_PCT: Final = (88, 92)
"""Shares inside that count as nine of ten."""
_NO_FACTOR: Final = 1e-4
_KERNELS: Final = frozenset(
    {"gemm", "attention", "experts", "linear_attention", "layers", "decode", "layer_ops"}
)
"""The kinds that tell how much farther off kernels are that nobody measured."""


class Coverage(NamedTuple):
    """How many residuals the intervals hold that rows of other parts give."""

    kind: str
    of: str
    """Which residuals: all, those of one way to leave out, or those that share a fact."""
    rows: int
    inside_pct: float
    width_pct: float
    """From the low to the high end, in percent of the prediction, of the middle row."""

    @property
    def off(self) -> bool:
        """Whether enough residuals tell that it is not nine of ten."""
        least, most = HOLDS_PCT
        return self.rows >= ENOUGH_TO_SHORTEN and not least <= self.inside_pct <= most


_GPUS: Final[Mapping[str, str]] = {"training": "gpus"}
"""Kinds whose groups know the largest run among them, and the column that has its GPUs."""


def trial_of(kind: str, tried: Sequence[Tried], table: Table | None = None) -> Trial:
    """Return the residuals of a kind, each beside the reach that other parts' rows give."""
    usual = [each for each in tried if each.doublings is None]
    beyond = [each for each in tried if each.doublings is not None]
    gpus = None
    if table is not None and kind in _GPUS:
        gpus = np.array(table.columns[_GPUS[kind]], dtype=np.float64)
    return tried_on_others(Pool(usual, PLANS[kind], gpus), beyond)


def coverage_of(kind: str, trial: Trial) -> Iterator[Coverage]:
    """Yield how the intervals of a kind hold: on the whole, by what was left out, and by facts."""
    reach = trial.lengthened
    sound = np.isfinite(reach)

    def among(of: str, chosen: Any) -> Coverage:
        inside = 100 * np.mean(np.abs(trial.pool.residuals[chosen]) <= reach[chosen])
        width = 100 * 2 * np.sinh(np.median(reach[chosen]))
        return Coverage(kind, of, int(chosen.sum()), float(inside), float(width))

    if not sound.any():
        return
    yield among("all", sound)
    if trial.beyond:
        sizes = np.abs(np.concatenate([tried.residuals for tried in trial.beyond]))
        longer = trial.widened_beyond
        width = float(100 * 2 * np.sinh(np.median(longer)))
        inside_pct = float(100 * np.mean(sizes <= longer))
        yield Coverage(kind, trial.beyond[0].split, len(sizes), inside_pct, width)
    for labels in (trial.pool.splits, *_facts_apart(trial.pool)):
        for label in np.unique(labels[sound & (labels != "")]):
            yield among(str(label), sound & (labels == label))


def _facts_apart(pool: Pool) -> Iterator[Any]:
    """Yield each fact that has factors, in words, of every residual; not those all share."""
    for name in pool.plan.facts:
        labels = np.array([in_words({name: facts.get(name, "")}) for facts in pool.facts])
        if len(np.unique(labels)) > 1:
            yield labels


def lengthening(trials: Mapping[str, Trial]) -> dict[str, float]:
    """Return how much farther off kernels are whose constants are others', by these' nearness.

    The mean, over kinds of kernels that have rows of both, of their reach over that of kernels that
    were measured themselves; 1 where no kind has both.
    """
    ratios: dict[str, list[float]] = {SAME_ARCHITECTURE: [], OTHER_ARCHITECTURE: []}
    for kind in sorted(_KERNELS & set(trials)):
        reach = _reach_by_standing(trials[kind].pool)
        for standing, known in ratios.items():
            if MEASURED in reach and standing in reach:
                known.append(reach[standing] / reach[MEASURED])
    means = {name: float(np.exp(np.mean(np.log(known or [1.0])))) for name, known in ratios.items()}
    return {name: max(1.0, mean) for name, mean in means.items()}


def _reach_by_standing(pool: Pool) -> dict[str, float]:
    standings = np.array([facts.get("standing", "") for facts in pool.facts])
    results = {}
    for standing in np.unique(standings):
        own = standings == standing
        if own.sum() >= pool.plan.enough:
            sizes = np.abs(pool.residuals[own])
            results[str(standing)] = weighted_quantile(sizes, pool.weights[own], INSIDE)
    return results


def written(trial: Trial, longer: Mapping[str, float]) -> list[Group]:
    """Return the groups to write.

    Where a kind has no rows of constants that are others', those of its measured rows stand in.

    Args:
        trial: The residuals of a kind.
        longer: By how much farther these then reach, by the nearness of the others.
    """
    result = list(groups(trial))
    standings = {entry.key.get("standing") for entry in result}
    own = [entry for entry in result if entry.key.get("standing") == MEASURED]
    for standing, factor in longer.items():
        if standing not in standings:
            result += [
                entry._replace(key={**entry.key, "standing": standing}, reach=factor * entry.reach)
                for entry in own
            ]
    return result


def as_toml(kind: str, trial: Trial, longer: Mapping[str, float], datasets: Iterable[str]) -> str:
    """Return the file of a kind."""
    content = {
        "kind": kind,
        "left_out": ", ".join(sorted(set(trial.pool.splits))),
        "source": "rows of " + ", ".join(sorted(set(datasets))),
        "confidence_pct": CONFIDENCE_PCT,
        "levels": [list(level) for level in trial.pool.plan.levels],
        "least": trial.pool.plan.least,
        "doubling": [
            inline({"fact": trial.pool.plan.doubling, "value": value, "adds": round(more, 4)})
            for value, more in trial.per_doubling.items()
        ],
        "factor": [
            inline({"fact": fact, "value": value, "grouped": grouped, "times": round(times, 4)})
            for (fact, value, grouped), times in trial.factors.items()
            if abs(times - 1) > _NO_FACTOR
        ],
        "group": [
            {
                "key": inline(entry.key),
                "rows": entry.rows,
                "parts": entry.parts,
                "low": round(-entry.reach, 4),
                "high": round(entry.reach, 4),
                "median_pct": round(entry.median_pct, 1),
                **({"most_gpus": entry.most_gpus} if entry.most_gpus else {}),
            }
            for entry in written(trial, longer)
        ],
    }
    return catalog_files.as_toml(_HEAD, content)


_TABLE: Final = "| table | residuals of | residuals | inside % | width % |"


def as_lines(coverages: Iterable[Coverage]) -> Iterator[str]:
    """Yield coverage as the lines of a table in Markdown."""
    yield _TABLE
    yield "|---|---|---:|---:|---:|"
    for entry in coverages:
        table = f"**{entry.kind}**" if entry.of == "all" else ""
        inside = f"**{entry.inside_pct:.1f}**" if entry.off else f"{entry.inside_pct:.1f}"
        figures = (f"{entry.rows:,}", inside, f"{entry.width_pct:.0f}")
        yield f"| {' | '.join((table, entry.of, *figures))} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Leave out, group, check and write, for every table given."""
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="measured tables (CSV)")
    parser.add_argument("--output", type=Path, default=FOLDER, help="where to write the files")
    parser.add_argument("--page", type=Path, help="a page whose table of coverage is replaced")
    given = parser.parse_args(arguments)
    tables = joined([read_table(path) for path in given.tables])
    absent = _KERNELS - {table.kind for table in tables}
    if absent:
        say(f"reaches of what nobody measured rest on all kernels but {', '.join(sorted(absent))}")
    trials = {table.kind: trial_of(table.kind, left_out(table, say), table) for table in tables}
    longer = lengthening(trials)
    for table in tables:
        text = as_toml(table.kind, trials[table.kind], longer, table.columns.get("dataset", ()))
        write_whole(given.output / f"{table.kind}.toml", text)
    results = [entry for kind, trial in trials.items() for entry in coverage_of(kind, trial)]
    lines = "\n".join(as_lines(results))
    if given.page is not None:
        before, head, after = given.page.read_text(encoding="utf-8").partition(_TABLE)
        rest = after.partition("\n\n")[2]
        write_whole(given.page, f"{before}{lines}\n\n{rest}" if head else f"{before}\n{lines}\n")
    print(lines)
    for entry in results:
        if entry.off:
            say(f"not nine of ten: {entry.kind}, {entry.of}: {entry.inside_pct:.1f} %")


if __name__ == "__main__":
    ended(main)
