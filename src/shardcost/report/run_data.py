"""A whole training run as plain data, for ``--json``; the first keys are a contract."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from shardcost.goodput.run import TrainingRun
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.describe import attributes, plain
from shardcost.report.estimate_data import caveats_as_data


def figures(run: TrainingRun) -> dict[str, Any]:
    """Return the figures of a run: what an estimate or a plan shows of it."""
    low, high = (_finite(days) for days in run.days_interval)
    least, most = (_finite(hours) for hours in run.gpu_hours_interval)
    worst, best = run.goodput_interval
    resilience = noun_as_data(run.resilience)
    data = {
        **attributes(run, "tokens steps step_s days"),
        "low_days": low,
        "high_days": high,
        "gpu_hours": run.gpu_hours,
        "low_gpu_hours": least,
        "high_gpu_hours": most,
        **attributes(run, "price_per_gpu_hour cost energy_j goodput"),
        "low_goodput": worst,
        "high_goodput": best,
        "shares": run.shares,
        "failures": run.failures,
        "checkpoint_bytes": run.checkpoint_bytes,
        **{name: _finite(value) for name, value in run.timing._asdict().items()},
        "resilience": resilience | {"gpu_mtbf_s": _finite(resilience["gpu_mtbf_s"])},
        "assumed": list(run.assumed),
    }
    return plain(data)


def as_data(run: TrainingRun, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Return a run with its step's layout and what is to mind about it."""
    estimate = run.estimate
    network = estimate.cluster.network
    return plain(
        {
            "step_s": run.step_s,
            "tflops_per_gpu": estimate.tflops_per_gpu,
            **figures(run),
            "model": estimate.model.name,
            "cluster": estimate.cluster.name,
            "network": None if network is None else network.name,
            "software": estimate.software.name,
            "gpus": run.gpus,
            "layout": noun_as_data(estimate.layout),
            "workload": noun_as_data(estimate.workload),
            **attributes(estimate, "tokens_per_s tokens_per_s_per_gpu mfu hfu"),
            **attributes(estimate, "tflops_per_gpu_full_attention hardware_tflops_per_gpu"),
            "memory_bytes": estimate.memory_bytes,
            **caveats_as_data(estimate),
            "notes": list(caveats),
        }
    )


def _finite(value: Any) -> float | None:
    """Return a number; None where it is infinite, which JSON does not have."""
    return float(value) if isfinite(value) else None
