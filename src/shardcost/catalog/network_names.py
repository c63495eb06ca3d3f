"""Names that state a network: ``roce_4x100g``, ``ib_1x400g_per_gpu``.

A preset of the catalog adds who states the figures, and measured constants where there are any; a
network whose name says all that the noun needs to know has no need of one.
"""

from __future__ import annotations

import re
from typing import Any, Final

KINDS: Final = {
    "ib": ("infiniband", "InfiniBand"),
    "roce": ("roce", "RoCE"),
    "efa": ("efa", "EFA"),
    "slingshot": ("slingshot", "Slingshot"),
    "opa": ("omnipath", "Omni-Path"),
    "ethernet": ("tcp", "Ethernet with TCP sockets"),
    "tcp": ("tcp", "Ethernet with TCP sockets"),
    "tcpx": ("tcpx", "GPUDirect-TCPX"),
    "tcpxo": ("tcpxo", "GPUDirect-TCPXO"),
}
"""First words of such names: the kind of network, and how people write it."""
GRAMMAR: Final = "any KIND_PORTSxRATEg"
"""Ports of a node or a GPU, Gb/s of each."""
_NAME: Final = re.compile(
    rf"({'|'.join(sorted(KINDS, key=len, reverse=True))})[-_ ]?([1-9][0-9]{{0,3}})x"
    r"([1-9][0-9]{0,4})g([-_ ]?per[-_ ]?gpu)?",
    re.IGNORECASE,
)


def stated_network(name: str) -> dict[str, Any] | None:
    """Return the content of a network file that a name states, None if it states none.

    >>> stated_network("roce-4x100G")["nic_rate_gbit_per_s"]["value"]
    100
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    word, ports, rate = match[1].lower(), int(match[2]), int(match[3])
    kind, title = KINDS[word]
    whose = "gpu" if match[4] else "node"
    through_host = {"gpu_direct": {"value": False, "source": "name"}} if kind == "tcp" else {}
    return {
        "name": f"{word}_{ports}x{rate}g" + "_per_gpu" * (whose == "gpu"),
        "title": f"{ports} x {rate} Gb/s {title} per {'GPU' if whose == 'gpu' else 'node'}",
        "aliases": [],
        "kind": kind,
        f"nics_per_{whose}": {"value": ports, "source": "name"},
        "nic_rate_gbit_per_s": {"value": rate, "source": "name", "caveat": "taken as a line rate"},
        **through_host,
        "sources": {"name": "Stated by the name of the network"},
    }
