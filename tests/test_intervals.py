"""Intervals: rows alike are found, nine of ten are inside, and nothing predicted changes."""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import intervals
from lab.intervals_groups import (
    Plan,
    Pool,
    Trial,
    conformal_share,
    groups,
    tried_on_others,
    weighted_quantile,
)
from lab.left_out import Tried, left_out
from shardcost import Cluster, Decode, Layout, Model, Prefill, Train, catalog, collective_time
from shardcost import estimate as estimated
from shardcost.catalog.errors import MEASURED, OTHER_ARCHITECTURE, SAME_ARCHITECTURE, residuals_like
from shardcost.cli import main
from shardcost.collectives.interval import BANDS, Interval, facts_of, interval_of
from shardcost.errors import UnknownNameError
from shardcost.estimate import interval as of_runs
from shardcost.formats.tables import VALIDATED, Table, read_table
from shardcost.kernels.gemm import gemm_time_s
from shardcost.machine import CATALOG, Machine, machine_of
from shardcost.machine.libraries import CATALOG_LIBRARIES
from shardcost.program.operations import Gemm
from shardcost.validate import layer_ops
from shardcost.validate.shipped import ROWS
from shardcost.validate.validation import validate
from shardcost.workload import Workload

PAGE = Path(__file__).resolve().parents[1] / "docs" / "intervals.md"
NORMAL_90 = 1.645
"""Nine of ten draws of a normal distribution are within so many standard deviations."""
PLAN = Plan((("standing", "size"), ("standing",), ()), least=0.0)


def drawn(
    split: str, parts: int, rows: int, spread: float, bias: float, first: int = 0, **facts: str
) -> Tried:
    """Return residuals of parts that each have a bias of their own."""
    dice = np.random.default_rng(parts + rows + first)
    biases = np.repeat(dice.normal(0, bias, parts), rows)
    return Tried(
        split,
        first + np.arange(parts * rows),
        tuple(str(i) for i in np.repeat(np.arange(parts), rows)),
        biases + dice.normal(0, spread, parts * rows),
        (facts,) * (parts * rows),
    )


def coverage(pool: Pool) -> float:
    trial = tried_on_others(pool)
    return float(100 * np.mean(np.abs(pool.residuals) <= trial.lengthened))


def test_quantiles_go_by_weight() -> None:
    values = np.array([4.0, 1.0, 2.0, 3.0])
    assert weighted_quantile(values, np.ones(4), 0.5) == pytest.approx(2.5)
    assert weighted_quantile(values, np.array([9.0, 1, 1, 1]), 0.5) > 3
    assert weighted_quantile(values, np.ones(4), 1.0) == 4


def test_reach_of_a_group_is_that_of_its_rows() -> None:
    near = drawn("a system", 10, 100, 0.05, 0.0, standing="measured", size="small")
    far = drawn("a system", 10, 100, 0.2, 0.0, 1000, standing="other", size="small")
    pool = Pool([near, far._replace(parts=tuple(f"x{each}" for each in far.parts))], PLAN)
    found = {each.key["standing"]: each for each in groups(tried_on_others(pool)) if each.key}
    assert found["measured"].reach == pytest.approx(NORMAL_90 * 0.05, rel=0.15)
    assert found["other"].reach == pytest.approx(NORMAL_90 * 0.2, rel=0.15)
    assert found["measured"].rows == 1000
    assert found["measured"].parts == 10
    assert coverage(pool) == pytest.approx(90, abs=2)


@pytest.mark.parametrize("bias", [0.0, 0.1, 0.3])
def test_nine_of_ten_are_inside_on_parts_that_were_left_out(bias: float) -> None:
    pool = Pool([drawn("a system", 30, 60, 0.1, bias, standing="measured", size="small")], PLAN)
    assert coverage(pool) == pytest.approx(90, abs=1.5)


