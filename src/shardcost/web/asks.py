"""What may be asked: the bodies of requests, field by field.

Fields have the names of the command line's options, and `given` hands them on as the texts that
the command line would: what they mean, and what is wrong with them, is said in `shardcost.asked`
alone. Here only types and sizes are checked, so that nothing absurd travels further.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from shardcost.asked import layouts, workloads
from shardcost.asked.searches import RATES, TIMES
from shardcost.web.limits import MOST_CHARACTERS, MOST_COUNT, MOST_VALUES

PASTED: Final = "(pasted)"
"""Stands for the name of a model or a cluster whose file came with the question."""


class _WrongTypeError(ValueError):
    """A value of another type than the field's, with what it should have been."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


def _whole(value: Any) -> Any:
    """Take whole numbers as JSON writes them, 8 and 8.0; nothing that could be made one."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _WrongTypeError("a whole number")


def _number(value: Any) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise _WrongTypeError("a number")


def _truth(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    raise _WrongTypeError("true or false")


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    raise _WrongTypeError("a text")


def _object(value: Any) -> Any:
    if value is None or isinstance(value, dict):
        return value
    raise _WrongTypeError("an object")


def _words_of(value: Any) -> str:
    """Return a number, a text or a list of them as the command line's ``A,B``."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ",".join(_words_of(each) for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


Whole = Annotated[
    Annotated[int, Field(ge=-MOST_COUNT, le=MOST_COUNT)] | None,
    BeforeValidator(_whole),
    WithJsonSchema({"type": ["integer", "null"], "minimum": 0, "maximum": MOST_COUNT}),
]
Number = Annotated[
    Annotated[float, Field(ge=-1e12, le=1e12)] | None,
    BeforeValidator(_number),
    WithJsonSchema({"type": ["number", "null"], "minimum": 0, "maximum": 1e12}),
]
Truth = Annotated[
    bool | None, BeforeValidator(_truth), WithJsonSchema({"type": ["boolean", "null"]})
]
Word = Annotated[
    Annotated[str, Field(max_length=MOST_CHARACTERS)] | None,
    BeforeValidator(_text),
    WithJsonSchema({"type": ["string", "null"], "maxLength": MOST_CHARACTERS}),
]
Text = Annotated[str | None, BeforeValidator(_text), WithJsonSchema({"type": ["string", "null"]})]
Config = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_object),
    WithJsonSchema({"type": ["object", "null"], "additionalProperties": True}),
]
_One: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MOST_COUNT},
        {"type": "string", "maxLength": MOST_CHARACTERS},
    ]
}
_VALUE: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MOST_COUNT},
        {"type": "number", "minimum": 0, "maximum": 1e12},
        {"type": "boolean"},
        {"type": "string", "maxLength": MOST_CHARACTERS},
    ]
}
_LIST: Final = {"type": "array", "items": _VALUE, "maxItems": MOST_VALUES, "minItems": 1}


def _one_value(value: Any) -> Any:
    """Check one value of a list: a number, a word, true or false."""
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            raise _WrongTypeError(f"a text of at most {MOST_CHARACTERS} characters")
    elif isinstance(value, int | float):
        if abs(value) > MOST_COUNT:
            raise _WrongTypeError(f"a number of at most {MOST_COUNT}")
    else:
        raise _WrongTypeError("a number or a text")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _values(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list):
        raise _WrongTypeError("a list of values")
    if not value or len(value) > MOST_VALUES:
        raise _WrongTypeError(f"a list of 1 to {MOST_VALUES} values")
    return [_one_value(each) for each in value]


def _one_or_many(value: Any) -> Any:
    if value is None or isinstance(value, list):
        return _values(value)
    return _one_value(value)


Values = Annotated[
    list[Any] | None,
    BeforeValidator(_values),
    WithJsonSchema({"anyOf": [_LIST, {"type": "null"}]}),
]
OneOrMany = Annotated[
    Any,
    BeforeValidator(_one_or_many),
    WithJsonSchema({"anyOf": [*_One["anyOf"], _LIST, {"type": "null"}]}),
]


def _fixed(value: Any) -> Any:
    """Check values by axis; they become the texts of ``--fix``."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _WrongTypeError("an object of axes and their values")
    if len(value) > MOST_VALUES:
        raise _WrongTypeError(f"an object of at most {MOST_VALUES} axes")
    for axis, values in value.items():
        if len(axis) > MOST_CHARACTERS:
            raise _WrongTypeError(f"an object whose axes have at most {MOST_CHARACTERS} characters")
        _one_or_many([] if values is None else values)
    return value


Fixed = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_fixed),
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "additionalProperties": {"anyOf": [_LIST, *_VALUE["anyOf"]]},
            "maxProperties": MOST_VALUES,
        }
    ),
]


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
    chunks: Whole = Field(None, description=layouts.COUNTS["chunks"])
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
    size: OneOrMany = Field(None, description="the whole buffer: 64MiB, 1GB, or bytes")
    sweep: Word = Field(None, description="instead of `size`: from A to B, such as 8:8GiB")
    gpus: Whole = Field(None, description="GPUs that take part")
    nodes: Whole = Field(None, description="nodes that share the GPUs evenly")
    library: Word = Field(None, description="nccl, rccl, oneccl, vllm, sglang, trtllm, nccl-tuner")
    mode: Word = Field(None, description="graph or eager (graph)")


class WhyAsk(Ask):
    """An `Ask`, or a collective, and the figure of it that is to be explained."""

    phase: Phase | None = Field(None, description="of the layout, unless a collective is asked of")  # type: ignore[assignment]
    figure: Word = Field(None, description="such as time_s, parts.products or memory.weights")
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
    size: OneOrMany = Field(None, description="the whole buffer: 64MiB, 1GB, or bytes")
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
