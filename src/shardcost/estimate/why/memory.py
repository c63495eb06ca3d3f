"""Why a rank holds as much memory as it does: each kind's formula, on each stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp
from typing import Any, Final, NamedTuple

from shardcost.arrays import ceil_div, smallest
from shardcost.dtypes import BITS, activation_bytes
from shardcost.estimate.interval import residuals_of_memory
from shardcost.estimate.result import Estimate
from shardcost.estimate.why.reason import Error, Part, Why, cited, reason, spread, stated_by, total
from shardcost.memory.account import cache_bytes_per_layer
from shardcost.memory.footprint import KINDS, Footprint
from shardcost.memory.parameters import expert_copies
from shardcost.memory.policy import MemoryPolicy, policy_with
from shardcost.memory.saved import saved_by_layer, setting_of
from shardcost.memory.stages import in_flight, last_stage, stage_by_cost, stage_evenly
from shardcost.program.assemble import StageShare
from shardcost.program.step import gradient_bytes, shard_ranks
from shardcost.receipt import Term, in_unit
from shardcost.units import format_bytes, format_count
from shardcost.workload import Decode, Prefill, Train

_FP32: Final = 4


class _Formula(NamedTuple):
    """An expression over terms."""

    expression: str
    terms: list[Term]


_NONE: Final = _Formula("0", [])


def memory_figures(found: Estimate) -> Iterator[str]:
    """Yield the names of the figures on memory."""
    yield "memory_bytes"
    yield from (f"memory.{kind}" for kind in KINDS)
    for stage in found.memory.stages:
        yield f"memory.{stage}"
        yield from (f"memory.{stage}.{kind}" for kind in KINDS)


def memory(found: Estimate, figure: str) -> Why:
    """Return why the fullest rank, a stage's or one kind of its memory is as large as it is."""
    if figure == "memory_bytes":
        return _peak(found)
    _, name, *kind = figure.split(".")
    if kind:
        return _kind(found, figure, name, kind[0])
    if name in KINDS:
        return _kind(found, figure, str(found.memory.worst_stage), name)
    return _stage(found, figure, name)


def memory_in_words(found: Estimate) -> str:
    """Return what fills the fullest rank, by kind, each with how it grows."""
    held = found.memory
    worst = str(held.worst_stage)
    share = getattr(found.program.stages, worst, found.program.stages.first)
    train = isinstance(found.workload, Train)
    formulas = _training_memory(found, share) if train else _serving_memory(found)
    said = [
        f"{kind.replace('_', ' ')} ({formulas[kind]}) {format_bytes(size)}"
        for kind, size in held.by_kind().items()
        if size
    ]
    capacity = found.cluster.device.memory_bytes
    stated = cited(found.cluster, "device.memory_bytes")
    return (
        f"{worst} stage, {' + '.join(said)} = {format_bytes(held.peak_bytes)} of"
        f" {format_bytes(capacity)}{stated}"
    )


def _peak(found: Estimate) -> Why:
    held = found.memory
    worst = str(held.worst_stage)
    others = ", ".join(
        f"{name} {format_bytes(each.total)}" for name, each in held.stages.items() if name != worst
    )
    beside = f"; fuller than {others}" if others else ""
    device = found.cluster.device
    capacity = Term(
        "capacity",
        float(device.memory_bytes),
        "bytes",
        f"of one {device.name}",
        stated_by(found.cluster, "device.memory_bytes"),
    )
    return total(
        "memory_bytes",
        f"Memory of the fullest rank: {worst} stage{_when(held.stages[worst])}{beside}",
        held.peak_bytes,
        "bytes",
        _kinds("memory.{}", held.stages[worst]),
        terms=[capacity],
        error=_error(found, float(held.peak_bytes)),
        words=memory_in_words(found),
    )


