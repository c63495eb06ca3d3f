"""What every algorithm costs, in closed form: steps, bytes and time, on numbers and on arrays.

The forms count exactly what the schedules of `collectives.exact.algorithms` do when the buffer
divides evenly among their chunks; the tests execute the schedules and compare.

**The model.** A step starts when the one before it has ended. It costs `alpha_s`, the latency from
rank to rank (half of it between a rank and a switch that reduces, which is half the way), and then
the bytes of whoever is busiest in it. There are two wirings:

- ``"switch"``: each rank has one port, full duplex, that it shares among all whom it talks to at
  the same time. The busiest is the port that sends, or that receives, most. A switch that reduces
  or replicates has a port for every rank, so it is never the busiest.
- ``"mesh"``: each pair of ranks has a link of its own in each direction, and the busiest is the
  link that carries most.

Either way ``time = steps * alpha_s + bytes / bytes_per_s``, where the bytes are those of the
busiest, added up over the steps (Hockney, 1994, "The communication challenge for MPP: Intel Paragon
and Meiko CS-2"). Where a step of a real system is more than one hop, or links are shared, simulate
the schedule instead.

**Notation.** n ranks; M = `size_bytes`, each rank's buffer (of all_gather and reduce_scatter: the
whole, of which a rank owns M/n; of all_to_all: all that a rank has for the others and itself);
k = `chunks`, the pieces of a pipeline. Forms return shares of M, and hold for n > 1; one rank costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from shardcost.arrays import as_array, cell_by_cell
from shardcost.checks import (
    Count,
    Quantity,
    anywhere,
    count_or_array,
    is_array,
    positive_or_array,
)
from shardcost.collectives.exact.algorithms import (
    algorithm_named,
    algorithms_of,
    check_options,
    most_square,
)
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError

Wiring: TypeAlias = Literal["switch", "mesh"]


class Cost(NamedTuple):
    """What a collective costs. Fields are numbers, or arrays where an argument was one."""

    steps: Count
    sent_bytes: Quantity
    """By the rank that sends most."""
    link_bytes: Quantity
    """From one rank, or switch, to another, on the link that carries most."""
    port_bytes: Quantity
    """By the busiest port of each step, added up: what takes time behind a switch."""
    wire_bytes: Quantity
    """By the busiest link of each step, added up: what takes time in a full mesh."""
    switch_steps: Count = 0
    """Those of the steps that are between ranks and a switch."""

    def latency_s(self, alpha_s: Quantity) -> Quantity:
        """Return the part of the time that does not depend on the size."""
        latencies = self.steps - self.switch_steps / 2
        latency: Quantity = latencies * _at_least_zero("alpha_s", alpha_s)
        return latency

    def bandwidth_s(self, bytes_per_s: Quantity, wiring: Wiring = "switch") -> Quantity:
        """Return the part of the time that is proportional to the size."""
        bandwidth: Quantity = self._busiest(wiring) / positive_or_array("bytes_per_s", bytes_per_s)
        return bandwidth

    def time_s(
        self, alpha_s: Quantity, bytes_per_s: Quantity, wiring: Wiring = "switch"
    ) -> Quantity:
        """Return the time, latency and bandwidth together."""
        return self.latency_s(alpha_s) + self.bandwidth_s(bytes_per_s, wiring)

    def _busiest(self, wiring: Wiring) -> Quantity:
        if wiring not in ("switch", "mesh"):
            raise UnknownNameError("wiring", wiring, ("switch", "mesh"))
        return self.port_bytes if wiring == "switch" else self.wire_bytes


class Bound(NamedTuple):
    """What no algorithm can do without."""

    steps: Count
    port_bytes: Quantity
    """Sent, or received, by the rank that sends or receives most."""
    switch_steps: Count = 0
    """Those of the steps that are between ranks and a switch."""

    def time_s(self, alpha_s: Quantity, bytes_per_s: Quantity) -> Quantity:
        """Return the least time behind a switch."""
        least = self.port_bytes
        bare = Cost(self.steps, least, least, least, least, self.switch_steps)
        return bare.time_s(alpha_s, bytes_per_s)


def cost(
    collective: str,
    algorithm: str,
    ranks: Count,
    size_bytes: Quantity,
    *,
    chunks: Count = 1,
    shape: tuple[Count, Count] | None = None,
) -> Cost:
    """Return the steps and bytes of a collective; arguments as for `algorithms.schedule`.

    Args:
        collective: One of `algorithms.COLLECTIVES`.
        algorithm: One of `algorithms.algorithms_of(collective)`.
        ranks: How many take part; a number or an array.
        size_bytes: Each rank's buffer; a number or an array.
        chunks: Pieces in a pipeline; a number or an array.
        shape: (rows, columns) or (nodes, ranks per node), numbers or arrays.

    >>> found = cost("all_reduce", "one_shot", 4, 1000)
    >>> found.steps, found.sent_bytes, found.link_bytes
    (1, 3000.0, 1000.0)
    """
    takes = algorithm_named(collective, algorithm).takes
    n, k = _counts("ranks", ranks), _counts("chunks", chunks)
    size = positive_or_array("size_bytes", size_bytes)
    check_options(collective, algorithm, k, shape)
    arguments: tuple[Any, ...] = (n, k) if takes == "chunks" else (n,)
    if takes == "shape":
        arguments = _shape(shape, n)
    return FORMS[collective, algorithm](*arguments).times(n > 1).of(size)


def time_s(
    collective: str,
    algorithm: str,
    ranks: Count,
    size_bytes: Quantity,
    alpha_s: Quantity,
    bytes_per_s: Quantity,
    *,
    chunks: Count = 1,
    shape: tuple[Count, Count] | None = None,
    wiring: Wiring = "switch",
) -> Quantity:
    """Return the time of a collective where each step costs `alpha_s` and its busiest bytes.

    >>> time_s("all_reduce", "ring", 4, 1_000_000, alpha_s=1e-6, bytes_per_s=125e9)
    1.8e-05
    """
    found = cost(collective, algorithm, ranks, size_bytes, chunks=chunks, shape=shape)
    return found.time_s(alpha_s, bytes_per_s, wiring)


def two_tier_time_s(
    collective: str,
    nodes: Count,
    ranks_per_node: Count,
    size_bytes: Quantity,
    alpha_s: tuple[Quantity, Quantity],
    bytes_per_s: tuple[Quantity, Quantity],
) -> Quantity:
    """Return the time of the hierarchical algorithm; rates are (inside a node, across nodes).

    Each rank has a port inside and another, its rail, across.

    >>> rates = (450e9, 50e9)
    >>> two_tier_time_s("all_reduce", 1, 8, 9_000_000, (1e-6, 5e-6), rates)
    4.9e-05
    """
    if collective not in _LEVEL_FORMS:
        raise UnknownNameError("hierarchical collective", collective, _LEVEL_FORMS)
    rows, columns = _counts("nodes", nodes), _counts("ranks_per_node", ranks_per_node)
    size = positive_or_array("size_bytes", size_bytes)
    alphas, rates = _pair("alpha_s", alpha_s), _pair("bytes_per_s", bytes_per_s)
    tiers = zip(_levels(collective, rows, columns), alphas, rates, strict=True)
    inside, across = (level.of(size).time_s(alpha, rate) for level, alpha, rate in tiers)
    return inside + across


def best_chunks(
    collective: str,
    algorithm: str,
    ranks: Count,
    size_bytes: Quantity,
    alpha_s: Quantity,
    bytes_per_s: Quantity,
    *,
    wiring: Wiring = "switch",
) -> Count:
    """Return into how many pieces a pipeline should cut the buffer; 1 for other algorithms.

    Steps grow as a + b k and bytes fall as c + d/k, so that the time is least at
    k = sqrt(d M / (b alpha B)), to either side of which whole numbers are tried. A pipeline of one
    piece is tried as well, since it does not pay for overlap it does not have.

    >>> best_chunks("broadcast", "chain", 10, 1_000_000, alpha_s=1e-6, bytes_per_s=125e9)
    8
    """
    if algorithm_named(collective, algorithm).takes != "chunks":
        return 1
    alpha = positive_or_array("alpha_s", alpha_s)

    def price(k: Any) -> Cost:
        return cost(collective, algorithm, ranks, size_bytes, chunks=_plain(k))

    def time(k: Any) -> Any:
        return price(k).time_s(alpha, bytes_per_s, wiring)

    # Two points of each line; these are straight from three pieces on, and flat for one rank.
    few, many = price(4), price(8)
    saved = few.bandwidth_s(bytes_per_s, wiring) - many.bandwidth_s(bytes_per_s, wiring)
    added = np.maximum(many.latency_s(alpha) - few.latency_s(alpha), alpha)
    ideal = np.sqrt(8 * np.maximum(saved, 0) / (added / 4))
    below = np.maximum(ideal, 1).astype(np.int64)
    best = np.ones_like(below)
    for k in (below, below + 1):
        best = np.where(time(k) < time(best), k, best)
    found: Count = _plain(best)
    return found


def lower_bound(
    collective: str,
    ranks: Count,
    size_bytes: Quantity,
    *,
    partners: Count = 1,
    in_switch: bool = False,
) -> Bound:
    """Return the least steps and bytes of a collective by any algorithm.

    Steps: what one rank knows reaches at most (p + 1) times as many in every step in which each
    sends to p `partners`, so that all n need ceil(log_{p+1} n); sums are this backwards (Bruck, Ho,
    Kipnis, Upfal, Weathersby, 1997, "Efficient algorithms for all-to-all communications in
    multiport message-passing systems"; for p = 1 Chan, Heimlich, Purkayastha, van de Geijn, 2007,
    "Collective communication: theory, practice, and experience"). Through a switch it is two, up
    and down.

    Bytes: Chan et al., 2007; of all_reduce, 2 (n - 1)/n M, Patarasuk, Yuan, 2009, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations". A switch that reduces saves the
    exchange of sums: everyone sends its buffer and receives the result, M.

    Args:
        collective: One of `algorithms.COLLECTIVES`.
        ranks: How many take part.
        size_bytes: Each rank's buffer.
        partners: To how many others a rank may send, or from how many receive, in one step.
        in_switch: Whether a switch reduces and replicates.

    >>> lower_bound("all_reduce", 5, 1000)
    Bound(steps=3, port_bytes=1600.0, switch_steps=0)
    """
    algorithms_of(collective)  # refuses what is none
    n, ports = _counts("ranks", ranks), _counts("partners", partners)
    size = positive_or_array("size_bytes", size_bytes)
    several = n > 1
    share = _LEAST_SHARES[collective](n)
    if in_switch:
        least = 1.0 if collective == "all_reduce" else share
        return Bound(_plain(2 * several), _plain(several * least) * size, _plain(2 * several))
    steps = 1 if collective == "send_recv" else _ceil_log(n, ports + 1)
    return Bound(_plain(several * steps), _plain(several * share) * size)


_LEAST_SHARES: Final[dict[str, Callable[[Any], Any]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}


class _Shares(NamedTuple):
    """The fields of a `Cost`, as shares of the buffer."""

    steps: Any
    sent: Any
    link: Any
    port: Any
    wire: Any
    switch_steps: Any = 0

    def times(self, count: Any) -> _Shares:
        """Return phases in turn that are alike, such as reduce-scatter and all-gather."""
        return _Shares(*(count * each for each in self))

    def of(self, size_bytes: Any) -> Cost:
        """Return the cost for a buffer of this size."""
        sent, link, port, wire = (_plain(share) * size_bytes for share in self[1:5])
        return Cost(_plain(self.steps), sent, link, port, wire, _plain(self.switch_steps))


# Rings. Patarasuk, Yuan, 2009, "Bandwidth optimal all-reduce algorithms for clusters of
# workstations"


def _ring(n: Any) -> _Shares:
    share = (n - 1) / n
    return _Shares(n - 1, share, share, share, share)


def _bidirectional_ring(n: Any) -> _Shares:
    share = (n - 1) / n
    one_way = np.where(n == 2, share, share / 2)  # between two, both ways round are one link
    return _Shares(n - 1, share, one_way, share, one_way)


# Direct. Pairwise exchange: Thakur, Rabenseifner, Gropp, 2005, "Optimization of collective
# communication operations in MPICH"; the others are one message to everyone at once.


def _direct(n: Any) -> _Shares:
    share = (n - 1) / n
    return _Shares(np.ones_like(n), share, 1 / n, share, 1 / n)


def _pairwise(n: Any) -> _Shares:
    share = (n - 1) / n
    return _Shares(n - 1, share, (n > 1) / n, share, share)


def _one_shot(n: Any) -> _Shares:
    return _Shares(np.ones_like(n), n - 1, 1, n - 1, 1)


def _send_recv(n: Any) -> _Shares:
    return _Shares(np.ones_like(n), 1, 1, 1, 1)


# Recursive. Thakur, Rabenseifner, Gropp, 2005, "Optimization of collective communication operations
# in MPICH". Where n is no power of two, ranks in excess hand over before and are told after.


def _recursive_doubling(n: Any) -> _Shares:
    rounds = _floor_log2(n)
    folds = _is_folded(n)
    steps = rounds + 2 * folds
    return _Shares(steps, rounds + folds, 1, steps, steps)


def _halving_doubling(n: Any) -> _Shares:
    rounds = _floor_log2(n)
    folds = _is_folded(n)
    core = _power_of_two(rounds)
    exchanged = 2 * (core - 1) / core
    serial = exchanged + 2 * folds
    return _Shares(2 * rounds + 2 * folds, exchanged + folds, 1, serial, serial)


def _doubling_all_gather(n: Any) -> _Shares:
    rounds = _floor_log2(n)
    folds = _is_folded(n)
    excess = n - _power_of_two(rounds)
    # In round i the busiest sends 2^i blocks and those of min(2^i, excess) guests. The second adds
    # up to a power of two, less one, while 2^i <= excess, and to the excess in each round after.
    full_rounds = _floor_log2(np.maximum(excess, 1)) + 1
    of_guests = folds * (_power_of_two(full_rounds) - 1 + (rounds - full_rounds) * excess)
    exchanged = (_power_of_two(rounds) - 1 + of_guests) / n
    told = folds * (n - 1) / n
    serial = folds / n + exchanged + told
    return _Shares(rounds + 2 * folds, exchanged + told, np.where(folds, told, 0.5), serial, serial)


def _halving_reduce_scatter(n: Any) -> _Shares:
    # Backwards, everyone sends what it received: all blocks but its own.
    return _doubling_all_gather(n)._replace(sent=(n - 1) / n)


# Bruck, Ho, Kipnis, Upfal, Weathersby, 1997, "Efficient algorithms for all-to-all communications in
# multiport message-passing systems"


def _bruck(n: Any) -> _Shares:
    rounds = _ceil_log2(n)
    share = (n - 1) / n
    last = n - _power_of_two(rounds - 1)
    link = np.maximum(last, _power_of_two(rounds - 2)) / n
    return _Shares(rounds, share, link, share, share)


def _bruck_all_to_all(n: Any) -> _Shares:
    rounds = _ceil_log2(n)
    total = largest = np.zeros_like(n)
    for bit in range(int(rounds.max())):
        # Of the distances 0 … n - 1, so many have this bit: half of each full period of the bit,
        # and what the last one, cut short, has beyond its first half.
        half = 1 << bit
        moving = n // (2 * half) * half + np.maximum(n % (2 * half) - half, 0)
        total, largest = total + moving, np.maximum(largest, moving)
    return _Shares(rounds, total / n, largest / n, total / n, total / n)


# Trees. Binomial, chain: Chan, Heimlich, Purkayastha, van de Geijn, 2007, "Collective
# communication: theory, practice, and experience". Double binary: Sanders, Speck, Träff, 2009,
# "Two-tree algorithms for full bandwidth broadcast, reduction and scan", here with both children
# served in one step.


def _chain(n: Any, k: Any) -> _Shares:
    steps = n - 2 + k
    return _Shares(steps, 1, 1, steps / k, steps / k)


def _binomial_broadcast(n: Any) -> _Shares:
    rounds = _ceil_log2(n)
    return _Shares(rounds, rounds, 1, rounds, rounds)


def _binomial_reduce(n: Any) -> _Shares:
    return _binomial_broadcast(n)._replace(sent=1)


def _tree_broadcast(n: Any, k: Any) -> _Shares:
    steps = _floor_log2(n) + k - 1
    # In every step some rank serves two children, unless the lowest level is a single leaf: that is
    # served alone in the last step, or, where it is the only child of all, in every step.
    alone = _is_power_of_two(n) * np.where(n == 2, k, 1)
    return _Shares(steps, np.minimum(n - 1, 2), 1, (2 * steps - alone) / k, steps / k)


def _tree_reduce(n: Any, k: Any) -> _Shares:
    return _tree_broadcast(n, k)._replace(sent=1)


def _tree_all_reduce(n: Any, k: Any) -> _Shares:
    # Up once, and down to two children: the fifth rank gives a rank below the root its second.
    sent = np.where(n >= 5, 3, np.minimum(n - 1, 2))
    return _tree_broadcast(n, k).times(2)._replace(sent=sent, link=1)


def _double_tree(n: Any, k: Any) -> _Shares:
    steps = _floor_log2(n - 1) + k
    # A piece is 1/k of half the buffer. In every step some rank sends two. The exception is a step
    # in which only the ranks just below the root send, if these have a single child.
    single = (n > 2) & _is_power_of_two(n - 1) & ((k == 1) | (n == 3))
    link = np.where(n == 2, 1.0, 0.5)  # between two, both trees are one link
    return _Shares(steps, 1, link, (2 * steps - single) / (2 * k), link * steps / k)


def _double_tree_all_reduce(n: Any, k: Any) -> _Shares:
    # A half up each tree, and a half down to each child in one of them, of which there are at most
    # two, and for two and three ranks none and one.
    sent = np.minimum(n / 2, 2)
    return _double_tree(n, k).times(2)._replace(sent=sent, link=1)


# In the switch. NVLS: Klenk, Jiang, Thorson, Dennison, 2020, "An in-network architecture for
# accelerating shared-memory multiprocessor collectives". SHARP: Graham et al., 2016, "Scalable
# hierarchical aggregation protocol (SHArP): a hardware architecture for efficient data reduction".


def _nvls_all_reduce(n: Any, k: Any) -> _Shares:
    # A piece goes M/k up, 1/n of that down, the same up again, and M/k down; stages of different
    # pieces overlap. A large transfer is under way in each of the k + 3 steps, except where one or
    # two pieces leave a gap between the first stage and the last. A small one adds to the busiest
    # port in k - 1 steps, or fills the gap.
    large = np.minimum(2 * k, k + 3)
    small = np.where(k == 1, 2, k - 1)
    serial = (large + small / n) / k
    return _Shares(k + 3, 1 + 1 / n, 1 + 1 / n, serial, serial, switch_steps=k + 3)


def _nvls_reduce_scatter(n: Any, k: Any) -> _Shares:
    serial = 1 + 1 / (n * k)
    return _Shares(k + 1, 1, 1, serial, serial, switch_steps=k + 1)


def _nvls_all_gather(n: Any, k: Any) -> _Shares:
    return _nvls_reduce_scatter(n, k)._replace(sent=1 / n)


def _sharp_all_reduce(_: Any, k: Any) -> _Shares:
    return _Shares(k + 1, 1, 1, (k + 1) / k, (k + 1) / k, switch_steps=k + 1)


# Two levels. Mikami et al., 2018, "Massively distributed SGD: ImageNet/ResNet-50 training in a
# flash"


_LEVEL_FORMS: Final[dict[str, tuple[Callable[[Any], _Shares], bool]]] = {
    "all_reduce": (lambda n: _ring(n).times(2), True),
    "reduce_scatter": (_ring, True),
    "all_gather": (_ring, True),
    "all_to_all": (_pairwise, False),
}
"""By collective: the form of one level, and whether only a column's share reaches the second."""


