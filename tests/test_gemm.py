"""Matrix products: what the model must obey on any device, and its errors where measured."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import refit_gemm as refit_products
from shardcost import BadValueError, Cluster, UnknownNameError, catalog
from shardcost.cluster import Device
from shardcost.dtypes import BITS
from shardcost.errors import FormatError
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.gemm import (
    conversion_time_s,
    copy_bytes_per_s,
    gemm_bytes,
    gemm_parts,
    gemm_time_s,
)
from shardcost.machine.kernels import Fit, KernelConstants, Section, kernels_of
from shardcost.validate import gemm, overlap
from shardcost.validate.validation import validate

H200 = kernels_of(Cluster.named("h200_sxm").device)
DEVICES = [Cluster.named(name).device for name in catalog.names("clusters")]
MEASURED = [
    (system, name)
    for system, sections in catalog.contents("gemm")
    for name in sections
    if name in BITS
]
TOY = Device(
    name="toy",
    vendor="nvidia",
    architecture="hopper",
    peak_flop_per_s={"bf16": 1e13, "fp8": 2e13},
    memory_bytes=1e10,
    memory_bytes_per_s=1e12,
    sms=10,
)
SIZES = np.array([1, 3, 16, 64, 128, 200, 256, 512, 1000, 2048, 8192, 30000])


def one_tile(**others: Any) -> KernelConstants:
    """Return a toy device with one tile shape whose every part can be worked out by hand."""
    plain = {
        "tiles": [[100, 200, 1]],
        "peak_share": 0.5,
        "large_tile_strain": 0.0,
        "load_bytes_per_clock": 1e9,
        "tile_start_us": 0.0,
        "wave_rounding": 1.0,
        "memory_share": 0.8,
        "split_us": 0.0,
        "split_bytes": 0.0,
        "choice_spread": 0.03,
        "launch_us": 0.0,
        "input_bytes": 0.0,
    }
    section = Section("by_hand", "bf16", plain | others, Fit("by hand", 1, 1.0, 1.0), None)
    return replace(kernels_of(TOY), sections={("gemm", "bf16"): section})


def test_waves_by_hand() -> None:
    """A tile takes 2 x 100 x 200 x k operations at half of a tenth of 10 TFLOP/s."""
    tile_s = 2 * 100 * 200 * 100_000 / (0.5 * 1e12)
    for tiles, waves in ((1, 1), (10, 1), (11, 2), (20, 2), (21, 3)):
        found = gemm_time_s(one_tile(), "bf16", 100 * tiles, 200, 100_000)
        assert found == pytest.approx(waves * tile_s, rel=1e-3)
    half = gemm_time_s(one_tile(wave_rounding=0.5), "bf16", 1100, 200, 100_000)
    assert half == pytest.approx((1.1 + 0.45) * tile_s, rel=1e-3)


def test_memory_by_hand() -> None:
    """One row by a large matrix is a pass over the matrix."""
    n, k = 200 * 10, 10**6
    constants = one_tile(tiles=[[1, 200, 1]])
    found = gemm_time_s(constants, "bf16", 1, n, k)
    assert found == pytest.approx(2 * (n * k + k + n) / 0.8e12, rel=1e-3)


def test_splits_by_hand() -> None:
    """A lone tile with a long k is cut in two, and the halves are added up."""
    whole_s = 2 * 100 * 200 * 10**6 / (0.5 * 1e12)
    added_s = 3e-6 + 8 * 2 * 100 * 200 / 1e12
    constants = one_tile(tiles=[[100, 200, 2]], split_us=3.0, split_bytes=8.0)
    found = gemm_time_s(constants, "bf16", 100, 200, 10**6)
    assert found == pytest.approx(whole_s / 2 + added_s, rel=1e-3)
    assert gemm_parts(constants, "bf16", 100, 200, 10**6).splits == 2


def test_a_launch_is_added_and_the_conversion_of_the_input_is_not() -> None:
    plain = gemm_time_s(one_tile(), "fp8", 64, 64, 1000)
    more = one_tile(launch_us=5.0, conversion_us=7.0, conversion_bytes=3.0)
    assert gemm_time_s(more, "fp8", 64, 64, 1000) - plain == pytest.approx(5e-6)
    found = conversion_time_s(more, "fp8", 64, 1000)
    assert found == pytest.approx(7e-6 + 3 * 64 * 1000 / 1e12)


def test_weights_in_fewer_bits_are_read_narrow_and_multiplied_wide() -> None:
    """Few rows wait for the weights' bytes, many for 16-bit arithmetic, on any device."""
    for name in ("a100_sxm", "h100_sxm", "b200_sxm"):
        on = kernels_of(Cluster.named(name).device)
        few = [gemm_time_s(on, dtype, 1, 16384, 16384) for dtype in ("bf16", "w8a16", "int4")]
        assert 1.6 < few[0] / few[1] < 2.1
        assert 2.4 < few[0] / few[2] < 4
        many = [gemm_time_s(on, dtype, 8192, 16384, 16384) for dtype in ("bf16", "int4")]
        assert 0.85 * many[0] < many[1] <= many[0]


