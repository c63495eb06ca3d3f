"""What can be chosen: the catalog and the words of the options, as the page lists them."""

from __future__ import annotations

from typing import Any

from shardcost import __version__, catalog
from shardcost.model import Model
from shardcost.options import ESTIMATE, PHASES
from shardcost.software import DEFAULT_SOFTWARE


def listing() -> dict[str, Any]:
    """Return all models, clusters, networks, software, collectives and words."""
    from shardcost.collectives.library_time import COLLECTIVES
    from shardcost.report.stepped import algorithms

    return {
        "version": __version__,
        "models": [_model(catalog.model_named(name)) for name in catalog.all_names("models")],
        "clusters": [_cluster(name) for name in catalog.all_names("clusters")],
        "networks": [_network(name) for name in catalog.all_names("networks")],
        "software": [_software(name) for name in catalog.all_names("software")],
        "collectives": list(COLLECTIVES),
        "algorithms": algorithms(),
        "choices": {
            name: list(option.choices) for name, option in ESTIMATE.items() if option.kind == "word"
        },
    }


def _model(model: Model) -> dict[str, Any]:
    plain = ("name", "parameters", "active_parameters", "hidden_size", "context_tokens")
    return {key: getattr(model, key) for key in plain} | {
        "title": model.name,
        "layers": model.num_layers,
        "heads": list(model.attention_heads),
        "experts": model.most_experts,
    }


def _cluster(name: str) -> dict[str, Any]:
    cluster = catalog.cluster_named(name)
    tier, device = cluster.tiers[-1], cluster.device
    plain = ("memory_bytes", "memory_bytes_per_s", "vendor", "architecture")
    return {key: getattr(device, key) for key in plain} | {
        "name": cluster.name,
        "title": cluster.title,
        "gpus_per_node": cluster.gpus_per_node,
        "domain_gpus": tier.gpus,
        "device": device.name,
        "link": tier.kind,
        "link_bytes_per_s": tier.bytes_per_s,
        "peak_flop_per_s": dict(device.peak_flop_per_s),
    }


def _network(name: str) -> dict[str, Any]:
    plain = ("name", "title", "kind", "nic_bytes_per_s", "nics_per_node", "nics_per_gpu")
    return {key: getattr(catalog.network_named(name), key) for key in plain}


def _software(name: str) -> dict[str, Any]:
    """Return a framework or engine."""
    software = catalog.software_named(name)
    return {
        "name": name,
        "title": software.title,
        "phases": list(software.phases or PHASES),
        "vendors": list(software.vendors),
        "usual": name in DEFAULT_SOFTWARE.values(),
    }
