"""The deployment that a serving benchmark was run on, by options of ``inspect``, ``calibrate``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from shardcost import options as table
from shardcost import values
from shardcost.cli import options
from shardcost.errors import BadValueError, UsageError
from shardcost.request import layout_of

if TYPE_CHECKING:
    from shardcost.formats.serving_results import ServingResult
    from shardcost.load.deployment import Deployment
    from shardcost.software import Software

_LAYOUT: Final = tuple(row for row in table.LAYOUT if "decode" in row.applies_to)
_FORMATS: Final = tuple(
    row for row in table.WORKLOAD if row.name.endswith("dtype") and "decode" in row.applies_to
)
_DRAFTS: Final = tuple(row for row in table.WORKLOAD if row.name in {"draft_tokens", "acceptance"})
_SCHEDULER: Final = {
    "max_num_seqs": (values.whole, "N", "sequences that a rank decodes together, at most"),
    "max_num_batched_tokens": (values.whole, "N", "tokens of one step of a rank, at most"),
    "memory_share": (values.share, "P", "share of the memory that the engine uses, like 90%%"),
}
_OWN: Final = ("model", "software", "workers")
_ENGINES: Final = {
    "vllm": "vllm", "sglang": "sglang", "sglang-native": "sglang", "sglang-oai": "sglang",
    "trt": "trtllm", "tensorrt-llm": "trtllm", "tensorrtllm": "trtllm",
}  # fmt: skip
"""Engines of the catalog by what benchmarks call their backends."""


def add_options(parser: options.Parser) -> None:
    """Add the options of a deployment; ``--on``, ``--network`` and ``--gpus`` are there already."""
    group = parser.add_argument_group(
        "deployment", "what a serving benchmark was run on; --gpus counts those of all workers"
    )
    group.add_argument("--model", metavar="MODEL", help=f"{table.MODEL.help}, or a config.json")
    text = "the engine: a name of the catalog, or a .toml file (what the results name)"
    group.add_argument("--software", metavar="NAME", help=text)
    group.add_argument("--workers", metavar="N", help="workers alike behind one router")
    for name, (_, metavar, help_) in _SCHEDULER.items():
        group.add_argument(table.flag(name), metavar=metavar, help=f"{help_} (the engine's own)")
    options.add_options(group, (*_LAYOUT, *_FORMATS, *_DRAFTS))


def requested(given: Namespace) -> list[str]:
    """Return the options of a deployment that are given."""
    rows = (row.name for row in (*_LAYOUT, *_FORMATS, *_DRAFTS))
    names = (*_OWN, *_SCHEDULER, *rows)
    return [table.flag(name) for name in names if getattr(given, name) is not None]


def deployment_of(given: Namespace, runs: Sequence[ServingResult]) -> Deployment:
    """Return the deployment that the options describe, of the engine that they or runs name."""
    from shardcost.load.deployment import Deployment, Pool
    from shardcost.load.engine import Engine

    finder, chosen = options.OnDisk(), vars(given)
    if given.model is None:
        raise UsageError("a deployment needs --model MODEL (`shardcost models` lists them)")
    model = finder.model(given.model)
    cluster = finder.cluster(given.on, given.network)
    layout = layout_of({**chosen, "gpus": None})
    formats, drafts = _read(chosen, _FORMATS), _read(chosen, _DRAFTS)
    if "acceptance" in drafts and "draft_tokens" not in drafts:
        raise UsageError("--acceptance is of drafts; give --draft-tokens")
    engine = Engine(model, cluster, layout, _software(given, finder, runs), formats, **drafts)
    return Deployment(Pool(engine, _workers(given, int(layout.devices))))


def _read(chosen: dict[str, Any], rows: Sequence[table.Option]) -> dict[str, Any]:
    return {row.name: row.read(chosen[row.name]) for row in rows if chosen[row.name] is not None}


def _software(given: Namespace, finder: options.OnDisk, runs: Sequence[ServingResult]) -> Software:
    name = given.software
    if name is None:
        backends = {run.backend for run in runs}
        named = {_ENGINES.get(backend.lower()) for backend in backends}
        name = named.pop() if len(named) == 1 else None
    if name is None:
        raise UsageError("the results do not name one engine: give --software NAME")
    software = finder.software(name)
    settings: dict[str, Any] = {
        each: read(table.flag(each), getattr(given, each))
        for each, (read, _, _) in _SCHEDULER.items()
        if getattr(given, each) is not None
    }
    return replace(software, scheduler=replace(software.scheduler, **settings))


def _workers(given: Namespace, devices: int) -> int:
    workers, gpus = values.count("--workers", given.workers), values.count("--gpus", given.gpus)
    if gpus is None:
        return workers or 1
    if gpus % devices or (workers is not None and workers * devices != gpus):
        rule = f"workers x the {devices} of a worker"
        raise BadValueError("--gpus", gpus, rule)
    return gpus // devices
