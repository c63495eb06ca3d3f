"""Latent attention: physics it cannot beat, which constants hold, measured rows, estimates."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

from lab import refit_deep_gemm
from lab.descent import errors_pct
from shardcost import catalog
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError
from shardcost.estimate import Estimate, estimate
from shardcost.estimate.why import why
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.mla import (
    DEEPSEEK,
    attention_time_s,
    module_time_s,
    products_time_s,
)
from shardcost.layout import Layout
from shardcost.machine.kernels import CATALOG_KERNELS, Fit, KernelConstants, Section, kernels_of
from shardcost.machine.mla import (
    attention_sections,
    default_kernel,
    family_of,
    mla_section,
    module_sections,
    product_sections,
)
from shardcost.model import LatentAttention, Model
from shardcost.program.flops import model_flops
from shardcost.program.operations import Elementwise, Gemm, LatentCore
from shardcost.validate import mla
from shardcost.validate.validation import validate
from shardcost.workload import Decode, Prefill, Train

KINDS = [("decode", "absorbed"), ("prefill", "absorbed"), ("prefill", "expanded")]
CONTEXTS = [16, 256, 2048, 16384, 131072]
BATCHES = [1, 8, 64, 512]


def on(name: str) -> KernelConstants:
    return kernels_of(Cluster.named(name).device)


def attention_kernels() -> list[tuple[str, str, str, str, str]]:
    """Return GPU, kernel, phase, form and cache format of every section of attention."""
    return [
        (gpu, kernel, phase, form, cache)
        for gpu in catalog.names("mla")
        for kernel, phase, form, cache in (
            name.split("-") for name in catalog.raw("mla", gpu) if name.count("-") == 3
        )
    ]


def decode_s(gpu: str, kernel: str, batch: Any, context: Any, heads: Any, **given: Any) -> Any:
    return attention_time_s(
        on(gpu), kernel, "decode", "absorbed", batch, 1, context, heads, **given
    )


def test_more_work_takes_no_less_time() -> None:
    for gpu, kernel, phase, form, cache in attention_kernels():
        for heads in (8, 128):
            queries = [1] * len(CONTEXTS) if phase == "decode" else CONTEXTS
            for batch in (1, 64):
                times = [
                    attention_time_s(
                        on(gpu), kernel, phase, form, batch, query, context, heads, kv_dtype=cache
                    )
                    for query, context in zip(queries, CONTEXTS, strict=True)
                ]
                assert all(after >= 0.999 * before for before, after in pairwise(times))


def test_no_kernel_beats_the_datasheet() -> None:
    """A cache of 39 GB or more, four times any L2 cache, and 512 queries for each byte of it."""
    for gpu, kernel, phase, form, cache in attention_kernels():
        device = Cluster.named(gpu).device
        narrow = "fp8" in device.peak_flop_per_s
        peak = device.peak("fp8" if narrow else "bf16")
        if phase == "decode":
            found = attention_time_s(
                on(gpu), kernel, phase, form, 512, 1, 131072, 128, kv_dtype=cache
            )
            width = 1 if cache == "fp8" else 2
            assert found > 512 * 131072 * 576 * width / device.memory_bytes_per_s
            flops = 2 * 512 * 131072 * 128 * (576 + 512)
        else:
            key, value = DEEPSEEK.key_and_value(form)
            found = attention_time_s(
                on(gpu), kernel, phase, form, 8, 8192, 8192, 128, kv_dtype=cache
            )
            flops = 8 * 8192 * 8193 * 128 * (key + value)
        assert found > flops / peak


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm", "rtx_pro_6000"])
def test_arrays_are_the_numbers_of_each_cell(gpu: str) -> None:
    contexts = np.array(CONTEXTS, dtype=float)
    for phase, form in KINDS:

        def time_s(tokens: Any, phase: str = phase, form: str = form) -> Any:
            queries = tokens * 0 + 1 if phase == "decode" else tokens
            return module_time_s(
                on(gpu), "default", phase, form, 4, queries, tokens, 16,
                weight_dtype="fp8_block", library="trtllm",
            )  # fmt: skip

        assert time_s(contexts) == pytest.approx([time_s(one) for one in contexts])
    products = products_time_s(on(gpu), "default", "bf16", contexts, np.array([[1.0], [64.0]]))
    assert products.shape == (2, len(CONTEXTS))


def test_a_plain_number_needs_no_numpy() -> None:
    code = (
        "import sys; from shardcost.machine.kernels import kernels_of\n"
        "from shardcost.cluster import Cluster; from shardcost.kernels.mla import module_time_s\n"
        "device = Cluster.named('h100_sxm').device\n"
        "module_time_s(kernels_of(device), 'FLASHMLA', 'decode', 'absorbed', 64, 1, 4096, 16,"
        " weight_dtype='fp8_block', library='vllm')\n"
        "assert 'numpy' not in sys.modules\n"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0


def test_kernels_that_do_not_split_are_flat_in_the_batch() -> None:
    """One request of 131,072 tokens takes nearly as long as 16; Hopper's kernel splits it."""
    for gpu, split in {"a100_sxm": False, "rtx_pro_6000": False, "h100_sxm": True}.items():
        one, many = (decode_s(gpu, "default", b, 131072, 16, library="trtllm") for b in (1, 16))
        assert (many > 4 * one) == split
    assert decode_s("a100_sxm", "default", 1, 131072, 16, library="trtllm") > 0.005


