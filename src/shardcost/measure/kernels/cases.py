"""Which kernels are measured: shapes spread evenly over the logarithm of each size.

Points of a Halton sequence (Halton, On the efficiency of certain quasi-random sequences of points,
Numerische Mathematik 2, 1960) fill a box evenly at any length, so that a run that is cut short has
covered all sizes, only more thinly. Sizes are those that models have: 1, 1.25, 1.5 or 1.75 times a
power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import chain, count, islice
from math import log2
from typing import Any, Final

KINDS: Final = (
    "gemm", "grouped_gemm", "prefill", "decode", "copy", "add", "rms_norm", "silu_mul",
)  # fmt: skip
"""What is measured. ``copy`` and ``add`` are ``y = x`` and ``z = x + y``."""
ELEMENTWISE: Final = ("copy", "add", "rms_norm", "silu_mul")
ARRAYS_MOVED: Final = {"copy": 2, "add": 3, "rms_norm": 2, "silu_mul": 3}
"""Arrays of tokens x width that an elementwise kernel reads and writes."""
MODES: Final = ("graph", "call", "burst", "sustained")
"""``graph``: many calls in a row from one CUDA graph; ``call``: calls one by one, on a CPU;
``burst``: a short graph after a pause; ``sustained``: the second half of seconds without a gap."""
ITEM_BYTES: Final = {"fp32": 4, "bf16": 2, "fp8": 1}
_OF_KIND: Final = {"copy": 50, "add": 50, "rms_norm": 110, "silu_mul": 60}
"""How many are measured; a kernel whose time depends on two sizes needs more."""
_PRIMES: Final = (2, 3, 5, 7, 11, 13)
_STEPS: Final = (1.0, 1.25, 1.5, 1.75)
_BURST: Final = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 8192, 8192), (16384, 4096, 4096))


@dataclass(frozen=True)
class KernelCase:
    """One kernel of one shape; sizes that its kind does not have are 0."""

    kind: str
    dtype: str
    mode: str = "graph"
    kernel: str = ""
    """Whose kernel of attention runs: ``flash`` or ``cudnn`` of torch, ``numpy``."""
    m: int = 0
    n: int = 0
    k: int = 0
    groups: int = 0
    largest_group: int = 0
    batch: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    query_tokens: int = 0
    context_tokens: int = 0
    tokens: int = 0
    width: int = 0

    @property
    def flops(self) -> float:
        """Multiplications and additions; of elementwise kernels none are counted."""
        if self.kind in ("gemm", "grouped_gemm"):
            return 2.0 * self.m * self.n * self.k
        seen = self.query_tokens * self.context_tokens
        pairs = self.batch * self.heads * seen * (0.5 if self.kind == "prefill" else 1.0)
        return 4.0 * pairs * self.head_dim

    @property
    def bytes_moved(self) -> int:
        """Bytes of all operands and results, each counted once."""
        item, result = ITEM_BYTES[self.dtype], max(2, ITEM_BYTES[self.dtype])
        if self.kind in ("gemm", "grouped_gemm"):
            operands = self.m * self.k + self.n * self.k * max(1, self.groups)
            return item * operands + result * self.m * self.n
        if self.kind in ELEMENTWISE:
            return ARRAYS_MOVED[self.kind] * item * self.tokens * self.width
        queries = 2 * self.heads * self.query_tokens
        cache = 2 * self.kv_heads * self.context_tokens
        return item * self.batch * self.head_dim * (queries + cache)

    def cells(self) -> tuple[Any, ...]:
        """Return the fields as a table states them: sizes that the kind does not have are blank."""
        return tuple("" if value == 0 else value for value in astuple(self))


FIELDS: Final = tuple(each.name for each in fields(KernelCase))


@dataclass(frozen=True)
class Limits:
    """What a device can do, as far as the choice of shapes depends on it."""

    dtypes: tuple[str, ...]
    most_bytes: float
    """Of the operands of one case."""
    most_flops: float
    """Of one case, so that no one takes long."""
    mode: str
    attention: tuple[str, ...]
    """Kernels of attention in a prompt; the first one decodes as well."""
    scale: float = 1.0
    """The number of cases, relative to a GPU's."""
    lasting_s: float = 0.0
    """How long a sustained GEMM runs; 0 for none."""


def cases_for(limits: Limits) -> list[KernelCase]:
    """Return what to measure on a device, so ordered that any beginning is balanced."""
    wide = limits.dtypes[0]
    families: list[tuple[int, Callable[[], Iterator[KernelCase]]]] = [
        *((380 if dtype == wide else 320, lambda d=dtype: _gemms(d)) for dtype in limits.dtypes),
        (100, lambda: _grouped(wide)),
        *((160, lambda name=name: _prefills(wide, name)) for name in limits.attention),
        (340, lambda: _decodes(wide, limits.attention[0])),
        *((_OF_KIND[kind], lambda kind=kind: _elementwise(kind, wide)) for kind in ELEMENTWISE),
    ]
    placed: list[tuple[float, int, KernelCase]] = []
    for order, (wanted, family) in enumerate(families):
        found = _fitting(family(), max(6, round(wanted * limits.scale)), limits)
        placed += [((place + 0.5) / len(found), order, case) for place, case in enumerate(found)]
    placed.sort(key=lambda each: each[:2])
    return [*(case for _, _, case in placed), *_long_cases(limits)]


