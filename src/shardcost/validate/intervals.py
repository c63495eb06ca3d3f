"""What decides which rows a measured row is like: the facts that intervals are looked up by.

Facts are known before anything is measured: whose constants a prediction rests on, what kind of
thing it is of, and in which regime. Whole runs and collectives have theirs beside their formulas
(`shardcost.estimate.interval`, `shardcost.collectives.interval`); here are those of kernels, and
what turns rows of a table into either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from shardcost.catalog.errors import (
    MEASURED,
    OTHER_ARCHITECTURE,
    SAME_ARCHITECTURE,
    Facts,
    residuals_like,
)
from shardcost.cluster import Cluster, Device
from shardcost.collectives import interval as of_collectives
from shardcost.dtypes import BITS
from shardcost.errors import ShardcostError
from shardcost.estimate import interval as of_runs
from shardcost.estimate.interval import OTHER_SOFTWARE, kernel_standing, standing_of
from shardcost.formats.tables import Row, Table
from shardcost.kernels.experts import GROUPED
from shardcost.machine import CATALOG, Fitted, Machine, machine_of
from shardcost.machine.experts import experts_section
from shardcost.machine.kernels import KernelTable, Section
from shardcost.machine.linear_attention import (
    kind_of,
    linear_attention_section,
    section_names,
)
from shardcost.validate import (
    attention,
    collectives,
    comm_fraction,
    dispatch,
    experts,
    gemm,
    grouped_gemm,
    inference,
    jitter,
    jitter_steps,
    layer_ops,
    linear_attention,
    memory,
    memory_runs,
    mla,
    serving,
    training,
)
from shardcost.validate.predictions import Case, Cases, Floats, band_of, kernels_of, whole_cell

_SMALL_BYTES: Final = 2**20
_LIKE: Final = {
    "gemm": "gemm",
    "grouped_gemm": "grouped_gemm",
    "prefill": "attention",
    "decode": "attention",
}
"""Whose errors stand for those of a kernel that a user measured."""


def facts_of_rows(
    table: Table, predicted: Iterable[bool] | None = None, *, fitted: Fitted = CATALOG
) -> list[Facts]:
    """Return the facts of every row of a table; none of rows that cannot be predicted.

    Args:
        table: What was measured.
        predicted: Which rows can be, where that is known.
        fitted: The constants that rows are predicted by.
    """
    together = _TOGETHER.get(table.kind)
    if together is not None:
        cases, facts_of = together
        return _by_case(cases(table), lambda case, sizes: facts_of(case, sizes, fitted))
    of = _FACTS[table.kind]
    facts: list[Facts] = []
    wanted = [True] * table.rows if predicted is None else predicted
    for row, is_wanted in zip(table.records(), wanted, strict=True):
        try:
            facts.append(of(row, fitted) if is_wanted else {})
        except ShardcostError:
            facts.append({})
    return facts


def factors_of_rows(
    table: Table, predicted: Iterable[bool] | None = None, *, fitted: Fitted = CATALOG
) -> tuple[Floats, Floats]:
    """Return what predictions are times at the low and at the high end of their 90 % intervals."""
    if table.kind == "kernels":  # as far off as any of its kind
        kinds = [_LIKE.get(kind, "elementwise") for kind in table.columns["kind"]]
        found = {kind: residuals_like(kind)[:2] for kind in set(kinds)}
        low, high = np.exp(np.array([found[kind] for kind in kinds]).reshape(-1, 2).T)
        return low, high
    every = facts_of_rows(table, predicted, fitted=fitted)
    counts = table.columns["gpus"] if table.kind == "training" else [""] * table.rows
    ends = [
        residuals_like(table.kind, gpus=float(gpus) if gpus and facts else None, **facts)[:2]
        for facts, gpus in zip(every, counts, strict=True)
    ]
    low, high = np.exp(np.array(ends, dtype=np.float64).reshape(-1, 2).T)
    return low, high


def _by_case(cases: Cases[Case], facts_of: Callable[[Case, Floats], list[Facts]]) -> list[Facts]:
    facts: list[Facts] = [{}] * len(cases.reasons)
    for case, places in cases.rows.items():
        with suppress(ShardcostError):
            for place, own in zip(places, facts_of(case, cases.sizes[places]), strict=True):
                facts[place] = own
    return facts


def facts_of_dispatch(case: dispatch.DispatchCase, sizes: Floats, on: Machine) -> list[Facts]:
    """Return the facts of rows of dispatch or combine, which all rows of a case share."""
    result = case.result(sizes, on)
    if result.exchange is not None:
        return [{}] * len(sizes)
    return [of_collectives.dispatch_facts_of(result)] * len(sizes)


def facts_of_collective(
    case: collectives.CollectiveCase, sizes: Floats, on: Machine
) -> list[Facts]:
    """Return the facts of a collective at some sizes on a machine."""
    common = of_collectives.facts_of(case.result(float(sizes[0]), on))
    if case.single_process:
        common["mode"] = "single process"
    bands = list(of_collectives.BANDS)
    return [common | {"band": bands[place]} for place in of_collectives.band_of(sizes)]


def _of_gemms(case: gemm.GemmCase, sizes: Floats, fitted: Fitted) -> list[Facts]:
    on = case.kernels(fitted)
    section = on.gemm(case.dtype)
    common = {
        "standing": standing_of(section, on.device),
        "format": f"{BITS[case.dtype]:g} bits",
    }
    return [common | {"rows": f"{band_of(gemm.M_BANDS, m)} rows"} for m in sizes[:, 0]]


def _of_conversion(row: Row, fitted: Fitted) -> Facts:
    if row["figure"] == "gemm_us":
        standing = kernel_standing(Cluster.named(row["gpu"]), "fp8")
    else:
        standing = _standing(row, fitted, "elementwise", "rows_norm")
    return {"standing": standing, "rows": f"{gemm.m_band(row)} rows"}


def _of_experts(case: experts.ExpertCase, sizes: Floats, fitted: Fitted) -> list[Facts]:
    on = kernels_of(case.gpu, fitted)
    section = experts_section(on, case.kernel, case.dtype, case.library)
    return facts_of_experts(case.kernel, case.dtype, sizes, section, on.device)


def facts_of_experts(
    kernel: str, dtype: str, sizes: Floats, section: Section, device: Device
) -> list[Facts]:
    """Return the facts of an expert kernel at some sizes, predicted by some constants."""
    named, _, of_format = section.name.rpartition("-")
    alike = "this kernel" if named == kernel else "its family"
    common = {
        "standing": standing_of(section, device),
        "kernel": alike if of_format == dtype else "another format",
        "weights": experts.weights({"dtype": dtype}),
    }
    pairs, active = sizes[:, experts.PAIRS], sizes[:, experts.ACTIVE]
    bands = (band_of(experts.ROW_BANDS, mean) for mean in pairs / active)
    return [common | {"rows": f"{band} rows per expert"} for band in bands]


def _of_linear(case: linear_attention.LinearCase, sizes: Floats, fitted: Fitted) -> list[Facts]:
    on = kernels_of(case.gpu, fitted)
    kind = kind_of(case.kernel, case.part, case.library, case.version)
    section = linear_attention_section(on, kind, case.op, case.part, case.phase)
    return facts_of_linear(case, section, on.device) * len(sizes)


def facts_of_linear(
    case: linear_attention.LinearCase, section: Section, device: Device
) -> list[Facts]:
    """Return the facts of a kernel of linear attention that is predicted by some constants."""
    kind = kind_of(case.kernel, case.part, case.library, case.version)
    own = section_names(kind, case.op, case.part, case.phase)[0]
    alike = "this kernel" if section.name.startswith(own) else "its family"
    part = f"{case.part}, {case.phase}"
    return [{"standing": standing_of(section, device), "kernel": alike, "part": part}]


def _of_latent(case: mla.LatentCase, sizes: Floats, fitted: Fitted) -> list[Facts]:
    on = kernels_of(case.gpu, fitted)
    return facts_of_latent(case, sizes, case.sections(on), on.device)


def facts_of_latent(
    case: mla.LatentCase, sizes: Floats, sections: Iterable[Section], device: Device
) -> list[Facts]:
    """Return the facts of latent attention at some sizes, predicted by some constants.

    A module rests on constants of attention and of projections: the farther ones count.
    """
    known = list(zip(case.wanted(), sections, strict=True))
    own = all(section.name == wanted.names[0] for wanted, section in known)
    standings = [standing_of(section, device) for _, section in known]
    farthest = (OTHER_ARCHITECTURE, SAME_ARCHITECTURE, MEASURED)
    common = {
        "standing": next(each for each in farthest if each in standings),
        "scope": "products" if case.scope in mla.PRODUCTS else case.scope,
        "kernel": "this kernel" if own else "its family",
    }
    bands = (band_of(mla.TOKEN_BANDS, tokens) for tokens in sizes[:, 0] * sizes[:, 2])
    return [common | {"cached": f"{band} tokens"} for band in bands]


def _of_grouped_gemm(row: Row, fitted: Fitted) -> Facts:
    on = kernels_of(row["gpu"], fitted)
    section = experts_section(on, GROUPED, row.get("dtype") or "bf16")
    rows = f"{grouped_gemm.rows_per_expert(row)} rows per expert"
    return {"standing": standing_of(section, on.device), "rows": rows}


def _standing(row: Row, fitted: Fitted, table: KernelTable, section: str) -> str:
    on = kernels_of(row["gpu"], fitted)
    return standing_of(on.section(table, section), on.device)


def _of_attention(row: Row, fitted: Fitted) -> Facts:
    return {
        "standing": _standing(row, fitted, "attention", row["phase"]),
        "phase": row["phase"],
        "context": attention.context_band(row),
    }


def _of_elementwise(row: Row, fitted: Fitted) -> Facts:
    standing = _standing(row, fitted, "elementwise", "elementwise")
    return {"standing": standing, "size": _size_band(row)}


def _size_band(row: Row) -> str:
    return "up to 1 MiB" if whole_cell(row, "bytes") <= _SMALL_BYTES else "above 1 MiB"


def _of_layer(row: Row, fitted: Fitted) -> Facts:
    on = machine_of(Cluster.named(row["gpu"]), fitted=fitted)
    return {"standing": kernel_standing(on, "bf16"), "pass": row["pass"]}


def _of_decoded(row: Row, fitted: Fitted) -> Facts:
    on = kernels_of(row["gpu"], fitted)
    part = row["part"].partition(":")[0]
    if part == "gemm":
        section = on.gemm("bf16")
    elif part == "attention":
        section = on.section("attention", attention.FLASH_DECODE)
    else:
        section = on.section("elementwise", "elementwise")
    return {"standing": standing_of(section, on.device), "part": part}


def _of_operator(row: Row, fitted: Fitted) -> Facts:
    cluster = layer_ops.cluster_of(row["gpu"])
    on = machine_of(cluster, fitted=fitted)
    kind = layer_ops.kind(row)
    return {
        "standing": kernel_standing(on, row.get("dtype") or "bf16"),
        "operator": kind,
        "links": of_collectives.links_of(cluster.tiers[0])
        if kind in {"collective", "both"}
        else "any",
    }


def _of_training(row: Row, fitted: Fitted) -> Facts:
    return of_runs.facts_of_training(
        machine_of(training.machine(row), fitted=fitted),
        _software(training.software_of(row).measured_as, row.get("framework", "")),
        training.layout_of(row),
        training.train_of(row).dtype,
        training.model_of(row),
    )


def _software(name: str, stated: str) -> str:
    """Return the software that predicts a row, if the row names it and not another like it."""
    words = next((words for start, words in _NAMES if name.startswith(start)), (name,))
    return name if any(word in stated.lower() for word in words) else OTHER_SOFTWARE


_NAMES: Final = (
    ("megatron", ("megatron", "nemo", "mcore")),
    ("trtllm", ("tensorrt", "trtllm", "trt-llm", "nim")),
    ("vllm", ("vllm",)),
    ("llm_foundry", ("foundry",)),
    ("deepspeed_mii", ("deepspeed",)),
)
"""How the name of a software begins, and words by one of which tables call it."""


def _of_inference(row: Row, fitted: Fitted) -> Facts:
    case = inference.case_of(row)
    return of_runs.facts_of_inference(
        machine_of(case.cluster, fitted=fitted),
        _software(case.software.measured_as, row["engine"]),
        case.layout,
        case.dtype,
        case.figure,
        case.model,
    )


_SERVING_FIGURES: Final = {"ttft": "ttft", "tpot": "tpot", "itl": "tpot", "e2e": "e2e_latency"}


def _of_serving(row: Row, fitted: Fitted) -> Facts:
    figure = row["figure"].partition("_")[0]
    pool = serving.point_of(row, fitted).deployment.serving
    return of_runs.facts_of_inference(
        machine_of(pool.engine.cluster, fitted=fitted),
        serving.software(row),
        pool.engine.layout,
        serving.formats_of(row)["dtype"],
        f"in-flight {_SERVING_FIGURES.get(figure, 'output_throughput_total')}",
        pool.engine.model,
    )


def _of_memory(row: Row, _: Fitted) -> Facts:
    return {
        "pipeline": "several stages" if whole_cell(row, "pp") > 1 else "one stage",
        "held": of_runs.held_band(memory.allocated_bytes(row)),
    }


def _of_memory_run(row: Row, _: Fitted) -> Facts:
    return {
        "figure": of_runs.PEAK if row["figure"] == memory_runs.HEADLINE else "between steps",
        "layers": "mixture of experts" if row.get("experts") else "dense model",
        "held": of_runs.held_band(memory_runs.peak_bytes(row)),
    }


def _of_share(row: Row, fitted: Fitted) -> Facts:
    cluster = comm_fraction.cluster_of(row["gpu"])
    standing = kernel_standing(machine_of(cluster, fitted=fitted), "bf16")
    return {"standing": standing, "links": of_collectives.links_of(cluster.tiers[0])}


_OF_REQUESTS: Final = {"ttft_ms": of_runs.LOADED_FIRST, "e2e_ms": of_runs.WHOLE}


_TOGETHER: Final[Mapping[str, tuple[Callable[[Table], Cases[Any]], Callable[..., list[Facts]]]]] = {
    "collectives": (
        collectives.cases,
        lambda case, sizes, fitted: facts_of_collective(case, sizes[:, 0], case.machine(fitted)),
    ),
    "gemm": (gemm.cases, _of_gemms),
    "dispatch": (
        dispatch.cases,
        lambda case, sizes, fitted: facts_of_dispatch(case, sizes, case.machine(fitted)),
    ),
    "experts": (experts.cases, _of_experts),
    "linear_attention": (linear_attention.cases, _of_linear),
    "mla": (mla.cases, _of_latent),
}
"""Kinds whose rows have their facts by case: how to find the cases, and their facts."""
_FACTS: Final[Mapping[str, Callable[[Row, Fitted], Facts]]] = {
    "attention": _of_attention,
    "elementwise": _of_elementwise,
    "elementwise_layer": lambda row, fitted: {
        "standing": _standing(row, fitted, "elementwise", f"layer_{row['op']}"),
        "size": _size_band(row),
    },
    "layers": _of_layer,
    "decode": _of_decoded,
    "grouped_gemm": _of_grouped_gemm,
    "fp8_conversion": _of_conversion,
    "sustained": lambda row, fitted: {
        "standing": _standing(row, fitted, "gemm", "sustained"),
        "figure": row["figure"],
    },
    "overlap": lambda row, fitted: {"standing": _standing(row, fitted, "gemm", "sharing")},
    "layer_ops": _of_operator,
    "memory": _of_memory,
    "memory_runs": _of_memory_run,
    "training": _of_training,
    "inference": _of_inference,
    "serving": _of_serving,
    "comm_fraction": _of_share,
    "requests": lambda row, _: {"figure": _OF_REQUESTS[row["figure"]]},
    "jitter": lambda row, _: {
        "figure": f"{jitter.PERCENTS[row['figure']]}th percentile",
        "size": band_of(of_collectives.BANDS, whole_cell(row, "size_bytes")),
    },
    "jitter_steps": lambda row, _: {
        "figure": f"{jitter_steps.PERCENTS[row['figure']]}th percentile",
        "logged": "every step logged" if row["logged_every"] == "1" else "one step in many logged",
    },
}
