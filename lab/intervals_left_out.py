"""Residuals of rows that the constants had not seen: the stuff that intervals are made of.

For each kind of table, parts are left out one at a time (a system, a GPU count, a site, shapes, a
data set, a model), constants are fitted to the rest as the catalog's are, and the part is
predicted. A device or system that nobody measured is predicted as such (`intervals_hidden`). Where
nothing was fitted to the rows of a kind, the catalog's own predictions are left out already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lab import refit_attention
from lab import refit_gemm as refit_products
from lab.intervals_groups import Mask, Tried
from lab.intervals_runs import (
    Say,
    by_usual_engine,
    by_usual_framework,
    refitted_engines,
    refitted_frameworks,
)
from lab.other_constants import without_collectives, without_system
from lab.refit_collectives import OUTDATED, engines, wire_blank
from shardcost.calibrate.fit import Key, blank, curves, fitted_library, fitted_wire, inside
from shardcost.catalog import cluster_named
from shardcost.catalog.errors import MEASURED, Facts
from shardcost.collectives.calibration import Calibration, donors_of
from shardcost.collectives.engine_kernels import ENGINES, generation
from shardcost.errors import ShardcostError
from shardcost.estimate.interval import OTHER_SOFTWARE
from shardcost.formats.tables import Row, Table
from shardcost.kernels.gemm import gemm_section
from shardcost.memory.policy import habits_named
from shardcost.validate import collectives, gemm, memory, overlap
from shardcost.validate.intervals import facts_of_question, facts_of_rows
from shardcost.validate.predictions import Floats
from shardcost.validate.sources import grouped
from shardcost.validate.validation import kind_of, measurements

_PARTS: Final = 5
"""Into how many shapes and numbers of heads are parted."""
_ENOUGH: Final = 50
"""Rows of a library on a system that must be left where a site is left out."""
_FEW: Final = 6
"""Rows of a site that publishes few."""


def left_out(table: Table, say: Say = lambda _: None) -> list[Tried]:
    """Return all that was tried on the rows of a table."""
    found = [_sound(each) for each in _TRIED[table.kind](table, say) if len(each.rows)]
    known = {int(row) for each in found for row in each.rows}
    if len(known) < table.rows:
        count = f"{table.rows - len(known):,} of {table.rows:,} rows"
        why = "they have no measurement or no prediction, or cannot be left out"
        say(f"{table.kind}: {count} have no residual: {why}")
    return found


def _sound(tried: Tried) -> Tried:
    """Return what was tried on the rows that have a measurement, a prediction and facts."""
    known = np.array([bool(each) for each in tried.facts])
    kept = np.flatnonzero(np.isfinite(tried.residuals) & known)
    return Tried(
        tried.split,
        tried.rows[kept],
        tuple(tried.parts[i] for i in kept),
        tried.residuals[kept],
        tuple(tried.facts[i] for i in kept),
    )


def _column(table: Table, name: str) -> NDArray[Any]:
    return np.array(table.columns.get(name, [""] * table.rows))


def _measured(table: Table) -> Floats:
    return measurements(table, kind_of(table).MEASURED)[0]


def _as_catalogued(table: Table, split: str, parts: Iterable[str]) -> Tried:
    """Return the catalog's own predictions of all rows, nothing being fitted anew."""
    values = kind_of(table).predictions(table, ignore_versions=False).values
    facts = tuple(facts_of_rows(table))
    residuals = _logarithms(_measured(table), values)
    return Tried(split, np.arange(table.rows), tuple(parts), residuals, facts)


def _logarithms(measured: Floats, predicted: Floats) -> Floats:
    found = np.full(len(measured), np.nan)
    good = np.isfinite(measured) & (predicted > 0)
    found[good] = np.log(measured[good] / predicted[good])
    return found


