"""Rows predicted by constants that have not seen them: what intervals and the page rest on.

Constants are fitted without a part of the rows (a model, a degree, a data set, a shape) as the
catalog's were, and tried on that part; a system is predicted as if nobody had ever measured it; and
whole runs as if nobody knew what ran them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab import (
    refit_attention,
    refit_dispatch,
    refit_elementwise,
    refit_engines,
    refit_experts,
    refit_frameworks,
    refit_gemm,
    refit_jitter,
    refit_linear_attention,
    refit_memory,
    refit_mla,
    refit_serving,
)
from lab.command import Say
from lab.descent import in_seconds
from lab.kernel_families import GroupT, Refit, labels
from lab.parts import Mask, evenly, leave_out, shape_parts
from lab.refit_collectives import OUTDATED, engines, fitted_network, key_of
from lab.sources import grouped
from shardcost.calibrate.fit import Key, blank, curves, fitted_library, inside
from shardcost.catalog import cluster_named, network_named
from shardcost.catalog.errors import MEASURED, Facts
from shardcost.errors import ShardcostError
from shardcost.estimate.interval import OTHER_SOFTWARE
from shardcost.formats.tables import Row, Table
from shardcost.machine import CATALOG, Fitted
from shardcost.machine.constants import Calibration
from shardcost.machine.kernels import Section
from shardcost.machine.libraries import CATALOG_LIBRARIES, ENGINES
from shardcost.memory.policy import policy_named
from shardcost.software import Software
from shardcost.validate import collectives, gemm, layer_ops, memory, serving, training
from shardcost.validate.collectives import network_of
from shardcost.validate.intervals import (
    facts_of_collective,
    facts_of_experts,
    facts_of_latent,
    facts_of_linear,
    facts_of_rows,
)
from shardcost.validate.predictions import Floats, cases_of
from shardcost.validate.validation import kind_of, measurements

_ENOUGH: Final = 50
"""Rows of a library on a system that must be left where a site is left out."""
_FEW: Final = 6
"""Rows of a site that publishes few."""
MOST_ROWS: Final = 40
"""Of a data set, taken evenly, in a fit of a framework or an engine."""
_TRAINS_WITH, _SERVES_WITH = "megatron_core", "vllm"
"""What tables' frameworks and engines are taken for where the catalog does not have them."""
LARGER: Final = "larger GPU counts"
_MOST_GPUS: Final = (8, 32, 128, 512)
"""Runs on at most so many GPUs predict those on more."""
_ENOUGH_RUNS: Final = 10
_OF_MEMORY: Final = {"num_params": "a model", "tp": "a TP degree", "pp": "a PP degree"}


class Tried(NamedTuple):
    """Rows that were predicted by constants which had not seen them, by one way to leave out."""

    split: str
    """What was left out, such as ``a GPU count``."""
    rows: NDArray[np.intp]
    """Where in the table they stand."""
    parts: tuple[str, ...]
    """Which part each was left out with: ``8``, or ``h100_sxm``."""
    residuals: Floats
    """Logarithms of measured over predicted."""
    facts: tuple[Facts, ...]
    doublings: Floats | None = None
    """Of larger runs than any that the constants were fitted to: of their GPUs, beyond those."""


def left_out(table: Table, say: Say = lambda _: None) -> list[Tried]:
    """Return all that was tried on the rows of a table."""
    results = [_sound(entry) for entry in _TRIED[table.kind](table, say) if len(entry.rows)]
    known = {int(row) for result in results for row in result.rows}
    if len(known) < table.rows:
        count = f"{table.rows - len(known):,} of {table.rows:,} rows"
        why = "they have no measurement or no prediction, or cannot be left out"
        say(f"{table.kind}: {count} have no residual: {why}")
    return results


def _sound(tried: Tried) -> Tried:
    """Return what was tried on the rows that have a measurement, a prediction and facts."""
    known = np.array([bool(fact) for fact in tried.facts])
    kept = np.flatnonzero(np.isfinite(tried.residuals) & known)
    return Tried(
        tried.split,
        tried.rows[kept],
        tuple(tried.parts[i] for i in kept),
        tried.residuals[kept],
        tuple(tried.facts[i] for i in kept),
        None if tried.doublings is None else tried.doublings[kept],
    )


