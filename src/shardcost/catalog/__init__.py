"""The catalog: models, clusters, networks and software as data files, each figure with its source.

One TOML file per preset, in `models/`, `clusters/`, `networks/` and `software/`; the other folders
hold fitted constants. Keys carry their unit (``memory_gib``, ``bandwidth_gb_per_s``); unknown keys
are errors. `shardcost.catalog.build` turns a file's content into a noun. Files of a user in the
same form are read by `shardcost.catalog.user_files`.

A name never becomes a path: ``…_named`` take names, ``…_in_file`` take paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from shardcost.catalog import user_files
from shardcost.catalog.build import cluster_from, model_from, network_from, software_from
from shardcost.catalog.network_names import GRAMMAR, stated_network
from shardcost.catalog.parsed import ParsedFiles, beside_compiled
from shardcost.checks import Noun
from shardcost.cluster import Cluster, Network
from shardcost.errors import BadTypeError, FormatError, ShardcostError, UnknownNameError, shown
from shardcost.files import read_text
from shardcost.model import Model
from shardcost.software import Software

if TYPE_CHECKING:
    from pathlib import Path

Folder = Literal[
    "models",
    "clusters",
    "networks",
    "collectives",
    "tuner",
    "gemm",
    "attention",
    "elementwise",
    "dispatch",
    "experts",
    "linear_attention",
    "mla",
    "software",
    "errors",
]

_SINGULAR: Final = {"models": "model", "clusters": "cluster", "networks": "network"}
_LISTED_BY: Final = {"models": "models", "software": "software"}
PROFILE_FIRST_LINE: Final = "# A profile of shardcost: the constants of one cluster."
_PROFILE_KEYS: Final = {
    "name": str,
    "based_on": str,
    "network": str,
    "library": list,
    "kernels": list,
}
"""A profile has constants of libraries, of kernels, or of both."""
_PROFILE_NEEDS: Final = ("name", "based_on")
_FILES: Final = ParsedFiles(os.path.dirname(__file__), beside_compiled())  # noqa: PTH120
_SEPARATORS: Final = str.maketrans("", "", "-_ ")
_FILE: Final = re.compile(r".*\.(toml|json|xml|csv|txt|log)", re.IGNORECASE | re.DOTALL)


def names(folder: Folder) -> list[str]:
    """Return the names of all built-in presets of one kind, sorted."""
    return list(_FILES.names(folder))


def all_names(folder: Folder) -> list[str]:
    """Return the names of all presets of one kind, built-in ones first, then the user's."""
    built_in = names(folder)
    return built_in + sorted(user_files.contents(folder, built_in))


def contents(folder: Folder) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the raw content of every built-in preset of one kind."""
    for name in names(folder):
        yield name, raw(folder, name)


def tuner_table(name: str) -> dict[str, Any]:
    """Return the rules by which a library chooses its paths, as their file has them."""
    return raw("tuner", name)


_SLICE: Final = re.compile(r"([^:]*):([0-9]{1,4}(?:x[0-9]{1,4}){0,2})")
"""The name of a cluster and a slice of its torus."""


def has_network(name: str) -> bool:
    """Return whether a name is that of a network: a preset's or the user's, or one that states it.

    Under its own name, not an alias.
    """
    stated = stated_network(name)
    return name in all_names("networks") or (stated is not None and stated["name"] == name)


def is_file(text: str) -> bool:
    """Return whether a text ends like the name of a file rather than of a preset."""
    return _FILE.fullmatch(text) is not None


def model_named(name: str) -> Model:
    """Return the model preset of that name or alias."""
    return cast("Model", _named("models", name))


def network_named(name: str, architecture: str | None = None) -> Network:
    """Return the network preset of that name or alias, else what the name states by itself.

    >>> network_named("roce_4x100g").title
    '4 x 100 Gb/s RoCE per node'

    Args:
        name: Of the network.
        architecture: Of the devices beside it, which decides a rate that the name leaves open.
    """
    if architecture is not None:
        return network_from(*preset("networks", name), architecture)
    return cast("Network", _named("networks", name))


def cluster_named(name: str, network: str | Network | None = None) -> Cluster:
    """Return the cluster preset of that name or alias, joined by `network` if one is given.

    A name may end with a slice of its torus: ``tpu_v5p:4x8x8``.
    """
    stated = _SLICE.fullmatch(name if isinstance(name, str) else "")  # type: ignore[redundant-expr]
    if stated is None:
        return cast("Cluster", _named("clusters", name, network))
    shape = tuple(map(int, stated[2].split("x")))
    return cast("Cluster", _named("clusters", stated[1], network)).sliced(shape)


def software_named(name: str) -> Software:
    """Return the framework or engine of that name or alias."""
    return cast("Software", _named("software", name))


def _named(folder: Folder, name: str, network: str | Network | None = None) -> Noun:
    if not isinstance(name, str):
        raise BadTypeError(_SINGULAR.get(folder, folder), name, "a name")
    if not isinstance(network, str | Network | None):
        raise BadTypeError("network", network, "a Network or the name of one")
    return _built(folder, name, network, os.environ.get(user_files.VARIABLE))


@lru_cache(maxsize=1024)  # building and checking takes a millisecond; each row of a table asks
def _built(folder: Folder, name: str, network: str | Network | None, place: str | None) -> Noun:
    """Return a preset as a noun, which nobody can change; `place` is the folder of user files."""
    del place  # decides what `preset` returns
    content, file = preset(folder, name)
    match folder:
        case "models":
            return model_from(content, file)
        case "networks":
            return network_from(content, file)
        case "software":
            return software_from(content, file)
    if isinstance(network, str):
        network = network_from(*preset("networks", network), _architecture(content))
    return _cluster(content, file, network)


def model_in_file(path: str | Path) -> Model:
    """Return the model of a user's file in the form of the catalog."""
    return model_from(*_user_file(path, "models"))


