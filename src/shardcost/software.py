"""The noun `Software`: how a framework or engine runs a program.

Two frameworks that run one model under one layout differ in which kernels they have (fused
attention or not), in what they overlap, and in how far their host code keeps up with the device.
The first two are choices, kept as words; the last is a constant or two, fitted to runs and kept in
the catalog with the error of the fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from shardcost.checks import (
    Noun,
    Quantity,
    flag,
    instance,
    names,
    noun,
    number_format,
    one_of,
    positive,
    table,
    text,
    whole,
)
from shardcost.errors import BadTypeError
from shardcost.routing import DISPATCHERS, EXPERT_OVERLAPS
from shardcost.scheduler import Scheduler

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_SOFTWARE: Final = {"train": "megatron_core", "prefill": "trtllm", "decode": "trtllm"}
"""By phase, where none is named."""
_DEFAULT_ON: Final[Mapping[str, Mapping[str, str]]] = {
    "amd": {"train": "megatron_rocm", "prefill": "vllm_rocm", "decode": "vllm_rocm"},
    "google": {"train": "maxtext", "prefill": "vllm", "decode": "vllm"},
    "intel": {"prefill": "vllm", "decode": "vllm"},
    "aws": {"prefill": "vllm", "decode": "vllm"},
}
"""By vendor of the devices, where `DEFAULT_SOFTWARE` does not run on them."""


def default_software(phase: str, vendors: Iterable[str] = ()) -> str:
    """Return the software of a phase where none is named.

    >>> default_software("decode"), default_software("decode", ["amd"])
    ('trtllm', 'vllm_rocm')

    Args:
        phase: ``train``, ``prefill`` or ``decode``.
        vendors: Of the devices; several that differ have the default of none of them.
    """
    of_each = {_DEFAULT_ON.get(vendor, {}).get(phase) for vendor in vendors}
    name = of_each.pop() if len(of_each) == 1 else None
    return name or DEFAULT_SOFTWARE[phase]


@noun
class Fit(Noun):
    """The measurements behind a software's constants, and the error on them."""

    source: str = text()
    rows: int = whole()
    median_pct: float = positive()
    p90_pct: float = positive()
    of_runs: bool = flag(default=True)
    """Whole steps or requests were measured; otherwise parts of them, such as layers."""

    def __str__(self) -> str:
        errors = f"median error {self.median_pct:.1f} %, p90 {self.p90_pct:.1f} %"
        return f"{self.source}; {self.rows} rows, {errors}"


