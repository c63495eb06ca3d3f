"""Predicts what the last rank of Megatron-LM's functional tests holds: at its peak, between steps.

A row has every argument that memory depends on. Peaks stand for a table (`HEADLINE`); the bytes
allocated between two steps are its other figure.

The rank that was measured is in the last pipeline stage. A model of that stage's layers alone is
accounted for, so that uneven stages and mixtures in some of the layers are where they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster, Device
from shardcost.dtypes import BITS
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import Row, Table, number
from shardcost.layout import Layout
from shardcost.machine import CATALOG, Fitted
from shardcost.memory import Footprint, MemoryPolicy, memory_of
from shardcost.memory.parameters import sharing_ranks
from shardcost.memory.policy import policy_named
from shardcost.model import (
    AnyAttention,
    AnyFeedForward,
    Attention,
    Block,
    Experts,
    FeedForward,
    Model,
)
from shardcost.validate.predictions import (
    Derived,
    Floats,
    Predictions,
    by_row,
    count_or,
    meaning_of,
    whole_cell,
)
from shardcost.validate.training import latent_attention_of, state_space_of
from shardcost.workload import Train

MEASURED: Final = "measured"
HEADLINE: Final = "peak_bytes"
ALLOCATED: Final = "allocated_bytes"
"""The other measured column: what stays between two steps."""
_FRAMEWORK: Final = "megatron_core"
_MOST_LAYERS, _MOST_AHEAD, _MOST_TEXT = 10_000, 100, 1_000


_NEEDED: Final = dict.fromkeys(
    (
        *("max_positions", "expert_ffn", "top_k", "nope_head_dim", "rope_head_dim", "v_head_dim"),
        *("mamba_heads", "mamba_head_dim", "mamba_state"),
    ),
    "",
)
"""Columns by which a table is not known, but without which some rows say too little."""


class Run(NamedTuple):
    """A row as nouns."""

    model: Model
    """The layers of the last rank."""
    layout: Layout
    work: Train
    policy: MemoryPolicy
    device: Device


def predictions(
    table: Table, fitted: Fitted = CATALOG, policy: MemoryPolicy | None = None
) -> Predictions:
    """Return the bytes of every run's last rank: at their peak, or between two steps.

    Args:
        table: The runs.
        fitted: Not used: memory rests on no measured times.
        policy: How the framework treats memory; by default what the catalog has on it.
    """
    del fitted
    return by_row(table, lambda row: held_bytes(row, policy))


def held_bytes(row: Row, policy: MemoryPolicy | None = None) -> float:
    """Return the figure of a row, of the last rank of its run."""
    return meaning_of(row, "figure", _FIGURES)(footprint_of(row, policy))


def peak_bytes(row: Row, policy: MemoryPolicy | None = None) -> float:
    """Return the peak of the last rank of a run."""
    return _peak(footprint_of(row, policy))


def allocated_bytes(row: Row, policy: MemoryPolicy | None = None) -> float:
    """Return what the last rank of a run has allocated between two steps."""
    return float(footprint_of(row, policy).between_steps)


def extra(table: Table, values: Floats, measured: Floats) -> dict[str, Any]:
    """Return the errors of what is allocated between steps."""
    from shardcost.validate.validation import stats

    own = np.array([figure == ALLOCATED for figure in table.columns["figure"]], dtype=bool)
    return {ALLOCATED: vars(stats(100 * (values[own] / measured[own] - 1)))} if own.any() else {}


def footprint_of(row: Row, policy: MemoryPolicy | None = None) -> Footprint:
    """Return what the last rank of a run holds."""
    run = run_of(row, policy)
    memory = memory_of(
        run.model,
        run.layout,
        run.work,
        device=run.device,
        software=run.policy,
        stage=int(run.layout.pp) - 1,
    )
    held = next(iter(memory.stages.values()))
    return _with_more_weights(held, run, _weights_beside(row, run))


def _weights_beside(row: Row, run: Run) -> float:
    """Return weights of the last rank that a model of layers has no place for.

    Multi-token prediction needs the embedding on the last stage too, and joins it with the hidden
    states; BERT has a dense layer before its head and another for its second loss.
    """
    hidden, tp, vocab = (
        float(each) for each in (run.model.hidden_size, run.layout.tp, run.model.vocab_size)
    )
    if row.get("arch") == "bert":
        return 2 * hidden * (hidden + 1)
    ahead = count_or(row, "mtp_layers", 0)
    copied = vocab / tp if run.layout.pp > 1 and not run.model.tied_embeddings else 0
    return hidden * (copied + 2 * ahead * hidden / tp) if ahead else 0.0


def _with_more_weights(held: Footprint, run: Run, weights: float) -> Footprint:
    """Return a footprint with so many more weights, sharded as the others are."""
    copies = sharing_ranks(run.layout, run.layout.dp * run.layout.cp)
    own = {
        "weights": weights / (copies if run.layout.zero >= 3 else 1) * _BF16,
        "gradients": weights
        / (copies if run.layout.zero >= 2 else 1)
        * BITS[run.work.gradient_dtype]
        / 8,
        "optimizer": weights / (copies if run.layout.zero >= 1 else 1) * _ADAM_BYTES,
    }
    more = {name: getattr(held, name) + size for name, size in own.items()}
    return replace(held, **more, between_steps=held.between_steps + sum(own.values()))


_BF16: Final = 2
_ADAM_BYTES: Final = 12
"""Master copy and two means in fp32."""


def _peak(held: Footprint) -> float:
    """Return what the allocator has given out: all but what is taken outside of it."""
    return float(held.total - held.framework)


_FIGURES: Final[Mapping[str, Callable[[Footprint], float]]] = {
    HEADLINE: _peak,
    ALLOCATED: lambda held: float(held.between_steps),
}


def run_of(row: Row, policy: MemoryPolicy | None = None) -> Run:
    """Return the nouns of a row."""
    row = _NEEDED | dict(row)
    if row.get("optimizer") not in {None, "", "adam", "sgd"}:
        raise UnknownNameError("optimizer", row["optimizer"], ("adam", "sgd"))
    meaning_of(row, "measured_rank", {"": "", "last": "last"})
    if row.get("moe_latent"):
        raise BadValueError("moe_latent", row["moe_latent"], "blank: such experts are not known")
    layers = layers_of_last_rank(row)
    own = _policy_of(row, policy)
    load = _share(row, "capacity_factor", most=1000.0) or own.peak_imbalance
    layout = replace(_layout_of(row, len(layers)), imbalance=max(1.0, load))
    return Run(
        _model_of(row, layers), layout, _train_of(row), own, Cluster.named(row["gpu"]).device
    )


def layers_of_last_rank(row: Row) -> str:
    """Return the layers of a run's last rank, a letter each.

    Of a transformer ``t``, with a mixture of experts ``e``, of hybrids as they have them: ``M``
    Mamba, ``*`` attention, ``E`` mixture, ``-`` feed-forward part. Layers for multi-token
    prediction stand at the end, like the last.
    """
    pp = count_or(row, "pp", 1, least=1)
    if row.get("layer_pattern"):
        if pp > 1:
            raise BadValueError("pp", pp, "1 with a layer pattern")
        if len(row["layer_pattern"]) > _MOST_LAYERS or set(row["layer_pattern"]) - set("M*E-/"):
            raise BadValueError("layer_pattern", row["layer_pattern"], "letters M, *, E, - and /")
        return row["layer_pattern"].replace("/", "")
    kinds = _kinds(row)
    virtual = pp * count_or(row, "vp", 1, least=1)
    ahead = count_or(row, "mtp_layers", 0, most=_MOST_AHEAD)
    if row.get("pp_layout"):
        stages = _expanded(row["pp_layout"]).split("|")
        if len(stages) != virtual or sum(stage.count("t") for stage in stages) != len(kinds):
            raise BadValueError("pp_layout", row["pp_layout"], "the layers of all virtual stages")
        counts = [stage.count("t") for stage in stages]
        ahead = stages[-1].count("m")
    elif row.get("layers_last_stage") or row.get("layers_first_stage"):
        if virtual > pp or pp == 1:
            raise BadValueError("vp", row.get("vp"), "1 with layers of the first or last stage")
        first = count_or(row, "layers_first_stage", 0, most=len(kinds))
        share = (len(kinds) - first) // (pp - 1)
        last = count_or(row, "layers_last_stage", share, most=len(kinds))
        counts, pp = [len(kinds) - last, last], 2
    else:
        ends_in_split = [row.get("embedding_in_split") == "1", row.get("loss_in_split") == "1"]
        if (len(kinds) + sum(ends_in_split)) % virtual:
            raise BadValueError("layers", len(kinds), "divisible by pp x vp")
        counts = [(len(kinds) + sum(ends_in_split)) // virtual] * virtual
        counts[0] -= ends_in_split[0]
        counts[-1] -= ends_in_split[1]
    ends = np.cumsum(counts)
    own = "".join(kinds[ends[i] - counts[i] : ends[i]] for i in range(pp - 1, len(counts), pp))
    return own + kinds[-1] * ahead


def _kinds(row: Row) -> str:
    layers, stated = whole_cell(row, "layers", most=_MOST_LAYERS), row.get("moe_layer_freq", "")
    if not count_or(row, "experts", 0):
        return "t" * layers
    if stated.isascii() and stated.isdigit() and int(stated):
        kinds = "".join("te"[i % int(stated) == 0] for i in range(layers))
    else:
        runs = re.findall(r"\[([01])\]\*([0-9]{1,4})", stated) or [("1", str(layers))]
        kinds = "".join("te"[int(mixture)] * int(times) for mixture, times in runs)
    if len(kinds) != layers:
        raise BadValueError("moe_layer_freq", stated, "of all layers")
    return kinds


def _expanded(layout: str) -> str:
    """Return a pipeline layout without repetitions.

    >>> _expanded("Et*3|(tt|)*2mL")
    'Ettt|tt|tt|mL'
    """
    if len(layout) > _MOST_TEXT:
        raise BadValueError("pp_layout", layout, f"of at most {_MOST_TEXT} characters")
    for pattern in (r"\(([^()]*)\)\*([0-9]{1,3})", r"(\w)\*([0-9]{1,3})"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    return layout


def _model_of(row: Row, layers: str) -> Model:
    blocks = [
        Block(
            count=layers.count(kind),
            attention=_attention(row, kind),
            feed_forward=_feed_forward(row, kind),
            norms=2 if kind in "te" else 1,
        )
        for kind in dict.fromkeys(layers)
    ]
    learned = row.get("positions") == "learned_absolute"
    return Model(
        name=row.get("test_case") or "run",
        hidden_size=whole_cell(row, "hidden"),
        vocab_size=whole_cell(row, "vocab_padded"),
        blocks=tuple(blocks),
        tied_embeddings=row.get("tied") == "1",
        learned_positions=whole_cell(row, "max_positions") if learned else 0,
        norm=row.get("norm") or "layer",
        head_bias=row.get("arch") == "bert",
    )


def _attention(row: Row, kind: str) -> AnyAttention | None:
    if kind in "E-":
        return None
    if kind == "M":
        return state_space_of(row)
    heads = whole_cell(row, "heads")
    if row.get("kv_lora"):
        return latent_attention_of(row)
    bias = row.get("bias") == "1"
    return Attention(
        heads=heads,
        kv_heads=count_or(row, "kv_heads", heads),
        head_dim=count_or(row, "head_dim", whole_cell(row, "hidden") // heads),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="head" if row.get("qk_norm") == "1" else "none",
    )


def _feed_forward(row: Row, kind: str) -> AnyFeedForward | None:
    if kind in "M*":
        return None
    gated, bias = row.get("gated") == "1", row.get("bias") == "1"
    if kind not in "eE":
        return FeedForward(width=whole_cell(row, "ffn"), gated=gated, bias=bias)
    shared = count_or(row, "shared_ffn", 0)
    return Experts(
        count=whole_cell(row, "experts"),
        top_k=whole_cell(row, "top_k"),
        expert=FeedForward(width=whole_cell(row, "expert_ffn"), gated=gated, bias=bias),
        shared=FeedForward(width=shared, gated=gated, bias=bias) if shared else None,
    )


def _layout_of(row: Row, layers: int) -> Layout:
    degrees: dict[str, Any] = {
        name: count_or(row, name, 1) for name in ("tp", "pp", "dp", "cp", "ep")
    }
    pp, vp, ranks = degrees["pp"], count_or(row, "vp", 1), degrees["dp"] * degrees["cp"]
    instances = count_or(row, "dist_optimizer_instances", 1)
    sharded = meaning_of(row, "dist_optimizer", {"": 0, "0": 0, "1": 1})
    method = row.get("recompute_method") or "block"
    again = count_or(row, "recompute_layers", 0)
    again = again * vp if method == "block" else again  # stated for each virtual stage
    modules = row.get("recompute_modules", "") or "selective"
    recompute = row.get("recompute") or "none"
    return Layout(
        **degrees,
        etp=count_or(row, "etp", 1) if row.get("etp") else None,
        virtual_stages=vp if pp > 1 else 1,
        schedule="interleaved" if vp > 1 and pp > 1 else "1f1b",
        micro_batch=whole_cell(row, "mbs"),
        sequence_parallel=row.get("sp") == "1" and degrees["tp"] > 1,
        recompute=modules if recompute == "selective" else recompute,
        recompute_layers=again or None,
        recompute_method=method,
        zero=meaning_of(row, "fsdp", _FSDP) or sharded,
        shard_degree=ranks // instances if instances > 1 else None,
        last_stage_layers=layers if pp > 1 else None,
        offload_activations=_offloaded(row),
        offload_optimizer=_share(row, "optimizer_offload"),
    )


_OFFLOADED: Final = frozenset(
    ("attn_norm", "attn_proj", "core_attn", "expert_fc1", "mlp_norm", "moe_act", "qkv_linear")
)
"""Modules whose inputs Megatron Core can offload: together, all of a layer but little."""


def _offloaded(row: Row) -> float:
    """Return the share of the kept activations that goes to the host; modules count alike."""
    modules = set(filter(None, row.get("activation_offload", "").split("+")))
    for unknown in modules - _OFFLOADED:
        raise UnknownNameError("activation_offload", unknown, _OFFLOADED)
    return len(modules) / len(_OFFLOADED)


_FSDP: Final = {"": 0, "no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""What Megatron-FSDP shards, as a stage of ZeRO."""


