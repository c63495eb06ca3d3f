"""Memory footprints of ranks, by kind, at the peak of a step: `memory_of`.

In training, weights, gradients and optimizer state stay all the time. Activations of all micro-
batches in flight are fullest when a stage's backward pass begins; then there are besides them
either the logits with their softmax and gradient (at the loss, on the stage that has the head) or
the gradients inside one layer, with what recomputation makes again. The larger of the two counts,
unless the update of the weights has buffers that are larger still. In serving, weights and KV cache
stay; the widest layer or the logits come on top.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) divides optimizer state (1), gradients (2) and
weights (3) over the ranks along `dp` and `cp`; those of experts over the ranks with the same ones.

Partitions of products other than the one-dimensional hold the same share of the weights here (the
copies of 2.5-D are left out), and divide all activations, as sequence parallelism does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from shardcost.arrays import ceil_div, choose, largest, smallest
from shardcost.checks import is_array
from shardcost.cluster import Device
from shardcost.dtypes import BITS, activation_bytes, weight_format
from shardcost.errors import BadValueError
from shardcost.layout import Layout
from shardcost.memory.adapters import adapter_parameters
from shardcost.memory.footprint import Footprint, Memory
from shardcost.memory.parameters import (
    Parameters,
    end_parameters,
    expert_copies,
    heads_per_rank,
    prediction_parameters,
    prediction_weights,
    sharing_ranks,
    stack_parameters,
    stored_bytes,
)
from shardcost.memory.policy import MemoryPolicy, policy_of
from shardcost.memory.saved import (
    Setting,
    recomputed_group,
    recomputed_share,
    saved_by_layer,
    setting_of,
)
from shardcost.memory.stages import (
    Stage,
    in_flight,
    is_stated,
    last_stage,
    stage_by_cost,
    stage_evenly,
)
from shardcost.model import (
    AnyAttention,
    Attention,
    Experts,
    LatentAttention,
    LinearAttention,
    Model,
)
from shardcost.records import NamedTuple
from shardcost.traced import Naming, step, unnamed
from shardcost.workload import Decode, Prefill, Train, Workload

_FP32: Final = 4
_MOMENTS: Final = {"adam": 2, "sgd": 1}
"""Running means of an optimizer, each in fp32: Adam's two, the momentum of SGD."""
_LARGER_CAPABILITY: Final = "9.0"
"""Compute capability for which PyTorch gives cuBLAS the larger workspace."""
_NEWER_CAPABILITY: Final = 9
"""Compute capability from which on libraries take the larger workspaces."""
_STATE_BYTES: Final = 4
"""States are sums over the whole past, and kept in fp32."""
_SAVED: Final = "Korthikanti et al. 2022, arXiv:2205.05198, operator by operator"
_LAYERS_AT_WORK: Final = 2
"""Layers whose offloaded activations are on the device: the one computed, the one copied."""
_GATHERED_LAYERS: Final = 2
"""Layers whose weights ZeRO-3 holds whole: the one computed and the one fetched ahead."""


class _Rank(NamedTuple):
    """What the accounts of all stages share."""

    model: Model
    layout: Layout
    policy: MemoryPolicy
    layer: Parameters
    """Weights of an average layer that is trained."""
    device: Device | None
    term: Naming
    """Names terms, for receipts."""


