"""Where the tasks of a search run: in this process, in several, or on Ray.

An engine takes questions and tasks and yields the answers as they come, in any order. It keeps only
a few tasks under way at a time, however many there are, and hands a task whose worker died to
another one. Questions go to every worker once, tasks are some numbers.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from shardcost.errors import (
    BadValueError,
    LostWorkerError,
    MissingExtraError,
    UnknownNameError,
)
from shardcost.scalars import whole_number
from shardcost.search.question import Question
from shardcost.search.tasks import Answer, Runner, Task, Tick, Want

if TYPE_CHECKING:
    from concurrent.futures import Future

Questions = tuple[Question, ...]
Answers = Generator[Answer, None, None]
Engine = Callable[[Questions, Iterator[Task], Want], Answers]
ENGINES: Final = ("local", "processes", "ray")
TRIES: Final = 4
"""How often a task whose worker dies is begun, before the search gives up."""
_AHEAD: Final = 2
"""Tasks under way for each worker: one is computed, one waits, so that no worker does."""
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)
"""Workers share the cores among them: each computes on one."""
_QUIET_RAY: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",  # a search tells nobody that it ran
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers leave the devices' variables alone
}
_FEW_WORDS: Final[dict[str, Any]] = {"log_to_driver": False, "logging_level": "error"}
_ANSWERS_WITHIN_S: Final = 5.0
_RAY_STORE_BYTES: Final = 256 * 2**20
"""Shared memory of a Ray of our own: it holds the questions and a few packed answers."""


def engine_of(name: str, jobs: int = 1, address: str | None = None) -> Engine:
    """Return an engine by its name.

    Args:
        name: One of `ENGINES`.
        jobs: Processes at a time; a Ray that runs already has as many as it has processors.
        address: Of a running Ray.
    """
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    whole_number("jobs", jobs, 1)
    if address is not None and name != "ray":
        raise BadValueError("address", address, "left out but for the engine ray")
    if name == "local":
        if jobs > 1:
            raise BadValueError("jobs", jobs, "1 for the engine local (processes takes more)")
        return here
    if name == "processes":
        return partial(in_processes, jobs=jobs)
    _ray()
    return partial(on_ray, jobs=jobs, address=address)


def here(
    questions: Questions, tasks: Iterator[Task], want: Want, tick: Tick | None = None
) -> Answers:
    """Yield the answers of tasks that run in this process; a task tells how far it is."""
    runner = Runner(questions, want)
    for task in tasks:
        yield runner.answer(task, tick)


class _Crew(Protocol):
    """Workers that take tasks."""

    def places(self) -> int:
        """Return how many tasks may be under way."""

    def send(self, task: Task) -> Any:
        """Hand out a task; return a handle of it."""

    def ready(self, under_way: Collection[Any]) -> Iterable[Any]:
        """Wait until some tasks are done; return their handles."""

    def answer(self, handle: Any) -> Answer:
        """Return what a task that is done amounts to."""


def _streamed(crew: _Crew, tasks: Iterator[Task], unfinished: dict[int, Task]) -> Answers:
    """Yield the answers of `unfinished` tasks, then of further ones; few are under way at a time.

    Tasks that are handed out stay in `unfinished` until their answer is there.
    """
    under_way: dict[Any, int] = {}

    def send(some: Iterable[Task]) -> None:
        for task in some:
            unfinished[task.number] = task
            under_way[crew.send(task)] = task.number

    send(list(unfinished.values()))
    while True:
        send(islice(tasks, max(0, crew.places() - len(under_way))))
        if not under_way:
            return
        for handle in crew.ready(under_way):
            answer = crew.answer(handle)
            del unfinished[under_way.pop(handle)]
            yield answer


def in_processes(questions: Questions, tasks: Iterator[Task], want: Want, jobs: int) -> Answers:
    """Yield the answers of tasks that run in processes on this machine.

    A process that dies breaks the pool of all: a new one begins the unfinished tasks again.
    """
    from concurrent.futures.process import BrokenProcessPool

    unfinished: dict[int, Task] = {}
    broken: Counter[int] = Counter()
    while True:
        crew = _Pool(questions, want, jobs)
        try:
            yield from _streamed(crew, tasks, unfinished)
        except BrokenProcessPool as error:
            broken = Counter({number: broken[number] + 1 for number in unfinished})
            if max(broken.values()) >= TRIES:
                raise LostWorkerError(
                    f"worker processes died {TRIES} times on one task: out of memory, or "
                    "a script that starts a search without `if __name__ == '__main__':`"
                ) from error
        else:
            return
        finally:
            crew.stop()


class _Pool:
    """Processes on this machine as a crew."""

    def __init__(self, questions: Questions, want: Want, jobs: int) -> None:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        self._jobs = jobs
        # Started afresh, not forked: a fork would copy locks that other threads hold.
        context = get_context("spawn")
        self.processes = ProcessPoolExecutor(jobs, context, _begin_worker, (questions, want))

    def places(self) -> int:
        return _AHEAD * self._jobs

    def send(self, task: Task) -> Future[Answer]:
        with _environment(_ONE_THREAD), _interrupts_held():  # the first task starts all processes
            return self.processes.submit(_in_worker, task)

    def ready(self, under_way: Collection[Future[Answer]]) -> Iterable[Future[Answer]]:
        from concurrent.futures import FIRST_COMPLETED, wait

        return wait(under_way, return_when=FIRST_COMPLETED).done

    def answer(self, handle: Future[Answer]) -> Answer:
        return handle.result()

    def stop(self) -> None:
        """End the processes, whatever they do."""
        for process in tuple((self.processes._processes or {}).values()):
            process.terminate()  # a task may take minutes, and nobody waits for it any more
        self.processes.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until the end; processes that are started meanwhile never see it.

    They inherit that this thread blocks it. Any other thread may still take it for this process, so
    that it is also noted rather than raised, which would leave a process half started.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and hasattr(signal, "pthread_sigmask")):
        yield
        return
    noted: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
    if noted:
        raise KeyboardInterrupt


_runner: Runner
"""Of a process that is a worker."""


def _begin_worker(questions: Questions, want: Want) -> None:
    """Make this process a worker: it knows the questions, and ends when its parent does."""
    global _runner  # noqa: PLW0603
    _runner = Runner(questions, want)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_worker(task: Task) -> Answer:
    return _runner.answer(task)


def on_ray(
    questions: Questions, tasks: Iterator[Task], want: Want, jobs: int, address: str | None = None
) -> Answers:
    """Yield the answers of tasks that run on Ray (Moritz et al. 2018, arXiv:1712.05889).

    A Ray that this process is connected to is used as it is; otherwise the one at `address` or
    RAY_ADDRESS, or one of `jobs` workers that lives as long as the search.
    """
    ray = _ray()
    with _connected(ray, jobs, address):
        try:
            crew = _OnRay(ray, questions, want)
        except ray.exceptions.RayError as error:
            raise LostWorkerError(f"Ray ended as it was started: {_line(error)}") from error
        yield from _streamed(crew, tasks, {})


class _OnRay:
    """The workers of a Ray as a crew.

    Tasks that nobody waits for any more run to their end, which takes seconds, or end with a Ray
    that is the search's own. Cancelling them would put this process at risk: Ray aborts it where a
    cancellation meets a task that has just ended (ray-project/ray#54785).
    """

    def __init__(self, ray: Any, questions: Questions, want: Want) -> None:
        self._ray, self._want = ray, want
        self._questions = ray.put(questions)
        self._run = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_in_ray_worker)

    def places(self) -> int:
        return _AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def send(self, task: Task) -> Any:
        from shardcost.search.fingerprint import package_digest

        # In a list, so that each worker fetches the questions once and not with every task.
        return self._run.remote([self._questions], task, self._want, package_digest())

    def ready(self, under_way: Collection[Any]) -> Iterable[Any]:
        done: list[Any] = self._ray.wait(list(under_way), num_returns=1)[0]
        return done

    def answer(self, handle: Any) -> Answer:
        errors = self._ray.exceptions
        try:
            found: Answer = self._ray.get(handle)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            raise LostWorkerError(f"Ray lost a task {TRIES} times: {_line(error)}") from error
        return found


_ray_runners: dict[str, Runner] = {}
"""Of the search that this Ray worker has worked for last."""


def _in_ray_worker(questions: list[Any], task: Task, want: Want, digest: str) -> Answer:
    import ray

    from shardcost.search.fingerprint import package_digest

    if digest != package_digest():
        raise BadValueError("a Ray worker's shardcost", package_digest(), "that of the search")
    key = questions[0].hex()
    if key not in _ray_runners:
        _ray_runners.clear()
        _ray_runners[key] = Runner(ray.get(questions[0]), want)
    return _ray_runners[key].answer(task)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtraError("the engine ray", "Ray", "ray") from None
    return ray


def _line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def _connected(ray: Any, jobs: int, address: str | None) -> Iterator[None]:
    """Be connected to a Ray, and leave behind what was there before."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    with _environment(_ONE_THREAD | _QUIET_RAY):
        if address is None:
            size: dict[str, Any] = {"num_cpus": jobs, "object_store_memory": _RAY_STORE_BYTES}
            try:
                ray.init(address="local", include_dashboard=False, **size, **_FEW_WORDS)
            except Exception as error:  # Ray raises plain ones where its processes do not start
                ray.shutdown()
                raise LostWorkerError(f"Ray cannot be started: {_line(error)}") from error
        else:
            _connect(ray, address)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Connect to a running Ray; Ray itself would wait for minutes where nothing answers."""
    import socket

    host, _, port = address.rpartition(":")
    try:
        if port.isdigit() and "/" not in host:
            socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN_S).close()
        ray.init(address=address, **_FEW_WORDS)
    except (OSError, ValueError, RuntimeError) as error:
        rule = f"that of a running Ray ({_line(error)})"
        raise BadValueError("address", address, rule) from None


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment that are not set, for processes that start meanwhile."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
