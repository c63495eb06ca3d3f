"""The noun `Cluster`: devices, the links between them, and the network beyond.

Every rate is nominal (the line rate that the vendor states), per device, and in one direction.
What software achieves of it is not a property of the hardware and is not kept here.

Quantities are plain numbers in base units (bytes, bytes per second, FLOP per second), or NumPy
arrays of them to study many machines at once. `Cluster.why` says where each number comes from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

from shardcost.arrays import looked_up
from shardcost.checks import (
    Count,
    Noun,
    Quantity,
    flag,
    instance,
    instances,
    names,
    noun,
    one_of,
    positive,
    positive_or_array,
    table,
    text,
    whole,
)
from shardcost.dtypes import (
    BITS,
    ELEMENT_DTYPES,
    PRODUCTS,
    WeightFormat,
    canonical_format,
    format_on,
    weight_format,
)
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.records import NamedTuple
from shardcost.torus import Spanned, compact, filled, spanned
from shardcost.wiring import Wiring

if TYPE_CHECKING:
    from pathlib import Path

CUBE_MESH: Final[Mapping[tuple[int, int], int]] = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""Cables between each two devices of the hybrid cube mesh (NVIDIA DGX-1 with Tesla V100 System
Architecture white paper, NVIDIA, 2017), numbered as `nvidia-smi topo -m` shows them on machines
with eight V100 SXM2. The doubled ones are a ring through all eight, and so are the single ones."""
CUBE_MESH_CABLES: Final = sum(cables for pair, cables in CUBE_MESH.items() if 0 in pair)
"""At each device."""


def _cube_mesh_rings(num_gpus: int) -> int:
    """Return how many rings the first devices of the cube mesh can hold between them.

    A ring through all devices takes two cables of each and runs in both directions, so as many as
    the worst connected has pairs of; two devices need no more than one cable.
    """
    inside = [pair for pair in CUBE_MESH if max(pair) < num_gpus]
    least = min(
        sum(CUBE_MESH[pair] for pair in inside if device in pair) for device in range(num_gpus)
    )
    return least if num_gpus == 2 else least // 2 * 2


_CUBE_MESH_RINGS: Final = (0, 0, *(_cube_mesh_rings(num_gpus) for num_gpus in range(2, 9)))
"""By number of devices."""


