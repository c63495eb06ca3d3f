"""The messages of an estimate as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shardcost.estimate.messages import Message, messages
from shardcost.estimate.result import Estimate
from shardcost.report.collective import number


def as_data(found: Estimate) -> dict[str, Any]:
    """Return every collective of one step, that on which most time is spent first."""
    return {"messages": [_as_data(each) for each in messages(found)]}


def _as_data(each: Message) -> dict[str, Any]:
    return asdict(each) | {"size_bytes": number(each.size_bytes), "count": number(each.count)}
