"""The report on a search for deployments on one screen: the best, why others lost, reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Final, NamedTuple

from shardcost.load.deployment import Deployment
from shardcost.load.sweep import at_percentile
from shardcost.machine import machine_of
from shardcost.report.load import NAMES, limits_text, rate, seconds
from shardcost.report.plan import counted
from shardcost.report.plan_load_data import command_of
from shardcost.report.text import heading, labelled, paragraph, table, width
from shardcost.search.planned import FrontPoint, LoadPlan, PlannedDeployment
from shardcost.search.workers import LoadQuestion
from shardcost.units import format_percent, format_tokens

_MOST_REASONS: Final = 6
_P90: Final = 90
"""The percentile that the closed form states."""


def as_text(plan: LoadPlan, top: int, *, pareto: bool = False, caveats: Sequence[str] = ()) -> str:
    """Return the report for a terminal.

    Args:
        plan: What was found.
        top: How many of the best to show.
        pareto: Whether to show the Pareto front, too.
        caveats: Of files that were read.
    """
    sections = [
        _heading(plan),
        _table(plan, plan.best[:top]),
        "\n".join(labelled(*line) for line in _answers(plan)),
    ]
    lines = list(counted(plan.rejected, _MOST_REASONS))
    if lines:
        sections.append("\n".join(("Rejected workers, by first reason:", *lines)))
    if pareto:
        sections.append(_front(plan))
    sections += [paragraph(f"Note: {text}", "  ") for text in caveats]
    return "\n\n".join(sections)


def failure_as_text(plan: LoadPlan) -> str:
    """Return why no deployment holds the load, and which comes nearest."""
    question = plan.question
    wanted = "any load" if question.load is None else question.load_text
    gpus = f"{question.most_gpus:,} GPU{'s' * (question.most_gpus > 1)}"
    held = f"holds {wanted}{limits_text(question.limits)}"
    lines = [f"no deployment on {gpus} {held}; of {plan.considered:,} workers:"]
    lines += counted(plan.rejected, _MOST_REASONS)
    near = plan.nearest
    if near is not None:
        most = f"the most is {rate(near.capacity.requests_per_s)} requests/s by the closed form"
        lines.append(paragraph(f"  {most}: {in_words(near)}; first limit: {near.limit}", "  "))
    return "\n".join(lines)


# --------------------------------------------------------------------------------------- words


def title(plan: LoadPlan) -> str:
    """Return the model and the places."""
    question = plan.question
    clusters = [machine_of(engine.cluster).cluster for engine in question.engines]
    places = dict.fromkeys(
        f"{each.name} ({each.network.name})" if each.network else each.name for each in clusters
    )
    counts = sorted(question.gpus)
    several = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    upto = "up to " if question.load is not None else ""
    return (
        f"Deployments of {question.engines[0].model.name} under load on"
        f" {upto}{several} x {' or '.join(places)}"
    )


def pools_text(deployment: Deployment) -> str:
    """Return the pools in words: ``2 x prefill tp2 + 3 x decode tp4``."""
    if deployment.prefill is None:
        return f"{deployment.serving.workers} x {deployment.serving.engine.layout.short()}"
    return " + ".join(
        f"{pool.workers} x {role} {pool.engine.layout.short()}"
        for role, pool in zip(("prefill", "decode"), deployment.pools, strict=True)
    )


def in_words(planned: PlannedDeployment) -> str:
    """Return the pools with engine and number format."""
    return f"{pools_text(planned.deployment)} ({engine_text(planned)})"


def engine_text(planned: PlannedDeployment) -> str:
    """Return engine and number formats."""
    formats = planned.engine.formats
    cache = f"KV cache {formats['cache_dtype']}" if formats.get("cache_dtype") else None
    return " ".join(filter(None, (planned.engine.software.name, formats.get("dtype"), cache)))


def verdict(plan: LoadPlan) -> str:
    """Return what the best deployment holds, and what bounds it."""
    best, question = plan.best[0], plan.question
    gpus = f"{best.gpus:,} GPU{'s' * (best.gpus > 1)}"
    held = f"{rate(best.requests_per_s)} requests/s"
    limits = limits_text(question.limits)
    if question.users is not None:
        held = f"{question.users:,} users ({held})"
    text = f"holds {held} on {gpus}{limits}: {in_words(best)}"
    if question.load is not None:
        return f"{text}; up to {rate(best.capacity.requests_per_s)} requests/s by the closed form"
    return f"{text}; first limit: {limit_text(best, question)}"


def _heading(plan: LoadPlan) -> str:
    question = plan.question
    engines = " or ".join(dict.fromkeys(each.software.name for each in question.engines))
    shared = f", {question.prefix_tokens:,} of them shared" if question.prefix_tokens else ""
    work = f"prompt {question.prompt} tokens{shared}, output {question.output}"
    aims = {
        ("goodput", False): "requests/s/GPU",
        ("cost", False): "cost per output token",
        ("goodput", True): f"GPUs that hold {question.load_text}",
        ("cost", True): f"cost of {question.load_text}",
    }
    aim = aims[question.objective, question.load is not None]
    first = heading(paragraph(title(plan), "  "))
    second = paragraph(f"{engines}, {work}{limits_text(question.limits)}; best by {aim}", "  ")
    done = (
        f"{plan.feasible:,} of {plan.considered:,} workers feasible; {plan.deployments:,} closed"
        f" forms, {plan.simulations:,} simulations; {plan.seconds:.1f} s"
    )
    return "\n  ".join((first, second, paragraph(done, "  ")))


# --------------------------------------------------------------------------------------- table


class _Column(NamedTuple):
    """One figure of the table."""

    head: str
    cell: Callable[[PlannedDeployment], str]
    right: bool = True
    spare: int = 0
    """Above 0 where it may go; where the terminal is narrow, the highest goes first."""


def _columns(question: LoadQuestion, *, several: bool) -> Iterator[_Column]:
    limits = question.limits
    at = limits.percentile
    yield _Column("deployment", lambda one: one.short(), right=False)
    if several:
        yield _Column("engine", engine_text, right=False)
    yield _Column("GPUs", lambda one: f"{one.gpus:,}", spare=0 if question.load else 4)
    yield _Column("req/s", lambda one: rate(one.requests_per_s) if one.load is not None else "-")
    yield _Column("closed form", lambda one: rate(one.capacity.requests_per_s))
    if question.load is None:
        yield _Column("/GPU", lambda one: f"{one.requests_per_s_per_gpu:.3g}", spare=1)
    yield _Column(f"TTFT p{at}", lambda one: seconds(percentile_of(one, "ttft", at)), spare=2)
    yield _Column(f"TPOT p{at}", lambda one: seconds(percentile_of(one, "tpot", at)))
    yield _Column("tok/s/GPU", lambda one: format_tokens(one.output_tokens_per_s_per_gpu), spare=3)
    if question.price is not None:
        yield _Column("cost/Mtok", lambda one: f"{one.cost_per_million(question) or 0:.3g}")


def percentile_of(planned: PlannedDeployment, name: str, percentile: int) -> float:
    """Return a latency at a percentile: simulated, or where it was not, by the closed form."""
    if planned.load is not None:
        return at_percentile(planned.load, name, percentile)
    if percentile != _P90 or name not in {"ttft", "tpot"}:
        return float("nan")
    return float(getattr(planned.capacity.steady, f"{name}_p90_s"))


def _table(plan: LoadPlan, shown: Sequence[PlannedDeployment]) -> str:
    several = len({engine_text(each) for each in plan.best}) > 1
    columns = list(_columns(plan.question, several=several))
    while True:
        heads = ["", *(each.head for each in columns), ""]
        rows = [
            [str(rank), *(column.cell(each) for column in columns), ""]
            for rank, each in enumerate(shown, 1)
        ]
        right = "".join(str(place) for place, each in enumerate(columns, 1) if each.right)
        text = table(heads, rows, right, 1)
        narrow = max(map(len, text.splitlines())) <= width()
        if narrow or not any(each.spare for each in columns):
            return text
        columns.remove(max(columns, key=lambda each: each.spare))


# ------------------------------------------------------------------------------------- answers


def _answers(plan: LoadPlan) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table, each under its label."""
    best = plan.best[0]
    yield "best", verdict(plan)
    yield "confirmed", _confirmed(best)
    if plan.runner_up is not None:
        yield "runner-up", runner_up(plan)
    other = next((each for each in plan.best if each.disaggregated != best.disaggregated), None)
    if other is not None:
        label = "two pools" if other.disaggregated else "one pool"
        behind = other.score(plan.question) / best.score(plan.question) - 1
        by = "" if other.load is not None else " by the closed form"
        said = f"at best {rate(other.requests_per_s)} requests/s on {other.gpus:,} GPUs{by}"
        yield label, f"{said} with {in_words(other)}: {_more(plan.question, behind)}"
    yield "command", command_of(plan, best)


