"""What every part of a program needs to know: the tokens of one pass and who shares them."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final, cast

from shardcost.arrays import choose
from shardcost.dtypes import activation_bytes, weight_format
from shardcost.layout import Layout
from shardcost.model import Model
from shardcost.program.adapters import Adapter
from shardcost.program.operations import (
    Collective,
    Conversion,
    Elementwise,
    Gemm,
    Operation,
    Operations,
    OpId,
    Passes,
    matrix_ids,
)
from shardcost.records import NamedTuple, dataclass
from shardcost.software import Software
from shardcost.workload import Decode, Prefill, Train, Workload


@dataclass(frozen=True)
class Setting:
    """One pass of one rank over some sequences; what every operation asks for is found once."""

    layout: Layout
    software: Software
    hidden: Any
    dtype: str
    """The format of weights outside of attention and experts, which decides the products."""
    attention_dtype: str
    """Of the projections of attention."""
    expert_dtype: str
    sequences: Any
    """Sequences that the rank works on in one pass."""
    sequence_tokens: Any
    """New tokens of each, on all ranks that share it."""
    context_tokens: Any
    """Tokens that the last of them attends to, itself included."""
    training: bool
    decode: bool
    cache_dtype: str = "bf16"
    """Of cached keys and values."""
    dispatch_dtype: str | None = None
    """Of tokens on their way to experts; None: as the software sends them."""
    frozen: bool = False
    """The model's own weights have no gradients: adapters are trained."""
    adapter_rank: Any = 0
    """Of adapters; 0 where no matrix has one."""
    adapter_targets: str = "attention"
    num_layers: Any = 1
    """Of the whole model."""
    document_tokens: int | None = None
    """Where attention stops at the ends of documents: their mean length."""

    tokens: Any = field(init=False)
    """Tokens that the rank's products see in one pass."""
    spread_tokens: Any = field(init=False)
    """Tokens between the products: sequence parallelism spreads them over the tensor group."""
    element_bytes: float = field(init=False)
    """Bytes of one activation."""
    wide_dtype: str = field(init=False)
    """Number format of what is never computed in fewer than 16 bits: attention, the head."""
    hidden_bytes: Any = field(init=False)
    """Bytes of the activations between two layers, of all tokens of the rank's products."""

    def __post_init__(self) -> None:
        """Find what follows from the other fields."""
        layout, values = self.layout, self.__dict__
        tokens = self.sequences * self.sequence_tokens / layout.cp
        narrow = weight_format(self.dtype).narrow_weights
        values["tokens"] = tokens
        values["spread_tokens"] = tokens / layout.tp if layout.sequence_parallel else tokens
        values["element_bytes"] = activation_bytes(self.dtype)
        values["wide_dtype"] = self.software.head_dtype if narrow else self.dtype
        values["hidden_bytes"] = tokens * self.hidden * self.element_bytes

    @property
    def drafted(self) -> Any:
        """Tokens of the pass that were drafted for sequences that decode."""
        more = self.sequence_tokens - 1
        alone = not self.decode or (isinstance(more, int) and more == 0)
        return 0 if alone else self.sequences * more

    @property
    def only_qkv(self) -> bool:
        """Whether adapters are beside the first projections of attention alone."""
        return self.adapter_targets == "qkv"

    @property
    def shares_tensors(self) -> bool:
        """Whether the layout, or any of them, has tensor parallelism."""
        return not isinstance(self.layout.tp, int) or self.layout.tp > 1


def sequences_per_pass(layout: Layout, workload: Workload) -> Any:
    """Return the sequences of one pass: a micro-batch in training, a replica's batch otherwise."""
    if isinstance(workload, Train):
        return layout.micro_batch
    return cast("Prefill | Decode", workload).batch / layout.dp


def micro_batches(layout: Layout, workload: Workload) -> Any:
    """Return how many micro-batches one replica has in a step."""
    if isinstance(workload, Train):
        return workload.global_batch // (layout.dp * layout.micro_batch)
    return 1


