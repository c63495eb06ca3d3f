"""Kinds of fields: what of JSON each takes, how that is described, and what is wrong with a value.

Numbers are numbers and texts are texts: nothing is converted. The least of a number is only
described here; a smaller one is refused further on, in the command line's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

from shardcost.errors import (
    BadTypeError,
    BadValueError,
    ShardcostError,
    UnknownNameError,
    UsageError,
    shown,
)
from shardcost.option import PHASES, flag
from shardcost.options import COLLECTIVE, ESTIMATE, LOAD, SEARCH
from shardcost.web.limits import MOST_BYTES, MOST_CHARACTERS, MOST_COUNT, MOST_NUMBER, MOST_VALUES

_PLAIN: Final = ("model", "config", "profile", "values", "of", "figure", "collective", "algorithm")
"""Fields that are not options of a command."""
_NULL: Final = {"type": "null"}
_TEXT: Final[dict[str, Any]] = {"type": "string", "maxLength": MOST_CHARACTERS}
_WHOLE: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": MOST_COUNT}
_NUMBER: Final[dict[str, Any]] = {"type": "number", "minimum": 0, "maximum": MOST_NUMBER}
_VALUES: Final[list[dict[str, Any]]] = [_WHOLE, _NUMBER, {"type": "boolean"}, _TEXT]
_LIST: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"anyOf": _VALUES},
    "maxItems": MOST_VALUES,
    "minItems": 1,
}
_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
_AXES: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": {"anyOf": [_LIST, *_VALUES]},
    "maxProperties": MOST_VALUES,
}


class _UnfitError(ValueError):
    """A value that a field does not take, with the rule that it breaks."""

    def __init__(self, rule: str, kind: type[BadTypeError | BadValueError] = BadTypeError) -> None:
        super().__init__(rule)
        self.rule = rule
        self.kind = kind


def _field(check: Any, *schemas: dict[str, Any]) -> tuple[Any, Any]:
    """Return the validator and the schema of a field that may be null."""

    def checked(value: Any) -> Any:
        return None if value is None else check(value)

    return BeforeValidator(checked), WithJsonSchema({"anyOf": [*schemas, _NULL]})


def _whole(value: Any, most: int = MOST_COUNT) -> int:
    """Take whole numbers as JSON writes them, 8 and 8.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _UnfitError("a whole number")
    if abs(value) > most:
        raise _UnfitError(f"at most {most}", BadValueError)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _UnfitError("a number")
    if abs(value) > MOST_NUMBER:
        raise _UnfitError(f"a number of at most {MOST_NUMBER:g}")
    return value


def _only(kind: type, rule: str) -> Callable[[Any], Any]:
    """Return what takes values of one type."""

    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _UnfitError(rule)
        return value

    return checked


_text = _only(str, "a text")


def _word(value: Any) -> Any:
    if len(_text(value)) > MOST_CHARACTERS:
        raise _UnfitError(f"at most {MOST_CHARACTERS} characters long", BadValueError)
    return value


def _size(value: Any) -> Any:
    """Take a text with a unit, or a whole number of bytes."""
    return _word(value) if isinstance(value, str) else _whole(value, MOST_BYTES)


