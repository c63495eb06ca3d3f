"""What every algorithm costs, in closed form: steps, bytes and time, on numbers and on arrays.

The forms stand beside the steps, in the records of `collectives.exact.algorithms`. They count what
the schedules do when the buffer divides evenly among their chunks; the tests execute the schedules
and compare.

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

from collections.abc import Callable, Mapping
from functools import reduce
from math import inf
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from shardcost.arrays import as_array, cell_by_cell
from shardcost.checks import Count, Quantity, anywhere, count_or_array, is_array, positive_or_array
from shardcost.collectives import COLLECTIVES
from shardcost.collectives.exact.algorithms import (
    ALGORITHMS,
    algorithm_named,
    algorithms_of,
    check_options,
    most_square,
)
from shardcost.collectives.exact.algorithms.plan import Algorithm, Form
from shardcost.collectives.group import bus_factor
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.receipt import evaluate

Wiring: TypeAlias = Literal["switch", "mesh"]
Values: TypeAlias = Mapping[str, Any]
"""Of the symbols of a form, by name: numbers or arrays."""


class Symbol(NamedTuple):
    """A name in the expressions of a `Form`."""

    meaning: str
    value: Callable[[Values], Any] | None = None
    """By the symbols before it; None where it is given."""


SYMBOLS: Final[Mapping[str, Symbol]] = {
    "n": Symbol("ranks"),
    "k": Symbol("pieces that follow each other"),
    "X": Symbol("columns, or ranks of a node"),
    "Y": Symbol("rows, or nodes"),
    "h": Symbol("floor(log2 n)", lambda at: _bits(at["n"]) - 1),
    "c": Symbol("ceil(log2 n)", lambda at: _bits(at["n"] - 1)),
    "g": Symbol("floor(log2 (n - 1))", lambda at: _bits(at["n"] - 1) - 1),
    "e": Symbol("ranks in excess of a power of two", lambda at: at["n"] - 2 ** at["h"]),
    "f": Symbol("floor(log2 e) + 1", lambda at: _bits(at["e"])),
    "b": Symbol("ones in the binary numbers 1 to n - 1", lambda at: sum(_ones(at["n"]))),
    "m": Symbol("most of them in one place", lambda at: reduce(np.maximum, _ones(at["n"]))),
}


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
        rule = "a finite number of at least 0"
        cells = as_array(alpha_s)
        if cells.dtype.kind not in "iuf":
            raise BadTypeError("alpha_s", alpha_s, rule)
        if not ((cells >= 0) & (cells < inf)).all():
            raise BadValueError("alpha_s", alpha_s, rule)
        latency: Quantity = (self.steps - self.switch_steps / 2) * alpha_s
        return latency

    def bandwidth_s(self, bytes_per_s: Quantity, wiring: Wiring = "switch") -> Quantity:
        """Return the part of the time that is proportional to the size."""
        if wiring not in ("switch", "mesh"):
            raise UnknownNameError("wiring", wiring, ("switch", "mesh"))
        busiest = self.port_bytes if wiring == "switch" else self.wire_bytes
        bandwidth: Quantity = busiest / positive_or_array("bytes_per_s", bytes_per_s)
        return bandwidth

    def time_s(
        self, alpha_s: Quantity, bytes_per_s: Quantity, wiring: Wiring = "switch"
    ) -> Quantity:
        """Return the time, latency and bandwidth together."""
        return self.latency_s(alpha_s) + self.bandwidth_s(bytes_per_s, wiring)


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

    >>> one_shot = cost("all_reduce", "one_shot", 4, 1000)
    >>> one_shot.steps, one_shot.sent_bytes, one_shot.link_bytes
    (1, 3000.0, 1000.0)
    """
    known = algorithm_named(collective, algorithm)
    at = values(ranks, chunks, shape, known)
    size = positive_or_array("size_bytes", size_bytes)
    several = _counts("ranks", ranks) > 1

    def valued(field: Callable[[Form], str]) -> Any:
        """Return what an expression comes to, in every cell that of the first form to hold."""
        *cases, last = known.forms
        value = evaluate(field(last), at, _FUNCTIONS)
        for form in reversed(cases):
            value = np.where(form.holds(at), evaluate(field(form), at, _FUNCTIONS), value)[()]
        return _plain(several * value)

    return Cost(
        steps=valued(lambda form: form.steps),
        sent_bytes=valued(lambda form: form.sent or form.port) * size,
        link_bytes=valued(lambda form: form.link) * size,
        port_bytes=valued(lambda form: form.port) * size,
        wire_bytes=valued(lambda form: form.wire or form.port) * size,
        switch_steps=valued(lambda form: form.steps) if known.in_switch else 0,
    )


