"""The report on results of a serving benchmark: what was measured, and how well it is predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, Final

from shardcost.formats.serving_results import Latency, ServingResult, ServingResults
from shardcost.inspect.files import ServingFindings
from shardcost.load.deployment import Deployment
from shardcost.report.describe import attributes
from shardcost.report.inspect_log import unread_as_data, unread_in_words
from shardcost.report.text import heading, paragraph, paragraphs, sparse_table
from shardcost.validate.serving_results import (
    LATENCIES,
    MOST_SIMULATED,
    Compared,
    Figure,
    load_in_words,
    named,
)
from shardcost.validate.validation import stats

_TOOLS: Final = {
    "vllm-bench": "vllm bench serve",
    "sglang-bench": "sglang.bench_serving",
    "genai-perf": "genai-perf",
    "inference-perf": "inference-perf",
}
_MOST_ROWS: Final = 20
_RATES: Final = {"requests_per_s": "requests/s", "output_tokens_per_s": "tokens/s"}
_MOST_REASONS: Final = 3


def as_data(reading: ServingResults, findings: ServingFindings) -> dict[str, Any]:
    """Return the report as plain data: latencies in milliseconds, null where not stated."""
    return {
        **attributes(reading, "file kind"),
        "deployment": None if findings.deployment is None else in_words(findings.deployment),
        "runs": [_run_as_data(each) for each in findings.runs],
        "unread": unread_as_data(reading.unread),
    }


def _run_as_data(each: Compared) -> dict[str, Any]:
    run = each.run
    burstiness = run.burstiness
    data: dict[str, Any] = {
        **attributes(run, "tool model backend"),
        **attributes(run, "rate_per_s concurrency inferred ramped"),
        "burstiness": burstiness if burstiness is None or isfinite(burstiness) else "inf",
        **attributes(run, "requests failed duration_s input_tokens output_tokens"),
        **{f"{name}_ms": _ms(getattr(run, f"{name}_s")) for name in LATENCIES},
        **attributes(run, "requests_per_s output_tokens_per_s tokens_per_step line"),
    }
    if each.figures or each.not_predicted:
        data["figures"] = [_figure_as_data(figure) for figure in each.figures]
        data["not_predicted"] = each.not_predicted or None
    return data


def _ms(latency: Latency) -> dict[str, float | None]:
    return {
        name: None if value is None else 1e3 * value for name, value in latency._asdict().items()
    }


def _figure_as_data(figure: Figure) -> dict[str, Any]:
    rate = figure.name in _RATES
    scale, unit = (1.0, "") if rate else (1e3, "_ms")
    return {
        "name": figure.name if rate else f"{figure.name}{unit}",
        "statistic": figure.statistic or None,
        "measured": scale * figure.measured,
        "predicted": scale * figure.predicted,
        "error_pct": figure.error_pct,
    }


def as_text(reading: ServingResults, findings: ServingFindings) -> str:
    """Return the report for a terminal."""
    runs = [each.run for each in findings.runs]
    sections = [
        heading(paragraph(f"{reading.file}: {_summary(runs)}", "  ")),
        sparse_table([_cells(run) for run in runs[:_MOST_ROWS]], left=("load",)),
        _predicted(findings),
        paragraphs(_remarks(reading, findings)),
    ]
    return "\n\n".join(each for each in sections if each)


def in_words(deployment: Deployment) -> str:
    """Return a deployment in one line."""
    engine, workers = deployment.serving.engine, deployment.serving.workers
    several = f"{workers} workers, " if workers > 1 else ""
    cluster = getattr(engine.cluster, "name", "")
    return (
        f"{engine.model.name} on {cluster}, {several}{engine.layout.short()},"
        f" {engine.software.name}"
    )


def _summary(runs: Sequence[ServingResult]) -> str:
    count = "a run" if len(runs) == 1 else f"{len(runs)} runs"
    models = sorted({run.model for run in runs if run.model})
    backends = sorted({run.backend for run in runs if run.backend})
    model = f" of {', '.join(models)}" if models else ""
    by = f" by {', '.join(backends)}" if backends else ""
    return f"{count} of {_TOOLS[runs[0].tool]}{model}{by}"


def _cells(run: ServingResult) -> dict[str, str]:
    cells = {
        "load": load_in_words(run),
        "done": _count(run.requests),
        "in": _count(run.input_tokens),
        "out": _count(run.output_tokens),
    }
    for name, latency, p99 in (("TTFT", run.ttft_s, "p99"), ("TPOT", run.tpot_s, " p99")):
        cells |= {f"{name} ms": _middle(latency), p99: _digits(latency.p99, 1e3)}
    # What a server that does not stream has instead.
    cells["E2E ms"] = "" if cells["TTFT ms"] else _middle(run.e2e_s)
    return cells | {
        "req/s": _digits(run.requests_per_s),
        "tokens/s": _digits(run.output_tokens_per_s),
    }


def _middle(latency: Latency) -> str:
    return _digits(latency.mean or latency.p50, 1e3)


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _digits(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return ""
    return f"{scale * value:,.0f}" if scale * value >= 1000 else f"{scale * value:.3g}"


def _predicted(findings: ServingFindings) -> str:
    known = [each for each in findings.runs if each.figures]
    if not known:
        return ""
    rows = []
    for name, each in zip(named([one.run for one in known]), known, strict=True):
        shown = each.figures if len(known) == 1 else list(_main(each.figures))
        for place, figure in enumerate(shown):
            rate = figure.name in _RATES
            scale = 1.0 if rate else 1e3
            what = _RATES.get(figure.name, f"{figure.name.upper()} ms, {figure.statistic}")
            rows.append(
                {
                    "load": name if place == 0 else "",
                    "figure": what,
                    "measured": _digits(figure.measured, scale),
                    "predicted": _digits(figure.predicted, scale),
                    "error": f"{figure.error_pct:+.1f} %",
                }
            )
    return sparse_table(rows, left=("load", "figure"))


def _main(figures: Sequence[Figure]) -> Iterator[Figure]:
    """Yield one statistic of each figure: the mean, else the first that is stated."""
    seen: set[str] = set()
    for figure in figures:
        if figure.name not in seen:
            seen.add(figure.name)
            yield figure


def _remarks(reading: ServingResults, findings: ServingFindings) -> Iterator[str]:
    runs = [each.run for each in findings.runs]
    if len(runs) > _MOST_ROWS:
        yield f"Shown are {_MOST_ROWS} of {len(runs)} runs (--json has all)."
    if findings.deployment is not None and any(each.figures for each in findings.runs):
        yield f"Predicted for {in_words(findings.deployment)}: {_errors(findings.runs)}."
    reasons = dict.fromkeys(each.not_predicted for each in findings.runs if each.not_predicted)
    for reason in list(reasons)[:_MOST_REASONS]:
        yield f"Not predicted: {reason}"
    failed = sum(run.failed for run in runs)
    if failed:
        yield f"{failed:,} requests failed; the figures are of the others."
    if any(run.inferred for run in runs):
        yield (
            "Note: the file does not state how many requests were in flight; taken from"
            " throughput x latency."
        )
    if any(run.tokens_per_step for run in runs):
        yield "Note: decoded speculatively; --draft-tokens and --acceptance predict it."
    if findings.deployment is not None and any(
        (run.requests or 0) > MOST_SIMULATED for run in runs
    ):
        yield f"Note: of each run, up to {MOST_SIMULATED:,} requests are simulated."
    yield from unread_in_words(reading.unread)
    if findings.deployment is None:
        yield (
            f"shardcost inspect {reading.file} --model MODEL --on CLUSTER --tp N: predicts the same"
            " load."
        )


def _errors(runs: Sequence[Compared]) -> str:
    """Return the median error of each figure's mean over the runs."""
    import numpy as np

    errors: dict[str, list[float]] = {}
    for each in runs:
        for figure in _main(each.figures):
            errors.setdefault(figure.name, []).append(figure.error_pct)
    parts = [
        f"{_RATES.get(name, name.upper())} {stats(np.array(values)).median_pct:.1f} %"
        for name, values in errors.items()
    ]
    return f"{'median error of ' if len(runs) > 1 else 'error of '}{', '.join(parts)}"
