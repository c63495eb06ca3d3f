"""Seconds of each operation of a program on a machine, and the bytes that collectives send.

Plain numbers go to the kernels together, all GEMMs of one number format as one vector, because a
NumPy formula costs as much for twenty shapes as for one. Arrays go one operation at a time, each
over the axes that it depends on. What was priced once on a machine is kept with the machine: a
second layout that shares sizes costs little.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import reduce
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shardcost.arrays import ceil, choose, largest, smallest
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere, is_array
from shardcost.collectives.engine_kernels import multimem_all_reduce_s
from shardcost.collectives.group import sits_unevenly
from shardcost.collectives.library_time import CollectiveTime, collective_time, group_on
from shardcost.dtypes import format_on
from shardcost.errors import BadValueError
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.kernels.elementwise import elementwise_time_s, row_kernel_time_s
from shardcost.kernels.experts import GROUPED, experts_time_s, grouped_gemm_time_s
from shardcost.kernels.gemm import copy_bytes_per_s, gemm_time_s
from shardcost.kernels.power import in_steps_s, sustained_time_s
from shardcost.machine import Machine
from shardcost.machine.dispatch import kernel_of as dispatch_kernel
from shardcost.machine.experts import default_kernel, experts_section
from shardcost.machine.kernels import KernelTable, Section
from shardcost.machine.libraries import MULTIMEM
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Conversion,
    Elementwise,
    ExpertKernels,
    Gemm,
    Kernel,
    LatentCore,
    Operation,
    Routed,
    StateKernel,
)
from shardcost.records import NamedTuple

# Kernels that few models have are imported where an operation is one of them.
if TYPE_CHECKING:
    from shardcost.collectives.dispatch import DispatchTime
    from shardcost.kernels.linear_attention import Sizes

_MOST_PRICES: Final = 200_000
_MOST_PIECES: Final = 2048
"""Prices, and priced pieces, kept per machine before all are dropped: some tens of megabytes."""
_MOST_GRID_BYTES: Final = 32 * 2**20
"""The same for prices on arrays."""
_FEW_CELLS: Final = 64
_FEW_GEMMS: Final = 8
"""Fewer GEMMs one by one take less time than importing NumPy. Where it was imported for something
else, a vector takes less time than a GEMM by itself, shape by shape."""
_MIXER, _HALF = 0x9E3779B97F4A7C15, 32
"""Knuth's multiplier for 64 bits, and half of them."""

Adjust = Callable[[Operation, Any], Any]
"""Takes an operation and its seconds; returns the seconds that it shall take instead."""
Key = tuple[Any, ...]
"""What the price of an operation depends on."""
_Fused: TypeAlias = ExpertKernels | LatentCore | StateKernel
"""Kernels of an engine's own, under constants by kernel and device."""


def _fields(kind: Any, *names: str) -> Callable[[Any], Key]:
    """Return a function that takes some fields of an operation; all but name, count and id."""
    found = names or [each for each in kind._fields if each not in {"name", "count", "id"}]
    return itemgetter(*map(kind._fields.index, found))


_PRICED_BY: Final[Mapping[type, Callable[[Any], Key]]] = {
    Gemm: _fields(Gemm, "m", "n", "k", "batch", "dtype", "fullest"),
    AttentionCore: _fields(AttentionCore),
    LatentCore: _fields(LatentCore),
    ExpertKernels: _fields(ExpertKernels),
    StateKernel: _fields(StateKernel),
    Elementwise: _fields(Elementwise, "bytes_moved", "kernels", "converts"),
    Collective: _fields(
        Collective, "collective", "size_bytes", "group", "ranks", "stride", "routed"
    ),
}
"""The fields of an operation that its price depends on."""
_SIZES: Final = slice(4)
"""Where a GEMM's key has its sizes."""


def host_copy_s(size_bytes: Any, bytes_per_s: Any) -> Any:
    """Return the seconds of a copy between a device and its host, at the link's nominal rate."""
    return size_bytes / bytes_per_s


def host_update_s(weights: Any, gpus_per_node: Any, weights_per_s: Any) -> Any:
    """Return the seconds in which a host updates one GPU's weights: a node's GPUs share it."""
    return weights * gpus_per_node / weights_per_s


