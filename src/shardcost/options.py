"""The one table of options: what each is called, what it sets, what it takes and what it means.

Everything that names an option derives from here: the arguments of the command line and their help,
the fields of the API, the link and the controls of the page, the axes of a search, the command line
of an estimate. An option that sets a field of a noun takes default, choices and rule from there, so
that a new one is a field, a row of this table and the formula that reads the field.

The order of the rows is that of the help and of links. A search goes through choices in this order,
the last one changing least often: those on which few formulas depend come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from shardcost.layout import Layout
from shardcost.option import PHASES, Option
from shardcost.resilience import Resilience
from shardcost.routing import DISPATCH_LIBRARIES
from shardcost.scheduler import Scheduler
from shardcost.software import DEFAULT_SOFTWARE, Software
from shardcost.workload import Decode, Prefill, Train

_KERNEL_LIBRARIES: Final = " or ".join((", ".join(DISPATCH_LIBRARIES[:-1]), DISPATCH_LIBRARIES[-1]))
_LAYOUT: Final = (Layout,)
_TRAIN: Final = ("train",)
_SERVE: Final = (Prefill, Decode)
_SEVERAL: Final = "; or several"

MODEL: Final = Option(
    "model", "name", "Model", "a model of the catalog", several=f"{_SEVERAL}: A,B"
)
ON: Final = Option("on", "name", "Machine", "a cluster of the catalog", several=_SEVERAL)
NETWORK: Final = Option(
    "network", "name", "Network", "what joins the nodes, a network of the catalog"
    " or any KIND_PORTSxRATEg",
    several=_SEVERAL,
)  # fmt: skip
SOFTWARE: Final = Option(
    "software", "name", "Software", "framework or engine",
    otherwise=f"{DEFAULT_SOFTWARE['train']} with --train, else {DEFAULT_SOFTWARE['decode']}; where"
    " these do not run, megatron_rocm, maxtext, vllm_rocm or vllm",
    several=_SEVERAL, axis="question",
)  # fmt: skip
GPUS: Final = Option(
    "gpus", "whole", "GPUs", "GPUs in all (tp x cp x pp x dp)",
    several="; 64,96 or 8..1024 by doubling (one node)", axis="degree", place="slider",
    example="8 or 8,16 or 1..64",
)  # fmt: skip
SET: Final = Option(
    "set", "figures", "Changed figures",
    "another figure of the machine, like device.memory_bandwidth=8TB/s or link=900GB/s; several"
    " with commas, or the option again",
    example="link=900GB/s",
)  # fmt: skip
MACHINE: Final = (MODEL, ON, NETWORK, GPUS, SOFTWARE, SET)

_CHOSEN: Final = (
    Option("tp", "whole", "Tensor", "tensor parallelism: GPUs that share each layer's matrices",
           _LAYOUT, axis="degree", place="slider"),
    Option("cp", "whole", "Context", "context parallelism: GPUs that share each sequence",
           _LAYOUT, axis="degree", place="slider"),
    Option("pp", "whole", "Pipeline", "pipeline parallelism: stages of consecutive layers",
           _LAYOUT, axis="degree", place="slider"),
    Option("dp", "whole", "Data", "data parallelism: replicas that divide the batch",
           _LAYOUT, otherwise="what --gpus leaves, or 1", axis="degree", place="slider"),
    Option("ep", "whole", "Expert",
           "expert parallelism: GPUs, among those above, over which experts are spread",
           _LAYOUT, axis="degree", place="slider"),
    Option("etp", "whole", "Expert tensor",
           "expert tensor parallelism: GPUs that share each expert",
           _LAYOUT, otherwise="what ep leaves of the tensor group", axis="fixed", said="etp {}",
           place="more"),
    Option("redundant_experts", "whole", "Redundant experts",
           "copies of busy experts that are placed beside the experts", _LAYOUT, axis="fixed",
           said="{} redundant experts", place="more"),
    Option("micro_batch", "whole", "Micro-batch", "sequences that a replica works on at a time",
           _LAYOUT, phases=_TRAIN, axis="size", said="micro-batch {}", place="slider"),
    Option("virtual_stages", "whole", "Virtual stages",
           "virtual stages per pipeline rank (VP), with --schedule interleaved",
           _LAYOUT, phases=_TRAIN, axis="size", place="slider"),
    Option("scheme", "word", "TP scheme", "how TP partitions a GEMM",
           _LAYOUT, axis="fixed", said="{} TP scheme", place="more"),
    Option("context_scheme", "word", "CP method", "how CP exchanges keys and values",
           _LAYOUT, axis="choice", free_in=("train", "prefill"), said="CP by {}", place="more"),
    Option("order", "word", "Rank order (fastest first)",
           "rank order: which groups are nearest neighbours, fastest links first",
           _LAYOUT, axis="fixed", said="rank order {}", place="more"),
    Option("sequence_parallel", "flag", "Sequence parallel",
           "split activations between tensor-parallel GEMMs along the sequence",
           _LAYOUT, axis="choice", free_in=("train", "prefill"), said="sequence parallel",
           place="main"),
    Option(
        "shard_degree", "whole", "ZeRO group size", "ranks that share what ZeRO shards, as in HSDP",
        _LAYOUT, phases=_TRAIN, otherwise="all of dp x cp", axis="fixed",
        said="ZeRO over {} ranks", place="more",
    ),
    Option("recompute", "word", "Recompute",
           "activations computed again in the backward pass; or of modules, as"
           " layernorm+moe_act (core_attn, layernorm, mla_up_proj, mlp, moe, moe_act,"
           " shared_experts)",
           _LAYOUT, phases=_TRAIN, axis="choice", said="{} recompute", place="main"),
    Option("recompute_layers", "whole", "Recomputed layers",
           "layers of a stage that full recomputation is for, or layers per group",
           _LAYOUT, phases=_TRAIN, otherwise="all", axis="fixed",
           said="{} layers recomputed", place="more"),
    Option("recompute_method", "word", "Recompute method",
           "whether --recompute-layers counts single layers or those of a group",
           _LAYOUT, phases=_TRAIN, axis="fixed", said="recompute by {}", place="more"),
    Option("offload_activations", "number", "Offloaded activations",
           "share of the kept activations in the host's memory, 0 to 1",
           _LAYOUT, phases=_TRAIN, axis="fixed", said="{:.0%} of activations offloaded",
           place="more"),
    Option("offload_optimizer", "number", "Offloaded optimizer",
           "share of the optimizer states in the host's memory, 0 to 1",
           _LAYOUT, phases=_TRAIN, axis="fixed", said="{:.0%} of the optimizer offloaded",
           place="more"),
    Option("offload_update", "word", "Offloaded update",
           "what updates weights with offloaded states",
           _LAYOUT, phases=_TRAIN, axis="fixed", said="update by the {}", place="more"),
    Option("first_stage_layers", "whole", "First stage layers", "layers of the first stage",
           _LAYOUT, otherwise="as many as the others", axis="fixed",
           said="{} layers first", place="more"),
    Option("last_stage_layers", "whole", "Last stage layers", "layers of the last stage",
           _LAYOUT, otherwise="as many as the others", axis="fixed",
           said="{} layers last", place="more"),
    Option("tp_overlap", "word", "TP overlap", "what hides tensor-parallel communication",
           (Software,), axis="fixed"),
    Option(
        "zero", "whole", "ZeRO",
        "ZeRO stage: dp shards optimizer states (1), gradients (2) and weights (3) as well",
        _LAYOUT, phases=_TRAIN, allowed=(0, 1, 2, 3), axis="choice", said="ZeRO {}", place="slider",
    ),
    Option("dp_overlap", "flag", "DP overlap", "hide data-parallel communication",
           (Software,), phases=_TRAIN, axis="fixed"),
    Option("schedule", "word", "Schedule", "pipeline schedule",
           _LAYOUT, phases=_TRAIN, axis="choice", said="{} schedule", place="main"),
    Option("routing", "word", "Expert routing",
           "how tokens spread over the experts; the fullest rank sets the pace",
           _LAYOUT, axis="fixed", said="{} routing", place="more"),
    Option("dispatch", "word", "Expert dispatch",
           "what carries tokens to their experts: all-to-alls of nccl, an allgather with a"
           f" reduce-scatter, or the kernels of {_KERNEL_LIBRARIES}",
           _LAYOUT, otherwise="the software's own", axis="fixed", said="dispatch by {}",
           place="more"),
    Option("expert_overlap", "word", "Expert overlap",
           "what hides dispatch and combine: the other half of the batch (two_batch, serving) or"
           " another micro-batch in the opposite pass (1f1b, training)",
           _LAYOUT, otherwise="the software's own", axis="fixed", said="{} expert overlap",
           place="more"),
    Option("imbalance", "number", "Expert imbalance",
           "tokens of the fullest expert-parallel rank over the mean of the ranks, at least 1",
           _LAYOUT, said="imbalance {:g}", place="more"),
)  # fmt: skip
LAYOUT: Final = tuple(option for option in _CHOSEN if Layout in option.nouns)
"""How the model is divided: the fields of `Layout`."""

WORKLOAD: Final = (
    Option("batch", "whole", "Batch",
           "sequences over all replicas: of a training step, or served at once",
           (Train, Prefill, Decode), renamed={Train: "global_batch"}, place="main",
           several="; or several, like 1..512, with --prefill and --decode", axis="size",
           start={"train": 64, "prefill": 1, "decode": 64}, example="64 or 1..512"),
    Option("sequence_length", "whole", "Sequence length", "tokens per sequence",
           (Train,), place="main", start={"train": 4096}, several=_SEVERAL, axis="question"),
    Option("prompt_tokens", "whole", "Prompt tokens", "new tokens per sequence",
           (Prefill,), place="main", start={"prefill": 4096}, several=_SEVERAL, axis="question"),
    Option("context_tokens", "whole", "Context tokens",
           "tokens per sequence in the KV cache when the step begins",
           (Decode,), place="main", start={"decode": 4096}, several=_SEVERAL, axis="question"),
    Option(
        "cached_tokens", "whole", "Cached tokens", "tokens per sequence already in the KV cache",
        (Prefill,), place="more",
    ),
    Option("new_tokens", "whole", "New tokens per step", "tokens per sequence and step",
           (Decode,), place="more"),
    Option("draft_tokens", "whole", "Drafted tokens",
           "tokens per sequence and step drafted by multi-token prediction",
           (Decode,), place="more"),
    Option("acceptance", "number", "Acceptance",
           "probability that a draft is kept if those before it were, 0 to 1",
           (Decode,), place="more"),
    Option("mtp_layers", "whole", "MTP layers",
           "layers for multi-token prediction that are trained along", (Train,), place="more"),
    Option("document_tokens", "whole", "Mean document length",
           "mean length of the documents packed into a sequence",
           (Train,), place="more"),
    Option("dtype", "word", "Weights and matmul dtype", "number format of weights and GEMMs",
           (Train, Prefill, Decode),
           otherwise="bf16 in training, else the model's own", place="more",
           several=_SEVERAL, axis="question"),
    Option("attention_dtype", "word", "Attention weights dtype",
           "number format of the projections of attention", _SERVE,
           otherwise="as --dtype, or the model's own", place="more"),
    Option("expert_dtype", "word", "Expert weights dtype",
           "number format of the weights of experts", _SERVE,
           otherwise="as --dtype, or the model's own", place="more"),
    Option("dispatch_dtype", "word", "Dispatch dtype",
           "number format of tokens on their way to experts", _SERVE,
           otherwise="what the software sends", place="more"),
    Option("cache_dtype", "word", "KV-cache dtype", "number format of the KV cache",
           _SERVE, otherwise="what the model or the engine says, else bf16", place="more",
           several=_SEVERAL, axis="question"),
    Option("gradient_dtype", "word", "Gradient dtype", "number format of gradients",
           (Train,), place="more"),
    Option("optimizer", "word", "Optimizer", "optimizer", (Train,), place="more"),
    Option("moment_dtype", "word", "Moment dtype", "number format of the optimizer's moments",
           (Train,), place="more"),
    Option("master_dtype", "word", "Master weight dtype", "number format of master weights",
           (Train,), place="more"),
    Option(
        "adapters", "flag", "Low-rank adapters only (LoRA)", "train low-rank adapters (LoRA) only",
        (Train,), place="more",
    ),
    Option("adapter_rank", "whole", "Adapter rank", "rank of low-rank adapters",
           (Train,), place="more"),
    Option("adapter_targets", "word", "Adapted matrices",
           "matrices with low-rank adapters: QKV, all of attention, or all but routed experts",
           (Train,), place="more"),
)  # fmt: skip
"""What is computed: the fields of `Train`, `Prefill` and `Decode`."""

LIMITS: Final = (
    Option("max_time", "time", "Step at most", "the longest step, like 20s", limit="max_time_s",
           example="e.g. 20s"),
    Option("max_ttft", "time", "TTFT at most", "the longest time to the first token, like 500ms",
           phases=("prefill", "decode"), limit="max_ttft_s", example="e.g. 500ms"),
    Option("max_tpot", "time", "TPOT at most", "the longest time per output token, like 50ms",
           phases=("decode",), limit="max_tpot_s", example="e.g. 50ms"),
    Option("min_tokens_per_user", "number", "Tokens/s/user at least",
           "the fewest tokens per second of a user",
           phases=("decode",), limit="min_tokens_per_s_per_user", example="e.g. 30"),
    Option("min_tokens_per_s", "number", "Tokens/s in all at least",
           "the fewest tokens per second of all GPUs together",
           limit="min_tokens_per_s", example="e.g. 1000"),
    Option("headroom", "share", "Memory to leave free",
           "share of the memory to leave free, like 10% or 0.1", otherwise="0",
           limit="memory_headroom", example="e.g. 10%"),
    Option("confidence", "share", "Limits hold in",
           "share of cases in which limits on time and rate must hold, like 90%, by the errors of"
           " similar measurements", otherwise="limits on the estimate itself",
           limit="confidence", example="e.g. 90%"),
)  # fmt: skip
"""What a layout of a search must keep."""
OBJECTIVE: Final = Option("objective", "name", "Optimise", "what to optimise", preset="time")
PRICE: Final = Option(
    "price", "price", "Price of a GPU hour",
    "of a GPU for an hour, in any currency; or by cluster: h100_sxm=2.50,a100_sxm=1.20",
    example="e.g. 2.50", place="more",
)  # fmt: skip
TOP: Final = Option("top", "whole", "Layouts to show", "how many of the best", preset=5)
DISTINCT: Final = Option(
    "distinct", "flag", "Distinct layouts",
    "the best of each set of degrees only, with the number of others that come near it",
)  # fmt: skip
SEARCH: Final = (OBJECTIVE, PRICE, *LIMITS, TOP)
"""What a search looks for."""

TOKENS: Final = Option(
    "tokens", "amount", "Training tokens",
    "tokens of the whole run, like 15T, 300B or 1e12: days, GPU-hours, money and energy of it",
    phases=_TRAIN, example="15T",
)  # fmt: skip
RESILIENCE: Final = (
    Option("mtbf", "hours", "MTBF of a GPU",
           "mean time between failures of one GPU, in hours or like 90min; inf: none fails",
           (Resilience,), renamed={Resilience: "gpu_mtbf_s"}, phases=_TRAIN,
           otherwise="as of Llama 3's H100s"),
    Option("restart_time", "time", "Restart",
           "from a failure to the first step after it, like 10min",
           (Resilience,), renamed={Resilience: "restart_s"}, phases=_TRAIN, otherwise="10min"),
    Option("checkpoint", "word", "Checkpoints",
           "whether training waits for a checkpoint to be written or only for its copy to the host",
           (Resilience,), phases=_TRAIN),
    Option("checkpoint_interval", "time", "Checkpoint interval",
           "training between two checkpoints, like 30min",
           (Resilience,), renamed={Resilience: "checkpoint_interval_s"}, phases=_TRAIN,
           otherwise="Daly's optimum"),
    Option("checkpoint_bandwidth", "rate", "Checkpoint bandwidth",
           "of the storage, for all GPUs together, like 100GB/s",
           (Resilience,), renamed={Resilience: "checkpoint_bytes_per_s"}, phases=_TRAIN,
           otherwise="122 MB/s per GPU, as of Llama 3's"),
)  # fmt: skip
RUN: Final = (TOKENS, *RESILIENCE)
"""A whole training run: how much is trained, and what failures and checkpoints take."""

_OWN: Final = "the engine's own"
_POOL: Final = "as the other pool's"
ARRIVALS: Final = (
    Option("rate", "number", "Requests per second",
           "mean arrivals in a second; a trace is sped up or slowed down to it", example="e.g. 4"),
    Option("users", "whole", "Users",
           "users of a closed loop: each sends its next request when its last one ends",
           example="e.g. 64"),
    Option("arrival", "word", "Arrivals", "how requests arrive",
           otherwise="closed with --users, else poisson",
           allowed=("poisson", "closed", "all-at-once")),
    Option("trace", "name", "Trace",
           "arrivals and lengths that were recorded, .csv or .jsonl, instead of those below"),
    Option("isl", "lengths", "Prompt tokens",
           "tokens of a prompt: 1024, 819-1024, lognormal:MEAN:CV or exponential:MEAN",
           example="e.g. 1024"),
    Option("osl", "lengths", "Output tokens", "tokens of an output, likewise", example="e.g. 256"),
    Option("requests", "whole", "Requests", "requests in all; of a trace, its first ones",
           otherwise="10 for each user, else 1000; all of a trace"),
    Option("prefix_tokens", "whole", "Shared prefix",
           "tokens that all prompts begin with", preset=0, fewest=0, place="more"),
    Option("seed", "whole", "Seed", "of the random arrivals and lengths", preset=0, fewest=0,
           place="more"),
)  # fmt: skip
"""The requests of a load."""
LATENCY: Final = (
    Option("max_ttft", "time", "TTFT at most",
           "the longest time to the first token of a good request, like 1s",
           example="e.g. 1s"),
    Option("max_tpot", "time", "TPOT at most",
           "the longest time per output token of a good request, like 30ms",
           example="e.g. 30ms"),
    Option("max_e2e", "time", "Latency at most",
           "the longest time to the last token of a good request, like 20s",
           example="e.g. 20s"),
    Option("percentile", "whole", "Percentile of the limits",
           "of a hundred requests, how many must keep each limit for a load to be held",
           preset=90),
)  # fmt: skip
"""What latency a request may have."""
SCHEDULER: Final = (
    Option("max_num_seqs", "whole", "Sequences", "sequences that a rank decodes together, at most",
           (Scheduler,), otherwise=_OWN),
    Option("max_num_batched_tokens", "whole", "Tokens of a step",
           "tokens of one step of a rank, at most", (Scheduler,), otherwise=_OWN),
    Option("memory_share", "share", "Memory used",
           "share of the memory that the engine uses, like 90% (TensorRT-LLM: of what is free)",
           (Scheduler,), otherwise=_OWN),
    Option("policy", "word", "Policy",
           "prompts ride in decoding steps, go before them, or wait until a batch has ended",
           (Scheduler,), otherwise=_OWN),
    Option("chunked_prefill", "switch", "Chunked prefill",
           "cut prompts to the tokens of a step", (Scheduler,), otherwise=_OWN),
    Option("prefix_caching", "switch", "Prefix caching",
           "find blocks of prompts that were computed before", (Scheduler,), otherwise=_OWN),
    Option("receive_interval", "whole", "Receive interval",
           "steps of decoding between two looks for new requests", (Scheduler,), otherwise=_OWN),
)  # fmt: skip
"""What an engine was started with: fields of `Scheduler`."""
POOLS: Final = (
    Option("workers", "whole", "Workers",
           "workers alike behind one router, each on the GPUs of its layout",
           otherwise="what --gpus leaves, or 1"),
    Option("prefill_workers", "whole", "Prefill workers",
           "disaggregated: workers that prefill only"),
    Option("decode_workers", "whole", "Decode workers",
           "disaggregated: workers that decode only"),
    Option("prefill_on", "name", "Prefill machine",
           "cluster of the prefill workers", otherwise=_POOL),
    Option("prefill_tp", "whole", "Prefill tensor",
           "tensor parallelism of a prefill worker", otherwise=_POOL),
    Option("prefill_pp", "whole", "Prefill pipeline",
           "pipeline parallelism of a prefill worker", otherwise=_POOL),
    Option("prefill_dp", "whole", "Prefill data",
           "data parallelism of a prefill worker", otherwise=_POOL),
    Option("prefill_ep", "whole", "Prefill expert",
           "expert parallelism of a prefill worker", otherwise=_POOL),
)  # fmt: skip
"""How many workers there are, and the layout of those that prefill by themselves."""


def _in_load(rows: Iterable[Option]) -> tuple[Option, ...]:
    """Return the options that mean something while requests are served, whatever the phase."""
    served = (row for row in rows if "decode" in row.applies_to)
    return tuple(
        replace(row, phases=tuple(PHASES), otherwise="" if row.name == "dp" else row.otherwise)
        for row in served
    )


SERVING: Final = (
    MODEL,
    ON,
    NETWORK,
    replace(GPUS, help="GPUs in all (workers x tp x cp x pp x dp)", several=""),
    replace(
        SOFTWARE,
        help="engine",
        otherwise=f"{DEFAULT_SOFTWARE['decode']}; where it does not run, vllm_rocm or vllm",
    ),
    SET,
)
"""What serves, and where: `MACHINE`, as a deployment has it."""
WORKER: Final = (
    *_in_load(LAYOUT),
    *_in_load(row for row in WORKLOAD if set(row.nouns) >= set(_SERVE) and row.name != "batch"),
    *_in_load(row for row in WORKLOAD if row.name in {"draft_tokens", "acceptance"}),
)
"""One worker of a deployment: its layout, number formats and drafts."""
LOAD: Final[Mapping[str, Option]] = {
    option.name: option
    for option in (*SERVING, *POOLS, *WORKER, *ARRIVALS, *SCHEDULER, *LATENCY, PRICE)
}
"""What a load takes, by name."""

KINDS_OF_POOLS: Final = Option(
    "pools", "word", "Pools", "one pool of workers that prefill and decode, or two",
    preset="both", allowed=("both", "aggregated", "disaggregated"),
)  # fmt: skip
SIMULATED: Final = Option(
    "simulated", "whole", "Simulated deployments",
    "deployments that are simulated, the best by the closed form", preset=6, fewest=0,
)  # fmt: skip
DEPLOYMENTS: Final = (
    *(LOAD[name] for name in ("rate", "users", "isl", "osl", "prefix_tokens", "seed")),
    *(LOAD[name] for name in ("max_e2e", "percentile")),
    KINDS_OF_POOLS,
    SIMULATED,
    *SCHEDULER,
)
"""What a search for deployments takes beside what one for layouts does."""

SIZE: Final = Option(
    "size", "size", "Size", "the whole buffer, as nccl-tests counts: 64MiB, 1GB, 4096"
)
SWEEP: Final = Option(
    "sweep", "sweep", "Sweep", "instead of the size: sizes from A to B, each X times the last (2)"
)
FORCED: Final = (
    Option("algorithm", "name", "Algorithm",
           "run this algorithm (ring, tree, nvls, …), as NCCL_ALGO does",
           otherwise="the library's choice"),
    Option("protocol", "name", "Protocol",
           "run this protocol (LL, LL128 or Simple), as NCCL_PROTO does",
           otherwise="the library's choice"),
)  # fmt: skip
"""What a library is made to run."""
COLLECTIVE: Final = (
    SIZE,
    SWEEP,
    Option("gpus", "whole", "GPUs", "GPUs that take part"),
    Option("nodes", "whole", "Nodes", "nodes that share the GPUs evenly",
           otherwise="as few as hold them"),
    Option("library", "name", "Library",
           "nccl, rccl, oneccl, vllm, sglang, trtllm, which may name a version (vllm==0.14), xla or"
           " nccl-tuner: NCCL's own estimate, or generic: textbook algorithms with assumed"
           f" constants; for dispatch and combine also {_KERNEL_LIBRARIES}",
           otherwise="the GPU vendor's: nccl, rccl or oneccl, else generic; deepep or mori"),
    Option("mode", "word", "Launch",
           "launch of calls, recorded as a CUDA graph or one by one by the host",
           preset="graph", allowed=("graph", "eager")),
    *FORCED,
)  # fmt: skip
"""One collective."""
EXCHANGE: Final = (
    Option("tokens", "whole", "Tokens per GPU", "tokens of one GPU"),
    Option("hidden", "whole", "Hidden size", "elements of a token"),
    Option("topk", "whole", "Experts per token", "experts that a token goes to"),
    Option("experts", "whole", "Experts", "experts of a layer, over all GPUs"),
    Option("low_latency", "flag", "Low latency", "low-latency kernels, as decode runs them"),
    Option("dtype", "word", "Number format", "number format of what is sent",
           otherwise="fp8 for dispatch, bf16 for combine"),
    Option("sms", "whole", "SMs", "SMs that normal kernels may take",
           otherwise="the library's choice"),
    Option("node_limit", "whole", "Nodes per token", "nodes that a token goes to at most",
           otherwise="no limit"),
)  # fmt: skip
"""Dispatch or combine of experts' tokens, beside the GPUs, nodes, library and launch above."""