def _levels(collective: str, rows: Any, columns: Any) -> tuple[_Shares, _Shares]:
    """Return the shares along rows (inside a node) and along columns (across nodes)."""
    form, scatters = _LEVEL_FORMS[collective]
    outer = form(rows)
    if scatters:
        outer = outer.times(1 / columns)._replace(steps=outer.steps, switch_steps=0)
    return form(columns), outer


def _two_levels(collective: str) -> Callable[[Any, Any], _Shares]:
    """Return the form of both levels together, one after the other on links of their own."""

    def form(rows: Any, columns: Any) -> _Shares:
        inner, outer = _levels(collective, rows, columns)
        both = _Shares(*(one + other for one, other in zip(inner, outer, strict=True)))
        return both._replace(link=np.maximum(inner.link, outer.link))

    return form


FORMS: Final[dict[tuple[str, str], Callable[..., _Shares]]] = {
    ("all_reduce", "ring"): lambda n: _ring(n).times(2),
    ("all_reduce", "bidirectional_ring"): lambda n: _bidirectional_ring(n).times(2),
    ("all_reduce", "recursive_doubling"): _recursive_doubling,
    ("all_reduce", "halving_doubling"): _halving_doubling,
    ("all_reduce", "binary_tree"): _tree_all_reduce,
    ("all_reduce", "double_binary_tree"): _double_tree_all_reduce,
    ("all_reduce", "torus_2d"): _two_levels("all_reduce"),
    ("all_reduce", "hierarchical"): _two_levels("all_reduce"),
    ("all_reduce", "one_shot"): _one_shot,
    ("all_reduce", "two_shot"): lambda n: _direct(n).times(2),
    ("all_reduce", "nvls"): _nvls_all_reduce,
    ("all_reduce", "sharp"): _sharp_all_reduce,
    ("reduce_scatter", "ring"): _ring,
    ("reduce_scatter", "bidirectional_ring"): _bidirectional_ring,
    ("reduce_scatter", "recursive_halving"): _halving_reduce_scatter,
    ("reduce_scatter", "bruck"): _bruck,
    ("reduce_scatter", "torus_2d"): _two_levels("reduce_scatter"),
    ("reduce_scatter", "hierarchical"): _two_levels("reduce_scatter"),
    ("reduce_scatter", "direct"): _direct,
    ("reduce_scatter", "nvls"): _nvls_reduce_scatter,
    ("all_gather", "ring"): _ring,
    ("all_gather", "bidirectional_ring"): _bidirectional_ring,
    ("all_gather", "recursive_doubling"): _doubling_all_gather,
    ("all_gather", "bruck"): _bruck,
    ("all_gather", "torus_2d"): _two_levels("all_gather"),
    ("all_gather", "hierarchical"): _two_levels("all_gather"),
    ("all_gather", "direct"): _direct,
    ("all_gather", "nvls"): _nvls_all_gather,
    ("all_to_all", "direct"): _direct,
    ("all_to_all", "pairwise"): _pairwise,
    ("all_to_all", "bruck"): _bruck_all_to_all,
    ("all_to_all", "torus_2d"): _two_levels("all_to_all"),
    ("all_to_all", "hierarchical"): _two_levels("all_to_all"),
    ("broadcast", "chain"): _chain,
    ("broadcast", "binomial"): _binomial_broadcast,
    ("broadcast", "binary_tree"): _tree_broadcast,
    ("broadcast", "double_binary_tree"): _double_tree,
    ("reduce", "chain"): _chain,
    ("reduce", "binomial"): _binomial_reduce,
    ("reduce", "binary_tree"): _tree_reduce,
    ("reduce", "double_binary_tree"): _double_tree,
    ("send_recv", "direct"): _send_recv,
}
"""The form of every algorithm, of the arguments that `algorithms.ALGORITHMS` says it takes."""


