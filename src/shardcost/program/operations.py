"""The operations of which a rank's day is made, and the order they come in.

Sizes are numbers or NumPy arrays that broadcast. An operation happens `count` times where it
stands. Passes and collectives are in bytes, products in elements.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from shardcost.arrays import largest, smallest


class Gemm(NamedTuple):
    """A matrix product `m x k` by `k x n`; `batch` of them at once, as for experts."""

    name: str
    m: Any
    n: Any
    k: Any
    dtype: str
    batch: Any = 1
    count: Any = 1
    weights: bool = True
    """One factor is a weight; False for the products inside unfused attention."""

    @property
    def flops(self) -> Any:
        """Multiplications and additions, each counted."""
        return 2.0 * self.m * self.n * self.k * self.batch * self.count


class AttentionCore(NamedTuple):
    """Attention by one fused kernel that never writes the scores to memory."""

    name: str
    batch: Any
    query_tokens: Any
    context_tokens: Any
    heads: Any
    kv_heads: Any
    head_dim: Any
    value_dim: Any
    window_tokens: int | None
    causal: bool
    decode: bool
    backward: bool
    dtype: str
    count: Any = 1
    document_tokens: Any = None
    """Mean length of the documents packed into a sequence, at whose ends attention stops; None
    where a sequence is one document."""

    def by_document(self) -> AttentionCore:
        """Return the same tokens as one causal call per document, as variable-length kernels run.

        A rank has whole documents, or its balanced part of a longer one: then a query meets half
        of the document on average.
        """
        documents = self.document_tokens
        queries = smallest(self.query_tokens, documents)
        return self._replace(
            batch=self.batch * largest(self.query_tokens, documents) / documents,
            query_tokens=queries,
            context_tokens=(documents + queries) / 2,
            causal=True,
            document_tokens=None,
        )

    @property
    def flops(self) -> Any:
        """Multiplications and additions that the kernel makes, masked blocks left out.

        The backward pass makes five products for the forward's two (Dao 2023, arXiv:2307.08691).
        """
        if self.document_tokens is not None:
            return self.by_document().flops
        pairs = self.query_tokens * self.context_tokens
        if self.causal and not self.decode:
            pairs = pairs - self.query_tokens * (self.query_tokens - 1) / 2
        if self.window_tokens is not None:
            pairs = smallest(pairs, self.query_tokens * self.window_tokens)
        each = 2.0 * (self.head_dim + self.value_dim) * (2.5 if self.backward else 1.0)
        return self.batch * self.heads * pairs * each * self.count


class Elementwise(NamedTuple):
    """Memory-bound work: so many bytes read and written by so many kernels."""

    name: str
    bytes_moved: Any
    kernels: Any = 1
    count: Any = 1


class Collective(NamedTuple):
    """A collective over one of the layout's groups; bytes as nccl-tests counts them."""

    name: str
    collective: str
    size_bytes: Any
    group: str
    """``tp``, ``cp``, ``ep``, ``dp`` or ``pp``."""
    ranks: Any
    count: Any = 1
    stride: Any = 1
    """From one rank to the next, in ranks of the group: more where a part of it takes part."""
    beside: tuple[str, ...] = ()
    """Names of the products that do not wait for it and that it may hide behind."""
    feeds: str = ""
    """The product that its result goes into, or that yields what it carries: the one that chunked
    overlap splits."""


Operation: TypeAlias = Gemm | AttentionCore | Elementwise | Collective
Operations: TypeAlias = tuple[Operation, ...]


class Passes(NamedTuple):
    """What a piece of the model does in each pass over it."""

    forward: Operations
    backward: Operations = ()
    """Gradients of the input, and whatever cannot be put off."""
    weight: Operations = ()
    """Gradients of the weights, which zero-bubble schedules put off."""
    recompute: Operations = ()


def together(*parts: Passes) -> Passes:
    """Return pieces that follow each other forward, and so in turned order backward."""
    turned = parts[::-1]
    return Passes(
        tuple(op for part in parts for op in part.forward),
        tuple(op for part in turned for op in part.backward),
        tuple(op for part in turned for op in part.weight),
        tuple(op for part in parts for op in part.recompute),
    )
