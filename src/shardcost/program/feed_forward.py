"""The feed-forward part of a layer on one rank, dense or a mixture of experts.

Dense: column-parallel up (and gate), row-parallel down (Shoeybi et al. 2019, arXiv:1909.08053).
Experts: a router, a dispatch that sends each token to its experts' ranks, their grouped GEMMs, and
a combine back (Lepikhin et al. 2020, GShard, arXiv:2006.16668).
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import choose
from shardcost.catalog import tuner_table
from shardcost.dtypes import weight_bytes, weight_format
from shardcost.memory.parameters import expert_tensor_degree
from shardcost.model import AnyFeedForward, Experts, FeedForward
from shardcost.program.operations import (
    Collective,
    Elementwise,
    ExpertKernels,
    Operations,
    OpId,
    Passes,
    Routed,
    together,
)
from shardcost.program.setting import (
    AFTER_ACTIVATION,
    AFTER_DISPATCH,
    BEFORE_ACTIVATION,
    Groups,
    Setting,
    enter,
    leave,
    linear,
    matrix,
)
from shardcost.routing import SORTING_LIBRARIES, expert_load

UP, DOWN = "MLP up", "MLP down"
EXPERTS: Final = "experts"
SMALL_KERNELS: Final = "small expert kernels"
EXPERT_UP, EXPERT_DOWN = "expert up", "expert down"
SHARED_UP, SHARED_DOWN = "shared expert up", "shared expert down"
_SCORE_BYTES: Final = 4
_ROUTING_KERNELS: Final = 10
"""Scores, top-k, normalisation, the auxiliary loss, counts and offsets of a framework's router."""


def feed_forward_part(s: Setting, part: AnyFeedForward, *, beside_latent: bool = False) -> Passes:
    """Return the feed-forward part of a layer, without its norm and its tensor-parallel sums.

    Args:
        s: The setting.
        part: The part.
        beside_latent: Whether the layer's attention is latent, by which engines choose kernels.
    """
    if isinstance(part, Experts):
        return _experts(s, part, beside_latent=beside_latent)
    return _dense(s, part, UP, DOWN)


def outer_products(part: AnyFeedForward) -> tuple[str, str]:
    """Return the names of the products that read the part's input and that yield its output."""
    return (EXPERT_UP, EXPERT_DOWN) if isinstance(part, Experts) else (UP, DOWN)


def _dense(s: Setting, part: FeedForward, up: str, down: str) -> Passes:
    width = part.width / s.layout.tp
    inner = 2 * width if part.gated else width
    every = s.adapter_targets == "all"
    return together(
        linear(
            s,
            up,
            s.hidden,
            inner,
            bias=part.bias,
            adapter="columns" if every else None,
            converted=BEFORE_ACTIVATION,
        ),
        activation(s, s.tokens, width, gated=part.gated),
        linear(
            s,
            down,
            width,
            s.hidden,
            bias=part.bias,
            adapter="rows" if every else None,
            converted=AFTER_ACTIVATION,
        ),
    )


def activation(s: Setting, tokens: Any, width: Any, *, gated: bool) -> Passes:
    """Return the activation between the matrices: what it reads and writes."""
    size = tokens * width * s.element_bytes
    apart = gated and not s.software.fused_elementwise  # the activation, then the gate's product
    kernels = 2 if apart else 1
    forward = Elementwise("activation", size * ((5 if apart else 3) if gated else 2), kernels)
    moved = (8 if apart else 5) if gated else 3
    backward = (Elementwise("activation gradient", size * moved, kernels),) if s.training else ()
    return Passes((forward,), backward)


