"""What answers look like, for the description of the API: the keys that matter most.

Answers are sent as their views made them and have further keys.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(extra="allow")


class Refused(Shape):
    """Why there is no answer."""

    detail: str = Field(description="one line: what is wrong, and what would be right")
    impossible: bool | None = Field(
        default=None, description="the question is in good order, but that cannot be done"
    )
    field: str | None = Field(default=None, description="the field at fault, where it is one")


class Catalog(Shape):
    """What can be chosen."""

    version: str
    models: list[dict[str, Any]]
    clusters: list[dict[str, Any]]
    networks: list[dict[str, Any]]
    software: list[dict[str, Any]]
    collectives: list[str]
    algorithms: list[dict[str, Any]]
    choices: dict[str, list[str]]


class Estimated(Shape):
    """What a layout costs: seconds, bytes, FLOPs; as ``shardcost estimate --json``."""

    title: str
    details: str
    model: str
    cluster: str
    gpus: int
    layout: dict[str, Any]
    workload: dict[str, Any]
    time_s: float
    low_s: float
    high_s: float
    memory_bytes: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    parts: dict[str, float]
    compute: dict[str, Any]
    comm: dict[str, Any]
    memory: dict[str, Any]
    warnings: list[str]
    notes: list[str]


class Advised(Shape):
    """What each neighbouring layout would cost, what limits this one, what to change."""

    steps: dict[str, list[dict[str, Any]]]
    limit: dict[str, Any] | None
    change: dict[str, Any] | None


class Timeline(Shape):
    """Events on streams."""

    of: str
    span_s: float
    streams: list[dict[str, Any]]
    events: list[dict[str, Any]]
    totals: dict[str, Any]


class Scaled(Shape):
    """One row for each value, as ``shardcost estimate --vary --json``."""

    vary: str
    rows: list[dict[str, Any]]


class Roofline(Shape):
    """The kernels of a layer under the device's roof."""

    device: str
    dtype: str
    peak_flop_per_s: float
    memory_bytes_per_s: float
    operations: list[dict[str, Any]]


class Messages(Shape):
    """Every collective of a step."""

    messages: list[dict[str, Any]]


class Collective(Shape):
    """The time of one size, or columns over many; as ``shardcost collective --json``."""

    collective: str
    time_s: float | list[float]


class Steps(Shape):
    """The steps of a collective by an algorithm."""

    collective: str
    algorithm: str
    ranks: int
    steps: list[dict[str, Any]]


class Explained(Shape):
    """Where a figure comes from."""

    figure: str
    title: str
    formula: str
    terms: list[dict[str, Any]]


class Commands(Shape):
    """The same question to the command line and in Python."""

    command: str
    python: str


class Trace(Shape):
    """Events as Perfetto and chrome://tracing take them."""

    traceEvents: list[dict[str, Any]]  # noqa: N815  the format's own name


class Begun(Shape):
    """A search that was begun."""

    job: str


class Search(Shape):
    """How a search stands."""

    job: str
    state: str = Field(description="waiting, running, done, cancelled or failed")
    done: int = Field(description="layouts looked at")
    cells: int = Field(description="layouts in all")
    seconds: float
    result: dict[str, Any] | None = Field(
        default=None, description="as `shardcost plan --json`, when it is done"
    )
    detail: str | None = Field(default=None, description="why there is no layout")
    reasons: list[str] | None = None


class Dropped(Shape):
    """What a file is and means."""

    name: str
    kind: str
    words: list[str]
    report: dict[str, Any]
    use: dict[str, Any] | None = Field(description="fields of a question that the file stands for")
    words_on_use: str
