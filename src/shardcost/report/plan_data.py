"""The report on a search as plain data, for ``--json``; the first six keys are a contract."""

from __future__ import annotations

from typing import Any, Final

from shardcost.estimate.interval import interval_of
from shardcost.options import LIMITS
from shardcost.report import interval
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.describe import attributes, plain
from shardcost.report.estimate_data import caveats_as_data
from shardcost.report.plan import capacity, money
from shardcost.report.run import figures_as_data
from shardcost.search.found import Candidate
from shardcost.search.plan import Plan
from shardcost.workload import Decode, Prefill, Train

_LIMIT_OPTIONS: Final = {option.limit: option.name for option in LIMITS}


def as_data(plan: Plan) -> dict[str, Any]:
    """Return the report as plain data."""
    result, steady, smallest = plan.found, plan.stability, plan.found.smallest
    return plain(
        {
            **attributes(result, "considered feasible seconds"),
            "rejected": [
                {"code": reason.code, "reason": reason.message, "count": count}
                for reason, count in result.rejected.items()
            ],
            "best": [
                _candidate_as_data(plan, each) | (_largest(plan) if each is plan.best[0] else {})
                for each in plan.best
            ],
            "front": [short_as_data(plan, each) for each in result.front],
            **attributes(result, "distinct skipped"),
            "objective": result.questions[0].objective.name,
            "unit": result.questions[0].objective.aim.unit,
            "losses": [
                each._asdict() | attributes(each, "lost_s lost_score") for each in plan.losses
            ],
            "sensitivity": [each._asdict() for each in plan.gains],
            "crossovers": [
                each._asdict() | {"best": [{"value": v, "score": score} for v, score in each.best]}
                for each in plan.crossovers
            ],
            "stability": None if steady is None else steady._asdict(),
            "smallest": smallest
            and {
                "layout": noun_as_data(smallest.layout),
                "memory_bytes": smallest.memory_bytes,
                "capacity_bytes": capacity(smallest),
            },
            "relaxations": [
                {"words": each.words, **short_as_data(plan, each.candidate)}
                for each in plan.relaxations
            ],
            "notes": list(plan.caveats),
        }
    )


def _candidate_as_data(plan: Plan, each: Candidate) -> dict[str, Any]:
    estimate = each.estimate
    variants = {"variants": {"count": each.variants, "differ_in": list(each.varied)}}
    run = plan.run_of(each)
    return short_as_data(plan, each) | {
        **({} if run is None else {"run": figures_as_data(run)}),
        "limits": [
            {
                "limit": _LIMIT_OPTIONS[held.limit.name],
                "at_least" if held.limit.at_least else "at_most": held.limit.bound,
                "value": held.limit.value,
                "holds_share": held.share,
                "words": held.said,
            }
            for held in each.limits
        ],
        **(variants if plan.found.distinct else {}),
        **interval.as_data(interval_of(estimate)),
        **attributes(estimate, "mfu hfu tflops_per_gpu hardware_tflops_per_gpu"),
        **attributes(estimate, "energy_j comm_share"),
        "parts_s": dict(estimate.parts_s),
        **caveats_as_data(estimate),
    }


def _largest(plan: Plan) -> dict[str, Any]:
    """Return the largest batch of the best layout within the limits, where there is one."""
    found = plan.largest_batch
    if found is None:
        return {}
    figures = attributes(found, "time_s memory_bytes")
    rate = attributes(found.figures, "tokens_per_s_per_gpu")
    return {"largest_batch": {"batch": found.row["batch"], **figures, **rate}}


def short_as_data(plan: Plan, each: Candidate) -> dict[str, Any]:
    """Return a candidate without what only a whole estimate knows."""
    network, work = each.question.cluster.network, each.workload
    data = {
        "layout": noun_as_data(each.layout),
        "gpus": each.layout.devices,
        **attributes(each, "time_s memory_bytes score"),
        **attributes(each.figures, "tokens_per_s tokens_per_s_per_gpu"),
        **_serving_as_data(each),
        **each.question.own,
        **attributes(each.software, "tp_overlap dp_overlap"),
        "cluster": each.question.cluster.name,
        "network": None if network is None else network.name,
        "batch": work.global_batch if isinstance(work, Train) else each.row["batch"],
    }
    if plan.price is not None:
        data["cost_per_million_tokens"] = money(each, plan.price)
    return data


def _serving_as_data(each: Candidate) -> dict[str, Any]:
    work = each.workload
    if isinstance(work, Prefill):
        return {"ttft_s": each.time_s}
    if isinstance(work, Decode):
        tpot_s = each.time_s / work.kept_tokens
        known = {"ttft_s": each.row["ttft_s"]} if "ttft_s" in each.row else {}
        return {"tpot_s": tpot_s, "tokens_per_s_per_user": 1 / tpot_s, **known}
    return {}
