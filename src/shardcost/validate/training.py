"""Predicts the step times of a table of training runs.

A row gives the shape of the model, the degrees and the machine. What it leaves blank is filled in
as its framework does it by itself: Megatron Core shards the optimizer, TorchTitan the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import log2
from typing import Any, Final, cast

import numpy as np

from shardcost.arrays import ceil_div
from shardcost.cluster import Cluster, Network
from shardcost.collectives.group import bus_factor
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadValueError
from shardcost.estimate import Estimate, estimate
from shardcost.formats.tables import Row, Table, number
from shardcost.layout import RECOMPUTE_MODULES, Layout
from shardcost.machine import CATALOG, Fitted, Machine, machine_of
from shardcost.machine.constants import Calibration, NetworkConstants
from shardcost.model import (
    AnyAttention,
    AnyFeedForward,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    Model,
    StateSpace,
)
from shardcost.software import Software
from shardcost.validate.predictions import (
    SERVERS,
    Derived,
    Floats,
    Predictions,
    by_row,
    count_or,
    whole_cell,
)
from shardcost.workload import Train

MEASURED: Final = "measured_step_s"
_DEFAULT: Final = "megatron_core"
_FRAMEWORKS: Final = (
    ("nanotron", "nanotron"),
    ("torchtitan", "torchtitan"),
    ("llm-foundry", "llm_foundry"),
    ("maxtext", "maxtext"),
    ("megatron-deepspeed", "megatron_deepspeed"),
    ("nemo/megatron-core (rocm)", "megatron_rocm"),
    ("deepspeed", "deepspeed"),
    ("megatron-lm 0", "megatron_lm"),
    ("megatron-lm", "megatron_2021"),
)
"""How the name of a framework begins, and the software of the catalog that it is."""
_KINDS: Final = (
    ("rocm", "megatron_rocm"),
    ("primus", "megatron_rocm"),
    ("mega", _DEFAULT),
    ("nemo", _DEFAULT),
    ("hai_llm", _DEFAULT),
    ("jax", "maxtext"),
    ("pax", "maxtext"),
    ("max", "maxtext"),
)
"""Words in the names of frameworks that are built on another, and the software that stands for it;
all others are taken for PyTorch's."""
_DISPATCHERS: Final = {"alltoall": "nccl", "deepep": "deepep", "hybridep": "hybridep"}
"""How a table calls what carries tokens to their experts, and as the software has it."""
_WHOLE_GRAPHS: Final = frozenset({"on", "full", "full_iteration", "layer"})
_ZERO: Final = {
    "zero0": 0,
    "zero1": 1,
    "zero2": 2,
    "SHARD_GRAD_OP": 2,
    "zero3": 3,
    "FULL_SHARD": 3,
    "fsdp2": 3,
}
_RECOMPUTED: Final = {"maxtext": "full"}
"""What frameworks recompute that do not say: MaxText's default is every layer."""
_SAME_QUESTION: Final = ("dataset", "model", "seq", "gpus", "gbs")
"""Rows alike in these differ in their layout only."""
_FEWEST_LAYOUTS: Final = 3
_TOPOLOGY: Final = re.compile(r"[0-9]{1,3}(x[0-9]{1,3}){1,2}")
_BETWEEN_SLICES: Final = "dcn"
_LINKS: Final = re.compile(r"\b(\d{1,3})-link\b")
_WATTS: Final = re.compile(r"\b(\d{2,5}) ?W\b")


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted step time of every row, in seconds."""
    return by_row(table, lambda row: float(estimate_of(row, fitted=fitted).time_s))


def estimate_of(
    row: Row,
    software: Software | None = None,
    fitted: Fitted = CATALOG,
    cluster: Cluster | None = None,
) -> Estimate:
    """Return the estimate of one row's run, by its framework or by another, there or elsewhere."""
    software = software or software_of(row)
    on = machine_of_row(row, software, fitted, cluster)
    return estimate(model_of(row), on, layout_of(row), train_of(row), software=software)


