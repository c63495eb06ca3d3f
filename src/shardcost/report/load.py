"""The report on a deployment under load for a terminal: latencies, throughput, queue, limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Final

from shardcost.estimate.interval import interval_of
from shardcost.estimate.warnings import CaveatReason
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.parts import Parts
from shardcost.load.requests import Requests
from shardcost.load.result import Distribution, Limits, Load
from shardcost.load.sweep import FIGURES, QUEUE, Point, Sweep, at_percentile
from shardcost.machine import machine_of
from shardcost.report import interval
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.estimate import as_remarks, sizes
from shardcost.report.text import heading, labelled, paragraph, paragraphs, table
from shardcost.search.objectives import SECONDS_PER_HOUR
from shardcost.units import format_energy, format_percent, format_time, format_tokens

HEAD: Final = ("latency", "mean", "p50", "p90", "p99")
NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
MILLION: Final = 1e6
_WAITS: Final = {
    "arrivals": "arrivals: requests are admitted as they come",
    "KV room": "KV room: requests wait until others free blocks of the KV cache",
    "max_num_seqs": "max_num_seqs ({max_num_seqs}): requests wait for a place in the batch",
    "tokens of a step": "tokens of a step ({max_num_batched_tokens}): prompts wait for room in one",
    "decoding": "decoding: prompts wait until sequences have ended ({policy})",
}
"""What `Load.limit` means, with fields of the scheduler."""
_EMPTY: Final = "-"


def seconds(value: float) -> str:
    """Return a time; a dash where there is none."""
    return format_time(float(f"{value:.3g}")) if isfinite(value) else _EMPTY


def rate(value: float) -> str:
    """Return requests in a second with the digits that count."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


# ------------------------------------------------------------------------------ what is served


def title(deployment: Deployment) -> str:
    """Return the model and the pools in one line."""
    model = deployment.serving.engine.model.name
    if deployment.prefill is None:
        return f"Serving {model} on {pool_text(deployment.serving)}"
    pools = zip(("prefill", "decode"), deployment.pools, strict=True)
    return f"Serving {model}: " + "; ".join(f"{name} on {pool_text(pool)}" for name, pool in pools)


def pool_text(pool: Pool) -> str:
    """Return GPUs, workers and layout of a pool."""
    cluster = machine_of(pool.engine.cluster).cluster
    joined = f" ({cluster.network.name})" if cluster.network is not None else ""
    workers = "1 worker" if pool.workers == 1 else f"{pool.workers:,} workers"
    return f"{pool.gpus:,} x {cluster.name}{joined}, {workers} of {pool.engine.layout.short()}"


def requests_in_words(requests: Requests) -> str:
    """Return how many requests come how, and how long they are."""
    count = f"{len(requests.trace) if requests.arrival == 'trace' else requests.count:,} requests"
    if requests.arrival == "trace":
        paced = f" at {rate(requests.rate_per_s)}/s" if requests.rate_per_s else ""
        mean = f"mean prompt {requests.mean_prompt_tokens:,.0f} tokens"
        return f"{count} of a trace{paced}, {mean}, output {requests.mean_output_tokens:,.0f}"
    arrive = {
        "poisson": f"Poisson arrivals at {rate(requests.rate_per_s or 0)}/s",
        "closed": f"{requests.users or 0:,} users in a closed loop",
        "all-at-once": "all at once",
    }[requests.arrival]
    shared = f", {requests.prefix_tokens:,} of them shared" if requests.prefix_tokens else ""
    lengths = f"prompt {requests.prompt} tokens{shared}, output {requests.output}"
    return f"{count}, {arrive}, {lengths}"


# ----------------------------------------------------------------------------------- one load


def as_text(
    load: Load,
    limits: Limits,
    *,
    price_per_hour: float | None = None,
    parts: Parts | None = None,
    caveats: Sequence[str] = (),
    intervals: Mapping[str, tuple[float, float]] | None = None,
    explain: bool = False,
) -> str:
    """Return the report for a terminal.

    Args:
        load: What was simulated.
        limits: Of latency.
        price_per_hour: Of all GPUs.
        parts: What the latencies are made of; its caveats are shown.
        caveats: Of files that were read.
        intervals: Of 90 %, in seconds around the means, by the names of `NAMES`.
        explain: Whether to show settings and parts.
    """
    software = load.deployment.serving.engine.software.name
    first = f"{software}, {requests_in_words(load.requests)}"
    sections = [
        heading(paragraph(title(load.deployment), "  ")) + "\n  " + paragraph(first, "  "),
        _latencies(load, limits, intervals or {}),
        "\n".join(labelled(*line) for line in lines(load, limits, price_per_hour)),
    ]
    if parts is not None and explain:
        sections.append("\n".join(labelled(*line) for line in explained(load, parts)))
    noted = remarks(load, parts, caveats)
    if noted:
        sections.append(paragraphs(noted))
    return "\n\n".join(sections)


