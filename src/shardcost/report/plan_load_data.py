"""The report on a search for deployments as plain data, and the command that simulates the best."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, Final

from shardcost.catalog import all_names, has_network
from shardcost.load.deployment import Deployment
from shardcost.load.result import Limits
from shardcost.machine import machine_of
from shardcost.option import flag
from shardcost.options import LAYOUT, SCHEDULER
from shardcost.report.command import (
    CLUSTER_FILE,
    MODEL_FILE,
    NETWORK_FILE,
    SOFTWARE_FILE,
    is_known,
    is_named,
    option_words,
)
from shardcost.report.describe import attributes, plain
from shardcost.report.load_data import deployment_as_data, figures_as_data, limits_as_data
from shardcost.search.planned import LoadPlan, PlannedDeployment
from shardcost.search.workers import DEGREES, LoadQuestion
from shardcost.software import Software, default_software

_MS: Final = 1e3


def as_data(plan: LoadPlan, top: int, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report as plain data.

    Args:
        plan: What was found.
        top: How many of the best to have.
        caveats: Of files that were read.
    """
    question, found = plan.question, plan.runner_up
    return plain(
        {
            **attributes(plan, "considered feasible seconds"),
            "rejected": [
                {"code": reason.code, "reason": reason.message, "count": count}
                for reason, count in plan.rejected.items()
            ],
            "best": [_planned(plan, each) for each in plan.best[:top]],
            "front": [
                {
                    **deployment_as_data(each.planned.deployment),
                    "software": each.planned.engine.software.name,
                    "formats": dict(each.planned.engine.formats),
                    **attributes(each, "rate_per_s tokens_per_s_per_user tokens_per_s_per_gpu"),
                    "ttft_ms": _ms(each.ttft_s),
                }
                for each in plan.front
            ],
            **attributes(plan, "deployments simulations"),
            **attributes(question, "objective rate_per_s users prefix_tokens seed"),
            "isl": str(question.prompt),
            "osl": str(question.output),
            "limits": limits_as_data(question.limits),
            "runner_up": found
            and {
                "behind": found.behind,
                "rate_per_s": found.rate_per_s,
                "saturated": bool(found.at.saturated),
                **_closed_form(found.at),
            },
            "nearest": None if plan.nearest is None else _planned(plan, plan.nearest),
            "notes": list(caveats),
        }
    )


def _planned(plan: LoadPlan, each: PlannedDeployment) -> dict[str, Any]:
    """Return one deployment; `goodput_requests_per_s` is simulated where that was done."""
    question = plan.question
    closed = each.capacity
    data = {
        **deployment_as_data(each.deployment),
        "software": each.engine.software.name,
        "formats": dict(each.engine.formats),
        "disaggregated": each.disaggregated,
        "simulated": each.load is not None,
        "confirmed": each.confirmed,
        "goodput_requests_per_s": each.requests_per_s,
        "per_gpu": each.requests_per_s_per_gpu,
        "tokens_per_s_per_gpu": each.output_tokens_per_s_per_gpu,
        "tokens_per_s_per_user": 1 / each.tpot_s if each.tpot_s else None,
        "limit": each.limit,
        **_latencies(each, question.limits),
        "closed_form": {
            "requests_per_s": closed.requests_per_s,
            "limit": closed.limit,
            **_closed_form(closed.steady),
        },
        "score": each.score(question),
        "command": command_of(plan, each),
    }
    if question.price is not None:
        data["cost_per_million_output_tokens"] = each.cost_per_million(question)
        data["cost_per_hour"] = each.cost_per_hour(question)
    return data