def attention_section(op: AttentionCore) -> str:
    """Return the section of constants that hold for a pass of attention over many tokens."""
    return "backward" if op.backward else "prefill"


class CollectivePrice(NamedTuple):
    """One call of a collective: its seconds, and the bytes that a rank sends in it."""

    seconds: Any
    inside_bytes: Any
    """Over the links inside a domain, by the path that runs …"""
    network_bytes: Any
    """… and into the network, a rank's share of its domain's."""

    @property
    def sent_bytes(self) -> Any:
        """All of them."""
        return self.inside_bytes + self.network_bytes


NOTHING: Final = CollectivePrice(0.0, 0.0, 0.0)


def added(shares: Sequence[tuple[Any, Any]]) -> CollectivePrice:
    """Return prices, each so many times, added up; those of kernels are seconds alone."""
    seconds: Any = 0.0
    inside_bytes: Any = 0.0
    network_bytes: Any = 0.0
    nothing = True
    for times, price in shares:
        if price is NOTHING:
            continue
        nothing = False
        if isinstance(price, CollectivePrice):
            seconds = seconds + times * price.seconds
            inside_bytes = inside_bytes + times * price.inside_bytes
            network_bytes = network_bytes + times * price.network_bytes
        else:
            seconds = seconds + times * price
    return NOTHING if nothing else CollectivePrice(seconds, inside_bytes, network_bytes)


def state_sizes(op: StateKernel) -> Sizes:
    """Return the sizes of a kernel of a layer with a state, as its engine keeps that."""
    from shardcost.kernels.linear_attention import Sizes
    from shardcost.machine.linear_attention import state_bytes

    return Sizes(
        op.batch,
        op.query_tokens,
        op.k_heads,
        op.k_dim,
        op.v_heads,
        op.v_dim,
        op.conv_channels,
        op.conv_width,
        state_bytes(op.engine),
    )


