"""``--placement`` of ``estimate`` and ``plan``: which device each rank of a node should use."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate
    from shardcost.search.placement import Placement

OPTION: Final = "--placement"
HELP: Final = "which device each rank of a node should use, where devices are wired unevenly"


def searched(given: Namespace, estimates: Iterable[Estimate]) -> list[Placement]:
    """Return the best order of each layout's ranks; none unless asked for."""
    if not given.placement:
        return []
    from shardcost.search.placement import placement_of

    return [placement_of(each) for each in estimates]


def as_data(placements: list[Placement]) -> dict[str, Any]:
    """Return what a JSON document has of them."""
    if not placements:
        return {}
    from shardcost.report import placement

    return {"placement": [placement.as_data(each) for each in placements]}


def say(placements: list[Placement]) -> None:
    """Print them below a report."""
    if placements:
        from shardcost.report import placement

        print(f"\n{placement.as_text(placements)}")