def model_of(row: Row) -> Model:
    """Return the model that a row describes."""
    layers, hidden = whole_cell(row, "layers"), whole_cell(row, "hidden")
    gated = row.get("gated") == "1"
    blocks = tuple(
        Block(count=count, attention=attention, feed_forward=part, norms=norms)
        for count, attention, part, norms in _layers_of(row, layers)
    )
    stated = row.get("tied", "")
    return Model(
        name=f"{layers} layers of {hidden}",
        hidden_size=hidden,
        vocab_size=count_or(row, "vocab", 1),
        blocks=blocks,
        tied_embeddings=stated == "1" if stated else not gated,
        norm="rms" if gated or row.get("layer_pattern") else "layer",
    )


_Kind = tuple[int, AnyAttention | None, AnyFeedForward | None, int]
"""Layers of one kind: how many, their two parts, and their norms."""


def _layers_of(row: Row, layers: int) -> list[_Kind]:
    """Return the kinds of layer of a row's model."""
    if row.get("moe_latent"):
        raise BadValueError("moe_latent", row["moe_latent"], "blank: latent experts are not priced")
    attention = _attention_of(row)
    pattern = row.get("layer_pattern", "")
    if pattern:  # of hybrids: a layer is a state space, attention or experts
        kinds: dict[str, tuple[AnyAttention | None, AnyFeedForward | None]] = {
            "M": (state_space_of(row), None),
            "*": (attention, None),
            "E": (None, _experts_of(row)),
            "-": (None, _feed_forward_of(row)),
        }
        if not set(pattern) <= set(kinds):
            raise BadValueError("layer_pattern", pattern, f"made of {' '.join(kinds)}")
        return [(pattern.count(kind), *kinds[kind], 1) for kind in dict.fromkeys(pattern)]
    dense, experts = _feed_forward_of(row), _experts_of(row)
    if experts is None:
        return _windowed(row, (layers, attention, dense, 2))
    first = count_or(row, "dense_layers_first", 0)
    mixtures = (layers - min(first, layers)) // max(count_or(row, "moe_every", 1), 1)
    kinds_of = [
        *_windowed(row, (layers - mixtures, attention, dense, 2)),
        *_windowed(row, (mixtures, attention, experts, 2)),
    ]
    return [kind for kind in kinds_of if kind[0]]


def _windowed(row: Row, kind: _Kind) -> list[_Kind]:
    """Return layers of one kind, of which some attend to a window only."""
    layers, attention, part, norms = kind
    window, pattern = row.get("window", ""), row.get("window_pattern", "")
    if not window or not isinstance(attention, Attention):
        return [kind]
    near = replace(attention, window_tokens=whole_cell(row, "window"))
    shares = _PATTERN.fullmatch(pattern or "1:0")
    if shares is None or not int(shares[1]) + int(shares[2]):
        raise BadValueError("window_pattern", pattern, "windowed and full layers, like 5:1")
    windowed, full = int(shares[1]), int(shares[2])
    count = layers * windowed // (windowed + full)
    kinds: list[_Kind] = [(count, near, part, norms), (layers - count, attention, part, norms)]
    return [each for each in kinds if each[0]]


def _attention_of(row: Row) -> AnyAttention:
    heads, gated = whole_cell(row, "heads"), row.get("gated") == "1"
    if row.get("kv_lora"):
        return latent_attention_of(row)
    stated = row.get("head_dim", "")
    head_dim = whole_cell(row, "head_dim") if stated else ceil_div(whole_cell(row, "hidden"), heads)
    biased = not gated and not row.get("layer_pattern")
    return Attention(
        heads=heads,
        kv_heads=count_or(row, "kv_heads", 1),
        head_dim=head_dim,
        qkv_bias=biased,
        out_bias=biased,
    )


