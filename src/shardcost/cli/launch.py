"""``--placement`` and ``--launch`` of ``estimate`` and ``plan``: how a layout is started.

Which device each rank of a node should use, and the command that starts the layout.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardcost.errors import UnknownNameError, UsageError
from shardcost.records import NamedTuple

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate
    from shardcost.report.launch import Launch
    from shardcost.search.placement import Placement

_OWN = "own"
"""The value where no tool is named."""


class Start(NamedTuple):
    """How layouts are started, as far as it was asked for."""

    placements: list[Placement]
    """The best order of each layout's ranks."""
    launch: Launch | None
    """The command of the first."""


def add_to(parser: Any, what: str = "the layout") -> None:
    """Add the options to a parser."""
    parser.add_argument(
        "--placement",
        action="store_true",
        help="which device each rank of a node should use, where devices are wired unevenly",
    )
    parser.add_argument(
        "--launch",
        metavar="TOOL",
        nargs="?",
        const=_OWN,
        help=f"the command that starts {what}: megatron, vllm, sglang or trtllm (the software's"
        " own)",
    )


def check(given: Namespace) -> None:
    """Raise for an unknown tool, or where it is of no one layout, before anything is computed."""
    if given.launch is not None and given.phase == "load":
        raise UsageError("--launch and --load exclude each other: it starts one layout")
    if given.launch not in {None, _OWN}:
        from shardcost.report.launch_tools import TOOLS

        if given.launch.lower() not in TOOLS:
            raise UnknownNameError("--launch", given.launch, TOOLS)


def start_of(given: Namespace, estimates: Sequence[Estimate]) -> Start:
    """Return how some layouts are started; nothing of it unless asked for."""
    placements, launched = [], None
    if given.placement:
        from shardcost.search.placement import placement_of

        placements = [placement_of(estimate) for estimate in estimates]
    if given.launch is not None and estimates:
        from shardcost.report.launch import launch_of

        launched = launch_of(estimates[0], None if given.launch == _OWN else given.launch)
    return Start(placements, launched)


def as_data(start: Start) -> dict[str, Any]:
    """Return what a JSON document has of it."""
    data: dict[str, Any] = {}
    if start.placements:
        from shardcost.report import placement

        data["placement"] = [placement.as_data(each) for each in start.placements]
    if start.launch is not None:
        from shardcost.report import launch

        data["launch"] = launch.as_data(start.launch)
    return data


def say(start: Start) -> None:
    """Print it below a report."""
    if start.placements:
        from shardcost.report import placement

        print(f"\n{placement.as_text(start.placements)}")
    if start.launch is not None:
        from shardcost.report import launch

        print(f"\n{launch.as_text(start.launch)}")