def values(
    ranks: Count, chunks: Count, shape: tuple[Count, Count] | None, algorithm: Algorithm
) -> dict[str, Any]:
    """Return what the symbols of an algorithm's forms stand for; forms hold from two ranks on."""
    check_options(algorithm.collective, algorithm.name, _counts("chunks", chunks), shape)
    n = _counts("ranks", ranks)
    rows, columns = _shape(shape, n) if algorithm.takes == "shape" else (1, n)
    at: dict[str, Any] = {
        "n": np.maximum(n, 2),
        "k": _counts("chunks", chunks),
        "X": np.where(n == 1, 2, columns)[()],
        "Y": rows,
    }
    for name, symbol in SYMBOLS.items():
        if symbol.value is not None:
            at[name] = symbol.value(at)
    return at


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
    price = cost(collective, algorithm, ranks, size_bytes, chunks=chunks, shape=shape)
    return price.time_s(alpha_s, bytes_per_s, wiring)


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
    if (collective, "hierarchical") not in ALGORITHMS:
        known = [name for name in COLLECTIVES if (name, "hierarchical") in ALGORITHMS]
        raise UnknownNameError("hierarchical collective", collective, known)
    exchanges = collective == "all_to_all"
    level = "pairwise" if exchanges else "ring"
    size = positive_or_array("size_bytes", size_bytes)
    alphas, rates = _pair("alpha_s", alpha_s), _pair("bytes_per_s", bytes_per_s)
    inside = cost(collective, level, _counts("ranks_per_node", ranks_per_node), size)
    left = size if exchanges else size / ranks_per_node  # of a reduce-scatter inside
    across = cost(collective, level, _counts("nodes", nodes), left)
    return inside.time_s(alphas[0], rates[0]) + across.time_s(alphas[1], rates[1])


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
    pieces: Count = _plain(best)
    return pieces


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
    share = bus_factor(collective, n)
    if in_switch:
        least = 1.0 if collective == "all_reduce" else share
        return Bound(_plain(2 * several), _plain(several * least) * size, _plain(2 * several))
    steps = 1 if collective == "send_recv" else _ceil_log(n, ports + 1)
    return Bound(_plain(several * steps), _plain(several * share) * size)


# Arguments, and arithmetic that is exact on numbers and arrays


def _counts(name: str, value: Any) -> Any:
    """Return whole numbers of at least 1 as NumPy's."""
    counts = count_or_array(name, value)
    return counts if is_array(counts) else np.int64(counts)


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise BadTypeError(name, value, "a pair")
    return value[0], value[1]


def _shape(shape: Any, ranks: Any) -> tuple[Any, Any]:
    """Return rows and columns, the most square ones where `shape` is None."""
    if shape is None:
        rows = cell_by_cell(lambda n: most_square(n)[0], ranks)
        return rows, ranks // rows
    rows, columns = (_counts("shape", side) for side in _pair("shape", shape))
    if anywhere(rows * columns != ranks):
        raise BadValueError("shape", shape, "a pair whose product is the number of ranks")
    return rows, columns


def _plain(value: Any) -> Any:
    """Return a single NumPy number as Python's own."""
    return value if is_array(value) else np.asarray(value).item()


_FUNCTIONS: Final = {"max": np.maximum, "min": np.minimum, "ceil": np.ceil}


def _bits(n: Any) -> Any:
    """Return the length of a binary number; floats hold the exponent, so this is exact."""
    return np.frexp(n)[1].astype(np.int64)


def _ones(n: Any) -> list[Any]:
    """Return how many of the numbers 0 … n - 1 have a one, by binary place.

    Half of each full period of the place, and of the last, cut short, what is beyond its half.
    """
    halves = [1 << place for place in range(int(np.max(_bits(n - 1))))]
    return [n // (2 * half) * half + np.maximum(n % (2 * half) - half, 0) for half in halves]


def _ceil_log(n: Any, base: Any) -> Any:
    """Return the least s with base^s >= n."""
    reached, steps = np.ones_like(n * base), np.zeros_like(n * base)
    while anywhere(reached < n):
        steps = steps + (reached < n)
        reached = np.where(reached < n, reached * base, reached)
    return steps
