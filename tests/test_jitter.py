"""Jitter: the slowest of many nodes, the scatter of steps, delays of all-reduces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardcost import Cluster, Decode, Layout, Train, estimate
from shardcost.estimate.result import STRAGGLERS
from shardcost.estimate.why import why
from shardcost.formats.tables import read_table
from shardcost.jitter import over_median, slowest_of, tail_of_all_reduce
from shardcost.machine import machine_of
from shardcost.machine.constants import catalog_jitter
from shardcost.software import Software
from shardcost.validate.validation import errors_pct, validate

MACHINE = machine_of(Cluster.named("h100_sxm", "ib_8x400g"), Software.named("megatron_core"))
WORK = Train(global_batch=128, sequence_length=4096)


def test_the_slowest_of_normal_times_is_what_sampling_shows() -> None:
    drawn = np.random.default_rng(1).normal(1.0, 0.02, (2000, 256))
    sampled = drawn.max(axis=1).mean()
    assert sampled < slowest_of(256 * 8, 8, 0.02) < 1 + 1.3 * (sampled - 1)


def test_the_slowest_of_heavy_tailed_delays_grows_by_a_power() -> None:
    drawn = np.random.default_rng(1).pareto(1.76, (20_000, 16))
    p99_of_4, p99_of_16 = (np.quantile(drawn[:, :n].max(axis=1), 0.99) for n in (4, 16))
    few, many = (tail_of_all_reduce(0, n, 0.1, 1.76, 1e7) - 1 for n in (4, 16))
    assert many / few == pytest.approx(p99_of_16 / p99_of_4, rel=0.15)


@pytest.mark.parametrize("percent", [90, 99])
def test_percentiles_are_those_of_a_normal_distribution(percent: int) -> None:
    drawn = np.random.default_rng(2).normal(1.0, 0.01, 400_000)
    assert over_median(percent, 0.01) == pytest.approx(np.percentile(drawn, percent), abs=1e-3)


def test_nothing_is_waited_for_on_one_node() -> None:
    result = estimate("llama3-8b", MACHINE, Layout(tp=8), replace(WORK, global_batch=8))
    assert result.parts_s[STRAGGLERS] == 0


def test_waiting_is_a_part_of_the_step_that_grows_with_nodes() -> None:
    shares = []
    for dp in (2, 8, 16):
        result = estimate(
            "llama3-8b", MACHINE, Layout(tp=8, dp=dp), replace(WORK, global_batch=dp * 8)
        )
        assert sum(result.parts_s.values()) == pytest.approx(result.time_s)
        assert result.timeline().step_s == pytest.approx(result.time_s, rel=5e-3)
        shares.append(result.parts_s[STRAGGLERS] / result.time_s)
    assert 0 < shares[0] < shares[1] < shares[2]


def test_a_machine_without_spread_does_not_wait() -> None:
    even = replace(MACHINE, jitter=replace(catalog_jitter(), node_spread=1e-12))
    layout = Layout(tp=8, dp=16)
    apart, together = (estimate("llama3-8b", each, layout, WORK) for each in (MACHINE, even))
    assert together.time_s < apart.time_s
    wait_s = apart.parts_s[STRAGGLERS]
    assert apart.time_s - together.time_s <= wait_s * (1 + 1e-9)


def test_arrays_of_layouts_wait_as_single_ones_do() -> None:
    degrees = np.array([1, 2, 8])
    many = estimate("llama3-8b", MACHINE, Layout(tp=8, dp=degrees), WORK)
    alone = [estimate("llama3-8b", MACHINE, Layout(tp=8, dp=int(dp)), WORK) for dp in degrees]
    assert many.parts_s[STRAGGLERS] == pytest.approx([each.parts_s[STRAGGLERS] for each in alone])
    assert many.p99_step_s == pytest.approx([each.p99_step_s for each in alone])


def test_the_wait_and_slow_steps_are_explained() -> None:
    result = estimate("llama3-8b", MACHINE, Layout(tp=8, dp=16), WORK)
    wait = why(result, f"parts.{STRAGGLERS}")
    assert wait.evaluate() == pytest.approx(result.parts_s[STRAGGLERS])
    assert any("training, by GPUs" in source for source in wait.sources)
    slow = why(result, "p99_step_s")
    assert slow.evaluate() == pytest.approx(result.p99_step_s)
    assert result.p99_step_s > result.time_s


def test_only_training_has_slow_steps() -> None:
    result = estimate("llama3-8b", "h100_sxm", Layout(tp=8), Decode(batch=8, context_tokens=512))
    assert result.p99_step_s is None
    assert STRAGGLERS not in result.parts_s


@pytest.mark.parametrize("kind", ["jitter", "jitter_steps"])
def test_measured_percentiles(kind: str, measured: Callable[[str], Path]) -> None:
    """Within 20 % of single all-reduces; within 3 points of steps: the rest are single sites."""
    wanted = {
        "jitter": {"p99_rel": (20, 0.84), "p90_rel": (10, 0.89)},
        "jitter_steps": {"p99_over_median": (3, 0.72), "p90_over_median": (3, 0.8)},
    }[kind]
    found = validate(read_table(measured(kind)))
    assert not found.skipped
    assert found.headline in wanted
    assert found.counts.rows == found.overall.rows == found.table.rows / 2
    figures = np.array(found.table.columns["figure"])
    for figure, (most_pct, share) in wanted.items():
        assert np.mean(np.abs(errors_pct(found)[figures == figure]) <= most_pct) >= share, figure
    assert (found.low >= 1).all()


def test_percentiles_of_delays_follow_from_the_tail() -> None:
    drawn = 1 + np.random.default_rng(3).pareto(1.76, 400_000)
    p90, p99 = np.quantile(drawn, (0.9, 0.99))
    one, other = (tail_of_all_reduce(0, 4, 0.1, 1.76, 1e7, percent=q) - 1 for q in (90, 99))
    assert one / other == pytest.approx(p90 / p99, rel=0.03)