def setting_of(model: Model, layout: Layout, workload: Workload, software: Software) -> Setting:
    """Return the setting of one pass over a rank's sequences."""
    workload = workload.in_formats_of(model, narrow_cache=software.narrow_cache)
    before: Any = 0
    trained = workload if isinstance(workload, Train) else None
    if trained is not None:
        new = trained.sequence_length
    elif isinstance(workload, Decode):
        new, before = workload.query_tokens, workload.context_tokens
    else:
        prefill = cast("Prefill", workload)
        new, before = prefill.prompt_tokens, prefill.cached_tokens
    return Setting(
        layout=layout,
        software=software,
        hidden=model.hidden_size,
        num_layers=model.num_layers,
        dtype=workload.part_dtype(),
        attention_dtype=workload.part_dtype("attention"),
        expert_dtype=workload.part_dtype("expert"),
        sequences=sequences_per_pass(layout, workload),
        sequence_tokens=new,
        context_tokens=before + new,
        training=trained is not None,
        decode=isinstance(workload, Decode),
        cache_dtype=getattr(workload, "cache_dtype", None) or workload.part_dtype(),
        dispatch_dtype=getattr(workload, "dispatch_dtype", None),
        frozen=trained is not None and trained.adapters,
        adapter_rank=trained.adapter_rank if trained is not None and trained.adapters else 0,
        adapter_targets=getattr(workload, "adapter_targets", "attention"),
        document_tokens=None if trained is None else trained.document_tokens,
    )


_NARROW_LAUNCHES: Final = 3
"""Of a GEMM in fewer than 16 bits: its input is quantised and its scales are arranged before it."""


class Groups(NamedTuple):
    """How the rows of a grouped GEMM are divided."""

    active: Any
    """Experts with at least one row."""
    fullest: Any
    """Rows of the fullest."""


class Converted(NamedTuple):
    """Whether what a GEMM reads can be converted to fewer bits by the kernel that makes it.

    Norms and activations can, attention and collectives cannot (Transformer Engine, NVIDIA).
    """

    input_by_maker: bool = True
    gradient_by_maker: bool = False
    """Of the gradient of its output."""
    by_rows: bool = False
    """Whether ranks have rows of the matrix: its output is summed up over the tensor group, and
    sequence parallelism gathers the gradient of it."""


AFTER_ATTENTION: Final = Converted(input_by_maker=False, by_rows=True)
AFTER_ACTIVATION: Final = Converted(by_rows=True)
BEFORE_ACTIVATION: Final = Converted(gradient_by_maker=True)
AFTER_DISPATCH: Final = Converted(input_by_maker=False, gradient_by_maker=True)
_BY_NORM: Final = Converted()


def linear(
    s: Setting,
    name: str,
    inputs: Any,
    outputs: Any,
    tokens: Any = None,
    *,
    bias: bool = False,
    dtype: str | None = None,
    converted: Converted = _BY_NORM,
    adapter: str | None = None,
) -> Passes:
    """Return a matrix of weights applied to all tokens: one product forward, two backward.

    A bias is added by the product or the pass after it; its gradient is a sum over all tokens.
    Transformer Engine takes the sum in the GEMM of the weight gradient, and in fewer than 16 bits
    where the output's gradient is converted (`fused_bias_gradient`). The bias of a matrix divided
    by rows is added after the tensor-parallel sum, to a rank's own tokens under sequence
    parallelism, and its gradient is a kernel of its own.

    Args:
        s: The setting.
        name: What the matrix is called.
        inputs: Columns of the input, on this rank.
        outputs: Columns of the output, on this rank.
        tokens: Rows of both; the setting's if None.
        bias: Whether the matrix has one.
        dtype: Format of the weights; the setting's if None.
        adapter: How a matrix that an adapter may stand beside is divided: by ``columns``, by
            ``rows``, or not (``whole``). None: it has no adapter.
        converted: What converts its input, and the gradient of its output, to fewer bits.
    """
    rows = s.tokens if tokens is None else tokens
    passes = matrix(s, name, rows, inputs, outputs, dtype or s.dtype, converted=converted)
    if s.frozen:
        if adapter is None or not s.adapter_rank or (adapter == "rows" and s.only_qkv):
            return passes
        sizes = (s.adapter_rank, rows, inputs, outputs)
        formats = (s.wide_dtype, s.element_bytes, s.layout.tp, s.layout.sequence_parallel)
        added = Adapter(name, adapter, *sizes, *formats).passes()
        # Backward the frozen matrix may come first: neither waits for the other.
        return Passes(
            passes.forward + added.forward, passes.backward + added.backward, added.weight
        )
    if bias and s.training and (converted.by_rows or not s.software.fused_bias_gradient):
        own = OpId(name, "bias gradient")
        summed = rows * (s.spread_tokens / s.tokens) if converted.by_rows else rows
        gradient = Elementwise(own.name, summed * outputs * s.element_bytes, id=own)
        return passes._replace(weight=(*passes.weight, gradient))
    return passes


