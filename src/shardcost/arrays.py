"""Elementary choices on plain numbers and on arrays alike.

On plain numbers they are Python's own, many times faster than NumPy's; NumPy is imported only by
those who brought an array, of NumPy's or of another library (`shardcost.backends`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

from shardcost.checks import is_array

_PLAIN: Final = frozenset({int, float, bool})
"""Types for which nothing needs to be asked: most calls have no others."""


def largest(*values: Any) -> Any:
    """Return the largest of some numbers, cell by cell where any is an array."""
    if len(values) == 2:  # most calls: two plain numbers, without a loop
        one, other = values
        if type(one) in _PLAIN and type(other) in _PLAIN:
            return other if other > one else one
    for value in values:
        if type(value) not in _PLAIN and is_array(value):
            import numpy as np

            return reduce(np.maximum, values)
    return max(values)


def smallest(*values: Any) -> Any:
    """Return the smallest of some numbers, cell by cell where any is an array."""
    if len(values) == 2:
        one, other = values
        if type(one) in _PLAIN and type(other) in _PLAIN:
            return other if other < one else one
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


def _elementary(name: str) -> Callable[[Any], Any]:
    """Return a function of Python's `math` that takes arrays too."""
    plain = getattr(math, name)

    def of_each(value: Any) -> Any:
        if type(value) not in _PLAIN and is_array(value):
            import numpy as np

            return getattr(np, name)(value)
        return plain(value)

    return of_each


sqrt, log2, exp, expm1 = map(_elementary, ("sqrt", "log2", "exp", "expm1"))
ceil, floor = map(_elementary, ("ceil", "floor"))


def first_not_less(table: Sequence[float], value: Any) -> Any:
    """Return the place in a sorted table of the first entry that is not less than a value.

    >>> first_not_less((1, 2, 4), 3)
    2
    """
    if not is_array(value):
        return bisect_left(table, value)
    import numpy as np

    return np.searchsorted(np.asarray(table), value)


def mantissa_exponent(value: Any) -> tuple[Any, Any]:
    """Return a number as mantissa, from 0.5 to below 1, times a power of two."""
    if not is_array(value):
        return math.frexp(value)
    import numpy as np

    return np.frexp(value)


def as_array(value: Any) -> Any:
    """Return an array of any library as it is, and a plain number as NumPy's."""
    if is_array(value):
        return value
    import numpy as np

    return np.asarray(value)


def cell_by_cell(function: Callable[[int], int], numbers: Any) -> Any:
    """Return a function of whole numbers, called once for each different cell of an array.

    >>> cell_by_cell(int.bit_length, 5)
    3
    """
    if not is_array(numbers):
        return function(int(numbers))
    import numpy as np

    different, where = np.unique(numbers, return_inverse=True)
    found = np.array([function(each) for each in different.tolist()])
    return looked_up(found, where.reshape(np.shape(numbers)))


def once_each(function: Callable[[Any], Any], numbers: Any) -> Any:
    """Return a function of numbers, computed once for each different cell of a NumPy array.

    >>> once_each(math.sqrt, 4.0)
    2.0
    """
    if not is_array(numbers) or type(numbers).__module__ != "numpy":
        return function(numbers)
    import numpy as np

    different, where = np.unique(numbers, return_inverse=True)
    return function(different)[where.reshape(numbers.shape)]


def looked_up(table: Any, index: Any) -> Any:
    """Return the entry of a table at an index; of an array of those, entries where that lives.

    >>> looked_up((1, 2, 4), 2)
    4
    """
    if not is_array(index):
        return table[index]
    import numpy as np

    entries_of = getattr(index, "entries_of", None)
    entries = np.asarray(table)
    return entries[index] if entries_of is None else entries_of(entries)


def named(names: Sequence[str], index: Any) -> Any:
    """Return the name at an index, or NumPy's array of them: no other library has texts.

    >>> named(("first", "last"), 1)
    'last'
    """
    return looked_up(names, index) if is_array(index) else names[int(index)]


def ceil_div(number: Any, divisor: Any) -> Any:
    """Return how many parts of size `divisor` hold a whole number.

    >>> ceil_div(10, 4)
    3
    """
    return -(-number // divisor)
