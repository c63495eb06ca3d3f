"""Which path a library runs: how much each path counts, as weights.

NCCL runs what its own model puts lowest (`tuner`), an engine its kernels up to stated sizes
(`engine_kernels.limits`), any other library what is fastest, as far as is known.

**Continuity.** A library switches paths at one size, and its time may jump there. Where exactly
depends on its version and its channels, so near the switch shardcost weighs the candidates: with
NCCL's tuner by how close its estimates are (a path that it estimates 5 % slower counts 4 %), with
stated limits over the last fifth before the limit, at which 3 % are left. Elsewhere one path counts
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add, or_
from typing import Any, Final, TypeAlias

from shardcost.arrays import choose, largest, smallest
from shardcost.checks import anywhere, name_among
from shardcost.collectives import ALGORITHMS, PROTOCOLS, engine_kernels
from shardcost.collectives.engine_kernels import kernel_paths
from shardcost.collectives.group import Group
from shardcost.collectives.paths import Parts, exists, total
from shardcost.collectives.tuner import PathName, tables
from shardcost.errors import BadValueError
from shardcost.machine.constants import Calibration
from shardcost.records import NamedTuple

_SHARPNESS: Final = 6
"""Weights are ratios of times squared this often: to the power 64."""
_LIMIT_SHARPNESS: Final = 5
_BEFORE_LIMIT: Final = 0.9
"""Where, as a share of a stated limit, two paths weigh the same."""
_AROUND_LIMIT: Final = (0.02, 0.1)
"""Between which shares above NCCL's limit of LL sends go over to Simple: at the limit itself, a
power of two as most sizes are, LL runs."""

Weights: TypeAlias = Mapping[PathName, Any]


class Forced(NamedTuple):
    """What a library is made to run, as NCCL_ALGO and NCCL_PROTO do; None: its own choice."""

    algorithm: str | None = None
    protocol: str | None = None

    @classmethod
    def named(cls, algorithm: str | None, protocol: str | None) -> Forced:
        """Return what names mean, in whatever spelling."""
        return cls(
            None if algorithm is None else name_among("algorithm", algorithm, ALGORITHMS),
            None if protocol is None else name_among("protocol", protocol, PROTOCOLS),
        )

    def __bool__(self) -> bool:
        """Return whether anything is forced."""
        return self.algorithm is not None or self.protocol is not None

    def __str__(self) -> str:
        """Return what is forced, as ``ring LL128``."""
        return " ".join(self.chosen.values())

    def leaves(self, path: PathName) -> bool:
        """Return whether a path may still run."""
        return self.algorithm in {None, path[0]} and self.protocol in {None, path[1]}

    @property
    def chosen(self) -> dict[str, str]:
        """What is forced, by name of the argument."""
        return {name: value for name, value in self._asdict().items() if value is not None}


NOTHING_FORCED: Final = Forced()


def forced_weights(
    forced: Forced,
    paths: Mapping[PathName, Parts],
    estimates: Mapping[PathName, Any],
    group: Group,
    what: str,
) -> Weights:
    """Return how much each path counts where an algorithm, a protocol or both are forced.

    The library chooses among what is left: by NCCL's estimates where it has any, else the fastest.

    Args:
        forced: What must run.
        paths: Every path that the library has.
        estimates: NCCL's own, where it chooses by them.
        group: The ranks.
        what: The library and the collective, for the message where nothing is left.
    """
    running = {
        path: exists(path, group) & (estimates.get(path, 0.0) < float("inf")) for path in paths
    }
    left = {path: parts for path, parts in paths.items() if forced.leaves(path)}
    if not left or _fails(reduce(or_, (running[path] for path in left))):
        known = [path for path, cells in running.items() if not _fails(cells)]
        raise _nothing_left(forced, known, what)
    if any(path in estimates for path in left):
        weights = tuner_weights(estimates, left)
    else:
        weights = fastest_weights(left, group)
    return {path: weights.get(path, 0.0) for path in paths}


def _fails(condition: Any) -> bool:
    """Return whether a condition does not hold, in some cell of an array."""
    return anywhere(choose(condition, 0, 1))


def _nothing_left(forced: Forced, paths: Iterable[PathName], what: str) -> BadValueError:
    """Return the error that names what is forced in vain, and what could be."""
    algorithms = sorted({algorithm for algorithm, _ in paths})
    protocols = sorted(
        {protocol for algorithm, protocol in paths if algorithm == (forced.algorithm or algorithm)}
    )
    name, known = "protocol", protocols
    if forced.algorithm is not None and forced.algorithm not in algorithms:
        name, known = "algorithm", algorithms
    of = f" by {forced.algorithm}" if name == "protocol" and forced.algorithm else ""
    rule = f"{' or '.join(known)} for {what}{of} (left out: the library chooses)"
    return BadValueError(name, getattr(forced, name), rule)


def with_kernels(
    own: Calibration,
    size: Any,
    group: Group,
    version: str | None,
    fallback: Mapping[PathName, Parts],
    fallback_weights: Weights,
) -> tuple[dict[PathName, Parts], Weights]:
    """Return an engine's kernels beside NCCL's paths, which it falls back to.

    Kernels are preferred in order: each counts from where the limits of those before it end. Where
    the choice is tuned, the fastest counts below the limit.
    """
    below = engine_kernels.limits(own.library, version, group)
    kernels = {
        path: parts
        for path, parts in kernel_paths(own.constants, size, group).items()  # type: ignore[arg-type]
        if anywhere(below.get(path, 0) > 0)
    }
    if not kernels:
        return dict(fallback), _scaled(fallback_weights, 1.0)
    if own.chooser == "fastest":
        # The fastest kernel runs unless what NCCL chooses is faster still.
        times = {path: total(parts) for path, parts in kernels.items()}
        best, share = least(times), _share_below(size, below[next(iter(kernels))])
        so_far = choose(best < weighted(fallback, fallback_weights), share, 0.0)
        weights = {path: choose(time == best, so_far, 0.0) for path, time in times.items()}
        return {**kernels, **fallback}, weights | _scaled(fallback_weights, 1 - so_far)
    weights = {}
    reached: Any = 0.0
    so_far = 0.0
    for path in kernels:
        reached = largest(reached, below[path])
        share = _share_below(size, reached)
        weights[path] = share - so_far
        so_far = share
    return {**kernels, **fallback}, weights | _scaled(fallback_weights, 1 - so_far)


def _share_below(size: Any, limit: Any) -> Any:
    """Return 1 well below a limit, one half a little before it, and 3 % at it."""
    ratio = size / largest(limit * _BEFORE_LIMIT, 1e-9)
    for _ in range(_LIMIT_SHARPNESS):
        ratio = smallest(ratio * ratio, 1e150)
    return 1 / (1 + ratio)


def tuner_weights(estimates: Mapping[PathName, Any], paths: Mapping[PathName, Parts]) -> Weights:
    """Return how much each path counts by how close NCCL's estimates are to the lowest."""
    usable = {path: estimates[path] for path in paths if path in estimates}
    lowest = least(usable)
    weights = {}
    for path, time in usable.items():
        ratio = lowest / time
        for _ in range(_SHARPNESS):
            ratio *= ratio  # in place: a grid has millions of cells
        weights[path] = ratio
    return weights | {path: 0.0 for path in paths if path not in usable}


