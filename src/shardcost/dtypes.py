"""The number formats of the field: one name each, their aliases, and their width in bits.

The same format is ``bf16`` on command lines, ``bfloat16`` in Hugging Face configs and
``BFloat16`` in profiler traces; `canonical_dtype` makes them one.
"""

from __future__ import annotations

from typing import Final

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
    return max(16, BITS[dtype]) / 8


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