def _column(table: Table, name: str) -> NDArray[Any]:
    return np.array(table.columns.get(name, [""] * table.rows))


def _measured(table: Table) -> Floats:
    return measurements(table, kind_of(table).MEASURED)[0]


def _as_catalogued(
    table: Table, split: str, parts: Iterable[str], fitted: Fitted = CATALOG
) -> Tried:
    """Return the catalog's own predictions of all rows, nothing being fitted anew."""
    values = kind_of(table).predictions(table, fitted).values
    facts = tuple(facts_of_rows(table, fitted=fitted))
    residuals = _logarithms(_measured(table), values)
    return Tried(split, np.arange(table.rows), tuple(parts), residuals, facts)


def _logarithms(measured: Floats, predicted: Floats) -> Floats:
    residuals = np.full(len(measured), np.nan)
    good = np.isfinite(measured) & (predicted > 0)
    residuals[good] = np.log(measured[good] / predicted[good])
    return residuals


def _unmeasured(table: Table, systems: Mapping[str, Mask], say: Say) -> Iterator[Tried]:
    """Yield the rows of each system as they are predicted if nobody ever measured it."""
    for system, mask in systems.items():
        places = np.flatnonzero(mask)
        say(f"{table.kind}: {system} as if never measured")
        fitted = CATALOG.without(system)
        tried = _as_catalogued(_at(table, mask), "a system", [system] * len(places), fitted)
        inherited = [fact.get("standing") != MEASURED for fact in tried.facts]
        facts = tuple(
            entry if new else {} for entry, new in zip(tried.facts, inherited, strict=True)
        )
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
    say("collectives: larger GPU counts left out")
    yield from known.larger()
    say("collectives: networks without one site's rows")
    yield from known.networks()
    say("collectives: systems and networks as if never measured")
    yield from known.systems()
    catalogued = _as_catalogued(table, "a site", _column(table, "dataset"))
    unfitted = [
        row["single_process"] == "1" or row["dataset"] in OUTDATED for row in table.records()
    ]
    facts = [entry if new else {} for entry, new in zip(catalogued.facts, unfitted, strict=True)]
    yield catalogued._replace(facts=tuple(facts))


def site_of(dataset: str) -> str:
    """Return who measured a data set: its source where one is named, else itself.

    >>> site_of("aic_h100_sxm_nccl_2.29.2") == site_of("aic_b200_sxm_nccl_2.23")
    True
    """
    result, rest = grouped([dataset])
    return rest[0] if rest else next(iter(result)).title


