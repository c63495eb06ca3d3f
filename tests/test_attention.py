"""Attention kernels: limits, monotony, arrays against numbers, and measured rows."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import refit_attention
from shardcost import catalog
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, ShardcostError, UnknownNameError
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.machine import machine_of
from shardcost.machine.kernels import Fit, KernelConstants, Section, kernels_of
from shardcost.software import Software
from shardcost.validate.validation import stats, validate

SYSTEMS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm")
SIZES = st.integers(1, 64)
TOKENS = st.integers(1, 20_000)


def kernels_on(system: str) -> KernelConstants:
    return kernels_of(Cluster.named(system).device)


def constants_of(system: str, section: str) -> Mapping[str, Any]:
    return kernels_on(system).section("attention", section).constants


@pytest.mark.parametrize("system", SYSTEMS)
def test_long_prefill_reaches_the_share_of_the_peak(system: str) -> None:
    kernels = kernels_on(system)
    heads, tokens = 8192, 32768
    time_s = prefill_time_s(kernels, "bf16", 1, tokens, tokens, heads, heads // 8, 128)
    rate = 2 * heads * tokens**2 * 128 / time_s / kernels.device.peak("bf16")
    assert rate == pytest.approx(constants_of(system, "prefill")["peak_share"], rel=0.06)


@pytest.mark.parametrize("system", SYSTEMS)
def test_long_decode_reaches_the_share_of_the_bandwidth(system: str) -> None:
    kernels = kernels_on(system)
    time_s = decode_time_s(kernels, "bf16", 128, 131072, 64, 8, 128)
    rate = 128 * 131072 * 8 * 2 * 128 * 2 / time_s / kernels.device.memory_bytes_per_s
    assert rate == pytest.approx(
        constants_of(system, "decode")["grouped"]["memory_share"], rel=0.02
    )


@pytest.mark.parametrize("system", [*SYSTEMS, "mi300x", "v100_dgx2", "l40s"])
def test_tiny_calls_take_the_latency_of_a_launch(system: str) -> None:
    kernels = kernels_on(system)
    for time_s in (
        prefill_time_s(kernels, "fp16", 1, 1, 1, 1, 1, 128),
        decode_time_s(kernels, "fp16", 1, 1, 1, 1, 128),
    ):
        assert 3e-6 < time_s < 30e-6


def test_pairs_of_a_causal_triangle_are_counted_by_tiles() -> None:
    """One head of four tiles: 1 + 2 + 3 + 4 of them, all else being free."""
    kernels = kernels_on("h100_sxm")
    table = {
        "tile_queries": 128,
        "tile_keys": 128,
        "exponential_part": 0.0,
        "launch_us": 0.0,
        "peak_share": 1.0,
        "block_us": 0.0,
        "alone_ratio": 1e-9,
        "tail_power": 1.0,
        "memory_share": 1e9,
        "kv_weight": 1.0,
        "overlap_power": 1.0,
    }
    section = Section("by_hand", "prefill", table, Fit("by hand", 1, 1.0, 1.0), None)
    kernels = replace(kernels, sections={("attention", "prefill"): section})
    tile_s = 4 * 128**3 / kernels.device.peak("bf16")
    one = prefill_time_s(kernels, "bf16", 1, 512, 512, 1, 1, 128)
    assert one == pytest.approx(10 * tile_s, rel=1e-6)
    after = prefill_time_s(kernels, "bf16", 1, 512, 1536, 1, 1, 128)
    assert after == pytest.approx((10 + 4 * 8) * tile_s, rel=1e-6)
    both_ways = prefill_time_s(kernels, "bf16", 1, 512, 512, 1, 1, 128, causal=False)
    assert both_ways == pytest.approx(16 * tile_s, rel=1e-6)
    fp8 = prefill_time_s(kernels, "fp8", 1, 512, 512, 1, 1, 128)
    assert fp8 == pytest.approx(5 * tile_s, rel=1e-3)


def test_a_window_as_long_as_the_context_hides_nothing() -> None:
    kernels = kernels_on("h100_sxm")
    whole = prefill_time_s(kernels, "bf16", 1, 8192, 8192, 32, 8, 128)
    wide = prefill_time_s(kernels, "bf16", 1, 8192, 8192, 32, 8, 128, window_tokens=8192)
    assert wide == pytest.approx(whole)
    narrow = prefill_time_s(kernels, "bf16", 1, 65536, 65536, 32, 8, 128, window_tokens=1024)
    linear = prefill_time_s(kernels, "bf16", 1, 32768, 32768, 32, 8, 128, window_tokens=1024)
    assert narrow == pytest.approx(2 * linear, rel=0.05)
    cut = decode_time_s(kernels, "bf16", 16, 65536, 32, 8, 128, window_tokens=4096)
    assert cut == pytest.approx(decode_time_s(kernels, "bf16", 16, 4096, 32, 8, 128))


def test_small_heads_run_at_a_lower_share_of_the_peak() -> None:
    kernels = kernels_on("h100_sxm")
    times = [prefill_time_s(kernels, "bf16", 8, 8192, 8192, 32, 8, dim) for dim in (64, 128, 256)]
    rates = np.array([64, 128, 256]) / np.array(times)
    assert rates[0] < rates[1] < rates[2]
    assert 0.7 < rates[0] / rates[1] < 0.9


def test_gradients_take_about_two_and_a_half_times_as_long() -> None:
    kernels = kernels_on("h200_sxm")
    shape = (kernels, "bf16", 1, 8192, 8192, 32, 8, 128)
    ratio = prefill_time_s(*shape, backward=True) / prefill_time_s(*shape)
    assert 2.4 < ratio < 3


def test_a_narrow_cache_is_read_faster_by_the_grouped_kernel() -> None:
    kernels = kernels_on("h100_sxm")
    wide = decode_time_s(kernels, "bf16", 64, 32768, 32, 8, 128)
    narrow = decode_time_s(kernels, "fp8", 64, 32768, 32, 8, 128)
    assert 0.45 < narrow / wide < 0.6


def test_query_heads_with_blocks_of_their_own_share_a_cache_in_l2() -> None:
    """Memory is read once for a KV head, and a cache of half the bytes takes half the time."""
    kernels, sizes = kernels_on("l40s"), (64, 2048, 32)
    grouped = decode_time_s(kernels, "bf16", *sizes, 8, 128)
    alone = decode_time_s(kernels, "bf16", *sizes, 8, 128, by_query_head=True)
    unshared = decode_time_s(kernels, "bf16", *sizes, 32, 128)
    assert alone < 0.6 * unshared
    narrow = decode_time_s(kernels, "fp8", *sizes, 8, 128, by_query_head=True)
    assert 0.45 < narrow / alone < 0.6
    both = np.array([False, True])
    found = decode_time_s(kernels, "bf16", *sizes, 8, 128, by_query_head=both)
    assert found == pytest.approx([grouped, alone])


def test_paged_attention_splits_up_to_512_blocks() -> None:
    """On MI300X vLLM splits contexts of 16 sequences of 32 heads, and none of one more."""
    kernels = machine_of("mi300x", Software.named("vllm_2024")).kernels
    split, whole = (decode_time_s(kernels, "bf16", batch, 8192, 32, 8, 128) for batch in (16, 17))
    assert whole > 1.3 * split


def test_a_warm_cache_is_faster_where_it_fits() -> None:
    kernels = kernels_on("b200_sxm")
    small, large = (kernels, "bf16", 4, 4096, 32, 8, 128), (kernels, "bf16", 64, 65536, 32, 8, 128)
    assert decode_time_s(*small, cache_is_warm=True) < 0.9 * decode_time_s(*small)
    assert decode_time_s(*large, cache_is_warm=True) == decode_time_s(*large)


def test_latent_attention_reads_its_cache_once() -> None:
    """576 elements of one head for 128 query heads: bound by memory, then by the products."""
    kernels = kernels_on("h200_sxm")
    time_s = decode_time_s(kernels, "bf16", 32, 16384, 16, 1, 576, value_dim=512)
    floor_s = 32 * 16384 * 576 * 2 / kernels.device.memory_bytes_per_s
    assert floor_s < time_s < 2 * floor_s
    whole = decode_time_s(kernels, "bf16", 32, 16384, 128, 1, 576, value_dim=512)
    products_s = 2 * 32 * 16384 * 128 * (576 + 512) / kernels.device.peak("bf16")
    assert products_s < whole < 3 * products_s


@pytest.mark.parametrize("system", SYSTEMS)
@given(batch=SIZES, tokens=TOKENS, kv_heads=st.sampled_from([1, 2, 8]), group=st.integers(1, 16))
def test_more_work_takes_no_less_time(
    system: str, batch: int, tokens: int, kv_heads: int, group: int
) -> None:
    kernels = kernels_on(system)
    heads = kv_heads * group

    def prefill(batch: int, tokens: int) -> Any:
        return prefill_time_s(kernels, "bf16", batch, tokens, tokens, heads, kv_heads, 128)

    assert prefill(batch, tokens) <= prefill(batch + 1, tokens)
    assert prefill(batch, tokens) <= prefill(batch, tokens + 1)
    floor_s = 2 * batch * heads * tokens**2 * 128 / kernels.device.peak("bf16")
    assert prefill(batch, tokens) > floor_s
    decode = decode_time_s(kernels, "bf16", batch, tokens, heads, kv_heads, 128)
    cache_bytes = 2 * batch * tokens * kv_heads * 128 * 2
    assert decode > cache_bytes / kernels.device.memory_bytes_per_s
    longer = decode_time_s(kernels, "bf16", batch, tokens + 100, heads, kv_heads, 128)
    more = decode_time_s(kernels, "bf16", batch + 1, tokens, heads, kv_heads, 128)
    assert decode <= min(longer, more) * 1.02  # filling blocks of short contexts are approximate


def test_a_kernel_alone_is_priced_as_it_is_dispatched() -> None:
    """TensorRT-LLM on an H100, measured: 16.4 us for 4 sequences of 1,024, 12.8 us for 8."""
    kernels = kernels_on("h100_sxm")
    shapes = (np.array([4, 8]), 1024, 4, 1, 128)
    alone = decode_time_s(kernels, "bf16", *shapes, cache_is_warm=True, alone=True)
    few, more = 1e6 * np.asarray(alone)
    assert few == pytest.approx(16.4, rel=0.03)
    assert more == pytest.approx(12.8, rel=0.03)
    few, more = 1e6 * np.asarray(decode_time_s(kernels, "bf16", *shapes))
    assert 0.95 * more < few <= more


def test_arrays_are_the_numbers_of_each_cell() -> None:
    kernels = kernels_on("h100_sxm")
    batch = np.array([[1], [64]])
    tokens = np.array([1, 100, 4096])
    prefill = np.asarray(prefill_time_s(kernels, "bf16", batch, tokens, tokens, 32, 8, 128))
    decode = np.asarray(decode_time_s(kernels, "bf16", batch, tokens, 32, 8, 128))
    assert prefill.shape == decode.shape == (2, 3)
    for (i, j), value in np.ndenumerate(prefill):
        shape = int(batch[i, 0]), int(tokens[j])
        one = prefill_time_s(kernels, "bf16", shape[0], shape[1], shape[1], 32, 8, 128)
        assert isinstance(one, float)
        assert value == pytest.approx(one)
        assert decode[i, j] == pytest.approx(decode_time_s(kernels, "bf16", *shape, 32, 8, 128))


def test_kernels_by_group_and_fill() -> None:
    """Without groups, with groups too large, or with few blocks, every query head has its block."""
    kernels = kernels_on("h100_sxm")
    grouped = decode_time_s(kernels, "bf16", 256, 64, 64, 2, 128)
    ungrouped = decode_time_s(kernels, "bf16", 256, 64, 64, 1, 128)
    assert ungrouped > 2 * grouped


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((0, 1, 1, 1, 1, 128), "batch"),
        ((1, 8, 4, 1, 1, 128), "context_tokens"),
        ((1, 8, 8, 0, 1, 128), "heads"),
        ((1, 8, 8, 8, 1, -1), "head_dim"),
    ],
)
def test_bad_shapes(shape: tuple[int, int, int, int, int, int], name: str) -> None:
    with pytest.raises(BadValueError, match=name):
        prefill_time_s(kernels_on("h100_sxm"), "bf16", *shape)


def test_unknown_number_format() -> None:
    with pytest.raises(UnknownNameError, match="fp8"):
        prefill_time_s(kernels_on("a100_sxm"), "fp8", 1, 8, 8, 8, 8, 128)
    with pytest.raises(ShardcostError):
        decode_time_s(kernels_on("a100_sxm"), "bf17", 1, 8, 8, 8, 128)


def test_every_file_is_of_a_cluster_and_states_its_fit() -> None:
    for name, content in catalog.contents("attention"):
        kernels = kernels_on(name)
        for section in content.keys() - {"system"}:
            found = kernels.section("attention", section)
            assert found.system == name
            assert found.inherited_from is None
            assert found.fit.rows > 0 or found.fit.source.startswith("assumed")
    assert kernels_on("h200_sxm").section("attention", "prefill").inherited_from == "h100_sxm"


HEAD = "dataset,gpu,phase,batch,query_tokens,context_tokens,heads,kv_heads,head_dim,time_us\n"


def written(folder: Path, *rows: str) -> Table:
    path = folder / "attention.csv"
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return read_table(path)


def test_rows_that_cannot_be_predicted_say_why(tmp_path: Path) -> None:
    table = written(
        tmp_path,
        "mine,h100_sxm,prefill,1,128,128,8,8,128,20",
        "mine,h100_sxm,decode,1,1,128,8,8,128,",
        "mine,abacus,prefill,1,128,128,8,8,128,20",
        "mine,h100_sxm,dreaming,1,128,128,8,8,128,20",
        "mine,h100_sxm,prefill,1,128,64,8,8,128,20",
        "mine,h100_sxm,decode,1,1,64,2,8,128,20",
        "mine,h100_sxm,decode,1,1,six,8,8,128,20",
    )
    found = validate(table, ("phase", "context_band", "group"))
    assert found.predicted == 2
    assert sum(found.skipped.values()) == 5
    assert [dict(each.key) for each in found.groups] == [
        {"phase": "prefill", "context_band": "<=128 tokens", "group": "1"}
    ]


def test_constants_are_found_again(tmp_path: Path) -> None:
    """A table that the model itself wrote is fitted without error."""
    rows = []
    kernels = kernels_on("h100_sxm")
    for batch in (1, 8, 64):
        for tokens in (16, 128, 512, 2048, 8192):
            for heads in (8, 32):
                time_s = prefill_time_s(kernels, "bf16", batch, tokens, tokens, heads, 8, 128)
                shape = f"{batch},{tokens},{tokens},{heads},8,128"
                rows.append(f"mine,h100_sxm,prefill,{shape},{1e6 * time_s}")
    table = written(tmp_path, *rows)
    file = tmp_path / "h100_sxm.toml"
    file.write_text('system = "h100_sxm"\n[other]\nsize = 1\n', encoding="utf-8")
    refit_attention.main([str(table.path), "--output", str(tmp_path)])
    written_back = tomllib.loads(file.read_text(encoding="utf-8"))
    assert written_back["other"] == {"size": 1}
    assert written_back["prefill"]["fit"]["rows"] == len(rows)
    (section,) = refit_attention.sections(table)
    assert np.abs(section.error_pct(refit_attention.fitted(section))).max() < 5


def test_flash_decoding_of_measured_layers(evidence: Path) -> None:
    path = evidence / "measured" / "decode.csv"
    head, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
    columns = dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))
    table = Table("decode", path, columns, len(rows))
    (section,) = refit_attention.sections(table)
    assert section.phase == "flash_decode"
    found = stats(section.error_pct())
    assert found.median_pct is not None
    assert found.median_pct < 4
    again = stats(section.error_pct(refit_attention.fitted(section)))
    assert again.median_pct == pytest.approx(found.median_pct, abs=0.5)
    text = refit_attention.as_toml("mine", {"flash_decode": {"a": 1.5, "grouped": {"b": 2}}})
    assert tomllib.loads(text)["flash_decode"] == {"a": 1.5, "grouped": {"b": 2}}


def test_errors_on_measured_rows(evidence: Path) -> None:
    found = validate(read_table(evidence / "measured" / "attention.csv"), ("gpu", "phase"))
    assert found.predicted == found.table.rows
    for each in found.groups:
        assert each.stats.median_pct is not None
        assert each.stats.p90_pct is not None
        promised = (5, 12) if each.key["phase"] == "prefill" else (7, 22)
        assert each.stats.median_pct < promised[0], each
        assert each.stats.p90_pct < promised[1], each


@pytest.mark.refit
def test_errors_on_batches_that_were_left_out(evidence: Path) -> None:
    table = read_table(evidence / "measured" / "attention.csv").where(
        lambda row: row["gpu"] == "h100_sxm" and row["phase"] == "prefill"
    )
    found = stats(refit_attention.left_out_error_pct(table, np.array(table.columns["batch"])))
    assert found.rows == table.rows
    assert found.median_pct is not None
    assert found.median_pct < 5
