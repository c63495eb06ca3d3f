"""What a framework keeps in memory beyond what the mathematics of training needs.

Which tensors are saved depends on the kernels (fused attention or not, fused activations or not);
which buffers stay depends on how gradients and weights travel. The defaults are those of a
framework with fused kernels and no buffers that outlive their use. What a framework takes besides
its tensors is measured, and kept in the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from shardcost import catalog
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.records import dataclass

_WORDS: Final = {"attention": ("flash", "unfused"), "balance": ("layers", "cost")}
_CHOICES: Final = ("attention", "dropout", "balance")
"""What a framework chooses for its time, and what its memory shows as well."""
_NOTES: Final = ("source", "fit")
"""Keys that describe a table."""
MEASURED_FRAMEWORK: Final = "nanotron"
"""The framework whose reserve stands in for that of one nobody measured."""


@dataclass(frozen=True)
class MemoryPolicy:
    """How a framework treats memory; the keys of a ``[memory]`` table of the catalog."""

    attention: str = "flash"
    """``flash`` keeps the softmax's statistics, ``unfused`` its whole output."""
    dropout: bool = False
    """Masks of one byte per element are kept after attention, feed-forward part and softmax."""
    fused_activation: bool = True
    """A gated activation is one kernel; else the activated gate is kept besides gate and up."""
    whole_inputs: bool = False
    """Under sequence parallelism, column-parallel products keep the input that they gathered; else
    their share of it, to gather it again in the backward pass."""
    narrow_inputs: bool = False
    """Inputs of GEMMs in fewer than 16 bits are kept in their format; else in 16 bits."""
    narrow_activations: bool = False
    """Inputs of the activations between GEMMs likewise (DeepSeek-V3, arXiv:2412.19437, section
    3.3.3)."""
    narrow_frozen_activations: bool = False
    """The same where only adapters are trained (Megatron Core's activation_func_fp8_input_store,
    without which published LoRA runs would not fit)."""
    expert_outputs: bool = True
    """Experts' outputs are kept for the router's gradient; not where the activation is weighted."""
    narrow_weights: bool = False
    """Weights of GEMMs in fewer than 16 bits are kept in their format too, in two orders: for the
    products of both passes."""
    peak_imbalance: float = 1.0
    """Tokens of the fullest rank's experts over the mean, at most since the start, of routers that
    nothing balances but a loss."""
    logit_bytes: float | None = None
    """Bytes per logit at the loss. None: logits, their softmax in fp32, and their gradient."""
    gradient_buckets: bool = False
    """Gradients that are reduced over replicas also lie in buckets of the weights' format."""
    gradient_copies: bool = False
    """The update copies gradients of fewer than 32 bits to fp32; copies stay until the next step
    begins. Only without a sharded optimizer, which copies its shards bucket by bucket."""
    update_buffers: bool = False
    """Under ZeRO, updated weights are sent from and gathered into buffers of their own, which stay
    until the next forward pass."""
    gathered_ahead: bool = False
    """Under ZeRO 3, weights are gathered for the next step as soon as they are updated."""
    stage_buffers: float = 0.0
    """Hidden states of a micro-batch that stay allocated where pipeline stages send them."""
    gather_buffers: float = 1.0
    """Buffers for a whole micro-batch of hidden states that sequence parallelism keeps."""
    balance: str = "layers"
    """What pipeline stages have alike: their number of ``layers``, or the ``cost``, the output head
    counted in layers."""
    attention_mask: bool = False
    """A mask of one byte per pair of tokens comes with every sequence, causal or not."""
    score_buffer: bool = False
    """Unfused attention keeps a buffer of the scores' size for its first product."""
    workspace_bytes: float = 0.0
    """Scratch space of the matrix libraries."""
    workspace_bytes_other: float | None = None
    """The same on devices of another compute capability than 9.0; None: no other."""
    layer_workspace_bytes: float = 0.0
    """The like of the library of layers, on devices of compute capability 9.0 and above …"""
    layer_workspace_bytes_before_9: float = 0.0
    """… and on older ones."""
    grouped_workspaces: float = 0.0
    """How many more of these grouped GEMMs of experts have, one per stream."""
    reserve_bytes: float = 0.0
    """Taken outside of all tensors: context, communicators, and what the allocator cannot use."""
    reserve_share: float = 0.0
    """The like in proportion to the tensors that come and go: fragments."""

    def __post_init__(self) -> None:
        """Check that every value is of the kind of its default, and words among the known."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in _WORDS:
                if value not in _WORDS[each.name]:
                    raise UnknownNameError(each.name, value, _WORDS[each.name])
            elif isinstance(each.default, bool):
                if not isinstance(value, bool):
                    raise BadTypeError(each.name, value, "True or False")
            elif value is not None and (isinstance(value, str) or not value >= 0):
                raise BadValueError(each.name, value, "a number of at least 0")


_KEYS: Final = tuple(each.name for each in fields(MemoryPolicy))


def policy_of(software: Mapping[str, Any] | MemoryPolicy | None) -> MemoryPolicy:
    """Return the policy in a table of a framework; its ``memory`` table where it has one.

    What the table leaves open stays at the default, and scratch space and reserve at those of the
    one framework that was measured.
    """
    if isinstance(software, MemoryPolicy):
        return software
    given = {} if software is None else software.get("memory", software)
    unknown = next((key for key in given if key not in _KEYS and key not in _NOTES), None)
    if unknown is not None:
        raise UnknownNameError("key of a memory policy", unknown, _KEYS)
    # Fragments are left out: they follow from the order in which one framework allocates.
    measured = catalog.raw("software", MEASURED_FRAMEWORK)["memory"]
    reserve = {key: measured[key] for key in ("workspace_bytes", "reserve_bytes")}
    return MemoryPolicy(**reserve | {key: given[key] for key in _KEYS if key in given})


def policy_named(name: str) -> MemoryPolicy:
    """Return the policy of a framework of the catalog."""
    software = catalog.software_named(name)
    if not software.memory:
        known = [stem for stem, content in catalog.contents("software") if "memory" in content]
        raise UnknownNameError("framework with measured memory", name, known)
    return policy_with(vars(software), software.memory)


def policy_with(choices: Mapping[str, Any], memory: Mapping[str, Any]) -> MemoryPolicy:
    """Return the policy of a framework: those of its choices that memory shows, and its own."""
    shown = {key: choices[key] for key in _CHOICES if key in choices}
    return policy_of({**shown, **memory})
