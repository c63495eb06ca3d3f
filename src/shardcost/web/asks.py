"""What may be requested: the bodies of requests, field by field.

Fields are the options of `shardcost.options`, with their names and descriptions. Here only types
and sizes are checked, so that nothing absurd travels further; what values mean, and what is wrong
with them, is said in `shardcost.request`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from shardcost import options
from shardcost.layout import Layout
from shardcost.option import Option
from shardcost.options import COLLECTIVE, LAYOUT, LOAD, MACHINE, RUN, SEARCH, WORKLOAD
from shardcost.request import names_of
from shardcost.web import fields
from shardcost.web.fields import OneOrMany, Size, Values, Whole, Word
from shardcost.web.limits import MOST_COUNT, MOST_NUMBER

_TYPES: Final[dict[str, Any]] = {
    "whole": Whole,
    "number": fields.Number,
    "flag": fields.Truth,
    "switch": fields.Truth,
    "size": Size,
    "lengths": fields.Tokens,
    "share": fields.One,
    "price": fields.One,
    "amount": fields.One,
    "hours": fields.One,
}
"""By kind of option; others are words."""
_SEVERAL: Final = ("share", "price")
"""Kinds of which a search takes several values, beside whole numbers."""
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
"""The page's first request."""
LOAD_EXAMPLE: Final[dict[str, Any]] = {
    "isl": "1024",
    "osl": "256",
    "max_ttft": "1s",
    "max_tpot": "50ms",
}
"""What the page's first load has beside its model, machine and layout."""