class Prices:
    """What operations cost on a machine under a placement of the groups."""

    def __init__(
        self, machine: Machine, strides: Mapping[str, Any], *, arrays: bool = False
    ) -> None:
        self.arrays = arrays
        """Whether any operation has an array among its sizes."""
        self.machine = machine
        self.strides = strides
        """By group: how many devices its next rank is away."""
        self._adjust: Adjust | None = None
        self._sent_prices: dict[Key, Any] = machine.memo.setdefault("collectives", {})
        self._kernel_prices: dict[int, dict[Key, Any]] = machine.kernels.memo.setdefault(
            "prices", {0: {}}
        )
        """By how many SMs a collective's kernel takes meanwhile."""
        self.pieces: dict[Any, Any] = machine.memo.setdefault("pieces", {})
        """Priced pieces of models found so far on the machine."""
        for prices in (self._sent_prices, *self._kernel_prices.values()):
            if len(prices) > _MOST_PRICES:
                prices.clear()
        if len(self.pieces) > _MOST_PIECES:
            self.pieces.clear()

    @property
    def is_adjusted(self) -> bool:
        """Whether prices are changed by a function."""
        return self._adjust is not None

    def adjusted(self, how: Adjust) -> Prices:
        """Return the same prices, each changed by a function: what if a kind took longer.

        It is applied to what is kept, so that nothing adjusted is kept; seconds may become arrays.
        """
        other = copy(self)
        other._adjust = how
        return other

    def of(self, operations: Sequence[Operation], sms_taken: int = 0) -> list[Any]:
        """Return the seconds of each operation, happening once.

        Args:
            operations: What to price.
            sms_taken: SMs that a collective's kernel holds meanwhile.
        """
        prices = self.priced(operations, sms_taken)
        return [each.seconds if isinstance(each, CollectivePrice) else each for each in prices]

    def priced(self, operations: Sequence[Operation], sms_taken: int = 0) -> list[Any]:
        """Return the price of each operation: seconds, of a collective a `CollectivePrice`."""
        taken = self._taken(sms_taken)
        if self.arrays:
            return self._changed(operations, [self._on_grid(op, taken) for op in operations])
        return self._plain({taken: operations})[0]

    def priced_beside(
        self, operations: Sequence[Operation], gemms: Sequence[Gemm], sms_taken: int
    ) -> tuple[list[Any], list[Any]]:
        """Return the price of each operation, and the seconds of GEMMs beside `sms_taken` SMs.

        Both are what `priced` and `of` return; kernels price all GEMMs as one vector.
        """
        taken = self._taken(sms_taken)
        if self.arrays or not gemms or not taken:
            return self.priced(operations), self.of(gemms, sms_taken) if gemms else []
        priced, beside = self._plain({0: operations, taken: gemms})
        return priced, beside

    def _taken(self, sms: int) -> int:
        """Return the SMs that a collective takes: none on a torus, where engines move its data."""
        return 0 if self.machine.cluster.tiers[-1].kind == "torus" else sms

    @property
    def lost_beside_gathers(self) -> float:
        """Of its rate, what compute loses while sharded weights are gathered beside it."""
        on_torus = self.machine.cluster.tiers[-1].kind == "torus"  # engines move the data there
        return 0.0 if on_torus else tuner_table("gemm")["gathers"]["lost_share"]

    def _changed(self, operations: Sequence[Operation], prices: list[Any]) -> list[Any]:
        """Return prices as the function changes them, if there is one."""
        how = self._adjust
        if how is None:
            return prices
        return [
            price._replace(seconds=how(op, price.seconds))
            if isinstance(price, CollectivePrice)
            else how(op, price)
            for op, price in zip(operations, prices, strict=True)
        ]

    def _key(self, op: Operation) -> Key:
        """Return what the price of an operation depends on: all but name, count and taken SMs."""
        key = _PRICED_BY[type(op)](op)
        return (*key, self.strides[op.group]) if type(op) is Collective else key

    def _plain(self, asked: Mapping[int, Sequence[Operation]]) -> list[list[Any]]:
        """Return the prices of operations of plain numbers; each found once, and GEMMs together.

        Args:
            asked: Operations, by how many SMs are taken beside them.
        """
        sent = self._sent_prices
        found: list[list[Any]] = []
        gemms: dict[str, dict[tuple[int, Key], Gemm]] = {}
        late: list[tuple[list[Any], int, dict[Key, Any], Key]] = []
        for taken, operations in asked.items():
            kernels = self._kernel_prices.setdefault(taken, {})
            prices: list[Any] = []
            for op in operations:
                if type(op) is Elementwise and op.converts is None:  # computed sooner than found
                    prices.append(self._elementwise(op))
                    continue
                key = _PRICED_BY[type(op)](op)
                if type(op) is Collective:
                    key = (*key, self.strides[op.group])
                    price = sent.get(key)
                    if price is None:
                        price = sent[key] = self._collective_price(self._placed(op))
                else:
                    price = kernels.get(key)
                    if price is None and type(op) is Gemm and op.fullest is None:
                        gemms.setdefault(op.dtype, {})[taken, key] = op
                        late.append((prices, len(prices), kernels, key))
                    elif price is None:
                        price = kernels[key] = self.alone(op, taken)
                prices.append(price)
            found.append(prices)
        for dtype, new in gemms.items():
            self._keep_gemms(dtype, new)
        for prices, place, known, key in late:
            prices[place] = known[key]
        return list(map(self._changed, asked.values(), found))

    def _keep_gemms(self, dtype: str, new: Mapping[tuple[int, Key], Gemm]) -> None:
        """Price GEMMs of one number format as one vector: all sizes, beside all numbers of SMs."""
        kept = self._kernel_prices
        if len(new) < _FEW_GEMMS and "numpy" not in sys.modules:
            for (taken, key), op in new.items():
                kept[taken][key] = self.alone(op, taken)
            return
        import numpy as np

        keys = list(dict.fromkeys(key for _, key in new))
        all_taken = list(dict.fromkeys(taken for taken, _ in new))
        m, n, k, batch = np.array([key[_SIZES] for key in keys], dtype=float).T
        sms = np.array(all_taken, dtype=float).reshape(-1, 1)
        seconds = np.asarray(self._gemms(dtype, m, n, k, batch, sms))
        for taken, row in zip(all_taken, seconds.tolist(), strict=True):
            kept[taken].update(zip(keys, row, strict=True))

    def _on_grid(self, op: Operation, sms_taken: int = 0) -> Any:
        """Return the price of an operation on arrays, kept for grids that share it."""
        key = _contents((*self._key(op), sms_taken))
        if isinstance(op, Collective):
            op = self._placed(op)
        if key is None:
            return self.alone(op, sms_taken)
        kept = self.machine.memo if isinstance(op, Collective) else self.machine.kernels.memo
        grids = kept.setdefault("grids", {})
        if key not in grids:
            small, back = distinct(op)
            price = self.alone(small, sms_taken)
            if back is not None and isinstance(price, CollectivePrice):
                price = CollectivePrice(*(each[back] if is_array(each) else each for each in price))
            elif back is not None:
                price = price[back]
            arrays = price if isinstance(price, CollectivePrice) else (price,)
            size = kept.get("grid bytes", 0)
            size += sum(getattr(each, "nbytes", 0) for each in arrays)
            if size > _MOST_GRID_BYTES:
                grids.clear()
                size = 0
            kept["grid bytes"] = size
            grids[key] = price
        return grids[key]

    def alone(self, op: Operation, sms_taken: int = 0) -> Any:
        """Return the price of one operation, a collective placed; computed anew."""
        if isinstance(op, Gemm):
            return self._gemm(op, sms_taken)
        if isinstance(op, ExpertKernels):
            return self.sustained(op, self._least(op) * self._spread_wider(sms_taken))
        if isinstance(op, Elementwise):
            return self._elementwise(op)
        if isinstance(op, AttentionCore | LatentCore | StateKernel):
            mixing_s = self._attention(op) if isinstance(op, AttentionCore) else self._least(op)
            alone_s = self.sustained(op, mixing_s)
            # Decoding waits for the memory, whatever SMs there are.
            return alone_s * (1.0 if op.decode else self._spread_wider(sms_taken))
        return self._collective_price(op)

    def sustained(self, op: Kernel, seconds: Any) -> Any:
        """Return the seconds of a kernel in a run that lasts, from those at the boost clock.

        GEMMs reach what the board's power feeds, attention runs at the clock that they leave, and
        others have little arithmetic.
        """
        kernels = self.machine.kernels
        if isinstance(op, AttentionCore) and not op.decode:
            return in_steps_s(kernels, attention_section(op), seconds)
        if not isinstance(op, Gemm | ExpertKernels):
            return seconds
        flops = op.flops / op.count
        return sustained_time_s(kernels, self.format_of(op), flops, seconds)

    def format_of(self, op: Gemm | ExpertKernels) -> str:
        """Return the number format that a kernel multiplies on the machine's device."""
        return self.expert_dtype(op) if isinstance(op, ExpertKernels) else op.dtype

    def _least(self, op: _Fused) -> Any:
        """Return the seconds of a kernel: no more than of any that it should not be slower than."""
        return reduce(smallest, (each._by_constants(alike) for each, alike in self._footing(op)))

    def _by_constants(self, op: _Fused) -> Any:
        if isinstance(op, ExpertKernels):
            return self._experts(op)
        return self._latent(op) if isinstance(op, LatentCore) else self._state(op)

    def _footing(self, op: _Fused) -> list[tuple[Prices, _Fused]]:
        """Return the prices by which an operation is priced, the least of which holds.

        By its own constants and by those of lesser devices of the architecture; GEMMs of experts
        by those of wider formats, too. A format that was measured on other shapes, or inherited
        from elsewhere, could be slower than a wider one with more to read and to multiply.
        """
        alike: list[_Fused] = [op]
        if isinstance(op, ExpertKernels) and op.part == "gemms":
            wider = self.machine.cluster.device.wider_products(op.dtype)
            alike += (op._replace(dtype=each) for each in wider)
        return [(prices, each) for each in alike for prices in self._on_lesser_devices(op)]

    def _on_lesser_devices(self, op: _Fused) -> list[Prices]:
        """Return these prices, and those by constants of lesser devices of the architecture."""
        table: KernelTable = "linear_attention"
        if not isinstance(op, StateKernel):
            table = "experts" if isinstance(op, ExpertKernels) else "mla"
        known: dict[str, list[Prices]] = self.machine.kernels.memo.setdefault("footing", {})
        if table not in known:
            known[table] = []
            for constants in self.machine.kernels.of_lesser_devices(table):
                other = copy(self)
                other.machine = replace(self.machine, kernels=constants)
                known[table].append(other)
        return [self, *known[table]]

    def footed(self, op: Kernel) -> tuple[Prices, Kernel]:
        """Return the prices, and the format of its weights, that an operation is priced by."""
        if not isinstance(op, ExpertKernels | LatentCore | StateKernel):
            return self, op
        return min(self._footing(op), key=lambda each: float(each[0]._by_constants(each[1])))

    def _gemm(self, op: Gemm, sms_taken: int) -> Any:
        if op.fullest is not None:
            return self.sustained(op, self._grouped_gemm(op, sms_taken))
        return self._gemms(op.dtype, op.m, op.n, op.k, op.batch, sms_taken)

    def _elementwise(self, op: Elementwise) -> Any:
        if op.converts is not None and not op.converts.both_orders:
            return self._conversion(op.converts)
        share = 1.0 if op.converts is None else tuner_table("gemm")["cast"]["memory_share"]
        moved = op.bytes_moved / share
        return elementwise_time_s(self.machine.kernels, moved, kernels=op.kernels)

    def _conversion(self, of: Conversion) -> Any:
        """Return the seconds of converting a GEMM's input, beyond those of what it is fused to."""
        kernels, sizes = self.machine.kernels, (of.rows, of.columns)
        if not kernels.device.multiplied(of.dtype).narrow_inputs:
            return 0.0 * of.rows
        if not of.fused:
            return row_kernel_time_s(kernels, "quantize", *sizes)
        both = row_kernel_time_s(kernels, "norm_quantize", *sizes)
        return both - row_kernel_time_s(kernels, "norm", *sizes)

    def _gemms(self, dtype: str, m: Any, n: Any, k: Any, batch: Any, sms_taken: Any) -> Any:
        """Return the seconds of GEMMs, beside a collective's kernel if that holds SMs."""
        kernels = self.machine.kernels
        memory_taken = copy_bytes_per_s(kernels, sms_taken) if anywhere(sms_taken > 0) else 0.0
        burst_s = gemm_time_s(
            kernels, dtype, m, n, k, batch=batch, sms_taken=sms_taken, memory_taken=memory_taken
        )
        return sustained_time_s(kernels, dtype, 2.0 * m * n * k * batch, burst_s)

    def _grouped_gemm(self, op: Gemm, sms_taken: int) -> Any:
        """Return the seconds of a grouped GEMM, with the SMs that another kernel leaves it."""
        alone_s = grouped_gemm_time_s(
            self.machine.kernels,
            op.dtype,
            op.m * op.batch,
            op.n,
            op.k,
            groups=op.batch,
            largest_group=op.fullest,
            warm=False,
        )
        return alone_s * self._spread_wider(sms_taken)

    def _spread_wider(self, sms_taken: int) -> float:
        """Return how much longer a kernel takes on the SMs that another one leaves."""
        sms = self.machine.cluster.device.sms
        return float(sms / max(sms - sms_taken, 1))

    def _experts(self, op: ExpertKernels) -> Any:
        """Return the seconds of an engine's expert kernels, whose weights come from memory."""
        if is_array(op.spread) and anywhere(op.spread) and not op.spread.all():
            one, other = (self._experts(op._replace(spread=each)) for each in (True, False))
            return choose(op.spread, one, other)
        return experts_time_s(
            self.machine.kernels,
            self.expert_kernel(op),
            self.expert_dtype(op),
            op.tokens,
            op.hidden,
            op.width,
            experts=op.experts,
            top_k=op.top_k,
            pairs=op.rows,
            active=op.active,
            busiest=op.fullest,
            gated=op.gated,
            ep=op.ep,
            library=op.engine,
            warm=False,
            part=op.part,
        )

    def exchange_sms(self, op: Collective) -> int:
        """Return the SMs that an exchange of tokens holds while another batch computes.

        Low-latency kernels leave the network to the ports and hold none meanwhile (DeepEP's hooks).
        """
        if op.routed is None or op.routed.low_latency:
            return 0
        kernel = dispatch_kernel(op.routed.library, low_latency=False)
        return kernel.sms or 0

    def expert_kernel(self, op: ExpertKernels) -> str:
        """Return the name of the kernel that an engine runs its experts by."""
        device, spread = self.machine.cluster.device, anywhere(op.spread)
        dtype, latent = self.expert_dtype(op), op.beside_latent
        return default_kernel(op.engine, device, dtype, spread=spread, beside_latent=latent)

    def expert_dtype(self, op: ExpertKernels) -> str:
        """Return the format of an engine's expert kernels on the machine's device."""
        return format_on(op.dtype, self.machine.cluster.device.peak_flop_per_s)

    def state_kernel(self, op: StateKernel) -> str:
        """Return the name of the kernel that an engine runs a part of a layer with a state by."""
        from shardcost.machine.linear_attention import default_kernel

        part = "update" if op.part == "conv" and op.decode else op.part
        return default_kernel(op.engine, self.machine.cluster.device, op.rule, part)

    def _state(self, op: StateKernel) -> Any:
        """Return the seconds of a kernel of a layer with a state, which comes from memory."""
        from shardcost.kernels.linear_attention import linear_attention_time_s

        return linear_attention_time_s(
            self.machine.kernels,
            self.state_kernel(op),
            op.rule,
            op.part,
            op.phase,
            state_sizes(op),
            library=op.engine,
            warm=False,
            backward=op.backward,
        )

    def section(self, op: Kernel) -> tuple[KernelTable, Section]:
        """Return the constants that a kernel is priced by: their table, and the section."""
        kernels = self.machine.kernels
        if isinstance(op, Gemm):
            if op.fullest is not None:
                return "experts", experts_section(kernels, GROUPED, op.dtype)
            return "gemm", kernels.gemm(op.dtype)
        if isinstance(op, ExpertKernels):
            name = self.expert_kernel(op)
            return "experts", experts_section(kernels, name, self.expert_dtype(op), op.engine)
        if isinstance(op, Elementwise):
            name = "elementwise"
            if op.converts is not None and not op.converts.both_orders:
                name = "rows_norm_quantize" if op.converts.fused else "rows_quantize"
            return "elementwise", kernels.section("elementwise", name)
        return self._mixing_section(op)

    def _mixing_section(
        self, op: AttentionCore | LatentCore | StateKernel
    ) -> tuple[KernelTable, Section]:
        kernels = self.machine.kernels
        if isinstance(op, LatentCore):
            from shardcost.machine.mla import attention_sections, mla_section

            of = (self.latent_kernel(op), op.engine, _phase(op), op.form, op.cache_dtype)
            return "mla", mla_section(kernels, attention_sections(*of, kernels.like))
        if isinstance(op, AttentionCore):
            phase = "decode" if op.decode else "backward" if op.backward else "prefill"
            return "attention", kernels.section("attention", phase)
        from shardcost.machine.linear_attention import kind_of, linear_attention_section

        kind = kind_of(self.state_kernel(op), op.part, op.engine)
        section = linear_attention_section(kernels, kind, op.rule, op.part, op.phase)
        return "linear_attention", section

    def latent_kernel(self, op: LatentCore) -> str:
        """Return the name of the kernel that an engine runs latent attention by."""
        from shardcost.machine.mla import default_kernel

        return default_kernel(op.engine, self.machine.cluster.device, _phase(op), op.cache_dtype)

    def _latent(self, op: LatentCore) -> Any:
        """Return the seconds of an engine's latent attention, whose cache comes from memory."""
        from shardcost.kernels.mla import LatentShape, attention_time_s

        return attention_time_s(
            self.machine.kernels,
            self.latent_kernel(op),
            _phase(op),
            op.form,
            op.batch,
            op.query_tokens,
            op.context_tokens,
            op.heads,
            dtype=op.dtype,
            kv_dtype=op.cache_dtype,
            library=op.engine,
            shape=LatentShape(kv_lora=op.kv_lora, nope=op.nope, rope=op.rope, v_dim=op.v_dim),
            causal=op.causal,
            cached_tokens=op.cached_tokens,
            warm=False,
        )

    def _attention(self, op: AttentionCore) -> Any:
        if op.document_tokens is not None:
            # Documents much shorter than a tile are cheaper masked inside the whole sequence.
            whole = op._replace(document_tokens=None)
            return smallest(self._attention(op.by_document()), self._attention(whole))
        # Values that are part of the keys (latent attention) are not read by themselves.
        apart = is_array(op.value_dim) or op.value_dim != op.head_dim
        shared: dict[str, Any] = {
            "window_tokens": op.window_tokens,
            "value_dim": op.value_dim if apart else None,
        }
        heads = (op.heads, op.kv_heads, op.head_dim)
        kernels = self.machine.kernels
        if op.decode:
            return decode_time_s(
                kernels,
                op.dtype,
                op.batch,
                op.context_tokens,
                *heads,
                new_tokens=op.query_tokens,
                by_query_head=op.by_query_head,
                **shared,
            )
        return prefill_time_s(
            kernels,
            op.dtype,
            op.batch,
            op.query_tokens,
            op.context_tokens,
            *heads,
            causal=op.causal,
            backward=op.backward,
            **shared,
        )

    def library_of(self, op: Collective) -> str:
        """Return the library that runs a collective: the engine's for the tensor group."""
        if op.group == "tp":
            return self.machine.tensor_library
        return self.machine.default_library

    def is_multimem(self, op: Collective) -> bool:
        """Return whether an all-reduce runs by multimem instructions, not by a library."""
        return op.collective == "all_reduce" and self.library_of(op) == MULTIMEM

    def _placed(self, op: Collective) -> Collective:
        """Return a collective with its stride in devices, not in ranks of the group."""
        return op._replace(stride=op.stride * self.strides[op.group])

    def _collective_price(self, op: Collective) -> CollectivePrice:
        """Return the price of a placed collective."""
        if op.group == "offload":
            return CollectivePrice(self._host_s(op), 0.0, 0.0)
        if not is_array(op.ranks) and op.ranks == 1:
            return CollectivePrice(0.0, 0.0, 0.0)
        if self.is_multimem(op):
            seconds = multimem_all_reduce_s(self.machine, op.ranks, op.size_bytes)
            return CollectivePrice(seconds, 1.0 * op.size_bytes, 0.0)
        result = self._result(op)
        seconds = result.time_s if self.arrays else float(result.time_s)
        return CollectivePrice(seconds, *result.sent_bytes)

    def _host_s(self, op: Collective) -> Any:
        """Return the seconds of a copy to or from the host, or of an update of weights there."""
        cluster = self.machine.cluster
        if op.collective == "host_update":
            return host_update_s(op.size_bytes, cluster.gpus_per_node, cluster.host_update_per_s)
        rate = cluster.device.host_link_bytes_per_s
        if rate is None:
            raise BadValueError("host link", None, f"stated by {cluster.name} to offload to it")
        return host_copy_s(op.size_bytes, rate)

    def sits_unevenly(self, op: Collective) -> Any:
        """Return where a group fills its nodes unevenly."""
        return sits_unevenly(self.machine.cluster, op.ranks, self._placed(op).stride)

    def collective(self, op: Collective) -> CollectiveTime | DispatchTime:
        """Return how a library runs a collective, or a dispatch or combine."""
        return self._result(self._placed(op))

    def _result(self, op: Collective) -> CollectiveTime | DispatchTime:
        """Return what is predicted for a placed collective."""
        if op.routed is not None:
            from shardcost.collectives.dispatch import dispatch_time  # dense models have none

            return dispatch_time(
                op.collective,
                self.machine,
                op.ranks,
                *op.routed[:4],
                library=op.routed.library,
                low_latency=op.routed.low_latency,
                dtype=op.routed.dtype,
                node_limit=self._node_limit(op.routed, op.ranks, op.stride),
                stride=op.stride,
            )
        library = self.library_of(op)
        if library == MULTIMEM:
            library = self.machine.default_library
        return collective_time(
            op.collective, op.size_bytes, self.machine, op.ranks, stride=op.stride, library=library
        )

    def _node_limit(self, routed: Routed, ranks: Any, stride: Any) -> Any:
        """Return the nodes that a token reaches at most: those that its groups of experts are on.

        A group is on one node, or on several where there are more nodes than groups.
        """
        if routed.groups is None or routed.top_groups is None:
            return None
        domains = group_on(self.machine, ranks, stride=stride).domains
        limit = ceil(routed.top_groups * largest(1, domains / routed.groups))
        return limit.astype(int) if is_array(limit) else int(limit)

    def notes(self, op: Collective) -> tuple[str, ...]:
        """Return where the price of a collective goes beyond what was measured."""
        if self.arrays:
            return self.collective(op).notes
        key = ("notes", *self._key(op))
        if key not in self._sent_prices:
            self._sent_prices[key] = self.collective(op).notes
        said: tuple[str, ...] = self._sent_prices[key]
        return said

    def sent(self, op: Collective) -> CollectivePrice:
        """Return the price of a collective, with the bytes that a rank sends in one call."""
        price: CollectivePrice
        if self.arrays:
            price = self._on_grid(op)
            return price
        self._plain({0: [op]})
        price = self._sent_prices[self._key(op)]
        return price