class _Curves:
    """The cases of a table of collectives, to be answered by constants that lack some rows."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.cases = collectives.cases(table)
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
                result = self._fitted(key, kept)
                label = f"{key[0]} {key[1]} {value}"
                yield self._answered(split, label, out, own=result)

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
            largest = known[np.argsort(self.cases.sizes[known, 0])][-_FEW:]
            kept = np.zeros(self.table.rows, dtype=bool)
            kept[largest] = True
            result = self._fitted(key, kept)
            out = np.setdiff1d(places, largest)
            yield self._answered("all but a few rows", f"{key[0]} {key[1]}", out, own=result)

    def _places(self) -> dict[Key, NDArray[np.intp]]:
        """Return the rows inside one domain of every library on every system."""
        results: dict[Key, list[int]] = {}
        for case, rows in self.cases.rows.items():
            if (not case.network or case.nodes == 1) and case.has_a_place():
                results.setdefault(key_of(case), []).extend(rows)
        return {key: np.array(sorted(rows)) for key, rows in results.items()}

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
        donors = CATALOG_LIBRARIES.donors(cluster_named(key[0]), key[1], key[2])
        return fitted_library(known, blank(key, donors))

    def networks(self) -> Iterator[Tried]:
        """Yield the rows across each network, those of one site left out of its fit at a time."""
        usable = self._usable()
        names = np.array([network_of(row) for row in self.rows])
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
                family = CATALOG_LIBRARIES.network_family(network_named(name))
                network = fitted_network(curves(_at(self.table, kept)), name, family=family)
                yield self._answered("a site", f"{name} {site}", out, own=network)

    def larger(self) -> Iterator[Tried]:
        """Yield rows of more GPUs than any that the constants of their library or network know."""
        usable, gpus = self._usable(), _column(self.table, "num_gpus").astype(float)
        inside = {f"{key[0]} {key[1]}": (key, own) for key, own in self._places().items()}
        for label, (key, every) in inside.items():
            places = every[usable[every]]
            for most in np.unique(gpus[places])[:-1]:
                kept = np.zeros(self.table.rows, dtype=bool)
                kept[places[gpus[places] <= most]] = True
                if kept.sum() >= _ENOUGH_RUNS:
                    yield self._beyond(f"{label} above {most:g}", places, kept, gpus, key)
        names = _column(self.table, "network")
        for name in np.unique(names[names != ""]):
            places = np.flatnonzero((names == name) & usable)
            for most in np.unique(gpus[places])[:-1]:
                kept = np.zeros(self.table.rows, dtype=bool)
                kept[places[gpus[places] <= most]] = True
                if kept.sum() >= _ENOUGH_RUNS:
                    yield self._beyond(f"{name} above {most:g}", places, kept, gpus, name)

    def _beyond(
        self, part: str, places: NDArray[np.intp], kept: Mask, gpus: Floats, of: Any
    ) -> Tried:
        """Return larger counts by constants fitted to those kept: of a library, or a network."""
        if isinstance(of, str):
            own = fitted_network(curves(_at(self.table, kept)), of)
        else:
            own = self._fitted(of, kept)
        most = gpus[kept].max()
        out = places[gpus[places] > most]
        return self._answered(LARGER, part, out, own=own)._replace(
            doublings=np.log2(gpus[out] / most)
        )

    def systems(self) -> Iterator[Tried]:
        """Yield the rows of each system, and across each network, as if it were never measured."""
        ran_over = np.array([network_of(row) for row in self.rows])
        for names in (_column(self.table, "cluster"), ran_over):
            for name in np.unique(names[names != ""]):
                own = np.flatnonzero((names == name) & self._usable())
                libraries = CATALOG.libraries.without(str(name))
                fitted = CATALOG._replace(libraries=libraries)
                result = self._answered("a system", str(name), own, fitted=fitted)
                yield result._replace(facts=tuple(_if_inherited(fact) for fact in result.facts))

    def _answered(
        self,
        split: str,
        part: str,
        places: NDArray[np.intp],
        own: Calibration | None = None,
        fitted: Fitted = CATALOG,
    ) -> Tried:
        """Return what some rows are predicted as, by a calibration of their own if one is given."""
        wanted = set(places.tolist())
        residuals = np.full(self.table.rows, np.nan)
        facts: dict[int, Facts] = {}
        for case, rows in self.cases.rows.items():
            some = [i for i in rows if i in wanted]
            if not some:
                continue
            sizes = self.cases.sizes[some, 0]
            try:
                on = case.machine(fitted).with_own(own)
                predicted = case.time_s(sizes, on)
                facts |= dict(zip(some, facts_of_collective(case, sizes, on), strict=True))
            except ShardcostError:
                continue
            residuals[some] = _logarithms(self.measured[some], predicted)
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


def _at(table: Table, kept: Mask) -> Table:
    return table.at(np.flatnonzero(kept).tolist())


# --- kernels -------------------------------------------------------------------------------------


def _gemms(table: Table, say: Say) -> Iterator[Tried]:
    facts = facts_of_rows(table)
    for split in ("shapes", "numbers of rows"):
        for rows in refit_gemm.measured_gemms(table):
            say(f"gemm: {split} left out, {rows.case.gpu} {rows.case.dtype}")
            m, n, k = rows.shapes
            parts = shape_parts(n, k) if split == "shapes" else _bands(m)

            def tried(out: Mask, rows: refit_gemm.Gemms = rows) -> Floats:
                return rows.where(out).predicted_s(refit_gemm.fitted(rows.where(~out)))

            residuals = -np.log(leave_out(parts, tried) / rows.time_s)
            own = tuple(facts[i] for i in rows.places)
            yield Tried(split, rows.places, tuple(parts), residuals, own)
    yield from _unmeasured(table, _by_column(table, "gpu"), say)


def _dispatch(table: Table, say: Say) -> Iterator[Tried]:
    known = refit_dispatch.measured(table)
    for split, part_of in refit_dispatch.FOLDS.items():
        say(f"dispatch: {split} left out")
        parts = refit_dispatch.parts_of(table, part_of)
        errors, facts = refit_dispatch.left_out(table, known, parts)
        residuals = -np.log1p(errors / 100)
        yield Tried(split, np.arange(table.rows), tuple(parts), residuals, tuple(facts))


def _bands(m: Floats) -> NDArray[Any]:
    names, most = list(gemm.M_BANDS), np.array(list(gemm.M_BANDS.values()))
    return np.array(names)[np.minimum(np.searchsorted(most, m), len(names) - 1)]


def _experts(table: Table, say: Say) -> Iterator[Tried]:
    """Yield expert kernels by constants without a GPU, a version, a fifth of the models, …."""
    groups = refit_experts.in_parts(refit_experts.measured_groups(table))
    grouped = facts_of_rows(table) if table.kind == "grouped_gemm" else []

    def facts_of(rows: refit_experts.Group, sections: tuple[Section, ...]) -> list[Facts]:
        if grouped:
            return [grouped[place] for place in rows.places]
        kind = (rows.case.kernel, rows.case.dtype)
        return facts_of_experts(*kind, rows.sizes, sections[0], rows.device)

    yield from _kernel_family(table, say, refit_experts.REFIT, groups, facts_of)


def _linear_attention(table: Table, say: Say) -> Iterator[Tried]:
    """Yield kernels by constants without a GPU, a library there, a version, shapes, …."""
    groups = refit_linear_attention.measured_groups(table)

    def facts_of(rows: refit_linear_attention.Group, sections: tuple[Section, ...]) -> list[Facts]:
        own = [facts_of_linear(rows.case, section, rows.device)[0] for section in sections]
        return (own or [{}]) * len(rows.places)

    yield from _kernel_family(table, say, refit_linear_attention.REFIT, groups, facts_of)


def _mla(table: Table, say: Say) -> Iterator[Tried]:
    """Yield latent attention by constants without a GPU, a version, a fifth of the shapes, …."""
    groups = refit_mla.measured_groups(table)

    def facts_of(rows: refit_mla.Group, sections: tuple[Section, ...]) -> list[Facts]:
        return facts_of_latent(rows.case, rows.sizes, sections, rows.device)

    yield from _kernel_family(table, say, refit_mla.REFIT, groups, facts_of)


def _kernel_family(
    table: Table,
    say: Say,
    refit: Refit[GroupT],
    groups: Sequence[GroupT],
    facts_of: Callable[[GroupT, tuple[Section, ...]], Sequence[Facts]],
) -> Iterator[Tried]:
    """Yield the rows of a table by constants without each of the parts that a refit leaves out.

    Args:
        table: The table.
        say: Where to say what is being done.
        refit: The refit of its kernels.
        groups: Its rows.
        facts_of: The facts of rows that are predicted by some constants.
    """
    places = np.concatenate([each.places for each in groups])
    for label, split in refit.splits.items():
        say(f"{table.kind}: {split} left out")
        parts = labels(groups, label).astype(str)
        if len(np.unique(parts)) < 2:
            continue
        facts: dict[int, Facts] = {}

        def seen(rows: GroupT, sections: tuple[Section, ...], facts: Any = facts) -> None:
            facts |= dict(zip(rows.places.tolist(), facts_of(rows, sections), strict=True))

        errors_pct = refit.left_out(groups, label, seen)
        own = tuple(facts.get(place, {}) for place in places.tolist())
        yield Tried(split, places, tuple(parts.tolist()), -np.log1p(errors_pct / 100), own)


def _attention(table: Table, say: Say) -> Iterator[Tried]:
    heads = _column(table, "heads")
    order = {value: str(i % 5) for i, value in enumerate(sorted(set(heads), key=float))}
    parts = np.array([order[value] for value in heads])
    yield _refitted_attention(table, "numbers of heads", parts, say)
    yield from _unmeasured(table, _by_column(table, "gpu"), say)


def _refitted_attention(table: Table, split: str, parts: NDArray[Any], say: Say) -> Tried:
    say(f"{table.kind}: {split} left out")
    errors = refit_attention.left_out_error_pct(table, parts)
    facts = tuple(facts_of_rows(table))
    return Tried(split, np.arange(table.rows), tuple(parts), -np.log1p(errors / 100), facts)


def _decode(table: Table, say: Say) -> Iterator[Tried]:
    attention = _column(table, "part") == "attention"
    for column, split in {"model": "a model", "tp": "a TP degree"}.items():
        known = _as_catalogued(table, split, _column(table, column))
        fitted = _refitted_attention(table, split, _column(table, column), say)
        yield known._replace(residuals=np.where(attention, fitted.residuals, known.residuals))
    yield from _unmeasured(table, _by_column(table, "gpu"), say)


def _overlap(table: Table, say: Say) -> Iterator[Tried]:
    say("overlap: shapes and multiprocessors left out")
    facts = facts_of_rows(table)
    for rows in refit_gemm.measured_overlaps(table):
        case, shapes, _, _, places = rows.gemms
        alone = gemm.GemmCase(case.gpu, case.dtype).kernels().gemm(case.dtype).constants

        def tried(out: Mask, rows: refit_gemm.Overlapped = rows, alone: Any = alone) -> Floats:
            rest = rows._replace(gemms=rows.gemms.where(~out))
            own = rows._replace(gemms=rows.gemms.where(out))
            return own.residuals(alone, refit_gemm.fitted_sharing(rest, alone))[0]

        for split, keys in {"shapes": shapes[:3], "multiprocessors": shapes[3:]}.items():
            parts = np.array([" ".join(f"{value:g}" for value in key) for key in keys.T])
            own = tuple(facts[i] for i in places)
            yield Tried(split, places, tuple(parts), -leave_out(parts, tried), own)
    yield from _unmeasured(table, _by_column(table, "gpu"), say)


def _memory_bound(
    title: str, column: str, named: Callable[[str], str] = str
) -> Callable[[Table, Say], Iterator[Tried]]:
    """Return what tries memory-bound kernels by constants that were fitted without a part of them.

    Args:
        title: Of the parts.
        column: That tells the parts.
        named: Returns the system that a table means by a device's name.
    """

    def tried(table: Table, say: Say) -> Iterator[Tried]:
        say(f"{table.kind}: {title} left out")
        known = _as_catalogued(table, title, _column(table, column))
        for kernels in refit_elementwise.measured_kernels(table):
            unseen = refit_elementwise.unseen_us(kernels)
            known.residuals[kernels.places] = _logarithms(kernels.time_us, unseen)
        yield known
        yield from _unmeasured(table, _by_column(table, "gpu", named), say)

    return tried


def _sustained(table: Table, say: Say) -> Iterator[Tried]:
    """Yield GEMMs under a power limit by shares that were found without their shape."""
    say("sustained: shapes left out")
    values = np.full(table.rows, np.nan)
    for rows in refit_gemm.measured_sustained(table):
        values[rows.places] = refit_gemm.unseen_us(rows)
    residuals = _logarithms(_measured(table), values)
    m, n, k = (_column(table, name) for name in ("m", "n", "k"))
    shapes = tuple(" ".join(shape) for shape in zip(m, n, k, strict=True))
    yield Tried("shapes", np.arange(table.rows), shapes, residuals, tuple(facts_of_rows(table)))
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
    try:
        return layer_ops.cluster_of(gpu).name
    except ShardcostError:
        return ""


# --- jitter --------------------------------------------------------------------------------------


def _jitter(table: Table, say: Say) -> Iterator[Tried]:
    """Yield percentiles of single times, the constants fitted without some of the rows."""
    for column, title in refit_jitter.FOLDS[table.kind].items():
        say(f"{table.kind}: {title} left out")
        parts = _column(table, column)
        residuals = _logarithms(_measured(table), refit_jitter.unseen(table, parts))
        facts = tuple(facts_of_rows(table))
        yield Tried(title, np.arange(table.rows), tuple(parts), residuals, facts)


# --- memory and whole runs -----------------------------------------------------------------------


def _memory(table: Table, say: Say) -> Iterator[Tried]:
    """Yield what runs allocated, the workspace fitted without a model or a degree."""
    say("memory: models and degrees left out")
    policy = replace(policy_named("nanotron"), workspace_bytes=0.0)
    bare, measured = memory.predictions(table, policy=policy).values, _measured(table)
    facts = tuple(facts_of_rows(table))

    def tried(out: Mask) -> Floats:
        missing = measured[~out] - bare[~out]
        if not np.isfinite(missing).any():
            return np.full(int(out.sum()), np.nan)
        return bare[out] + max(0.0, float(np.nanmedian(missing)))

    for column, title in _OF_MEMORY.items():
        parts = _column(table, column)
        residuals = _logarithms(measured, np.nan_to_num(leave_out(parts, tried)))
        yield Tried(title, np.arange(table.rows), tuple(parts), residuals, facts)


def _memory_runs(table: Table, say: Say) -> Iterator[Tried]:
    """Yield what runs held, the policy's constants fitted without a family, a GPU or a degree."""
    say("memory_runs: families, GPUs and degrees left out")
    trials, facts = refit_memory.Trials.of(table), tuple(facts_of_rows(table))
    runs = refit_memory.runs_of(table)
    for column, title in refit_memory.FOLDS.items():
        parts = _column(table, column)
        held = trials.left_out(_column(runs, column))
        values = refit_memory.by_figure(table, *held)
        residuals = _logarithms(_measured(table), np.nan_to_num(values))
        yield Tried(title, np.arange(table.rows), tuple(parts), residuals, facts)