def _experts(s: Setting, part: Experts, *, beside_latent: bool) -> Passes:
    """Return router, dispatch, the rank's experts, combine, and the shared expert beside them.

    Where the tensor group holds the same tokens, each of its ranks sends its part of them; an
    expert group inside the tensor group sends nothing, since every rank has all tokens. With
    sequence parallelism each rank has tokens of its own: they go to their experts' ranks first,
    and the ranks that share an expert gather them there (Megatron Core's all-to-all dispatcher).
    """
    layout = s.layout
    etp = expert_tensor_degree(layout)
    sent = s.tokens / layout.tp if layout.sequence_parallel else s.tokens * etp / layout.tp
    rows = s.tokens * part.top_k * etp / layout.tp
    scores = part.count + part.zero_experts
    pieces = [linear(s, "router", s.hidden, scores, s.spread_tokens, dtype=s.wide_dtype)]
    if s.training:
        pieces.append(_routing(s, part))
    narrow = part.latent
    if narrow is not None:
        pieces.append(linear(s, "latent down", s.hidden, narrow, s.spread_tokens))
    pieces += [
        _exchange(s, part, "dispatch", sent),
        _over_etp(s, part, "all_gather", rows, etp),
        _expert_kernels(s, part, rows, etp, beside_latent=beside_latent),
        _over_etp(s, part, "reduce_scatter", rows, etp),
        _exchange(s, part, "combine", sent),
    ]
    if narrow is not None:
        pieces.append(linear(s, "latent up", narrow, s.hidden, s.spread_tokens))
    if part.shared is not None:
        shared = _dense(s, part.shared, SHARED_UP, SHARED_DOWN)
        if layout.sequence_parallel:
            adapted = s.frozen and s.adapter_targets == "all"
            entered = enter(s, SHARED_UP, wide=adapted)
            shared = together(entered, shared, leave(s, SHARED_DOWN))
        pieces.append(again(s, "shared_experts", shared))
    return again(s, "moe", together(*pieces))


def again(s: Setting, module: str, passes: Passes) -> Passes:
    """Return passes of a module, all forward work again in the backward pass if so chosen."""
    if not s.training or not s.layout.recomputes(module):
        return passes
    return passes._replace(recompute=passes.forward)