def matrix(
    s: Setting,
    name: str,
    rows: Any,
    inputs: Any,
    outputs: Any,
    dtype: str,
    groups: Groups | None = None,
    *,
    converted: Converted = _BY_NORM,
) -> Passes:
    """Return the GEMMs of a matrix of weights, or grouped GEMMs of the matrices of experts."""

    def gemm(own: OpId, m: Any, n: Any, k: Any, *, by_maker: bool | None = None) -> Operations:
        # The gradient of the weights has inputs that were converted before, and even groups.
        ragged = by_maker is not None
        wide = not ragged and s.training and dtype == s.software.wide_gradients
        found = Gemm(own.name, m, n, k, s.wide_dtype if wide else dtype, id=own)
        if groups is not None and s.software.expert_launch == "each":
            launches = _NARROW_LAUNCHES if form.narrow_inputs else 1
            found = found._replace(count=groups.active, launches=launches)
        elif groups is not None:
            fullest = groups.fullest if ragged else None
            found = found._replace(batch=groups.active, fullest=fullest)
        if by_maker is None or not form.narrow_inputs:
            return (found,)
        return quantized(own, m, k, by_maker=by_maker), found

    def quantized(of: OpId, m: Any, k: Any, *, by_maker: bool) -> Operation:
        rows = m * (1 if groups is None else groups.active)
        # Engines compute the scales of blocks in a kernel of its own.
        fused = s.software.fused_quantize and not form.block_scaled
        if not s.training or s.frozen:
            fused = fused and (by_maker or not s.training)
            size = rows * k * (s.element_bytes + form.input_bytes)
            at_once = form.block_scaled and not s.training
            converts = Conversion(dtype, rows, k, fused, both_orders=False, with_gemm=at_once)
            return Elementwise(f"{of.name} quantize", size, 0 if fused else 1, converts=converts)
        # The gradient of the weights needs the input in the other order too. What writes it in one
        # order writes less for it; the other order is then read and written narrow.
        wide = 0.0 if fused and by_maker else s.element_bytes
        size = rows * k * (wide + 2 * form.input_bytes)
        converts = Conversion(dtype, rows, k, fused and by_maker, both_orders=True)
        return Elementwise(f"{of.name} quantize", size, converts=converts)

    form, ids = weight_format(dtype), matrix_ids(name)
    forward = gemm(ids.forward, rows, outputs, inputs, by_maker=converted.input_by_maker)
    if not s.training:
        return Passes(forward)
    weight = () if s.frozen else gemm(ids.weight_gradient, inputs, outputs, rows)
    by_maker = converted.gradient_by_maker
    gradient = gemm(ids.input_gradient, rows, inputs, outputs, by_maker=by_maker)
    if form.narrow_inputs and _gathers_narrow(s, converted):
        gradient = (*_before_gather(s, ids.input_gradient, rows, outputs, dtype), gradient[-1])
    return Passes(forward, gradient, weight)


def _gathers_narrow(s: Setting, converted: Converted) -> bool:
    """Return whether the gradient of a matrix's output is converted before it is gathered."""
    return (
        converted.by_rows
        and s.shares_tensors
        and s.layout.sequence_parallel
        and s.software.narrow_gathers
    )


