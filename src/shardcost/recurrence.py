"""The recurrences of layers with a fixed state: what their mathematics and their chunked form need.

Each head has a state S of ``k_dim x v_dim`` that every token decays and adds to, o = S^T q. The
rules differ in what is added (forms and chunks as in the papers and the libraries that run them):

``gdn``        gated delta rule: what S already holds of the key is subtracted first
               (Yang et al. 2024, arXiv:2412.06464)
``kda``        Kimi delta attention: the same with a decay for each key channel
               (Kimi Team 2025, arXiv:2510.26692)
``mamba2``     a selective state space: keys and queries are shared by groups of heads
               (Dao & Gu 2024, arXiv:2405.21060)
``lightning``  linear attention with a fixed decay (Qin et al. 2024, arXiv:2401.04658)
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.records import NamedTuple


class Rule(NamedTuple):
    """What a token does to the state of a head."""

    delta: bool
    """Whether it subtracts what the state holds of its key: one more product with the state, and a
    triangular system in every chunk."""
    chunk_tokens: int
    """Of the chunked form, as libraries run it."""
    gate_columns: int = 0
    """Values in 16 bits for each key channel of a token that go along: a decay in fp32."""


RULES: Final = {
    "gdn": Rule(delta=True, chunk_tokens=64),
    "kda": Rule(delta=True, chunk_tokens=64, gate_columns=2),
    "mamba2": Rule(delta=False, chunk_tokens=128),
    "lightning": Rule(delta=False, chunk_tokens=256),
}
"""By name of the operation."""


def step_flops(op: str, v_heads: Any, k_dim: Any, v_dim: Any) -> Any:
    """Return the FLOPs of one token of the recurrence: its products with the state of every head.

    >>> step_flops("gdn", 32, 128, 128)
    3145728.0
    """
    return 2.0 * (3 if RULES[op].delta else 2) * v_heads * k_dim * v_dim


def scan_flops(op: str, k_heads: Any, k_dim: Any, v_heads: Any, v_dim: Any) -> Any:
    """Return the FLOPs of one token of the chunked form.

    The products with the state are those of the recurrence. Inside a chunk of C tokens come scores
    of queries and keys (C k_dim) by values (C v_dim); under the delta rule also the keys' scores
    among themselves, and the solution of their triangular system by keys and values.
    """
    rule = RULES[op]
    inside = k_heads * k_dim + v_heads * v_dim
    if rule.delta:
        inside = v_heads * (3 * k_dim + 2 * v_dim)
    return step_flops(op, v_heads, k_dim, v_dim) + 2.0 * rule.chunk_tokens * inside
