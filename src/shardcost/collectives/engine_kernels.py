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

from shardcost.arrays import choose, first_not_less, largest, looked_up, smallest, sqrt
from shardcost.catalog import tuner_table
from shardcost.collectives.group import Group, most_heads
from shardcost.collectives.paths import Parts, linked, ring_library_paths, total
from shardcost.collectives.tuner import PathName
from shardcost.errors import BadValueError
from shardcost.machine import Machine
from shardcost.machine.constants import (
    NO_NETWORK,
    Calibration,
    EngineLibrary,
    FrameworkLibrary,
    RingLibrary,
)
from shardcost.machine.libraries import engine_rules
from shardcost.traced import step

_ALL_TO_ALL: Final = frozenset({"nvswitch", "full_mesh"})
"""Links by which every device reaches every other directly, as the kernels need."""
_MIB: Final = 2.0**20
_REDUCING: Final = {"all_reduce": 2, "reduce_scatter": 1}
"""How often a rank's block passes a framework's buffers, by collective."""


def one_shot(constants: EngineLibrary, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a one-shot all-reduce: every rank reads the n-1 other buffers whole.

    Reading and writing overlap, though not quite where they take alike.
    """
    peers = group.ranks - 1
    wire = peers / linked(constants.one_shot_bytes_per_s, group)
    kernel = 1 / constants.one_shot_kernel_bytes_per_s
    return {
        "start": constants.one_shot_base_s,
        "peers": peers * constants.one_shot_hop_s,
        "wire": size_bytes * sqrt(wire * wire + kernel * kernel),
    }


def two_shot(constants: EngineLibrary, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a two-shot all-reduce: reduce one's share, then gather the others'."""
    peers = group.ranks - 1
    stream = size_bytes * (2 * peers / group.ranks / linked(constants.two_shot_bytes_per_s, group))
    floor = constants.two_shot_floor_s + peers * constants.two_shot_floor_hop_s
    start = constants.two_shot_base_s
    return {
        "start": start,
        "wire": stream,
        "waiting at barriers": largest(0.0, floor - start - stream),
    }


def fallback_constants(own: EngineLibrary, ring: RingLibrary) -> RingLibrary:
    """Return the constants of the library that an engine falls back to, on the engine's machine."""
    met = {
        name: getattr(own, f"fallback_{name}")
        for name in ("ll_crowd", "ll_socket", "crowd", "socket")
    }
    return replace(ring, **{name: share for name, share in met.items() if share is not None})


def kernel_paths(
    constants: EngineLibrary, size_bytes: Any, group: Group
) -> Mapping[PathName, Parts]:
    """Return the parts of every kernel that an engine has on a system."""
    kernels = {
        ("one_shot", "direct"): one_shot(constants, size_bytes, group),
        ("two_shot", "direct"): two_shot(constants, size_bytes, group),
    }
    if constants.multicast_base_s is not None:
        # Two-shot in the switch: each link carries M for the switch to add up and the rank's own
        # share, M/n, to multicast.
        wire_s = size_bytes * (1 + 1 / group.ranks) / constants.multicast_bytes_per_s
        kernels["multicast", "direct"] = {"start": constants.multicast_base_s, "wire": wire_s}
    return kernels


def eager(constants: EngineLibrary, parts: Parts, size_bytes: Any) -> Parts:
    """Return the parts of a path when each call is launched by the host."""
    assert constants.eager_launch_s is not None  # noqa: S101
    assert constants.eager_gap_s is not None  # noqa: S101
    copied = {
        **parts,
        "gap between kernels": constants.eager_gap_s,
        "copy of the input": size_bytes / constants.eager_copy_bytes_per_s,
    }
    waiting = largest(0.0, constants.eager_launch_s - total(copied))
    return {**copied, "waiting for the launch": waiting}


def launched(
    constants: FrameworkLibrary, collective: str, parts: Parts, size_bytes: Any, group: Group
) -> Parts:
    """Return the parts of a path that a framework launches.

    One process drives all GPUs of a node and launches them one after the other; a send waits for
    its peer alone.
    """
    gpus = 2 if collective == "send_recv" else group.ranks / group.nodes
    added = {**parts, "launch": gpus * constants.launch_s}
    passes = _REDUCING.get(collective, 0)
    if passes:
        block = size_bytes / group.ranks
        added["buffers of the reduction"] = passes * block / constants.reduction_bytes_per_s
    return added


def without_switch(library: str, paths: Mapping[PathName, Parts]) -> dict[PathName, Parts]:
    """Return the paths that a framework runs: not those in the switch where it leaves them out."""
    left_out = tuner_table(library)["without"]
    return {path: parts for path, parts in paths.items() if path[0] not in left_out}


def limits(engine: str, version: str | None, group: Group) -> Mapping[PathName, Any]:
    """Return up to which size an engine runs each kernel, in order of preference.

    Beyond the last limit it falls back to NCCL.
    """
    key = ("limits", engine, version)
    known_limits: Mapping[PathName, Any] | None = group.memo.get(key)
    if known_limits is not None:
        return known_limits
    rules = engine_rules(engine, version)
    by_capability = rules["below_mib"]
    capability = group.cluster.device.compute_capability or ""
    row: Mapping[str, Any] = by_capability.get(capability, by_capability["default"])
    known = rules["ranks"]
    index = smallest(first_not_less(known, group.ranks), len(known) - 1)
    usable = (looked_up(known, index) == group.ranks) & (group.domains == 1)
    if rules["one_node"]:
        usable = usable & (group.nodes == 1)
    if group.tier.kind not in _ALL_TO_ALL:
        usable = usable & (group.ranks == 2) & (group.has_nvlink or rules["pair_over_pcie"])
    if group.cluster.device.vendor == "intel":  # the engines have no such kernels for it
        usable = usable & False
    group.memo[key] = upper = {
        (kernel, "direct"): choose(usable, looked_up(sizes, index) * _MIB, 0.0)
        for kernel, sizes in row.items()
    }
    return upper


_SMALL_BYTES: Final = 4096


def multimem_all_reduce_s(machine: Machine, ranks: Any, size_bytes: Any) -> Any:
    """Return the seconds of an all-reduce by multimem instructions, inside one domain.

    The switch adds what it reads from all ranks and replicates what is written (Klenk et al. 2020,
    An in-network architecture for accelerating shared-memory multiprocessor collectives, ISCA).
    Such a kernel starts like an engine's multicast kernel, and then takes what as many bytes more
    take NCCL's own in-switch algorithm: nothing is fitted to it. It has no channels, and four ranks
    were measured to be no slower than NCCL's eight, so those bytes are NCCL's among eight.
    """
    engine, nccl = (each.constants for each in multimem_calibrations(machine))
    return multimem_s(engine, nccl, size_bytes, *multimem_groups(machine, ranks))


def multimem_groups(machine: Machine, ranks: Any) -> tuple[Group, Group]:
    """Return the ranks of a multimem all-reduce, and those of NCCL's that streams like it."""
    cluster = machine.cluster
    full = largest(ranks, smallest(cluster.tiers[-1].gpus, most_heads()))
    return Group.on(cluster, ranks), Group.on(cluster, full)


def multimem_calibrations(machine: Machine) -> tuple[Calibration, Calibration]:
    """Return the constants behind multimem all-reduces: an engine's start, NCCL's stream."""
    return machine.library("vllm"), machine.library(machine.default_library)


def multimem_s(engine: Any, nccl: Any, size_bytes: Any, group: Group, among: Group) -> Any:
    """Return what `multimem_all_reduce_s` does, for given constants."""
    kernels = kernel_paths(engine, _SMALL_BYTES, group)
    if ("multicast", "direct") not in kernels:
        raise BadValueError("cluster", group.cluster.name, "one with multicast all-reduces")

    def nvls_s(size: Any) -> Any:
        paths = ring_library_paths(nccl, NO_NETWORK, "all_reduce", size, among)
        if ("nvls", "Simple") not in paths:
            raise BadValueError("cluster", group.cluster.name, "one with nvls all-reduces")
        return total(paths["nvls", "Simple"])

    start = step("start", total(kernels["multicast", "direct"]), meaning="a kernel of 4 KiB")
    twice = step("twice", nvls_s(2 * size_bytes), meaning="NCCL's NVLS on twice the buffer")
    return start + twice - step("once", nvls_s(size_bytes), meaning="NCCL's NVLS on the buffer")
