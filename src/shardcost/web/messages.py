"""Messages about invalid fields of a request: the one line that the command line would print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardcost.errors import (
    BadTypeError,
    BadValueError,
    ShardcostError,
    UnknownNameError,
    UsageError,
    shown,
)
from shardcost.options import flag

_PLAIN = ("model", "config", "profile", "values", "of", "figure", "collective", "algorithm")
"""Fields that are not options of a command."""


def first_fault(errors: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> ShardcostError:
    """Return the first of pydantic's errors as one of ours.

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
    kind, value, context = error["type"], error.get("input"), error.get("ctx", {})
    name = _option(field)
    rule = getattr(context.get("error"), "rule", None)
    if rule is not None:
        return BadTypeError(name, value, rule)
    if kind == "extra_forbidden":
        return UnknownNameError("field", field, fields)
    if kind == "missing":
        return UsageError(_missing(field))
    if kind == "literal_error":
        return UnknownNameError(name, value, _expected(str(context.get("expected", ""))))
    return _out_of_bounds(name, kind, value, context, str(error.get("msg", "")))


def _out_of_bounds(
    name: str, kind: str, value: Any, context: Mapping[str, Any], message: str
) -> ShardcostError:
    if kind == "string_too_long":
        return BadValueError(name, value, f"at most {context['max_length']} characters long")
    if kind == "less_than_equal":
        return BadValueError(name, value, f"at most {context['le']}")
    if kind == "greater_than_equal":
        return BadValueError(name, value, f"at least {context['ge']}")
    return UsageError(f"{name}: {' '.join(message.split())}, got {shown(value)}")


def _option(field: str) -> str:
    return field if field in _PLAIN else flag(field)


def _missing(field: str) -> str:
    if field == "phase":
        return "one of --train --prefill --decode is required: phase"
    return f"missing {_option(field)}"


def _expected(text: str) -> list[str]:
    """Return the words of ``'train', 'prefill' or 'decode'``."""
    return [word.strip(" '") for word in text.replace(" or ", ",").split(",") if word.strip(" '")]
