"""Elementary choices on plain numbers and on NumPy arrays alike.

On plain numbers they are Python's own, many times faster than NumPy's; NumPy is imported only by
those who brought an array.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from shardcost.checks import is_array


def largest(*values: Any) -> Any:
    """Return the largest of some numbers, cell by cell where any is an array."""
    if any(map(is_array, values)):
        import numpy as np

        return reduce(np.maximum, values)
    return max(values)


def smallest(*values: Any) -> Any:
    """Return the smallest of some numbers, cell by cell where any is an array."""
    if any(map(is_array, values)):
        import numpy as np

        return reduce(np.minimum, values)
    return min(values)


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """Return `yes` where a condition holds and `no` elsewhere."""
    if is_array(condition):
        import numpy as np

        return np.where(condition, yes, no)
    return yes if condition else no


def ceil_div(number: Any, divisor: Any) -> Any:
    """Return how many parts of size `divisor` hold a whole number.

    >>> ceil_div(10, 4)
    3
    """
    return -(-number // divisor)
