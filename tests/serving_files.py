"""Simulated loads written as load generators write their results; small, for tests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from shardcost.load.result import Load

_QUANTILES = (50, 90, 95, 99)


def values_of(load: Load) -> dict[str, Any]:
    """Return each latency of every request, in seconds; gaps between tokens as they are counted."""
    gaps = np.repeat(load.gaps_s, np.rint(load.gap_counts).astype(int))
    return {
        "ttft": load.first_token_s - load.arrival_s,
        "tpot": load.tpot_each_s,
        "itl": gaps,
        "e2e": load.finished_s - load.arrival_s,
    }


def _bench(load: Load, e2e: str, **known: Any) -> dict[str, Any]:
    """Return what vLLM's benchmark and SGLang's have in common."""
    stream = load.requests.stream()
    result = {
        **known,
        "duration": load.span_s,
        "completed": len(load.served),
        "total_input_tokens": int(stream.prompt_tokens[load.served].sum()),
        "total_output_tokens": int(load.output_tokens.sum()),
        "request_throughput": load.requests_per_s,
        "output_throughput": load.output_tokens_per_s,
    }
    for name, values in values_of(load).items():
        key = e2e if name == "e2e" else name
        result[f"mean_{key}_ms"] = 1e3 * float(np.mean(values))
        result[f"median_{key}_ms"] = 1e3 * float(np.median(values))
        result[f"std_{key}_ms"] = 1e3 * float(np.std(values))
        result[f"p99_{key}_ms"] = 1e3 * float(np.percentile(values, 99))
    return result


def details(load: Load) -> dict[str, Any]:
    """Return the requests one by one, as ``--save-detailed`` and ``--output-details`` do."""
    stream = load.requests.stream()
    ttfts = load.first_token_s - load.arrival_s
    spans, counts = load.finished_s - load.first_token_s, load.output_tokens - 1
    return {
        "input_lens": stream.prompt_tokens[load.served].tolist(),
        "output_lens": load.output_tokens.tolist(),
        "ttfts": ttfts.tolist(),
        "itls": [[float(s) / int(n)] * int(n) for s, n in zip(spans, counts, strict=True)],
        "generated_texts": ["…"] * len(ttfts),
        "errors": [""] * len(ttfts),
    }


def vllm_bench(load: Load, *, rate: float | str = "inf", concurrency: int | None = None,
               detailed: bool = False) -> str:  # fmt: skip
    """Return the JSON of ``vllm bench serve --save-result``."""
    first = {
        "date": "20260101-120000",
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": len(load.served),
        "request_rate": rate,
        "burstiness": 1.0,
        "max_concurrency": concurrency,
    }
    result = _bench(load, "e2el", **first) | {"failed": 0, "request_goodput": None}
    return json.dumps(result | (details(load) if detailed else {}))


def sglang_bench(load: Load, *, rate: float = float("inf"), concurrency: int | None = None) -> str:
    """Return a line of what ``sglang.bench_serving`` appends to its JSONL file."""
    first = {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": rate,  # written as Infinity
        "max_concurrency": concurrency,
        "random_input_len": 1024,
        "random_output_len": 256,
        "random_range_ratio": 1.0,
    }
    result = _bench(load, "e2e_latency", **first)
    return json.dumps(result | {"concurrency": 1.0, "accept_length": None}) + "\n"


def _genai_metrics(load: Load) -> dict[str, dict[str, Any]]:
    values = values_of(load)
    lengths = load.requests.stream().prompt_tokens[load.served]
    rows = {
        "time_to_first_token": ("ms", 1e3 * values["ttft"]),
        "request_latency": ("ms", 1e3 * values["e2e"]),
        "inter_token_latency": ("ms", 1e3 * values["tpot"]),
        "output_sequence_length": ("tokens", load.output_tokens),
        "input_sequence_length": ("tokens", lengths),
    }
    metrics: dict[str, dict[str, Any]] = {
        "request_throughput": {"unit": "requests/sec", "avg": load.requests_per_s},
        "output_token_throughput": {"unit": "tokens/sec", "avg": load.output_tokens_per_s},
        "request_count": {"unit": "count", "avg": float(len(load.served))},
    }
    for name, (unit, each) in rows.items():
        metrics[name] = {
            "unit": unit,
            "avg": float(np.mean(each)),
            "min": float(np.min(each)),
            "max": float(np.max(each)),
            **{f"p{p}": float(np.percentile(each, p)) for p in (99, 95, 90, 75, 50, 25)},
            "std": float(np.std(each)),
        }
    return metrics


def genai_perf(load: Load, *, rate: float | None = None, concurrency: int | None = None) -> str:
    """Return ``profile_export_genai_perf.json``."""
    config = {
        "model": ["llama-3.1-8b"],
        "backend": "vllm",
        "endpoint": None,
        "concurrency": concurrency,
        "request_rate": rate,
    }
    return json.dumps(_genai_metrics(load) | {"input_config": config}, indent=2)


def genai_perf_csv(load: Load) -> str:
    """Return ``profile_export_genai_perf.csv``."""
    columns = ["avg", "min", "max", "p99", "p95", "p90", "p75", "p50", "p25"]
    many, single = [",".join(["Metric", *columns])], ["Metric,Value"]
    units = {"requests/sec": "per sec", "tokens/sec": "per sec"}
    for name, metric in _genai_metrics(load).items():
        unit = units.get(metric["unit"], metric["unit"])
        label = f"{name.replace('_', ' ').title()} ({unit})"
        if "min" in metric:
            cells = [f'"{metric[column]:,.2f}"' for column in columns]
            many.append(",".join([label, *cells]))
        else:
            single.append(f"{label},{metric['avg']:.2f}")
    return "\r\n".join([*many, "", *single]) + "\r\n"


def inference_perf(load: Load, *, rate: float | None = None, concurrency: int | None = None) -> str:
    """Return ``stage_0_lifecycle_metrics.json``; without rate and concurrency, the summary."""

    def summary(values: Any) -> dict[str, float]:
        named = {p: "median" if p == 50 else f"p{p}" for p in (10, *_QUANTILES)}
        rows = {name: float(np.percentile(values, p)) for p, name in named.items()}
        return {"mean": float(np.mean(values)), "min": float(np.min(values)), **rows}

    values = values_of(load)
    prompts = load.requests.stream().prompt_tokens[load.served]
    stage: dict[str, Any] = {"count": len(load.served), "schedule_delay": summary([0.0])}
    if rate is not None or concurrency is not None:
        stage |= {"send_duration": load.span_s, "requested_rate": rate or 1.0, "achieved_rate": 1.0}
    if concurrency is not None:
        stage["concurrency"] = concurrency
    return json.dumps(
        {
            "benchmark_time_seconds": load.span_s,
            "load_summary": stage,
            "successes": {
                "count": len(load.served),
                "latency": {
                    "request_latency": summary(values["e2e"]),
                    "normalized_time_per_output_token": summary(values["tpot"]),
                    "time_per_output_token": summary(values["tpot"]),
                    "time_to_first_token": summary(values["ttft"]),
                    "inter_token_latency": summary(values["itl"]),
                },
                "throughput": {
                    "input_tokens_per_sec": float(prompts.sum()) / load.span_s,
                    "output_tokens_per_sec": load.output_tokens_per_s,
                    "requests_per_sec": load.requests_per_s,
                },
                "prompt_len": summary(prompts),
                "output_len": summary(load.output_tokens),
            },
            "failures": {"count": 0, "request_latency": None},
        },
        indent=2,
    )
