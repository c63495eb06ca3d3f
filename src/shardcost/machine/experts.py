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

from collections.abc import Mapping
from typing import Final

from shardcost.catalog import tuner_table
from shardcost.cluster import Device
from shardcost.dtypes import weight_format
from shardcost.errors import BadValueError
from shardcost.machine.families import Sections, defaults, family_by_word, resolved
from shardcost.machine.kernels import KernelConstants, Section

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
    by_word = family_by_word(kernel, table["family_word"])
    if by_word is not None:
        return by_word
    return str(table["family_of_library"].get(library, table["unknown"]["family"]))


def default_kernel(
    software: str,
    device: Device,
    dtype: str,
    *,
    spread: bool = False,
    beside_latent: bool = False,
) -> str:
    """Return the expert kernel that an engine runs on a device unless told otherwise.

    Args:
        software: ``vllm``, ``sglang`` or ``trtllm``, or a name that begins so. Others run the
            family of kernels that most engines have.
        device: Where it runs.
        dtype: The number format of the experts.
        spread: Whether they are spread over several ranks.
        beside_latent: Whether the model has latent attention.
    """
    entry = next(defaults("experts", software, device), None)
    if entry is None:
        return str(tuner_table("experts")["unknown"]["family"])
    known = entry if spread else {**entry, **entry.get("together", {})}
    known = {**known, **entry.get("beside_latent", {})} if beside_latent else known
    formats = (dtype, _SAME_KERNEL.get(dtype, dtype))
    return str(next((known[each] for each in formats if each in known), entry["other"]))


def experts_section(on: KernelConstants, kernel: str, dtype: str, library: str = "") -> Section:
    """Return the constants of an expert kernel in a number format.

    Args:
        on: The constants of the device that it runs on.
        kernel: Its name, or the name of a family.
        dtype: The number format of the experts.
        library: The engine that runs it, which tells the family of an unknown name.
    """
    family = family_of(kernel, dtype, library)
    names = (f"{kernel}-{dtype}", f"{family}-{dtype}")
    key = (kernel, dtype, library)
    return resolved(
        on, "experts", key, names, lambda sections: chosen(sections, kernel, dtype, family)
    )


def chosen(sections: Sections, kernel: str, dtype: str, family: str) -> Section:
    """Return the constants that hold for a kernel.

    Args:
        sections: The sections to choose from.
        kernel: Its name.
        dtype: The number format of the experts.
        family: The family of the kernel.
    """
    formats = (dtype, *_ALIKE.get(dtype, ()))
    own = sections.nearest(f"{each}-{form}" for form in formats for each in (kernel, family))
    if own is not None:
        return own
    for each in (family, tuner_table("experts")["unknown"]["family"]):
        known = [name.rpartition("-")[2] for name in sections.pooled if name.startswith(f"{each}-")]
        if known:
            nearest = min(known, key=lambda other: _formats_apart(other, dtype))
            return sections.over_all(f"{each}-{nearest}")
    raise BadValueError("kernel", kernel, "of a family with measured kernels")


def _formats_apart(one: str, other: str) -> tuple[bool, float]:
    if one == other:
        return False, 0.0
    first, second = weight_format(one), weight_format(other)
    bytes_apart = abs(first.weight_bytes - second.weight_bytes)
    return True, bytes_apart + abs(first.input_bytes - second.input_bytes)
