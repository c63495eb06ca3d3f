"""Predictions of measured latent attention: an attention kernel, a module, an absorption product.

A row names the kernel by the engine's own name and says what was timed (`scope`). Sizes of the
model that are left blank are DeepSeek-V3's; so is a context that is left blank in prefill the
prompt itself, and a number format the one of the row's products.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.dtypes import weight_format
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.mla import (
    DEEPSEEK,
    LatentShape,
    attention_time_s,
    module_time_s,
    products_time_s,
)
from shardcost.machine import KernelConstants
from shardcost.machine.kernels import Section
from shardcost.machine.mla import (
    FORMS,
    PHASES,
    Wanted,
    attention_sections,
    family_of,
    mla_section,
    module_sections,
    product_sections,
)
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
SCOPES: Final = ("kernel", "module", "bmm_q", "bmm_v")
PRODUCTS: Final = frozenset({"bmm_q", "bmm_v"})
TOKEN_BANDS: Final = {"<=4096": 4096, "<=65536": 65536, "<=1048576": 2**20, ">1048576": np.inf}
"""Names of ranges of the tokens in the cache of all requests, each with the most in it."""
_SIZES: Final = 4
_MOST: Final = 10**9


class LatentCase(NamedTuple):
    """A kernel or module of latent attention on a device, but for its sizes."""

    gpu: str
    library: str
    kernel: str
    scope: str
    phase: str
    form: str
    dtype: str
    kv_dtype: str
    weight_dtype: str
    shape: LatentShape

    def time_s(self, sizes: Floats, on: KernelConstants) -> Floats:
        """Return the seconds of some rows of sizes, as `cases` has them."""
        batch, query_tokens, context_tokens, heads = sizes.T
        found: Floats
        if self.scope in PRODUCTS:
            found = products_time_s(
                on,
                self.kernel,
                self.dtype,
                batch * query_tokens,
                heads,
                is_query=self.scope == "bmm_q",
                library=self.library,
                shape=self.shape,
            )
            return found
        kind = (self.kernel, self.phase, self.form, batch, query_tokens, context_tokens, heads)
        others: dict[str, Any] = {
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "library": self.library,
            "shape": self.shape,
        }
        if self.scope == "module":
            found = module_time_s(on, *kind, weight_dtype=self.weight_dtype, **others)
        else:
            found = attention_time_s(on, *kind, **others)
        return found

    def wanted(self) -> tuple[Wanted, ...]:
        """Return the sections that hold for it, of attention before those of GEMMs."""
        if self.scope in PRODUCTS:
            return (product_sections(self.kernel, self.library, self.dtype),)
        device = Cluster.named(self.gpu).device
        kind = (self.kernel, self.library, self.phase, self.form, self.kv_dtype)
        attention = attention_sections(*kind, device)
        if self.scope == "kernel":
            return (attention,)
        return attention, module_sections(self.library, self.weight_dtype)

    def sections(self, on: KernelConstants) -> tuple[Section, ...]:
        """Return the constants that it is predicted by."""
        return tuple(mla_section(on, each) for each in self.wanted())


def cases(table: Table) -> Cases[LatentCase]:
    """Return the rows of a table by device, kernel, scope and number formats."""
    return cases_of(table, _case, _sizes, _SIZES)


predictions: Final = kernel_predictions(cases)


def family(row: Row) -> str:
    """Return the family of kernels that a row's attention is of, or what else was timed.

    >>> row = {"gpu": "h100_sxm", "kernel": "FLASHMLA", "library": "vllm", "scope": "module",
    ...        "phase": "decode", "form": "absorbed"}
    >>> family(row)
    'flashmla'
    """
    if row["scope"] in PRODUCTS:
        return "products"
    device = Cluster.named(row["gpu"]).device
    return family_of(row["kernel"], row["library"], row["phase"], row["form"], device)


def cached_tokens(row: Row) -> str:
    """Return the range of tokens in the cache of all requests that a row is in."""
    batch, _, context, _ = _sizes(row)
    return band_of(TOKEN_BANDS, batch * context)


def _case(row: Row) -> LatentCase:
    scope = _one_of(row, "scope", SCOPES)
    phase = _one_of(row, "phase", PHASES) if row["phase"] or scope not in PRODUCTS else "decode"
    usual = "absorbed" if phase == "decode" else "expanded"
    form = _one_of(row, "form", FORMS) if row["form"] else usual
    dtype = row["dtype"] or row["weight_dtype"] or "bf16"
    kv_dtype, weight_dtype = row["kv_dtype"] or "bf16", row["weight_dtype"] or "bf16"
    for each in (dtype, kv_dtype, weight_dtype):
        weight_format(each)
    if scope in PRODUCTS:
        kv_dtype = weight_dtype = ""
    elif scope == "kernel":
        weight_dtype = ""
    sizes = (
        whole_cell(row, name, most=_MOST) if row.get(name) else default
        for name, default in DEEPSEEK._asdict().items()
    )
    return LatentCase(
        row["gpu"],
        row["library"],
        row["kernel"],
        scope,
        phase,
        form,
        dtype,
        kv_dtype,
        weight_dtype,
        LatentShape(*sizes),
    )


def _one_of(row: Row, column: str, known: tuple[str, ...]) -> str:
    if row[column] not in known:
        raise UnknownNameError(column, row[column], known)
    return row[column]


def _sizes(row: Row) -> list[float]:
    batch, heads = (whole_cell(row, name, most=_MOST) for name in ("batch", "heads"))
    queries = whole_cell(row, "query_tokens", most=_MOST) if row["query_tokens"] else 1
    context = queries
    if row["scope"] not in PRODUCTS and (row["context_tokens"] or row["phase"] == "decode"):
        context = whole_cell(row, "context_tokens", most=_MOST)
        if context < queries:
            raise BadValueError("context_tokens", context, "at least query_tokens")
    return [float(size) for size in (batch, queries, context, heads)]


DERIVED: Final[Derived] = {"family": family, "cached_tokens": cached_tokens}
