"""The noun `Model`: the shape of a transformer, and what can be counted from the shape alone.

A model is a stack of blocks. Blocks that are alike are kept once with their `count`, so that a
model of 61 layers with two kinds of layer is two blocks. A block is an attention part and a
feed-forward part::

    Model ── blocks ──► Block ── attention ──► Attention          heads over cached keys and values
                              │                LatentAttention    DeepSeek's compressed cache (MLA)
                              │                LinearAttention    a fixed state instead of a cache
                              │                StateSpace         Mamba: likewise
                              ├─ beside ──────► a second of these, on the same input (Falcon-H1)
                              └─ feed_forward ► FeedForward       two or three matrices
                                                Experts           a router over many of them

In some hybrids a layer has only one of the two.

Sizes may be NumPy arrays that broadcast, to study many shapes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shardcost.checks import (
    Count,
    Noun,
    anywhere,
    flag,
    format_of_weights,
    instance,
    instances,
    noun,
    number_format,
    one_of,
    positive,
    text,
    whole,
)
from shardcost.errors import BadValueError

if TYPE_CHECKING:
    from pathlib import Path

NORM_VECTORS: Final = {"rms": 1, "layer": 2, "layer_without_shift": 1, "none": 0}
"""Learned vectors per normalisation: a scale, and for most layer norms a shift."""


@noun
class Attention(Noun):
    """Softmax attention with `heads` queries over `kv_heads` keys and values.

    Grouped-query attention where ``1 < kv_heads < heads`` (Ainslie et al. 2023, arXiv:2305.13245),
    multi-query where ``kv_heads == 1``, plain where they are equal.
    """

    heads: Count = whole()
    kv_heads: Count = whole()
    head_dim: Count = whole()
    window_tokens: int | None = whole(default=None)
    """Tokens that a query sees, where it does not see all: a sliding window or a chunk."""
    qkv_bias: bool = flag(default=False)
    out_bias: bool = flag(default=False)
    qk_norm: str = one_of("none", "head", "full", default="none")
    """Normalised queries and keys: one scale of `head_dim` for all heads, or one per head."""
    output_gate: bool = flag(default=False)
    """The query projection also yields a gate for the output (Qwen3-Next): it is twice as wide."""
    shared_kv: bool = flag(default=False)
    """Values come from the keys' projection (Gemma 4's global layers)."""
    reused_kv: bool = flag(default=False)
    """Keys and values are those of an earlier layer, which alone projects and caches them
    (cross-layer attention, Brandon et al. 2024, arXiv:2405.12981; Hunyuan-Large)."""
    q_rank: int | None = whole(default=None)
    """Queries come through a normalised vector of this size (multi-matrix factorisation attention,
    Hu et al. 2024, arXiv:2412.19255; Step-3)."""
    sinks: bool = flag(default=False)
    """A learned logit per head that takes up attention (GPT-OSS)."""

    def check(self) -> None:
        """Each key-value head serves a whole number of query heads."""
        if anywhere(self.heads % self.kv_heads != 0):
            raise BadValueError(
                "Attention.kv_heads", self.kv_heads, f"a divisor of {self.heads} heads"
            )

    @property
    def kind(self) -> str:
        """What this attention is called."""
        return "full attention" if self.window_tokens is None else "windowed attention"

    @property
    def cache_elements_per_token(self) -> Count:
        """Elements that a decoder keeps of each token, in each layer."""
        return 0 if self.reused_kv else 2 * self.kv_heads * self.head_dim

    @property
    def kv_projections(self) -> int:
        """Projections to keys and values: two, one where they share it, none where reused."""
        return 0 if self.reused_kv else 1 if self.shared_kv else 2

    @property
    def qkv_columns(self) -> Count:
        """Columns of the projection to queries, keys and values, with the output gate's."""
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return query * (2 if self.output_gate else 1) + key_value * self.kv_projections

    def matrix_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the projections."""
        query = self.heads * self.head_dim
        own = hidden_size * (self.qkv_columns + query)
        if self.q_rank is None:
            return own
        return own - hidden_size * query + self.q_rank * (hidden_size + query)

    def parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the projections, their biases and norms."""
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norm = {"none": 0, "head": 2 * self.head_dim, "full": query + key_value}[self.qk_norm]
        if self.reused_kv:
            norm = {"none": 0, "head": self.head_dim, "full": query}[self.qk_norm]
        return (
            self.matrix_parameters(hidden_size)
            + (self.q_rank or 0)
            + (self.qkv_columns if self.qkv_bias else 0)
            + (hidden_size if self.out_bias else 0)
            + norm
            + (self.heads if self.sinks else 0)
        )