def remarks(load: Load, parts: Parts | None, caveats: Sequence[str]) -> list[str]:
    """Return warnings about the steps of a load, and notes on its files."""
    known = [] if parts is None else [*parts.prefill.caveats, *parts.decode.caveats]
    own = list(caveats)
    if parts is not None and parts.beyond_context:
        most = load.deployment.serving.engine.model.context_tokens
        own.append(f"{parts.beyond_context:,} requests exceed the model's context of {most:,}")
    counted = {CaveatReason.DOES_NOT_FIT, CaveatReason.BEYOND_CONTEXT}
    shown = [each for each in known if each.reason not in counted]
    return [each for each in as_remarks(shown, own) if not each.endswith("--notes")]


def distributions(load: Load) -> dict[str, Distribution]:
    """Return the latencies by the names of `NAMES`."""
    return {name: getattr(load, f"{name}_s") for name in NAMES}


def _latencies(load: Load, limits: Limits, intervals: Mapping[str, tuple[float, float]]) -> str:
    rows = []
    for name, figures in distributions(load).items():
        words = [kept(load, limits, name)]
        if name in intervals:
            words.append(f"mean {interval.ends(*intervals[name])} (90 %)")
        rows.append((NAMES[name], *map(seconds, figures), "; ".join(filter(None, words))))
    return table((*HEAD, ""), rows, right="1234")


def kept_shares(load: Load, limits: Limits) -> dict[str, float]:
    """Return the share of requests that keep each limit by itself, by the latency's name."""
    given = {name: getattr(limits, f"{name}_s", None) for name in NAMES}
    return {
        name: load.good(Limits(**{f"{name}_s": limit}))
        for name, limit in given.items()
        if limit is not None
    }


def kept(load: Load, limits: Limits, name: str) -> str:
    """Return how many requests keep the limit on a latency; nothing where it has none."""
    share = kept_shares(load, limits).get(name)
    if share is None:
        return ""
    limit = seconds(getattr(limits, f"{name}_s"))
    return f"at most {limit}: kept by {format_percent(share)}"