@noun
class Device(Noun):
    """One accelerator as its vendor describes it."""

    name: str = text()
    vendor: str = text()
    architecture: str = text()
    peak_flop_per_s: Mapping[str, Quantity] = table(positive_or_array)
    """Dense matrix rate by number format. Rates "with sparsity" are twice this and not kept."""
    memory_bytes: Quantity = positive()
    memory_bytes_per_s: Quantity = positive()
    sms: Count = whole()
    """Streaming multiprocessors, compute units or Xe cores."""
    compute_capability: str | None = text(default=None)
    boost_clock_hz: Quantity | None = positive(default=None)
    l2_cache_bytes: Quantity | None = positive(default=None)
    power_w: Quantity | None = positive(default=None)
    host_link_bytes_per_s: Quantity | None = positive(default=None)
    """To the host's memory, one direction; None where nobody states it."""

    def check(self) -> None:
        """Rates are kept under shardcost's own names of number formats; versions are numbers."""
        for dtype in self.peak_flop_per_s:
            if dtype not in BITS:
                raise UnknownNameError("Device.peak_flop_per_s", dtype, BITS)
        capability = self.compute_capability
        if capability is not None and not re.fullmatch(r"[0-9]{1,3}\.[0-9]", capability):
            raise BadValueError("Device.compute_capability", capability, "two numbers, like 9.0")

    def peak(self, dtype: str) -> Quantity:
        """Return the dense peak for a number format, in FLOP per second.

        A block format runs at the rate of its elements where the datasheet does not name it.
        """
        stated = dtype if dtype in self.peak_flop_per_s else ELEMENT_DTYPES.get(dtype, dtype)
        if stated not in self.peak_flop_per_s:
            raise UnknownNameError(f"number format of {self.name}", dtype, self.peak_flop_per_s)
        return self.peak_flop_per_s[stated]

    def multiplied(self, dtype: str) -> WeightFormat:
        """Return a format of weights as this device multiplies it.

        Where the device cannot multiply the format, weights are widened to the narrowest one that
        it can, as weight-only kernels do (Marlin, arXiv:2408.11743).
        """
        if ("multiplied", dtype) not in self.memo:
            self.memo["multiplied", dtype] = self._multiplied(dtype)
        form: WeightFormat = self.memo["multiplied", dtype]
        return form

    def wider_products(self, dtype: str) -> tuple[str, ...]:
        """Return the formats of up to 16 bits that this device multiplies, wider than a given one.

        >>> Cluster.named("b200_sxm").device.wider_products("nvfp4")
        ('fp8', 'bf16')
        """
        if ("wider", dtype) not in self.memo:
            own = BITS[self.multiplied(dtype).product]
            self.memo["wider", dtype] = tuple(
                each
                for each in ("fp8", "bf16")
                if each in self.peak_flop_per_s and BITS[each] > own
            )
        found: tuple[str, ...] = self.memo["wider", dtype]
        return found

    def _multiplied(self, dtype: str) -> WeightFormat:
        form = weight_format(format_on(dtype, self.peak_flop_per_s))
        name = canonical_format(dtype)
        if name in self.peak_flop_per_s:
            return form._replace(product=name)
        if form.product in self.peak_flop_per_s:
            return form
        for product in PRODUCTS:
            bits = BITS[product]
            if product in self.peak_flop_per_s and bits >= BITS[form.product]:
                return form._replace(product=product, input_bytes=max(form.input_bytes, bits / 8))
        raise UnknownNameError(f"number format of {self.name}", dtype, self.peak_flop_per_s)


class Source(NamedTuple):
    """Who states a figure, with a caveat."""

    citation: str
    caveat: str = ""

    def __str__(self) -> str:
        return f"{self.citation} ({self.caveat})" if self.caveat else self.citation


class Link(NamedTuple):
    """The rate that a group of devices gets, and what sets it."""

    bytes_per_s: Quantity
    name: str
    source: Source


_GIVEN = Source("given by the caller")


def _source(name: str, value: object) -> Source:
    if not isinstance(value, Source):
        raise BadTypeError(name, value, "a Source")
    return value


