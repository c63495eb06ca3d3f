"""Libraries of other arrays as the standard has them: functions, number formats, devices."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import numpy as np

from shardcost.errors import BadValueError, MissingExtraError

REFERENCE: Final = "array_api_strict"
"""The standard's own implementation, for tests."""
FORMATS: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "float32", "float64")
_MISSING: Final = {
    "torch": ("torch", "torch"),
    "cupy": (
        "the CuPy of your version of CUDA, such as cupy-cuda13x, and array-api-compat",
        "array",
    ),
    REFERENCE: ("array-api-strict", "dev"),
}
"""What to install for each library, and the extra that brings it, or what it needs, along."""


def library_of(name: str) -> Any:
    """Return a library's functions as the standard has them."""
    try:
        compat = import_module("array_api_compat")
    except ImportError:
        raise MissingExtraError("computing on other arrays", "array-api-compat", "array") from None
    try:
        if name == REFERENCE:
            return import_module(name)
        return import_module(f"{compat.__name__}.{name}")
    except ImportError:
        raise MissingExtraError(f"computing with {name}", *_MISSING[name]) from None


def device_of(name: str, device: Any) -> Any:
    """Return a device as the library takes it, or raise where it has none such."""
    if name == "torch":
        return _torch_device(device)
    if name == "cupy":
        return _cupy_device(device)
    return None


def _torch_device(device: Any) -> Any:
    torch = import_module("torch")
    gpu = torch.cuda.is_available()
    try:
        place = torch.device(device or ("cuda" if gpu else "cpu"))
    except (RuntimeError, TypeError):
        raise BadValueError("device", device, "a device of torch, such as cpu or cuda:0") from None
    count = torch.cuda.device_count() if gpu else 0
    if place.type == "cuda" and (place.index or 0) >= count:
        raise BadValueError("device", device, f"one that torch sees, which has {count} GPUs")
    return place


def _cupy_device(device: Any) -> Any:
    cupy = import_module("cupy")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        count = 0
    number = 0 if device in (None, "cuda") else str(device).removeprefix("cuda:")
    if not str(number).isdecimal() or int(number) >= count:
        raise BadValueError("device", device, f"one that CuPy sees, which has {count} GPUs")
    cupy.cuda.Device(int(number)).use()  # CuPy computes on its current device only
    return int(number)


def moved(library: Any, cells: np.ndarray[Any, Any], device: Any) -> Any:
    """Return NumPy's array as a library's own."""
    if not cells.flags.writeable or not cells.flags.c_contiguous:
        cells = cells.copy(order="C")  # torch takes no others
    return library.asarray(cells, device=device)
