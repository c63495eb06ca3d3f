"""Numbers that remember how they were computed: a formula run on them writes its own receipt.

A formula of this package takes numbers or arrays, by Python's operators and NumPy's functions. Run
on `Traced` numbers it returns, beside the value, the expression over their names. So a formula is
stated once, by the function that computes it, and its explanation cannot differ from it.

>>> def time_s(size, ranks, rate):
...     return size * (2 * (ranks - 1) / ranks) / rate
>>> size, ranks = Term("size", 80e6, "bytes sent"), Term("ranks", 8, "", "GPUs")
>>> rate = Term("rate", 7e9, "bytes/s")
>>> seconds = time_s(*map(Traced.named, (size, ranks, rate)))
>>> receipts({"wire": seconds}, "s")[0].formula
'size x (2 x (ranks - 1) / ranks) / rate'
>>> receipts({"wire": seconds}, "s")[0].text
'20 ms'

Comparisons are of values, so that a trace follows the branch that was taken, and terms that drop
out for the values at hand (times 1, plus 0) are left out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from shardcost.receipt import FUNCTIONS, Receipt, Term, identifiers

_SYMBOLS: Final = {
    "add": ("+", 1),
    "subtract": ("-", 1),
    "multiply": ("*", 2),
    "divide": ("/", 2),
    "power": ("**", 3),
}
"""By NumPy's name of an operation: how it is written, and how strongly it binds."""
_LEAF: Final = 4
_NUMPY: Final = {"maximum": "max", "minimum": "min", "true_divide": "divide"}
_COMPUTED: Final[Mapping[str, Callable[..., Any]]] = {
    **FUNCTIONS,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
}
_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
    "equal": operator.eq,
    "not_equal": operator.ne,
}


