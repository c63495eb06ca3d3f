"""Real ranks: what each sends is what its schedule says, to the byte, and tables are sound.

The tests that start ranks need the extra ``mpi`` (or ``torch``) and are skipped without it.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import run_error, run_json, run_text

from shardcost import cli
from shardcost.collectives.exact.algorithms import open_mpi as plans
from shardcost.collectives.exact.algorithms import schedule
from shardcost.collectives.exact.algorithms.plan import Plan, mirror, up_and_down
from shardcost.collectives.exact.schedule import Schedule, executed
from shardcost.errors import MissingExtraError, UnknownNameError
from shardcost.formats.tables import read_table
from shardcost.measure import launch, open_mpi, sockets, torch_rank
from shardcost.measure.job import Job, Measurement, elements_of
from shardcost.measure.launch import Program, RanksFailedError, measurements_of, mpi_programs
from shardcost.measure.open_mpi import (
    VERIFIABLE,
    Difference,
    Totals,
    algorithms_of,
    forced,
    messages,
    rank_traffic,
    verified,
)
from shardcost.measure.rank import CALLS_IN_A_ROW, Prepared, WrongResultError, measurements
from shardcost.measure.session import Session
from shardcost.measure.table import HEADER
from shardcost.report.measure import checks_as_text, times_as_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measure.md"
HOLDS_ALL = ("ring", "recursive_doubling", "rabenseifner", "linear")
PATIENCE_S = 120.0
EAGER = 65456
"""The longest message that Open MPI sends in one piece: 65536 less its longest header."""
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or not sys.platform.startswith("linux"),
    reason="needs Linux and shardcost[mpi]",
)


def job(collectives: Sequence[str], sizes: Sequence[int], *, iterations: int = 0) -> Job:
    return Job(tuple(collectives), tuple(sizes), "float", iterations, 0, counts_bytes=True)


def on_ranks(work: Job, ranks: int, algorithm: str) -> list[Measurement]:
    return list(measurements_of(mpi_programs(work, ranks, algorithm, "tcp"), PATIENCE_S))


# Schedules as Open MPI has them.


@pytest.mark.parametrize("ranks", [*range(2, 18), 24, 33])
@pytest.mark.parametrize(
    "build",
    [plans.ring_all_reduce, plans.rabenseifner_all_reduce, up_and_down(plans.linear_broadcast)],
)
def test_all_reduce_leaves_everyone_with_the_sum(build: Any, ranks: int) -> None:
    plan = build(ranks)
    found = Schedule("all_reduce", "", ranks, plan.chunks, plan.steps)
    given = np.random.default_rng(ranks).integers(0, 1 << 40, (ranks, 3 * plan.chunks + 1))
    assert (executed(found, given) == given.sum(axis=0)).all()


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 8, 13, 16])
def test_the_other_plans_are_right(ranks: int) -> None:
    def left(plan: Plan, given: Any) -> Any:
        return executed(Schedule("", "", ranks, plan.chunks, plan.steps), given)

    given = np.random.default_rng(ranks).integers(1, 1 << 40, (ranks, ranks))
    total, own = given.sum(axis=0), np.diag(np.diag(given))
    for reduce in (mirror(plans.linear_broadcast), plans.binomial_reduce):
        assert (left(reduce(ranks), given)[0] == total).all()
    assert (left(plans.linear_broadcast(ranks), given) == given[0]).all()
    assert (left(plans.doubling_all_gather(ranks), own) == np.diag(given)).all()
    assert (np.diag(left(plans.halving_reduce_scatter(ranks), given)) == total).all()


@pytest.mark.parametrize("chunks", [1, 2, 8, 64])
@pytest.mark.parametrize("elements", [64, 65, 1001])
def test_cuts_hold_every_element(elements: int, chunks: int) -> None:
    for cut in (plans.early_first, plans.halved):
        lengths = cut(elements, chunks)
        assert len(lengths) == chunks
        assert lengths.sum() == elements
        assert lengths.max() - lengths.min() <= 1


def test_rabenseifner_is_halving_and_doubling_but_for_the_ranks_in_excess() -> None:
    for ranks in (4, 8, 16):
        mine = rank_traffic("all_reduce", "rabenseifner", ranks, 16 * ranks, 4)
        known = schedule("all_reduce", "halving_doubling", ranks)
        assert len(plans.rabenseifner_all_reduce(ranks).steps) == len(known.steps)
        assert (mine.payload_bytes == 2 * 64 * (ranks - 1)).all()
    assert rank_traffic("all_reduce", "rabenseifner", 3, 4, 1).payload_bytes.tolist() == [10, 4, 4]


# What goes over the wire, by hand.


def test_messages_of_a_ring_of_two_with_three_elements() -> None:
    found = messages("all_reduce", "ring", 2, 3, 4)
    assert [(m.source, m.target, m.size_bytes) for m in found] == [
        (0, 1, 8),
        (1, 0, 4),
        (0, 1, 4),
        (1, 0, 8),
    ]


def test_headers_by_hand() -> None:
    short = rank_traffic("broadcast", "linear", 3, EAGER // 4, 4)
    assert short.header_bytes.tolist() == [2 * 22, 0, 0]
    long = rank_traffic("broadcast", "linear", 3, EAGER // 4 + 1, 4)
    assert long.header_bytes.tolist() == [2 * 96, 64, 64]
    assert long.messages.tolist() == [2, 0, 0]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_every_ring_sends_the_least_that_an_all_reduce_can(ranks: int) -> None:
    sent = rank_traffic("all_reduce", "ring", ranks, 10 * ranks, 4)
    assert (sent.payload_bytes == 2 * (ranks - 1) * 40).all()
    assert (sent.messages == 2 * (ranks - 1)).all()


def test_buffers_too_short_for_an_algorithm_go_by_another() -> None:
    for ranks in (4, 5, 8):
        assert messages("all_reduce", "ring", ranks, 3, 4) == messages(
            "all_reduce", "recursive_doubling", ranks, 3, 4
        )
        assert messages("all_reduce", "rabenseifner", ranks, 3, 4) == messages(
            "all_reduce", "linear", ranks, 3, 4
        )
    assert messages("all_reduce", "ring", 1, 3, 4) == []


def test_what_is_not_known_is_named() -> None:
    with pytest.raises(UnknownNameError, match="known: linear, rabenseifner"):
        messages("all_reduce", "segmented_ring", 4, 100, 4)
    with pytest.raises(UnknownNameError, match="algorithm of all_to_all 'ring'"):
        forced("all_to_all", "ring")
    for collective, algorithm in VERIFIABLE:
        assert algorithm in algorithms_of(collective)


def test_the_page_has_the_figures_of_the_code() -> None:
    page = " ".join(PAGE.read_text().split())
    eager, rendezvous = (
        rank_traffic("broadcast", "linear", 2, length, 1).header_bytes.tolist()
        for length in (EAGER, EAGER + 1)
    )
    (there, back), (there_long, back_long) = eager, rendezvous
    costs = f"{there} or {there_long} bytes, and its receiver {back} or {back_long}."
    assert f"So a message costs its sender {costs}" in page
    assert f"up to {EAGER:,} bytes in one piece" in page
    assert f"an iteration is {CALLS_IN_A_ROW} calls in a row" in page
    assert "five more at the end: " + ", ".join(f"`{name}`" for name in HEADER[-5:]) in page


def test_shardcost_folds_whole_buffers_where_open_mpi_folds_halves() -> None:
    known = schedule("all_reduce", "halving_doubling", 3)
    sources = np.concatenate([step.source for step in known.steps])
    assert (np.bincount(sources) / known.chunks).tolist() == [1, 2, 1]
    assert len(known.steps) < len(plans.rabenseifner_all_reduce(3).steps)


def test_elements_come_in_whole_blocks() -> None:
    assert elements_of("all_reduce", 1001, "float", 3) == 250
    assert elements_of("all_gather", 1001, "float", 3) == 249
    assert elements_of("all_to_all", 1, "double", 8) == 8


def measurement_of(sent_bytes: list[int] | None, time_us: float | None = None) -> Measurement:
    """Return what three ranks measure of a linear all-reduce of 256 floats."""
    times = (time_us, time_us, time_us)
    return Measurement(
        "all_reduce", "float", 3, 1, 256, 1024, "openmpi", "5", 1, *times, sent_bytes
    )


def test_what_ranks_sent_is_held_to_the_schedule_rank_by_rank() -> None:
    """Rank 0 broadcasts to two after both have sent to it: four sends, 22 bytes ahead of each."""
    right = verified(measurement_of([2092, 1046, 1046]), "linear")
    assert right.ok
    assert right.totals == Totals(4 * 1024, 4, 4 * 22, 4 * 1046)
    swapped = verified(measurement_of([1046, 2092, 1046]), "linear")
    assert swapped.totals == right.totals
    assert swapped.differing == [Difference(0, 1046, 2092), Difference(1, 2092, 1046)]
    unheard = verified(measurement_of([2092, 1046]), "linear")
    assert unheard.differing == [Difference(2, 0, 1046)]
    uncounted = verified(measurement_of(None), "linear")
    assert [each.rank for each in uncounted.differing] == [0, 1, 2]
    text = checks_as_text([right, swapped])
    assert "rank 1 sent 2,092, its schedule has 1,046" in text
    assert text.endswith("4 of 6 ranks sent exactly the bytes of their schedule.")


def test_what_was_not_measured_is_blank() -> None:
    head, timed, untimed = times_as_text(
        [("ring", measurement_of([7, 9, 8], 250.0)), ("ring", measurement_of(None))]
    ).splitlines()
    assert head.endswith("most sent")
    assert timed.split()[4:] == ["KiB", *["250", "us"] * 3, "9", "B"]
    assert untimed.split() == ["3", "all_reduce", "ring", "1", "KiB"]


# Real ranks of Open MPI.


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("algorithm", HOLDS_ALL)
def test_every_rank_sends_exactly_the_bytes_of_its_schedule(algorithm: str, ranks: int) -> None:
    """Sizes: fewer elements than ranks; in one piece, uneven; mixed; in several, uneven."""
    found = on_ranks(job(["all_reduce"], [4, 1028, 100_000, 2**20 + 44]), ranks, algorithm)
    assert len(found) == 4
    for measurement in found:
        check = verified(measurement, algorithm)
        assert measurement.sent_bytes == check.predicted.sent_bytes.tolist()
        assert check.ok


@needs_mpi
@pytest.mark.parametrize(
    "algorithm", sorted({name for of, name in VERIFIABLE if of != "all_reduce"})
)
def test_other_collectives_too(algorithm: str) -> None:
    """Sizes around the longest message in one piece, among ranks that are no power of two."""
    collectives = [of for of, name in VERIFIABLE if name == algorithm and of != "all_reduce"]
    sizes = [40, EAGER, EAGER + 4, 6 * EAGER, 6 * EAGER + 24]
    found = on_ranks(job(collectives, sizes), 6, algorithm)
    assert len(found) == len(sizes) * len(collectives)
    for measurement in found:
        assert verified(measurement, algorithm).ok, measurement


@needs_mpi
def test_the_command_writes_a_table_that_is_read_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "measured.csv"
    words = ["measure", "--ranks", "2", "--sizes", "1KiB,64KiB", "--iterations", "3"]
    words += ["--output", str(table)]
    more = ["--collective", "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,reduce"]
    text = run_text(capsys, *words, *more, "--cluster", "here", "--network", "loopback")
    assert "12 rows in" in text
    assert table.read_text().splitlines()[0] == (
        "dataset,cluster,network,nodes,gpus_per_node,num_gpus,library,mode,single_process,"
        "collective,dtype,size_bytes,time_us,algorithm,iterations,min_us,p90_us,sent_bytes_per_rank"
    )
    read = read_table(table)
    assert (read.kind, read.rows) == ("collectives", 12)
    for row in read.records():
        assert (row["cluster"], row["network"], row["library"]) == ("here", "loopback", "openmpi")
        assert (row["nodes"], row["num_gpus"], row["iterations"]) == ("1", "2", "3")
        assert float(row["min_us"]) <= float(row["time_us"]) <= float(row["p90_us"])
        assert len(row["sent_bytes_per_rank"].split()) == 2
    before = table.read_text()
    assert "a new file, or come with --append or --force" in run_error(capsys, *words)
    assert table.read_text() == before
    found = run_json(capsys, *words, "--append", "--transport", "shared")
    assert found["uncounted"] == "shared memory has no counters"
    assert [row["sent_bytes"] for row in found["rows"]] == [None, None]
    assert table.read_text().startswith(before)
    assert read_table(table).rows == 14


@needs_mpi
def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    block = r"```text\n\$ shardcost (measure --verify-bytes .*?)\n(.*?)```"
    shown = re.search(block, PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert run_text(capsys, *shlex.split(shown[1])) == shown[2]


@needs_mpi
def test_a_rank_that_sent_something_else_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: Any) -> Any:
        found = rank_traffic(*arguments)
        found.payload_bytes[1] += 1
        return found

    monkeypatch.setattr(open_mpi, "rank_traffic", wrong)
    words = ["measure", "--verify-bytes", "--ranks", "2", "--algorithm", "ring", "--sizes", "1KiB"]
    assert cli.main(words) == 1
    out = capsys.readouterr().out
    what = "n = 2, all_reduce by ring, 1,024 bytes"
    assert f"{what}: rank 1 sent 1,068, its schedule has 1,069" in out
    assert "1 of 2 ranks sent exactly" in out
    assert cli.main([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["output"]) == (False, None)
    assert found["verified"][0]["measured_bytes"] == [1068, 1068]


@needs_mpi
def test_an_interrupt_leaves_a_sound_table_and_no_ranks(tmp_path: Path) -> None:
    table = tmp_path / "measured.csv"
    words = "--ranks 2 --sizes 4KiB:4MiB --iterations 2000 --output".split()
    command = [sys.executable, "-m", "shardcost", "measure", *words, str(table)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        end = time.monotonic() + PATIENCE_S
        while not table.exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    rows = read_table(table).rows
    assert process.returncode == 130
    assert out == ""
    assert re.fullmatch(rf"shardcost: interrupted; {rows} rows? (is|are) in {table}\n", err)
    assert ranks_started_by(process.pid) == []


def ranks_started_by(parent: int) -> list[str]:
    """Return the processes whose environment says that this one started them."""
    mark = f"SHARDCOST_MEASURE_PARENT={parent}".encode()
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (each / "environ").read_bytes().split(b"\0"):
                found.append(each.name)
        except OSError:
            continue
    return found


@needs_mpi
def test_ranks_that_fail_are_one_line() -> None:
    no_such_format = Job(("all_reduce",), (64,), "bfloat16", 1, 0, counts_bytes=True)
    with pytest.raises(RanksFailedError, match=r"^the ranks failed: KeyError: 'bfloat16'$"):
        on_ranks(no_such_format, 2, "default")
    assert ranks_started_by(os.getpid()) == []


# Starting, ending, counting.


def test_ranks_that_say_nothing_are_ended() -> None:
    silent = Program([sys.executable, "-c", "import time; time.sleep(600)"], {})
    began = time.monotonic()
    with pytest.raises(RanksFailedError, match=r"not heard of for 0\.3 s"):
        list(measurements_of([silent, silent], 0.3))
    assert time.monotonic() - began < 30


def test_a_rank_that_fails_ends_those_that_wait_for_it() -> None:
    waits = Program([sys.executable, "-c", "import time; time.sleep(600)"], {})
    fails = Program([sys.executable, "-c", "raise ValueError('alone')"], {})
    began = time.monotonic()
    with pytest.raises(RanksFailedError, match=r"^the ranks failed: ValueError: alone$"):
        list(measurements_of([waits, fails], 600))
    assert time.monotonic() - began < 60


def test_lines_that_are_no_measurements_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "a warning of a library\nshardcost-measured {cut short\nshardcost-measured []"
    chatty = Program([sys.executable, "-c", f"print({lines!r})"], {})
    assert list(measurements_of([chatty], 60)) == []
    monkeypatch.setattr(Session, "_programs", lambda *_: [chatty])
    session = Session("mpi", (2,), ("default",), "tcp", job(["all_reduce"], [64, 128]), 60.0)
    with pytest.raises(RanksFailedError, match="the ranks ended after 0 of 2 measurements"):
        list(session.measurements())


def test_a_failure_is_told_by_its_error() -> None:
    code = (
        "import sys; print('-----', 'noise', file=sys.stderr, sep='\\n'); raise ValueError('why')"
    )
    with pytest.raises(RanksFailedError, match=r"^the ranks failed: ValueError: why$"):
        list(measurements_of([Program([sys.executable, "-c", code], {})], 60))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux counts bytes")
def test_sockets_count_every_byte() -> None:
    assert sockets.why_not() is None
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        before = sockets.settled(lambda: None)
        one.sendall(b"x" * 12345)
        other.sendall(b"y" * 55)
        assert len(other.recv(12345, socket.MSG_WAITALL)) == 12345
        assert sockets.settled(lambda: None) - before == 12400
        one.sendall(b"z")  # the sockets still are ours
        assert other.recv(1) == b"z"


class OneRank:
    """Ranks of which there is one, whose sums are off where `wrong_at` says so."""

    rank, size, nodes, library, version, over_tcp = 0, 1, 1, "none", "0", False

    def __init__(self, wrong_at: int | None = None) -> None:
        self.wrong_at = wrong_at
        self.runs = 0

    def barrier(self) -> None:
        """Wait for nobody."""

    def progress(self) -> None:
        """Send nothing."""

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Return the values of the one rank."""
        return [values]

    def prepared(self, collective: str, given: Any, elements: int, dtype: str) -> Prepared:
        """Return a collective that hands its input back."""
        del collective, elements, dtype
        result = given.astype("f4")
        if self.wrong_at is not None:
            result[self.wrong_at] += 1

        def run() -> None:
            self.runs += 1

        return Prepared(run, lambda: None, lambda: result)


