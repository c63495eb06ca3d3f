"""What answers look like, for the description of the API: the keys that matter most.

Answers are sent as their views made them and have further keys.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, create_model

Table: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[dict[str, Any]]


class Shape(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(extra="allow")


def _shape(name: str, about: str, /, **keys: Any) -> type[Shape]:
    """Return the shape of an answer: the type of each key, or a type and its description."""
    fields: Any = {
        key: kind if isinstance(kind, tuple) else (kind, ...) for key, kind in keys.items()
    }
    return create_model(name, __base__=Shape, __module__=__name__, __doc__=about, **fields)


def _maybe(kind: Any, about: str) -> tuple[Any, Any]:
    return kind | None, Field(default=None, description=about)


Refused = _shape(
    "Refused", "Why there is no answer.",
    detail=(str, Field(description="one line: what is wrong, and what would be right")),
    said=_maybe(str, "the same in the words of the page, where they are others"),
    impossible=_maybe(bool, "the request is in good order, but that cannot be done"),
    field=_maybe(str, "the field at fault, where it is one"),
)  # fmt: skip
Catalog = _shape(
    "Catalog", "What can be chosen.",
    version=str, models=Rows, clusters=Rows, networks=Rows, software=Rows, collectives=list[str],
    algorithms=Rows, choices=dict[str, list[str]],
)  # fmt: skip
Estimated = _shape(
    "Estimated", "What a layout costs: seconds, bytes, FLOPs; as ``shardcost estimate --json``.",
    title=str, details=str, model=str, cluster=str, gpus=int, layout=Table, workload=Table,
    time_s=float, low_s=float, high_s=float, memory_bytes=float, tokens_per_s=float,
    tokens_per_s_per_gpu=float, mfu=float, parts=dict[str, float], compute=Table, comm=Table,
    memory=Table, warnings=list[str], caveats=Rows, provenance=Rows, notes=list[str],
    tflops_per_gpu=float, run=_maybe(Table, "of a whole training run, where tokens are given"),
)  # fmt: skip
Advised = _shape(
    "Advised", "What each neighbouring layout would cost, what limits this one, what to change.",
    steps=dict[str, Rows], limit=Table | None, change=Table | None,
)  # fmt: skip
Adjusted = _shape(
    "Adjusted", "The nearest layout that runs.",
    set=(Table, Field(description="fields to change, null for one to leave out; none if it runs")),
    words=(str, Field(description="what is changed: 16 GPUs, tp8pp2, ib_8x400g")),
    why=_maybe(str, "why it does not run as it is"),
)  # fmt: skip
Timeline = _shape(
    "Timeline", "Events on streams.", of=str, span_s=float, streams=Rows, events=Rows, totals=Table
)
Scaled = _shape(
    "Scaled",
    "One row for each value, as ``shardcost estimate --vary --json``.",
    vary=str,
    rows=Rows,
)
Roofline = _shape(
    "Roofline", "The kernels of a layer under the device's roof.",
    device=str, dtype=str, peak_flop_per_s=float, memory_bytes_per_s=float, operations=Rows,
)  # fmt: skip
Messages = _shape("Messages", "Every collective of a step.", messages=Rows)
Collective = _shape(
    "Collective", "The time of one size, or columns over many; as ``shardcost collective --json``.",
    collective=str, time_s=float | list[float],
)  # fmt: skip
Steps = _shape(
    "Steps", "The steps of a collective by an algorithm.",
    collective=str, algorithm=str, ranks=int, steps=Rows,
)  # fmt: skip
Loaded = _shape(
    "Loaded", "A deployment under load, or under several; as ``shardcost load --json``.",
    title=str, model=str, gpus=int, pools=Rows, limits=Table, command=str,
)  # fmt: skip
Divided = _shape(
    "Divided", "What each division of the GPUs holds.",
    gpus=int, limits=Table, splits=Rows, words=str,
)  # fmt: skip
Explained = _shape(
    "Explained", "Where a figure comes from.", figure=str, title=str, formula=str, terms=Rows
)
Commands = _shape(
    "Commands", "The same request as a command and in Python.", command=str, python=str
)
Launched = _shape("Launched", "Commands that start a layout.", launches=Rows)
Trace = _shape("Trace", "Events as Perfetto and chrome://tracing take them.", traceEvents=Rows)
Begun = _shape("Begun", "A search that was begun.", job=str)
Search = _shape(
    "Search", "How a search stands.",
    job=str,
    state=(str, Field(description="waiting, running, done, cancelled or failed")),
    done=(int, Field(description="layouts looked at")),
    cells=(int, Field(description="layouts in all")),
    seconds=float,
    result=_maybe(Table, "as `shardcost plan --json`, when it is done"),
    detail=_maybe(str, "why there is no layout"),
    reasons=_maybe(list[str], "of the layouts that were rejected"),
)  # fmt: skip
Dropped = _shape(
    "Dropped", "What a file is and means.",
    name=str, kind=str, words=list[str], report=Table,
    use=(Table | None, Field(description="fields of a request that the file stands for")),
    words_on_use=str,
    measured_on=_maybe(Table, "of measurements: device, on, network, gpus, as far as known"),
)  # fmt: skip
