"""Kernels on the CPU by NumPy, where torch is not installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from shardcost.measure.kernels.cases import KernelCase, Limits
from shardcost.measure.kernels.timing import (
    NotAvailableError,
    Times,
    cpu_name,
    memory_limit,
    times_of,
)

_CPU_FLOPS: Final = 2e9
_CPU_SCALE: Final = 0.2
_LEAST_S: Final = 0.02
_LEAST_RUNS, _MOST_RUNS = 5, 200


def limits_of_cpu(attention: str) -> Limits:
    """Return what is measured on the host's CPU, with a library's kernel of attention."""
    return Limits(
        dtypes=("fp32",),
        most_bytes=memory_limit(),
        most_flops=_CPU_FLOPS,
        mode="call",
        attention=(attention,),
        scale=_CPU_SCALE,
    )


class NumpyDevice:
    """The host's CPU as NumPy uses it, in fp32."""

    def __init__(self) -> None:
        self.name = cpu_name()
        self.software = f"numpy {np.__version__}"
        self.limits = limits_of_cpu("numpy")
        self._random = np.random.default_rng(0)

    def measured(self, case: KernelCase) -> Times:
        """Run a case and return its times."""
        return called(self._prepared(case))

    def _prepared(self, case: KernelCase) -> Callable[[], object]:
        if case.kind == "gemm":
            a, b = self._array(case.m, case.k), self._array(case.k, case.n)
            out = np.empty((case.m, case.n), np.float32)
            return lambda: np.matmul(a, b, out=out)
        if case.kind in ("prefill", "decode"):
            return self._attention(case)
        if case.kind == "grouped_gemm":
            raise NotAvailableError("NumPy has no grouped GEMM")
        x, y = (self._array(case.tokens, case.width) for _ in range(2))
        out = np.empty_like(x)
        return {
            "copy": lambda: np.copyto(out, x),
            "add": lambda: np.add(x, y, out=out),
            "rms_norm": lambda: np.multiply(
                x, 1 / np.sqrt(np.einsum("ij,ij->i", x, x) / case.width + 1e-6)[:, None], out=out
            ),
            "silu_mul": lambda: np.multiply(x / (1 + np.exp(-x)), y, out=out),
        }[case.kind]

    def _attention(self, case: KernelCase) -> Callable[[], object]:
        """Return attention as plain NumPy writes it: two products and a softmax between them."""
        group = case.heads // case.kv_heads
        rows = group * case.query_tokens
        q = self._array(case.batch, case.kv_heads, rows, case.head_dim)
        k, v = (
            self._array(case.batch, case.kv_heads, case.context_tokens, case.head_dim)
            for _ in range(2)
        )
        transposed = k.swapaxes(-1, -2)
        if 4.0 * rows * case.context_tokens * case.batch * case.kv_heads > self.limits.most_bytes:
            raise NotAvailableError("NumPy would hold all scores at once")
        masked = np.arange(case.context_tokens) > np.arange(case.query_tokens)[:, None]
        mask = np.tile(masked, (group, 1)) if case.kind == "prefill" else None

        def run() -> object:
            scores = q @ transposed
            if mask is not None:
                scores[..., mask] = -np.inf
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            return scores @ v

        return run

    def _array(self, *shape: int) -> Any:
        return self._random.standard_normal(shape, dtype=np.float32)


def called(run: Callable[[], object]) -> Times:
    """Return the times of a function that the host runs, called one by one."""
    run()
    seconds: list[float] = []
    ends = time.perf_counter() + _LEAST_S
    while len(seconds) < _LEAST_RUNS or (time.perf_counter() < ends and len(seconds) < _MOST_RUNS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return times_of(seconds, 1)
