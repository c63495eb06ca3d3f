"""``shardcost clusters``: what clusters and networks the catalog holds."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from shardcost import catalog
from shardcost.catalog import user_files
from shardcost.cli import options
from shardcost.cluster import Cluster, Network
from shardcost.errors import UnknownNameError
from shardcost.files import read_text
from shardcost.report.describe import as_data, cluster_as_text, network_as_text
from shardcost.report.text import table
from shardcost.units import format_bytes, format_rate

_EXAMPLES: Final = """\
  shardcost clusters
  shardcost clusters h100_sxm
  shardcost clusters ib_8x400g --json
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    text = (
        "The clusters and networks in the catalog, or one of them with the source of each figure."
    )
    parser = options.Parser("clusters", text, _EXAMPLES)
    parser.add_argument(
        "name", nargs="?", help="a cluster or network, by name or file.toml: show sources"
    )
    return parser


def run(given: Namespace) -> int:
    """Print one cluster or network, or the list."""
    if given.name is not None:
        noun = _named(given.name)
        return options.print_report(given, lambda: as_data(noun), lambda: _as_text(noun))
    clusters = [catalog.cluster_named(name) for name in catalog.all_names("clusters")]
    networks = [catalog.network_named(name) for name in catalog.all_names("networks")]
    if given.json:
        options.print_json(
            {"clusters": as_data(tuple(clusters)), "networks": as_data(tuple(networks))}
        )
        return 0
    print(f"{_cluster_table(clusters)}\n\n{_network_table(networks)}")
    print("\nNominal rates, per GPU (networks: per port), one direction; dense FLOP/s.")
    return 0


def _named(name: str) -> Cluster | Network:
    """Return the cluster of that name, else the network, else an error that knows both."""
    if catalog.is_file(name):
        content = user_files.parsed(read_text(Path(name), user_files.MOST_BYTES), name)
        is_network = user_files.kind_of(content) == "networks"
        return Network.from_file(name) if is_network else options.cluster(name)
    for find in (catalog.cluster_named, catalog.network_named):
        try:
            return find(name)
        except UnknownNameError:
            continue
    both = catalog.all_names("clusters") + catalog.all_names("networks")
    raise UnknownNameError("cluster or network", name, both, "(`shardcost clusters` lists them)")


def _as_text(noun: Cluster | Network) -> str:
    return cluster_as_text(noun) if isinstance(noun, Cluster) else network_as_text(noun)


def _cluster_table(clusters: list[Cluster]) -> str:
    rows = []
    for cluster in clusters:
        device, tier = cluster.device, cluster.tiers[0]
        peak = max(device.peak_flop_per_s.get(dtype, 0) for dtype in ("bf16", "fp16"))
        rows.append(
            (
                cluster.name,
                f"{tier.gpus}",
                tier.kind,
                format_rate(tier.bytes_per_s),
                format_bytes(device.memory_bytes),
                format_rate(device.memory_bytes_per_s),
                f"{peak / 1e12:,.0f}",
            )
        )
    head = ("cluster", "GPUs", "link", "link rate", "memory", "memory rate", "16-bit TFLOP/s")
    return table(head, rows, right="1345")


def _network_table(networks: list[Network]) -> str:
    rows = [
        (
            network.name,
            f"{network.nics_per_gpu} per GPU"
            if network.nics_per_gpu
            else f"{network.nics_per_node} per node",
            format_rate(network.nic_bytes_per_s),
            network.title,
        )
        for network in networks
    ]
    return table(("network", "ports", "port rate", "what"), rows, right="12")
