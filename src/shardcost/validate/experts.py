"""Predictions of measured expert kernels: the experts of one MoE layer on one GPU.

A row names the kernel by the engine's own name, and states the load of this GPU: its token-expert
pairs, its experts with any, and the pairs of the fullest. Where the load is left blank, it is the
expected one of the row's routing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shardcost.dtypes import weight_format
from shardcost.errors import BadValueError
from shardcost.formats.tables import Row, Table, number
from shardcost.kernels.experts import experts_time_s
from shardcost.machine import KernelConstants
from shardcost.machine.experts import family_of
from shardcost.routing import ExpertLoad, expert_load
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    band_of,
    cases_of,
    kernel_predictions,
    whole_cell,
)

MEASURED: Final = "time_us"
ROW_BANDS: Final = {"<=1": 1, "<=16": 16, "<=128": 128, ">128": np.inf}
"""Names of ranges of pairs per active expert, each with the most in it."""
FORMAT_GROUPS: Final = {4: "4-bit weights", 8: "8-bit weights", 16: "16-bit weights"}
_SIZES: Final = 10
PAIRS, ACTIVE = 5, 6
"""Where in a row of sizes its pairs and its active experts stand."""
_ROUTINGS: Final = {"balanced": "even", "power_law": "power_law", "random": "random"}
_ALPHA: Final = "1.2"
_MOST: Final = 10**9


class ExpertCase(NamedTuple):
    """An expert kernel on a device, but for its sizes."""

    gpu: str
    kernel: str
    dtype: str
    library: str

    def time_s(self, sizes: Floats, on: KernelConstants) -> Floats:
        """Return the seconds of some rows of sizes, as `cases` has them."""
        tokens, hidden, inter, experts, top_k, pairs, active, busiest, gated, ep = sizes.T
        found: Floats = experts_time_s(
            on,
            self.kernel,
            self.dtype,
            tokens,
            hidden,
            inter,
            experts=experts,
            top_k=top_k,
            pairs=pairs,
            active=active,
            busiest=busiest,
            gated=gated,
            ep=ep,
            library=self.library,
        )
        return found


def cases(table: Table) -> Cases[ExpertCase]:
    """Return the rows of a table by device, kernel and number format."""
    return cases_of(table, _case, _sizes, _SIZES)


predictions: Final = kernel_predictions(cases)


def family(row: Row) -> str:
    """Return the family of kernels that a row's kernel is of.

    >>> family({"kernel": "sglang_marlin_moe", "dtype": "w4a16_int4", "library": "sglang"})
    'marlin'
    """
    return family_of(row["kernel"], row["dtype"], row["library"])


def weights(row: Row) -> str:
    """Return how wide the weights of a row's experts are."""
    weight_bytes = weight_format(row["dtype"]).weight_bytes
    return next(
        (name for bits, name in FORMAT_GROUPS.items() if weight_bytes < (bits + 2) / 8), "wider"
    )


def rows_per_expert(row: Row) -> str:
    """Return the range of pairs per active expert that a row is in."""
    load = _load(row)
    return band_of(ROW_BANDS, load.pairs / load.active)


def _case(row: Row) -> ExpertCase:
    weight_format(row["dtype"])
    return ExpertCase(row["gpu"], row["kernel"], row["dtype"], row["library"])


def _sizes(row: Row) -> list[float]:
    names = ("tokens", "hidden", "inter", "experts", "topk", "ep", "tp")
    tokens, hidden, inter, experts, top_k, ep, tp = (
        whole_cell(row, name, most=_MOST) for name in names
    )
    gated = row["gated"]
    if gated not in {"0", "1"}:
        raise BadValueError("gated", gated, "0 or 1")
    load = _load(row)
    sizes = [tokens, hidden, inter / tp, experts, top_k, *load, float(gated), ep]
    return [float(size) for size in sizes]


def _load(row: Row) -> ExpertLoad:
    names = ("pairs", "active_experts", "busiest_expert")
    if all(row[name] for name in names):
        rule = "a number above 0"
        return ExpertLoad(*(number(row, name, 0, 1e12, rule) for name in names))
    routing = _ROUTINGS.get(row.get("routing", ""), "random")
    alpha = number({"alpha": row.get("alpha") or _ALPHA}, "alpha", -1, 10, "from 0 to 10")
    tokens, experts, top_k, ep = (
        whole_cell(row, name, most=_MOST) for name in ("tokens", "experts", "topk", "ep")
    )
    return expert_load(tokens, experts, top_k, ep, routing=routing, alpha=alpha)


DERIVED: Final[Derived] = {
    "family": family,
    "weights": weights,
    "rows_per_expert": rows_per_expert,
}
