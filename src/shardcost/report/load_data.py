"""A deployment under load as plain data: JSON of the command line and the page.

The page shows the command's figures, the course of time and splits of the GPUs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

import numpy as np

from shardcost.estimate.interval import interval_of
from shardcost.load.deployment import Deployment
from shardcost.load.parts import Parts
from shardcost.load.ratio import Ratio, Split
from shardcost.load.requests import Requests
from shardcost.load.result import Distribution, Limits, Load
from shardcost.load.sweep import Point, Sweep
from shardcost.machine import machine_of
from shardcost.options import LOAD
from shardcost.report import interval
from shardcost.report.command import CLUSTER_FILE, MODEL_FILE
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.describe import attributes, plain
from shardcost.report.load import (
    cost_per_million,
    distributions,
    energy_per_million,
    kept_shares,
    lines,
    rate,
    remarks,
    requests_in_words,
    sentence,
    title,
)

_MS: Final = 1e3
TRACE_FILE: Final = "requests.csv"
_BINS: Final = 160
"""Of the pictures over time."""
_OVER_TIME: Final = ("sequences", "waiting", "kv_share")
_FILES: Final = {"model": MODEL_FILE, "on": CLUSTER_FILE, "trace": TRACE_FILE}
"""What stands for content that was pasted: files on the reader's disk."""


def as_data(
    load: Load,
    limits: Limits,
    *,
    price_per_hour: float | None = None,
    parts: Parts | None = None,
    caveats: Sequence[str] = (),
    explain: bool = False,
) -> dict[str, Any]:
    """Return the report as plain data; figures of which there are none are null.

    Args:
        load: What was simulated.
        limits: Of latency.
        price_per_hour: Of all GPUs.
        parts: What the latencies are made of; its caveats are among the notes.
        caveats: Of files that were read.
        explain: Whether to have settings and parts too.
    """
    data = {
        **deployment_as_data(load.deployment),
        "requests": requests_as_data(load.requests),
        "limits": limits_as_data(limits),
        **figures_as_data(load, limits),
        "cost_per_million_output_tokens": cost_per_million(load, price_per_hour),
        "energy_j_per_million_output_tokens": energy_per_million(load),
        "notes": remarks(load, parts, caveats),
    }
    if parts is not None and explain:
        steps = {
            name: {"time_s": found.time_s, **interval.as_data(interval_of(found))}
            for name, found in (("prefill", parts.prefill), ("decode", parts.decode))
        }
        data["explanation"] = {
            "scheduler": noun_as_data(load.deployment.serving.engine.software.scheduler),
            "ttft_s": dict(load.ttft_parts_s),
            "kv_tokens": parts.kv_tokens,
            **steps,
        }
    return plain(data)


def figures_as_data(load: Load, limits: Limits) -> dict[str, Any]:
    """Return the figures of one load."""
    return {
        **{f"{name}_ms": _in_ms(found) for name, found in distributions(load).items()},
        **attributes(load, "requests_per_s output_tokens_per_s tokens_per_s_per_gpu"),
        "goodput_requests_per_s": load.goodput_requests_per_s(limits),
        "good_share": load.good(limits),
        "kept": {f"{name}_ms": share for name, share in kept_shares(load, limits).items()},
        **attributes(load, "kv_peak_share preemptions rejected"),
        "served": len(load.served),
        **attributes(load, "busy_share waits_s mean_running mean_waiting span_s limit"),
    }


def _in_ms(found: Distribution) -> dict[str, float | None]:
    return {
        name: _MS * value if isfinite(value) else None for name, value in found._asdict().items()
    }


def deployment_as_data(deployment: Deployment) -> dict[str, Any]:
    """Return the model, the GPUs and the pools."""
    names = ("serving",) if deployment.prefill is None else ("prefill", "decode")
    pools = []
    for name, pool in zip(names, deployment.pools, strict=True):
        cluster = machine_of(pool.engine.cluster).cluster
        pools.append(
            {
                "pool": name,
                "cluster": cluster.name,
                "network": None if cluster.network is None else cluster.network.name,
                "software": pool.engine.software.name,
                "layout": pool.engine.layout.short(),
                "workers": pool.workers,
                "gpus": pool.gpus,
            }
        )
    model = deployment.serving.engine.model.name
    return {"model": model, "gpus": deployment.gpus, "pools": pools}


def requests_as_data(requests: Requests) -> dict[str, Any]:
    """Return what was requested."""
    lengths = {"isl": requests.prompt, "osl": requests.output}
    traced = requests.arrival == "trace"
    return {
        "arrival": requests.arrival,
        "rate_per_s": requests.rate_per_s,
        "users": requests.users,
        "count": len(requests.trace) if traced else requests.count,
        **{name: None if each is None else str(each) for name, each in lengths.items()},
        **attributes(requests, "mean_prompt_tokens mean_output_tokens prefix_tokens seed"),
    }


def limits_as_data(limits: Limits) -> dict[str, Any]:
    """Return the limits in milliseconds; null where there is none."""
    known = {name: getattr(limits, f"{name}_s") for name in ("ttft", "tpot", "e2e")}
    in_ms = {f"{name}_ms": None if each is None else _MS * each for name, each in known.items()}
    return {**in_ms, "percentile": limits.percentile}


