"""The noun `Wiring`: which link of a node joins which devices, for nodes that are wired unevenly.

A tier of a `Cluster` has one rate for all its devices. Where devices differ (a hybrid cube mesh,
bridges between pairs, two sockets, network cards at one of them, a device that has lost links), the
wiring says what is where: NVLinks between pairs, NVLinks to switches, PCIe switches by socket, and
the network cards beside them. Devices are numbered from 0 in the order of the node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from shardcost.checks import Noun, flag, noun, positive, whole
from shardcost.errors import BadTypeError, BadValueError
from shardcost.records import NamedTuple

MOST_GPUS: Final = 256
"""In one wired node: as many as a device matrix may have."""
NEAR: Final = ("PIX", "PXB")
"""Below the same PCIe switch; every other way passes a CPU."""
WAYS: Final = (*NEAR, "PHB", "NODE", "SYS")
"""How a network card and the devices nearest to it are joined, in the words of ``nvidia-smi``."""


class Cable(NamedTuple):
    """NVLinks from one device to another."""

    one: int
    other: int
    links: int


class Switch(NamedTuple):
    """Devices behind one NVLink switch that never blocks, with the links of each to it."""

    gpus: tuple[int, ...]
    links: tuple[int, ...]


class Nic(NamedTuple):
    """A port of a network card, and the devices nearest to it."""

    name: str
    bytes_per_s: float | None
    """One direction; None where nobody states it."""
    gpus: tuple[int, ...]
    way: str


@noun
class Wiring(Noun):
    """What joins the devices of one node, link by link.

    >>> pair = Wiring(gpus=2, cables=(Cable(0, 1, 4),), link_bytes_per_s=25e9)
    >>> pair.links_of(0)
    4
    """

    gpus: int = whole()
    cables: tuple[Cable, ...] = ()
    switches: tuple[Switch, ...] = ()
    link_bytes_per_s: float | None = positive(default=None)
    """Of one NVLink, one direction."""
    sockets: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """By socket (NUMA domain) and PCIe switch; a device below no switch is alone in a group."""
    pcie_bytes_per_s: float | None = positive(default=None)
    """Of a device's slot and of a PCIe switch's link to its CPU, one direction."""
    socket_bytes_per_s: float | None = positive(default=None)
    """From one socket to another, one direction."""
    peer_access: bool = flag(default=True)
    """Devices reach each other's memory over PCIe without a copy in the host's."""
    nics: tuple[Nic, ...] = ()

    def check(self) -> None:
        """Every device is where it can be, every link has a rate, and none is cut off."""
        if self.gpus > MOST_GPUS:
            raise BadValueError("Wiring.gpus", self.gpus, f"at most {MOST_GPUS}")
        self._check_nvlinks()
        below = [gpu for socket in self.sockets for group in socket for gpu in group]
        self._check_devices("Wiring.sockets", below)
        if below and len(below) != self.gpus:
            raise BadValueError("Wiring.sockets", sorted(below), f"all {self.gpus} devices")
        if not below and not self._is_joined():
            rule = "such that links lead from each device to each, where no sockets are given"
            raise BadValueError("Wiring.cables", self.cables, rule)
        for nic in self.nics:
            self._check_devices("Wiring.nics", nic.gpus)
            if nic.way not in WAYS:
                raise BadValueError("Wiring.nics", nic.way, f"joined by one of {', '.join(WAYS)}")
        needed = (
            ("link_bytes_per_s", self.cables or self.switches),
            ("pcie_bytes_per_s", below),
            ("socket_bytes_per_s", len(self.sockets) > 1),
        )
        for name, is_needed in needed:
            if is_needed and getattr(self, name) is None:
                raise BadValueError(f"Wiring.{name}", None, "a rate, since there are such links")

    def _check_nvlinks(self) -> None:
        for cable in self.cables:
            self._check_devices("Wiring.cables", cable[:2])
            _check_links("Wiring.cables", [cable.links])
        pairs = [tuple(sorted(cable[:2])) for cable in self.cables]
        if len(set(pairs)) != len(pairs):
            raise BadValueError("Wiring.cables", self.cables, "each two devices once")
        for switch in self.switches:
            _check_links("Wiring.switches", switch.links)
            if len(switch.gpus) != len(switch.links):
                raise BadValueError("Wiring.switches", switch.links, "links for each device")
        self._check_devices("Wiring.switches", [g for each in self.switches for g in each.gpus])

    def links_of(self, gpu: int) -> int:
        """Return the NVLinks of a device, to all its peers and switches together."""
        direct = sum(cable.links for cable in self.cables if gpu in cable[:2])
        return direct + sum(
            links for each in self.switches for one, links in zip(*each, strict=True) if one == gpu
        )

    @property
    def is_even(self) -> bool:
        """Whether each device has the same NVLinks to each other, network cards aside."""
        if len(self.switches) == 1 and not self.cables:
            (switch,) = self.switches
            return len(switch.gpus) == self.gpus and len(set(switch.links)) == 1
        pairs = self.gpus * (self.gpus - 1) // 2
        alike = len({cable.links for cable in self.cables}) == 1
        return not self.switches and len(self.cables) == pairs and alike

    @property
    def has_even_nics(self) -> bool:
        """Whether each device has as many network cards of its own, alike."""
        own = [
            sorted((nic.way, nic.bytes_per_s or 0.0) for nic in self.nics if nic.gpus == (gpu,))
            for gpu in range(self.gpus)
        ]
        return all(each == own[0] for each in own) and sum(map(len, own)) == len(self.nics)

    def _is_joined(self) -> bool:
        """Return whether NVLinks lead from each device to each."""
        groups = [set(cable[:2]) for cable in self.cables] + [set(s.gpus) for s in self.switches]
        reached = {0}
        while more := [group for group in groups if group & reached and not group <= reached]:
            reached = reached.union(*more)
        return len(reached) == self.gpus

    def _check_devices(self, name: str, gpus: Iterable[Any]) -> None:
        given = list(gpus)
        if not all(type(gpu) is int for gpu in given):
            raise BadTypeError(name, given, "numbers of devices")
        if not all(0 <= gpu < self.gpus for gpu in given):
            raise BadValueError(name, given, f"devices from 0 to {self.gpus - 1}")
        if len(set(given)) != len(given):
            raise BadValueError(name, given, "each device once")


def _check_links(name: str, counts: Iterable[Any]) -> None:
    for links in counts:
        if type(links) is not int:
            raise BadTypeError(name, links, "a whole number of links")
        if not 1 <= links <= 1000:
            raise BadValueError(name, links, "from 1 to 1000 links")
