"""Single layers, decoded layers and single operators: what is predicted, and how well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import Row, read_table
from shardcost.kernels.elementwise import elementwise_time_s
from shardcost.kernels.gemm import gemm_time_s
from shardcost.machine import machine_of
from shardcost.program.operations import Collective
from shardcost.validate import decode, layer_ops, layers
from shardcost.validate.validation import validate
from shardcost.workload import Train

SHAPE = {
    "gpu": "h200_sxm",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "head_dim": "128",
    "ffn": "14336",
    "gated": "1",
    "tp": "1",
    "batch": "1",
}
H200 = machine_of("h200_sxm").kernels


def a_layer(**cells: str) -> Row:
    return {**SHAPE, "seq": "2048", "pass": "forward", **cells}


def a_part(part: str, **cells: str) -> Row:
    return {**SHAPE, "part": part, "context": "", **cells}


def an_operator(op: str, **cells: str) -> Row:
    fixed = {"op": op, "phase": "forward", "gpu": "H100", "dtype": "fp16", "tokens": "64"}
    return {**SHAPE, **fixed, "seq": "2048", "msg_bytes": "", **cells}


def test_a_forward_pass_is_its_products_attention_and_passes() -> None:
    products = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    alone = 1e6 * sum(gemm_time_s(H200, "bf16", 2048, n, k) for n, k in products)
    assert alone < layers.time_us(a_layer()) < 1.3 * alone


def test_a_backward_pass_takes_about_twice_the_forward_and_the_host_s_start() -> None:
    start = 1e6 * float(layers.torch().step_overhead_s)
    forward, backward = (
        layers.time_us(a_layer(seq="8192", **{"pass": each})) for each in layers.PASSES
    )
    assert 1.9 < (backward - start) / forward < 2.6


def test_short_kernels_leave_the_pace_to_the_host() -> None:
    small = [
        layers.time_us(a_layer(seq=seq, tp="8", **{"pass": "backward"})) for seq in ("64", "128")
    ]
    assert small[0] == small[1]


def test_more_ranks_share_the_work_of_a_layer() -> None:
    times = [layers.time_us(a_layer(tp=str(tp))) for tp in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[-1] > times[0] / 8


def test_collectives_and_rotations_are_left_out() -> None:
    workload = Train(global_batch=1, sequence_length=2048)
    operations = layers.passes_of(a_layer(tp="8"), workload).forward
    assert any(isinstance(op, Collective) for op in operations)
    kept = tuple(op for op in operations if not isinstance(op, Collective))
    found = layers.pass_time(layers.machine("h200_sxm"), operations)
    assert not found.hops
    assert found.kernels < sum(getattr(op, "kernels", 1) for op in kept)


@pytest.mark.parametrize(
    ("cells", "error"),
    [
        ({"pass": "sideways"}, UnknownNameError),
        ({"gated": "yes"}, BadValueError),
        ({"tp": "3"}, BadValueError),
        ({"gpu": "abacus"}, UnknownNameError),
        ({"seq": "many"}, BadValueError),
    ],
)
def test_a_layer_that_cannot_be_is_refused(cells: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        layers.time_us(a_layer(**cells))


def test_the_parts_of_a_decoded_layer_are_kernels() -> None:
    assert decode.time_us(a_part("gemm:down")) == pytest.approx(
        1e6 * gemm_time_s(H200, "bf16", 1, 4096, 14336)
    )
    assert decode.time_us(a_part("rmsnorm")) == pytest.approx(
        1e6 * elementwise_time_s(H200, 2 * 4096 * 2, row_elements=4096)
    )
    short, long = (decode.time_us(a_part("attention", context=c)) for c in ("2048", "8192"))
    assert short < long < 4 * short
    with pytest.raises(UnknownNameError):
        decode.time_us(a_part("gemm:sideways"))


def test_a_layer_is_the_sum_of_its_parts_with_two_norms(tmp_path: Path) -> None:
    parts = [a_part(each, time_us="10") for each in decode.TIMES if each != decode.ATTENTION]
    parts += [a_part("attention", context=c, time_us="10") for c in ("512", "1024")]
    parts += [a_part("attention", context="512", batch="7", time_us="10")]  # the rest is missing
    file = tmp_path / "decode.csv"
    lines = [",".join(parts[0]), *(",".join(row.values()) for row in parts)]
    file.write_text("\n".join(lines))
    table = read_table(file)
    assert decode.layer_sums(table, np.full(table.rows, 10.0)).tolist() == [70.0, 70.0]
    found = decode.extra(table, np.full(table.rows, 11.0), np.full(table.rows, 10.0))
    assert found["layers"]["rows"] == 2
    assert found["layers"]["median_pct"] == pytest.approx(10)
    nothing = np.full(table.rows, np.nan)
    assert decode.extra(table, nothing, nothing)["layers"]["rows"] == 0


def test_operators_are_the_program_s_products() -> None:
    h100 = replace(machine_of("h100_sxm").kernels, timed_with="torch")
    assert h100.gemm("fp16").fit.measured_with == "torch"
    assert h100.gemm("fp16").inherited_from == "h200_sxm"
    for op, n, k in (("mlp_up_proj", 28672 / 8, 4096), ("attn_post_proj", 4096, 4096 / 8)):
        found = layer_ops.time_s(an_operator(op, tp="8"))
        assert found == pytest.approx(gemm_time_s(h100, "fp16", 64, n, k))


def test_a_row_kernel_walks_until_the_memory_is_busy() -> None:
    few, some, many, more = (
        layer_ops.time_s(an_operator("mlp_act", tokens=tokens))
        for tokens in ("1", "8", "4096", "8192")
    )
    assert few == pytest.approx(some, rel=0.01)
    assert more / many == pytest.approx(2, rel=0.01)


def test_calls_from_the_host_start_later() -> None:
    cells = {"tp": "8", "msg_bytes": "1048576"}
    graph, eager = (
        layer_ops.time_s(an_operator(op, **cells)) for op in ("all_reduce", "torch_all_reduce")
    )
    assert 5e-6 < eager - graph < 20e-6


def test_one_half_of_a_feed_forward_part_is_its_product_and_its_collective() -> None:
    cells = {"tp": "8", "gpu": "H100-SXM (DGX)"}
    for half in ("AG+GEMM", "GEMM+RS"):
        product, collective, both = (
            layer_ops.time_s(an_operator(f"{half}:{part}", **cells))
            for part in ("gemm", "comm", "total_no_overlap")
        )
        assert both == pytest.approx(product + collective)


@pytest.mark.parametrize(
    ("op", "cells"),
    [
        ("juggle", {}),
        ("AG+GEMM:total_flux_overlap", {}),
        ("add", {"phase": "backward"}),
        ("add", {"gpu": "Abacus 5"}),
    ],
)
def test_an_unknown_operator_is_refused(op: str, cells: dict[str, str]) -> None:
    with pytest.raises(UnknownNameError):
        layer_ops.time_s(an_operator(op, **cells))


def test_measured_layers(evidence: Path) -> None:
    found = validate(read_table(evidence / "measured" / "layers.csv"), by=["pass"])
    assert not found.skipped
    for group in found.groups:
        assert group.stats.median_pct is not None
        assert group.stats.p90_pct is not None
        assert group.stats.median_pct < 5
        assert group.stats.p90_pct < 12


def test_measured_parts_of_decoded_layers(evidence: Path) -> None:
    found = validate(read_table(evidence / "measured" / "decode.csv"))
    assert not found.skipped
    assert found.extra["layers"]["rows"] == 96
    assert found.extra["layers"]["median_pct"] < 7


def test_measured_operators(evidence: Path) -> None:
    found = validate(read_table(evidence / "measured" / "layer_ops.csv"))
    assert found.predicted > 0.95 * found.table.rows
    assert found.overall.median_pct is not None
    assert found.overall.median_pct < 12
