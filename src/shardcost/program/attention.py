"""The attention part of a layer on one rank, from the gathered input to the partial output.

Column-parallel projections, attention over the rank's own heads, a row-parallel projection
(Shoeybi et al. 2019, arXiv:1909.08053). Context parallelism stands around the attention itself:
rings of key-value blocks (Liu et al. 2023, arXiv:2310.01889), an all-gather of keys and values
(Llama 3, arXiv:2407.21783), or all-to-alls that trade sequence for heads (Jacobs et al. 2023,
arXiv:2309.14509).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from shardcost.arrays import smallest
from shardcost.checks import anywhere
from shardcost.errors import BadValueError
from shardcost.memory.parameters import heads_per_rank
from shardcost.model import AnyAttention, Attention, LatentAttention, LinearAttention, StateSpace
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Elementwise,
    Gemm,
    LatentCore,
    Operations,
    OpId,
    Passes,
    StateKernel,
    together,
)
from shardcost.program.setting import AFTER_ATTENTION, Setting, linear

QKV, OUT = "qkv", "attn out"
ROPE: Final = "RoPE"
ATTENTION: Final = OpId("attention")
_UP_PROJECTIONS: Final = frozenset({"q up", "kv up", ROPE})
"""Operations between the latent vectors and attention itself."""
_NAMES: Final = {"conv": "convolution", "scan": "scan", "step": "state step"}
"""Kernels of a layer with a fixed state."""
_GRADIENT: Final = OpId("attention", "gradient")
INDEX: Final = OpId("index scores")
_INDEX_DTYPE: Final = "fp8"
"""Of the indexer's queries and cached keys (DeepSeek-V3.2)."""
_INDEXER: Final = "indexer"
"""Whose kernel computes the scores: the same in all engines."""
_SCORE_BYTES: Final = 4
"""Scores are written in fp32, and read by the selection."""
_SQUARE_BYTES: Final = 4
"""Sums of squares are in fp32."""


def attention_part(s: Setting, part: AnyAttention) -> Passes:
    """Return the attention part of a layer, without its norm and its tensor-parallel sums."""
    if s.attention_dtype != s.dtype:
        s = replace(s, dtype=s.attention_dtype)
    if isinstance(part, Attention):
        return _attention(s, part)
    if isinstance(part, LatentAttention):
        return _latent_attention(s, part)
    return _recurrent(s, part)


def up_projections(passes: Passes) -> Operations:
    """Return what rebuilds queries, keys and values from latent vectors in the forward pass."""
    return tuple(op for op in passes.forward if op.name in _UP_PROJECTIONS)


def first_products(part: AnyAttention) -> tuple[str, ...]:
    """Return the names of the products that read the part's input."""
    return ("q down", "kv down") if isinstance(part, LatentAttention) else (QKV,)


def _attention(s: Setting, part: Attention) -> Passes:
    tp = s.layout.tp
    heads, kv_heads = part.heads / tp, heads_per_rank(part.kv_heads, tp)
    query, key_value = heads * part.head_dim, kv_heads * part.head_dim
    columns = query * (2 if part.output_gate else 1) + key_value * part.kv_projections
    if part.q_rank is None:
        projected = linear(s, QKV, s.hidden, columns, bias=part.qkv_bias, adapter="columns")
    else:
        narrow = columns - query + part.q_rank
        projected = together(
            linear(s, QKV, s.hidden, narrow, bias=part.qkv_bias, adapter="columns"),
            linear(s, "q up", part.q_rank, query, adapter="columns"),
        )
    return together(
        projected,
        _qk_norm(s, part.qk_norm, query + key_value),
        _rotated(s, query + key_value),
        _over_context(s, query, 2 * key_value),
        attention_core(s, heads, kv_heads, part.head_dim, part.head_dim, part.window_tokens),
        linear(
            s, OUT, query, s.hidden, bias=part.out_bias, adapter="rows", converted=AFTER_ATTENTION
        ),
    )