def test_few_parts_far_apart_are_told_by_the_others_too_short() -> None:
    pool = Pool([drawn("a system", 4, 100, 0.02, 0.3, standing="measured", size="small")], PLAN)
    trial = tried_on_others(pool)
    short = np.mean(np.abs(pool.residuals) <= trial.reach)
    assert short < 0.9
    assert trial.factor_of({"standing": "measured", "size": "small"}, ("standing", "size")) > 1


def test_a_row_is_never_judged_by_itself() -> None:
    """Rows that two splits leave out are hidden from both."""
    one = drawn("a model", 2, 50, 0.1, 0.0, standing="measured", size="small")
    same = one._replace(split="a data set", parts=("x",) * 50 + ("y",) * 50)
    wild = one._replace(residuals=np.where(np.arange(100) < 50, 100.0, one.residuals))
    trial = tried_on_others(Pool([wild, same._replace(residuals=wild.residuals)], PLAN))
    assert np.all(trial.reach[:50] < 1)  # a wild part does not excuse itself
    assert np.all(trial.reach[50:100] > 10)


def test_few_rows_never_make_an_interval_narrow() -> None:
    """Of 20 rows, the conformal quantile is the 19th: 95 % of them, not 90 %."""
    assert conformal_share(20) == 0.95
    assert conformal_share(4) == 1.0
    few = drawn("a system", 5, 8, 0.1, 0.0, standing="measured", size="small")
    plan = Plan(((),), least=0.0)
    reach = next(groups(tried_on_others(Pool([few], plan)))).reach
    assert reach > np.quantile(np.abs(few.residuals), 0.9)


def two_facts(far: int) -> Trial:
    """Return residuals of two sizes in one group, of which one is five times as far off."""
    near = drawn("a system", 10, 60, 0.05, 0.0, standing="measured", vendor="near")
    wide = drawn("a system", 10, far, 0.25, 0.0, 5000, standing="measured", vendor="far")
    wide = wide._replace(parts=tuple(f"x{each}" for each in wide.parts))
    plan = Plan((("standing",), ()), beside=("vendor",), least=0.0)
    return tried_on_others(Pool([near, wide], plan))


def shares_inside(trial: Trial) -> dict[str, float]:
    vendors = np.array([facts["vendor"] for facts in trial.pool.facts])
    inside = np.abs(trial.pool.residuals) <= trial.lengthened
    return {str(each): float(np.mean(inside[vendors == each])) for each in np.unique(vendors)}


def test_nine_of_ten_are_inside_for_every_value_of_a_fact() -> None:
    trial = two_facts(60)
    shares = shares_inside(trial)
    assert shares["near"] == pytest.approx(0.9, abs=0.02)
    assert shares["far"] == pytest.approx(0.9, abs=0.02)
    assert trial.factor_of({"vendor": "far"}) > 3 * trial.factor_of({"vendor": "near"})


def test_values_with_few_residuals_only_lengthen() -> None:
    assert shares_inside(two_facts(3))["far"] >= 0.88
    near = drawn("a system", 10, 60, 0.2, 0.0, standing="measured", vendor="far")
    few = drawn("a system", 3, 6, 0.01, 0.0, 5000, standing="measured", vendor="near")
    few = few._replace(parts=tuple(f"x{each}" for each in few.parts))
    plan = Plan((("standing",), ()), beside=("vendor",), least=0.0)
    assert tried_on_others(Pool([near, few], plan)).factors["vendor", "near", False] == 1.0


def test_a_group_of_its_own_is_not_widened_by_what_others_lacked() -> None:
    """Left out together, most rows of a value are judged by others; its own group knows better."""
    near = drawn("a system", 10, 60, 0.05, 0.0, standing="measured", size="small")
    most = drawn("a system", 1, 60, 0.25, 0.0, 5000, standing="measured", size="large")
    rest = drawn("a system", 1, 30, 0.25, 0.0, 6000, standing="measured", size="large")
    tried = [near, most._replace(parts=("x",) * 60), rest._replace(parts=("y",) * 30)]
    factors = tried_on_others(Pool(tried, PLAN)).factors
    assert factors["size", "large", False] > 2.5
    assert factors["size", "large", True] < 1.5


