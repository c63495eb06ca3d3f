"""The operations of one rank, by pass, in the order in which they run.

Sizes are numbers or NumPy arrays that broadcast. An operation happens `count` times where it
stands. Elementwise kernels and collectives are in bytes, GEMMs in elements.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeAlias

from shardcost.arrays import largest, smallest
from shardcost.checks import anywhere
from shardcost.records import NamedTuple
from shardcost.recurrence import scan_flops, step_flops


class OpId(NamedTuple):
    """What identifies an operation in its piece of the model: collectives refer to it by this."""

    part: str
    """A matrix of weights, or attention."""
    role: str = ""
    """Empty forward; of a gradient, which."""

    @property
    def name(self) -> str:
        """What the operation is called."""
        return f"{self.part} {self.role}" if self.role else self.part

    @property
    def input_gradient(self) -> OpId:
        """The GEMM of a matrix's input gradient."""
        return OpId(self.part, "input gradient")

    @property
    def weight_gradient(self) -> OpId:
        """The GEMM of a matrix's weight gradient."""
        return OpId(self.part, "weight gradient")


class MatrixIds(NamedTuple):
    """The GEMMs of a matrix of weights."""

    forward: OpId
    input_gradient: OpId
    weight_gradient: OpId


@cache  # every program names the same few matrices
def matrix_ids(name: str) -> MatrixIds:
    """Return what identifies the GEMMs of a matrix of weights of that name."""
    own = OpId(name)
    return MatrixIds(own, own.input_gradient, own.weight_gradient)


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
    """One factor is a weight of the model; False for adapters, and inside unfused attention."""
    id: OpId | None = None
    """None where nothing refers to it."""
    fullest: Any = None
    """Of a grouped GEMM, whose `batch` groups have `m` rows on average: rows of the fullest."""
    launches: Any = 1
    """Kernels that the host starts for it: those that convert its input among them."""

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
    by_query_head: Any = False
    """Whether, in decode, each query head is a block of its own, where it shares a cache too."""
    id: OpId | None = None

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


class LatentCore(NamedTuple):
    """Latent attention as an engine's kernel runs it, with the write of new cache entries.

    The scores of an indexer are its absorbed form without values: `kv_lora` is 0.
    """

    name: str
    batch: Any
    query_tokens: Any
    context_tokens: Any
    heads: Any
    form: str
    """``expanded``: keys and values of every head are rebuilt; ``absorbed``: heads share one."""
    kv_lora: Any
    nope: Any
    rope: Any
    v_dim: Any
    decode: bool
    """Whether queries walk over the cache one by one, as in decode and over chosen tokens."""
    causal: bool
    dtype: str
    """Of the products …"""
    cache_dtype: str
    """… and of the cache."""
    engine: str
    """Whose kernels run."""
    cached_tokens: Any = None
    """Tokens whose entries are read from memory, where queries share some of their contexts; None
    where each has its own."""
    count: Any = 1
    id: OpId | None = None

    @property
    def key_dim(self) -> Any:
        """Elements of a key that a query meets."""
        return (self.kv_lora if self.form == "absorbed" else self.nope) + self.rope

    @property
    def value_dim(self) -> Any:
        """Elements of a value."""
        return self.kv_lora if self.form == "absorbed" else self.v_dim

    @property
    def flops(self) -> Any:
        """Multiplications and additions that the kernel makes, masked blocks left out."""
        pairs = self.query_tokens * self.context_tokens
        if self.causal and not self.decode:
            pairs = pairs - self.query_tokens * (self.query_tokens - 1) / 2
        return 2.0 * self.batch * self.heads * pairs * (self.key_dim + self.value_dim) * self.count


class ExpertKernels(NamedTuple):
    """A part of the experts of a layer on one rank, as an engine runs them.

    Both grouped GEMMs, or the small kernels around them: top-k, sorting by expert, conversion to
    fewer bits, the activation, and the weighted sum back to token order.
    """

    name: str
    part: Literal["gemms", "small"]
    tokens: Any
    """That the kernels see: of the whole expert group, or those that were dispatched here."""
    rows: Any
    """Token-expert pairs of this rank's experts, on the fullest rank."""
    active: Any
    """Experts of this rank with at least one row."""
    fullest: Any
    """Rows of the fullest expert."""
    hidden: Any
    width: Any
    """Of an expert, on this rank."""
    experts: Any
    """That the kernels sort the tokens among: of the layer, or of this rank where only its own
    tokens were sent here."""
    ep: Any
    """Ranks over which those are spread."""
    top_k: Any
    gated: bool
    dtype: str
    engine: str
    """Whose kernels run."""
    spread: Any = False
    """Whether the experts of the layer are spread over several ranks."""
    beside_latent: bool = False
    """Whether the layer's attention is latent."""
    count: Any = 1
    id: OpId | None = None

    @property
    def flops(self) -> Any:
        """Multiplications and additions of GEMMs, each counted."""
        if self.part != "gemms":
            return 0.0
        matrices = 3 if self.gated else 2
        return 2.0 * self.rows * self.hidden * self.width * matrices * self.count