def _stage(found: Estimate, figure: str, stage: str) -> Why:
    held = found.memory.stages[stage]
    return total(
        figure,
        f"Memory of a rank of the {stage} stage{_when(held)}",
        held.total,
        "bytes",
        _kinds(f"memory.{stage}.{{}}", held),
        error=_error(found, float(held.total)),
    )


def _when(footprint: Footprint) -> str:
    return f", {footprint.moment}" if footprint.moment else ""


def _kinds(name: str, held: Footprint) -> list[Part]:
    return [
        Part(name.format(kind), kind.replace("_", " "), float(getattr(held, kind)), "bytes")
        for kind in KINDS
    ]


def _kind(found: Estimate, figure: str, stage: str, kind: str) -> Why:
    held = found.memory.stages[stage]
    size = float(getattr(held, kind))
    place = _Place.of(found, stage)
    train = isinstance(found.workload, Train)
    known = _trained(place, held, kind) if train else _served(place, held, kind)
    words = _training_memory(found, place.share) if train else _serving_memory(found)
    name = "KV cache" if kind == "kv_cache" else kind.capitalize()
    title = f"{name} on a rank of the {stage} stage{_when(held)}"
    expression, terms = known if size else _NONE
    says = words[kind] if size else "none at the peak"
    error = _error(found, None)
    return reason(figure, title, size, "bytes", expression, terms, error=error, words=says)


class _Place(NamedTuple):
    """A stage, and what the formulas of its memory need to know."""

    found: Estimate
    share: StageShare
    index: Any
    layers: Any
    policy: MemoryPolicy

    @classmethod
    def of(cls, found: Estimate, stage: str) -> _Place:
        model, layout = found.model, found.layout
        policy = policy_with(vars(found.software), found.software.memory)
        last = last_stage(model, layout, policy.balance)
        index = {"first": 0, "middle": 1, "last": last}[stage]
        split = stage_evenly if policy.balance == "layers" else stage_by_cost
        share = getattr(found.program.stages, stage)
        return cls(found, share, index, split(model, layout, index).layers, policy)


def _weights(place: _Place, *, sharded: bool) -> _Formula:
    """Return how many weights a rank has, or of them its part where ZeRO divides them."""
    weights, layout = place.share.weights, place.found.layout
    every = [
        Term("dense", float(weights.dense), "weights", "on the stage, after tp"),
        Term("experts", float(weights.experts), "weights", "on the stage, after ep and tp"),
    ]
    counted = [each for each in every if each.value]
    if not sharded:
        joined = " + ".join(each.name for each in counted)
        return _Formula(f"({joined})" if len(counted) > 1 else joined, counted)
    ranks = {"dense": layout.dp * layout.cp, "experts": expert_copies(layout)}
    if layout.shard_degree is not None:
        ranks = {name: smallest(each, layout.shard_degree) for name, each in ranks.items()}
    shared = [
        Term(f"{each.name}_ranks", float(ranks[each.name]), "", "ranks that share them (ZeRO)")
        for each in counted
    ]
    joined = " + ".join(f"{each.name} / {each.name}_ranks" for each in counted)
    return _Formula(f"({joined})" if len(counted) > 1 else joined, [*counted, *shared])


def _per_weight(place: _Place, each: float, meaning: str, *, sharded: bool = False) -> _Formula:
    expression, terms = _weights(place, sharded=sharded)
    width = Term("bytes_each", each, "B", meaning)
    return _Formula(f"{expression} * bytes_each", [*terms, width])


def _trained(place: _Place, held: Footprint, kind: str) -> _Formula:
    """Return one kind's formula in training."""
    work, layout = place.found.workload, place.found.layout
    if not isinstance(work, Train):
        raise TypeError(type(work).__name__)
    if kind == "weights":
        return _per_weight(
            place, activation_bytes(work.dtype), f"in {work.dtype}", sharded=layout.zero >= 3
        )
    if kind == "gradients":
        meaning = f"in {work.gradient_dtype}"
        return _per_weight(place, gradient_bytes(work), meaning, sharded=layout.zero >= 2)
    if kind == "optimizer":
        meaning = f"{work.optimizer}'s means in fp32, and the master copy of narrower weights"
        return _per_weight(place, _state_bytes(work), meaning, sharded=layout.zero >= 1)
    if kind == "activations":
        return _activations(place, held, work)
    if kind == "logits":
        tokens = layout.micro_batch * work.sequence_length / layout.cp
        return _logits(place, held, tokens, "of a micro-batch on a rank")
    return _rest(place, held, kind)


