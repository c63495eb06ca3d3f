"""How far a run's time may be from the estimate: its 90 % interval.

The interval is that of measured runs like it, predicted by constants that had not seen them
(`shardcost.catalog.errors`): of the same framework or engine, on a device whose kernels were
measured or not, inside a node or across nodes; of inference, by the figure that was measured. A
rate, such as tokens per second, lies between the tokens over the two times. The share of
communication and the memory have rows of their own: measured shares of inference and of layers, and
what training runs allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, log
from typing import Any, Final

from shardcost import catalog
from shardcost.arrays import exp, largest, log2, smallest
from shardcost.catalog.errors import (
    MEASURED,
    OTHER_ARCHITECTURE,
    SAME_ARCHITECTURE,
    Residuals,
    architectures_apart,
    residuals_like,
)
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Cluster, Device
from shardcost.collectives.interval import CHANGED, Interval, links_of
from shardcost.dtypes import BITS
from shardcost.estimate.result import Estimate
from shardcost.layout import Layout
from shardcost.machine import Machine, machine_of
from shardcost.machine.kernels import Section
from shardcost.machine.libraries import GENERIC, default_library
from shardcost.machine.provenance import widening
from shardcost.model import Model
from shardcost.program.operations import AttentionCore, Collective, Elementwise, Gemm
from shardcost.records import NamedTuple
from shardcost.software import Software
from shardcost.workload import Decode, Train, Workload

FIRST, LOADED_FIRST, NEXT, WHOLE, RATE = (
    "first token",
    "first token under load",
    "further tokens",
    "whole answers",
    "throughput",
)
"""What of an inference run is measured."""
PEAK: Final = "peak"
"""Of a training run's memory, where both its peak and what stays between steps are measured."""
OWN_KERNELS: Final = "wider for errors of the profile's own kernels"
_TABLES: Final[Mapping[type, str]] = {
    Gemm: "gemm",
    AttentionCore: "attention",
    Elementwise: "elementwise",
}
"""Operations whose kernels a profile may bring along, with the table of their constants."""
OTHER_SOFTWARE: Final = "software that was not fitted"
_TIMES: Final = ("time_s", "ttft_s", "tpot_s")
_RATES: Final = (
    *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_user", "mfu", "hfu"),
    *("tflops_per_gpu", "tflops_per_gpu_full_attention", "hardware_tflops_per_gpu"),
)
_FIGURES: Final = {"e2e_latency": WHOLE, "tpot": NEXT, "output_throughput_total": RATE}


class Range(NamedTuple):
    """Between which values nine of ten measurements of a figure lie, in the figure's own unit."""

    low: Any
    high: Any
    like: str
    """Which rows it is from, in words."""
    rows: int
    distance: str = ""
    """How far the prediction is from them, where it is outside, in words."""


def ranges_of(estimate: Estimate) -> dict[str, Range]:
    """Return the 90 % interval of each figure that has one, by its name.

    >>> from shardcost import Decode, Layout, estimate
    >>> step = Decode(batch=64, context_tokens=4096)
    >>> decoding = estimate("llama3-70b", "h100_sxm", Layout(tp=8), step)
    >>> speed = ranges_of(decoding)["tokens_per_s"]
    >>> bool(speed.low < decoding.tokens_per_s < speed.high)
    True
    """
    like = residuals_of(estimate)
    less, more = _share_left(estimate, like), exp(like.high)
    ends = dict.fromkeys(_TIMES, (less, more)) | dict.fromkeys(_RATES, (1 / more, 1 / less))
    known = {
        name: Range(
            getattr(estimate, name) * low,
            getattr(estimate, name) * high,
            like.like,
            like.rows,
            like.distance,
        )
        for name, (low, high) in ends.items()
        if getattr(estimate, name) is not None
    }
    standing = kernel_standing(estimate.cluster, estimate.workload.part_dtype())
    like = residuals_like(
        "comm_fraction", standing=standing, links=links_of(estimate.cluster.tiers[0])
    )
    share = around(estimate.comm_share, like)
    known["comm_share"] = share._replace(high=smallest(share.high, 1.0))
    memory = residuals_of_memory(estimate)
    if memory is not None:
        known["memory_bytes"] = around(estimate.memory_bytes, memory)
    return known


def around(value: Any, like: Residuals) -> Range:
    """Return the interval about a predicted value that residuals of measurements make."""
    ends = value * exp(like.low), value * exp(like.high)
    return Range(*ends, like.like, like.rows, like.distance)


_MEASURED_PEAKS: Final = "megatron_core"
"""The framework whose peaks were measured; of another, what is allocated between steps was."""


def residuals_of_memory(estimate: Estimate) -> Residuals | None:
    """Return the residuals of what training runs allocated; None in serving.

    No serving run's memory was measured: what training runs were off by says nothing of a KV cache
    and an engine's reserve.
    """
    if not isinstance(estimate.workload, Train):
        return None
    held = held_band(estimate.memory_bytes)
    if estimate.software.name == _MEASURED_PEAKS:
        like = residuals_like("memory_runs", figure=PEAK, layers=_layers(estimate.model), held=held)
    else:
        pipeline = "several stages" if anywhere(estimate.layout.pp > 1) else "one stage"
        like = residuals_like("memory", pipeline=pipeline, held=held)
    return like._replace(like=f"{like.like} of training runs")


