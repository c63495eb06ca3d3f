"""Writes the constants of expert kernels anew, from measured tables.

    python -m lab.refit_experts experts.csv grouped_gemm.csv [--output FOLDER] [--left-out]

Constants are fitted level by level (`lab.kernel_families`): a family of kernels over all devices
and number formats; in one format, over all devices (``tuner/experts_pooled.toml``); on one device;
a kernel of the family on that device (``experts/<device>.toml``).

``--left-out`` shows the error on what a fit did not see: a GPU, a version of a library, a fifth of
the models, a range of expert-parallel degrees, a kernel.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from shardcost.catalog import tuner_table
from shardcost.errors import BadValueError
from shardcost.formats.tables import Table
from shardcost.kernels.experts import GROUPED, kernel_gemm_time_s, kernel_of, kernel_time_s
from shardcost.machine.experts import chosen, family_of
from shardcost.machine.kernels import Section
from shardcost.validate import experts, grouped_gemm
from shardcost.validate.experts import ExpertCase
from shardcost.validate.predictions import Cases, Floats

_POOLED_PULL, _PULL = 0.1, 0.6
_MODEL_PARTS: Final = 5
_EP_BANDS: Final = (1, 8)
_WIDE: Final = frozenset({"bf16", "fp8", "fp8_block"})
_LEAST: Final = 1e-4


class Group(kernel_families.Group[ExpertCase]):
    """Measured rows of one kernel on one device in one number format."""

    @property
    def family(self) -> str:
        """The family of the kernel."""
        kernel, dtype, library = self.case.kernel, self.case.dtype, self.case.library
        return GROUPED if kernel == GROUPED else family_of(kernel, dtype, library)

    def log_error(self, constants: Constants) -> Floats:
        """Return the logarithm of predicted over measured; constants may be columns of several."""
        kernel = kernel_of(self.device, self.case.dtype, constants)
        time_s = kernel_gemm_time_s if self.case.kernel == GROUPED else kernel_time_s
        result: Floats = np.log(time_s(kernel, *self.sizes.T) / self.time_s)
        return result


class Fitted(kernel_families.Fitted[Group]):
    """All that a fit of some groups yields, in the form of the catalog's files."""

    def sections_for(self, rows: Group) -> tuple[Section]:
        """Return the constants that hold for the kernel of some rows, as the catalog chooses."""
        sections = self.sections(rows.device)
        return (chosen(sections, rows.case.kernel, rows.case.dtype, rows.family),)

    def error_pct(self, rows: Group) -> Floats:
        """Return the signed error on rows, in percent, by the constants that hold for them."""
        (found,) = self.sections_for(rows)
        return 100 * np.expm1(rows.log_error(found.constants))


def measured_groups(table: Table) -> list[Group]:
    """Return the usable rows of a table, by device, kernel and number format."""
    if table.kind == "experts":
        known = experts.cases(table)
    elif table.kind == "grouped_gemm":
        given = grouped_gemm.cases(table)
        rows = {
            ExpertCase(case.gpu, GROUPED, case.dtype, "torch"): places
            for case, places in given.rows.items()
        }
        known = Cases(rows, given.sizes, given.reasons)
    else:
        raise BadValueError(str(table.path), table.kind, "a table of experts or grouped_gemm")

    def labels_of(case: ExpertCase, sizes: Floats, cells: Labels) -> dict[str, Any]:
        bands = 0 if case.kernel == GROUPED else np.searchsorted(_EP_BANDS, sizes[:, -1])
        of_case = {"gpu": case.gpu, "kernel": case.kernel, "ep": bands}
        return {"version": cells["version"], "model": cells["model"], **of_case}

    return measured_rows(table, known, experts.MEASURED, Group, labels_of)


def _limits(_: Sequence[Group], start: Constants) -> tuple[Constants, Constants]:
    table = tuner_table("experts")
    least = {name: _LEAST * table["start"][name] for name in start}
    return {**least, **table["least"]}, table["most"]


_FITTER: Final = Fitter(
    _limits,
    outliers=(1.0, 0.1),
    evaluations=40,
    stiff={"tile_start_cycles": 2.0},  # it hangs together with others
)


def fitted(groups: Iterable[Group]) -> Fitted:
    """Return the constants of families over all devices, of families on one, and of kernels."""
    table = tuner_table("experts")

    def alike(members: list[Group]) -> list[Group]:
        return [each for each in members if each.case.kernel not in table["not_pooled"]] or members

    result = Fitted()
    kept = [each for each in groups if each.time_s.size]
    for family, every in by(kept, lambda each: each.family).items():
        start = _FITTER.fitted(alike(every), table["start"], _POOLED_PULL)
        for dtype, members in by(every, lambda each: each.case.dtype).items():
            name = f"{family}-{dtype}"
            pooled = _FITTER.fitted(alike(members), start, _POOLED_PULL)
            result.pooled[name] = section(pooled, alike(members))
            for gpu, here in by(members, lambda each: each.case.gpu).items():
                own = _FITTER.fitted(here, pooled, _PULL)
                sections = result.systems.setdefault(gpu, {})
                sections[name] = section(own, here)
                for kernel, ours in by(here, lambda each: each.case.kernel).items():
                    same = len(ours) == len(here)
                    constants = own if same else _FITTER.fitted(ours, own, _PULL)
                    sections[f"{kernel}-{dtype}"] = section(constants, ours)
    return result


def in_parts(groups: Sequence[Group]) -> list[Group]:
    """Return groups with models in fifths: every model is left out with four others."""
    models = sorted(set(labels(groups, "model")))
    parts = {name: i % _MODEL_PARTS for i, name in enumerate(models)}
    return [
        replace(
            each,
            labels={**each.labels, "model": np.array([parts[n] for n in each.labels["model"]])},
        )
        for each in groups
    ]


def _show_in_sample(groups: Sequence[Group], result: kernel_families.Fitted[Group]) -> None:
    for gpu, here in by(groups, lambda each: each.case.gpu).items():
        show(gpu, result.errors_pct(here))


def _show_left_out(groups: Sequence[Group]) -> None:
    for of in (lambda each: each.family != GROUPED, lambda each: each.family == GROUPED):
        some: Callable[[Group], bool] = of
        _show_folds([each for each in groups if some(each)])


def _show_folds(groups: Sequence[Group]) -> None:
    if not groups:
        return
    narrow = spread(groups, lambda each: each.case.dtype not in _WIDE)
    for label in REFIT.splits:
        if len(np.unique(labels(groups, label))) < 2:
            continue
        errors_pct = REFIT.left_out(in_parts(groups), label)
        show(f"{label} left out, bf16 and fp8", errors_pct[~narrow])
        show(f"{label} left out, 4-bit weights", errors_pct[narrow])
        if label == "gpu":
            gpus = labels(groups, "gpu")
            for gpu in sorted(set(gpus)):
                show(f"  {gpu}, bf16 and fp8", errors_pct[(gpus == gpu) & ~narrow])
                show(f"  {gpu}, 4-bit weights", errors_pct[(gpus == gpu) & narrow])


REFIT: Final = Refit(
    "experts",
    "Shares of the datasheet, clock cycles, bytes per clock cycle and SM.",
    {
        "gpu": "a system",
        "version": "a version",
        "model": "models",
        "ep": "EP degrees",
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
