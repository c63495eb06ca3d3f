"""``--launch`` of ``estimate`` and ``plan``: the command that starts the layout."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardcost.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate
    from shardcost.report.launch import Launch

_OWN = "own"
"""The value where no tool is named."""


def add_to(parser: Any, what: str = "the layout") -> None:
    """Add the option to a parser."""
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


def launch_of(given: Namespace, estimates: Sequence[Estimate]) -> Launch | None:
    """Return how the first of some estimates is started; None unless asked for."""
    if given.launch is None or not estimates:
        return None
    from shardcost.report import launch

    return launch.launch_of(estimates[0], None if given.launch == _OWN else given.launch)


def as_data(launched: Launch | None) -> dict[str, Any]:
    """Return what a JSON document has of it."""
    if launched is None:
        return {}
    from shardcost.report import launch

    return {"launch": launch.as_data(launched)}


def say(launched: Launch | None) -> None:
    """Print it below a report."""
    if launched is not None:
        from shardcost.report import launch

        print(f"\n{launch.as_text(launched)}")