def _latent_attention(s: Setting, part: LatentAttention) -> Passes:
    """Return DeepSeek's attention: rebuilt heads in training and prefill, absorbed ones in decode.

    Absorbed, each head's query meets the cached vector itself: the up-projections of keys and
    values become products per head on both sides of a multi-query attention (arXiv:2405.04434).
    """
    heads = part.heads / s.layout.tp
    query_dim = part.qk_nope_head_dim + part.qk_rope_head_dim
    latent = part.kv_lora_rank + part.qk_rope_head_dim
    rank = part.q_lora_rank
    if rank is None:
        query = linear(s, "q down", s.hidden, heads * query_dim, adapter="columns")
    else:
        query = together(
            linear(s, "q down", s.hidden, rank, adapter="whole"),
            linear(s, "q up", rank, heads * query_dim, adapter="columns"),
        )
    down = linear(s, "kv down", s.hidden, latent, adapter="whole")
    out = linear(
        s, OUT, heads * part.v_head_dim, s.hidden, adapter="rows", converted=AFTER_ATTENTION
    )
    index = _indexer(s, part)
    if not s.training and (s.decode or part.index_heads is not None):
        nope, lora = part.qk_nope_head_dim, part.kv_lora_rank
        keys = Gemm("q absorb", s.tokens, lora, nope, s.wide_dtype, heads)
        values = Gemm("v absorb", s.tokens, part.v_head_dim, lora, s.wide_dtype, heads)
        core = _latent_core(s, part, "absorbed")
        sent = _over_context(s, heads * latent, latent)
        return together(query, down, index, Passes((keys,)), sent, core, Passes((values,)), out)
    columns = heads * (part.qk_nope_head_dim + part.v_head_dim)
    if not s.training:
        # Keys and values of a cached prefix are rebuilt as well as those of the prompt.
        tokens = s.sequences * s.context_tokens / s.layout.cp
        up = linear(s, "kv up", part.kv_lora_rank, columns, tokens)
        sent = _over_context(s, heads * query_dim, columns)
        core = _latent_core(s, part, "expanded")
        if s.software.attention == "unfused":
            core = attention_core(s, heads, heads, query_dim, part.v_head_dim, None)
        return together(query, down, up, sent, core, out)
    core = attention_core(s, heads, heads, query_dim, part.v_head_dim, part.index_top_k)
    return together(
        query,
        down,
        linear(s, "kv up", part.kv_lora_rank, columns, adapter="columns"),
        _rotated(s, heads * part.qk_rope_head_dim),
        _over_context(s, heads * query_dim, columns),
        index,
        core,
        out,
    )


def _latent_core(s: Setting, part: LatentAttention, form: str) -> Passes:
    """Return latent attention by an engine's kernel, over the tokens that an indexer leaves.

    The rotation of queries and keys and the write to the cache are in the kernel's time.
    """
    heads = part.heads / s.layout.tp
    one = _fused_core(s, heads, 1, 1, 1, None)
    core = LatentCore(
        one.name,
        one.batch,
        one.query_tokens,
        one.context_tokens,
        one.heads,
        form,
        part.kv_lora_rank,
        part.qk_nope_head_dim,
        part.qk_rope_head_dim,
        part.v_head_dim,
        s.decode,
        one.causal,
        s.wide_dtype,
        s.cache_dtype,
        s.software.library or "",
        id=ATTENTION,
    )
    if part.index_top_k is None:
        return Passes((core,))
    # Every query attends to tokens of its own: a block has the heads of one, and blocks meet in
    # the L2 cache, which memory fills once.
    mean = one.context_tokens - (one.query_tokens - 1) / 2 if one.causal else one.context_tokens
    seen = smallest(mean, part.index_top_k)
    queries = one.batch * one.query_tokens
    chosen = core._replace(
        batch=queries,
        query_tokens=1,
        context_tokens=seen,
        decode=True,
        causal=False,
        cached_tokens=smallest(queries * seen, one.batch * one.context_tokens),
    )
    return Passes((chosen,))


