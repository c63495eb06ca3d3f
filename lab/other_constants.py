"""Predictions under other constants than the catalog's: without a system, or with trial values.

The one place that changes what the package resolves constants from. The very code runs that
predicts a device nobody measured, so what is validated is the predictor that users run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from shardcost import catalog
from shardcost.cluster import Cluster
from shardcost.collectives import calibration
from shardcost.collectives.calibration import Calibration
from shardcost.kernels.constants import KernelShelf, section_of

_KERNELS: Final[tuple[KernelShelf, ...]] = ("gemm", "attention", "elementwise")
ConstantPath = tuple[str, ...]
"""Where a kernel constant stands: table of the catalog, section, further tables, name."""


@contextmanager
def by_collectives(calibrations: Iterable[Calibration]) -> Iterator[None]:
    """Price collectives by these calibrations and no others."""
    with calibration.instead(calibrations):
        yield


@contextmanager
def without_collectives(is_hidden: Callable[[Calibration], bool]) -> Iterator[None]:
    """Price collectives as if some calibrations did not exist."""
    kept = [each for each in calibration.measured() if not is_hidden(each)]
    with calibration.instead(kept):
        _forget()
        try:
            yield
        finally:
            _forget()


@contextmanager
def without_system(system: str) -> Iterator[None]:
    """Predict as if nobody had measured a system: neither its device nor its collectives."""
    device = Cluster.named(system).device.name
    with _without_kernels(device), without_collectives(lambda each: each.system == system):
        yield


@contextmanager
def _without_kernels(device: str) -> Iterator[None]:
    hidden: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for table in _KERNELS:
        files = list(catalog.contents(table))
        own = [content for system, content in files if Cluster.named(system).device.name == device]
        others = {name for _, content in files if content not in own for name in content}
        for content in own:
            hidden.append((content, dict(content)))
            for name in others & set(content):  # a section of no other device: all inherit it
                del content[name]
    _forget()
    try:
        yield
    finally:
        for content, before in hidden:
            content.update(before)
        _forget()


def inherited_constants(table: KernelShelf, system: str, section: str) -> dict[str, Any] | None:
    """Return what a kernel runs by on a device without its own measurements; None if by nothing.

    >>> inherited_constants("gemm", "h100_sxm", "bf16") == inherited_constants(
    ...     "gemm", "h100_sxm", "fp8")
    False
    """
    with without_system(system):
        fallback = section_of(table, Cluster.named(system).device, section)
    return None if fallback.inherited_from is None else dict(fallback.constants)


@contextmanager
def with_kernel_constants(device: str, constants: Mapping[ConstantPath, float]) -> Iterator[None]:
    """Let a device's kernels run by other values of some constants."""
    tables = {path: _table_of(device, path) for path in constants}
    before = {path: table[path[-1]] for path, table in tables.items()}
    for path, value in constants.items():
        tables[path][path[-1]] = value
    _forget()
    try:
        yield
    finally:
        for path, value in before.items():
            tables[path][path[-1]] = value
        _forget()


def _table_of(device: str, path: ConstantPath) -> dict[str, Any]:
    content: dict[str, Any] = dict(catalog.contents(path[0]))[device]  # type: ignore[arg-type]
    for name in path[1:-1]:
        content = content[name]
    return content


def _forget() -> None:
    """Forget every answer that rests on constants: all that is remembered but the files' text."""
    for name, module in list(sys.modules.items()):
        if name.startswith("shardcost."):
            for each in list(vars(module).values()):
                clear = getattr(each, "cache_clear", None)
                if clear is not None and each is not catalog._content:
                    clear()