def memory_of(
    model: Model,
    layout: Layout,
    workload: Workload,
    *,
    device: Device | None = None,
    software: Mapping[str, Any] | MemoryPolicy | None = None,
    stage: int | None = None,
    term: Naming = unnamed,
) -> Memory:
    """Return what one rank holds, by kind and by place in the pipeline.

    Args:
        model: The model; kinds of layer are taken to be spread evenly over the stages.
        layout: How it is divided. Degrees may be arrays that broadcast.
        workload: What is computed. Counts may be arrays too.
        device: Where it shall fit; what `Memory.fits` and `Memory.reason` ask about by default.
        software: What the framework keeps, see `MemoryPolicy`.
        stage: The one stage to account for; the first, the second and the last if None.
        term: Names terms, for receipts: then all bytes are traced.

    >>> memory = memory_of(
    ...     Model.named("llama3-8b"), Layout(tp=2), Train(global_batch=8, sequence_length=4096)
    ... )
    >>> round(memory.by_kind()["optimizer"] / 8030261248 * 2, 2)
    12.0
    """
    policy = policy_of(software)
    workload = workload.in_formats_of(model)
    # What a served layer stores follows from its formats (`stored_bytes`).
    trains = isinstance(workload, Train)
    layer = stack_parameters(model, layout) if trains else Parameters(0, 0)
    rank = _Rank(model, layout, policy, layer, device, term)
    split = stage_evenly if policy.balance == "layers" else stage_by_cost
    stages = {
        name: split(model, layout, index)
        for name, index in _places(model, layout, policy.balance, stage).items()
    }
    if isinstance(workload, Train):
        return Memory({name: _training(rank, workload, of) for name, of in stages.items()}, device)
    if isinstance(workload, Prefill | Decode):
        return Memory({name: _serving(rank, workload, of) for name, of in stages.items()}, device)
    raise BadValueError("workload", workload, "Train, Prefill or Decode")


def checkpoint_bytes(model: Model, workload: Train) -> float:
    """Return the bytes of a checkpoint: trained weights and the optimizer's states, each once.

    That is what one rank would hold that had the whole model by itself; of adapters, the frozen
    weights are left out.

    >>> work = Train(global_batch=8, sequence_length=4096)
    >>> round(checkpoint_bytes(Model.named("llama3-8b"), work) / 8030261248, 2)
    14.0
    """
    held = memory_of(model, Layout(), workload).stages["first"]
    frozen = 0.0
    if workload.adapters:
        without = replace(workload, adapters=False)
        frozen = memory_of(model, Layout(), without).stages["first"].weights
    return float(held.weights - frozen + held.optimizer)


def _places(model: Model, layout: Layout, balance: str, stage: int | None) -> dict[str, Any]:
    pp = layout.pp
    if stage is not None:
        if is_array(pp) or not 0 <= stage < pp:
            raise BadValueError("stage", stage, f"a stage of pp={pp}, counted from 0")
        return {f"stage {stage}": stage}
    last = last_stage(model, layout, balance)
    if is_array(pp) or is_array(last):
        # A stage between may have most where others have stated layers.
        middle = {"middle": smallest(1, last)} if is_stated(layout) else {}
        return {"first": 0 * last} | middle | {"last": last}
    middle = {"middle": 1} if last > 1 else {}
    return {"first": 0} | middle | ({"last": last} if last > 0 else {})


def _weights(rank: _Rank, stage: Stage, work: Train) -> Parameters:
    """Return the weights of a stage's rank."""
    dense, experts = rank.layer.dense * stage.layers, rank.layer.experts * stage.layers
    dense = dense + end_parameters(rank.model, rank.layout, stage)
    if work.mtp_layers:
        more = prediction_parameters(rank.model, rank.layout, work.mtp_layers)
        dense = dense + choose(stage.has_head, more.dense, 0)
        experts = experts + choose(stage.has_head, more.experts, 0)
    return Parameters(
        rank.term("dense", dense, "weights", "on the stage, after tp"),
        rank.term("experts", experts, "weights", "after ep and tp"),
    )


