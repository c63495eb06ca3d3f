"""Seconds of each operation of a program on a cluster.

Plain numbers go to the kernels together, all products of one number format as one vector, because
a formula costs as much for twenty shapes as for one; and what was priced once on a cluster is kept.
Arrays go one operation at a time, each over the axes that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from hashlib import blake2b
from math import prod
from typing import Any, Final, NamedTuple, cast

import numpy as np

from shardcost.arrays import choose, smallest
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Cluster
from shardcost.collectives.calibration import Calibration, libraries
from shardcost.collectives.group import sits_unevenly
from shardcost.collectives.library_time import CollectiveTime, collective_time, default_library
from shardcost.collectives.multimem import MULTIMEM, multimem_all_reduce_s
from shardcost.dtypes import BITS
from shardcost.estimate.placement import Place
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.kernels.constants import (
    KernelShelf,
    Section,
    own_section,
    section_measured_with,
)
from shardcost.kernels.elementwise import elementwise_time_s
from shardcost.kernels.gemm import copy_bytes_per_s, gemm_section, gemm_time_s
from shardcost.program.operations import AttentionCore, Collective, Elementwise, Gemm, Operation
from shardcost.software import Software

WIDE_BITS: Final = 16
_MOST_KEPT: Final = 200_000
"""Prices kept per cluster before all are forgotten: some tens of megabytes."""
_FEW_CELLS: Final = 64
_MIXER, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
"""Knuth's multiplier for 64 bits, and half of them."""
_MOST_BYTES: Final = 64 * 2**20
"""Prices on arrays kept per cluster."""

