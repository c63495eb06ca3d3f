"""JSON from outside, read without trusting it.

Refuses NaN and infinities (which JSON does not have), numbers of
absurd length and nesting that exhausts the stack, and turns each failure into one line that names
the file and the place.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, Final

from shardcost.errors import FormatError

MOST_BYTES: Final = 16 * 2**20
"""A config.json has a few KiB; 16 MiB leaves room and still parses in a second."""
_MOST_DIGITS: Final = 40


def parse_object(text: str, file: str) -> dict[str, Any]:
    """Return the JSON object that `text` holds."""
    try:
        value = json.loads(text, parse_int=_whole, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno} is not JSON: {error.msg}"
        raise FormatError(file, reason) from None
    except ValueError as error:  # from the two functions below
        raise FormatError(file, str(error)) from None
    except RecursionError:
        raise FormatError(file, "is nested too deeply") from None
    if not isinstance(value, dict):
        raise FormatError(file, f"holds {type(value).__name__}, not a JSON object")
    return value


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"holds a number of {len(digits)} digits")
    return int(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f"holds {name}, which is not JSON")


def finite(value: Any) -> float:
    """Return a finite number; 0 for anything else, such as the text nan."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if isfinite(number) else 0.0


def members_of(value: Any) -> dict[str, Any]:
    """Return the members of a JSON object; none for anything else."""
    return value if isinstance(value, dict) else {}
