"""Dispatch and combine executed: real tokens on simulated ranks, every row on every link counted.

What `shardcost.collectives.dispatch` derives by counting is done here one token after the other, so
that results can be compared with experts applied in place, and bytes with the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import BadValueError

Expert = Callable[[int, NDArray[Any]], NDArray[Any]]
"""What an expert, by its number, makes of a token."""


class Exchanged(NamedTuple):
    """The result of a dispatch, the experts and a combine."""

    outputs: NDArray[Any]
    """As the tokens were: rank, token, element."""
    dispatched: NDArray[np.int64]
    """Rows sent, by source and target; copies that stay on a rank are on the diagonal."""
    combined: NDArray[np.int64]
    """The same on the way back."""


def exchanged(
    tokens: NDArray[Any],
    chosen: NDArray[np.int64],
    weights: NDArray[Any],
    experts: int,
    ranks_per_node: int,
    expert: Expert,
    *,
    per_expert: bool,
) -> Exchanged:
    """Return what a layer of experts makes of tokens, and the rows that are sent for it.

    With a copy for each GPU, a token goes to the rank of its own place in each other node and is
    forwarded there; on the way back that rank adds up what its node made of the token. With a copy
    for each expert, rows go the whole way by themselves, and their own rank adds them up.

    Args:
        tokens: By rank, token and element.
        chosen: The experts of each token, by rank, token and place.
        weights: What each expert's result counts, alike.
        experts: All of them, spread evenly over the ranks.
        ranks_per_node: Ranks that share a node.
        expert: What an expert makes of a token.
        per_expert: Whether a copy is sent for each chosen expert, rather than for each GPU.
    """
    ranks = len(tokens)
    if experts % ranks or ranks % ranks_per_node:
        raise BadValueError(
            "experts, ranks", (experts, ranks), "multiples of ranks and of a node's"
        )
    there = np.zeros((ranks, ranks), dtype=np.int64)
    back = np.zeros_like(there)
    outputs = np.zeros(tokens.shape, dtype=np.result_type(tokens, weights))
    run = _to_experts if per_expert else partial(_to_gpus, per_node=ranks_per_node)
    for rank, index in np.ndindex(tokens.shape[:2]):
        homes: dict[int, list[tuple[int, Any]]] = {}
        for number, weight in zip(chosen[rank, index], weights[rank, index], strict=True):
            homes.setdefault(int(number) // (experts // ranks), []).append((int(number), weight))
        outputs[rank, index] = run(rank, tokens[rank, index], homes, expert, there, back)
    return Exchanged(outputs, there, back)


_Homes = dict[int, list[tuple[int, Any]]]
"""By rank: the chosen experts that it has, with their weights."""


def _to_gpus(
    rank: int,
    token: NDArray[Any],
    homes: _Homes,
    expert: Expert,
    there: NDArray[np.int64],
    back: NDArray[np.int64],
    per_node: int,
) -> NDArray[Any]:
    """Return the sum over a token's experts, by one copy to each node and to each GPU in it."""
    result = np.zeros_like(token)
    for node in sorted({home // per_node for home in homes}):
        door = node * per_node + rank % per_node  # the rank of the same place: one rail
        if door != rank and node != rank // per_node:
            there[rank, door] += 1
            back[door, rank] += 1
        added = np.zeros_like(token)
        for home in (each for each in homes if each // per_node == node):
            if home != door or door == rank:
                there[door, home] += 1
                back[home, door] += 1
            added = added + sum(weight * expert(number, token) for number, weight in homes[home])
        result = result + added
    return result


def _to_experts(
    rank: int,
    token: NDArray[Any],
    homes: _Homes,
    expert: Expert,
    there: NDArray[np.int64],
    back: NDArray[np.int64],
) -> NDArray[Any]:
    """Return the sum over a token's experts, by one copy to each of them."""
    result = np.zeros_like(token)
    for home, own in homes.items():
        for number, weight in own:
            there[rank, home] += 1
            back[home, rank] += 1
            result = result + weight * expert(number, token)
    return result
