"""What files mean: each reading beside what is found in it, by the module for its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardcost.catalog import cluster_named
from shardcost.catalog.reported import cluster_reporting
from shardcost.cluster import Cluster
from shardcost.formats.detect import ProfileFile
from shardcost.formats.kineto import Trace
from shardcost.formats.nccl_xml import NcclGraphs, NcclTopology
from shardcost.formats.nvidia_smi import DeviceMatrix
from shardcost.formats.reading import MeasurementLog, Reading
from shardcost.formats.serving_results import ServingResults
from shardcost.inspect import log as log_inspection
from shardcost.inspect import topology as topology_inspection
from shardcost.inspect import trace as trace_inspection
from shardcost.inspect.verdict import Verdict, judged
from shardcost.load.deployment import Deployment
from shardcost.machine.libraries import profile_calibrations, profile_in
from shardcost.validate.serving_results import Compared, compared


@dataclass(frozen=True, eq=False)
class ServingFindings:
    """The runs of a serving benchmark, each beside its prediction where a deployment is given."""

    deployment: Deployment | None
    runs: tuple[Compared, ...]


@dataclass(frozen=True, eq=False)
class Inspected:
    """A file, or the traces of several ranks of one job, and what was found in it."""

    readings: tuple[Reading, ...]
    findings: Any
    """Of the kind that the file's inspection returns; None where the reading says it all."""
    verdict: Verdict | None = None
    """Whether what was measured is as it should be, of logs of collectives."""

    @property
    def reading(self) -> Reading:
        """The first, or only, file."""
        return self.readings[0]


def inspected(
    readings: Sequence[Reading],
    cluster: Cluster | None = None,
    network: str | None = None,
    deployment: Deployment | None = None,
) -> list[Inspected]:
    """Return what files mean: one finding for each, and one for all traces together.

    Args:
        readings: What was read.
        cluster: The machine, if the caller knows it; else files that name their GPUs say it.
        network: Joins the nodes of the machine that a file names.
        deployment: What serving benchmarks were run on, if the caller knows it.
    """
    traces = tuple(reading for reading in readings if isinstance(reading, Trace))
    others = (reading for reading in readings if not isinstance(reading, Trace))
    results = [_inspected(reading, cluster, network, deployment) for reading in others]
    if traces:
        device = next((trace.device for trace in traces if trace.device), "")
        there = cluster or _reported(device, network)
        results.append(Inspected(traces, trace_inspection.inspected(traces, there)))
    return results


def _inspected(
    reading: Reading, cluster: Cluster | None, network: str | None, deployment: Deployment | None
) -> Inspected:
    findings: Any = None
    if isinstance(reading, MeasurementLog):
        findings = tuple(
            log_inspection.inspected(run, cluster or _reported(run.device, network))
            for run in reading.runs
        )
    elif isinstance(reading, ServingResults):
        findings = ServingFindings(
            deployment,
            tuple(
                Compared(run, None, ()) if deployment is None else compared(deployment, run)
                for run in reading.runs
            ),
        )
    elif isinstance(reading, DeviceMatrix | NcclTopology | NcclGraphs):
        findings = topology_inspection.inspected(reading, cluster)
    elif isinstance(reading, ProfileFile):
        profile = profile_in(reading.path)
        findings = (profile, profile_calibrations(profile))
    verdict = judged(findings) if isinstance(reading, MeasurementLog) else None
    return Inspected((reading,), findings, verdict)


def _reported(device: str, network: str | None) -> Cluster | None:
    """Return the machine whose GPUs a file names; None where it names none that is known."""
    name = cluster_reporting(device) if device else None
    return None if name is None else cluster_named(name, network)
