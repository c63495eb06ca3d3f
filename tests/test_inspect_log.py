"""What the times of a log say, and how the report tells it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.formats.reading import MeasurementLog, Point, Run, Unread
from shardcost.inspect.log import RunFindings, inspected
from shardcost.report.inspect_log import as_data, as_text

SIZES = tuple(2**k for k in range(3, 31))


def time_s(size: int) -> float:
    """Return 20 us and 1e11 bytes a second."""
    return 20e-6 + size / 1e11


def run(
    collective: str = "all_reduce", num_gpus: int = 8, sizes: Sequence[int] = SIZES, **others: str
) -> Run:
    points = []
    for line, size in enumerate(sizes, 10):
        points.append(Point(size, time_s(size), in_place=False, dtype="fp32", line=line))
        points.append(Point(size, 1.1 * time_s(size), in_place=True, dtype="fp32", line=line))
    kept = {"library": "nccl", "device": "NVIDIA H100 80GB HBM3", **others}
    return Run(collective=collective, num_gpus=num_gpus, nodes=1, points=tuple(points), **kept)  # type: ignore[arg-type]


def slowed(found: Run, size: int, times: float, *, in_place: bool | None = None) -> Run:
    """Return a run in which the calls of one size take several times as long."""
    points = tuple(
        replace(each, time_s=times * each.time_s)
        if each.size_bytes == size and in_place in {None, each.in_place}
        else each
        for each in found.points
    )
    return replace(found, points=points)


def log_of(*runs: Run, unread: tuple[Unread, ...] = ()) -> MeasurementLog:
    return MeasurementLog(file="x.log", kind="nccl-tests", runs=runs, unread=unread)


def doubted(found: RunFindings, word: str) -> list[int]:
    return [each.point.size_bytes for each in found.suspicious if word in each.reason]


def test_bandwidths_follow_from_sizes_and_times() -> None:
    found = inspected(run())
    for each in found.points:
        algbw = each.point.size_bytes / each.point.time_s
        assert each.algbw_bytes_per_s == pytest.approx(algbw)
        assert each.busbw_bytes_per_s == pytest.approx(1.75 * algbw)
    assert inspected(run("all_gather")).points[0].busbw_bytes_per_s == pytest.approx(
        0.875 * found.points[0].algbw_bytes_per_s
    )
    assert found.suspicious == ()
    assert found.not_predicted == "the machine is not known (name it with --on)"


def test_the_peak_and_where_it_begins() -> None:
    found = inspected(run())
    assert found.peak is not None
    assert (found.peak.point.size_bytes, found.peak.point.in_place) == (SIZES[-1], False)
    assert found.near_peak_bytes == 8 * 2**20  # s / (20 us 1e11 + s) = 0.8 of almost 1 at 8 MB
    assert found.floor_s == pytest.approx(20e-6, rel=0.01)
    assert inspected(run(sizes=SIZES[20:])).floor_s is None


def test_a_known_machine_adds_its_links_and_predictions() -> None:
    cluster = Cluster.named("h100_sxm")
    found = inspected(run(), cluster)
    assert (found.system, found.nominal_bytes_per_s, found.not_predicted) == ("h100_sxm", 450e9, "")
    for each in found.points:
        assert each.busbw_bytes_per_s is not None
        assert each.link_share == pytest.approx(each.busbw_bytes_per_s / 450e9)
        predicted = collective_time("all_reduce", each.point.size_bytes, cluster, 8, 1).time_s
        assert each.predicted_s == pytest.approx(predicted)


def test_one_process_for_all_gpus_is_predicted_as_such() -> None:
    cluster = Cluster.named("h100_sxm")
    launch_s = 1e-6 * tuner_table("nccl")["host_launch"]["us_per_gpu"]
    alone = inspected(run(), cluster)
    together = inspected(replace(run(), single_process=True), cluster)
    for one, other in zip(alone.points, together.points, strict=True):
        assert one.predicted_s is not None
        assert other.predicted_s == pytest.approx(one.predicted_s + 8 * launch_s)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (run("gather"), "gather is not predicted"),
        (run(""), "without a name"),
        (run(num_gpus=0), "number of GPUs"),
        (replace(run(num_gpus=16), nodes=2), "name a network"),
        (run(library="mpi"), "mpi"),
    ],
)
def test_what_cannot_be_predicted_has_a_reason(asked: Run, reason: str) -> None:
    found = inspected(asked, Cluster.named("h100_sxm"))
    assert reason in found.not_predicted
    assert all(each.predicted_s is None for each in found.points)
    assert len(found.points) == len(asked.points)
    json.dumps(as_data(log_of(asked), [found]), allow_nan=False)
    assert "Not predicted: " in as_text(log_of(asked), [found])


def test_rows_without_a_device_are_of_the_library_of_the_machine() -> None:
    bare = inspected(run(device=""), Cluster.named("mi300x"))
    assert bare.not_predicted == ""
    assert bare.points[0].predicted_s == pytest.approx(
        collective_time("all_reduce", SIZES[0], "mi300x", 8, 1, library="rccl").time_s
    )


def test_a_size_slower_than_a_larger_one_is_doubted() -> None:
    found = inspected(slowed(run(), 2**10, 3.0))
    assert doubted(found, "slower than a larger size") == [2**10, 2**10]
    assert doubted(inspected(slowed(run(), 2**10, 1.2)), "slower") == []


def test_a_first_row_that_is_slow_was_not_warmed_up() -> None:
    found = inspected(slowed(run(), SIZES[0], 2.0, in_place=False))
    assert doubted(found, "warmed up") == [SIZES[0]]
    assert doubted(found, "slower than a larger size") == []


def test_in_place_unlike_out_of_place_is_doubted() -> None:
    found = inspected(slowed(run(), SIZES[-1], 1.5, in_place=True))
    assert doubted(found, "in place and out of place differ") == [SIZES[-1]]
    assert found.suspicious[0].point.in_place


def test_more_than_the_links_can_carry_is_doubted() -> None:
    fast = slowed(run(), SIZES[-1], 0.3)
    found = inspected(fast, Cluster.named("h100_sxm"))
    assert doubted(found, "above the nominal rate") == [SIZES[-1], SIZES[-1]]
    assert doubted(inspected(fast), "above the nominal rate") == []


def test_a_row_above_its_neighbours_is_doubted_against_the_prediction() -> None:
    cluster = Cluster.named("h100_sxm")
    healthy = run()
    predicted = {each.point: each.predicted_s or 0.0 for each in inspected(healthy, cluster).points}
    points = tuple(replace(each, time_s=predicted[each]) for each in healthy.points)
    found = inspected(slowed(replace(healthy, points=points), 2**28, 1.5), cluster)
    assert doubted(found, "slower than its neighbours") == [2**28, 2**28]
    assert doubted(inspected(replace(healthy, points=points), cluster), "slower") == []


def test_plain_data_has_what_others_read() -> None:
    one = slowed(run(), 2**10, 3.0)
    log = log_of(one, unread=(Unread("rows of 0 bytes", 2, 7),))
    data = json.loads(json.dumps(as_data(log, [inspected(one)]), allow_nan=False))
    assert (data["file"], data["kind"]) == ("x.log", "nccl-tests")
    assert (data["collective"], data["num_gpus"], data["nodes"]) == ("all_reduce", 8, 1)
    assert (data["library"], data["device"]) == ("nccl", "NVIDIA H100 80GB HBM3")
    assert [each["size_bytes"] for each in data["points"]] == list(SIZES)
    last = data["points"][-1]
    assert last["time_us"] == pytest.approx(1e6 * time_s(SIZES[-1]))
    assert last["algbw"] == pytest.approx(SIZES[-1] / time_s(SIZES[-1]) / 1e9)
    assert last["busbw"] == pytest.approx(1.75 * last["algbw"])
    assert last["in_place"]["time_us"] == pytest.approx(1.1 * last["time_us"])
    assert {each["size_bytes"] for each in data["suspicious"]} == {2**10}
    assert data["unread"] == [{"reason": "rows of 0 bytes", "count": 2, "first_line": 7}]
    assert "runs" not in data


def test_several_runs_are_all_there() -> None:
    runs = [run(), run("all_gather"), *[run("reduce_scatter")] * 8]
    found = [inspected(each) for each in runs]
    data = as_data(log_of(*runs), found)
    assert data["collective"] == "all_reduce"
    assert [each["collective"] for each in data["runs"][:2]] == ["all_reduce", "all_gather"]
    text = as_text(log_of(*runs), found)
    assert "Also: all_gather on 8 GPUs" in text
    assert "And 4 more runs" in text


def test_a_run_in_place_only_is_shown_as_such() -> None:
    inside = tuple(each for each in run().points if each.in_place)
    only = replace(run(), points=inside)
    data = as_data(log_of(only), [inspected(only)])
    assert len(data["points"]) == len(SIZES)
    assert "in_place" not in data["points"][0]


@pytest.mark.parametrize("system", [None, "h100_sxm"])
def test_the_text_fits_a_screen(monkeypatch: pytest.MonkeyPatch, system: str | None) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    one = slowed(slowed(run(), 2**10, 30.0), SIZES[-1], 20.0)
    log = log_of(one, unread=(Unread("lines of other output", 2, 7),))
    text = as_text(log, [inspected(one, Cluster.named(system) if system else None)])
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 32
    assert lines[0].startswith(
        f"{log.file}: all_reduce on 8 GPUs (NVIDIA H100 80GB HBM3), nccl, 28 sizes"
    )
    assert "time us" in text
    assert "1 KiB (line 17)" in text
    assert "Not read: 2 x lines of other output (from line 7)." in text
    assert ("h100_sxm's slowest link" in " ".join(text.split())) == bool(system)


def test_many_doubts_are_told_in_one_line() -> None:
    slow = run()
    for size in SIZES[:-1]:
        slow = slowed(slow, size, 5000.0)
    text = " ".join(as_text(log_of(slow), [inspected(slow)]).split())
    assert "26 rows from 16 B to 512 MiB (lines 11 to 36)" in text