def _requests(table: Table, say: Say) -> Iterator[Tried]:
    """Yield requests as the catalog predicts them: nothing was fitted to single ones."""
    say("requests: as the catalog predicts them")
    yield _as_catalogued(table, "a run", _column(table, "run"))


def _runs(table: Table, say: Say) -> Iterator[Tried]:
    """Yield whole runs: without their data set or model, on an unmeasured system, by others."""
    for column, split in {"dataset": "a data set", "model": "a model"}.items():
        yield runs_without(table, column, split, say)
    yield from _unmeasured(table, _by_column(table, "cluster"), say)
    if table.kind == "training":
        yield from larger_runs(table, say)
    say(f"{table.kind}: as if nobody knew what ran them")
    of_training = table.kind == "training"
    values = _by_usual_framework(table) if of_training else _by_usual_engine(table)
    facts = facts_of_rows(table)
    unknown = {"software": OTHER_SOFTWARE, "of": "any"}
    yield Tried(
        "a framework" if of_training else "an engine",
        np.arange(table.rows),
        tuple(own.get("of", "") for own in facts),
        _logarithms(_measured(table), np.nan_to_num(values)),
        tuple({**own, **unknown} if own else own for own in facts),
    )


def runs_without(table: Table, column: str, split: str, say: Say) -> Tried:
    """Return whole runs as they are predicted without the runs that are alike in a column."""
    refitted = _refitted_frameworks if table.kind == "training" else _refitted_engines
    residuals = _logarithms(_measured(table), refitted(table, column, say))
    parts, facts = tuple(_column(table, column)), tuple(facts_of_rows(table))
    return Tried(split, np.arange(table.rows), parts, residuals, facts)