@pytest.mark.parametrize("name", ["h100_sxm", "h200_sxm", "b200_sxm", "mi300x", "l40s", "mi355x"])
def test_a_narrower_format_is_never_slower(name: str) -> None:
    device = Cluster.named(name).device
    narrow = [dtype for dtype in ("fp8", "fp4") if dtype in device.peak_flop_per_s]
    m, n, k = np.meshgrid([1, 16, 64, 512, 4096, 16384], [256, 1280, 8192], [2048, 8192])
    times = [gemm_time_s(kernels_of(device), dtype, m, n, k) for dtype in ("bf16", *narrow)]
    for wider, narrower in itertools.pairwise(times):
        assert (narrower <= 1.02 * wider).all()


def test_a_replayed_product_finds_small_weights_in_the_cache() -> None:
    small, large = (1, 1280, 8192), (1, 57344, 8192)
    cold, warm = (gemm_time_s(H200, "fp8", *small, warm=warm) for warm in (False, True))
    assert warm < 0.95 * cold
    cold, warm = (gemm_time_s(H200, "fp8", *large, warm=warm) for warm in (False, True))
    assert warm == pytest.approx(cold, rel=0.02)


@pytest.mark.parametrize(("cluster_sms", "left"), [(1, 9), (2, 8), (4, 6)])
def test_one_multiprocessor_less_costs_its_cluster_and_a_wave_that_was_full(
    cluster_sms: int, left: int
) -> None:
    shape = (2000, 200, 100_000)
    sharing = kernels_of(TOY).section("gemm", "sharing")
    clusters = sharing._replace(constants={**sharing.constants, "cluster_sms": cluster_sms})
    tile = one_tile()
    on = replace(tile, sections={**tile.sections, ("gemm", "sharing"): clusters})
    alone = gemm_time_s(on, "bf16", *shape)
    shared = gemm_time_s(on, "bf16", *shape, sms_taken=1)
    assert shared == gemm_time_s(on, "bf16", *shape, sms_taken=cluster_sms)
    rounding = sharing.constants["wave_rounding"]
    stretched = 2 * 10 / left
    assert shared / alone == pytest.approx(
        (stretched + rounding * (np.ceil(stretched) - stretched)) / 2, rel=1e-3
    )


def test_a_copy_beside_takes_memory() -> None:
    alone = gemm_time_s(H200, "bf16", 1, 16384, 16384)
    rates = [gemm_time_s(H200, "bf16", 1, 16384, 16384, memory_taken=g * 1e12) for g in (1, 2)]
    assert alone < rates[0] < rates[1]
    assert gemm_time_s(H200, "bf16", 1, 16384, 16384, memory_taken=1e15) < 2 * alone


def test_copies_get_in_each_others_way() -> None:
    rates = copy_bytes_per_s(H200, np.arange(1, 65))
    assert (np.diff(rates) > 0).all()
    assert (np.diff(rates / np.arange(1, 65)) < 0).all()
    assert copy_bytes_per_s(H200, 132) < H200.device.memory_bytes_per_s
    assert copy_bytes_per_s(H200, 0) == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("taken", [0, 1, 16])
def test_arrays_and_numbers_agree(dtype: str, taken: int) -> None:
    m, n = SIZES[:, None], SIZES[None, :] * 8
    grid = gemm_time_s(H200, dtype, m, n, 4096, sms_taken=taken)
    assert grid.shape == (len(SIZES), len(SIZES))
    for i in range(len(SIZES)):
        for j in range(len(SIZES)):
            shape = (int(m[i, 0]), int(n[0, j]), 4096)
            one = gemm_time_s(H200, dtype, *shape, sms_taken=taken)
            assert isinstance(one, float)
            assert one == pytest.approx(grid[i, j], rel=1e-12)


