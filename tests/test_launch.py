"""The commands that start a layout: flags of each tool, and a line on what has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from page_server import DECODE
from running import run_error, run_json, run_text

from shardcost import Cluster, Decode, Layout, Prefill, Software, Train, estimate
from shardcost.errors import ShardcostError
from shardcost.options import LAYOUT, WORKLOAD
from shardcost.report.launch import Launch, launch_of, launches_of
from shardcost.report.launch_tools import DESCRIBED, TOOLS
from shardcost.web import answers
from shardcost.web.asks import LaunchAsk, field_values

STEP = Decode(batch=64, context_tokens=4096)
NODES = Cluster.named("h100_sxm", network="ib_8x400g")
TRAINING = Train(global_batch=512, sequence_length=4096)


def words_of(tool: str, layout: Layout, work: Any, model: str = "llama3-70b") -> str:
    """Return the command of one tool."""
    return launch_of(estimate(model, NODES, layout, work), tool).command


def test_an_engine_is_started_with_the_layout_and_the_formats_of_the_estimate() -> None:
    found = estimate("qwen3-8b", "h100_sxm", Layout(tp=4, dp=2), replace(STEP, dtype="fp8"))
    by_tool = {each.tool: each for each in launches_of(found)}
    assert next(iter(by_tool)) == "trtllm"  # the software that was priced
    assert by_tool["vllm"].command == (
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4 --data-parallel-size 2"
        " --quantization fp8 --kv-cache-dtype fp8 --max-num-seqs 32 --max-model-len 4097"
    )
    assert by_tool["sglang"].command == (
        "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp-size 4"
        " --dp-size 2 --quantization fp8 --kv-cache-dtype fp8_e4m3 --max-running-requests 32"
        " --context-length 4097"
    )
    own = by_tool["trtllm"]
    assert own.command == (
        "trtllm-serve Qwen/Qwen3-8B --tp_size 4 --max_batch_size 32"
        " --max_seq_len 4097 --config config.yaml"
    )
    assert own.files == {"config.yaml": "kv_cache_config:\n  dtype: fp8\n"}
    assert any("no flag for dp 2" in note for note in own.notes)
    assert own.script().startswith("cat > config.yaml <<'EOF'\nkv_cache_config:\n")
    assert not any("times are of" in note for note in own.notes)
    assert "times are of trtllm, not of vLLM" in by_tool["vllm"].notes


def test_experts_of_all_replicas_share_the_gpus_of_attention() -> None:
    layout = Layout(dp=16, ep=16, redundant_experts=32)
    work = Decode(batch=1024, context_tokens=4096, draft_tokens=1)
    place = Cluster.named("h200_sxm", network="ib_8x400g")
    found = estimate("deepseek-v3", place, layout, work, software="sglang")
    by_tool = {each.tool: each.command for each in launches_of(found)}
    assert next(iter(by_tool)) == "sglang"
    assert "--tp-size 16 --dp-size 16 --enable-dp-attention" in by_tool["sglang"]
    assert "--ep-size 16 --ep-num-redundant-experts 32" in by_tool["sglang"]
    assert "--nnodes 2 --node-rank $NODE_RANK" in by_tool["sglang"]
    assert "--data-parallel-size 16 --enable-expert-parallel" in by_tool["vllm"]
    assert """--eplb-config '{"num_redundant_experts": 32}'""" in by_tool["vllm"]
    assert by_tool["trtllm"].startswith("srun --nodes 2 --ntasks 16 --ntasks-per-node 8")
    assert "--ep_size 16 --tp_size 16" in by_tool["trtllm"]
    notes = launch_of(found, "trtllm").notes
    assert any("no flag for --redundant-experts 32" in note for note in notes)


def test_megatron_is_told_of_pipeline_recomputation_sharding_and_formats() -> None:
    layout = Layout(
        tp=8, pp=4, dp=2, virtual_stages=2, schedule="interleaved", sequence_parallel=True,
        zero=1, recompute="layernorm+mlp",
    )  # fmt: skip
    words = words_of("megatron", layout, replace(TRAINING, dtype="fp8", gradient_dtype="bf16"))
    for said in (
        "torchrun --nproc-per-node 8 --nnodes 8 ",
        "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64",
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4",
        "--num-virtual-stages-per-pipeline-rank 2",
        "--recompute-granularity selective --recompute-modules layernorm mlp",
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        "--micro-batch-size 1 ",
        "--seq-length 4096",
        "--global-batch-size 512",
        "--bf16 --fp8-format hybrid",
        "--grad-reduce-in-bf16",
    ):
        assert said in words, said
    whole = words_of("megatron", replace(layout, recompute="full", zero=3), TRAINING)
    assert "--recompute-granularity full --recompute-method uniform" in whole
    assert "--data-parallel-sharding-strategy optim_grads_params" in whole
    odd = estimate("llama3-70b", NODES, replace(layout, schedule="zero_bubble", virtual_stages=1),
                   TRAINING)  # fmt: skip
    assert any("no flag for --schedule zero_bubble" in each for each in launch_of(odd).notes)


OTHERS: dict[str, Any] = {
    "scheme": "2d", "context_scheme": "ulysses", "order": "tp-pp-cp-dp", "dispatch": "pplx",
    "sequence_parallel": True, "recompute": "full", "recompute_layers": 2,
    "recompute_method": "uniform", "offload_activations": 0.5, "offload_optimizer": 0.5,
    "offload_update": "device", "first_stage_layers": 18, "last_stage_layers": 18, "zero": 2,
    "schedule": "zero_bubble", "shard_degree": 2, "virtual_stages": 2, "micro_batch": 2, "etp": 2,
    "expert_overlap": "1f1b", "dispatch_dtype": "bf16", "adapters": True, "adapter_rank": 8,
    "adapter_targets": "all", "document_tokens": 512, "mtp_layers": 1, "master_dtype": "bf16",
    "moment_dtype": "bf16", "gradient_dtype": "bf16", "optimizer": "sgd", "dtype": "fp16",
    "attention_dtype": "fp8", "expert_dtype": "fp8", "cache_dtype": "int8", "draft_tokens": 2,
    "redundant_experts": 8, "ep": 2, "cp": 2, "pp": 2, "dp": 2, "tp": 2, "new_tokens": 2,
    "cached_tokens": 512, "batch": 32, "sequence_length": 2048, "prompt_tokens": 2048,
    "context_tokens": 2048,
}  # fmt: skip
"""For each option a value that the layouts below do not have."""


@pytest.mark.parametrize("tool", TOOLS)
def test_no_choice_is_dropped_without_a_word(tool: str) -> None:
    """Each field of layout and workload changes the command, or has a line that names it."""
    works = [TRAINING] if TOOLS[tool].trains else [STEP, Prefill(batch=8, prompt_tokens=1024)]
    base = Layout(tp=4, cp=1, pp=4, dp=4, ep=4)
    changed = 0
    for work in works:
        before = _parts(launch_of(estimate("mixtral-8x7b", NODES, base, work), tool))
        for option in (*LAYOUT, *WORKLOAD):
            for noun in (base, work):
                meant = work.phase in option.applies_to and option.name not in DESCRIBED
                if type(noun) not in option.nouns or not meant:
                    continue
                name = option.field_of(type(noun)).name
                try:
                    other = replace(noun, **{name: OTHERS[option.name]})
                    pair = (other, work) if noun is base else (base, other)
                    found = estimate("mixtral-8x7b", NODES, *pair)
                    after = _parts(launch_of(found, tool))
                except ShardcostError:  # not possible by itself
                    continue
                if name not in {"new_tokens", "cached_tokens"}:  # within the length of a sequence
                    assert after != before, f"{tool}: {option.flag} {OTHERS[option.name]}"
                changed += 1
    assert changed >= 10


def _parts(launch: Launch) -> tuple[Any, ...]:
    return launch.words, launch.notes, dict(launch.files)


def test_commands_print_it_and_refuse_what_does_not_suit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask = "qwen3-8b --on h100_sxm --tp 2 --decode --batch 8 --context-tokens 1024".split()
    text = run_text(capsys, "estimate", *ask, "--launch")
    assert "\nLaunch with TensorRT-LLM\ntrtllm-serve Qwen/Qwen3-8B" in text
    data = run_json(capsys, "estimate", *ask, "--launch", "sglang")
    assert data["launch"]["command"].startswith("python -m sglang.launch_server")
    assert data["launch"]["source"].startswith("https://")
    search = "llama3-8b --on h100_sxm --gpus 2 --decode --batch 8 --context-tokens 1024".split()
    first = run_json(capsys, "plan", *search, "--launch", "vllm")
    degrees = first["best"][0]["layout"]
    assert f"--tensor-parallel-size {degrees['tp']}" in first["launch"]["command"]
    assert "Megatron-LM trains" in run_error(capsys, "estimate", *ask, "--launch", "megatron")
    assert "unknown --launch 'vlm'" in run_error(capsys, "plan", *search, "--launch", "vlm")
    vary = run_error(capsys, "estimate", *ask, "--launch", "--vary", "tp=1,2")
    assert "--launch and --vary exclude each other" in vary


def test_software_without_known_flags_asks_for_a_tool() -> None:
    found = estimate("llama3-8b", NODES, Layout(dp=8, zero=3), TRAINING, software="torchtitan")
    with pytest.raises(ShardcostError, match="no launch flags are known of torchtitan"):
        launch_of(found)
    assert launch_of(found, "megatron").tool == "megatron"
    assert Software.named("vllm_2024").name.startswith("vllm")


def test_the_api_has_all_that_suit_or_one() -> None:
    found = answers.launch(field_values(LaunchAsk, DECODE))["launches"]
    assert [each["tool"] for each in found] == ["trtllm", "vllm", "sglang"]
    one = answers.launch(field_values(LaunchAsk, {**DECODE, "tool": "vllm"}))["launches"]
    assert one == [found[1]]