def _unmeasured(table: Table, systems: Mapping[str, Mask], say: Say) -> Iterator[Tried]:
    """Yield the rows of each system as they are predicted if nobody ever measured it."""
    for system, mask in systems.items():
        places = np.flatnonzero(mask)
        say(f"{table.kind}: {system} as if never measured")
        with without_system(system):
            tried = _as_catalogued(_at(table, mask), "a system", [system] * len(places))
        inherited = [each.get("standing") != MEASURED for each in tried.facts]
        facts = tuple(each if new else {} for each, new in zip(tried.facts, inherited, strict=True))
        yield tried._replace(rows=places, facts=facts)


def _by_column(table: Table, name: str, named: Callable[[str], str] = str) -> dict[str, Mask]:
    cells = np.array([named(cell) for cell in table.columns.get(name, [])])
    return {str(value): cells == value for value in np.unique(cells) if value}


# --- collectives ---------------------------------------------------------------------------------


def _collectives(table: Table, say: Say) -> Iterator[Tried]:
    known = _Curves(table)
    say("collectives: GPU counts left out")
    yield from known.without("a GPU count", lambda row: row["num_gpus"])
    say("collectives: sites left out")
    yield from known.without("a site", lambda row: site_of(row["dataset"]))
    say("collectives: all but a few rows left out")
    yield from known.by_a_few_rows()
    say("collectives: networks without one site's rows")
    yield from known.networks()
    say("collectives: systems and networks as if never measured")
    yield from known.systems()
    catalogued = _as_catalogued(table, "a site", _column(table, "dataset"))
    unfitted = [
        row["single_process"] == "1" or row["dataset"] in OUTDATED for row in table.records()
    ]
    facts = [each if new else {} for each, new in zip(catalogued.facts, unfitted, strict=True)]
    yield catalogued._replace(facts=tuple(facts))


def site_of(dataset: str) -> str:
    """Return who measured a data set: its source where one is named, else itself.

    >>> site_of("aic_h100_sxm_nccl_2.29.2") == site_of("aic_b200_sxm_nccl_2.23")
    True
    """
    found, rest = grouped([dataset])
    return rest[0] if rest else next(iter(found)).title


