"""Trees and chains: a rank hands on every piece as soon as it holds it.

The buffer is cut into pieces that follow each other down the tree, so that all its levels work at
once. A chain is a tree in which everyone has one child. In a binary tree half of the ranks are
leaves that never send; the double binary tree sends each half of the buffer down a tree of its own,
and the leaves of one are inner nodes of the other. Here both children are served in one step. An
all-reduce is the reduce up the tree, then the broadcast down.

Trees are given by each rank's parent; rank 0 is the root and its own parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from shardcost.collectives.exact.algorithms.plan import (
    Algorithm,
    Form,
    Plan,
    at_once,
    is_pair,
    is_power_of_two,
    mirror,
    pipelined,
    powers_of_two,
    up_and_down,
)
from shardcost.collectives.exact.schedule import Ints, Step


def chain_broadcast(ranks: int, pieces: int) -> Plan:
    """Return the broadcast along 0, 1, …, n - 1."""
    return pipelined(_down(np.maximum(np.arange(ranks) - 1, 0), chunk=0, chunks=1), pieces)


def binary_broadcast(ranks: int, pieces: int) -> Plan:
    """Return the broadcast down the tree in which the children of r are 2r + 1 and 2r + 2."""
    parents = np.maximum(np.arange(ranks) - 1, 0) // 2
    return pipelined(_down(parents, chunk=0, chunks=1), pieces)


def double_binary_broadcast(ranks: int, pieces: int) -> Plan:
    """Return the broadcast of each half of the buffer down its own tree."""
    first, second = two_trees(ranks)
    halves = at_once(_down(first, chunk=0, chunks=2), _down(second, chunk=1, chunks=2))
    return pipelined(halves, pieces)


def binomial_broadcast(ranks: int) -> Plan:
    """Return the broadcast in which all who have the buffer send it to one more rank each."""
    steps = []
    for have in powers_of_two(ranks):
        source = np.arange(min(have, ranks - have))
        steps.append(Step.of(source, source + have, 0, reduces=False))
    return Plan(1, tuple(steps))


def two_trees(ranks: int) -> tuple[Ints, Ints]:
    """Return the parents in two trees below rank 0; none but 0 is an inner node of both.

    Inner nodes of the first are the even ranks. The second is the first on renumbered ranks:
    mirrored where their number is even, shifted by one where it is odd, so that parities change.
    """
    others = ranks - 1
    rank = np.arange(1, ranks)
    seat = others + 1 - rank if others % 2 == 0 else rank % others + 1
    rank_at = np.zeros(ranks, dtype=np.int64)
    rank_at[seat] = rank
    first = _in_order_parents(ranks)
    second = np.zeros(ranks, dtype=np.int64)
    second[rank] = rank_at[first[seat]]
    return first, second


def _in_order_parents(ranks: int) -> Ints:
    """Return the parents in a binary tree over 1 … n - 1 in which even ranks are inner nodes.

    Read from left to right the ranks are in order. The parent of a rank whose lowest bit is b has
    b cleared and 2b set; where there is no such rank, the nearest ancestor that exists.
    """
    parents = np.zeros(ranks, dtype=np.int64)
    for rank in range(1, ranks):
        bit = rank & -rank
        parent = (rank & ~bit) | 2 * bit
        while parent >= ranks and parent & (parent - 1):
            bit = parent & -parent
            parent = (parent & ~bit) | 2 * bit
        parents[rank] = parent if parent < ranks else 0
    return parents


def _down(parents: Ints, *, chunk: int, chunks: int) -> Plan:
    """Return the steps that take a chunk from rank 0 to all, one level of the tree per step."""
    steps = []
    level = np.zeros(1, dtype=np.int64)
    waiting = np.arange(1, len(parents))
    while len(waiting):
        here = np.isin(parents[waiting], level)
        level, waiting = waiting[here], waiting[~here]
        steps.append(Step.of(parents[level], level, chunk, reduces=False))
    return Plan(chunks, tuple(steps))


def _has_single_child(at: Mapping[str, Any]) -> Any:
    """Return whether in some step only ranks below the root of a double tree send, to one child."""
    n = at["n"]
    return (n > 2) & (2 ** at["g"] == n - 1) & ((at["k"] == 1) | (n == 3))


_CHAN: Final = (
    "Chan, Heimlich, Purkayastha, van de Geijn, 2007, Collective communication: theory, practice,"
    " and experience"
)
_SANDERS: Final = (
    "Sanders, Speck, Träff, 2009, Two-tree algorithms for full bandwidth broadcast, reduction and"
    " scan"
)
_CHAIN: Final = (Form("n - 2 + k", "(n - 2 + k)/k", sent="1"),)
# In every step some rank serves two children, unless the lowest level is a single leaf: that is
# served alone in the last step, or, where it is the only child of all, in every step.
_DOWN: Final = (
    Form("k", "1", holds=is_pair),
    Form("h + k - 1", "(2*(h + k - 1) - 1)/k", "1", "2", "(h + k - 1)/k", is_power_of_two),
    Form("h + k - 1", "2*(h + k - 1)/k", "1", "2", "(h + k - 1)/k"),
)
_UP: Final = tuple(form._replace(sent="1") for form in _DOWN)
# Up once, and down to two children: the fifth rank gives a rank below the root its second.
_UP_AND_DOWN: Final = (
    Form("2*k", "2", sent="1", holds=is_pair),
    Form(
        "2*(h + k - 1)",
        "2*(2*(h + k - 1) - 1)/k",
        sent="min(3, ceil(n/2))",
        wire="2*(h + k - 1)/k",
        holds=is_power_of_two,
    ),
    Form("2*(h + k - 1)", "4*(h + k - 1)/k", sent="min(3, ceil(n/2))", wire="2*(h + k - 1)/k"),
)
# A piece is 1/k of half the buffer. In every step some rank sends two of them, but for a step in
# which only the ranks just below the root send, if these have a single child.
_DOUBLE: Final = (
    Form("k", "1", holds=is_pair),  # both trees are one link
    Form("g + k", "(2*(g + k) - 1)/(2*k)", "1/2", "1", "(g + k)/(2*k)", _has_single_child),
    Form("g + k", "(g + k)/k", "1/2", "1", "(g + k)/(2*k)"),
)
# A half up each tree, and a half down to each child in one of them, of which there are at most two.
_DOUBLE_TWICE: Final = (
    Form("2*k", "2", sent="1", holds=is_pair),
    Form("2*(g + k)", "(2*(g + k) - 1)/k", "1", "min(n/2, 2)", "(g + k)/k", _has_single_child),
    Form("2*(g + k)", "2*(g + k)/k", "1", "min(n/2, 2)", "(g + k)/k"),
)


_tree = partial(Algorithm, takes="chunks")
_PHASES: Final = ("up the tree, adding", "down the tree, handing out the sum")
_ALONG: Final = "from rank to rank along a chain, in pieces", _CHAN
_BY_ONE_MORE: Final = "all who have the buffer give it to one more each, or backwards", _CHAN
_ONE_TREE: Final = "down, or up, a binary tree in pieces", _SANDERS
_TWO_TREES: Final = (
    "each half by its own tree; leaves of one are inner nodes of the other",
    _SANDERS,
)

ALGORITHMS: Final = (
    _tree("broadcast", "chain", chain_broadcast, _CHAIN, *_ALONG),
    _tree("reduce", "chain", mirror(chain_broadcast), _CHAIN, *_ALONG),
    Algorithm("broadcast", "binomial", binomial_broadcast, (Form("c", "c"),), *_BY_ONE_MORE),
    Algorithm(
        "reduce", "binomial", mirror(binomial_broadcast), (Form("c", "c", sent="1"),), *_BY_ONE_MORE
    ),
    _tree(
        "all_reduce",
        "binary_tree",
        up_and_down(binary_broadcast),
        _UP_AND_DOWN,
        "up a binary tree in pieces, adding, then down",
        _SANDERS,
        phases=_PHASES,
    ),
    _tree("broadcast", "binary_tree", binary_broadcast, _DOWN, *_ONE_TREE),
    _tree("reduce", "binary_tree", mirror(binary_broadcast), _UP, *_ONE_TREE),
    _tree(
        "all_reduce",
        "double_binary_tree",
        up_and_down(double_binary_broadcast),
        _DOUBLE_TWICE,
        *_TWO_TREES,
        phases=_PHASES,
    ),
    _tree("broadcast", "double_binary_tree", double_binary_broadcast, _DOUBLE, *_TWO_TREES),
    _tree("reduce", "double_binary_tree", mirror(double_binary_broadcast), _DOUBLE, *_TWO_TREES),
)
