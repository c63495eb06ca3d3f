"""What decides which rows a measured row is like: the facts that intervals are looked up by.

Facts are known before anything is measured: whose constants a prediction rests on, what kind of
thing it is of, and in which regime. Whole runs and collectives have theirs beside their formulas
(`shardcost.estimate.interval`, `shardcost.collectives.interval`); here are those of kernels, and
what turns rows of a table into either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from shardcost.catalog.errors import Facts, residuals_like
from shardcost.collectives import interval as of_collectives
from shardcost.collectives.library_time import collective_time
from shardcost.dtypes import BITS
from shardcost.errors import ShardcostError
from shardcost.estimate import interval as of_runs
from shardcost.estimate.interval import OTHER_SOFTWARE, kernel_standing, links_of, standing_of
from shardcost.formats.tables import Row, Table
from shardcost.kernels.constants import Section, section_measured_with, section_of
from shardcost.kernels.gemm import gemm_section
from shardcost.validate import (
    attention,
    collectives,
    comm_fraction,
    gemm,
    inference,
    layer_ops,
    training,
)
from shardcost.validate.predictions import Floats, whole_cell

_SMALL_BYTES: Final = 2**20
_WIDE: Final = 16
_CONVERTING: Final = "trtllm"
"""Whose products in fewer bits were measured with the conversion of their input."""


def facts_of_rows(
    table: Table, predicted: Iterable[bool] | None = None, *, ignore_versions: bool = False
) -> list[Facts]:
    """Return the facts of every row of a table; none of rows that cannot be predicted.

    Args:
        table: What was measured.
        predicted: Which rows can be, where that is known.
        ignore_versions: Predict every row by a library's newest version.
    """
    if table.kind == "collectives":
        return _of_collectives(table, ignore_versions=ignore_versions)
    if table.kind == "gemm":
        return _of_gemms(table)
    of = _FACTS[table.kind]
    found: list[Facts] = []
    wanted = [True] * table.rows if predicted is None else predicted
    for row, is_wanted in zip(table.records(), wanted, strict=True):
        try:
            found.append(of(row) if is_wanted else {})
        except ShardcostError:
            found.append({})
    return found


def factors_of_rows(
    table: Table, predicted: Iterable[bool] | None = None, *, ignore_versions: bool = False
) -> tuple[Floats, Floats]:
    """Return what predictions are times at the low and at the high end of their 90 % intervals."""
    every = facts_of_rows(table, predicted, ignore_versions=ignore_versions)
    ends = [residuals_like(table.kind, **facts)[:2] for facts in every]
    low, high = np.exp(np.array(ends, dtype=np.float64).reshape(-1, 2).T)
    return low, high


def _of_collectives(table: Table, *, ignore_versions: bool) -> list[Facts]:
    found: list[Facts] = [{}] * table.rows
    cases = collectives.cases(table, ignore_versions=ignore_versions)
    for case, places in cases.rows.items():
        try:
            for place, facts in zip(
                places, facts_of_collective(case, cases.sizes[places, 0]), strict=True
            ):
                found[place] = facts
        except ShardcostError:
            continue
    return found


def facts_of_collective(
    case: collectives.CollectiveCase, sizes: Floats, **constants: object
) -> list[Facts]:
    """Return the facts of a collective at some sizes, by the catalog's constants or those given."""
    result = collective_time(
        case.collective,
        float(sizes[0]),
        collectives.machine(case.cluster, case.network),
        case.gpus,
        case.nodes,
        library=case.library,
        mode=case.mode,
        **constants,  # type: ignore[arg-type]
    )
    common = of_collectives.facts_of(result)
    if case.single_process:
        common["mode"] = "single process"
    bands = list(of_collectives.BANDS)
    return [common | {"band": bands[place]} for place in of_collectives.band_of(sizes)]


def _of_gemms(table: Table) -> list[Facts]:
    found: list[Facts] = [{}] * table.rows
    cases = gemm.cases(table)
    for case, places in cases.rows.items():
        try:
            common = _of_gemm(case)
        except ShardcostError:
            continue
        for place in places:
            m = cases.sizes[place, 0]
            band = next(name for name, most in gemm.M_BANDS.items() if m <= most)
            found[place] = common | {"rows": f"{band} rows"}
    return found


