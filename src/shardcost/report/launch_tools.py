"""Which flag of a framework or engine says what of a layout: one table for each tool.

A table has the flags that take one field's value and the words for one field's choice; a function
beside it says what depends on several fields. `shardcost.report.launch` puts a command together
from them and says what no flag expressed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from shardcost.estimate.result import Estimate
from shardcost.layout import Layout
from shardcost.memory.parameters import expert_tensor_degree
from shardcost.model import Attention, Experts, FeedForward
from shardcost.workload import Decode, Prefill, Train

CONFIG_FILE: Final = "config.yaml"
"""Options of TensorRT-LLM that have no flag."""
_PORT: Final = 29500
_HEAD: Final = "$HEAD_NODE"


@dataclass
class Draft:
    """A command in the making."""

    result: Estimate
    title: str
    words: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    """What starts the program on several nodes."""
    notes: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    """Options of a file of the engine's own."""
    said: set[str] = field(default_factory=set)
    """Fields of layout and workload that the command expresses."""

    def say(self, fields: str, *words: object) -> None:
        """Add words that express some fields."""
        self.said |= set(fields.split())
        self.words += map(str, words)

    def note(self, fields: str, line: str) -> None:
        """Say in a line what is to know about some fields."""
        self.said |= set(fields.split())
        self.notes.append(line)

    @property
    def layout(self) -> Layout:
        """Of the estimate."""
        return self.result.layout

    @property
    def train(self) -> Train:
        """The workload, of a tool that trains."""
        return cast("Train", self.result.workload)

    @property
    def served(self) -> Prefill | Decode:
        """The workload, of an engine."""
        return cast("Prefill | Decode", self.result.workload)

    @property
    def nodes(self) -> int:
        """Nodes that the layout occupies."""
        return -(-int(self.layout.devices) // int(self.result.cluster.gpus_per_node))

    @property
    def experts(self) -> bool:
        """Whether the model has experts."""
        return any(isinstance(block.feed_forward, Experts) for block in self.result.model.blocks)


class Tool(NamedTuple):
    """How a framework or engine is started."""

    title: str
    source: str
    program: str
    """What is run; an engine's is followed by the model."""
    trains: bool
    flags: Mapping[str, str]
    """By field: the flag that takes its value, where it is not the default."""
    words: Mapping[tuple[str, Any], str]
    """By field and value: the words that say so."""
    rest: Callable[[Draft], None]
    """Adds what depends on more than one field."""


# ------------------------------------------------------------------------------- Megatron-LM

_MEGATRON_FORMATS: Final = {
    "fp32": "",
    "bf16": "--bf16",
    "fp16": "--fp16",
    "fp8": "--bf16 --fp8-format hybrid",
    "fp8_block": "--bf16 --fp8-format e4m3 --fp8-recipe blockwise",
    "mxfp8": "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
    "nvfp4": "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4",
}
_MEGATRON_DISPATCH: Final = {
    "nccl": "alltoall",
    "allgather": "allgather",
    "deepep": "flex --moe-flex-dispatcher-backend deepep",
    "hybridep": "flex --moe-flex-dispatcher-backend hybridep",
}
_MEGATRON_CP: Final = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a"}
_MEGATRON_SHARDED: Final = {2: "optim_grads", 3: "optim_grads_params"}
_PRECISION_AWARE: Final = "--use-precision-aware-optimizer"


def _megatron(draft: Draft) -> None:
    layout, work, software = draft.layout, draft.train, draft.result.software
    per_node = min(int(layout.devices), int(draft.result.cluster.gpus_per_node))
    draft.before += ["torchrun", "--nproc-per-node", str(per_node)]
    if draft.nodes > 1:
        draft.before += ["--nnodes", str(draft.nodes), "--node-rank", "$NODE_RANK"]
        draft.before += ["--master-addr", _HEAD, "--master-port", str(_PORT)]
        draft.notes.append(
            f"run it on each of the {draft.nodes} nodes with HEAD_NODE and NODE_RANK (from 0) set"
        )
    draft.words[:0] = _megatron_shape(draft)
    draft.say("dp batch global_batch", "--global-batch-size", work.global_batch)
    if work.dtype in _MEGATRON_FORMATS:
        draft.say("dtype", *_MEGATRON_FORMATS[work.dtype].split())
    if layout.pp > 1 and layout.virtual_stages > 1:
        stages = "--num-virtual-stages-per-pipeline-rank"
        draft.say("virtual_stages schedule", stages, layout.virtual_stages)
    if layout.cp > 1:
        draft.say("context_scheme", "--cp-comm-type", _MEGATRON_CP[layout.context_scheme])
    _megatron_recompute(draft)
    _megatron_sharding(draft)
    _megatron_experts(draft)
    if software.tp_overlap == "chunked" and layout.tp > 1 and layout.sequence_parallel:
        draft.say("tp_overlap", "--tp-comm-overlap")
    if work.document_tokens is not None:
        draft.say("document_tokens", "--reset-position-ids", "--reset-attention-mask")
    draft.notes.append("data, tokenizer, learning rate and checkpoints are yours to add")


def _megatron_shape(draft: Draft) -> list[str]:
    """Return the arguments that describe the model, where its layers are all of one kind."""
    model = draft.result.model
    attention, part = model.blocks[0].attention, model.blocks[0].feed_forward
    expert = part.expert if isinstance(part, Experts) and not part.shared else part
    one_kind = len(model.blocks) == 1 and isinstance(attention, Attention)
    if not one_kind or not isinstance(expert, FeedForward):
        draft.notes.append(
            "Megatron-LM takes the shape of the model as arguments of its own (--num-layers,"
            f" --hidden-size …): put those of {model.name} in MODEL_ARGS"
        )
        return ["$MODEL_ARGS"]
    heads = cast("Attention", attention)
    words: list[Any] = [
        *("--num-layers", model.num_layers, "--hidden-size", model.hidden_size),
        *("--ffn-hidden-size", expert.width, "--num-attention-heads", heads.heads),
        *("--kv-channels", heads.head_dim),
    ]
    if heads.kv_heads != heads.heads:
        words += ["--group-query-attention", "--num-query-groups", heads.kv_heads]
    words += ["--swiglu"] if expert.gated else []
    words += ["--normalization", "RMSNorm"] if model.norm == "rms" else []
    words += [] if model.learned_positions else ["--position-embedding-type", "rope"]
    words += [] if expert.bias else ["--disable-bias-linear"]
    words += [] if model.tied_embeddings else ["--untie-embeddings-and-output-weights"]
    if isinstance(part, Experts):
        words += ["--num-experts", part.count, "--moe-router-topk", part.top_k]
        words += ["--moe-grouped-gemm"]
    words += ["--max-position-embeddings", model.context_tokens or draft.train.sequence_length]
    return [str(word) for word in words]


def _megatron_recompute(draft: Draft) -> None:
    layout = draft.layout
    kind, fields = layout.recompute, "recompute recompute_method recompute_layers"
    if kind == "full":
        words = ["--recompute-granularity", "full"]
        if layout.recompute_layers is None:  # every layer by itself
            words += ["--recompute-method", "uniform", "--recompute-num-layers", "1"]
        else:
            count = layout.recompute_layers
            if layout.recompute_method == "block":  # Megatron counts those of a virtual stage
                count = -(-count // layout.virtual_stages)
            words += ["--recompute-method", layout.recompute_method]
            words += ["--recompute-num-layers", str(count)]
        draft.say(fields, *words)
    elif kind == "selective":
        draft.say(fields, "--recompute-granularity", "selective")
    elif kind != "none":
        modules = kind.split("+")
        draft.say(fields, "--recompute-granularity", "selective", "--recompute-modules", *modules)


def _megatron_sharding(draft: Draft) -> None:
    """Add ZeRO stages, offloading, the optimizer's formats, and what overlaps with them."""
    layout, work = draft.layout, draft.train
    if layout.zero:
        draft.say("zero", "--use-distributed-optimizer")
    if layout.zero in _MEGATRON_SHARDED:
        draft.say("zero", "--use-megatron-fsdp", "--no-gradient-accumulation-fusion")
        draft.say("zero", "--data-parallel-sharding-strategy", _MEGATRON_SHARDED[layout.zero])
        draft.say("zero", "--ckpt-format", "fsdp_dtensor")
    if layout.zero and layout.shard_degree is not None:
        groups = layout.dp * layout.cp // layout.shard_degree
        draft.say("shard_degree", "--num-distributed-optimizer-instances", groups)
    if draft.result.software.dp_overlap and layout.dp * layout.cp > 1:
        gathers = ["--overlap-param-gather"] if layout.zero else []
        draft.say("dp_overlap", "--overlap-grad-reduce", *gathers)
    aware = False
    if layout.offload_optimizer and layout.offload_update == "host":
        draft.say("offload_optimizer offload_update", "--optimizer-cpu-offload")
        draft.say("offload_optimizer", "--optimizer-offload-fraction", layout.offload_optimizer)
        aware = True
    if work.moment_dtype in {"bf16", "fp16", "fp8"}:
        draft.say("moment_dtype", "--exp-avg-dtype", work.moment_dtype)
        draft.say("moment_dtype", "--exp-avg-sq-dtype", work.moment_dtype)
        aware = True
    if work.master_dtype == "fp16":
        draft.say("master_dtype", "--main-params-dtype", "fp16")
        aware = True
    if aware:
        draft.say("", _PRECISION_AWARE)


def _megatron_experts(draft: Draft) -> None:
    layout = draft.layout
    if not draft.experts:
        return
    degree = int(expert_tensor_degree(layout))
    if degree != layout.tp:  # Megatron's own default
        draft.say("etp", "--expert-tensor-parallel-size", degree)
    draft.said.add("etp")
    carrier = draft.result.software.dispatch if layout.dispatch == "auto" else layout.dispatch
    if carrier in _MEGATRON_DISPATCH and layout.ep > 1:
        words = _MEGATRON_DISPATCH[carrier].split()
        draft.say("dispatch", "--moe-token-dispatcher-type", *words)


# ------------------------------------------------------------------------------------ engines


def _weights(draft: Draft, quantized: Mapping[str, str]) -> None:
    """Say the formats of the weights: the checkpoint's own, or what the engine makes of it."""
    model, work = draft.result.model, draft.served
    own = (
        model.weight_dtype,
        model.attention_dtype or model.weight_dtype,
        model.expert_dtype or model.weight_dtype,
    )
    asked = (work.part_dtype(), work.part_dtype("attention"), work.part_dtype("expert"))
    fields = "dtype attention_dtype expert_dtype"
    if asked == own:
        draft.said |= set(fields.split())
    elif len(set(asked)) == 1 and own == ("bf16",) * 3 and asked[0] in quantized:
        draft.say(fields, *quantized[asked[0]].split())
    else:
        draft.note(
            fields,
            f"weights in {work.formats_text.partition(', KV cache')[0]}: name a checkpoint in that"
            f" format; the catalog's {model.name} is in {own[0]}",
        )


def _served(draft: Draft) -> tuple[int, int, int]:
    """Return sequences of a replica, tokens of a sequence, and tokens of a replica's prompts."""
    work = draft.served
    sequences = -(-int(work.batch) // int(draft.layout.dp))
    draft.said |= {"batch", "context_tokens", "prompt_tokens", "cached_tokens", "new_tokens"}
    if isinstance(work, Decode):
        return sequences, int(work.context_tokens + work.query_tokens), 0
    length = int(work.cached_tokens + work.prompt_tokens)
    return sequences, length + 1, sequences * int(work.prompt_tokens)


def _cache(draft: Draft) -> str:
    """Return the format of the KV cache where it is not 16 bits, else an empty text."""
    dtype = draft.served.cache_dtype
    if dtype is None or dtype in {"bf16", "fp16"}:
        draft.said.add("cache_dtype")
        return ""
    return dtype


_LENGTH: Final = (
    "{} covers the tokens of this step alone: raise it to the longest prompt with its output"
)


def _vllm(draft: Draft) -> None:
    layout, work = draft.layout, draft.served
    sequences, length, tokens = _served(draft)
    if draft.experts and (layout.ep > 1 or layout.dp > 1):
        _vllm_experts(draft)
    if layout.dispatch == "deepep":
        kind = "low_latency" if isinstance(work, Decode) else "high_throughput"
        draft.say("dispatch", "--all2all-backend", f"deepep_{kind}")
    if layout.cp > 1 and isinstance(work, Prefill):
        draft.say("cp", "--prefill-context-parallel-size", layout.cp)
    elif layout.cp > 1:
        draft.note(
            "cp",
            f"vLLM has no flag for cp {layout.cp} on GPUs of its own while decoding:"
            " --decode-context-parallel-size divides the cache among the GPUs of tp",
        )
    _weights(draft, {"fp8": "--quantization fp8"})
    if _cache(draft) == "fp8":
        draft.say("cache_dtype", "--kv-cache-dtype", "fp8")
    draft.say("", "--max-num-seqs", sequences, "--max-model-len", length)
    if tokens:
        draft.say("", "--max-num-batched-tokens", tokens)
    _vllm_extras(draft)
    draft.notes.append(_LENGTH.format("--max-model-len"))


def _vllm_extras(draft: Draft) -> None:
    layout, work = draft.layout, draft.served
    if layout.redundant_experts:
        spare = json.dumps({"num_redundant_experts": int(layout.redundant_experts)})
        draft.say("redundant_experts", "--enable-eplb", "--eplb-config", spare)
    if isinstance(work, Decode) and work.draft_tokens:
        drafts = json.dumps({"method": "mtp", "num_speculative_tokens": work.draft_tokens})
        draft.say("draft_tokens", "--speculative-config", drafts)
    if draft.nodes > 1:
        draft.say("", "--distributed-executor-backend", "ray")
        if layout.dp > 1:
            draft.say("", "--data-parallel-backend", "ray")
        draft.notes.append(f"start Ray on the {draft.nodes} nodes first, then run it on one")


def _vllm_experts(draft: Draft) -> None:
    layout = draft.layout
    group = int(layout.tp * layout.dp * layout.cp)
    if layout.ep == group:
        draft.say("ep etp", "--enable-expert-parallel")
    else:
        draft.note(
            "ep etp",
            f"vLLM has no flag for ep {layout.ep} with etp {expert_tensor_degree(layout)}: it"
            f" spreads whole experts over all {group} GPUs (--enable-expert-parallel), or splits"
            " every expert over them",
        )


def _expert_split(draft: Draft, ranks: int) -> None:
    """Say where an engine, which splits experts over what `ep` leaves of its ranks, differs."""
    layout = draft.layout
    wanted, split = int(expert_tensor_degree(layout)), max(ranks // int(layout.ep), 1)
    if draft.experts and split != wanted:
        draft.note(
            "etp",
            f"{draft.title} has no flag for etp {wanted} with ep {layout.ep}: it splits each expert"
            f" over {split} GPUs, what ep leaves of {ranks}",
        )
    draft.said.add("etp")


def _sglang(draft: Draft) -> None:
    layout, work = draft.layout, draft.served
    sequences, length, tokens = _served(draft)
    shared = layout.ep > 1 and layout.dp > 1  # experts of all replicas: data-parallel attention
    degree = layout.tp * layout.dp if shared else layout.tp
    draft.say("tp", "--tp-size", degree)
    _expert_split(draft, int(degree))
    if layout.dp > 1:
        draft.say("dp", "--dp-size", layout.dp, *(["--enable-dp-attention"] if shared else []))
    if layout.cp > 1:
        draft.note("cp", f"SGLang has no flag for cp {layout.cp} that every model takes")
    _weights(draft, {"fp8": "--quantization fp8"})
    if _cache(draft) == "fp8":
        draft.say("cache_dtype", "--kv-cache-dtype", "fp8_e4m3")
    # With attention in data parallelism, SGLang divides the requests among the replicas.
    running = sequences * int(layout.dp) if shared else sequences
    draft.say("", "--max-running-requests", running, "--context-length", length)
    if tokens:
        draft.say("", "--chunked-prefill-size", tokens)
    if isinstance(work, Decode) and work.draft_tokens:
        steps = work.draft_tokens
        draft.say("draft_tokens", "--speculative-algorithm", "EAGLE")
        draft.say("", "--speculative-num-steps", steps, "--speculative-eagle-topk", 1)
        draft.say("", "--speculative-num-draft-tokens", steps + 1)
    if draft.nodes > 1:
        draft.say("", "--nnodes", draft.nodes, "--node-rank", "$NODE_RANK")
        draft.say("", "--dist-init-addr", f"{_HEAD}:{_PORT}")
        draft.notes.append(
            f"run it on each of the {draft.nodes} nodes with HEAD_NODE and NODE_RANK (from 0) set"
        )
    draft.notes.append(_LENGTH.format("--context-length"))


def _trtllm(draft: Draft) -> None:
    layout, work = draft.layout, draft.served
    sequences, length, tokens = _served(draft)
    tp = int(layout.tp)
    if layout.ep > 1 and layout.tp == 1 and layout.dp > 1:  # attention is data-parallel
        tp = int(layout.dp)
        draft.said.add("dp")
        draft.config["enable_attention_dp"] = True
    elif layout.dp > 1:
        apart = "" if layout.ep == 1 else ", each with all experts"
        draft.note(
            "dp",
            f"TensorRT-LLM has no flag for dp {layout.dp} beside tp {tp}: start {layout.dp}"
            f" servers behind a router{apart}; this is the command of one",
        )
    draft.say("tp", "--tp_size", tp)
    _expert_split(draft, tp)
    if layout.cp > 1:
        draft.say("cp", "--cp_size", layout.cp)
    _weights(draft, {})
    if _cache(draft) in {"fp8", "nvfp4"}:
        draft.said.add("cache_dtype")
        draft.config["kv_cache_config"] = {"dtype": _cache(draft)}
    draft.say("", "--max_batch_size", sequences, "--max_seq_len", length)
    if tokens:
        draft.say("", "--max_num_tokens", tokens)
    if isinstance(work, Decode) and work.draft_tokens:
        draft.said.add("draft_tokens")
        drafts = {"decoding_type": "MTP", "num_nextn_predict_layers": work.draft_tokens}
        draft.config["speculative_config"] = drafts
    if draft.config:
        draft.say("", "--config", CONFIG_FILE)
    ranks = tp * int(layout.pp * layout.cp)
    per_node = int(draft.result.cluster.gpus_per_node)
    if ranks > per_node:
        nodes = -(-ranks // per_node)
        draft.before += ["srun", "--nodes", str(nodes), "--ntasks", str(ranks)]
        draft.before += ["--ntasks-per-node", str(per_node), "--mpi", "pmix"]
        draft.before.append("trtllm-llmapi-launch")
    draft.notes.append(_LENGTH.format("--max_seq_len"))


DESCRIBED: Final = frozenset({"routing", "imbalance", "acceptance"})
"""Fields that describe what happens, not what a program is told."""

TOOLS: Final[Mapping[str, Tool]] = {
    "megatron": Tool(
        "Megatron-LM",
        "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
        "pretrain_gpt.py",
        trains=True,
        flags={
            "tp": "--tensor-model-parallel-size",
            "pp": "--pipeline-model-parallel-size",
            "cp": "--context-parallel-size",
            "ep": "--expert-model-parallel-size",
            "micro_batch": "--micro-batch-size",
            "sequence_length": "--seq-length",
            "first_stage_layers": "--decoder-first-pipeline-num-layers",
            "last_stage_layers": "--decoder-last-pipeline-num-layers",
            "mtp_layers": "--mtp-num-layers",
        },
        words={
            ("sequence_parallel", True): "--sequence-parallel",
            ("order", "tp-cp-pp-dp"): "--use-tp-pp-dp-mapping",
            ("expert_overlap", "1f1b"): "--overlap-moe-expert-parallel-comm",
            ("gradient_dtype", "bf16"): "--grad-reduce-in-bf16",
            ("optimizer", "sgd"): "--optimizer sgd",
        },
        rest=_megatron,
    ),
    "vllm": Tool(
        "vLLM",
        "https://docs.vllm.ai/en/latest/configuration/engine_args.html",
        "vllm serve",
        trains=False,
        flags={
            "tp": "--tensor-parallel-size",
            "pp": "--pipeline-parallel-size",
            "dp": "--data-parallel-size",
        },
        words={
            ("dispatch", "allgather"): "--all2all-backend allgather_reducescatter",
            ("dispatch", "pplx"): "--all2all-backend pplx",
            ("expert_overlap", "two_batch"): "--enable-dbo",
        },
        rest=_vllm,
    ),
    "sglang": Tool(
        "SGLang",
        "https://docs.sglang.io/advanced_features/server_arguments.html",
        "python -m sglang.launch_server --model-path",
        trains=False,
        flags={
            "pp": "--pp-size",
            "ep": "--ep-size",
            "redundant_experts": "--ep-num-redundant-experts",
        },
        words={
            ("dispatch", "deepep"): "--moe-a2a-backend deepep",
            ("expert_overlap", "two_batch"): "--enable-two-batch-overlap",
        },
        rest=_sglang,
    ),
    "trtllm": Tool(
        "TensorRT-LLM",
        "https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html",
        "trtllm-serve",
        trains=False,
        flags={"pp": "--pp_size", "ep": "--ep_size"},
        words={},
        rest=_trtllm,
    ),
}
"""By the beginning of the names that the catalog has for its versions."""
