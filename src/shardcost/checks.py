"""What the four nouns share: fields that check themselves, and equality that knows arrays.

A noun is a frozen dataclass whose fields carry their rule as metadata::

    @noun
    class Layout(Noun):
        tp: Count = whole(default=1)

On construction each value is checked, and brought into one form, by its rule. Numeric fields take
a number or a NumPy array; an array must keep the rule in every cell. Nothing here imports NumPy:
an array is recognised by its ``dtype``, so that a program which uses none never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from math import inf
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Self,
    TypeAlias,
    TypeVar,
    dataclass_transform,
)

from shardcost.dtypes import BITS, WEIGHT_FORMATS, canonical_dtype, canonical_format
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError, shown
from shardcost.records import dataclass
from shardcost.scalars import positive_number, whole_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Count: TypeAlias = int | NDArray[np.integer[Any]]
    """A whole number, or an array of them."""
    Quantity: TypeAlias = float | NDArray[np.floating[Any]]
    """A real number, or an array of them."""
else:
    Count, Quantity = int, float

T = TypeVar("T")
Rule: TypeAlias = Callable[[str, Any], Any]
"""Takes the field's name and value; returns the value in its one form, or raises."""


class Noun:
    """Base of the frozen dataclasses that check themselves."""

    _hash: ClassVar[int | None] = None
    """Computed once: nouns are keys of caches."""
    _memo: ClassVar[dict[Any, Any] | None] = None
    has_arrays: ClassVar[bool] = False
    """Whether any field is an array: asked by every estimate, so found once, by `__post_init__`."""
    _names: ClassVar[tuple[str, ...]] = ()
    _has_tables: ClassVar[bool] = False
    """Whether any field is a mapping."""
    _rules: ClassVar[tuple[tuple[str, str, Rule, Any], ...]] = ()
    """Of each field that has one: its name, its name in messages, its rule, and the default if
    that keeps the rule as it stands."""

    def __post_init__(self) -> None:
        """Apply each field's rule, then the rules between fields."""
        values = self.__dict__
        for name, called, rule, default in self._rules:
            given = values[name]
            if given is default:
                continue
            value = rule(called, given)
            if value is not given:
                object.__setattr__(self, name, value)
            if is_array(value):
                object.__setattr__(self, "has_arrays", True)
        self.check()

    def variant(self, **changes: Any) -> Self:
        """Return the same with other values that keep the rules; made once, and not checked.

        An estimate takes the same few variants of its nouns again and again, and a noun that was
        made before has its hash. For words and plain numbers that are right by themselves.
        """
        if not self.has_arrays and all(self.__dict__[name] == changes[name] for name in changes):
            return self
        key = () if self.has_arrays else tuple(changes.items())  # arrays are no keys
        other: Self | None = self.memo.get(key) if key else None
        if other is None:
            other = object.__new__(type(self))
            other.__dict__.update({name: self.__dict__[name] for name in self._names})
            other.__dict__.update(changes, has_arrays=self.has_arrays)
            if key:
                self.memo[key] = other
        return other

    @property
    def memo(self) -> dict[Any, Any]:
        """What follows from the noun alone and was found before; no part of its value."""
        memo = self._memo
        if memo is None:
            memo = self.__dict__["_memo"] = {}
        return memo

    def check(self) -> None:
        """Raise if fields that are right by themselves do not go together."""

    def chosen(self) -> dict[str, Any]:
        """Return the fields that are not the default, by name."""
        return {
            each.name: value
            for each in fields(self)  # type: ignore[arg-type]
            if is_array(value := getattr(self, each.name)) or value != each.default
        }

    def __repr__(self) -> str:
        """Return the fields that are not the default, each of them in short."""
        said = (f"{name}={_short(value)}" for name, value in self.chosen().items())
        return f"{type(self).__name__}({', '.join(said)})"

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if type(other) is not type(self):
            return NotImplemented
        mine, its = self.__dict__, other.__dict__
        for name in self._names:
            one, two = mine[name], its[name]
            if one is two:
                continue
            arrays = is_array(one) or is_array(two)
            if arrays and getattr(one, "shape", ()) != getattr(two, "shape", ()):
                return False
            if not ((one == two).all() if arrays else one == two):
                return False
        return True

    def __hash__(self) -> int:
        known = self._hash
        if known is None:
            values = tuple(map(self.__dict__.__getitem__, self._names))
            if self._has_tables:
                values = tuple(
                    tuple(v.items()) if type(v) is MappingProxyType else v for v in values
                )
            known = self.__dict__["_hash"] = hash(values)
        return known

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: plain tables, and no hash, which is this one's."""
        values = {name: self.__dict__[name] for name in self._names}
        return {n: dict(v) if isinstance(v, MappingProxyType) else v for n, v in values.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            kept = MappingProxyType(value) if isinstance(value, dict) else value
            object.__setattr__(self, name, kept)
            if is_array(kept):
                object.__setattr__(self, "has_arrays", True)


def whole(*, default: Any = MISSING, least: int = 1) -> Any:
    """Return a field for a whole number (or array of them) of at least `least`."""

    def rule(name: str, value: Any) -> Any:
        if is_array(value):
            text = f"a whole number of at least {least}"
            return _checked_array(name, value, "iu", text, lambda cells: cells >= least)
        return whole_number(name, value, least)

    return _field(default, rule, least=least)


def count_or_array(name: str, value: Any, most: int = 10**9) -> Any:
    """Return a whole number from 1 to `most`, or an int64 array of them; raise otherwise."""
    if is_array(value):
        text = f"a whole number from 1 to {most}"
        kept = _checked_array(name, value, "iu", text, lambda cells: (cells >= 1) & (cells <= most))
        return kept.astype("int64")
    number = whole_number(name, value, 1)
    if number > most:
        raise BadValueError(name, number, f"at most {most}")
    return number


def positive(*, default: Any = MISSING) -> Any:
    """Return a field for a finite number (or array of them) above 0."""
    return _field(default, positive_or_array)


def span(*, default: Any = MISSING) -> Any:
    """Return a field for a time above 0 in seconds, which may be infinite."""

    def rule(name: str, value: Any) -> Any:
        if value == inf:
            return value
        try:
            return positive_number(name, value)
        except BadValueError:
            raise BadValueError(name, value, "a number above 0, or inf") from None

    return _field(default, rule)


def at_least_one(*, default: Any = MISSING) -> Any:
    """Return a field for a finite number (or array of them) of at least 1."""

    def rule(name: str, value: Any) -> Any:
        checked = positive_or_array(name, value)
        if anywhere(checked < 1):
            raise BadValueError(name, value, "at least 1")
        return checked

    return _field(default, rule)


def share(*, default: Any = MISSING) -> Any:
    """Return a field for a number (or array of them) from 0 to 1."""

    def rule(name: str, value: Any) -> Any:
        text = "a share from 0 to 1"
        if is_array(value):
            return _checked_array(name, value, "iuf", text, lambda c: (c >= 0) & (c <= 1))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadTypeError(name, value, text)
        if not 0 <= value <= 1:
            raise BadValueError(name, value, text)
        return float(value)

    return _field(default, rule, least=0, most=1)


def positive_or_array(name: str, value: Any) -> Any:
    """Return a finite number above 0 as float, or an array of them; raise otherwise."""
    if is_array(value):
        text = "a finite number above 0"
        return _checked_array(name, value, "iuf", text, lambda cells: (cells > 0) & (cells < inf))
    return positive_number(name, value)


def flag(*, default: Any = MISSING) -> Any:
    """Return a field for True or False."""

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, bool):
            raise BadTypeError(name, value, "True or False")
        return value

    return _field(default, rule)


