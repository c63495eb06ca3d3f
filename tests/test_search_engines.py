"""Where a search runs, and what it leaves on disk, change nothing of what it finds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from shardcost import Candidate, Cluster, Decode, Found, Train, search
from shardcost.errors import (
    BadTypeError,
    BadValueError,
    FormatError,
    LostWorkerError,
    MissingExtraError,
    UnknownNameError,
)
from shardcost.search import engines
from shardcost.search import run as searching
from shardcost.search.engines import engine_of
from shardcost.search.fingerprint import fingerprint, package_digest, request_of
from shardcost.search.run import questions_of
from shardcost.search.space import CHOICES, Space
from shardcost.search.store import Store, part_of_summary, summary_of
from shardcost.search.table import packed, schema_of
from shardcost.search.tasks import Runner, Want, tasks_of

MODELS = ("llama3-8b", "mixtral-8x7b")
WORK = Train(global_batch=64, sequence_length=4096)
SPACE = {
    "gpus": (8, 16),
    "cp": 1,
    "ep": (1, 2),
    "zero": (0, 1),
    "recompute": ("none", "full"),
    "schedule": ("1f1b", "interleaved"),
    "context_scheme": "ring",
}
TASKS = 6
SCRIPT = f"""
import os, signal, sys
from pathlib import Path
from shardcost import Cluster, Train, search
clusters = [
    Cluster.named(*each)
    for each in (("h100_sxm", "ib_8x400g"), ("a100_sxm", "ib_8x200g"), ("l40s", "ib"))
]
def progress(done, cells):
    tasks = len(list(Path(sys.argv[1] + ".parts").glob("task-*.json")))
    if 0 < int(sys.argv[3]) <= tasks:
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    found = search(
        {MODELS!r}, clusters, {WORK!r}, space={SPACE!r}, progress=progress,
        out=sys.argv[1] or None, engine=sys.argv[2], jobs=1 + (sys.argv[2] == "processes"),
        address=sys.argv[4] if len(sys.argv) > 4 else None,
    )
    print(found.considered, found.feasible, found.best[0].time_s, found.resumed)
"""


def clusters() -> list[Cluster]:
    named = (("h100_sxm", "ib_8x400g"), ("a100_sxm", "ib_8x200g"), ("l40s", "ib"))
    return [Cluster.named(*each) for each in named]


def asked(**changes: Any) -> Found:
    return search(MODELS, clusters(), WORK, **{"space": SPACE, **changes})


def same(one: Found, two: Found) -> None:
    """Assert that two searches have found the same, to the last bit."""

    def rows(candidates: tuple[Candidate | None, ...]) -> list[Any]:
        return [each and dict(each.row) for each in candidates]

    assert (one.considered, one.feasible) == (two.considered, two.feasible)
    assert list(one.rejected.items()) == list(two.rejected.items())
    assert rows(one.best) == rows(two.best)
    assert rows(one.front) == rows(two.front)
    assert rows((one.beyond, one.smallest)) == rows((two.beyond, two.smallest))
    assert {name: dict(values) for name, values in one.by_axis.items()} == {
        name: dict(values) for name, values in two.by_axis.items()
    }


@pytest.fixture(scope="module")
def here() -> Found:
    """Return what a search in this process finds."""
    return asked()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Return the table of a search that nothing has interrupted."""
    out = tmp_path_factory.mktemp("whole") / "results.parquet"
    asked(out=out)
    return pl.read_parquet(out)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start a Ray of two workers, as a search would, and hold it for all tests of this file."""
    import ray

    with engines._connected(ray, jobs=2, address=None):
        yield ray
    assert not ray.is_initialized()


def test_processes_find_what_this_process_finds(here: Found, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = asked(
        engine="processes",
        jobs=2,
        out=tmp_path / "results.parquet",
        progress=lambda done, cells: seen.append((done, cells)),
    )
    same(found, here)
    assert len(seen) == TASKS
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(each.cells for each in found.questions)


def test_distinct_layouts_are_the_same_wherever_and_however_often_they_run(tmp_path: Path) -> None:
    out = tmp_path / "results.parquet"
    alone = asked(distinct=True)
    assert any(each.variants for each in alone.best)

    def stop(done: int, cells: int) -> None:
        if done > cells / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked(distinct=True, out=out, progress=stop)
    with pytest.raises(BadValueError, match="different: distinct"):
        asked(out=out)
    again = asked(distinct=True, out=out, engine="processes", jobs=2)
    assert again.resumed > 0
    same(again, alone)
    counted = [(each.variants, each.varied) for each in alone.best]
    assert [(each.variants, each.varied) for each in again.best] == counted


@pytest.mark.usefixtures("ray")
def test_ray_finds_what_this_process_finds(
    here: Found, whole: pl.DataFrame, tmp_path: Path
) -> None:
    out = tmp_path / "results.parquet"
    same(asked(engine="ray", out=out), here)
    assert_frame_equal(pl.read_parquet(out), whole, check_exact=True)


def test_a_ray_worker_that_is_killed_loses_nothing(here: Found, ray: Any) -> None:
    killed: list[int] = []

    def kill_one(done: int, cells: int) -> None:
        if not killed and done < cells:
            killed.extend(_ray_workers()[:1])
            os.kill(killed[0], signal.SIGKILL)

    same(asked(engine="ray", progress=kill_one), here)
    assert killed
    assert ray.is_initialized()  # a Ray that was there before stays


def _ray_workers() -> list[int]:
    """Wait for processes of this process's Ray that compute a task; return their numbers."""
    for _ in range(500):
        found = [
            int(each.parent.name)
            for each in Path("/proc").glob("[0-9]*/cmdline")
            if _text(each).startswith("ray::_in_ray_worker") and _descends(each.parent)
        ]
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("no Ray worker computes a task")


