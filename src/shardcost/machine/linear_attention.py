"""Which constants a kernel of linear attention runs by: its own, those of one like it, or of any.

The catalog's table ``linear_attention`` has a section for each kernel that was measured on a
device, by part, phase and rule of the state (``part-phase-rule-library-kernel``), and one for each
family of kernels there (``part-phase-family-rule``). ``tuner/linear_attention_pooled.toml`` has the
same over all devices with the same kind of L2 cache, over all devices, and families over all rules
(``part-phase-family``). Which family a kernel is of, and which kernel an engine runs by default,
are data of ``tuner/linear_attention.toml``.

A kernel's own constants come first: of the device, of the nearest one of its architecture and
generation, over all devices. Then those of its family in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shardcost.catalog import tuner_table
from shardcost.cluster import Device
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.machine.families import Sections, defaults, family_by_word, resolved
from shardcost.machine.kernels import KernelConstants, Section
from shardcost.records import NamedTuple

PARTS: Final = ("conv", "scan", "step", "conv+step")
PARTITIONED: Final = "partitioned"
PHASES: Final = ("prefill", "decode", "verify")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class KernelKind(NamedTuple):
    """A kernel of a library, and what is stated of it."""

    library: str
    name: str
    """Kernels of one name that differ by version have names of their own."""
    family: str
    tile_tokens: int = 1
    start_tokens: int = 0
    """Tokens that the start of a row of tiles is worth."""
    aligned_tokens: int = 1
    """Sequences of other than whole multiples take longer."""
    calls: int = 1
    """Launches, one after another, each on a part of the channels."""
    written_bytes: int = 0
    """Of an element of the state, where it is written to another place than it is read from."""
    single: bool = False
    """One kernel does the whole scan, its memory traffic behind the chain of chunks."""


def kind_of(kernel: str, part: str, library: str = "", version: str = "") -> KernelKind:
    """Return what is known of a kernel; unknown names are of the usual family of their part.

    >>> kind_of("flashkda_fwd", "scan").family, kind_of("new", "scan").family
    ('cutlass', 'triton')
    """
    table = tuner_table("linear_attention")
    for entry in table["kernel"]:
        if entry["name"] != kernel or entry.get("library", library) != library:
            continue
        if "before" in entry and not (version and _older(version, entry["before"])):
            continue
        stated = {name: entry[name] for name in KernelKind._fields if name in entry}
        stated["name"] = entry.get("called", kernel)
        return KernelKind(**{"library": library, **stated})
    family = _family(kernel, part)
    tile = table["tile_tokens"].get(family, 1) if part == "conv" else 1
    return KernelKind(library, kernel, family, tile)


def _family(kernel: str, part: str) -> str:
    table = tuner_table("linear_attention")
    usual = table["unknown"].get(part, table["unknown"]["scan"])
    return family_by_word(kernel, table["family_word"]) or str(usual)


def _older(version: str, other: str) -> bool:
    """Return whether a version comes before another, number by number."""
    one, two = ([int(part) for part in _NUMBER.findall(each)] for each in (version, other))
    return one[: len(two)] < two


def default_kernel(software: str, device: Device, op: str, part: str) -> str:
    """Return the kernel that an engine runs on a device unless told otherwise.

    Args:
        software: ``vllm``, ``sglang`` or ``trtllm``, or a name that begins so; others run the
            kernels that most engines have.
        device: Where it runs.
        op: The rule of the state.
        part: ``conv`` in prefill, ``update`` for the convolution of decode, ``scan`` or ``step``.
    """
    for entry in defaults("linear_attention", software, device):
        if entry.get("op", op) == op and part in entry:
            return str(entry[part])
    raise UnknownNameError("part of linear attention", part, PARTS)


def state_bytes(software: str) -> float:
    """Return the bytes of an element of the state, as an engine keeps it."""
    table = tuner_table("linear_attention")["state_bytes"]
    return float(next((table[name] for name in table if software.startswith(name)), table["other"]))


def start_of(part: str, phase: str) -> Mapping[str, Any]:
    """Return the round figures that stand for constants of a part and phase before any fit."""
    table: Mapping[str, Any] = tuner_table("linear_attention")["start"]
    key = f"{_word(part)}-{phase}"
    if key not in table:
        rule = f"one of {', '.join(table)}"
        raise BadValueError("part and phase of linear attention", key, rule)
    start: Mapping[str, Any] = table[key]
    return start


def section_names(kind: KernelKind, op: str, part: str, phase: str) -> tuple[str, str, str]:
    """Return the sections of a kernel, of its family with its rule, and of its family."""
    of_part = f"{_word(part)}-{phase}"
    family = f"{of_part}-{kind.family}"
    return f"{of_part}-{op}-{kind.library}-{kind.name}", f"{family}-{op}", family


def linear_attention_section(
    on: KernelConstants, kind: KernelKind, op: str, part: str, phase: str
) -> Section:
    """Return the constants of a kernel.

    Args:
        on: The constants of the device that it runs on.
        kind: The kernel.
        op: The rule of the state.
        part: ``conv``, ``scan``, ``step`` or ``conv+step``.
        phase: ``prefill``, ``decode`` or ``verify``.
    """
    of = (kind, op, part, phase)
    names = section_names(*of)
    return resolved(on, "linear_attention", of, names, lambda sections: chosen(sections, *of))


def chosen(sections: Sections, kind: KernelKind, op: str, part: str, phase: str) -> Section:
    """Return the constants that hold for a kernel.

    Args:
        sections: The sections to choose from.
        kind: The kernel.
        op: The rule of the state.
        part: Which part of a layer.
        phase: In which phase.
    """
    for name in _names(kind, op, part, phase, sections.pooled):
        own = sections.nearest((name,))
        if own is not None:
            return own
        for over in (f"{name}-{cache_of(sections.device)}", name):
            if over in sections.pooled:
                return sections.over_all(over, name)
    raise BadValueError("kernel", kind.name, f"of a family with measured kernels of {part} {phase}")


def _names(
    kind: KernelKind, op: str, part: str, phase: str, pooled: Mapping[str, Any]
) -> Iterator[str]:
    """Yield names of sections that may hold, the best first."""
    yield from section_names(kind, op, part, phase)
    usual = tuner_table("linear_attention")["unknown"][part]
    yield from section_names(kind._replace(family=usual), op, part, phase)[1:]
    of_part = f"{_word(part)}-{phase}-"
    yield from (name for name in pooled if name.startswith(of_part))


def cache_of(device: Device) -> str:
    """Return how a device's L2 cache is built, which tells the devices that kernels run alike on.

    Data-centre dies have two partitions, and what one reads of the other's memory is in both
    (NVIDIA A100 Tensor Core GPU Architecture, NVIDIA, 2020).
    """
    common = tuner_table("linear_attention")["common"]
    parted = device.compute_capability in common["partitioned_capability"]
    return PARTITIONED if parted else "unified"


def _word(part: str) -> str:
    return part.replace("+", "_")
