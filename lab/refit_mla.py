"""Writes the constants of latent attention anew, from measured tables.

    python -m lab.refit_mla mla.csv [--output FOLDER] [--left-out]

A row is timed with up to two sets of constants: those of its attention kernel, and those of its
GEMMs (absorption products, or a module's projections). The sets are fitted in turn, each with the
other held, until neither moves: so an attention kernel that an engine was only measured with inside
its module gets constants of its own.

Sets are fitted level by level, each from where the one above ended and with a pull towards it: all
kernels of a phase, form and cache format; a family of them (both over all devices:
``tuner/mla_pooled.toml``); the family on one device; a kernel on that device
(``mla/<device>.toml``). What is minimised is the relative error (the logarithm of predicted over
measured), robustly.

``--left-out`` shows the error on what a fit did not see: a GPU, a version of a library, a fifth of
the shapes (batch and context), two neighbouring numbers of heads.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lab import catalog_files
from lab.command import ended, parser_of
from lab.parts import Mask, leave_out
from shardcost import catalog
from shardcost.calibrate.fit import fit_robustly
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster, Device
from shardcost.errors import BadValueError
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.mla import (
    absorption,
    attention_of,
    gemms_of,
    gemms_time_s,
    projections_time_s,
    walk_time_s,
)
from shardcost.machine.kernels import Fit, Section, nearest_systems
from shardcost.machine.mla import (
    Wanted,
    attention_sections,
    chosen,
    family_of,
    module_sections,
    product_format,
    product_sections,
    section_phase,
    structure_of,
    widened_bytes,
)
from shardcost.validate import mla
from shardcost.validate.mla import PRODUCTS, LatentCase
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import measurements

Constants = Mapping[str, Any]

_HEAD: Final = (
    "Constants fitted to measurements by `python -m lab.refit_mla`: not by hand.",
    "Shares of the datasheet, clock cycles, bytes per clock cycle and SM.",
)
_OUTLIERS: Final = (0.1,)
"""Relative error beyond which a row counts by its size and no longer by its square."""
_POOLED_PULL, _PULL = 0.1, 0.4
"""Weight of a constant's distance (in logarithms) from where it started."""
_ROUNDS: Final = 2
"""Times that either kind of constants is fitted with the other held."""
_EVALUATIONS: Final = 15
_STEP: Final = 1e-4
_SHAPE_PARTS: Final = 5
SPLITS: Final = {
    "gpu": "a system",
    "version": "a version",
    "shape": "shapes",
    "heads": "numbers of heads",
}
"""Labels of rows, with what is left out by each."""


class Part(NamedTuple):
    """One of the sets of constants that a row is timed with."""

    wanted: Wanted
    start: str
    """Which round figures its fit starts from."""
    time_s: Callable[[Constants], Floats]
    """Its seconds under given constants, which may be columns of several."""
    splits: bool = False
    """Whether it has the constants of a split context."""

    @property
    def own(self) -> str:
        """The section of the kernel itself."""
        return self.wanted.names[0]

    @property
    def family(self) -> str:
        """The section of its family."""
        return self.wanted.names[1]

    @property
    def widest(self) -> str:
        """The section of all that are of its kind."""
        return self.wanted.fallbacks[0] if self.start == "attention" else self.family

    @property
    def reads_narrow(self) -> bool:
        """Whether it is attention over a cache in 8 bits."""
        return self.start == "attention" and self.own.endswith("-fp8")

    @property
    def pooled(self) -> str:
        """The narrowest section over all devices: names of kernels say more of their GEMMs."""
        return self.family if self.start == "attention" else self.own


