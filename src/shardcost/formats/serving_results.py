"""Results of serving benchmarks: what a load generator measured at a server, one record per run.

Four tools write them::

    vllm bench serve --save-result          JSON, or a line of JSON for each run   vllm-bench
    python -m sglang.bench_serving          a line of JSON for each run            sglang-bench
    genai-perf profile, aiperf profile      JSON or CSV                            genai-perf
    inference-perf                          JSON of a stage, or of all             inference-perf

They agree in what they measure and differ in names and units. A latency of 0 is one that was not
measured (a server that does not stream has no time to first token). What tools call the inter-token
latency is a gap between two tokens to three of them; to genai-perf it is a request's mean gap,
which is its time per output token.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from math import inf, sqrt
from pathlib import Path
from typing import Any, Final, NamedTuple

from shardcost.errors import BadTypeError, BadValueError, FormatError, ShardcostError
from shardcost.formats.opened import MOST_JSON_BYTES, MOST_TEXT_BYTES, parse_object, text_of_log
from shardcost.formats.reading import MOST_RUNS, PassedOver, Reading, Tick, no_tick

KINDS: Final = ("vllm-bench", "sglang-bench", "genai-perf", "inference-perf")
_MOST_SECONDS: Final = 1e7
_MOST_COUNT: Final = 10**7
"""Of requests, and of those in flight."""
_MOST_TOKENS: Final = 1e8
"""Of one prompt or output."""
_MOST: Final = 1e15
_LONGEST_TEXT: Final = 200
_PERCENTILES: Final = (50, 90, 95, 99)
_UNITS_S: Final = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip
_SPREAD_P90_P10: Final = 2.563
"""Standard deviations between the 10th and the 90th percentile of a normal distribution."""
_CSV_HEAD: Final = re.compile(r"\ufeff?\"?Metric\"?,\"?avg\"?,\"?min\"?,\"?max\"?,")
_CSV_METRIC: Final = re.compile(r"([A-Za-z ]{1,60}?)(?: \(([A-Za-z/ ]{1,20})\))?")
_CSV_NUMBER: Final = re.compile(r"-?[0-9][0-9,]{0,30}(?:\.[0-9]{1,30})?")
_MARKS: Final = (
    ('"completed"', '"total_input_tokens"'),
    ('"completed"', '"request_rate"'),
    ('"load_summary"', '"successes"'),
    ('"time_to_first_token"', '"unit"', '"avg"'),
    ('"request_latency"', '"unit"', '"avg"'),
)
"""Keys that results have together, near their beginning."""


class Latency(NamedTuple):
    """Of one figure, in seconds; None where a file does not state it."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


_NOT_STATED: Final = Latency()


@dataclass(frozen=True, eq=False)
class Each:
    """The requests that were served, one by one in the order of sending. Empty: not stated."""

    input_tokens: Sequence[int]
    output_tokens: Sequence[int]
    ttft_s: Sequence[float] = ()
    itl_s: Sequence[Sequence[float]] = ()
    """Gaps between the tokens of each request."""
    start_s: Sequence[float] = ()
    """When each was sent; the first at 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServingResult:
    """One run of a load generator. What a file does not state is None or empty."""

    tool: str
    """One of `KINDS`."""
    model: str = ""
    backend: str = ""
    """The engine, or the protocol that it was addressed by."""
    rate_per_s: float | None = None
    """At which requests were sent; None where each followed another."""
    concurrency: int | None = None
    """Most requests in flight."""
    inferred: bool = False
    """The concurrency is not stated, but follows from rate and latency by Little's law."""
    ramped: bool = False
    """The rate changed during the run."""
    burstiness: float | None = None
    """Shape of the gamma distribution of gaps between arrivals: 1 is Poisson, infinite even."""
    requests: int | None = None
    """That were served to their end."""
    failed: int = 0
    duration_s: float | None = None
    input_tokens: float | None = None
    """Mean of a request …"""
    input_cv: float | None = None
    """… and standard deviation over mean."""
    output_tokens: float | None = None
    output_cv: float | None = None
    ttft_s: Latency = _NOT_STATED
    tpot_s: Latency = _NOT_STATED
    itl_s: Latency = _NOT_STATED
    e2e_s: Latency = _NOT_STATED
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    tokens_per_step: float | None = None
    """That speculative decoding kept on average."""
    each: Each | None = None
    line: int = 0
    """Where it stands in its file."""