ESTIMATE: Final[Mapping[str, Option]] = {
    option.name: option for option in (*MACHINE, *LAYOUT, *WORKLOAD)
}
"""What an estimate takes, by name."""
AXES: Final[Mapping[str, Option]] = {
    option.name: option
    for kinds in (("degree",), ("size",), ("choice", "fixed"))
    for option in (*MACHINE, *_CHOSEN, *WORKLOAD)
    if option.axis in kinds
}
"""What a search may vary: degrees, other numbers, choices."""
QUESTIONS: Final = tuple(option for option in (*MACHINE, *WORKLOAD) if option.axis == "question")
"""Of what a search takes several beside models and machines: no layout has it as its own."""
OWN_AXES: Final = ("gpus", "batch")
"""Axes that options of their own set; all others are set by ``--fix``."""


def needed(phase: str) -> list[Option]:
    """Return the options that a phase cannot do without."""
    return [option for option in WORKLOAD if option.required and phase in option.applies_to]


def varied(phase: str) -> list[str]:
    """Return the options of an estimate that may vary."""
    return [
        option.name
        for option in ESTIMATE.values()
        if option not in {MODEL, SET} and option.kind != "flag" and phase in option.applies_to
    ]


def departures(layout: Layout) -> dict[str, str]:
    """Return, by option, the choices of a layout that are not the default, in words."""
    return {
        option.name: option.said.format(getattr(layout, option.name))
        for option in LAYOUT
        if option.axis not in {"degree", "size"} and getattr(layout, option.name) != option.default
    }
