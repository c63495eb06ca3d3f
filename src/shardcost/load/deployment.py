"""What serves: pools of workers, each an engine on its own GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from shardcost.errors import BadValueError
from shardcost.load.engine import Engine


@dataclass(frozen=True)
class Pool:
    """Workers that are alike, behind one router."""

    engine: Engine
    workers: int = 1

    def __post_init__(self) -> None:
        """Raise where there is no worker."""
        if self.workers < 1:
            raise BadValueError("workers", self.workers, "at least 1")

    @property
    def gpus(self) -> int:
        """Of all workers."""
        return int(self.workers * self.engine.layout.devices)


@dataclass(frozen=True)
class Deployment:
    """Workers that prefill and decode; or, disaggregated, a pool for each.

    Disaggregated, a prompt's KV cache travels from the worker that computed it to the one that
    decodes (Zhong et al. 2024, DistServe, arXiv:2401.09670; Patel et al. 2024, Splitwise,
    arXiv:2311.18677).
    """

    serving: Pool
    """What decodes, and prefills too unless `prefill` is given."""
    prefill: Pool | None = None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Prefill first, where there are two."""
        return (self.serving,) if self.prefill is None else (self.prefill, self.serving)

    @property
    def gpus(self) -> int:
        """Of all pools."""
        return sum(pool.gpus for pool in self.pools)
