"""Profiles: a user's own cluster, as ``shardcost calibrate`` writes it and every command reads it.

A profile names the cluster of the catalog that it starts from, which has the devices and links, and
holds the constants of collectives that were fitted to measurements on the user's machine, in the
form of the catalog's own files (``catalog/collectives/``). It is a file from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from shardcost.catalog import cluster_named, names, user_files
from shardcost.cluster import Cluster, Network
from shardcost.errors import FormatError, ShardcostError, shown

FIRST_LINE: Final = "# A profile of shardcost: the constants of one cluster."
SUFFIX: Final = ".toml"
_KEYS: Final = {"name": str, "based_on": str, "network": str, "library": list}


def checked_name(name: str) -> str:
    """Return the name of a profile, if it may be one."""
    return user_files.checked_name(name, "profile", names("clusters"))


def cluster_of_profile(
    content: Mapping[str, Any], text: str, network: str | Network | None, file: str
) -> Cluster:
    """Return the cluster that a profile describes: its content, and the text that it was."""
    unknown = sorted(set(content) - set(_KEYS))
    if unknown:
        raise FormatError(file, f"unknown key {unknown[0][:60]}")
    for key, kind in _KEYS.items():
        if key not in content and key != "network":
            raise FormatError(file, f"{key} is missing: not a profile of shardcost")
        if key in content and not isinstance(content[key], kind):
            raise FormatError(file, f"{key} must be {kind.__name__}, got {shown(content[key])}")
    try:
        joined = content.get("network") if network is None else network
        base = cluster_named(content["based_on"], joined)
        name = checked_name(content["name"])
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    title = f"{name}: {base.title}, calibrated"
    return replace(base, name=name, title=title, based_on=base.name, profile=text)