def test_a_doubling_adds_what_larger_runs_need() -> None:
    usual = drawn("a model", 20, 40, 0.05, 0.0, standing="measured", size="small")
    larger = []
    for part in range(12):
        dice, doublings = np.random.default_rng(part), np.repeat([1.0, 2.0, 4.0], 20)
        residuals = dice.normal(0, 0.05, 60) + 0.1 * doublings * dice.choice([-1, 1], 60)
        rows = 10_000 + np.arange(60)
        facts = ({"standing": "measured", "size": "small"},) * 60
        larger.append(Tried("larger", rows, (str(part),) * 60, residuals, facts, doublings))
    trial = tried_on_others(Pool([usual], PLAN), larger)
    assert 0.05 < trial.per_doubling[""] < 0.15
    sizes = np.abs(np.concatenate([each.residuals for each in larger]))
    assert np.mean(sizes <= trial.reach_beyond) < 0.6
    assert np.mean(sizes <= trial.widened_beyond) >= 0.88


def test_small_groups_do_not_count() -> None:
    many = drawn("a system", 4, 30, 0.1, 0.0, standing="measured", size="small")
    few = drawn("a system", 1, 20, 0.1, 0.0, 500, standing="measured", size="large")
    found = list(groups(tried_on_others(Pool([many, few], PLAN))))
    assert {each.key.get("size") for each in found} == {"small", None}


@pytest.mark.parametrize("kind", VALIDATED)
def test_every_kind_has_its_groups(kind: str) -> None:
    content = dict(catalog.contents("errors"))[kind]
    assert content["levels"][-1] == []
    assert [list(level) for level in intervals.PLANS[kind].levels] == content["levels"]
    for each in content["group"]:
        assert list(each["key"]) in content["levels"]
        assert each["low"] < 0 < each["high"] < 4
        assert each["rows"] > 0
        assert each["parts"] > 0
    assert residuals_like(kind).rows == max(each["rows"] for each in content["group"])


def test_the_finest_group_is_found() -> None:
    known = {"standing": MEASURED, "phase": "decode", "context": "<=1024 tokens"}
    fine = residuals_like("attention", **known)
    coarse = residuals_like("attention", **known | {"context": "unheard of"})
    assert fine.rows < coarse.rows < residuals_like("attention").rows
    assert "this GPU's own fit, decode, <=1024 tokens" in fine.like
    assert residuals_like("attention", unknown="fact") == residuals_like("attention")
    with pytest.raises(UnknownNameError, match="astrology"):
        residuals_like("astrology")


@pytest.mark.parametrize("kind", ["gemm", "attention", "layers", "decode", "elementwise"])
def test_what_nobody_measured_has_wider_intervals(kind: str) -> None:
    reach = [
        residuals_like(kind, standing=each).high
        for each in (MEASURED, SAME_ARCHITECTURE, OTHER_ARCHITECTURE)
    ]
    assert reach[0] < reach[1]
    assert reach[0] <= reach[2]  # nine of ten may be as far off where few rows were measured


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("system", ["h100_sxm", "h200_sxm", "a10g"])
def test_intervals_of_collectives_on_arrays_and_numbers(system: str, collective: str) -> None:
    sizes = np.array([2.0**10, 2.0**16, 2.0**17, 2.0**24, 2.0**30])
    many = collective_time(collective, sizes, system, gpus=4)
    found = interval_of(many)
    for i, size in enumerate(sizes):
        one = collective_time(collective, size, system, gpus=4)
        alone = interval_of(one)
        assert alone.low_s == pytest.approx(found.low_s[i])
        assert alone.high_s == pytest.approx(found.high_s[i])
        assert alone.low_s < one.time_s < alone.high_s
        assert alone.rows >= found.rows
        assert alone.like in found.like


