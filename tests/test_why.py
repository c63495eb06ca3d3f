"""Every figure can be explained, and its expression, computed again, is the figure."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cases import estimated

from shardcost import Layout, Prefill
from shardcost.collectives.library_time import CollectiveTime, collective_time
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate import estimate
from shardcost.estimate.interval import ranges_of
from shardcost.estimate.why import SUMS, figures, why
from shardcost.receipt import Receipt
from shardcost.report.collective import as_data as collective_as_data
from shardcost.report.estimate_data import as_data as estimate_as_data
from shardcost.report.why import as_data, as_text, collective_figures, why_collective

WHY = [
    "decode",
    "decode, drafts",
    "decode, narrow",
    "decode, tokenweave",
    "prefill, sglang",
    "prefill, own kernels",
    "decode, experts and contexts",
    "decode, latent",
    "train, experts over nodes",
    "train, ZeRO 3",
    "train, recomputed",
    "train, zero bubble",
    "train, interleaved",
    "train, contexts",
    "train, nanotron",
    "train, eager",
    "train, adapters",
]


def assert_holds(answer: Receipt) -> None:
    """Check that the expression over its terms is the figure: to rounding of its largest term."""
    largest = max((abs(t.value) for t in answer.terms if t.unit == answer.unit), default=0.0)
    assert answer.evaluate() == pytest.approx(answer.value, rel=1e-9, abs=1e-9 * largest)


ELSEWHERE = {
    "comm_share": ("comm", "share"),
    "flops": ("compute", "model_flops"),
    "flops_full_attention": ("compute", "model_flops_full_attention"),
    "hardware_flops": ("compute", "hardware_flops"),
}


def datum(data: dict[str, Any], figure: str) -> Any:
    """Return a figure of the report's document."""
    room, _, rest = figure.partition(".")
    if not rest:
        place = ELSEWHERE.get(figure)
        return data[place[0]][place[1]] if place else data[figure]
    name, _, key = rest.rpartition(".")
    if room == "memory":
        kinds, stages = data["memory"]["by_kind"], data["memory"]["stages"]
        held = kinds | {stage: each["total"] for stage, each in stages.items()}
        return stages[name][key] if name else held[key]
    if room == "link":
        return data["comm"]["by_link"][name][key]
    if room == "comm":
        ratios = data["comm"]["ratios_per_layer"]
        groups = data["comm"]["by_group"] | {"ratios": ratios, "": data["comm"]}
        return groups[name][key]
    return data["parts"][rest]


@pytest.mark.parametrize("case", WHY)
def test_every_figure_is_the_datum_and_its_formula_computes_it(case: str) -> None:
    found = estimated(case)
    data, names = estimate_as_data(found), figures(found)
    for name in names:
        answer = why(found, name)
        assert answer.name == name
        assert answer.title
        assert_holds(answer)
        for step in answer.steps:
            assert_holds(step)
        if name.partition(".")[0] not in ("op", *SUMS):
            assert answer.value == datum(data, name)
        for part in answer.parts:  # whoever asks for a number that is shown gets that number
            assert part.name in names
            assert why(found, part.name).value == pytest.approx(part.value, rel=1e-12), part.name
        if answer.error is not None and answer.error.low is not None:
            assert answer.error.high is not None
            assert answer.error.low <= answer.value * (1 + 1e-9)
            assert answer.error.high >= answer.value * (1 - 1e-9)


@pytest.mark.parametrize("case", WHY)
def test_sums_are_the_sums_of_their_parts(case: str) -> None:
    found = estimated(case)
    names = ["time_s", "memory_bytes", "comm.total_s", "comm.bytes"]
    names += [f"parts.{name}" for name in ("gemm", "attention", "elementwise")]
    names += [f"comm.{group}.{of}" for group in found.comm_s for of in ("total_s", "bytes")]
    for name in names:
        answer = why(found, name)
        summed = sum(part.value for part in answer.parts)
        assert summed == pytest.approx(answer.value, rel=1e-9, abs=1e-15), name
    # Asked in turn, the parts of the time are what they were said to contribute.
    for part in why(found, "time_s").parts:
        assert why(found, part.name).value == part.value