def held_band(held_bytes: Any) -> str:
    """Return the range that a predicted footprint is in; of many, that of the smallest.

    What no formula counts is much the same for all, and so a larger share of little.
    """
    least = held_bytes.min() if is_array(held_bytes) else held_bytes
    return next(name for name, most in _HELD.items() if least <= most)


_HELD: Final = {
    "up to 4 GiB": 4 * 2**30,
    "up to 8 GiB": 8 * 2**30,
    "above 8 GiB": inf,
}


def interval_of(estimate: Estimate) -> Interval:
    """Return the 90 % interval of an estimate's time; arrays where the time is one."""
    like = residuals_of(estimate)
    low, high = estimate.time_s * _share_left(estimate, like), estimate.time_s * exp(like.high)
    return Interval(low, high, like.like, like.rows, like.distance)


def _share_left(estimate: Estimate, like: Residuals) -> Any:
    """Return the low end of a time over the time: never less than the device's datasheet allows."""
    return largest(exp(like.low), least_share(estimate))


def least_share(estimate: Estimate) -> Any:
    """Return what the datasheet leaves of a time at least, over the time."""
    return smallest(1.0, bound_s(estimate) / estimate.time_s)


def bound_s(estimate: Estimate) -> Any:
    """Return what no step beats: its FLOP at peak and its bytes at the memory's rate.

    The roofline of all GEMMs and attention of the rank that sets the pace together (Williams,
    Waterman and Patterson, CACM 52(4), 2009). Of an array of layouts, the FLOP alone.
    """
    from shardcost.estimate.roofline import moved_bytes

    device = estimate.cluster.device
    flop_s: Any = 0.0
    moved: Any = 0.0
    for entry in estimate.entries:
        op = entry.op
        if isinstance(op, Collective | Elementwise):
            continue
        flop_s = flop_s + entry.flops / device.peak(device.multiplied(op.dtype).product)
        if not is_array(estimate.time_s):
            moved += entry.times * moved_bytes(op)
    return largest(flop_s, moved / device.memory_bytes_per_s)


def residuals_of(estimate: Estimate) -> Residuals:
    """Return the residuals of measured runs like an estimate.

    Farther ones where figures of the machine were changed, where a profile predicts its own
    kernels worse, and where the generic library runs: then by its interval, as far as the time is
    communication that nothing hides.
    """
    run = (estimate.model, estimate.cluster, estimate.layout, estimate.workload, estimate.software)
    like = _residuals_of_runs(*run)
    if estimate.machine.kernels.sections:
        like = _at_least(like, _reach_of_own_kernels(estimate))
    return _widened(like, estimate.cluster, estimate.layout, lambda: estimate.comm_share)


def farthest_residuals(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, software: Software
) -> Residuals:
    """Return residuals that reach as far as those of any layout on as many GPUs, or farther.

    What depends on a layout's parts is taken at its most: all of the time in a profile's kernels,
    and all of it in collectives of the generic library.
    """
    like = _residuals_of_runs(model, cluster, layout, workload, software)
    off = _errors_of_own_kernels(machine_of(cluster, software))
    like = _at_least(like, log(1 + max(off.values(), default=0.0)))
    return _widened(like, cluster, layout, lambda: 1.0)


def _widened(
    like: Residuals, cluster: Cluster, layout: Layout, exposed: Callable[[], Any]
) -> Residuals:
    """Return residuals that reach farther for changed figures and the generic library.

    Args:
        like: The residuals of similar measurements.
        cluster: Where it runs.
        layout: Its degrees.
        exposed: Returns the share of the time that is communication which nothing hides.
    """
    more, devices, generic = widening(cluster), layout.devices, None
    if anywhere(devices > 1) and default_library(cluster) == GENERIC:
        generic = residuals_like(
            GENERIC, span=_span(cluster, devices), links=links_of(cluster.tiers[0])
        )
    if not more and generic is None:
        return like
    low, high, distance = like.low - more, like.high + more, [like.distance]
    if more:
        distance.append(CHANGED)
    if generic is not None:
        share = exposed()
        low, high = low + share * generic.low, high + share * generic.high
        distance.append("collectives by the generic library")
    return like._replace(low=low, high=high, distance="; ".join(filter(None, distance)))


def _reach_of_own_kernels(estimate: Estimate) -> Any:
    """Return how far off a step may be by the kernels of a profile, as a logarithm.

    For each kernel the 90th percentile of the errors of points left out of its fit (`Fit.p90_pct`
    of a profile), by its share of the time: errors of one kernel are taken to have one sign.
    """
    off = _errors_of_own_kernels(estimate.machine)
    off_s: Any = 0.0
    for entry in estimate.entries:
        off_s = off_s + off.get(_TABLES.get(type(entry.op), ""), 0.0) * entry.exposed_s
    return log(2) * log2(1 + off_s / estimate.time_s)