def _refitted_frameworks(table: Table, column: str, say: Say) -> Floats:
    """Return the step time of every run, its framework fitted without the runs alike in a column.

    Where no other run of the framework is left, there is nothing to fit: NaN.
    """
    rows = list(table.records())
    names = np.array([training.software_of(row).name for row in rows])
    values = np.full(len(rows), np.nan)
    for name in refit_frameworks.FITTED:
        places = np.flatnonzero(names == name)
        own = [rows[i] for i in places]
        chosen = _sample(own)
        trials = refit_frameworks.Trials([own[i] for i in chosen])
        say(f"training: {name} without each {column}, {len(own)} rows")

        def tried(out: Mask, name: str = name, own: Any = own, trials: Any = trials,
                  chosen: Any = chosen) -> Floats:  # fmt: skip
            kept = ~out[chosen]
            if not kept.any():
                return np.full(int(out.sum()), np.nan)
            constants = trials.fitted(refit_frameworks.FITTED[name], kept)
            return np.array([_step_s(own[i], constants) for i in np.flatnonzero(out)])

        values[places] = leave_out(np.array([row.get(column, "") for row in own]), tried)
    return values


def larger_runs(table: Table, say: Say) -> Iterator[Tried]:
    """Yield runs on more GPUs than any that their framework's constants were fitted to."""
    rows, facts = list(table.records()), facts_of_rows(table)
    names = np.array([training.software_of(row).name for row in rows])
    gpus, measured = np.array([float(row["gpus"]) for row in rows]), _measured(table)
    for name in refit_frameworks.FITTED:
        places = np.flatnonzero((names == name) & np.isfinite(measured))
        chosen = places[_sample([rows[i] for i in places])] if len(places) else places
        trials = refit_frameworks.Trials([rows[i] for i in chosen])
        for most in _MOST_GPUS:
            kept, out = gpus[chosen] <= most, places[gpus[places] > most]
            if kept.sum() < _ENOUGH_RUNS or not len(out):
                continue
            say(f"training: {name} up to {most} GPUs, {len(out)} larger runs left out")
            constants = trials.fitted(refit_frameworks.FITTED[name], kept)
            predicted = np.array([_step_s(rows[i], constants) for i in out])
            yield Tried(
                LARGER,
                out,
                (f"{name} above {most}",) * len(out),
                _logarithms(measured[out], predicted),
                tuple(facts[i] for i in out),
                np.log2(gpus[out] / gpus[chosen][kept].max()),
            )