def _before_gather(s: Setting, of: OpId, rows: Any, columns: Any, dtype: str) -> Operations:
    """Return how the gradient of an output is converted that is gathered in few bits.

    Each rank converts that of its own tokens. What arrives is narrow, and is only brought into the
    other order for the gradient of the weights, if there is one (Transformer Engine).
    """
    form, own = weight_format(dtype), rows * (s.spread_tokens / s.tokens)
    narrowed = own * columns * (s.element_bytes + form.input_bytes)
    if s.frozen:
        converts = Conversion(dtype, own, columns, fused=False, both_orders=False)
        return (Elementwise(f"{of.name} quantize", narrowed, converts=converts),)
    # Of layouts some may have no tensor parallelism: they convert and transpose at once.
    shared = s.layout.tp > 1
    cast = Elementwise(f"{of.name} quantize", choose(shared, narrowed, 0.0), choose(shared, 1, 0))
    read = choose(shared, form.input_bytes, s.element_bytes + form.input_bytes)
    return cast, Elementwise(
        f"{of.name} transpose",
        rows * columns * (read + form.input_bytes),
        converts=Conversion(dtype, rows, columns, fused=True, both_orders=True),
    )


def enter(s: Setting, *products: str, wide: bool = False) -> Passes:
    """Return what column-parallel products need of the others, before them and backward.

    Megatron's operator f: nothing forward and an all-reduce backward (Shoeybi et al. 2019,
    arXiv:1909.08053); with sequence parallelism an all-gather forward and a reduce-scatter
    backward, and the saved part of the input is gathered again for the weight gradient
    (Korthikanti et al. 2022, arXiv:2205.05198).

    Args:
        s: The setting.
        products: Their names.
        wide: The input is gathered in 16 bits, whatever the format of the products.
    """
    if not s.shares_tensors or not (s.training or s.layout.sequence_parallel):
        return Passes(())
    own = tuple(map(matrix_ids, products))
    gradient = own[0].input_gradient
    weights = () if s.frozen else tuple(each.weight_gradient for each in own)
    if not s.layout.sequence_parallel:
        return Passes((), _over_tp(s, "all_reduce", gradient.name, weights, gradient))
    gather = _gathered(s, products[0], (), own[0].forward, wide=wide)
    if not s.training:
        return Passes(gather)
    scatter = _over_tp(s, "reduce_scatter", gradient.name, weights, gradient)
    if s.frozen:
        return Passes(gather, scatter)
    inputs = tuple(each.input_gradient for each in own)
    again = _gathered(s, own[0].weight_gradient.name, inputs, None, wide=wide)
    return Passes(gather, scatter + again)


def leave(s: Setting, product: str, *, wide: bool = False) -> Passes:
    """Return what a row-parallel product needs of the others after it: Megatron's operator g.

    Args:
        s: The setting.
        product: Its name.
        wide: The gradient is gathered in 16 bits, whatever the format of the product.
    """
    if not s.shares_tensors:
        return Passes(())
    own = matrix_ids(product)
    if not s.layout.sequence_parallel:
        return Passes(_over_tp(s, "all_reduce", product, (), own.forward))
    scatter = _over_tp(s, "reduce_scatter", product, (), own.forward)
    if not s.training:
        return Passes(scatter)
    name = f"{product} gradient"
    return Passes(scatter, _gathered(s, name, (), own.input_gradient, wide=wide))


def _gathered(
    s: Setting, what: str, hides_behind: tuple[OpId, ...], split_with: OpId | None, *, wide: bool
) -> Operations:
    """Return a gather of a GEMM's input, in the GEMM's format where that is made before."""
    gathers = _over_tp(s, "all_gather", what, hides_behind, split_with)
    form = weight_format(s.dtype)
    if wide or not (s.training and s.software.narrow_gathers and form.narrow_inputs):
        return gathers
    share = form.input_bytes / s.element_bytes
    return tuple(op._replace(size_bytes=share * op.size_bytes) for op in gathers)


def _over_tp(
    s: Setting, collective: str, what: str, hides_behind: tuple[OpId, ...], split_with: OpId | None
) -> tuple[Collective, ...]:
    """Return a collective of the tensor group on the activations between two layers."""
    return (
        Collective.of(
            collective,
            what,
            s.hidden_bytes,
            "tp",
            s.layout.tp,
            hides_behind=hides_behind,
            split_with=split_with,
        ),
    )