def _routing(s: Setting, part: Experts) -> Passes:
    """Return what turns the router's logits into a plan: scores, top-k, counts, offsets."""
    size = s.spread_tokens * part.count * _SCORE_BYTES
    return Passes(
        (Elementwise("top-k", 3 * size, _ROUTING_KERNELS),),
        (Elementwise("top-k gradient", 2 * size, _ROUTING_KERNELS // 2),),
    )


def _exchange(s: Setting, part: Experts, phase: str, tokens: Any) -> Passes:
    """Return one way of the tokens between the ranks of an expert group, gradients back included.

    Grouped GEMMs need the tokens sorted by expert: a copy for each expert is written before they
    travel by all-to-all, after they arrived otherwise. Fused expert kernels sort by themselves.
    """
    row_bytes = part.row_width(s.hidden) * s.element_bytes
    copies = tokens * part.top_k * row_bytes
    sort: Operations = ()
    unsort: Operations = ()
    if s.software.experts == "grouped":
        moved = [copies + tokens * row_bytes] * 2
        if not s.software.fused_permute:
            moved = [times * 2 * copies for times in tuner_table("permutation")["unfused"][phase]]
        kernels = 1 if s.software.fused_permute else 2
        sort = (Elementwise(f"{phase} permute", moved[0], kernels),)
        unsort = (Elementwise(f"{phase} permute gradient", moved[1], kernels),)
    ranks = _exchanging_ranks(s)
    if isinstance(ranks, int) and ranks == 1:
        return Passes(sort, unsort if s.training else ())
    if s.software.dispatch in SORTING_LIBRARIES:
        sort = unsort = ()
    there = _sent(s, part, phase, phase, tokens, ranks)
    forward = (*sort, there) if phase == "dispatch" else (there, *sort)
    if not s.training:
        return Passes(forward)
    other = "combine" if phase == "dispatch" else "dispatch"
    back = _sent(s, part, f"{phase} gradient", other, tokens, ranks)
    return Passes(forward, (back, *unsort) if phase == "dispatch" else (*unsort, back))


def _exchanging_ranks(s: Setting) -> Any:
    """Return how many ranks exchange tokens: 1 where all of them have the same tokens."""
    layout = s.layout
    if layout.sequence_parallel:
        return layout.ep
    within = expert_tensor_degree(layout) * layout.ep <= layout.tp
    return choose(within, 1, layout.ep)


def _sent(s: Setting, part: Experts, name: str, phase: str, tokens: Any, ranks: Any) -> Collective:
    """Return the dispatch or the combine of each rank's tokens by the software's library."""
    library, hidden = s.software.dispatch, part.row_width(s.hidden)
    hidden_bytes = tokens * hidden * s.element_bytes
    if library == "nccl":  # a row for each pair of token and expert
        return Collective(name, "all_to_all", part.top_k * hidden_bytes, "ep", ranks)
    narrow = s.software.narrow_dispatch and weight_format(s.expert_dtype).narrow_inputs
    there = s.dispatch_dtype or ("fp8" if narrow else "bf16")
    if library == "allgather":
        if phase == "dispatch":
            gathered = ranks * tokens * hidden * weight_bytes(there)
            return Collective(name, "all_gather", gathered, "ep", ranks)
        return Collective(name, "reduce_scatter", ranks * hidden_bytes, "ep", ranks)
    routed = Routed(
        tokens,
        hidden,
        part.top_k,
        part.count + s.layout.redundant_experts,
        part.groups,
        part.top_groups,
        there if phase == "dispatch" else "bf16",
        library,
        s.decode,
    )
    return Collective(name, phase, part.top_k * hidden_bytes, "ep", ranks, routed=routed)


def _over_etp(s: Setting, part: Experts, collective: str, rows: Any, etp: Any) -> Passes:
    """Return what the ranks that share an expert send each other, with sequence parallelism."""
    if not s.layout.sequence_parallel or (isinstance(etp, int) and etp == 1):
        return Passes(())
    # Without an exchange before it, tokens are gathered first and copied to their experts then.
    hidden = part.row_width(s.hidden)
    size = rows * hidden * s.element_bytes / choose(s.layout.ep == 1, part.top_k, 1)
    other = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}[collective]
    forward = Collective.of(collective, "expert rows", size, "ep_tensor", etp)
    back = Collective.of(other, "expert row gradients", size, "ep_tensor", etp)
    return Passes((forward,), (back,) if s.training else ())


def _expert_kernels(
    s: Setting, part: Experts, rows: Any, etp: Any, *, beside_latent: bool
) -> Passes:
    """Return the rank's experts: an engine's fused sequence, or grouped GEMMs."""
    layout, width, hidden = s.layout, part.expert.width / etp, part.row_width(s.hidden)
    every = part.count + layout.redundant_experts
    tokens = rows * layout.ep / part.top_k  # of the whole expert group
    load = expert_load(tokens, every, part.top_k, layout.ep, routing=layout.routing, skew=part.skew)
    most, fullest = load.pairs * layout.imbalance, load.busiest * layout.imbalance
    if s.software.experts == "fused" and not s.training:
        # Kernels look for rows of their own experts among the tokens of the whole group, unless
        # tokens were sent to their experts' ranks alone.
        everywhere = _exchanging_ranks(s) == 1
        if s.software.dispatch == "allgather":
            everywhere = True
        gemms = ExpertKernels(
            EXPERTS,
            "gemms",
            choose(everywhere, tokens, most / part.top_k),
            most,
            load.active,
            fullest,
            hidden,
            width,
            choose(everywhere, every, every / layout.ep),
            choose(everywhere, layout.ep, 1),
            part.top_k,
            part.expert.gated,
            s.expert_dtype,
            s.software.library or "",
            layout.ep > 1,
            beside_latent,
            id=OpId(EXPERTS),
        )
        small = gemms._replace(name=SMALL_KERNELS, part="small", id=OpId(SMALL_KERNELS))
        return Passes((gemms, small))
    groups = Groups(load.active, fullest)
    inner = 2 * width if part.expert.gated else width
    each = most / load.active
    ordered = _in_order(s, most * hidden * s.element_bytes, every)
    return together(
        ordered,
        matrix(s, EXPERT_UP, each, hidden, inner, s.expert_dtype, groups, converted=AFTER_DISPATCH),
        again(s, "moe_act", activation(s, most, width, gated=part.expert.gated)),
        matrix(s, EXPERT_DOWN, each, width, hidden, s.expert_dtype, groups),
        ordered,
    )


def _in_order(s: Setting, rows_bytes: Any, experts: Any) -> Passes:
    """Return the copy that brings rows of several ranks into the order of a rank's experts.

    An all-to-all delivers them rank by rank, which one expert alone can take as they are.
    """
    if s.software.dispatch != "nccl":
        return Passes(())
    unfused: float = tuner_table("permutation")["unfused"]["expert_order"]
    times = 1.0 if s.software.fused_permute else unfused
    several = choose(s.layout.ep < experts, 1, 0)
    order = (Elementwise("expert order", several * times * 2 * rows_bytes, several),)
    return Passes(order, order if s.training else ())