def network_in_file(path: str | Path, architecture: str | None = None) -> Network:
    """Return the network of a user's file, beside devices of an architecture."""
    return network_from(*_user_file(path, "networks"), architecture)


def software_in_file(path: str | Path) -> Software:
    """Return the framework or engine of a user's file."""
    return software_from(*_user_file(path, "software"))


def cluster_in_file(path: str | Path, network: str | Network | None = None) -> Cluster:
    """Return the cluster of a user's file, or of a profile, joined by `network` if one is given.

    Args:
        path: A cluster file in the form of the catalog, or what ``shardcost calibrate`` wrote.
        network: A network, or the name of one in the catalog.
    """
    from pathlib import Path

    return cluster_in_text(read_text(Path(path), user_files.MOST_BYTES), network, str(path))


def cluster_in_text(
    text: str, network: str | Network | None = None, file: str = "cluster file"
) -> Cluster:
    """Return the cluster that the text of a cluster file or profile describes."""
    content = user_files.parsed(text, file)
    if "based_on" in content:
        return _cluster_of_profile(content, text, network, file)
    user_files.check_kind(content, "clusters", file)
    _check_name(content, "clusters", file)
    if isinstance(network, str):
        network = network_from(*preset("networks", network), _architecture(content))
    measured = content.pop("kernels", None)
    cluster = _cluster(content, file, network)
    return cluster if measured is None else replace(cluster, profile=text)


def checked_profile_name(name: str) -> str:
    """Return the name of a profile, if it may be one."""
    return user_files.checked_name(name, "profile", names("clusters"))


def _cluster_of_profile(
    content: Mapping[str, Any], text: str, network: str | Network | None, file: str
) -> Cluster:
    """Return the cluster that a profile describes: its content, and the text that it was.

    A profile names the cluster of the catalog that it starts from, which has the devices and links,
    and has the constants of collectives that were fitted to measurements on the user's machine, in
    the form of ``catalog/collectives/``. It is a file from outside.
    """
    unknown = sorted(set(content) - set(_PROFILE_KEYS))
    if unknown:
        raise FormatError(file, f"unknown key {unknown[0][:60]}")
    for key, kind in _PROFILE_KEYS.items():
        if key not in content and key in _PROFILE_NEEDS:
            raise FormatError(file, f"{key} is missing: not a profile of shardcost")
        if key in content and not isinstance(content[key], kind):
            raise FormatError(file, f"{key} must be {kind.__name__}, got {shown(content[key])}")
    if not {"library", "kernels"} & set(content):
        raise FormatError(file, "library is missing: not a profile of shardcost")
    try:
        joined = content.get("network") if network is None else network
        base = cluster_named(content["based_on"], joined)
        name = checked_profile_name(content["name"])
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    title = f"{name}: {base.title}, calibrated"
    return replace(base, name=name, title=title, based_on=base.name, profile=text)


def _architecture(content: Mapping[str, Any]) -> str | None:
    device = content.get("device")
    name = device.get("architecture") if isinstance(device, Mapping) else None
    return name if isinstance(name, str) else None


