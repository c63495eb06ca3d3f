"""Predictions of single requests: when each request of a run had its first and its last token.

A run is simulated once, with the arrivals and lengths of its requests and the settings that its
engine was started with (`shardcost.load.simulate`); a row is one figure of one request. Prompts
are taken to differ from their first token on: the files say nothing of prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shardcost.cluster import Cluster
from shardcost.errors import ShardcostError
from shardcost.formats.tables import Row, Table, number
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine
from shardcost.load.requests import Requests, Stream
from shardcost.load.simulate import simulate
from shardcost.machine import CATALOG, Fitted, machine_of
from shardcost.software import Software
from shardcost.validate.predictions import (
    Derived,
    Floats,
    Predictions,
    meaning_of,
    reason_of,
    whole_cell,
)
from shardcost.validate.serving import formats_of, layout_of, model_of, software

MEASURED: Final = "measured"
HEADLINE: Final = "e2e_ms"
BY: Final = ("run", "figure")
_MS: Final = 1e3
_MOST: Final = 10**9
_NETWORK: Final = "ib"
"""What joins domains where a run that spans several does not say."""
_NEVER: Final = "request must be one that a worker's KV cache holds"
_SWITCH: Final = {"0": False, "1": True}
_COUNTS: Final[Mapping[str, str]] = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_tokens": "kv_tokens",
    "block_size": "block_tokens",
}
_SWITCHES: Final = ("chunked_prefill", "prefix_caching")


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted milliseconds of every row, each run being simulated once."""
    values = np.full(table.rows, np.nan)
    reasons = [""] * table.rows
    runs: dict[str, list[int]] = {}
    for place, name in enumerate(table.columns["run"]):
        runs.setdefault(name, []).append(place)
    for places in runs.values():
        rows = list(table.at(places).records())
        try:
            values[places] = _of_run(rows, fitted)
            missing = _NEVER
        except ShardcostError as error:
            missing = reason_of(error)
        for place in places:
            reasons[place] = missing if np.isnan(values[place]) else ""
    return Predictions(values, reasons)


def _of_run(rows: list[Row], fitted: Fitted) -> Floats:
    """Return the figures of one run's requests; NaN of those that are never served."""
    requests = {row["request"]: row for row in rows}
    arrival_s, prompts, outputs = (
        np.array([float(row[name]) for row in requests.values()])
        for name in ("arrival_s", "prompt_tokens", "output_tokens")
    )
    order = np.argsort(arrival_s, kind="stable")
    stream = Stream(
        arrival_s=arrival_s[order],
        prompt_tokens=prompts[order].astype(np.int64),
        output_tokens=outputs[order].astype(np.int64),
    )
    asked = Requests(arrival="trace", count=len(stream), trace=stream)
    load = simulate(Deployment(Pool(engine_of(rows[0], fitted))), asked)
    places = {name: place for place, name in enumerate(requests)}
    spans = {
        figure: _spans_ms(ends_s - load.arrival_s, order[load.served], len(stream))
        for figure, ends_s in {"ttft_ms": load.first_token_s, "e2e_ms": load.finished_s}.items()
    }
    return np.array(
        [meaning_of(row, "figure", spans)[places[row["request"]]] for row in rows], dtype=np.float64
    )


def _spans_ms(spans_s: Floats, places: Any, count: int) -> Floats:
    values = np.full(count, np.nan)
    values[places] = _MS * spans_s
    return values


def engine_of(row: Row, fitted: Fitted = CATALOG) -> Engine:
    """Return the engine that a run was served by, with its settings."""
    own = _started(Software.named(software(row)), row)
    layout = layout_of(row)
    cluster = Cluster.named(row["cluster"])
    if layout.devices > cluster.tiers[-1].gpus:
        cluster = Cluster.named(row["cluster"], row.get("network") or _NETWORK)
    machine = machine_of(cluster, own, fitted)
    return Engine(model_of(row), machine, layout, own, formats_of(row))


def _started(usual: Software, row: Row) -> Software:
    """Return an engine as a run's row says it was started; what is blank is as usual."""
    settings: dict[str, Any] = {
        field: whole_cell(row, column, most=_MOST)
        for column, field in _COUNTS.items()
        if row.get(column)
    }
    settings |= {name: meaning_of(row, name, _SWITCH) for name in _SWITCHES if row.get(name)}
    if row.get("gpu_memory_utilization"):
        share = number(row, "gpu_memory_utilization", 0, 1, "a share above 0 and at most 1")
        settings["memory_share"] = share
    if row.get("eager") and meaning_of(row, "eager", _SWITCH):
        usual = usual.without_graphs()
    scheduler = usual.scheduler
    if (chunked := settings.pop("chunked_prefill", None)) is not None:
        context = model_of(row).context_tokens
        scheduler = scheduler.prefilling(chunked=chunked, context_tokens=context)
    return replace(usual, scheduler=replace(scheduler, **settings))


DERIVED: Final[Derived] = {"software": software}