def _of_gemm(case: gemm.GemmCase) -> dict[str, str]:
    device = gemm.device_of(case.gpu)
    section = gemm_section(device, case.dtype)
    if case.software:
        section = section_measured_with("gemm", device, case.software, section.name)
    return {
        "standing": standing_of(section, device),
        "input": _conversion(case, section),
        "format": f"{BITS[case.dtype]:g} bits",
    }


def _conversion(case: gemm.GemmCase, section: Section) -> str:
    """Return whether the constants have the conversion of the input in them just as the row has."""
    narrow = BITS[case.dtype] < _WIDE
    with_it = section.fit.measured_with == _CONVERTING
    return "converted otherwise" if narrow and with_it != bool(case.software) else "any"


def _of_attention(row: Row) -> Facts:
    device = attention.device_named(row["gpu"])
    return {
        "standing": standing_of(section_of("attention", device, row["phase"]), device),
        "phase": row["phase"],
        "context": attention.context_band(row),
    }


def _of_elementwise(row: Row) -> Facts:
    device = attention.device_named(row["gpu"])
    size = "up to 1 MiB" if whole_cell(row, "bytes") <= _SMALL_BYTES else "above 1 MiB"
    return {
        "standing": standing_of(section_of("elementwise", device, "elementwise"), device),
        "size": size,
    }


def _of_layer(row: Row) -> Facts:
    device = attention.device_named(row["gpu"])
    return {"standing": kernel_standing(device, "bf16"), "pass": row["pass"]}


def _of_decoded(row: Row) -> Facts:
    device = attention.device_named(row["gpu"])
    part = row["part"].partition(":")[0]
    sections = {
        "gemm": lambda: gemm_section(device, "bf16"),
        "attention": lambda: section_of("attention", device, attention.FLASH_DECODE),
    }
    section = sections.get(part, lambda: section_of("elementwise", device, "elementwise"))()
    return {"standing": standing_of(section, device), "part": part}


def _of_overlap(row: Row) -> Facts:
    device = gemm.device_of(row["gpu"])
    return {"standing": standing_of(section_of("gemm", device, "sharing"), device)}


def _of_operator(row: Row) -> Facts:
    cluster = layer_ops.cluster_of(row["gpu"])
    kind = layer_ops.kind(row)
    return {
        "standing": kernel_standing(cluster.device, row.get("dtype") or "bf16"),
        "operator": kind,
        "links": links_of(cluster) if kind in {"collective", "both"} else "any",
    }


def _of_memory(row: Row) -> Facts:
    return {"pipeline": "several stages" if whole_cell(row, "pp") > 1 else "one stage"}


def _of_training(row: Row) -> Facts:
    software, stated = training.software_of(row).name, row.get("framework", "")
    return of_runs.facts_of_training(
        training.machine(row),
        software if _is_named(software, stated) else OTHER_SOFTWARE,
        training.layout_of(row),
        training.train_of(row).dtype,
    )


def _is_named(software: str, stated: str) -> bool:
    """Return whether a row names the software that it is predicted by, and not another like it."""
    words = next((words for start, words in _NAMES if software.startswith(start)), (software,))
    return any(word in stated.lower() for word in words)


_NAMES: Final = (
    ("megatron", ("megatron", "nemo", "mcore")),
    ("trtllm", ("tensorrt", "trtllm", "trt-llm", "nim")),
    ("vllm", ("vllm",)),
    ("llm_foundry", ("foundry",)),
    ("deepspeed_mii", ("deepspeed",)),
)
"""How the name of a software begins, and words by one of which tables call it."""


def _of_inference(row: Row) -> Facts:
    case = inference.case_of(row)
    software = case.software.name
    return of_runs.facts_of_inference(
        case.cluster,
        software if _is_named(software, row["engine"]) else OTHER_SOFTWARE,
        case.layout,
        case.dtype,
        case.figure,
    )


def _of_share(row: Row) -> Facts:
    cluster = comm_fraction._machine(row["gpu"])
    return {"standing": kernel_standing(cluster.device, "bf16"), "links": links_of(cluster)}


_FACTS: Final[Mapping[str, Callable[[Row], Facts]]] = {
    "attention": _of_attention,
    "elementwise": _of_elementwise,
    "layers": _of_layer,
    "decode": _of_decoded,
    "overlap": _of_overlap,
    "layer_ops": _of_operator,
    "memory": _of_memory,
    "training": _of_training,
    "inference": _of_inference,
    "comm_fraction": _of_share,
}