def _cluster(content: dict[str, Any], file: str, network: Network | None) -> Cluster:
    """Return a cluster; a user's device that changes figures of a built-in one has another name.

    Fitted constants belong to devices by their names, and those of a changed device are inherited.
    """
    cluster = cluster_from(content, file, network)
    if cluster.name in names("clusters"):
        return cluster
    device = cluster.device
    for name in names("clusters"):
        built_in = cluster_from(raw("clusters", name), f"clusters/{name}.toml", None).device
        if built_in.name == device.name and built_in != device:
            return replace(cluster, device=replace(device, name=f"{device.name} ({cluster.name})"))
    return cluster


def _user_file(path: str | Path, folder: Folder) -> tuple[dict[str, Any], str]:
    content = user_files.content_of(path, folder)
    _check_name(content, folder, str(path))
    return content, str(path)


def _check_name(content: Mapping[str, Any], folder: Folder, file: str) -> None:
    try:
        user_files.checked_name(
            content.get("name", ""), _SINGULAR.get(folder, folder), names(folder)
        )
    except ShardcostError as error:
        raise FormatError.within(file, error) from None


def preset(folder: Folder, name: str) -> tuple[dict[str, Any], str]:
    """Return the content and the file of a preset: by its name, else by an alias.

    What does not matter in a name is case and separators. Built-in presets come before the user's,
    and both before a network that its name states.
    """
    wanted = folded(name)
    for stem in names(folder):
        if folded(stem) == wanted:
            return raw(folder, stem), f"{folder}/{stem}.toml"
    for stem, content in contents(folder):
        if wanted in map(folded, _other_names(content)):
            return content, f"{folder}/{stem}.toml"
    users = user_files.contents(folder, names(folder))
    for user_name, (file, content) in users.items():
        if wanted in {folded(user_name), *map(folded, _other_names(content))}:
            return content, file
    stated = stated_network(name) if folder == "networks" else None
    if stated is not None:
        return stated, f"network {stated['name']}"
    raise _unknown(folder, name)


def _unknown(folder: Folder, name: str) -> UnknownNameError:
    """Return the error of a name that no preset has, with the way out."""
    noun, lister = _SINGULAR.get(folder, folder), _LISTED_BY.get(folder, "clusters")
    known, hint = all_names(folder), f"(`shardcost {lister}` lists them)"
    if folder == "networks":
        hint = f"(`shardcost {lister}` lists them; or {GRAMMAR})"
    if is_file(name):
        noun_class = "Software" if folder == "software" else noun.capitalize()
        hint = f"(a file is read by {noun_class}.from_file; names of files need --catalog DIR)"
    elif folder == "models" and "/" in name:
        known = _ids_like(name)
        hint = f"(`shardcost {lister}` lists all; for any other give the path of its config.json)"
    return UnknownNameError(noun, name, known, hint)


def _ids_like(name: str) -> list[str]:
    """Return the ids on Hugging Face of one organisation; all of them where it is not known."""
    ids = [each for stem in all_names("models") for each in hugging_face(stem)]
    owner = name.lower().partition("/")[0]
    return [each for each in ids if each.lower().startswith(f"{owner}/")] or ids


def hugging_face(name: str) -> list[str]:
    """Return the ids under which a model of the catalog is on Hugging Face.

    >>> hugging_face("qwen3-8b")
    ['Qwen/Qwen3-8B', 'Qwen/Qwen3-8B-Base']
    """
    return _texts(preset("models", name)[0].get("hugging_face"))


def aliases(folder: Folder, name: str) -> list[str]:
    """Return the names by which a preset is known beside its own.

    >>> aliases("models", "llama3-70b")
    ['llama3.1-70b', 'llama3.3-70b']
    """
    return _texts(preset(folder, name)[0].get("aliases"))


def _other_names(content: Mapping[str, Any]) -> list[str]:
    """Return by what else a preset is known: its aliases, and ids of its checkpoints."""
    return _texts(content.get("aliases")) + _texts(content.get("hugging_face"))


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def folded(name: str) -> str:
    """Return a name without what does not matter in it: case and separators."""
    return name.lower().translate(_SEPARATORS)


@cache  # every lookup asks; a file takes a twentieth of a millisecond
def raw(folder: Folder, stem: str) -> dict[str, Any]:
    """Return the content of a built-in file as it is."""
    return _FILES.content(f"{folder}/{stem}")
