"""Predicts the rows of a table of single operators of a layer, measured on one rank of a group.

Such tables come from several hands, and each names operators its own way:

- products are those of a layer's program, by constants that were timed with PyTorch where there are
  some of the architecture: its library chooses other kernels than engines that tune;
- norms, rotations, activations, sums and lookups of serving engines have one block for each token
  (`shardcost.kernels.elementwise.layer_kernel_time_s`), and were replayed alone;
- collectives called from PyTorch have a launch by the host before them; kernels that let the
  switch add (``multimem``) are priced as those of the engine that runs such kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.errors import UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.elementwise import (
    elementwise_time_s,
    launch_s,
    layer_kernel_time_s,
)
from shardcost.kernels.gemm import gemm_time_s
from shardcost.machine import CATALOG, Fitted, Machine, machine_of
from shardcost.memory.parameters import heads_per_rank
from shardcost.model import Attention
from shardcost.program.attention import OUT, QKV
from shardcost.program.feed_forward import DOWN, UP
from shardcost.validate.layers import model_of, pass_time, passes_of, torch
from shardcost.validate.predictions import Derived, Predictions, by_row, whole_cell
from shardcost.workload import Prefill

MEASURED: Final = "time_us"
_ELEMENT_BYTES: Final = 2
"""All rows have 16-bit elements."""
_FORMS: Final = ("{}", "{}_sxm", "{}_pcie")
"""How the catalog may name a device that a table calls by its chip."""


class _Rows(NamedTuple):
    """A kernel with one block for each token."""

    section: str
    arrays: int
    """Rows read and written."""
    width: Callable[[Row], float]
    """Elements of a row, on one rank."""


class _Call(NamedTuple):
    """A collective as it was called."""

    collective: str
    library: str
    eager: bool = False


def _rotated(row: Row) -> float:
    """Return the elements of one token's queries and keys."""
    part, tp = model_of(row).blocks[0].attention, whole_cell(row, "tp")
    if not isinstance(part, Attention):
        raise TypeError(type(part).__name__)
    return float((part.heads / tp + heads_per_rank(part.kv_heads, tp)) * part.head_dim)


def _hidden(row: Row) -> float:
    return whole_cell(row, "hidden")


def _inner(row: Row) -> float:
    return whole_cell(row, "ffn") / whole_cell(row, "tp")


PRODUCTS: Final = {
    "attn_pre_proj": QKV, "attn_post_proj": OUT, "mlp_up_proj": UP, "mlp_down_proj": DOWN,
}  # fmt: skip
"""Operators that are products of a layer's program."""
ROW_KERNELS: Final = {
    "input_layernorm": _Rows("row_norm", 2, _hidden),
    "post_attention_layernorm": _Rows("row_norm", 2, _hidden),
    "attn_rope": _Rows("row_rotation", 2, _rotated),
    "mlp_act": _Rows("row_activation", 3, _inner),
    "emb": _Rows("row_lookup", 2, _hidden),
    "add": _Rows("row_add", 3, _hidden),
}
CALLS: Final = {
    "all_reduce": _Call("all_reduce", "nccl"),
    "torch_all_reduce": _Call("all_reduce", "nccl", eager=True),
    "pytorch_dist_ar": _Call("all_reduce", "nccl", eager=True),
    "pytorch_dist_rs": _Call("reduce_scatter", "nccl", eager=True),
    "pytorch_dist_ag": _Call("all_gather", "nccl", eager=True),
    "multimem_all_reduce": _Call("all_reduce", "vllm"),
    "multimem_ar": _Call("all_reduce", "vllm"),
    "multimem_rs": _Call("reduce_scatter", "nccl"),
    "multimem_ag": _Call("all_gather", "nccl"),
    # The norm in its middle, on a rank's own part of the tokens, hides in the pauses of the wire.
    "fused_arln": _Call("all_reduce", "vllm"),
}
_GATHERED, _SCATTERED = "AG+GEMM", "GEMM+RS"
"""A feed-forward part's two halves: its input gathered, its output scattered."""
_NORM_ARRAYS = 4
"""A sum with a norm reads two arrays, and writes the sum and what is normalised."""


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted time of every row, in microseconds."""
    return by_row(table, lambda row: 1e6 * time_s(row, fitted))


def time_s(row: Row, fitted: Fitted = CATALOG) -> float:
    """Return the predicted time of one row's operator, in seconds."""
    op = row["op"]
    is_half = op.partition(":")[0] in {_GATHERED, _SCATTERED}
    predict = _half_s if is_half else _SECONDS.get(op)
    if row["phase"] != "forward":
        raise UnknownNameError("phase", row["phase"], ("forward",))
    if predict is None:
        raise UnknownNameError("op", op, (*PRODUCTS, *ROW_KERNELS, *CALLS))
    return predict(row, machine_of(cluster_of(row["gpu"]), torch(), fitted).in_bursts)