def test_heads_share_the_cache() -> None:
    few, many = (decode_s("h100_sxm", "FLASHMLA", 64, 16384, heads) for heads in (4, 32))
    assert many < 1.2 * few


def test_a_narrow_cache_is_read_faster_unless_it_is_widened() -> None:
    def ratio(kernel: str, library: str) -> float:
        wide, narrow = (
            decode_s("h100_sxm", kernel, 64, 65536, 16, kv_dtype=each, library=library)
            for each in ("bf16", "fp8")
        )
        return float(narrow / wide)

    assert ratio("default", "trtllm") < 0.7
    assert ratio("flash_attention", "sglang") > 3


def test_what_fits_in_the_cache_is_read_faster() -> None:
    """A cache of 19 MB, in an L2 cache of 96 MB."""
    cold = decode_s("l40s", "triton", 16, 1024, 8, warm=False)
    assert cold > 1.05 * decode_s("l40s", "triton", 16, 1024, 8)


@pytest.mark.parametrize("gpu", catalog.names("clusters"))
def test_every_device_with_a_16_bit_peak_runs_every_kernel(gpu: str) -> None:
    device = Cluster.named(gpu).device
    if not {"bf16", "fp16"} & set(device.peak_flop_per_s):
        pytest.skip("no 16-bit peak")
    names = ("FLASHMLA", "triton", "trtllm_mla", "default", "", "never_heard_of")
    for kernel, library in product(names, ("vllm", "sglang", "trtllm", "new")):
        for (phase, form), cache in product(KINDS, ("bf16", "fp8", "int4")):
            found = module_time_s(
                on(gpu), kernel, phase, form, 8, 1 if phase == "decode" else 512, 512, 16,
                weight_dtype="nvfp4", kv_dtype=cache, library=library,
            )  # fmt: skip
            assert 1e-6 < found < 0.5
        assert 1e-6 < products_time_s(on(gpu), kernel, "fp8", 64, 16, library=library) < 0.1


def test_which_constants_hold() -> None:
    def found(gpu: str, kernel: str, library: str, cache: str = "bf16") -> tuple[str, str | None]:
        kind = (kernel, library, "decode", "absorbed", cache)
        section = mla_section(on(gpu), attention_sections(*kind, Cluster.named(gpu).device))
        return section.name, section.inherited_from

    assert found("h100_sxm", "FLASHMLA", "vllm", "fp8") == ("FLASHMLA-decode-absorbed-fp8", None)
    assert found("h200_sxm", "default", "trtllm") == (
        "trtllm_default-decode-absorbed-bf16",
        "h100_sxm",
    )
    assert found("gb200_nvl72", "default", "trtllm")[1] in {"b200_sxm", "b300_sxm"}
    assert found("b200_sxm", "new", "vllm") == ("trtllm_gen-decode-absorbed-bf16", None)
    # No device of AMD was measured: the family's constants over all devices.
    name, donor = found("mi300x", "new_triton_kernel", "vllm")
    assert (name, donor is None) == ("triton-decode-absorbed-bf16", False)
    pooled = tuner_table("mla_pooled")[name]
    kind = ("triton", "vllm", "decode", "absorbed", "bf16")
    section = mla_section(on("mi300x"), attention_sections(*kind, Cluster.named("mi300x").device))
    assert section.constants["peak_share"] == pooled["peak_share"]
    hidden = replace(on("h100_sxm"), tables=CATALOG_KERNELS.without("h100_sxm"))
    assert mla_section(hidden, module_sections("vllm", "bf16")).inherited_from not in {
        None,
        "h100_sxm",
    }


