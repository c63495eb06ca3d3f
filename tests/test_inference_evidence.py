"""Whole requests: what serving adds to single passes, and how rows of measured runs are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab import refit_engines
from lab.descent import descend, loss
from shardcost import Cluster, Layout, Model
from shardcost.collectives.engine_kernels import multimem_all_reduce_s
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import Table, read_table
from shardcost.load.engine import (
    ARRIVALS,
    Engine,
    generation,
    under_load,
)
from shardcost.machine import machine_of
from shardcost.model import Attention
from shardcost.software import Software
from shardcost.validate import comm_fraction, inference

ROW = {
    "dataset": "mine",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn": "14336",
    "gated": "1",
    "vocab": "128256",
    "cluster": "h100_sxm",
    "gpu": "H100",
    "tp": "2",
    "pp": "1",
    "n_gpus": "2",
    "weight_dtype": "fp16",
    "engine": "TensorRT-LLM v1.0",
    "batching": "static",
    "batch": "4",
    "isl": "512",
    "osl": "128",
    "metric": "e2e_latency",
    "value": "1",
    "unit": "ms",
    "notes": "",
}


def engine(
    model: str = "llama3-8b", cluster: str = "h100_sxm", tp: int = 1, **choices: object
) -> Engine:
    software = replace(Software.named("trtllm"), **choices)  # type: ignore[arg-type]
    return Engine(Model.named(model), Cluster.named(cluster), Layout(tp=tp), software)


def test_one_output_token_is_a_prefill() -> None:
    served = engine()
    found = generation(served, batch=2, prompt_tokens=512, output_tokens=1)
    assert found.latency_s == pytest.approx(found.ttft_s)
    assert found.ttft_s == pytest.approx(served.prefill(2, 512).time_s)


def test_few_contexts_stand_for_every_step() -> None:
    served = engine()
    found = generation(served, batch=8, prompt_tokens=100, output_tokens=33)
    steps = served.decode(8, np.arange(100, 132)).time_s
    assert found.tpot_s == pytest.approx(steps.mean(), rel=0.01)


def test_arrays_equal_numbers() -> None:
    served = engine(tp=2)
    batches, prompts = np.array([1, 4, 64]), np.array([128, 2048, 512])
    together = generation(served, batch=batches, prompt_tokens=prompts, output_tokens=64)
    alone = [
        generation(served, batch=int(b), prompt_tokens=int(p), output_tokens=64).latency_s
        for b, p in zip(batches, prompts, strict=True)
    ]
    assert together.latency_s == pytest.approx(alone)


def test_what_memory_does_not_hold_runs_in_rounds() -> None:
    small = engine("llama2-7b", "a100_sxm_40gb")
    room = small.room(2048, 2048)
    assert 5 < room < 16
    found = generation(small, batch=4 * room, prompt_tokens=2048, output_tokens=2048)
    one = generation(small, batch=room, prompt_tokens=2048, output_tokens=2048)
    assert (found.rounds, one.rounds) == (4, 1)
    assert found.latency_s == pytest.approx(4 * one.latency_s)


def test_a_cache_in_fewer_bits_leaves_more_room() -> None:
    served = engine()
    narrow = replace(served, formats={"cache_dtype": "fp8"})
    assert narrow.room(1024, 1024) >= 2 * served.room(1024, 1024) - 1


def test_latency_grows_with_batch_and_lengths() -> None:
    base = {"batch": 4, "prompt_tokens": 256, "output_tokens": 64}
    least = generation(engine(), **base).latency_s
    for name, count in base.items():
        assert generation(engine(), **{**base, name: 4 * count}).latency_s > least


def test_sequences_and_collectives_cost_what_the_software_says() -> None:
    plain = engine(tp=2, host_per_sequence_s=1e-12, collective_wait_s=1e-12)
    busy = engine(tp=2, host_per_sequence_s=1e-4, collective_wait_s=1e-5)
    without, with_both = plain.decode(16, 1024), busy.decode(16, 1024)
    assert with_both.ledger.tensor_collectives >= 2 * 32
    extra = 16 * 1e-4 + 1e-5 * with_both.ledger.tensor_collectives
    assert with_both.time_s - without.time_s == pytest.approx(extra, rel=1e-3)


def test_drafts_cost_the_host_by_the_token() -> None:
    plain = replace(engine(), draft_tokens=2)
    software = replace(plain.software, host_per_draft_s=1e-4)
    busy = replace(plain, software=software)
    extra = busy.decode(16, 1024).time_s - plain.decode(16, 1024).time_s
    assert extra == pytest.approx(16 * 2 * 1e-4, rel=1e-3)
    assert busy.prefill(16, 64).time_s == plain.prefill(16, 64).time_s
    alone = replace(busy, draft_tokens=0).decode(16, 1024)
    assert alone.time_s == replace(plain, draft_tokens=0).decode(16, 1024).time_s


def test_one_rank_waits_for_none() -> None:
    assert engine().decode(1, 64).ledger.tensor_collectives == 0


def test_output_rate_is_little_s_law() -> None:
    found = under_load(engine(), requests=32, prompt_tokens=512, output_tokens=256)
    life = found.ttft_s + 256 * found.tpot_s
    assert found.output_tokens_per_s == pytest.approx(32 * 256 / life)


def test_more_requests_more_tokens_but_longer_between_them() -> None:
    few, many = (
        under_load(engine(), requests=n, prompt_tokens=512, output_tokens=256) for n in (4, 64)
    )
    assert many.output_tokens_per_s > few.output_tokens_per_s
    assert many.tpot_s > few.tpot_s


def test_no_more_requests_run_than_fit() -> None:
    served = engine("llama2-7b", "a100_sxm_40gb")
    found = under_load(served, prompt_tokens=2048, output_tokens=2048)
    more = under_load(served, requests=1000, prompt_tokens=2048, output_tokens=2048)
    assert found.requests == more.requests == served.room(2048, 2048)


def test_requests_sent_together_wait_longer_for_their_first_token() -> None:
    spread, together = (
        under_load(engine(), requests=64, prompt_tokens=2048, output_tokens=256, arrivals=arrivals)
        for arrivals in ARRIVALS
    )
    assert together.ttft_s > spread.ttft_s
    assert together.output_tokens_per_s == spread.output_tokens_per_s


def test_unknown_arrivals() -> None:
    with pytest.raises(UnknownNameError, match="arrivals"):
        under_load(engine(), prompt_tokens=8, output_tokens=8, arrivals="late")


@pytest.mark.parametrize(
    ("name", "dataset", "software"),
    [
        ("TensorRT-LLM v0.8", "", "trtllm_2023"),
        ("TensorRT-LLM v0.17", "", "trtllm_2025"),
        ("TensorRT-LLM", "llm_inference_bench", "trtllm_2024"),
        ("TensorRT-LLM", "", "trtllm"),
        ("trtllm 1.0.0rc3", "", "trtllm_2025"),
        ("trtllm 1.2.0rc6.post1", "", "trtllm"),
        ("vLLM", "llm_inference_bench", "vllm_2024"),
        ("vllm 0.12.0", "", "vllm_2025"),
        ("vllm 0.14.1", "", "vllm"),
        ("vLLM 0.8.5 + TokenWeave", "", "tokenweave"),
        ("vLLM 0.8.5", "", "vllm_2025"),
        ("vllm 0.6.3", "", "vllm_2024"),
        ("sglang 0.5.1.post1", "", "sglang"),
        ("FasterTransformer/NeMo", "", "fastertransformer"),
        ("Deepspeed-MII", "", "deepspeed_mii"),
        ("Megatron-LM", "", "megatron_inference"),
        ("NIM 1.8", "", "trtllm"),
        ("lmdeploy", "", "trtllm_2023"),
        ("something new", "", "vllm"),
    ],
)
def test_engines(name: str, dataset: str, software: str) -> None:
    assert inference.engine_of({"engine": name, "dataset": dataset}) == software


def test_the_catalog_knows_what_a_table_leaves_out() -> None:
    row = {**ROW, "model": "Qwen/Qwen3-32B", "layers": "64", "hidden": "5120", "heads": "64"}
    assert inference.model_of(row) == inference.known_model("qwen3-32b")


def test_a_stated_shape_beats_a_name_that_means_another() -> None:
    model = inference.model_of({**ROW, "layers": "16"})
    assert model.num_layers == 16


def test_attention_and_feed_forward_side_by_side() -> None:
    model = inference.model_of({**ROW, "model": "GPT-J 6B"})
    assert model.blocks[0].parallel


def test_a_model_without_shape_or_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="model without a shape"):
        inference.model_of({**ROW, "model": "Deci/DeciLM-7B", "layers": ""})


def test_smaller_memory_is_seen() -> None:
    row = {**ROW, "cluster": "a100_sxm", "gpu": "A100-SXM4-40GB"}
    assert inference.machine(row, 2).name == "a100_sxm_40gb"


def test_more_devices_than_a_node_are_joined() -> None:
    assert inference.machine({**ROW, "cluster": "a100_sxm"}, 32).network is not None


@pytest.mark.parametrize("metric", ["e2e_latency", "ttft", "tpot", "output_throughput_total"])
def test_figures_are_those_of_generation(metric: str) -> None:
    row = {**ROW, "metric": metric}
    case = inference.case_of(row)
    found = generation(
        Engine(*case[:4], {"dtype": case.dtype}), batch=4, prompt_tokens=512, output_tokens=128
    )
    expected = {
        "e2e_latency": 1e3 * found.latency_s,
        "ttft": 1e3 * found.ttft_s,
        "tpot": 1e3 * found.tpot_s,
        "output_throughput_total": found.output_tokens_per_s,
    }[metric]
    assert inference.figures(case, [row])[0] == pytest.approx(expected)


def test_unknown_metric() -> None:
    with pytest.raises(UnknownNameError, match="metric"):
        inference.case_of({**ROW, "metric": "joy"})


def test_descent_finds_the_least() -> None:
    found = descend(
        lambda at: abs(np.log(at["a"] / 3.0)) + abs(np.log(at["b"] / 0.02)),
        {"a": 1.0, "b": 1.0},
    )
    assert found["a"] == pytest.approx(3.0, rel=0.02)
    assert found["b"] == pytest.approx(0.02, rel=0.02)


def test_what_rows_say_nothing_of_stays_where_it_began() -> None:
    def lossy(at: dict[str, float]) -> float:
        return float(abs(np.log(at["a"] / 3.0)) - 1e-4 * np.log(at["b"]))

    start = {"a": 1.0, "b": 2.0}
    found = descend(lossy, start, pull=1e-3)
    assert found["a"] == pytest.approx(3.0, rel=0.02)
    assert found["b"] == 2.0


def test_one_wild_row_counts_no_more_than_the_limit() -> None:
    assert loss(np.array([1.0, 1e9])) == pytest.approx(0.25)


def test_every_engine_states_its_fit() -> None:
    for name, constants in refit_engines.FITTED.items():
        software = Software.named(name)
        assert software.fit is not None, name
        assert len(constants) == 2


def test_multimem_costs_the_wire_of_the_switch() -> None:
    cluster = Cluster.named("h100_sxm")
    sizes = np.array([2.0**24, 2.0**27])
    found = multimem_all_reduce_s(machine_of(cluster), 4, sizes)
    # One direction of NVLink carries the buffer once.
    assert (found > sizes / cluster.tiers[-1].bytes_per_s).all()
    assert (found < 3 * sizes / cluster.tiers[-1].bytes_per_s).all()


def test_without_a_switch_that_adds_there_is_none() -> None:
    with pytest.raises(BadValueError, match="one with"):
        multimem_all_reduce_s(machine_of("a100_sxm"), 4, 2**20)


def test_almost_all_rows_are_predicted_and_the_rest_named(evidence: Path) -> None:
    table = read_table(evidence / "measured" / "inference.csv")
    found = inference.predictions(table)
    skipped = np.isnan(found.values)
    assert skipped.mean() < 0.05
    assert all(bool(reason) == gone for reason, gone in zip(found.reasons, skipped, strict=True))
    assert (found.values[~skipped] > 0).all()


@pytest.mark.parametrize(
    ("software", "metric"),
    [
        ("deepspeed_mii", "e2e_latency"),
        ("fastertransformer", "e2e_latency"),
        ("megatron_inference", "e2e_latency"),
        ("sglang", "tpot"),
        ("tokenweave", "prefill_latency"),
        ("tokenweave", "prefill_latency_no_allreduce"),
        ("tokenweave", "prefill_latency_overlapped"),
        ("trtllm_2025", "tpot"),
        ("trtllm_2024", "e2e_latency"),
        ("vllm", "tpot"),
        ("vllm_2024", "e2e_latency"),
    ],
)
def test_half_of_each_engine_s_rows_are_within_15_pct(
    evidence: Path, software: str, metric: str
) -> None:
    table = read_table(evidence / "measured" / "inference.csv").where(
        lambda row: row["metric"] == metric and inference.engine_of(row) == software
    )
    measured = np.array([float(value) for value in table.columns["value"]])
    errors = np.abs(inference.predictions(table).values / measured - 1)
    assert np.nanmedian(errors) < 0.15


def test_engines_under_load_reach_their_throughput(evidence: Path) -> None:
    table = read_table(evidence / "measured" / "inference.csv").where(
        lambda row: row["batching"].endswith("max load") and row["cluster"] != "l40s"
    )
    measured = np.array([float(value) for value in table.columns["value"]])
    errors = np.abs(inference.predictions(table).values / measured - 1)
    assert np.nanmedian(errors) < 0.15


def test_communication_s_share_of_a_prefill_is_within_5_points(evidence: Path) -> None:
    table = read_table(evidence / "measured" / "comm_fraction.csv").where(
        lambda row: row["phase"] == "prefill" and row["model"].startswith("Llama-3.3-70B")
    )
    measured = np.array([float(value) for value in table.columns["comm_fraction_pct"]])
    assert len(measured) == 9
    off = comm_fraction.predictions(table).values - measured
    assert np.abs(off[:7]).max() < 5
    assert np.abs(off).max() < 6


def test_runs_whose_batch_nobody_stated_are_refused(evidence: Path) -> None:
    table = read_table(evidence / "measured" / "comm_fraction.csv").where(
        lambda row: row["phase"].startswith("training")
    )
    found = comm_fraction.predictions(table)
    assert np.isnan(found.values).all()
    assert set(found.reasons) == {"phase must be of a run whose batch and sequence are stated"}


def test_half_the_tokens_hide_the_all_reduces_of_the_other_half() -> None:
    served = Engine(
        Model.named("llama3-70b"),
        Cluster.named("h100_sxm"),
        Layout(tp=4),
        Software.named("tokenweave"),
    )
    whole, without, hidden = (
        inference.prefill_s(served, metric, 8192)
        for metric in ("prefill_latency", "no_allreduce", "overlapped")
    )
    assert without <= hidden < whole


def test_only_the_first_mistral_has_a_window() -> None:
    row = {**ROW, "vocab": "32000", "model": "Mistral 7B"}
    later, first = (
        inference.model_of({**row, "model": name}).blocks[0].attention
        for name in ("Mistral 7B", "mistralai/Mistral-7B-v0.1")
    )
    assert isinstance(later, Attention)
    assert isinstance(first, Attention)
    assert (later.window_tokens, first.window_tokens) == (None, 4096)


def test_one_prompt_for_all_means_the_same_experts_for_all() -> None:
    row = {
        **ROW,
        "model": "mistralai/Mixtral-8x7B-v0.1",
        "layers": "",
        "dataset": "llm_inference_bench",
        "engine": "TensorRT-LLM",
        "cluster": "a100_sxm",
        "tp": "4",
        "batch": "16",
    }
    alike, apart = (
        inference.predictions(_table({**row, "dataset": dataset})).values[0]
        for dataset in ("llm_inference_bench", "mine")
    )
    assert alike < 0.75 * apart


def _table(*rows: dict[str, str]) -> Table:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return Table("inference", Path("mine.csv"), columns, len(rows))
