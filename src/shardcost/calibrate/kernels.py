"""Calibrates kernels on a user's own measurements: `calibrate_kernels`.

A table of `shardcost measure kernels` has rows of four families of formulas: GEMMs of a number
format, attention of prompts, attention of decoding, elementwise. Each starts from the constants of
the catalog (the device's own, else those it inherits) and moves a few of them, held to where they
start by weights of ``catalog/tuner/kernels.toml``. What the formula still leaves is kept as a
smooth function of the sizes (`shardcost.machine.residual`) where points left out say that it helps.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np

from shardcost.calibrate.fit import fit_robustly
from shardcost.calibrate.residual import Points, fit_kernel_residual, score
from shardcost.catalog import cluster_named, names, tuner_table
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, ShardcostError
from shardcost.formats.tables import Table
from shardcost.machine import CATALOG, KernelConstants, machine_of
from shardcost.machine.kernels import Fit, KernelTable, Section
from shardcost.machine.profile_kernels import FORMS, form_of
from shardcost.machine.residual import Residual
from shardcost.validate.kernels import LIBRARIES, KernelRow, row_of, sizes_of
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import Stats, measurements, stats

_FOLDS: Final = 5
_OUTLIERS: Final = (1.0, 0.1)
_ROUNDS, _ROUNDS_NEAR = 40, 12
_TIMED: Final = ("graph", "call")
"""Modes that constants are fitted to; bursts and sustained runs speak of power, not of kernels."""
_PLAIN: Final = ("copy", "add")
_OF_ROWS: Final = ("rms_norm", "silu_mul")
Key = tuple[KernelTable, str]


@dataclass(frozen=True, eq=False)
class Rows:
    """Measured kernels of one family."""

    key: Key
    """The table and section of constants that they determine."""
    title: str
    cases: tuple[KernelRow, ...]
    """Of each row."""
    sizes: Floats
    time_s: Floats

    def only(self, keep: Any) -> Rows:
        """Return some of the rows."""
        cases = tuple(case for case, kept in zip(self.cases, keep, strict=True) if kept)
        return replace(self, cases=cases, sizes=self.sizes[keep], time_s=self.time_s[keep])

    def predicted_s(self, on: KernelConstants) -> Floats:
        """Return the times by given constants."""
        times = np.empty(len(self.time_s))
        for case in dict.fromkeys(self.cases):
            places = np.array([each == case for each in self.cases])
            times[places] = case.time_s(self.sizes[places], on)
        return times

    def points(self, on: KernelConstants, constants: Mapping[str, Any]) -> Points:
        """Return what constants leave of the times, over the sizes that the formula asks for."""
        at: list[Floats] = [np.empty(0)] * len(self.time_s)
        ratios = np.empty(len(self.time_s))
        for case in dict.fromkeys(self.cases):
            places = [place for place, each in enumerate(self.cases) if each == case]
            asked = _Asked()
            section = _plain_section(self, constants, cast("Residual", asked))
            predicted_s = case.time_s(self.sizes[places], _with(on, section))
            ratios[places] = np.log(self.time_s[places] / predicted_s)
            for place, sizes in zip(places, np.stack(asked.at, axis=-1), strict=True):
                at[place] = sizes
        return Points(np.array(at), ratios)


class _Asked:
    """Stands in the place of a residual, changes nothing, and keeps where it was asked for."""

    at: tuple[Floats, ...]

    def factor(self, *coordinates: Floats) -> float:
        self.at = coordinates
        return 1.0


@dataclass(frozen=True, eq=False)
class CalibratedKernels:
    """One family of kernels, calibrated."""

    key: Key
    title: str
    section: Section
    started_from: str
    before: Stats
    """Errors by the constants of the catalog."""
    inherited: Stats
    """Errors as if nobody had measured this device; without rows where nobody has."""
    after: Stats
    formula_left_out: Stats
    """Errors on points that were left out, by the formula alone."""
    left_out: Stats
    """Errors on points that were left out, by what the profile has."""
    moved: Mapping[str, tuple[float, float]]
    """Constants that moved: from where, to where."""


def calibrate_kernels(
    tables: Iterable[Table],
    cluster: Cluster,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[CalibratedKernels], dict[str, int]]:
    """Return the families that tables determine, and rows that were not used, by reason.

    Args:
        tables: Measured kernels of one machine.
        cluster: The machine.
        say: Called with what is being fitted.
    """
    found, skipped = families(tables)
    least = tuner_table("kernels")["least"]["points"]
    results = []
    for rows in found:
        if len(rows.time_s) < least:
            reason = f"{rows.title}: fewer than {least} points"
            skipped[reason] = skipped.get(reason, 0) + len(rows.time_s)
            continue
        say(f"fitting {rows.title}")
        results.append(_calibrated(rows, cluster))
    if not results:
        why = "; ".join(f"{reason} ({count})" for reason, count in skipped.items())
        raise BadValueError("measured kernels", sum(skipped.values()), f"rows to fit: {why[:300]}")
    return results, skipped


def families(tables: Iterable[Table]) -> tuple[list[Rows], dict[str, int]]:
    """Return the rows of tables by family; what belongs to none is counted by reason."""
    skipped: Counter[str] = Counter()
    kept: dict[tuple[Key, str, str], list[tuple[KernelRow, list[float], float]]] = {}
    for table in tables:
        times, complaints = times_us(table)
        for row, time_us, complaint in zip(table.records(), times, complaints, strict=True):
            try:
                case, sizes = row_of(row), sizes_of(row)
            except ShardcostError as error:
                skipped[str(error)[:120]] += 1
                continue
            key = _key(case)
            if complaint or not time_us > 0:
                skipped[complaint or "without a time"] += 1
            elif case.mode not in _TIMED:
                skipped[f"{case.mode}: says how power limits a kernel, which is not fitted"] += 1
            elif key is None:
                skipped[f"{case.kind}: not fitted, by the catalog's constants"] += 1
            else:
                kernel = case.kernel if case.kind == "prefill" else ""
                case = case._replace(gpu="")
                kept.setdefault((key, case.dtype if key[0] == "gemm" else "", kernel), []).append(
                    (case, sizes, 1e-6 * time_us)
                )
    return list(_fastest(kept, skipped)), dict(skipped)


def times_us(table: Table) -> tuple[Floats, list[str]]:
    """Return the time of each row, and what is wrong with it.

    The median of repetitions on a GPU; on a CPU, whose cores other programs use meanwhile, the
    least.
    """
    times, complaints = measurements(table, "time_us")
    if "min_us" in table.columns:
        least, _ = measurements(table, "min_us")
        called = np.array([mode == "call" for mode in table.columns["mode"]], dtype=bool)
        times = np.where(called & (least > 0), least, times)
    return times, complaints


def _key(case: KernelRow) -> Key | None:
    if case.kind == "gemm":
        return "gemm", "fp8" if case.dtype == "fp8" else "bf16"
    if case.kind in ("prefill", "decode"):
        return "attention", case.kind
    if case.kind in _PLAIN:
        return "elementwise", "elementwise"
    return ("elementwise", f"layer_{case.kind}") if case.kind in _OF_ROWS else None


def _fastest(kept: Mapping[tuple[Key, str, str], Any], skipped: Counter[str]) -> Iterator[Rows]:
    """Yield families; of several kernels or formats for one section, the fastest."""
    by_key: dict[Key, list[Rows]] = {}
    for (key, dtype, kernel), entries in kept.items():
        cases, sizes, times = zip(*entries, strict=True)
        kinds = ", ".join(dict.fromkeys(case.kind for case in cases))
        title = f"GEMM {dtype}" if dtype else " ".join(filter(None, (kinds, kernel)))
        rows = Rows(key, title, cases, np.array(sizes), np.array(times))
        by_key.setdefault(key, []).append(rows)
    for several in by_key.values():
        best = min(several, key=_typical_s)
        for rows in several:
            if rows is not best:
                skipped[f"{rows.title}: slower than {best.title}"] += len(rows.time_s)
        yield best


def _typical_s(rows: Rows) -> float:
    return float(np.exp(np.mean(np.log(rows.time_s))))


def _calibrated(rows: Rows, cluster: Cluster) -> CalibratedKernels:
    rules = tuner_table("kernels")
    start, started_from = _start(rows, cluster)
    on = machine_of(cluster).kernels
    bare = replace(on, sections={})
    constants = _fitted(rows, on, start)
    with_table = len(rows.time_s) >= rules["least"]["residual_points"]
    left = _left_out_pct(rows, on, start, constants, tabled=with_table)
    needed = 1 - rules["residual"]["gain"]
    gains = with_table and score(left[True]) < needed * score(left[False])
    residual = fit_kernel_residual(rows.points(on, constants)) if gains else None
    section = _plain_section(rows, constants, residual, cluster.system)
    after = _errors_pct(rows, _with(on, section))
    fit = Fit(
        source=f"fitted by shardcost calibrate to {len(rows.time_s)} measured kernels",
        rows=len(rows.time_s),
        median_pct=_of(stats(left[gains]).median_pct),
        p90_pct=_of(stats(left[gains]).p90_pct),
        measured_with=LIBRARIES.get(rows.cases[0].kernel, ""),
    )
    known = cluster.system in names(rows.key[0])
    return CalibratedKernels(
        key=rows.key,
        title=rows.title,
        section=section._replace(fit=fit),
        started_from=started_from,
        before=stats(_errors_pct(rows, bare)),
        inherited=stats(_errors_pct(rows, _inherited(cluster)) if known else np.array([])),
        after=stats(after),
        formula_left_out=stats(left[False]),
        left_out=stats(left[gains]),
        moved={name: (_at(start, name), _at(constants, name)) for name in _moved(rows.key, start)},
    )


def _inherited(cluster: Cluster) -> KernelConstants:
    """Return the constants of a machine as if its system had never been measured."""
    return replace(machine_of(cluster, fitted=CATALOG.without(cluster.system)).kernels, sections={})


def _start(rows: Rows, cluster: Cluster) -> tuple[dict[str, Any], str]:
    """Return where the constants of a family start, and whose they are."""
    constants, system = form_of(cluster, *rows.key)
    found = _copied(constants)
    foreign = cluster.device.architecture not in _architectures(rows.key[0])
    if foreign and "tiles" in found:
        found["tiles"] = tuner_table("kernels")["foreign"]["tiles"]
    return found, system


def _copied(constants: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _copied(value) if isinstance(value, Mapping) else value
        for name, value in constants.items()
    }


def _moved(key: Key, start: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return the constants that may move, each with its hold, least and most."""
    known = tuner_table("kernels")
    of_rows = key[1].startswith("layer_")
    own = "layer" if of_rows else key[0] if key[0] == "gemm" else key[1]
    return {name: tuple(rule) for name, rule in known[own].items() if _at(start, name) > 0}