def lines(
    load: Load, limits: Limits, price_per_hour: float | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the figures beside the latencies, each under its label."""
    tokens = f"{format_tokens(load.output_tokens_per_s)} output tokens/s"
    each = f"{format_tokens(load.tokens_per_s_per_gpu)} tokens/s/GPU"
    yield "served", f"{rate(load.requests_per_s)} requests/s, {tokens}, {each}"
    if limited(limits):
        share = format_percent(load.good(limits))
        good = f"{rate(load.goodput_requests_per_s(limits))} requests/s keep all limits ({share})"
        yield "goodput", good
    mean = f"{load.mean_running:.3g} sequences decode and {load.mean_waiting:.3g} requests wait"
    yield "queue", f"on average {mean}"
    busy = ", ".join(
        f"{'workers' if name == 'serving' else name} {format_percent(share)}"
        for name, share in load.busy_share.items()
    )
    yield "busy", f"{busy} of the time"
    often = "1 preemption" if load.preemptions == 1 else f"{load.preemptions:,} preemptions"
    yield "KV cache", f"{format_percent(load.kv_peak_share)} in use at the peak, {often}"
    if load.rejected:
        yield "rejected", f"{load.rejected:,} requests that the KV cache of no worker holds"
    cost = cost_per_million(load, price_per_hour)
    if cost is not None:
        yield "cost", f"{cost:.3g} per million output tokens"
    joules = energy_per_million(load)
    if joules is not None:
        rated = "every GPU at its rated power throughout"
        yield "energy", f"at most {format_energy(joules)} per million output tokens, {rated}"
    scheduler = load.deployment.serving.engine.software.scheduler
    yield "limit", _WAITS[load.limit].format(**vars(scheduler))


def limited(limits: Limits) -> bool:
    """Return whether there is any limit."""
    return any(getattr(limits, f"{name}_s") is not None for name in FIGURES)


def cost_per_million(load: Load, price_per_hour: float | None) -> float | None:
    """Return what a million output tokens cost, where GPUs have a price."""
    if price_per_hour is None or not load.output_tokens_per_s:
        return None
    return price_per_hour / SECONDS_PER_HOUR / load.output_tokens_per_s * MILLION


def energy_per_million(load: Load) -> float | None:
    """Return the joules of a million output tokens at rated power, where that is known."""
    watts = 0.0
    for pool in load.deployment.pools:
        power = machine_of(pool.engine.cluster).cluster.device.power_w
        if power is None or not load.output_tokens_per_s:
            return None
        watts += pool.gpus * float(power)
    return watts / load.output_tokens_per_s * MILLION


def explained(load: Load, parts: Parts) -> Iterator[tuple[str, str]]:
    """Yield what was assumed, and what the latencies are made of."""
    software = load.deployment.serving.engine.software
    settings = noun_as_data(software.scheduler)
    source = settings.pop("source")
    words = ", ".join(f"{name} {_value(value)}" for name, value in settings.items())
    yield "settings", f"{words}. Source: {source}"
    parts_s = {name: value for name, value in load.ttft_parts_s.items() if value > 0}
    made = ", ".join(f"{name} {seconds(value)}" for name, value in parts_s.items())
    yield "TTFT", f"mean {seconds(load.ttft_s.mean)}: {made}"
    for label, found in (("prefill", parts.prefill), ("decode", parts.decode)):
        work = found.workload
        text = interval.in_full(interval_of(found))
        yield label, f"{sizes(work)}: {seconds(float(found.time_s))}; {text}"
    yield "KV room", f"{parts.kv_tokens:,} tokens for each worker"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------ a sweep


def sweep_as_text(sweep: Sweep, caveats: Sequence[str] = ()) -> str:
    """Return the report on loads from low to high; `caveats` are of files that were read."""
    percentile = sweep.limits.percentile
    unit = "rate" if sweep.over == "rate" else "users"
    head = (unit, "TTFT p50", f"p{percentile}", "TPOT p50", f"p{percentile}", "E2E p50",
            "req/s", "tok/s/GPU", "held")  # fmt: skip
    rows = [
        (
            f"{point.value:g}",
            *(seconds(at_percentile(point.load, name, at))
              for name in ("ttft", "tpot") for at in (50, percentile)),
            seconds(at_percentile(point.load, "e2e", 50)),
            rate(point.load.requests_per_s),
            format_tokens(point.load.tokens_per_s_per_gpu),
            _broken(point),
        )
        for point in sweep.points
    ]  # fmt: skip
    load = sweep.points[0].load
    software = sweep.deployment.serving.engine.software.name
    requests = load.requests
    if requests.arrival == "trace":
        lengths = requests_in_words(requests).partition(", ")[2]
    else:
        lengths = f"prompt {requests.prompt} tokens, output {requests.output}"
    first = f"{software}, {unit} varies, {lengths}"
    return "\n\n".join(
        [
            heading(paragraph(title(sweep.deployment), "  ")) + "\n  " + paragraph(first, "  "),
            table(head, rows, right="01234567", narrowest=8),
            paragraph(sentence(sweep), "  "),
            *(paragraph(f"Note: {text}", "  ") for text in caveats),
        ]
    )


def _broken(point: Point) -> str:
    """Return whether a load is held, or what it breaks, in words for a narrow column."""
    names = ", ".join(NAMES.get(name, name) for name in point.broken)
    return f"no: {names}" if names else "yes"


def sentence(sweep: Sweep) -> str:
    """Return what a deployment holds, and what breaks first beyond."""
    limits = limits_text(sweep.limits)
    knee, broken = sweep.knee, sweep.broken
    unit = "requests/s" if sweep.over == "rate" else "users"
    if knee is None:
        first = sweep.points[0]
        return (
            f"Holds no load tried{limits}: at {first.value:g} {unit} {_why(first, sweep.limits)}."
        )
    least = "" if broken is not None else "at least "
    users = f" ({rate(knee.load.requests_per_s)} requests/s)" if sweep.over != "rate" else ""
    held = f"Holds {least}{knee.value:g} {unit}{users}{limits}"
    if broken is None:
        return f"{held}; no load tried breaks them." if limits else f"{held}; no queue grows."
    said = f"{held}; first limit, at {broken.value:g}: {_why(broken, sweep.limits)}."
    again = [point.value for point in sweep.points if point.held and point.value > broken.value]
    if again:
        said += f" Higher loads are held again, up to {max(again):g}."
    return said


def limits_text(limits: Limits) -> str:
    """Return the limits with their percentile, as the end of a sentence; nothing without any."""
    known = [
        f"{NAMES[name]} p{limits.percentile} {seconds(limit)}"
        for name in FIGURES
        if (limit := getattr(limits, f"{name}_s")) is not None
    ]
    return f" at {' and '.join(known)}" if known else ""


def _why(point: Point, limits: Limits) -> str:
    """Return what a load breaks and what requests wait for."""
    load = point.load
    if not len(load.served):
        return "no request fits the KV cache of a worker"
    words = [
        f"{NAMES[name]} ({seconds(at_percentile(load, name, limits.percentile))})"
        for name in point.broken
        if name != QUEUE
    ]
    if QUEUE in point.broken:
        words.append("requests arrive faster than they are served")
    waits = load.limit != "arrivals" and set(point.broken) != {"tpot"}
    batch = f"{load.mean_running:.3g} sequences decode on average"
    return f"{', '.join(words)}, {f'requests wait for {load.limit}' if waits else batch}"