def test_a_wrong_result_names_the_rank() -> None:
    with pytest.raises(WrongResultError, match="rank 0 has a wrong result at element 7"):
        list(measurements(OneRank(7), job(["all_reduce"], [64])))


def test_calls_in_a_row_are_one_iteration() -> None:
    """As on a device, where calls are queued: the time is that of one of them."""
    naps = []

    class Queue(OneRank):
        def prepared(self, collective: str, given: Any, elements: int, dtype: str) -> Prepared:
            def in_a_row() -> None:
                naps.append(1)
                time.sleep(0.02)

            return super().prepared(collective, given, elements, dtype)._replace(in_a_row=in_a_row)

    ranks = Queue()
    (measurement,) = measurements(
        ranks, Job(("all_reduce",), (64,), "float", 3, 2, counts_bytes=False)
    )
    assert len(naps) == 3
    assert ranks.runs == 1 + 2  # the check and the warm-up
    assert measurement.time_us is not None
    assert 0.9 < measurement.time_us / (1e6 * 0.02 / CALLS_IN_A_ROW) < CALLS_IN_A_ROW


def test_every_iteration_runs_and_time_is_their_median() -> None:
    ranks = OneRank()
    work = Job(("all_reduce", "broadcast"), (64, 128), "float", 5, 2, counts_bytes=True)
    found = list(measurements(ranks, work))
    assert ranks.runs == 4 * (1 + 2 + 5)
    assert len(found) == work.points == 4
    for measurement in found:
        assert measurement.time_us is not None
        assert measurement.min_us is not None
        assert measurement.p90_us is not None
        assert 0 <= measurement.min_us <= measurement.time_us <= measurement.p90_us
        assert measurement.sent_bytes is None
        assert Measurement.from_line(measurement.as_line()) == measurement
    assert Job.from_text(work.as_text()) == work