@noun
class Tier(Noun):
    """A group of `gpus` devices that reach each other at one rate."""

    name: str = text()
    kind: str = one_of("nvswitch", "cube_mesh", "full_mesh", "torus", "pcie")
    gpus: int = whole()
    """Devices in one such group."""
    bytes_per_s: Quantity = positive()
    """Per device, one direction, nominal, all of its links together."""
    links_per_gpu: int | None = whole(default=None)
    in_switch_reduction: bool = flag(default=False)
    """The switch can add up data that passes through it (NVLink SHARP)."""
    peer_access: bool = flag(default=True)
    """Devices reach each other's memory directly, without a copy through the host."""
    shape: tuple[int, ...] = ()
    """Of a torus: chips along each axis, one to three of them; the last varies fastest."""
    wraps: tuple[int, ...] = ()
    """The ends of an axis are joined where its length is a multiple of this, by axis."""
    axis_shares: tuple[float, ...] = ()
    """Rates of the axes' links, relative to each other."""
    devices_per_chip: int = whole(default=1)
    """Devices that share the links of one chip."""
    peer_gpus: int | None = whole(default=None)
    """On PCIe: how many devices do so at the full rate at once. Larger groups are staged through
    the host's memory, at what their library was measured to have left there. None: pairs."""

    def check(self) -> None:
        """A mesh has peers, the cube mesh is one of eight, and a torus has a shape."""
        if self.kind == "torus":
            self._check_torus()
        elif self.shape:
            raise BadValueError("Tier.shape", self.shape, f"left out of {self.kind} links")
        if self.kind == "full_mesh" and self.gpus < 2:
            raise BadValueError("Tier.gpus", self.gpus, "at least 2 in a full mesh")
        if self.kind == "cube_mesh" and self.gpus > len(_CUBE_MESH_RINGS) - 1:
            raise BadValueError("Tier.gpus", self.gpus, "at most 8 in a cube mesh")

    def _check_torus(self) -> None:
        sides = len(self.shape)
        if not 1 <= sides <= 3 or any(type(each) is not int or each < 1 for each in self.shape):
            raise BadValueError("Tier.shape", self.shape, "one to three whole numbers")
        if len(self.wraps) != sides or any(type(e) is not int or e < 1 for e in self.wraps):
            raise BadValueError("Tier.wraps", self.wraps, "a whole number for each axis")
        shares = self.axis_shares
        if len(shares) != sides or any(type(e) not in {int, float} or not e > 0 for e in shares):
            raise BadValueError("Tier.axis_shares", shares, "a positive number for each axis")
        devices = prod(self.shape) * self.devices_per_chip
        if self.gpus != devices:
            raise BadValueError("Tier.gpus", self.gpus, f"{devices}, those of its shape")

    def spanned(self, ranks: Count, stride: Count = 1) -> Spanned:
        """Return what a group covers of a torus."""
        return spanned(
            self.shape, self.wraps, self.axis_shares, self.devices_per_chip, ranks, stride
        )

    @property
    def link_bytes_per_s(self) -> Quantity:
        """Of a torus: one device's share of a link along an axis of share 1, one direction."""
        return self.bytes_per_s / (2 * sum(self.axis_shares))

    @property
    def title(self) -> str:
        """The kind of links, of a torus with its shape."""
        if self.kind != "torus":
            return self.kind
        return f"{'x'.join(map(str, self.shape))} torus"

    def ring_bytes_per_s(self, num_gpus: Count, stride: Count = 1) -> Quantity:
        """Return the rate at which each of `num_gpus` devices of one group can send to the others.

        Behind a switch, or on PCIe, a device uses all its links whoever the peer is. Without one
        a link leads to one peer only: in a full mesh n devices share n-1 of the links; in the
        hybrid cube mesh of the DGX-1 the first n hold as many rings as their cables allow. On a
        torus it is the links of all axes that the group covers (`shardcost.torus`).
        """
        if self.kind == "torus":
            rate: Quantity = self.link_bytes_per_s * self.spanned(num_gpus, stride).links
            return rate
        if self.kind == "full_mesh":
            return self.bytes_per_s * (num_gpus - 1) / (self.gpus - 1)
        if self.kind == "cube_mesh":
            rings: Count = looked_up(_CUBE_MESH_RINGS, num_gpus)
            return self.bytes_per_s * rings / CUBE_MESH_CABLES
        return self.bytes_per_s