class Traced:
    """A number and the operation that it is the result of, or the term that it stands for.

    It passes for an array of one cell, so that formulas call NumPy's functions, which are traced,
    and not Python's.
    """

    __slots__ = ("inputs", "operation", "term", "value")
    dtype = float
    ndim = 1

    def __init__(
        self,
        value: Any,
        operation: str = "",
        inputs: tuple[Any, ...] = (),
        term: Term | None = None,
    ) -> None:
        self.value = float(value)
        self.operation = operation
        self.inputs = inputs
        self.term = term

    @classmethod
    def named(cls, term: Term) -> Traced:
        """Return the number that a term stands for."""
        return cls(term.value, term=term)

    def __add__(self, other: Any) -> Any:
        return _computed("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _computed("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _computed("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _computed("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _computed("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _computed("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _computed("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _computed("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return _computed("power", self, other)

    def __gt__(self, other: Any) -> bool:
        return self.value > _value(other)

    def __ge__(self, other: Any) -> bool:
        return self.value >= _value(other)

    def __lt__(self, other: Any) -> bool:
        return self.value < _value(other)

    def __le__(self, other: Any) -> bool:
        return self.value <= _value(other)

    def __eq__(self, other: object) -> bool:
        return self.value == _value(other)

    def __hash__(self) -> int:
        return id(self)

    def __float__(self) -> float:
        return self.value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """Trace an operation of NumPy."""
        name = _NUMPY.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or name not in {**_COMPUTED, **_COMPARED}:
            return NotImplemented
        if name in _COMPARED:
            return _COMPARED[name](*map(_value, inputs))
        return _computed(name, *inputs)

    def __array_function__(self, function: Any, _types: Any, arguments: Any, _options: Any) -> Any:
        """Follow the branch that `numpy.where` takes."""
        if function.__name__ != "where":
            return NotImplemented
        condition, one, other = arguments
        return one if condition else other


def _value(number: Any) -> float:
    return number.value if isinstance(number, Traced) else float(number)


def _computed(operation: str, *inputs: Any) -> Any:
    """Return a result with its operation; an input alone where the operation changes nothing."""
    known = tuple(value if isinstance(value, Traced) else float(value) for value in inputs)
    simple = _simplified(operation, *known) if len(known) == 2 else None
    if simple is not None:
        return simple
    return Traced(_COMPUTED[operation](*map(_value, known)), operation, known)


def _simplified(operation: str, left: Any, right: Any) -> Any:
    """Return the result where it takes no operation to write it; None elsewhere."""
    same = left is right
    match operation, _plain(left), _plain(right):
        case ("add" | "subtract", _, 0.0) | ("multiply" | "divide" | "power", _, 1.0):
            return left
        case ("add", 0.0, _) | ("multiply", 1.0, _):
            return right
        case ("multiply" | "divide", 0.0, _) | ("multiply", _, 0.0):
            return 0.0
        case ("multiply", None, None) if same:
            return Traced(left.value * left.value, "power", (left, 2.0))
        case ("divide", None, None) if _same_quantity(left, right):
            return 1.0
    return {"max": left, "min": left, "subtract": 0.0}.get(operation) if same else None


def _plain(number: Any) -> float | None:
    return None if isinstance(number, Traced) else number


def _same_quantity(left: Any, right: Any) -> bool:
    """Return whether two terms are equal quantities, such as two rates of the same links."""
    terms = [side.term for side in (left, right) if isinstance(side, Traced) and side.term]
    units = {term.unit for term in terms}
    return len(terms) == 2 and len(units) == 1 and "" not in units and left.value == right.value


def receipts(
    parts: Mapping[str, Any],
    unit: str,
    *,
    constants: tuple[Any, ...] = (),
) -> list[Receipt]:
    """Return the receipt of every part of a sum; one that uses a part before it names that part.

    Args:
        parts: By name, traced numbers (or plain ones), in the order they were computed.
        unit: Of all of them.
        constants: The sets of fitted constants behind them.
    """
    names = dict(zip(parts, identifiers(list(parts)), strict=True))
    before: dict[int, Term] = {}
    written = []
    for name, part in parts.items():
        expression, _ = _text(part, before)
        terms = {term.name: term for term in _terms(part, before)}
        value = _value(part)
        written.append(Receipt(name, "", value, unit, expression, tuple(terms.values()), constants))
        if isinstance(part, Traced) and part.operation:
            before[id(part)] = Term(names[name], value, unit, "the part of that name")
    return written


def _terms(number: Any, before: Mapping[int, Term]) -> Iterator[Term]:
    if not isinstance(number, Traced):
        return
    term = before.get(id(number), number.term)
    if term is not None:
        yield term
    else:
        for value in number.inputs:
            yield from _terms(value, before)


def _text(number: Any, before: Mapping[int, Term]) -> tuple[str, int]:
    """Return a number as Python writes it, and how strongly its outermost operation binds."""
    if not isinstance(number, Traced):
        return (f"{number:.0f}" if number.is_integer() else repr(number)), _LEAF
    term = before.get(id(number), number.term)
    if term is not None:
        return term.name, _LEAF
    texts = [_text(value, before) for value in _flat(number, before)]
    if number.operation not in _SYMBOLS:
        return f"{number.operation}({', '.join(text for text, _ in texts)})", _LEAF
    symbol, strength = _SYMBOLS[number.operation]
    (left, left_strength), (right, right_strength) = texts
    left = left if left_strength >= strength else f"({left})"
    # What follows anything but a plus keeps its brackets even where it binds alike.
    right = right if right_strength >= strength + (symbol != "+") else f"({right})"
    return f"{left} {symbol} {right}", strength


def _flat(number: Traced, before: Mapping[int, Term]) -> Iterator[Any]:
    """Yield the inputs of a number; of the largest of largest ones, those of all."""
    for value in number.inputs:
        nested = isinstance(value, Traced) and value.operation == number.operation in {"max", "min"}
        yield from _flat(value, before) if nested and id(value) not in before else (value,)