def _training(rank: _Rank, work: Train, stage: Stage) -> Footprint:
    layout, policy, term, weights = rank.layout, rank.policy, rank.term, _weights(rank, stage, work)
    trained = _adapters(rank, work, stage) if work.adapters else weights
    weight_bytes = activation_bytes(work.dtype)
    gradient_bytes = term("gradient", BITS[work.gradient_dtype] / 8, "B", work.gradient_dtype)
    master_bytes = BITS[work.master_dtype] / 8 if weight_bytes < _FP32 else 0
    state_bytes = master_bytes + BITS[work.moment_dtype] / 8 * _MOMENTS[work.optimizer]
    kept = (
        f"{work.optimizer}'s means in {work.moment_dtype}, and the master copy of narrower weights"
    )
    state_bytes = term("state", state_bytes, "B", kept)
    weight_bytes = term("weight", weight_bytes, "B", f"in a run in {work.dtype}")
    shard = _sharded(rank, trained)
    whole_layers = layout.zero >= 3  # gathered for a layer, and dropped after it
    setting = setting_of(rank.model, layout, work.dtype, work.sequence_length, policy, work)
    tokens = layout.micro_batch * work.sequence_length / layout.cp
    tokens = term("tokens", tokens, "", "of a micro-batch on a rank")

    activations, inside, away = _activations(rank, work, stage, setting, tokens)
    logit_bytes = policy.logit_bytes
    if logit_bytes is None:
        logit_bytes = _FP32 + 2 * activation_bytes(work.dtype)
    logit_bytes = term("logit", logit_bytes, "B", "a logit, its softmax in fp32, its gradient")
    loss = choose(stage.has_head, _by_vocabulary(rank, tokens, logit_bytes), 0)
    lasting = _lasting_buffers(rank, trained, weight_bytes, tokens, setting)
    passing = _passing_buffers(rank, work, stage, weight_bytes, tokens, setting)
    update: Any = 0  # what the update leaves behind until the next pass begins
    if policy.update_buffers:
        sent = (trained.total + shard) * weight_bytes
        update = choose((layout.zero > 0) & (layout.dp * layout.cp > 1), sent, 0)
    if policy.gathered_ahead:
        update = update + choose(whole_layers, weights.total * weight_bytes, 0)
    if policy.gradient_copies and gradient_bytes < _FP32:
        update = update + choose(layout.zero == 0, trained.total * _FP32, 0)
    at_update = update > activations + largest(loss, inside) + passing
    at_loss = (loss > inside) & (at_update ^ True)
    logits = choose(at_loss, loss, 0)
    activations = choose(at_update, 0, activations)
    in_pass = passing + choose(at_loss, 0, inside)
    weights_kept = choose(whole_layers, _sharded(rank, weights), weights.total) * weight_bytes
    stored = weight_format(work.dtype).weight_bytes
    # Sharded weights are converted when their layer is gathered, and dropped with it.
    if policy.narrow_weights and stored < activation_bytes(work.dtype):
        narrow = choose(whole_layers, 0, rank.layer.total * stage.layers)
        if work.adapters:  # nothing updates them: the wide ones are not needed
            weights_kept = weights_kept - narrow * (weight_bytes - stored)
        else:  # once for each order of rows, for the GEMMs of both passes
            weights_kept = weights_kept + 2 * stored * narrow
    if work.adapters:
        weights_kept = weights_kept + choose(whole_layers, shard, trained.total) * weight_bytes
    gradients = choose(layout.zero >= 2, shard, trained.total) * gradient_bytes
    optimizer = choose(layout.zero >= 1, shard, trained.total) * state_bytes
    states_away = layout.offload_optimizer * optimizer
    optimizer = optimizer - states_away
    fragments = activations + logits + choose(at_update, 0, in_pass)
    return Footprint(
        weights=weights_kept,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        kv_cache=0,
        buffers=lasting + choose(at_update, update, in_pass),
        framework=_framework(rank, fragments),
        between_steps=weights_kept + gradients + optimizer + lasting + update,
        at_loss=at_loss,
        at_update=at_update,
        host=away + states_away,
    )


def _adapters(rank: _Rank, work: Train, stage: Stage) -> Parameters:
    """Return the weights of a stage's adapters."""
    own = adapter_parameters(rank.model, rank.layout, work) * stage.layers
    return Parameters(rank.term("adapters", own, "weights", f"of rank {work.adapter_rank}"), 0)


