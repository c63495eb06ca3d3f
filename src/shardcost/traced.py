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
out for the values at hand (times 1, plus 0) are left out. A long formula names its steps (`step`),
which does nothing to other numbers; `receipt` then writes each step apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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

    def __rpow__(self, other: Any) -> Any:
        return _computed("power", other, self)

    def astype(self, *_: Any, **__: Any) -> Traced:
        """Return the number itself: it is a float."""
        return self

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
        """Follow the branch that `numpy.where` takes; trace `numpy.clip`."""
        if function.__name__ == "ndim":
            return self.ndim
        if function.__name__ == "clip":
            number, least, most = arguments
            return _computed("min", _computed("max", number, least), most)
        if function.__name__ != "where":
            return NotImplemented
        condition, one, other = arguments
        return one if condition else other


def step(name: str, number: Any, unit: str = "s", meaning: str = "") -> Any:
    """Return a number; if it is traced, under a name of its own in whatever is computed from it."""
    if not isinstance(number, Traced) or not number.operation:
        return number
    term = Term(name, number.value, unit, meaning)
    return Traced(number.value, number.operation, number.inputs, term)


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


def named(
    name: str, number: Any, unit: str = "", meaning: str = "", source: str = ""
) -> Traced | float:
    """Return a number under a name; nothing is not worth a name."""
    return Traced.named(Term(name, float(number), unit, meaning, source)) if number else 0.0


def unnamed(_name: str, number: Any, *_words: str) -> Any:
    """Return a number as it is: what functions that name their terms call otherwise."""
    return number


Naming = Callable[..., Any]
"""`named` or `unnamed`."""


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


def receipt(number: Any, name: str, title: str, unit: str, **others: Any) -> Receipt:
    """Return the receipt of a number; its parts are the receipts of the steps on the way.

    >>> size, rate = Term("size", 80e6, "bytes sent"), Term("rate", 8e9, "bytes/s")
    >>> moved = step("moved", Traced.named(size) / Traced.named(rate), meaning="the bytes")
    >>> whole = receipt(moved + 1e-3, "time_s", "Time", "s")
    >>> whole.formula, whole.numbers, whole.parts[0].formula
    ('moved + 0.001', '10 ms + 0.001', 'size / rate')
    >>> [(term.name, term.meaning) for term in whole.terms]
    [('moved', 'the bytes: size / rate'), ('size', ''), ('rate', '')]
    """
    terms: dict[int, Term] = {}
    written: dict[str, Term] = {}
    steps: list[Receipt] = []
    for node in _named(number):
        assert node.term is not None  # noqa: S101
        term = _unique(node.term, written)
        if node.operation:
            part = _written(node, terms, Receipt(term.name, term.meaning, term.value, term.unit))
            steps.append(part)
            meaning = ": ".join(filter(None, (term.meaning, part.formula)))
            term = replace(term, meaning=meaning)
        terms[id(node)] = written[term.name] = term
    whole = _written(number, terms, Receipt(name, title, _value(number), unit, **others))
    inside = (term for part in reversed(steps) for term in part.terms)
    listed = {term.name: term for term in (*whole.terms, *inside)}
    return replace(whole, terms=tuple(listed.values()), parts=tuple(steps))


def _named(number: Any) -> Iterator[Traced]:
    """Yield the terms and steps of a number, each once, after those that it is computed from."""
    seen: set[int] = set()

    def below(node: Any) -> Iterator[Traced]:
        if not isinstance(node, Traced) or id(node) in seen:
            return
        seen.add(id(node))
        for each in node.inputs:
            yield from below(each)
        if node.term is not None and node is not number:
            yield node

    yield from below(number)


def _unique(term: Term, written: Mapping[str, Term]) -> Term:
    """Return a term under a name that no other term has."""
    name, number = term.name, 1
    while name in written and (written[name].value, written[name].unit) != (term.value, term.unit):
        number += 1
        name = f"{term.name}_{number}"
    return replace(term, name=name)


def _written(number: Any, terms: Mapping[int, Term], blank: Receipt) -> Receipt:
    """Return a receipt with the expression of a number filled in, whatever its own name is."""
    bare = number if isinstance(number, Traced) else float(number)
    if isinstance(number, Traced) and number.operation:
        bare = Traced(number.value, number.operation, number.inputs)
    inside = {term.name: term for term in _terms(bare, terms)}
    return replace(blank, expression=_text(bare, terms)[0], terms=tuple(inside.values()))


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
    left = left if left_strength >= strength + (symbol == "**") else f"({left})"
    # What follows anything but a plus keeps its brackets even where it binds alike.
    right = right if right_strength >= strength + (symbol != "+") else f"({right})"
    return f"{left} {symbol} {right}", strength


def _flat(number: Traced, before: Mapping[int, Term]) -> Iterator[Any]:
    """Yield the inputs of a number; of the largest of largest ones, those of all."""
    for value in number.inputs:
        nested = isinstance(value, Traced) and value.operation == number.operation in {"max", "min"}
        yield from _flat(value, before) if nested and id(value) not in before else (value,)
