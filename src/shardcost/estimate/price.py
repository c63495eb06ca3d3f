"""Seconds of each operation of a program on a cluster.

Plain numbers go to the kernels together, all products of one number format as one vector, because
a formula costs as much for twenty shapes as for one; and what was priced once on a cluster is kept.
Arrays go one operation at a time, each over the axes that it depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from shardcost.arrays import choose
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Cluster
from shardcost.collectives.calibration import Calibration, libraries
from shardcost.collectives.group import sits_unevenly
from shardcost.collectives.multimem import MULTIMEM, multimem_all_reduce_s
from shardcost.collectives.silicon import CollectiveTime, collective_time, default_library
from shardcost.dtypes import BITS
from shardcost.estimate.placement import Place
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.kernels.constants import (
    KernelShelf,
    Section,
    own_section,
    section_measured_with,
)
from shardcost.kernels.passes import pass_time_s
from shardcost.kernels.products import copy_bytes_per_s, product_section, product_time_s
from shardcost.program.operations import AttentionCore, Collective, Operation, Pass, Product
from shardcost.software import Software

_WIDE: Final = 16
_MOST_KEPT: Final = 200_000
"""Prices kept per cluster before all are forgotten: some tens of megabytes."""


class Prices:
    """What operations cost on a cluster under a software and a placement of the groups."""

    def __init__(
        self,
        cluster: Cluster,
        software: Software,
        placed: dict[str, Place],
        wire: Calibration | None = None,
        *,
        arrays: bool = False,
    ) -> None:
        self.arrays = arrays
        """Whether any operation has an array among its sizes."""
        self.cluster = cluster
        self.wire = wire
        self.device = cluster.device
        self.placed = placed
        self.notes: dict[str, None] = {}
        """What to mind about the prices, each once, in order."""
        self._library = _library(cluster, software)
        self._kernels = software.kernels
        self._narrow_products = software.narrow_products
        self._kept, self._said = _kept(cluster)
        if len(self._kept) > _MOST_KEPT:
            self._kept.clear()

    def of(self, operations: Sequence[Operation], units_taken: int = 0) -> list[Any]:
        """Return the seconds of each operation, happening once.

        Args:
            operations: What to price.
            units_taken: Compute units that a collective's kernel holds meanwhile.
        """
        if self.arrays:
            return [self._alone(op, units_taken) for op in operations]
        kept, said = self._kept, self._said
        keys = [self._key(op, units_taken) for op in operations]
        new = {key: op for key, op in zip(keys, operations, strict=True) if key not in kept}
        if new:
            self._keep(new, units_taken)
        for key in keys:
            if key in said:
                self.notes.update(said[key])
        return [kept[key] for key in keys]

    def _keep(self, new: dict[Any, Operation], units_taken: int) -> None:
        """Price operations that were not priced before, those of a kind together."""
        self._keep_products(new, units_taken)
        self._keep_passes(new)
        for key, op in new.items():
            if key not in self._kept:
                self._kept[key] = self._alone(op, units_taken)

    def _own(self, shelf: KernelShelf, name: str) -> Section | None:
        """Return the constants of the software's own kernels on the device, if it has any."""
        if self._kernels is None:
            return None
        return own_section(shelf, self.device, f"{self._kernels}_{name}")

    def _constants(self, shelf: KernelShelf, name: str) -> Mapping[str, Any] | None:
        found = self._own(shelf, name)
        return None if found is None else found.constants

    def _key(self, op: Operation, units_taken: int) -> tuple[Any, ...]:
        """Return what an operation's price depends on: everything but its name and count."""
        if isinstance(op, Collective):
            stride = op.stride * self.placed[op.group].stride
            library = self._library if op.group == "tp" else ""
            return op.collective, op.size_bytes, op.ranks, stride, library, self.wire
        if isinstance(op, Pass):
            return op.bytes_moved, op.kernels, self._kernels
        if isinstance(op, Product):
            return *op[1:6], units_taken, self._kernels, self._narrow_products
        return *op[1:], self._kernels

    def _keep_products(self, new: dict[Any, Operation], units_taken: int) -> None:
        products = {key: op for key, op in new.items() if isinstance(op, Product)}
        for dtype in {op.dtype for op in products.values()}:
            chosen = {key: op for key, op in products.items() if op.dtype == dtype}
            table = np.array([(op.m, op.n, op.k, op.batch) for op in chosen.values()], dtype=float)
            m, n, k, batch = table.T
            seconds = np.asarray(self._products(dtype, m, n, k, batch, units_taken))
            self._kept.update(zip(chosen, seconds.tolist(), strict=True))

    def _keep_passes(self, new: dict[Any, Operation]) -> None:
        chosen = {key: op for key, op in new.items() if isinstance(op, Pass)}
        if chosen:
            table = np.array([(op.bytes_moved, op.kernels) for op in chosen.values()], dtype=float)
            seconds = np.asarray(self._pass(table[:, 0], table[:, 1]))
            self._kept.update(zip(chosen, seconds.tolist(), strict=True))

    def _alone(self, op: Operation, units_taken: int) -> Any:
        if isinstance(op, Product):
            return self._products(op.dtype, op.m, op.n, op.k, op.batch, units_taken)
        if isinstance(op, Pass):
            return self._pass(op.bytes_moved, op.kernels)
        if isinstance(op, AttentionCore):
            return self._attention(op)
        return self._collective(op)

    def _products(self, dtype: str, m: Any, n: Any, k: Any, batch: Any, units_taken: int) -> Any:
        """Return the seconds of products, beside a collective's kernel if that holds units."""
        taken = copy_bytes_per_s(self.device, units_taken) if units_taken else 0.0
        return product_time_s(
            self.device,
            dtype,
            m,
            n,
            k,
            batch=batch,
            units_taken=units_taken,
            memory_taken=taken,
            constants=self._product_constants(dtype),
        )

    def _product_constants(self, dtype: str) -> Section | None:
        """Return constants of the software's own products; None where they are the device's."""
        if BITS[dtype] >= _WIDE:
            return self._own("products", "bf16")
        if self._narrow_products is None:
            return None
        name = product_section(self.device, dtype).name
        return section_measured_with("products", self.device, self._narrow_products, name)

    def _pass(self, bytes_moved: Any, kernels: Any) -> Any:
        constants = self._constants("passes", "pass")
        return pass_time_s(self.device, bytes_moved, kernels=kernels, constants=constants)

    def _attention(self, op: AttentionCore) -> Any:
        # A kernel takes a value's size of its own for values that are part of the keys.
        own = is_array(op.value_dim) or op.value_dim != op.head_dim
        shared: dict[str, Any] = {
            "window_tokens": op.window_tokens,
            "value_dim": op.value_dim if own else None,
        }
        heads = (op.heads, op.kv_heads, op.head_dim)
        if op.decode:
            return decode_time_s(
                self.device,
                op.dtype,
                op.batch,
                op.context_tokens,
                *heads,
                new_tokens=op.query_tokens,
                constants=self._constants("attention", "decode"),
                **shared,
            )
        return prefill_time_s(
            self.device,
            op.dtype,
            op.batch,
            op.query_tokens,
            op.context_tokens,
            *heads,
            causal=op.causal,
            backward=op.backward,
            constants=self._constants("attention", "prefill"),
            **shared,
        )

    def _collective(self, op: Collective) -> Any:
        if not is_array(op.ranks) and op.ranks == 1:
            return 0.0
        if self.is_multimem(op):
            return multimem_all_reduce_s(self.cluster, op.ranks, op.size_bytes)
        if self.arrays:
            return self._collectives(op)
        found, notes = self.asked(op)
        self._said[self._key(op, 0)] = notes
        return float(found.time_s)

    def _collectives(self, op: Collective) -> Any:
        """Return the seconds of collectives, those that sit unevenly priced by themselves."""
        stride = op.stride * self.placed[op.group].stride
        apart = sits_unevenly(self.cluster, op.ranks, stride)
        if not anywhere(apart):
            return self._noted(self._ask(op, op.ranks, stride=stride))
        even = self._noted(self._ask(op, choose(apart, 1, op.ranks), stride=stride))
        ranks = choose(apart, op.ranks, 1)
        return choose(apart, self._noted(self._ask(op, ranks, nodes=ranks)), even)

    def _noted(self, found: CollectiveTime) -> Any:
        self.notes.update(dict.fromkeys(found.notes))
        return found.time_s

    def is_multimem(self, op: Collective) -> bool:
        """Return whether an all-reduce runs by multimem instructions, not by a library."""
        return op.collective == "all_reduce" and self._library_of(op) == MULTIMEM

    def asked(self, op: Collective) -> tuple[CollectiveTime, dict[str, None]]:
        """Return how a library runs a collective, and what to mind about it."""
        stride = op.stride * self.placed[op.group].stride
        if sits_unevenly(self.cluster, op.ranks, stride):
            found = self._ask(op, op.ranks, nodes=op.ranks)
            note = f"{op.group} group of {op.ranks} sits unevenly on nodes: priced as one rank each"
            return found, dict.fromkeys((note, *found.notes))
        found = self._ask(op, op.ranks, stride=stride)
        return found, dict.fromkeys(found.notes)

    def _ask(self, op: Collective, ranks: Any, **where: Any) -> CollectiveTime:
        library = self._library_of(op)
        return collective_time(
            op.collective,
            op.size_bytes,
            self.cluster,
            ranks,
            library=default_library(self.cluster) if library == MULTIMEM else library,
            wire=self.wire,
            **where,
        )

    def _library_of(self, op: Collective) -> str:
        return self._library if op.group == "tp" else default_library(self.cluster)


@lru_cache(maxsize=256)
def _library(cluster: Cluster, software: Software) -> str:
    """Return the library of tensor-parallel collectives: the engine's where it has constants."""
    own = software.library
    if own == MULTIMEM and cluster.tiers[-1].in_switch_reduction:
        return MULTIMEM
    return own if own is not None and own in libraries(cluster) else default_library(cluster)


@lru_cache(maxsize=64)
def _kept(cluster: Cluster) -> tuple[dict[Any, Any], dict[Any, dict[str, None]]]:  # noqa: ARG001
    """Return the prices found so far on a cluster, and what to mind about them."""
    return {}, {}
