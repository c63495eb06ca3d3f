"""Elementary choices on plain numbers and on NumPy arrays alike.

On plain numbers they are Python's own, many times faster than NumPy's; NumPy is imported only by
those who brought an array.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from shardcost.checks import is_array

_PLAIN: Final = frozenset({int, float, bool})
"""Types for which nothing needs to be asked: most calls have no others."""


def largest(*values: Any) -> Any:
    """Return the largest of some numbers, cell by cell where any is an array."""
    for value in values:
        if type(value) not in _PLAIN and is_array(value):
            import numpy as np

            return reduce(np.maximum, values)
    return max(values)


def smallest(*values: Any) -> Any:
    """Return the smallest of some numbers, cell by cell where any is an array."""
    for value in values:
        if type(value) not in _PLAIN and is_array(value):
            import numpy as np

            return reduce(np.minimum, values)
    return min(values)


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """Return `yes` where a condition holds and `no` elsewhere."""
    if type(condition) not in _PLAIN and is_array(condition):
        import numpy as np

        return np.where(condition, yes, no)
    return yes if condition else no


def ceil_div(number: Any, divisor: Any) -> Any:
    """Return how many parts of size `divisor` hold a whole number.

    >>> ceil_div(10, 4)
    3
    """
    return -(-number // divisor)