def _framework(rank: _Rank, passing: Any) -> Any:
    """Return what is taken outside of all tensors, some of it by those that come and go."""
    policy, term = rank.policy, rank.term
    reserve = term("reserve", policy.reserve_bytes, "bytes", "context, communicators, CUDA graphs")
    share = term("fragments", policy.reserve_share, "share", "of what comes and goes")
    return reserve + share * passing


def _sharded(rank: _Rank, weights: Parameters) -> Any:
    """Return the weights of a rank that are left to it when ZeRO divides them."""
    layout = rank.layout
    copies = sharing_ranks(layout, layout.dp * layout.cp)
    of_experts = sharing_ranks(layout, expert_copies(layout))
    copies = rank.term("ranks", copies, "", "that share the weights (ZeRO)")
    of_experts = rank.term("expert_ranks", of_experts, "", "that share the experts (ZeRO)")
    return weights.dense / copies + weights.experts / of_experts


def _activations(
    rank: _Rank, work: Train, stage: Stage, setting: Setting, tokens: Any
) -> tuple[Any, Any, Any]:
    """Return activations in flight, those inside one layer's backward pass, those on the host."""
    layout, model = rank.layout, rank.model
    kept: Any = 0
    inside: Any = 0
    share, group = recomputed_share(layout, stage.layers), recomputed_group(layout)
    for block in model.blocks:
        saved = saved_by_layer(setting, block)
        own = saved.kept(layout) / group
        if share is not None:
            own = share * own + (1 - share) * saved.everything
        kept = kept + block.count * own
        inside = largest(inside, saved.widest + saved.again(layout) * group)
    between = model.hidden_size * setting.element_bytes * setting.spread
    # The final norm and the head's product keep their inputs, unless the head is frozen; an
    # embedding its dropout mask.
    edges = choose(stage.has_head, (1 if work.adapters else 2) * between, 0)
    if work.mtp_layers:  # a layer like the last, the inputs of its projection and of the head again
        further = saved_by_layer(setting, model.blocks[-1]).kept(layout) + 4 * between
        edges = edges + choose(stage.has_head, work.mtp_layers * further, 0)
    if rank.policy.dropout:
        edges = edges + choose(stage.has_embedding, between / setting.element_bytes, 0)
    if rank.policy.attention_mask:
        edges = edges + setting.context
    micro_batches = ceil_div(work.global_batch, layout.dp * layout.micro_batch)
    term = rank.term
    passes = in_flight(layout, stage.index, micro_batches)
    passes = term("in_flight", passes, "", f"micro-batches, {layout.schedule} schedule")
    kept = term(
        "kept", kept, "B", f"per token, by all layers, recompute {layout.recompute}", _SAVED
    )
    layers = term("layers", stage.layers, "", "of the stage")
    every = term("all_layers", model.num_layers, "", "of the model")
    edges = term("edges", edges, "B", "per token, of embedding and head")
    inside = term("inside", inside, "B", "per token, alive inside one layer's backward pass")
    per_token = kept * layers / every + edges
    whole = passes * per_token * tokens
    if isinstance(layout.offload_activations, int | float) and layout.offload_activations == 0:
        return whole, inside * tokens, 0
    # Layers at work stay: the one that computes and the one that is copied, of a virtual stage.
    staying = smallest(_LAYERS_AT_WORK, layers / layout.virtual_stages) / largest(layers, 1)
    away = layout.offload_activations * largest(passes - staying, 0) * kept * layers / every
    return whole - away * tokens, inside * tokens, away * tokens


def _by_vocabulary(rank: _Rank, tokens: Any, logit_bytes: Any) -> Any:
    """Return the bytes of the logits of tokens that meet the head."""
    vocabulary = rank.term("vocabulary", rank.model.vocab_size)
    return tokens * vocabulary / rank.term("tp", rank.layout.tp) * logit_bytes