_WITHIN: Final[Mapping[type, str]] = {Collective: "routed", Elementwise: "converts"}
"""Fields that hold sizes of an operation in a tuple of their own."""


def distinct(op: Operation) -> tuple[Operation, Any]:
    """Return an operation with each of its sizes once, and which of them each cell has.

    On a grid many cells share their sizes: a GEMM knows nothing of pipeline stages. None instead
    of the cells where that would not pay.
    """
    import numpy as np

    within = _WITHIN.get(type(op), "")
    inner = getattr(op, within) if within else None
    fields = {**op._asdict(), **(inner._asdict() if inner else {})}
    arrays = {name: each for name, each in fields.items() if isinstance(each, np.ndarray)}
    arrays.pop("count", None)
    shape = np.broadcast_shapes(*(each.shape for each in arrays.values()))
    if prod(shape) < _FEW_CELLS:
        return op, None
    columns = [np.broadcast_to(each, shape).ravel() for each in arrays.values()]
    first, back = different_rows(columns)
    sizes: dict[str, Any] = {
        name: column[first] for name, column in zip(arrays, columns, strict=True)
    }
    if inner is not None:
        inside = {name: sizes.pop(name) for name in inner._fields if name in sizes}
        sizes[within] = inner._replace(**inside)
    return op._replace(**sizes), back.reshape(shape)


