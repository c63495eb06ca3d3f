"""Values of options as the command line writes them and as JSON has them, read alike.

Each reader takes a text or a value that has its type already (a number stays the number that it
is), and returns the value; every error names the option, the value and the rule. Ranges are checked
where a value is used.
"""

from __future__ import annotations

import re
from math import inf
from typing import Any, Final

from shardcost.errors import BadTypeError, BadValueError
from shardcost.scalars import positive_number, whole_number
from shardcost.units import parse_bytes, parse_rate, parse_time

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}")
_AMOUNTS: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_FLAGS: Final = {"true": True, "yes": True, "false": False, "no": False}


def whole(option: str, value: Any) -> int:
    """Return a whole number."""
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value):
            raise BadTypeError(option, value, "a whole number")
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadTypeError(option, value, "a whole number")
    return value


def count(option: str, value: Any) -> int | None:
    """Return a whole number of at least 1; None where it is not given."""
    return None if value is None else whole_number(option, whole(option, value), 1)


def number(option: str, value: Any) -> float:
    """Return a number."""
    try:
        return float(value)
    except ValueError:
        raise BadTypeError(option, value, "a number") from None


def truth(option: str, value: Any) -> bool:
    """Return True or False."""
    if isinstance(value, bool):
        return value
    if str(value).lower() not in _FLAGS:
        raise BadValueError(option, value, "true or false")
    return _FLAGS[str(value).lower()]


def switch(option: str, value: Any) -> bool:
    """Return True for ``on``, False for ``off``."""
    if isinstance(value, str) and value.lower() in {"on", "off"}:
        return value.lower() == "on"
    try:
        return truth(option, value)
    except BadValueError:
        raise BadValueError(option, value, "on or off") from None


def text(option: str, value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise BadTypeError(option, value, "a text")
    return value


def lengths(option: str, value: Any) -> str:
    """Return token counts, a number or a text such as ``819-1024``, as a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text(option, value)


def share(option: str, value: Any) -> float:
    """Return a share such as ``10%`` or ``0.1``."""
    if isinstance(value, str) and value.endswith("%"):
        return number(option, value[:-1]) / 100
    return number(option, value)


def time(option: str, value: Any) -> float:
    """Return a time such as ``50ms`` in seconds."""
    return parse_time(text(option, value), option)


def amount(option: str, value: Any) -> float:
    """Return a number above 0 such as ``15T``, ``300B``, ``1.5e12`` or ``2_000``.

    >>> amount("--tokens", "15T"), amount("--tokens", "1e9"), amount("--tokens", 300)
    (15000000000000.0, 1000000000.0, 300.0)
    """
    rule = "a number above 0, like 15T, 300B or 1e12"
    written = re.fullmatch(r"(.*?)\s*([kKMGBT]?)", value) if isinstance(value, str) else None
    try:
        found = float(value if written is None else written[1])
    except (TypeError, ValueError):
        raise BadTypeError(option, value, rule) from None
    found *= _AMOUNTS[written[2]] if written else 1
    if isinstance(value, bool) or not 0 < found < inf:
        raise BadValueError(option, value, rule)
    return found


def hours(option: str, value: Any) -> float:
    """Return a time in seconds: hours as a number, ``inf``, or with a unit such as ``90min``."""
    try:
        return 3600 * float(value)
    except (TypeError, ValueError):
        pass
    try:
        return time(option, value)
    except BadValueError:
        rule = "hours, like 50000, or a time with its unit, like 90min"
        raise BadValueError(option, value, rule) from None


def rate(option: str, value: Any) -> float:
    """Return a bandwidth such as ``100GB/s`` in bytes per second."""
    return parse_rate(text(option, value), option)


def size(option: str, value: Any) -> int:
    """Return a size such as ``64MiB`` in bytes, at least one."""
    size_bytes = parse_bytes(str(value), option)
    if size_bytes < 1:
        raise BadValueError(option, value, "at least 1 byte")
    return size_bytes


def several(option: str, value: Any) -> list[Any]:
    """Return the values of ``A,B,…`` or of a list, each once; one value is a list of one."""
    values = value if isinstance(value, list) else [value]
    if isinstance(value, str):
        values = [word.strip() for word in value.split(",")]
    if not values or "" in values:
        raise BadValueError(option, value, "one value or several, like A,B,C, none of them empty")
    return list(dict.fromkeys(values))


def wholes(option: str, value: Any) -> list[int]:
    """Return the numbers of ``A,B,…`` or a list, where ``A..B`` are A, 2 A, 4 A and so on to B."""
    numbers: list[int] = []
    for word in several(option, value):
        first, dots, last = word.partition("..") if isinstance(word, str) else (word, "", "")
        least = whole_number(option, whole(option, first), 1)
        most = whole_number(option, whole(option, last), 1) if dots else least
        if most < least:
            raise BadValueError(option, word, "from a smaller number to a larger one, like 1..64")
        while least <= most:
            numbers.append(least)
            least *= 2
    return list(dict.fromkeys(numbers))


def numbers(option: str, value: Any) -> list[float]:
    """Return the positive numbers of ``A,B,…`` or a list, where ``A..B`` are A, 2 A, … to B."""
    found: list[float] = []
    for word in several(option, value):
        first, dots, last = word.partition("..") if isinstance(word, str) else (word, "", "")
        least = positive_number(option, number(option, first))
        most = positive_number(option, number(option, last)) if dots else least
        if most < least:
            raise BadValueError(option, word, "from a smaller number to a larger one, like 1..64")
        while least <= most:
            found.append(least)
            least *= 2
    return list(dict.fromkeys(found))


def sizes(option: str, value: str) -> list[int]:
    """Return the sizes of ``A:B`` or ``A:B:factor``: A, times 2 (or the factor) …, B."""
    words = value.split(":")
    if len(words) not in {2, 3}:
        raise BadValueError(option, value, "two sizes like 8:8GiB, or with a factor, 8:8GiB:4")
    least, most = (size(option, word) for word in words[:2])
    factor = whole(f"the factor of {option}", words[2]) if len(words) == 3 else 2
    if factor < 2:
        raise BadValueError(option, value, "with a factor of at least 2")
    if least >= most:
        raise BadValueError(option, value, "from a smaller size to a larger one")
    steps = [least]
    while steps[-1] * factor < most:
        steps.append(steps[-1] * factor)
    return [*steps, most]
