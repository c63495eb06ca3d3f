"""What stands before and after the layers: embedding, output head and loss.

All three are divided over the vocabulary by tensor parallelism. A lookup that finds nothing adds
nothing, so the embedding ends in a sum over the group; the loss needs three small sums, of the
largest logit, the exponentials and the target's logit (Shoeybi et al. 2019, arXiv:1909.08053).
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import ceil_div
from shardcost.model import Model
from shardcost.program.operations import Collective, Elementwise, Passes, together
from shardcost.program.setting import Setting, enter, leave, matrix

HEAD = "head"


def embedding(s: Setting) -> Passes:
    """Return the lookup of every token, and its sum over the tensor group."""
    size = 2 * s.hidden_bytes
    lookup = (Elementwise("embedding", size),)
    if s.frozen:
        return Passes(lookup + leave(s, "embedding").forward)
    weight = (Elementwise("embedding gradient", 2 * size),) if s.training else ()
    return together(Passes(lookup, (), weight), leave(s, "embedding", wide=True))


def head(s: Setting, model: Model) -> Passes:
    """Return the last norm, the logits and, in training, the loss and what it sends back."""
    rows = s.tokens if s.training else s.sequences * (s.sequence_tokens if s.decode else 1)
    multiple = s.software.vocab_multiple * s.layout.tp  # the vocabulary is padded by the software
    columns = ceil_div(model.vocab_size, multiple) * multiple / s.layout.tp
    dtype = s.wide_dtype
    final = norm(s, "final norm")
    if not s.training:
        own = matrix(s, HEAD, rows, s.hidden, columns, dtype).forward
        if s.shares_tensors:
            size = rows * columns * s.layout.tp * 2
            own = (*own, Collective.of("all_gather", "logits", size, "tp", s.layout.tp))
        return together(final, Passes(own))
    own_passes = matrix(s, HEAD, rows, s.hidden, columns, dtype)
    return together(final, enter(s, HEAD, wide=True), own_passes, _loss(s, rows * columns))


def _loss(s: Setting, logits: Any) -> Passes:
    """Return the cross entropy: logits read as 16 bits, kept as 32, read for each sum.

    Step by step, as Megatron-LM has it (Shoeybi et al. 2019), it widens the logits, looks for the
    largest, subtracts it, takes exponentials, adds them up and divides by the sum; backward it
    multiplies by the loss's gradient and narrows the result.
    """
    sums = Collective.of("all_reduce", "loss", 4 * s.tokens, "tp", s.layout.tp, 3)
    there, back = 2 + 4 * 4, 4 + 2
    if not s.software.fused_loss:
        there, back = (2 + 4) + 4 + 8 + 8 + 4 + 8, 8 + (4 + 2)
    forward = (Elementwise("loss", logits * there, 4),)
    return Passes(
        (*forward, sums) if s.shares_tensors else forward,
        (Elementwise("loss gradient", logits * back, 2),),
    )


def norm(s: Setting, name: str) -> Passes:
    """Return a normalisation by itself: read and written once.

    Backward, the input's gradient reads two arrays and writes one; the scale's reads both again.
    """
    size = s.spread_tokens * s.hidden * s.element_bytes
    backward = (Elementwise(f"{name} gradient", 5 * size, 2),) if s.training else ()
    return Passes((Elementwise(name, 2 * size),), backward)


def residual(s: Setting) -> Passes:
    """Return the sum with the residual stream; with dropout its mask is written beside it.

    Fused with the norm that follows, the sum is written and not read again.
    """
    size = s.spread_tokens * s.hidden * s.element_bytes
    fused = s.software.fused_elementwise and not s.training
    moved = size * (2 if fused else 3)
    back = 3 * size
    if s.software.dropout and s.training:
        mask = size / s.element_bytes
        moved, back = moved + mask, back + 2 * size + mask
    backward = (Elementwise("residual gradient", back),) if s.training else ()
    return Passes((Elementwise("residual", moved, 0 if fused else 1),), backward)