def cluster_of(gpu: str) -> Cluster:
    """Return the cluster of the catalog that has a device, by the name of its chip.

    >>> cluster_of("H100-SXM (DGX)").name, cluster_of("H100").name
    ('h100_sxm', 'h100_sxm')
    """
    chip = gpu.partition(" ")[0]
    for form in _FORMS:
        try:
            return Cluster.named(form.format(chip))
        except UnknownNameError:
            continue
    raise UnknownNameError("gpu", gpu, ())


def _product_s(row: Row, on: Machine) -> float:
    tokens = whole_cell(row, "tokens")
    workload = Prefill(batch=1, prompt_tokens=tokens, dtype=row["dtype"])
    name = PRODUCTS[row["op"]]
    wanted = tuple(op for op in passes_of(row, workload).forward if op.name == name)
    return float(pass_time(on, wanted).device_s)


def _row_kernel_s(row: Row, on: Machine) -> float:
    """Return the seconds of a kernel with one block for each row of its arrays."""
    kind, sizes = row_kernel(row)
    return float(layer_kernel_time_s(on.kernels, kind, *sizes, warm=True))


def row_kernel(row: Row) -> tuple[str, tuple[float, float, float]]:
    """Return the kind of a row's kernel; and its tokens, width and bytes of each token."""
    kernel = ROW_KERNELS[row["op"]]
    width = kernel.width(row)
    return kernel.section, (
        whole_cell(row, "tokens"),
        width,
        kernel.arrays * width * _ELEMENT_BYTES,
    )


def _sum_s(row: Row, on: Machine) -> float:
    """Return a sum with its norm: of all tokens, or of one rank's part of them."""
    share = whole_cell(row, "tp") if row["op"] == "partial_rms_norm" else 1
    moved = _NORM_ARRAYS * _array_bytes(row) / share
    return float(elementwise_time_s(on.kernels, moved, row_elements=whole_cell(row, "hidden")))


def _array_bytes(row: Row) -> float:
    return whole_cell(row, "tokens") * whole_cell(row, "hidden") * _ELEMENT_BYTES


def _collective_s(row: Row, on: Machine, call: _Call, size_bytes: float) -> float:
    ranks = whole_cell(row, "tp")
    result = collective_time(call.collective, size_bytes, on, ranks, library=call.library)
    start_s = float(launch_s(on.kernels, 1, "eager")) if call.eager else 0.0
    return float(result.time_s) + start_s


def _half_s(row: Row, on: Machine) -> float:
    """Return one half of a feed-forward part: its product, its collective, or both in turn."""
    half, _, part = row["op"].partition(":")
    tokens, hidden, inner = whole_cell(row, "tokens"), whole_cell(row, "hidden"), _inner(row)
    n, k = (inner, hidden) if half == _GATHERED else (hidden, inner)
    collective = "all_gather" if half == _GATHERED else "reduce_scatter"
    product_s = float(gemm_time_s(on.kernels, row["dtype"], tokens, n, k))
    if part == "gemm":
        return product_s
    comm_s = _collective_s(row, on, _Call(collective, "nccl"), _array_bytes(row))
    if part == "comm":
        return comm_s
    if part == "total_no_overlap":
        return product_s + comm_s
    # A product whose own kernel sends and waits is no library's.
    raise UnknownNameError("op", row["op"], ("gemm", "comm", "total_no_overlap"))


def _call_s(row: Row, on: Machine) -> float:
    return _collective_s(row, on, CALLS[row["op"]], whole_cell(row, "msg_bytes"))


_SECONDS: Final[Mapping[str, Callable[[Row, Machine], float]]] = {
    **dict.fromkeys(PRODUCTS, _product_s),
    **dict.fromkeys(ROW_KERNELS, _row_kernel_s),
    **dict.fromkeys(CALLS, _call_s),
    **dict.fromkeys(("full_rms_norm", "partial_rms_norm"), _sum_s),
}
"""What predicts each operator, but for halves of a feed-forward part."""


def kind(row: Row) -> str:
    """Return what kind of operator a row has.

    >>> kind({"op": "mlp_up_proj"}), kind({"op": "attn_rope"}), kind({"op": "multimem_ag"})
    ('gemm', 'elementwise', 'collective')
    """
    op = row["op"]
    if op in PRODUCTS or op.endswith(":gemm"):
        return "gemm"
    if op in CALLS or op.endswith(":comm"):
        return "collective"
    return "both" if ":" in op else "elementwise"


DERIVED: Final[Derived] = {"kind": kind}