class Group(NamedTuple):
    """Measured rows of one kernel, module or product on one device."""

    case: LatentCase
    sizes: Floats
    """As `mla.cases` has them, a line for each row."""
    time_s: Floats
    places: NDArray[np.intp]
    """Where in the table they stand."""
    labels: Mapping[str, NDArray[Any]]
    """What rows may be left out by."""

    def where(self, kept: Mask) -> Group:
        """Return some of the rows."""
        labels = {name: values[kept] for name, values in self.labels.items()}
        return self._replace(
            sizes=self.sizes[kept],
            time_s=self.time_s[kept],
            places=self.places[kept],
            labels=labels,
        )

    @property
    def device(self) -> Device:
        """What it was measured on."""
        return Cluster.named(self.case.gpu).device

    def parts(self) -> list[Part]:
        """Return the sets of constants that its rows are timed with."""
        case, device = self.case, self.device
        batch, queries, context, heads = self.sizes.T
        kind = (case.kernel, case.library, case.phase, case.form)
        if case.scope in PRODUCTS:
            form = product_format(case.kernel, case.dtype)
            gemm = absorption(batch * queries, heads, case.shape, case.scope == "bmm_q")
            return [
                Part(
                    product_sections(case.kernel, case.library, case.dtype),
                    "products",
                    lambda values: gemms_time_s(gemms_of(device, form, values), [gemm]),
                )
            ]
        phase = section_phase(case.library, case.phase, case.form)
        family = family_of(case.kernel, case.library, phase, case.form, device)
        structure = structure_of(family, phase, case.form)
        widened = widened_bytes(case.kernel, case.kv_dtype)
        formats = (case.dtype, case.kv_dtype, widened)

        def attention_s(values: Constants) -> Floats:
            kernel = attention_of(device, structure, values, *formats)
            found: Floats = walk_time_s(
                kernel, case.form, batch, queries, context, heads, case.shape
            )
            return found

        wanted = attention_sections(*kind, case.kv_dtype, device)
        attention = Part(wanted, "attention", attention_s, structure.splits != "none")
        if case.scope == "kernel":
            return [attention]

        def gemms_s(values: Constants) -> Floats:
            kernel = gemms_of(device, case.weight_dtype, values)
            found: Floats = projections_time_s(
                kernel, case.form, batch * queries, heads, case.shape
            )
            return found

        module = module_sections(case.library, case.weight_dtype)
        return [attention, Part(module, "module", gemms_s)]


class _Member(NamedTuple):
    """Rows of a group, as one of its parts sees them."""

    group: Group
    part: Part
    rest_s: Floats
    """What the other part takes."""

    def log_error(self, constants: Constants) -> Floats:
        """Return the logarithm of predicted over measured."""
        times = self.part.time_s(constants) + self.rest_s
        result: Floats = np.log(times / self.group.time_s)
        return result


class Fitted(NamedTuple):
    """All that a fit of some groups yields, in the form of the catalog's files."""

    pooled: dict[str, Any]
    systems: dict[str, dict[str, Any]]

    def section_for(self, wanted: Wanted, gpu: str) -> Section:
        """Return the constants that hold on a system, as the catalog chooses."""
        device = Cluster.named(gpu).device
        near = nearest_systems(device, self.systems)
        system, name, content = chosen(device, wanted, near, self.systems.__getitem__, self.pooled)
        own = system == gpu and content is not self.pooled
        constants = dict(content[name])
        fit = Fit(**constants.pop("fit"))
        return Section(system, name, constants, fit, None if own else system)

    def sections_for(self, rows: Group) -> tuple[Section, ...]:
        """Return the constants that hold for all parts of some rows."""
        return tuple(self.section_for(part.wanted, rows.case.gpu) for part in rows.parts())

    def error_pct(self, rows: Group) -> Floats:
        """Return the signed error on rows, in percent, by the constants that hold for them."""
        parts = zip(rows.parts(), self.sections_for(rows), strict=True)
        times: Floats = np.sum([part.time_s(section.constants) for part, section in parts], axis=0)
        return 100 * (times / rows.time_s - 1)


def measured_groups(table: Table) -> list[Group]:
    """Return the usable rows of a table, by device, kernel, scope and number formats."""
    if table.kind != "mla":
        raise BadValueError(str(table.path), table.kind, "a table of mla")
    known = mla.cases(table)
    times, _ = measurements(table, mla.MEASURED)
    blank = [""] * table.rows
    columns = {name: np.array(table.columns.get(name, blank)) for name in ("dataset", "version")}
    groups = []
    for case, places in known.rows.items():
        kept = np.array([i for i in places if times[i] > 0], dtype=np.intp)
        if not kept.size:
            continue
        sizes = known.sizes[kept]
        labels = {name: values[kept] for name, values in columns.items()}
        labels["version"] = np.array([f"{case.library} {each}" for each in labels["version"]])
        labels["gpu"] = np.full(len(kept), case.gpu)
        labels["heads"] = np.floor(np.log2(sizes[:, 3]) / 2)
        labels["shape"] = np.array([_shape_part(*row[:3]) for row in sizes])
        groups.append(Group(case, sizes, 1e-6 * times[kept], kept, labels))
    return groups


def _shape_part(batch: float, queries: float, context: float) -> int:
    return crc32(f"{batch:.0f} x {queries:.0f} of {context:.0f}".encode()) % _SHAPE_PARTS