def test_modules_inherit_from_hosts_of_their_kind() -> None:
    """A superchip's CPU launches more slowly: GB200 is like GB300, though B200 has its GPU."""
    section = mla_section(on("gb200_nvl72"), module_sections("vllm", "bf16"))
    assert section.inherited_from == "gb300_nvl72"
    kept = mla_section(on("b200_sxm"), module_sections("vllm", "bf16"))
    assert kept.inherited_from is None


def test_given_constants_come_first() -> None:
    wanted = product_sections("sglang_torch_bmm", "sglang", "bf16")
    base = mla_section(on("h100_sxm"), wanted)
    slow = {**base.constants, "floor_cycles": 1e9}
    section = Section("by_hand", wanted.names[0], slow, Fit("by hand", 1, 1.0, 1.0), None)
    changed = replace(on("h100_sxm"), sections={("mla", wanted.names[0]): section})
    assert products_time_s(changed, "sglang_torch_bmm", "bf16", 1, 1) > 0.4


@pytest.mark.parametrize(
    ("gpu", "kernel", "library", "phase", "form", "family"),
    [
        ("b200_sxm", "default", "trtllm", "decode", "absorbed", "trtllm_gen"),
        ("h100_sxm", "default", "trtllm", "decode", "absorbed", "flashmla"),
        ("h100_sxm", "default", "trtllm", "prefill", "expanded", "fmha"),
        ("l40s", "default", "trtllm", "decode", "absorbed", "unsplit"),
        ("rtx_pro_6000", "TRITON_MLA", "vllm", "decode", "absorbed", "triton"),
        ("gb300_nvl72", "TRTLLM_RAGGED", "vllm", "prefill", "expanded", "trtllm_gen"),
        ("b200_sxm", "FLASHINFER_MLA", "vllm", "decode", "absorbed", "trtllm_gen"),
        ("h100_sxm", "FLASHINFER_MLA", "vllm", "decode", "absorbed", "flash_attention"),
        ("h100_sxm", "fa3", "sglang", "decode", "absorbed", "flash_attention"),
        ("h100_sxm", "unheard_of", "sglang", "decode", "absorbed", "flash_attention"),
        ("l40s", "unheard_of", "vllm", "decode", "absorbed", "triton"),
    ],
)
def test_families(gpu: str, kernel: str, library: str, phase: str, form: str, family: str) -> None:
    assert family_of(kernel, library, phase, form, Cluster.named(gpu).device) == family


def test_engines_have_a_kernel_on_every_device() -> None:
    h100, b200 = (Cluster.named(name).device for name in ("h100_sxm", "b200_sxm"))
    assert default_kernel("vllm", h100, "decode") == "FLASH_ATTN_MLA"
    assert default_kernel("vllm", h100, "decode", "fp8") == "FLASHMLA"
    assert default_kernel("sglang", b200, "prefill") == "trtllm_mla"
    for software, name in product(("vllm", "sglang", "trtllm", "x"), catalog.names("clusters")):
        device = Cluster.named(name).device
        for phase, form in KINDS:
            kernel = default_kernel(software, device, phase)
            assert family_of(kernel, software, phase, form, device)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(BadValueError, match="heads"):
        decode_s("h100_sxm", "FLASHMLA", 1, 16, 0)
    with pytest.raises(BadValueError, match="at least query_tokens"):
        attention_time_s(on("h100_sxm"), "x", "prefill", "expanded", 1, 512, 256, 8)


# --- tables ---------------------------------------------------------------------------------------

ROW = {
    "gpu": "h100_sxm",
    "library": "vllm",
    "kernel": "FLASHMLA",
    "scope": "module",
    "phase": "decode",
    "form": "absorbed",
    "dtype": "bf16",
    "kv_dtype": "fp8",
    "weight_dtype": "fp8_block",
    "batch": "8",
    "query_tokens": "1",
    "context_tokens": "4096",
    "heads": "16",
    "time_us": "100",
}


def table(*rows: dict[str, str]) -> Table:
    every = [ROW | row for row in rows]
    names = {name: "" for row in every for name in row}
    columns = {name: [row.get(name, "") for row in every] for name in names}
    return Table("mla", Path("mla.csv"), columns, len(every))


