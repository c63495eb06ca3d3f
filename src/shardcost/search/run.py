"""The one function of the room: `search`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardcost.cluster import Cluster
from shardcost.collectives.calibration import Calibration
from shardcost.errors import BadTypeError, BadValueError
from shardcost.estimate.totals import software_of
from shardcost.model import Model
from shardcost.scalars import whole_number
from shardcost.search.found import Found
from shardcost.search.objectives import Constraints, Objective
from shardcost.search.parts import KEPT, Part, joined
from shardcost.search.question import Question
from shardcost.search.space import Space
from shardcost.search.tasks import Want, answer_of, tasks_of
from shardcost.software import Software
from shardcost.workload import Workload

Progress = Callable[[int, int], None]
"""Takes the cells done and the cells of the whole search."""


def search(
    model: Model | str | Sequence[Model | str],
    cluster: Cluster | str | Sequence[Cluster | str],
    workload: Workload,
    *,
    space: Space | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
    objective: Objective | str = "time",
    price_per_gpu_hour: float | None = None,
    software: Software | str | None = None,
    wire: Calibration | None = None,
    top: int = 10,
    backend: str = "numpy",
    progress: Progress | None = None,
) -> Found:
    """Return the best of all layouts of a space, and why the others lost.

    >>> from shardcost import Train
    >>> work = Train(global_batch=64, sequence_length=4096)
    >>> found = search("llama3-8b", "h100_sxm", work, space={"gpus": 8, "cp": 1})
    >>> found.feasible > 100 and found.best[0].layout.devices
    8

    Args:
        model: A `Model` or the name of one in the catalog; several make an axis.
        cluster: A `Cluster` or the name of one; several make an axis.
        workload: `Train`, `Prefill` or `Decode`.
        space: Values by axis; an axis that is left out is free.
        constraints: Limits by name.
        objective: What is to be small, see `OBJECTIVES`.
        price_per_gpu_hour: For the objective ``cost``, in any currency.
        software: The framework or engine; as for `estimate` if left out.
        wire: Constants of your own network instead of the catalog's.
        top: How many of the best to return.
        backend: The library whose arrays the formulas run on.
        progress: Called now and then with the cells done and the cells in all.
    """
    whole_number("top", top, 1)
    limits = Constraints.of(constraints)
    limits.check(workload)
    asked = questions_of(
        model,
        cluster,
        workload,
        space=Space.of(space),
        constraints=limits,
        objective=Objective.of(objective, price_per_gpu_hour),
        software=software,
        wire=wire,
        backend=backend,
    )
    started = time.perf_counter()
    want = Want(max(top, KEPT), table=False)
    found, done, cells = Part(), 0, sum(each.cells for each in asked)
    for task in tasks_of(asked):
        found = joined(found, answer_of(asked[task.question], task, want), want.most)
        done += task.cells
        if progress is not None:
            progress(done, cells)
    return Found.of(asked, found, time.perf_counter() - started, top)


def questions_of(
    model: Model | str | Sequence[Model | str],
    cluster: Cluster | str | Sequence[Cluster | str],
    workload: Workload,
    *,
    space: Space,
    software: Software | str | None = None,
    **rest: Any,
) -> tuple[Question, ...]:
    """Return one question for each model on each cluster."""
    if not isinstance(workload, Workload):
        raise BadTypeError("workload", workload, "a Workload")
    runs = software_of(software, workload)
    found: list[Question] = []
    first = 0
    for each in _several("model", model, Model):
        for where in _several("cluster", cluster, Cluster):
            question = Question(
                model=each,
                cluster=where,
                workload=workload,
                software=runs,
                space=space.complete(each, where, workload, runs),
                number=len(found),
                first_cell=first,
                **rest,
            )
            first += question.cells
            found.append(question)
    return tuple(found)


def _several(name: str, given: Any, kind: Any) -> list[Any]:
    """Return one thing or several, named or not, as a list of them."""
    many = isinstance(given, Iterable) and not isinstance(given, str)
    values = list(given) if many else [given]
    if not values:
        raise BadValueError(name, given, "at least one")
    found = [kind.named(each) if isinstance(each, str) else each for each in values]
    for each in found:
        if not isinstance(each, kind):
            raise BadTypeError(name, each, f"a {kind.__name__} or the name of one")
    return found
