"""Which constants an expert kernel runs by: its own, those of a kernel like it, or of any.

Engines have many expert kernels, under names that change from version to version, of few families:
Triton's, CUTLASS's, TensorRT-LLM's generated ones, DeepGEMM, Marlin. The table ``experts`` of the
catalog has a section for each kernel and number format that was measured on a device, and one for
each family and format there, named ``kernel-format`` and ``family-format``. Which family a kernel
is of, and which kernel an engine runs by default, are data of ``tuner/experts.toml``.

A device nobody measured inherits from the nearest one of its architecture and generation. Where
there is none, or where none there ran the kernel or one of its family, the constants are those of
the family over all measured devices (``tuner/experts_pooled.toml``): a device left out of the fit
is predicted better by them than by any single foreign device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shardcost import catalog
from shardcost.catalog import tuner_table
from shardcost.cluster import Device
from shardcost.dtypes import weight_format
from shardcost.errors import BadValueError
from shardcost.machine.kernels import KernelConstants, Section, nearest_systems

_SAME_KERNEL: Final[Mapping[str, str]] = {"w4a16_int4_g32": "w4a16_int4"}
"""Formats that run by another's kernels, with more scales."""
_ALIKE: Final[Mapping[str, tuple[str, ...]]] = {
    "fp8": ("fp8_block",),
    "fp8_block": ("fp8",),
    "w4a16_int4_g32": ("w4a16_int4",),
}
"""Formats of the same bytes and arithmetic, whose constants are better than another device's."""


def family_of(kernel: str, dtype: str = "", library: str = "") -> str:
    """Return the family that an expert kernel is of; unknown names are a library's usual one.

    >>> family_of("vllm_fp8moe_triton_tritonexperts"), family_of("new", library="trtllm")
    ('triton', 'cutlass')
    """
    table = tuner_table("experts")
    by_format = table["family_of_format"].get(kernel, {})
    known = by_format.get(dtype) or table["family_of"].get(kernel)
    if known is not None:
        return str(known)
    parts = kernel.lower().split("_")
    for entry in table["family_word"]:
        if any(part.startswith(entry["word"]) for part in parts):
            return str(entry["family"])
    return str(table["family_of_library"].get(library, table["unknown"]["family"]))


def default_kernel(software: str, device: Device, dtype: str, *, spread: bool = False) -> str:
    """Return the expert kernel that an engine runs on a device unless told otherwise.

    Args:
        software: ``vllm``, ``sglang`` or ``trtllm``, or a name that begins so. Others run the
            family of kernels that most engines have.
        device: Where it runs.
        dtype: The number format of the experts.
        spread: Whether they are spread over several ranks.
    """
    table = tuner_table("experts")
    for entry in table["default"]:
        if software.startswith(entry["software"]) and _holds_for(entry, device):
            known = entry if spread else {**entry, **entry.get("together", {})}
            named = (known[each] for each in (dtype, _SAME_KERNEL.get(dtype)) if each in known)
            return str(next(named, entry["other"]))
    return str(table["unknown"]["family"])


def _holds_for(entry: Mapping[str, Any], device: Device) -> bool:
    if entry.get("architecture", device.architecture) != device.architecture:
        return False
    capability = float(device.compute_capability or 0)
    least, most = entry.get("capability_from", 0.0), entry.get("capability_to", 1e9)
    return bool(least <= capability < most)


def experts_section(on: KernelConstants, kernel: str, dtype: str, library: str = "") -> Section:
    """Return the constants of an expert kernel in a number format.

    Args:
        on: The constants of the device that it runs on.
        kernel: Its name, or the name of a family.
        dtype: The number format of the experts.
        library: The engine that runs it, which tells the family of an unknown name.
    """
    key = ("experts", kernel, dtype, library)
    if key not in on.memo:
        on.memo[key] = _resolved(on, kernel, dtype, family_of(kernel, dtype, library))
    section: Section = on.memo[key]
    return section


def _resolved(on: KernelConstants, kernel: str, dtype: str, family: str) -> Section:
    for name in (f"{kernel}-{dtype}", f"{family}-{dtype}"):
        if ("experts", name) in on.sections:
            return on.sections["experts", name]
    pooled = tuner_table("experts_pooled")
    systems = nearest_systems(on.like, catalog.names("experts"))

    def content_of(system: str) -> Mapping[str, Any]:
        return on.tables.content("experts", system)

    wanted = (kernel, dtype, family)
    system, name, content = chosen(on.like, *wanted, systems, content_of, pooled)
    section = on.section_of(system, name, content)
    return section if content is not pooled else section._replace(inherited_from=system)


def chosen(
    device: Device,
    kernel: str,
    dtype: str,
    family: str,
    systems: Sequence[str],
    content_of: Callable[[str], Mapping[str, Any]],
    pooled: Mapping[str, Any],
) -> tuple[str, str, Mapping[str, Any]]:
    """Return which constants hold: a system, the name of a section, and the file that has it.

    Args:
        device: Where the kernel runs.
        kernel: Its name.
        dtype: The number format of the experts.
        family: The family of the kernel.
        systems: The measured systems, the nearest first.
        content_of: The sections of a system, read only where they are needed.
        pooled: Those of families over all systems; their system is the nearest that has the family.
    """
    related = [system for system in systems if _related(system, device)]
    formats = (dtype, *_ALIKE.get(dtype, ()))
    for name in (f"{each}-{form}" for form in formats for each in (kernel, family)):
        for system in related:
            content = content_of(system)
            if name in content:
                return system, name, content
    for each in (family, tuner_table("experts")["unknown"]["family"]):
        known = [name.rpartition("-")[2] for name in pooled if name.startswith(f"{each}-")]
        if known:
            name = f"{each}-{min(known, key=lambda other: _formats_apart(other, dtype))}"
            having = (system for system in systems if name in content_of(system))
            return next(having, systems[0]), name, pooled
    raise BadValueError("kernel", kernel, "of a family with measured kernels")


def _related(system: str, device: Device) -> bool:
    """Return whether a measured system's device is of a device's architecture and generation."""
    other = catalog.cluster_named(system).device
    one_major, other_major = (
        (each.compute_capability or "").partition(".")[0] for each in (device, other)
    )
    return other.architecture == device.architecture and one_major == other_major


def _formats_apart(one: str, other: str) -> tuple[bool, float]:
    if one == other:
        return False, 0.0
    first, second = weight_format(one), weight_format(other)
    bytes_apart = abs(first.weight_bytes - second.weight_bytes)
    return True, bytes_apart + abs(first.input_bytes - second.input_bytes)