def _fitting(cases: Iterator[KernelCase], wanted: int, limits: Limits) -> list[KernelCase]:
    """Return the first cases that a device can run, none twice."""
    found: dict[KernelCase, None] = {}
    for case in islice(cases, 50 * wanted):
        if case.bytes_moved <= limits.most_bytes and case.flops <= limits.most_flops:
            found[replace(case, mode=limits.mode)] = None
        if len(found) == wanted:
            break
    return list(found)


def _long_cases(limits: Limits) -> Iterator[KernelCase]:
    """Yield GEMMs after a pause, and one for seconds: last, because they heat the device."""
    if not limits.lasting_s:
        return
    for dtype in limits.dtypes:
        for m, n, k in _BURST:
            yield KernelCase("gemm", dtype, "burst", m=m, n=n, k=k)
        m, n, k = _BURST[1]
        yield KernelCase("gemm", dtype, "sustained", m=m, n=n, k=k)


def _gemms(dtype: str) -> Iterator[KernelCase]:
    for a, b, c in _points(3):
        k = _size(c, 256, 28672, least=64)
        yield KernelCase("gemm", dtype, m=_size(a, 1, 16384), n=_size(b, 256, 32768, least=64), k=k)


def _grouped(dtype: str) -> Iterator[KernelCase]:
    for place, (a, b, c, d) in enumerate(_points(4)):
        groups = 2 ** (2 + int(5 * a))
        each = 8 * _size(b, 1, 256)
        rows = [each] * groups
        if place % 2:  # the fullest group has as many as a quarter of the others together
            extra = 8 * max(1, each * groups // 32)
            rows[0] += extra
        yield KernelCase(
            "grouped_gemm",
            dtype,
            m=sum(rows),
            n=_size(c, 512, 14336, least=64),
            k=_size(d, 512, 8192, least=64),
            groups=groups,
            largest_group=rows[0],
        )


def _prefills(dtype: str, kernel: str) -> Iterator[KernelCase]:
    for a, b, c, d in _points(4):
        tokens = _size(a, 64, 32768, least=64)
        heads = 2 ** (2 + int(5 * c))
        yield KernelCase(
            "prefill",
            dtype,
            kernel=kernel,
            batch=2 ** int(5.99 * b * (1 - a)),
            heads=heads,
            kv_heads=max(1, heads // (1, 4, 8)[int(3 * d)]),
            head_dim=(128, 128, 64)[int(3 * (7 * d % 1))],
            query_tokens=tokens,
            context_tokens=tokens,
        )


def _decodes(dtype: str, kernel: str) -> Iterator[KernelCase]:
    for a, b, c, d in _points(4):
        heads = 2 ** (2 + int(5 * c))
        yield KernelCase(
            "decode",
            dtype,
            kernel=kernel,
            batch=_size(b, 1, 256),
            heads=heads,
            kv_heads=max(1, heads // (1, 4, 8)[int(3 * d)]),
            head_dim=(128, 128, 64)[int(3 * (7 * d % 1))],
            query_tokens=1,
            context_tokens=_size(a, 128, 131072, least=64),
        )


def _elementwise(kind: str, dtype: str) -> Iterator[KernelCase]:
    for a, b in _points(2):
        width = _size(b, 1024, 16384, least=256)
        yield KernelCase(kind, dtype, tokens=_size(a, 1, 65536), width=width)


def _points(dimensions: int) -> Iterator[Sequence[float]]:
    """Yield the points of a Halton sequence; the first ones, which lie on a line, are left out."""
    for place in count(20):
        yield tuple(_radical_inverse(place, _PRIMES[each]) for each in range(dimensions))


def _radical_inverse(place: int, base: int) -> float:
    found, weight = 0.0, 1.0 / base
    while place:
        place, digit = divmod(place, base)
        found, weight = found + digit * weight, weight / base
    return found


def _size(share: float, smallest: int, largest: int, least: int = 1) -> int:
    """Return a size on the way from the smallest to the largest, in whole multiples of `least`.

    >>> [_size(share, 1, 16384) for share in (0.0, 0.3, 0.61, 1.0)]
    [1, 20, 384, 16384]
    """
    exponent = log2(smallest) + share * (log2(largest) - log2(smallest))
    wanted = 2.0**exponent
    power = 2.0 ** int(exponent)
    steps = [step * power for step in chain(_STEPS, (2.0,))]
    nearest = min(steps, key=lambda step: abs(step - wanted))
    return max(least, round(nearest / least) * least)
