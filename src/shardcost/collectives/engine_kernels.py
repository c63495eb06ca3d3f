"""Kernels that serving engines bring along: one-shot, two-shot and multicast all-reduces.

Each reads its peers' memory directly, so its latency hardly grows with the number of ranks, unlike
a ring's. An engine runs them up to some size per GPU generation and rank count, and falls back to
NCCL beyond (``catalog/tuner/vllm.toml``, ``sglang.toml``, ``trtllm.toml`` say who states it);
TensorRT-LLM tunes its choice, so below its limit the fastest path runs. Launched eagerly rather
than from a CUDA graph, a call costs at least its launch, and copies its input first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shardcost.arrays import looked_up
from shardcost.catalog import tuner_table
from shardcost.checks import Noun, Quantity, noun, positive
from shardcost.collectives.group import Group
from shardcost.collectives.paths import Parts, RingLibrary, linked, together, total
from shardcost.collectives.tuner import PathName

ENGINES: Final = ("sglang", "trtllm", "vllm")
_ALL_TO_ALL: Final = frozenset({"nvswitch", "full_mesh"})
"""Links by which every device reaches every other directly, as the kernels need."""
_MIB: Final = 2.0**20


@noun
class DirectLibrary(Noun):
    """Constants of one engine's kernels on one system."""

    one_shot_base_s: Quantity = positive()
    one_shot_hop_s: Quantity = positive()
    """What each further peer adds."""
    one_shot_bytes_per_s: Quantity = positive()
    """On the wire …"""
    one_shot_kernel_bytes_per_s: Quantity = positive()
    """… and of the result, which no kernel writes faster however few peers there are."""
    two_shot_floor_s: Quantity = positive()
    """What the two barriers cost, however little is sent …"""
    two_shot_floor_hop_s: Quantity = positive()
    """… and what each further peer adds to them."""
    two_shot_base_s: Quantity = positive()
    two_shot_bytes_per_s: Quantity = positive()
    multicast_base_s: Quantity | None = positive(default=None)
    multicast_bytes_per_s: Quantity | None = positive(default=None)
    fallback_ll_crowd: Quantity | None = positive(default=None)
    """Over PCIe, as in `RingLibrary`: what is left to the library that the engine falls back to.
    Host bridges differ between machines of one name, so an engine keeps the shares it met."""
    fallback_ll_socket: Quantity | None = positive(default=None)
    fallback_crowd: Quantity | None = positive(default=None)
    fallback_socket: Quantity | None = positive(default=None)
    eager_launch_s: Quantity | None = positive(default=None)
    eager_gap_s: Quantity | None = positive(default=None)
    """Between the copy of the input and the all-reduce."""
    eager_copy_bytes_per_s: Quantity | None = positive(default=None)

    def check(self) -> None:
        """A kernel has all of its constants or none."""
        together(self, "multicast_base_s multicast_bytes_per_s")
        together(self, "eager_launch_s eager_gap_s eager_copy_bytes_per_s")


