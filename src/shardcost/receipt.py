"""Receipts: a figure with the expression that computes it, and the terms put in.

The function that computes a figure also names its terms. What it returns beside the figure is a
`Receipt`: an expression over the names of the terms, as Python writes it, so that the figure can be
computed again (`Receipt.evaluate`) and shown, in symbols (`Receipt.formula`) and with its values
(`Receipt.numbers`). Explanations print receipts; they restate no formula.

>>> wire = Receipt(
...     "wire",
...     "Bytes on the busiest link over its rate",
...     1e-3,
...     "s",
...     "size * steps / ranks / rate",
...     (
...         Term("size", 180e6, "bytes sent"),
...         Term("steps", 14, "", "sends of a GPU: 2 (ranks - 1)"),
...         Term("ranks", 8, "", "GPUs"),
...         Term("rate", 315e9, "bytes/s", source="fitted to nccl-tests"),
...     ),
... )
>>> wire.formula
'size x steps / ranks / rate'
>>> wire.numbers, wire.text
('180 MB x 14 / 8 / 315 GB/s', '1 ms')
>>> wire.evaluate() == wire.value
True
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from shardcost.errors import BadValueError
from shardcost.records import dataclass
from shardcost.units import (
    format_bytes,
    format_bytes_decimal,
    format_count,
    format_energy,
    format_flops,
    format_percent,
    format_rate,
    format_time,
    format_tokens,
)

SENT: Final = "bytes sent"
"""The unit of traffic, shown in powers of ten like the rates of links; memory is in ``bytes``."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Term:
    """One symbol of an expression."""

    name: str
    """As the expression writes it."""
    value: float
    unit: str
    meaning: str = ""
    source: str = ""
    """Who states the value; empty where it follows from the request."""
    label: str = ""
    """The symbol shown, where it is not the name."""

    @property
    def symbol(self) -> str:
        """The name as it is shown."""
        return self.label or self.name.replace("_", " ")

    @property
    def text(self) -> str:
        """The value with its unit."""
        return in_unit(self.value, self.unit)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A figure, the expression that computes it and what was put in.

    A receipt without an expression refers to a figure that is explained under its own name.
    """

    name: str
    """Under which the figure can be asked for: a part of a time, a figure of a report."""
    title: str
    value: float
    unit: str
    expression: str = ""
    """Over the names of the terms: + - * / ** and the functions in `FUNCTIONS`."""
    terms: tuple[Term, ...] = ()
    constants: tuple[Any, ...] = ()
    """The sets of fitted constants behind it; each knows its fit and from which device it is."""
    parts: tuple[Receipt, ...] = ()
    """The figures that it is made of."""
    words: str = ""
    """The same in a sentence or two."""

    @property
    def text(self) -> str:
        """The value with its unit."""
        return in_unit(self.value, self.unit)

    @property
    def formula(self) -> str:
        """The expression in symbols."""
        return self.shown({term.name: term.symbol for term in self.terms})

    @property
    def numbers(self) -> str:
        """The expression with values and their units put in."""
        return self.shown({term.name: term.text for term in self.terms})

    @property
    def sources(self) -> tuple[str, ...]:
        """Who states the terms, without repetition."""
        return tuple(dict.fromkeys(term.source for term in self.terms if term.source))

    def shown(self, texts: Mapping[str, str]) -> str:
        """Return the expression for people to read, every name replaced by its text."""
        return shown(self.expression, texts)

    def evaluate(self) -> float:
        """Return what the expression comes to with the terms put in."""
        return float(evaluate(self.expression, {term.name: term.value for term in self.terms}))


def total(name: str, title: str, unit: str, parts: Iterable[Receipt], **others: Any) -> Receipt:
    """Return the receipt of a sum; parts that are zero are left out.

    >>> parts = Receipt("start", "", 1e-6, "s"), Receipt("local copy", "", 2e-6, "s")
    >>> whole = total("time_s", "Time", "s", parts)
    >>> whole.formula, whole.numbers, whole.value
    ('start + local copy', '1 us + 2 us', 3e-06)
    """
    counted = tuple(part for part in parts if part.value != 0)
    names = identifiers([part.name for part in counted])
    terms = tuple(
        Term(identifier, part.value, part.unit, part.title)
        for identifier, part in zip(names, counted, strict=True)
    )
    value = sum(part.value for part in counted)
    expression = " + ".join(names) or "0"
    return Receipt(name, title, value, unit, expression, terms, parts=counted, **others)


def identifiers(names: Sequence[str]) -> list[str]:
    """Return names as an expression may write them, all of them different.

    >>> identifiers(["tp communication", "tp_communication", "2nd"])
    ['tp_communication', 'tp_communication_2', 'n2nd']
    """
    unique: list[str] = []
    for name in names:
        plain = _NOT_IN_A_NAME.sub("_", name).strip("_") or "it"
        plain = f"n{plain}" if plain[0].isdigit() else plain
        same = sum(other == plain or other.startswith(f"{plain}_") for other in unique)
        unique.append(f"{plain}_{same + 1}" if plain in unique else plain)
    return unique


def shown(expression: str, texts: Mapping[str, str]) -> str:
    """Return an expression for people to read, every name replaced by its text."""
    put_in = _NAME.sub(lambda name: texts.get(name[0], name[0]), expression)
    return put_in.replace("**", "^").replace("*", "x")


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "max": max,
    "min": min,
    "exp": math.exp,
    "expm1": math.expm1,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "ceil": math.ceil,
    "floor": math.floor,
}
"""What an expression may call, on numbers; for arrays pass NumPy's functions of these names."""
_OPERATORS: Final[Mapping[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


def evaluate(
    expression: str,
    values: Mapping[str, Any],
    functions: Mapping[str, Callable[..., Any]] = FUNCTIONS,
) -> Any:
    """Return what an expression comes to: arithmetic and `functions` over named values alone.

    >>> evaluate("fill * sqrt(max(latency, 4)) + 2**levels", {"fill": 2, "latency": 9, "levels": 3})
    14.0

    Raises:
        BadValueError: a name without a value, or anything that is not arithmetic.
    """

    def computed(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](computed(left), computed(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -computed(operand)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in functions:
                return functions[name](*map(computed, args))
        known = ", ".join([*values, *functions])
        raise BadValueError("expression", ast.unparse(node), f"arithmetic over {known}")

    try:
        return computed(ast.parse(expression, mode="eval").body)
    except SyntaxError as error:
        raise BadValueError("expression", expression, "arithmetic") from error


def in_unit(value: float, unit: str) -> str:
    """Return a value in its unit, as the reports write it.

    >>> in_unit(0.0125, "s"), in_unit(0.5, "share"), in_unit(18e9, "bytes sent"), in_unit(80, "")
    ('12.5 ms', '50.0 %', '18 GB', '80')
    """
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    whole = abs(value) >= 1000 or float(value).is_integer()
    return f"{value:,.0f} {unit}".rstrip() if whole else f"{value:.4g} {unit}".rstrip()


def flop(flops: Any) -> str:
    """Return a count of operations."""
    return format_flops(flops).removesuffix("/s")


_FORMATS: Final[Mapping[str, Callable[[float], str]]] = {
    "s": format_time,
    "bytes": format_bytes,
    SENT: format_bytes_decimal,
    "bytes/s": format_rate,
    "FLOP": flop,
    "FLOP/s": format_flops,
    "tokens/s": lambda value: f"{format_tokens(value)} tokens/s",
    "weights": lambda value: f"{format_count(value)} weights",
    "share": format_percent,
    "s/s": lambda value: f"{value:.3g}",
    "J": format_energy,
}