def fitted_constants(members: Sequence[_Member], start: Constants, pull: float) -> dict[str, float]:
    """Return the constants that fit some rows best, near where they started."""
    table = tuner_table("mla")
    names = list(start)
    origin = np.log([start[name] for name in names])
    least = [table["least"].get(name, 1e-3 * start[name]) for name in names]
    narrow = table["most_narrow"] if all(each.part.reads_narrow for each in members) else {}
    limits = {**table["most"], **narrow}
    bounds = np.log(least), np.log([limits.get(name, np.inf) for name in names])

    def residuals(logs: Floats) -> Floats:
        constants = {name: np.exp(logs[..., i, None]) for i, name in enumerate(names)}
        return np.concatenate([each.log_error(constants) for each in members], axis=-1)

    def jacobian(logs: Floats) -> Floats:
        steps = np.where(logs + _STEP < bounds[1], _STEP, -_STEP)
        moved = residuals(np.vstack([logs, logs + np.diag(steps)]))
        slopes: Floats = ((moved[1:] - moved[0]) / steps[:, None]).T
        return np.vstack([slopes, pull * np.eye(len(names))])

    end = fit_robustly(
        origin,
        bounds,
        residuals,
        lambda logs: pull * (logs - origin),
        outliers=_OUTLIERS,
        evaluations=_EVALUATIONS,
        jacobian=jacobian,
    )
    return {name: float(f"{np.exp(value):.4g}") for name, value in zip(names, end.at, strict=True)}


_MEMO: Final[dict[Any, dict[str, float]]] = {}
"""Fits by their rows and start: folds share most of them."""


def _fitted_once(members: Sequence[_Member], start: Constants, pull: float) -> dict[str, float]:
    rows = tuple(
        (each.group.case, each.part.own, each.group.time_s.tobytes(), each.rest_s.tobytes())
        for each in members
    )
    key = (rows, tuple(start.items()), pull)
    if key not in _MEMO:
        _MEMO[key] = fitted_constants(members, start, pull)
    return _MEMO[key]


def fitted(groups: Iterable[Group]) -> Fitted:
    """Return the constants of all kernels, families and modules, over all devices and on each."""
    known = [(each, each.parts()) for each in groups if each.time_s.size]
    result = Fitted({}, {})
    for turn in range(_ROUNDS):
        # Attention first: modules are the rest around kernels that were timed by themselves.
        for is_attention in (True, False):
            members = [
                _Member(group, part, _rest_s(result, group, parts, part))
                for group, parts in known
                for part in parts
                if (part.start == "attention") == is_attention
            ]
            if turn == 0 and is_attention:
                alone = {each.part.own for each in members if each.group.case.scope == "kernel"}
                members = [
                    each
                    for each in members
                    if each.group.case.scope == "kernel" or each.part.own not in alone
                ]
            _fit_levels(result, members)
    return result


def _rest_s(result: Fitted, group: Group, parts: Sequence[Part], part: Part) -> Floats:
    """Return what the other part of some rows takes by the constants found so far."""
    rest = np.zeros(len(group.time_s))
    for other in parts:
        if other is not part:
            if result.pooled and (other.start != "module" or other.widest in result.pooled):
                constants = result.section_for(other.wanted, group.case.gpu).constants
            else:
                constants = tuner_table("mla")["start"][other.start]
            rest = rest + other.time_s(constants)
    return rest


def _fit_levels(result: Fitted, members: Sequence[_Member]) -> None:
    """Fit sections level by level, into a result."""
    for widest, every in sorted(_by(members, lambda each: each.part.widest).items()):
        pooled = _fitted_once(every, _start(every[0].part), _POOLED_PULL)
        result.pooled[widest] = _section(pooled, every)
        for name, kin in sorted(_by(every, lambda each: each.part.pooled).items()):
            near = _fitted_once(kin, _having(kin[0].part, pooled), _POOLED_PULL)
            result.pooled[name] = _section(near, kin)
            for gpu, here in sorted(_by(kin, lambda each: each.group.case.gpu).items()):
                sections = result.systems.setdefault(gpu, {})
                common = _fitted_once(here, near, _PULL)
                sections[name] = _section(common, here)
                for own, ours in sorted(_by(here, lambda each: each.part.own).items()):
                    same = len(ours) == len(here)
                    last = common if same else _fitted_once(ours, common, _PULL)
                    sections[own] = _section(last, ours)
        if widest == every[0].part.family:  # GEMMs of libraries that were not measured here
            for gpu, here in sorted(_by(every, lambda each: each.group.case.gpu).items()):
                constants = _fitted_once(here, pooled, _PULL)
                result.systems[gpu][widest] = _section(constants, here)


def _start(part: Part) -> Constants:
    table = tuner_table("mla")["start"]
    return {**table[part.start], **(table["split"] if part.start == "attention" else {})}


def _having(part: Part, constants: Constants) -> Constants:
    """Return the constants that a part has, of those of all kernels."""
    if part.splits or part.start != "attention":
        return constants
    return {name: constants[name] for name in tuner_table("mla")["start"]["attention"]}


