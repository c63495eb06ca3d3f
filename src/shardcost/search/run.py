"""The one function of the room: `search`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from shardcost import resolve
from shardcost.cluster import Cluster
from shardcost.errors import BadTypeError, BadValueError
from shardcost.estimate.step import software_of
from shardcost.resolve import GivenCluster, GivenModel, GivenNetwork, GivenSoftware
from shardcost.scalars import whole_number
from shardcost.search.batches import refined
from shardcost.search.engines import Engine, engine_of, here
from shardcost.search.found import Found
from shardcost.search.objectives import Constraints, Objective, Price
from shardcost.search.parts import KEPT, Part, joined
from shardcost.search.question import Question
from shardcost.search.space import Space, check_questions
from shardcost.search.tasks import Task, Want, tasks_of
from shardcost.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from shardcost.search.store import Store

Progress = Callable[[int, int], None]
"""Takes the cells done and the cells of the whole search."""
_TOLD_EVERY_S: Final = 0.1
"""How often a task that runs in this process tells how far it is."""


def search(
    model: GivenModel | Sequence[GivenModel],
    cluster: GivenCluster | Sequence[GivenCluster],
    workload: Workload | Sequence[Workload],
    *,
    network: GivenNetwork | Sequence[GivenNetwork] = None,
    space: Space | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
    objective: Objective | str = "time",
    price_per_gpu_hour: Price | None = None,
    software: GivenSoftware | Sequence[GivenSoftware] | None = None,
    top: int = 20,
    distinct: bool = False,
    exhaustive: bool = False,
    engine: str = "local",
    jobs: int = 1,
    address: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Found:
    """Return the best of all layouts of a space, and why the others lost.

    >>> from shardcost import Train
    >>> work = Train(global_batch=64, sequence_length=4096)
    >>> found = search("llama3-8b", "h100_sxm", work, space={"gpus": 8, "cp": 1})
    >>> found.feasible > 100 and found.best[0].layout.devices
    8

    Args:
        model: A `Model`, the name or Hugging Face id of one, or a file, as for `estimate`; several
            make an axis.
        cluster: A `Cluster`, the name of one, a hardware file or profile; several make an axis.
        workload: `Train`, `Prefill` or `Decode`; several of one kind, such as contexts and number
            formats, make an axis.
        network: What joins the nodes of every cluster, by name or file; several make an axis.
        space: Values by axis; an axis that is left out is free.
        constraints: Limits by name.
        objective: What is to be small, see `OBJECTIVES`.
        price_per_gpu_hour: For the objective ``cost``, in any currency: one price, or one for each
            cluster by its name.
        software: The framework or engine, as for `estimate` if left out; several make an axis.
        top: How many of the best to return.
        distinct: Return the best of each set of degrees only, on each machine and for each of
            the other axes beside the layout; how many others come near it is counted.
        exhaustive: Price every feasible layout. Otherwise those are left out whose lower bound of
            the time is above all that is returned; the result is the same, and `Found.skipped`
            counts them. A search with `out` prices all, and so does one with limits on time or
            rate.
        engine: Where it runs: ``local`` in this process, ``processes``, or ``ray``.
        jobs: Processes at a time, or workers of a Ray that is started for the search.
        address: Of a Ray that runs already.
        out: A file for all feasible layouts, .parquet or .csv. A search that was stopped continues
            where it was when it is started again, see `Store`.
        overwrite: Replace that file if it is there already.
        progress: Called now and then with the cells done and the cells in all: after each task,
            and every tenth of a second where tasks run in this process. What it raises ends the
            search; what was done stays on disk where `out` is given.
    """
    whole_number("top", top, 1)
    limits = Constraints.of(constraints)
    questions = questions_of(
        model,
        cluster,
        workload,
        network=network,
        space=Space.of(space),
        constraints=limits,
        objective=Objective.of(objective, price_per_gpu_hour),
        software=software,
    )
    started = time.perf_counter()
    want = Want(max(top, KEPT), table=out is not None, distinct=distinct, exhaustive=exhaustive)
    run = engine_of(engine, jobs, address)
    target: AbstractContextManager[Store | None] = nullcontext()
    if out is not None:
        from shardcost.search.store import Store

        target = Store.opened(out, questions, want, overwrite=overwrite)
    with target as store:
        part, resumed = _ran(questions, want, run, store, progress)
    part = refined(questions, part, want.most, distinct=distinct)
    seconds = time.perf_counter() - started
    found = Found.of(questions, part, seconds, top, distinct=distinct)
    return replace(found, resumed=resumed)


def _ran(
    questions: tuple[Question, ...],
    want: Want,
    run: Engine,
    store: Store | None,
    progress: Progress | None,
) -> tuple[Part, int]:
    """Return what all tasks amount to, and how many of them were done before."""
    part, done, cells = Part(), 0, sum(question.cells for question in questions)
    before: set[int] = set()
    told_s = time.perf_counter()

    def tell(so_far: int) -> None:
        nonlocal told_s
        if progress is not None:
            told_s = time.perf_counter()
            progress(so_far, cells)

    def under_way(of_task: int) -> None:
        if time.perf_counter() - told_s >= _TOLD_EVERY_S:
            tell(done + of_task)

    def add(task: Task, more: Part) -> None:
        nonlocal part, done
        whole = joined((part, more), want.most, distinct=want.distinct)
        part, done = whole, done + task.cells
        tell(done)

    for task, more in store.finished(tasks_of(questions)) if store else ():
        before.add(task.number)
        add(task, more)
    left = (task for task in tasks_of(questions) if task.number not in before)
    run = partial(here, tick=under_way) if run is here else run
    with closing(run(questions, left, want)) as answers:
        for answer in answers:
            if store:
                store.add(answer)
            add(answer.task, answer.part)
    if store:
        store.finish()
    return part, len(before)


def questions_of(
    model: GivenModel | Sequence[GivenModel],
    cluster: GivenCluster | Sequence[GivenCluster],
    workload: Workload | Sequence[Workload],
    *,
    space: Space,
    network: GivenNetwork | Sequence[GivenNetwork] = None,
    software: GivenSoftware | Sequence[GivenSoftware] | None = None,
    constraints: Constraints | None = None,
    **rest: Any,
) -> tuple[Question, ...]:
    """Return one question for each model, software and workload on each cluster, or its slices."""
    limits = Constraints() if constraints is None else constraints
    works = _several("workload", workload)
    for work in works:
        if not isinstance(work, Workload):
            raise BadTypeError("workload", work, "a Workload")
        limits.check(work)
        if type(work) is not type(works[0]):
            raise BadTypeError("workload", work, f"a {type(works[0]).__name__}, as the first is")
    clusters = [
        resolve.cluster(each, net)
        for each in _several("cluster", cluster)
        for net in _several("network", network)
    ]
    engines = [software_of(each, works[0], clusters) for each in _several("software", software)]
    places = [place for each in clusters for place in _slices(each, space)]
    models = [resolve.model(each) for each in _several("model", model)]
    check_questions(len(models) * len(engines) * len(works) * len(places))
    questions: list[Question] = []
    first = 0
    for each, runs, given in product(models, engines, works):
        work = given.in_formats_of(each, narrow_cache=runs.narrow_cache)
        for where, part in places:
            question = Question(
                model=each,
                cluster=where,
                workload=work,
                software=runs,
                space=part.complete(each, where, work, runs),
                asked=space,
                constraints=limits,
                number=len(questions),
                first_cell=first,
                **rest,
            )
            first += question.cells
            questions.append(question)
    return tuple(questions)


def _slices(cluster: Cluster, space: Space) -> list[tuple[Cluster, Space]]:
    """Return where to look: on a torus, every number of devices on the slice that has as many."""
    if not isinstance(cluster, Cluster):
        raise BadTypeError("cluster", cluster, "a Cluster, the name of one or a file")
    if cluster.tiers[-1].kind != "torus" or space.gpus is None:
        return [(cluster, space)]
    counts: dict[tuple[int, ...], list[int]] = {}
    for gpus in space.gpus:
        counts.setdefault(cluster.holding(gpus).tiers[-1].shape, []).append(gpus)
    return [
        (cluster.holding(alike[0]), replace(space, gpus=tuple(alike))) for alike in counts.values()
    ]


def _several(name: str, given: Any) -> list[Any]:
    """Return one thing or several, named or not, as a list of them."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    values = list(given) if several else [given]
    if not values:
        raise BadValueError(name, given, "at least one")
    return values
