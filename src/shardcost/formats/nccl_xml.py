"""The two XML files that NCCL dumps: the machine as it sees it, and the channels that it chose.

``NCCL_TOPO_DUMP_FILE`` (also what clouds ship as ``NCCL_TOPO_FILE``) is a tree of CPUs, PCI
switches, GPUs and network cards; NVLinks hang below the GPU that has them. ``NCCL_GRAPH_DUMP_FILE``
lists for each pattern the channels through the devices and their rate.

XML can be a weapon: entities that expand a thousandfold, external ones that fetch files, nesting
that exhausts the stack. None of these files has a document type, so any is refused at its first
character; size, depth and the number of elements are bounded. The parser is told of nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.parsers import expat

from shardcost.errors import FormatError, shown
from shardcost.formats.opened import chunks_of
from shardcost.formats.reading import PassedOver, Reading, Tick, no_tick
from shardcost.units import GIGA

TOPOLOGY: Final = "nccl-topology"
GRAPH: Final = "nccl-graph"

_MOST_BYTES: Final = 16 * 2**20
"""A machine of 16 GPUs has 30 KiB, a rack of 72 some 300."""
_MOST_DEPTH: Final = 64
_MOST_ELEMENTS: Final = 50_000
_MOST_GPUS: Final = 576
_MOST_CARDS: Final = 1024
"""In one file; the largest NVLink domain that was announced has 576 GPUs."""
_ROOTS: Final = {"system": TOPOLOGY, "graphs": GRAPH}
_BLANKS: Final = re.compile("[ \\t\\r\\n\ufeff]*")
_BEFORE_ROOT: Final = (("<!--", "-->"), ("<?", "?>"))
_ROOT: Final = re.compile(r"<([A-Za-z_][A-Za-z0-9_.:-]{0,60})")
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}|0x[0-9a-fA-F]{1,16}")
_DECIMAL: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,12})?")
_GPU_CLASS: Final = ("0x0302", "0x0300")
_NIC_CLASS: Final = "0x02"
_BRIDGE_CLASS: Final = "0x0604"
_MOST_LINKS: Final = 1024


@dataclass(frozen=True)
class NvLinks:
    """NVLinks from one GPU to one other device."""

    target: str
    """Its bus address; ``fffffff:ff:ff.0`` for a switch that is not on this host's bus."""
    count: int
    target_class: str
    """PCI class: ``0x068000`` is a switch, ``0x0302..`` another GPU."""


@dataclass(frozen=True)
class Place:
    """Where a device sits: below which CPU, behind which PCI switches."""

    cpu: int
    """Which of the file's CPUs, counted from 0."""
    switches: tuple[str, ...]
    """Bus addresses of the bridges above it, outermost first."""


@dataclass(frozen=True)
class TopologyGpu:
    """One GPU. What the file does not say is None or empty."""

    dev: int
    busid: str
    place: Place
    sm: int | None
    rank: int | None
    gdr: bool | None
    """Network cards may reach its memory (GPUDirect RDMA)."""
    pci_id: str
    """``10de:2330``: maker and model, as the bus reports them."""
    pci_bytes_per_s: float | None
    """Line rate of its PCI link after encoding; None where a virtual machine hides it."""
    nvlinks: tuple[NvLinks, ...]


@dataclass(frozen=True)
class TopologyNic:
    """One port of a network card."""

    name: str
    place: Place
    gbit_per_s: float | None
    gdr: bool | None
    maker: str
    """PCI vendor: ``0x15b3`` is Mellanox, ``0x1d0f`` Amazon."""
    pci_class: str
    """``0x0207..`` is InfiniBand, ``0x0200..`` Ethernet."""


@dataclass(frozen=True)
class TopologyCpu:
    """One NUMA domain."""

    host: str
    """Which host it is of, in a file that joins several."""


