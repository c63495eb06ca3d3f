"""The function that joins the rooms: `estimate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from shardcost import resolve
from shardcost.catalog import software_named
from shardcost.checks import is_array
from shardcost.cluster import Cluster
from shardcost.dtypes import weight_format
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate.ledger import Ledger
from shardcost.estimate.placement import strides
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.layout import Layout
from shardcost.machine import Machine, machine_of
from shardcost.model import Model
from shardcost.program.assemble import program_of
from shardcost.resolve import GivenCluster, GivenModel, GivenNetwork, GivenSoftware
from shardcost.software import Software, default_software
from shardcost.workload import Train, Workload

_MOST_ESTIMATES: Final = 512
"""Kept per machine before all are dropped: some twenty megabytes, through which Python's garbage
collector walks again and again."""


def estimate(
    model: GivenModel,
    cluster: GivenCluster | Machine,
    layout: Layout,
    workload: Workload,
    *,
    software: GivenSoftware | None = None,
    network: GivenNetwork = None,
) -> Estimate:
    """Return what a model costs under a layout on a cluster.

    >>> from shardcost import Layout, Prefill
    >>> prompt = Prefill(batch=1, prompt_tokens=8192)
    >>> result = estimate("llama3-70b", "h100_sxm", Layout(tp=8), prompt)
    >>> 0.2 < result.ttft_s < 0.6
    True

    Args:
        model: A `Model`, the name or Hugging Face id of one in the catalog, or a file: a
            ``config.json``, the folder that holds it, or a ``.toml`` in the catalog's form.
        cluster: A `Cluster`, the name of one (``tpu_v5p:4x4x8`` names a slice of a torus), a
            hardware file or calibrated profile, or a `Machine` with constants of its own.
        layout: Degrees may be arrays that broadcast: one call prices them all.
        workload: `Train`, `Prefill` or `Decode`.
        software: The framework or engine, by name or file; Megatron Core or TensorRT-LLM if none
            is named, or what runs on devices of other vendors
            (`shardcost.software.default_software`).
        network: What joins the nodes, by name or file, if the layout spans several and the cluster
            does not say.
    """
    model, cluster = resolve.model(model), resolve.cluster(cluster, network)
    for name, given, kind in (("layout", layout, Layout), ("workload", workload, Workload)):
        if not isinstance(given, kind):
            raise BadTypeError(name, given, f"a {kind.__name__}")
    runs = software_of(software, workload, [cluster])
    workload = workload.in_formats_of(model, narrow_cache=runs.narrow_cache)
    if isinstance(workload, Train):
        device = (cluster.cluster if isinstance(cluster, Machine) else cluster).device
        wanted = weight_format(workload.dtype)  # only weights that stay are widened
        if device.multiplied(workload.dtype).input_bytes > wanted.input_bytes:
            name = f"number format of {device.name}"
            raise UnknownNameError(name, workload.dtype, device.peak_flop_per_s)
    if isinstance(cluster, Cluster) and not is_array(layout.devices):
        cluster = cluster.holding(int(layout.devices))
    machine = machine_of(cluster, runs)
    key = (model, layout, workload, runs)
    known: dict[Any, Estimate] | None = None
    if not (layout.has_arrays or workload.has_arrays or runs.has_arrays):
        # What was asked for before is asked for again: by sweeps, simulations, sliders.
        known = machine.memo.setdefault("estimates", {})
        found = known.get(key)
        if found is not None:
            return found
    ledger = ledger_of(model, machine, layout, workload, runs)
    found = Estimate(model, machine, layout, workload, runs, ledger, ledger.time_s())
    if known is not None:
        if len(known) >= _MOST_ESTIMATES:
            known.clear()
        known[key] = found
    return found


def ledger_of(
    model: Model,
    machine: Machine,
    layout: Layout,
    workload: Workload,
    software: Software,
) -> Ledger:
    """Return the priced operations of a layout."""
    program = program_of(model, layout, workload, software)
    s, stages = program.setting, program.stages
    sizes = (s.tokens, s.context_tokens, stages.first.weights.total, stages.middle.layers)
    arrays = layout.has_arrays or any(map(is_array, (*sizes, program.micro_batches)))
    known = None
    if arrays:
        from shardcost.estimate.alike import pieces_by_layer  # plain estimates need no NumPy

        known = pieces_by_layer(model, machine, layout, workload, software, program)
    return Ledger.of(program, Prices(machine, strides(layout), arrays=arrays), known)


def software_of(
    given: GivenSoftware | None, workload: Workload, clusters: Iterable[Cluster | Machine] = ()
) -> Software:
    """Return a software, the usual one for the workload and the devices if none is given."""
    phase = workload.phase
    if given is not None:
        return resolve.software(given).in_phase(phase)
    nouns = (each.cluster if isinstance(each, Machine) else each for each in clusters)
    usual = default_software(phase, {cluster.device.vendor for cluster in nouns})
    return software_named(usual).in_phase(phase)
