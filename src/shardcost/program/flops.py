"""FLOPs of a model: what the mathematics of a step needs, to state a utilisation.

Forward, a token costs two FLOPs for each weight of a matrix that it meets, and attention four for
each query head, head element and token attended to. Layers with a fixed state count the products of
a token with the state, as in their recurrence. The backward pass costs as much again for the
gradients of the inputs, and of matrices once more for the gradients of the weights, which frozen
weights do not have but the adapters beside them do. Authors differ in whether attention counts all
pairs of tokens (Narayanan et al. 2021, arXiv:2104.04473) or those that the causal mask leaves
(Megatron Bridge): both are here, and a utilisation must say which. Windows, indexers and the ends
of packed documents limit either.

Devices make at least these FLOPs (`Estimate.hardware_flops`): recomputation, padding, replicated
heads, tokens beyond an even share of the experts and masked pairs only add.
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import smallest
from shardcost.layout import Layout
from shardcost.memory.adapters import adapter_parameters
from shardcost.model import (
    AnyAttention,
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    Model,
)
from shardcost.recurrence import step_flops
from shardcost.traced import Naming, unnamed
from shardcost.workload import Decode, Prefill, Train, Workload

_UNDIVIDED: Final = Layout()


def model_flops(model: Model, workload: Workload, *, causal: bool, term: Naming = unnamed) -> Any:
    """Return the FLOPs of one step over all devices, nothing computed twice.

    Args:
        model: The model.
        workload: A training step counts forward and backward, others forward only.
        causal: Count the pairs of tokens that the mask leaves, not all.
        term: Names terms, for a receipt.
    """
    weights = sum(
        block.count * block.matrix_parameters(model.hidden_size) for block in model.blocks
    )
    # A layer that predicts a further token is one like the last, a projection and the head again.
    further = workload.mtp_layers if isinstance(workload, Train) else 0
    last, hidden = model.blocks[-1], model.hidden_size
    weights = weights + further * (last.matrix_parameters(hidden) + 2 * hidden * hidden)
    weights = term("weights", weights, "weights", "of the layers, that a token meets")
    head = term("head", (1 + further) * hidden * model.vocab_size, "weights")
    tokens = term("tokens", workload.computed_tokens, "", "computed in a step")
    # Of a prompt only the last token meets the head.
    answered = workload.batch if isinstance(workload, Prefill) else workload.computed_tokens
    answered = term("answered", answered, "", "tokens that meet the head")
    matrices = 2.0 * (tokens * weights + answered * head)
    context = _mean_context(workload, causal=causal)
    pairs = sum(block.count * _mixing(block, context) for block in model.blocks)
    pairs = pairs + further * _mixing(last, context)
    seen = "that the causal mask leaves" if causal else "all of them"
    pairs = term("attention", pairs, "FLOP", f"per token; pairs of tokens: {seen}")
    passes: Any = 1.0
    attention_passes: Any = 1.0
    if isinstance(workload, Train):
        passes, attention_passes = (2.0 if workload.adapters else 3.0), 3.0
    passes = term("passes", passes, "", "over the matrices: forward, and backward if trained")
    attention_passes = term("attention_passes", attention_passes, "", "over attention, likewise")
    total = passes * matrices + attention_passes * tokens * pairs
    if not isinstance(workload, Train) or not workload.adapters:
        return total
    layers = model.num_layers + further  # a layer that predicts is taken to be like the mean
    adapters = layers * adapter_parameters(model, _UNDIVIDED, workload)
    adapters = term("adapters", adapters, "weights", f"of rank {workload.adapter_rank}")
    return total + 3.0 * 2.0 * tokens * adapters


def _mixing(block: Block, context: Any) -> Any:
    """Return the FLOPs by which one token meets others in one layer."""
    return sum((_attention(part, context) for part in block.mixers), 0.0)


def _attention(part: AnyAttention, context: Any) -> Any:
    if isinstance(part, Attention):
        most, dims = part.window_tokens, 2 * part.head_dim
    elif isinstance(part, LatentAttention):
        most = part.index_top_k
        dims = part.qk_nope_head_dim + part.qk_rope_head_dim + part.v_head_dim
    elif isinstance(part, LinearAttention):
        heads = (part.value_heads, part.key_head_dim, part.value_head_dim)
        return step_flops(part.op, *heads)
    elif part.heads is not None:
        return step_flops("mamba2", 1, part.state_size, part.inner_size)
    else:
        return 0.0
    index: Any = 0.0
    if isinstance(part, LatentAttention):  # an indexer scores all tokens before it picks some
        index = 2.0 * context * (part.index_heads or 0) * (part.index_head_dim or 0)
    return index + 2.0 * (context if most is None else smallest(context, most)) * part.heads * dims


def _mean_context(workload: Workload, *, causal: bool) -> Any:
    """Return to how many tokens a token attends on average."""
    share = 0.5 if causal else 1.0
    if isinstance(workload, Train):
        tokens = workload.sequence_length
        if workload.document_tokens is not None:
            tokens = smallest(tokens, workload.document_tokens)
        return tokens * share
    if isinstance(workload, Prefill):
        return workload.cached_tokens + workload.prompt_tokens * share
    if isinstance(workload, Decode):
        return workload.context_tokens + workload.query_tokens * share
    raise TypeError(type(workload).__name__)