def _descends(process: Path) -> bool:
    while process.name not in {"0", "1", str(os.getpid())}:
        fields = _text(process / "stat").rpartition(")")[2].split()
        process = process.parent / (fields[1] if fields else "0")
    return process.name == str(os.getpid())


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has just ended
        return ""


def test_a_search_connects_to_a_ray_that_runs(here: Found, ray: Any) -> None:
    address = ray.get_runtime_context().gcs_address
    printed = _run("", "ray", 0, address)
    assert printed.split() == [
        str(each) for each in (here.considered, here.feasible, here.best[0].time_s, 0)
    ]


@pytest.mark.usefixtures("ray")
def test_an_error_inside_a_task_is_the_same_everywhere() -> None:
    unknown = Cluster.named("h100_sxm")
    device = {**_fields(unknown.device), "power_w": None}
    cluster = Cluster(**{**_fields(unknown), "device": type(unknown.device)(**device)})
    messages = set()
    for engine in engines.ENGINES:
        with pytest.raises(BadValueError, match="power unknown") as error:
            search("llama3-8b", cluster, WORK, objective="energy", engine=engine, space=SPACE)
        messages.add(str(error.value))
    assert len(messages) == 1


def _fields(noun: Any) -> dict[str, Any]:
    return {name: getattr(noun, name) for name in type(noun).__dataclass_fields__}


def test_a_process_that_is_killed_loses_nothing(
    here: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_TOLD_EVERY_S", 0.0)  # however fast tasks are done
    killed: list[int] = []

    def kill_one(done: int, cells: int) -> None:
        workers = [each.pid for each in active_children() if each.pid]
        if not killed and done < cells and workers:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    same(asked(engine="processes", jobs=2, progress=kill_one), here)
    assert killed


class _Deadly:
    """Ends the process that receives it."""

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return os._exit, (1,)


def test_processes_that_always_die_end_the_search() -> None:
    questions = questions_of("llama3-8b", "h100_sxm", WORK, space=Space.of({"cp": 1}))
    run = engine_of("processes")
    with pytest.raises(LostWorkerError, match="died 4 times"):
        list(run((*questions, _Deadly()), tasks_of(questions), Want(1, False)))  # type: ignore[arg-type]
    assert not active_children()


def test_workers_end_with_a_search_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "results.parquet"), "processes", "1"]
    ) as process:
        children: set[str] = set()
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None:
            children |= set(_text(path).split())
            time.sleep(0.01)
    assert process.returncode == -signal.SIGKILL
    assert len(children) >= 2
    _gone_soon(children)


def _gone_soon(processes: set[str]) -> None:
    for _ in range(1000):
        if not any(_text(Path("/proc") / each / "cmdline") for each in processes):
            return
        time.sleep(0.01)
    raise AssertionError("workers outlive their search")


def test_workers_compute_on_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    crew = engines._Pool((), Want(1, False), jobs=1)
    with pytest.raises(IndexError):
        crew.send(next(tasks_of(_questions()))).result()
    assert crew.processes.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
    crew.stop()
    assert "OMP_NUM_THREADS" not in os.environ


def _questions() -> Any:
    return questions_of(MODELS, clusters(), WORK, space=Space.of(SPACE))


