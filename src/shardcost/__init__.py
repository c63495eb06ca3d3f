"""shardcost: what it costs to shard a transformer over accelerators.

The front door is `tensor_parallel_allreduce_cost`, which needs only the standard library. All
names below are imported when they are first used, so that ``import shardcost`` is instant and a
program that needs no NumPy loads none.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardcost.allreduce import tensor_parallel_allreduce_cost
    from shardcost.allreduce_grid import tensor_parallel_allreduce_cost_grid
    from shardcost.calibrate.profile import Profile
    from shardcost.cluster import Cluster, Device, Network, Tier
    from shardcost.collectives.dispatch import DispatchTime, dispatch_time
    from shardcost.collectives.library_time import CollectiveTime, collective_time
    from shardcost.errors import (
        BadTypeError,
        BadValueError,
        FormatError,
        InfeasibleError,
        LostWorkerError,
        MissingExtraError,
        ShardcostError,
        UnknownNameError,
    )
    from shardcost.estimate.result import Estimate
    from shardcost.estimate.step import estimate
    from shardcost.goodput.run import TrainingRun, training_run
    from shardcost.layout import Layout
    from shardcost.load.deployment import Deployment, Pool
    from shardcost.load.engine import Engine
    from shardcost.load.requests import Lengths, Requests
    from shardcost.load.result import Limits, Load
    from shardcost.load.simulate import simulate
    from shardcost.model import Model
    from shardcost.resilience import Resilience
    from shardcost.search.found import Candidate, Found
    from shardcost.search.plan import Plan
    from shardcost.search.run import search
    from shardcost.search.space import Space
    from shardcost.software import Software
    from shardcost.workload import Decode, Prefill, Train, Workload

__version__ = "0.2.0"

_HOMES = {
    "shardcost.allreduce": ("tensor_parallel_allreduce_cost",),
    "shardcost.allreduce_grid": ("tensor_parallel_allreduce_cost_grid",),
    "shardcost.calibrate.profile": ("Profile",),
    "shardcost.cluster": ("Cluster", "Device", "Network", "Tier"),
    "shardcost.collectives.dispatch": ("DispatchTime", "dispatch_time"),
    "shardcost.collectives.library_time": ("CollectiveTime", "collective_time"),
    "shardcost.errors": (
        "BadTypeError",
        "BadValueError",
        "FormatError",
        "InfeasibleError",
        "LostWorkerError",
        "MissingExtraError",
        "ShardcostError",
        "UnknownNameError",
    ),
    "shardcost.estimate.step": ("estimate",),
    "shardcost.estimate.result": ("Estimate",),
    "shardcost.goodput.run": ("TrainingRun", "training_run"),
    "shardcost.layout": ("Layout",),
    "shardcost.load.deployment": ("Deployment", "Pool"),
    "shardcost.load.engine": ("Engine",),
    "shardcost.load.requests": ("Lengths", "Requests"),
    "shardcost.load.result": ("Limits", "Load"),
    "shardcost.load.simulate": ("simulate",),
    "shardcost.model": ("Model",),
    "shardcost.resilience": ("Resilience",),
    "shardcost.search.found": ("Candidate", "Found"),
    "shardcost.search.plan": ("Plan",),
    "shardcost.search.run": ("search",),
    "shardcost.search.space": ("Space",),
    "shardcost.software": ("Software",),
    "shardcost.workload": ("Decode", "Prefill", "Train", "Workload"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BadTypeError",
    "BadValueError",
    "Candidate",
    "Cluster",
    "CollectiveTime",
    "Decode",
    "Deployment",
    "Device",
    "DispatchTime",
    "Engine",
    "Estimate",
    "FormatError",
    "Found",
    "InfeasibleError",
    "Layout",
    "Lengths",
    "Limits",
    "Load",
    "LostWorkerError",
    "MissingExtraError",
    "Model",
    "Network",
    "Plan",
    "Pool",
    "Prefill",
    "Profile",
    "Requests",
    "Resilience",
    "ShardcostError",
    "Software",
    "Space",
    "Tier",
    "Train",
    "TrainingRun",
    "UnknownNameError",
    "Workload",
    "__version__",
    "collective_time",
    "dispatch_time",
    "estimate",
    "search",
    "simulate",
    "tensor_parallel_allreduce_cost",
    "tensor_parallel_allreduce_cost_grid",
    "training_run",
]


class _Package(type(sys)):  # type: ignore[misc]
    """The package: a room that is imported does not hide the function of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOME_OF or not isinstance(value, type(sys)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'shardcost' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