def test_odd_cells_are_skipped_by_name_and_blank_ones_have_a_meaning() -> None:
    odd = [
        {"scope": "everything"},
        {"phase": "rest"},
        {"form": "folded"},
        {"kv_dtype": "roman"},
        {"heads": "0"},
        {"batch": "1.5"},
        {"context_tokens": ""},
        {"gpu": "abacus"},
        {"hidden": "-3"},
    ]
    fine = [
        {},
        {"form": "", "kv_dtype": "", "dtype": "", "weight_dtype": ""},
        {"kernel": "", "library": "", "query_tokens": ""},
        {"scope": "bmm_q", "context_tokens": "0", "kv_dtype": ""},
        {"phase": "prefill", "form": "expanded", "context_tokens": "", "query_tokens": "64"},
    ]
    found = mla.predictions(table(*odd, *fine))
    words = {"kv_dtype": "dtype unknown", "gpu": "cluster unknown"}
    for reason, row in zip(found.reasons, odd, strict=False):
        (name,) = row
        assert words.get(name, name) in reason
    assert found.reasons[len(odd) :] == [""] * len(fine)
    assert np.isfinite(found.values[len(odd) :]).all()


def test_errors_of_measured_rows(evidence: Path) -> None:
    path = evidence / "measured" / "more" / "mla.csv"
    if not path.is_file():
        pytest.skip(f"no {path.name} among the evidence")
    found = validate(read_table(path), ("scope",))
    assert found.predicted >= 0.99 * found.table.rows
    for stats in (found.overall, *(each.stats for each in found.groups)):
        assert stats.median_pct is not None
        assert stats.median_pct <= 8
        assert stats.p90_pct is not None
        assert stats.p90_pct <= 30
        assert stats.coverage_pct is not None
        assert stats.coverage_pct >= 88


# --- estimates ------------------------------------------------------------------------------------

DECODE = Decode(batch=64, context_tokens=16384)
PREFILL = Prefill(batch=1, prompt_tokens=16384)


def served(model: str, work: Any, on: str = "h200_sxm", software: str = "vllm") -> Estimate:
    return estimate(Model.named(model), Cluster.named(on), Layout(tp=8), work, software=software)


def cores(found: Estimate) -> dict[str, Any]:
    return {entry.op.name: entry for entry in found.entries if isinstance(entry.op, LatentCore)}


def test_engines_decode_absorbed_and_prefill_expanded() -> None:
    for work, form in ((DECODE, "absorbed"), (PREFILL, "expanded")):
        (entry,) = cores(served("deepseek-v3", work)).values()
        assert entry.op.form == form
        assert entry.op.heads == 16
    names = [entry.op.name for entry in served("deepseek-v3", DECODE).entries]
    assert names.index("q absorb") < names.index("attention") < names.index("v absorb")
    assert "kv up" not in names


def test_a_cached_prefix_is_expanded_again() -> None:
    def up(cached: int) -> Gemm:
        work = Prefill(batch=1, prompt_tokens=1024, cached_tokens=cached)
        found = served("deepseek-v3", work)
        return next(e.op for e in found.entries if isinstance(e.op, Gemm) and e.op.name == "kv up")

    assert (up(0).m, up(3072).m) == (1024, 4096)


def test_training_keeps_expanded_attention_and_its_gradient() -> None:
    work = Train(global_batch=64, sequence_length=4096)
    layout = Layout(tp=8, pp=4, dp=4, ep=32)
    found = estimate(
        Model.named("deepseek-v3"), Cluster.named("h100_sxm", "ib_8x400g"), layout, work
    )
    assert not cores(found)
    assert {"attention", "attention gradient"} <= {entry.op.name for entry in found.entries}


MEASURED = Path(refit_deep_gemm.__file__).parent / "measured"


@pytest.mark.parametrize(("phase", "rows", "worst"), [("decode", 19, 15), ("prefill", 11, 9)])
def test_scores_of_an_indexer_take_what_was_measured(phase: str, rows: int, worst: float) -> None:
    every = refit_deep_gemm.rows_of(MEASURED / "own_h200_indexer.csv")
    measured = [row for row in every if row["phase"] == phase]
    constants = catalog.raw("mla", "h200_sxm")[f"indexer-{phase}-absorbed-fp8"]
    median, p90 = errors_pct(refit_deep_gemm.indexer_ratios(measured, constants))
    assert len(measured) == rows
    assert median < 6
    assert p90 < worst


