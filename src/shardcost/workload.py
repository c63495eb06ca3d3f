"""The noun `Workload`: what is computed. Training, prefill and decode are its three kinds.

Counts are of sequences and tokens over all devices, before any layout divides them. They may be
NumPy arrays that broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from operator import itemgetter
from typing import Any, Final, Protocol, Self

from shardcost.checks import (
    Count,
    Noun,
    Quantity,
    flag,
    format_of_weights,
    noun,
    number_format,
    one_of,
    share,
    whole,
)
from shardcost.dtypes import weight_format
from shardcost.errors import BadValueError

_WIDE: Final = "bf16"


class Formatted(Protocol):
    """What has number formats of its own: a `Model`."""

    @property
    def weight_dtype(self) -> str:
        """Of linear layers."""

    @property
    def attention_dtype(self) -> str | None:
        """Of attention's projections, where it is another."""

    @property
    def expert_dtype(self) -> str | None:
        """Of experts, where it is another."""

    @property
    def cache_dtype(self) -> str | None:
        """Of the KV cache, where it is stated."""


class Workload(Noun, ABC):
    """Base of `Train`, `Prefill` and `Decode`."""

    phase: str
    dtype: str | None
    """The format of weights outside of attention and experts, which decides what is multiplied."""

    def part_dtype(self, part: str = "") -> str:
        """Return the format of the weights of ``attention``, ``expert``, or of the rest."""
        dtype: str | None = getattr(self, f"{part}_dtype", None) or self.dtype
        if dtype is None:
            raise BadValueError("dtype", dtype, "stated, or the model's own (in_formats_of)")
        return dtype

    @property
    def formats_text(self) -> str:
        """The number formats in words: of the weights, and of what differs from them.

        >>> Decode(batch=1, context_tokens=1, dtype="bf16", expert_dtype="mxfp4").formats_text
        'bf16, experts mxfp4'
        """
        dtype = self.part_dtype()
        parts = {name: self.part_dtype(name) for name in ("attention", "expert")}
        said = {"attention": "attention", "expert": "experts"}
        words = [f"{said[name]} {own}" for name, own in parts.items() if own != dtype]
        cache = getattr(self, "cache_dtype", None) or _WIDE
        words += [f"KV cache {cache}"] if cache not in {dtype, _WIDE} else []
        return ", ".join([dtype, *words])

    @property
    def of_a_pass(self) -> Hashable:
        """What decides what one pass over the layers does, as a key."""
        return self

    def in_formats_of(self, model: Formatted, *, narrow_cache: bool = False) -> Self:
        """Return the same with every number format stated."""
        del model, narrow_cache
        return self

    @property
    @abstractmethod
    def tokens(self) -> Count:
        """Tokens that one step trains on, reads or yields."""

    @property
    def computed_tokens(self) -> Count:
        """Tokens that pass through the layers in one step."""
        return self.tokens


@noun
class Train(Workload):
    """One optimizer step on `global_batch` sequences.

    >>> Train(global_batch=1024, sequence_length=4096).tokens
    4194304
    """

    global_batch: Count = whole()
    """Sequences per optimizer step, over all replicas."""
    sequence_length: Count = whole()
    dtype: str = format_of_weights(default="bf16")
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
    adapter_rank: int = whole(default=16)
    """Columns of an adapter's first matrix, and rows of its second."""
    adapter_targets: str = one_of("qkv", "attention", "all", default="attention")
    """Matrices with adapters: the projections to queries, keys and values; that of attention's
    output too; or those of dense feed-forward parts and shared experts as well."""
    document_tokens: int | None = whole(default=None)
    """Mean length of the documents packed into a sequence, where attention stops at their ends."""
    mtp_layers: int = whole(default=0, least=0)
    """Layers for multi-token prediction that are trained along (DeepSeek-V3, arXiv:2412.19437)."""

    phase = "train"

    @property
    def tokens(self) -> Count:
        """Tokens per optimizer step."""
        return self.global_batch * self.sequence_length

    @property
    def of_a_pass(self) -> Hashable:
        """What decides what one pass does, over a micro-batch of however large a batch."""
        key: Hashable = _OF_A_PASS(self.__dict__)
        return key