def _at(constants: Mapping[str, Any], name: str) -> float:
    for part in name.split("."):
        constants = constants[part]
    return float(cast("Any", constants))


def _changed(start: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Return constants with others in the place of some; a dot leads into a table."""
    found = _copied(start)
    for name, value in values.items():
        *path, last = name.split(".")
        inner = found
        for part in path:
            inner = inner[part]
        inner[last] = value
    return found


def _plain_section(
    rows: Rows, constants: Mapping[str, Any], residual: Residual | None = None, system: str = ""
) -> Section:
    """Return constants as a section that says nothing yet of what it rests on."""
    return Section(system, rows.key[1], constants, Fit("", 0, 0.0, 0.0), None, residual)


def _with(on: KernelConstants, section: Section) -> KernelConstants:
    table = next(table for table, name in FORMS if name == section.name)
    return replace(on, sections={(table, section.name): section})


def _errors_pct(rows: Rows, on: KernelConstants) -> Floats:
    return 100 * (rows.predicted_s(on) / rows.time_s - 1)


def _fitted(
    rows: Rows,
    on: KernelConstants,
    start: Mapping[str, Any],
    near: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the constants that fit some rows, each held to where it starts.

    `near` are constants from which the search goes on, where they are known to be close.
    """
    moved = _moved(rows.key, start)
    hold, least, most = np.array(list(moved.values())).T
    if on.device.architecture not in _architectures(rows.key[0]):
        hold = hold * tuner_table("kernels")["foreign"]["hold"]  # nobody's constants bind it
    origin = np.clip(np.log([_at(start, name) for name in moved]), np.log(least), np.log(most))

    def constants(logs: Floats) -> dict[str, Any]:
        values = np.exp(logs).tolist()
        return _changed(start, dict(zip(moved, values, strict=True)))

    def residuals(logs: Floats) -> Floats:
        section = _plain_section(rows, constants(logs))
        found: Floats = np.log(rows.predicted_s(_with(on, section)) / rows.time_s)
        return found

    begin = origin if near is None else np.log([_at(near, name) for name in moved])
    minimum = fit_robustly(
        np.clip(begin, np.log(least), np.log(most)),
        (np.log(least), np.log(most)),
        residuals,
        lambda logs: hold * (logs - origin),
        outliers=_OUTLIERS if near is None else _OUTLIERS[-1:],
        evaluations=_ROUNDS if near is None else _ROUNDS_NEAR,
    )
    rounded = (float(f"{value:.4g}") for value in np.exp(minimum.at))
    return _changed(start, dict(zip(moved, rounded, strict=True)))


def _architectures(table: KernelTable) -> set[str]:
    """Return the architectures of devices whose kernels of a table were measured."""
    return {cluster_named(name).device.architecture for name in names(table)}


def _left_out_pct(
    rows: Rows,
    on: KernelConstants,
    start: Mapping[str, Any],
    near: Mapping[str, Any],
    *,
    tabled: bool,
) -> dict[bool, Floats]:
    """Return the error of every row by what is fitted without its fifth of the rows.

    Args:
        rows: What was measured.
        on: The device's constants.
        start: Those that the fit holds on to.
        near: Where the search begins: the constants of all rows, to save time.
        tabled: Whether to return the errors with a residual too, under True.
    """
    count = len(rows.time_s)
    # Shuffled: neighbours in the table are spread over the sizes by their place in it.
    fold = np.random.default_rng(0).permutation(count) % min(_FOLDS, count)
    errors = {tried: np.empty(count) for tried in ((False, True) if tabled else (False,))}
    for each in range(int(fold.max()) + 1):
        rest, left = rows.only(fold != each), rows.only(fold == each)
        constants = _fitted(rest, on, start, near)
        for tried, found in errors.items():
            residual = fit_kernel_residual(rest.points(on, constants)) if tried else None
            section = _plain_section(rows, constants, residual)
            found[fold == each] = _errors_pct(left, _with(on, section))
    return errors


def _of(figure: float | None) -> float:
    return round(figure or 0.0, 2)


def profile_lines(calibrated: Sequence[CalibratedKernels]) -> list[str]:
    """Return calibrated kernels as the lines of a profile."""
    from shardcost.files import quoted

    lines: list[str] = []
    for entry in calibrated:
        (table, name), section = entry.key, entry.section
        lines += ["", "[[kernels]]", f"table = {quoted(table)}", f"section = {quoted(name)}"]
        lines += ["", "[kernels.fit] # errors of points left out"]
        fit = section.fit
        lines += [f"source = {quoted(fit.source)}", f"rows = {fit.rows}"]
        lines += [f"median_pct = {fit.median_pct}", f"p90_pct = {fit.p90_pct}"]
        if fit.measured_with:
            lines.append(f"measured_with = {quoted(fit.measured_with)}")
        lines += _table_lines("kernels.constants", section.constants)
        if section.residual is not None:
            lines += _residual_lines(section.residual)
    return lines


def _table_lines(name: str, constants: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in constants.items() if not isinstance(value, Mapping)}
    lines = ["", f"[{name}]", *(f"{key} = {value!r}" for key, value in plain.items())]
    for key, value in constants.items():
        if isinstance(value, Mapping):
            lines += _table_lines(f"{name}.{key}", value)
    return lines


def _residual_lines(residual: Residual) -> list[str]:
    points = ", ".join(f"[{', '.join(f'{x:g}' for x in point)}]" for point in residual.points)
    return [
        "",
        "[kernels.residual] # logarithm of measured over predicted, over log2 of the sizes",
        f"scales = [{', '.join(f'{scale:g}' for scale in residual.scales)}]",
        f"points = [{points}]",
        f"weights = [{', '.join(f'{weight!r}' for weight in residual.weights)}]",
    ]