class _Curves:
    """The questions of a table of collectives, to be answered by constants that lack some rows."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.asked = collectives.asked(table)
        self.measured = 1e-6 * _measured(table)
        self.rows = list(table.records())

    def without(self, split: str, part: Callable[[Row], str]) -> Iterator[Tried]:
        """Yield the rows of each library on each system, a part of them left out at a time."""
        parts = np.array([part(row) for row in self.rows])
        usable = self._usable()
        for key, every in self._places().items():
            places = every[usable[every]]
            for value in np.unique(parts[places]):
                out = places[parts[places] == value]
                rest = np.setdiff1d(places, out)
                if len(rest) < (max(_ENOUGH, len(out)) if split == "a site" else 1):
                    continue
                kept = np.zeros(self.table.rows, dtype=bool)
                kept[rest] = True
                found = self._fitted(key, kept)
                label = f"{key[0]} {key[1]} {value}"
                yield self._answered(split, label, out, calibration=found)

    def by_a_few_rows(self) -> Iterator[Tried]:
        """Yield the rows of each vendor's library on each system, but a few large all-reduces.

        Sites often publish just these, of as many GPUs as they have.
        """
        usable, gpus = self._usable(), _column(self.table, "num_gpus").astype(int)
        summed = _column(self.table, "collective") == "all_reduce"
        for key, every in self._places().items():
            places = every[usable[every]]
            if key[1] in ENGINES or len(places) < 2 * _ENOUGH:
                continue
            known = places[summed[places] & (gpus[places] == gpus[places].max())]
            largest = known[np.argsort(self.asked.sizes[known])][-_FEW:]
            kept = np.zeros(self.table.rows, dtype=bool)
            kept[largest] = True
            found = self._fitted(key, kept)
            out = np.setdiff1d(places, largest)
            yield self._answered("all but a few rows", f"{key[0]} {key[1]}", out, calibration=found)

    def _places(self) -> dict[Key, NDArray[np.intp]]:
        """Return the rows inside one domain of every library on every system."""
        found: dict[Key, list[int]] = {}
        for question, rows in self.asked.rows.items():
            if (not question.network or question.nodes == 1) and question.has_a_place():
                found.setdefault(key_of(question), []).extend(rows)
        return {key: np.array(sorted(rows)) for key, rows in found.items()}

    def _usable(self) -> Mask:
        """Return which rows the catalog's constants are fitted to."""
        fitted = [
            row["dataset"] not in OUTDATED and row["single_process"] != "1" for row in self.rows
        ]
        return np.array(fitted) & np.isfinite(self.measured)

    def _fitted(self, key: Any, kept: Mask) -> Calibration:
        known = inside(curves(_at(self.table, kept)))
        if key[1] in ENGINES:
            return engines(known)[key]
        donors = donors_of(cluster_named(key[0]), key[1], key[2])
        return fitted_library(known, blank(key, donors))

    def networks(self) -> Iterator[Tried]:
        """Yield the rows across each network, those of one site left out of its fit at a time."""
        usable = self._usable()
        names = _column(self.table, "network")
        sites = np.array([site_of(row["dataset"]) for row in self.rows])
        for name in np.unique(names[names != ""]):
            places = np.flatnonzero((names == name) & usable)
            for site in np.unique(sites[places]):
                out = places[sites[places] == site]
                rest = np.setdiff1d(places, out)
                if not len(rest):
                    continue
                kept = np.zeros(self.table.rows, dtype=bool)
                kept[rest] = True
                wire = fitted_wire(curves(_at(self.table, kept)), wire_blank(name))
                yield self._answered("a site", f"{name} {site}", out, wire=wire)

    def systems(self) -> Iterator[Tried]:
        """Yield the rows of each system, and across each network, as if it were never measured."""
        for column in ("cluster", "network"):
            names = _column(self.table, column)
            for name in np.unique(names[names != ""]):
                own = np.flatnonzero((names == name) & self._usable())
                with without_collectives(lambda each, name=name: each.system == name):  # type: ignore[misc]
                    found = self._answered("a system", str(name), own)
                yield found._replace(facts=tuple(_if_inherited(each) for each in found.facts))

    def _answered(self, split: str, part: str, places: NDArray[np.intp], **constants: Any) -> Tried:
        wanted = set(places.tolist())
        residuals = np.full(self.table.rows, np.nan)
        facts: dict[int, Facts] = {}
        for question, rows in self.asked.rows.items():
            own = [i for i in rows if i in wanted]
            if not own:
                continue
            sizes = self.asked.sizes[own]
            try:
                predicted = question.time_s(sizes, **constants)
                facts |= dict(
                    zip(own, facts_of_question(question, sizes, **constants), strict=True)
                )
            except ShardcostError:
                continue
            residuals[own] = _logarithms(self.measured[own], predicted)
        return Tried(
            split,
            places,
            (part,) * len(places),
            residuals[places],
            tuple(facts.get(i, {}) for i in places.tolist()),
        )


def _if_inherited(facts: Facts) -> Facts:
    """Return facts where some constants are not the system's or the network's own."""
    known = facts and facts["standing"] == MEASURED and "not measured" not in facts["span"]
    return {} if known else facts


def key_of(question: collectives.Question) -> Key:
    """Return which constants a question is about: a system, a library, and since which version."""
    name, _, version = question.library.partition("==")
    return question.cluster, name, generation(name, version or None) if name in ENGINES else "0"


def _at(table: Table, kept: Mask) -> Table:
    places = np.flatnonzero(kept)
    columns = {name: [cells[i] for i in places] for name, cells in table.columns.items()}
    return replace(table, columns=columns, rows=len(places))


# --- kernels -------------------------------------------------------------------------------------


