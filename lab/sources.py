"""Who published the measurements: the data sets of ``sources.toml``, by name.

Constants name the data sets that they were fitted to, and the validation page those whose errors
it shows. Each of them has to be in this file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from shardcost.errors import UnknownNameError

_AND_SO_ON: Final = "…"


class Source(NamedTuple):
    """Where some data sets come from."""

    datasets: tuple[str, ...]
    """Their names; one that ends in ``…`` stands for all that begin so."""
    title: str
    about: str
    url: str = ""
    licence: str = ""

    def holds(self, dataset: str) -> bool:
        """Return whether a data set is one of these."""
        return any(stands_for(name, dataset) for name in self.datasets)


def stands_for(name: str, dataset: str) -> bool:
    """Return whether a name, that may end in ``…``, is of a data set.

    >>> stands_for("aic_…", "aic_h100"), stands_for("aic_…", "mine"), stands_for("mine", "mine2")
    (True, False, False)
    """
    if name.endswith(_AND_SO_ON):
        return dataset.startswith(name.removesuffix(_AND_SO_ON))
    return dataset == name


SOURCES: Final = tuple(
    Source(**entry | {"datasets": tuple(entry["datasets"])})
    for entry in tomllib.loads(
        Path(__file__).with_name("sources.toml").read_text(encoding="utf-8")
    )["source"]
)
"""Every source, in the file's order."""


def source_of(dataset: str) -> Source:
    """Return where a data set comes from."""
    found = next((each for each in SOURCES if each.holds(dataset)), None)
    if found is None:
        raise UnknownNameError("dataset", dataset, [n for each in SOURCES for n in each.datasets])
    return found


def grouped(datasets: Iterable[str]) -> tuple[dict[Source, list[str]], list[str]]:
    """Return data sets by their source, in the file's order, and those that nobody is named for."""
    left = sorted(set(datasets))
    found: dict[Source, list[str]] = {}
    for source in SOURCES:
        held = [name for name in left if source.holds(name)]
        if held:
            found[source] = held
            left = [name for name in left if name not in held]
    return found, left
