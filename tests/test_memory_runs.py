"""Megatron-LM's functional tests: what their last rank held at its peak and between steps."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from running import run_text

from lab import intervals, refit_memory
from lab.left_out import left_out
from shardcost.errors import ShardcostError
from shardcost.formats.tables import Table, read_table
from shardcost.memory import Footprint
from shardcost.memory.policy import policy_named
from shardcost.validate import memory_runs
from shardcost.validate.validation import validate

MIB = 2**20
ROW = {
    "gpu": "a100_sxm",
    "layers": "12",
    "hidden": "512",
    "ffn": "2048",
    "heads": "8",
    "kv_heads": "8",
    "head_dim": "64",
    "gated": "0",
    "bias": "1",
    "norm": "layer",
    "seq": "1024",
    "mbs": "4",
    "gbs": "32",
    "dp": "2",
    "pp": "4",
    "tp": "1",
    "vocab_padded": "50304",
    "tied": "1",
    "main_grad_dtype": "fp32",
    "dist_optimizer": "0",
    "dropout": "0.1",
    "deterministic": "1",
    "implementation": "transformer_engine",
    "attention": "unfused",
    "mask_in_dataloader": "1",
    "peak_bytes": "2685510144",
    "allocated_bytes": "718931456",
}


def held(**changed: str) -> Footprint:
    return memory_runs.footprint_of(ROW | changed)


@pytest.fixture(scope="module")
def table(measured: Callable[[str], Path]) -> Table:
    return read_table(measured("memory_runs"))


def test_the_tensors_of_one_run() -> None:
    """Three layers and the head's copy; scores and masks of unfused attention with dropout."""
    tokens, hidden, vocab = 4096, 512, 50304
    layer = 12 * hidden**2 + 13 * hidden
    weights = 3 * layer + 2 * hidden + vocab * hidden
    found = held()
    assert found.weights + found.gradients + found.optimizer == 18 * weights
    scores = 5 * 8 * tokens * 1024
    edges = 2 * 2 * tokens * hidden + tokens * 1024
    assert found.activations == 3 * (34 * tokens * hidden + scores) + edges
    assert found.logits == 6 * tokens * vocab
    own = 2 * 32 * MIB + 4 * MIB + 3 * 2 * tokens * hidden
    assert found.between_steps == 18 * weights + own
    assert found.total - found.framework == pytest.approx(2685510144, rel=0.01)
    assert found.between_steps == pytest.approx(718931456, rel=0.01)


def test_workspaces_are_those_that_libraries_state() -> None:
    base = held().between_steps
    assert held(gpu="h100_sxm").between_steps - base == 28 * MIB
    free = {"deterministic": "0"}
    assert base - held(**free).between_steps == 2 * (32 * MIB - 8519680)
    assert held(gpu="h100_sxm", **free).between_steps == held(gpu="h100_sxm").between_steps
    assert held(gpu="gb200_nvl72", **free).between_steps < held(gpu="gb200_nvl72").between_steps
    local = held(implementation="local").between_steps
    assert local - base == 2 * 8 * 4096 * 1024 - 4 * MIB  # a buffer of scores, no workspace


def test_fp16_runs_copy_their_gradients() -> None:
    wide = held(dtype="bf16")
    half = held(dtype="fp16", main_grad_dtype="fp16")
    weights = wide.weights / 2
    assert half.between_steps - wide.between_steps == 2 * weights
    assert wide.total - half.total == pytest.approx(2 * weights)


