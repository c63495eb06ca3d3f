"""The deployment that a serving benchmark was run on, by options of ``inspect``, ``calibrate``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shardcost import options as table
from shardcost.cli import options
from shardcost.errors import UsageError
from shardcost.option import flag
from shardcost.request import load

if TYPE_CHECKING:
    from shardcost.formats.serving_results import ServingResult
    from shardcost.load.deployment import Deployment

_OPTIONS: Final = (
    *(row for row in table.POOLS if row.name == "workers"),
    *table.WORKER,
    *table.SCHEDULER,
)
_OWN: Final = ("model", "software")
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
    options.add_options(group, _OPTIONS)


def requested(given: Namespace) -> list[str]:
    """Return the options of a deployment that are given."""
    names = (*_OWN, *(row.name for row in _OPTIONS))
    return [flag(name) for name in names if getattr(given, name) is not None]


def deployment_of(given: Namespace, runs: Sequence[ServingResult]) -> Deployment:
    """Return the deployment that the options describe, of the engine that they or runs name."""
    if given.model is None:
        raise UsageError("a deployment needs --model MODEL (`shardcost models` lists them)")
    chosen = vars(given)
    if given.software is None:
        named = {_ENGINES.get(run.backend.lower()) for run in runs}
        if len(named) != 1 or None in named:
            raise UsageError("the results do not name one engine: give --software NAME")
        chosen = {**chosen, "software": named.pop()}
    return load.deployment_of(chosen, options.OnDisk())