def _products(table: Table, say: Say) -> Iterator[Tried]:
    found = gemm.asked(table)
    facts = facts_of_rows(table)
    m, n, k = found.shapes
    weights = [str(crc32(f"{a:g}x{b:g}".encode()) % _PARTS) for a, b in zip(n, k, strict=True)]
    splits = {"shapes": np.array(weights), "numbers of rows": _bands(m)}
    times = 1e-6 * _measured(table)
    for split, parts in splits.items():
        for question, every in found.rows.items():
            say(f"gemm: {split} left out, {question.gpu} {question.dtype}")
            places = np.array([i for i in every if times[i] > 0])
            rows = refit_products.Products(
                question, found.shapes[:, places], times[places], frozenset()
            )
            residuals = np.full(len(places), np.nan)
            for part in np.unique(parts[places]):
                out = parts[places] == part
                if not out.all():
                    constants = refit_products.fitted(rows.where(~out))
                    held = rows.where(out)
                    residuals[out] = np.log(held.time_s / held.predicted_s(constants))
            yield Tried(
                split,
                places,
                tuple(parts[places]),
                residuals,
                tuple(facts[i] for i in places),
            )
    yield from _unmeasured(table, _by_column(table, "gpu"), say)


def _bands(m: Floats) -> NDArray[Any]:
    names, most = list(gemm.M_BANDS), np.array(list(gemm.M_BANDS.values()))
    return np.array(names)[np.minimum(np.searchsorted(most, m), len(names) - 1)]


def _attention(table: Table, say: Say) -> Iterator[Tried]:
    heads = _column(table, "heads")
    order = {value: str(i % _PARTS) for i, value in enumerate(sorted(set(heads), key=float))}
    parts = [order[each] for each in heads]
    yield _refitted_attention(table, "numbers of heads", parts, say)
    yield from _unmeasured(table, _by_column(table, "gpu"), say)


def _refitted_attention(table: Table, split: str, parts: Sequence[str], say: Say) -> Tried:
    say(f"{table.kind}: {split} left out")
    parted = replace(table, columns={**table.columns, "part of the fit": list(parts)})
    errors = refit_attention.left_out_error_pct(parted, "part of the fit")
    facts = tuple(facts_of_rows(table))
    residuals = -np.log1p(errors / 100)
    return Tried(split, np.arange(table.rows), tuple(parts), residuals, facts)


def _decode(table: Table, say: Say) -> Iterator[Tried]:
    models, degrees = _column(table, "model"), _column(table, "tp")
    for split, parts in {"a model": models, "a TP degree": degrees}.items():
        known = _as_catalogued(table, split, parts)
        fitted = _refitted_attention(table, split, list(parts), say)
        attention = np.array([cell == "attention" for cell in table.columns["part"]])
        yield known._replace(residuals=np.where(attention, fitted.residuals, known.residuals))
    yield from _unmeasured(table, _by_column(table, "gpu"), say)


def _overlap(table: Table, say: Say) -> Iterator[Tried]:
    say("overlap: shapes and multiprocessors left out")
    facts = tuple(facts_of_rows(table))
    found = gemm.asked(table, overlap.COLUMNS, overlap.question)
    for rows, places in zip(
        refit_products.measured_overlaps(table), map(np.array, found.rows.values()), strict=True
    ):
        alone = gemm_section(gemm.device_of(rows.products.question.gpu), "bf16").constants
        shapes = rows.products.shapes
        for split, keys in {"shapes": shapes[:3], "multiprocessors": shapes[3:]}.items():
            parts = np.array([" ".join(f"{each:g}" for each in key) for key in keys.T])
            residuals = np.full(len(places), np.nan)
            for part in np.unique(parts):
                out = parts == part
                constants = refit_products.fitted_sharing(
                    rows._replace(products=rows.products.where(~out)), alone
                )
                held = rows._replace(products=rows.products.where(out))
                residuals[out] = -held.residuals(alone, constants)[0]
            yield Tried(split, places, tuple(parts), residuals, tuple(facts[i] for i in places))
    yield from _unmeasured(table, _by_column(table, "gpu"), say)