def forget_grids(machine: Machine) -> None:
    """Drop the prices on arrays that are kept with a machine: no other grid will share them."""
    for kept in (machine.memo, machine.kernels.memo):
        kept.pop("grids", None)
        kept.pop("grid bytes", None)


def different_rows(columns: Sequence[Any]) -> tuple[Any, Any]:
    """Return a place of each different row of some columns, and which of them each row is like.

    Rows are mixed to one number each and these are sorted, at a third of the cost of `np.unique`,
    which sorts stably to find the first places.
    """
    import numpy as np

    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(float).view(np.uint64)) * np.uint64(_MIXER)
        mixed ^= mixed >> np.uint64(_HALF)
    order = np.argsort(mixed)
    ordered = mixed[order]
    starts = np.ones(len(mixed), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=starts[1:])
    first, back = order[starts], np.empty(len(mixed), dtype=np.intp)
    back[order] = np.cumsum(starts) - 1
    if any((column[first][back] != column).any() for column in columns):
        # Two different rows were mixed to the same number: take all rows for different.
        first = back = np.arange(len(mixed))
    return first, back


def _contents(key: Key) -> Key | None:
    """Return a key with arrays replaced by a digest of their contents; None if none can be made."""
    import numpy as np

    parts: list[Any] = []
    for each in key:
        if isinstance(each, tuple):  # sizes of a conversion, or of an exchange of tokens
            inner = _contents(each)
            if inner is None:
                return None
            parts.append(inner)
        elif isinstance(each, np.ndarray):
            # 64 bits: of the at most some ten thousand arrays that are kept, no two have the same.
            # A cryptographic digest would take a third of a search.
            parts += [each.shape, each.dtype.str, hash(each.tobytes())]
        elif is_array(each):
            return None
        else:
            parts.append(each)
    return tuple(parts)


def _phase(op: LatentCore) -> str:
    return "decode" if op.decode else "prefill"