@noun
class LatentAttention(Noun):
    """Multi-head latent attention: keys and values are rebuilt from one small cached vector.

    DeepSeek-V2 (arXiv:2405.04434). With an indexer, each query attends to the `index_top_k` tokens
    that a small second attention picks (DeepSeek-V3.2).
    """

    heads: Count = whole()
    kv_lora_rank: Count = whole()
    q_lora_rank: int | None = whole(default=None)
    qk_nope_head_dim: Count = whole()
    qk_rope_head_dim: Count = whole()
    v_head_dim: Count = whole()
    index_heads: int | None = whole(default=None)
    index_head_dim: int | None = whole(default=None)
    index_top_k: int | None = whole(default=None)

    @property
    def kind(self) -> str:
        """What this attention is called."""
        return "indexed latent attention" if self.index_heads else "latent attention"

    @property
    def cache_elements_per_token(self) -> Count:
        """Elements that a decoder keeps of each token, in each layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim + (self.index_head_dim or 0)

    def matrix_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the down and up projections, the output and the indexer."""
        query_out = self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        rank = self.q_lora_rank
        query = hidden_size * query_out if rank is None else rank * (hidden_size + query_out)
        down = hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim)
        up = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        out = self.heads * self.v_head_dim * hidden_size
        return query + down + up + out + self._index_matrices(hidden_size)

    def parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the projections, the indexer and their norms."""
        norms = (self.q_lora_rank or 0) + self.kv_lora_rank + 2 * (self.index_head_dim or 0)
        return self.matrix_parameters(hidden_size) + norms

    def _index_matrices(self, hidden_size: Count) -> Count:
        if self.index_heads is None or self.index_head_dim is None:
            return 0
        query_from = hidden_size if self.q_lora_rank is None else self.q_lora_rank
        heads, dim = self.index_heads, self.index_head_dim
        return query_from * heads * dim + hidden_size * (dim + heads)


@noun
class LinearAttention(Noun):
    """Gated delta-rule attention with a fixed state instead of a growing cache.

    Its rule says what a token does to the state of a head (`shardcost.recurrence`): the gated delta
    rule (Yang et al. 2024, arXiv:2412.06464; Qwen3-Next, Qwen3.5), Kimi delta attention with a
    decay by key channel (arXiv:2510.26692; Kimi Linear), or Lightning Attention with a fixed decay
    (MiniMax-01, arXiv:2501.08313).
    """

    key_heads: Count = whole()
    value_heads: Count = whole()
    key_head_dim: Count = whole()
    value_head_dim: Count = whole()
    conv_kernel: Count = whole(least=0)
    """Taps of the convolution over queries, keys and values; 0 where there is none."""
    rule: str = one_of("delta", "kda", "lightning", default="delta")
    gate_rank: int | None = whole(default=None)
    """Of Kimi delta attention: rank of the projections to the decay and to the output's gate; a
    head's size where left out."""

    kind = "linear attention"
    cache_elements_per_token = 0

    def check(self) -> None:
        """Only Kimi delta attention has gates of low rank."""
        if self.gate_rank is not None and self.rule != "kda":
            raise BadValueError("LinearAttention.gate_rank", self.gate_rank, "None but with kda")

    @property
    def op(self) -> str:
        """The name of its recurrence (`shardcost.recurrence.RULES`)."""
        return {"delta": "gdn"}.get(self.rule, self.rule)

    @property
    def key_size(self) -> Count:
        """Columns of all queries, and of all keys."""
        return self.key_heads * self.key_head_dim

    @property
    def value_size(self) -> Count:
        """Columns of all values."""
        return self.value_heads * self.value_head_dim

    @property
    def low_rank(self) -> Count:
        """Columns of the two gates' first projections, which tensor parallelism does not divide."""
        if self.rule != "kda":
            return 0
        return 2 * (self.key_head_dim if self.gate_rank is None else self.gate_rank)

    @property
    def input_columns(self) -> Count:
        """Columns of the projections from the input, but for those of low rank.

        Queries, keys, values; the output's gate; of the delta rule a writing strength for each
        value head and a decay.
        """
        columns = 2 * self.key_size + self.value_size
        if self.rule == "kda":
            return columns + self.value_heads
        return columns + self.value_size + (2 * self.value_heads if self.rule == "delta" else 0)

    def matrix_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the projections."""
        low = self.low_rank
        gates = low // 2 * (self.key_size + self.value_size)
        return hidden_size * (self.input_columns + low + self.value_size) + gates

    def undivided_parameters(self, hidden_size: Count) -> Count:
        """Return the weights that every tensor-parallel rank has whole: low ranks and the norm."""
        norm = 0 if self.rule == "lightning" else self.value_head_dim
        return hidden_size * self.low_rank + norm

    def parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the projections, the convolution, the gates and the norm."""
        convolution = (2 * self.key_size + self.value_size) * self.conv_kernel
        gates = {
            "delta": 2 * self.value_heads + self.value_head_dim,
            "kda": self.value_heads + self.key_size + self.value_head_dim,
            "lightning": self.value_size,
        }[self.rule]
        return self.matrix_parameters(hidden_size) + convolution + gates


