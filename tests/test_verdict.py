"""Verdicts: what is fine, what is named where it is not, and how it is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab import faults
from shardcost import cli
from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.estimate import estimate
from shardcost.formats.kineto import Trace
from shardcost.formats.reading import Point, Run
from shardcost.formats.tables import write_table
from shardcost.inspect import trace_verdict
from shardcost.inspect.causes import PRICES, Curve, causes, priced
from shardcost.inspect.log import inspected
from shardcost.inspect.trace import GroupFindings, Shape, TraceFindings
from shardcost.inspect.verdict import FINE, ROW_CAUSES, SLOW, UNKNOWN, Verdict, judged
from shardcost.layout import Layout
from shardcost.machine import machine_of
from shardcost.measure.table import HEADER
from shardcost.model import Model
from shardcost.report.verdict import as_data, as_text
from shardcost.workload import Train

ROOT = Path(__file__).resolve().parents[1]
SIZES = np.array([2.0**k for k in range(3, 34)])
PLACES = [
    ("h100_sxm", None, 8, "all_reduce"),
    ("h100_sxm", "ib_8x400g", 64, "all_reduce"),
    ("l40s", None, 4, "all_reduce"),
    ("h100_sxm", "ib_8x400g", 16, "all_reduce"),
]


def curve(name: str, network: str | None, gpus: int, collective: str) -> Curve:
    machine = machine_of(Cluster.named(name, network))
    return Curve(collective, SIZES, machine, gpus, None, "nccl")


def run_of(of: Curve, times_s: Sequence[float] | np.ndarray) -> Run:
    pairs = zip(of.size_bytes, times_s, strict=True)
    points = tuple(Point(int(size), float(time), line=k) for k, (size, time) in enumerate(pairs, 1))
    return Run(
        collective=of.collective, num_gpus=of.gpus, library="nccl", version="2", points=points
    )


def verdict_on(of: Curve, times_s: np.ndarray) -> Verdict:
    return judged([inspected(run_of(of, times_s), of.cluster)])


@pytest.mark.parametrize("place", PLACES)
def test_what_is_predicted_is_fine(place: tuple[str, str | None, int, str]) -> None:
    of = curve(*place)
    verdict = verdict_on(of, of.time_s())
    assert (verdict.verdict, verdict.causes, verdict.fast) == (FINE, (), False)
    assert verdict.healthy is not None
    assert verdict.healthy > 0.5
    assert all(40 < level.percentile < 60 for level in verdict.levels)


def test_every_cause_is_priced_and_slows_something() -> None:
    by_key = {cause.key: cause for cause in causes()}
    told_by_curves = {key for key, cause in by_key.items() if cause.severities}
    assert told_by_curves == set(PRICES)
    assert set(by_key) - told_by_curves == {
        *ROW_CAUSES,
        "slow_collectives",
        "exposed_communication",
    }
    for key in told_by_curves:
        slowed = []
        for place in PLACES:
            of = curve(*place)
            seconds = [priced(by_key[key], of, severity) for severity in by_key[key].severities]
            slowed += [np.max(np.log(each / of.time_s())) for each in seconds if each is not None]
        assert max(slowed) > 0.2, key
        assert by_key[key].settings, key


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("nvls_off", 0), ("ll_only", 0), ("simple_only", 1), ("pcie", 0), ("one_nic", 1),
        ("tcp", 1), ("launch_floor", 0), ("ring_forced", 1), ("cross_socket", 2), ("links_down", 0),
    ],
)  # fmt: skip
def test_a_priced_fault_is_named_with_evidence(key: str, place: int) -> None:
    of = curve(*PLACES[place])
    cause = next(each for each in causes() if each.key == key)
    seconds = priced(cause, of, cause.severities[-1])
    assert seconds is not None
    verdict = verdict_on(of, seconds)
    assert verdict.verdict == SLOW
    assert verdict.causes[0].cause.key == key
    text = " ".join(as_text(verdict).split())
    assert "Looks like" in text
    assert cause.words in text
    assert cause.settings[0] in text
    data = as_data(verdict)
    json.dumps(data, allow_nan=False)
    assert data["causes"][0]["cause"] == key
    assert "measured" in data["causes"][0]["evidence"]


def test_nvls_off_and_rings_forced_cannot_be_told_apart_in_a_node() -> None:
    of = curve(*PLACES[0])
    verdict = verdict_on(of, of.time_s(algorithm="ring"))
    assert [each.key for each in verdict.causes[0].alike] == ["ring_forced"]
    assert "or only rings run" in " ".join(as_text(verdict).split())


def test_slow_without_a_cause_says_so() -> None:
    of = curve("a100_sxm", None, 8, "all_to_all")
    verdict = verdict_on(of, of.time_s() * (1.8 + 0.4 * np.sin(np.log2(SIZES) / 3)))
    assert (verdict.verdict, verdict.causes) == (SLOW, ())
    assert "no listed cause explains it" in " ".join(as_text(verdict).split())
    assert verdict.slowest is not None
    assert verdict.slowest.percentile > 99


def test_faster_is_fine_with_a_note() -> None:
    of = curve(*PLACES[0])
    verdict = verdict_on(of, of.time_s() / 2)
    assert (verdict.verdict, verdict.fast) == (FINE, True)
    assert "it may be another machine" in " ".join(as_text(verdict).split())


def test_a_cold_first_row_is_told_and_the_machine_is_fine() -> None:
    of = curve(*PLACES[0])
    seconds = of.time_s().copy()
    seconds[0] *= 4
    verdict = verdict_on(of, seconds)
    assert (verdict.verdict, verdict.causes[0].cause.key) == (FINE, "warm_up")


def test_many_single_rows_are_uneven() -> None:
    of = curve(*PLACES[0])
    seconds = of.time_s().copy()
    seconds[2::4] *= 2
    verdict = verdict_on(of, seconds)
    assert (verdict.verdict, verdict.causes[0].cause.key) == ("uneven", "jitter")


def test_an_oversubscribed_spine_is_known_by_few_and_many_nodes() -> None:
    few, many = (curve("h100_sxm", "ib_8x400g", gpus, "all_gather") for gpus in (16, 128))
    cause = next(each for each in causes() if each.key == "oversubscribed")
    slow = priced(cause, many, 3.0)
    assert slow is not None
    assert priced(cause, few, 3.0) is None
    found = [inspected(run_of(few, few.time_s()), few.cluster)]
    found.append(inspected(run_of(many, slow), many.cluster))
    both = judged(found)
    assert both.causes[0].cause.key == "oversubscribed"
    assert both.causes[0].alike == ()


def test_without_a_machine_there_is_no_verdict() -> None:
    of = curve(*PLACES[0])
    verdict = judged([inspected(run_of(of, of.time_s()))])
    assert verdict.verdict == UNKNOWN
    assert "name it with --on" in as_text(verdict)


def test_many_curves_are_one_comparison() -> None:
    of = curve(*PLACES[0])
    found = [inspected(run_of(of, of.time_s()), of.cluster)] * 300
    assert judged(found).verdict == FINE


def test_injected_faults_are_named_and_healthy_curves_are_fine() -> None:
    right = cases = 0
    for name, kind in faults.KINDS.items():
        found = faults.scored(name, kind, 2, seed=7)
        right, cases = right + found[name], cases + 2
    assert right >= 0.85 * cases
    healthy = faults.scored("healthy", faults.HEALTHY, 20, seed=7)
    assert healthy[FINE] >= 19


def test_the_documentation_lists_every_cause() -> None:
    page = (ROOT / "docs" / "verdicts.md").read_text()
    for cause in causes():
        settings = ", ".join(f"`{each}`" for each in cause.settings)
        assert f"| `{cause.key}` | {cause.words} | {settings} |" in page


def log_text(times_s: np.ndarray) -> str:
    """Return a log of nccl-tests on eight H100."""
    device = (
        "#  Rank {0:2} Group  0 Pid 10{0} on node device {0:2} [0000:1b:00] NVIDIA H100 80GB HBM3"
    )
    lines = ["# Collective test starting: all_reduce_perf", "# Using devices"]
    lines += [device.format(rank) for rank in range(8)]
    for size, time in zip(SIZES, times_s, strict=True):
        algbw = size / time / 1e9
        cells = f"{1e6 * time:.2f} {algbw:.2f} {1.75 * algbw:.2f} 0"
        lines.append(f"{size:.0f} {size / 4:.0f} float sum -1 {cells} {cells}")
    return "\n".join(lines)


def test_check_tells_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = curve(*PLACES[0])
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(log_text(of.time_s()))
    bad.write_text(log_text(of.time_s(protocol="LL")))
    assert cli.main(["check", str(good)]) == 0
    assert "Verdict: fine" in capsys.readouterr().out
    assert cli.main(["check", str(bad), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["causes"][0]["cause"]) == ("slow", "ll_only")
    assert {"size_bytes", "time_us", "algbw", "busbw", "predicted_busbw"} <= set(data["points"][-1])
    assert cli.main(["check", str(good), str(bad), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "slow"
    assert [each["verdict"] for each in data["files"]] == ["fine", "slow"]
    assert cli.main(["inspect", str(bad)]) == 0
    assert "only the LL protocol runs" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{log}"], "name it with --on"),
        (["{config}"], "not a log or table of collectives or a trace"),
        (["{log}", "--on", "h100_sxm", "--tp", "8"], "is for traces"),
    ],
)
def test_check_refuses_what_it_cannot_judge(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = curve(*PLACES[0])
    log = tmp_path / "log.txt"
    log.write_text(log_text(of.time_s()).replace("NVIDIA H100 80GB HBM3", "Some Device"))
    config = ROOT / "docs" / "examples" / "topo-8.txt"
    filled = [each.format(log=log, config=config) for each in arguments]
    assert cli.main(["check", *filled]) == 2
    captured = capsys.readouterr()
    assert words in " ".join((captured.out + captured.err).split())


def table_of(path: Path, curves: Sequence[tuple[Curve, np.ndarray]], **cells: str) -> Path:
    """Write curves as `shardcost measure` does, each with cells of its own."""
    rows = []
    for of, times_s in curves:
        network = of.cluster.network.name if of.cluster.network and of.crosses else ""
        per_node = min(of.gpus, int(of.cluster.gpus_per_node))
        for size, time_s in zip(of.size_bytes, times_s, strict=True):
            row = dict.fromkeys(HEADER, "") | {
                "dataset": "measured_nccl_2.28",
                "cluster": of.cluster.name,
                "network": network,
                "nodes": str(of.gpus // per_node),
                "gpus_per_node": str(per_node),
                "num_gpus": str(of.gpus),
                "library": "nccl",
                "single_process": "0",
                "collective": of.collective,
                "size_bytes": str(int(size)),
                "time_us": f"{1e6 * time_s:.3f}",
            }
            rows.append(list((row | cells).values()))
    write_table(path, HEADER, rows)
    return path


def test_check_judges_the_curves_of_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside, across = curve(*PLACES[0]), curve(*PLACES[3])
    good = table_of(tmp_path / "good.csv", [(inside, inside.time_s()), (across, across.time_s())])
    assert cli.main(["check", str(good)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "And 1 more curve." in text
    assert "Verdict: fine" in text
    slow = across.time_s(protocol="LL")
    bad = table_of(
        tmp_path / "bad.csv",
        [(inside, inside.time_s(protocol="LL")), (across, slow)],
        cluster="local",
    )
    assert cli.main(["check", str(bad)]) == 2  # the column names no machine of the catalog
    assert "name it with --on" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["check", str(bad), "--on", "h100_sxm", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["causes"][0]["cause"]) == ("slow", "ll_only")
    assert [(each["num_gpus"], each["nodes"]) for each in data["runs"]] == [(8, 1), (16, 2)]
    assert data["points"][-1]["line"] == 1 + len(SIZES)


def test_a_table_that_cannot_be_judged_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = curve(*PLACES[0]), curve("a100_sxm", None, 8, "all_reduce")
    curves = [(one, one.time_s()), (other, other.time_s())]
    several = table_of(tmp_path / "several.csv", curves)
    forced = table_of(tmp_path / "forced.csv", curves[:1], algorithm="ring")
    blank = table_of(tmp_path / "blank.csv", curves[:1], time_us="")
    gemm = tmp_path / "gemm.csv"
    write_table(gemm, "gpu dtype m n k time_us".split(), [["h100_sxm", "bf16", 8, 8, 8, 9.0]])
    for path, words in (
        (several, "rows of several clusters (a100_sxm, h100_sxm): say --on"),
        (forced, "has no rows to be judged: rows with a forced algorithm or protocol"),
        (blank, "has no rows to be judged: rows without a measured time"),
        (gemm, "is a table of gemm; collectives are checked"),
    ):
        assert cli.main(["check", str(path)]) == 2
        captured = capsys.readouterr()
        assert words in captured.err.replace("'", ""), path
        assert captured.err.count("\n") == 1
    assert cli.main(["check", str(several), "--on", "a100_sxm"]) == 0
    assert "rows of another cluster than a100_sxm" in " ".join(capsys.readouterr().out.split())


def trace_findings(achieved_s: float, exposed_s: float) -> TraceFindings:
    """Return a second of two ranks whose all-reduce should take 0.1 s."""
    group = GroupFindings(
        shape=Shape("all_reduce", "dp", 8, 1),
        calls=10,
        size_bytes=1e9,
        time_s=achieved_s,
        waiting_s=0.0,
        exposed_s=exposed_s,
        exposed_waiting_s=0.0,
        algbw_bytes_per_s=None,
        busbw_bytes_per_s=None,
        predicted_s=0.1,
        achieved_s=achieved_s,
    )
    return TraceFindings(
        traces=(Trace(file="x", kind="kineto", ranks=(), world_size=8, backend="nccl", device=""),),
        ranks=(0, 1),
        system="h100_sxm",
        span_s=1.0,
        compute_s=0.8,
        communication_s=achieved_s,
        exposed_s=exposed_s,
        copies_s=0.0,
        idle_s=0.0,
        groups=(group,),
        runs=(),
        kernels=(),
        top=(),
        notes=(),
    )


def test_traces_are_compared_with_machine_and_layout() -> None:
    fine = trace_verdict.judged(trace_findings(0.11, 0.05))
    assert (fine.verdict, fine.causes) == (FINE, ())
    slow = trace_verdict.judged(trace_findings(0.3, 0.2))
    assert slow.causes[0].cause.key == "slow_collectives"
    assert "3.0 times" in slow.causes[0].evidence
    layout = Layout(tp=8)
    expected = estimate(
        Model.named("llama3-8b"),
        Cluster.named("h100_sxm"),
        layout,
        Train(global_batch=8, sequence_length=4096),
    )
    share = float(sum(expected.exposed_s.values()) / expected.time_s)
    as_expected = trace_verdict.judged(trace_findings(0.11, share), expected)
    assert as_expected.verdict == FINE
    exposed = trace_verdict.judged(trace_findings(0.11, min(0.95, 6 * share)), expected)
    assert exposed.causes[0].cause.key == "exposed_communication"
    assert "the layout should show" in exposed.causes[0].evidence


def test_one_rank_alone_is_not_judged() -> None:
    findings = trace_findings(0.3, 0.2)
    alone = replace(findings, ranks=(0,), groups=(replace(findings.groups[0], waiting_s=None),))
    assert trace_verdict.judged(alone).verdict == UNKNOWN
    assert "traces of several" in trace_verdict.judged(alone).reason


def test_predictions_of_the_curve_are_those_of_the_library() -> None:
    of = curve(*PLACES[1])
    expected = collective_time("all_reduce", SIZES, of.cluster, 64).time_s
    assert of.time_s() == pytest.approx(expected)