def _train_of(row: Row) -> Train:
    return Train(
        global_batch=whole_cell(row, "gbs"),
        sequence_length=whole_cell(row, "seq"),
        dtype="fp8" if row.get("fp8") else row.get("dtype") or "bf16",
        gradient_dtype=row.get("main_grad_dtype") or "fp32",
        optimizer=row.get("optimizer") or "adam",
        moment_dtype=row.get("moment_dtype") or "fp32",
        master_dtype=row.get("main_weight_dtype") or "fp32",
    )


def _policy_of(row: Row, policy: MemoryPolicy | None) -> MemoryPolicy:
    """Return the framework's policy with what a row's switches change of it."""
    usual = policy or policy_named(_FRAMEWORK)
    local = row.get("implementation") == "local"
    choices: dict[str, Any] = {
        "attention": "unfused" if local or _unfused(row) else "flash",
        "dropout": _share(row, "dropout") > 0,
        "gathered_ahead": row.get("overlap_param_gather") == "1",
        "attention_mask": row.get("mask_in_dataloader") == "1",
        "score_buffer": local or row.get("attention") == "local",
    }
    choices["logit_bytes"] = _logit_bytes(row, usual.logit_bytes)
    if row.get("grouped_gemm") != "1":
        choices["grouped_workspaces"] = 0.0
    if row.get("fp8_weights") == "1":  # in place of those of 16 bits
        choices["narrow_weights"] = False
    if local:
        choices |= {"layer_workspace_bytes": 0.0, "layer_workspace_bytes_before_9": 0.0}
    if row.get("deterministic") == "1":
        choices["workspace_bytes_other"] = None
    return replace(usual, **choices)


