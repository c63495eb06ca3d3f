"""Memory as a picture: a bar for each pipeline stage, by kind, against the device's capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shardcost.estimate.result import Estimate
from shardcost.memory.footprint import KINDS, Footprint, Memory
from shardcost.report.estimate import details, title
from shardcost.report.pictures import COLOURS, GREY, GRID, MEMORY, Sketch, note
from shardcost.report.text import name_of
from shardcost.units import format_bytes, format_percent
from shardcost.workload import Train

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH: Final = 10
_ROW: Final = 0.75
"""Inches of a bar with its gap."""
_READABLE: Final = 0.065
"""The least share of the axis that holds a size in figures."""
_DARK: Final = {"weights", "logits"}
"""Kinds whose colour white figures are read on."""
_COLUMNS: Final = 4
"""Of the legend."""
_GIB: Final = 2**30


def sketch(estimate: Estimate) -> Sketch:
    """Return the picture of the memory of each stage's fullest rank."""
    height = 2.3 + _ROW * len(estimate.memory.stages)
    heading = f"{title(estimate)}\n{details(estimate)}"
    return Sketch(lambda figure: _fill(figure, estimate), (_WIDTH, height), heading)


def _fill(figure: Figure, estimate: Estimate) -> None:
    axes = figure.subplots()
    capacity = float(estimate.cluster.device.memory_bytes)
    stages = estimate.memory.stages
    across = 1.16 * max(capacity, float(estimate.memory_bytes))
    names = []
    for row, (stage, footprint) in enumerate(stages.items()):
        _draw_stage(axes, row, footprint, capacity, across)
        name = f"{stage} stage" if len(stages) > 1 else "every rank"
        trains = isinstance(estimate.workload, Train)
        names.append(f"{name}\n{footprint.moment}" if trains else name)
    if estimate.engine_bytes is not None and estimate.engine_bytes > estimate.memory_bytes:
        _draw_engine(axes, estimate)
    axes.axvline(capacity / _GIB, color="black", linestyle="--", linewidth=1.2)
    label, place = f"capacity {format_bytes(capacity)}", (capacity / _GIB, 0)
    note(axes, label, place, (-4, 3), xycoords=("data", "axes fraction"), ha="right")
    axes.set_xlim(0, across / _GIB)
    axes.set_ylim(len(stages) - 0.2, -0.5)
    axes.set_yticks(range(len(stages)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("peak memory of the stage's fullest rank, GiB")
    axes.grid(axis="x", **GRID)
    axes.set_axisbelow(True)
    _name_kinds(axes, estimate.memory)


def _draw_engine(axes: Axes, estimate: Estimate) -> None:
    """Draw what the engine takes beyond what the step needs."""
    row = tuple(estimate.memory.stages).index(str(estimate.memory.worst_stage))
    start, end = (float(size) / _GIB for size in (estimate.memory_bytes, estimate.engine_bytes))
    look: dict[str, Any] = {"facecolor": "none", "edgecolor": MEMORY["kv_cache"], "linestyle": "--"}
    axes.barh(row, end - start, left=start, height=0.6, **look)
    words = f"more KV cache: {estimate.software.name} takes {format_bytes(estimate.engine_bytes)}"
    note(axes, words, ((start + end) / 2, row), ha="center", va="center", fontsize=8, color=GREY)


def _draw_stage(axes: Axes, row: int, footprint: Footprint, capacity: float, across: float) -> None:
    """Draw the kinds of one stage one after the other, with their sizes where there is room."""
    left = 0.0
    for kind in KINDS:
        size = float(getattr(footprint, kind))
        axes.barh(row, size / _GIB, left=left / _GIB, color=MEMORY[kind], height=0.6)
        if size > _READABLE * across:
            colour, place = "white" if kind in _DARK else "black", ((left + size / 2) / _GIB, row)
            centred: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
            axes.annotate(format_bytes(size), place, color=colour, **centred)
        left += size
    full = left > capacity
    note(
        axes,
        f"{format_bytes(left)} ({format_percent(left / capacity)}{', does not fit' * full})",
        (left / _GIB, row - 0.3),
        (0, 4),
        ha="right" if left > across / 4 else "left",
        fontweight="bold",
        color=COLOURS[1] if full else GREY,
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        zorder=3,
    )


def _name_kinds(axes: Axes, memory: Memory) -> None:
    """Name the kinds, with what the fullest stage has of each."""
    from matplotlib.patches import Patch

    sizes, stages = memory.by_kind(), memory.stages.values()
    used = [kind for kind in KINDS if any(getattr(stage, kind) for stage in stages)]
    where = f"the {memory.worst_stage} stage" if len(stages) > 1 else "every rank"
    names = {kind: f"{name_of(kind)} {format_bytes(sizes[kind])}" for kind in used}
    axes.legend(
        handles=[Patch(color=MEMORY[kind], label=name) for kind, name in names.items()],
        title=f"{where}, {format_bytes(memory.peak_bytes)}:",
        alignment="left",
        frameon=False,
        fontsize=8,
        ncols=_COLUMNS,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        handlelength=1,
        columnspacing=1.2,
    )
