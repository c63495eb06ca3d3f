"""One layout, or one for each value of an option that varies, priced as the options ask."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardcost.errors import BadValueError, ShardcostError, UnknownNameError
from shardcost.request import layouts
from shardcost.request.errors import ImpossibleError, UsageError, WorldSizeError
from shardcost.request.finding import Finder
from shardcost.request.workloads import PHASES, workload_of

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.estimate.result import Estimate
    from shardcost.estimate.scaling import Scaling
    from shardcost.layout import Layout
    from shardcost.model import Model
    from shardcost.software import Software
    from shardcost.workload import Workload

_VARIED: Final = ("gpus", "on", "network", "software", "imbalance", *layouts.COUNTS, *layouts.WORDS)
"""What may vary besides the options of the workload."""


class Question(NamedTuple):
    """What an estimate is of."""

    model: Model
    cluster: Cluster
    layout: Layout
    workload: Workload
    software: Software | None


def question_of(given: Any, finder: Finder) -> Question:
    """Return what the options ask for, possible or not.

    Raises:
        ImpossibleError: The question is in good order, but there is no such layout.
    """
    from shardcost.software import Software

    model = finder.model(given.model)
    if given.on is None:
        raise UsageError("missing --on CLUSTER (`shardcost clusters` lists them)")
    cluster = finder.cluster(given.on, given.network)
    software = None if given.software is None else Software.named(given.software)
    workload = workload_of(given)
    try:
        layout = layouts.layout_of(given)
    except BadValueError as error:
        if isinstance(error, WorldSizeError) or error.argument == "Layout":
            raise ImpossibleError(error) from None
        raise
    return Question(model, cluster, layout, workload, software)


def estimate_of(given: Any, finder: Finder) -> Estimate:
    """Return what the layout that the options describe costs.

    Raises:
        ImpossibleError: The question is in good order, but that cannot be done.
    """
    from shardcost.estimate import estimate

    asked = question_of(given, finder)
    try:
        return estimate(*asked[:4], software=asked.software)
    except ShardcostError as error:
        raise ImpossibleError(error) from None


def scaling_of(given: Any, finder: Finder, name: str, values: Sequence[str]) -> Scaling:
    """Return the estimate of every value of an option, or why there is none."""
    from shardcost.estimate.scaling import Row, Scaling

    rows = []
    for value in values:
        each = Namespace(**{**vars(given), name: value})
        try:
            rows.append(Row(value, estimate_of(each, finder)))
        except ImpossibleError as error:
            rows.append(Row(value, None, str(error)))
    return Scaling(name, tuple(rows), given.phase)


def varied_name(text: str, phase: str) -> str:
    """Return the option that is to vary; it may be written as one."""
    name = text.strip().removeprefix("--").replace("-", "_")
    known = (*_VARIED, *(each for each in PHASES[phase] if each != "adapters"))
    if name not in known:
        raise UnknownNameError("name in --vary", name, known)
    return name


def varied(text: str, phase: str) -> tuple[str, list[str]]:
    """Return the name and the values of ``NAME=A,B,…``."""
    match = re.fullmatch(r"([^=]+)=(.+)", text)
    if not match:
        raise BadValueError("--vary", text, "a name and values, like tp=1,2,4,8")
    name = varied_name(match[1], phase)
    values = [value.strip() for value in match[2].split(",")]
    if not all(values):
        raise BadValueError("--vary", text, "without empty values, like tp=1,2,4,8")
    return name, list(dict.fromkeys(values))