def _unfused(row: Row) -> bool:
    """Return whether attention keeps its scores; left open, Transformer Engine chose.

    The releases in older containers had no fused kernel for these tests.
    """
    stated = row.get("attention", "")
    if stated:
        return stated in {"unfused", "local"}
    since = _FUSED_SINCE.get(row.get("tag", ""), "")
    return row.get("recorded", "9") < since and _share(row, "dropout") > 0


_FUSED_SINCE: Final = {"dev": "2025-02", "lts": "2025-06"}
"""From when on the containers' Transformer Engine ran attention with dropout in one kernel."""
_LOGIT_BYTES: Final = {"cross_entropy_loss_fusion": 4.0, "defer_embedding_wgrad_compute": 4.0}
"""Options that tests are named after and the table has no column for, with what they keep more of
each logit: another copy in fp32; the gradients of two micro-batches in 16 bits."""


def _logit_bytes(row: Row, usual: float | None) -> float | None:
    if usual is None:
        return None
    name = row.get("test_case", "")
    more = sum(
        each for option, each in _LOGIT_BYTES.items() if name.endswith((option, f"{option}_1node"))
    )
    more += meaning_of(row, "loss_fusion", _FUSED_LOSS)
    return usual + more + _SOFTMAX_BYTES * count_or(row, "mtp_layers", 0)


_FUSED_LOSS: Final = {"": 0.0, "native": 4.0, "te": -4.0}
"""By implementation; Transformer Engine's writes the gradient over the logits, of 16 bits."""
_SOFTMAX_BYTES: Final = 4
"""Of the softmax that each further token's loss keeps until the backward pass."""


def _share(row: Row, column: str, most: float = 1.0) -> float:
    """Return a number from 0 on, 0 where its cell is empty or the table has no such column."""
    rule = f"a number from 0 to {most:g}"
    return number(row, column, -1e-9, most, rule) if row.get(column) else 0.0


DERIVED: Final[Derived] = {"layers_of_rank": lambda row: str(len(layers_of_last_rank(row)))}