def one_shot(constants: DirectLibrary, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a one-shot all-reduce: every rank reads the n-1 other buffers whole.

    Reading and writing overlap, though not quite where they take alike.
    """
    peers = group.ranks - 1
    wire = peers / linked(constants.one_shot_bytes_per_s, group)
    kernel = 1 / constants.one_shot_kernel_bytes_per_s
    return {
        "start": constants.one_shot_base_s,
        "peers": peers * constants.one_shot_hop_s,
        "wire": size_bytes * np.sqrt(wire * wire + kernel * kernel),
    }


def two_shot(constants: DirectLibrary, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a two-shot all-reduce: reduce one's share, then gather the others'."""
    peers = group.ranks - 1
    stream = size_bytes * (2 * peers / group.ranks / linked(constants.two_shot_bytes_per_s, group))
    floor = constants.two_shot_floor_s + peers * constants.two_shot_floor_hop_s
    start = constants.two_shot_base_s
    return {
        "start": start,
        "wire": stream,
        "waiting at barriers": np.maximum(0.0, floor - start - stream),
    }


def multicast(constants: DirectLibrary, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a two-shot all-reduce in the switch.

    Each link carries M for the switch to add up and the rank's own share, M/n, to multicast.
    """
    assert constants.multicast_base_s is not None  # noqa: S101
    return {
        "start": constants.multicast_base_s,
        "wire": size_bytes * (1 + 1 / group.ranks) / constants.multicast_bytes_per_s,
    }


def fallback_constants(own: DirectLibrary, ring: RingLibrary) -> RingLibrary:
    """Return the constants of the library that an engine falls back to, on the engine's machine."""
    met = {
        name: getattr(own, f"fallback_{name}")
        for name in ("ll_crowd", "ll_socket", "crowd", "socket")
    }
    return replace(ring, **{name: share for name, share in met.items() if share is not None})


def direct_paths(
    constants: DirectLibrary, size_bytes: Any, group: Group
) -> Mapping[PathName, Parts]:
    """Return the parts of every kernel that an engine has on a system."""
    found = {
        ("one_shot", "direct"): one_shot(constants, size_bytes, group),
        ("two_shot", "direct"): two_shot(constants, size_bytes, group),
    }
    if constants.multicast_base_s is not None:
        found["multicast", "direct"] = multicast(constants, size_bytes, group)
    return found


def eager(constants: DirectLibrary, parts: Parts, size_bytes: Any) -> Parts:
    """Return the parts of a path when each call is launched by the host."""
    assert constants.eager_launch_s is not None  # noqa: S101
    assert constants.eager_gap_s is not None  # noqa: S101
    copied = {
        **parts,
        "gap between kernels": constants.eager_gap_s,
        "copy of the input": size_bytes / constants.eager_copy_bytes_per_s,
    }
    waiting = np.maximum(0.0, constants.eager_launch_s - total(copied))
    return {**copied, "waiting for the launch": waiting}


def limits(engine: str, version: str | None, group: Group) -> Mapping[PathName, Any]:
    """Return up to which size an engine runs each kernel, in order of preference.

    Beyond the last limit it falls back to NCCL.
    """
    rules = _rules(engine, version)
    row = _row(rules["below_mib"], group)
    known = np.array(rules["ranks"])
    index = np.clip(np.searchsorted(known, group.ranks), 0, len(known) - 1)
    usable = (looked_up(known, index) == group.ranks) & (group.domains == 1)
    if rules["one_node"]:
        usable = usable & (group.nodes == 1)
    if group.tier.kind not in _ALL_TO_ALL:
        usable = usable & (group.ranks == 2) & (group.has_nvlink or rules["pair_over_pcie"])
    if group.cluster.device.vendor == "intel":  # the engines have no such kernels for it
        usable = usable & False
    found: dict[PathName, Any] = {}
    for kernel, sizes in row.items():
        below = looked_up(np.array(sizes, dtype=float), index) * _MIB
        found[kernel, "direct"] = np.where(usable, below, 0.0)
    return found


def generation(engine: str, version: str | None) -> str:
    """Return since which version an engine's kernels are as in `version`; the newest without one.

    >>> generation("sglang", "0.5.10"), generation("sglang", None)
    ('0', '0.5.12')
    """
    since: str = _rules(engine, version)["since"]
    return since


def _rules(engine: str, version: str | None) -> dict[str, Any]:
    newest_first: list[dict[str, Any]] = tuner_table(engine)["generation"]
    if version is None:
        return newest_first[0]
    return next(
        (each for each in newest_first if numbers(version) >= numbers(each["since"])),
        newest_first[-1],
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with, to compare: 1.3.0rc10 is (1, 3, 0)."""
    found = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def _row(by_capability: Mapping[str, Any], group: Group) -> Mapping[str, Any]:
    """Return the row for the devices' compute capability, or the default."""
    row: Mapping[str, Any] = by_capability.get(
        group.cluster.device.compute_capability or "", by_capability["default"]
    )
    return row
