"""Where the ranks of one collective sit: how many, on how many nodes, joined by which links.

`Group.on` checks that the ranks fit and finds what every model of time needs to know: the scale-up
domains that the group spans, the rate at which one of its devices can send inside a domain, and
the rate at which one domain can send to the others. Ranks and nodes may be arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from shardcost.arrays import largest, smallest
from shardcost.catalog import tuner_table
from shardcost.checks import Count, Quantity, anywhere, count_or_array
from shardcost.cluster import Cluster, Tier
from shardcost.errors import BadValueError

NVLINK_KINDS: Final = frozenset({"nvswitch", "cube_mesh", "full_mesh"})


def most_heads() -> int:
    """Return at how many devices of a domain libraries lead traffic out of it at most."""
    heads: int = tuner_table("nccl")["in_switch"]["most_heads"]
    return heads


@dataclass(frozen=True)
class Group:
    """The ranks of one collective on a cluster."""

    cluster: Cluster
    ranks: Count
    nodes: Count
    domains: Count
    """Scale-up domains (an NVSwitch node, an NVL72 rack) that the group spans."""
    link_bytes_per_s: Quantity
    """Nominal rate at which one device sends to the others of its domain, all at once."""
    pair_bytes_per_s: Quantity
    """Nominal rate at which one device sends to one other."""
    port_bytes_per_s: Quantity
    """Nominal rate at which one device sends into the network, its share of the ports; 0 without
    a network."""

    @classmethod
    def on(cls, cluster: Cluster, gpus: Any, nodes: Any = None, stride: Any = 1) -> Group:
        """Return `gpus` ranks on `nodes` nodes; without `nodes`, on as few as hold them.

        With a `stride` the ranks are every so many devices apart, and the devices between them
        are taken to do the same in groups of their own, at the same time: they share the ports.
        """
        ranks = count_or_array("gpus", gpus)
        tier = cluster.tiers[-1]
        if nodes is None:
            hosts, domains = _fewest(cluster, ranks, stride)
        else:
            hosts = count_or_array("nodes", nodes)
            domains = _spanned(cluster, tier, hosts)
        _check_fit(cluster, ranks, hosts, domains)
        if cluster.network is None and anywhere(domains > 1):
            what, value = ("gpus", ranks) if nodes is None else ("nodes", hosts)
            given, apart = (_first(each, domains > 1) for each in (value, stride))
            raise BadValueError(
                what,
                given if apart == 1 else f"{given} that are {apart} apart",
                f"within one domain of {cluster.name}, which has {tier.gpus} GPUs"
                " (name a network for more: `shardcost clusters` lists them)",
            )
        return cls(
            cluster=cluster,
            ranks=ranks,
            nodes=hosts,
            domains=domains,
            link_bytes_per_s=tier.ring_bytes_per_s(largest(2, -(-ranks // domains))),
            pair_bytes_per_s=tier.ring_bytes_per_s(2),
            port_bytes_per_s=_port_rate(
                cluster, smallest(ranks / hosts * stride, cluster.gpus_per_node)
            ),
        )

    @cached_property
    def ranks_per_domain(self) -> Quantity:
        """Ranks that share one domain."""
        return self.ranks / self.domains

    @cached_property
    def domain_port_bytes_per_s(self) -> Quantity:
        """Nominal rate at which one domain sends into the network; 0 without one.

        Libraries lead their traffic out of a domain at a few devices (`most_heads`); a rack with
        more ports than those has does not send faster for it.
        """
        leaving: Quantity = largest(
            self.ranks / self.nodes, smallest(self.ranks_per_domain, most_heads())
        )
        return self.port_bytes_per_s * leaving

    @property
    def tier(self) -> Tier:
        """The links inside a domain."""
        return self.cluster.tiers[-1]

    @cached_property
    def has_nvlink(self) -> bool:
        """Whether devices of a domain reach each other over links of their own, not PCIe."""
        return self.tier.kind in NVLINK_KINDS


def sits_unevenly(cluster: Cluster, ranks: Any, stride: Any = 1) -> Any:
    """Return where ranks `stride` devices apart would fill nodes or domains unevenly.

    >>> cluster = Cluster.named("h100_sxm")
    >>> [sits_unevenly(cluster, ranks) for ranks in (8, 12, 13, 16)]
    [False, False, True, False]
    """
    return _uneven(ranks, *_fewest(cluster, ranks, stride))


def _fewest(cluster: Cluster, ranks: Any, stride: Any) -> tuple[Any, Any]:
    """Return the fewest nodes that hold ranks so many devices apart, and their domains."""
    reach = -(-(ranks * stride) // cluster.gpus_per_node)
    hosts = smallest(ranks, reach)
    return hosts, smallest(hosts, _spanned(cluster, cluster.tiers[-1], reach))


def _uneven(ranks: Any, nodes: Any, domains: Any) -> Any:
    return ((ranks % nodes != 0) | (nodes % domains != 0)) & (domains > 1)


def _check_fit(cluster: Cluster, ranks: Any, nodes: Any, domains: Any) -> None:
    per_node = cluster.gpus_per_node
    too_many = ranks > nodes * per_node
    if anywhere(too_many):
        count = _first(nodes, too_many)
        rule = f"at most {count * per_node} on {count} node{'s' * (count > 1)} of {cluster.name}"
        raise BadValueError("gpus", _first(ranks, too_many), rule)
    too_few = ranks < nodes
    if anywhere(too_few):
        rule = f"at least {_first(nodes, too_few)}, one for each node"
        raise BadValueError("gpus", _first(ranks, too_few), rule)
    uneven = _uneven(ranks, nodes, domains)
    if anywhere(uneven):
        count, parts = _first(nodes, uneven), _first(domains, uneven)
        rule = f"the same on each of {count} nodes" + f" in {parts} domains" * (count != parts)
        way_out = "uneven groups were never measured: name a number of nodes that divides evenly"
        raise BadValueError("gpus", _first(ranks, uneven), f"{rule} ({way_out})")


def _spanned(cluster: Cluster, tier: Tier, nodes: Any) -> Any:
    """Return how many domains the nodes make up: several nodes each where a rack is one domain."""
    return -(-nodes // max(1, tier.gpus // cast("int", cluster.gpus_per_node)))


def _port_rate(cluster: Cluster, ranks_per_node: Any) -> Any:
    """Return the network rate per device of a node that takes part with some of its devices.

    Ports belong to devices: half of the devices reach half of the ports, and at least one.
    """
    if cluster.network is None:
        return 0.0
    full = cluster.network.node_bytes_per_s(cluster.gpus_per_node)
    one = smallest(full, cluster.network.nic_bytes_per_s)
    return largest(full / cluster.gpus_per_node, one / ranks_per_node)


def _first(cells: Any, where: Any) -> Any:
    """Return the first value, of a number or an array, for which a condition holds."""
    import numpy as np

    both = np.broadcast_arrays(cells, where)
    found = both[0][both[1]][0]
    return found.item() if hasattr(found, "item") else found
