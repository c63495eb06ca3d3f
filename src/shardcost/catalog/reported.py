"""From what a machine says of its GPUs to the catalog's clusters.

A driver names the board (``NVIDIA H100 80GB HBM3``); an NCCL topology file has its PCI identity
(maker and model, ``10de:2330``) and its compute capability (``sm="90"``). Each cluster file lists
what its boards are known to report, names and PCI identities, under ``reported_as``.
"""

from __future__ import annotations

import re
from typing import Final

from shardcost.catalog import contents
from shardcost.errors import BadTypeError

_WORD: Final = re.compile(r"[a-z0-9]{1,40}")
_LONGEST_NAME: Final = 200
_MAKERS: Final = frozenset(("nvidia", "tesla", "geforce", "amd", "instinct", "intel", "r", "tm"))
"""Words that say who makes a board or under which brand, and are left out now and then."""
_HARMLESS: Final = re.compile(r"[0-9]{1,3}(gb|g|gib)|hbm[0-9]e?|sxm[0-9]?|oam|ac|gpu|graphics")
"""What a longer name may add and still be the same board. ``NVL``, ``PCIe``, ``MIG 1g.5gb`` or
``Laptop`` make it another."""


def cluster_reporting(device_name: str) -> str | None:
    """Return the cluster whose boards report that name; None where none or several do.

    >>> cluster_reporting("NVIDIA H100 80GB HBM3"), cluster_reporting("Tesla V100-SXM2-16GB")
    ('h100_sxm', 'v100_cube')
    >>> cluster_reporting("NVIDIA A100") is None  # several boards go by that
    True
    """
    if not isinstance(device_name, str):
        raise BadTypeError("device_name", device_name, "a name")
    words = _words(device_name[:_LONGEST_NAME])
    if not words:
        return None
    known = [
        (name, _words(reported))
        for name, content in contents("clusters")
        for reported in content.get("reported_as", ())
    ]
    alike = {name for name, board in known if "".join(board) == "".join(words)}
    if not alike:
        alike = {name for name, board in known if _same_board(words, board)}
    return alike.pop() if len(alike) == 1 else None


def clusters_of_capability(sm: int, link: str | None = None) -> list[str]:
    """Return the clusters whose GPUs are of a compute capability, 90 for 9.0.

    `link` leaves those whose GPUs are joined that way: ``nvswitch``, ``cube_mesh``, ``full_mesh``
    or ``pcie``.

    >>> clusters_of_capability(103)
    ['b300_sxm', 'gb300_nvl72']
    """
    return [
        name
        for name, content in contents("clusters")
        if content["device"].get("compute_capability", "").replace(".", "") == str(sm)
        and link in {None, content["link"]["kind"]}
    ]


def _words(name: str) -> tuple[str, ...]:
    """Return what matters of a name: its words in lower case, without the maker's."""
    return tuple(word for word in _WORD.findall(name.lower()) if word not in _MAKERS)


def _same_board(words: tuple[str, ...], known: tuple[str, ...]) -> bool:
    """Return whether one name is the other with words left out, none of which tell boards apart."""
    given, listed = set(words), set(known)
    if given <= listed:  # what is left must still name a model: "80GB HBM3" does not
        return any(re.search("[0-9]", word) and not _HARMLESS.fullmatch(word) for word in given)
    return listed <= given and all(_HARMLESS.fullmatch(word) for word in given - listed)
