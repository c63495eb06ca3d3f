"""Who states the constants behind an estimate, and which of its figures rest on each."""

from __future__ import annotations

from typing import Final, NamedTuple

from shardcost.estimate.result import Estimate
from shardcost.estimate.why import figures, why

_BEYOND: Final = "beyond the rows of"
"""Begins what to mind about a source, which warnings say already."""


class Stated(NamedTuple):
    """A source, and what rests on it."""

    source: str
    behind: tuple[str, ...]
    """Figures and operations, in words."""


def sources_of(found: Estimate) -> list[Stated]:
    """Return every source behind the figures of an estimate, in the order of the figures."""
    behind: dict[str, list[str]] = {str(found.model.source): ["the model's shape"]}
    for figure in figures(found):
        answer = why(found, figure)
        room, _, name = figure.partition(".")
        said = name if room == "op" else _short(answer.title)
        for source in answer.sources:
            if not source.startswith(_BEYOND):
                behind.setdefault(source, []).append(said)
    return [Stated(source, tuple(dict.fromkeys(names))) for source, names in behind.items()]


def _short(title: str) -> str:
    """Return a title up to its first comma or colon, as it stands inside a sentence."""
    first = title.partition(",")[0].partition(":")[0]
    return first if first[:2].isupper() else first[:1].lower() + first[1:]
