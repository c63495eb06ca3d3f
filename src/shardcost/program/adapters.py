"""Low-rank adapters beside frozen matrices: ``y = x W + scale (x A) B``.

Hu et al. 2021, arXiv:2106.09685. Both products are in 16 bits. Scaling, the sum with the frozen
matrix's output and, backward, that of the input gradients are kernels of their own, as in NeMo,
Megatron Bridge and PEFT.
"""

from __future__ import annotations

from typing import Any

from shardcost.program.operations import (
    Collective,
    Elementwise,
    Gemm,
    Operations,
    OpId,
    Passes,
    together,
)
from shardcost.records import NamedTuple


class Adapter(NamedTuple):
    """The adapter of one matrix, on one rank."""

    name: str
    """Of the frozen matrix."""
    split: str
    """How a tensor group divides that: by ``columns``, by ``rows``, or not (``whole``)."""
    rank: Any
    rows: Any
    """Tokens."""
    inputs: Any
    """Columns of the input that the rank has; likewise of the output."""
    outputs: Any
    dtype: str
    element_bytes: float
    tp: Any
    sequence_parallel: bool

    def passes(self) -> Passes:
        """Return what the adapter adds to the passes over its matrix.

        With tensor parallelism A is divided as the frozen matrix is, over the rank where that is
        by columns, and B by columns (Megatron's column- and row-parallel layers): the narrow
        product is gathered or added up, and the output beside rows, divided by columns, is
        gathered, or under sequence parallelism exchanged for one divided by tokens. A's input
        gradient beside columns is added up by itself; under sequence parallelism it joins the
        frozen matrix's, whose sum is scattered.
        """
        tp = 1 if self.split == "whole" else self.tp
        inner = self.rank / tp if self.split == "columns" else self.rank
        columns = self.outputs / tp if self.split == "rows" else self.outputs
        after_first, after_second = self._collectives()
        spread = tp if self.split == "rows" and self.sequence_parallel else 1
        made = self.rows * self.outputs * self.element_bytes / spread
        read = self.rows * self.inputs * self.element_bytes
        scaled = Passes(
            # Read and written by the scaling, both read and one written by the sum.
            (Elementwise(f"{self.name} adapter sum", 5 * made, 2),),
            (Elementwise(f"{self.name} adapter scale gradient", 2 * made),),
        )
        summed = Passes((), (Elementwise(f"{self.name} adapter gradient sum", 3 * read),))
        return together(
            summed,
            self._entered(),
            self._matrix("A", self.inputs, inner),
            after_first,
            self._matrix("B", self.rank, columns),
            after_second,
            scaled,
        )

    def _matrix(self, letter: str, inputs: Any, outputs: Any) -> Passes:
        own = OpId(f"{self.name} adapter {letter}")

        def gemm(which: OpId, m: Any, n: Any, k: Any) -> Operations:
            return (Gemm(which.name, m, n, k, self.dtype, weights=False, id=which),)

        return Passes(
            gemm(own, self.rows, outputs, inputs),
            gemm(own.input_gradient, self.rows, inputs, outputs),
            gemm(own.weight_gradient, inputs, outputs, self.rows),
        )

    def _entered(self) -> Passes:
        """Return the sum of the input gradient of an A that is divided by columns."""
        if self.split != "columns" or self.sequence_parallel or self._alone:
            return Passes(())
        return Passes((), self._sent("all_reduce", " input gradient", self.inputs))

    def _collectives(self) -> tuple[Passes, Passes]:
        """Return what follows A, and what follows B."""
        if self.split == "whole" or self._alone:
            return Passes(()), Passes(())
        narrow = self.rank
        if self.split == "columns":
            gathered = self._sent("all_gather", " A", narrow)
            return Passes(gathered, self._sent("reduce_scatter", " A gradient", narrow)), Passes(())
        first = Passes(
            self._sent("all_reduce", " A", narrow), self._sent("all_reduce", " A gradient", narrow)
        )
        if not self.sequence_parallel:
            return first, Passes(self._sent("all_gather", "", self.outputs))
        part = self.outputs / self.tp
        there = self._sent("all_to_all", "", part)
        return first, Passes(there, self._sent("all_to_all", " gradient", part))

    @property
    def _alone(self) -> bool:
        return isinstance(self.tp, int) and self.tp == 1

    def _sent(self, kind: str, what: str, columns: Any) -> Operations:
        size = self.rows * columns * self.element_bytes
        return (Collective.of(kind, f"{self.name} adapter{what}", size, "tp", self.tp),)