class Asked(BaseModel):
    """Base of all bodies: no field that is not known."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


A = TypeVar("A", bound=Asked)


def _examples(*bodies: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(bodies)})


def _with(rows: Iterable[Option], *, search: bool = False) -> Callable[[type[A]], type[A]]:
    """Return what adds options of the table to a body; a search takes several values of some."""

    def extended(body: type[A]) -> type[A]:
        added: dict[str, Any] = {}
        for option in rows:
            listed = search and (
                option.axis == "question" or (option.several and option.kind == "whole")
            )
            many = listed or (search and option.kind in _SEVERAL)
            text = option.described(names_of(option)) + (option.several if listed else "")
            kind = OneOrMany if many else _TYPES.get(option.kind, Word)
            added[option.name] = (kind, Field(None, description=text))
        return create_model(
            body.__name__, __base__=body, __module__=__name__, __doc__=body.__doc__, **added
        )

    return extended


@_with([options.ON, options.NETWORK, options.SET])
class _Place(Asked):
    """Where: a cluster of the catalog, or the text of a profile."""

    profile: fields.Text = Field(
        None, description="instead of `on`: the text of a profile that `shardcost calibrate` wrote"
    )


class _Modelled(_Place):
    """A model of the catalog or a config."""

    config: fields.Config = Field(
        None, description="instead of `model`: the content of a Hugging Face config.json"
    )


class _Run(_Modelled):
    """What is run: a model and a workload."""

    phase: Phase = Field(description="a training step, a pass over prompts, or a step of decoding")


@_with((*MACHINE, *LAYOUT, *WORKLOAD))
class Ask(_Run):
    """One layout of one model on one cluster: the options of `shardcost estimate`."""

    model_config = _examples(EXAMPLE)


@_with((*RUN, options.PRICE))
class RunAsk(Ask):
    """An `Ask`, and of a training step the tokens of the whole run."""

    model_config = _examples(
        EXAMPLE,
        {"model": "llama3-8b", "on": "h100_sxm", "gpus": 8, "zero": 1, "phase": "train"}
        | {"batch": 64, "sequence_length": 4096, "tokens": "1T", "price": 2.5},
    )


class NearestAsk(Ask):
    """An `Ask`, and what of it must stay."""

    kept: Values = Field(None, description="fields that stay as they are, such as gpus")
    fits: fields.Truth = Field(None, description="whether the layout must fit the memory too")


class TimelineAsk(Ask):
    """An `Ask`, and of what the timeline is wanted."""

    of: Literal["layer", "step"] = Field("step", description="one layer of one rank, or the step")


class LaunchAsk(Ask):
    """An `Ask`, and the tool that is to run the layout."""

    tool: Word = Field(
        None, description="megatron, vllm, sglang or trtllm; all that suit the phase if left out"
    )


class ScalingAsk(Ask):
    """An `Ask`, and the option that varies."""

    vary: Word = Field("tp", description="the option that varies")
    values: Values = Field(None, description="its values; those that suit if left out")


@_with(COLLECTIVE)
class CollectiveAsk(_Place):
    """One collective: the options of `shardcost collective`."""

    model_config = _examples(
        {"collective": "all_reduce", "size": "64MiB", "gpus": 8, "on": "h100_sxm"},
        {"collective": "all_reduce", "sweep": "8:8GiB", "gpus": 8, "on": "h100_sxm"},
    )

    collective: Word = Field(None, description="all_reduce, all_gather, …")


class WhyAsk(Ask):
    """An `Ask`, or a collective, and the figure of it that is to be explained."""

    phase: Phase | None = Field(None, description="of the layout, unless a collective is asked of")  # type: ignore[assignment]
    figure: Word = Field(None, description="such as time_s, parts.gemm or memory.weights")
    collective: CollectiveAsk | None = Field(None, description="for figures of a collective")


class ScheduleAsk(_Place):
    """The steps of one collective by one algorithm."""

    model_config = _examples(
        {"collective": "all_reduce", "algorithm": "ring", "ranks": 8, "size": "64MiB"}
    )

    collective: Word = Field(None, description="all_reduce, all_gather, …")
    algorithm: Word = Field(None, description="ring, binary_tree, recursive_doubling, …")
    ranks: Whole = Field(None, description="from 2 to 16")
    size: Size = Field(None, description="the whole buffer: 64MiB, 1GB, or bytes")
    shape: Values = Field(None, description="rows and columns, of algorithms that have them")
    pieces: Whole = Field(None, description="of a pipeline, 1 to 8 (4)")
    nodes: Whole = Field(None, description="nodes that share the ranks evenly")


@_with((*MACHINE, *WORKLOAD, *SEARCH, *RUN, options.DISTINCT), search=True)
class PlanAsk(_Run):
    """A search over layouts: the options of `shardcost plan`."""

    model_config = _examples(
        {"model": "llama3-8b", "on": "h100_sxm", "gpus": "1..8", "phase": "decode"}
        | {"batch": [1, 8, 64], "context_tokens": 4096, "max_tpot": "30ms"}
    )

    fix: fields.Fixed = Field(None, description="values by axis; axes that are left out are free")


_FORMATS: Final = tuple(option for option in options.WORKER if not set(option.nouns) & {Layout})
"""Number formats and drafts of a worker."""
_PLANNED: Final = (
    *MACHINE,
    *_FORMATS,
    *(options.OBJECTIVE, options.PRICE, options.TOP),
    *options.LATENCY,
    *options.DEPLOYMENTS,
)


@_with({option.name: option for option in _PLANNED}.values(), search=True)
class PlanLoadAsk(_Modelled):
    """A search over deployments: the options of `shardcost plan --load`."""

    model_config = _examples(
        {"model": "llama3-8b", "on": "h100_sxm", "gpus": 4, "isl": "1024", "osl": "256"}
        | {"max_ttft": "1s", "max_tpot": "30ms"}
    )

    fix: fields.Fixed = Field(None, description="values by axis of a worker's layout")


@_with(option for option in LOAD.values() if option.name != "trace")
class DeploymentAsk(_Modelled):
    """A deployment and its requests: the options of `shardcost load`."""

    model_config = _examples(
        {"model": "llama3-8b", "on": "h100_sxm", "prefill_workers": 2, "decode_workers": 2}
        | LOAD_EXAMPLE
    )

    trace: fields.Text = Field(
        None,
        description="instead of `isl` and `osl`: the content of a file of recorded requests",
    )


class LoadAsk(DeploymentAsk):
    """One load of a deployment, or several from low to high."""

    model_config = _examples(
        {"model": "llama3-8b", "on": "h100_sxm", "rate": 4} | LOAD_EXAMPLE,
        {"model": "llama3-8b", "on": "h100_sxm", "sweep": "rate"} | LOAD_EXAMPLE,
    )

    sweep: Word = Field(
        None,
        description="instead of `rate`, `users` and `arrival`: rate or concurrency, whose values go"
        " to past what the deployment serves unless they are given, as in rate=1..64",
    )


_ON: Final = {"collective": "all_reduce", "size": "64MiB", "on": "h100_sxm"}
FIRST: Final[dict[str, tuple[type[Asked], dict[str, Any]]]] = {
    "estimate": (RunAsk, EXAMPLE),
    "catalog": (Asked, {}),
    "advice": (Ask, EXAMPLE),
    "timeline": (TimelineAsk, EXAMPLE),
    "why": (WhyAsk, {**EXAMPLE, "figure": "time_s"}),
    "scaling": (ScalingAsk, EXAMPLE),
    "collective": (CollectiveAsk, _ON | {"gpus": 8}),
    "schedule": (ScheduleAsk, _ON | {"algorithm": "ring", "ranks": 8}),
    "roofline": (Ask, EXAMPLE),
    "messages": (Ask, EXAMPLE),
    "commands": (Ask, EXAMPLE),
}
"""What the page asks first of each kind."""


def field_values(kind: type[Asked], fields: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of a question, those that were left out too."""
    return kind.model_validate(fields).model_dump()