Adjust = Callable[[Operation, Any], Any]
"""Takes an operation and its seconds; returns the seconds that it shall take instead."""


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
        self._adjust: Adjust | None = None
        self._library = _library(cluster, software)
        self._kernels = software.kernels
        self._narrow_gemm_measured_with = software.narrow_gemm_measured_with
        self._kept, self._said = _kept(cluster)
        self._grids = _grids(cluster)
        if len(self._kept) > _MOST_KEPT:
            self._kept.clear()

    def adjusted(self, how: Adjust) -> Prices:
        """Return the same prices, each changed by a function: what if a kind took longer.

        It is applied to what is kept, so that nothing adjusted is kept; seconds may become arrays.
        """
        found = copy(self)
        found._adjust = how
        return found

    def of(self, operations: Sequence[Operation], sms_taken: int = 0) -> list[Any]:
        """Return the seconds of each operation, happening once.

        Args:
            operations: What to price.
            sms_taken: Compute units that a collective's kernel holds meanwhile.
        """
        found = self._as_measured(operations, sms_taken)
        if self._adjust is None:
            return found
        return [self._adjust(op, each) for op, each in zip(operations, found, strict=True)]

    def _as_measured(self, operations: Sequence[Operation], sms_taken: int) -> list[Any]:
        operations = [self._placed(op) for op in operations]
        if self.arrays:
            return [self._once(op, sms_taken) for op in operations]
        kept, said = self._kept, self._said
        keys = [self._key(op, sms_taken) for op in operations]
        new = {key: op for key, op in zip(keys, operations, strict=True) if key not in kept}
        if new:
            self._keep(new, sms_taken)
        for key in keys:
            if key in said:
                self.notes.update(said[key])
        return [kept[key] for key in keys]

    def _placed(self, op: Operation) -> Operation:
        """Return an operation; a collective with its stride in devices, not in ranks."""
        if not isinstance(op, Collective):
            return op
        return op._replace(stride=op.stride * self.placed[op.group].stride)

    def _once(self, op: Operation, sms_taken: int) -> Any:
        """Return the seconds of an operation on arrays, kept for grids that share it."""
        key = _contents(self._key(op, sms_taken))
        if key is None:
            return self._alone(op, sms_taken)
        found = self._grids.get(key)
        if found is None:
            said, self.notes = self.notes, {}
            small, back = distinct(op)
            seconds = self._alone(small, sms_taken)
            seconds = seconds if back is None else seconds[back]
            found = self._grids.keep(key, seconds, self.notes)
            self.notes = said
        self.notes.update(found.notes)
        return found.seconds

    def _keep(self, new: dict[Any, Operation], sms_taken: int) -> None:
        """Price operations that were not priced before, those of a kind together."""
        self._keep_gemms(new, sms_taken)
        self._keep_elementwise(new)
        for key, op in new.items():
            if key not in self._kept:
                self._kept[key] = self._alone(op, sms_taken)

    def own(self, shelf: KernelShelf, name: str) -> Section | None:
        """Return the constants of the software's own kernels on the device, if it has any."""
        if self._kernels is None:
            return None
        return own_section(shelf, self.device, f"{self._kernels}_{name}")

    def _constants(self, shelf: KernelShelf, name: str) -> Mapping[str, Any] | None:
        found = self.own(shelf, name)
        return None if found is None else found.constants

    def _key(self, op: Operation, sms_taken: int) -> tuple[Any, ...]:
        """Return what an operation's price depends on: everything but its name and count."""
        if isinstance(op, Collective):
            library = self._library if op.group == "tp" else ""
            return op.collective, op.size_bytes, op.ranks, op.stride, library, self.wire
        if isinstance(op, Elementwise):
            return op.bytes_moved, op.kernels, self._kernels
        if isinstance(op, Gemm):
            return *op[1:6], sms_taken, self._kernels, self._narrow_gemm_measured_with
        return *op[1:], self._kernels

    def _keep_gemms(self, new: dict[Any, Operation], sms_taken: int) -> None:
        products = {key: op for key, op in new.items() if isinstance(op, Gemm)}
        for dtype in {op.dtype for op in products.values()}:
            chosen = {key: op for key, op in products.items() if op.dtype == dtype}
            table = np.array([(op.m, op.n, op.k, op.batch) for op in chosen.values()], dtype=float)
            m, n, k, batch = table.T
            seconds = np.asarray(self._products(dtype, m, n, k, batch, sms_taken))
            self._kept.update(zip(chosen, seconds.tolist(), strict=True))

    def _keep_elementwise(self, new: dict[Any, Operation]) -> None:
        chosen = {key: op for key, op in new.items() if isinstance(op, Elementwise)}
        if chosen:
            table = np.array([(op.bytes_moved, op.kernels) for op in chosen.values()], dtype=float)
            seconds = np.asarray(self._pass(table[:, 0], table[:, 1]))
            self._kept.update(zip(chosen, seconds.tolist(), strict=True))

    def _alone(self, op: Operation, sms_taken: int) -> Any:
        if isinstance(op, Gemm):
            return self._products(op.dtype, op.m, op.n, op.k, op.batch, sms_taken)
        if isinstance(op, Elementwise):
            return self._pass(op.bytes_moved, op.kernels)
        if isinstance(op, AttentionCore):
            return self._attention(op)
        return self._collective(op)

    def _products(self, dtype: str, m: Any, n: Any, k: Any, batch: Any, sms_taken: int) -> Any:
        """Return the seconds of products, beside a collective's kernel if that holds units."""
        taken = copy_bytes_per_s(self.device, sms_taken) if sms_taken else 0.0
        return gemm_time_s(
            self.device,
            dtype,
            m,
            n,
            k,
            batch=batch,
            sms_taken=sms_taken,
            memory_taken=taken,
            constants=self.own_gemm(dtype),
        )

    def own_gemm(self, dtype: str) -> Section | None:
        """Return constants of the software's own products; None where they are the device's."""
        if BITS[dtype] >= WIDE_BITS:
            return self.own("gemm", "bf16")
        if self._narrow_gemm_measured_with is None:
            return None
        name = gemm_section(self.device, dtype).name
        return section_measured_with("gemm", self.device, self._narrow_gemm_measured_with, name)

    def _pass(self, bytes_moved: Any, kernels: Any) -> Any:
        constants = self._constants("elementwise", "elementwise")
        return elementwise_time_s(self.device, bytes_moved, kernels=kernels, constants=constants)

    def _attention(self, op: AttentionCore) -> Any:
        if op.document_tokens is not None:
            # Documents much shorter than a tile are cheaper masked inside the whole sequence.
            whole = op._replace(document_tokens=None)
            return smallest(self._attention(op.by_document()), self._attention(whole))
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
        found, notes = self._asked(op)
        self._said[self._key(op, 0)] = notes
        return float(found.time_s)

    def _collectives(self, op: Collective) -> Any:
        """Return the seconds of collectives, those that sit unevenly priced by themselves."""
        apart = sits_unevenly(self.cluster, op.ranks, op.stride)
        if not anywhere(apart):
            return self._noted(self._ask(op, op.ranks, stride=op.stride))
        self.notes[f"some {op.group} groups sit unevenly on nodes: priced as one rank each"] = None
        even = self._noted(self._ask(op, choose(apart, 1, op.ranks), stride=op.stride))
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
        return self._asked(cast("Collective", self._placed(op)))

    def _asked(self, op: Collective) -> tuple[CollectiveTime, dict[str, None]]:
        if sits_unevenly(self.cluster, op.ranks, op.stride):
            found = self._ask(op, op.ranks, nodes=op.ranks)
            note = f"{op.group} group of {op.ranks} sits unevenly on nodes: priced as one rank each"
            return found, dict.fromkeys((note, *found.notes))
        found = self._ask(op, op.ranks, stride=op.stride)
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