_OF_A_PASS: Final = itemgetter(*(name for name in Train._names if name != "global_batch"))


@noun
class _Serving(Workload):
    """The number formats of a served model. None: the model's own (`in_formats_of`)."""

    batch: Count = whole()
    dtype: str | None = format_of_weights(default=None)
    attention_dtype: str | None = format_of_weights(default=None)
    """Of the projections of attention, where it is another than `dtype`."""
    expert_dtype: str | None = format_of_weights(default=None)
    """Of the weights of experts, where it is another than `dtype`."""
    dispatch_dtype: str | None = number_format(default=None)
    """Of tokens on their way to experts; None: as the software sends them."""
    cache_dtype: str | None = number_format(default=None)
    """Of the KV cache."""

    @property
    def formats(self) -> dict[str, Any]:
        """The number formats by the names of their fields."""
        names = ("dtype", "attention_dtype", "expert_dtype", "dispatch_dtype", "cache_dtype")
        return {name: getattr(self, name) for name in names}

    def in_formats_of(self, model: Formatted, *, narrow_cache: bool = False) -> Self:
        """Return the same with every format stated: those left open are the model's own.

        Args:
            model: Whose weights are served.
            narrow_cache: The engine keeps the cache in 8 bits where the weights are in fewer than
                16, unless told otherwise.
        """
        if self.dtype and self.attention_dtype and self.expert_dtype and self.cache_dtype:
            return self
        own = self.dtype is None
        dtype = model.weight_dtype if self.dtype is None else self.dtype
        attention = self.attention_dtype or (model.attention_dtype if own else None) or dtype
        expert = self.expert_dtype or (model.expert_dtype if own else None) or dtype
        narrow = narrow_cache and any(
            weight_format(each).narrow_weights for each in (dtype, expert)
        )
        cache = self.cache_dtype or (model.cache_dtype if own else None)
        return self.variant(
            dtype=dtype,
            attention_dtype=attention,
            expert_dtype=expert,
            cache_dtype=cache or ("fp8" if narrow else _WIDE),
        )


@noun
class Prefill(_Serving):
    """One pass over the prompts of `batch` sequences."""

    prompt_tokens: Count = whole()
    """New tokens per sequence."""
    cached_tokens: Count = whole(default=0, least=0)
    """Tokens per sequence whose keys and values are already in the cache."""

    phase = "prefill"

    @property
    def tokens(self) -> Count:
        """Tokens computed in the pass."""
        return self.batch * self.prompt_tokens


@noun
class Decode(_Serving):
    """One step that adds `new_tokens` to each of `batch` sequences."""

    context_tokens: Count = whole()
    """Tokens per sequence that are in the cache when the step begins."""
    new_tokens: Count = whole(default=1)
    """Tokens per sequence and step that are surely kept: 1, unless several are given."""
    draft_tokens: int = whole(default=0, least=0)
    """Tokens per sequence and step drafted by a layer for multi-token prediction, each from the one
    before, and verified in the next step (Leviathan et al. 2022, arXiv:2211.17192)."""
    acceptance: Quantity = share(default=0.85)
    """Probability that a draft is kept if those before it were. Published for DeepSeek-V3's second
    token: 85 to 90 % (arXiv:2412.19437, section 5.4.3)."""

    phase = "decode"

    @property
    def query_tokens(self) -> Count:
        """Tokens of a sequence that pass through the layers in one step, drafts among them."""
        return self.new_tokens + self.draft_tokens

    @property
    def kept_tokens(self) -> Any:
        """Tokens of a sequence that a step yields on average: a draft counts if all before do.

        >>> Decode(batch=1, context_tokens=1, draft_tokens=2, acceptance=0.5).kept_tokens
        1.75
        """
        drafts = sum(self.acceptance**number for number in range(1, self.draft_tokens + 1))
        return self.new_tokens + drafts

    @property
    def tokens(self) -> Any:
        """Tokens that the step yields on average."""
        return self.batch * self.kept_tokens

    @property
    def computed_tokens(self) -> Count:
        """Tokens that pass through the layers in the step."""
        return self.batch * self.query_tokens
