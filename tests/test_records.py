"""Records: dataclasses and named tuples that behave like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from shardcost import records

OPTIONS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"frozen": True, "eq": False},
    {"frozen": True, "repr": False},
    {"frozen": True, "kw_only": True},
    {"frozen": True, "slots": True},
    {"slots": True},
]


def made(decorator: Callable[..., Any], options: dict[str, bool]) -> Any:
    """Return a class with every kind of field."""

    class Record:
        """A record."""

        kinds: ClassVar[int] = 3
        first: int
        second: list[int] = field(default_factory=list)
        third: str = "c"
        hidden: int = field(default=4, repr=False, compare=False)
        memo: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
        fixed: int = field(default=5, init=False)

        def __post_init__(self) -> None:
            self.memo["made"] = 1

    return decorator(**options)(Record)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_dataclass_is_like_the_standard_one(options: dict[str, bool]) -> None:
    own, standard = (made(each, options) for each in (records.dataclass, dataclasses.dataclass))
    for given in ({"first": 1}, {"first": 1, "second": (2,), "third": "x", "hidden": 9}):
        one, other = own(**given), standard(**given)
        for each in dataclasses.fields(other):
            assert getattr(one, each.name) == getattr(other, each.name)
        assert [each.name for each in dataclasses.fields(one)] == [
            each.name for each in dataclasses.fields(other)
        ]
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        if options.get("repr", True):
            assert repr(one) == repr(other)
        assert (one == own(**given)) == (other == standard(**given))
        assert one != own(first=2)
        assert one != other
    assert (own.__hash__ is None) == (standard.__hash__ is None)
    if options.get("frozen") and options.get("eq", True):
        assert hash(own(first=1, second=(2,))) == hash(standard(first=1, second=(2,)))
    assert str(inspect.signature(own)) == str(inspect.signature(standard))
    assert own.__match_args__ == standard.__match_args__
    assert hasattr(own(first=1), "__dict__") == hasattr(standard(first=1), "__dict__")


@pytest.mark.parametrize("options", OPTIONS)
def test_wrong_arguments_are_refused_alike(options: dict[str, bool]) -> None:
    for wrong in ({}, {"first": 1, "none": 2}, {"first": 1, "fixed": 2}):
        said = []
        for decorator in (records.dataclass, dataclasses.dataclass):
            with pytest.raises(TypeError) as raised:
                made(decorator, options)(**wrong)
            said.append(str(raised.value))
        assert said[0] == said[1]


def test_a_frozen_record_stays_as_it_is() -> None:
    record = made(records.dataclass, {"frozen": True})(1)
    for name in ("first", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"assign to field '{name}'"):
            setattr(record, name, 2)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"delete field '{name}'"):
            delattr(record, name)
    assert dataclasses.replace(record, first=2).first == 2


@records.dataclass(frozen=True)
class Base:
    """A record to inherit from."""

    first: int

    @cached_property
    def doubled(self) -> int:
        """Twice the first."""
        return 2 * self.first


@records.dataclass(frozen=True)
class Derived(Base):
    """A record that has one more field."""

    second: int = 2


@records.dataclass(frozen=True, slots=True)
class Slotted:
    """A record without a table of attributes."""

    first: int
    second: tuple[int, ...] = ()


class Plain(Base):
    """No dataclass itself: it may have attributes that are no fields."""


def test_records_inherit_and_travel() -> None:
    record = Derived(1)
    assert (record.second, record.doubled) == (2, 2)
    assert record != Base(1)
    plain = Plain(1)
    plain.note = "x"  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.first = 2  # type: ignore[misc]
    for each in (record, Slotted(1, (2,))):
        assert pickle.loads(pickle.dumps(each)) == copy.deepcopy(each) == each


class Own(records.NamedTuple):
    """A pair."""

    first: int
    second: str = "b"
    """The second."""

    @property
    def both(self) -> str:
        """The two of them."""
        return f"{self.first}{self.second}"

    @classmethod
    def one(cls) -> Own:
        """Return a pair of 1."""
        return cls(1)


class Standard(typing.NamedTuple):
    """A pair."""

    first: int
    second: str = "b"


def test_a_named_tuple_is_like_the_standard_one() -> None:
    own, standard = Own.one(), Standard(1)
    assert tuple(own) == tuple(standard) == (1, "b")
    assert own.both == "1b"
    assert Own.__doc__ == "A pair."
    assert Own.__module__ == Standard.__module__
    assert (Own._fields, Own._field_defaults) == (Standard._fields, Standard._field_defaults)
    assert own._replace(first=2)._asdict() == {"first": 2, "second": "b"}
    assert str(inspect.signature(Own)).replace("Own", "Standard") in {
        "(first, second='b')",
        str(inspect.signature(Standard)),
    }
    assert pickle.loads(pickle.dumps(own)) == own
    assert isinstance(own, tuple)
    assert repr(own) == "Own(first=1, second='b')"
