"""Caveats of estimates: their reasons, their shares of the time, which of them are shown."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from shardcost import Decode, Layout, Prefill, Train, estimate
from shardcost.cli import main
from shardcost.estimate.result import HOST, Estimate
from shardcost.estimate.warnings import MINOR, Caveat, CaveatReason
from shardcost.report.estimate import as_remarks
from shardcost.units import format_time

TRAINED = Train(global_batch=64, sequence_length=4096)
DECODED = Decode(batch=64, context_tokens=4096)


def decoding() -> Estimate:
    return estimate("llama3-70b", "h100_sxm", Layout(tp=8), DECODED)


def reasons(result: Estimate) -> dict[CaveatReason, Caveat]:
    return {each.reason: each for each in reversed(result.caveats)}


def test_shares_are_those_of_the_operations_priced_so() -> None:
    result = decoding()
    known = {each.text: each for each in result.caveats}
    inherited = next(text for text in known if "elementwise measurements" in text)
    share = result.compute_s["elementwise"] / result.time_s
    assert known[inherited].share == pytest.approx(share)
    assert known[inherited].reason is CaveatReason.INHERITED_KERNELS
    assert all(0 <= each.share <= 1 for each in result.caveats)


def test_the_largest_share_comes_first_after_what_does_not_fit() -> None:
    work = Train(global_batch=64, sequence_length=8192)
    result = estimate("llama3-70b", "mi355x", Layout(tp=8), work)
    shares = [each.share for each in result.caveats if each.reason != CaveatReason.DOES_NOT_FIT]
    assert len(shares) > 3
    assert shares == sorted(shares, reverse=True)
    small = estimate("llama3-70b", "h100_sxm", Layout(), work)
    assert small.caveats[0].reason is CaveatReason.DOES_NOT_FIT
    assert not small.caveats[0].minor


def test_every_reason_occurs() -> None:
    beyond = Decode(batch=1, context_tokens=10**6)
    found = {
        *reasons(
            estimate(
                "llama3-70b", "h100_sxm", Layout(tp=8, zero=1), beyond, software="megatron_core"
            )
        ),
        *reasons(estimate("llama3-70b", "a100_sxm", Layout(), TRAINED)),
        *reasons(estimate("deepseek-v3", "a100_sxm", Layout(tp=8), DECODED)),
        *reasons(estimate("llama3-8b", "mi355x", Layout(tp=8), TRAINED, software="hai_llm")),
        *reasons(estimate("llama3-70b", "h100_sxm", Layout(tp=4, pp=2), DECODED)),
    }
    assert found >= set(CaveatReason) - {CaveatReason.UNEVEN_GROUP}


def test_a_pipeline_that_serves_says_what_a_batch_in_each_stage_does() -> None:
    layout, work = Layout(tp=4, pp=2), Decode(batch=64, context_tokens=4096)
    result = estimate("llama3-70b", "h100_sxm", layout, work)
    caveat = reasons(result)[CaveatReason.ONE_BATCH_IN_FLIGHT]
    assert caveat.share == pytest.approx(0.5)
    half = estimate("llama3-70b", "h100_sxm", layout, replace(work, batch=32))
    said = f"2 x 32 sequences take {format_time(half.tpot_s)} per token and make "
    assert f"{said}{2 * half.tokens_per_s:,.0f} tokens/s" in caveat.text
    assert "`shardcost load`" in caveat.text
    prompt = estimate("llama3-70b", "h100_sxm", layout, Prefill(batch=1, prompt_tokens=4096))
    assert "2 x the tokens/s at this TTFT" in reasons(prompt)[caveat.reason].text
    several = estimate("llama3-70b", "h100_sxm", Layout(tp=1, pp=np.array([1, 2, 4])), work)
    assert "4 x the tokens/s at this TPOT" in reasons(several)[caveat.reason].text
    for alone in (Layout(tp=8), Layout(tp=8, dp=2)):
        assert caveat.reason not in reasons(estimate("llama3-8b", "gb200_nvl72", alone, work))
    assert caveat.reason not in reasons(estimate("llama3-70b", "h100_sxm", layout, TRAINED))


def test_software_that_was_not_fitted_counts_by_its_share() -> None:
    result = estimate("llama3-8b", "h100_sxm", Layout(tp=8), TRAINED, software="hai_llm")
    caveat = reasons(result)[CaveatReason.SOFTWARE_NOT_FITTED]
    assert caveat.share == pytest.approx(result.parts_s[HOST] / result.time_s)


def test_of_many_layouts_the_largest_share_counts() -> None:
    degrees = np.array([1, 8])
    many = estimate("llama3-8b", "mi355x", Layout(tp=degrees), TRAINED)
    alone = [estimate("llama3-8b", "mi355x", Layout(tp=int(tp)), TRAINED) for tp in degrees]
    for each in many.caveats:
        if each.reason is CaveatReason.INHERITED_KERNELS:
            shares = [own.share for one in alone for own in one.caveats if own.text == each.text]
            assert each.share == pytest.approx(max(shares))


def test_what_is_minor_is_counted_and_shown_on_request() -> None:
    minor = [
        Caveat(CaveatReason.INHERITED_KERNELS, f"small {number}", MINOR / 2) for number in (1, 2)
    ]
    large = Caveat(CaveatReason.INHERITED_KERNELS, "large", 2 * MINOR)
    shown = as_remarks([large, *minor], ["of a file"])
    assert shown == [
        "Warning: large",
        "Note: of a file",
        "2 further notes below 5 % of the time: --notes",
    ]
    every = as_remarks([large, *minor], every=True)
    assert every == ["Warning: large", "Note: small 1", "Note: small 2"]
    grown = minor[0]._replace(share=1.0)
    assert as_remarks([minor[0], grown]) == ["Warning: small 1"]


def test_commands_show_notes_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "llama3-70b", "--on", "h100_sxm", "--tp", "8", "--decode", "--batch", "64",
             "--context-tokens", "4096"]  # fmt: skip
    assert main(words) == 0
    short = capsys.readouterr().out
    assert "Warning" not in short
    assert "further notes below 5 % of the time: --notes" in short
    assert main([*words, "--notes"]) == 0
    assert "Note: no elementwise measurements" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warnings"] == []
    assert {each["reason"] for each in found["caveats"]} <= {*CaveatReason}
    assert all(0 <= each["share"] < MINOR and each["text"] for each in found["caveats"])