@dataclass(frozen=True, kw_only=True)
class NcclTopology(Reading):
    """A machine, or several joined, as NCCL sees it."""

    cpus: tuple[TopologyCpu, ...]
    switches: tuple[str, ...]
    """Bus addresses of the PCI bridges that lead to a device."""
    gpus: tuple[TopologyGpu, ...]
    nics: tuple[TopologyNic, ...]


@dataclass(frozen=True)
class NcclGraph:
    """What NCCL's search found for one pattern."""

    pattern: int
    channels: int
    intra_gb_per_s: float
    """Of one channel inside a node."""
    inter_gb_per_s: float
    """Of one channel between nodes."""
    intra_type: str
    inter_type: str
    routes: tuple[tuple[str, ...], ...]
    """The devices of each channel in order: ``gpu 0``, ``net 1``."""


@dataclass(frozen=True, kw_only=True)
class NcclGraphs(Reading):
    """The channels that NCCL chose."""

    graphs: tuple[NcclGraph, ...]


@dataclass
class _Element:
    tag: str
    attributes: Mapping[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[_Element]:
        return (child for child in self.children if child.tag == tag)


@dataclass
class _Parts:
    """Devices met on the way down, and what was passed over."""

    passed_over: PassedOver = field(default_factory=PassedOver)
    cpus: list[TopologyCpu] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    gpus: list[TopologyGpu] = field(default_factory=list)
    nics: list[TopologyNic] = field(default_factory=list)
    widthless: int = 0

    def whole(self, element: _Element, name: str, least: int, most: int) -> int | None:
        """Return a whole number of an attribute; None if it is absent, counted if it is wrong."""
        text = element.attributes.get(name)
        if text is None:
            return None
        value = int(text, 0 if text.startswith("0x") else 10) if _WHOLE.fullmatch(text) else None
        if value is not None and least <= value <= most:
            return value
        self.passed_over.add(element.line, f"{name} of <{element.tag}> is no sound number")
        return None

    def decimal(self, element: _Element, name: str, most: float) -> float | None:
        """Return a number of at least 0 that an attribute begins with, as ``32.0 GT/s PCIe``."""
        text = element.attributes.get(name)
        match = _DECIMAL.match(text or "")
        if match and float(match[0]) <= most:
            return float(match[0])
        if text is not None:
            self.passed_over.add(element.line, f"{name} of <{element.tag}> is no sound number")
        return None


def looks_like(head: str) -> bool:
    """Return whether a file begins as either of NCCL's two does."""
    return kind_of(head) is not None


def kind_of(head: str) -> str | None:
    """Return which of the two kinds a file is by its first element; None if neither."""
    place = 0
    while True:
        place = _BLANKS.match(head, place).end()  # type: ignore[union-attr]  # matches anywhere
        close = next((end for start, end in _BEFORE_ROOT if head.startswith(start, place)), None)
        if close is None:
            break
        end = head.find(close, place)
        if end < 0:
            return None
        place = end + len(close)
    root = _ROOT.search(head, place) if head.startswith("<", place) else None
    return _ROOTS.get(root[1]) if root else None


def read(path: Path, tick: Tick = no_tick) -> NcclTopology | NcclGraphs:
    """Return the machine or the channels that a file describes."""
    file = str(path)
    builder = _Builder(file)
    with chunks_of(path, tick, _MOST_BYTES) as chunks:
        for chunk in chunks:
            builder.feed(chunk, last=False)
    builder.feed(b"", last=True)
    root = builder.root
    if root.tag == "system":
        return _topology(root, file)
    if root.tag == "graphs":
        return _graphs(root, file)
    raise FormatError(file, f"begins with <{root.tag[:40]}>, neither <system> nor <graphs> of NCCL")


class _Builder:
    """Collects elements from expat and refuses whatever these files never have."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root = _Element("", {}, 0)
        self._open: list[_Element] = []
        self._elements = 0
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = lambda _tag: self._open.pop()
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse

    def feed(self, chunk: bytes, *, last: bool) -> None:
        try:
            self._parser.Parse(chunk, last)
        except expat.ExpatError as error:
            reason = f"line {error.lineno} is not sound XML: {expat.ErrorString(error.code)}"
            raise FormatError(self.file, reason) from None
        except (ValueError, LookupError) as error:  # an encoding that Python does not have
            if isinstance(error, FormatError):
                raise
            line = self._parser.CurrentLineNumber
            reason = f"line {line} is not sound XML: {shown(str(error))}"
            raise FormatError(self.file, reason) from None

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self._parser.CurrentLineNumber
        self._elements += 1
        if len(self._open) >= _MOST_DEPTH:
            raise FormatError(self.file, f"line {line} is nested over {_MOST_DEPTH} levels deep")
        if self._elements > _MOST_ELEMENTS:
            raise FormatError(self.file, f"line {line}: over {_MOST_ELEMENTS:,} elements")
        element = _Element(tag, attributes, line)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _refuse(self, *_about: object) -> None:
        line = self._parser.CurrentLineNumber
        raise FormatError(self.file, f"line {line} declares a document type or entity; refused")


def _topology(root: _Element, file: str) -> NcclTopology:
    parts = _Parts()
    for element in root.all("cpu"):
        parts.cpus.append(TopologyCpu(_word(element, "host_hash")))
        _descend(element, Place(len(parts.cpus) - 1, ()), parts)
    if not parts.gpus and not parts.nics:
        reason = f"line {root.line}: <system> holds neither a GPU nor a network card"
        raise FormatError(file, reason)
    if len(parts.gpus) > _MOST_GPUS or len(parts.nics) > _MOST_CARDS:
        raise FormatError(file, f"holds over {_MOST_GPUS} GPUs or {_MOST_CARDS} network cards")
    hidden = "PCI links have width 0, as in virtual machines: rates are not known"
    return NcclTopology(
        file=file,
        kind=TOPOLOGY,
        unread=parts.passed_over.unread(),
        notes=(f"{parts.widthless} {hidden}",) if parts.widthless else (),
        cpus=tuple(parts.cpus),
        switches=tuple(dict.fromkeys(parts.switches)),
        gpus=tuple(parts.gpus),
        nics=tuple(parts.nics),
    )


def _word(element: _Element, name: str) -> str:
    """Return a short attribute that is shown; one with odd characters is shown without them."""
    text = element.attributes.get(name, "")[:60]
    return "".join(character for character in text if character.isprintable())


def _descend(above: _Element, place: Place, parts: _Parts) -> None:
    """Take the devices below a CPU or a PCI switch. As deep as the file, which is bounded."""
    for element in above.children:
        if element.tag == "pci":
            _pci(element, place, parts)
        elif element.tag == "nic":
            for net in element.children:
                if net.tag in {"net", "gin"}:
                    if net.tag == "net":
                        parts.nics.append(_port(net, above, place, parts))
                else:
                    parts.passed_over.add(net.line, f"<{net.tag[:40]}> is not known")
        elif element.tag == "gpu":
            parts.gpus.append(_gpu(element, above, place, parts))
        else:
            parts.passed_over.add(element.line, f"<{element.tag[:40]}> is not known")


def _pci(element: _Element, place: Place, parts: _Parts) -> None:
    pci_class = _word(element, "class").lower()
    inside = {child.tag for child in element.children}
    if element.attributes.get("link_width") == "0":
        parts.widthless += 1
    if "pci" in inside or pci_class.startswith(_BRIDGE_CLASS):
        busid = _word(element, "busid")
        parts.switches.append(busid)
        place = Place(place.cpu, (*place.switches, busid))
    elif pci_class.startswith(_GPU_CLASS) and "gpu" not in inside:
        parts.gpus.append(_gpu(element, element, place, parts))
    elif pci_class.startswith(_NIC_CLASS) and "nic" not in inside:
        parts.nics.append(_port(element, element, place, parts))
    _descend(element, place, parts)


def _gpu(element: _Element, pci: _Element, place: Place, parts: _Parts) -> TopologyGpu:
    """Return a GPU: of a ``<gpu>``, or of its PCI entry alone, as in the files of clouds."""
    dev = parts.whole(element, "dev", 0, 4096) if element.tag == "gpu" else None
    ids = [_word(pci, name).lower().removeprefix("0x") for name in ("vendor", "device")]
    return TopologyGpu(
        dev=len(parts.gpus) if dev is None else dev,
        busid=_word(pci, "busid"),
        place=place,
        sm=parts.whole(element, "sm", 10, 999),
        rank=parts.whole(element, "rank", 0, 10**7),
        gdr=_flag(element, "gdr"),
        pci_id=":".join(ids) if all(ids) else "",
        pci_bytes_per_s=_pci_rate(pci, parts),
        nvlinks=tuple(_nvlinks(element, parts)),
    )


def _nvlinks(gpu: _Element, parts: _Parts) -> Iterator[NvLinks]:
    for element in gpu.all("nvlink"):
        count = parts.whole(element, "count", 0, _MOST_LINKS)
        if count is not None:
            yield NvLinks(_word(element, "target").lower(), count, _word(element, "tclass").lower())
        elif "count" not in element.attributes:
            parts.passed_over.add(element.line, "<nvlink> without a count")


def _flag(element: _Element, name: str) -> bool | None:
    return {"0": False, "1": True}.get(element.attributes.get(name, ""))


def _pci_rate(pci: _Element, parts: _Parts) -> float | None:
    """Return the line rate of a PCI link in bytes per second, one way, after its encoding.

    Links of 8 GT/s and more send 130 bits for 128, slower ones 10 for 8 (PCI Express Base
    Specification 3.0, PCI-SIG, 2010).
    """
    transfers = parts.decimal(pci, "link_speed", 1000)
    width = parts.whole(pci, "link_width", 0, 64)
    if not transfers or not width:
        return None
    encoded = 128 / 130 if transfers >= 8 else 8 / 10
    return transfers * GIGA * width * encoded / 8


def _port(net: _Element, pci: _Element, place: Place, parts: _Parts) -> TopologyNic:
    """Return a port: of a ``<net>``, or of its PCI entry alone. Speeds are in Mbit/s."""
    megabits = parts.decimal(net, "speed", 10**8) if net.tag == "net" else None
    return TopologyNic(
        name=_word(net, "name") or _word(pci, "busid") or f"net {len(parts.nics)}",
        place=place,
        gbit_per_s=megabits / 1000 if megabits else None,
        gdr=_flag(net, "gdr"),
        maker=_word(pci, "vendor").lower(),
        pci_class=_word(pci, "class").lower(),
    )


def _graphs(root: _Element, file: str) -> NcclGraphs:
    parts = _Parts()
    graphs = []
    for element in root.all("graph"):
        pattern, channels = (
            parts.whole(element, name, 0, 4096) for name in ("pattern", "nchannels")
        )
        intra, inter = (
            parts.decimal(element, name, 10**6) for name in ("speedintra", "speedinter")
        )
        if pattern is None or channels is None or intra is None or inter is None:
            parts.passed_over.add(element.line, "<graph> without its sizes")
            continue
        routes = tuple(
            tuple(
                f"{stop.tag} {_word(stop, 'dev')}"
                for stop in channel.children
                if stop.tag in {"gpu", "net"}
            )
            for channel in element.all("channel")
        )
        types = _word(element, "typeintra"), _word(element, "typeinter")
        graphs.append(NcclGraph(pattern, channels, intra, inter, *types, routes))
    if not graphs:
        raise FormatError(file, f"line {root.line}: <graphs> holds no graph")
    return NcclGraphs(
        file=file, kind=GRAPH, unread=parts.passed_over.unread(), graphs=tuple(graphs)
    )