def test_no_more_tasks_than_needed_are_drawn_ahead() -> None:
    questions = _questions()
    drawn = []

    def tasks() -> Iterator[Any]:
        for task in tasks_of(questions):
            drawn.append(task.number)
            yield task

    for engine, ahead in (("local", 1), ("processes", 2)):
        drawn.clear()
        answers = engine_of(engine)(questions, tasks(), Want(1, False))
        next(answers)
        assert len(drawn) <= ahead
        answers.close()


def test_tasks_are_drawn_one_by_one_from_however_many_there_are() -> None:
    ways = {
        "gpus": tuple(2**each for each in range(3, 18)),
        "order": ("tp-cp-dp-pp", "dp-tp-cp-pp", "pp-dp-cp-tp"),
        "tp_overlap": ("none", "async", "chunked"),
    }
    work = Train(global_batch=2048, sequence_length=8192)
    questions = questions_of(("gpt3-175b", "llama3-405b"), clusters(), work, space=Space.of(ways))
    assert sum(each.cells for each in questions) > 10**9
    first = list(islice(tasks_of(questions), 3))
    assert [task.number for task in first] == [0, 1, 2]


# What is on disk


def _run(out: Path | str, engine: str, killed_at: int, *address: str) -> str:
    """Run the search in a process of its own, killed when so many tasks are done."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(out), engine, str(killed_at), *address],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr
    assert killed_at or not done.stderr
    return done.stdout


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_search_that_is_killed_continues(
    engine: str, here: Found, whole: pl.DataFrame, tmp_path: Path
) -> None:
    out = tmp_path / "results.parquet"
    _run(out, engine, 2)
    assert not out.exists()
    assert len(list(_parts(out).glob("task-*.json"))) == 2
    found = asked(out=out)
    assert found.resumed == 2
    same(found, here)
    assert_frame_equal(pl.read_parquet(out), whole, check_exact=True)
    assert not _parts(out).exists()


def _parts(out: Path) -> Path:
    return out.with_name(out.name + ".parts")


def _stopped(out: Path, tasks: int = 3) -> None:
    """Run a search that is interrupted after some tasks."""

    def interrupt(_done: int, _cells: int) -> None:
        if len(list(_parts(out).glob("task-*.json"))) >= tasks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked(out=out, progress=interrupt)
    assert len(list(_parts(out).glob("task-*.json"))) == tasks


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("ending", ["parquet", "json"])
@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink])
def test_damaged_parts_are_made_again(
    ending: str, damage: Callable[[Path], None], here: Found, whole: pl.DataFrame, tmp_path: Path
) -> None:
    out = tmp_path / "results.parquet"
    _stopped(out)
    damage(sorted(_parts(out).glob(f"task-*.{ending}"))[1])
    found = asked(out=out)
    assert found.resumed == 2
    same(found, here)
    assert_frame_equal(pl.read_parquet(out), whole, check_exact=True)


def test_leftovers_of_a_killed_process_do_no_harm(whole: pl.DataFrame, tmp_path: Path) -> None:
    out = tmp_path / "results.parquet"
    _stopped(out)
    (_parts(out) / f".task-000004.json.{os.getpid()}.tmp").write_text("half of ")
    (_parts(out) / "joined.parquet").write_text("half of ")
    assert asked(out=out).resumed == 3
    assert_frame_equal(pl.read_parquet(out), whole, check_exact=True)
    assert [each.name for each in tmp_path.iterdir()] == [out.name]


def test_parts_of_another_search_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "results.parquet"
    _stopped(out)
    before = {each.name: each.read_bytes() for each in _parts(out).iterdir()}
    others: list[tuple[dict[str, Any], str]] = [
        ({"space": {**SPACE, "zero": 1}}, "different: space"),
        ({"objective": "throughput"}, "different: objective"),
        ({"constraints": {"memory_headroom": 0.1}}, "different: constraints"),
        ({"top": 100}, "different: kept"),
        ({"software": "torchtitan"}, "different: software"),
    ]
    for changes, words in others:
        with pytest.raises(BadValueError, match=words) as error:
            asked(out=out, **changes)
        assert str(_parts(out)) in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(BadValueError, match="different: the number of models, machines"):
        search("llama3-8b", "h100_sxm", WORK, out=out)
    assert {each.name: each.read_bytes() for each in _parts(out).iterdir()} == before
    (_parts(out) / "request.json").unlink()
    with pytest.raises(BadValueError, match="parts of another search"):
        asked(out=out)


def test_two_searches_do_not_write_to_one_target(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    out = tmp_path / "results.parquet"
    questions, want = _questions(), Want(64, True)
    with (
        Store.opened(out, questions, want),
        pytest.raises(BadValueError, match="still runs"),
        Store.opened(out, questions, want),
    ):
        pass


def test_only_a_finished_search_replaces_a_table_and_only_if_told(
    whole: pl.DataFrame, tmp_path: Path
) -> None:
    out = tmp_path / "results.parquet"
    out.write_text("something older")
    with pytest.raises(BadValueError, match="a new file, unless --overwrite"):
        asked(out=out)
    assert list(tmp_path.iterdir()) == [out]

    def stop(done: int, cells: int) -> None:
        if done > cells / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked(out=out, overwrite=True, progress=stop)
    assert out.read_text() == "something older"
    assert asked(out=out).resumed > 0  # told when it began
    assert_frame_equal(pl.read_parquet(out), whole, check_exact=True)
    with pytest.raises(BadValueError, match="a new file"):
        asked(out=out)


def test_a_table_that_appears_while_a_search_is_stopped_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "results.parquet"
    _stopped(out)
    out.write_text("something newer")
    with pytest.raises(BadValueError, match="a new file"):
        asked(out=out)
    assert out.read_text() == "something newer"
    assert asked(out=out, overwrite=True).resumed > 0


def test_a_table_of_texts_has_the_same_rows(tmp_path: Path) -> None:
    found = search("llama3-8b", "h100_sxm", WORK, space=SPACE, out=tmp_path / "results.csv")
    search("llama3-8b", "h100_sxm", WORK, space=SPACE, out=tmp_path / "results.parquet")
    texts = pl.read_csv(tmp_path / "results.csv")
    assert texts.height == found.feasible > 0
    rows = pl.read_parquet(tmp_path / "results.parquet")
    assert texts.columns == rows.columns
    assert texts["time_s"].to_list() == rows["time_s"].to_list()
    assert texts["recompute"].to_list() == rows["recompute"].to_list()


def test_a_disk_that_is_full_at_the_end_is_said_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "results.parquet"

    written = pl.LazyFrame.sink_parquet

    def full(table: pl.LazyFrame, path: Any, **given: Any) -> Any:
        if not isinstance(path, Path):  # parts are packed in memory
            return written(table, path, **given)
        path.write_text("half")
        raise pl.exceptions.ComputeError("No space left on device (os error 28)")

    with monkeypatch.context() as patched:
        patched.setattr(pl.LazyFrame, "sink_parquet", full)
        with pytest.raises(FormatError, match=r"results\.parquet.* cannot be written: No space"):
            search("llama3-8b", "h100_sxm", WORK, space=SPACE, out=out)
    assert not out.exists()
    assert not list(tmp_path.rglob("joined*"))
    again = search("llama3-8b", "h100_sxm", WORK, space=SPACE, out=out)
    assert again.resumed > 0
    assert pl.read_parquet(out).height == again.feasible


def test_rows_of_the_table_are_the_candidates(whole: pl.DataFrame, here: Found) -> None:
    assert whole.height == here.feasible
    assert whole["score"].min() == here.best[0].score
    first = whole.filter(pl.col("score") == pl.col("score").min()).to_dicts()
    candidate = here.best[0]
    layout = candidate.layout
    wanted = {
        "model": candidate.question.model.name,
        "cluster": candidate.question.cluster.name,
        "software": candidate.software.name,
        "gpus": layout.devices,
        **{name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep", "micro_batch")},
        **{name: getattr(layout, name) for name in ("recompute", "schedule", "zero")},
        "time_s": candidate.time_s,
        "memory_bytes": candidate.memory_bytes,
        "batch": 64,
    }
    assert wanted in [{name: each[name] for name in wanted} for each in first]
    rate = 64 * 4096 / whole["time_s"] / whole["gpus"]
    np.testing.assert_allclose(whole["tokens_per_s_per_gpu"], rate, rtol=1e-12)
    assert set(CHOICES) < set(whole.columns)
    assert whole["network"].n_unique() == 3
    assert whole["model"].n_unique() == 2


def test_a_table_of_serving_has_what_a_user_waits_for(tmp_path: Path) -> None:
    out = tmp_path / "served.parquet"
    work = Decode(batch=8, context_tokens=2048, new_tokens=2)
    limits = {"max_ttft_s": 1.0}
    space = {"gpus": 8, "batch": (8, 64)}
    search("llama3-8b", "h100_sxm", work, space=space, constraints=limits, out=out)
    table = pl.read_parquet(out)
    assert set(table["batch"].unique()) == {8, 64}
    np.testing.assert_allclose(table["tokens_per_s_per_user"], 2 / table["time_s"])
    assert (table["ttft_s"] <= 1.0).all()
    assert table["network"].is_null().all()


def test_a_table_without_rows_has_its_columns(tmp_path: Path, whole: pl.DataFrame) -> None:
    out = tmp_path / "none.parquet"
    found = asked(out=out, constraints={"max_time_s": 1e-6})
    assert found.feasible == 0
    table = pl.read_parquet(out)
    assert table.height == 0
    assert table.schema == whole.schema
    found = search(
        MODELS[0], clusters()[0], WORK, space={"gpus": 7, "tp": 2}, out=out, overwrite=True
    )
    assert found.feasible == 0


def test_a_part_survives_its_summary() -> None:
    questions = _questions()
    runner = Runner(questions, Want(8, False))
    for task in tasks_of(questions):
        part = runner.part(task)
        again = part_of_summary(summary_of(part))
        assert summary_of(again) == summary_of(part)
        for name in ("best", "front", "beyond", "smallest"):
            for column, values in getattr(part, name).items():
                assert getattr(again, name)[column].dtype == values.dtype


def test_answers_are_small() -> None:
    questions = _questions()
    task = next(tasks_of(questions))
    runner = Runner(questions, Want(64, True))
    answer, table = runner.answer(task), runner.part(task).table
    assert not answer.part.table
    assert len(answer.rows) < sum(each.nbytes for each in table.values()) / 3
    assert answer.rows == packed(questions, 0, table)
    assert list(schema_of(questions))[:4] == ["model", "cluster", "network", "software"]


def test_a_fingerprint_is_of_all_that_decides_the_result() -> None:
    questions, want = _questions(), Want(64, True)
    request = request_of(questions, want)
    name = fingerprint(request)
    assert fingerprint(request_of(_questions(), want)) == name
    assert fingerprint(request_of(questions, Want(65, True))) != name
    assert fingerprint(request_of(questions[1:], want)) != name
    assert len(package_digest()) == len(name) == 64


# What cannot be


def test_engines_are_asked_for_by_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown engine 'dask'; known: local"):
        asked(engine="dask")
    with pytest.raises(BadValueError, match="jobs must be 1 for the engine local"):
        asked(jobs=2)
    with pytest.raises(BadValueError, match="jobs must be"):
        asked(engine="processes", jobs=0)
    with pytest.raises(BadValueError, match="address must be left out but for the engine ray"):
        asked(engine="processes", address="auto")


def test_a_ray_that_does_not_answer_is_said_at_once() -> None:
    import ray

    for address in ("127.0.0.1:1", "nonsense"):
        with pytest.raises(BadValueError, match="address must be that of a running Ray"):
            engines._connect(ray, address)


def test_a_ray_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def dies(**_: Any) -> None:
        raise Exception("The current node timed out during startup.\nSee the logs.")  # noqa: TRY002

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", dies)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(LostWorkerError, match=r"^Ray cannot be started: .* startup\.$"):
        asked(engine="ray")


def test_a_target_is_checked_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match=r"ends in \.parquet or \.csv"):
        asked(out=tmp_path / "results.txt")
    with pytest.raises(FormatError, match="there is no folder"):
        asked(out=tmp_path / "none" / "results.parquet")
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(FormatError, match="it is a folder"):
        asked(out=tmp_path / "folder.parquet")
    with pytest.raises(BadTypeError, match="out must be the name of a file"):
        asked(out=3)
    (tmp_path / "taken.parquet.parts").write_text("")
    with pytest.raises(FormatError, match="cannot be written"):
        asked(out=tmp_path / "taken.parquet")


def test_missing_libraries_are_named_with_their_extras(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for library, extra, changes in (
        ("polars", "table", {"out": tmp_path / "results.parquet"}),
        ("ray", "ray", {"engine": "ray"}),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            with pytest.raises(MissingExtraError, match=rf"pip install 'shardcost\[{extra}\]'"):
                asked(**changes)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_an_interrupt_while_workers_start_is_one_line() -> None:
    words = "plan deepseek-v3 --on h100_sxm --network ib_8x400g --gpus 2048 --train --batch 4096"
    command = [sys.executable, "-m", "shardcost", *words.split(), "--sequence-length", "4096"]
    with subprocess.Popen(
        [*command, "--jobs", "2"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as search:  # fmt: skip
        children = Path(f"/proc/{search.pid}/task/{search.pid}/children")
        while len(children.read_text().split()) < 3:  # two workers, and what tracks resources
            time.sleep(0.005)
        os.killpg(search.pid, signal.SIGINT)  # as Ctrl-C does
        _, said = search.communicate(timeout=60)
    assert (search.returncode, said) == (130, "shardcost: interrupted\n")
