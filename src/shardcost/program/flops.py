"""Floating-point operations of a model, as papers count them to state a utilisation.

Forward, a token costs two operations for each weight of a matrix that it meets, and attention four
for each query head, head element and token attended to; the backward pass costs twice the forward.
Authors differ in whether attention counts all pairs of tokens (Narayanan et al. 2021,
arXiv:2104.04473) or those that the causal mask leaves (Megatron Bridge): both are here, and a
utilisation must say which.
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import smallest
from shardcost.model import Attention, Block, Experts, LatentAttention, Model
from shardcost.workload import Decode, Prefill, Train, Workload


def model_flops(model: Model, workload: Workload, *, causal: bool) -> Any:
    """Return the operations of one step over all devices, nothing computed twice.

    Args:
        model: The model.
        workload: A training step counts forward and backward, others forward only.
        causal: Count the pairs of tokens that the mask leaves, not all.
    """
    matrices = 2.0 * sum(block.count * matrix_weights(block, model) for block in model.blocks)
    context = _mean_context(workload, causal=causal)
    attention = sum(block.count * _attention(block, context) for block in model.blocks)
    layers = workload.tokens * (matrices + attention)
    head = 2.0 * model.hidden_size * model.vocab_size * tokens_with_logits(workload)
    return (3.0 if isinstance(workload, Train) else 1.0) * (layers + head)


def matrix_weights(block: Block, model: Model) -> Any:
    """Return the weights of a layer's matrices that a token meets."""
    active = block.parameters(model.hidden_size) - block.idle_parameters(model.hidden_size)
    if isinstance(block.feed_forward, Experts):
        return active - block.feed_forward.count * model.hidden_size  # the router, too small
    return active


def _attention(block: Block, context: Any) -> Any:
    part = block.attention
    if isinstance(part, Attention):
        seen = context if part.window_tokens is None else smallest(context, part.window_tokens)
        return 4.0 * seen * part.heads * part.head_dim
    if isinstance(part, LatentAttention):
        width = part.qk_nope_head_dim + part.qk_rope_head_dim + part.v_head_dim
        return 2.0 * context * part.heads * width
    return 0.0


def _mean_context(workload: Workload, *, causal: bool) -> Any:
    """Return to how many tokens a token attends on average."""
    if isinstance(workload, Train):
        return workload.sequence_length * (0.5 if causal else 1.0)
    if isinstance(workload, Prefill):
        return workload.cached_tokens + workload.prompt_tokens * (0.5 if causal else 1.0)
    if isinstance(workload, Decode):
        return workload.context_tokens + workload.new_tokens * (0.5 if causal else 1.0)
    raise TypeError(type(workload).__name__)


def tokens_with_logits(workload: Workload) -> Any:
    """Return the tokens that meet the head: of a prompt only the last."""
    return workload.batch if isinstance(workload, Prefill) else workload.tokens