def _value(value: Any) -> Any:
    """Take one value of a list: a number, a word, true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _whole(value) if isinstance(value, int) or value.is_integer() else _number(value)
    if not isinstance(value, str):
        raise _UnfitError("a number or a text")
    return _word(value)


def _one(value: Any) -> Any:
    """Take a number or a text."""
    if isinstance(value, bool):
        raise _UnfitError("a number or a text")
    return _value(value)


def _tokens(value: Any) -> Any:
    """Take a count of tokens, or a text that describes several."""
    return _word(value) if isinstance(value, str) else _whole(value)


def _values(value: Any) -> Any:
    if not isinstance(value, list):
        raise _UnfitError("a list of values")
    if not 1 <= len(value) <= MOST_VALUES:
        raise _UnfitError(f"a list of 1 to {MOST_VALUES} values")
    return [_value(one) for one in value]


def _one_or_many(value: Any) -> Any:
    return _values(value) if isinstance(value, list) else _value(value)


def _fixed(value: Any) -> Any:
    """Take values by axis."""
    if not isinstance(value, dict):
        raise _UnfitError("an object of axes and their values")
    if len(value) > MOST_VALUES:
        raise _UnfitError(f"an object of at most {MOST_VALUES} axes")
    return {_word(axis): _one_or_many(values) for axis, values in value.items()}


Whole = Annotated[Any, *_field(_whole, _WHOLE)]
Number = Annotated[Any, *_field(_number, _NUMBER)]
Truth = Annotated[Any, *_field(_only(bool, "true or false"), {"type": "boolean"})]
Word = Annotated[Any, *_field(_word, _TEXT)]
Text = Annotated[Any, *_field(_text, {"type": "string"})]
Config = Annotated[Any, *_field(_only(dict, "an object"), _OBJECT)]
Size = Annotated[Any, *_field(_size, _WHOLE | {"minimum": 1, "maximum": MOST_BYTES}, _TEXT)]
One = Annotated[Any, *_field(_one, _WHOLE, _NUMBER, _TEXT)]
Tokens = Annotated[Any, *_field(_tokens, _WHOLE | {"minimum": 1}, _TEXT)]
Values = Annotated[Any, *_field(_values, _LIST)]
OneOrMany = Annotated[Any, *_field(_one_or_many, _WHOLE, _NUMBER, _TEXT, _LIST)]
Fixed = Annotated[Any, *_field(_fixed, _AXES)]


_LABELS: Final = {
    option.name: option.label
    for option in (*COLLECTIVE, *LOAD.values(), *SEARCH, *ESTIMATE.values())
}
"""Of the page's controls, by field."""
_FIELD_NAMES: Final = {"global_batch": "batch"}
"""Options by the field of a noun that they set, where that is called otherwise."""
_OPTION: Final = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])")
_NOUN_FIELD: Final = re.compile(r"\b(?:Train|Prefill|Decode|Layout|Software|Scheduler)\.(\w+)")
_TYPE: Final = re.compile(r" \((?:str|int|float|bool|list|dict|tuple|NoneType)\)$")
_IMPOSSIBLE: Final = re.compile(r"^layout must be possible for (.+): (.+), got '([\w.]+)'$")
_COMMAND: Final = re.compile(r"[:;,]? ?\((?:`shardcost [^)]*|see shardcost [^)]*|--json has all)\)")


def on_page(line: str) -> str:
    """Return a line of the command line in the page's words: labels instead of options and fields.

    >>> on_page("--context-tokens must be a whole number of at least 1, got 'abc' (str)")
    "Context tokens must be a whole number of at least 1, got 'abc'"
    >>> on_page("unknown model 'x' (`shardcost models` lists them)")
    "unknown model 'x'"
    >>> on_page("layout must be possible for gpt3-175b: tp does not divide 96 heads, got 'tp5'")
    'tp5 is impossible for gpt3-175b: tp does not divide 96 heads'
    """

    def label(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return _LABELS.get(_FIELD_NAMES.get(name, name), name.replace("_", " "))

    line = _IMPOSSIBLE.sub(r"\3 is impossible for \1: \2", line)
    line = _TYPE.sub("", _COMMAND.sub("", line)).replace("got None", "got nothing")
    return _NOUN_FIELD.sub(label, _OPTION.sub(label, line))


def first_fault(errors: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> ShardcostError:
    """Return the first of pydantic's errors as the one line that the command line would print.

    Args:
        errors: Pydantic's.
        fields: The names of all fields.
    """
    error = errors[0]
    where = [str(part) for part in error["loc"] if part != "body"]
    if not where:
        if error["type"] == "missing":
            return UsageError("the body of the request is missing: a JSON object")
        return BadTypeError("the body of the request", error.get("input"), "a JSON object")
    return _fault(where[-1], error, fields)


def _fault(field: str, error: Mapping[str, Any], fields: Iterable[str]) -> ShardcostError:
    kind, value, unfit = error["type"], error.get("input"), error.get("ctx", {}).get("error")
    name = field if field in _PLAIN else flag(field)
    if isinstance(unfit, _UnfitError):
        return unfit.kind(name, value, unfit.rule)
    if kind == "extra_forbidden":
        return UnknownNameError("field", field, fields)
    if kind == "missing":
        required = f"one of {' '.join(map(flag, PHASES))} is required: phase"
        return UsageError(required if field == "phase" else f"missing {name}")
    if kind == "literal_error" and field == "phase":
        return UnknownNameError(name, value, PHASES)
    message = " ".join(str(error.get("msg", "")).split())
    return UsageError(f"{name}: {message}, got {shown(value)}")