def _with_scores(model: Model) -> list[Attention | LatentAttention]:
    parts = (block.attention for block in model.blocks)
    return [part for part in parts if isinstance(part, Attention | LatentAttention)]


def _lasting_buffers(
    rank: _Rank, weights: Parameters, weight_bytes: float, tokens: Any, setting: Setting
) -> Any:
    """Return the buffers that are there all the time."""
    layout, policy = rank.layout, rank.policy
    total: Any = rank.term("workspace", _workspace(rank), "bytes", "of the GEMM libraries")
    if layout.sequence_parallel:
        size = weight_bytes * tokens * rank.model.hidden_size * policy.gather_buffers
        size = step("gathered", size, "bytes", "hidden states of a micro-batch")
        total = total + choose(layout.tp > 1, size, 0)
    if policy.stage_buffers:
        size = weight_bytes * tokens * rank.model.hidden_size * setting.spread
        total = total + choose(layout.pp > 1, policy.stage_buffers * size, 0)
    if policy.score_buffer:
        heads = largest(0, *(part.heads for part in _with_scores(rank.model)))
        total = total + weight_bytes * tokens * setting.context * heads / layout.tp
    if policy.gradient_buckets:
        total = total + choose(layout.dp * layout.cp > 1, weights.total * weight_bytes, 0)
    return total


def _workspace(rank: _Rank) -> Any:
    """Return the scratch space of libraries, which depends on the device's generation."""
    policy, device = rank.policy, rank.device
    capability = device.compute_capability if device is not None else None
    shared = policy.workspace_bytes
    if policy.workspace_bytes_other is not None and capability not in {None, _LARGER_CAPABILITY}:
        shared = policy.workspace_bytes_other
    old = capability is not None and int(capability.partition(".")[0]) < _NEWER_CAPABILITY
    each = policy.layer_workspace_bytes_before_9 if old else policy.layer_workspace_bytes
    grouped = any(isinstance(block.feed_forward, Experts) for block in rank.model.blocks)
    return shared + each * (1 + policy.grouped_workspaces * grouped)


def _passing_buffers(
    rank: _Rank, work: Train, stage: Stage, weight_bytes: float, tokens: Any, setting: Setting
) -> Any:
    """Return what communication holds for a while: neighbours' tensors, weights gathered whole."""
    layout = rank.layout
    layer = rank.term("layer_weights", rank.layer.total, "weights", "of an average layer")
    sent = tokens * setting.hidden * setting.element_bytes * setting.spread
    sent = step("sent", sent, "bytes", "hidden states between stages")
    total = choose(layout.pp > 1, 2 * sent, 0)
    if not work.adapters:
        gradients = layer * rank.term("gradient_bits", BITS[work.gradient_dtype]) / 8
        total = total + choose(layout.zero >= 2, gradients, 0)
    gathered = _GATHERED_LAYERS * layer + end_parameters(rank.model, rank.layout, stage)
    total = total + choose(layout.zero >= 3, gathered * weight_bytes, 0)
    if layout.scheme == "weight_gathered":
        total = total + choose(layout.tp > 1, layer * layout.tp * weight_bytes, 0)
    return total


