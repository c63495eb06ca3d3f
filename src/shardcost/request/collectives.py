"""One collective: its options, and the time that is predicted for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardcost.errors import BadValueError, UnknownNameError
from shardcost.request import values
from shardcost.request.finding import Finder
from shardcost.units import parse_bytes

if TYPE_CHECKING:
    from shardcost.collectives.library_time import CollectiveTime


def collective_of(given: Any, finder: Finder, size_bytes: Any) -> CollectiveTime:
    """Return how long a collective takes, of one size or of an array of them."""
    from shardcost.collectives.library_time import collective_time, default_library

    cluster = finder.cluster(given.on, given.network)
    return collective_time(
        collective_name(given.collective),
        size_bytes,
        cluster,
        values.whole("--gpus", given.gpus),
        None if given.nodes is None else values.whole("--nodes", given.nodes),
        library=default_library(cluster) if given.library is None else given.library,
        mode=given.mode,
    )


def collective_name(text: str) -> str:
    """Return a collective's name; capitals, hyphens and underscores do not matter."""
    from shardcost.collectives.library_time import COLLECTIVES

    def plain(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "")

    known = {plain(name): name for name in COLLECTIVES}
    if plain(text) not in known:
        raise UnknownNameError("collective", text, COLLECTIVES)
    return known[plain(text)]


def size_of(text: str, name: str) -> int:
    """Return a size in bytes, at least one."""
    size = parse_bytes(text, name)
    if size < 1:
        raise BadValueError(name, text, "at least 1 byte")
    return size


def sizes_of(text: str) -> list[int]:
    """Return the sizes of ``A:B`` or ``A:B:factor``: A, times 2 (or the factor) …, B."""
    words = text.split(":")
    if len(words) not in {2, 3}:
        raise BadValueError("--sweep", text, "two sizes like 8:8GiB, or with a factor, 8:8GiB:4")
    least, most = (size_of(word, "--sweep") for word in words[:2])
    factor = values.whole("the factor of --sweep", words[2]) if len(words) == 3 else 2
    if factor < 2:
        raise BadValueError("--sweep", text, "with a factor of at least 2")
    if least >= most:
        raise BadValueError("--sweep", text, "from a smaller size to a larger one")
    sizes = [least]
    while sizes[-1] * factor < most:
        sizes.append(sizes[-1] * factor)
    return [*sizes, most]
