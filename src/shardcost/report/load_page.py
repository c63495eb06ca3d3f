"""A load as the page shows it: the command's figures, the course of time, splits of the GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shardcost.load.parts import Parts
from shardcost.load.ratio import Ratio, Split
from shardcost.load.result import Limits, Load
from shardcost.load.sweep import Sweep
from shardcost.options import LOAD
from shardcost.report.command import CLUSTER_FILE, MODEL_FILE
from shardcost.report.describe import plain
from shardcost.report.load import asked, lines, rate, title
from shardcost.report.load_data import as_data, limits_as_data, sweep_as_data
from shardcost.report.load_plot import over_time

TRACE_FILE: Final = "requests.csv"
_BINS: Final = 160
"""Of the pictures over time."""
_OVER_TIME: Final = ("sequences", "waiting", "kv_share")
_FILES: Final = {"model": MODEL_FILE, "on": CLUSTER_FILE, "trace": TRACE_FILE}
"""What stands for content that was pasted: files on the reader's disk."""


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
        "asked": asked(load.requests),
        "lines": [list(line) for line in lines(load, limits, price_per_hour)],
        "timeline": timeline_as_data(load),
    }


def timeline_as_data(load: Load) -> dict[str, Any]:
    """Return batch, queue and KV cache over time: the start of every interval, and the means."""
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
    """Return what every split of the GPUs holds; `own` are the prefill workers that were asked."""
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