@pytest.mark.parametrize("case", WHY)
def test_the_document_names_what_the_document_of_the_report_has(case: str) -> None:
    found = estimated(case)
    data, names = estimate_as_data(found), set(figures(found))
    for name in ("ttft_s", "tpot_s", "tokens_per_s_per_user", "energy_j"):
        assert (name in names) == (data[name] is not None)
    assert {f"parts.{name}" for name in data["parts"]} <= names
    assert {f"memory.{kind}" for kind in data["memory"]["by_kind"]} <= names
    for group, figures_of in data["comm"]["by_group"].items():
        assert {f"comm.{group}.{name}" for name in figures_of} <= names
    assert {f"link.{name}.utilisation" for name in data["comm"]["by_link"]} <= names
    assert {f"comm.ratios.{phase}" for phase in data["comm"]["ratios_per_layer"]} <= names


def test_rates_lie_between_the_tokens_over_both_times() -> None:
    found = estimated("decode")
    error, of_time = why(found, "tokens_per_s").error, why(found, "time_s").error
    assert error is not None
    assert of_time is not None
    assert of_time.low is not None
    assert of_time.high is not None
    assert error.low == pytest.approx(64 / of_time.high)
    assert error.high == pytest.approx(64 / of_time.low)
    assert error.rows == of_time.rows > 0
    assert of_time.low == pytest.approx(why(found, "low_s").value)
    assert of_time.high == pytest.approx(why(found, "high_s").value)


def test_a_gemm_has_tiles_limit_source_and_error() -> None:
    answer = why(estimated("decode"), "op.MLP up")
    assert answer.formula == "chosen x shape + others + launch"
    waves = next(step for step in answer.steps if step.name == "waves")
    assert waves.formula == "max(1, filled + rounding x (ceil(filled) - filled))"
    assert "m x n x k = 64 x 7,168 x 8,192" in answer.words
    assert "limited by memory" in answer.words
    assert any("fitted by shardcost" in source for source in answer.sources)
    assert answer.error is not None
    assert answer.error.median_pct == pytest.approx(2.8, abs=0.1)


def test_memory_is_computed_from_terms_that_the_memory_model_names() -> None:
    answer = why(estimated("train, ZeRO 3"), "memory.activations")
    assert answer.formula == "in flight x (kept x layers / all layers + edges) x tokens"
    assert any("Korthikanti" in source for source in answer.sources)


def test_block_formats_have_the_peak_of_their_elements() -> None:
    found = estimated("decode, narrow")
    device = found.cluster.device
    assert "nvfp4" not in device.peak_flop_per_s
    peak = next(term for term in why(found, "mfu").terms if term.name == "peak")
    assert peak.value == device.peak_flop_per_s["fp4"]


def test_a_collective_names_its_path() -> None:
    answer = why(estimated("decode"), "op.all-reduce (attn out)")
    assert "ring LL of trtllm" in answer.words
    assert answer.error is not None
    assert "all_reduce" in answer.error.like


def test_kernels_of_the_software_cite_their_own_constants() -> None:
    answer = why(estimated("prefill, own kernels"), "op.norm")
    assert any("llm_inference_bench" in source for source in answer.sources)


def test_memory_of_training_has_the_error_of_measured_peaks_and_serving_none() -> None:
    trained, served = (
        why(estimated("train, ZeRO 3"), "memory_bytes"),
        why(estimated("decode"), "memory_bytes"),
    )
    assert trained.error is not None
    assert trained.error.low is not None
    assert trained.error.low < trained.value
    kind = why(estimated("train, ZeRO 3"), "memory.optimizer").error
    assert kind is not None
    assert kind.low is None
    assert "within" in kind.words
    assert served.error is None
    assert why(estimated("decode"), "memory.kv_cache").error is None
    assert "no interval" in served.words
    assert "memory_bytes" not in ranges_of(estimated("decode"))


def test_a_share_of_communication_has_the_error_of_measured_shares() -> None:
    found = estimated("decode")
    error = why(found, "comm_share").error
    assert error is not None
    known = ranges_of(found)["comm_share"]
    assert (error.low, error.high, error.rows) == (known.low, known.high, known.rows)


def test_an_unknown_figure_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown figure 'tokns_per_s'.*tokens_per_s"):
        why(estimated("decode"), "tokns_per_s")
    with pytest.raises(UnknownNameError, match="ttft_s"):
        why(estimated("decode"), "ttft_s")