def sweep_as_data(sweep: Sweep) -> dict[str, Any]:
    """Return the loads from low to high, and the highest that is held."""
    return plain(
        {
            **deployment_as_data(sweep.deployment),
            "over": sweep.over,
            "limits": limits_as_data(sweep.limits),
            "points": [_point(point, sweep.limits) for point in sweep.points],
            "holds": None if sweep.knee is None else sweep.knee.value,
            "breaks_at": None if sweep.broken is None else sweep.broken.value,
            "first_limits": [] if sweep.broken is None else list(sweep.broken.broken),
            "words": sentence(sweep),
        }
    )


def _point(point: Point, limits: Limits) -> dict[str, Any]:
    return {
        "value": point.value,
        "held": point.held,
        "broken": list(point.broken),
        **figures_as_data(point.load, limits),
    }


def load_as_data(
    load: Load,
    limits: Limits,
    *,
    price_per_hour: float | None,
    parts: Parts,
    caveats: Sequence[str],
) -> dict[str, Any]:
    """Return what ``shardcost load --json`` prints, with its lines of text and the course of time.

    Args:
        load: What was simulated.
        limits: Of latency.
        price_per_hour: Of all GPUs.
        parts: What the latencies are made of.
        caveats: Of files that were read.
    """
    data = as_data(load, limits, price_per_hour=price_per_hour, parts=parts, caveats=caveats)
    return data | {
        "title": title(load.deployment),
        "asked": requests_in_words(load.requests),
        "lines": [list(line) for line in lines(load, limits, price_per_hour)],
        "timeline": timeline_as_data(load),
    }


def timeline_as_data(load: Load) -> dict[str, Any]:
    """Return batch, queue and KV cache over time: the start of every interval, and the means."""
    from shardcost.report.load_plot import over_time

    end_s = max((moment.end_s for moment in load.moments), default=1.0)
    edges = np.linspace(0.0, end_s, _BINS + 1)
    curves = {name: over_time(load.moments, name, edges).tolist() for name in _OVER_TIME}
    return {"end_s": end_s, "start_s": edges[:-1].tolist(), **curves}


def swept_as_data(sweep: Sweep) -> dict[str, Any]:
    """Return what ``shardcost load --sweep --json`` prints, and the requests at each load."""
    requests = [point.load.requests for point in sweep.points]
    counts = [len(each.trace) if each.arrival == "trace" else each.count for each in requests]
    return sweep_as_data(sweep) | {
        "title": title(sweep.deployment),
        "requests_each": [min(counts), max(counts)],
    }


def ratio_as_data(ratio: Ratio, own: int) -> dict[str, Any]:
    """Return what every split of the GPUs holds; `own`: prefill workers requested."""
    splits = [
        {
            "prefill_workers": split.prefill_workers,
            "workers": split.workers,
            "gpus_used": split.deployment.gpus,
            "requests_per_s": split.requests_per_s,
            "requests_per_s_per_gpu": split.requests_per_s_per_gpu,
            "limit": split.limit,
            "best": split is ratio.best,
            "own": split.prefill_workers == own,
        }
        for split in ratio.splits
    ]
    limits = limits_as_data(ratio.limits)
    return plain({"gpus": ratio.gpus, "limits": limits, "splits": splits, "words": _words(ratio)})


def _words(ratio: Ratio) -> str:
    """Return which split holds most, and what workers hold that do both."""
    best, together = ratio.best, ratio.splits[0]
    if not best.requests_per_s:
        return f"No split of the {ratio.gpus:,} GPUs holds any load within the limits."
    each = f"{best.requests_per_s_per_gpu:.3g} per GPU"
    first = f"Of {ratio.gpus:,} GPUs, {_split(best)} hold most: {_rate(best)}, {each}"
    if best is together:
        other = max(ratio.splits[1:], key=lambda split: split.requests_per_s)
        return f"{first}; the best split, {_split(other)}, holds {_rate(other)}."
    return f"{first}; {_split(together)} hold {_rate(together)}."


def _rate(split: Split) -> str:
    return f"{rate(split.requests_per_s)} requests/s"


def _split(split: Split) -> str:
    count = split.workers
    if not split.prefill_workers:
        return "1 worker that does both" if count == 1 else f"{count:,} workers that do both"
    return f"{split.prefill_workers:,} prefill and {count:,} decode workers"


def command_of(given: Mapping[str, Any]) -> str:
    """Return the command line of the same load.

    >>> command_of({"model": "llama3-8b", "on": "h100_sxm", "rate": 4, "isl": 1024, "osl": 256})
    'shardcost load llama3-8b --on h100_sxm --isl 1024 --osl 256 --rate 4'
    """
    files = {"model": "config", "on": "profile", "trace": "trace"}
    stated = dict(given) | {
        name: _FILES[name] for name, field in files.items() if given.get(field) is not None
    }
    words = ["shardcost", "load", str(stated["model"])]
    order = sorted(LOAD.values(), key=lambda option: option.name in {"rate", "users"})
    for option in order:
        value = stated.get(option.name)
        if option.name == "model" or value is None or (option.kind == "flag" and not value):
            continue
        words += [option.flag] if option.kind == "flag" else [option.flag, _text(value)]
    if stated.get("sweep") is not None:
        words += ["--sweep", str(stated["sweep"])]
    return shlex.join(words)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.15g}" if isinstance(value, float) else str(value)
