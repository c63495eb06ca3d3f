"""Hardware files, written: a commented template, and any machine as a file to begin with.

Both are made from the table of figures (`shardcost.catalog.figures`), so that they cannot drift
from what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from shardcost.catalog.figures import FIGURES, Figure, peak_of, value_of
from shardcost.cluster import Cluster, Network, Tier
from shardcost.files import quoted

_HEAD: Final = """\
# A machine of your own, for --on FILE: estimates, searches, loads and collectives run on it.
# A rate is that of the datasheet: of one device, in one direction, dense. A figure is a text with
# its unit ("8TB/s", "400Gb/s", "141GiB", "989TFLOP/s", "1.98GHz", "700W") or, for counts, a number;
# with a source it is { value = "8TB/s", source = "key of [sources]", caveat = "…" }.
# Constants of kernels and libraries are not part of it: they are inherited from the nearest
# measured machine, and `shardcost calibrate` fits your own.
"""
_WORDS: Final = {
    "": {
        "name": "letters, digits, dots, hyphens and underscores; not a name of the catalog",
        "title": "one line for reports (the name)",
    },
    "device": {
        "title": "name of the device; that of a catalog device keeps its constants",
        "vendor": "nvidia, amd, intel, … decides the collective library",
        "architecture": "of a relative (hopper, blackwell, cdna3, …) to inherit its constants",
        "compute_capability": "of NVIDIA devices",
    },
    "link": {"kind": "one of {kinds}"},
    "network": {"kind": "infiniband, roce, efa, slingshot, tcp, …: whose constants are inherited"},
}
"""What is no figure, by table, with its meaning."""
_OPTIONAL_WORDS: Final = {("", "title"), ("device", "title"), ("device", "compute_capability")}
_EXAMPLE: Final = ("h100_sxm", "ib_8x400g")
_TABLES: Final = ("", "device", "device.peak", "link", "network", "host")
_TABLE_COMMENTS: Final = {
    "device.peak": "dense FLOP/s by number format; at least one",
    "link": "inside a node, or inside a rack that is one domain",
    "network": 'between domains; or network = "ib_8x400g", or --network',
    "host": "",
}


def template() -> str:
    """Return a commented hardware file with every key that there is."""
    cluster = Cluster.named(*_EXAMPLE)
    device = replace(cluster.device, name="my device")
    machine = replace(cluster, title="my machine", device=device)
    return file_of(machine, name="my_machine", commented=True)


def file_of(cluster: Cluster, name: str | None = None, *, commented: bool = False) -> str:
    """Return a machine as a hardware file.

    Args:
        cluster: The machine.
        name: Its name in the file; the catalog's names are taken.
        commented: Whether every key stands there, with its meaning.
    """
    lines = [_HEAD] if commented else []
    for table in _TABLES:
        if table == "network" and cluster.network is None:
            continue
        rows = list(_rows(cluster, table, name or f"my_{cluster.name}", commented=commented))
        if not rows:
            continue
        if table:
            words = _TABLE_COMMENTS.get(table, "") if commented else ""
            lines.append(f"\n[{table}]" + (f"  # {words}" if words else ""))
        width = max(len(row) for row, _ in rows)
        lines += [
            f"{row:<{width}}  # {comment}".rstrip() if comment else row for row, comment in rows
        ]
    return "\n".join(lines) + "\n"


def _rows(cluster: Cluster, table: str, name: str, *, commented: bool) -> Iterator[tuple[str, str]]:
    """Yield the keys of a table with their values, and what each means."""
    for key, meaning in _WORDS.get(table, {}).items():
        value = _word(cluster, table, key, name)
        if value is None:
            continue
        kinds = next(each for each in Tier.__dataclass_fields__.values() if each.name == "kind")
        said = meaning.format(kinds=", ".join(kinds.metadata["choices"]))
        needed = (table, key) not in _OPTIONAL_WORDS
        yield f"{key} = {quoted(value)}", _comment(said, needed=needed) if commented else ""
    for figure in _figures(cluster, table):
        value = value_of(cluster, figure)
        if value is None:
            if commented:
                yield f"# {figure.short} = …", figure.meaning
            continue
        needed = figure.required or table == "device.peak"
        comment = _comment(figure.meaning, needed=needed) if commented else ""
        yield f"{figure.short} = {_written(figure, value)}", comment


def _comment(meaning: str, *, needed: bool) -> str:
    return meaning if needed else f"optional: {meaning}"


def _figures(cluster: Cluster, table: str) -> Iterator[Figure]:
    if table == "device.peak":
        yield from map(peak_of, cluster.device.peak_flop_per_s)
    yield from (figure for figure in FIGURES if figure.table == table)


def _written(figure: Figure, value: Any) -> str:
    """Return a value as TOML has it: counts and flags bare, others as a text with their unit."""
    text = figure.exact(value)
    return text if figure.kind in {"count", "flag", "number"} else quoted(text)


def _word(cluster: Cluster, table: str, key: str, name: str) -> str | None:
    """Return a name or word of a machine."""
    network: Network | None = cluster.network
    words: dict[tuple[str, str], str | None] = {
        ("", "name"): name,
        ("", "title"): cluster.title,
        ("device", "title"): cluster.device.name,
        ("device", "vendor"): cluster.device.vendor,
        ("device", "architecture"): cluster.device.architecture,
        ("device", "compute_capability"): cluster.device.compute_capability,
        ("link", "kind"): cluster.tiers[-1].kind,
        ("network", "kind"): None if network is None else network.kind,
    }
    return words[table, key]