@noun
class StateSpace(Noun):
    """A selective state space in attention's place: Mamba, with heads its second generation.

    Gu & Dao 2023 (arXiv:2312.00752); Dao & Gu 2024 (arXiv:2405.21060).
    """

    inner_size: Count = whole()
    state_size: Count = whole()
    conv_kernel: Count = whole()
    heads: int | None = whole(default=None)
    groups: Count = whole(default=1)
    step_rank: int | None = whole(default=None)
    """Rank of the step size's projection, first generation only."""
    inner_norm: bool = flag(default=True)
    """First generation: step size and state are normalised (Jamba). Second: the output is, before
    it leaves."""
    conv_bias: bool = flag(default=True)
    bias: bool = flag(default=False)

    kind = "state space"
    cache_elements_per_token = 0

    def check(self) -> None:
        """The first generation has a rank, the second has heads."""
        if (self.heads is None) == (self.step_rank is None):
            given = (self.heads, self.step_rank)
            raise BadValueError("StateSpace.heads and step_rank", given, "one number and one None")

    def matrix_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the projections in and out.

        The second generation projects to the state and the step sizes along with the rest; the
        small matrices of the first are left out here, as they are from its operations.
        """
        beside = 0 if self.heads is None else 2 * self.groups * self.state_size + self.heads
        return hidden_size * (3 * self.inner_size + beside)

    def parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the projections, the convolution and the state."""
        inner, state, taps = self.inner_size, self.state_size, self.conv_kernel + self.conv_bias
        if self.heads is not None:
            channels = inner + 2 * self.groups * state
            into = inner + channels + self.heads
            own = channels * taps + 3 * self.heads + (inner if self.inner_norm else 0)
        else:
            rank = self.step_rank or 0
            into = 2 * inner
            own = inner * (taps + (rank + 2 * state) + (rank + 1) + state + 1)
            own = own + (rank + 2 * state if self.inner_norm else 0)
        bias = into + hidden_size if self.bias else 0
        return hidden_size * (into + inner) + own + bias


@noun
class FeedForward(Noun):
    """Two matrices, or three where the activation is gated (Shazeer 2020, arXiv:2002.05202)."""

    width: Count = whole()
    gated: bool = flag()
    bias: bool = flag(default=False)

    kind = "feed-forward"

    def matrix_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the matrices."""
        return hidden_size * self.width * (3 if self.gated else 2)

    def parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the matrices and their biases."""
        inner = 2 * self.width if self.gated else self.width
        bias = inner + hidden_size if self.bias else 0
        return self.matrix_parameters(hidden_size) + bias