def _indexer(s: Setting, part: LatentAttention) -> Passes:
    """Return the indexer that picks the tokens of sparse attention (DeepSeek-V3.2).

    Queries of few small heads meet one cached key of each token in 8 bits; a query's scores, summed
    over the heads, go to a selection of the largest. Every rank of a tensor group computes all of
    it. In training the scores are attention without values, whose gradients train the indexer.
    """
    heads, dim = part.index_heads, part.index_head_dim
    if heads is None or dim is None:
        return Passes(())
    rank = part.q_lora_rank
    projections = (
        linear(s, "index q", s.hidden if rank is None else rank, heads * dim),
        linear(s, "index k", s.hidden, dim),
        linear(s, "index weights", s.hidden, heads),
    )
    if not s.decode and s.software.attention == "unfused":
        return together(*projections, _unfused(s, heads, dim))
    one = _fused_core(s, heads, 1, dim, 0, None)
    pairs = one._replace(heads=1, head_dim=1).flops / 2
    top_k = Passes((Elementwise("index top-k", 2 * _SCORE_BYTES * pairs, 2),))
    if s.training:
        scored = one._replace(name=INDEX.name, id=INDEX)
        own = OpId(INDEX.part, "gradient")
        gradient = one._replace(name=own.name, backward=True, id=own)
        again = (scored,) if s.layout.recomputes("core_attn") else ()
        return together(*projections, Passes((scored,), (gradient,), (), again), top_k)
    scores = LatentCore(
        INDEX.name,
        one.batch,
        one.query_tokens,
        one.context_tokens,
        one.heads,
        "absorbed",
        0,
        0,
        dim,
        0,
        s.decode,
        one.causal,
        _INDEX_DTYPE,
        _INDEX_DTYPE,
        _INDEXER,
        id=INDEX,
    )
    return together(*projections, Passes((scores,)), top_k)


def _recurrent(s: Setting, part: LinearAttention | StateSpace) -> Passes:
    """Return layers with a fixed state: projections, convolution, scan or step, and gated norm."""
    if isinstance(part, LinearAttention):
        return _linear_attention(s, part)
    tp = s.layout.tp
    value = part.inner_size / tp
    if part.heads is None:
        return _first_state_space(s, part)
    # Mamba-2 projects the gate, the input, the state's two sides and the step sizes together.
    sides = 2 * part.groups * part.state_size / tp
    kernel = _state_kernel(
        s,
        "mamba2",
        (part.groups / tp, part.state_size, part.heads / tp, part.inner_size / part.heads),
        (value + sides, part.conv_kernel),
    )
    columns = 2 * value + sides + part.heads / tp
    return together(
        linear(s, QKV, s.hidden, columns, bias=part.bias, adapter="columns"),
        _recurrence(s, kernel),
        _gated_norm(s, value),
        linear(s, OUT, value, s.hidden, bias=part.bias, adapter="rows", converted=AFTER_ATTENTION),
    )


def _linear_attention(s: Setting, part: LinearAttention) -> Passes:
    tp = s.layout.tp
    key, value = part.key_size / tp, part.value_size / tp
    kernel = _state_kernel(
        s,
        part.op,
        (part.key_heads / tp, part.key_head_dim, part.value_heads / tp, part.value_head_dim),
        (2 * key + value, part.conv_kernel),
    )
    gates = Passes(())
    if anywhere(part.low_rank > 0):  # Kimi delta attention: decay and output gate of low rank
        gates = linear(s, "gate up", part.low_rank / 2, key + value)
    return together(
        linear(s, QKV, s.hidden, part.input_columns / tp + part.low_rank, adapter="columns"),
        gates,
        _recurrence(s, kernel),
        _gated_norm(s, value),
        linear(s, OUT, value, s.hidden, adapter="rows", converted=AFTER_ATTENTION),
    )


def _first_state_space(s: Setting, part: StateSpace) -> Passes:
    """Return Mamba's first generation, whose scan keeps the state of a channel on the SM.

    It is bound by the bytes of its inputs and outputs (Gu & Dao 2023, arXiv:2312.00752, section
    3.3): input, step size, both sides of the state, gate and output, once each.
    """
    value = part.inner_size / s.layout.tp
    kernel = _state_kernel(s, "mamba2", (1, part.state_size, value, 1), (value, part.conv_kernel))
    scan = _recurrence(s, kernel)
    if not s.decode:
        size = s.tokens * (4 * value + 2 * part.state_size) * s.element_bytes
        backward = (Elementwise("scan gradient", 2 * size, 2),) if s.training else ()
        scan = together(
            _recurrence(s, kernel, parts=("conv",)), Passes((Elementwise("scan", size),), backward)
        )
    return together(
        linear(s, QKV, s.hidden, 2 * value, bias=part.bias, adapter="columns"),
        scan,
        linear(s, OUT, value, s.hidden, bias=part.bias, adapter="rows", converted=AFTER_ATTENTION),
    )


