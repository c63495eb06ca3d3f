r"""The matrix that ``nvidia-smi topo -m`` prints: how GPUs and network cards reach each other.

Each cell is how far two devices are apart: ``NV18`` over that many NVLinks, ``PIX`` and ``PXB``
over PCIe switches, ``PHB`` and ``NODE`` over the CPU, ``SYS`` (``SOC`` with old drivers) from one
socket to another. Drivers differ in the columns after the devices, in what network cards are
called, and in whether the heading is underlined by escape codes; so columns are found by the names
in the heading, and cells by what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shardcost.errors import FormatError
from shardcost.formats.opened import text_of
from shardcost.formats.reading import PassedOver, Reading, Tick, no_tick

KIND: Final = "nvidia-smi-topo"
NEAREST_FIRST: Final = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""How two devices are joined, from the closest to the farthest."""

_MOST_DEVICES: Final = 256
_MOST_CHARACTERS: Final = 4 * 2**20
_MOST_LINES: Final = 50_000
"""A matrix of 16 GPUs and 16 cards has 4 KiB; what follows so much other output is not sought."""
_ESCAPE: Final = re.compile(r"\x1b?\[[0-9;]{1,20}m")
"""As a terminal gets it, and as it looks when copied without the unprintable character."""
_PREFIX: Final = re.compile(
    r"\s{0,9}(?:\[[0-9]{1,9}(?:,[0-9]{1,9})?\](?:<std[a-z]{3}>)?:|[0-9]{1,9}:)"
)
"""What mpirun and srun put before each line to say whose it is."""
_GPU: Final = re.compile(r"GPU[0-9]{1,4}")
_DEVICE: Final = re.compile(r"(?=.{0,40}[0-9])[A-Za-z][A-Za-z0-9_.:-]{0,40}")
"""Every device has a number in its name; other words after ``GPU0`` make a line no heading."""
_JOINED: Final = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_LEGEND: Final = re.compile(r"\s{0,20}(NIC[0-9]{1,4}):\s{1,20}(\S{1,60})\s{0,20}")
_AFTER_DEVICES: Final = frozenset(("CPU", "NUMA", "GPU"))
"""First words of ``CPU Affinity``, ``NUMA Affinity`` and ``GPU NUMA ID``."""


@dataclass(frozen=True, kw_only=True)
class DeviceMatrix(Reading):
    """How the devices of one machine reach each other. A cell that was not read is empty."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    nic_names: Mapping[str, str]
    """What the legend calls each card: ``NIC0`` is ``mlx5_0``."""
    links: tuple[tuple[str, ...], ...]
    """From each GPU to each, ``X`` to itself."""
    nic_links: tuple[tuple[str, ...], ...]
    """From each GPU to each network card."""
    numa: tuple[str, ...]
    """The NUMA domain of each GPU, as printed."""


@dataclass
class _Matrix:
    """A matrix while it is read."""

    names: list[str]
    numa_column: bool
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)
    passed_over: PassedOver = field(default_factory=PassedOver)
    notes: list[str] = field(default_factory=list)


def looks_like(head: str) -> bool:
    """Return whether a file begins with such a matrix, or has one soon after other output."""
    return any(_names(line) for _, line in _lines(head))


def read(path: Path, tick: Tick = no_tick) -> DeviceMatrix:
    """Return the first matrix of a file."""
    text = text_of(path, tick)
    lines = _lines(text[:_MOST_CHARACTERS])
    matrix = _heading(lines, str(path))
    for number, line in lines:
        if _names(line):
            matrix.notes.append("holds more than one matrix; the first is read")
            break
        _take(matrix, number, line)
    return _finished(matrix, str(path))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, without escape codes and what launchers put before it."""
    lines = text.split("\n", _MOST_LINES)[:_MOST_LINES]
    for number, raw in enumerate(lines, start=1):
        line = _ESCAPE.sub("", raw) if "[" in raw else raw
        prefix = _PREFIX.match(line)
        yield number, line[prefix.end() :] if prefix else line


