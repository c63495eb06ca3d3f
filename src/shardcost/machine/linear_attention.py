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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardcost import catalog
from shardcost.catalog import tuner_table
from shardcost.cluster import Device
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.machine.kernels import KernelConstants, Section, nearest_systems

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
    parts = kernel.lower().split("_")
    for entry in table["family_word"]:
        if any(part.startswith(entry["word"]) for part in parts):
            return str(entry["family"])
    return str(table["unknown"].get(part, table["unknown"]["scan"]))


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
    capability = float(device.compute_capability or 0)
    for entry in tuner_table("linear_attention")["default"]:
        holds = software.startswith(entry.get("software", "")) and entry.get("op", op) == op
        within = entry.get("capability_from", 0.0) <= capability < entry.get("capability_to", 1e9)
        if holds and within and part in entry:
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
    key = ("linear_attention", kind, op, part, phase)
    if key not in on.memo:
        on.memo[key] = _resolved(on, kind, op, part, phase)
    section: Section = on.memo[key]
    return section


def _resolved(on: KernelConstants, kind: KernelKind, op: str, part: str, phase: str) -> Section:
    for name in section_names(kind, op, part, phase):
        if ("linear_attention", name) in on.sections:
            return on.sections["linear_attention", name]
    pooled = tuner_table("linear_attention_pooled")
    systems = nearest_systems(on.like, catalog.names("linear_attention"))

    def content_of(system: str) -> Mapping[str, Any]:
        return on.tables.content("linear_attention", system)

    wanted = (kind, op, part, phase)
    system, name, content = chosen(on.like, *wanted, systems, content_of, pooled)
    section = on.section_of(system, name, content)
    return section if content is not pooled else section._replace(inherited_from=system)


def chosen(
    device: Device,
    kind: KernelKind,
    op: str,
    part: str,
    phase: str,
    systems: Sequence[str],
    content_of: Callable[[str], Mapping[str, Any]],
    pooled: Mapping[str, Any],
) -> tuple[str, str, Mapping[str, Any]]:
    """Return which constants hold: a system, the name of a section, and the file that has it.

    Args:
        device: Where the kernel runs.
        kind: The kernel.
        op: The rule of the state.
        part: Which part of a layer.
        phase: In which phase.
        systems: The measured systems, the nearest first.
        content_of: The sections of a system, read only where they are needed.
        pooled: Those over all systems; their system is the nearest that has the section, if any.
    """
    related = [system for system in systems if _related(system, device)]
    for name in _names(kind, op, part, phase, pooled):
        for system in related:
            content = content_of(system)
            if name in content:
                return system, name, content
        alike = f"{name}-{cache_of(device)}"
        for over in (alike, name):
            if over in pooled:
                having = (system for system in systems if name in content_of(system))
                return next(having, systems[0]), over, pooled
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


def _related(system: str, device: Device) -> bool:
    """Return whether a measured system's device is of a device's architecture and generation."""
    other = catalog.cluster_named(system).device
    one_major, other_major = (
        (each.compute_capability or "").partition(".")[0] for each in (device, other)
    )
    return other.architecture == device.architecture and one_major == other_major


def _word(part: str) -> str:
    return part.replace("+", "_")
