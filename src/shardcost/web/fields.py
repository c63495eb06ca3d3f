"""Kinds of fields: what of JSON a field takes, how much of it, and how that is described.

Numbers are numbers and texts are texts: nothing is made into what it is not. The least of a number
is only described here; that it is broken is said further on, in the command line's words.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

from shardcost.web.limits import MOST_BYTES, MOST_CHARACTERS, MOST_COUNT, MOST_NUMBER, MOST_VALUES


class _WrongTypeError(ValueError):
    """A value of another type than the field's, with what it should have been."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


def _whole(value: Any) -> Any:
    """Take whole numbers as JSON writes them, 8 and 8.0; nothing that could be made one."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _WrongTypeError("a whole number")


def _number(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _WrongTypeError("a number")
    if abs(value) > MOST_NUMBER:
        raise _WrongTypeError(f"a number of at most {MOST_NUMBER:g}")
    return value


def _truth(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    raise _WrongTypeError("true or false")


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    raise _WrongTypeError("a text")


def _object(value: Any) -> Any:
    if value is None or isinstance(value, dict):
        return value
    raise _WrongTypeError("an object")


Whole = Annotated[
    Annotated[int, Field(ge=-MOST_COUNT, le=MOST_COUNT)] | None,
    BeforeValidator(_whole),
    WithJsonSchema({"type": ["integer", "null"], "minimum": 0, "maximum": MOST_COUNT}),
]
Number = Annotated[
    float | None,
    BeforeValidator(_number),
    WithJsonSchema({"type": ["number", "null"], "minimum": 0, "maximum": MOST_NUMBER}),
]
Truth = Annotated[
    bool | None, BeforeValidator(_truth), WithJsonSchema({"type": ["boolean", "null"]})
]
Word = Annotated[
    Annotated[str, Field(max_length=MOST_CHARACTERS)] | None,
    BeforeValidator(_text),
    WithJsonSchema({"type": ["string", "null"], "maxLength": MOST_CHARACTERS}),
]
Text = Annotated[str | None, BeforeValidator(_text), WithJsonSchema({"type": ["string", "null"]})]
Config = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_object),
    WithJsonSchema({"type": ["object", "null"], "additionalProperties": True}),
]
_ONE: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MOST_COUNT},
        {"type": "string", "maxLength": MOST_CHARACTERS},
    ]
}
_VALUE: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MOST_COUNT},
        {"type": "number", "minimum": 0, "maximum": MOST_NUMBER},
        {"type": "boolean"},
        {"type": "string", "maxLength": MOST_CHARACTERS},
    ]
}
_LIST: Final[dict[str, Any]] = {
    "type": "array",
    "items": _VALUE,
    "maxItems": MOST_VALUES,
    "minItems": 1,
}


def _one_value(value: Any) -> Any:
    """Check one value of a list: a number, a word, true or false."""
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            raise _WrongTypeError(f"a text of at most {MOST_CHARACTERS} characters")
    elif isinstance(value, int | float):
        if abs(value) > MOST_COUNT:
            raise _WrongTypeError(f"a number of at most {MOST_COUNT}")
    else:
        raise _WrongTypeError("a number or a text")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _size(value: Any) -> Any:
    """Check a size: a text with its unit, or a whole number of bytes."""
    if value is None or isinstance(value, str):
        return None if value is None else _one_value(value)
    number = _whole(value)
    if abs(number) > MOST_BYTES:
        raise _WrongTypeError(f"a size of at most {MOST_BYTES} bytes")
    return number


def _values(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list):
        raise _WrongTypeError("a list of values")
    if not value or len(value) > MOST_VALUES:
        raise _WrongTypeError(f"a list of 1 to {MOST_VALUES} values")
    return [_one_value(each) for each in value]


def _one_or_many(value: Any) -> Any:
    if value is None or isinstance(value, list):
        return _values(value)
    return _one_value(value)


Size = Annotated[
    str | int | None,
    BeforeValidator(_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST_BYTES},
                {"type": "string", "maxLength": MOST_CHARACTERS},
                {"type": "null"},
            ]
        }
    ),
]
Values = Annotated[
    list[Any] | None,
    BeforeValidator(_values),
    WithJsonSchema({"anyOf": [_LIST, {"type": "null"}]}),
]
OneOrMany = Annotated[
    Any,
    BeforeValidator(_one_or_many),
    WithJsonSchema({"anyOf": [*_ONE["anyOf"], _LIST, {"type": "null"}]}),
]


def _fixed(value: Any) -> Any:
    """Check values by axis; they become the texts of ``--fix``."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _WrongTypeError("an object of axes and their values")
    if len(value) > MOST_VALUES:
        raise _WrongTypeError(f"an object of at most {MOST_VALUES} axes")
    for axis, values in value.items():
        if len(axis) > MOST_CHARACTERS:
            raise _WrongTypeError(f"an object whose axes have at most {MOST_CHARACTERS} characters")
        _one_or_many([] if values is None else values)
    return value


Fixed = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_fixed),
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "additionalProperties": {"anyOf": [_LIST, *_VALUE["anyOf"]]},
            "maxProperties": MOST_VALUES,
        }
    ),
]
