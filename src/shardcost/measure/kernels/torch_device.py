"""Kernels by torch: on a GPU inside CUDA graphs, on a CPU one by one.

On a GPU one graph holds many calls in a row, so that no host launch is in the time, and the calls
go round several copies of their operands that together exceed the L2 cache several times over, so
that operands come from memory as they do in a model, whose other layers have replaced them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

from shardcost.errors import UsageError
from shardcost.measure.kernels.cases import KernelCase, Limits
from shardcost.measure.kernels.numpy_device import called, limits_of_cpu
from shardcost.measure.kernels.timing import (
    NotAvailableError,
    Times,
    cpu_name,
    times_of,
)

_GRAPH_S: Final = 2e-3
"""About how long one graph runs: long against its launch, short against a board's regulator."""
_TIMED_S: Final = 12e-3
_LEAST_REPLAYS, _MOST_REPLAYS = 5, 30
_MOST_CALLS: Final = 400
_CACHES: Final = 4
"""Copies of operands take at least so many times the L2 cache."""
_CACHE_BYTES: Final = 64 * 2**20
"""Of the L2 cache, where torch does not state it."""
_GPU_FLOPS: Final = 4e12
"""Of the largest case: some milliseconds."""
_PAUSE_S: Final = 0.5
_LASTING_S: Final = 4.0
_MEMORY_SHARE: Final = 1 / 12
_OLDEST: Final = (2, 5)
"""The first version of torch whose attention has groups of heads."""
_FP8: Final = (8, 9)
"""Compute capability from which on tensor cores multiply fp8."""
_CUDNN: Final = (9, 0)
"""Compute capability from which on cuDNN's attention is a kernel of its own generation."""


def torch_device(*, cpu: bool = False) -> TorchGpu | TorchCpu | None:
    """Return the GPU that torch sees, else the CPU by torch; None where torch is not installed.

    Args:
        cpu: Whether to use the CPU although there is a GPU.
    """
    try:
        import torch
    except ImportError:
        return None
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise UsageError(
            f"torch {torch.__version__} is too old to measure kernels: {oldest} is not"
        )
    return TorchGpu(torch) if torch.cuda.is_available() and not cpu else TorchCpu(torch)


class _Torch:
    """What both have in common: operands and calls."""

    def __init__(self, torch: Any, where: str) -> None:
        self.torch, self.where = torch, where
        self.software = f"torch {torch.__version__}"
        torch.manual_seed(0)

    def _calls(self, case: KernelCase, copies: int) -> list[Callable[[], object]]:
        """Return the same call on several copies of its operands."""
        makers: dict[str, Callable[[KernelCase], Callable[[], object]]] = {
            "gemm": self._gemm,
            "grouped_gemm": self._grouped,
            "prefill": self._attention,
            "decode": self._attention,
        }
        make = makers.get(case.kind, self._elementwise)
        return [make(case) for _ in range(copies)]

    def _random(self, *shape: int, dtype: str) -> Any:
        torch = self.torch
        if dtype == "fp8":
            wide = torch.randn(*shape, device=self.where, dtype=torch.bfloat16)
            return wide.to(torch.float8_e4m3fn)
        kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
        return torch.randn(*shape, device=self.where, dtype=kind)

    def _gemm(self, case: KernelCase) -> Callable[[], object]:
        torch = self.torch
        a = self._random(case.m, case.k, dtype=case.dtype)
        b = self._random(case.n, case.k, dtype=case.dtype).t()
        if case.dtype == "fp8":
            one = torch.ones((), device=self.where)
            return lambda: torch._scaled_mm(
                a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        out = torch.empty(case.m, case.n, device=self.where, dtype=a.dtype)
        return lambda: torch.mm(a, b, out=out)

    def _grouped(self, case: KernelCase) -> Callable[[], object]:
        torch = self.torch
        run = getattr(torch.nn.functional, "grouped_mm", None) or getattr(
            torch, "_grouped_mm", None
        )
        if run is None or self.where == "cpu":
            raise NotAvailableError("torch has no grouped GEMM here")
        a = self._random(case.m, case.k, dtype=case.dtype)
        b = self._random(case.groups, case.n, case.k, dtype=case.dtype).transpose(-2, -1)
        each = (case.m - case.largest_group) // max(1, case.groups - 1)
        ends = [case.largest_group + each * place for place in range(case.groups)]
        offs = torch.tensor(ends, dtype=torch.int32, device=self.where)
        return lambda: run(a, b, offs=offs)

    def _attention(self, case: KernelCase) -> Callable[[], object]:
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def heads(count: int, tokens: int) -> Any:
            shape = (case.batch, tokens, count, case.head_dim)
            return self._random(*shape, dtype=case.dtype).transpose(1, 2)

        q = heads(case.heads, case.query_tokens)
        k, v = (heads(case.kv_heads, case.context_tokens) for _ in range(2))
        backend = {"cudnn": SDPBackend.CUDNN_ATTENTION}.get(case.kernel, SDPBackend.FLASH_ATTENTION)
        causal, shared = case.kind == "prefill", case.heads != case.kv_heads

        def run() -> object:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=shared
                )

        return run

    def _elementwise(self, case: KernelCase) -> Callable[[], object]:
        torch = self.torch
        x, y = (self._random(case.tokens, case.width, dtype=case.dtype) for _ in range(2))
        out = torch.empty_like(x)
        if case.kind == "copy":
            return lambda: out.copy_(x)
        if case.kind == "add":
            return lambda: torch.add(x, y, out=out)
        run = self._fused(case.kind)
        return (lambda: run(x)) if case.kind == "rms_norm" else (lambda: run(x, y))

    def _fused(self, kind: str) -> Callable[..., Any]:
        """Return a function of several operations as one kernel: torch's own, or compiled."""
        functional = self.torch.nn.functional
        if kind == "rms_norm":
            return lambda x: functional.rms_norm(x, (x.shape[-1],))

        def silu_mul(x: Any, y: Any) -> Any:
            return functional.silu(x) * y

        # Compiled anew for each shape: of one kernel for all, the first shape decides how wide its
        # loads are, and with that by a factor of two how fast it is.
        self.torch._dynamo.reset()
        compiled: Callable[..., Any] = self.torch.compile(silu_mul, dynamic=False)
        return compiled