@noun
class Network(Noun):
    """What connects the nodes. Give either `nics_per_node` or `nics_per_gpu`.

    >>> Network.named("ib_8x400g").node_bytes_per_s(gpus_per_node=8)
    400000000000.0
    """

    name: str = text()
    title: str = text()
    kind: str = text()
    nic_bytes_per_s: Quantity = positive()
    """One port, one direction, line rate."""
    nics_per_node: Count | None = whole(default=None)
    nics_per_gpu: Count | None = whole(default=None)
    gpu_direct: bool = flag(default=True)
    """Network cards read and write the devices' memory, without a copy through the host."""
    protocols: tuple[str, ...] = names("LL", "LL128", "Simple", default=())
    """Protocols that NCCL runs over it, as the network's own settings or NCCL's rules say; all of
    them where nothing is named."""
    algorithms: tuple[str, ...] = names("ring", "tree", "nvls_tree", default=())
    """The same of algorithms."""
    leaf_domains: Count = whole(default=4)
    """Nodes (racks, where a rack is one scale-up domain) that reach each other through leaf
    switches alone: assumed where nobody states it."""
    oversubscription: Quantity = positive(default=1)
    """Ports of a leaf switch to its nodes over those to the spine: what traffic beyond it loses."""
    sources: Mapping[str, Source] = table(_source, default_factory=dict)

    def check(self) -> None:
        """Ports are counted either by node or by device."""
        if (self.nics_per_node is None) == (self.nics_per_gpu is None):
            counts = (self.nics_per_node, self.nics_per_gpu)
            raise BadValueError(
                "Network.nics_per_node and nics_per_gpu", counts, "one number and one None"
            )

    @classmethod
    def named(cls, name: str) -> Network:
        """Return a preset of the catalog; ``-``, ``_`` and case do not matter."""
        from shardcost.catalog import network_named

        return network_named(name)

    @classmethod
    def from_file(cls, path: str | Path) -> Network:
        """Return the network of a file in the catalog's form."""
        from shardcost.catalog import network_in_file

        return network_in_file(path)

    def node_bytes_per_s(self, gpus_per_node: Count) -> Quantity:
        """Return the rate at which one node of that many devices can send, all ports together."""
        if self.nics_per_gpu is not None:
            return self.nics_per_gpu * gpus_per_node * self.nic_bytes_per_s
        return self.nics_per_node * self.nic_bytes_per_s  # type: ignore[operator]  # see check


