"""How long one pass over a piece of the model takes on one rank, by kind of work and by group.

Communication counts twice: all of it, and the part that nothing hides. Tensor-parallel collectives
hide as the software does it: behind a product that does not wait for them, or chunk by chunk behind
the product that they feed (Wang et al. 2023, ASPLOS). A ring of key-value blocks hides behind the
attention of the block at hand. What hides is not free: the collective's kernel takes compute units
from the product, whose tiles then need more waves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardcost.arrays import choose, largest, smallest
from shardcost.checks import is_array
from shardcost.program.operations import AttentionCore, Collective, Elementwise, Gemm, Operation
from shardcost.schedule.overlap import beside, chunked, ring_attention
from shardcost.software import Software

KINDS: Final = ("gemm", "attention", "elementwise")
"""Kinds of compute."""
_INSTANT_S: Final = 1e-30
"""Keeps shares of passes without any work finite."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Seconds of one pass; communication by group."""

    compute_s: Mapping[str, Any]
    """By kind."""
    comm_s: Mapping[str, Any] = field(default_factory=dict)
    exposed_s: Mapping[str, Any] = field(default_factory=dict)
    kernels: Any = 0
    hops: Any = 0
    """Ranks beyond the first, of all collectives."""
    flops: Any = 0.0

    @property
    def device_s(self) -> Any:
        """Seconds until the device is done: compute, and communication that nothing hides."""
        return sum(self.compute_s.values()) + sum(self.exposed_s.values())

    def wall_s(self, software: Software) -> Any:
        """Return the seconds that pass: the host's, where it starts kernels too slowly.

        If the seconds of host and device over a few kernels scatter about their means h and d as
        Fréchet's extremes of shape 1/s do, the slower of the two takes (h^(1/s) + d^(1/s))^s on
        average: nearly the larger where they are far apart, 2^s times either where they are equal.
        """
        if software.launch == "graph":
            return self.device_s
        host = self.kernels * software.host_per_kernel_s
        if software.host_per_hop_s is not None:
            host = host + self.hops * software.host_per_hop_s
        slower = largest(self.device_s, host)
        if software.host_scatter is None:
            return slower
        share = smallest(self.device_s, host) / largest(slower, _INSTANT_S)
        return slower * (1 + share ** (1 / software.host_scatter)) ** software.host_scatter

    def times(self, count: Any) -> Busy:
        """Return the same pass so many times."""
        compute, comm, exposed = (
            {name: count * value for name, value in each.items()} for each in self.tables
        )
        counts = (count * each for each in (self.kernels, self.hops, self.flops))
        return Busy(compute, comm, exposed, *counts)

    def __add__(self, other: Busy) -> Busy:
        return Busy(
            _added(self.compute_s, other.compute_s),
            _added(self.comm_s, other.comm_s),
            _added(self.exposed_s, other.exposed_s),
            self.kernels + other.kernels,
            self.hops + other.hops,
            self.flops + other.flops,
        )

    @property
    def tables(self) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
        """Seconds of compute, of communication, and of what is exposed."""
        return self.compute_s, self.comm_s, self.exposed_s


IDLE: Final = Busy(dict.fromkeys(KINDS, 0.0))


def chosen(condition: Any, one: Busy, other: Busy) -> Busy:
    """Return the first where a condition holds, else the second."""
    if not is_array(condition):
        return one if condition else other
    compute, comm, exposed = (
        {name: choose(condition, a.get(name, 0.0), b.get(name, 0.0)) for name in {**a, **b}}
        for a, b in zip(one.tables, other.tables, strict=True)
    )
    return Busy(
        compute,
        comm,
        exposed,
        choose(condition, one.kernels, other.kernels),
        choose(condition, one.hops, other.hops),
        choose(condition, one.flops, other.flops),
    )


def _added(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.get(name, 0.0) + two.get(name, 0.0) for name in {**one, **two}}


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds of a layer's products by name, by themselves and with a collective beside them."""

    alone_s: Mapping[str, Any]
    slowed_s: Mapping[str, Any]


NOTHING_BESIDE: Final = Beside({}, {})


def busy(
    operations: Sequence[Operation], seconds: Sequence[Any], software: Software, products: Beside
) -> Busy:
    """Return what operations that follow each other amount to."""
    compute: dict[str, Any] = dict.fromkeys(KINDS, 0.0)
    comm: dict[str, Any] = {}
    exposed: dict[str, Any] = {}
    kernels: Any = 0
    hops: Any = 0
    flops: Any = 0.0
    for op, each_s in zip(operations, seconds, strict=True):
        if isinstance(op, Collective):
            comm[op.group] = comm.get(op.group, 0.0) + op.count * each_s
            exposed[op.group] = exposed.get(op.group, 0.0) + _exposed(
                op, each_s, software, products
            )
            kernels = kernels + op.count * (op.ranks > 1)  # nobody is talked to alone
            hops = hops + op.count * (op.ranks - 1)
            continue
        kind = _KIND[type(op)]
        compute[kind] = compute[kind] + op.count * each_s * software.slowdown
        kernels = kernels + op.count * (op.kernels if isinstance(op, Elementwise) else 1)
        flops = flops + (0.0 if isinstance(op, Elementwise) else op.flops)
    return Busy(compute, comm, exposed, kernels, hops, flops)


_KIND: Final[Mapping[type, str]] = {
    Gemm: "gemm",
    AttentionCore: "attention",
    Elementwise: "elementwise",
}


def _exposed(op: Collective, each_s: Any, software: Software, seconds: Beside) -> Any:
    """Return how much longer a pass takes for a collective: never more than it does alone."""
    whole = op.count * each_s
    if op.collective == "send_recv":
        steps = op.count + 1
        attention = seconds.alone_s.get(op.beside[0], 0.0)
        return ring_attention(attention / steps, each_s, steps) - attention
    if software.tp_overlap == "none" or op.group != "tp" or not seconds.slowed_s:
        return whole
    if op.beside:
        alone = sum(seconds.alone_s[name] for name in op.beside)
        slowed = sum(seconds.slowed_s[name] for name in op.beside)
        return smallest(whole, beside(alone, whole, slowed) - alone)
    if software.tp_overlap == "chunked" and op.feeds in seconds.slowed_s:
        chunks = software.overlap_chunks
        alone, slowed = (table[op.feeds] for table in (seconds.alone_s, seconds.slowed_s))
        together = chunked(alone / chunks, whole / chunks, chunks, slowed / chunks)
        return smallest(whole, together - alone)
    return whole