def _state_bytes(work: Train) -> float:
    master = _FP32 if activation_bytes(work.dtype) < _FP32 else 0
    return float(master + _FP32 * {"adam": 2, "sgd": 1}[work.optimizer])


def _activations(place: _Place, held: Footprint, work: Train) -> _Formula:
    model, layout = place.found.model, place.found.layout
    setting = setting_of(model, layout, work.dtype, work.sequence_length, place.policy)
    kept = sum(
        block.count * saved_by_layer(setting, block).kept(layout.recompute)
        for block in model.blocks
    )
    kept = kept / model.num_layers
    micro_batches = ceil_div(work.global_batch, layout.dp * layout.micro_batch)
    passes = in_flight(layout, place.index, micro_batches)
    tokens = layout.micro_batch * work.sequence_length / layout.cp
    ends = held.activations / (passes * tokens) - place.layers * kept
    terms = [
        Term("in_flight", float(passes), "", f"micro-batches, {layout.schedule} schedule"),
        Term("tokens", float(tokens), "", "of a micro-batch on a rank"),
        Term("layers", float(place.layers), "", "of the stage"),
        Term(
            "kept",
            float(kept),
            "B",
            f"per token and layer, recompute {layout.recompute}",
            "Korthikanti et al. 2022, arXiv:2205.05198, operator by operator",
        ),
        Term("ends", float(ends), "B", "per token, of the embedding and the head"),
    ]
    return _Formula("in_flight * tokens * (layers * kept + ends)", terms)


def _logits(place: _Place, held: Footprint, tokens: Any, which: str) -> _Formula:
    model, tp = place.found.model, place.found.layout.tp
    each = held.logits * tp / (tokens * model.vocab_size)
    gradient = ", its gradient" if isinstance(place.found.workload, Train) else ""
    terms = [
        Term("tokens", float(tokens), "", which),
        Term("vocabulary", float(model.vocab_size), ""),
        Term("tp", float(tp), ""),
        Term("bytes_each", float(each), "B", f"the logit, its softmax in fp32{gradient}"),
    ]
    return _Formula("tokens * vocabulary / tp * bytes_each", terms)


def _rest(place: _Place, held: Footprint, kind: str) -> _Formula:
    """Return what the software takes besides the tensors of the model."""
    policy, software = place.policy, place.found.software
    stated = str(software.memory.get("source", "")) if software.memory else ""
    if kind == "buffers":
        beside = held.buffers - policy.workspace_bytes
        terms = [
            Term("workspace", float(policy.workspace_bytes), "bytes", "of the matrix libraries"),
            Term("passing", float(beside), "bytes", "sends, gathered layers, inside one layer"),
        ]
        return _Formula("workspace + passing", terms)
    reserve = Term(
        "reserve", float(policy.reserve_bytes), "bytes", "context, communicators, graphs", stated
    )
    if not policy.reserve_share:
        return _Formula("reserve", [reserve])
    moving = (held.framework - policy.reserve_bytes) / policy.reserve_share
    terms = [
        reserve,
        Term("fragments", float(policy.reserve_share), "share", "of what comes and goes", stated),
        Term("tensors", float(moving), "bytes", "that come and go in a pass"),
    ]
    return _Formula("reserve + fragments * tensors", terms)