@dataclass(frozen=True, kw_only=True)
class ServingResults(Reading):
    """A file with results of serving benchmarks, all of one tool."""

    runs: tuple[ServingResult, ...]


def looks_like(head: str) -> bool:
    """Return whether a file begins like results of one of the tools."""
    if _CSV_HEAD.match(head):
        return True
    start = head.lstrip("\ufeff \t\r\n")
    return start[:1] == "{" and any(all(key in start for key in keys) for keys in _MARKS)


def read(path: Path, tick: Tick = no_tick) -> ServingResults:
    """Return the runs that a file holds; lines that hold none are counted by reason."""
    passed_over, file = PassedOver(), str(path)
    text = text_of_log(path, passed_over, MOST_TEXT_BYTES, tick)
    if _CSV_HEAD.match(text):
        runs = [_checked(file, partial(_genai_csv, text))]
    else:
        runs = _json_runs(text, file, passed_over)
    kinds = sorted({run.tool for run in runs})
    if len(kinds) > 1:
        raise FormatError(file, f"holds results of several tools: {', '.join(kinds)}")
    if len(runs) > MOST_RUNS:
        passed_over.add(0, f"runs beyond the first {MOST_RUNS:,}", count=len(runs) - MOST_RUNS)
    return ServingResults(
        file=file, kind=kinds[0], runs=tuple(runs[:MOST_RUNS]), unread=passed_over.unread()
    )