def _latencies(each: PlannedDeployment, limits: Limits) -> dict[str, Any]:
    """Return distributions in milliseconds: simulated, or what the closed form has of them."""
    if each.load is not None:
        figures = figures_as_data(each.load, limits)
        return {name: figures[name] for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")}
    at = each.capacity.steady
    known = {
        "ttft_ms": {"mean": at.ttft_s, "p50": None, "p90": at.ttft_p90_s, "p99": None},
        "tpot_ms": {"mean": at.tpot_s, "p50": None, "p90": at.tpot_p90_s, "p99": None},
        "itl_ms": dict.fromkeys(("mean", "p50", "p90", "p99")),
        "e2e_ms": {"mean": at.e2e_s, "p50": None, "p90": None, "p99": None},
    }
    return {
        name: {key: _ms(value) for key, value in figures.items()} for name, figures in known.items()
    }


def _closed_form(at: Any) -> dict[str, float | None]:
    names = ("ttft", "ttft_p90", "tpot", "tpot_p90", "e2e")
    return {f"{name}_ms": _ms(getattr(at, f"{name}_s")) for name in names}


def _ms(value: Any) -> float | None:
    return None if value is None or not isfinite(float(value)) else _MS * float(value)


def command_of(plan: LoadPlan, each: PlannedDeployment) -> str:
    """Return the command line that simulates a deployment at what it holds."""
    return shlex.join(("shardcost", "load", *_words(plan.question, each)))


def _words(question: LoadQuestion, each: PlannedDeployment) -> Iterator[str]:
    engine = each.engine
    cluster = machine_of(engine.cluster).cluster
    network = cluster.network
    yield engine.model.name if is_known(engine.model) else MODEL_FILE
    yield from ("--on", cluster.name if is_named(cluster) else CLUSTER_FILE)
    if network is not None:
        yield from ("--network", network.name if has_network(network.name) else NETWORK_FILE)
    yield from _software(engine.software, cluster.device.vendor)
    yield from option_words(LAYOUT, engine.layout)
    yield from _pools(each.deployment)
    for name, value in engine.formats.items():
        yield from (flag(name), str(value))
    if engine.draft_tokens:
        yield from ("--draft-tokens", str(engine.draft_tokens))
        yield from ("--acceptance", str(engine.acceptance))
    yield from _load(question, each)


def _pools(deployment: Deployment) -> Iterator[str]:
    """Yield the workers, and the degrees of those that prefill where they are others."""
    if deployment.prefill is None:
        yield from ("--workers", str(deployment.serving.workers))
        return
    yield from ("--prefill-workers", str(deployment.prefill.workers))
    yield from ("--decode-workers", str(deployment.serving.workers))
    for name in DEGREES:
        own, other = (getattr(pool.engine.layout, name) for pool in deployment.pools)
        if own != other:
            yield from (flag(f"prefill_{name}"), str(own))


def _load(question: LoadQuestion, each: PlannedDeployment) -> Iterator[str]:
    """Yield arrivals, lengths and limits."""
    if question.users is not None:
        yield from ("--users", str(question.users))
    else:
        yield from ("--rate", f"{each.requests_per_s or each.capacity.requests_per_s:.4g}")
    yield from ("--isl", str(question.prompt), "--osl", str(question.output))
    if question.prefix_tokens:
        yield from ("--prefix-tokens", str(question.prefix_tokens))
    for name in ("ttft", "tpot", "e2e"):
        limit = getattr(question.limits, f"{name}_s")
        if limit is not None:
            yield from (f"--max-{name}", f"{_MS * limit:g}ms")


def _software(software: Software, vendor: str) -> Iterator[str]:
    """Yield the engine, and the settings of its scheduler that are not its own."""
    if software.name not in all_names("software"):
        yield from ("--software", SOFTWARE_FILE)
        return
    if software.name != default_software("decode", [vendor]):
        yield from ("--software", software.name)
    own = Software.named(software.name).scheduler
    for option in SCHEDULER:
        value = getattr(software.scheduler, option.name)
        if value != getattr(own, option.name):
            shown = (
                {True: "on", False: "off"}.get(value, value) if option.kind == "switch" else value
            )
            yield from (option.flag, str(shown))