def _step_s(row: Row, constants: Mapping[str, float]) -> float:
    measured = row[training.MEASURED]
    if not measured:
        return np.nan
    return float(refit_frameworks.ratios([row], constants)[0]) * float(measured)


def _sample(rows: Sequence[Row]) -> list[int]:
    """Return places of rows of each data set, evenly, at most `MOST_ROWS` of each."""
    sets: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        sets.setdefault(row.get("dataset", ""), []).append(i)
    return [i for own in sets.values() for i in evenly(own, MOST_ROWS)]


def _refitted_engines(table: Table, column: str, say: Say) -> Floats:
    """Return the figure of every run, its engine fitted without the runs alike in a column."""
    rows = list(table.records())
    values = np.full(len(rows), np.nan)
    kind: Any = kind_of(table)
    known = cases_of(table, kind.case_of).rows
    evidence = refit_engines.evidence_of(
        [table], lambda row: row["cluster"] != refit_engines.DEVICE
    )
    by_others = {
        q: places for q, places in known.items() if q.software.name in refit_serving.FITTED
    }
    for case, members in by_others.items():  # engines that were fitted to runs of another table
        values[members] = kind.figures(case, [rows[i] for i in members])
    for name in refit_engines.FITTED:
        own = {q: places for q, places in known.items() if q.software.name == name}
        places = [i for entry in own.values() for i in entry]
        fitted_to = evidence.get(name)
        for cell in sorted({rows[i].get(column, "") for i in places}):
            rest = None if fitted_to is None else _thinned(fitted_to.where(_differs(column, cell)))
            if rest is None or not rest.rows:
                continue
            say(f"{table.kind}: {name} without {cell}")
            given: Any = in_seconds(refit_engines.fitted(name, rest))
            for case, members in own.items():
                out = [i for i in members if rows[i].get(column, "") == cell]
                if out:
                    software = replace(case.software, **given)
                    values[out] = kind.figures(
                        case._replace(software=software), [rows[i] for i in out]
                    )
    return values