def _json_runs(text: str, file: str, passed_over: PassedOver) -> list[ServingResult]:
    """Return the runs of one JSON object, or of one on each line."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) == 1 or not lines[0][1].rstrip().endswith("}"):
        lines = [(0, text)]
    runs: list[ServingResult] = []
    first: FormatError | None = None
    for number, line in lines:
        try:
            runs.append(_checked(file, partial(_json_run, line, file, number)))
        except FormatError as error:
            where = f"line {number}: " if len(lines) > 1 and number else ""
            first = first or FormatError(file, where + error.reason)
            passed_over.add(number, error.reason)
    if not runs:
        raise first or FormatError(file, "is empty")
    return runs


def _checked(file: str, made: Callable[[], ServingResult]) -> ServingResult:
    try:
        run = made()
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    measured = (run.ttft_s, run.tpot_s, run.itl_s, run.e2e_s)
    rates = (run.requests_per_s, run.output_tokens_per_s)
    if not any(figure != _NOT_STATED for figure in measured) and not any(rates):
        raise FormatError(file, "states neither a latency nor a throughput")
    return run


def _json_run(text: str, file: str, line: int) -> ServingResult:
    if len(text) > MOST_JSON_BYTES:
        raise FormatError(file, f"a result is larger than {MOST_JSON_BYTES // 2**20} MiB")
    content = parse_object(text, file, lenient=True)
    fields = _Fields(content)
    if "successes" in content and "load_summary" in content:
        return _inference_perf(fields, line)
    if any(isinstance(content.get(name), dict) for name in _GENAI_LATENCIES):
        return _genai_json(fields, line)
    if "completed" not in content:
        raise BadValueError("result", sorted(content)[:3], "of a serving benchmark")
    return _bench(fields, line)


class _Fields:
    """The members of a JSON object, read by key; an error names key and rule."""

    def __init__(self, content: Mapping[str, Any], place: str = "") -> None:
        self.content, self.place = content, place

    def number(self, key: str, most: float = _MOST, *, needed: bool = False) -> float | None:
        """Return a number from 0 to `most`; None where it is missing or null."""
        value = self.content.get(key)
        if value is None:
            if needed:
                raise BadValueError(self.place + key, value, "stated")
            return None
        return _number(self.place + key, value, most)

    def above_0(self, key: str, most: float = _MOST) -> float | None:
        """Return a number; None for 0 too, by which tools mean that nothing was measured."""
        return self.number(key, most) or None

    def seconds(self, key: str, unit_s: float) -> float | None:
        """Return a time, stated in a unit; None for 0."""
        value = self.above_0(key, _MOST_SECONDS / unit_s)
        return None if value is None else value * unit_s

    def count(self, key: str, *, needed: bool = False) -> int | None:
        """Return a whole number."""
        value = self.number(key, _MOST_COUNT, needed=needed)
        if value is not None and value != int(value):
            raise BadValueError(self.place + key, value, "a whole number")
        return None if value is None else int(value)

    def text(self, key: str) -> str:
        """Return a text, of a list the first; empty where there is none."""
        value = self.content.get(key)
        value = value[0] if isinstance(value, list) and value else value
        if value is None or value == []:
            return ""
        if not isinstance(value, str):
            raise BadTypeError(self.place + key, value, "a text")
        return value[:_LONGEST_TEXT]

    def inside(self, key: str) -> _Fields:
        """Return the members of an object inside; none where it is missing."""
        value = self.content.get(key)
        if value is not None and not isinstance(value, dict):
            raise BadTypeError(self.place + key, value, "an object")
        return _Fields(value or {}, f"{self.place}{key}.")

    def rows(self, key: str) -> list[Any]:
        """Return a list; empty where it is missing."""
        value = self.content.get(key)
        if value is not None and not isinstance(value, list):
            raise BadTypeError(self.place + key, value, "a list")
        return value or []


def _number(name: str, value: Any, most: float, least: float = 0.0) -> float:
    rule = f"a number from {least:g} to {most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadTypeError(name, value, rule)
    if not least <= value <= most:  # nor is it not-a-number
        raise BadValueError(name, value, rule)
    return float(value)


def _share(part: float | None, of: float | None) -> float | None:
    return part / of if part is not None and of else None


# --------------------------------------------------------------- vllm bench serve, sglang


def _bench(fields: _Fields, line: int) -> ServingResult:
    """Return a run of vLLM's benchmark, or of SGLang's, which was made from it."""
    content = fields.content
    sglang = any(
        key in content
        for key in ("mean_e2e_latency_ms", "total_output_tokens_retokenized", "random_range_ratio")
    )
    completed = fields.count("completed", needed=True)
    if not completed:
        raise BadValueError("completed", completed, "at least 1 request")
    each = _each(fields)
    rate, concurrency = _rate(fields), fields.count("max_concurrency") or None
    spread = _range_cv(fields) if sglang and fields.text("dataset_name") == "random" else None
    e2e = "e2e_latency" if sglang else "e2el"
    return ServingResult(
        tool="sglang-bench" if sglang else "vllm-bench",
        model=fields.text("model_id") or fields.text("model"),
        backend=fields.text("backend") or fields.text("endpoint_type"),
        rate_per_s=rate,
        concurrency=concurrency,
        ramped=fields.content.get("ramp_up_strategy") is not None,
        burstiness=fields.above_0("burstiness"),
        requests=completed,
        failed=fields.count("failed") or 0,
        duration_s=fields.above_0("duration", _MOST_SECONDS),
        input_tokens=_tokens(fields, "total_input_tokens", completed),
        output_tokens=_tokens(fields, "total_output_tokens", completed),
        input_cv=_cv(each.input_tokens) if each else spread,
        output_cv=_cv(each.output_tokens) if each else spread,
        ttft_s=_bench_latency(fields, "ttft", each.ttft_s if each else ()),
        tpot_s=_bench_latency(fields, "tpot", _tpots(each)),
        itl_s=_bench_latency(fields, "itl", [gap for gaps in each.itl_s for gap in gaps if gap]
                             if each else ()),
        e2e_s=_bench_latency(fields, e2e, _latencies(each)),
        requests_per_s=fields.above_0("request_throughput"),
        output_tokens_per_s=fields.above_0("output_throughput"),
        tokens_per_step=fields.above_0("accept_length")
        or fields.above_0("spec_decode_acceptance_length"),
        each=each,
        line=line,
    )  # fmt: skip


def _rate(fields: _Fields) -> float | None:
    """Return the rate of requests; None where they were all sent at once (``inf``)."""
    value = fields.content.get("request_rate")
    if value is None or value in ("inf", inf):  # which need not be hashable
        return None
    return _number("request_rate", value, _MOST, 1e-9)


def _tokens(fields: _Fields, key: str, requests: int) -> float | None:
    """Return the tokens of one request."""
    total = fields.number(key)
    if not total:
        return None
    return _number(f"{key} / completed", total / requests, _MOST_TOKENS)


def _range_cv(fields: _Fields) -> float | None:
    """Return standard deviation over mean of lengths that are even from share x most to most."""
    share = fields.number("random_range_ratio", 1.0)
    return None if share is None else (1 - share) / (1 + share) / sqrt(3)


def _bench_latency(fields: _Fields, name: str, values: Sequence[float]) -> Latency:
    stated = {f"p{p}": fields.seconds(f"p{p}_{name}_ms", 1e-3) for p in _PERCENTILES}
    stated["mean"] = fields.seconds(f"mean_{name}_ms", 1e-3)
    stated["p50"] = fields.seconds(f"median_{name}_ms", 1e-3) or stated["p50"]
    if len(values):
        import numpy as np

        for p in _PERCENTILES:
            stated[f"p{p}"] = stated[f"p{p}"] or float(np.percentile(values, p)) or None
        stated["mean"] = stated["mean"] or float(np.mean(values)) or None
    return Latency(**stated)


def _each(fields: _Fields) -> Each | None:
    """Return the requests one by one, without those that failed; None where none is listed."""
    inputs, outputs = fields.rows("input_lens"), fields.rows("output_lens")
    if not inputs or not outputs:
        return None
    lists = {name: fields.rows(name) for name in ("ttfts", "itls", "start_times")}
    for name, rows in {"output_lens": outputs, **lists}.items():
        if rows and len(rows) != len(inputs):
            raise BadValueError(name, len(rows), f"as many as input_lens, {len(inputs)}")
    lengths = {
        "input_lens": [_number("input_lens", each, _MOST_TOKENS) for each in inputs],
        "output_lens": [_number("output_lens", each, _MOST_TOKENS) for each in outputs],
    }
    kept = [place for place, tokens in enumerate(lengths["output_lens"]) if tokens >= 1]
    if not kept:
        return None
    ttfts = [_number("ttfts", each, _MOST_SECONDS) for each in lists["ttfts"]]
    starts = [_number("start_times", each, _MOST, -_MOST) for each in lists["start_times"]]
    first = min((starts[place] for place in kept), default=0.0) if starts else 0.0
    return Each(
        input_tokens=tuple(max(int(lengths["input_lens"][place]), 1) for place in kept),
        output_tokens=tuple(int(lengths["output_lens"][place]) for place in kept),
        ttft_s=tuple(ttfts[place] for place in kept) if any(ttfts) else (),
        itl_s=tuple(_gaps(lists["itls"][place]) for place in kept) if lists["itls"] else (),
        start_s=tuple(starts[place] - first for place in kept) if starts else (),
    )


def _gaps(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise BadTypeError("itls", value, "a list of lists")
    return tuple(_number("itls", gap, _MOST_SECONDS) for gap in value)


def _latencies(each: Each | None) -> list[float]:
    """Return the time of each request; none where a file does not list what it is made of."""
    if each is None or not each.ttft_s or not each.itl_s:
        return []
    return [ttft + sum(gaps) for ttft, gaps in zip(each.ttft_s, each.itl_s, strict=True)]


def _tpots(each: Each | None) -> list[float]:
    if each is None or not each.itl_s:
        return []
    pairs = zip(each.itl_s, each.output_tokens, strict=True)
    return [sum(gaps) / (tokens - 1) for gaps, tokens in pairs if tokens > 1]


def _cv(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / len(values)) / mean


# ------------------------------------------------------------------------------- genai-perf

_GENAI_LATENCIES: Final = ("time_to_first_token", "inter_token_latency", "request_latency")


def _genai_json(fields: _Fields, line: int) -> ServingResult:
    config = fields.inside("input_config")
    # Versions differ in where they keep the load and the model.
    places = [config, config.inside("loadgen"), config.inside("perf_analyzer").inside("stimulus")]
    names = [config.text("model"), config.text("model_names")]
    if isinstance(config.content.get("endpoint"), dict):
        names.append(config.inside("endpoint").text("model_names"))
    return _genai(
        {name: fields.inside(name) for name in (*_GENAI_LATENCIES, *_GENAI_OTHERS)},
        model=next(filter(None, names), ""),
        backend=config.text("backend"),
        rate_per_s=next(filter(None, (place.above_0("request_rate") for place in places)), None),
        concurrency=next(filter(None, (place.count("concurrency") for place in places)), None),
        failed=int(fields.inside("error_request_count").number("avg", _MOST_COUNT) or 0),
        line=line,
    )


_GENAI_OTHERS: Final = (
    "input_sequence_length",
    "output_sequence_length",
    "request_throughput",
    "output_token_throughput",
    "request_count",
)


def _genai(metrics: Mapping[str, _Fields], **known: Any) -> ServingResult:
    ttft, tpot, e2e = (_genai_latency(metrics[name]) for name in _GENAI_LATENCIES)
    prompt, output = metrics["input_sequence_length"], metrics["output_sequence_length"]
    rate = metrics["request_throughput"].above_0("avg")
    requests = metrics["request_count"].above_0("avg", _MOST_COUNT)
    if known.get("rate_per_s"):
        known = {**known, "concurrency": None, "burstiness": inf}
    elif known.get("concurrency") is None:
        known = {**known, **_by_littles_law(rate, e2e.mean)}
    return ServingResult(
        tool="genai-perf",
        requests=None if requests is None else max(round(requests), 1),
        input_tokens=prompt.above_0("avg", _MOST_TOKENS),
        input_cv=_share(prompt.number("std"), prompt.above_0("avg")),
        output_tokens=output.above_0("avg", _MOST_TOKENS),
        output_cv=_share(output.number("std"), output.above_0("avg")),
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        requests_per_s=rate,
        output_tokens_per_s=metrics["output_token_throughput"].above_0("avg"),
        **known,
    )


def _genai_latency(metric: _Fields) -> Latency:
    if not metric.content:
        return _NOT_STATED
    unit = metric.text("unit") or "ms"
    if unit not in _UNITS_S:
        raise BadValueError(f"{metric.place}unit", unit, f"one of {', '.join(_UNITS_S)}")
    stated = {f"p{p}": metric.seconds(f"p{p}", _UNITS_S[unit]) for p in _PERCENTILES}
    return Latency(mean=metric.seconds("avg", _UNITS_S[unit]), **stated)


def _by_littles_law(rate: float | None, e2e_s: float | None) -> dict[str, Any]:
    """Return how many requests were in flight: rate x time (Little 1961)."""
    if rate is None or e2e_s is None:
        return {}
    return {"concurrency": min(max(round(rate * e2e_s), 1), _MOST_COUNT), "inferred": True}


def _genai_csv(text: str) -> ServingResult:
    """Return the run of a CSV file: a table of statistics, then one of single values."""
    metrics: dict[str, dict[str, Any]] = {}
    head: list[str] = []
    for number, cells in enumerate(_csv_rows(text), 1):
        if not cells or not any(cells):
            continue
        if cells[0] == "Metric":
            head = ["avg" if cell == "Value" else cell for cell in cells]
            continue
        named = _CSV_METRIC.fullmatch(cells[0])
        name = named[1].strip().lower().replace(" ", "_") if named else ""
        if named is None or name not in (*_GENAI_LATENCIES, *_GENAI_OTHERS):
            continue
        if len(cells) != len(head):
            raise BadValueError(f"line {number}", len(cells), f"{len(head)} cells, as the header")
        metrics[name] = {
            column: _csv_number(f"{cells[0]}, {column}", cell)
            for column, cell in zip(head[1:], cells[1:], strict=True)
        } | {"unit": named[2]}
    every = (*_GENAI_LATENCIES, *_GENAI_OTHERS)
    return _genai({name: _Fields(metrics.get(name, {}), f"{name}.") for name in every})


def _csv_rows(text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(StringIO(text.lstrip("\ufeff"), newline=""))
    except csv.Error as error:
        raise BadValueError("CSV", str(error), "readable") from None


def _csv_number(name: str, cell: str) -> float | None:
    """Return a number such as ``5,919.16``."""
    if cell.strip() in {"", "N/A"}:
        return None
    if not _CSV_NUMBER.fullmatch(cell.strip()):
        raise BadValueError(name, cell, "a number")
    return float(cell.replace(",", ""))


# --------------------------------------------------------------------------- inference-perf


def _inference_perf(fields: _Fields, line: int) -> ServingResult:
    load, good = fields.inside("load_summary"), fields.inside("successes")
    served = good.count("count", needed=True)
    if not served:
        raise BadValueError("successes.count", served, "at least 1 request")
    latency, throughput = good.inside("latency"), good.inside("throughput")
    prompt = _first_stated(good, ("prompt_tokens", "prompt_len"))
    output = _first_stated(good, ("output_tokens", "output_len"))
    figures = {
        name: _summary(latency.inside(name))
        for name in (
            "time_to_first_token", "time_per_output_token", "inter_token_latency",
            "request_latency",
        )
    }  # fmt: skip
    rate, users = load.above_0("requested_rate"), load.count("concurrency") or None
    done_per_s = throughput.above_0("requests_per_sec")
    known: dict[str, Any] = {"rate_per_s": None if users else rate, "concurrency": users}
    if users is None and rate is None:
        known |= _by_littles_law(done_per_s, figures["request_latency"].mean)
    return ServingResult(
        tool="inference-perf",
        requests=served,
        failed=fields.inside("failures").count("count") or 0,
        duration_s=fields.above_0("benchmark_time_seconds", _MOST_SECONDS),
        input_tokens=prompt.above_0("mean", _MOST_TOKENS),
        input_cv=_summary_cv(prompt),
        output_tokens=output.above_0("mean", _MOST_TOKENS),
        output_cv=_summary_cv(output),
        ttft_s=figures["time_to_first_token"],
        tpot_s=figures["time_per_output_token"],
        itl_s=figures["inter_token_latency"],
        e2e_s=figures["request_latency"],
        requests_per_s=done_per_s,
        output_tokens_per_s=throughput.above_0("output_tokens_per_sec"),
        line=line,
        **known,
    )


def _first_stated(fields: _Fields, names: Iterable[str]) -> _Fields:
    """Return the first of several names of a distribution that has a mean."""
    found = [fields.inside(name) for name in names]
    return next((each for each in found if each.content.get("mean") is not None), found[0])


def _summary(fields: _Fields) -> Latency:
    stated = {f"p{p}": fields.seconds(f"p{p}", 1.0) for p in _PERCENTILES}
    stated["p50"] = fields.seconds("median", 1.0) or stated["p50"]
    return Latency(mean=fields.seconds("mean", 1.0), **stated)


def _summary_cv(fields: _Fields) -> float | None:
    """Return standard deviation over mean, by the 10th and the 90th percentile."""
    low, high, mean = fields.number("p10"), fields.number("p90"), fields.above_0("mean")
    if low is None or high is None or mean is None or high < low:
        return None
    return (high - low) / _SPREAD_P90_P10 / mean
