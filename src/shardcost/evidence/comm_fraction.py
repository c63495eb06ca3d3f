"""Predicts which share of time goes to tensor-parallel communication, in percent.

A row is a prefill, a step of decoding, one layer of them, one product with its collective, or an
engine under load. Training rows that state neither batch nor sequence are refused.

An all-reduce by multimem instructions is one kernel of the engine in which the switch adds up and
replicates (Klenk et al. 2020, An in-network architecture for accelerating shared-memory
multiprocessor collectives, ISCA). It starts like the engine's other kernels of that kind, and then
takes what as many bytes more take NCCL's own in-switch algorithm.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any, Final

from shardcost.cluster import Cluster
from shardcost.collectives.silicon import collective_time
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.estimate.result import Estimate
from shardcost.estimate.serving import Engine, under_load
from shardcost.evidence.inference import known_model
from shardcost.evidence.predictions import Predictions, each_row, whole_cell
from shardcost.evidence.tables import Row, Table
from shardcost.kernels.products import product_time_s
from shardcost.layout import Layout
from shardcost.program.operations import Collective
from shardcost.software import Software

MEASURED: Final = "comm_fraction_pct"
_MACHINES: Final = (("H100", "h100_sxm"), ("A100", "a100_sxm"), ("L20 ", "l20"))
"""How the name of a row's device begins, and the cluster of the catalog that it is in."""
_LENGTHS: Final = re.compile(r"serving \((\d+), (\d+)\)")
_PRODUCT: Final = re.compile(r"MLP (\d+)x(\d+) (AG\+GEMM|GEMM\+RS)")
_PERCENT: Final = 100
_SMALL_BYTES: Final = 4096


def predictions(table: Table, *, ignore_versions: bool = False) -> Predictions:
    """Return the predicted share of every row, in percent."""
    del ignore_versions  # rows name no versions
    return each_row(table, lambda row: _PERCENT * share_of(row))


def share_of(row: Row) -> float:
    """Return the share of communication in one row's time."""
    machine = _machine(row["gpu"])
    tp = whole_cell(row, "tp")
    product = _PRODUCT.fullmatch(row["model"])
    if product:
        return _beside_product(product, machine, tp, whole_cell(row, "tokens_or_seq"))
    engine = Engine(
        known_model(_shape_name(row["model"])),
        machine,
        Layout(tp=tp),
        _software(row),
        "fp8" if "FP8" in row["model"] else "bf16",
    )
    lengths = _LENGTHS.fullmatch(row["phase"])
    if lengths:
        return _under_load(engine, row, *map(int, lengths.groups()))
    if row["phase"] not in {"prefill", "decode"}:
        raise UnknownNameError("phase", row["phase"], ("prefill", "decode", "serving (in, out)"))
    tokens, batch = whole_cell(row, "tokens_or_seq"), int(row["batch"] or 1)
    work = engine.prefill if row["phase"] == "prefill" else engine.decode
    return _share(work(batch, tokens), row)


def multimem_all_reduce_s(cluster: Cluster, ranks: int, size_bytes: Any) -> Any:
    """Return the seconds of an all-reduce by multimem instructions of an engine's own kernel."""
    start = _path_s("vllm", "multicast", cluster, ranks, _SMALL_BYTES)
    twice = _path_s("nccl", "nvls", cluster, ranks, 2 * size_bytes)
    return start + twice - _path_s("nccl", "nvls", cluster, ranks, size_bytes)


def _path_s(library: str, algorithm: str, cluster: Cluster, ranks: int, size_bytes: Any) -> Any:
    paths = collective_time("all_reduce", size_bytes, cluster, ranks, library=library).paths
    found = next((parts for name, parts in paths.items() if name[0] == algorithm), None)
    if found is None:
        raise BadValueError("cluster", cluster.name, f"one with {algorithm} all-reduces")
    return sum(found.values())


def _share(found: Estimate, row: Row) -> float:
    comm, whole = _comm_and_whole(found, row)
    return float(comm / whole)


def _comm_and_whole(found: Estimate, row: Row) -> tuple[Any, Any]:
    """Return the seconds of communication, and of all; of one layer where the row is of one."""
    if "layer" in row["model"].split():
        layer = found.work.layer.forward
        return layer.exposed_s["tp"], layer.device_s
    priced = found.exposed_s["tp"]
    comm = _multimem_s(found) if "multimem" in _all_reduce(row) else priced
    return comm, found.time_s - priced + comm


def _multimem_s(found: Estimate) -> Any:
    pieces = [(each.count, each.passes.forward) for each in found.program.layers]
    pieces += [(1, found.program.first.forward), (1, found.program.last.forward)]
    return sum(
        count * op.count * multimem_all_reduce_s(found.cluster, op.ranks, op.size_bytes)
        for count, operations in pieces
        for op in operations
        if isinstance(op, Collective) and op.group == "tp"
    )


def _all_reduce(row: Row) -> str:
    """Return which all-reduce ran: all runs of one data set had the same."""
    return "multimem" if row["dataset"].startswith("tokenweave") else row["method"]


def _under_load(engine: Engine, row: Row, prompt_tokens: int, output_tokens: int) -> float:
    load = under_load(engine, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    prefill, prefill_all = _comm_and_whole(load.prefill, row)
    step, step_all = (part.mean() for part in _comm_and_whole(load.decode, row))
    passes = load.requests / load.prefill.workload.batch  # type: ignore[attr-defined]
    comm = passes * prefill + output_tokens * step
    return float(comm / (passes * prefill_all + output_tokens * step_all))


def _beside_product(found: re.Match[str], machine: Cluster, tp: int, tokens: int) -> float:
    """Return the share of a collective that feeds a product, or follows it."""
    hidden, width = int(found[1]), int(found[2])
    gathers = found[3] == "AG+GEMM"
    m, n, k = (tokens, width // tp, hidden) if gathers else (tokens, hidden, width // tp)
    name = "all_gather" if gathers else "reduce_scatter"
    comm = collective_time(name, 2 * tokens * hidden, machine, tp).time_s
    return float(comm / (comm + product_time_s(machine.device, "bf16", m, n, k)))


def _shape_name(name: str) -> str:
    return name.replace(" layer", "").replace(" FP8", "")


@cache
def _machine(gpu: str) -> Cluster:
    name = next((found for start, found in _MACHINES if gpu.startswith(start)), None)
    if name is None:
        raise UnknownNameError("gpu", gpu, [start for start, _ in _MACHINES])
    return Cluster.named(name)


def _software(row: Row) -> Software:
    """Return the engine of a row; profiles of NCCL's all-reduce ran with that library."""
    software = Software.named("vllm")
    return replace(software, library="nccl") if "NCCL" in row["method"] else software
