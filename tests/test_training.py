"""Training runs: how rows become layouts and machines, and how well layouts are ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import refit_accumulation, refit_frameworks
from lab.descent import errors_pct
from shardcost import Layout, Software, Train, estimate
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.estimate.pieces import PassTime, walls_s
from shardcost.formats.tables import Table, read_table
from shardcost.machine import machine_of
from shardcost.model import Model
from shardcost.program.assemble import program_of
from shardcost.program.operations import Collective
from shardcost.report.validate import as_data, as_text
from shardcost.validate import training
from shardcost.validate.validation import validate

NANOTRON, DEEPSPEED, CORE = (
    Software.named(name) for name in ("nanotron", "megatron_deepspeed", "megatron_core")
)
MEASURED = Path(refit_accumulation.__file__).parent / "measured"
BATCH = Train(global_batch=64, sequence_length=1024)
LLAMA = Model.named("llama3-8b")
ROW = {
    "dataset": "some",
    "model": "GPT",
    "layers": "4",
    "hidden": "1024",
    "heads": "16",
    "kv_heads": "16",
    "ffn": "4096",
    "vocab": "51200",
    "seq": "1024",
    "mbs": "1",
    "gbs": "32",
    "gpus": "16",
    "tp": "1",
    "pp": "1",
    "dp": "16",
    "dtype": "fp16",
    "framework": "Megatron-DeepSpeed",
    "cluster": "a100_sxm",
    "network": "ib_8x200g",
    "intra_link": "NVLink3+NVSwitch",
    "measured_step_s": "1",
}


def table(rows: Sequence[Mapping[str, str]]) -> Table:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return Table("training", Path("training.csv"), columns, len(rows))


def ranked(values: Sequence[float], measured: Sequence[float]) -> Mapping[str, Any]:
    rows = [ROW] * len(values)
    found: Mapping[str, Any] = training.regret(table(rows), np.array(values), np.array(measured))
    return found["regret"]  # type: ignore[no-any-return]


def test_spearman_is_one_for_the_same_order_and_minus_one_for_the_opposite() -> None:
    rising = np.array([1.0, 5.0, 7.0, 100.0])
    assert training.spearman(rising, np.exp(rising / 10)) == pytest.approx(1.0)
    assert training.spearman(rising, -rising) == pytest.approx(-1.0)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    # Ranks 1.5, 1.5, 3 against 1, 2, 3: covariance 1.5, spreads 1.5 and 2.
    found = training.spearman(np.array([4.0, 4.0, 9.0]), np.array([1.0, 2.0, 3.0]))
    assert found == pytest.approx(1.5 / (1.5 * 2) ** 0.5)


def test_a_series_that_ranks_nothing_has_no_correlation() -> None:
    assert training.spearman(np.array([2.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0])) is None


def test_regret_is_what_the_layout_ranked_first_loses() -> None:
    found = ranked([2.0, 1.0, 3.0], [1.0, 1.5, 4.0])
    (only,) = found["by_group"]
    assert only["regret_pct"] == pytest.approx(50)
    assert only["spearman"] == pytest.approx(0.5)
    assert only["layouts"] == 3
    assert only["key"] == {name: ROW[name] for name in ("dataset", "model", "seq", "gpus", "gbs")}
    assert (found["groups"], found["spearman_median"]) == (1, pytest.approx(0.5))
    assert found["median_pct"] == found["p90_pct"] == pytest.approx(50)


def test_two_layouts_are_no_question() -> None:
    found = ranked([1.0, 2.0], [1.0, 2.0])
    assert found["groups"] == 0
    assert found["by_group"] == []
    assert found["median_pct"] is None
    assert found["spearman_median"] is None


def test_the_report_shows_the_worst_questions_and_counts_the_rest() -> None:
    rows = [{**ROW, "gbs": str(32 * n), "mbs": m} for n in range(1, 15) for m in ("1", "2", "1")]
    found = validate(table(rows))
    text = as_text([found])
    assert "14 questions with three layouts or more" in text
    assert "dataset, model, seq, gpus, gbs" in text
    assert "(2 more with less regret)" in text
    assert text.count("some, GPT, 1024, 16, ") == 12
    (data,) = as_data([found])["tables"]
    assert len(data["regret"]["by_group"]) == 14
    lost = [each["regret_pct"] for each in data["regret"]["by_group"]]
    assert lost == sorted(lost, reverse=True)


def test_a_table_needs_no_names_of_data_sets() -> None:
    rows = [{name: cell for name, cell in ROW.items() if name != "dataset"}] * 3
    assert validate(table(rows)).extra["regret"]["groups"] == 1


def test_fewer_links_are_as_much_slower() -> None:
    usual = training.machine(ROW)
    fewer = training.machine({**ROW, "intra_link": "NVLink3 (4-link, 8 to a node)"})
    assert usual.tiers[-1].bytes_per_s == pytest.approx(3 * fewer.tiers[-1].bytes_per_s)
    assert fewer.tiers[-1].links_per_gpu == 4
    times = [
        training.estimate_of({**ROW, "tp": "8", "dp": "2", "intra_link": link}).comm_s["tp"]
        for link in ("NVLink3", "NVLink3 (4-link)")
    ]
    assert 1.5 < times[1] / times[0] < 3


def test_a_run_with_a_slow_network_has_longer_crossings() -> None:
    def crossing_s(rate: str, tp: str = "1", column: str = "ar_GBps_measured") -> float:
        row = {**ROW, "tp": tp, "dp": str(16 // int(tp)), column: rate}
        machine = training.machine_of_row(row, training.software_of(row))
        constants: Any = machine.network.constants
        return float(constants.latency_s)

    assert crossing_s("5") > 4 * crossing_s("100")
    # A tensor group across nodes gathers, by the network's own constants.
    usual: Any = machine_of(training.machine(ROW)).network.constants
    assert crossing_s("5", "16") == usual.latency_s
    assert crossing_s("5", "16", "ag_GBps_measured") == usual.latency_s
    assert crossing_s("") == usual.latency_s


def test_deepspeed_keeps_gradients_in_the_format_of_fp16() -> None:
    assert training.train_of(ROW).gradient_dtype == "fp16"
    assert training.train_of({**ROW, "dtype": "bf16"}).gradient_dtype == "fp32"
    assert training.train_of({**ROW, "framework": "Megatron-LM"}).gradient_dtype == "fp32"


def test_adapters_are_those_of_the_row_or_of_nemos_recipes() -> None:
    mlperf = training.train_of({**ROW, "adapters": "16", "adapter_targets": "qkv+proj"})
    assert (mlperf.adapters, mlperf.adapter_rank, mlperf.adapter_targets) == (True, 16, "attention")
    nemo = training.train_of({**ROW, "model": "LLAMA2-7B LoRA"})
    assert (nemo.adapters, nemo.adapter_rank, nemo.adapter_targets) == (True, 32, "qkv")
    assert not training.train_of(ROW).adapters


def test_rows_of_sharded_weights_and_of_graphs_of_layers() -> None:
    assert training.layout_of({**ROW, "zero_fsdp": "zero3"}).zero == 3
    core = {**ROW, "framework": "NeMo/Megatron-Core"}
    assert training.software_of({**core, "cuda_graph": "layer"}).launch == "graph"
    assert training.software_of({**core, "cuda_graph": "none"}).launch == "eager"


def test_measured_runs_with_adapters_fit_and_take_as_long(evidence: Path) -> None:
    """NVIDIA's clusters with Megatron Core: constants were not fitted to these rows."""
    path = evidence / "measured" / "more" / "training_runs.csv"
    if not path.exists():
        pytest.skip("no table of further training runs")
    rows = [
        row
        for row in read_table(path).records()
        if row["adapters"] and row["gpu"].startswith("NVIDIA") and "Megatron" in row["framework"]
    ]
    on_switches = [row for row in rows if row["intra_link"].startswith("NVLink")]
    errors = []
    for row in on_switches:
        found = training.estimate_of(row)
        assert found.memory.fits(), row["system"]
        errors.append(abs(100 * (float(found.time_s) / float(row["measured_step_s"]) - 1)))
    assert len(errors) >= 60
    assert np.median(errors) <= 7
    assert np.percentile(errors, 90) <= 15