@noun
class Experts(Noun):
    """A mixture of experts: a router sends each token to `top_k` of `count` feed-forward parts."""

    count: Count = whole()
    top_k: Count = whole()
    expert: FeedForward = instance(FeedForward)
    shared: FeedForward | None = instance(FeedForward, default=None)
    """The part that every token visits: all shared experts as one."""
    shared_gate: bool = flag(default=False)
    router_bias: bool = flag(default=False)
    groups: int | None = whole(default=None)
    """Experts are routed in this many groups, `top_groups` of which a token may reach: a bound on
    how many nodes its data goes to (DeepSeek-V3, arXiv:2412.19437)."""
    top_groups: int | None = whole(default=None)
    latent: int | None = whole(default=None)
    """Width of what travels to the experts, where tokens are projected to a narrower vector before
    the dispatch and back after the combine (LatentMoE, Nemotron 3 Super)."""
    zero_experts: int = whole(default=0, least=0)
    """Experts that return their input (LongCat-Flash, arXiv:2509.01322): rows of the router alone.
    `top_k` is then how many of the others a token visits on average."""
    skew: float = positive(default=1.0)
    """How unevenly the router prefers experts: standard deviation of the logarithm of an expert's
    popularity. That of serving runs of four models (``python -m lab.refit_routing``)."""

    kind = "experts"

    def check(self) -> None:
        """A token cannot visit more experts than there are."""
        if anywhere(self.top_k > self.count):
            raise BadValueError("Experts.top_k", self.top_k, f"at most the {self.count} experts")

    def row_width(self, hidden_size: Count) -> Count:
        """Return the elements of a token that travel to an expert and back."""
        return hidden_size if self.latent is None else self.latent

    def parameters(self, hidden_size: Count) -> Count:
        """Return the weights of all experts, the shared part and the router."""
        return self._with_experts(self.count, hidden_size)

    def matrix_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the matrices that one token meets; the router is too small."""
        shared = 0 if self.shared is None else self.shared.matrix_parameters(hidden_size)
        experts = self.top_k * self.expert.matrix_parameters(self.row_width(hidden_size))
        return experts + shared + self._latent_parameters(hidden_size)

    def active_parameters(self, hidden_size: Count) -> Count:
        """Return the weights that one token meets."""
        return self._with_experts(self.top_k, hidden_size)

    def _with_experts(self, experts: Count, hidden_size: Count) -> Count:
        rows = self.count + self.zero_experts
        router = rows * (hidden_size + (1 if self.router_bias else 0))
        shared = 0 if self.shared is None else self.shared.parameters(hidden_size)
        gate = hidden_size if self.shared_gate else 0
        own = experts * self.expert.parameters(self.row_width(hidden_size))
        return own + router + shared + gate + self._latent_parameters(hidden_size)

    def _latent_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the projections to the experts' narrower vector and back."""
        return 0 if self.latent is None else 2 * hidden_size * self.latent


AnyAttention: TypeAlias = Attention | LatentAttention | LinearAttention | StateSpace
AnyFeedForward: TypeAlias = FeedForward | Experts


@noun
class Block(Noun):
    """`count` layers of one kind: attention, then a feed-forward part, or both side by side.

    In hybrids such as Nemotron-H a layer may have only one of the two.
    """

    count: Count = whole()
    attention: AnyAttention | None = instance(
        Attention, LatentAttention, LinearAttention, StateSpace, default=None
    )
    beside: AnyAttention | None = instance(
        Attention, LatentAttention, LinearAttention, StateSpace, default=None
    )
    """A second mixer that reads the same input; both outputs are added (Falcon-H1)."""
    feed_forward: AnyFeedForward | None = instance(FeedForward, Experts, default=None)
    parallel: bool = flag(default=False)
    """Attention and feed-forward part read the same input and are added together (GPT-J,
    GPT-NeoX, Falcon): tensor parallelism then needs one all-reduce instead of two."""
    norms: int = whole(default=2, least=0)
    """Normalisations per layer, each over the hidden size."""

    def check(self) -> None:
        """A layer has at least one part."""
        if self.attention is None and self.feed_forward is None:
            raise BadValueError("Block", "neither", "given attention, a feed-forward part or both")
        if self.attention is None and self.beside is not None:
            raise BadValueError("Block.beside", self.beside.kind, "beside an attention part")

    @property
    def mixers(self) -> tuple[AnyAttention, ...]:
        """What mixes tokens in a layer: the attention part, and a second one beside it."""
        return tuple(part for part in (self.attention, self.beside) if part is not None)

    @property
    def allreduces_per_layer(self) -> int:
        """All-reduces that 1-D tensor parallelism makes in one layer's forward pass.

        One after each row-parallel product whose sum is needed at once (Shoeybi et al. 2019,
        arXiv:1909.08053).
        """
        single = self.parallel or self.attention is None or self.feed_forward is None
        return 1 if single else 2

    def parameters(self, hidden_size: Count) -> Count:
        """Return the weights of one layer's parts, norms left out."""
        return sum(part.parameters(hidden_size) for part in self._parts)

    def matrix_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of one layer's matrices that a token meets: two FLOPs each."""
        return sum(part.matrix_parameters(hidden_size) for part in self._parts)

    @property
    def _parts(self) -> tuple[AnyAttention | AnyFeedForward, ...]:
        return self.mixers if self.feed_forward is None else (*self.mixers, self.feed_forward)

    def idle_parameters(self, hidden_size: Count) -> Count:
        """Return the weights of the experts that a token does not visit, in one layer."""
        part = self.feed_forward
        if not isinstance(part, Experts):
            return 0
        return part.parameters(hidden_size) - part.active_parameters(hidden_size)


