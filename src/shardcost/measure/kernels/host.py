"""What the host says of itself: the name of its CPU, its cores, its memory."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Final

_SHARE: Final = 1 / 16
"""Of the host's memory that the operands of one case may take."""
_LONGEST: Final = 80


def cpu_name() -> str:
    """Return what the system calls the CPU."""
    found = ""
    with suppress(OSError, UnicodeError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        found = next(
            (line.partition(":")[2] for line in lines if line.startswith("model name")), ""
        )
    found = " ".join((found or platform.processor() or platform.machine() or "CPU").split())
    return "".join(each for each in found if each.isprintable())[:_LONGEST]


def cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> float:
    """Return the host's memory; a small one where the system does not say."""
    with suppress(AttributeError, OSError, ValueError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return 2.0**31


def memory_limit() -> float:
    """Return the bytes that the operands of one case may take."""
    return _SHARE * memory_bytes()
