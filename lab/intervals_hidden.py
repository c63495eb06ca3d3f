"""Predictions as they would be if nobody had ever measured some system.

Its constants are taken out of sight, of kernels and collectives alike, so that the very code runs
that predicts systems which nobody measured: constants come from kin, by datasheet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from shardcost import catalog
from shardcost.cluster import Cluster
from shardcost.collectives import calibration
from shardcost.collectives.calibration import Calibration

_SHELVES: Final[tuple[catalog.Shelf, ...]] = ("gemm", "attention", "elementwise")


@contextmanager
def never_measured(system: str) -> Iterator[None]:
    """Within this, let a system's device and its collectives have no constants of their own."""
    device = Cluster.named(system).device.name
    with _without_kernels(device), without_collectives(lambda each: each.system == system):
        yield


@contextmanager
def without_collectives(is_hidden: Callable[[Calibration], bool]) -> Iterator[None]:
    """Within this, let some calibrations not exist."""
    kept = [each for each in calibration.measured() if not is_hidden(each)]
    with calibration.instead(kept):
        forget()
        try:
            yield
        finally:
            forget()


@contextmanager
def _without_kernels(device: str) -> Iterator[None]:
    hidden: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for shelf in _SHELVES:
        every = list(catalog.contents(shelf))
        own = [content for system, content in every if Cluster.named(system).device.name == device]
        lent = {name for _, content in every if content not in own for name in content}
        for content in own:
            hidden.append((content, dict(content)))
            for name in lent & set(content):  # what nobody could lend stays: all inherit it
                del content[name]
    forget()
    try:
        yield
    finally:
        for content, before in hidden:
            content.update(before)
        forget()


def forget() -> None:
    """Forget every answer that rests on constants: all that is remembered but the files' text."""
    for name, module in list(sys.modules.items()):
        if name.startswith("shardcost."):
            for each in list(vars(module).values()):
                clear = getattr(each, "cache_clear", None)
                if clear is not None and each is not catalog._content:
                    clear()
