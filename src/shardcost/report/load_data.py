"""A deployment under load as plain data: JSON of the command line and the page."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

from shardcost.estimate.interval import interval_of
from shardcost.load.deployment import Deployment
from shardcost.load.parts import Parts
from shardcost.load.requests import Requests
from shardcost.load.result import Distribution, Limits, Load
from shardcost.load.sweep import Point, Sweep
from shardcost.machine import machine_of
from shardcost.report import interval
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.describe import attributes, plain
from shardcost.report.load import (
    cost_per_million,
    distributions,
    energy_per_million,
    remarks,
    sentence,
)

_MS: Final = 1e3


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
    """Return what was asked."""
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