def _names(line: str) -> list[str]:
    """Return the devices that a heading names; nothing if the line is not one."""
    words = line.split(maxsplit=_MOST_DEVICES + 9)
    if not words or not _GPU.fullmatch(words[0]):
        return []
    end = next((i for i, word in enumerate(words) if word in _AFTER_DEVICES), len(words))
    names = words[:end]
    sound = all(_DEVICE.fullmatch(name) and not _JOINED.fullmatch(name) for name in names)
    alone = end == 1 and end == len(words)  # a GPU's name by itself heads nothing
    return names if sound and not alone else []


def _heading(lines: Iterator[tuple[int, str]], file: str) -> _Matrix:
    for number, line in lines:
        names = _names(line)
        if len(names) > _MOST_DEVICES:
            raise FormatError(file, f"line {number} names over {_MOST_DEVICES} devices")
        if len(set(names)) < len(names):
            raise FormatError(file, f"line {number} names a device twice")
        if names:
            return _Matrix(names, "NUMA Affinity" in line)
    raise FormatError(file, "holds no matrix of nvidia-smi topo -m: no heading GPU0 GPU1 …")


def _take(matrix: _Matrix, number: int, line: str) -> None:
    """Take a row or a line of the legend; pass over all else, which is other output."""
    legend = _LEGEND.fullmatch(line)
    if legend:
        matrix.legend[legend[1]] = legend[2]
        return
    name, *cells = line.split(maxsplit=_MOST_DEVICES + 9) or [""]
    if name not in matrix.names or name in matrix.rows:
        return
    matrix.rows.add(name)
    row = cells[: len(matrix.names)]
    for other, cell in zip(matrix.names, row, strict=False):
        if _JOINED.fullmatch(cell):
            matrix.cells[name, other] = "SYS" if cell == "SOC" else cell
        else:
            matrix.passed_over.add(number, "a cell that is no known way to be joined")
    if len(row) < len(matrix.names):
        matrix.passed_over.add(number, "a row that is cut off")
    after = cells[len(matrix.names) :]
    if matrix.numa_column and len(after) > 1:
        matrix.numa[name] = after[1]


def _finished(matrix: _Matrix, file: str) -> DeviceMatrix:
    gpus = [name for name in matrix.names if _GPU.fullmatch(name)]
    nics = [name for name in matrix.names if name not in gpus]
    if not any((gpu, other) in matrix.cells for gpu in gpus for other in gpus):
        raise FormatError(file, "has the heading of nvidia-smi topo -m and no row below it")
    missing = len(set(matrix.names) - matrix.rows)
    if missing:
        matrix.passed_over.add(0, "a row that is missing", count=missing)
    return DeviceMatrix(
        file=file,
        kind=KIND,
        unread=matrix.passed_over.unread(),
        notes=(*matrix.notes, *_disagreements(matrix)),
        gpus=tuple(gpus),
        nics=tuple(nics),
        nic_names={nic: matrix.legend.get(nic, nic) for nic in nics},
        links=tuple(tuple(_cell(matrix, one, other) for other in gpus) for one in gpus),
        nic_links=tuple(tuple(_cell(matrix, one, nic) for nic in nics) for one in gpus),
        numa=tuple(matrix.numa.get(gpu, "") for gpu in gpus),
    )


def _cell(matrix: _Matrix, one: str, other: str) -> str:
    """Return how two devices are joined, as either's row says."""
    own = "X" if one == other else ""
    return matrix.cells.get((one, other)) or matrix.cells.get((other, one), own)


def _disagreements(matrix: _Matrix) -> list[str]:
    odd = [
        f"{one} and {other}"
        for (one, other), cell in matrix.cells.items()
        if one < other and matrix.cells.get((other, one), cell) != cell
    ]
    more = f" and {len(odd) - 1} more pairs" if len(odd) > 1 else ""
    return [f"the rows of {odd[0]}{more} disagree on how they are joined"] if odd else []