def test_arrays_of_what_is_taken() -> None:
    taken = np.array([0, 1, 2, 64])
    found = gemm_time_s(H200, "bf16", 4096, 4096, 4096, sms_taken=taken)
    assert found[0] == pytest.approx(gemm_time_s(H200, "bf16", 4096, 4096, 4096), rel=1e-12)
    assert (np.diff(found) >= 0).all()
    assert found[3] > 132 / 68 * 0.9 * found[0]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_no_device_beats_its_datasheet(device: Device) -> None:
    for dtype in device.peak_flop_per_s:
        m, n, k = SIZES[:, None, None], 64 * SIZES[None, :, None], np.array([64, 1024, 16384])
        found = gemm_time_s(kernels_of(device), dtype, m, n, k)
        assert (found > 2 * m * n * k / device.peak(dtype)).all()
        assert (found > gemm_bytes(dtype, m, n, k) / device.memory_bytes_per_s).all()
        padded = 2 * np.maximum(m, 256) * np.maximum(n, 256) * k / device.peak(dtype)
        moved = gemm_bytes("fp32", m, n, k) / device.memory_bytes_per_s
        assert (found < 1e-3 + 10 * padded + 4 * moved).all()


@pytest.mark.parametrize(("name", "dtype"), MEASURED)
def test_more_work_takes_longer_but_for_the_choice_of_a_shape(name: str, dtype: str) -> None:
    """Sixteen times the work never takes less; a little more may, as on silicon."""
    device = Cluster.named(name).device
    for axis in range(3):
        sizes: list[Any] = [512, 4096, 4096]
        sizes[axis] = 2 ** np.arange(6, 16)
        found = gemm_time_s(kernels_of(device), dtype, *sizes)
        assert (found[4:] > 0.94 * found[:-4]).all()  # the mean over shapes may fall a little
        assert (found[1:] > 0.85 * found[:-1]).all()


@pytest.mark.parametrize(("name", "dtype"), MEASURED)
def test_constants_are_physical(name: str, dtype: str) -> None:
    section = kernels_of(Cluster.named(name).device).gemm(dtype)
    assert section.inherited_from is None
    assert 0.5 < section.constants["peak_share"] <= 1
    assert 0.6 < section.constants["memory_share"] <= 1
    assert 0 <= section.constants["wave_rounding"] <= 1
    if "load_memory_share" in section.constants:  # a systolic array, loaded from memory
        assert 0.5 < section.constants["load_memory_share"] <= 1
    else:
        assert 30 < section.constants["load_bytes_per_clock"] < 500
    assert 1 < section.constants["launch_us"] < 20


def test_inherited_constants_fit(measured: Table) -> None:
    """A device that nobody had measured would be predicted to a tenth, in 16 bits."""
    hopper = {name: Cluster.named(name).device for name in ("h100_sxm", "h200_sxm")}
    fallback = dict(zip(hopper, reversed(hopper.values()), strict=True))
    for rows in refit_products.measured_gemms(measured):
        gpu, dtype, *_ = rows.case
        if gpu in hopper and dtype == "bf16":
            other = replace(kernels_of(fallback[gpu]), device=hopper[gpu])
            found = gemm_time_s(other, dtype, *rows.shapes)
            assert np.median(np.abs(found / rows.time_s - 1)) < 0.08


def test_a_large_product_runs_near_its_peak() -> None:
    rate = 2 * 8192**3 / gemm_time_s(H200, "bf16", 8192, 8192, 8192)
    assert 0.6 < rate / H200.device.peak("bf16") < 0.85


def test_products_side_by_side() -> None:
    one = gemm_time_s(H200, "bf16", 16, 2048, 4096)
    many = gemm_time_s(H200, "bf16", 16, 2048, 4096, batch=64)
    assert one < many < 64 * one
    assert gemm_bytes("bf16", 16, 2048, 4096, 64) == 64 * gemm_bytes("bf16", 16, 2048, 4096)
    wide = gemm_time_s(H200, "bf16", 4096, 4096, 4096, batch=np.array([1, 2, 4]))
    assert wide[2] == pytest.approx(4 * wide[0], rel=0.1)