@pytest.mark.parametrize(
    ("changed", "layers"),
    [
        ({}, "ttt"),
        ({"pp": "1"}, "t" * 12),
        ({"vp": "3"}, "ttt"),
        ({"layers_first_stage": "2", "layers_last_stage": "2"}, "tt"),
        ({"layers_first_stage": "3"}, "ttt"),
        ({"layers": "10", "embedding_in_split": "1", "loss_in_split": "1"}, "tt"),
        ({"experts": "8", "moe_layer_freq": "([0]*10+[1]*2)"}, "tee"),
        ({"experts": "8", "moe_layer_freq": "2"}, "tet"),
        ({"layers": "7", "pp": "2", "vp": "2", "pp_layout": "Et|(tt|)*2ttmL"}, "ttttt"),
        ({"pp": "1", "layer_pattern": "MEM*E/*E"}, "MEM*E*E"),
    ],
)
def test_layers_of_the_last_rank(changed: dict[str, str], layers: str) -> None:
    assert memory_runs.layers_of_last_rank(ROW | changed) == layers


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer": "muon"},
        {"moe_latent": "256"},
        {"fsdp": "some"},
        {"dist_optimizer": "2"},
        {"dropout": "much"},
        {"loss_fusion": "other"},
        {"activation_offload": "everything"},
        {"pp_layout": "Et|L"},
        {"pp_layout": "t" * 2000},
        {"mtp_layers": "999999999"},
        {"layer_pattern": "XYZ", "pp": "1"},
        {"layers": "11"},
        {"gpu": "abacus"},
        {"recompute": "sometimes"},
        {"pp": "0"},
        {"measured_rank": "first"},
        {"vp": "0"},
        {"experts": "8"},
        {"experts": "8", "moe_layer_freq": "²"},
        {"layers_last_stage": "99"},
        {"positions": "learned_absolute"},
        {"dist_optimizer_instances": "99", "dist_optimizer": "1"},
    ],
)
def test_rows_that_cannot_be_are_named(changed: dict[str, str]) -> None:
    with pytest.raises(ShardcostError):
        memory_runs.footprint_of(ROW | changed)


def test_switches_change_what_is_kept() -> None:
    full = held(recompute="full")
    assert full.activations < held(recompute="selective").activations < held().activations
    some = held(recompute="full", recompute_method="block", recompute_layers="1")
    assert full.activations < some.activations < held().activations
    assert held(optimizer_offload="0.5").optimizer == held().optimizer / 2
    names = {"test_case": "gpt3_tp2_cross_entropy_loss_fusion"}
    assert held(**names).logits == held(loss_fusion="native").logits == held().logits * 10 / 6
    assert held(dist_optimizer="1").optimizer == held().optimizer / 2
    assert held(attention="", tag="lts", recorded="2025-03-25").activations == held().activations
    assert held(attention="", tag="lts", recorded="2026-03-25").activations < held().activations


def test_a_table_of_runs_shows_both_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(ROW)}\n{','.join(ROW.values())}\n")
    text = " ".join(run_text(capsys, "validate", str(path)).split())
    assert "1 rows, 1 predicted, 0 skipped" in text
    assert "Allocated between steps: of 1 rows" in text


def test_targets(table: Table) -> None:
    found = validate(table, by=["family"])
    assert sum(found.skipped.values()) <= 0.03 * table.rows
    assert set(found.skipped) == {"optimizer unknown: 'muon'"}
    assert found.overall.median_pct is not None
    assert found.overall.median_pct < 1
    assert found.overall.p90_pct is not None
    assert found.overall.p90_pct < 4
    between = found.extra["allocated_bytes"]
    assert between["median_pct"] < 1
    assert between["p90_pct"] < 5
    assert found.overall.coverage_pct is not None
    assert found.overall.coverage_pct > 88


def test_constants_are_those_of_the_fit_and_hold_for_families_left_out(table: Table) -> None:
    trials = refit_memory.Trials.of(table)
    policy = policy_named(refit_memory.FRAMEWORK)
    own = refit_memory.Constants(policy.stage_buffers, policy.peak_imbalance)
    assert refit_memory.constants(trials) == own
    families = np.array(refit_memory.runs_of(table).columns["test_family"])
    peak, between = trials.errors(*trials.left_out(families))
    assert peak.median_pct is not None
    assert peak.median_pct < 4
    assert peak.p90_pct is not None
    assert peak.p90_pct < 10
    assert between.median_pct is not None
    assert between.median_pct < 5
    assert between.p90_pct is not None
    assert between.p90_pct < 12


def test_the_catalog_has_the_residuals_of_rows_left_out(table: Table) -> None:
    trial = intervals.trial_of("memory_runs", left_out(table, lambda _: None))
    text = intervals.as_toml("memory_runs", trial, {}, table.columns["dataset"])
    path = intervals.FOLDER / "memory_runs.toml"
    assert tomllib.loads(text) == tomllib.loads(path.read_text())


def test_a_policy_of_ones_own() -> None:
    policy = replace(policy_named("megatron_core"), logit_bytes=12.0)
    assert memory_runs.footprint_of(ROW, policy).logits == 2 * held().logits
