"""Colours of the pictures: what a colour means in one it means in all of them.

Okabe and Ito's (`shardcost.report.sketch.COLOURS`). Communication that nothing hides is solid,
hidden communication hatched; waiting is grey and hatched.
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.report.sketch import COLOURS, GREY

KINDS: Final = {"gemm": COLOURS[0], "attention": COLOURS[5], "elementwise": COLOURS[6]}
"""Of compute, as `shardcost.estimate.roofline` names it."""
COMPUTE: Final = COLOURS[0]
GROUPS: Final = {
    "tp": COLOURS[1],
    "cp": COLOURS[2],
    "ep": COLOURS[2],
    "dp": COLOURS[4],
    "pp": COLOURS[3],
}
"""Of communication."""
MEMORY: Final = {
    "weights": COLOURS[0],
    "gradients": COLOURS[4],
    "optimizer": COLOURS[3],
    "activations": COLOURS[2],
    "logits": COLOURS[6],
    "kv_cache": COLOURS[5],
    "buffers": "#999999",
    "framework": "#cccccc",
}
HOST: Final = GREY
IDLE: Final = "#bbbbbb"
SLOT: Final = "#f0f0f0"
"""Behind what cannot be had."""
HATCH: Final = "////"
GRID: Final[dict[str, Any]] = {"visible": True, "color": "#dddddd", "linewidth": 0.5}