def test_bytes_of_block_formats_count_their_scales() -> None:
    plain, scaled = (gemm_bytes(each, 0, 1, 1024) for each in ("fp4", "nvfp4"))
    assert (plain, scaled) == (512, 576)


def test_which_constants_speak_for_a_format() -> None:
    a100, b200, v100 = (
        kernels_of(Cluster.named(name).device) for name in ("a100_sxm", "b200_sxm", "v100_cube")
    )
    assert H200.gemm("float16").name == "bf16"
    assert H200.gemm("int8").name == "fp8"
    assert b200.gemm("mxfp8").name == "fp8"
    assert b200.gemm("fp4").name == "fp8"
    assert replace(b200, autotuned=False).gemm("fp4").name == "nvfp4"
    assert b200.gemm("int4").name == a100.gemm("fp8").name == "bf16"
    assert a100.gemm("int8")[:2] == ("a100_sxm", "bf16")
    assert v100.gemm("fp16").inherited_from == "a100_sxm"
    assert H200.gemm("bf16").inherited_from is None
    assert gemm_time_s(b200, "nvfp4", 64, 64, 64) > gemm_time_s(b200, "fp4", 64, 64, 64)


def test_a_format_that_a_device_lacks() -> None:
    fp8, bf16 = (gemm_time_s(DONOR, dtype, 1, 16384, 16384) for dtype in ("fp8", "bf16"))
    assert fp8 < 0.7 * bf16  # weights alone: read narrow, multiplied in 16 bits
    with pytest.raises(UnknownNameError, match="dtype"):
        gemm_time_s(H200, "bf17", 1, 1, 1)


def test_a_product_says_why() -> None:
    small = gemm_parts(H200, "bf16", 1, 8192, 8192)
    large = gemm_parts(H200, "bf16", 8192, 8192, 8192)
    assert small.limit == "memory"
    assert large.limit != "memory"
    assert large.compute_s > large.memory_s
    assert large.waves > 10
    for parts, m in ((small, 1), (large, 8192)):
        assert parts.time_s == gemm_time_s(H200, "bf16", m, 8192, 8192)
        assert 0 < parts.chosen <= 1
        assert parts.section.fit.rows > 100
        together = max(parts.compute_s, parts.memory_s) + parts.split_s + parts.fixed_s
        assert parts.time_s == pytest.approx(together, rel=0.25)


def write(folder: Path, name: str, head: str, *rows: str) -> Table:
    path = folder / name
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return read_table(path)


GEMM = "dataset,gpu,dtype,m,n,k,time_us"


def test_rows_that_cannot_be_predicted_say_why(tmp_path: Path) -> None:
    table = write(
        tmp_path,
        "gemm.csv",
        GEMM,
        "x,h200_sxm,bf16,16,4096,4096,13",
        "x,h200_sxm,bf16,0,4096,4096,13",
        "x,h200_sxm,bf17,16,4096,4096,13",
        "x,a100_sxm,fp8,16,4096,4096,13",
        "x,nowhere,bf16,16,4096,4096,13",
    )
    found = gemm.predictions(table)
    assert np.isfinite(found.values).tolist() == [True, False, False, True, False]
    assert found.values[0] == pytest.approx(1e6 * gemm_time_s(H200, "bf16", 16, 4096, 4096))
    reasons = "\n".join(found.reasons)
    for each in ("m must be", "dtype unknown", "cluster unknown"):
        assert each in reasons


def test_overlapped_rows(tmp_path: Path) -> None:
    head = "gpu,m,n,k,ctas,gemm_us_alone,gemm_us_overlapped"
    table = write(tmp_path, "overlap.csv", head, "h200_sxm,2048,7168,8192,16,305,408")
    taken = copy_bytes_per_s(H200, 16)
    expected = gemm_time_s(H200, "bf16", 2048, 7168, 8192, sms_taken=16, memory_taken=taken)
    assert overlap.predictions(table).values == pytest.approx([1e6 * expected])


