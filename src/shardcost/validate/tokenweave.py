"""Prefills of TokenWeave: as they are, with their all-reduces left out, or hidden.

Hidden, the tokens are split in two and each half's all-reduces run beside the products of the other
(Gond et al. 2025, TokenWeave, arXiv:2505.11329): what is left is that products of half as many
tokens take more than half as long.
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import ceil_div
from shardcost.estimate.serving import Engine


def prefill_s(engine: Engine, metric: str, prompt_tokens: Any) -> Any:
    """Return the seconds of a prefill: as it is, ``no_allreduce``, or ``overlapped``."""
    found = engine.prefill(1, prompt_tokens)
    alone = found.time_s - found.exposed_s["tp"]
    if metric.endswith("no_allreduce"):
        return alone
    if metric.endswith("overlapped"):
        half = engine.prefill(1, ceil_div(prompt_tokens, 2))
        return alone + 2 * half.compute_s["gemm"] - found.compute_s["gemm"]
    return found.time_s