def _state_kernel(
    s: Setting, rule: str, heads: tuple[Any, Any, Any, Any], conv: tuple[Any, Any]
) -> StateKernel:
    """Return a kernel of a layer with a fixed state, but for its part.

    Args:
        s: The setting.
        rule: The recurrence.
        heads: Key heads of the rank, their size, value heads, their size.
        conv: Channels of the convolution and its taps.
    """
    batch, tokens = s.sequences, s.sequence_tokens
    if not s.decode:
        tokens = tokens / s.layout.cp
        if s.document_tokens is not None:  # the state begins anew with every document
            batch = batch * tokens / smallest(tokens, s.document_tokens)
            tokens = smallest(tokens, s.document_tokens)
    return StateKernel(
        "",
        rule,
        "",
        batch,
        tokens,
        *heads,
        *conv,
        decode=s.decode,
        backward=False,
        dtype=s.wide_dtype,
        engine=s.software.library or "",
    )


def _recurrence(
    s: Setting, kernel: StateKernel, parts: tuple[str, ...] = ("conv", "scan")
) -> Passes:
    """Return the convolution, where there is one, and the scan; in decode, the step."""
    passes = Passes(())
    for part in parts:
        if part == "conv" and not anywhere(kernel.conv_width > 0):
            continue
        run = "step" if part == "scan" and s.decode else part
        own = kernel._replace(name=_NAMES[run], part=run)
        gradient = own._replace(name=f"{own.name} gradient", backward=True)
        passes = together(passes, Passes((own,), (gradient,) if s.training else ()))
    return passes


def _gated_norm(s: Setting, columns: Any) -> Passes:
    """Return the norm of the output times its gate: both are read, one is written.

    Backward, both and the gradient are read, and two gradients are written.
    """
    size = s.tokens * columns * s.element_bytes
    backward = (Elementwise("gated norm gradient", 5 * size),) if s.training else ()
    return Passes((Elementwise("gated norm", 3 * size),), backward)


def _qk_norm(s: Setting, norm: str, columns: Any) -> Passes:
    """Return the norm of queries and keys where RoPE's kernel does not have it.

    By head, it is one with RoPE where the software fuses elementwise kernels. Over all heads of the
    layer, ranks that share them sum the squares first: two numbers a token (MiniMax-M2).
    """
    tp = s.layout.tp
    shared = norm == "full" and not (isinstance(tp, int) and tp == 1)
    if norm == "none" or (s.software.fused_elementwise and not shared):
        return Passes(())
    size = s.tokens * columns * s.element_bytes

    def one_way(name: str, moved: Any) -> Operations:
        summed = Collective.of("all_reduce", name, 2 * _SQUARE_BYTES * s.tokens, "tp", tp)
        kernel = Elementwise(name, moved)
        return (summed, kernel) if shared else (kernel,)

    backward = one_way("QK norm gradient", 3 * size) if s.training else ()
    return Passes(one_way("QK norm", 2 * size), backward)


def _rotated(s: Setting, columns: Any) -> Passes:
    """Return the rotation of queries and keys: read and written once, forward and backward."""
    size = 2 * s.tokens * columns * s.element_bytes
    kernels = 1 if s.software.fused_elementwise else 2
    backward = (Elementwise(f"{ROPE} gradient", size, kernels),) if s.training else ()
    return Passes((Elementwise(ROPE, size, kernels),), backward)


def attention_core(
    s: Setting, heads: Any, kv_heads: Any, head_dim: Any, value_dim: Any, window: int | None
) -> Passes:
    """Return attention itself, by one fused kernel or by products with the scores in memory."""
    if s.software.attention == "unfused" and not s.decode:
        return _unfused(s, heads, head_dim)
    core = _fused_core(s, heads, kv_heads, head_dim, value_dim, window)
    if not s.training:
        return Passes((core,))
    recompute = (core,) if s.layout.recomputes("core_attn") else ()
    gradient = core._replace(name=_GRADIENT.name, backward=True, id=_GRADIENT)
    return Passes((core,), (gradient,), (), recompute)


