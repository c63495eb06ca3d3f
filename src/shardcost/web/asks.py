"""What may be asked: the bodies of requests, field by field.

Fields have the names of the command line's options, and `given` hands them on as the texts that
the command line would: what they mean, and what is wrong with them, is said in `shardcost.request`
alone. Here only types and sizes are checked, so that nothing absurd travels further.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from shardcost.request import layouts, workloads
from shardcost.request.searches import RATES, TIMES
from shardcost.web.fields import (
    Config,
    Fixed,
    Number,
    OneOrMany,
    Size,
    Text,
    Truth,
    Values,
    Whole,
    Word,
)

PASTED: Final = "(pasted)"
"""Stands for the name of a model or a cluster whose file came with the question."""


class Asked(BaseModel):
    """Base of all bodies: no field that is not known."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class _Place(Asked):
    """Where: a cluster of the catalog, or the text of a profile."""

    on: Word = Field(None, description="a cluster of the catalog, such as h100_sxm")
    profile: Text = Field(
        None, description="instead of `on`: the text of a profile that `shardcost calibrate` wrote"
    )
    network: Word = Field(None, description="what joins the nodes, a name of the catalog")


class _Model(Asked):
    """What: a model of the catalog, or a config."""

    model: Word = Field(None, description="a model of the catalog, such as llama3-70b")
    config: Config = Field(
        None, description="instead of `model`: the content of a Hugging Face config.json"
    )


Phase = Literal["train", "prefill", "decode"]
EXAMPLE: Final[dict[str, Any]] = {
    "model": "llama3-70b",
    "on": "h100_sxm",
    "gpus": 8,
    "tp": 8,
    "phase": "decode",
    "batch": 64,
    "context_tokens": 4096,
}
"""What the page asks first."""


class _Workload(Asked):
    """What is computed."""

    phase: Phase = Field(description="a training step, a pass over prompts, or a step of decoding")
    sequence_length: Whole = Field(None, description=workloads.SIZES["sequence_length"])
    prompt_tokens: Whole = Field(None, description=workloads.SIZES["prompt_tokens"])
    cached_tokens: Whole = Field(None, description=workloads.SIZES["cached_tokens"])
    context_tokens: Whole = Field(None, description=workloads.SIZES["context_tokens"])
    new_tokens: Whole = Field(None, description=workloads.SIZES["new_tokens"])
    document_tokens: Whole = Field(None, description=workloads.SIZES["document_tokens"])
    dtype: Word = Field(None, description=workloads.FORMATS["dtype"])
    cache_dtype: Word = Field(None, description=workloads.FORMATS["cache_dtype"])
    gradient_dtype: Word = Field(None, description=workloads.FORMATS["gradient_dtype"])
    optimizer: Word = Field(None, description=workloads.FORMATS["optimizer"])
    adapters: Truth = Field(None, description="train low-rank adapters only (--train)")


class Ask(_Workload, _Place, _Model):
    """One layout of one model on one cluster: the options of `shardcost estimate`."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    gpus: Whole = Field(None, description="GPUs in all (tp x cp x pp x dp)")
    software: Word = Field(None, description="framework or engine, a name of the catalog")
    tp: Whole = Field(None, description=layouts.COUNTS["tp"])
    cp: Whole = Field(None, description=layouts.COUNTS["cp"])
    pp: Whole = Field(None, description=layouts.COUNTS["pp"])
    dp: Whole = Field(None, description=layouts.COUNTS["dp"])
    ep: Whole = Field(None, description=layouts.COUNTS["ep"])
    virtual_stages: Whole = Field(None, description=layouts.COUNTS["virtual_stages"])
    micro_batch: Whole = Field(None, description=layouts.COUNTS["micro_batch"])
    zero: Whole = Field(None, description=layouts.COUNTS["zero"])
    shard_degree: Whole = Field(None, description=layouts.COUNTS["shard_degree"])
    recompute: Word = Field(None, description=layouts.WORDS["recompute"])
    schedule: Word = Field(None, description=layouts.WORDS["schedule"])
    scheme: Word = Field(None, description=layouts.WORDS["scheme"])
    context_scheme: Word = Field(None, description=layouts.WORDS["context_scheme"])
    order: Word = Field(None, description=layouts.WORDS["order"])
    imbalance: Number = Field(None, description="fullest rank's tokens over the mean (1)")
    sequence_parallel: Truth = Field(
        None, description="spread activations between products over tp as well"
    )
    batch: Whole = Field(None, description=workloads.SIZES["batch"])


class TimelineAsk(Ask):
    """An `Ask`, and of what the timeline is wanted."""

    of: Literal["layer", "step"] = Field("step", description="one layer of one rank, or the step")


class ScalingAsk(Ask):
    """An `Ask`, and the option that varies."""

    vary: Word = Field("tp", description="the option that varies")
    values: Values = Field(None, description="its values; those that suit if left out")


class CollectiveAsk(_Place):
    """One collective: the options of `shardcost collective`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"collective": "all_reduce", "size": "64MiB", "gpus": 8, "on": "h100_sxm"},
                {"collective": "all_reduce", "sweep": "8:8GiB", "gpus": 8, "on": "h100_sxm"},
            ]
        }
    )

    collective: Word = Field(None, description="all_reduce, all_gather, …")
    size: Size = Field(None, description="the whole buffer: 64MiB, 1GB, or bytes")
    sweep: Word = Field(None, description="instead of `size`: from A to B, such as 8:8GiB")
    gpus: Whole = Field(None, description="GPUs that take part")
    nodes: Whole = Field(None, description="nodes that share the GPUs evenly")
    library: Word = Field(None, description="nccl, rccl, oneccl, vllm, sglang, trtllm, nccl-tuner")
    mode: Word = Field(None, description="graph or eager (graph)")