def test_only_one_layout_can_be_explained() -> None:
    work = Prefill(batch=1, prompt_tokens=512)
    found = estimate("llama3-8b", "h100_sxm", Layout(tp=np.array([1, 2])), work)
    with pytest.raises(BadTypeError, match="one layout"):
        why(found, "time_s")


def test_as_data_has_the_shape_of_the_contract() -> None:
    found = estimated("decode")
    for name in figures(found):
        data = as_data(why(found, name))
        assert {"figure", "title", "value", "unit", "text", "formula", "numbers"} <= set(data)
        assert all({"symbol", "value", "meaning", "source"} <= set(term) for term in data["terms"])
        assert all(set(part) == {"figure", "name", "value", "text"} for part in data["parts"])
        assert isinstance(data["sources"], list)
        if data["error"] is not None:
            wanted = {"words", "like", "rows", "confidence_pct", "low", "high"}
            assert wanted <= set(data["error"])


def test_as_text_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = as_text(why(estimated("decode"), "mfu"))
    assert "= FLOP / (time x GPUs x peak)" in text
    assert "Error: 90 % of " in text
    assert "Made of: flops (" in text
    assert re.search(r"time_s \([0-9.]+ ms\)", text)
    addresses = [line for line in text.splitlines() if len(line) > 80]
    assert all("https://" in line for line in addresses)


COLLECTIVES: dict[str, dict[str, Any]] = {
    "in the switch": {"collective": "all_reduce", "size_bytes": 2**26, "gpus": 8},
    "near a switch": {"collective": "all_reduce", "size_bytes": 2**20, "gpus": 8},
    "engine": {"collective": "all_reduce", "size_bytes": 2**16, "gpus": 8, "library": "vllm"},
    "eager": {
        "collective": "all_reduce",
        "size_bytes": 2**12,
        "gpus": 4,
        "library": "vllm",
        "mode": "eager",
    },
    "across": {"collective": "all_gather", "size_bytes": 2**24, "gpus": 32, "network": "ib_8x400g"},
    "to all": {"collective": "all_to_all", "size_bytes": 2**22, "gpus": 16, "network": "ib_8x400g"},
    "estimated": {
        "collective": "all_reduce",
        "size_bytes": 2**22,
        "gpus": 8,
        "library": "nccl-tuner",
    },
    "sent": {"collective": "send_recv", "size_bytes": 2**20, "gpus": 2},
    "alone": {"collective": "all_reduce", "size_bytes": 2**20, "gpus": 1},
}


def result_of(case: str) -> CollectiveTime:
    return collective_time(cluster="h100_sxm", **COLLECTIVES[case])


@pytest.mark.parametrize("case", COLLECTIVES)
def test_every_figure_of_a_collective_is_the_datum_and_is_computed_again(case: str) -> None:
    result = result_of(case)
    data, names = collective_as_data(result), collective_figures(result)
    rates = {"busbw": "busbw_bytes_per_s", "algbw": "algbw_bytes_per_s"}
    for name in names:
        answer = why_collective(result, name)
        assert_holds(answer)
        key = name.removeprefix("collective.")
        part = key.removeprefix("part.")
        wanted = data["parts"][part] if key != part else data[rates.get(key, key)]
        assert answer.value == wanted
        assert {part.name for part in answer.parts} <= set(names)
        assert as_text(answer)
        assert as_data(answer)["text"] == answer.text


def test_a_rate_of_a_collective_lies_between_both_times() -> None:
    result = result_of("in the switch")
    seconds, rate = (why_collective(result, f"collective.{name}") for name in ("time_s", "algbw"))
    assert seconds.error is not None
    assert rate.error is not None
    assert seconds.error.low is not None
    assert rate.error.high == pytest.approx(2**26 / seconds.error.low)
    assert seconds.error.median_pct is not None


def test_constants_of_a_collective_have_their_sources() -> None:
    answer = why_collective(result_of("in the switch"), "collective.part.wire")
    fitted = [term for term in answer.terms if term.name.startswith("nvls")]
    assert fitted
    assert all("fitted by shardcost" in term.source for term in fitted)


def test_a_collective_refuses_unknown_figures() -> None:
    with pytest.raises(UnknownNameError, match=r"collective\.busbw"):
        why_collective(result_of("sent"), "collective.busb")
    sweep = collective_time("all_reduce", np.array([8.0, 64.0]), "h100_sxm", 8)
    with pytest.raises(BadTypeError, match="one size"):
        why_collective(sweep, "collective.time_s")
