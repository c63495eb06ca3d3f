"""Predicts the rows of a table of single layers: one rank's share of one transformer layer.

A row is one pass over a layer as PyTorch's own modules run it, with everything but the
tensor-parallel sums: norms, products, attention, activation and residual sums. Nothing is rotated.
``forward`` was replayed from a CUDA graph, so the device alone decides. ``backward`` was launched
kernel by kernel onto an idle device: the host's start is part of it, and where the kernels are
short the host's pace is all of it. What the forward pass computed is kept; nothing is computed
again.
"""

from __future__ import annotations

from typing import Final

from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.estimate.pieces import PassTime, pieces_of
from shardcost.estimate.placement import strides
from shardcost.estimate.price import Prices
from shardcost.formats.tables import Row, Table
from shardcost.layout import Layout
from shardcost.machine import CATALOG, Fitted, Machine, machine_of
from shardcost.model import Attention, Block, FeedForward, Model
from shardcost.program.attention import ROPE
from shardcost.program.feasibility import check_feasible
from shardcost.program.layer import layer
from shardcost.program.operations import Collective, Operations, Passes
from shardcost.program.setting import setting_of
from shardcost.software import Software
from shardcost.validate.predictions import Derived, Predictions, by_row, whole_cell
from shardcost.workload import Train, Workload

MEASURED: Final = "time_us"
PASSES: Final = ("forward", "backward")
_LEFT_OUT: Final = (ROPE, f"{ROPE} gradient")
"""Operations of a layer that the measured one does not have."""
_VOCABULARY: Final = 1
"""A layer by itself has neither embedding nor head."""


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted time of every row, in microseconds."""
    return by_row(table, lambda row: time_us(row, fitted))


def time_us(row: Row, fitted: Fitted = CATALOG) -> float:
    """Return the predicted time of one row's pass, in microseconds."""
    direction = row["pass"]
    if direction not in PASSES:
        raise UnknownNameError("pass", direction, PASSES)
    sequences = whole_cell(row, "batch")
    workload = Train(global_batch=sequences, sequence_length=whole_cell(row, "seq"))
    passes = passes_of(row, workload, sequences)
    if direction == "forward":
        return 1e6 * float(pass_time(machine(row["gpu"], fitted), passes.forward).device_s)
    software = torch()
    result = pass_time(machine(row["gpu"], fitted), passes.backward + passes.weight)
    return 1e6 * float(software.step_overhead_s + result.wall_s(software))


def passes_of(row: Row, workload: Workload, micro_batch: int = 1) -> Passes:
    """Return what one rank does for the layer that a row describes."""
    layout = Layout(tp=whole_cell(row, "tp"), micro_batch=micro_batch)
    model = model_of(row)
    setting = setting_of(model, layout, workload, torch())
    check_feasible(model, layout, workload)
    return layer(setting, model.blocks[0])


def model_of(row: Row) -> Model:
    """Return a model of the one layer that a row describes.

    Heads share the hidden size evenly where the table does not state their size.
    """
    hidden, heads = whole_cell(row, "hidden"), whole_cell(row, "heads")
    if row["gated"] not in {"0", "1"}:
        raise BadValueError("gated", row["gated"], "0 or 1")
    kv_heads = whole_cell(row, "kv_heads")
    head_dim = whole_cell(row, "head_dim") if "head_dim" in row else hidden // heads
    block = Block(
        count=1,
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim),
        feed_forward=FeedForward(width=whole_cell(row, "ffn"), gated=row["gated"] == "1"),
    )
    return Model(
        name=f"a layer of {hidden}", hidden_size=hidden, vocab_size=_VOCABULARY, blocks=(block,)
    )


def pass_time(on: Machine, operations: Operations) -> PassTime:
    """Return how long operations take, those left out that the measured layer does not have."""
    kept = tuple(
        op for op in operations if not isinstance(op, Collective) and op.name not in _LEFT_OUT
    )
    (piece,) = pieces_of([("layer", Passes(kept))], Prices(on, strides(Layout())), torch())
    return piece.forward


def torch() -> Software:
    """Return the software that all such rows were measured with."""
    return Software.named("torch")


def machine(gpu: str, fitted: Fitted = CATALOG) -> Machine:
    """Return the machine of the catalog that has a device; layers ran alone, and not for long."""
    return machine_of(Cluster.named(gpu), torch(), fitted).in_bursts


DERIVED: Final[Derived] = {
    "tokens": lambda row: str(whole_cell(row, "batch") * whole_cell(row, "seq"))
}