class _Priced(NamedTuple):
    """Seconds of an operation on a grid, and what to mind about them."""

    seconds: Any
    notes: dict[str, None]


class _Grids:
    """Prices of operations on arrays. When they take too much room, all are forgotten."""

    def __init__(self) -> None:
        self._found: dict[Any, _Priced] = {}
        self._bytes = 0

    def get(self, key: tuple[Any, ...]) -> _Priced | None:
        return self._found.get(key)

    def keep(self, key: tuple[Any, ...], seconds: Any, notes: dict[str, None]) -> _Priced:
        self._bytes += getattr(seconds, "nbytes", 0)
        if self._bytes > _MOST_BYTES:
            self._found.clear()
            self._bytes = 0
        return self._found.setdefault(key, _Priced(seconds, notes))


def distinct(op: Operation) -> tuple[Operation, Any]:
    """Return an operation with each of its sizes once, and which of them each cell has.

    On a grid many cells share their sizes: a product knows nothing of pipeline stages. None
    instead of the cells where that would not pay.
    """
    arrays = {name: each for name, each in op._asdict().items() if isinstance(each, np.ndarray)}
    arrays.pop("count", None)
    shape = np.broadcast_shapes(*(each.shape for each in arrays.values()))
    if prod(shape) < _FEW_CELLS:
        return op, None
    columns = [np.broadcast_to(each, shape).ravel() for each in arrays.values()]
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(float).view(np.uint64)) * _MIXER
        mixed ^= mixed >> _HALF
    _, first, back = np.unique(mixed, return_index=True, return_inverse=True)
    if any((column[first][back] != column).any() for column in columns):
        return op, None  # two different sizes were mixed to the same number
    sizes: dict[str, Any] = {
        name: column[first] for name, column in zip(arrays, columns, strict=True)
    }
    return op._replace(**sizes), back.reshape(shape)


def _contents(key: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return a key with arrays replaced by what stands for their contents; None if none can."""
    found: list[Any] = []
    for each in key:
        if isinstance(each, np.ndarray):
            digest = blake2b(np.ascontiguousarray(each).data, digest_size=16).digest()
            found += [each.shape, each.dtype.str, digest]
        elif is_array(each):
            return None
        else:
            found.append(each)
    return tuple(found)


@lru_cache(maxsize=2)
def _grids(cluster: Cluster) -> _Grids:  # noqa: ARG001
    return _Grids()


@lru_cache(maxsize=64)
def _kept(cluster: Cluster) -> tuple[dict[Any, Any], dict[Any, dict[str, None]]]:  # noqa: ARG001
    """Return the prices found so far on a cluster, and what to mind about them."""
    return {}, {}