def _serving(rank: _Rank, work: Prefill | Decode, stage: Stage) -> Footprint:
    model, layout, policy, term = rank.model, rank.layout, rank.policy, rank.term
    meaning = f"of an average layer in {work.formats_text}"
    layer = term("layer_weights", stored_bytes(model, layout, work), "bytes", meaning)
    edges = end_parameters(model, layout, stage)
    dtype = work.part_dtype()
    edges = term("edge_weights", edges * activation_bytes(dtype), "bytes", "embedding and head")
    weights = layer * term("layers", stage.layers, "", "of the stage") + edges
    if isinstance(work, Decode) and work.draft_tokens:
        drafting = prediction_weights(model, layout).stored_bytes(work)
        drafting = choose(stage.has_head, drafting, 0)
        weights = weights + term("drafting", drafting, "bytes", "the layer that drafts tokens")
    sequences = term("sequences", ceil_div(work.batch, layout.dp), "", "of a rank")
    answered: Any
    if isinstance(work, Prefill):
        new, seen, answered = work.prompt_tokens, work.cached_tokens + work.prompt_tokens, 1
    else:
        new, seen = work.query_tokens, work.context_tokens + work.query_tokens
        answered = new
    cache = cache_bytes_per_layer(model, layout, seen, BITS[work.cache_dtype or dtype] / 8)
    setting = setting_of(model, layout, dtype, seen, policy)
    cache = term("cache", cache, "bytes", f"of one sequence and layer, in {work.cache_dtype}")
    tokens = sequences * term("new_tokens", ceil_div(new, layout.cp), "", "of a sequence")
    hidden = term("residual", model.hidden_size * setting.element_bytes, "B", "per token")
    # The residual and the norm's output stand beside the widest part of the layer that runs.
    widest = largest(*(saved_by_layer(setting, block).widest for block in model.blocks))
    widest = term("widest", widest, "B", "per token, the widest part of a layer")
    inside = tokens * (widest + hidden)
    logit_bytes = _FP32 + setting.element_bytes
    logit_bytes = term("logit", logit_bytes, "B", "a logit, and its softmax in fp32")
    # The peak is inside the widest layer, or at the head where the logits are larger.
    met = sequences * term("answered", answered, "", "tokens of a sequence that meet the head")
    scores = choose(stage.has_head, _by_vocabulary(rank, met, logit_bytes), 0)
    at_head = scores > inside
    activations = choose(at_head, tokens * 2 * hidden, inside)
    logits = choose(at_head, scores, 0)
    workspace = term("workspace", policy.workspace_bytes, "bytes", "of the GEMM libraries")
    buffers = workspace + choose(layout.pp > 1, 2 * tokens * hidden, 0)
    cache_kept = cache * sequences * stage.layers
    return Footprint(
        weights=weights,
        gradients=0,
        optimizer=0,
        activations=activations,
        logits=logits,
        kv_cache=cache_kept,
        buffers=buffers,
        framework=_framework(rank, activations + logits),
        between_steps=weights + cache_kept + workspace,
    )


def cache_bytes_per_layer(model: Model, layout: Layout, tokens: Any, element_bytes: float) -> Any:
    """Return what an average layer keeps of one sequence of `tokens`, on one rank."""
    total = sum(
        block.count * _cache_of_layer(part, layout, tokens, element_bytes)
        for block in model.blocks
        for part in block.mixers
    )
    return total / model.num_layers


def _cache_of_layer(part: AnyAttention, layout: Layout, tokens: Any, element_bytes: float) -> Any:
    tp = layout.tp
    if isinstance(part, Attention):
        if part.reused_kv:
            return 0
        seen = tokens if part.window_tokens is None else smallest(tokens, part.window_tokens)
        heads = heads_per_rank(part.kv_heads, tp)
        return seen / layout.cp * 2 * heads * part.head_dim * element_bytes
    if isinstance(part, LatentAttention):
        return tokens / layout.cp * part.cache_elements_per_token * element_bytes
    if isinstance(part, LinearAttention):
        key, value = part.key_heads * part.key_head_dim, part.value_heads * part.value_head_dim
        state = part.value_heads * part.key_head_dim * part.value_head_dim
        past = (2 * key + value) * largest(part.conv_kernel - 1, 0) * element_bytes
        return (state * _STATE_BYTES + past) / tp
    channels = part.inner_size + 2 * part.groups * part.state_size
    past = channels * (part.conv_kernel - 1) * element_bytes
    return (part.inner_size * part.state_size * _STATE_BYTES + past) / tp