def latent_attention_of(row: Row) -> LatentAttention:
    """Return the latent attention that a row of a run describes."""
    return LatentAttention(
        heads=whole_cell(row, "heads"),
        kv_lora_rank=whole_cell(row, "kv_lora"),
        q_lora_rank=whole_cell(row, "q_lora") if row.get("q_lora") else None,
        qk_nope_head_dim=whole_cell(row, "nope_head_dim"),
        qk_rope_head_dim=whole_cell(row, "rope_head_dim"),
        v_head_dim=whole_cell(row, "v_head_dim"),
    )


def _feed_forward_of(row: Row) -> FeedForward:
    gated = row.get("gated") == "1"
    return FeedForward(width=count_or(row, "ffn", 1), gated=gated, bias=not gated)


def _experts_of(row: Row) -> Experts | None:
    if not row.get("experts"):
        return None
    gated = row.get("gated") == "1"
    shared = row.get("shared_ffn", "")
    return Experts(
        count=whole_cell(row, "experts"),
        top_k=whole_cell(row, "top_k"),
        expert=FeedForward(width=whole_cell(row, "expert_ffn"), gated=gated),
        shared=FeedForward(width=whole_cell(row, "shared_ffn"), gated=gated) if shared else None,
    )


def state_space_of(row: Row) -> StateSpace:
    """Return the Mamba-2 layer that a row of a run describes."""
    heads = whole_cell(row, "mamba_heads")
    return StateSpace(
        inner_size=heads * whole_cell(row, "mamba_head_dim"),
        state_size=whole_cell(row, "mamba_state"),
        conv_kernel=_MAMBA_TAPS,
        heads=heads,
        groups=count_or(row, "mamba_groups", 1),
    )


_PATTERN: Final = re.compile(r"([0-9]{1,4}):([0-9]{1,4})")
_MAMBA_TAPS: Final = 4
"""Of the convolution, in every published Mamba-2 model (Dao & Gu 2024, arXiv:2405.21060)."""