def test_gemms_with_block_scales_take_what_was_measured() -> None:
    every = refit_deep_gemm.rows_of(MEASURED / "own_h200_block_scaled.csv")
    measured = refit_deep_gemm.block_scaled(every)
    share = tuner_table("gemm")["block_scaled"]["peak_share"]
    median, _ = errors_pct(refit_deep_gemm.gemm_ratios(measured, share))
    assert len(measured) == 156
    assert median < 8


@pytest.mark.parametrize("cluster", ["h100_sxm", "b200_sxm", "mi300x", "a100_sxm"])
def test_an_indexer_is_inherited_from_the_gpu_that_was_measured(cluster: str) -> None:
    """Scores of a query over a short context wait for one block's start, whatever the GPU."""
    model, one = Model.named("deepseek-v3.2"), Decode(batch=1, context_tokens=2048)
    result = estimate(model, Cluster.named(cluster), Layout(tp=8), one, software="sglang")
    scores = next(entry for entry in result.entries if entry.op.name == "index scores")
    assert 2e-6 < scores.seconds < 8e-6


def test_an_indexer_reads_all_keys_and_attention_the_chosen_ones() -> None:
    found = served("deepseek-v3.2", DECODE)
    index, core = cores(found)["index scores"].op, cores(found)["attention"].op
    assert (index.context_tokens, index.key_dim, index.value_dim) == (16385, 128, 0)
    assert index.cache_dtype == "fp8"
    assert core.context_tokens == 2048
    names = {entry.op.name for entry in found.entries}
    assert {"index q", "index k", "index weights", "index top-k"} <= names
    top_k = next(
        e.op for e in found.entries if isinstance(e.op, Elementwise) and "top-k" in e.op.name
    )
    assert top_k.bytes_moved == 2 * 4 * 64 * 16385
    prefill = cores(served("deepseek-v3.2", PREFILL))["attention"].op
    assert (prefill.form, prefill.context_tokens) == ("absorbed", 2048)
    assert prefill.cached_tokens == 16384


def test_sparse_attention_pays_for_long_contexts() -> None:
    def attention_s(model: str, context: int) -> float:
        found = served(model, Decode(batch=32, context_tokens=context), "b200_sxm")
        return sum(float(entry.total_s) for entry in cores(found).values())

    assert attention_s("deepseek-v3.2", 131072) < 0.5 * attention_s("deepseek-v3", 131072)


def test_utilisation_counts_what_the_mathematics_needs() -> None:
    """The absorbed form's extra products are no use; an indexer's scores are part of the model."""
    sparse, whole = Model.named("deepseek-v3.2"), Model.named("deepseek-v3")
    found = served("deepseek-v3", DECODE)
    assert model_flops(whole, DECODE, causal=True) < found.hardware_flops
    far = replace(DECODE, context_tokens=131072)
    (part,) = {block.attention for block in sparse.blocks}
    assert isinstance(part, LatentAttention)
    near = replace(DECODE, context_tokens=65536)
    more = model_flops(sparse, far, causal=True) - model_flops(sparse, near, causal=True)
    assert more == pytest.approx(64 * 61 * 2 * 64 * 128 * 65536)
    indexed = served("deepseek-v3.2", DECODE)
    assert model_flops(sparse, DECODE, causal=True) < indexed.hardware_flops


@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("work", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_receipts_of_latent_attention(software: str, work: Any) -> None:
    found = served("deepseek-v3.2", work, "b300_sxm", software)
    for name, entry in cores(found).items():
        answer = why(found, f"op.{name}")
        assert answer.value == pytest.approx(float(entry.seconds))
        assert "floor" in answer.formula
        assert answer.error is not None


def test_inherited_constants_are_said() -> None:
    assert any("latent attention" in each for each in served("deepseek-v3", DECODE).warnings)
    measured = served("deepseek-v3", DECODE, "b200_sxm", "trtllm")
    assert not any("latent attention" in each for each in measured.warnings)


def test_grids_of_layouts_are_priced_alike() -> None:
    model, cluster = Model.named("deepseek-v3.2"), Cluster.named("b200_sxm")
    tp = np.array([1, 2, 4, 8])
    grid = estimate(model, cluster, Layout(tp=tp), DECODE)
    each = [estimate(model, cluster, Layout(tp=int(one)), DECODE).time_s for one in tp]
    assert grid.time_s == pytest.approx(each)
