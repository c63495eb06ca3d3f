"""Traces: JSON of any size, what profilers write, several ranks together, and traces of our own."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardcost import Cluster, Layout, Train, estimate
from shardcost.cli import main
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadValueError, FormatError, ShardcostError
from shardcost.formats import json_stream, kineto
from shardcost.formats.chrome_trace import Event, Names, ranks_text, trace_text, write_trace
from shardcost.formats.json_stream import JsonStream
from shardcost.formats.kineto import RankTrace, Trace, looks_like, read
from shardcost.formats.kineto_names import Call, CommGroup, Kind, call_of, communicates
from shardcost.formats.kineto_ranks import merged, runs_of
from shardcost.formats.reading import Unread
from shardcost.formats.time_sets import Union, united
from shardcost.inspect.trace import inspected
from shardcost.report.inspect_trace import as_data, as_text
from shardcost.report.trace import events_of

RESTART = re.compile(r'\{\s{0,80}"ph"')
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


# JSON of any size.


def streamed(
    text: str | bytes, chunk: int = 7, thinned: Any = str
) -> tuple[dict[str, Any], tuple[Unread, ...]]:
    content = text.encode() if isinstance(text, str) else text
    virtual_stages = (content[i : i + chunk] for i in range(0, len(content), chunk))
    stream = JsonStream(virtual_stages, "file", {"traceEvents"}, RESTART, thinned)
    found: dict[str, Any] = {}
    for name, values in stream.parts():
        if name in {"traceEvents", ""}:
            found.setdefault(name, []).extend(values)
        else:
            found[name] = values[0]
    return found, stream.passed_over.unread()


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 13, 64, 1000])
def test_a_stream_yields_what_json_does_however_it_is_cut(chunk: int) -> None:
    content = {
        "number": 12345.5,
        "nothing": None,
        "text": 'é "quoted" \\ 😀 },{"ph"',
        "traceEvents": [{"ph": "X", "list": [{"a": 1}, {"b": [2]}]}, 17, "s", [], {}, {"ph": "é"}],
        "after": {"traceEvents": [1, 2]},
    }
    for indent in (None, 2):
        for escaped in (True, False):
            text = json.dumps(content, indent=indent, ensure_ascii=escaped)
            assert streamed(text, chunk) == (content, ())


def test_numbers_are_not_cut_in_two() -> None:
    numbers = [12345.5, -1e-7, 123456789, 0.001, *range(200)]
    for chunk in range(1, 20):
        assert streamed(json.dumps(numbers), chunk) == ({"": numbers}, ())


def test_a_bare_array_and_a_trailing_comma_are_read() -> None:
    assert streamed('\ufeff[{"ph": "X"},\n{"ph": "M"},\n]') == (
        {"": [{"ph": "X"}, {"ph": "M"}]},
        (),
    )


def test_every_way_to_cut_a_file_off_yields_what_is_sound_and_says_where() -> None:
    events = [{"ph": "X", "number": i, "args": {"name": "}, {"}} for i in range(4)]
    text = '{"a": 1,\n"traceEvents": [' + ",\n".join(map(json.dumps, events)) + "]}"
    for length in range(1, len(text)):
        found, unread = streamed(text[:length])
        whole = found.get("traceEvents", [])
        assert whole == events[: len(whole)]
        assert len(unread) == 1
        assert "cut off" in unread[0].reason
        (byte,) = map(int, re.findall(r"byte (\d+)", unread[0].reason))
        assert byte <= length
        assert unread[0].first_line == text[:byte].count("\n") + 1


def test_what_is_no_json_inside_an_array_costs_only_its_element() -> None:
    text = (
        '[{"ph":1},{"ph":NaN},{"ph":inf},{"ph":-Infinity},{"ph":2},\n{"ph":"\n"},{"ph"=4},{"ph":3}]'
    )
    found, unread = streamed(text)
    assert [each["ph"] for each in found[""]] == [1, 2, "\n", 3]
    assert {each.reason.split(":")[0]: each.count for each in unread} == {
        "an element holds NaN, which is not JSON": 1,
        "an element is not JSON": 1,
        "an element holds -Infinity, which is not JSON": 1,
    } | {"an element is not JSON": 1}
    assert sum(each.count for each in unread) == 4


def test_numbers_of_absurd_length_cost_only_their_element() -> None:
    found, unread = streamed('[{"ph":1},{"ph":' + "9" * 5000 + '},{"ph":2}]', 100)
    assert found == {"": [{"ph": 1}, {"ph": 2}]}
    assert unread == (Unread("an element holds a number of absurd length", 1, 1),)


def test_after_too_many_broken_elements_the_rest_is_left() -> None:
    found, unread = streamed("[" + '{"ph":x},' * 5000 + '{"ph":1}]', 2**16)
    assert found == {}
    assert [each.count for each in unread] == [1000, 1]


@pytest.mark.parametrize("depth", [100, 100_000])
@pytest.mark.parametrize("before", ['{"a": ', '{"traceEvents": [{"ph": ', "["])
def test_a_hundred_levels_are_read_and_a_bomb_is_one_line(depth: int, before: str) -> None:
    closing = {"{": "}", "[": "]"}
    after = "".join(closing[each] for each in reversed(re.sub(r"[^{\[]", "", before)))
    text = before + "[" * depth + "]" * depth + after
    if depth == 100:
        assert streamed(text, 2**16)[1] == ()
        return
    with pytest.raises(FormatError, match=r"^file: line 1 is nested too deeply$"):
        streamed(text, 2**16)


def test_a_value_without_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MOST_BYTES", 2**22)
    long = '{"a": "' + "x" * 2**21 + '"}'
    assert len(streamed(long, 2**20)[0]["a"]) == 2**21
    with pytest.raises(FormatError, match="one value is larger than 4 MiB"):
        streamed('{"a": "' + "x" * 2**24 + '"}', 2**20)
    with pytest.raises(FormatError, match="more than 1,000,000 parts"):
        streamed('{"a": [' + "{}," * 1_200_000 + "{}]}", 2**20)


@pytest.mark.parametrize("text", ["", "   ", "17", "nonsense", '"text"'])
def test_what_is_no_object_or_array_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="not a JSON object or array"):
        streamed(text)


# Sets of points in time.


def test_unions_and_covers_agree_with_counting() -> None:
    draw = np.random.default_rng(3)
    for _ in range(50):
        starts = draw.integers(0, 100, 12).astype(float)
        ends = starts + draw.integers(0, 12, 12).astype(float)
        cells = np.zeros(120, dtype=bool)
        for start, end in zip(starts, ends, strict=True):
            cells[int(start) : int(end)] = True
        found = united(starts, ends)
        assert found.total == np.count_nonzero(cells)
        assert np.all(found.starts[1:] > found.ends[:-1])
        other = draw.integers(0, 100, 9).astype(float)
        until = other + draw.integers(0, 20, 9).astype(float)
        covered = [
            np.count_nonzero(cells[int(a) : int(b)]) for a, b in zip(other, until, strict=True)
        ]
        assert found.within(other, until).tolist() == covered


def test_a_union_joined_now_and_then_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardcost.formats.time_sets._PENDING", 10)
    draw = random.Random(1)
    kept = Union()
    pairs = [(start, start + draw.random()) for start in (draw.uniform(0, 50) for _ in range(200))]
    for start, end in pairs:
        kept.starts.append(start)
        kept.ends.append(end)
        kept.settle()
    whole = united(*(np.array(each) for each in zip(*pairs, strict=True)))
    assert np.array_equal(kept.intervals().starts, whole.starts)
    assert np.array_equal(kept.intervals().ends, whole.ends)


def test_too_many_intervals_are_bounded_by_closing_the_shortest_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardcost.formats.time_sets._MOST", 100)
    kept = Union()
    for number in range(300):
        start = number + (0.5 if number % 3 else 0.0)
        kept.starts.append(start)
        kept.ends.append(start + 0.4)
    found = kept.intervals()
    assert len(found.starts) <= 150
    assert kept.closed == 300 - len(found.starts)
    assert (found.starts[0], found.ends[-1]) == (0.0, 299.9)
    assert np.all(found.starts[1:] > found.ends[:-1])


# What profilers write.


def kernel(start: float, duration: float, name: str = "gemm", **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": {"device": 0, "stream": 7, **{key.replace("_", " "): args[key] for key in args}},
    }


def collective(
    start: float, duration: float, seq: int | None = None, **args: Any
) -> dict[str, Any]:
    asked = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "Group size": 8,
        "dtype": "BFloat16",
        "Process Group Name": "1",
        "Process Group Description": "tp",
        "Process Group Ranks": "[0, 1, 2, ..., 7]",
        "device": 0,
        "stream": 20,
    } | ({} if seq is None else {"Seq": seq})
    return kernel(start, duration, NCCL) | {"args": asked | args}


def host(
    name: str, start: float, duration: float, cat: str = "cpu_op", **args: Any
) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": duration,
        "args": named,
    }


def written(path: Path, events: Iterable[Any], rank: int = 0, **members: Any) -> Path:
    content = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 64},
        "traceEvents": list(events),
    } | members
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def only(trace: Trace) -> RankTrace:
    (rank,) = trace.ranks
    return rank


def calls(rank: RankTrace) -> list[tuple[str, int, int]]:
    """Return collective, ranks and bytes of each call."""
    found = rank.calls
    kinds = [found.kinds[number] for number in found.kind]
    return [
        (kind.collective, kind.group.size, int(size))
        for kind, size in zip(kinds, found.size_bytes, strict=True)
    ]


@pytest.mark.parametrize(
    ("device", "library"),
    [("NVIDIA H100", "nccl"), ("AMD Instinct MI300X", "rccl"), ("gfx942", "rccl")],
)
def test_the_library_behind_pytorch_is_known_by_the_device(
    tmp_path: Path, device: str, library: str
) -> None:
    path = written(tmp_path / "t.json", [collective(0, 9)], deviceProperties=[{"name": device}])
    assert read(path).library == library


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_read(tmp_path: Path, name: str) -> None:
    events = [
        host("aten::mm", 0, 5, External_id=1),
        kernel(1000, 10),
        kernel(1005, 15, "attention"),
        collective(1015, 20, seq=3),
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy",
            "pid": 0,
            "tid": 7,
            "ts": 1040,
            "dur": 2,
        },
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": 1000, "cat": "ac2g", "name": "ac2g"},
    ]
    trace = read(written(tmp_path / name, events))
    rank = only(trace)
    assert (trace.kind, trace.backend, trace.world_size) == ("kineto", "nccl", 64)
    assert trace.device == "NVIDIA H100 80GB HBM3"
    assert trace.unread == ()
    assert rank.rank == 0
    assert rank.span_s == pytest.approx(42e-6)
    assert rank.compute.total == pytest.approx(20e-6)
    assert rank.communication.total == pytest.approx(20e-6)
    assert rank.copies.total == pytest.approx(2e-6)
    assert [(each.name, each.launches) for each in rank.kernels] == [("attention", 1), ("gemm", 1)]
    assert calls(rank) == [("all_reduce", 8, 2048)]
    assert rank.calls.seq.tolist() == [3]
    assert rank.calls.stream.tolist() == [20]
    assert rank.calls.start_s == pytest.approx([15e-6])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"Collective name": "_allgather_base", "In msg nelems": 128}, ("all_gather", 8, 2048)),
        (
            {"Collective name": "_reduce_scatter_base", "Out msg nelems": 9},
            ("reduce_scatter", 8, 2048),
        ),
        ({"Collective name": "allreduce_coalesced", "dtype": "Float"}, ("all_reduce", 8, 4096)),
        ({"Collective name": "broadcast", "dtype": "Byte"}, ("broadcast", 8, 1024)),
        ({"Collective name": "send", "dtype": "Float8_e4m3fn"}, ("send_recv", 8, 1024)),
        ({"Collective name": "all_to_all", "dtype": "Long"}, ("all_to_all", 8, 8192)),
        ({"Collective name": "barrier", "dtype": "Nothing"}, ("barrier", 8, 0)),
        ({"In msg nelems": "1024", "Out msg nelems": "2048"}, ("all_reduce", 8, 4096)),
        ({"Process Group Ranks": [0, 1, 2, 3], "Group size": None}, ("all_reduce", 4, 2048)),
    ],
)
def test_sizes_are_of_the_larger_side_in_bytes(
    tmp_path: Path, asked: dict[str, Any], expected: tuple[str, int, int]
) -> None:
    trace = read(written(tmp_path / "t.json", [collective(0, 5, 1, **asked)]))
    assert calls(only(trace)) == [expected]


@pytest.mark.parametrize("elements", [-1, 1e400, 2**70, "many", None, 1.5, True])
def test_a_size_that_makes_no_sense_is_counted_and_the_call_kept(
    tmp_path: Path, elements: Any
) -> None:
    event = collective(0, 5, 1) | {}
    event["args"]["In msg nelems"] = elements
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [event]}).replace("Infinity", "1e400"))
    trace = read(path)
    assert calls(only(trace)) == [("all_reduce", 8, 0)]
    assert [each.reason for each in trace.unread] == [
        "collectives whose number of elements makes no sense"
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"ts": "now"},
        {"dur": -1},
        {"dur": None},
        {"ts": 1e300},
        {"ph": "B"},
        {"name": 5},
        {"ts": True},
    ],
)
def test_a_kernel_without_sound_times_is_counted(tmp_path: Path, change: dict[str, Any]) -> None:
    trace = read(
        written(tmp_path / "t.json", [kernel(0, 5), kernel(9, 1) | change, 17, {"cat": []}])
    )
    assert only(trace).span_s == pytest.approx(5e-6)
    assert sum(each.count for each in trace.unread) == 3


@pytest.mark.parametrize("first", ["host", "device"])
def test_kernels_that_say_nothing_are_joined_by_external_id(tmp_path: Path, first: str) -> None:
    asked = collective(0, 1, 7)["args"]
    before = host("record_param_comms", 0, 5) | {"args": asked | {"External id": 99}}
    events = [before, kernel(50, 5, NCCL, External_id=99, correlation=4)]
    trace = read(written(tmp_path / "t.json", events if first == "host" else events[::-1]))
    assert calls(only(trace)) == [("all_reduce", 8, 2048)]
    assert only(trace).calls.seq.tolist() == [7]


def test_kernels_of_old_traces_are_joined_by_the_launch(tmp_path: Path) -> None:
    events = [
        kernel(500, 5, "ncclKernel_SendRecv_RING_SIMPLE()", correlation=8, External_id=8),
        kernel(600, 5, "ncclKernel_AllReduce_RING_LL_Sum_float()", correlation=9, External_id=9),
        host("cudaLaunchKernel", 12, 2, "cuda_runtime", correlation=8),
        host("cudaLaunchKernel", 90, 2, "cuda_runtime", correlation=9),
        host(
            "nccl:all_to_all", 10, 9, "user_annotation", Input_Dims=[[64, 2]], Input_type=["float"]
        ),
        host("nccl:all_reduce", 30, 9, "user_annotation", Input_Dims=[[64]], Input_type=["float"]),
    ]
    trace = read(written(tmp_path / "t.json", events))
    assert calls(only(trace)) == [("all_to_all", 0, 512), ("all_reduce", 0, 0)]
    assert trace.notes == ("1 of 2 collectives do not say their size",)


def test_groups_are_completed_from_the_list_of_groups(tmp_path: Path) -> None:
    groups = [{"pg_name": "1", "pg_desc": "dp", "pg_size": 4, "ranks": "[0, 8, 16, 24]"}]
    event = collective(0, 5, 1)
    for name in ("Group size", "Process Group Description", "Process Group Ranks"):
        del event["args"][name]
    about = {"backend": "nccl", "rank": 0, "pg_config": groups}
    trace = read(written(tmp_path / "t.json", [event], distributedInfo=about))
    assert only(trace).calls.kinds[0].group == CommGroup("1", "dp", 4, "[0, 8, 16, 24]")
    assert only(trace).calls.kinds[0].group.stride == 8


def test_each_device_of_a_file_is_a_rank_on_the_same_clock(tmp_path: Path) -> None:
    second = kernel(30, 5) | {"pid": 3, "args": {"device": 3}}
    trace = read(written(tmp_path / "t.json", [kernel(10, 5), second]))
    assert [each.rank for each in trace.ranks] == [0, 3]
    assert trace.ranks[1].compute.starts == pytest.approx([20e-6])
    assert [each.span_s for each in trace.ranks] == pytest.approx([25e-6] * 2)


def in_profilers_layout(events: Iterable[Any], tail: str = "") -> str:
    """Return a trace as the profiler lays it out, with what stands behind the events."""
    lines = ",\n".join("  " + json.dumps(each, indent=2).replace("\n", "\n  ") for each in events)
    return '{\n  "schemaVersion": 1,\n  "traceEvents": [\n' + lines + f"\n  ]{tail}\n}}\n"


def test_events_that_are_left_out_undecoded_change_nothing(tmp_path: Path) -> None:
    draw = random.Random(5)
    events: list[Any] = []
    for number in range(400):
        odd = [{"a": "}, {"}, {"ph": "X", "cat": "kernel"}] if draw.random() < 0.2 else number
        events.append(host(f"aten::op{number} }}] {{", number, 1, Inputs=odd))
        if draw.random() < 0.3:
            asked = collective(0, 1, number)["args"] | {"External id": 1000 + number}
            events.append(host("record_param_comms", number, 1) | {"args": asked})
            events.append(kernel(number, 0.5, NCCL, External_id=1000 + number, correlation=number))
        events.append(kernel(number, draw.random()))
        events.append({"ph": "f", "id": number, "cat": "ac2g", "name": "ac2g", "ts": number})
    tail = ',\n"deviceProperties": [\n{"id": 0, "name": "H100"},\n{"id": 1, "name": "H100"}]'
    (tmp_path / "a.json").write_text(in_profilers_layout(events, tail))
    (tmp_path / "b.json").write_text("[" + ",".join(map(json.dumps, events)) + "]")
    one, other = (read(tmp_path / name) for name in ("a.json", "b.json"))
    assert one.device == "H100"
    assert one.unread == other.unread == ()
    assert calls(only(one)) == calls(only(other))
    assert len(calls(only(one))) > 50
    assert np.array_equal(only(one).compute.starts, only(other).compute.starts)
    assert only(one).launches == only(other).launches == 400


def test_a_trace_of_the_host_alone_says_so(tmp_path: Path) -> None:
    trace = read(written(tmp_path / "t.json", [host("aten::mm", 0, 5)]))
    assert trace.ranks == ()
    assert "no GPU kernels" in trace.notes[0]
    assert "without GPU kernels" in as_text(inspected([trace]))
    assert json.dumps(as_data(inspected([trace])), allow_nan=False)


@pytest.mark.parametrize(
    "content", ['{"traceEvents": []}', '{"a": 1}', "{", '{"traceEvents": 5}', "[]"]
)
def test_a_file_without_events_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(FormatError, match="holds no events") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_damaged_gzip_yields_what_came_before(tmp_path: Path) -> None:
    draw = random.Random(2)
    events = [kernel(10 * number, draw.random()) for number in range(40_000)]
    path = written(tmp_path / "t.json.gz", events)
    path.write_bytes(path.read_bytes()[:-2000])
    trace = read(path)
    assert 1000 < only(trace).launches < 40_000
    assert "gzip is damaged" in trace.unread[0].reason


def test_no_damage_raises_anything_but_one_clear_error(tmp_path: Path) -> None:
    draw = random.Random(4)
    events = [host("nccl:x", 0, 1, "user_annotation", Input_Dims=[[3]], Input_type=["float"])]
    events += [collective(number, 1, number) for number in range(5)] + [kernel(9, 1)]
    good = written(tmp_path / "good.json", events).read_bytes()
    path = tmp_path / "bad.json"
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(draw.randint(1, 8)):
            place = draw.randrange(len(bad))
            bad[place : place + draw.randint(0, 3)] = draw.choices(b'{}[],:"\\019eNa\xff\x00', k=2)
        path.write_bytes(bytes(bad))
        with suppress(ShardcostError):
            found = inspected([read(path)])
            json.dumps(as_data(found), allow_nan=False)
            assert as_text(found)


def test_names_from_outside_cannot_steer_a_terminal(tmp_path: Path) -> None:
    event = collective(0, 5, 1, **{"Process Group Description": "\x1b[31mred\n"})
    events = [event, kernel(3, 9, "\x1b]0;title\x07")]
    text = as_text(inspected([read(written(tmp_path / "t.json", events))]))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_what_begins_like_a_trace() -> None:
    assert looks_like('{"schemaVersion": 1, "deviceProperties": [')
    assert looks_like('\n{"traceEvents": [')
    assert looks_like('[{"ph": "X", "ts": 1')
    assert not looks_like('{"model_type": "llama"}')
    assert not looks_like("# nccl-tests")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NCCL, True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", True),
        ("void ncclDevKernel_Generic_1(ncclDevKernelArgs)", True),
        ("void vllm::cross_device_reduce_1stage<c10::BFloat16, 8>()", True),
        ("nvjet_hsh_128x256", False),
        ("void cutlass::Kernel2<cutlass_80>()", False),
    ],
)
def test_kernels_that_communicate_are_told_by_name(name: str, expected: bool) -> None:
    assert communicates(name) is expected


def test_arguments_without_a_collective_say_nothing() -> None:
    assert call_of({"External id": 1}) is None
    assert call_of({"Collective name": 5}) is None


# Several ranks.


def ranks_waiting(folder: Path) -> list[Trace]:
    """Return two ranks: the second arrives 30 us late at call 1, the first 10 us late at call 2."""
    first = [kernel(0, 50), collective(50, 80, 1), kernel(130, 20), collective(150, 50, 2)]
    second = [kernel(0, 80), collective(80, 50, 1), kernel(130, 10), collective(140, 60, 2)]
    return [
        read(written(folder / f"{rank}.json", events, rank))
        for rank, events in enumerate((first, second))
    ]


def test_the_least_over_ranks_is_a_collectives_own_time(tmp_path: Path) -> None:
    found = merged(ranks_waiting(tmp_path))
    assert found.own_s == pytest.approx([50e-6] * 4)
    assert found.waiting_s == pytest.approx([30e-6, 0, 0, 10e-6])
    (run,) = runs_of(ranks_waiting(tmp_path))
    assert (run.collective, run.num_gpus, run.library) == ("all_reduce", 8, "nccl")
    (point,) = run.points
    assert point.size_bytes == 2048
    assert point.time_s == pytest.approx(50e-6)
    assert run.notes == ("the least of 2 ranks' times, without waiting for slower ranks",)


def test_one_rank_alone_cannot_tell_waiting(tmp_path: Path) -> None:
    trace = ranks_waiting(tmp_path)[0]
    assert np.all(merged([trace]).waiting_s == 0)
    (run,) = runs_of([trace])
    assert run.points[0].time_s == pytest.approx(65e-6)  # the median of 80 and 50
    assert "waiting for slower ranks is included" in run.notes[0]
    assert inspected([trace]).groups[0].waiting_s is None


def test_calls_without_numbers_match_in_order_and_sends_do_not(tmp_path: Path) -> None:
    def rank(number: int, *durations: float, **args: Any) -> Trace:
        events = [collective(100 * i, each, **args) for i, each in enumerate(durations)]
        return read(written(tmp_path / f"{number}.json", events, number))

    found = merged([rank(0, 9, 5), rank(1, 4, 8)])
    assert found.own_s == pytest.approx([4e-6, 5e-6, 4e-6, 5e-6])
    sent = {"Collective name": "send"}
    found = merged([rank(0, 9, 5, **sent), rank(1, 4, 8, **sent)])
    assert found.waiting_s == pytest.approx([0, 0, 0, 0])
    nameless = {"Process Group Name": "", "Process Group Ranks": ""}
    assert merged([rank(0, 9, **nameless), rank(1, 4, **nameless)]).waiting_s == pytest.approx(
        [0, 0]
    )


def test_groups_of_one_size_but_other_ranks_are_not_mixed(tmp_path: Path) -> None:
    far = {"Process Group Name": "2", "Process Group Ranks": "[0, 8, 16, 24]", "Group size": 8}
    events = [collective(0, 5, 1), collective(10, 50, 1, **far), collective(70, 7, 2)]
    near_run, far_run = runs_of([read(written(tmp_path / "t.json", events))])
    assert near_run.points[0].time_s == pytest.approx(6e-6)
    assert far_run.points[0].time_s == pytest.approx(50e-6)
    assert "8 apart" in far_run.notes[0]


# What traces say.


def test_where_the_time_went_by_hand(tmp_path: Path) -> None:
    # compute 0-40 and 60-80, communication 30-60 (20 exposed), a copy 78-90 (10 alone), idle 90-100
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "copy", "pid": 0, "tid": 1, "ts": 78, "dur": 12}
    events = [kernel(0, 40), collective(30, 30, 1), kernel(60, 20), copy, kernel(100, 0)]
    found = inspected([read(written(tmp_path / "t.json", events))])
    us = pytest.approx
    assert found.span_s == us(100e-6)
    assert found.compute_s == us(60e-6)
    assert found.communication_s == us(30e-6)
    assert found.exposed_s == us(20e-6)
    assert found.hidden_s == us(10e-6)
    assert found.copies_s == us(10e-6)
    assert found.idle_s == us(10e-6)
    (group,) = found.groups
    assert group.exposed_s == us(20e-6)
    assert group.algbw_bytes_per_s == us(2048 / 30e-6)
    assert group.busbw_bytes_per_s == us(2048 / 30e-6 * 14 / 8)
    assert [each.what for each in found.top] == ["exposed", "idle", "copies"]
    assert found.top[0].share == us(0.2)


def test_waiting_and_slowness_are_told_apart(tmp_path: Path) -> None:
    cluster = Cluster.named("h100_sxm")
    found = inspected(ranks_waiting(tmp_path), cluster)
    (group,) = found.groups
    expected = 2 * float(collective_time("all_reduce", 2048, cluster, 8).time_s)
    assert group.predicted_s == pytest.approx(expected)
    assert group.slowness == pytest.approx(100e-6 / expected)
    assert group.waiting_s == pytest.approx(20e-6)
    costs = {each.what: each.seconds for each in found.top}
    assert costs["waiting"] == pytest.approx(20e-6)
    assert costs["slow"] + costs["exposed"] == pytest.approx(100e-6)
    assert costs["exposed"] == pytest.approx(expected)
    assert found.ranks == (0, 1)


def test_a_group_that_the_cluster_cannot_hold_is_a_note(tmp_path: Path) -> None:
    wide = collective(0, 5, 1, **{"Group size": 64})
    found = inspected([read(written(tmp_path / "t.json", [wide]))], Cluster.named("h100_sxm"))
    assert found.groups[0].predicted_s is None
    assert any("is not predicted" in note for note in found.notes)


def test_the_report_fits_a_screen_and_has_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = inspected(ranks_waiting(tmp_path), Cluster.named("h100_sxm"))
    data = json.loads(json.dumps(as_data(found), allow_nan=False))
    needed = "file kind rank ranks world_size span_s compute_s communication_s exposed_s hidden_s"
    assert {*needed.split(), "idle_s", "groups", "runs", "top", "unread", "notes"} <= set(data)
    assert data["kind"] == "kineto"
    assert data["runs"][0]["points"][0] == {
        "size_bytes": 2048,
        "time_us": pytest.approx(50),
        "algbw": pytest.approx(2048 / 50e-6 / 1e9),
        "busbw": pytest.approx(2048 / 50e-6 / 1e9 * 1.75),
    }
    lines = as_text(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert "What costs most" in lines


def test_the_sample_of_an_old_trace_is_joined(evidence: Path) -> None:
    path = evidence / "samples" / "traces" / "kineto_sampled_rank0.json.gz"
    if not path.is_file():
        pytest.skip(f"no trace at {path}")
    trace = read(path)
    assert (trace.world_size, only(trace).rank, trace.unread) == (128, 0, ())
    assert sorted({each[0] for each in calls(only(trace))}) == [
        "all_gather",
        "all_reduce",
        "all_to_all",
    ]
    sized = [size for _, _, size in calls(only(trace)) if size]
    assert max(sized) == 419_430_400
    assert only(trace).communication.total == pytest.approx(0.396199)


# Traces of our own.


def event(name: str, start: float, end: float, call: Call | None = None, rank: int = 0) -> Event:
    return Event(name, rank, 0 if call is None else 3, start, end, call)


def several_events() -> list[Event]:
    groups = [CommGroup("dp of rank 0", "dp", 4, ranks_text(range(0, 32, 8)))]
    groups.append(CommGroup("tp of rank 0", "tp", 64, ranks_text(range(64))))
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    events = [event("forward", 0.0, 0.25), event("backward", 0.25, 1.0)]
    for number, name in enumerate(kinds):
        kind = Kind(name, groups[number % 2], ("bf16", "fp32", "fp8")[number % 3])
        start = 0.001 * number
        events.append(event("send", start, start + 0.001, Call(kind, number, 4096 * 64)))
    unsized = Call(Kind("all_reduce", groups[1]), 99, 0)
    return [*events, event("sum", 1.5, 2.0, unsized), event("late", 3.0, 3.5, rank=8)]


@pytest.mark.parametrize("name", ["own.json", "own.json.gz"])
def test_what_is_written_is_read_back_equal(tmp_path: Path, name: str) -> None:
    names = Names({0: "stage 0"}, {0: "compute", 3: "dp"}, world_size=64)
    events = several_events()
    write_trace(tmp_path / name, events, names)
    trace = read(tmp_path / name)
    first, second = trace.ranks
    assert (trace.world_size, trace.backend, trace.unread) == (64, "nccl", ())
    assert (first.rank, second.rank) == (0, 8)
    sent = [each for each in events if each.call is not None]
    found = first.calls
    back = [
        Call(found.kinds[kind], int(seq), int(size))
        for kind, seq, size in zip(found.kind, found.seq, found.size_bytes, strict=True)
    ]
    assert back == [each.call for each in sent]
    assert found.start_s == pytest.approx([each.start_s for each in sent], abs=1e-12)
    ends = found.start_s + found.duration_s
    assert ends == pytest.approx([each.end_s for each in sent], abs=1e-12)
    assert first.compute.total == pytest.approx(1.0)
    assert second.compute.starts == pytest.approx([3.0])
    assert {each.name for each in first.kernels} == {"forward", "backward"}


def test_events_that_overlap_on_a_stream_are_refused() -> None:
    names = Names({}, {})
    with pytest.raises(BadValueError, match="start of an event"):
        trace_text([event("a", 0, 2), event("b", 1, 3)], names)
    with pytest.raises(BadValueError, match="end of an event"):
        trace_text([event("a", 2, 1)], names)


def check_perfetto_rules(text: str) -> list[dict[str, Any]]:
    """Hold a trace to the rules of the format; return its complete events."""
    document = json.loads(text)
    assert document["displayTimeUnit"] == "ns"
    complete = [each for each in document["traceEvents"] if each["ph"] == "X"]
    meta = [each for each in document["traceEvents"] if each["ph"] == "M"]
    assert len(complete) + len(meta) == len(document["traceEvents"])
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each in complete:
        assert {"name", "cat", "ph", "ts", "dur", "pid", "tid"} <= set(each)
        assert isinstance(each["pid"], int)
        assert isinstance(each["tid"], int)
        assert each["dur"] >= 0
        start = round(1000 * each["ts"])
        lanes.setdefault((each["pid"], each["tid"]), []).append((start, round(1000 * each["dur"])))
    for lane in lanes.values():
        assert all(start + length <= after for (start, length), (after, _) in pairwise(lane))
    named = {(each["pid"], each["tid"]) for each in meta if each["name"] == "thread_name"}
    assert named == set(lanes)
    assert {each["pid"] for each in meta if each["name"] == "process_name"} == {p for p, _ in lanes}
    return complete


LAYOUTS = (
    Layout(tp=2, pp=4, dp=2),
    Layout(tp=4, pp=2, dp=2, zero=1, sequence_parallel=True),
    Layout(tp=2, pp=4, dp=2, schedule="interleaved", virtual_stages=2),
    Layout(tp=1, pp=4, dp=4, schedule="zero_bubble", zero=2),
    Layout(dp=16, zero=3),
    Layout(tp=2, dp=8, zero=3, shard_degree=4),
    Layout(tp=2, cp=2, pp=2, dp=2),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=Layout.short)
def test_the_timeline_of_an_estimate_is_a_sound_trace(tmp_path: Path, layout: Layout) -> None:
    cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    found = estimate("llama3-8b", cluster, layout, Train(global_batch=32, sequence_length=4096))
    events, names = events_of(found)
    complete = check_perfetto_rules(trace_text(events, names))
    assert len(complete) == len(events)
    assert {each["tid"] for each in complete} == set(names.streams)
    write_trace(tmp_path / "t.json", events, names)
    trace = read(tmp_path / "t.json")
    assert trace.unread == ()
    assert trace.world_size == layout.devices
    assert len(trace.ranks) == layout.pp
    timeline = found.timeline()
    reached = timeline.step_s - timeline.overhead_s
    assert trace.ranks[0].span_s == pytest.approx(reached, rel=1e-6)
    groups = {each.shape.group for each in inspected([trace], cluster).groups}
    assert ("tp" in groups) == (layout.tp > 1)
    assert ("pp" in groups) == (layout.pp > 1)
    assert "dp" in groups


def test_the_command_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json.gz"
    asked = "estimate llama3-8b --on h100_sxm --tp 4 --pp 2 --batch 8"
    train = f"{asked} --train --sequence-length 2048 --json"
    served = (
        f"{asked} --{rest} --json"
        for rest in ("prefill --prompt-tokens 512", "decode --context-tokens 64")
    )
    for each in (train, *served):
        assert main([*each.split(), "--trace", str(path)]) == 0
        found = json.loads(capsys.readouterr().out)
        text = gzip.decompress(path.read_bytes()).decode()
        check_perfetto_rules(text)
        ends = [
            event["ts"] + event["dur"]
            for event in json.loads(text)["traceEvents"]
            if event["ph"] == "X"
        ]
        assert 0.5 * found["time_s"] < 1e-6 * max(ends) < 1.001 * found["time_s"]
    for bad, why in (
        (f"{train} --trace step.txt", "ends in .json or .json.gz"),
        (f"{train} --trace step.json --vary tp=1,2", "exclude each other"),
        (f"{train} --trace {tmp_path}/none/step.json", "cannot be written"),
    ):
        assert main(bad.split()) == 2
        assert why in capsys.readouterr().err


def test_a_long_list_of_ranks_is_shortened() -> None:
    text = ranks_text(range(0, 800, 8))
    assert text.endswith("232, ...]")
    assert CommGroup("", "", 100, text).stride == 8


def test_progress_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", [kernel(number, 1) for number in range(20_000)])
    seen: list[tuple[int, int]] = []
    kineto.read(path, lambda done, of: seen.append((done, of)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