@noun
class Cluster(Noun):
    """Nodes of `gpus_per_node` devices, joined by `tiers` inside and a `network` outside.

    >>> cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    >>> cluster.tiers[0].bytes_per_s, cluster.device.peak("bf16")
    (450000000000.0, 989400000000000.0)
    """

    name: str = text()
    title: str = text()
    device: Device = instance(Device)
    gpus_per_node: Count = whole()
    tiers: tuple[Tier, ...] = instances(Tier)
    """Scale-up domains, innermost first, each larger than the one before."""
    network: Network | None = instance(Network, default=None)
    host_update_per_s: Quantity = positive(default=4e9)
    """Weights that the processors of a node update by Adam in a second, of states in their memory:
    assumed, the size of what ZeRO-Offload reports (Ren et al. 2021, arXiv:2101.06840)."""
    wiring: Wiring | None = instance(Wiring, default=None)
    """Which link of a node joins which devices, where that is known and not the same for all."""
    sources: Mapping[str, Source] = table(_source, default_factory=dict)
    """For each figure, by its path such as ``device.memory_bytes``: who says so, and the caveat."""
    usual_network: str | None = text(default=None)
    """The catalog's network that joins such nodes as a rule: proposed where one is needed and none
    is named, never assumed."""
    based_on: str | None = text(default=None)
    """The cluster of the catalog that a user's profile describes more closely."""
    profile: str = ""
    """The text of the cluster's calibrated profile, if it has one: constants fitted on it."""

    def check(self) -> None:
        """Tiers grow outward; a wiring is of all devices of a node."""
        if self.wiring is not None and self.wiring.gpus != self.gpus_per_node:
            raise BadValueError("Wiring.gpus", self.wiring.gpus, f"{self.gpus_per_node}, a node's")
        for inner, outer in zip(self.tiers, self.tiers[1:], strict=False):
            if not outer.gpus > inner.gpus:
                raise BadValueError(
                    "Cluster.tiers", [t.gpus for t in self.tiers], "growing outward"
                )

    @classmethod
    def named(cls, name: str, network: str | Network | None = None) -> Cluster:
        """Return a preset of the catalog, with a network if one is named."""
        from shardcost.catalog import cluster_named

        return cluster_named(name, network)

    @classmethod
    def from_file(cls, path: str | Path, network: str | Network | None = None) -> Cluster:
        """Return the cluster of a file in the catalog's form, or of a calibrated profile."""
        from shardcost.catalog import cluster_in_file

        return cluster_in_file(path, network)

    from_profile = from_file

    def sliced(self, shape: tuple[int, ...]) -> Cluster:
        """Return the same with a slice of its torus as scale-up domain, several joined by DCN.

        >>> Cluster.named("tpu_v5p").sliced((4, 4, 8)).tiers[0].gpus
        128
        """
        tier = self.tiers[-1]
        fits = len(shape) == len(tier.shape) and all(
            own <= most for own, most in zip(sorted(shape), sorted(tier.shape), strict=True)
        )
        if tier.kind != "torus" or not fits or min(shape) < 1:
            known = tier.title if tier.kind == "torus" else "a cluster with torus links"
            raise BadValueError("slice", "x".join(map(str, shape)), f"part of {known}")
        part = replace(tier, shape=shape, gpus=prod(shape) * tier.devices_per_chip)
        return replace(self, tiers=(*self.tiers[:-1], part))

    def holding(self, devices: int) -> Cluster:
        """Return the same with the most compact slice that has so many devices, on a torus.

        Where links of the axes differ, with the one that fills the last axes first. Unchanged where
        the domain is no torus, no larger, or cannot be cut so.
        """
        tier = self.tiers[-1]
        if tier.kind != "torus" or devices >= tier.gpus:
            return self
        chips = -(-devices // tier.devices_per_chip)
        slice_of = compact if len(set(tier.axis_shares)) == 1 else filled
        shapes = (slice_of(each, tier.shape) for each in range(chips, prod(tier.shape)))
        shape = next((each for each in shapes if each is not None), None)
        return self if shape is None else self.sliced(shape)

    def with_figures(self, changes: Mapping[str, Any]) -> Cluster:
        """Return the same machine with other figures, by name; texts have a unit.

        >>> faster = Cluster.named("h100_sxm").with_figures({"device.memory_bandwidth": "8TB/s"})
        >>> faster.device.memory_bytes_per_s
        8000000000000.0

        Its constants follow the datasheet, and an interval widens with what was changed.
        """
        from shardcost.catalog.figures import with_figures

        return with_figures(self, changes)

    @property
    def system(self) -> str:
        """The name under which the catalog has the machine."""
        return self.based_on or self.name

    def slowest_ring_link(self, num_gpus: int) -> Link:
        """Return the link that sets the nominal rate of a ring over `num_gpus` devices.

        Inside a domain every device sends at its own link's rate. Beyond it, rings enter and leave
        a domain through its network ports, one ring per port, so together they run at the rate of
        all ports of the domain, or of the links inside where that is lower.
        """
        for tier in self.tiers:
            if num_gpus <= tier.gpus:
                return self._inside(tier, tier.ring_bytes_per_s(max(2, num_gpus)))
        outermost = self.tiers[-1]
        if self.network is None:
            rule = f"at most {outermost.gpus}, one domain of {self.name} (name a network for more)"
            raise BadValueError("num_gpus", num_gpus, rule)
        nodes = max(1, outermost.gpus // self.gpus_per_node)
        ports = self.network.node_bytes_per_s(self.gpus_per_node) * nodes
        if ports < outermost.bytes_per_s:
            source = self.network.sources.get("nic_bytes_per_s", _GIVEN)
            return Link(ports, f"network ports of {self.network.name}", source)
        return self._inside(outermost, outermost.bytes_per_s)

    def _inside(self, tier: Tier, bytes_per_s: Quantity) -> Link:
        source = self.sources.get("tiers.bytes_per_s", _GIVEN)
        return Link(bytes_per_s, f"{tier.title} links of {self.name}", source)

    def why(self, figure: str) -> Source:
        """Return who states a figure, by its path: ``why("device.memory_bytes")``."""
        if figure not in self.sources:
            raise UnknownNameError("figure", figure, self.sources)
        return self.sources[figure]