class Conversion(NamedTuple):
    """The conversion of a GEMM's input to fewer bits, each row with a scale of its own."""

    dtype: str
    """The format of the GEMM's weights: nothing happens on a device that multiplies such weights in
    16 bits."""
    rows: Any
    columns: Any
    fused: bool
    """It is part of the kernel before, which takes longer by it."""
    both_orders: bool
    """The result is written by rows and by columns, as training needs it."""
    with_gemm: bool = False
    """The host starts it and its GEMM in one call, as engines do where inputs have scales of their
    own for blocks of a row (TensorRT-LLM's ``fp8_block_scaling_gemm``, vLLM's
    ``apply_w8a8_block_fp8_linear``)."""


class StateKernel(NamedTuple):
    """A kernel of a layer with a fixed state: its convolution, its scan or its step."""

    name: str
    rule: str
    """A key of `shardcost.recurrence.RULES`."""
    part: str
    """``conv``, ``scan`` or ``step``."""
    batch: Any
    query_tokens: Any
    k_heads: Any
    k_dim: Any
    v_heads: Any
    v_dim: Any
    conv_channels: Any
    conv_width: Any
    decode: bool
    backward: bool
    dtype: str
    engine: str
    """Whose kernels run."""
    count: Any = 1
    id: OpId | None = None

    @property
    def phase(self) -> str:
        """``prefill``, or of decode ``verify`` where any sequence has several new tokens."""
        if not self.decode:
            return "prefill"
        return "verify" if anywhere(self.query_tokens > 1) else "decode"

    @property
    def flops(self) -> Any:
        """Multiplications and additions of products with the state; gradients take two for one."""
        if self.part == "conv":
            return 0.0
        heads = (self.v_heads, self.k_dim, self.v_dim)
        if self.part == "scan":
            each = scan_flops(self.rule, self.k_heads, self.k_dim, self.v_heads, self.v_dim)
        else:
            each = step_flops(self.rule, *heads)
        return self.batch * self.query_tokens * each * (2 if self.backward else 1) * self.count


class Elementwise(NamedTuple):
    """Memory-bound work: so many bytes read and written by so many kernels."""

    name: str
    bytes_moved: Any
    kernels: Any = 1
    count: Any = 1
    id: OpId | None = None
    converts: Conversion | None = None
    """Where it converts the input of a GEMM to fewer bits."""


class Routed(NamedTuple):
    """What an exchange of tokens between the ranks of an expert group depends on."""

    tokens: Any
    """That each rank sends to their experts."""
    hidden: Any
    top_k: Any
    experts: Any
    groups: int | None
    """Groups of experts of which a token may reach some …"""
    top_groups: int | None
    """… so many of them, where routing is limited."""
    dtype: str
    library: str
    low_latency: bool


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
    hides_behind: tuple[OpId, ...] = ()
    """Operations that do not wait for it and that it may hide behind."""
    split_with: OpId | None = None
    """The GEMM that its result goes into, or that yields what it carries: the one that chunked
    overlap splits."""
    is_ring_attention: bool = False
    """Whether it passes on the key-value blocks of ring attention, behind which it hides."""
    routed: Routed | None = None
    """Of the collectives ``dispatch`` and ``combine``: what is sent."""

    @classmethod
    def of(
        cls,
        collective: str,
        what: str,
        size_bytes: Any,
        group: str,
        ranks: Any,
        count: Any = 1,
        stride: Any = 1,
        hides_behind: tuple[OpId, ...] = (),
        split_with: OpId | None = None,
    ) -> Collective:
        """Return a collective on something, called after both.

        >>> Collective.of("all_reduce", "attn out", 2**20, "tp", 8).name
        'all-reduce (attn out)'
        """
        name = f"{collective.replace('_', '-')} ({what})"
        return cls(
            name, collective, size_bytes, group, ranks, count, stride, hides_behind, split_with
        )

    @property
    def degree(self) -> str:
        """The degree whose communication it is: copies of experts and of shards are dp's."""
        return self.group.partition("_")[0]

    def linked(self, hides_behind: tuple[OpId, ...], split_with: OpId | None = None) -> Collective:
        """Return it with the operations that it may hide behind, and the one it is split with."""
        return self._replace(hides_behind=hides_behind, split_with=split_with)


Kernel: TypeAlias = Gemm | AttentionCore | LatentCore | ExpertKernels | StateKernel | Elementwise
Operation: TypeAlias = Kernel | Collective
Operations: TypeAlias = tuple[Operation, ...]


class Passes(NamedTuple):
    """What a piece of the model does in each pass over it."""

    forward: Operations
    backward: Operations = ()
    """Gradients of the input, and whatever cannot be put off."""
    weight: Operations = ()
    """Gradients of the weights, which zero-bubble schedules put off."""
    recompute: Operations = ()

    def __hash__(self) -> int:
        """Return that of the first operations: they tell most pieces apart."""
        return hash(self.forward[:3])


def together(*parts: Passes) -> Passes:
    """Return pieces that follow each other forward, and so in turned order backward."""
    forward: Operations = ()
    backward: Operations = ()
    weight: Operations = ()
    recompute: Operations = ()
    for part in parts:
        forward, recompute = forward + part.forward, recompute + part.recompute
        backward, weight = part.backward + backward, part.weight + weight
    return Passes(forward, backward, weight, recompute)
