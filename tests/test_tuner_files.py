"""Files of NCCL's tuner plugin: read, written, and filled from predictions."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from shardcost.cli import main
from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.collectives.paths import total
from shardcost.errors import BadValueError, FormatError, ShardcostError, UnknownNameError
from shardcost.formats import nccl_tuner
from shardcost.formats.nccl_tuner import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    TunerFile,
    TunerRule,
    as_csv,
)
from shardcost.formats.reading import MeasurementLog
from shardcost.inspect.tuner_plan import TunerPlan, lines, tuner_plan
from shardcost.report.tuner import plan_as_text

_RULES = """\
# what runs where
allreduce,0,65536,tree,simple,2,1,-1,-1,-1

AllReduce, 65537 ,1048576,ring,LL128,-1,-1,-1
broadcast,0,4294967295,ring,ll,8,4,32,-1,0
"""
_MEASURED = """\
collective,size_bytes,algorithm,protocol,channels,nodes,ranks,pipeOps,regBuff,cost_metric,bandwidth_gbps,latency_us
allreduce,1048576,ring,ll128,4,1,8,-1,-1,20.0,52.4288,20.0
allreduce,2097152,ring,ll128,4,1,8,-1,-1,31.0,67.65,31.0
allreduce,1048576,tree,simple,-1,2,16,-1,-1,50.0,600.0,50.0
allreduce,nan,ring,ll,1,1,8,-1,-1,1,1,1
allreduce,1024,ring,ll,1,1,8,-1,-1,1,1,1e400
barrier,1024,ring,ll,1,1,8,-1,-1,1,1,5
allreduce,1024,ring
"""


def read(tmp_path: Path, text: str) -> TunerFile | MeasurementLog:
    path = tmp_path / "tuner.csv"
    path.write_text(text, encoding="utf-8")
    return nccl_tuner.read(path)


def rules_of(tmp_path: Path, text: str) -> TunerFile:
    found = read(tmp_path, text)
    assert isinstance(found, TunerFile)
    return found


def test_rules_are_read_with_and_without_the_last_columns(tmp_path: Path) -> None:
    assert nccl_tuner.kind_of(_RULES) == "nccl-tuner"
    found = rules_of(tmp_path, _RULES)
    assert found.unread == ()
    assert found.rules == (
        TunerRule("all_reduce", 0, 65536, "tree", "simple", channels=2, nodes=1),
        TunerRule("all_reduce", 65537, 1048576, "ring", "ll128"),
        TunerRule(
            "broadcast", 0, 2**32 - 1, "ring", "ll", channels=8, nodes=4, ranks=32, reg_buff=0
        ),
    )


def test_what_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    chance = random.Random(3)
    rules = tuple(
        TunerRule(
            chance.choice(list(COLLECTIVES)),
            least := chance.randrange(2**40),
            least + chance.randrange(2**40),
            chance.choice(ALGORITHMS),
            chance.choice(PROTOCOLS),
            *(chance.randrange(-1, 64) for _ in range(5)),
        )
        for _ in range(200)
    )
    text = as_csv(["a comment\nof two lines", *rules])
    assert text.startswith("# a comment of two lines\n")
    assert rules_of(tmp_path, text).rules == rules


@pytest.mark.parametrize(
    "line",
    [
        "alltoall,0,1,ring,ll,-1,-1,-1",
        "allreduce,0,1,star,ll,-1,-1,-1",
        "allreduce,0,1,ring,ll256,-1,-1,-1",
        "allreduce,9,1,ring,ll,-1,-1,-1",
        "allreduce,-5,1,ring,ll,-1,-1,-1",
        "allreduce,0,nan,ring,ll,-1,-1,-1",
        "allreduce,0,1e400,ring,ll,-1,-1,-1",
        f"allreduce,0,{'9' * 400},ring,ll,-1,-1,-1",
        "allreduce,0,1,ring,ll,-1,-1",
        "allreduce,0,1,ring,ll,-7,-1,-1",
        "allreduce,0,1,ring,ll,-1,-1,-1,-1,-1,-1",
    ],
)
def test_a_rule_that_cannot_be_is_counted_with_its_line(tmp_path: Path, line: str) -> None:
    found = rules_of(tmp_path, f"{_RULES}{line}\n")
    assert len(found.rules) == 3
    assert [(each.count, each.first_line) for each in found.unread] == [(1, 6)]
    with pytest.raises(FormatError, match="holds no rule"):
        read(tmp_path, line)


def test_a_rule_made_by_hand_is_checked() -> None:
    with pytest.raises(BadValueError, match="algorithm must be one of tree"):
        TunerRule("all_reduce", 0, 1, "star", "ll")
    with pytest.raises(BadValueError, match="bytes must be"):
        TunerRule("all_reduce", 2, 1, "ring", "ll")


def test_measurements_are_runs_by_group_and_path(tmp_path: Path) -> None:
    assert nccl_tuner.kind_of(_MEASURED) == "nccl-tuner-measurements"
    found = read(tmp_path, _MEASURED)
    assert isinstance(found, MeasurementLog)
    assert found.kind == "nccl-tuner-measurements"
    first, second = found.runs
    assert (first.collective, first.num_gpus, first.nodes) == ("all_reduce", 8, 1)
    assert [point.size_bytes for point in first.points] == [1048576, 2097152]
    assert [point.time_s for point in first.points] == pytest.approx([20e-6, 31e-6])
    assert first.notes == ("ring ll128, 4 channels",)
    assert (second.num_gpus, second.nodes) == (16, 2)
    assert sum(each.count for each in found.unread) == 4
    assert found.notes == (
        "in 1 rows bandwidth_gbps is not size over latency_us, which is taken for the time",
    )


@pytest.mark.parametrize("text", ["", "hello", "a,b,c\n1,2,3", "# only a comment\n", "," * 1000])
def test_what_is_neither_is_not_recognised_and_one_clear_error(tmp_path: Path, text: str) -> None:
    assert not nccl_tuner.looks_like(text)
    with pytest.raises(FormatError, match=r"tuner\.csv"):
        read(tmp_path, text)


def test_damage_ends_in_a_count_or_a_clear_error_and_soon(tmp_path: Path) -> None:
    chance = random.Random(5)
    for text in (_RULES, _MEASURED):
        for _ in range(200):
            damaged = list(text)
            for _ in range(chance.randint(1, 12)):
                damaged[chance.randrange(len(damaged))] = chance.choice('\0,"#\n9-é')
            with suppress(ShardcostError):
                read(tmp_path, "".join(damaged))
    start = time.perf_counter()
    long = rules_of(tmp_path, _RULES + "allreduce,0,1,ring,ll,-1,-1\n" * 10**6)
    assert time.perf_counter() - start < 10
    assert sum(each.count for each in long.unread) == 10**6


def test_rules_that_never_match_are_noted(tmp_path: Path) -> None:
    assert rules_of(tmp_path, _RULES).notes == ()
    assert rules_of(tmp_path, _RULES + _RULES).notes == (
        "3 of the rules never match: one before them covers the same groups and sizes",
    )


# Rules from predictions.


@pytest.fixture(scope="module")
def plan() -> TunerPlan:
    return tuner_plan(["all_gather", "all_reduce"], Cluster.named("a100_sxm"), [4, 8])


def test_every_rule_saves_what_it_says_and_more_than_the_error(plan: TunerPlan) -> None:
    assert plan.rules
    for each in plan.rules:
        rule = each.rule
        middle = (rule.min_bytes * rule.max_bytes) ** 0.5
        result = collective_time(rule.collective, middle, plan.cluster, rule.ranks)
        times = {(a, p.lower()): float(total(parts)) for (a, p), parts in result.paths.items()}
        assert min(times, key=lambda path: times[path]) == (rule.algorithm, rule.protocol)
        saved = 1 - times[rule.algorithm, rule.protocol] / float(result.time_s)
        assert 0.02 < saved <= each.saved_at_most + 0.01
        assert each.saved > plan.median_pct / 100
        assert each.sound == (each.saved > plan.p90_pct / 100)


def test_rules_of_one_group_do_not_overlap(plan: TunerPlan) -> None:
    groups = {(each.rule.collective, each.rule.ranks) for each in plan.rules}
    for group in groups:
        mine = [e.rule for e in plan.rules if (e.rule.collective, e.rule.ranks) == group]
        assert all(a.max_bytes < b.min_bytes for a, b in pairwise(mine))


def test_only_sound_rules_are_in_force_and_the_others_are_comments(
    plan: TunerPlan, tmp_path: Path
) -> None:
    text = as_csv(lines(plan))
    assert rules_of(tmp_path, text).rules == tuple(each.rule for each in plan.sound)
    assert text.count("# measure first: ") == len(plan.rules) - len(plan.sound)
    assert f"{plan.p90_pct:.1f} % (p90)" in text
    tried = rules_of(tmp_path, text.replace("# measure first: ", ""))
    assert tried.rules == tuple(each.rule for each in plan.rules)
    assert nccl_tuner.kind_of(text) == "nccl-tuner"
    assert max(map(len, plan_as_text(plan).splitlines())) <= 80


def test_a_choice_that_is_the_fastest_already_needs_no_rule() -> None:
    plan = tuner_plan(["broadcast"], Cluster.named("h100_sxm"), [8])
    assert plan.rules == ()
    assert plan.sizes_already_fastest == plan.sizes
    assert any("is not modelled" in note for note in plan.notes)


def test_rules_across_nodes_name_the_nodes() -> None:
    plan = tuner_plan(["all_reduce"], Cluster.named("h100_sxm", "ib_8x400g"), [16])
    assert {each.rule.nodes for each in plan.rules} == {2}
    assert {each.rule.algorithm for each in plan.rules} <= set(ALGORITHMS)


def test_what_the_plugin_cannot_tune_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="all_to_all"):
        tuner_plan(["all_to_all"], Cluster.named("h100_sxm"), [8])
    with pytest.raises(BadValueError, match="one of NVIDIA's"):
        tuner_plan(["all_reduce"], Cluster.named("mi300x"), [8])


def test_the_sweep_stays_within_its_ends() -> None:
    plan = tuner_plan(["all_gather"], Cluster.named("a100_sxm"), [4], sizes=(2**20, 2**23))
    assert all(each.rule.min_bytes >= 2**20 for each in plan.rules)
    assert all(each.rule.max_bytes <= 2**23 for each in plan.rules)
    with pytest.raises(BadValueError, match="sizes must be"):
        tuner_plan(["all_gather"], Cluster.named("a100_sxm"), [4], sizes=(8, 8))


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.csv"
    words = ["collective", "all", "--gpus", "4,8", "--on", "a100", "--tuner", str(path), "--json"]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["tuner"] == str(path)
    assert len(rules_of(tmp_path, path.read_text()).rules) == sum(
        each["in_force"] for each in data["rules"]
    )
    assert {each["ranks"] for each in data["rules"]} == {4, 8}
    assert np.all([each["saved_pct"] > 2 for each in data["rules"]])


@pytest.mark.parametrize(
    "more", [["--size", "1MiB"], ["--plot", "x.svg"], ["--library", "vllm"], ["--mode", "eager"]]
)
def test_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    words = ["collective", "all_reduce", "--gpus", "8", "--on", "h100", "--tuner"]
    assert main([*words, str(tmp_path / "x.csv"), *more]) == 2
    assert "--tuner" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()