def test_refit_finds_the_constants_that_made_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        f"made,a100_sxm,bf16,{m},{n},{k},{1e6 * gemm_time_s(DONOR, 'bf16', m, n, k)}"
        for m in (1, 16, 128, 512, 2048, 8192)
        for n in (1024, 3072, 5120, 12288)
        for k in (512, 2048, 7168)
    ]
    write(tmp_path, "gemm.csv", GEMM, *rows)
    refit_products.main([str(tmp_path / "gemm.csv"), "--output", str(tmp_path), "--left-out"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line in lines:
        median, p90 = (
            float(each) for each in line.replace("%", "").replace(",", "").split()[-3::2]
        )
        assert median < 5
        assert p90 < 12
    text = (tmp_path / "a100_sxm.toml").read_text(encoding="utf-8")
    assert 'source = "fitted by shardcost to measured rows of made"' in text
    assert "rows = 72" in text


DONOR = kernels_of(Cluster.named("a100_sxm").device)


def test_refit_refuses_other_tables(tmp_path: Path) -> None:
    empty = write(tmp_path, "gemm.csv", GEMM)
    with pytest.raises(BadValueError, match="tables with rows"):
        refit_products.main([str(empty.path)])
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(FormatError):
        refit_products.main([str(tmp_path / "bad.csv")])


@pytest.fixture(scope="module")
def measured(evidence: Path) -> Table:
    return read_table(evidence / "measured" / "gemm.csv")


def test_errors_on_measured_gemms(measured: Table) -> None:
    found = validate(measured, ("gpu", "dtype"))
    assert found.predicted == measured.rows
    assert found.overall.median_pct is not None
    assert found.overall.p90_pct is not None
    assert found.overall.median_pct < 4.5
    assert found.overall.p90_pct < 12
    for group in found.groups:
        assert group.stats.median_pct is not None
        assert group.stats.p90_pct is not None
        assert group.stats.median_pct < 6, group
        assert group.stats.p90_pct < 15, group


def test_errors_on_overlapped_products(evidence: Path) -> None:
    found = validate(read_table(evidence / "measured" / "overlap.csv")).overall
    assert found.rows == 54
    assert found.median_pct is not None
    assert found.median_pct < 7


@pytest.mark.refit
def test_errors_on_shapes_that_were_left_out(measured: Table) -> None:
    """Held out, a fit is hardly worse than in sample: constants are few and mean something."""
    for rows in refit_products.measured_gemms(measured):
        if rows.case.gpu != "h200_sxm":
            continue
        inside = np.abs(rows.error_pct(refit_products.fitted(rows)))
        for what, errors in refit_products.left_out(rows):
            found = np.abs(errors[np.isfinite(errors)])
            assert np.median(found) < 1.4 * np.median(inside), (rows.case, what)
            assert np.quantile(found, 0.9) < 15, (rows.case, what)


def test_rows_of_an_engine_contain_the_conversion_of_their_input(tmp_path: Path) -> None:
    row = "h100_sxm,fp8,64,4096,4096,20"
    table = write(tmp_path, "gemm.csv", GEMM, f"aic_gemm_h100_sxm_trtllm_1,{row}", f"own,{row}")
    with_it, without = gemm.predictions(table).values
    on = kernels_of(Cluster.named("h100_sxm").device)
    assert with_it - without == pytest.approx(1e6 * conversion_time_s(on, "fp8", 64, 4096))
    assert with_it > without + 5


def test_kernels_that_a_compiler_chose_have_constants_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    rows = ("bf16,,5.0", "bf16,xla,5.0", "tf32,xla,5.0", "bf16,crystal ball,5.0")
    lines = [
        f"h100_sxm,{dtype},256,256,256,{time},{name}"
        for dtype, name, time in (row.split(",") for row in rows)
    ]
    path.write_text("\n".join(["gpu,dtype,m,n,k,time_us,framework", *lines]) + "\n")
    found = validate(read_table(path))
    assert found.skipped == {"framework unknown: 'crystal ball'": 1}
    library, compiled, wider = found.predictions.values[:3]
    assert library < compiled < wider
    on = gemm.GemmCase("h100_sxm", "tf32", framework="xla").kernels()
    assert on.gemm("tf32").name == "xla_tf32"
    assert on.gemm("bf16").name == "xla_bf16"
    assert kernels_of(Cluster.named("h100_sxm").device).gemm("tf32").name == "bf16"


def test_errors_of_kernels_that_a_compiler_chose(evidence: Path) -> None:
    path = evidence / "measured" / "more" / "gemm_xla.csv"
    if not path.is_file():
        pytest.skip("no table of compiled GEMMs beside the project")
    stats = validate(read_table(path)).overall
    assert stats.rows == 250
    assert stats.median_pct is not None
    assert stats.median_pct < 6