def _fused_core(
    s: Setting, heads: Any, kv_heads: Any, head_dim: Any, value_dim: Any, window: int | None
) -> AttentionCore:
    """Return attention by one fused kernel, forward."""
    cp, ulysses = s.layout.cp, s.layout.context_scheme == "ulysses"
    alone = isinstance(cp, int) and cp == 1
    queries, context = s.sequence_tokens, s.context_tokens
    share = heads / cp if ulysses else heads
    causal = True
    if not ulysses and not alone:
        if anywhere(cp == 1) and not s.decode:
            raise BadValueError("cp", cp, "1 alone or above 1 in every cell: attention differs")
        # A balanced split gives every rank the same part of the triangle: each of its queries
        # meets half of the sequence on average.
        causal = s.decode
        context = context / cp if s.decode else context - (queries - 1) / 2
        queries = queries if s.decode else queries / cp
    groups = s.software.grouped_decode if s.decode else None
    packed = s.document_tokens is not None and anywhere(s.document_tokens < s.sequence_tokens)
    return AttentionCore(
        ATTENTION.name,
        s.sequences,
        queries,
        context,
        share,
        smallest(kv_heads, share) if ulysses else kv_heads,
        head_dim,
        value_dim,
        window,
        causal,
        s.decode,
        backward=False,
        dtype=s.cache_dtype if s.decode else s.wide_dtype,
        document_tokens=smallest(s.document_tokens, s.sequence_tokens) if packed else None,
        by_query_head=groups is not None and heads != groups * kv_heads,
        id=ATTENTION,
    )


def _unfused(s: Setting, heads: Any, head_dim: Any) -> Passes:
    """Return attention with its scores in memory: two products and a softmax between them.

    The softmax (with mask and scale) reads and writes the scores; dropout on the probabilities
    reads and writes them again with a mask of one byte each.
    """
    queries, context = s.sequence_tokens / s.layout.cp, s.context_tokens
    batch = s.sequences * heads
    scores = batch * queries * context
    drop = 5 if s.software.dropout else 0

    def product(name: str, m: Any, n: Any, k: Any, count: int = 1) -> Gemm:
        return Gemm(name, m, n, k, s.wide_dtype, batch, count, weights=False)

    forward = (
        product("scores", queries, context, head_dim),
        Elementwise("softmax", scores * (2 * s.element_bytes + drop), 2 if drop else 1),
        product("values", queries, head_dim, context),
    )
    if not s.training:
        return Passes(forward)
    backward = (
        product("values gradient", queries, context, head_dim),
        product("values gradient", context, head_dim, queries),
        Elementwise("softmax gradient", scores * (3 * s.element_bytes + drop), 2 if drop else 1),
        product("scores gradient", queries, head_dim, context),
        product("scores gradient", context, head_dim, queries),
    )
    recompute = forward if s.layout.recomputes("core_attn") else ()
    return Passes(forward, backward, (), recompute)


def _over_context(s: Setting, query: Any, key_value: Any) -> Passes:
    """Return what the ranks that share a sequence send each other; columns are of one rank."""
    cp, scheme = s.layout.cp, s.layout.context_scheme
    if isinstance(cp, int) and cp == 1:
        return Passes(())
    own = s.tokens * key_value * s.element_bytes
    if s.decode:
        # The cache is spread over the ranks: partial outputs and their weights are combined.
        combined = s.tokens * cp * query * s.element_bytes
        return Passes((Collective.of("all_reduce", "context", combined, "cp", cp),))
    backward: Operations
    if scheme == "ring":  # blocks go on forward, blocks and their gradients backward
        turn = Collective("ring attention", "send_recv", own, "cp", cp, cp - 1)
        turn = turn._replace(is_ring_attention=True)
        back = turn._replace(name="ring attention gradient", size_bytes=2 * own)
        forward, backward = turn.linked((ATTENTION,)), (back.linked((_GRADIENT,)),)
    elif scheme == "all_gather":
        forward = Collective.of("all_gather", "KV", own * cp, "cp", cp)
        again = Collective.of("all_gather", "KV backward", own * cp, "cp", cp)
        back = Collective.of("reduce_scatter", "KV gradient", own * cp, "cp", cp)
        backward = (again, back)
    else:
        moved = s.tokens * (2 * query + key_value) * s.element_bytes
        forward = Collective.of("all_to_all", "Ulysses", moved, "cp", cp)
        backward = (Collective.of("all_to_all", "Ulysses gradient", moved, "cp", cp),)
    return Passes((forward,), backward if s.training else ())
