"""Where the ranks of one collective sit: how many, on how many nodes, joined by which links.

`Group.on` checks that the ranks fit and finds what every model of time needs to know: the scale-up
domains that the group spans, the rate at which one of its devices can send inside a domain, and
the rate at which one domain can send to the others. Ranks and nodes may be arrays. From these
follow the rates that a collective cannot exceed and the time below which no algorithm can be.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import Any, Final, cast

from shardcost.arrays import choose, largest, smallest
from shardcost.catalog import tuner_table
from shardcost.checks import Count, Quantity, anywhere, count_or_array
from shardcost.cluster import Cluster, Tier
from shardcost.errors import BadValueError
from shardcost.records import dataclass
from shardcost.torus import Spanned

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
    stride: Any = 1
    """Devices from one rank to the next."""
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What formulas found out about the group, whatever the size of a buffer: a machine keeps its
    groups, and a new size costs only what depends on it."""

    @classmethod
    def on(cls, cluster: Cluster, gpus: Any, nodes: Any = None, stride: Any = 1) -> Group:
        """Return `gpus` ranks on `nodes` nodes; without `nodes`, on as few as hold them.

        Where they do not divide, they are spread as evenly as can be: 13 on two nodes are 7 and 6.
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
        _check_fit(cluster, ranks, hosts)
        if cluster.network is None and anywhere(domains > 1):
            what, value = ("gpus", ranks) if nodes is None else ("nodes", hosts)
            given, apart = (_first(each, domains > 1) for each in (value, stride))
            usual = f", such as {cluster.usual_network}" if cluster.usual_network else ""
            raise BadValueError(
                what,
                given if apart == 1 else f"{given} that are {apart} apart",
                f"within one domain of {cluster.name}, which has {tier.gpus} GPUs"
                f" (name a network for more{usual}: `shardcost clusters` lists them)",
            )
        port: Any = 0.0
        if cluster.network is not None:
            # Ports belong to devices: half of the devices reach half of the ports, at least one.
            full = cluster.network.node_bytes_per_s(cluster.gpus_per_node)
            one = smallest(full, cluster.network.nic_bytes_per_s)
            per_node = smallest(-(-ranks // hosts) * stride, cluster.gpus_per_node)
            port = largest(full / cluster.gpus_per_node, one / per_node)
            if anywhere(cluster.network.oversubscription != 1):
                beyond = domains > cluster.network.leaf_domains
                port = port / choose(beyond, cluster.network.oversubscription, 1)
        return cls(
            cluster=cluster,
            ranks=ranks,
            nodes=hosts,
            domains=domains,
            link_bytes_per_s=smallest(
                tier.ring_bytes_per_s(largest(2, -(-ranks // domains)), stride),
                tier.ring_bytes_per_s(largest(2, ranks // domains), stride),
            ),
            pair_bytes_per_s=_pair_bytes_per_s(tier, stride),
            port_bytes_per_s=port,
            stride=stride,
        )

    @cached_property
    def torus(self) -> Spanned:
        """What the group covers of the torus of a domain."""
        return self.tier.spanned(self.ranks_per_domain, self.stride)

    @cached_property
    def exchange_bytes_per_s(self) -> Quantity:
        """Nominal rate at which one device sends its own data to every other of its domain.

        On a torus messages cross several links, and the middle of the longest axis decides.
        """
        if self.tier.kind != "torus":
            return self.link_bytes_per_s
        near = largest(self.ranks_per_domain, 2)
        rate: Quantity = self.tier.link_bytes_per_s * (near - 1) / near / self.torus.exchange
        return rate

    @cached_property
    def ranks_per_domain(self) -> Count:
        """Ranks in the fullest domain."""
        most: Count = smallest(
            self.ranks, -(-self.nodes // self.domains) * -(-self.ranks // self.nodes)
        )
        return most

    @cached_property
    def fewest_per_domain(self) -> Count:
        """Ranks in the emptiest domain: it has the fewest ports, and the most ranks beyond it."""
        fewest: Count = largest(
            self.ranks + self.ranks_per_domain * (1 - self.domains),
            (self.nodes // self.domains) * (self.ranks // self.nodes),
        )
        return fewest

    @cached_property
    def domain_port_bytes_per_s(self) -> Quantity:
        """Nominal rate at which the domain with the fewest ports sends into the network, or 0.

        Libraries lead their traffic out of a domain at a few devices (`most_heads`); a rack with
        more ports than those has does not send faster for it.
        """
        if self.tier.kind == "torus":  # every host of a slice sends for its own devices
            return self.port_bytes_per_s * self.fewest_per_domain
        leaving: Quantity = largest(
            self.ranks // self.nodes, smallest(self.fewest_per_domain, most_heads())
        )
        return self.port_bytes_per_s * leaving

    @cached_property
    def beyond_leaf(self) -> Any:
        """Whether the traffic between domains passes the spine of the network."""
        network = self.cluster.network
        return False if network is None else self.domains > network.leaf_domains

    @property
    def tier(self) -> Tier:
        """The links inside a domain."""
        return self.cluster.tiers[-1]

    @cached_property
    def has_nvlink(self) -> bool:
        """Whether devices of a domain reach each other over links of their own, not PCIe."""
        return self.tier.kind in NVLINK_KINDS


def _pair_bytes_per_s(tier: Tier, stride: Any) -> Any:
    """Return the rate from one rank to the next: on a torus that may be on another chip."""
    rate = tier.ring_bytes_per_s(2, stride)
    return smallest(rate, tier.link_bytes_per_s) if tier.kind == "torus" else rate


def sits_unevenly(cluster: Cluster, ranks: Any, stride: Any = 1) -> Any:
    """Return where ranks `stride` devices apart would fill nodes or domains unevenly.

    >>> cluster = Cluster.named("h100_sxm")
    >>> [sits_unevenly(cluster, ranks) for ranks in (8, 12, 13, 16)]
    [False, False, True, False]
    """
    nodes, domains = _fewest(cluster, ranks, stride)
    return ((ranks % nodes != 0) | (nodes % domains != 0)) & (domains > 1)


def _fewest(cluster: Cluster, ranks: Any, stride: Any) -> tuple[Any, Any]:
    """Return the fewest nodes that hold ranks so many devices apart, and their domains."""
    reach = -(-(ranks * stride) // cluster.gpus_per_node)
    hosts = smallest(ranks, reach)
    return hosts, smallest(hosts, _spanned(cluster, cluster.tiers[-1], reach))


def _check_fit(cluster: Cluster, ranks: Any, nodes: Any) -> None:
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


def _spanned(cluster: Cluster, tier: Tier, nodes: Any) -> Any:
    """Return how many domains the nodes make up: several nodes each where a rack is one domain."""
    return -(-nodes // max(1, tier.gpus // cast("int", cluster.gpus_per_node)))


def _first(cells: Any, where: Any) -> Any:
    """Return the first value, of a number or an array, for which a condition holds."""
    import numpy as np

    both = np.broadcast_arrays(cells, where)
    cell = both[0][both[1]][0]
    return cell.item() if hasattr(cell, "item") else cell


def bus_factor(collective: str, ranks: Any) -> Any:
    """Return busbw over algbw (nccl-tests, doc/PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in {"all_gather", "reduce_scatter", "all_to_all"}:
        return (ranks - 1) / ranks
    return ranks / ranks


def nominal_rate(collective: str, group: Group) -> Any:
    """Return the nominal rate of the slowest link on the way.

    Inside a domain that is what a device sends at. A ring leaves a domain through all its ports
    together; in an all-to-all and in a send each device uses its own.
    """
    alone = collective == "send_recv"
    inside = group.pair_bytes_per_s if alone else group.link_bytes_per_s
    if collective == "all_to_all":
        inside = group.exchange_bytes_per_s
    own_port = alone or collective == "all_to_all"
    outside = group.port_bytes_per_s if own_port else group.domain_port_bytes_per_s
    return choose(group.domains > 1, smallest(inside, outside), inside)


def wire_bound_s(collective: str, size_bytes: Any, group: Group, *, in_switch: bool = False) -> Any:
    """Return the time below which no algorithm can be: bytes on the busiest link, nominal rate.

    Inside a domain of g ranks, a rank of an all-reduce sends at least 2 (g-1)/g of the buffer,
    between N domains each sends 2 (N-1)/N of it (Patarasuk and Yuan, Bandwidth optimal all-reduce
    algorithms, 2009); half of that for reduce-scatter and all-gather. A switch that reduces needs
    the buffer once.
    """
    near, domains = group.ranks_per_domain, group.domains
    inside, outside = group.link_bytes_per_s, group.domain_port_bytes_per_s
    if collective == "all_to_all":
        sent_near = (near - 1) / group.ranks
        sent_far = (group.ranks - group.fewest_per_domain) / group.ranks
        inside, outside = group.exchange_bytes_per_s, group.port_bytes_per_s
    elif collective in {"all_reduce", "all_gather", "reduce_scatter"}:
        sent_near, sent_far = bus_factor(collective, near), bus_factor(collective, domains)
        if in_switch:
            sent_near = choose(near > 1, 1.0, 0.0)
    else:
        sent_near, sent_far = choose(near > 1, 1.0, 0.0), choose(domains > 1, 1.0, 0.0)
        if collective == "send_recv":
            inside, outside = group.pair_bytes_per_s, group.port_bytes_per_s
    far = choose(domains > 1, sent_far / choose(domains > 1, outside, 1.0), 0.0)
    return size_bytes * largest(sent_near / inside, far)