def test_measured_runs_on_other_vendors_and_on_pcie_take_as_long(evidence: Path) -> None:
    """MI300X (a slowdown fitted to these rows), L40S (peers, set by serving) and Gaudi 2."""
    path = evidence / "measured" / "more" / "training_runs.csv"
    if not path.exists():
        pytest.skip("no table of further training runs")
    errors: dict[str, list[float]] = {"mi300x": [], "l40s": [], "gaudi2": []}
    for row in read_table(path).records():
        if row["cluster"] in errors:
            ratio = float(training.estimate_of(row).time_s) / float(row["measured_step_s"])
            errors[row["cluster"]].append(abs(100 * (ratio - 1)))
    assert {name: len(each) for name, each in errors.items()} == {
        "mi300x": 6,
        "l40s": 2,
        "gaudi2": 1,
    }
    assert max(errors["l40s"]) <= 5
    assert max(errors["gaudi2"]) <= 12
    assert np.median([each for known in errors.values() for each in known]) <= 3


def test_frameworks_on_rocm_and_deepspeed_are_their_own() -> None:
    names = {"NeMo/Megatron-Core (ROCm)": "megatron_rocm", "DeepSpeed": "deepspeed"}
    for stated, name in names.items():
        assert training.software_of({**ROW, "framework": stated}).name == name


