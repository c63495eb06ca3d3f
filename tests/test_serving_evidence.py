"""Predictions of engines that serve many users, and of fp8 GEMMs with what converts their input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab import refit_elementwise
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.elementwise import row_kernel_time_s
from shardcost.machine import machine_of
from shardcost.model import Attention, Experts, LatentAttention, LinearAttention
from shardcost.validate import serving
from shardcost.validate.validation import validate

COLUMNS = (
    "dataset,model,layers,hidden,heads,kv_heads,head_dim,ffn,gated,vocab,experts,top_k,expert_ffn,"
    "shared_ffn,dense_layers,kv_lora_rank,q_lora_rank,qk_nope_head_dim,qk_rope_head_dim,v_head_dim,"
    "linear_layers,window_layers,window_tokens,cluster,engine,version,weight_dtype,cache_dtype,"
    "deployment,gpus,replicas,tp,pp,dp,ep,arrival,concurrency,isl,osl,lengths,speculative,"
    "prefill_workers,prefill_tp,prefill_pp,prefill_dp,prefill_ep,decode_workers,decode_tp,decode_pp,"
    "decode_dp,decode_ep,request_rate,requests,max_num_seqs,tpot_mean_ms,tpot_median_ms,"
    "ttft_mean_ms,requests_per_s"
)
ROW = {
    "dataset": "made", "model": "mix", "layers": "12", "hidden": "2048", "heads": "16",
    "kv_heads": "4", "head_dim": "128", "ffn": "8192", "gated": "1", "vocab": "32000",
    "experts": "64", "top_k": "4", "expert_ffn": "1024", "shared_ffn": "1024",
    "dense_layers": "2", "cluster": "h100_sxm", "engine": "vllm", "version": "0.19.0",
    "weight_dtype": "fp8_block", "deployment": "aggregated", "gpus": "4", "replicas": "1",
    "tp": "4", "pp": "1", "dp": "1", "ep": "1", "arrival": "closed", "concurrency": "16",
    "isl": "1024.5", "osl": "512", "lengths": "fixed", "speculative": "0", "tpot_mean_ms": "5.0",
    "ttft_mean_ms": "90",
}  # fmt: skip


def table(tmp_path: Path, *changes: dict[str, str]) -> Table:
    path = tmp_path / "serving.csv"
    rows = ({**dict.fromkeys(COLUMNS.split(","), ""), **ROW, **change} for change in changes)
    lines = [",".join(f'"{cell}"' for cell in row.values()) for row in rows]
    path.write_text("\n".join([COLUMNS, *lines]) + "\n")
    return read_table(path)


def test_every_measured_figure_is_a_row(tmp_path: Path) -> None:
    found = table(tmp_path, {}, {"tpot_mean_ms": "", "tpot_median_ms": "4"})
    assert found.columns["figure"] == [
        "ttft_mean_ms",
        "tpot_mean_ms",
        "ttft_mean_ms",
        "tpot_median_ms",
    ]
    assert found.columns["measured"] == ["90", "5.0", "90", "4"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deployment": "disaggregated"}, "decode_tp must be"),
        ({"arrival": "poisson"}, "request_rate must be"),
        ({"arrival": "in the mail"}, "arrival unknown"),
        ({"speculative": "a few"}, "must be a count"),
        ({"ep": "3"}, "ep must divide"),
        ({"concurrency": ""}, "concurrency must be"),
        ({"cluster": "nowhere"}, "cluster unknown"),
        ({"weight_dtype": "fp5"}, "unknown"),
        ({"layers": "2", "linear_layers": "2"}, "layers must be"),
        ({"tp": "1", "gpus": "1", "layers": "400"}, "layout must"),
    ],
)
def test_what_cannot_be_predicted_is_named(
    change: dict[str, str], reason: str, tmp_path: Path
) -> None:
    found = validate(table(tmp_path, change, {}))
    assert [reason in each for each in found.predictions.reasons] == [True, True, False, False]
    assert found.overall.rows == 2


def test_a_row_is_simulated_as_it_was_run(tmp_path: Path) -> None:
    def figures(**change: str) -> dict[str, float]:
        found = validate(table(tmp_path, {"requests": "64", **change}))
        values = found.predictions.values
        return dict(zip(found.table.columns["figure"], map(float, values), strict=True))

    usual = figures()
    assert figures(concurrency="64")["ttft_mean_ms"] > usual["ttft_mean_ms"]
    assert figures(concurrency="64")["tpot_mean_ms"] > usual["tpot_mean_ms"]
    # Drafts that are kept bring more tokens a step.
    assert figures(speculative="1")["tpot_mean_ms"] < usual["tpot_mean_ms"]
    # Few places in the batch are a queue before them.
    assert figures(max_num_seqs="2")["ttft_mean_ms"] > 2 * usual["ttft_mean_ms"]
    # Without a second worker the burst of prompts is prefilled by those that decode.
    assert figures(**POOLS)["tpot_mean_ms"] < usual["tpot_mean_ms"]


POOLS = {
    "deployment": "disaggregated", "gpus": "8", "prefill_workers": "1", "decode_workers": "1",
    **{f"{pool}_{each}": "4" if each == "tp" else "1"
       for pool in ("prefill", "decode") for each in ("tp", "pp", "dp", "ep")},
}  # fmt: skip


def test_recipes_send_more_than_decode_workers_have_places_for(tmp_path: Path) -> None:
    recipe = {**POOLS, "engine": "trtllm", "version": "dynamo 0.8.1", "decode_workers": "4"}

    def places(dtype: str, *users: str) -> list[str | None]:
        runs = [{**recipe, "weight_dtype": dtype, "concurrency": count} for count in users]
        rows = serving.rows_of(table(tmp_path, *runs))
        assert len({serving.case_of(row) for row in rows}) == len(users)
        return [row.get("decode_max_num_seqs") for row in rows[::2]]

    assert places("nvfp4", "12", "20") == ["4", "4"]  # one server: 20 are sent to 16 places
    assert places("fp8_block", "12", "20") == ["2", "4"]  # a server each
    assert places("fp8_block", "4", "8", "64") == ["1", "1", None]  # 64 are no more than places
    runs = [{**recipe, "osl": "4096", "concurrency": count} for count in ("64", "20")]
    round_number, waits = validate(table(tmp_path, *runs)).predictions.values[::2]
    assert waits > 2 * round_number


def test_prompts_that_a_run_before_sent_are_in_the_cache(tmp_path: Path) -> None:
    sweep = {**POOLS, "dataset": "dstack_pd_ratio", "engine": "sglang", "version": ""}
    shape = {"requests": "64", "isl": "8192", "osl": "8", "layers": "60", "hidden": "8192"}
    runs = [{**sweep, **shape, "concurrency": count} for count in ("32", "16")]
    assert [row["prompts_known"] for row in serving.rows_of(table(tmp_path, *runs))] == [
        "0", "0", "1", "1",
    ]  # fmt: skip
    found = validate(table(tmp_path, *runs)).predictions.values
    first = validate(table(tmp_path, runs[1])).predictions.values
    assert found[2] < 0.5 * first[0]
    # What the cache does not hold is computed again.
    longer = [{**run, "isl": "131072", "requests": "500"} for run in runs]
    last = serving.rows_of(table(tmp_path, *longer))[-1]
    assert last["prompts_known"] == "1"
    assert serving.point_of(last).requests.prefix_tokens == 0


def test_rates_at_limits_are_the_highest_held(tmp_path: Path) -> None:
    scenario = {
        "dataset": "mlperf_inference_made", "arrival": "poisson", "request_rate": "1000",
        "concurrency": "", "lengths": "OpenOrca, at most 1024 in, 1024 out", "isl": "",
        "osl": "512", "requests": "500", "requests_per_s": "1",
    }  # fmt: skip
    # A run takes ten minutes of simulated time: a large model with long answers has few requests.
    large = {
        "layers": "60", "hidden": "16384", "heads": "128", "ffn": "53248", "experts": "",
        "gpus": "64", "replicas": "16",
    }  # fmt: skip
    found = validate(table(tmp_path, scenario | large))
    values = dict(
        zip(found.table.columns["figure"], map(float, found.predictions.values), strict=True)
    )
    # The stated rate is far above what the GPUs hold within the limits.
    assert 1 < values["requests_per_s"] < 1000
    assert values["ttft_mean_ms"] < 2000


def test_shapes_are_those_of_the_row(tmp_path: Path) -> None:
    latent = {
        "kv_lora_rank": "512", "q_lora_rank": "1536", "qk_nope_head_dim": "128",
        "qk_rope_head_dim": "64", "v_head_dim": "128",
    }  # fmt: skip
    mixed, windowed, linear, latents, dense = (
        serving.model_of(row)
        for row in table(
            tmp_path,
            {},
            {"window_layers": "6", "window_tokens": "128", "dense_layers": "0"},
            {"linear_layers": "9", "dense_layers": "0", "model": "Qwen3.5-x"},
            latent,
            {"experts": ""},
        ).records()
        if row["figure"] == "tpot_mean_ms"
    )
    assert [(each.count, type(each.feed_forward).__name__) for each in mixed.blocks] == [
        (2, "FeedForward"),
        (10, "Experts"),
    ]
    assert [each.count for each in windowed.blocks] == [6, 6]
    part = windowed.blocks[0].attention
    assert isinstance(part, Attention)
    assert part.window_tokens == 128
    assert isinstance(linear.blocks[0].attention, LinearAttention)
    gated = linear.blocks[1].attention
    assert isinstance(gated, Attention)
    assert gated.output_gate
    assert isinstance(latents.blocks[0].attention, LatentAttention)
    assert not any(isinstance(each.feed_forward, Experts) for each in dense.blocks)


def test_formats_name_experts_or_everything(tmp_path: Path) -> None:
    def formats(**change: str) -> dict[str, str]:
        rows = table(tmp_path, change).records()
        return serving.formats_of(next(row for row in rows if row["figure"].startswith("tpot")))

    assert formats() == {"dtype": "fp8_block", "expert_dtype": "fp8_block"}
    assert formats(weight_dtype="mxfp4", cache_dtype="fp8") == {
        "dtype": "bf16",
        "expert_dtype": "mxfp4",
        "attention_dtype": "bf16",
        "cache_dtype": "fp8",
    }
    assert formats(weight_dtype="nvfp4")["dtype"] == "nvfp4"
    assert formats(weight_dtype="fp8", model="Qwen3-32B", experts="")["dtype"] == "fp8_block"


def test_engines_differ_by_version(tmp_path: Path) -> None:
    rows = table(tmp_path, {}, {"version": "0.12.0"}, {"version": "nightly-5b8c30"}).records()
    names = [serving.software(row) for row in rows if row["figure"] == "tpot_mean_ms"]
    assert names == ["vllm", "vllm_2025", "vllm"]
    old, rocm, around = (
        serving.software({**ROW, **change})
        for change in (
            {"engine": "trtllm", "version": "TensorRT 10.2"},
            {"version": "0.6.4", "cluster": "mi300x"},
            {"engine": "trtllm", "version": "dynamo 0.8.1"},
        )
    )
    assert (old, rocm, around) == ("trtllm_2024", "vllm_rocm", "trtllm")


def test_rows_walk_in_turns_over_the_multiprocessors() -> None:
    on = machine_of("h200_sxm").kernels
    few, one_turn, two = (row_kernel_time_s(on, "quantize", rows, 8192) for rows in (8, 132, 133))
    assert few == one_turn < two
    many = np.asarray(row_kernel_time_s(on, "quantize", np.array([1.0, 132 * 64]), 8192))
    assert many[0] < few < many[1]
    both, norm, alone = (
        row_kernel_time_s(on, kind, 4096, 8192) for kind in ("norm_quantize", "norm", "quantize")
    )
    assert norm < both < norm + alone


def test_a_refit_finds_the_constants_that_made_the_rows(tmp_path: Path) -> None:
    on = machine_of("h200_sxm").kernels
    path = tmp_path / "fp8_conversion.csv"
    lines = ["gpu,m,n,k,gemm_us,quantize_us,norm_us,norm_and_quantize_us"]
    for m in (1, 8, 64, 256, 1024, 4096):
        for k in (2048, 8192):
            times = (
                f"{1e6 * float(row_kernel_time_s(on, kind, m, k)):.6g}"
                for kind in ("quantize", "norm", "norm_quantize")
            )
            lines.append(f"h200_sxm,{m},1024,{k},,{','.join(times)}")
    path.write_text("\n".join(lines) + "\n")
    for kernels in refit_elementwise.measured_kernels(read_table(path)):
        found = kernels.predicted_us(refit_elementwise.fitted(kernels))
        assert found == pytest.approx(kernels.time_us, rel=0.03)


def test_errors_of_runs_under_load(evidence: Path) -> None:
    path = evidence / "measured" / "more" / "serving.csv"
    if not path.is_file():
        pytest.skip("no table of serving beside the project")
    whole = read_table(path)
    runs = {serving.case_of(row): None for row in whole.records()}
    few = dict.fromkeys(list(runs)[::25])
    found = validate(
        whole.where(lambda row: serving.case_of(row) in few), ["deployment", "kind", "measure"]
    )
    assert found.predicted >= 0.97 * found.table.rows
    by = {tuple(group.key.values()): group.stats for group in found.groups}
    limits = {
        ("aggregated", "dense", "tpot"): (8, 75),
        ("aggregated", "dense", "ttft"): (26, 100),
        ("aggregated", "experts", "tpot"): (14, 45),
        ("aggregated", "experts", "ttft"): (30, 75),
        ("disaggregated", "experts", "tpot"): (20, 55),
        ("disaggregated", "experts", "ttft"): (75, 140),
    }
    for key, (median, p90) in limits.items():
        stats = by[key]
        assert stats.median_pct is not None
        assert stats.p90_pct is not None
        assert stats.median_pct < median, key
        assert stats.p90_pct < p90, key


def test_errors_of_conversions(evidence: Path) -> None:
    path = evidence / "measured" / "more" / "fp8_conversion.csv"
    if not path.is_file():
        pytest.skip("no table of fp8 conversions beside the project")
    stats = validate(read_table(path)).overall
    assert stats.rows == 140
    assert stats.median_pct is not None
    assert stats.median_pct < 6
    assert stats.p90_pct is not None
    assert stats.p90_pct < 18
