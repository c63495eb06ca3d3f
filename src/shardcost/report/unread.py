"""What was not read of a file, as every report of files says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from shardcost.formats.reading import Unread

_MOST: Final = 4
"""Reasons named; others are counted together."""


def unread_as_data(unread: Sequence[Unread]) -> list[dict[str, Any]]:
    """Return what was passed over, as JSON has it."""
    return [asdict(each) for each in unread]


def unread_in_words(unread: Sequence[Unread]) -> str:
    """Return what was passed over as one sentence; empty where all was read.

    >>> unread_in_words([Unread("a time of 0", 2, 7)])
    'Not read: 2 x a time of 0 (from line 7).'
    """
    named = [
        f"{each.count:,} x {each.reason}"
        + f" (from line {each.first_line})" * (each.first_line > 0)
        for each in unread[:_MOST]
    ]
    beyond = sum(each.count for each in unread[_MOST:])
    named += [f"{beyond:,} for other reasons"] if beyond else []
    return f"Not read: {'; '.join(named)}." if named else ""