def _by(members: Iterable[_Member], key: Callable[[_Member], str]) -> dict[str, list[_Member]]:
    parts: dict[str, list[_Member]] = {}
    for each in members:
        parts.setdefault(key(each), []).append(each)
    return parts


def _section(constants: Constants, members: Sequence[_Member]) -> dict[str, Any]:
    errors = np.concatenate([np.abs(np.expm1(each.log_error(constants))) for each in members])
    datasets = sorted({str(name) for each in members for name in each.group.labels["dataset"]})
    fit = Fit(
        source="fitted by shardcost to measured rows of " + ", ".join(datasets),
        rows=len(errors),
        median_pct=round(100 * float(np.median(errors)), 2),
        p90_pct=round(100 * float(np.quantile(errors, 0.9)), 2),
        measured_with=", ".join(sorted({each.group.case.library for each in members})),
    )
    return {**constants, "fit": fit._asdict()}


def left_out(
    groups: Sequence[Group],
    label: str,
    seen: Callable[[Group, tuple[Section, ...]], None] | None = None,
) -> Floats:
    """Return the error on every row by a fit without the rows that share its label, in percent.

    Args:
        groups: What was measured.
        label: What is left out: a key of `SPLITS`.
        seen: Called with rows that were left out and the constants that they are predicted by.
    """
    values = np.concatenate([each.labels[label] for each in groups])
    ends = np.cumsum([len(each.time_s) for each in groups])[:-1]

    def tried(out: Mask) -> Floats:
        masks = np.split(out, ends)
        rest = fitted(each.where(~mask) for each, mask in zip(groups, masks, strict=True))
        tested = [each.where(mask) for each, mask in zip(groups, masks, strict=True) if mask.any()]
        for rows in tested:
            if seen is not None:
                seen(rows, rest.sections_for(rows))
        return np.concatenate([rest.error_pct(rows) for rows in tested])

    return leave_out(values, tried)


def _show(name: str, errors_pct: Floats) -> None:
    known = np.abs(errors_pct[np.isfinite(errors_pct)])
    if known.size:
        median, p90 = np.quantile(known, [0.5, 0.9])
        print(f"{name:<44} {known.size:>5} rows, median {median:6.2f} %, p90 {p90:6.2f} %")


def _show_by_scope(name: str, groups: Sequence[Group], errors_pct: Floats) -> None:
    scopes = np.concatenate([np.full(len(each.time_s), each.case.scope) for each in groups])
    _show(name, errors_pct)
    for scope in ("kernel", "module"):
        _show(f"  {scope}", errors_pct[scopes == scope])
    _show("  products", errors_pct[np.isin(scopes, sorted(PRODUCTS))])


def _show_left_out(groups: Sequence[Group]) -> None:
    for label in SPLITS:
        errors_pct = left_out(groups, label)
        _show_by_scope(f"{label} left out", groups, errors_pct)
        if label in {"gpu", "version"}:
            values = np.concatenate([each.labels[label] for each in groups])
            for value in sorted(set(values)):
                _show(f"    {value}", errors_pct[values == value])


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit everything that tables cover, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="measured tables (CSV)")
    parser.add_argument("--output", type=Path, default=catalog_files.CATALOG, help="a catalog")
    parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
    given = parser.parse_args(arguments)
    groups = [each for path in given.tables for each in measured_groups(read_table(path))]
    if not groups:
        raise BadValueError("tables", [str(path) for path in given.tables], "tables with rows")
    result = fitted(groups)
    kept = {name for name, _ in catalog.contents("mla")} - set(result.systems)
    for name in sorted(kept):
        print(f"{name}: no rows, kept as it is")
    for system, sections in sorted(result.systems.items()):
        text = catalog_files.as_toml(_HEAD, sections)
        write_whole(given.output / "mla" / f"{system}.toml", text)
    text = catalog_files.as_toml(_HEAD, result.pooled)
    write_whole(given.output / "tuner" / "mla_pooled.toml", text)
    for name, section in result.pooled.items():
        fit = section["fit"]
        print(
            f"{name:<44} {fit['rows']:>5} rows, median {fit['median_pct']:6.2f} %, "
            f"p90 {fit['p90_pct']:6.2f} %, over all devices"
        )
    for gpu in sorted(result.systems):
        errors = [result.error_pct(each) for each in groups if each.case.gpu == gpu]
        _show(gpu, np.concatenate(errors))
    _show_by_scope("in sample", groups, np.concatenate([result.error_pct(each) for each in groups]))
    if given.left_out:
        _show_left_out(groups)


if __name__ == "__main__":
    ended(main)