def _errors_of_own_kernels(machine: Machine) -> dict[str, float]:
    """Return how far off the kernels of a profile are, as a share, by table; none without one."""
    off: dict[str, float] = {}
    for (table, _), section in machine.kernels.sections.items():
        off[table] = max(off.get(table, 0.0), section.fit.p90_pct / 100)
    return off


def _at_least(like: Residuals, reach: Any) -> Residuals:
    """Return residuals that reach at least so far to both sides."""
    if not anywhere((reach > like.high) | (-reach < like.low)):
        return like
    distance = "; ".join(filter(None, (like.distance, OWN_KERNELS)))
    low, high = smallest(like.low, -reach), largest(like.high, reach)
    return like._replace(low=low, high=high, distance=distance)


def _residuals_of_runs(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, software: Software
) -> Residuals:
    """Return the residuals of measured runs like one, whatever was changed."""
    fitted = software.fit is not None and software.fit.of_runs
    name = software.measured_as if fitted else OTHER_SOFTWARE
    place = (machine_of(cluster), name, layout)
    if isinstance(workload, Train):
        facts = facts_of_training(*place, workload.dtype, model)
        return residuals_like("training", gpus=layout.devices, **facts)
    figure = "static tpot" if isinstance(workload, Decode) else "static ttft"
    facts = facts_of_inference(*place, workload.part_dtype(), figure, model)
    # The measured engines that decode with mixtures of experts served many users at once.
    mixture = isinstance(workload, Decode) and model.most_experts
    return residuals_like("serving" if mixture else "inference", **facts)


def facts_of_training(
    machine: Machine, software: str, layout: Layout, dtype: str, model: Model
) -> dict[str, str]:
    """Return what decides which rows a training run is like."""
    return {
        "standing": kernel_standing(machine, dtype),
        "span": _span(machine.cluster, layout.devices),
        **_kinds(machine.cluster, dtype, model),
        **_ran_by(software),
    }


def _layers(model: Model) -> str:
    return "mixture of experts" if model.most_experts else "dense model"


def _kinds(cluster: Cluster, dtype: str, model: Model) -> dict[str, str]:
    """Return the kind of model, of devices and of the arithmetic of most weights."""
    bits = BITS[cluster.device.multiplied(dtype).product]
    return {
        "layers": _layers(model),
        "vendor": "NVIDIA" if cluster.device.vendor == "nvidia" else "another vendor",
        "format": f"{bits:g}-bit GEMMs",
    }


def facts_of_inference(
    machine: Machine, software: str, layout: Layout, dtype: str, figure: str, model: Model
) -> dict[str, str]:
    """Return what decides which rows an inference run is like.

    Args:
        machine: Where it runs.
        software: The engine, as the catalog names it, or `OTHER_SOFTWARE`.
        layout: Its degrees.
        dtype: The format of its products.
        figure: Batching and metric, such as ``static ttft``.
        model: What runs.
    """
    batching, _, metric = figure.rpartition(" ")
    first = FIRST if batching == "static" else LOADED_FIRST
    return {
        "standing": kernel_standing(machine, dtype),
        "figure": _FIGURES.get(metric, first),
        "links": links_of(machine.cluster.tiers[0]) if anywhere(layout.devices > 1) else "one GPU",
        **_kinds(machine.cluster, dtype, model),
        **_ran_by(software),
    }


def _ran_by(software: str) -> dict[str, str]:
    if software == OTHER_SOFTWARE:
        return {"software": OTHER_SOFTWARE, "of": "any"}
    return {"software": "any", "of": software}


def _span(cluster: Cluster, devices: Any) -> str:
    return "one domain" if not anywhere(devices > cluster.tiers[-1].gpus) else "across nodes"


def kernel_standing(cluster: Cluster | Machine, dtype: str) -> str:
    """Return whether the kernels of a device were measured, else how near the measured one is."""
    machine = machine_of(cluster)
    kernels = machine.kernels
    standing = standing_of(kernels.gemm(dtype), kernels.like)
    if standing == MEASURED and kernels.sections and not _has_runs_alike(kernels.like):
        return OTHER_ARCHITECTURE
    if standing == MEASURED and kernels.changed:
        return SAME_ARCHITECTURE
    return standing


def _has_runs_alike(device: Device) -> bool:
    """Return whether the catalog has measured kernels of a device's architecture.

    Of other architectures (a CPU that a profile describes) no run was measured, whoever's kernels.
    """
    measured = (catalog.cluster_named(name).device for name in catalog.names("gemm"))
    return any(each.architecture == device.architecture for each in measured)


def standing_of(section: Section, device: Device) -> str:
    """Return whether constants are a device's own, else how near the measured one is."""
    if section.inherited_from is None:
        return MEASURED
    measured = Cluster.named(section.inherited_from).device
    return architectures_apart(device.architecture, [measured.architecture])