def _confirmed(best: PlannedDeployment) -> str:
    """Return what the verdict rests on."""
    if best.load is None:
        return "no: by the closed form alone"
    many = f"{len(best.load.served):,} requests"
    if best.confirmed:
        return f"by a simulation of {many} after it was chosen; the others are not"
    return f"no: by the simulation of {many} that it was chosen by"


def _more(question: LoadQuestion, behind: float) -> str:
    """Return by how much a deployment is behind, in the figure that counts."""
    what = {"goodput": "GPUs", "cost": "cost"}[question.objective]
    if abs(behind) < 5e-4:
        return f"the same {what}"
    more = "more" if behind > 0 else "less"
    each = "" if question.load is not None else " for each request"
    return f"{format_percent(abs(behind))} {more} {what}{each}"


def runner_up(plan: LoadPlan) -> str:
    """Return why the second deployment is not the first."""
    found, second = plan.runner_up, plan.best[1]
    if found is None:
        return ""
    said = f"{in_words(second)}: {_more(plan.question, found.behind)}"
    if plan.question.load is not None:
        most = rate(second.capacity.requests_per_s)
        return (
            f"{said}; holds up to {most} requests/s by the closed form, first limit: {second.limit}"
        )
    if second.beyond is not None:
        return f"{said}; first limit: {limit_text(second, plan.question)}"
    wanted = f"{rate(found.rate_per_s)} requests/s"
    if bool(found.at.saturated):
        return f"{said}; {wanted} are beyond what it serves (closed form)"
    name = second.limit.lower()
    known = float(getattr(found.at, f"{name}_p90_s", float("nan")))
    if not isfinite(known):
        return f"{said}; first limit: {second.limit}"
    return f"{said}; at {wanted} its {NAMES[name]} p90 would be {seconds(known)} (closed form)"


def limit_text(planned: PlannedDeployment, question: LoadQuestion) -> str:
    """Return what bounds a deployment, and by how much the next higher rate breaks it."""
    beyond, name = planned.beyond, planned.limit.lower()
    if beyond is None or name not in NAMES or beyond.requests.rate_per_s is None:
        return planned.limit
    at = question.limits.percentile
    value = seconds(at_percentile(beyond, name, at))
    return f"{planned.limit} (p{at} {value} at {rate(beyond.requests.rate_per_s)} requests/s)"


def _front(plan: LoadPlan) -> str:
    head = ("tok/s/user", "tok/s/GPU", "req/s", "TTFT", "deployment")
    rows = [
        (
            format_tokens(each.tokens_per_s_per_user),
            format_tokens(each.tokens_per_s_per_gpu),
            rate(each.rate_per_s),
            seconds(each.ttft_s),
            front_name(each),
        )
        for each in plan.front
    ]
    words = heading("Pareto front by the closed form: tokens/s/GPU against tokens/s/user")
    return f"{words}\n{table(head, rows, right='0123')}"


def front_name(point: FrontPoint) -> str:
    """Return the pools and the engine of a point."""
    return f"{point.planned.short()} ({engine_text(point.planned)})"