def one_of(*choices: str, default: Any = MISSING, otherwise: Rule | None = None) -> Any:
    """Return a field for one of a few words.

    Args:
        choices: The words.
        default: The usual one.
        otherwise: The rule of all values, where some beyond the words are possible.
    """

    def rule(name: str, value: Any) -> Any:
        if value not in choices:
            raise UnknownNameError(name, value, choices)
        return value

    return _field(default, otherwise or rule, choices=choices)


def name_among(argument: str, value: Any, known: Iterable[str]) -> str:
    """Return the name of a list that a text means: capitals, hyphens and the like do not matter.

    >>> name_among("algorithm", "NVLSTree", ["ring", "nvls_tree"])
    'nvls_tree'
    """
    if not isinstance(value, str):
        raise BadTypeError(argument, value, "a name")
    names = {_plain(name): name for name in known}
    if _plain(value) not in names:
        raise UnknownNameError(argument, value, names.values())
    return names[_plain(value)]


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def text(*, default: Any = MISSING) -> Any:
    """Return a field for a text that is not empty."""

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise BadTypeError(name, value, "a text")
        if not value:
            raise BadValueError(name, value, "a text that is not empty")
        return value

    return _field(default, rule)


def names(*choices: str, default: Any = MISSING) -> Any:
    """Return a field for several names, kept as a tuple.

    Args:
        choices: All that there are; any if none are given.
        default: Where it is left out.
    """

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, tuple | list) or not all(isinstance(each, str) for each in value):
            raise BadTypeError(name, value, "a list of names")
        for each in value:
            if choices and each not in choices:
                raise UnknownNameError(name, each, choices)
        return tuple(value)

    return _field(default, rule)


