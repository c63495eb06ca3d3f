"""From which devices are joined how to tiers: groups of GPUs that reach each other alike.

**NVLink.** Behind a switch every GPU brings all its links to whoever the peer is, so a tool that
counts the links of a pair shows the same number for every pair: the links of one GPU, not of the
pair, and not to be multiplied by the peers. A GPU that has lost links drags down every pair that it
is in and no other, which is how it is found. Without a switch a link leads to one peer, and the
links of a GPU are the sum over its peers: a full mesh (every pair alike), the hybrid cube mesh of
the DGX-1 (one or two to four peers), or bridges (pairs only). Four GPUs whose equal pairs add up to
the links that a generation has are taken for a full mesh, else equal pairs for a switch.

**PCIe.** Groups grow from one PCIe switch over one NUMA domain to all sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from shardcost.cluster import CUBE_MESH, CUBE_MESH_CABLES

Counts: TypeAlias = Sequence[Sequence[int]]
Groups: TypeAlias = tuple[tuple[int, ...], ...]

PCIE_LEVELS: Final = (
    ("pcie_switch", ("PIX", "PXB")),
    ("numa_domain", ("PHB", "NODE")),
    ("sockets", ("SYS",)),
)
"""What joins GPUs at each level, innermost first, and how a matrix shows it."""
_LARGEST_MESH: Final = 4
"""More GPUs than this were never joined pair by pair with equal counts: a switch joins them."""
_CUBE_GPUS: Final = 1 + max(max(pair) for pair in CUBE_MESH)


@dataclass(frozen=True)
class Joined:
    """GPUs that NVLinks join, group by group."""

    kind: str
    """``nvswitch``, ``full_mesh``, ``cube_mesh``, ``bridge``, or ``mesh`` of no known shape."""
    groups: Groups
    links_per_gpu: int
    """Of a sound GPU, to all its peers together."""
    fewer: tuple[tuple[int, int], ...] = ()
    """GPUs that have fewer links than the others, with how many they have."""


def joined_by_nvlink(
    pairs: Counts, links_in_all: Sequence[int], *, behind_switch: bool | None
) -> Joined | None:
    """Return how NVLinks join GPUs; None where there are none.

    Args:
        pairs: Links that each two GPUs can use together.
        links_in_all: How many links GPUs of some generation have, to tell a mesh by.
        behind_switch: Whether a switch joins them, if that is known.
    """
    gpus = len(pairs)
    best = [max(row, default=0) for row in pairs]
    most = max(best, default=0)
    if not most:
        return None
    sound = [gpu for gpu in range(gpus) if best[gpu] == most]
    if _every_pair_alike(pairs, best) and _clear_majority(len(sound), gpus):
        fewer = tuple((gpu, best[gpu]) for gpu in range(gpus) if best[gpu] < most)
        kind, links = _alike(most, gpus, links_in_all, behind_switch=behind_switch)
        return Joined(kind, (tuple(range(gpus)),), links, fewer)
    return _in_groups(pairs, links_in_all)


def _every_pair_alike(pairs: Counts, best: Sequence[int]) -> bool:
    """Return whether each pair has what the poorer of the two has: nothing depends on the peer."""
    everyone = range(len(pairs))
    return all(
        pairs[one][other] == min(best[one], best[other])
        for one in everyone
        for other in everyone
        if one != other
    )


def _clear_majority(sound: int, gpus: int) -> bool:
    """Return whether the others are the exception; two of three alike may be a bridged pair."""
    return sound == gpus or (sound > 2 and 2 * sound > gpus)


def _alike(
    links: int, gpus: int, links_in_all: Sequence[int], *, behind_switch: bool | None
) -> tuple[str, int]:
    """Return what joins GPUs of which every pair has as many links, and the links of each."""
    to_all_peers = links * (gpus - 1)
    if behind_switch:
        return "nvswitch", links
    if gpus == 2:
        switched = behind_switch is None and links == max(links_in_all, default=0)
        return ("nvswitch" if switched else "bridge"), links
    meshed = to_all_peers in links_in_all and gpus <= _LARGEST_MESH
    if behind_switch is False or meshed:
        return "full_mesh", to_all_peers
    return "nvswitch", links


def _in_groups(pairs: Counts, links_in_all: Sequence[int]) -> Joined:
    """Return what joins GPUs that do not all reach each other by the same number of links."""
    groups = grouped(pairs)
    several = tuple(group for group in groups if len(group) > 1)
    totals = [sum(row) for row in pairs]
    usual, _ = Counter(totals[gpu] for group in several for gpu in group).most_common(1)[0]
    fewer = tuple((gpu, totals[gpu]) for group in several for gpu in group if totals[gpu] < usual)
    if all(len(group) == 2 for group in several):
        return Joined("bridge", several, usual)
    if len(several) == 1 and len(several[0]) == _CUBE_GPUS and usual == CUBE_MESH_CABLES:
        return Joined("cube_mesh", several, usual, fewer)
    counts = {pairs[one][other] for group in several for one in group for other in group} - {0}
    sizes = {len(group) for group in several}
    if len(counts) == 1 and len(sizes) == 1 and not fewer and _complete(pairs, several):
        kind, links = _alike(counts.pop(), sizes.pop(), links_in_all, behind_switch=None)
        return Joined(kind, several, links)
    return Joined("mesh", several, usual, fewer)


def _complete(pairs: Counts, groups: Groups) -> bool:
    return all(
        pairs[one][other] for group in groups for one in group for other in group if one != other
    )


def grouped(joined: Sequence[Sequence[object]]) -> Groups:
    """Return the groups of devices that reach each other, directly or by way of others."""
    left = set(range(len(joined)))
    groups = []
    while left:
        group = {min(left)}
        edge = list(group)
        while edge:
            one = edge.pop()
            reached = {other for other in left - group if joined[one][other] or joined[other][one]}
            group |= reached
            edge += reached
        left -= group
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def pcie_groups(near: Sequence[Sequence[str]]) -> list[tuple[str, Groups]]:
    """Return the groups of each PCIe level that joins more GPUs than the level below it."""
    found: list[tuple[str, Groups]] = []
    reached: tuple[str, ...] = ()
    before: Groups = tuple((gpu,) for gpu in range(len(near)))
    for level, words in PCIE_LEVELS:
        reached += words
        groups = grouped([[word in reached for word in row] for row in near])
        if groups != before:
            found.append((level, groups))
        before = groups
    return found