def fastest_weights(paths: Mapping[PathName, Parts], group: Group) -> Weights:
    """Return weights by which the fastest path that can run counts alone."""
    times = {
        path: choose(exists(path, group), total(parts), float("inf"))
        for path, parts in paths.items()
    }
    lowest = least(times)
    return {path: choose(time == lowest, 1.0, 0.0) for path, time in times.items()}


def send_weights(
    paths: Mapping[PathName, Parts], collective: str, size: Any, group: Group
) -> Weights:
    """Return how much LL and Simple count in sends and all-to-alls.

    NCCL sends under LL up to a number of bytes for each channel that a peer may get: between nodes
    of one domain whether or not Simple is faster; elsewhere versions differ, and below the limit
    the faster counts.
    """
    by_limit = (group.nodes > 1) & (group.domains == 1)
    rules = tables()["p2p"]
    sent = size / group.ranks if collective == "all_to_all" else size
    limit = rules["channels"] * rules["ll_bytes_per_channel"]
    below, above = (limit * (1 + each) for each in _AROUND_LIMIT)
    share = smallest(1.0, largest(0.0, (above - sent) / (above - below)))
    fast, full = (total(parts) for parts in paths.values())
    ll = choose(by_limit | (fast < full), share, 0.0)
    return dict(zip(paths, (ll, 1 - ll), strict=True))


def least(times: Mapping[PathName, Any]) -> Any:
    """Return the lowest of some times, cell by cell."""
    return smallest(*times.values())


def _scaled(weights: Weights, share: Any) -> dict[PathName, Any]:
    """Return weights that add up to a share of 1."""
    values = list(weights.values())
    scale = share / sum(values[1:], start=values[0])
    return {path: scale * each for path, each in weights.items()}


def weighted(paths: Mapping[PathName, Parts], weights: Weights) -> Any:
    """Return the time as the weighted mean over the paths."""
    above = reduce(add, (weight * total(paths[path]) for path, weight in weights.items()))
    return above / reduce(add, weights.values())
