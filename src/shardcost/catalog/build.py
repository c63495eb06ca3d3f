"""From the content of a catalog file to a noun: units converted, sources kept, surprises refused.

A constant of the catalog stands in a file as ``{ value = 450, source = "h100_datasheet", caveat =
"…" }``, where the source is a key of the file's ``[sources]`` table. In a user's file it may also
be a plain number under the same key, or a text with its unit under the figure's own name
(``bandwidth = "450GB/s"``, `shardcost.catalog.figures`); its source is then the file. `_Sheet.take`
converts the value to base units and keeps its source under the path of the field that it becomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, Final, TypeVar

from shardcost.catalog.figures import BY_PATH, KINDS, Figure, peak_of
from shardcost.checks import Noun
from shardcost.cluster import Cluster, Device, Network, Source, Tier
from shardcost.errors import BadTypeError, FormatError, ShardcostError, shown
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
from shardcost.scalars import positive_number
from shardcost.scheduler import Scheduler
from shardcost.software import Fit, Software
from shardcost.wiring import Wiring

_ATTENTIONS: Final[dict[str, type[Noun]]] = {
    "softmax": Attention,
    "latent": LatentAttention,
    "linear": LinearAttention,
    "state_space": StateSpace,
}

_MOST_GPUS: Final = 10**6
"""In one node or scale-up domain."""
_ENTRY: Final = {"value", "source", "caveat"}
_CATALOG_ONLY: Final = {
    "aliases",
    "caveat",
    "hugging_face",
    "parameters_stated_billion",
    "active_parameters_stated_billion",
}

N = TypeVar("N", bound=Noun)


class _Sheet:
    """One table of a catalog file, emptied key by key so that what is left over is an error."""

    def __init__(
        self,
        file: str,
        content: Any,
        cited: Any,
        name: str = "the file",
        *,
        own_sources: bool = False,
    ) -> None:
        for what, table in ((name, content), ("sources", cited)):
            if not isinstance(table, dict):
                raise FormatError(file, f"{what} must be a table, got {shown(table)}")
        self.file = file
        self.rest = dict(content)
        self.cited = cited
        self.sources: dict[str, Source] = {}
        self.own_sources = own_sources

    def plain(self, key: str, default: Any = ...) -> Any:
        """Return a value that needs no source: a name or a word."""
        if key not in self.rest and default is ...:
            raise FormatError(self.file, f"{key} is missing")
        return self.rest.pop(key, default)

    def take(self, field: str | Figure, *, optional: bool = False) -> Any:
        """Return a figure in base units and keep its source under the path of its field.

        It stands under its name, or under the key of the catalog, which has its unit.
        """
        figure = field if isinstance(field, Figure) else BY_PATH.get(field)
        figure = figure or peak_of(str(field).rpartition(".")[2])
        both = [key for key in dict.fromkeys((figure.key, figure.short)) if key in self.rest]
        if len(both) > 1:
            raise FormatError(self.file, f"{both[0]} and {both[1]} are one figure: give one")
        key = both[0] if both else figure.key
        entry = self.plain(key, None if optional else ...)
        if entry is None:
            return None
        path = figure.path.removeprefix("network.") if self.own_sources else figure.path
        if not isinstance(entry, dict):
            self.sources[path] = Source(f"stated in {self.file}")
            return self._stated(key, figure, entry)
        if not {"value", "source"} <= set(entry) <= _ENTRY:
            raise FormatError(
                self.file, f"{key} must be {{ value, source, caveat }}, got {shown(entry)}"
            )
        value, source, caveat = entry["value"], entry["source"], entry.get("caveat", "")
        if not isinstance(source, str) or not isinstance(self.cited.get(source), str):
            raise FormatError(
                self.file, f"{key} names a source that [sources] lacks: {shown(source)}"
            )
        if not isinstance(caveat, str):
            raise FormatError(self.file, f"caveat of {key} must be a text, got {shown(caveat)}")
        self.sources[path] = Source(self.cited[source], caveat)
        return self._stated(key, figure, value)

    def _stated(self, key: str, figure: Figure, value: Any) -> Any:
        """Return a value in base units: a number in the unit of its key, or a text with one."""
        if isinstance(value, str):
            return KINDS[figure.kind].read(value, key)
        if isinstance(value, bool) or figure.unit == 1:
            return value
        if key != figure.key:
            example = figure.shown(positive_number(key, value) * figure.unit)
            rule = f"a text with its unit, like {example}, or a number as {figure.key}"
            raise FormatError(self.file, f"{key} must be {rule}, got {shown(value)}")
        return _exact(positive_number(key, value), figure.unit)

    def close(self) -> None:
        """Raise if a key was not used: it is misspelt, or not understood."""
        if self.rest:
            raise FormatError(self.file, f"unknown key {sorted(self.rest)[0]}")


_ABOUT: Final = {"source", "fit"}
"""Keys that describe a table of constants."""
_SECONDS: Final = {"_us": 1e-6, "_ms": 1e-3}


def _exact(value: float, unit: float) -> float:
    """Return value x unit as the float nearest to the decimal product: 989.4 tera is 989.4e12."""
    mantissa, _, power = str(value).partition("e")
    whole, _, decimals = mantissa.partition(".")
    shift = int(power or 0) - len(decimals)
    top, bottom = unit.as_integer_ratio()
    top, bottom = top * 10 ** max(shift, 0), bottom * 10 ** max(-shift, 0)
    exact: float = int(whole + decimals) * top / bottom  # of whole numbers: rounded once
    return exact


def cluster_from(content: dict[str, Any], file: str, network: Network | None) -> Cluster:
    """Return the cluster that a catalog file, or a user's hardware file, describes.

    A hardware file may also describe its network and its host. A network that is given comes first.
    """
    cited = content.get("sources", {})
    top = _Sheet(file, content, cited)
    for unused in ("aliases", "reported_as", "sources"):
        top.plain(unused, None)
    device = _Sheet(file, top.plain("device"), cited, "device")
    named = "peak" in device.rest and "peak_dense_tflops" not in device.rest
    table = device.plain("peak" if named else "peak_dense_tflops")
    peaks = _Sheet(file, table, cited, "device.peak_dense_tflops")
    link = _Sheet(file, top.plain("link"), cited, "link")
    host = _Sheet(file, top.plain("host", {}), cited, "host")
    if "link" in host.rest:
        device.rest.setdefault("host_link", host.rest.pop("link"))
    topology = _Sheet(file, top.plain("topology", {}), cited, "topology")
    try:
        name = top.plain("name")
        joined = top.plain("network", None)
        if joined is not None:
            joined = _own_network(joined, name, file, cited, device.rest)
        updates = host.take("host_update_per_s", optional=True)
        cluster = Cluster(
            name=name,
            title=top.plain("title", name),
            gpus_per_node=top.take("gpus_per_node"),
            usual_network=top.plain("usual_network", None),
            device=_device(device, peaks, name),
            tiers=(_tier(link),),
            network=joined if network is None else network,
            **({} if updates is None else {"host_update_per_s": updates}),
        )
        wiring = _wiring(topology, cluster.gpus_per_node) if topology.rest else None
        sheets = (top, device, peaks, link, host, topology)
        sources = {name: source for sheet in sheets for name, source in sheet.sources.items()}
        cluster = replace(cluster, wiring=wiring, sources=sources)
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    for sheet in sheets:
        sheet.close()
    sizes = {"gpus_per_node": cluster.gpus_per_node, "domain_gpus": cluster.tiers[0].gpus}
    for figure, count in sizes.items():
        if count > _MOST_GPUS:
            raise FormatError(file, f"{figure} must be at most {_MOST_GPUS}, got {shown(count)}")
    return cluster


def _device(device: _Sheet, peaks: _Sheet, machine: Any) -> Device:
    return Device(
        name=device.plain("title", f"device of {machine}"),
        vendor=device.plain("vendor"),
        architecture=device.plain("architecture"),
        compute_capability=device.plain("compute_capability", None),
        memory_bytes=device.take("device.memory_bytes"),
        memory_bytes_per_s=device.take("device.memory_bytes_per_s"),
        host_link_bytes_per_s=device.take("device.host_link_bytes_per_s", optional=True),
        sms=device.take("device.sms"),
        boost_clock_hz=device.take("device.boost_clock_hz", optional=True),
        l2_cache_bytes=device.take("device.l2_cache_bytes", optional=True),
        power_w=device.take("device.power_w", optional=True),
        peak_flop_per_s={
            dtype: peaks.take(f"device.peak_flop_per_s.{dtype}") for dtype in list(peaks.rest)
        },
    )


def _own_network(
    stated: Any, machine: Any, file: str, cited: Any, device: Mapping[str, Any]
) -> Network:
    """Return the network that a hardware file describes, or names."""
    if isinstance(stated, str):
        from shardcost.catalog import preset

        content, place = preset("networks", stated)
        known = device.get("architecture")
        return network_from(content, place, known if isinstance(known, str) else None)
    if not isinstance(stated, dict):
        raise FormatError(file, f"network must be a table or a name, got {shown(stated)}")
    given = {"name": f"{machine}_network", **stated, "sources": cited}
    return network_from({"title": f"network of {machine}", **given}, file)


def _wiring(topology: _Sheet, gpus: Any) -> Wiring:
    from shardcost.catalog.wiring import RATES, wiring_from  # few files describe a topology

    def rate(key: str, field: str, unit: float) -> Any:
        return topology.take(Figure(key, "rate", field, key, unit, ""), optional=True)

    plain = {key: topology.rest.pop(key) for key in list(topology.rest) if key not in RATES}
    return wiring_from(plain, rate, gpus, topology.file)


def _tier(link: _Sheet) -> Tier:
    if not isinstance(link.rest.get("kind"), str) and "kind" in link.rest:
        raise FormatError(link.file, f"kind must be a text, got {shown(link.rest['kind'])}")
    kind = link.plain("kind")
    flags = {
        name: link.take(f"tiers.{name}")
        for name in ("in_switch_reduction", "peer_access")
        if name in link.rest
    }
    torus: dict[str, Any] = {}
    if kind == "torus":
        shape = _several("shape", link.take("tiers.shape"))
        shares = link.take("tiers.axis_shares", optional=True)
        torus = {
            "shape": shape,
            "wraps": _several("wraps", link.take("tiers.wraps")),
            "axis_shares": _several("axis_shares", shares or [1] * len(shape)),
            "devices_per_chip": link.take("tiers.devices_per_chip", optional=True) or 1,
        }
    return Tier(
        name=kind,
        kind=kind,
        gpus=link.take("tiers.gpus"),
        bytes_per_s=link.take("tiers.bytes_per_s"),
        links_per_gpu=link.take("tiers.links_per_gpu", optional=True),
        peer_gpus=link.take("tiers.peer_gpus", optional=True),
        **flags,
        **torus,
    )


def _several(key: str, value: Any) -> tuple[Any, ...]:
    """Return a figure with an entry for each axis of a torus."""
    if not isinstance(value, list | tuple):
        raise BadTypeError(key, value, "a list with a number for each axis")
    return tuple(value)


def network_from(content: dict[str, Any], file: str, architecture: str | None = None) -> Network:
    """Return the network that a catalog file describes, beside devices of an architecture.

    A network of unstated rate is taken to be what shipped with that generation.
    """
    sheet = _Sheet(file, content, content.get("sources", {}), own_sources=True)
    sheet.plain("aliases", None)
    sheet.plain("sources", None)
    shipped = sheet.plain("nic_rate_with_gbit_per_s", {})
    rate = sheet.rest.get("nic_rate_gbit_per_s")
    if isinstance(shipped, dict) and isinstance(rate, dict) and architecture in shipped:
        sheet.rest["nic_rate_gbit_per_s"] = rate | {"value": shipped[architecture]}
    try:
        name = sheet.plain("name")
        network = Network(
            name=name,
            title=sheet.plain("title", name),
            kind=sheet.plain("kind"),
            nics_per_node=sheet.take("network.nics_per_node", optional=True),
            nics_per_gpu=sheet.take("network.nics_per_gpu", optional=True),
            nic_bytes_per_s=sheet.take("network.nic_bytes_per_s"),
            protocols=sheet.plain("protocols", ()),
            algorithms=sheet.plain("algorithms", ()),
            **{
                key: sheet.take(f"network.{key}")
                for key in ("gpu_direct", "leaf_domains", "oversubscription")
                if key in sheet.rest
            },
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
    stated = rest.pop("block", [])
    if not isinstance(stated, list):
        raise FormatError(file, f"block must be a list of tables, got {shown(stated)}")
    blocks = [_block(_table(block, "block", file), file) for block in stated]
    return _noun(Model, {**rest, "blocks": blocks, "caveats": (caveat,) if caveat else ()}, file)


_ABOUT_SOFTWARE: Final = ("name", "title", "source", "phases", "vendors", "runs_like")
"""Keys of a software file outside its tables."""


def software_from(content: dict[str, Any], file: str) -> Software:
    """Return the framework that a catalog file describes.

    Its choices come from its documentation; its constants are fitted to runs of it.
    """
    tables = ("choices", "constants", "scheduler", "fit", "memory")
    known = {"aliases", *_ABOUT_SOFTWARE, *tables}
    unknown = sorted(set(content) - known)
    if unknown:
        raise FormatError(file, f"unknown key {unknown[0]}")
    for table in tables:
        if not isinstance(content.get(table, {}), dict):
            raise FormatError(file, f"{table} must be a table, got {shown(content[table])}")
    choices, constants = content.get("choices", {}), content.get("constants", {})
    misplaced = sorted(set(choices) & {*_ABOUT_SOFTWARE, "scheduler", "fit", "memory"})
    if misplaced:
        raise FormatError(file, f"unknown key {misplaced[0]} in [choices]")
    for key, value in constants.items():
        if type(value) not in {int, float}:
            raise FormatError(file, f"{key} must be a number, got {shown(value)}")
    fields_given = {
        **{key: content[key] for key in _ABOUT_SOFTWARE if key in content},
        **choices,
        **_in_seconds(constants),
        "scheduler": _noun(Scheduler, _in_seconds(content.get("scheduler", {})), file),
        "fit": _noun(Fit, content["fit"], file) if "fit" in content else None,
        "memory": {k: v for k, v in content.get("memory", {}).items() if k not in _ABOUT},
    }
    return _noun(Software, fields_given, file)


def _in_seconds(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return constants with those in ms or us in seconds, by the names of their fields."""
    converted = {}
    for key, value in constants.items():
        unit = _SECONDS.get(key[-3:])
        if unit is None or type(value) not in {int, float}:
            converted[key] = value
        else:
            converted[f"{key[:-3]}_s"] = value * unit
    return converted