def machine(row: Row, cluster: Cluster | None = None) -> Cluster:
    """Return the cluster of the catalog that a row names, with as many links as the row says.

    A cluster that is given comes first; it has the row's network where it has none.
    """
    slices = count_or(row, "slices", 1)
    network = row.get("network", "") or (_BETWEEN_SLICES if slices > 1 else None)
    name = row.get("cluster", "")
    if cluster is None:
        cluster = Cluster.named(SERVERS.get(name, name), network)
    elif cluster.network is None and network is not None:
        cluster = replace(cluster, network=Network.named(network))
    if cluster.tiers[-1].kind == "torus":
        shape = _TOPOLOGY.fullmatch(row.get("topology", ""))
        if shape is not None:
            return cluster.sliced(tuple(map(int, shape[0].split("x"))))
        return cluster.holding(whole_cell(row, "gpus") // slices)
    watts = _WATTS.search(row.get("gpu", ""))
    if watts is not None:
        cluster = replace(cluster, device=replace(cluster.device, power_w=float(watts[1])))
    stated = _LINKS.search(row.get("intra_link", ""))
    usual = cluster.tiers[-1].links_per_gpu
    if stated is None or usual is None or (links := int(stated[1])) == usual:
        return cluster
    # Under a name of its own it has no constants of its own either: they are inherited as shares of
    # what its links can do.
    tier = cluster.tiers[-1]
    fewer = replace(tier, links_per_gpu=links, bytes_per_s=tier.bytes_per_s * links / usual)
    name = f"{cluster.name}_{links}_links"
    return replace(cluster, name=name, tiers=(*cluster.tiers[:-1], fewer))


def is_on_torus(row: Row) -> bool:
    """Return whether a row's run was on devices with torus links."""
    return Cluster.named(row.get("cluster", "")).tiers[-1].kind == "torus"


def machine_of_row(
    row: Row, software: Software, fitted: Fitted = CATALOG, on: Cluster | None = None
) -> Machine:
    """Return the machine of a row's run, its network as fast as the row says it was.

    Where the tensor group stays inside a node, the network carries sums of gradients: the rate of
    one over all devices, which passes the network once for each node, tells what one crossing
    takes. Gathers of tensor groups across nodes are priced by the network's own constants.
    """
    cluster = machine(row, on)
    inside = count_or(row, "tp", 1) <= cluster.tiers[-1].gpus and count_or(row, "dp", 1) > 1
    rate, gpus = row.get("ar_GBps_measured", ""), whole_cell(row, "gpus")
    if not (rate and inside) or cluster.network is None or gpus <= cluster.tiers[-1].gpus:
        return machine_of(cluster, software, fitted)
    rate_quarters = round(4 * log2(_rate(row, "ar_GBps_measured")))
    return _on_measured_network(cluster, software, fitted, gpus, rate_quarters)


@lru_cache(maxsize=64)  # tries 33 networks; rows of one run share their machine and its prices
def _on_measured_network(
    cluster: Cluster, software: Software, fitted: Fitted, gpus: int, rate_quarters: int
) -> Machine:
    """Return a machine with the network crossing that explains a rate, within 10 %."""
    on, size = machine_of(cluster, fitted=fitted), _SUMMED_BYTES
    wanted_s = size * bus_factor("all_reduce", gpus) / (1e9 * 2 ** (rate_quarters / 4))

    def distance(network: Calibration) -> float:
        result = collective_time("all_reduce", size, replace(on, own=(network,)), gpus)
        return abs(log2(float(result.time_s) / wanted_s))

    networks = (_with_crossing(on.network, 2 ** (step / 4)) for step in range(-8, 25))
    full = machine_of(cluster, software, fitted)
    return replace(full, own=(min(networks, key=distance), *full.own))


def _with_crossing(usual: Calibration, factor: float) -> Calibration:
    """Return a network's constants with each crossing so many times as long."""
    constants = cast("NetworkConstants", usual.constants)
    slower = {
        name: factor * getattr(constants, name)
        for name in (
            "ll_latency_s",
            "ll_channels_s",
            "ll128_latency_s",
            "latency_s",
        )
    }
    return replace(usual, constants=replace(constants, **slower))


GATHERED_BYTES: Final = 2.0**30
_SUMMED_BYTES: Final = 2.0**28
"""Sizes at which runs measure their collectives. No row states them: those of gathers follow from
rates inside a node; those of sums from runs with nothing amiss, whose crossings take as long as
elsewhere."""


def software_of(
    row: Row, software: Software | None = None, cluster: Cluster | None = None
) -> Software:
    """Return the framework of a row, or another one, with what the row itself states of it."""
    software = software or Software.named(framework_of(row))
    stated = {"no": "none", "asyncTP": "chunked"}.get(row.get("tp_overlap", ""))
    if stated is not None:
        software = replace(software, tp_overlap=stated)
    dispatch = _DISPATCHERS.get(row.get("dispatcher", ""))
    if dispatch is not None:
        software = replace(software, dispatch=dispatch)
    if row.get("a2a_overlap") == "1":
        software = replace(software, expert_overlap="1f1b")
    if _drops_tokens(row):  # one dense product for each expert
        software = replace(software, expert_launch="each")
    if row.get("framework", "").startswith("NeMo"):  # before Megatron Core fused it
        software = replace(software, fused_permute=False)
    if row.get("notes") == "FSDP":  # rows of TorchTitan that compile name it too
        software = replace(software, fused_elementwise=False, fused_loss=False)
    if "rowwise" in row.get("dtype", ""):  # each operand again for each direction it is read in
        software = replace(software, fused_quantize=False)
    if row.get("cuda_graph") in _WHOLE_GRAPHS:
        software = replace(software, launch="graph")
    if software.host_per_hop_s is None or _has_slow_hops(row, cluster):
        return software
    return replace(software, host_per_hop_s=None, host_per_crossing_s=None)


def _has_slow_hops(row: Row, cluster: Cluster | None) -> bool:
    """Return whether a gather over all devices took unusually long for each of them.

    In such runs the host spends time on every rank of every collective, inside a node too; in
    others that stays hidden behind the host's other work.
    """
    on, gpus = machine(row, cluster), whole_cell(row, "gpus")
    if not row.get("ag_GBps_measured", "") or gpus <= on.gpus_per_node:
        return False
    waited_s = GATHERED_BYTES * (
        1 / (1e9 * _rate(row, "ag_GBps_measured"))
        - _LINK_SHARE_USED / float(on.tiers[-1].bytes_per_s)
    )
    return waited_s / gpus > _SLOW_HOP_S


_LINK_SHARE_USED: Final = 1.7
"""Link rate over the rate at which runs gather inside one node."""
_SLOW_HOP_S: Final = 1e-4
"""Runs have either a third of this or three times as much."""


def framework_of(row: Row) -> str:
    """Return the name that the catalog has for a row's framework."""
    name = row.get("framework", "").lower()
    return next((known for start, known in _FRAMEWORKS if name.startswith(start)), taken_for(name))


def taken_for(framework: str) -> str:
    """Return what the catalog has of the kind of a framework that it does not know by name.

    >>> taken_for("megatron-swift"), taken_for("OLMo-core"), taken_for("")
    ('megatron_core', 'pytorch', 'megatron_core')
    """
    name = framework.lower()
    return next((kind for word, kind in _KINDS if word in name), "pytorch" if name else _DEFAULT)


def layout_of(row: Row) -> Layout:
    """Return the layout of a row.

    MaxText splits activations between tensor-parallel products along the width of the model, which
    sends and computes as much as sequence parallelism does (`activation_embed` in its base.yml).
    """
    framework = framework_of(row)
    degrees: dict[str, Any] = {
        name: count_or(row, name, 1) for name in ("tp", "pp", "dp", "cp", "ep")
    }
    virtual_stages, micro = count_or(row, "vp", 1), whole_cell(row, "mbs")
    sharding = row.get("zero_fsdp", "")
    shards = int(sharding) if sharding.isdigit() else 1
    usual_zero = 1 if framework in {_DEFAULT, "megatron_lm", "megatron_rocm"} else 0
    if framework == "torchtitan" and degrees["pp"] > 1:
        # TorchTitan cuts a replica's batch into as many micro-batches as there are stages.
        micro = max(1, micro // degrees["pp"])
        virtual_stages = 2 if "interleaved" in row.get("notes", "").lower() else 1
    return Layout(
        **degrees,
        virtual_stages=virtual_stages if degrees["pp"] > 1 else 1,
        micro_batch=micro,
        schedule="interleaved" if virtual_stages > 1 and degrees["pp"] > 1 else "1f1b",
        sequence_parallel=(row.get("sp") == "1" or framework == "maxtext") and degrees["tp"] > 1,
        **_recomputed(row),
        last_stage_layers=_last_stage_layers(row, degrees["pp"]),
        zero=_ZERO.get(sharding, 3 if shards > 1 else usual_zero),
        shard_degree=shards if 1 < shards < degrees["dp"] * degrees["cp"] else None,
        context_scheme="ring",
        etp=count_or(row, "etp", 1) if row.get("etp") else None,
        order=row.get("order") or "tp-cp-dp-pp",
        routing="even"
        if _drops_tokens(row) or "capacity" in row.get("moe_routing", "")
        else "random",
    )


def _drops_tokens(row: Row) -> bool:
    """Return whether MaxText gave all experts as many tokens, and dropped those beyond that."""
    return framework_of(row) == "maxtext" and row.get("moe_routing") == "tokens dropped"


def _last_stage_layers(row: Row, stages: int) -> int | None:
    """Return the layers of the last stage where it predicts further tokens as well.

    Recipes leave it fewer layers by those that predict, and by about one for each head, so that
    all stages have as much to do (Megatron Core's pipeline layouts, such as Et*4|(t*4|)*14tmL).
    """
    further = count_or(row, "mtp_layers", 0)
    if not further or stages == 1:
        return None
    beside = 1 + 2 * further
    return max((whole_cell(row, "layers") + beside) // stages - beside, 1)


def _recomputed(row: Row) -> dict[str, Any]:
    """Return what a run computes again, by the names of `Layout`; unknown policies are attention's.

    Layers are counted over the pipeline ranks' whole stages, as Megatron does.
    """
    recompute = row.get("recompute", "").lower() or _RECOMPUTED.get(framework_of(row), "")
    if recompute == "full":
        layers = row.get("recompute_layers", "")
        return {"recompute": "full", "recompute_layers": int(layers) if layers.isdigit() else None}
    if not recompute.startswith("selective"):
        return {"recompute": "none"}
    if framework_of(row) == "maxtext":
        return _by_policy(row)
    modules = (row.get("recompute_modules", "") or "core_attn").split("+")
    known = [each for each in modules if each in RECOMPUTE_MODULES]
    return {"recompute": "+".join(known) or "selective"}


def _by_policy(row: Row) -> dict[str, Any]:
    """Return what MaxText computes again by a policy: all that the policy does not keep.

    A policy names what is kept, on the device or in the host's memory. Norms are always computed
    again, and attention unless its output is kept. Activations alone, and the product after
    attention, are little beside the GEMMs and count as kept.
    """
    policy = row.get("recompute_modules", "")
    stated = dict(
        each.split(":", 1) for each in row.get("saved_activations", "").split("+") if each
    )
    kept = set(stated) or set(_KEPT.get(policy, ()))
    places = set(stated.values()) or {"offload" if "offload" in policy else "device"}
    away = {"offload_activations": _moved(row, kept) if places == {"offload"} else 0.0}
    if not {"query_proj", "key_proj", "value_proj"} <= kept:
        return {"recompute": "full", **away}
    modules = ["layernorm"]
    if "context" not in kept:
        modules.append("core_attn")
    if "mlpwi" not in kept:
        modules += ["mlp", "moe"]
    return {"recompute": "+".join(modules), **away}


def _moved(row: Row, kept: set[str]) -> float:
    """Return the share of what layers keep that a policy sends to the host.

    Layouts keep the inputs of all products (`shardcost.memory.saved`), a policy the results of
    some; what it does not name and is not recomputed here stays on the device.
    """
    hidden, width = whole_cell(row, "hidden"), whole_cell(row, "ffn")
    queries = whole_cell(row, "heads") * count_or(row, "head_dim", 1)
    keys = count_or(row, "kv_heads", 1) * count_or(row, "head_dim", 1)
    inner = (2 if row.get("gated") == "1" else 1) * width
    sizes = {
        "decoder_layer_input": hidden,
        "query_proj": queries,
        "key_proj": keys,
        "value_proj": keys,
        "out_proj": hidden,
        "mlpwi": inner,
        "mlpwo": hidden,
    }
    named = sum(size for name, size in sizes.items() if name in kept)
    recomputed = 0 if "mlpwi" in kept else inner + width
    every = 4 * hidden + 2 * queries + 2 * keys + inner + width - recomputed
    return min(1.0, named / every)


_DOTS: Final = frozenset({"query_proj", "key_proj", "value_proj", "out_proj", "mlpwo"})
_KEPT: Final[Mapping[str, frozenset[str]]] = {
    "minimal": _DOTS | {"mlpwi"},
    "minimal_offloaded": _DOTS | {"mlpwi"},
    "save_dot_except_logits_ffn1": _DOTS,
}
"""What MaxText's policies keep, by the names of its checkpoints."""


def train_of(row: Row) -> Train:
    """Return the workload of a row."""
    dtype = (row.get("dtype") or "bf16").lower()
    described = f"{row['model']} {row.get('notes', '')}".lower()
    packed = "packed" in described and "without a mask" not in described
    return Train(
        global_batch=whole_cell(row, "gbs"),
        sequence_length=whole_cell(row, "seq"),
        dtype="fp8" if "fp8" in dtype else {"nvfp4": "fp4"}.get(dtype, dtype),
        gradient_dtype=_gradient_dtype(row),
        adapters="lora" in row["model"].lower() or bool(row.get("adapters")),
        adapter_rank=count_or(row, "adapters", _NEMO_RANK),
        adapter_targets=_ADAPTED.get(row.get("adapter_targets", ""), "all"),
        document_tokens=_SQUAD_TOKENS if packed else None,
        mtp_layers=count_or(row, "mtp_layers", 0),
    )


def _gradient_dtype(row: Row) -> str:
    """Return the format in which a run adds up and reduces gradients: the row's, or the usual one.

    DeepSpeed sums gradients of fp16 as they are, XLA reduces them as its GEMMs write them, and all
    recipes of Megatron Bridge that state it sum in bf16.
    """
    stated = row.get("grad_dtype", "")
    if stated:
        return stated
    framework = framework_of(row)
    if framework == "megatron_deepspeed" and row.get("dtype") == "fp16":
        return "fp16"
    bridge = row.get("framework", "").lower().startswith("megatron-bridge")
    return "bf16" if bridge or framework == "maxtext" else "fp32"


_ADAPTED: Final = {"qkv+proj": "attention", "all linear": "qkv", "": "qkv"}
"""Targets of adapters as a table has them. All linear layers are NeMo's default; its recipes for
fine-tuning, of which such rows are, adapt QKV alone where they are tuned for speed
(`recipe.peft.target_modules`), and their steps leave no time for more."""
_NEMO_RANK: Final = 32
"""The default of NeMo's adapters."""
_SQUAD_TOKENS: Final = 256
"""Mean length of SQuAD's questions with their paragraphs, in tokens, rounded."""


def _rate(row: Row, column: str) -> float:
    """Return the rate in a cell, in GB/s."""
    return number(row, column, 0, 1e6, "a rate in GB/s above 0")


def regret(table: Table, values: Floats, measured: Floats) -> Mapping[str, Any]:
    """Return how well layouts are ranked, on the whole and for each question, worst first.

    A question are rows of one data set with the same model, sequence, devices and batch. Its regret
    is how much slower the layout ranked first was than the best measured one, in percent; Spearman
    is the correlation between the ranks that were predicted and those that were measured.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(table.records()):
        if np.isfinite(values[i]) and np.isfinite(measured[i]):
            groups.setdefault(tuple(row.get(name, "") for name in _SAME_QUESTION), []).append(i)
    ranked: list[dict[str, Any]] = [
        {
            "key": dict(zip(_SAME_QUESTION, key, strict=True)),
            "layouts": len(rows),
            "regret_pct": float(
                100 * (measured[rows][np.argmin(values[rows])] / measured[rows].min() - 1)
            ),
            "spearman": spearman(values[rows], measured[rows]),
        }
        for key, rows in groups.items()
        if len(rows) >= _FEWEST_LAYOUTS
    ]
    ranked.sort(key=lambda question: -question["regret_pct"])

    def percentile(name: str, share_pct: float) -> float | None:
        known = [question[name] for question in ranked if question[name] is not None]
        return float(np.percentile(known, share_pct)) if known else None

    overall = {
        "groups": len(ranked),
        "median_pct": percentile("regret_pct", 50),
        "p90_pct": percentile("regret_pct", 90),
        "spearman_median": percentile("spearman", 50),
        "by_group": ranked,
    }
    return {"regret": overall}


def spearman(one: Floats, other: Floats) -> float | None:
    """Return the correlation of two series' ranks; None where one of them ranks nothing.

    Equal values share the mean of their ranks (Spearman 1904).

    >>> spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0]))
    0.8
    """
    ranks = [_ranks(entry) - (len(entry) - 1) / 2 for entry in (one, other)]
    spreads = [float((rank**2).sum()) for rank in ranks]
    if min(spreads) == 0:
        return None
    return float((ranks[0] * ranks[1]).sum() / np.sqrt(spreads[0] * spreads[1]))


def _ranks(values: Floats) -> Floats:
    """Return how many values each one exceeds, counting half of those that equal it."""
    ordered = np.sort(values)
    below, up_to = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (below + up_to - 1) / 2


extra: Final = regret
DERIVED: Final[Derived] = {"layout": lambda row: layout_of(row).short(), "software": framework_of}
