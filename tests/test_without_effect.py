"""What would change nothing, or would not run, is refused or warned about, everywhere alike."""

from __future__ import annotations

import pytest
from running import run_error, run_json, run_text

from shardcost import Cluster, Decode, Layout, Model, Train, catalog, estimate, search
from shardcost.errors import BadValueError, InfeasibleError
from shardcost.estimate.step import software_of
from shardcost.estimate.warnings import CaveatReason
from shardcost.options import LAYOUT, PHASES, default_software
from shardcost.program.feasibility import first_reason
from shardcost.software import Software

DECODE = "estimate llama3-8b --on h100_sxm --decode --batch 8 --context-tokens 4096".split()
TRAIN = "estimate llama3-8b --on h100_sxm --gpus 8 --train --batch 8 --sequence-length 4096".split()
DECODED = Decode(batch=8, context_tokens=4096)
TRAINED = Train(global_batch=8, sequence_length=4096)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*DECODE, "--tp", "4", "--ep", "4"), "ep is for experts, which the model lacks"),
        ((*DECODE, "--imbalance", "1.5"), "imbalance is for experts, which the model lacks"),
        ((*TRAIN, "--tp", "8", "--routing", "power_law"), "routing is for experts"),
        ((*DECODE, "--zero", "3"), "--zero is for --train, not --decode"),
        ((*DECODE, "--recompute", "full"), "--recompute is for --train, not --decode"),
        ((*DECODE, "--micro-batch", "2"), "--micro-batch is for --train, not --decode"),
        (
            (*TRAIN, "--software", "vllm"),
            "--software must be one that trains, such as megatron_core",
        ),
        ((*DECODE, "--software", "torchtitan"), "--software must be one that serves"),
    ],
)
def test_the_command_refuses_what_changes_nothing(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in run_error(capsys, *words)


def test_python_refuses_experts_that_are_not_and_warns_of_the_rest() -> None:
    with pytest.raises(InfeasibleError, match="ep is for experts") as error:
        estimate("llama3-8b", "h100_sxm", Layout(tp=4, ep=4), DECODED)
    assert error.value.reason.code == "model_without_experts"
    for layout, work, text in (
        (Layout(dp=8, zero=3), DECODED, "zero is for training, which this is not: without effect"),
        (Layout(imbalance=1.5), DECODED, "imbalance is for experts, which the model lacks: "),
    ):
        result = estimate("llama3-8b", "h100_sxm", layout, work)
        assert result.caveats[0].reason is CaveatReason.WITHOUT_EFFECT
        assert result.warnings[0].startswith(text)
    served = estimate("llama3-8b", "h100_sxm", Layout(), TRAINED, software="vllm")
    assert "vllm does not train; megatron_core does" in served.warnings
    assert first_reason(Model.named("mixtral-8x7b"), Layout(ep=4, tp=4), DECODED) is None
    assert first_reason(Model.named("llama3-8b"), Layout(dp=8, zero=3), TRAINED) is None
    trained = [option for option in LAYOUT if option.applies_to == ("train",)]
    assert {"zero", "recompute", "micro_batch", "schedule"} <= {each.name for each in trained}


def test_a_search_counts_it_as_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    space = {"gpus": 8, "ep": (1, 2), "tp": (2, 4)}
    found = search("llama3-8b", "h100_sxm", DECODED, space=space)
    assert {"model_without_experts"} == {reason.code for reason in found.rejected}
    assert all(each.layout.ep == 1 for each in found.best)
    words = "plan llama3-8b --on h100_sxm --gpus 8 --decode --batch 8 --context-tokens 4096".split()
    said = run_error(capsys, *words, "--fix", "zero=3")
    assert "--fix zero is for --train, not --decode" in said
    assert "one that serves" in run_error(capsys, *words, "--software", "megatron_core")


def test_defaults_may_be_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    written = run_json(capsys, *DECODE, *"--zero 0 --recompute none --ep 1 --micro-batch 1".split())
    assert written["time_s"] == run_json(capsys, *DECODE)["time_s"]


def test_an_engine_of_another_vendor_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word if word != "h100_sxm" else "mi300x" for word in DECODE]
    text = " ".join(run_text(capsys, *words, "--software", "trtllm").split())
    assert "Warning: trtllm does not run on AMD Instinct MI300X 192 GB; vllm_rocm does" in text
    data = run_json(capsys, *words)
    assert data["software"] == "vllm_rocm"
    assert not any("does not run" in warning for warning in data["warnings"])
    load = "load llama3-8b --on mi300x --rate 1 --isl 64 --osl 8 --requests 10".split()
    assert run_json(capsys, *load)["pools"][0]["software"] == "vllm_rocm"


def test_the_default_runs_on_every_machine_of_the_catalog() -> None:
    for name in catalog.names("clusters"):
        vendor = Cluster.named(name).device.vendor
        for phase in PHASES:
            software = Software.named(default_software(phase, [vendor]))
            assert vendor in software.vendors, (name, phase)
            assert software.runs(phase)
            assert software.fit is not None


def test_a_vendor_that_nobody_knows_is_not_judged() -> None:
    from dataclasses import replace

    known = Cluster.named("h100_sxm")
    mine = replace(known, name="mine", device=replace(known.device, vendor="acme"))
    result = estimate("llama3-8b", mine, Layout(), DECODED)
    assert CaveatReason.SOFTWARE_OF_OTHER_VENDORS not in {each.reason for each in result.caveats}
    assert result.software.name == "trtllm"


def test_software_of_one_s_own_runs_everything() -> None:
    own = Software(name="mine", title="mine")
    for work in (DECODED, TRAINED):
        assert software_of(own, work).name == "mine"
    with pytest.raises(BadValueError, match=r"unknown Software\.phases 'serve'"):
        Software(name="mine", title="mine", phases=("serve",))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("--decode --batch 1 --context-tokens 1e6", "1,000,000"),
        ("--prefill --batch 1 --prompt-tokens 100k --cached-tokens 100k", "200,000"),
        ("--train --batch 8 --sequence-length 256Ki", "262,144"),
    ],
)
def test_a_context_beyond_the_model_s_is_warned_about(
    capsys: pytest.CaptureFixture[str], words: str, number: str
) -> None:
    base = "estimate llama3-8b --on h100_sxm --tp 8".split()
    warned = f"{number} tokens in a sequence: the longest context of llama3-8b is 131,072"
    assert warned in run_json(capsys, *base, *words.split())["warnings"]
    within = "--decode --batch 1 --context-tokens 131072".split()
    assert not any(
        "longest context" in each for each in run_json(capsys, *base, *within)["warnings"]
    )