def test_systems_that_inherit_are_told_apart() -> None:
    def standing(system: str) -> str:
        return facts_of(collective_time("all_reduce", 1e6, system, gpus=4))["standing"]

    assert standing("h100_sxm") == MEASURED
    assert standing("h200_sxm") == SAME_ARCHITECTURE
    assert standing("h20_sxm") == SAME_ARCHITECTURE
    assert standing("a10g") == OTHER_ARCHITECTURE
    tuned = collective_time("all_reduce", 1e6, "h100_sxm", gpus=8, library="nccl-tuner")
    assert facts_of(tuned)["standing"] == OTHER_ARCHITECTURE


def test_networks_and_counts_that_were_not_measured_are_told_apart() -> None:
    def facts(gpus: int, network: str | None = None) -> dict[str, str]:
        return facts_of(collective_time("all_reduce", 1e6, "h100_sxm", gpus, network=network))

    assert facts(8)["span"] == "one domain"
    assert facts(16, network="ib_8x400g")["span"] == "across nodes"
    assert facts(16, network="roce_8x200g")["span"] == "across nodes, network not measured"
    assert facts(8)["fit"] == "within the fit"
    assert facts(1024, network="ib_8x400g")["fit"] == "beyond the fit"
    few = collective_time("all_reduce", 1e6, "gb200_nvl72", gpus=4)
    assert facts_of(few)["fit"] == "a fit of few rows"


def test_a_profile_of_ones_own_says_how_far_it_is_off() -> None:
    usual = CATALOG_LIBRARIES.library(Cluster.named("h100_sxm"), "nccl")
    own = replace(usual, fit=replace(usual.fit, low_pct=-5.0, high_pct=10.0))
    result = collective_time("all_reduce", 2.0**20, machine_of("h100_sxm").with_own(own), gpus=8)
    found = interval_of(result)
    assert found.low_s == pytest.approx(0.95 * result.time_s)
    assert found.high_s == pytest.approx(1.10 * result.time_s)
    assert found.rows == usual.fit.rows
    assert "your own" in found.like


def test_a_profile_does_not_speak_of_what_it_has_no_rows_of() -> None:
    usual = CATALOG_LIBRARIES.library(Cluster.named("h100_sxm"), "nccl")
    fit = replace(
        usual.fit, rows=6, least_bytes=2**20, most_bytes=2**24, low_pct=-1.0, high_pct=1.0,
        least_gpus=8, most_gpus=8, collectives=("all_reduce",),
    )  # fmt: skip
    own = replace(usual, fit=fit)

    def reach(collective: str, size: object, gpus: int = 8) -> object:
        result = collective_time(collective, size, machine_of("h100_sxm").with_own(own), gpus)
        return interval_of(result).high_s / result.time_s

    near = pytest.approx(1.01)
    assert reach("all_reduce", 2.0**22) == near
    assert reach("all_reduce", np.array([2.0**22, 2.0**23])) == near
    beyond = [("all_gather", 2.0**22, 8), ("all_reduce", 2.0**22, 4), ("all_reduce", 2.0**30, 8)]
    for collective, size, gpus in beyond:
        assert reach(collective, size, gpus) > 1.05  # type: ignore[operator]
    mixed = np.asarray(reach("all_reduce", np.array([2.0**10, 2.0**22, 2.0**30])))
    assert mixed[1] == near
    assert min(mixed[0], mixed[2]) > 1.05


def test_intervals_of_estimates() -> None:
    model, cluster = Model.named("llama3-8b"), Cluster.named("h100_sxm", "ib_8x400g")
    works = {
        "training": Train(global_batch=64, sequence_length=4096),
        "TTFT": Prefill(batch=1, prompt_tokens=1024),
        "TPOT": Decode(batch=8, context_tokens=1024),
    }
    for words, work in works.items():
        dp = 2 if isinstance(work, Train) else 1
        found = estimated(model, cluster, Layout(tp=8, dp=dp), work)
        known = of_runs.interval_of(found)
        like = of_runs.residuals_of(found)
        assert known.low_s < found.time_s < known.high_s
        assert known.high_s == pytest.approx(found.time_s * exp(like.high))
        assert known.rows == like.rows > 0
        assert words in known.like or "across nodes" in known.like


