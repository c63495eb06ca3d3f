"""What can be chosen: the catalog and the words of the options, as the page lists them."""

from __future__ import annotations

from functools import cache
from typing import Any

from shardcost import __version__, catalog
from shardcost.estimate.totals import SERVES_WITH, TRAINS_WITH
from shardcost.model import Model
from shardcost.options import ESTIMATE


@cache
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
    return {
        "name": model.name,
        "title": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "heads": list(model.attention_heads),
        "experts": model.most_experts,
        "context_tokens": model.context_tokens,
        "not_priced_yet": list(model.not_priced_yet),
    }


def _cluster(name: str) -> dict[str, Any]:
    found = catalog.cluster_named(name)
    tier = found.tiers[-1]
    return {
        "name": found.name,
        "title": found.title,
        "gpus_per_node": found.gpus_per_node,
        "domain_gpus": tier.gpus,
        "memory_bytes": found.device.memory_bytes,
        "memory_bytes_per_s": found.device.memory_bytes_per_s,
        "device": found.device.name,
        "vendor": found.device.vendor,
        "architecture": found.device.architecture,
        "link": tier.kind,
        "link_bytes_per_s": tier.bytes_per_s,
        "peak_flop_per_s": dict(found.device.peak_flop_per_s),
    }


def _network(name: str) -> dict[str, Any]:
    found = catalog.network_named(name)
    return {
        "name": found.name,
        "title": found.title,
        "kind": found.kind,
        "nic_bytes_per_s": found.nic_bytes_per_s,
        "nics_per_node": found.nics_per_node,
        "nics_per_gpu": found.nics_per_gpu,
    }


def _software(name: str) -> dict[str, Any]:
    """Return a framework or engine; who trains says what hides the sums of gradients."""
    content, _ = catalog.preset("software", name)
    trains = "dp_overlap" in content.get("choices", {})
    return {
        "name": name,
        "title": content["title"],
        "phases": ["train"] if trains else ["prefill", "decode"],
        "usual": name in {TRAINS_WITH, SERVES_WITH},
    }
