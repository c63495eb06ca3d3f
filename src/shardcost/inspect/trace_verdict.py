"""Whether the communication of a trace is what the machine, and the layout, should show.

Collectives are compared with the machine group by group, where traces of several ranks tell waiting
from sending; the share of the step in which communication is exposed is compared with that of an
estimate of the layout, within what such shares were off by (`shardcost.catalog.errors`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from typing import Final

from shardcost.catalog.errors import residuals_like
from shardcost.estimate.result import Estimate
from shardcost.inspect.causes import Cause, causes
from shardcost.inspect.trace import FAR_SLOWER, TraceFindings, name_of
from shardcost.inspect.verdict import FINE, SLOW, UNKNOWN, Named, Verdict
from shardcost.units import format_time

_LEAST_SHARE: Final = 0.01
"""Of the step: a group that is exposed for less is not looked at."""


def judged(findings: TraceFindings, estimate: Estimate | None = None) -> Verdict:
    """Return whether communication is as it should be, and the groups that are not."""
    known = [each for each in findings.groups if each.slowness and each.waiting_s is not None]
    if not known and estimate is None:
        return Verdict(verdict=UNKNOWN, reason=_why_unknown(findings))
    named = (*_exposed(findings, estimate), *_slow(findings))
    return Verdict(verdict=SLOW if named else FINE, causes=named)


def _why_unknown(findings: TraceFindings) -> str:
    if not findings.groups:
        return "the trace has no collectives"
    if not findings.system:
        return "the machine is not known (name it with --on)"
    if len(findings.ranks) == 1:
        return (
            "times of collectives in one rank's trace include waiting for other ranks: give the"
            " traces of several, or the layout (--model, --tp …)"
        )
    return "no collective of the trace is predicted"


def _cause(key: str) -> Cause:
    return next(each for each in causes() if each.key == key)


def _slow(findings: TraceFindings) -> Iterator[Named]:
    """Yield the groups that take longer than the machine should."""
    for group in findings.groups:
        slowness = group.slowness
        exposed = group.exposed_s > _LEAST_SHARE * findings.span_s
        if slowness and slowness > FAR_SLOWER and exposed and group.waiting_s is not None:
            evidence = (
                f"{name_of(group.shape)}: {format_time(group.achieved_s)} without waiting,"
                f" {slowness:.1f} times what is predicted for {findings.system}"
            )
            yield Named(_cause("slow_collectives"), None, None, evidence)


def _exposed(findings: TraceFindings, estimate: Estimate | None) -> Iterator[Named]:
    """Yield that more is exposed than the layout should show."""
    if estimate is None or not findings.span_s:
        return
    expected = float(estimate.comm_share)
    most = min(1.0, max(expected, _LEAST_SHARE) * exp(residuals_like("comm_fraction").high))
    measured = findings.exposed_s / findings.span_s
    if measured > most:
        groups = sorted(findings.groups, key=lambda group: -group.exposed_s)[:2]
        shares = "; ".join(
            f"{name_of(group.shape)} {100 * group.exposed_s / findings.span_s:.0f} %"
            for group in groups
        )
        evidence = (
            f"exposed for {100 * measured:.0f} % of the time, where the layout should show"
            f" {100 * expected:.0f} % and nine of ten such runs at most {100 * most:.0f} %"
        )
        evidence += f" (most of it: {shares})" if shares else ""
        yield Named(_cause("exposed_communication"), None, None, evidence)