def number_format(*, default: Any = MISSING) -> Any:
    """Return a field for a number format, kept under shardcost's own name."""
    return _field(default, lambda name, value: canonical_dtype(value, name), choices=tuple(BITS))


def format_of_weights(*, default: Any = MISSING) -> Any:
    """Return a field for a format of weights (`dtypes.WEIGHT_FORMATS`), kept under its own name."""
    return _field(
        default,
        lambda name, value: canonical_format(value, name),
        choices=tuple(WEIGHT_FORMATS),
    )


def table(check: Rule, *, default_factory: Any = MISSING) -> Any:
    """Return a field for a mapping from texts to values that `check` accepts, kept read-only."""

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise BadTypeError(name, value, "a mapping")
        checked = {key: check(f"{name}[{key!r}]", cell) for key, cell in value.items()}
        return MappingProxyType(checked)

    return field(default_factory=default_factory, metadata={"rule": rule, "table": True})


def instance(*kinds: type, default: Any = MISSING) -> Any:
    """Return a field for another noun, of one of the classes `kinds`."""

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, kinds):
            raise BadTypeError(name, value, "of class " + " or ".join(k.__name__ for k in kinds))
        return value

    return _field(default, rule)


def instances(kind: type) -> Any:
    """Return a field for one or more nouns of class `kind`, kept as a tuple."""

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, tuple | list) or not all(isinstance(item, kind) for item in value):
            raise BadTypeError(name, value, f"a tuple of {kind.__name__}")
        if not value:
            raise BadValueError(name, value, f"at least one {kind.__name__}")
        return tuple(value)

    return _field(MISSING, rule)


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    field_specifiers=(
        whole,
        positive,
        span,
        at_least_one,
        share,
        flag,
        one_of,
        text,
        names,
        number_format,
        format_of_weights,
        table,
        instance,
        instances,
    ),
)
def noun(cls: type[T]) -> type[T]:
    """Turn a class into a noun: a frozen, keyword-only dataclass with `Noun`'s equality."""
    made = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
    every = fields(made)  # type: ignore[arg-type]
    rules = []
    for own in every:
        rule, default = own.metadata.get("rule"), own.default
        if rule is None:
            continue
        if default is not MISSING and rule(own.name, default) is not default:
            default = MISSING  # brought into another form whenever it is taken
        rules.append((own.name, f"{made.__name__}.{own.name}", rule, default))
    made._names = tuple(own.name for own in every)  # type: ignore[attr-defined]
    made._has_tables = any("table" in own.metadata for own in every)  # type: ignore[attr-defined]
    made._rules = tuple(rules)  # type: ignore[attr-defined]
    return made


def _short(value: Any) -> str:
    """Return a field's value in short: of an array its ends, of a table how many entries."""
    if is_array(value):
        ends = f"{value.min()} to {value.max()}" if value.size else "empty"
        return f"<{'x'.join(map(str, value.shape))} values, {ends}>"
    return f"<{len(value)} entries>" if isinstance(value, Mapping) else shown(value)


def is_array(value: object) -> bool:
    """Return whether `value` is an array of any library that follows NumPy's policy."""
    return hasattr(value, "dtype") and getattr(value, "ndim", 0) > 0


def anywhere(condition: Any) -> bool:
    """Return whether a condition on numbers or arrays holds, in any cell."""
    if type(condition) is bool:
        return condition
    return bool(condition.any()) if is_array(condition) else bool(condition)


def _field(default: Any, rule: Rule, **facts: Any) -> Any:
    """Return a field with its rule and facts; where the default is None, None needs no rule."""

    def or_none(name: str, value: Any) -> Any:
        return None if value is None else rule(name, value)

    return field(default=default, metadata={"rule": or_none if default is None else rule, **facts})


def _checked_array(
    name: str, cells: Any, kinds: str, rule: str, keeps_rule: Callable[[Any], Any]
) -> Any:
    if cells.dtype.kind not in kinds:
        raise BadTypeError(name, cells, f"{rule}, in every cell")
    good = keeps_rule(cells)
    if not good.all():
        raise BadValueError(name, cells[~good][0], f"{rule}, in every cell")
    return cells
