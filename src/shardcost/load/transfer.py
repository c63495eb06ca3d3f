"""The KV cache of a prompt on its way from a prefill worker to a decode worker.

The ranks of the two workers send side by side, each over its own link: what a rank holds of the
prompt's cache, over the rate of the link (Zhong et al. 2024, DistServe, arXiv:2401.09670, section
3.3). Where layers are sent as they are computed (Patel et al. 2024, Splitwise, arXiv:2311.18677),
only the last one is left when the prompt ends. Before it, the two workers agree on where the cache
goes, which takes a fixed time.
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import largest
from shardcost.load.deployment import Deployment
from shardcost.machine import machine_of


def transfer_s(deployment: Deployment, prompt_tokens: Any) -> Any:
    """Return the seconds between the end of a prompt's prefill and its cache at the decode worker.

    Args:
        deployment: What serves; with one pool, nothing is sent.
        prompt_tokens: Of the prompt, or an array of them.
    """
    if deployment.prefill is None:
        return 0.0 * prompt_tokens
    sender, receiver = deployment.prefill.engine, deployment.serving.engine
    cluster = machine_of(sender.cluster).cluster
    inside = cluster.tiers[-1]
    rate = inside.bytes_per_s
    if cluster.network is not None and deployment.gpus > inside.gpus:
        rate = cluster.network.node_bytes_per_s(cluster.gpus_per_node) / cluster.gpus_per_node
    held = largest(sender.kv_bytes(prompt_tokens), receiver.kv_bytes(prompt_tokens))
    scheduler = receiver.software.scheduler
    layers = sender.model.num_layers if scheduler.layerwise_transfer else 1
    return scheduler.handoff_s + held / layers / rate