def _differs(column: str, cell: str) -> Callable[[Row], bool]:
    return lambda row: row.get(column, "") != cell


def _thinned(evidence: refit_engines.Evidence) -> refit_engines.Evidence:
    rows = evidence.rows
    kept = {id(rows[i]) for i in _sample(rows)}
    return evidence.where(lambda row: id(row) in kept)


def _serving(table: Table, say: Say) -> Iterator[Tried]:
    """Yield runs under load: without their model, GPU or data set, and by no engine in particular.

    The errors of an engine's runs are linear in its host's constants (`lab.refit_serving`), from
    which follows what each run's would be by constants that had not seen its like.
    """
    facts = facts_of_rows(table)
    residuals = _logarithms(_measured(table), kind_of(table).predictions(table, CATALOG).values)
    places: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for place, row in enumerate(table.records()):
        if np.isfinite(residuals[place]):
            figure = row["figure"].partition("_")[0]
            places.setdefault(serving.case_of(row), []).append((place, figure))

    def moved(about: refit_serving.Linear, errors: NDArray[np.float64], split: str) -> Tried:
        """Return an engine's runs by constants that give TTFT and TPOT other errors."""
        at: list[int] = []
        changes: list[float] = []
        for number, run in enumerate(about.runs):
            first, later = errors[number] - about.errors[number]
            for place, figure in places.get(serving.case_of(run), ()):
                at.append(place)
                changes.append(first if figure == "ttft" else later)
        parts = (about.name,) * len(at)
        left = residuals[at] - np.array(changes)
        return Tried(split, np.array(at, dtype=np.intp), parts, left, tuple(facts[i] for i in at))

    yield from _unmeasured(table, _by_column(table, "cluster"), say)
    unknown = {"software": OTHER_SOFTWARE, "of": "any"}
    with ProcessPoolExecutor(2) as pool:
        for name, runs in refit_serving.runs_of(table, MOST_ROWS).items():
            if name not in refit_serving.FITTED:
                continue
            say(f"serving: {name}, {len(runs)} runs")
            about = refit_serving.linear(name, runs, refit_serving.constants_of(name), pool)
            for column, split in refit_serving.SPLITS.items():
                yield moved(about, about.without(column), split)
            tried = moved(about, about.by_others(), "an engine")
            yield tried._replace(
                facts=tuple({**own, **unknown} if own else own for own in tried.facts)
            )


