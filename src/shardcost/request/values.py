"""Texts of options as values; every error names the option, the text and the rule."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.scalars import whole_number

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}")


def flag(name: str) -> str:
    """Return a name as the option that sets it."""
    return "--" + name.replace("_", "-")


def whole(option: str, text: str) -> int:
    """Return an option's value as a whole number; its range is checked where it is used."""
    if not _WHOLE.fullmatch(text):
        raise BadTypeError(option, text, "a whole number")
    return int(text)


def count(option: str, text: str | None) -> int | None:
    """Return an option's value as a whole number of at least 1; None where it is not given."""
    return None if text is None else whole_number(option, whole(option, text), 1)


def several(option: str, text: str) -> list[str]:
    """Return the values of ``A,B,…``, each once."""
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise BadValueError(option, text, "one value or several, like A,B,C, none of them empty")
    return list(dict.fromkeys(values))


def wholes(option: str, text: str) -> list[int]:
    """Return the numbers of ``A,B,…``, where ``A..B`` are A, 2 A, 4 A and so on up to B."""
    found: list[int] = []
    for value in several(option, text):
        first, dots, last = value.partition("..")
        least = whole_number(option, whole(option, first), 1)
        most = whole_number(option, whole(option, last), 1) if dots else least
        if most < least:
            raise BadValueError(option, value, "from a smaller number to a larger one, like 1..64")
        while least <= most:
            found.append(least)
            least *= 2
    return list(dict.fromkeys(found))


def number(option: str, text: str) -> float:
    """Return an option's value as a number; its range is checked where it is used."""
    try:
        return float(text)
    except ValueError:
        raise BadTypeError(option, text, "a number") from None


def share(option: str, text: str) -> float:
    """Return a share such as ``10%`` or ``0.1``."""
    if text.endswith("%"):
        return number(option, text[:-1]) / 100
    return number(option, text)


def choices_of(noun: Any, field: str) -> list[str]:
    """Return the words that a field of a noun may be, the one that it is first.

    >>> from shardcost import Layout
    >>> choices_of(Layout(), "recompute")
    ['none', 'full', 'selective']
    """
    try:
        replace(noun, **{field: ""})
    except UnknownNameError as error:  # the nouns know their choices, and name them
        return sorted(error.known, key=lambda word: word != getattr(noun, field))
    raise AssertionError(field)