# The command line.


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("--ranks 0", "--ranks must be a whole number of at least 1"),
        ("--ranks 2,x", "--ranks must be a whole number"),
        ("--ranks 99999999999999999999", "--ranks must be at most 64"),
        ("--sizes 1PiB", "--sizes must be between 1 byte and 4 GiB"),
        ("--sizes 4GiB --ranks 64", "ranks in this memory"),
        ("--sizes 4KiB:1KiB", "--sizes must be from a smaller size to a larger one"),
        ("--sizes 1:9:1", "with a factor of at least 2"),
        ("--sizes 1:2:3:4", "--sizes must be two sizes like 8:8GiB"),
        ("--sizes 1K", "--sizes must be clear about its unit"),
        ("--sizes ''", "--sizes must be one value or several"),
        ("--collective gather", "unknown --collective 'gather'"),
        ("--algorithm star", "unknown algorithm of all_reduce 'star'"),
        ("--algorithm ring --collective all_to_all", "unknown algorithm of all_to_all 'ring'"),
        ("--dtype half", "unknown --dtype 'half'; known: double, float, int32, int64"),
        ("--dtype fp8", "unknown --dtype 'fp8'"),
        ("--backend ucx", "unknown --backend 'ucx'; known: gloo, mpi, nccl"),
        ("--transport rdma", "unknown --transport 'rdma'; known: shared, tcp"),
        ("--iterations 0", "--iterations must be at least 1"),
        ("--warmup -1", "--warmup must be between 0 and 1,000,000"),
        ("--timeout 0s", "--timeout must be between 1s and 24h"),
        ("--output no/such/folder.csv", "its folder does not exist"),
        ("--output tests --force", "it is not a regular file"),
        ("--append --force", "--append and --force exclude each other"),
        ("--cluster 'a\nb'", "--cluster must be a name"),
        ("--verify-bytes --backend gloo", "--backend must be mpi with --verify-bytes"),
        ("--verify-bytes --transport shared", "shared memory has no counters"),
        ("--verify-bytes --algorithm default", "algorithm of all_reduce to verify 'default'"),
        ("--verify-bytes --collective all_to_all,reduce_scatter", "no algorithm in common"),
        ("--verify-bytes --force", "only to an --output that is given"),
        ("--backend gloo --algorithm ring", "gloo chooses its own"),
    ],
)
def test_bad_options_are_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    rule: str,
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[1])
    monkeypatch.setattr(launch, "check_mpi", lambda: None)
    monkeypatch.setattr(Session, "measurements", lambda _: pytest.fail("ranks were started"))
    assert rule in run_error(capsys, "measure", *shlex.split(words))


