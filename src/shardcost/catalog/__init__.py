"""The catalog: models, clusters and networks as data files, each figure beside its source.

One TOML file per preset, in `models/`, `clusters/` and `networks/`. Keys carry their unit
(``memory_gib``, ``bandwidth_gb_per_s``); unknown keys are errors. `shardcost.catalog.build` turns
a file's content into a noun.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from shardcost.catalog.build import cluster_from, model_from, network_from, software_from
from shardcost.cluster import Cluster, Network
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.model import Model
from shardcost.software import Software

Shelf = Literal[
    "models",
    "clusters",
    "networks",
    "collectives",
    "tuner",
    "gemm",
    "attention",
    "elementwise",
    "software",
    "errors",
]
T = TypeVar("T")

_SINGULAR: Final = {"models": "model", "clusters": "cluster", "networks": "network"}
_HERE: Final = Path(__file__).parent
_SEPARATORS: Final = str.maketrans("", "", "-_ ")


def names(shelf: Shelf) -> list[str]:
    """Return the names of all presets of one kind, sorted."""
    return sorted(path.stem for path in (_HERE / shelf).glob("*.toml"))


def model_named(name: str) -> Model:
    """Return the model preset of that name or alias."""
    return _named("models", name, model_from)


def network_named(name: str) -> Network:
    """Return the network preset of that name or alias."""
    return _named("networks", name, network_from)


def cluster_named(name: str, network: str | Network | None = None) -> Cluster:
    """Return the cluster preset of that name or alias, joined by `network` if one is given."""

    def build(content: dict[str, Any], file: str) -> Cluster:
        if not isinstance(network, str):
            return cluster_from(content, file, network)
        architecture = content["device"].get("architecture")
        joined = _named(
            "networks", network, lambda found, where: network_from(found, where, architecture)
        )
        return cluster_from(content, file, joined)

    return _named("clusters", name, build)


def software_named(name: str) -> Software:
    """Return the framework or engine of that name or alias."""
    return _named("software", name, software_from)


def contents(shelf: Shelf) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the raw content of every preset of one kind."""
    for name in names(shelf):
        yield name, _content(shelf, name)


def tuner_table(name: str) -> dict[str, Any]:
    """Return the rules by which a library chooses its paths, as their file has them."""
    return _content("tuner", name)


def _named(shelf: Shelf, name: str, build: Callable[[dict[str, Any], str], T]) -> T:
    if not isinstance(name, str):
        raise BadTypeError(_SINGULAR.get(shelf, shelf), name, "a name")
    stem = _find(shelf, _folded(name))
    if stem is None:
        lister = {"models": "models", "software": ""}.get(shelf, "clusters")
        hint = f"(`shardcost {lister}` lists them)" if lister else ""
        raise UnknownNameError(_SINGULAR.get(shelf, shelf), name, names(shelf), hint)
    return build(_content(shelf, stem), f"{shelf}/{stem}.toml")


def _find(shelf: Shelf, folded: str) -> str | None:
    """Return the preset whose name, else one of whose aliases, folds to the same text."""
    for stem in names(shelf):
        if _folded(stem) == folded:
            return stem
    for stem, content in contents(shelf):
        if folded in map(_folded, content["aliases"]):
            return stem
    return None


def _folded(name: str) -> str:
    """Return a name without what does not matter in it: case and separators."""
    return name.lower().translate(_SEPARATORS)


@cache
def _content(shelf: Shelf, stem: str) -> dict[str, Any]:
    with (_HERE / shelf / f"{stem}.toml").open("rb") as file:
        return tomllib.load(file)
