"""Writes the constants of linear attention and state spaces anew, from measured tables.

    python -m lab.refit_linear_attention linear_attention.csv [--output FOLDER] [--left-out]

Constants are fitted level by level (`lab.kernel_families`): a family of kernels over all devices
and rules of the state; with one rule; a kernel over all devices
(``tuner/linear_attention_pooled.toml``); the kernel, and its family, on one device
(``linear_attention/<device>.toml``).

``--left-out`` shows the error on what a fit did not see: a GPU, a library on a GPU, a version of a
library, a fifth of the shapes, a kernel.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

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
from lab.parts import shape_parts
from shardcost.catalog import tuner_table
from shardcost.errors import BadValueError
from shardcost.formats.tables import Table
from shardcost.kernels.linear_attention import Sizes, kernel_of, kernel_time_s, work_of
from shardcost.machine.kernels import Section
from shardcost.machine.linear_attention import (
    KernelKind,
    cache_of,
    chosen,
    kind_of,
    section_names,
    start_of,
)
from shardcost.validate import linear_attention
from shardcost.validate.linear_attention import LinearCase
from shardcost.validate.predictions import Floats

_POOLED_PULL, _CLASS_PULL, _PULL = 0.1, 0.3, 0.3
_LEAST: Final = 1e-4


class Group(kernel_families.Group[LinearCase]):
    """Measured rows of one kernel, part and phase on one device."""

    @cached_property
    def kind(self) -> KernelKind:
        """The kernel."""
        case = self.case
        return kind_of(case.kernel, case.part, case.library, case.version)

    @property
    def of_part(self) -> tuple[str, str]:
        """Part and phase, which constants are of."""
        return self.case.part, self.case.phase

    def names(self) -> tuple[str, str, str]:
        """Return the sections that may hold: the kernel's, its family's with the rule, of any."""
        return section_names(self.kind, self.case.op, *self.of_part)

    def log_error(self, constants: Constants) -> Floats:
        """Return the logarithm of predicted over measured; constants may be columns of several."""
        kernel = kernel_of(self.device, *self.of_part, constants, self.kind)
        work = work_of(kernel, self.case.op, *self.of_part, Sizes(*self.sizes.T))
        result: Floats = np.log(kernel_time_s(kernel, work) / self.time_s)
        return result


class Fitted(kernel_families.Fitted[Group]):
    """All that a fit of some groups yields, in the form of the catalog's files."""

    def sections_for(self, rows: Group) -> tuple[Section, ...]:
        """Return the constants that hold for some rows, as the catalog chooses; none if none do."""
        try:
            of = (rows.kind, rows.case.op, *rows.of_part)
            return (chosen(self.sections(rows.device), *of),)
        except BadValueError:
            return ()

    def error_pct(self, rows: Group) -> Floats:
        """Return the signed error on rows, in percent, by the constants that hold for them.

        Where nothing of the part and phase is left to hold, by the figures that a fit starts from.
        """
        found = [each.constants for each in self.sections_for(rows)]
        (constants,) = found or [start_of(*rows.of_part)]
        return 100 * np.expm1(rows.log_error(constants))


def measured_groups(table: Table) -> list[Group]:
    """Return the usable rows of a table, by device, kernel, part and phase."""
    if table.kind != "linear_attention":
        raise BadValueError(str(table.path), table.kind, "a table of linear_attention")

    def labels_of(case: LinearCase, sizes: Floats, _: Labels) -> dict[str, Any]:
        return {
            "gpu": case.gpu,
            "engine": f"{case.gpu} {case.library}",
            "version": f"{case.library} {case.version}",
            "kernel": f"{case.kernel} {case.phase}",
            "shape": shape_parts(*sizes[:, 2:7].T),
        }

    known = linear_attention.cases(table)
    return measured_rows(table, known, linear_attention.MEASURED, Group, labels_of)


def _limits(groups: Sequence[Group], _: Constants) -> tuple[Constants, Constants]:
    table = tuner_table("linear_attention")
    least = {name: _LEAST * value for name, value in start_of(*groups[0].of_part).items()}
    return {**least, **table["least"]}, table["most"]


_FITTER: Final = Fitter(
    _limits,
    outliers=(1.0, 0.1),
    evaluations=40,
    stiff={"memory_share": 5.0, "cache_share": 2.0},  # what else slows kernels is not the memory
)


def fitted(groups: Iterable[Group]) -> Fitted:
    """Return the constants of families over all devices, of kernels, and of both on one."""
    kept = [each for each in groups if each.time_s.size]
    result = Fitted()
    starts: dict[str, Constants] = {}
    # From the widest level, a family with any rule, to the narrowest, a kernel.
    for level in (2, 1, 0):
        for name, members in by(kept, _of_level(level)).items():
            above = starts[members[0].names()[level + 1]] if level < 2 else None
            start = start_of(*members[0].of_part) if above is None else above
            starts[name] = _FITTER.fitted(members, start, _POOLED_PULL)
            result.pooled[name] = section(starts[name], members)
    for of, alike in by(kept, lambda each: cache_of(each.device)).items():
        for level in (2, 1, 0):
            for name, members in by(alike, _of_level(level)).items():
                starts[f"{name}-{of}"] = _FITTER.fitted(members, starts[name], _CLASS_PULL)
                result.pooled[f"{name}-{of}"] = section(starts[f"{name}-{of}"], members)
    for gpu, here in by(kept, lambda each: each.case.gpu).items():
        sections = result.systems.setdefault(gpu, {})
        for level in (2, 1, 0):
            for name, members in by(here, _of_level(level)).items():
                start = starts[f"{name}-{cache_of(members[0].device)}"]
                sections[name] = section(_FITTER.fitted(members, start, _PULL), members)
    return result


def _of_level(level: int) -> Callable[[Group], str]:
    return lambda each: each.names()[level]


def _show_in_sample(groups: Sequence[Group], result: kernel_families.Fitted[Group]) -> None:
    for of in (lambda each: each.case.gpu, lambda each: " ".join(each.of_part), lambda _: "all"):
        key: Callable[[Group], str] = of
        for name, members in by(groups, key).items():
            show(name, result.errors_pct(members))


def _show_left_out(groups: Sequence[Group]) -> None:
    parts = spread(groups, lambda each: " ".join(each.of_part))
    for label, what in REFIT.splits.items():
        values = labels(groups, label)
        if len(set(values.tolist())) < 2:
            continue
        errors_pct = REFIT.left_out(groups, label)
        show(f"{what} left out", errors_pct)
        for each in (parts, values) if label != "shape" else ():
            for name in sorted(set(each.tolist())):
                show(f"  {name}", errors_pct[each == name])


REFIT: Final = Refit(
    "linear_attention",
    "Shares of the datasheet, clock cycles, bytes or FLOPs per clock cycle and SM.",
    {
        "gpu": "a system",
        "engine": "a library on a system",
        "version": "a version",
        "shape": "shapes",
        "kernel": "a kernel",
    },
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