def _block(content: dict[str, Any], file: str) -> Block:
    """Return one ``[[block]]``: its attention by kind, its feed-forward part or its experts."""
    for place in {"attention", "beside"} & set(content):
        attention = _table(content[place], place, file)
        kind = attention.pop("kind", None)
        if not isinstance(kind, str) or kind not in _ATTENTIONS:
            known = ", ".join(_ATTENTIONS)
            raise FormatError(file, f"{place}.kind must be one of {known}, got {kind!r}")
        content[place] = _noun(_ATTENTIONS[kind], attention, file)
    if "feed_forward" in content and "experts" in content:
        raise FormatError(file, "a block has either feed_forward or experts, not both")
    if "experts" in content:
        experts = _table(content.pop("experts"), "experts", file)
        for key in {"expert", "shared"} & set(experts):
            experts[key] = _noun(FeedForward, experts[key], file)
        content["feed_forward"] = _noun(Experts, experts, file)
    elif "feed_forward" in content:
        content["feed_forward"] = _noun(FeedForward, content["feed_forward"], file)
    return _noun(Block, content, file)


def _table(value: Any, name: str, file: str) -> dict[str, Any]:
    """Return a copy of a table."""
    if not isinstance(value, dict):
        raise FormatError(file, f"{name} must be a table, got {shown(value)}")
    return dict(value)


def _noun(kind: type[N], content: Any, file: str) -> N:
    """Return a noun whose fields are the keys of a table."""
    content = _table(content, kind.__name__, file)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(content) - known)
    if unknown:
        raise FormatError(file, f"unknown key {unknown[0]}")
    try:
        return kind(**content)
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    except TypeError:  # a field without a default is missing
        lacking = [
            field.name
            for field in fields(kind)  # type: ignore[arg-type]
            if field.name not in content
            and field.default is MISSING
            and field.default_factory is MISSING
        ]
        if not lacking:
            raise
        raise FormatError(file, f"{lacking[0]} is missing") from None
