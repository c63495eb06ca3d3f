"""Profiles: a user's own cluster, as ``shardcost calibrate`` writes it and every command reads it.

A profile names the cluster of the catalog that it starts from, which has the devices and links, and
holds the constants of collectives that were fitted to measurements on the user's machine, in the
form of the catalog's own files (``catalog/collectives/``). It is a file from outside.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardcost.catalog import cluster_named, names
from shardcost.cluster import Cluster, Network
from shardcost.errors import BadValueError, FormatError, ShardcostError, shown
from shardcost.files import read_text

FIRST_LINE: Final = "# A profile of shardcost: the constants of one cluster."
SUFFIX: Final = ".toml"
_MOST_BYTES: Final = 2**20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*+"')
_LONG_KEY: Final = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){8}""")
_KEYS: Final = {"name": str, "based_on": str, "network": str, "library": list}


def checked_name(name: str) -> str:
    """Return the name of a profile, if it may be one."""
    if not _NAME.fullmatch(name):
        rule = "up to 64 letters, digits, dots, hyphens and underscores, not beginning with a sign"
        raise BadValueError("name of a profile", name, rule)
    if name in names("clusters"):
        raise BadValueError("name of a profile", name, "one that the catalog does not have")
    return name


def cluster_of_profile(path: str | Path, network: str | Network | None = None) -> Cluster:
    """Return the cluster that a profile describes, joined by its own network or by another."""
    return cluster_of_text(read_text(Path(path), _MOST_BYTES), network, file=str(path))


def cluster_of_text(
    text: str, network: str | Network | None = None, *, file: str = "profile"
) -> Cluster:
    """Return the cluster that the text of a profile describes; errors name `file`."""
    content = _content(text, file)
    try:
        joined = content.get("network") if network is None else network
        base = cluster_named(content["based_on"], joined)
        name = checked_name(content["name"])
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    title = f"{name}: {base.title}, calibrated"
    return replace(base, name=name, title=title, based_on=base.name, silicon=text)


def _content(text: str, file: str) -> dict[str, Any]:
    long = _LONG_KEY.search(_STRING.sub('""', text))
    if long:  # reading it would take time and memory by the square of its parts
        raise FormatError(file, f"is not a profile: a key of many parts, {shown(long[0][:40])}")
    try:
        content = tomllib.loads(text)
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise FormatError(file, f"is not TOML: {str(error)[:200]}") from None
    except RecursionError:
        raise FormatError(file, "is nested too deeply") from None
    unknown = sorted(set(content) - set(_KEYS))
    if unknown:
        raise FormatError(file, f"unknown key {unknown[0][:60]}")
    for key, kind in _KEYS.items():
        if key not in content and key != "network":
            raise FormatError(file, f"{key} is missing: not a profile of shardcost")
        if key in content and not isinstance(content[key], kind):
            raise FormatError(file, f"{key} must be {kind.__name__}, got {shown(content[key])}")
    return content