class TorchCpu(_Torch):
    """The host's CPU as torch uses it, in fp32."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch, "cpu")
        self.name = cpu_name()
        self.limits = limits_of_cpu("flash")

    def measured(self, case: KernelCase) -> Times:
        """Run a case and return its times."""
        with self.torch.inference_mode():
            return _or_not_available(lambda: called(self._calls(case, 1)[0]))

    def _fused(self, kind: str) -> Callable[..., Any]:
        """Return plain functions: torch compiles for a CPU only where a C++ compiler is."""
        if kind == "rms_norm":
            return super()._fused(kind)
        return lambda x, y: self.torch.nn.functional.silu(x).mul_(y)


class TorchGpu(_Torch):
    """One GPU, inside CUDA graphs."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch, "cuda")
        self.properties = torch.cuda.get_device_properties(0)
        self.name = str(self.properties.name)
        capability = torch.cuda.get_device_capability(0)
        # Versions of CUDA and HIP report the same pair of numbers; only NVIDIA's are meant here.
        nvidia = torch.version.cuda is not None
        fp8 = hasattr(torch, "float8_e4m3fn") and hasattr(torch, "_scaled_mm")
        self.limits = Limits(
            dtypes=("bf16", "fp8") if fp8 and nvidia and capability >= _FP8 else ("bf16",),
            most_bytes=_MEMORY_SHARE * self.properties.total_memory,
            most_flops=_GPU_FLOPS,
            mode="graph",
            attention=("flash", "cudnn") if nvidia and capability >= _CUDNN else ("flash",),
            lasting_s=_LASTING_S,
        )
        self.cache_bytes = int(getattr(self.properties, "L2_cache_size", 0)) or _CACHE_BYTES

    def measured(self, case: KernelCase) -> Times:
        """Run a case and return its times."""
        memory = self.torch.cuda
        if memory.memory_reserved() > self.properties.total_memory / 2:
            memory.empty_cache()  # what graphs of earlier cases held
        try:
            with self.torch.inference_mode():
                return _or_not_available(lambda: self._measured(case))
        except NotAvailableError:
            memory.synchronize()
            memory.empty_cache()
            raise

    def _measured(self, case: KernelCase) -> Times:
        size = max(1, case.bytes_moved)
        copies = max(1, min(_MOST_CALLS // 2, -(-_CACHES * self.cache_bytes // size)))
        calls = self._calls(case, copies)
        once_s = self._warmed(calls[0])
        in_graph = max(1, min(_MOST_CALLS, round(_GRAPH_S / once_s)))
        if copies * once_s < 10 * _GRAPH_S:
            in_graph = max(in_graph, copies)
        if case.mode == "burst":
            in_graph = 3
        graph = self._graph([calls[place % copies] for place in range(in_graph)])
        if case.mode == "sustained":
            return self._lasting(graph, in_graph)
        if case.mode == "burst":
            return times_of([self._after_a_pause(graph) for _ in range(3)], in_graph)
        (first_s,) = self._replayed(graph, 1)
        replays = max(_LEAST_REPLAYS, min(_MOST_REPLAYS, round(_TIMED_S / first_s)))
        return times_of(self._replayed(graph, replays), in_graph)

    def _warmed(self, call: Callable[[], object]) -> float:
        """Run a call on a side stream, as a capture needs it before; return about its seconds."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
            start.record()
            for _ in range(3):
                call()
            end.record()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        # At most the true time: launched one by one, short kernels wait for the host.
        return max(1e-6, float(start.elapsed_time(end)) * 1e-3 / 3)

    def _graph(self, calls: Sequence[Callable[[], object]]) -> Any:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        self.torch.cuda.synchronize()
        return graph

    def _replayed(self, graph: Any, replays: int) -> list[float]:
        """Return the seconds of each of some replays, one behind the other."""
        torch = self.torch
        events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        graph.replay()  # the device is busy while the host launches what is timed
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        torch.cuda.synchronize()
        return [max(1e-9, 1e-3 * float(one.elapsed_time(other))) for one, other in pairwise(events)]

    def _after_a_pause(self, graph: Any) -> float:
        torch = self.torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        time.sleep(_PAUSE_S)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return 1e-3 * float(start.elapsed_time(end))

    def _lasting(self, graph: Any, in_graph: int) -> Times:
        """Return the times of the second half of seconds without a gap."""
        seconds: list[float] = []
        while sum(seconds) < _LASTING_S:
            seconds += self._replayed(graph, 100)
        late, spent = [], 0.0
        for second in seconds:
            spent += second
            if spent > _LASTING_S / 2:
                late.append(second)
        return times_of(late, in_graph)


def _or_not_available(run: Callable[[], Times]) -> Times:
    """Return the times, or raise what torch says of a kernel that it cannot run, in one line.

    Out of memory, a shape or a device without such a kernel: torch raises RuntimeError for all.
    """
    try:
        return run()
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise NotAvailableError(reason or type(error).__name__) from None