def _memory_constant(name: str, value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise BadTypeError(name, value, "a number, a flag or a word")
    return value


@noun
class Software(Noun):
    """A framework or an engine. ``Software.named("megatron_core")`` returns one of the catalog."""

    name: str = text()
    title: str = text()
    phases: tuple[str, ...] = names("train", "prefill", "decode", default=())
    """What it runs; all of them if empty."""
    vendors: tuple[str, ...] = names(default=())
    """On whose devices it runs, as clusters name them; unknown if empty."""
    runs_like: str | None = text(default=None)
    """The software whose left-out errors hold for it, where too few runs of its own were measured
    to tell; its own if None."""
    attention: str = one_of("flash", "unfused", default="flash")
    """One kernel that keeps the scores on chip, or GEMMs and a softmax through memory."""
    grouped_decode: int | None = whole(default=None)
    """Query heads per key-value head for which decoding reads the cache once, where that is one
    number only: with others, each query head reads its own copy. None: with any number."""
    kernels: str | None = text(default=None)
    """Prefix of the constants of its own kernels, on architectures whose files have such tables:
    ``cudnn`` and ``flash2`` are attention of training frameworks."""
    fused_elementwise: bool = flag(default=True)
    """Normalisation with the residual sum, and a gated activation, are one kernel each."""
    fused_quantize: bool = flag(default=False)
    """The input of a GEMM in fewer than 16 bits is converted by the norm, the activation or the
    attention that makes it; otherwise by a kernel of its own."""
    fused_bias_gradient: bool = flag(default=False)
    """The gradient of a bias is summed up by the GEMM of the weight gradient, or where the output's
    gradient is converted to fewer bits; otherwise by a kernel of its own."""
    narrow_cache: bool = flag(default=False)
    """The KV cache is in fp8 where the weights have fewer than 16 bits, unless told otherwise."""
    fused_loss: bool = flag(default=True)
    """The cross entropy reads the logits once for each of its sums; otherwise each of its steps
    is a kernel of its own."""
    dropout: bool = flag(default=False)
    selective: str = one_of("attention", "gemm", default="attention")
    """What selective recomputation computes again: attention (Korthikanti et al. 2022), or every
    second GEMM with all elementwise kernels, attention kept (PyTorch's selective checkpointing)."""
    wide_gradients: str = text(default="none")
    """The number format, if any, whose gradients of weights are still multiplied in 16 bits: their
    inputs are not quantised along the tokens."""
    recomputes_last: bool = flag(default=True)
    """Full recomputation runs a layer's last dense GEMM again, though no gradient needs its result;
    False for compilers that leave out what nothing uses (XLA), and for PyTorch's checkpoints that
    do not re-enter autograd: they stop at the last tensor that a gradient needs."""
    tp_overlap: str = one_of("none", "async", "chunked", default="none")
    """What hides tensor-parallel communication: nothing; in the backward pass the GEMM that does
    not wait for it; or the GEMM itself, cut into chunks."""
    overlap_chunks: int = whole(default=4)
    """Into how many chunks a GEMM is cut that hides its own communication."""
    overlap_sms: int = whole(default=16)
    """SMs that a collective's kernel occupies while GEMMs run beside it."""
    narrow_gathers: bool = flag(default=False)
    """In training, inputs of GEMMs in fewer than 16 bits are converted before sequence parallelism
    gathers them, and so are gradients; results are scattered in 16 bits."""
    dispatch: str = one_of(*DISPATCHERS, default="nccl")
    """What carries tokens to their experts and back: all-to-alls of NCCL, an all-gather and a
    reduce-scatter of all tokens (``allgather``), or kernels of a library of their own."""
    narrow_dispatch: bool = flag(default=False)
    """Tokens travel to their experts in the 8-bit format of the GEMMs; results in 16 bits."""
    experts: str = one_of("grouped", "fused", default="grouped")
    """Grouped GEMMs between kernels that sort the tokens, or an engine's fused sequence."""
    expert_launch: str = one_of("grouped", "each", default="grouped")
    """A grouped GEMM is one kernel, or one for each expert."""
    fused_permute: bool = flag(default=True)
    """Sorting tokens by expert is one kernel, and so is weighing and adding up their results;
    otherwise PyTorch's kernels that select, multiply and scatter."""
    expert_overlap: str = one_of(*EXPERT_OVERLAPS, default="none")
    """What hides dispatch and combine: nothing; the other half of the batch (two-batch overlap in
    serving); or another micro-batch in the opposite pass (DualPipe, arXiv:2412.19437; Megatron
    Core's 1F1B overlap of all-to-alls)."""
    dp_overlap: bool = flag(default=True)
    """Gradients are reduced bucket by bucket behind the last backward pass, and sharded weights
    gathered behind the first forward pass."""
    bucket_bytes: Quantity = positive(default=1e8)
    bucket_start_bytes: Quantity | None = positive(default=None)
    """Where buckets are so small that starting a collective for each counts, as in PyTorch's DDP:
    the bytes of a collective that takes as long as such a start."""
    zero_overlap: bool = flag(default=True)
    """`dp_overlap` holds with a sharded optimizer (ZeRO 1) too; otherwise gradients are reduced and
    weights gathered by themselves then."""
    zero_reduce: str = one_of("reduce_scatter", "all_reduce", default="reduce_scatter")
    """How gradients are reduced where the optimizer alone is sharded (ZeRO 1): to each rank its
    part, or everywhere, with the rest thrown away."""
    gathers_into_lists: bool = flag(default=False)
    """With ZeRO 1, updated weights are gathered into a list of tensors for each rank, which the
    host joins and takes apart again tensor by tensor."""
    pp_overlap: bool = flag(default=True)
    """Sends between stages run beside the GEMMs; otherwise the sender waits for them."""
    scatters_sends: bool = flag(default=True)
    """Each rank of a tensor group sends its part of the activations to the next stage, where they
    are gathered (Narayanan et al. 2021, section 4.1); otherwise each sends all."""
    balance: str = one_of("layers", "cost", default="layers")
    """What pipeline stages have alike: their number of layers, or the work with the head's."""
    launch: str = one_of("graph", "eager", default="graph")
    """How kernels are started: from a recorded graph, or one by one from the host."""
    library: str | None = text(default=None)
    """The library of tensor-parallel collectives; the device vendor's own if None. ``multimem``:
    kernels in which the switch adds up, where it can."""
    vocab_multiple: int = whole(default=1)
    """The vocabulary is padded to a multiple of this and of the tensor-parallel degree."""
    head_dtype: str = number_format(default="bf16")
    """Number format of attention and the output head where the other GEMMs' is narrower."""
    host_per_kernel_s: Quantity = positive(default=1e-9)
    """What the host needs to start one kernel, when it starts them one by one."""
    eager_per_kernel_s: Quantity | None = positive(default=None)
    """The same for passes that no recorded graph has, of an engine that records those of decoding:
    passes over prompts, and all if graphs are off. None: such passes do not wait for the host."""
    host_per_hop_s: Quantity | None = positive(default=None)
    """What the host needs on top to start a collective, for each link of its ring inside a
    domain …"""
    host_per_crossing_s: Quantity | None = positive(default=None)
    """… and for each that crosses the network."""
    host_scatter: Quantity | None = positive(default=None)
    """How unevenly host and device share the work along a pass: where both have nearly as much to
    do, each waits for the other now and then. None: the host runs ahead and the device never waits
    for it unless it has less to do on the whole."""
    step_overhead_s: Quantity = positive(default=1e-9)
    """Once a step: data loading, scheduling, sampling, logging."""
    host_per_sequence_s: Quantity = positive(default=1e-9)
    """Once a step for each sequence that is served: scheduling, page tables, sampling, text."""
    host_per_draft_s: Quantity = positive(default=1e-12)
    """The same for each token that was drafted: which are kept, and what becomes of the others,
    where the host does not do it while the next step runs."""
    collective_wait_s: Quantity = positive(default=1e-9)
    """Once a collective of the tensor group: launching it, and waiting for the slowest rank."""
    slowdown: Quantity = positive(default=1.0)
    """Kernels in a long run of this software, over the same kernels measured by themselves."""
    attention_slowdown: Quantity = positive(default=1.0)
    """Beyond that, its fused attention over the kernels that it is priced with, where nobody
    measured its own by themselves …"""
    slow_head_dim: int = whole(default=1)
    """… for heads of so many elements and more, which registers hold less well."""
    gradient_sum_bytes: Quantity | None = positive(default=None)
    """Bytes moved per weight and micro-batch to add its gradient to a sum of 32 bits, of which
    narrower sums need their share; None where the GEMM that makes the gradient adds it."""
    step_gradient_bytes: Quantity | None = positive(default=None)
    """Bytes moved once a step per gradient of 32 bits that a rank keeps, besides the update: its
    buffer is set to zero, scaled by the number of replicas, and read by a check for NaN. None:
    nothing."""
    fit: Fit | None = instance(Fit, default=None)
    """What the constants were fitted to, and how well; None where they were not."""
    source: str = text(default="given by the caller")
    """Who says so of the choices."""
    scheduler: Scheduler = instance(Scheduler, default=Scheduler())
    """How an engine chooses what a step computes."""
    memory: Mapping[str, Any] = table(_memory_constant, default_factory=dict)
    """Constants of the memory model that are the framework's own."""

    @property
    def counts_links(self) -> bool:
        """Whether its host takes longer for collectives whose rings have more links."""
        return self.host_per_hop_s is not None or self.host_per_crossing_s is not None

    def runs(self, phase: str) -> bool:
        """Return whether it is for ``train``, ``prefill`` or ``decode``."""
        return not self.phases or phase in self.phases

    @property
    def measured_as(self) -> str:
        """The software whose left-out errors its intervals have."""
        return self.runs_like or self.name

    def in_phase(self, phase: str) -> Software:
        """Return the same as it starts the kernels of ``train``, ``prefill`` or ``decode``."""
        if phase != "prefill" or self.eager_per_kernel_s is None:
            return self
        return self.without_graphs()

    def without_graphs(self) -> Software:
        """Return the same with every kernel started from the host, one by one."""
        own = self.eager_per_kernel_s
        if own is None:
            return self.variant(launch="eager")
        return self.variant(
            launch="eager",
            host_per_kernel_s=own,
            host_scatter=None,
            eager_per_kernel_s=None,
        )

    @property
    def fit_text(self) -> str:
        """What the constants were fitted to and how well, in words."""
        return "not fitted" if self.fit is None else str(self.fit)

    @classmethod
    def named(cls, name: str) -> Software:
        """Return a preset of the catalog; ``-``, ``_`` and case do not matter."""
        from shardcost.catalog import software_named

        return software_named(name)

    @classmethod
    def from_file(cls, path: str | Path) -> Software:
        """Return the framework or engine of a file in the catalog's form."""
        from shardcost.catalog import software_in_file

        return software_in_file(path)