def _served(place: _Place, held: Footprint, kind: str) -> _Formula:
    """Return one kind's formula in serving."""
    work, layout, model = place.found.workload, place.found.layout, place.found.model
    if not isinstance(work, Prefill | Decode):
        raise TypeError(type(work).__name__)
    if kind == "weights":
        return _per_weight(place, BITS[work.dtype] / 8, f"in {work.dtype}")
    sequences = ceil_div(work.batch, layout.dp)
    shared = Term("sequences", float(sequences), "", "of a rank")
    if isinstance(work, Prefill):
        new, seen, answered = work.prompt_tokens, work.cached_tokens + work.prompt_tokens, 1
    else:
        new, seen = work.new_tokens, work.context_tokens + work.new_tokens
        answered = int(new)
    if kind == "logits":
        return _logits(place, held, sequences * answered, "that are answered, on a rank")
    if kind == "activations":
        tokens = sequences * ceil_div(new, layout.cp)
        each = held.activations / tokens
        terms = [
            Term("tokens", float(tokens), "", "computed on a rank"),
            Term("bytes_each", float(each), "B", "the residual and the widest part of a layer"),
        ]
        return _Formula("tokens * bytes_each", terms)
    if kind == "kv_cache":
        each = cache_bytes_per_layer(model, layout, seen, BITS[work.cache_dtype] / 8)
        terms = [
            shared,
            Term("layers", float(place.layers), "", "of the stage"),
            Term(
                "per_layer",
                float(each),
                "bytes",
                f"of one sequence of {seen:,} tokens in {work.cache_dtype}: keys and values of a"
                " rank's heads, latent vectors or states",
            ),
        ]
        return _Formula("sequences * layers * per_layer", terms)
    return _rest(place, held, kind)


def _error(found: Estimate, size: float | None) -> Error:
    """Return how far measured peaks were, for one of a size or for a kind of memory."""
    like = residuals_of_memory(found)
    factors = exp(like.low), exp(like.high)
    words = f"of the peaks of {like.like}, nine of ten were within {spread(*factors)}"
    if size is None:
        words += "; kinds were not measured apart"
        return Error(words, like.like, like.rows)
    low, high = (size * each for each in factors)
    words += f": {in_unit(low, 'bytes')} to {in_unit(high, 'bytes')}"
    return Error(words, like.like, like.rows, low, high)


def _training_memory(found: Estimate, share: StageShare) -> Mapping[str, str]:
    """Return in which proportion each kind of memory grows, in training."""
    layout, work = found.layout, found.workload
    if not isinstance(work, Train):
        raise TypeError(type(work).__name__)
    ranks = shard_ranks(layout)
    held = format_count(share.weights.total)
    weights = "trained" if work.adapters else f"{held} weights"
    over = [f" / {ranks} ranks" if layout.zero >= stage else "" for stage in (1, 2, 3)]
    states = f"{_state_bytes(work):g} B: master copy and {work.optimizer}'s means"
    return {
        "weights": f"{held} weights{over[2]} x {activation_bytes(work.dtype):g} B",
        "gradients": f"{weights}{over[1]} x {gradient_bytes(work):g} B",
        "optimizer": f"{weights}{over[0]} x {states}",
        "activations": f"of the micro-batches in flight, recompute {layout.recompute}",
        "logits": "tokens x vocabulary / tp",
        "kv_cache": "none",
        "buffers": "workspace, sends, gathered layers",
        "framework": "context, communicators, fragments",
    }


def _serving_memory(found: Estimate) -> Mapping[str, str]:
    work = found.workload
    if not isinstance(work, Prefill | Decode):
        raise TypeError(type(work).__name__)
    return {
        "weights": f"{format_count(found.model.parameters)} / (tp x pp) in {work.dtype}",
        "gradients": "none",
        "optimizer": "none",
        "activations": "tokens x the widest part of a layer",
        "logits": "sequences x vocabulary / tp",
        "kv_cache": f"sequences / dp x tokens x layers / pp x KV heads / tp in {work.cache_dtype}",
        "buffers": "workspace, sends",
        "framework": "context, communicators",
    }