class WhyAsk(Ask):
    """An `Ask`, or a collective, and the figure of it that is to be explained."""

    phase: Phase | None = Field(None, description="of the layout, unless a collective is asked of")  # type: ignore[assignment]
    figure: Word = Field(None, description="such as time_s, parts.gemm or memory.weights")
    collective: CollectiveAsk | None = Field(None, description="for figures of a collective")


class ScheduleAsk(_Place):
    """The steps of one collective by one algorithm."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"collective": "all_reduce", "algorithm": "ring", "ranks": 8, "size": "64MiB"}
            ]
        }
    )

    collective: Word = Field(None, description="all_reduce, all_gather, …")
    algorithm: Word = Field(None, description="ring, binary_tree, recursive_doubling, …")
    ranks: Whole = Field(None, description="from 2 to 16")
    size: Size = Field(None, description="the whole buffer: 64MiB, 1GB, or bytes")
    shape: Values = Field(None, description="rows and columns, of algorithms that have them")
    pieces: Whole = Field(None, description="of a pipeline, 1 to 8 (4)")
    nodes: Whole = Field(None, description="nodes that share the ranks evenly")


class PlanAsk(_Workload, _Place, _Model):
    """A search over layouts: the options of `shardcost plan`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "llama3-8b",
                    "on": "h100_sxm",
                    "gpus": "1..8",
                    "phase": "decode",
                    "batch": [1, 8, 64],
                    "context_tokens": 4096,
                    "max_tpot": "30ms",
                }
            ]
        }
    )

    gpus: OneOrMany = Field(None, description="GPUs in all: 64, [64, 96] or 8..1024 by doubling")
    batch: OneOrMany = Field(None, description=workloads.SIZES["batch"] + ", one or several")
    software: Word = Field(None, description="framework or engine, a name of the catalog")
    fix: Fixed = Field(None, description="values by axis; axes that are left out are free")
    objective: Word = Field(None, description="time, throughput, cost or energy (time)")
    price: OneOrMany = Field(None, description="of a GPU for an hour")
    max_time: Word = Field(None, description=TIMES["max_time"][1])
    max_ttft: Word = Field(None, description=TIMES["max_ttft"][1])
    max_tpot: Word = Field(None, description=TIMES["max_tpot"][1])
    min_tokens_per_user: Number = Field(None, description=RATES["min_tokens_per_user"][1])
    min_tokens_per_s: Number = Field(None, description=RATES["min_tokens_per_s"][1])
    headroom: OneOrMany = Field(None, description="memory to leave free, like 10% or 0.1 (0)")
    top: Whole = Field(None, description="how many of the best (5)")


_FLAGS: Final = ("sequence_parallel",)
_DEFAULTS: Final[dict[str, Any]] = {"mode": "graph", "objective": "time", "top": "5"}


def _words_of(value: Any) -> str:
    """Return a number, a text or a list of them as the command line's ``A,B``."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ",".join(_words_of(each) for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def given(asked: dict[str, Any]) -> Namespace:
    """Return the fields as the command line would hand them on: texts, True, None."""
    found: dict[str, Any] = {}
    for name, value in asked.items():
        if name in _FLAGS:
            found[name] = bool(value)
        elif isinstance(value, bool):
            found[name] = True if value else None
        elif value is None:
            found[name] = _DEFAULTS.get(name)
        elif name not in {"config", "profile", "fix", "collective"} or isinstance(value, str):
            found[name] = _words_of(value)
    if asked.get("config") is not None:
        found["model"] = PASTED
    if asked.get("profile") is not None:
        found["on"] = PASTED
    fixed = asked.get("fix") or {}
    found["fix"] = [f"{axis}={_words_of(values)}" for axis, values in fixed.items()]
    return Namespace(**found)


_RING: Final = {"collective": "all_reduce", "size": "64MiB", "gpus": 8, "on": "h100_sxm"}
FIRST: Final[dict[str, tuple[type[Asked], dict[str, Any]]]] = {
    "estimate": (Ask, EXAMPLE),
    "catalog": (Asked, {}),
    "advice": (Ask, EXAMPLE),
    "timeline": (TimelineAsk, EXAMPLE),
    "why": (WhyAsk, {**EXAMPLE, "figure": "time_s"}),
    "scaling": (ScalingAsk, EXAMPLE),
    "collective": (CollectiveAsk, _RING),
    "schedule": (
        ScheduleAsk,
        {"collective": "all_reduce", "algorithm": "ring", "ranks": 8, "size": 2**20}
        | {"on": "h100_sxm"},
    ),
    "roofline": (Ask, EXAMPLE),
    "messages": (Ask, EXAMPLE),
    "commands": (Ask, EXAMPLE),
}
"""What the page asks first of each kind."""


def field_values(kind: type[Asked], fields: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of a question, those that were left out too."""
    return kind.model_validate(fields).model_dump()