def gradients(layout: Layout, software: Software) -> list[Collective]:
    step = program_of(LLAMA, layout, BATCH, software).step
    assert step is not None
    return [op for op in step.gradients if isinstance(op, Collective)]


def test_buckets_add_starts_and_no_bytes() -> None:
    whole, cut = (
        gradients(Layout(dp=8), replace(NANOTRON, bucket_start_bytes=small))
        for small in (None, 1e6)
    )
    start, rest = cut
    assert sum(op.count * op.size_bytes for op in cut) == pytest.approx(whole[0].size_bytes)
    assert start.count == -(-whole[0].size_bytes // NANOTRON.bucket_bytes) - 1
    assert rest.size_bytes > 0.9 * whole[0].size_bytes


def test_smaller_buckets_take_longer_to_reduce() -> None:
    times = [
        estimate(
            LLAMA,
            "h100_sxm",
            Layout(tp=2, dp=4),
            BATCH,
            software=replace(NANOTRON, bucket_bytes=size),
        ).ledger.reduce.seconds
        for size in (1e9, 5e7, 5e6)
    ]
    assert times == sorted(times)
    assert times[2] > times[0]


def test_nanotron_overlaps_nothing_with_a_sharded_optimizer() -> None:
    plain, sharded = (
        estimate(LLAMA, "h100_sxm", Layout(tp=2, dp=4, zero=zero), BATCH, software=NANOTRON)
        for zero in (0, 1)
    )
    assert plain.exposed_s["dp"] < 0.5 * plain.comm_s["dp"]
    assert sharded.exposed_s["dp"] == pytest.approx(sharded.comm_s["dp"])
    (sum_of_all,) = gradients(Layout(dp=8, zero=1), NANOTRON)
    assert sum_of_all.collective == "all_reduce"
    (scattered,) = gradients(Layout(dp=8, zero=1), Software.named("megatron_core"))
    assert scattered.collective == "reduce_scatter"


def test_layouts_in_arrays_are_priced_like_each_by_itself() -> None:
    tp = np.array([1, 2, 4, 8])
    for software in (NANOTRON, DEEPSPEED):
        for zero in (0, 1):
            together = estimate(
                LLAMA, "h100_sxm", Layout(tp=tp, dp=8 // tp, zero=zero), BATCH, software=software
            )
            for i, each in enumerate(tp.tolist()):
                alone = estimate(
                    LLAMA,
                    "h100_sxm",
                    Layout(tp=each, dp=8 // each, zero=zero),
                    BATCH,
                    software=software,
                )
                assert together.time_s[i] == pytest.approx(alone.time_s, rel=1e-9)


def wall_s(device_s: Any, kernels: Any, scatter: float | None) -> Any:
    software = replace(DEEPSPEED, host_per_kernel_s=1e-5, host_per_hop_s=None, host_scatter=scatter)
    return PassTime(device_s, kernels).wall_s(software)


def test_host_and_device_wait_for_each_other_where_they_have_as_much_to_do() -> None:
    assert wall_s(1e-3, 100, None) == pytest.approx(1e-3)
    assert wall_s(1e-3, 100, 0.25) == pytest.approx(2**0.25 * 1e-3)
    assert wall_s(1.0, 100, 0.25) == pytest.approx(1.0, rel=1e-9)
    assert wall_s(1e-9, 100, 0.25) == pytest.approx(1e-3, rel=1e-9)
    assert wall_s(0.0, 0, 0.25) == 0
    assert wall_s(np.array([0.0, 1e-3]), np.array([0, 100]), 0.25) == pytest.approx(
        [0.0, 2**0.25 * 1e-3]
    )


def test_a_late_host_catches_up_over_the_gradients_of_weights() -> None:
    software = replace(DEEPSPEED, host_per_kernel_s=1e-5, host_per_hop_s=None, host_scatter=None)
    forward, backward, weight = PassTime(2e-3, 100), PassTime(1e-3, 200), PassTime(3e-3, 50)
    assert walls_s((forward, backward, weight), software) == pytest.approx((2e-3, 1e-3, 3e-3))
    busy = PassTime(1e-3, 400)
    assert walls_s((forward, busy, weight), software) == pytest.approx((2e-3, 1.5e-3, 3e-3))


def test_hosts_start_collectives_by_the_links_of_their_rings() -> None:
    slow = replace(NANOTRON, host_per_hop_s=1e-3, host_per_crossing_s=1e-2)
    fast = replace(NANOTRON, host_per_hop_s=None, host_per_crossing_s=None)
    assert PassTime(0.0, 0, 8, 0).wall_s(slow) == pytest.approx(8e-3)
    assert PassTime(0.0, 0, 14, 2).wall_s(slow) == pytest.approx(14e-3 + 20e-3)
    assert PassTime(0.0, 0, 14, 2).wall_s(fast) == 0
    on = machine_of(Cluster.named("h100_sxm", "efa_8x400g"))
    for tp, links in ((1, (0, 0)), (8, (8, 0)), (16, (14, 2)), (32, (28, 4))):
        layout = Layout(tp=tp, dp=32 // tp, sequence_parallel=tp > 1)
        piece = estimate(LLAMA, on, layout, BATCH, software=slow).ledger.layers[0]
        sent = sum(
            op.count
            for op in piece.operations.forward
            if isinstance(op, Collective) and op.ranks > 1
        )
        expected = tuple(sent * each for each in links)
        assert (piece.forward.hops, piece.forward.crossings) == expected


def test_weights_gathered_into_lists_are_copied_part_by_part() -> None:
    lists = replace(NANOTRON, balance="layers")
    flat = replace(lists, gathers_into_lists=False)
    on = machine_of(Cluster.named("h100_sxm", "efa_8x400g"))

    def longer_s(layout: Layout) -> float:
        copied_s, whole_s = (
            float(estimate(LLAMA, on, layout, BATCH, software=each).time_s)
            for each in (lists, flat)
        )
        return copied_s - whole_s

    tensors = 32 * (4 + 2) + 3  # matrices and norms of each layer, embedding, last norm, head
    copy_s = 1e-6 * on.kernels.section("elementwise", "launch").constants["copy_us"]
    many = Layout(tp=1, dp=32, zero=1)
    assert longer_s(many) == pytest.approx(tensors * 32 * copy_s)
    assert longer_s(replace(many, tp=2, dp=16)) == pytest.approx(tensors * 16 * copy_s)
    halves = replace(many, pp=2, dp=64)
    assert longer_s(halves) == pytest.approx((16 * 6 + 3) * 64 * copy_s)
    assert longer_s(replace(many, zero=0)) == longer_s(Layout(zero=1)) == 0


def test_attention_that_nobody_measured_takes_longer_than_what_it_is_priced_with() -> None:
    foundry = Software.named("llm_foundry")
    plain = replace(foundry, attention_slowdown=1.0)

    def parts(model: Model, software: Software) -> Mapping[str, Any]:
        return estimate(model, "h100_sxm", Layout(dp=8), BATCH, software=software).compute_s

    slower = foundry.attention_slowdown
    assert parts(LLAMA, foundry) == pytest.approx(
        {**parts(LLAMA, plain), "attention": slower * parts(LLAMA, plain)["attention"]}
    )
    narrow = Model.named("gpt2-xl")  # heads of 64 elements
    assert parts(narrow, foundry) == parts(narrow, plain)


def test_frameworks_that_the_catalog_lacks_are_taken_for_one_of_their_kind() -> None:
    for name, software in (
        ("", "megatron_core"),
        ("MegaScale", "megatron_core"),
        ("NeMo 2.0", "megatron_core"),
        ("Primus (Megatron)", "megatron_rocm"),
        ("Colossal-AI", "pytorch"),
        ("PyTorch FSDP", "pytorch"),
        ("torchtitan 0.2", "torchtitan"),
        ("JAX", "maxtext"),
    ):
        assert training.framework_of({**ROW, "framework": name}) == software


def test_what_stands_for_several_frameworks_has_the_means_of_their_constants() -> None:
    frameworks = [Software.named(name) for name in refit_frameworks.MEANS["pytorch"]]
    catalogued, usual = refit_frameworks.mean_constants("pytorch"), Software.named("pytorch")
    for field in ("slowdown", "step_overhead_s"):
        mean = np.mean([getattr(each, field) for each in frameworks])
        assert getattr(usual, field) == pytest.approx(mean, rel=0.01)
    assert catalogued["slowdown"] == usual.slowdown
    without = refit_frameworks.mean_constants("pytorch", "nanotron")
    assert without["host_per_kernel_us"] < 0.01 < catalogued["host_per_kernel_us"]


def test_boards_with_fewer_watts_take_longer() -> None:
    assert training.machine({**ROW, "gpu": "H100-SXM 96GB 500W"}).device.power_w == 500
    row = {**ROW, "cluster": "h100_sxm"}
    times = [
        float(training.estimate_of({**row, "gpu": gpu}).time_s)
        for gpu in ("H100 700W", "H100 500W")
    ]
    assert 1.0 < times[1] / times[0] <= (700 / 500) ** 0.75


def test_a_loss_in_steps_takes_longer_than_a_fused_one() -> None:
    fused, steps = (
        estimate(
            LLAMA,
            "h100_sxm",
            Layout(dp=8),
            BATCH,
            software=replace(DEEPSPEED, fused_loss=fused, host_per_kernel_s=1e-9),
        ).compute_s["elementwise"]
        for fused in (True, False)
    )
    logits = BATCH.global_batch / 8 * 1024 * 128256
    bytes_per_s = 28 * logits / (steps - fused)
    assert 1e12 < bytes_per_s < 3.4e12


def test_gradients_of_embedding_and_head_are_summed_too() -> None:
    program = program_of(LLAMA, Layout(tp=2), BATCH, DEEPSPEED)
    for piece in (program.first, program.last):
        (added,) = (op for op in piece.weight if op.name == "gradient accumulation")
        assert added.bytes_moved == pytest.approx(  # type: ignore[union-attr]
            128256 * 4096 / 2 * DEEPSPEED.gradient_sum_bytes,  # type: ignore[operator]
            rel=1e-3,
        )


def _sum_bytes(piece: Any) -> float:
    (added,) = (op for op in piece.weight if op.name == "gradient accumulation")
    return float(added.bytes_moved)


def test_a_gemm_over_few_tokens_waits_longer_for_its_sum() -> None:
    def moved(tokens: int, dtype: str = "fp32") -> float:
        batch = Train(global_batch=1, sequence_length=tokens, gradient_dtype=dtype)
        return _sum_bytes(program_of(LLAMA, Layout(), batch, CORE).layers[0].passes)

    assert moved(512) > 1.2 * moved(2048) > 1.4 * moved(8192) > 0
    assert moved(2048, "bf16") == pytest.approx(moved(2048) / 3)  # 2 of 6 bytes more than written


def test_looked_up_rows_are_summed_by_a_kernel_of_their_own() -> None:
    program = program_of(LLAMA, Layout(), BATCH, CORE)
    assert _sum_bytes(program.first) == 128256 * 4096 * (2 + 2 + 4 + 4)


def test_sums_of_measured_weight_gradients_are_predicted() -> None:
    rows = refit_accumulation.rows_of(MEASURED / "own_h200_weight_gradients.csv")
    rule = tuner_table("gemm")["accumulation"]
    median, p90 = errors_pct(refit_accumulation.ratios(rows, rule))
    assert len(rows) == 96
    assert median < 3
    assert p90 < 10


def test_layouts_of_measured_sweeps_are_ranked_well(evidence: Path) -> None:
    sweeps = {"vtrain_single_node", "hf_ultrascale_nanotron", "bigscience_bloom_sweep"}
    runs = read_table(evidence / "measured" / "training.csv")
    found = validate(runs.where(lambda row: row["dataset"] in sweeps)).extra["regret"]
    assert found["median_pct"] <= 3
    assert found["p90_pct"] <= 15
    assert found["spearman_median"] >= 0.9