def _by_usual_framework(table: Table) -> Floats:
    """Return the step time of other frameworks' runs by the one that unknown ones are taken for."""
    usual = Software.named(_TRAINS_WITH)
    return np.array(
        [
            np.nan
            if training.software_of(row).name == usual.name
            else float(training.estimate_of(row, usual).time_s)
            for row in table.records()
        ]
    )


def _by_usual_engine(table: Table) -> Floats:
    """Return the figures of other engines' runs by the one that unknown ones are taken for."""
    usual = Software.named(_SERVES_WITH)
    rows = list(table.records())
    values = np.full(len(rows), np.nan)
    kind: Any = kind_of(table)
    for case, members in cases_of(table, kind.case_of).rows.items():
        if not case.software.name.startswith((usual.name, "tokenweave")):
            values[members] = kind.figures(
                case._replace(software=usual), [rows[i] for i in members]
            )
    return values


_TRIED: Final[Mapping[str, Callable[[Table, Say], Iterator[Tried]]]] = {
    "collectives": _collectives,
    "gemm": _gemms,
    "attention": _attention,
    "elementwise": _unfitted("bytes"),
    "elementwise_layer": _memory_bound("tokens", "tokens"),
    "experts": _experts,
    "grouped_gemm": _experts,
    "linear_attention": _linear_attention,
    "mla": _mla,
    "layers": _unfitted("model"),
    "decode": _decode,
    "fp8_conversion": _memory_bound("tokens", "m"),
    "sustained": _sustained,
    "overlap": _overlap,
    "layer_ops": _memory_bound("a model", "model", _system),
    "memory": _memory,
    "memory_runs": _memory_runs,
    "training": _runs,
    "inference": _runs,
    "serving": _serving,
    "requests": _requests,
    "comm_fraction": _unfitted("dataset"),
    "dispatch": _dispatch,
    "jitter": _jitter,
    "jitter_steps": _jitter,
}
