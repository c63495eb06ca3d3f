"""What serves: pools of workers, each an engine on its own GPUs."""

from __future__ import annotations

from typing import Any

from shardcost import resolve
from shardcost.arrays import largest
from shardcost.errors import BadValueError
from shardcost.layout import Layout
from shardcost.load.engine import Engine
from shardcost.machine import Machine, machine_of
from shardcost.records import dataclass
from shardcost.resolve import GivenCluster, GivenModel, GivenNetwork, GivenSoftware
from shardcost.software import default_software


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

    @classmethod
    def of(
        cls,
        model: GivenModel,
        cluster: GivenCluster | Machine,
        layout: Layout,
        *,
        software: GivenSoftware | None = None,
        network: GivenNetwork = None,
        workers: int = 1,
    ) -> Deployment:
        """Return workers that are alike and do both, of what may be named as for `estimate`.

        >>> Deployment.of("Qwen/Qwen3-8B", "h100_sxm", Layout(tp=2), workers=4).gpus
        8

        Args:
            model: What is served.
            cluster: Where.
            layout: Of one worker.
            software: The engine; the usual one of the devices if none is named.
            network: What joins the nodes.
            workers: How many there are.
        """
        place = resolve.cluster(cluster, network)
        usual = default_software("decode", [machine_of(place).cluster.device.vendor])
        runs = resolve.software(software or usual).in_phase("decode")
        return cls(Pool(Engine(resolve.model(model), place, layout, runs), workers))

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Prefill first, where there are two."""
        return (self.serving,) if self.prefill is None else (self.prefill, self.serving)

    @property
    def gpus(self) -> int:
        """Of all pools."""
        return sum(pool.gpus for pool in self.pools)

    def transfer_s(self, prompt_tokens: Any) -> Any:
        """Return the seconds between the end of a prompt's prefill and its cache at the decoder.

        The ranks of two workers send side by side, each over its own link: what a rank holds of
        the prompt's cache, over the rate of the link (DistServe, section 3.3). Where layers are
        sent as they are computed (Splitwise), only the last one is left when the prompt ends.
        Before it, the workers agree on where the cache goes, which takes a fixed time. With one
        pool, nothing is sent.

        Args:
            prompt_tokens: Of the prompt, or an array of them.
        """
        if self.prefill is None:
            return 0.0 * prompt_tokens
        sender, receiver = self.prefill.engine, self.serving.engine
        cluster = machine_of(sender.cluster).cluster
        inside = cluster.tiers[-1]
        rate = inside.bytes_per_s
        if cluster.network is not None and self.gpus > inside.gpus:
            rate = cluster.network.node_bytes_per_s(cluster.gpus_per_node) / cluster.gpus_per_node
        held = largest(sender.kv_bytes(prompt_tokens), receiver.kv_bytes(prompt_tokens))
        scheduler = receiver.software.scheduler
        layers = sender.model.num_layers if scheduler.layerwise_transfer else 1
        return scheduler.handoff_s + held / layers / rate