@noun
class Model(Noun):
    """A transformer's shape. ``Model.named("llama3-70b")`` and ``Model.from_hf(path)`` make one.

    >>> model = Model.named("llama3-8b")
    >>> model.num_layers, model.hidden_size, model.parameters
    (32, 4096, 8030261248)
    """

    name: str = text()
    hidden_size: Count = whole()
    vocab_size: Count = whole()
    blocks: tuple[Block, ...] = instances(Block)
    tied_embeddings: bool = flag(default=False)
    """The output head is the input embedding: its weights are counted once."""
    embedding_size: int | None = whole(default=None)
    """Width of the embedding where it is not the hidden size (OPT-350M)."""
    learned_positions: int = whole(default=0, least=0)
    """Rows of a learned position table; 0 where positions are computed."""
    layer_embedding_size: int = whole(default=0, least=0)
    """Width of a second embedding that each layer has of its own (Gemma 4's small models)."""
    norm: str = one_of(*NORM_VECTORS, default="rms")
    embedding_norm: bool = flag(default=False)
    final_norm: bool = flag(default=True)
    head_bias: bool = flag(default=False)
    weight_dtype: str = format_of_weights(default="bf16")
    """Format of the linear layers' weights, see `shardcost.dtypes.WEIGHT_FORMATS`. Embeddings, the
    output head, routers and norms stay in 16 bits."""
    expert_dtype: str | None = format_of_weights(default=None)
    """Format of the routed experts' weights, where it is another."""
    attention_dtype: str | None = format_of_weights(default=None)
    """Format of the attention's projections, where it is another."""
    cache_dtype: str | None = number_format(default=None)
    """Format of the key-value cache, where the model's files state one."""
    mtp_layers: int = whole(default=0, least=0)
    """Layers for multi-token prediction behind the others, which training and speculative decoding
    run: each is one like the last block's, see `mtp_parameters`."""
    context_tokens: int | None = whole(default=None)
    """The longest sequence the model was made for."""
    active_embedding_tables: int = whole(default=2, least=0)
    """How many of the two embedding tables the model's authors count as active, see
    `active_parameters`."""
    source: str = text(default="given by the caller")
    caveats: tuple[str, ...] = ()

    def check(self) -> None:
        """At most two tables exist: the input embedding and the output head."""
        if self.active_embedding_tables > 2:
            raise BadValueError(
                "Model.active_embedding_tables", self.active_embedding_tables, "0, 1 or 2"
            )

    @classmethod
    def named(cls, name: str) -> Model:
        """Return a preset of the catalog by its name, an alias, or its id on Hugging Face.

        ``-``, ``_`` and case do not matter.

        >>> Model.named("meta-llama/Llama-3.1-70B-Instruct").name
        'llama3-70b'
        """
        from shardcost.catalog import model_named

        return model_named(name)

    @classmethod
    def from_file(cls, path: str | Path) -> Model:
        """Return the model of a file in the catalog's form; `from_hf` reads a ``config.json``."""
        from shardcost.catalog import model_in_file

        return model_in_file(path)

    @classmethod
    def from_hf(cls, config: str | Path | Mapping[str, Any], *, name: str | None = None) -> Model:
        """Return the model of a Hugging Face ``config.json``, given as a path or as its content.

        A path may also be the folder that holds the file.
        """
        from shardcost.formats.hf_config import read_hf_config

        return read_hf_config(config, name=name)

    @cached_property  # every estimate asks a dozen times
    def num_layers(self) -> Count:
        """Transformer layers, all kinds together."""
        return sum(block.count for block in self.blocks)

    @property
    def parameters(self) -> Count:
        """Every learned weight, embeddings included, tied ones once."""
        blocks = sum(
            block.count * (block.parameters(self.hidden_size) + self._norm_parameters(block.norms))
            for block in self.blocks
        )
        around = self._parameters_around_blocks + self.layer_embedding_parameters
        return blocks + self._embedding_parameters(2) + around

    @property
    def layer_embedding_parameters(self) -> Count:
        """Weights of the layers' own embeddings: tables, and what mixes them into each layer.

        All tables are made from the token and, by one projection, from the usual embedding; a gate
        and a projection in each layer add them, normalised.
        """
        width, hidden = self.layer_embedding_size, self.hidden_size
        tables = (self.vocab_size + hidden) * width * self.num_layers + width
        mixing = self.num_layers * hidden * (2 * width + 1)
        return tables + mixing if width else 0

    @property
    def active_parameters(self) -> Count:
        """The weights that one token meets, as the model's authors count them.

        Authors differ in whether the embedding tables count: both (Qwen, Mixtral, Llama 4), the
        output head alone (DeepSeek, GPT-OSS, Kimi), or neither (GLM, MiniMax). The convention is in
        `active_embedding_tables`. A dense model is active as a whole.
        """
        if not any(isinstance(block.feed_forward, Experts) for block in self.blocks):
            return self.parameters
        idle = sum(block.count * block.idle_parameters(self.hidden_size) for block in self.blocks)
        left_out = self._embedding_parameters(2) - self._embedding_parameters(
            self.active_embedding_tables
        )
        return self.parameters - idle - left_out

    @property
    def mtp_parameters(self) -> Count:
        """Weights of the layers for multi-token prediction, which `parameters` leaves out.

        Each has a layer of its own, a projection from the state and the next token's embedding to
        one vector, and a norm of each of the two and of the output; embedding and head are the
        model's (DeepSeek-V3 Technical Report, arXiv:2412.19437, section 2.2).
        """
        block, hidden = self.blocks[-1], self.hidden_size
        each = block.parameters(hidden) + self._norm_parameters(block.norms + 3)
        return self.mtp_layers * (each + 2 * hidden * hidden)

    @property
    def allreduces_per_layer(self) -> int:
        """All-reduces per layer and forward pass under 1-D tensor parallelism; the most of any."""
        return max(block.allreduces_per_layer for block in self.blocks)

    @property
    def most_experts(self) -> int:
        """Experts of the layer that has most of them; 0 where there are none."""
        parts = (block.feed_forward for block in self.blocks)
        return max((int(part.count) for part in parts if isinstance(part, Experts)), default=0)

    @property
    def attention_heads(self) -> tuple[Count, ...]:
        """Query heads of each kind of layer that has them: what tensor parallelism divides."""
        with_heads = (Attention, LatentAttention)
        parts = (part for block in self.blocks for part in block.mixers)
        return tuple(part.heads for part in parts if isinstance(part, with_heads))

    @property
    def cache_elements_per_token(self) -> Count:
        """Elements of key-value cache that one token occupies over all layers."""
        return sum(
            block.count * part.cache_elements_per_token
            for block in self.blocks
            for part in block.mixers
        )

    @property
    def _parameters_around_blocks(self) -> Count:
        """Positions, projections of a narrow embedding, norms outside the blocks, head bias."""
        narrow = 0 if self.embedding_size is None else 2 * self.embedding_size * self.hidden_size
        norms = self._norm_parameters(int(self.embedding_norm) + int(self.final_norm))
        bias = self.vocab_size if self.head_bias else 0
        return self.learned_positions * self.hidden_size + narrow + norms + bias

    def _embedding_parameters(self, tables: int) -> Count:
        width = self.hidden_size if self.embedding_size is None else self.embedding_size
        return min(tables, 1 if self.tied_embeddings else 2) * self.vocab_size * width

    def _norm_parameters(self, norms: int) -> Count:
        return norms * NORM_VECTORS[self.norm] * self.hidden_size
