"""What can be chosen: the catalog and the words of the options, as the page lists them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from shardcost import __version__, catalog
from shardcost.cluster import Device
from shardcost.dtypes import format_on, weight_format
from shardcost.errors import UnknownNameError
from shardcost.model import Model
from shardcost.option import PHASES
from shardcost.options import ESTIMATE
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
        "aliases": catalog.aliases("models", model.name),
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
        "usual_network": cluster.usual_network,
        "domain_gpus": tier.gpus,
        "device": device.name,
        "link": tier.kind,
        "link_bytes_per_s": tier.bytes_per_s,
        "peak_flop_per_s": dict(device.peak_flop_per_s),
        "formats": _formats(device),
    }


def _formats(device: Device) -> dict[str, dict[str, str]]:
    """Return the number formats that a device takes, by phase, each as what it is multiplied.

    In serving, weights of a format that it does not multiply are widened to one that it does.
    """
    train, serve = {}, {}
    for name in ESTIMATE["dtype"].choices:
        with suppress(UnknownNameError):
            serve[name] = device.multiplied(name).product
            # Activations have the format of the arithmetic in training: nothing is widened.
            if weight_format(format_on(name, device.peak_flop_per_s)).product == serve[name]:
                train[name] = serve[name]
    return {"train": train, "prefill": serve, "decode": serve}


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
