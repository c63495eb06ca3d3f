"""What would change nothing, or would not run, is refused or warned about, everywhere alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import run_error, run_json, run_text

from shardcost import Cluster, Decode, Layout, Model, Train, catalog, cli, estimate
from shardcost.errors import BadValueError
from shardcost.estimate.step import software_of
from shardcost.estimate.warnings import CaveatReason
from shardcost.option import PHASES
from shardcost.options import LAYOUT
from shardcost.program.feasibility import without_effect
from shardcost.software import Software, default_software

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


def test_python_warns_of_it_for_the_same_reason() -> None:
    for layout, text in (
        (Layout(tp=4, ep=4), "ep is for experts, which the model lacks: without effect"),
        (Layout(imbalance=1.5), "imbalance is for experts, which the model lacks: "),
        (Layout(dp=8, zero=3), "zero is for training, which this is not: without effect"),
    ):
        result = estimate("llama3-8b", "h100_sxm", layout, DECODED)
        assert result.caveats[0].reason is CaveatReason.WITHOUT_EFFECT
        assert result.warnings[0].startswith(text)
    served = estimate("llama3-8b", "h100_sxm", Layout(), TRAINED, software="vllm")
    assert "vllm does not train; megatron_core does" in served.warnings
    assert not without_effect(Model.named("mixtral-8x7b"), Layout(ep=4, tp=4), DECODED)
    assert not without_effect(Model.named("llama3-8b"), Layout(dp=8, zero=3), TRAINED)
    trained = [option for option in LAYOUT if option.applies_to == ("train",)]
    assert {"zero", "recompute", "micro_batch", "schedule"} <= {each.name for each in trained}


def test_a_search_refuses_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama3-8b --on h100_sxm --gpus 8 --decode --batch 8 --context-tokens 4096".split()
    said = run_error(capsys, *words, "--fix", "zero=3")
    assert "--fix zero is for --train, not --decode" in said
    said = run_error(capsys, *words, "--fix", "ep=2")
    assert "--fix ep is for experts, which the model lacks" in said
    assert "one that serves" in run_error(capsys, *words, "--software", "megatron_core")
    assert run_json(capsys, *words, "--fix", "ep=1")["feasible"]


def test_figures_that_are_set_count_in_every_command(
    capsys: pytest.CaptureFixture[str], repository: Path, tmp_path: Path
) -> None:
    log = str(repository / "docs" / "examples" / "all_reduce-8.txt")
    healthy = json.dumps(run_json(capsys, "check", log, "--on", "h100_sxm"))
    assert cli.main(["check", log, "--on", "h100_sxm", "--set", "link=4TB/s", "--json"]) in {0, 1}
    assert json.loads(capsys.readouterr().out) != json.loads(healthy)
    assert "--set needs --on" in run_error(capsys, "check", log, "--set", "link=4TB/s")
    said = run_error(capsys, "check", log, "--on", "h100_sxm", "--software", "vllm")
    assert "--software is for traces" in said
    words = f"collective all_reduce --gpus 8 --on h100_sxm --tuner {tmp_path}/rules.csv".split()
    plain = run_json(capsys, *words)
    assert run_json(capsys, *words, "--set", "link=90GB/s") != plain


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


def test_machines_with_different_defaults_are_not_compared_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "the software differs: trtllm on h100_sxm, h200_sxm; vllm_rocm on mi300x"
    varied = (*DECODE, "--vary", "on=h100_sxm,h200_sxm,mi300x")
    assert said in run_json(capsys, *varied)["notes"][0]
    assert said in " ".join(run_text(capsys, *varied, "--vary", "batch=1,2").split())
    assert not run_json(capsys, *varied, "--software", "vllm")["notes"]
    assert not run_json(capsys, *DECODE, "--vary", "software=vllm,sglang")["notes"]


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
