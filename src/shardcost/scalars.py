"""One number, checked: whole or positive, with an error that names it, its value and its rule.

Python's and NumPy's numbers are taken alike, because NumPy registers its own with `numbers`;
True and False are not numbers here.
"""

from __future__ import annotations

from math import inf
from numbers import Integral, Real

from shardcost.errors import BadTypeError, BadValueError


def whole_number(name: str, value: object, least: int) -> int:
    """Return `value` as an int if it is whole and at least `least`; raise otherwise."""
    if type(value) is int and value >= least:  # nearly always: no rule needs writing
        return value
    rule = f"a whole number of at least {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadTypeError(name, value, rule)
    if value < least:
        raise BadValueError(name, value, rule)
    return int(value)


def positive_number(name: str, value: object, unit: str = "") -> float:
    """Return `value` as a float if it is finite and above 0; raise otherwise."""
    if type(value) is float and 0.0 < value < inf:
        return value
    rule = f"a finite number{' of ' if unit else ''}{unit} above 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadTypeError(name, value, rule)
    try:
        number = float(value)
    except OverflowError:  # an int beyond the range of floats
        number = inf
    if not 0.0 < number < inf:
        raise BadValueError(name, value, rule)
    return number
