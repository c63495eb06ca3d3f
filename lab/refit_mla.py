"""Writes the constants of latent attention anew, from measured tables.

    python -m lab.refit_mla mla.csv [--output FOLDER] [--left-out]

A row is timed with up to two sets of constants: those of its attention kernel, and those of its
GEMMs (absorption products, or a module's projections). The sets are fitted in turn, each with the
other held, until neither moves: so an attention kernel that an engine was only measured with inside
its module gets constants of its own.

Sets are fitted level by level (`lab.kernel_families`): all kernels of a phase, form and cache
format; a family of them (both over all devices: ``tuner/mla_pooled.toml``); the family on one
device; a kernel on that device (``mla/<device>.toml``).

``--left-out`` shows the error on what a fit did not see: a GPU, a version of a library, a fifth of
the shapes (batch and context), two neighbouring numbers of heads.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from lab import kernel_families
from lab.command import ended
from lab.kernel_families import (
    Constants,
    Fitter,
    Labels,
    Refit,
    by,
    labels,
    measured_rows,
    section,
    show,
    spread,
)
from lab.parts import fifth
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError
from shardcost.formats.tables import Table
from shardcost.kernels.mla import (
    absorption,
    attention_of,
    gemms_of,
    gemms_time_s,
    projections_time_s,
    walk_time_s,
)
from shardcost.machine.kernels import Section
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

_POOLED_PULL, _PULL = 0.1, 0.4
_LEAST: Final = 1e-3
_ROUNDS: Final = 2
"""Times that either kind of constants is fitted with the other held."""


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


class Group(kernel_families.Group[LatentCase]):
    """Measured rows of one kernel, module or product on one device."""

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

    @property
    def case(self) -> LatentCase:
        """What they are of."""
        return self.group.case

    @property
    def labels(self) -> Labels:
        """What they may be left out by."""
        return self.group.labels

    @property
    def key(self) -> Hashable:
        """What tells them from others."""
        return self.group.key, self.part.own, self.rest_s.tobytes()

    def log_error(self, constants: Constants) -> Floats:
        """Return the logarithm of predicted over measured."""
        times = self.part.time_s(constants) + self.rest_s
        result: Floats = np.log(times / self.group.time_s)
        return result


class Fitted(kernel_families.Fitted[Group]):
    """All that a fit of some groups yields, in the form of the catalog's files."""

    def section_for(self, wanted: Wanted, gpu: str) -> Section:
        """Return the constants that hold on a system, as the catalog chooses."""
        return chosen(self.sections(Cluster.named(gpu).device), wanted)

    def sections_for(self, rows: Group) -> tuple[Section, ...]:
        """Return the constants that hold for all parts of some rows."""
        return tuple(self.section_for(part.wanted, rows.case.gpu) for part in rows.parts())

    def error_pct(self, rows: Group) -> Floats:
        """Return the signed error on rows, in percent, by the constants that hold for them."""
        parts = zip(rows.parts(), self.sections_for(rows), strict=True)
        times: Floats = np.sum([part.time_s(each.constants) for part, each in parts], axis=0)
        return 100 * (times / rows.time_s - 1)


def measured_groups(table: Table) -> list[Group]:
    """Return the usable rows of a table, by device, kernel, scope and number formats."""
    if table.kind != "mla":
        raise BadValueError(str(table.path), table.kind, "a table of mla")

    def labels_of(case: LatentCase, sizes: Floats, cells: Labels) -> dict[str, Any]:
        return {
            "gpu": case.gpu,
            "version": np.array([f"{case.library} {each}" for each in cells["version"]]),
            "heads": np.floor(np.log2(sizes[:, 3]) / 2),
            "shape": np.array([_shape_part(*row[:3]) for row in sizes]),
        }

    return measured_rows(table, mla.cases(table), mla.MEASURED, Group, labels_of)


def _shape_part(batch: float, queries: float, context: float) -> str:
    return fifth(f"{batch:.0f} x {queries:.0f} of {context:.0f}")


def _limits(members: Sequence[_Member], start: Constants) -> tuple[Constants, Constants]:
    table = tuner_table("mla")
    least = {name: _LEAST * value for name, value in start.items()}
    narrow = table["most_narrow"] if all(each.part.reads_narrow for each in members) else {}
    return {**least, **table["least"]}, {**table["most"], **narrow}


_FITTER: Final = Fitter(_limits, outliers=(0.1,), evaluations=15)


def fitted(groups: Iterable[Group]) -> Fitted:
    """Return the constants of all kernels, families and modules, over all devices and on each."""
    known = [(each, each.parts()) for each in groups if each.time_s.size]
    result = Fitted()
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
    for widest, every in by(members, lambda each: each.part.widest).items():
        pooled = _FITTER.fitted(every, _start(every[0].part), _POOLED_PULL)
        result.pooled[widest] = section(pooled, every)
        for name, kin in by(every, lambda each: each.part.pooled).items():
            near = _FITTER.fitted(kin, _having(kin[0].part, pooled), _POOLED_PULL)
            result.pooled[name] = section(near, kin)
            for gpu, here in by(kin, lambda each: each.group.case.gpu).items():
                sections = result.systems.setdefault(gpu, {})
                common = _FITTER.fitted(here, near, _PULL)
                sections[name] = section(common, here)
                for own, ours in by(here, lambda each: each.part.own).items():
                    same = len(ours) == len(here)
                    last = common if same else _FITTER.fitted(ours, common, _PULL)
                    sections[own] = section(last, ours)
        if widest == every[0].part.family:  # GEMMs of libraries that were not measured here
            for gpu, here in by(every, lambda each: each.group.case.gpu).items():
                constants = _FITTER.fitted(here, pooled, _PULL)
                result.systems[gpu][widest] = section(constants, here)


def _start(part: Part) -> Constants:
    table = tuner_table("mla")["start"]
    return {**table[part.start], **(table["split"] if part.start == "attention" else {})}


def _having(part: Part, constants: Constants) -> Constants:
    """Return the constants that a part has, of those of all kernels."""
    if part.splits or part.start != "attention":
        return constants
    return {name: constants[name] for name in tuner_table("mla")["start"]["attention"]}


def _show_in_sample(groups: Sequence[Group], result: kernel_families.Fitted[Group]) -> None:
    for gpu, here in by(groups, lambda each: each.case.gpu).items():
        show(gpu, result.errors_pct(here))
    _show_by_scope("in sample", groups, result.errors_pct(groups))


def _show_by_scope(name: str, groups: Sequence[Group], errors_pct: Floats) -> None:
    scopes = spread(groups, lambda each: each.case.scope)
    show(name, errors_pct)
    for scope in ("kernel", "module"):
        show(f"  {scope}", errors_pct[scopes == scope])
    show("  products", errors_pct[np.isin(scopes, sorted(PRODUCTS))])


def _show_left_out(groups: Sequence[Group]) -> None:
    for label in REFIT.splits:
        errors_pct = REFIT.left_out(groups, label)
        _show_by_scope(f"{label} left out", groups, errors_pct)
        if label in {"gpu", "version"}:
            values = labels(groups, label)
            for value in sorted(set(values)):
                show(f"    {value}", errors_pct[values == value])


REFIT: Final = Refit(
    "mla",
    "Shares of the datasheet, clock cycles, bytes per clock cycle and SM.",
    {"gpu": "a system", "version": "a version", "shape": "shapes", "heads": "numbers of heads"},
    measured_groups,
    fitted,
    _show_in_sample,
    _show_left_out,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit everything that tables cover, and write it into the catalog of this installation."""
    REFIT.main(__doc__, arguments)


if __name__ == "__main__":
    ended(main)