def _unfitted(column: str) -> Callable[[Table, Say], Iterator[Tried]]:
    """Return what tries tables to whose rows nothing, or next to nothing, was fitted."""

    def tried(table: Table, say: Say) -> Iterator[Tried]:
        say(f"{table.kind}: as the catalog predicts it")
        title = {"dataset": "a data set", "model": "a model", "bytes": "a size"}[column]
        yield _as_catalogued(table, title, _column(table, column))
        yield from _unmeasured(table, _by_column(table, "gpu", _system), say)

    return tried


def _system(gpu: str) -> str:
    """Return the cluster that a table means by a device's name; nothing where there is none."""
    from shardcost.validate.layer_ops import cluster_of

    try:
        return cluster_of(gpu).name
    except ShardcostError:
        return ""


# --- memory and whole runs -----------------------------------------------------------------------


def _memory(table: Table, say: Say) -> Iterator[Tried]:
    """Yield what runs allocated, the workspace fitted without a model or a degree."""
    say("memory: models and degrees left out")
    policy = replace(habits_named("nanotron"), workspace_bytes=0.0)
    bare, measured = memory.predictions(table, policy=policy).values, _measured(table)
    facts = tuple(facts_of_rows(table))
    titles = {"num_params": "a model", "tp": "a TP degree", "pp": "a PP degree"}
    for column, title in titles.items():
        parts = _column(table, column)
        predicted = np.full(table.rows, np.nan)
        for part in np.unique(parts):
            out = parts == part
            missing = measured[~out] - bare[~out]
            if np.isfinite(missing).any():
                predicted[out] = bare[out] + max(0.0, float(np.nanmedian(missing)))
        residuals = _logarithms(measured, np.nan_to_num(predicted))
        yield Tried(title, np.arange(table.rows), tuple(parts), residuals, facts)


def _training(table: Table, say: Say) -> Iterator[Tried]:
    yield from _runs(table, refitted_frameworks, say)
    yield _unknown(table, "a framework", by_usual_framework, say)


def _inference(table: Table, say: Say) -> Iterator[Tried]:
    yield from _runs(table, refitted_engines, say)
    yield _unknown(table, "an engine", by_usual_engine, say)


def _unknown(table: Table, split: str, predict: Callable[[Table], Floats], say: Say) -> Tried:
    """Return runs as they are predicted if nobody knew what ran them."""
    say(f"{table.kind}: as if nobody knew what ran them")
    known = facts_of_rows(table)
    parts = tuple(facts.get("of", "") for facts in known)
    unknown = {"software": OTHER_SOFTWARE, "of": "any"}
    facts = tuple({**facts, **unknown} if facts else facts for facts in known)
    residuals = _logarithms(_measured(table), np.nan_to_num(predict(table)))
    return Tried(split, np.arange(table.rows), parts, residuals, facts)


def _runs(table: Table, refitted: Any, say: Say) -> Iterator[Tried]:
    facts = tuple(facts_of_rows(table))
    measured = _measured(table)
    for split, column in {"a data set": "dataset", "a model": "model"}.items():
        values = refitted(table, column, say)
        parts = tuple(_column(table, column))
        residuals = _logarithms(measured, values)
        yield Tried(split, np.arange(table.rows), parts, residuals, facts)
    yield from _unmeasured(table, _by_column(table, "cluster"), say)


_TRIED: Final[Mapping[str, Callable[[Table, Say], Iterator[Tried]]]] = {
    "collectives": _collectives,
    "gemm": _products,
    "attention": _attention,
    "elementwise": _unfitted("bytes"),
    "layers": _unfitted("model"),
    "decode": _decode,
    "overlap": _overlap,
    "layer_ops": _unfitted("model"),
    "memory": _memory,
    "training": _training,
    "inference": _inference,
    "comm_fraction": _unfitted("dataset"),
}
