"""Layouts of a row that have the same layers, so that each different layer is priced once.

A layer depends on the degrees that split it, on the sequences of a pass, and on where the ranks of
its groups sit; pipelines and replicas only repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.checks import Noun, is_array
from shardcost.estimate.ledger import Pieces, layer_pieces
from shardcost.estimate.pieces import PassTime, Piece
from shardcost.estimate.placement import strides
from shardcost.estimate.price import Prices, different_rows
from shardcost.layout import Layout
from shardcost.machine import Machine
from shardcost.memory.parameters import expert_tensor_degree
from shardcost.model import Model
from shardcost.program.assemble import Program, program_of
from shardcost.program.operations import Passes
from shardcost.program.setting import sequences_per_pass
from shardcost.software import Software
from shardcost.workload import Workload

Indices = NDArray[np.intp]
_FEW: Final = 256
"""Layouts up to which pricing all layers takes no longer than to find out which are different."""


def different_layers(layout: Layout, workload: Workload) -> tuple[Indices, Indices]:
    """Return layouts with different layers, one of each, and which of them each layout is like."""
    apart = strides(layout)
    columns = [layout.tp, layout.cp, layout.ep, sequences_per_pass(layout, workload)]
    columns += [expert_tensor_degree(layout)]
    columns += [apart[group] for group in ("tp", "cp", "ep", "ep_tensor")]
    if layout.recompute_layers is not None:  # their share depends on the stages
        columns.append(layout.pp)
    columns += _arrays(workload).values()
    arrays = [each for each in columns if is_array(each)]
    number = max(map(np.size, (layout.devices, *arrays)))
    return different_rows([np.zeros(number), *arrays])


def pieces_by_layer(
    model: Model,
    machine: Machine,
    layout: Layout,
    workload: Workload,
    software: Software,
    program: Program,
) -> Pieces | None:
    """Return the priced layers of a row of layouts; None where they are too few or too different.

    Args:
        model: What is run.
        machine: Where.
        layout: How it is divided, degrees in a row.
        workload: What is computed.
        software: What runs it.
        program: Its program, of all layouts.
    """
    arrays = [*_arrays(layout).values(), *_arrays(workload).values()]
    number = max((np.size(each) for each in arrays), default=0)
    if number < _FEW or any(each.shape != (number,) for each in arrays):
        return None
    rows, back = different_layers(layout, workload)
    if 2 * len(rows) > number or len(back) != number:
        return None
    some, work = _some(layout, rows), _some(workload, rows)
    own = program_of(model, some, work, software)
    kinds, first, last = layer_pieces(own, Prices(machine, strides(some), arrays=True))
    return (
        tuple(
            piece_at(each, back, kind.passes)
            for each, kind in zip(kinds, program.layers, strict=True)
        ),
        piece_at(first, back, program.first),
        piece_at(last, back, program.last),
    )


def piece_at(piece: Piece, which: Indices, passes: Passes | None = None) -> Piece:
    """Return a priced piece of other layouts, whose layers are among its own.

    Args:
        piece: The piece.
        which: Of its layouts, the one that each of the others is like.
        passes: The operations of the others; left out where nobody asks for them.
    """
    seconds: Sequence[Any] = ()
    exposed: Sequence[Any] = ()
    if passes is not None:
        seconds, exposed = _Taken(piece.seconds, which), _Taken(piece.exposed_s, which)
    times = (PassTime(*(taken(own, which) for own in each)) for each in piece.passes)
    sent = (taken(own, which) for own in (piece.inside_bytes, piece.network_bytes))
    return Piece(piece.name, passes or Passes(()), seconds, exposed, *times, *sent)


class _Taken(Sequence[Any]):
    """Figures of some layouts, one for each operation: taken when read, as a time needs none."""

    def __init__(self, figures: Sequence[Any], which: Indices) -> None:
        self._figures, self._which = figures, which

    def __len__(self) -> int:
        return len(self._figures)

    def __getitem__(self, place: Any) -> Any:
        return taken(self._figures[place], self._which)


def taken(figure: Any, which: Any) -> Any:
    """Return some layouts' figure; a plain number holds for all of them."""
    return figure[which] if is_array(figure) else figure


def _arrays(noun: Noun) -> dict[str, NDArray[Any]]:
    """Return the fields of a noun that are arrays of NumPy."""
    return {name: each for name, each in vars(noun).items() if isinstance(each, np.ndarray)}


def _some(noun: Any, rows: Indices) -> Any:
    """Return a noun of some of its layouts."""
    return noun.variant(**{name: each[rows] for name, each in _arrays(noun).items()})
