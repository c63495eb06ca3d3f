"""The noun `Workload`: what is computed. Training, prefill and decode are its three kinds.

Counts are of sequences and tokens over all devices, before any layout divides them. They may be
NumPy arrays that broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from shardcost.checks import Count, Noun, flag, noun, number_format, one_of, whole


class Workload(Noun, ABC):
    """Base of `Train`, `Prefill` and `Decode`."""

    phase: str
    dtype: str

    @property
    @abstractmethod
    def tokens(self) -> Count:
        """Tokens that one step computes."""


@noun
class Train(Workload):
    """One optimizer step on `global_batch` sequences.

    >>> Train(global_batch=1024, sequence_length=4096).tokens
    4194304
    """

    global_batch: Count = whole()
    """Sequences per optimizer step, over all replicas."""
    sequence_length: Count = whole()
    dtype: str = number_format(default="bf16")
    """Number format of the matrix products."""
    gradient_dtype: str = number_format(default="fp32")
    """Number format in which gradients are accumulated and reduced."""
    optimizer: str = one_of("adam", "sgd", default="adam")
    moment_dtype: str = number_format(default="fp32")
    """Number format of the optimizer's running means (precision-aware optimizers)."""
    master_dtype: str = number_format(default="fp32")
    """Number format of the master copy of weights of fewer than 32 bits."""
    adapters: bool = flag(default=False)
    """Only low-rank adapters are trained (Hu et al. 2021, arXiv:2106.09685): the model's own
    weights have no gradients."""
    document_tokens: int | None = whole(default=None)
    """Mean length of the documents packed into a sequence, where attention stops at their ends."""

    phase = "train"

    @property
    def tokens(self) -> Count:
        """Tokens per optimizer step."""
        return self.global_batch * self.sequence_length


@noun
class Prefill(Workload):
    """One pass over the prompts of `batch` sequences."""

    batch: Count = whole()
    prompt_tokens: Count = whole()
    """New tokens per sequence."""
    cached_tokens: Count = whole(default=0, least=0)
    """Tokens per sequence whose keys and values are already in the cache."""
    dtype: str = number_format(default="bf16")
    cache_dtype: str = number_format(default="bf16")

    phase = "prefill"

    @property
    def tokens(self) -> Count:
        """Tokens computed in the pass."""
        return self.batch * self.prompt_tokens


@noun
class Decode(Workload):
    """One step that adds `new_tokens` to each of `batch` sequences."""

    batch: Count = whole()
    context_tokens: Count = whole()
    """Tokens per sequence that are in the cache when the step begins."""
    new_tokens: Count = whole(default=1)
    """Tokens per sequence and step; more than 1 where drafts are verified."""
    dtype: str = number_format(default="bf16")
    cache_dtype: str = number_format(default="bf16")

    phase = "decode"

    @property
    def tokens(self) -> Count:
        """Tokens computed in the step."""
        return self.batch * self.new_tokens
