"""Writes a software file: an engine with fitted constants, in the form of the catalog's files.

Every command reads it with ``--software FILE``, `Software.from_file` in Python.
"""

from __future__ import annotations

from typing import Any, Final

from shardcost import catalog
from shardcost.catalog.user_files import checked_name
from shardcost.files import quoted
from shardcost.software import Fit, Software

FIRST_LINE: Final = "# An engine of shardcost: its choices and constants."
_FACTS: Final = ("phases", "vendors", "runs_like")
_ABOUT: Final = {"name", "title", "source", *_FACTS, "scheduler", "fit", "memory"}
_SHORT_S: Final = 1e-4
"""From here on times are in milliseconds, below in microseconds."""
_LONGEST_SOURCE: Final = 1500


def checked_software_name(name: str) -> str:
    """Return the name of a software file, if it may be one."""
    return checked_name(name, "software", catalog.names("software"))


def as_software_file(name: str, software: Software, fit: Fit) -> str:
    """Return a software under a new name as the text of a file.

    Args:
        name: The new one.
        software: What to write; fields with their default are left out.
        fit: What its constants rest on.
    """
    values = {key: value for key, value in software.chosen().items() if key not in _ABOUT}
    constants = {key: value for key, value in values.items() if isinstance(value, float)}
    lines = [
        FIRST_LINE,
        "# Written by `shardcost calibrate`; give it to any command: --software FILE.",
        f"name = {quoted(checked_software_name(name))}",
        f"title = {quoted(f'{software.title}, calibrated')}",
        f"source = {quoted(software.source[:_LONGEST_SOURCE])}",
        *(_line(key, getattr(software, key)) for key in _FACTS if getattr(software, key)),
        "",
        "[choices]",
        *(_line(key, value) for key, value in values.items() if key not in constants),
        "",
        "[constants]",
        *(_line(key, value) for key, value in constants.items()),
        "",
        "[scheduler]",
        *(_line(key, value) for key, value in software.scheduler.chosen().items()),
        "",
        "[fit]",
        *(_line(key, value) for key, value in fit.chosen().items()),
    ]
    if software.memory:
        lines += ["", "[memory]", *(_line(key, value) for key, value in software.memory.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    """Return a field as a line; times in the units of the catalog."""
    if isinstance(value, bool):
        return f"{key} = {str(value).lower()}"
    if isinstance(value, str):
        return f"{key} = {quoted(value)}"
    if isinstance(value, tuple):
        return f"{key} = [{', '.join(map(quoted, value))}]"
    if isinstance(value, float) and key.endswith("_s") and not key.endswith("_per_s"):
        unit, scale = ("_ms", 1e3) if value >= _SHORT_S else ("_us", 1e6)
        return f"{key.removesuffix('_s')}{unit} = {float(f'{value * scale:.6g}')!r}"
    return f"{key} = {value!r}"