def test_training_across_nodes_and_with_experts_is_told_apart() -> None:
    machine = machine_of(Cluster.named("h100_sxm", "ib_8x400g"))
    dense, sparse = Model.named("llama3-8b"), Model.named("mixtral-8x7b")
    one, many = (
        of_runs.facts_of_training(machine, "megatron_core", Layout(tp=8, dp=dp), "bf16", dense)
        for dp in (1, 4)
    )
    assert (one["span"], many["span"]) == ("one domain", "across nodes")
    other = of_runs.facts_of_training(machine, "megatron_core", Layout(tp=8), "bf16", sparse)
    assert (one["layers"], other["layers"]) == ("dense model", "mixture of experts")
    assert one["standing"] == MEASURED
    assert of_runs.kernel_standing(Cluster.named("b300_sxm"), "bf16") == SAME_ARCHITECTURE
    assert of_runs.kernel_standing(Cluster.named("l40s"), "bf16") == OTHER_ARCHITECTURE


def test_a_machine_without_measurements_of_its_own_inherits() -> None:
    own = machine_of("h100_sxm")
    hidden = machine_of("h100_sxm", fitted=CATALOG.without("h100_sxm"))
    assert own.kernels.section("gemm", "bf16").inherited_from is None
    assert hidden.kernels.section("gemm", "bf16").inherited_from == "h200_sxm"
    result = collective_time("all_reduce", 2.0**20, hidden, gpus=8)
    assert result.calibrations[0].inherited_from
    assert facts_of(result)["standing"] != MEASURED
    assert not collective_time("all_reduce", 2.0**20, own, gpus=8).calibrations[0].inherited_from


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def assert_interval(found: dict[str, object]) -> None:
    assert found["low_s"] < found["time_s"] < found["high_s"]  # type: ignore[operator]
    about = found["interval"]
    assert isinstance(about, dict)
    assert about["confidence_pct"] == 90
    assert about["rows"] > 0
    assert about["like"]


def test_commands_show_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("collective", "all_reduce", "--size", "64MiB", "--gpus", "8", "--on", "h100_sxm")
    assert_interval(run_json(capsys, *asked))
    assert main(list(asked)) == 0
    out = capsys.readouterr().out
    assert "interval" in out
    assert "90 %, from " in out
    run = ("estimate", "llama3-8b", "--on", "h100_sxm", "--gpus", "8", "--tp", "8", "--prefill",
           "--batch", "1", "--prompt-tokens", "2048")  # fmt: skip
    assert_interval(run_json(capsys, *run))
    assert main(list(run)) == 0
    out = capsys.readouterr().out
    assert "interval" in out
    assert max(map(len, out.splitlines())) <= 80


def test_sweeps_have_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("collective", "all_reduce", "--sweep", "1KiB:64MiB", "--gpus", "8", "--on", "h100_sxm")
    found = run_json(capsys, *asked)
    rows = found["rows"]
    assert isinstance(rows, list)
    assert all(row["low_s"] < row["time_s"] < row["high_s"] for row in rows)
    assert found["interval"]["confidence_pct"] == 90  # type: ignore[index]


def test_plans_have_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("plan", "llama3-8b", "--on", "h100_sxm", "--gpus", "8", "--decode", "--batch", "16",
             "--context-tokens", "1024")  # fmt: skip
    best = run_json(capsys, *asked)["best"]
    assert isinstance(best, list)
    for each in best:
        assert_interval(each)
    assert main(list(asked)) == 0
    out = capsys.readouterr().out
    assert "interval" in out
    assert max(map(len, out.splitlines())) <= 80


HEAD = "gpu,dtype,m,n,k,time_us"


