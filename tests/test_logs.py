"""Logs of nccl-tests in text and JSON, of NCCL's Inspector and of OSU: whole, noisy, damaged."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcost.collectives import COLLECTIVES
from shardcost.collectives.group import bus_factor
from shardcost.errors import FormatError, ShardcostError
from shardcost.formats import nccl_inspector, nccl_tests, nccl_tests_json, nccl_tests_rows, osu
from shardcost.formats.opened import chunks_of, head_of, text_of_log
from shardcost.formats.reading import MeasurementLog, PassedOver, Run, canonical_collective

READERS: tuple[ModuleType, ...] = (nccl_tests, nccl_tests_json, nccl_inspector, osu)
HEADER = (
    "#                                               out-of-place              in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "     (us)  (GB/s)  (GB/s)       \n"
)
SIZES = tuple(2**k for k in range(10, 31, 2))


def printed(value: float) -> str:
    """Return a number as nccl-tests prints it: the larger, the fewer decimals."""
    return f"{value:.2f}" if value < 1e3 else f"{value:.1f}" if value < 1e4 else f"{value:.0f}"


def time_us(size: int) -> float:
    return 20 + size / 50e3


def half(size: int, factor: float, us: float, wrong: str = "0") -> str:
    algbw = size / us / 1e3
    return f"{printed(us):>9} {printed(algbw):>7} {printed(algbw * factor):>7} {wrong:>6}"


def row(size: int, factor: float, kind: str = "float     sum      -1", wrong: str = "0") -> str:
    out_of_place = half(size, factor, time_us(size))
    in_place = half(size, factor, 1.1 * time_us(size), wrong)
    return f"{size:>12} {size // 4:>12} {kind} {out_of_place} {in_place}"


def table(factor: float, kind: str = "float     sum      -1", wrong: str = "0") -> str:
    return "".join(row(size, factor, kind, wrong) + "\n" for size in SIZES)


def preamble(test: str, hosts: int, per_host: int, device: str = "NVIDIA H100 80GB HBM3") -> str:
    lines = [
        "# nccl-tests version 2.17.6 nccl-headers=22304 nccl-library=22304",
        f"# Collective test starting: {test}",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) graph: 0",
        "#",
        "# Using devices",
    ]
    for rank in range(hosts * per_host):
        host, place = divmod(rank, per_host)
        lines.append(
            f"#  Rank {rank:2} Group  0 Pid {900 + rank:6} on     node{host} device {place:2}"
            f" [0000:{place:02}:00] {device}"
        )
    return "\n".join(lines) + "\n" + HEADER


@pytest.fixture
def log(tmp_path: Path) -> Callable[[str], MeasurementLog]:
    """Return a function that writes a text to a file and reads it as a log of nccl-tests."""

    def read(text: str) -> MeasurementLog:
        path = tmp_path / "log.txt"
        path.write_text(text)
        assert nccl_tests.looks_like(head_of(path))
        return nccl_tests.read(path)

    return read


Log = Callable[[str], MeasurementLog]


def the_run(log: MeasurementLog) -> Run:
    assert len(log.runs) == 1
    return log.runs[0]


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("all_reduce_perf", "all_reduce"),
        ("/opt/nccl-tests/build/reduce_scatter_perf", "reduce_scatter"),
        ("AllReduce", "all_reduce"),
        ("MPI_Allreduce", "all_reduce"),
        ("osu_bcast", "broadcast"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("nccl:all_reduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_recv"),
        ("recv", "send_recv"),
        ("barrier", None),
        ("base", None),
        ("", None),
        ("all_reduce" * 1000, None),
    ],
)
def test_a_name_means_a_collective(name: str, meaning: str | None) -> None:
    assert canonical_collective(name) == meaning


@pytest.mark.parametrize("name", COLLECTIVES)
def test_own_names_are_known(name: str) -> None:
    assert canonical_collective(name) == name


@given(st.text(max_size=60))
def test_any_text_has_an_answer(name: str) -> None:
    assert canonical_collective(name) in {None, *COLLECTIVES}


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 3, 6, 8, 12, 16, 24, 32, 64, 72, 128])
def test_the_true_number_of_ranks_is_found(collective: str, ranks: int) -> None:
    factor = bus_factor(collective, ranks)
    rows = []
    for size in SIZES:
        algbw = size / time_us(size) / 1e3
        rows.append(
            (
                nccl_tests_rows.as_printed(printed(algbw * factor)),
                nccl_tests_rows.Interval(algbw * (1 - 1e-5), algbw * (1 + 1e-5)),
            )
        )
    ratio = nccl_tests_rows.ratio_of(rows)
    assert ratio is not None
    allowed = nccl_tests_rows.ranks_allowed(collective, ratio)
    assert allowed is not None
    assert allowed[0] <= ranks <= allowed[1]
    assert nccl_tests_rows.likeliest_ranks(allowed) in {0, ranks}
    assert nccl_tests_rows.likeliest_ranks(allowed, stated=ranks) == ranks


def test_a_row_that_contradicts_the_others_is_left_out() -> None:
    good = (nccl_tests_rows.Interval(187, 188), nccl_tests_rows.Interval(100, 100))
    bad = (nccl_tests_rows.Interval(500, 501), nccl_tests_rows.Interval(100, 100))
    found = nccl_tests_rows.ratio_of([good, good, bad])
    assert found is not None
    assert 1.86 < found.low < found.high < 1.89


def test_rows_that_say_nothing_have_no_ratio() -> None:
    nothing = nccl_tests_rows.Interval(0.0, 0.005)
    assert nccl_tests_rows.ratio_of([(nothing, nothing)]) is None
    assert nccl_tests_rows.ratio_of([]) is None


def test_everything_that_a_log_says(log: Log) -> None:
    found = log(preamble("all_reduce_perf", 2, 8) + table(1.875))
    run = the_run(found)
    assert (found.kind, found.unread, run.notes) == ("nccl-tests", (), ())
    assert (run.collective, run.num_gpus, run.nodes) == ("all_reduce", 16, 2)
    assert (run.library, run.version) == ("nccl", "2.23.4")
    assert run.device == "NVIDIA H100 80GB HBM3"
    assert not run.single_process
    outside = [each for each in run.points if not each.in_place]
    assert [each.size_bytes for each in outside] == list(SIZES)
    assert outside[0].time_s == pytest.approx(20.02e-6)
    assert outside[0].dtype == "fp32"
    assert outside[0].line == preamble("all_reduce_perf", 2, 8).count("\n") + 1
    inside = [each for each in run.points if each.in_place]
    assert inside[0].time_s == pytest.approx(22.02e-6, rel=1e-3)


def test_one_process_that_drives_all_gpus(log: Log) -> None:
    text = preamble("all_reduce_perf", 1, 8).replace("nGpus 1", "nGpus 8")
    for rank in range(8):
        text = text.replace(f"Pid {900 + rank:6}", "Pid    777")
    run = the_run(log(text + table(1.75)))
    assert (run.num_gpus, run.nodes, run.single_process) == (8, 1, True)


def test_a_list_of_ranks_that_is_cut_off(log: Log) -> None:
    text = preamble("all_reduce_perf", 1, 3).replace("nGpus 1", "nGpus 8")
    for rank in range(3):
        text = text.replace(f"Pid {900 + rank:6}", "Pid    777")
    run = the_run(log(text + table(1.75)))
    assert (run.num_gpus, run.nodes) == (8, 0)


def test_ranks_that_bandwidths_contradict(log: Log) -> None:
    run = the_run(log(preamble("all_reduce_perf", 1, 4) + table(1.875)))
    assert run.num_gpus == 16
    assert any("not 4 as listed" in note for note in run.notes)


def test_groups_side_by_side(log: Log) -> None:
    text = preamble("all_reduce_perf", 2, 8)
    for rank in range(8, 16):
        text = text.replace(f"Rank {rank:2} Group  0", f"Rank {rank:2} Group  1")
    run = the_run(log(text + table(1.75)))
    assert (run.num_gpus, run.nodes) == (8, 1)
    assert any("side by side" in note for note in run.notes)


def test_rccl_is_known_by_its_devices(log: Log) -> None:
    for device, library in (("AMD Instinct MI300X", "rccl"), ("gfx942", "rccl"), ("H100", "nccl")):
        text = preamble("all_reduce_perf", 1, 8, device)
        assert the_run(log(text + table(1.75))).library == library
    named = "RCCL version 2.22.3-develop:abc\n" + HEADER + table(1.75)
    run = the_run(log(named))
    assert (run.library, run.version) == ("rccl", "2.22.3")


def test_old_columns_without_reduction_and_root(log: Log) -> None:
    header = HEADER.replace("redop    root", "").replace("#wrong", " error")
    rows = table(0.875, kind="float", wrong="0e+00")
    run = the_run(log("all_gather_perf -b 8 -e 8G -g 8\n" + header + rows))
    assert (run.collective, run.num_gpus, len(run.points)) == ("all_gather", 8, 2 * len(SIZES))


def test_columns_of_single_iterations_and_times_of_day(log: Log) -> None:
    more = " i_min  i_max  i_p99  i_cv%"
    header = HEADER.replace("#wrong", "#wrong" + more).replace(
        "i_cv%\n", "i_cv%           timestamp\n"
    )
    extra = "   9.10   99.90   88.80    3.14"
    rows = ""
    for size in SIZES:
        rows += (
            f"{size} {size // 4} float sum -1 {half(size, 1.75, time_us(size))}{extra}"
            f"{half(size, 1.75, time_us(size))}{extra}  2025-01-02 03:04:05\n"
        )
    run = the_run(log(preamble("all_reduce_perf", 1, 8).replace(HEADER, header) + rows))
    assert len(run.points) == 2 * len(SIZES)
    assert run.points[1].in_place
    assert run.points[1].time_s == run.points[0].time_s
    bare = the_run(log(rows))
    assert [each.time_s for each in bare.points] == [each.time_s for each in run.points]


def test_host_times_are_refused(log: Log) -> None:
    text = preamble("all_reduce_perf", 1, 8).replace("  time", "cputime") + table(1.75)
    with pytest.raises(FormatError, match="host time"):
        log(text)
    both = log(text + preamble("all_reduce_perf", 1, 8) + table(1.75))
    assert len(the_run(both).points) == 2 * len(SIZES)
    assert both.unread[0].count == len(SIZES)
    assert "host time" in both.unread[0].reason


def test_only_in_place(log: Log) -> None:
    rows = "".join(
        f"{size:>12} {size // 4:>12} float sum -1{' ' * 34}{half(size, 1.75, time_us(size))}\n"
        for size in SIZES
    )
    run = the_run(log(preamble("all_reduce_perf", 1, 8) + rows))
    assert len(run.points) == len(SIZES)
    assert all(each.in_place for each in run.points)


def test_wrong_results_are_noted(log: Log) -> None:
    run = the_run(log(preamble("all_reduce_perf", 1, 8) + table(1.75, wrong="12")))
    assert f"{len(SIZES)} of {2 * len(SIZES)} times are of wrong results" in run.notes


@pytest.mark.parametrize(
    ("factor", "kind", "wrong", "collective", "ranks"),
    [
        (1.875, "float     sum      -1", "0", "all_reduce", 16),
        (1.75, "bfloat16   sum      -1", "N/A", "all_reduce", 8),
        (62 / 32, "half     max      -1", "0", "all_reduce", 32),
        (0.875, "float     sum      -1", "0", "reduce_scatter", 8),
        (0.9375, "float    none      -1", "0", "all_gather", 16),
        (0.875, "float    none      -1", "N/A", "all_to_all", 8),
        (1.0, "float    none       0", "0", "broadcast", 0),
        (1.0, "float     sum       0", "0", "reduce", 0),
        (1.0, "float     sum      -1", "0", "all_reduce", 2),
        (1.0, "float    none      -1", "0", "send_recv", 0),
    ],
)
def test_rows_alone_tell_what_ran(
    log: Log, factor: float, kind: str, wrong: str, collective: str, ranks: int
) -> None:
    run = the_run(log(table(factor, kind, wrong)))
    assert (run.collective, run.num_gpus) == (collective, ranks)
    assert any("not named" in note for note in run.notes)


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "   [1,0]<stdout>: ",
        "0: ",
        " 0:",
        "worker-0: ",
        "2025-01-02T03:04:05.678Z stdout F ",
        "Jan 02 03:04:05 node7 job[12]: ",
        "(launcher pid=123) ",
    ],
)
def test_prefixes_and_noise(log: Log, prefix: str) -> None:
    whole = preamble("all_reduce_perf", 1, 8) + table(1.75)
    text = "Warning: Permanently added 'node1' to the list of known hosts.\n\n"
    for line in whole.splitlines():
        text += f"{prefix}{line}\nnode0:12:34 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n"
    found = log(text)
    run = the_run(found)
    assert (run.collective, run.num_gpus, run.nodes) == ("all_reduce", 8, 1)
    assert len(run.points) == 2 * len(SIZES)
    assert [each.reason for each in found.unread] == ["lines of other output"]


def test_tables_in_documents_and_logs_of_containers(log: Log) -> None:
    pasted = "".join("| " + " | ".join(line.split()) + " |\n" for line in table(1.75).splitlines())
    wrapped = "".join(
        json.dumps({"log": line + "\n", "stream": "stdout"}) + "\n"
        for line in table(1.75).splitlines()
    )
    for text in (pasted, wrapped):
        run = the_run(log(text))
        assert (run.collective, run.num_gpus, len(run.points)) == ("all_reduce", 8, 2 * len(SIZES))
        assert not any("wrong" in note for note in run.notes)


def test_the_command_line_names_the_test(log: Log) -> None:
    text = "+ mpirun -np 16 -x PATH ./build/alltoall_perf -b 8 -e 8G -f 2 -g 1 -n 50 -c 1\n"
    run = the_run(log(text + HEADER + table(0.9375, "float    none      -1")))
    assert (run.collective, run.num_gpus) == ("all_to_all", 16)


def test_processes_tell_ranks_where_bandwidths_do_not(log: Log) -> None:
    text = "srun -n 4 ./broadcast_perf -b 8 -e 8G -g 2\n" + HEADER
    assert the_run(log(text + table(1.0, "float    none       0"))).num_gpus == 8


def test_a_mention_that_bandwidths_contradict(log: Log) -> None:
    text = "next: all_gather_perf\n" + HEADER + table(1.75)
    run = the_run(log(text))
    assert (run.collective, run.num_gpus) == ("all_reduce", 8)


def test_other_tests_keep_their_name(log: Log) -> None:
    run = the_run(log(preamble("gather_perf", 1, 8) + table(0.875, "float none 0")))
    assert run.collective == "gather"
    assert "gather is not a collective that shardcost predicts" in run.notes


def test_tests_in_a_row(log: Log) -> None:
    text = preamble("all_reduce_perf", 1, 8) + table(1.75)
    text += "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3\n"
    text += "# Collective test concluded: all_reduce_perf\n"
    text += preamble("all_gather_perf", 2, 8) + table(0.9375, "float none -1")
    runs = log(text).runs
    assert [(run.collective, run.num_gpus, run.nodes) for run in runs] == [
        ("all_reduce", 8, 1),
        ("all_gather", 16, 2),
    ]


def test_sizes_that_start_again_and_formats_that_change(log: Log) -> None:
    kinds = [f"{name}     sum      -1" for name in ("float", "float", "half", "double")]
    text = preamble("all_reduce_perf", 1, 8) + "".join(table(1.75, kind) for kind in kinds)
    runs = log(text).runs
    assert [run.points[0].dtype for run in runs] == ["fp32", "fp32", "fp16", "fp64"]
    assert {(run.collective, run.num_gpus) for run in runs} == {("all_reduce", 8)}


def test_a_header_that_comes_again(log: Log) -> None:
    text = HEADER + table(1.75) + "./reduce_scatter_perf -b 8\n" + HEADER + table(0.875)
    assert [run.collective for run in log(text).runs] == ["all_reduce", "reduce_scatter"]


def test_processes_that_print_at_the_same_time(log: Log) -> None:
    lines = zip(table(1.75).splitlines(), table(1.5).splitlines(), strict=True)
    text = "".join(f"[1,0]<stdout>:{one}\n[1,1]<stdout>:{two}\n" for one, two in lines)
    assert [run.num_gpus for run in log(text).runs] == [8, 4]


def test_each_kind_is_counted_and_the_rest_is_read(log: Log) -> None:
    bad = [
        "           0             0     float     sum      -1    15.51    0.00    0.00      0",
        row(2**20, 1.75).replace(printed(time_us(2**20)), "0.00"),
        row(2**20, 1.75).replace(printed(time_us(2**20)), "nan"),
        row(2**20, 1.75).replace(printed(time_us(2**20)), "-4.2"),
        row(2**20, 1.75).replace(printed(time_us(2**20)), "1e400"),
        "9" * 400 + " 2 float sum -1 36.5 0.00 0.00 0",
        "9" * 39 + " 2 float sum -1 36.5 0.00 0.00 0",
        row(2**20, 1.75).replace(printed(time_us(2**20)), "0.04"),
        "     1048576        262144     float     sum      -1    40.97",
        "     1048576",
    ]
    found = log("\n".join(bad) + "\n" + table(1.75))
    run = the_run(found)
    assert [each.size_bytes for each in run.points if not each.in_place] == list(SIZES)
    assert sum(each.count for each in found.unread) == len(bad)
    reasons = " ".join(each.reason for each in found.unread)
    for word in ("0 bytes", "time of 0", "no number", "beyond 4 EiB", "end is missing"):
        assert word in reasons
    assert "other units" in reasons
    assert found.unread[0].first_line == 1


def test_a_line_that_ends_early_keeps_its_whole_half(log: Log) -> None:
    text = table(1.75)
    found = log(text[: text.rindex("  ")].rstrip()[:-9])
    assert len(the_run(found).points) == 2 * len(SIZES) - 1
    assert [each.reason for each in found.unread] == ["rows whose end is missing"]


def test_times_in_other_units_are_refused(log: Log, tmp_path: Path) -> None:
    rows = "".join(
        f"{size} {size // 4} float sum -1 {time_us(size) / 1e3:.3f}"
        f" {size / time_us(size) / 1e3:.2f} {1.75 * size / time_us(size) / 1e3:.2f} 0\n"
        for size in SIZES[5:]
    )
    path = tmp_path / "ms.txt"
    path.write_text(HEADER + rows)
    with pytest.raises(FormatError, match="other units"):
        nccl_tests.read(path)
    assert log(HEADER + rows + table(1.75)).unread[0].count == len(SIZES[5:])


def test_a_gzip_that_is_cut_off(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(3 * 2**20).hex()
    lines = "\n".join(noise[i : i + 200] for i in range(0, len(noise), 200))
    packed = gzip.compress((table(1.75) + lines).encode())
    path = tmp_path / "log.gz"
    path.write_bytes(packed[: len(packed) // 2])
    found = nccl_tests.read(path)
    assert len(the_run(found).points) == 2 * len(SIZES)
    assert any("gzip is damaged" in each.reason for each in found.unread)


def test_lines_of_windows_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"\xef\xbb\xbf" + table(1.75).replace("\n", "\r\n").encode())
    run = the_run(nccl_tests.read(path))
    assert [each.line for each in run.points[::2]] == list(range(1, len(SIZES) + 1))


def report(**changes: Any) -> dict[str, Any]:
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {
                "time": time_us(size),
                "alg_bw": size / time_us(size) / 1e3,
                "bus_bw": 1.75 * size / time_us(size) / 1e3,
                "nwrong": 0.0,
            },
            "in_place": {"time": 2 * time_us(size), "alg_bw": "nan", "bus_bw": 1.0, "nwrong": None},
            "actual_iterations": 20,
            "experiment_name": "",
        }
        for size in SIZES
    ]
    device = {"rank": 0, "group": 0, "pid": 1, "hostname": "a", "device_info": "NVIDIA H100"}
    return {
        "version": 3,
        "args": ["./build/all_reduce_perf", "-g", "8"],
        "env": ["SECRET_TOKEN=hunter2", "NCCL_ALGO=Ring"],
        "nccl_version": 22304,
        "config": {"nthreads": 1, "ngpus": 8, "minimum_bytes": 8, "devices": [device]},
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        **changes,
    }


@pytest.fixture
def json_log(tmp_path: Path) -> Callable[[str], MeasurementLog]:
    """Return a function that writes a text to a file and reads it as a report of nccl-tests."""

    def read(text: str) -> MeasurementLog:
        path = tmp_path / "x.json"
        path.write_text(text)
        assert nccl_tests_json.looks_like(head_of(path))
        return nccl_tests_json.read(path)

    return read


def test_a_json_report_of_any_amd_device_is_of_rccl(
    json_log: Callable[[str], MeasurementLog],
) -> None:
    for name, library in (("NVIDIA H100", "nccl"), ("gfx942", "rccl"), ("AMD Radeon", "rccl")):
        device = {"rank": 0, "group": 0, "pid": 1, "hostname": "a", "device_info": name}
        config = {"nthreads": 1, "ngpus": 8, "minimum_bytes": 8, "devices": [device]}
        assert the_run(json_log(json.dumps(report(config=config)))).library == library


def test_everything_that_a_report_says_but_its_environment(json_log: Log) -> None:
    found = json_log(json.dumps(report()))
    run = the_run(found)
    assert (run.collective, run.num_gpus, run.nodes) == ("all_reduce", 8, 1)
    assert (run.version, run.device, run.single_process) == ("2.23.4", "NVIDIA H100", True)
    assert len(run.points) == 2 * len(SIZES)
    assert run.points[0].time_s == pytest.approx(time_us(SIZES[0]) * 1e-6)
    assert "hunter2" not in repr(found)


def test_ranks_are_threads_times_gpus_times_devices_listed(json_log: Log) -> None:
    devices = [{"rank": 4 * i, "group": 0, "hostname": f"n{i}"} for i in range(4)]
    config = {"nthreads": 2, "ngpus": 1, "devices": devices}
    run = the_run(json_log(json.dumps(report(config=config))))
    assert (run.num_gpus, run.nodes, run.notes) == (8, 4, ())


def test_a_report_without_devices_tells_its_ranks_by_bandwidths(json_log: Log) -> None:
    run = the_run(json_log(json.dumps(report(config={"nthreads": 1, "ngpus": 1}))))
    assert (run.num_gpus, run.nodes) == (8, 0)
    assert any("follows from" in note for note in run.notes)


def test_halves_that_are_null_or_unsound(json_log: Log) -> None:
    results = report()["results"]
    results[0]["out_of_place"] = None
    results[1]["out_of_place"]["time"] = "nan"
    results[2]["out_of_place"] = {"cpu_time": 3.0, "alg_bw": 1.0}
    results[3]["out_of_place"]["time"] *= 1e-3
    results[4]["size"] = 0
    results[5]["size"] = 10**30
    results[6] = "not a result"
    found = json_log(json.dumps(report(results=results)))
    assert len(the_run(found).points) == 2 * (len(SIZES) - 7) + 4
    assert sum(each.count for each in found.unread) == 6


@pytest.mark.parametrize("share", [0.4, 0.6, 0.9, 0.99])
def test_a_report_whose_end_is_missing(json_log: Log, share: float) -> None:
    text = json.dumps(report(), indent=1)
    found = json_log(text[: int(share * len(text))])
    assert 2 <= len(the_run(found).points) <= 2 * len(SIZES)
    assert any("last whole result" in each.reason for each in found.unread)


def test_a_report_without_results(json_log: Log) -> None:
    unusable: tuple[Any, ...] = ([], None, {}, [1, 2])
    for results in unusable:
        with pytest.raises(FormatError, match="without a result"):
            json_log(json.dumps(report(results=results)))


def call(rank: int = 0, sequence: int = 0, **changes: Any) -> str:
    perf = {
        "coll": "AllReduce",
        "coll_sn": sequence,
        "coll_msg_size_bytes": 2**20,
        "coll_exec_time_us": 100,
        "coll_algobw_gbs": 10.48576,
        "coll_busbw_gbs": 18.35008,
    }
    header = {"id": "0xabc", "rank": rank, "n_ranks": 8, "nnodes": 1}
    return json.dumps({"header": header, "metadata": {"pid": 1}, "coll_perf": perf | changes})


def read_inspector(folder: Path, lines: list[str]) -> MeasurementLog:
    path = folder / "inspector.log"
    path.write_text("\n".join(lines) + "\n")
    assert nccl_inspector.looks_like(head_of(path))
    return nccl_inspector.read(path)


def test_the_least_over_ranks_then_the_median_over_calls(tmp_path: Path) -> None:
    times = {0: (130, 100, 140), 1: (200, 900, 300), 2: (120, 125, 110)}
    lines = [
        call(rank, sequence, coll_exec_time_us=us)
        for sequence, by_rank in times.items()
        for rank, us in enumerate(by_rank)
    ]
    found = read_inspector(tmp_path, lines)
    run = the_run(found)
    assert (run.collective, run.num_gpus, run.nodes) == ("all_reduce", 8, 1)
    assert [each.size_bytes for each in run.points] == [2**20]
    assert run.points[0].time_s == pytest.approx(110e-6)
    assert "median of 3 calls" in run.notes[0]
    assert "3 of 8 ranks" in found.notes[0]


def test_kinds_of_calls_are_runs(tmp_path: Path) -> None:
    lines = [
        call(),
        call(coll="AllGather", coll_exec_time_us=10, coll_algobw_gbs=8 * 104.8576),
        call(coll_msg_size_bytes=2**21, coll_exec_time_us=150),
    ]
    runs = read_inspector(tmp_path, lines).runs
    found = {run.collective: [each.size_bytes for each in run.points] for run in runs}
    assert found == {"all_reduce": [2**20, 2**21], "all_gather": [8 * 2**20]}


def test_broken_lines_are_counted(tmp_path: Path) -> None:
    lines = [
        call(),
        call()[:-20],
        '{"header": {}, "p2p_perf": {}}',
        "[" * 100_000,
        call(coll="Barrier"),
        call(coll_exec_time_us="soon"),
        call(coll_msg_size_bytes=-4),
        call(coll_exec_time_us=float("nan")),
        "[1]",
    ]
    found = read_inspector(tmp_path, lines)
    assert len(the_run(found).points) == 1
    assert sum(each.count for each in found.unread) == len(lines) - 1
    assert found.unread[0].first_line == 2


OSU = """\
# OSU MPI-CUDA Allreduce Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                      10.50             10.10             10.90        1000
1048576               101.25            100.00            102.00         100
"""


def read_osu(folder: Path, text: str) -> MeasurementLog:
    path = folder / "osu.txt"
    path.write_text(text)
    assert osu.looks_like(head_of(path))
    return osu.read(path)


def test_sizes_and_latencies(tmp_path: Path) -> None:
    run = the_run(read_osu(tmp_path, OSU))
    assert (run.collective, run.num_gpus, run.library) == ("all_reduce", 0, "mpi")
    assert [each.size_bytes for each in run.points] == [4, 2**20]
    assert [each.time_s for each in run.points] == pytest.approx([10.5e-6, 101.25e-6])
    assert any("--gpus" in note for note in run.notes)
    assert osu.with_ranks(run, 8).num_gpus == 8
    assert osu.with_ranks(run, 8).points == run.points


def test_parts_become_the_whole_array(tmp_path: Path) -> None:
    text = OSU.replace("Allreduce", "All-to-All Personalized Exchange")
    unknown = the_run(read_osu(tmp_path, text))
    assert [each.size_bytes for each in unknown.points] == [4, 2**20]
    known = the_run(read_osu(tmp_path, "$ mpirun -np 16 ./osu_alltoall -d cuda\n" + text))
    assert (known.collective, known.num_gpus) == ("all_to_all", 16)
    assert [each.size_bytes for each in known.points] == [64, 2**24]
    assert osu.with_ranks(unknown, 16).points == tuple(
        point.__class__(point.size_bytes, point.time_s, line=point.line - 1)
        for point in known.points
    )


def test_several_tables_and_those_of_other_kinds(tmp_path: Path) -> None:
    text = OSU + OSU.replace("MPI-CUDA Allreduce", "MPI Broadcast") + "done\n"
    text += OSU.replace("Allreduce", "Non-blocking Allreduce")
    text += OSU.replace("Allreduce Latency", "Latency")
    found = read_osu(tmp_path, text)
    assert [run.collective for run in found.runs] == ["all_reduce", "broadcast"]
    assert "host memory" in found.runs[1].notes[-1]
    assert {each.reason for each in found.unread} >= {
        "tables of Non-blocking Allreduce",
        "tables of Latency",
        "lines of other output",
    }


def test_rows_of_nothing(tmp_path: Path) -> None:
    text = OSU + "0   1.0\n8   0.0\n" + "9" * 29 + "  3.0\n16  1.2.3\n32 4.0 Pass\n"
    found = read_osu(tmp_path, text)
    assert [each.size_bytes for each in the_run(found).points] == [4, 2**20, 32]
    assert sum(each.count for each in found.unread) == 4


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n" * 10**6,
        b"\0" * 10**5,
        b"{" * 10**5,
        b'{"args": [], "results": [' + b"[" * 10**5,
        b'{"coll_perf": 1}\n' * 1000,
        b"# OSU MPI Allreduce Latency Test\n" + b"1 " * 10**5,
        b"1 2 float " * 10**5,
        b"#" * 10**6,
        (b"#" + b"a" * 4000 + b"_perf\n") * 100,
        b"\x1f\x8b" + b"\0" * 100,
        gzip.compress(b"0" * 10**8),
        random.Random(7).randbytes(10**5),
    ],
    ids=range(13),
)
def test_what_is_no_log_is_an_error_of_one_line(
    reader: ModuleType, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "stranger"
    path.write_bytes(content)
    reader.looks_like(head_of(path))
    with pytest.raises(ShardcostError) as caught:
        reader.read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_file(reader: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        reader.read(tmp_path / "nowhere")


def test_readers_tell_their_files_apart() -> None:
    heads = {
        nccl_tests: preamble("all_reduce_perf", 1, 8) + table(1.75),
        nccl_tests_json: json.dumps(report()),
        nccl_inspector: call(),
        osu: OSU,
    }
    for reader in READERS:
        known = [other for other, head in heads.items() if reader.looks_like(head)]
        assert known == [reader]


@pytest.mark.parametrize(
    ("reader", "sound"),
    [
        (nccl_tests, preamble("all_reduce_perf", 1, 8) + table(1.75)),
        (nccl_tests_json, json.dumps(report())),
        (nccl_inspector, "\n".join(call(sequence=i) for i in range(20))),
        (osu, OSU),
    ],
)
def test_damage_is_survived(reader: ModuleType, sound: str, tmp_path: Path) -> None:
    chance = random.Random(3)
    path = tmp_path / "damaged"
    for _ in range(60):
        content = bytearray(sound.encode())
        for _ in range(chance.randrange(1, 30)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.randrange(len(content))])
        try:
            found = reader.read(path)
        except ShardcostError:
            continue
        for run in found.runs:
            assert all(0 < each.time_s < 1e7 and each.size_bytes > 0 for each in run.points)


@pytest.mark.parametrize(
    ("name", "ranks", "nodes"),
    [
        ("nccltests_06_aws-samples.txt", 16, 0),
        ("nccltests_08_aws-samples.txt", 16, 0),
        ("nccltests_13_dstackai.txt", 16, 0),
        ("nccltests_16_eth-cscs.txt", 8, 2),
    ],
)
def test_posted_logs(evidence: Path, name: str, ranks: int, nodes: int) -> None:
    path = evidence / "samples" / "nccl_tests" / name
    if not path.is_file():
        pytest.skip(f"no sample {path}")
    assert nccl_tests.looks_like(head_of(path))
    run = the_run(nccl_tests.read(path))
    assert (run.collective, run.num_gpus, run.nodes) == ("all_reduce", ranks, nodes)


def test_a_file_over_its_bound_is_refused_and_one_at_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(3 * 2**20)))
    with chunks_of(path, most_bytes=3 * 2**20) as chunks:
        assert sum(map(len, chunks)) == 3 * 2**20
    with (
        chunks_of(path, most_bytes=3 * 2**20 - 1) as chunks,
        pytest.raises(FormatError, match="is larger than 2 MiB"),
    ):
        list(chunks)


def test_of_a_damaged_text_what_came_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    text = random.Random(1).randbytes(2 * 2**20).hex()
    path.write_bytes(gzip.compress(text.encode())[: -(2**19)])
    passed_over = PassedOver()
    found = text_of_log(path, passed_over, 32 * 2**20)
    assert len(found) >= 2**20
    assert text.startswith(found)
    (unread,) = passed_over.unread()
    assert "gzip is damaged" in unread.reason