def test_a_file_that_is_no_table_is_not_appended_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launch, "check_mpi", lambda: None)
    other, cut = tmp_path / "other.csv", tmp_path / "cut.csv"
    other.write_text("a,b\n1,2\n")
    cut.write_text(",".join(HEADER) + "\nhalf a r")
    for path, rule in ((other, "line 1 is not the header"), (cut, "its last line has no end")):
        assert rule in run_error(capsys, "measure", "--output", str(path), "--append")


def test_missing_libraries_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda _: None)
    assert "pip install 'shardcost[mpi]'" in run_error(capsys, "measure", "--output", "x.csv")
    monkeypatch.setitem(sys.modules, "torch", None)
    for backend in torch_rank.BACKENDS:
        with pytest.raises(MissingExtraError, match="needs torch"):
            torch_rank.check_torch(backend)


def test_what_torchrun_started_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    started = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    work = job(["all_reduce"], [1024])
    session = Session("gloo", (4,), ("default",), "tcp", work, 60.0)
    assert session.joins
    assert not session.writes
    assert not Session("mpi", (4,), ("default",), "tcp", work, 60.0).joins


def test_gloo_measures_among_real_processes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch.distributed", reason="needs shardcost[torch]")
    table = tmp_path / "gloo.csv"
    run_text(
        capsys,
        *"measure --backend gloo --ranks 2 --sizes 1KiB,1MiB --iterations 2 --output".split(),
        str(table),
    )
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["size_bytes"] for row in rows] == ["1024", str(2**20)]
    for row in rows:
        least = int(row["size_bytes"])  # an all-reduce of two sends at least so much from each
        assert all(int(sent) >= least for sent in row["sent_bytes_per_rank"].split())
