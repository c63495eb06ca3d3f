"""Predicts which share of time goes to tensor-parallel communication, in percent.

A row is a prefill, a step of decoding, one layer of them, one product with its collective, or an
engine under load. Training rows that state neither batch nor sequence are refused.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.estimate.pieces import PassParts
from shardcost.estimate.result import Estimate
from shardcost.formats.tables import Row, Table
from shardcost.kernels.gemm import gemm_time_s
from shardcost.layout import Layout
from shardcost.load.engine import Engine, under_load
from shardcost.machine import CATALOG, Fitted, Machine, machine_of
from shardcost.software import Software
from shardcost.validate.inference import known_model
from shardcost.validate.predictions import Derived, Predictions, by_row, whole_cell

MEASURED: Final = "comm_fraction_pct"
_MACHINES: Final = (("H100", "h100_sxm"), ("A100", "a100_sxm"), ("L20 ", "l20"))
"""How the name of a row's device begins, and the cluster of the catalog that it is in."""
_LENGTHS: Final = re.compile(r"serving \((\d+), (\d+)\)")
_PRODUCT: Final = re.compile(r"MLP (\d+)x(\d+) (AG\+GEMM|GEMM\+RS)")
_MULTIMEM: Final = "tokenweave"
"""Runs whose all-reduces ran by multimem instructions."""


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted share of every row, in percent."""
    return by_row(table, lambda row: 100 * share_of(row, fitted))


def share_of(row: Row, fitted: Fitted = CATALOG) -> float:
    """Return the share of communication in one row's time."""
    if row["phase"].startswith("training"):
        raise BadValueError("phase", row["phase"], "of a run whose batch and sequence are stated")
    software = _software(row)
    machine = machine_of(cluster_of(row["gpu"]), software, fitted)
    tp = whole_cell(row, "tp")
    product = _PRODUCT.fullmatch(row["model"])
    if product:
        return _beside_product(product, machine, tp, whole_cell(row, "tokens_or_seq"))
    engine = Engine(
        known_model(row["model"].replace(" layer", "").replace(" FP8", "")),
        machine,
        Layout(tp=tp),
        software,
        {"dtype": "fp8" if "FP8" in row["model"] else "bf16"},
    )
    lengths = _LENGTHS.fullmatch(row["phase"])
    if lengths:
        return _under_load(engine, row, *map(int, lengths.groups()))
    if row["phase"] not in {"prefill", "decode"}:
        raise UnknownNameError("phase", row["phase"], ("prefill", "decode", "serving (in, out)"))
    tokens, batch = whole_cell(row, "tokens_or_seq"), int(row["batch"] or 1)
    work = engine.prefill if row["phase"] == "prefill" else engine.decode
    comm, whole = _comm_and_whole(work(batch, tokens), row)
    return float(comm / whole)


def _comm_and_whole(estimate_of_row: Estimate, row: Row) -> tuple[Any, Any]:
    """Return the seconds of communication, and of all; of one layer where the row is of one."""
    if "layer" in row["model"].split():
        layer = PassParts.of(estimate_of_row.ledger.shares, "forward")
        return layer.exposed_s["tp"], layer.time.device_s
    return estimate_of_row.exposed_s["tp"], estimate_of_row.time_s


def _under_load(engine: Engine, row: Row, prompt_tokens: int, output_tokens: int) -> float:
    load = under_load(engine, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    prefill, prefill_all = _comm_and_whole(load.prefill, row)
    step, step_all = (part.mean() for part in _comm_and_whole(load.decode, row))
    passes = load.requests / load.prefill.workload.batch  # type: ignore[attr-defined]
    comm = passes * prefill + output_tokens * step
    return float(comm / (passes * prefill_all + output_tokens * step_all))


def _beside_product(match: re.Match[str], machine: Machine, tp: int, tokens: int) -> float:
    """Return the share of a collective that feeds a product, or follows it."""
    hidden, width = int(match[1]), int(match[2])
    gathers = match[3] == "AG+GEMM"
    m, n, k = (tokens, width // tp, hidden) if gathers else (tokens, hidden, width // tp)
    name = "all_gather" if gathers else "reduce_scatter"
    comm = collective_time(name, 2 * tokens * hidden, machine, tp).time_s
    return float(comm / (comm + gemm_time_s(machine.kernels, "bf16", m, n, k)))


def cluster_of(gpu: str) -> Cluster:
    """Return the cluster of the catalog that has a device."""
    name = next((result for start, result in _MACHINES if gpu.startswith(start)), None)
    if name is None:
        raise UnknownNameError("gpu", gpu, [start for start, _ in _MACHINES])
    return Cluster.named(name)


def _software(row: Row) -> Software:
    """Return the engine of a row; products and collectives added up were NCCL's."""
    if row["dataset"].startswith(_MULTIMEM):
        return Software.named("tokenweave")
    software = Software.named("vllm")
    by_nccl = any(word in row["method"] for word in ("NCCL", "sum of measured ops"))
    return replace(software, library="nccl") if by_nccl else software


DERIVED: Final[Derived] = {}