@pytest.fixture
def products(tmp_path: Path) -> Path:
    right_us = 1e6 * gemm_time_s(machine_of("h100_sxm").kernels, "bf16", 64, 8192, 8192)
    rows = (f"h100_sxm,bf16,64,8192,8192,{right_us:.3f}", "h100_sxm,bf16,1,8192,8192,1e6")
    path = tmp_path / "products.csv"
    path.write_text("\n".join([HEAD, *rows, "abacus,bf16,1,1,1,1", ""]))
    return path


def test_predictions_of_rows_have_both_ends(products: Path, tmp_path: Path) -> None:
    target = tmp_path / "predicted.csv"
    assert main(["validate", str(products), "--predictions", str(target)]) == 0
    lines = list(csv.DictReader(target.read_text().splitlines()))
    for line in lines[:2]:
        assert float(line["low"]) < float(line["predicted"]) < float(line["high"])
    assert (lines[2]["low"], lines[2]["high"]) == ("", "")


def test_rows_inside_are_counted(products: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = run_json(capsys, "validate", str(products), "--by", "m")["tables"]
    assert isinstance(tables, list)
    (found,) = tables
    assert found["overall"]["coverage_pct"] == 50
    assert [each["coverage_pct"] for each in found["groups"]] == [0, 100]


def measured(evidence: Path, kind: str) -> Table:
    return read_table(evidence / "measured" / f"{kind}.csv")


@pytest.mark.parametrize("kind", ["layers", "layer_ops", "memory", "overlap"])
def test_measured_rows_left_out_are_inside_as_the_page_says(evidence: Path, kind: str) -> None:
    pytest.importorskip("scipy")
    trial = intervals.trial_of(kind, left_out(measured(evidence, kind)))
    overall, *parts = intervals.coverage_of(kind, trial)
    assert overall.of == "all"
    assert 85 <= overall.inside_pct <= 95
    assert all(0 < each.rows <= overall.rows for each in parts)
    _, _, *lines = intervals.as_lines([overall, *parts])
    assert "\n".join(lines) in PAGE.read_text()


def test_the_page_is_right_about_products_that_others_measured(evidence: Path) -> None:
    theirs = measured(evidence, "layer_ops").where(
        lambda row: row["dataset"] == "vidur_compute" and layer_ops.kind(row) == "gemm"
    )
    median_pct = validate(theirs).overall.median_pct
    assert f"that Vidur measured are {median_pct:.0f} % (median)" in PAGE.read_text()


@pytest.mark.refit
def test_the_page_is_right_about_machines_that_are_not_inside(evidence: Path) -> None:
    pytest.importorskip("scipy")
    wanted = {"cluster": "l40s", "library": "nccl"}
    table = measured(evidence, "collectives").where(lambda row: wanted.items() <= row.items())
    eight = next(
        each for each in left_out(table) if set(each.parts) == {"l40s nccl 8"} and each.rows.size
    )
    ends = [residuals_like("collectives", **facts) for facts in eight.facts]
    inside = [a.low <= b <= a.high for a, b in zip(ends, eight.residuals, strict=True)]
    told = f"eight L40S over PCIe, predicted from two and four, {100 * np.mean(inside):.0f} % are"
    assert told in " ".join(PAGE.read_text().split())


def test_rows_without_a_residual_are_counted(evidence: Path) -> None:
    said: list[str] = []
    table = measured(evidence, "layer_ops")
    tried = left_out(table, said.append)
    known = {int(row) for each in tried for row in each.rows}
    assert 0 < len(known) < table.rows
    count = f"{table.rows - len(known):,} of {table.rows:,} rows"
    assert said[-1].startswith(f"layer_ops: {count} have no residual")


def test_missing_tables_of_kernels_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands in for kernels that nobody measured is lengthened by all kinds of kernels."""
    intervals.main([str(ROWS / "layers.csv"), "--output", str(tmp_path)])
    shown = capsys.readouterr()
    absent = "attention, decode, experts, gemm, layer_ops, linear_attention"
    assert f"rest on all kernels but {absent}\n" in shown.err
    assert shown.out.startswith("| table |")
    assert [path.name for path in tmp_path.iterdir()] == ["layers.toml"]


def test_the_catalog_has_what_the_command_writes(evidence: Path) -> None:
    table = measured(evidence, "memory")
    trial = intervals.trial_of("memory", left_out(table))
    text = intervals.as_toml("memory", trial, {}, table.columns["dataset"])
    assert tomllib.loads(text) == tomllib.loads((intervals.FOLDER / "memory.toml").read_text())


def test_coverage_is_shown_as_a_table() -> None:
    pool = Pool([drawn("a system", 10, 60, 0.1, 0.1, standing="measured", size="small")], PLAN)
    found = list(intervals.coverage_of("gemm", tried_on_others(pool)))
    assert [each.of for each in found] == ["all", "a system"]
    assert found[0].inside_pct == pytest.approx(90, abs=2)
    head, _, *lines = intervals.as_lines(found)
    assert head.count("|") == lines[0].count("|") == lines[1].count("|")


def test_bands_cover_every_size() -> None:
    assert list(BANDS.values()) == sorted(BANDS.values())
    assert np.isinf(list(BANDS.values())[-1])


@pytest.mark.parametrize(
    "work",
    [
        Train(global_batch=64, sequence_length=4096),
        Prefill(batch=2, prompt_tokens=8192),
        Decode(batch=64, context_tokens=4096),
    ],
    ids=lambda work: work.phase,
)
def test_every_figure_of_an_estimate_lies_in_its_interval(work: Workload) -> None:
    found = estimated("llama3-8b", "h100_sxm", Layout(tp=4, dp=2), work)
    known = of_runs.ranges_of(found)
    for name, each in known.items():
        assert each.low < getattr(found, name) < each.high, name
        assert each.rows > 0
        assert each.like
    whole = of_runs.interval_of(found)
    assert (known["time_s"].low, known["time_s"].high) == (whole.low_s, whole.high_s)
    assert known["tokens_per_s"].low == pytest.approx(work.tokens / whole.high_s)
    assert ("ttft_s" in known, "tpot_s" in known) == (
        work.phase == "prefill",
        work.phase == "decode",
    )


def test_a_share_of_communication_is_at_most_one() -> None:
    found = estimated("llama3-8b", "l40s", Layout(tp=8), Prefill(batch=1, prompt_tokens=8192))
    assert found.comm_share > 0.75
    assert of_runs.ranges_of(found)["comm_share"].high == 1.0


def test_intervals_widen_with_distance_and_say_so() -> None:
    cluster = Cluster.named("h100_sxm", "ib_8x400g")

    def known(dp: int) -> Interval:
        work = Train(global_batch=8 * dp, sequence_length=4096)
        return estimated("llama3-8b", cluster, Layout(tp=8, dp=dp, zero=1), work).interval

    near, far = known(16), known(2**14)
    assert near.distance == ""
    assert "times the GPUs of the largest similar measurement" in far.distance
    assert far.high_s / far.low_s > 1.2 * near.high_s / near.low_s
    reach = [
        collective_time("all_reduce", 2.0**30, "h100_sxm", gpus, network="ib_8x400g").interval
        for gpus in (512, 4096)
    ]
    assert all("largest similar measurement" in each.distance for each in reach)
    assert reach[0].high_s / reach[0].low_s < reach[1].high_s / reach[1].low_s


def test_many_layouts_have_the_distance_of_each() -> None:
    cluster = Cluster.named("h100_sxm", "ib_8x400g")
    degrees = np.array([16, 2**14])
    train = Train(global_batch=2**17, sequence_length=4096)
    many = estimated("llama3-8b", cluster, Layout(tp=8, dp=degrees), train).interval
    for place, dp in enumerate(degrees):
        alone = estimated("llama3-8b", cluster, Layout(tp=8, dp=int(dp)), train).interval
        assert many.high_s[place] == pytest.approx(alone.high_s)


def test_no_interval_begins_below_the_datasheet() -> None:
    sent = collective_time("all_to_all", 2.0**30, "h100_sxm", 64, network="ib_8x400g")
    assert sent.interval.low_s >= sent.bound_s
    decode = Decode(batch=1, context_tokens=128)
    for system, model in (("h100_sxm", "llama3-8b"), ("mi300x", "llama3-70b")):
        found = estimated(model, system, Layout(), decode)
        weights_s = found.model.parameters * 2 / found.cluster.device.memory_bytes_per_s
        assert of_runs.bound_s(found) == pytest.approx(weights_s, rel=0.12)
        assert found.interval.low_s >= of_runs.bound_s(found) * (1 - 1e-12)
    prompt = estimated("llama3-8b", "h100_sxm", Layout(), Prefill(batch=8, prompt_tokens=4096))
    assert of_runs.ranges_of(prompt)["mfu"].high <= 1


def test_vendors_with_few_rows_are_not_narrower() -> None:
    def width(system: str) -> float:
        train = Train(global_batch=64, sequence_length=4096)
        found = estimated("llama3-8b", system, Layout(tp=8), train).interval
        return float(found.high_s / found.low_s)

    assert width("mi300x") > 0.99 * width("h100_sxm")
    assert width("gaudi2") > 1.2 * width("h100_sxm")


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("kind", ["training", "inference", "serving", "collectives"])
def test_inherited_constants_never_shorten(kind: str, grouped: bool) -> None:
    factors = {
        each["value"]: each["times"]
        for each in dict(catalog.contents("errors"))[kind]["factor"]
        if each["fact"] == "standing" and each["grouped"] is grouped
    }
    own = factors.get(MEASURED, 1.0)
    assert all(factors.get(each, 1.0) >= own for each in (SAME_ARCHITECTURE, OTHER_ARCHITECTURE))


def with_own_gemms(machine: Machine, p90_pct: float, **of_device: Any) -> Machine:
    """Return a machine with GEMMs of a profile that states an error."""
    own = machine.kernels.gemm("bf16")
    own = own._replace(fit=own.fit._replace(p90_pct=p90_pct), inherited_from=None)
    like = replace(machine.kernels.like, **of_device)
    kernels = replace(machine.kernels, sections={("gemm", "bf16"): own}, like=like)
    return replace(machine, kernels=kernels)


def test_no_interval_is_narrower_than_the_left_out_errors_of_a_profile_s_kernels() -> None:
    """By each kernel's share of the time; small errors change nothing."""
    work, layout = Decode(batch=8, context_tokens=1024), Layout()
    usual = estimated("llama3-8b", "h200_sxm", layout, work)
    good, poor = (with_own_gemms(usual.machine, each) for each in (1.0, 80.0))
    found = estimated("llama3-8b", good, layout, work)
    assert found.time_s == usual.time_s
    assert of_runs.residuals_of(found) == of_runs.residuals_of(usual)
    gemms = sum(each.exposed_s for each in usual.entries if isinstance(each.op, Gemm))
    share = gemms / usual.time_s
    assert 0.5 < share < 1
    wide = of_runs.residuals_of(estimated("llama3-8b", poor, layout, work))
    assert np.exp(wide.high) == pytest.approx(1 + 0.8 * share)
    assert wide.low == -wide.high
    assert wide.distance.endswith("the profile's own kernels")
    many = estimated("llama3-8b", poor, Layout(tp=np.array([1, 2, 4])), work)
    assert np.shape(of_runs.residuals_of(many).high) == (3,)


def test_own_kernels_of_an_architecture_without_runs_are_no_own_fit() -> None:
    machine = machine_of("h200_sxm")
    assert of_runs.kernel_standing(with_own_gemms(machine, 1.0), "bf16") == MEASURED
    cpu = with_own_gemms(machine, 1.0, architecture="cpu")
    assert of_runs.kernel_standing(cpu, "bf16") == OTHER_ARCHITECTURE
