"""The number formats of the field: one name each, their aliases, and their width in bits.

The same format is ``bf16`` on command lines, ``bfloat16`` in Hugging Face configs and
``BFloat16`` in profiler traces; `canonical_dtype` makes them one.

A format of weights says more: how the weights are stored with their scales, what the other operand
is read in, and what is multiplied. ``fp8`` and ``fp8_block`` have the same elements, ``int4`` is
multiplied as bf16. `WEIGHT_FORMATS` is their one table, `weight_format` looks a name up in it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from shardcost.errors import BadTypeError, UnknownNameError

BITS: Final = {
    "fp64": 64,
    "fp32": 32,
    "tf32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8": 8,
    "mxfp8": 8,
    "int8": 8,
    "fp6": 6,
    "fp4": 4,
    "mxfp4": 4,
    "nvfp4": 4,
    "int4": 4,
}
"""Bits per element as stored, without the shared scales of block formats."""

ELEMENT_DTYPES: Final = {"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
"""Block formats, each with the format of its elements."""

_ALIASES: Final = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "byte": "int8",
    "char": "int8",
}


def activation_bytes(dtype: str) -> float:
    """Return the bytes of an activation or weight outside the GEMMs: at least 16 bits.

    Narrower formats are for the inputs of GEMMs alone.

    >>> activation_bytes("fp8"), activation_bytes("fp32")
    (2.0, 4.0)
    """
    return max(2.0, weight_format(dtype).input_bytes)


def canonical_dtype(name: str, argument: str = "dtype") -> str:
    """Return shardcost's name of a number format.

    >>> canonical_dtype("BFloat16"), canonical_dtype("torch.float8_e4m3fn")
    ('bf16', 'fp8')
    """
    if not isinstance(name, str):
        raise BadTypeError(argument, name, "the name of a number format, like bf16")
    key = name.lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in BITS:
        raise UnknownNameError(argument, name, BITS)
    return key


_WIDE_BYTES: Final = 2


class WeightFormat(NamedTuple):
    """How weights are stored, and what a GEMM with them multiplies."""

    weight_bytes: float
    """Per element, with the share of its scales."""
    input_bytes: float
    """Per element of the activations that a GEMM reads."""
    product: str
    """The number format of the arithmetic."""
    block_scaled: bool = False
    """Weights have a scale for each block of 128 x 128, inputs for 128 elements of a row."""

    @property
    def narrow_weights(self) -> bool:
        """Whether weights are stored in fewer than 16 bits."""
        return self.weight_bytes < _WIDE_BYTES

    @property
    def narrow_inputs(self) -> bool:
        """Whether a GEMM reads its input in fewer than 16 bits, which it is converted to."""
        return self.input_bytes < _WIDE_BYTES


WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = {
    "fp32": WeightFormat(4.0, 4.0, "fp32"),
    "fp16": WeightFormat(2.0, 2.0, "fp16"),
    "bf16": WeightFormat(2.0, 2.0, "bf16"),
    "fp8": WeightFormat(1.0, 1.0, "fp8"),
    "fp8_block": WeightFormat(1 + 4 / 128**2, 1 + 4 / 128, "fp8", block_scaled=True),
    "mxfp8": WeightFormat(1 + 1 / 32, 1 + 1 / 32, "fp8"),
    "nvfp4": WeightFormat(0.5 + 1 / 16, 0.5 + 1 / 16, "fp4"),
    "mxfp4": WeightFormat(0.5 + 1 / 32, 2.0, "bf16"),
    "w4a16_mxfp4": WeightFormat(0.5 + 1 / 32, 2.0, "bf16"),
    "w4a8_mxfp4_mxfp8": WeightFormat(0.5 + 1 / 32, 1 + 1 / 32, "fp8"),
    "w4a16_nvfp4": WeightFormat(0.5 + 1 / 16, 2.0, "bf16"),
    "w4a16_int4": WeightFormat(0.5 + 2 / 128, 2.0, "bf16"),
    "w4a16_int4_g32": WeightFormat(0.5 + 2 / 32, 2.0, "bf16"),
    "w4afp8": WeightFormat(0.5 + 2 / 128, 1.0, "fp8"),
    "int8": WeightFormat(1.0, 1.0, "int8"),
    "w8a16": WeightFormat(1.0, 2.0, "bf16"),
}
"""Scales: 4 bytes for 128 x 128 weights or 128 inputs in blocks of fp8 (DeepSeek-V3 Technical
Report, arXiv:2412.19437, 2024), 1 byte for 32 elements in MX formats (OCP Microscaling Formats
specification 1.0, 2023) and for 16 in NVFP4, 2 bytes for 128 of int4 (AWQ, arXiv:2306.00978),
or for 32 (Kimi-K2-Thinking).
Scales per tensor or per channel are too few to count. ``mxfp4`` states how weights are stored and
leaves open what they are multiplied by; the entry is that of a device without 4-bit products, and
`format_on` decides."""

PRODUCTS: Final = ("fp4", "fp8", "bf16", "fp16", "fp32")
"""Formats of products, each with those after it to fall back to where a device lacks it."""

_WEIGHT_ALIASES: Final = {
    "int4": "w4a16_int4",
    "w4a16": "w4a16_int4",
    "w8a8": "int8",
    "w8a8_int8": "int8",
    "w8a16_int8": "w8a16",
    "w8a16_fp8": "w8a16",
    "w4a8_fp8": "w4afp8",
    "w4a4_nvfp4": "nvfp4",
}
_WEIGHTS_AND_INPUTS: Final = re.compile(r"w([0-9]{1,2})a(?:fp)?([0-9]{1,2})(_[a-z0-9_]{1,40})?")
"""Names of formats that state the bits of weights and inputs apart."""


def canonical_format(name: str, argument: str = "weight_dtype") -> str:
    """Return shardcost's name of a format of weights.

    Names that are not in `WEIGHT_FORMATS` are read as ``wXaY``, bits of weights and of inputs, or
    as a number format of both.

    >>> canonical_format("int4"), canonical_format("torch.bfloat16"), canonical_format("w6a16")
    ('w4a16_int4', 'bf16', 'w6a16')
    """
    if not isinstance(name, str):
        raise BadTypeError(argument, name, "the name of a format of weights, like fp8_block")
    if name in WEIGHT_FORMATS:
        return name
    key = name.lower().removeprefix("torch.")
    key = _WEIGHT_ALIASES.get(key, _ALIASES.get(key, key))
    if key in WEIGHT_FORMATS or key in BITS or _WEIGHTS_AND_INPUTS.fullmatch(key):
        return key
    raise UnknownNameError(argument, name, WEIGHT_FORMATS)


def weight_format(name: str, argument: str = "weight_dtype") -> WeightFormat:
    """Return the bytes and the arithmetic of a format of weights.

    >>> weight_format("w8a16_fp8").product, weight_format("float16").weight_bytes
    ('bf16', 2.0)
    """
    if type(name) is str and name in WEIGHT_FORMATS:
        return WEIGHT_FORMATS[name]
    key = canonical_format(name, argument)
    known = WEIGHT_FORMATS.get(key)
    if known is not None:
        return known
    apart = _WEIGHTS_AND_INPUTS.fullmatch(key)
    bits = (int(apart[1]), int(apart[2])) if apart else (BITS[key], BITS[key])
    product = next((each for each in PRODUCTS if BITS[each] >= bits[1]), "fp32")
    return WeightFormat(bits[0] / 8, bits[1] / 8, product)


def weight_bytes(name: str) -> float:
    """Return the bytes of one weight in a format, with its share of the scales.

    >>> weight_bytes("nvfp4"), weight_bytes("bfloat16")
    (0.5625, 2.0)
    """
    return weight_format(name).weight_bytes


def format_on(name: str, products: Container[str]) -> str:
    """Return the format that a device multiplies in, where `name` leaves that open.

    Weights in mxfp4 meet inputs in mxfp8 where the device has 4-bit products, whose units take
    mixed operands, and are widened to bf16 where it has not.

    Args:
        name: A format of weights.
        products: The number formats that the device has a peak for.

    >>> format_on("mxfp4", {"bf16", "fp8"}), format_on("mxfp4", {"bf16", "fp8", "fp4"})
    ('w4a16_mxfp4', 'w4a8_mxfp4_mxfp8')
    """
    key = canonical_format(name)
    if key != "mxfp4":
        return key
    return "w4a8_mxfp4_mxfp8" if "fp4" in products else "w4a16_mxfp4"
