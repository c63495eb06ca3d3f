"""From the content of a catalog file to a noun: units converted, sources kept, surprises refused.

A constant stands in a file as ``{ value = 450, source = "h100_datasheet", caveat = "…" }``, where
the source is a key of the file's ``[sources]`` table. `_Sheet.take` converts the value to base
units and remembers who says so under the path of the field that it becomes.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, TypeVar

from shardcost.checks import Noun
from shardcost.cluster import Cluster, Device, Network, Source, Tier
from shardcost.errors import FormatError, ShardcostError
from shardcost.model import (
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Model,
    StateSpace,
)
from shardcost.software import Fit, Software

GB, GIB, MIB, GBIT, TERA, MEGA = 10**9, 2**30, 2**20, 10**9 / 8, 10**12, 10**6

_ATTENTIONS: Final[dict[str, type[Noun]]] = {
    "softmax": Attention,
    "latent": LatentAttention,
    "linear": LinearAttention,
    "state_space": StateSpace,
}

_ENTRY: Final = {"value", "source", "caveat"}
_CATALOG_ONLY: Final = {
    "aliases",
    "caveat",
    "parameters_stated_billion",
    "active_parameters_stated_billion",
}

N = TypeVar("N", bound=Noun)


class _Sheet:
    """One table of a catalog file, emptied key by key so that what is left over is an error."""

    def __init__(self, file: str, content: dict[str, Any], cited: dict[str, str]) -> None:
        self.file = file
        self.rest = dict(content)
        self.cited = cited
        self.sources: dict[str, Source] = {}

    def plain(self, key: str, default: Any = ...) -> Any:
        """Return a value that needs no source: a name or a word."""
        if key not in self.rest and default is ...:
            raise FormatError(self.file, f"{key} is missing")
        return self.rest.pop(key, default)

    def take(self, key: str, field: str, unit: float = 1, *, optional: bool = False) -> Any:
        """Return a constant in base units and keep its source under the path `field`."""
        entry = self.plain(key, None if optional else ...)
        if entry is None:
            return None
        if not isinstance(entry, dict) or not {"value", "source"} <= set(entry) <= _ENTRY:
            raise FormatError(
                self.file, f"{key} must be {{ value, source, caveat }}, got {entry!r}"
            )
        if entry["source"] not in self.cited:
            raise FormatError(
                self.file, f"{key} names a source that [sources] lacks: {entry['source']}"
            )
        self.sources[field] = Source(self.cited[entry["source"]], entry.get("caveat", ""))
        value = entry["value"]
        return value if isinstance(value, bool) or unit == 1 else _exact(value, unit)

    def close(self) -> None:
        """Raise if a key was not used: it is misspelt, or not understood."""
        if self.rest:
            raise FormatError(self.file, f"unknown key {sorted(self.rest)[0]}")


_ABOUT: Final = {"source", "fit"}
"""Keys that speak about a table of constants."""
_SECONDS: Final = {"_us": 1e-6, "_ms": 1e-3}


def _exact(value: float, unit: float) -> float:
    """Return value x unit as the float nearest to the decimal product: 989.4 tera is 989.4e12."""
    from fractions import Fraction

    return float(Fraction(str(value)) * Fraction(unit))


def cluster_from(content: dict[str, Any], file: str, network: Network | None) -> Cluster:
    """Return the cluster that a catalog file describes."""
    cited = content.get("sources", {})
    top = _Sheet(file, content, cited)
    top.plain("aliases")
    top.plain("reported_as", None)
    top.plain("sources")
    device = _Sheet(file, top.plain("device"), cited)
    peaks = _Sheet(file, device.plain("peak_dense_tflops"), cited)
    link = _Sheet(file, top.plain("link"), cited)
    try:
        cluster = Cluster(
            name=top.plain("name"),
            title=top.plain("title"),
            gpus_per_node=top.take("gpus_per_node", "gpus_per_node"),
            device=Device(
                name=device.plain("title"),
                vendor=device.plain("vendor"),
                architecture=device.plain("architecture"),
                compute_capability=device.plain("compute_capability", None),
                memory_bytes=device.take("memory_gib", "device.memory_bytes", GIB),
                memory_bytes_per_s=device.take(
                    "memory_bandwidth_gb_per_s", "device.memory_bytes_per_s", GB
                ),
                sms=device.take("sms", "device.sms"),
                boost_clock_hz=device.take(
                    "boost_clock_mhz", "device.boost_clock_hz", MEGA, optional=True
                ),
                l2_cache_bytes=device.take(
                    "l2_cache_mib", "device.l2_cache_bytes", MIB, optional=True
                ),
                power_w=device.take("power_w", "device.power_w", optional=True),
                peak_flop_per_s={
                    dtype: peaks.take(dtype, f"device.peak_flop_per_s.{dtype}", TERA)
                    for dtype in list(peaks.rest)
                },
            ),
            tiers=(_tier(link),),
            network=network,
            sources={**top.sources, **device.sources, **peaks.sources, **link.sources},
        )
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    for sheet in (top, device, peaks, link):
        sheet.close()
    return cluster


def _tier(link: _Sheet) -> Tier:
    kind = link.plain("kind")
    return Tier(
        name=kind,
        kind=kind,
        gpus=link.take("domain_gpus", "tiers.gpus"),
        bytes_per_s=link.take("bandwidth_gb_per_s", "tiers.bytes_per_s", GB),
        links_per_gpu=link.take("links_per_gpu", "tiers.links_per_gpu", optional=True),
        in_switch_reduction=link.take("in_switch_reduction", "tiers.in_switch_reduction"),
        peer_access=link.take("peer_access", "tiers.peer_access"),
    )


def network_from(content: dict[str, Any], file: str, architecture: str | None = None) -> Network:
    """Return the network that a catalog file describes, beside devices of an architecture.

    A network of unstated rate is taken to be what shipped with that generation.
    """
    by_architecture = content.get("nic_rate_with_gbit_per_s", {})
    if architecture in by_architecture:
        rate = content["nic_rate_gbit_per_s"] | {"value": by_architecture[architecture]}
        content = content | {"nic_rate_gbit_per_s": rate}
    sheet = _Sheet(file, content, content.get("sources", {}))
    for key in ("aliases", "sources"):
        sheet.plain(key)
    sheet.plain("nic_rate_with_gbit_per_s", None)
    try:
        network = Network(
            name=sheet.plain("name"),
            title=sheet.plain("title"),
            kind=sheet.plain("kind"),
            nics_per_node=sheet.take("nics_per_node", "nics_per_node", optional=True),
            nics_per_gpu=sheet.take("nics_per_gpu", "nics_per_gpu", optional=True),
            nic_bytes_per_s=sheet.take("nic_rate_gbit_per_s", "nic_bytes_per_s", GBIT),
            sources=sheet.sources,
        )
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    sheet.close()
    return network


def model_from(content: dict[str, Any], file: str) -> Model:
    """Return the model that a catalog file describes. One source stands for its whole shape."""
    rest = {key: value for key, value in content.items() if key not in _CATALOG_ONLY}
    caveat = content.get("caveat")
    blocks = [_block(dict(block), file) for block in rest.pop("block", [])]
    return _noun(Model, {**rest, "blocks": blocks, "caveats": (caveat,) if caveat else ()}, file)


def software_from(content: dict[str, Any], file: str) -> Software:
    """Return the framework that a catalog file describes.

    Its choices come from its documentation; its constants are fitted to runs of it.
    """
    known = {"name", "title", "aliases", "source", "choices", "constants", "fit", "memory"}
    unknown = sorted(set(content) - known)
    if unknown:
        raise FormatError(file, f"unknown key {unknown[0]}")
    fields_given = {
        **{key: content[key] for key in ("name", "title", "source") if key in content},
        **content.get("choices", {}),
        **{
            _in_seconds(key): value * _SECONDS.get(key[-3:], 1.0)
            for key, value in content.get("constants", {}).items()
        },
        "fit": _noun(Fit, content["fit"], file) if "fit" in content else None,
        "memory": {k: v for k, v in content.get("memory", {}).items() if k not in _ABOUT},
    }
    return _noun(Software, fields_given, file)


def _in_seconds(key: str) -> str:
    return key[:-3] + "_s" if key[-3:] in _SECONDS else key


def _block(content: dict[str, Any], file: str) -> Block:
    """Return one ``[[block]]``: its attention by kind, its feed-forward part or its experts."""
    if "attention" in content:
        attention = dict(content["attention"])
        kind = attention.pop("kind", None)
        if kind not in _ATTENTIONS:
            known = ", ".join(_ATTENTIONS)
            raise FormatError(file, f"attention.kind must be one of {known}, got {kind!r}")
        content["attention"] = _noun(_ATTENTIONS[kind], attention, file)
    if "feed_forward" in content and "experts" in content:
        raise FormatError(file, "a block has either feed_forward or experts, not both")
    if "experts" in content:
        experts = dict(content.pop("experts"))
        for key in {"expert", "shared"} & set(experts):
            experts[key] = _noun(FeedForward, experts[key], file)
        content["feed_forward"] = _noun(Experts, experts, file)
    elif "feed_forward" in content:
        content["feed_forward"] = _noun(FeedForward, content["feed_forward"], file)
    return _noun(Block, content, file)


def _noun(kind: type[N], content: dict[str, Any], file: str) -> N:
    """Return a noun whose fields are the keys of a table."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(content) - known)
    if unknown:
        raise FormatError(file, f"unknown key {unknown[0]}")
    try:
        return kind(**content)
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    except TypeError as error:  # a field without a default is missing
        raise FormatError(file, str(error)) from None
