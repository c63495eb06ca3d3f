"""Values of options as the command line writes them and as JSON has them, read alike.

Each reader takes a text or a value that has its type already (a number stays the number that it
is), and returns the value; every error names the option, the value and the rule. Ranges are checked
where a value is used.

Numbers are spelled alike in every option. A suffix is decimal, as the field writes 15T tokens and
405B parameters: k (or K) is 1,000, M 1e6, G and B 1e9, T 1e12. So 4k tokens are 4,000; 4Ki are
4,096, with Ki, Mi, Gi and Ti as powers of 1,024. 1e6 is an exponent. ``A..B`` is A, 2 A, 4 A and so
on to B, and commas list several. Sizes in bytes and rates keep their units (`shardcost.units`).

>>> whole("--context-tokens", "4k"), whole("--context-tokens", "4Ki"), whole("--tokens", "15T")
(4000, 4096, 15000000000000)
>>> wholes("--batch", "1..8,1e2")
[1, 2, 4, 8, 100]
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shardcost.errors import BadTypeError, BadValueError
from shardcost.scalars import positive_number, whole_number
from shardcost.units import parse_bytes, parse_rate, parse_time

if TYPE_CHECKING:
    from fractions import Fraction

_Number = TypeVar("_Number", int, float)

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}")
_SCALED: Final = re.compile(
    r"([+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?)(?:[eE]\+?([0-9]{1,2})|([kKMGBT]|[KMGT]i))"
)
"""A number with an exponent or a suffix; bounded, so that a hostile one stays quick."""
_SUFFIXES: Final = {
    "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_RANGE: Final = ".."
_WRITTEN_ELSEWHERE: Final = re.compile(r"[0-9]+ *[-:] *[0-9]+")
"""A range as other tools write it."""
_SEVERAL: Final = "one whole number or several, like 8, 1,2,4 or 1..64"
_FLAGS: Final = {"true": True, "yes": True, "false": False, "no": False}


def whole(option: str, value: Any) -> int:
    """Return a whole number."""
    if isinstance(value, str):
        if _WHOLE.fullmatch(value):
            return int(value)
        scaled = _scaled(value)
        if scaled is None or scaled.denominator != 1:
            raise BadTypeError(option, value, "a whole number")
        return int(scaled)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadTypeError(option, value, "a whole number")
    return value


def _scaled(value: str) -> Fraction | None:
    """Return the number that a text with an exponent or a suffix is; None where it is none."""
    match = _SCALED.fullmatch(value)
    if not match:
        return None
    from fractions import Fraction

    factor = _SUFFIXES[match[3]] if match[3] else 10 ** int(match[2])
    return Fraction(match[1]) * factor


def count(option: str, value: Any) -> int | None:
    """Return a whole number of at least 1; None where it is not given."""
    return None if value is None else whole_number(option, whole(option, value), 1)


def number(option: str, value: Any) -> float:
    """Return a number."""
    scaled = _scaled(value) if isinstance(value, str) else None
    try:
        return float(value) if scaled is None else float(scaled)
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
    """Return token counts, a number or a text such as ``819-1024`` or ``4k``, as a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    parts = re.split("([-:])", text(option, value))
    return "".join(str(whole(option, part)) if _SCALED.fullmatch(part) else part for part in parts)


def share(option: str, value: Any) -> float:
    """Return a share such as ``10%`` or ``0.1``."""
    if isinstance(value, str) and value.endswith("%"):
        return number(option, value[:-1]) / 100
    return number(option, value)


def time(option: str, value: Any) -> float:
    """Return a time such as ``50ms`` in seconds."""
    return parse_time(text(option, value), option)


def amount(option: str, value: Any) -> float:
    """Return a number above 0 such as ``15T``, ``300B`` or ``1.5e12``.

    >>> amount("--tokens", "15T"), amount("--tokens", "1e9"), amount("--tokens", 300)
    (15000000000000.0, 1000000000.0, 300.0)
    """
    rule = "a number above 0, like 15T, 300B or 1e12"
    try:
        found = number(option, value)
    except (BadTypeError, TypeError):
        raise BadTypeError(option, value, rule) from None
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

    def read(one: Any) -> int:
        if isinstance(one, str) and _WRITTEN_ELSEWHERE.fullmatch(one):
            raise BadValueError(option, one, _SEVERAL)
        return whole_number(option, whole(option, one), 1)

    return _doubling(option, value, read)


def numbers(option: str, value: Any) -> list[float]:
    """Return the positive numbers of ``A,B,…`` or a list, where ``A..B`` are A, 2 A, … to B."""
    return _doubling(option, value, lambda one: positive_number(option, number(option, one)))


def _doubling(option: str, value: Any, read: Callable[[Any], _Number]) -> list[_Number]:
    """Return numbers, each read by a function, and those of ranges by doubling."""
    found: list[_Number] = []
    for word in several(option, value):
        first, dots, last = word.partition(_RANGE) if isinstance(word, str) else (word, "", "")
        least = read(first)
        most = read(last) if dots else least
        if most < least:
            raise BadValueError(option, word, "from a smaller number to a larger one, like 1..64")
        while least <= most:
            found.append(least)
            least *= 2
    return list(dict.fromkeys(found))


def varied(option: str, value: str, kind: str) -> list[str]:
    """Return the values of an option that varies, as texts; numbers also as ``A..B``.

    >>> varied("--batch", "1..4,1k", "whole"), varied("--dtype", "bf16,fp8", "word")
    (['1', '2', '4', '1000'], ['bf16', 'fp8'])
    """
    found: list[str] = []
    for word in several(option, value):
        if _RANGE in word and kind == "whole":
            found += map(str, wholes(option, word))
        elif _RANGE in word and kind == "number":
            found += (f"{each:g}" for each in numbers(option, word))
        else:
            if kind == "whole" and _WRITTEN_ELSEWHERE.fullmatch(word):
                raise BadValueError(option, word, _SEVERAL)
            found.append(str(whole(option, word)) if kind == "whole" else word)
    return list(dict.fromkeys(found))


def sizes(option: str, value: str) -> list[int]:
    """Return the sizes of ``A:B``, ``A..B`` or ``A:B:factor``: A, times 2 (or the factor) …, B."""
    words = value.replace(_RANGE, ":", 1).split(":")
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