# Arguments, and arithmetic that is exact on numbers and arrays


def _counts(name: str, value: Any) -> Any:
    """Return whole numbers of at least 1 as NumPy's."""
    found = count_or_array(name, value)
    return found if is_array(found) else np.int64(found)


def _at_least_zero(name: str, value: Any) -> Any:
    rule = "a finite number of at least 0"
    cells = as_array(value)
    if cells.dtype.kind not in "iuf":
        raise BadTypeError(name, value, rule)
    if not ((cells >= 0) & (cells < inf)).all():
        raise BadValueError(name, value, rule)
    return value


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise BadTypeError(name, value, "a pair")
    return value[0], value[1]


def _shape(shape: Any, ranks: Any) -> tuple[Any, Any]:
    """Return rows and columns, the most square ones where `shape` is None."""
    if shape is None:
        rows = cell_by_cell(lambda n: most_square(n)[0], ranks)
        return rows, ranks // rows
    rows, columns = (_counts("shape", each) for each in _pair("shape", shape))
    if anywhere(rows * columns != ranks):
        raise BadValueError("shape", shape, "a pair whose product is the number of ranks")
    return rows, columns


def _plain(value: Any) -> Any:
    """Return a single NumPy number as Python's own."""
    return value if is_array(value) else np.asarray(value).item()


def _floor_log2(n: Any) -> Any:
    # Floats hold the exponent, so unlike a logarithm this is exact.
    return np.frexp(n)[1].astype(np.int64) - 1


def _ceil_log2(n: Any) -> Any:
    return _floor_log2(n - 1) + 1


def _ceil_log(n: Any, base: Any) -> Any:
    """Return the least s with base^s >= n."""
    reached, steps = np.ones_like(n * base), np.zeros_like(n * base)
    while anywhere(reached < n):
        steps = steps + (reached < n)
        reached = np.where(reached < n, reached * base, reached)
    return steps


def _power_of_two(exponent: Any) -> Any:
    return np.ldexp(1.0, exponent)


def _is_power_of_two(n: Any) -> Any:
    return (n & (n - 1)) == 0


def _is_folded(n: Any) -> Any:
    """Return 1 where a power of two leaves ranks in excess, and 0 where not."""
    return 1 - _is_power_of_two(n)
