"""The ``[topology]`` table of a cluster file: which link of a node joins which devices.

Read to a `Wiring` (`wiring_from`) and written from one (`topology_table`)::

    [topology]
    link_gb_per_s = { value = 25, source = "dgx1" }
    cables = [[0, 1, 1], [0, 3, 2]]                       # two devices, NVLinks between them
    switches = [{ gpus = [0, 1], links = [18, 18] }]      # devices, NVLinks of each to the switch
    pcie_gb_per_s = { value = 15.75, source = "dgx1" }
    sockets = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]        # by socket and PCIe switch
    socket_gb_per_s = { value = 10, source = "nccl" }
    nics = [{ name = "mlx5_0", gbit_per_s = 100, gpus = [0, 1], way = "PIX" }]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from shardcost.errors import FormatError, shown
from shardcost.files import quoted
from shardcost.scalars import positive_number
from shardcost.wiring import Cable, Nic, Switch, Wiring

GB, GBIT = 10**9, 10**9 / 8
RATES: Final = {
    "link_gb_per_s": "link_bytes_per_s",
    "pcie_gb_per_s": "pcie_bytes_per_s",
    "socket_gb_per_s": "socket_bytes_per_s",
}
"""Keys of the table that are rates, and the fields that they become."""
_CABLE: Final = ("device", "device", "links")


def wiring_from(
    content: dict[str, Any], take: Callable[[str, str, float], Any], gpus: Any, file: str
) -> Wiring:
    """Return the wiring that a ``[topology]`` table describes.

    Args:
        content: The table without its rates.
        take: Takes a rate by key, field and unit; None where the file does not have it.
        gpus: Devices of a node.
        file: Where it stands.
    """
    rest = dict(content)
    rates = {field: take(key, f"wiring.{field}", GB) for key, field in RATES.items()}
    wiring = Wiring(
        gpus=gpus,
        cables=tuple(_cable(each, file) for each in _list(rest, "cables", file)),
        switches=tuple(_switch(each, file) for each in _list(rest, "switches", file)),
        sockets=tuple(
            tuple(
                tuple(_is_list(group, "sockets", file)) for group in _is_list(each, "sockets", file)
            )
            for each in _list(rest, "sockets", file)
        ),
        nics=tuple(_nic(each, file) for each in _list(rest, "nics", file)),
        peer_access=rest.pop("peer_access", True),
        **rates,
    )
    if rest:
        raise FormatError(file, f"unknown key {sorted(rest)[0]} in [topology]")
    return wiring


def topology_table(wiring: Wiring, cited: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a ``[topology]`` table; `cited` has the rates as they stand in a file."""
    yield "[topology]"
    for key in RATES:
        if key in cited:
            yield f"{key} = {cited[key]}"
    if wiring.cables:
        yield f"cables = {[list(cable) for cable in wiring.cables]}"
    if wiring.switches:
        tables = (
            f"{{ gpus = {list(each.gpus)}, links = {list(each.links)} }}"
            for each in wiring.switches
        )
        yield f"switches = [{', '.join(tables)}]"
    if wiring.sockets:
        yield f"sockets = {[[list(group) for group in socket] for socket in wiring.sockets]}"
    if not wiring.peer_access:
        yield "peer_access = false"
    if wiring.nics:
        yield "nics = ["
        for nic in wiring.nics:
            rate = "" if nic.bytes_per_s is None else f"gbit_per_s = {nic.bytes_per_s / GBIT:g}, "
            near = f"gpus = {list(nic.gpus)}, way = {quoted(nic.way)}"
            yield f"    {{ name = {quoted(nic.name)}, {rate}{near} }},"
        yield "]"


def _list(rest: dict[str, Any], key: str, file: str) -> list[Any]:
    return _is_list(rest.pop(key, []), key, file)


def _is_list(value: Any, key: str, file: str) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(file, f"topology.{key} must be a list, got {shown(value)}")
    return value


def _cable(value: Any, file: str) -> Cable:
    if len(_is_list(value, "cables", file)) != len(_CABLE):
        rule = "[device, device, links]"
        raise FormatError(file, f"each of topology.cables must be {rule}, got {shown(value)}")
    return Cable(*value)


def _switch(value: Any, file: str) -> Switch:
    entry = _entry(value, "switches", {"gpus", "links"}, set(), file)
    return Switch(*(tuple(_is_list(entry[key], "switches", file)) for key in ("gpus", "links")))


def _nic(value: Any, file: str) -> Nic:
    entry = _entry(value, "nics", {"name", "gpus", "way"}, {"gbit_per_s"}, file)
    if not isinstance(entry["name"], str):
        name = shown(entry["name"])
        raise FormatError(file, f"name of topology.nics must be a text, got {name}")
    rate = entry.get("gbit_per_s")
    if rate is not None:
        rate = positive_number("gbit_per_s of topology.nics", rate) * GBIT
    return Nic(entry["name"], rate, tuple(_is_list(entry["gpus"], "nics", file)), entry["way"])


def _entry(value: Any, key: str, needed: set[str], more: set[str], file: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not needed <= set(value) <= needed | more:
        keys = ", ".join(sorted(needed))
        raise FormatError(
            file, f"each of topology.{key} must be a table of {keys}, got {shown(value)}"
        )
    return value