_LOAD_GROUPS: Final = {
    "requests": options.ARRIVALS,
    "limits": (*options.LATENCY, options.PRICE),
    "workers": options.POOLS,
    "engine": options.SCHEDULER,
}
"""The fields of the tab on load, in groups; the deployment's others are those of the page."""


def page_module() -> bytes:
    """Return the table of options as the module that the page's controls are made from."""
    from shardcost.search.objectives import OBJECTIVES

    groups = {"machine": MACHINE, "layout": LAYOUT, "workload": WORKLOAD}
    table = {
        "first": EXAMPLE,
        "options": [
            _on_page(option) | {"group": group} for group, rows in groups.items() for option in rows
        ],
        "search": [_on_page(option) for option in (*SEARCH, options.DISTINCT)],
        "axes": [
            _on_page(option) | {"fixed": option.axis == "fixed"}
            for name, option in options.AXES.items()
            if name not in options.OWN_AXES
        ],
        "load": {
            "first": LOAD_EXAMPLE,
            "taken": [option.name for option in (*options.SERVING, *options.WORKER)],
            "planned": [
                option.name
                for option in (*options.ARRIVALS, *options.LATENCY)
                if option in {*options.DEPLOYMENTS, *options.LATENCY}
            ],
            "options": [
                _on_page(option) | {"group": group, "otherwise": option.otherwise}
                for group, rows in _LOAD_GROUPS.items()
                for option in rows
            ],
        },
        "objectives": {name: aim.label for name, aim in OBJECTIVES.items()},
    }
    return f"export const TABLE = {json.dumps(table, ensure_ascii=False)};\n".encode()


def _on_page(option: Option) -> dict[str, Any]:
    """Return what the page has to know of an option."""
    plain = ("name", "kind", "label", "choices", "default", "least", "required", "axis", "place")
    bound = int(MOST_NUMBER) if option.kind == "number" else MOST_COUNT
    return {name: getattr(option, name) for name in plain} | {
        "most": option.most or bound,
        "example": option.example,
        "hint": option.help,
        "phases": option.applies_to,
        "said": option.said.replace("{:g}", "{}"),
        "start": dict(option.start),
    }
