"""`dataclass` and `NamedTuple` as in the standard library, at a tenth of their cost at import.

The standard decorator compiles up to six methods for each class, and `typing.NamedTuple` compiles
each annotation: for the 160 such classes that a command imports, half of its time to start. Here
``__init__`` of a dataclass is compiled when the first instance is made, and the other methods are
not compiled at all. The fields are read by the standard decorator, so that `dataclasses.fields`,
`replace`, `asdict` and `is_dataclass` work. Type checkers see the standard names.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

__all__ = ["NamedTuple", "dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import NamedTuple
else:

    def dataclass(  # noqa: ANN201
        cls: type | None = None,
        /,
        *,
        eq: bool = True,
        repr: bool = True,  # noqa: A002
        frozen: bool = False,
        kw_only: bool = False,
        slots: bool = False,
    ):
        """Return a dataclass, or the decorator that makes one with these options."""

        def made(cls: type) -> type:
            hashed = cls.__dict__.get("__hash__", MISSING)
            hashable = hashed is MISSING or (hashed is None and "__eq__" in cls.__dict__)
            cls = dataclasses.dataclass(
                init=False, repr=False, eq=False, kw_only=kw_only, slots=slots
            )(cls)
            methods = {"__init__": _Init(cls, frozen=frozen)}
            if repr:
                methods["__repr__"] = _repr
            if eq:
                methods["__eq__"] = _equality(cls)
                if hashable:
                    cls.__hash__ = _hash(cls) if frozen else None
            for name, method in methods.items():
                if name not in cls.__dict__:
                    setattr(cls, name, method)
            if frozen:
                cls.__setattr__, cls.__delattr__ = _refuse_to_set, _refuse_to_delete
            if frozen and slots:
                cls.__getstate__, cls.__setstate__ = _state, _set_state
            return cls

        return made if cls is None else made(cls)

    class _NamedTupleType(type):
        """Turns the classes that name `NamedTuple` as their base into named tuples."""

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, namespace)
            types = namespace.get("__annotations__", {})
            defaults = [namespace[each] for each in types if each in namespace]
            made = namedtuple(name, types, defaults=defaults, module=namespace["__module__"])
            for key, value in namespace.items():
                if key not in types:
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_NamedTupleType):
        """The base that makes a class a named tuple of its annotated fields."""


class _Factory:
    """Stands for a value that is left out and made by the field's factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


class _Init:
    """The ``__init__`` of a dataclass until it is used."""

    def __init__(self, owner: type, *, frozen: bool) -> None:
        self._owner, self._frozen = owner, frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        compiled: Any = _init(self._owner, frozen=self._frozen)
        self._owner.__init__ = compiled  # type: ignore[misc]
        return compiled if instance is None else compiled.__get__(instance)


def _init(cls: Any, *, frozen: bool) -> Callable[..., None]:
    """Return the compiled ``__init__`` of a dataclass."""
    own = fields(cls)
    given: dict[str, Any] = {"_set": object.__setattr__, "_factory": _FACTORY}
    positional = ["self"]
    by_name: list[str] = []
    body: list[str] = []
    for field in own:  # defaults and factories are put among the globals
        name = parameter = value = field.name
        if field.default_factory is not MISSING:
            given[f"_make_{name}"] = field.default_factory
            parameter += "=_factory"
            value = f"_make_{name}()" + f" if {name} is _factory else {name}" * field.init
        elif field.default is not MISSING:
            given[f"_default_{name}"] = field.default
            parameter += f"=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif not field.init:
            continue  # left to __post_init__
        if field.init:
            (by_name if field.kw_only else positional).append(parameter)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    parameters = ", ".join([*positional, *(["*", *by_name] if by_name else [])])
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = "\n ".join(body or ["pass"])
    exec(f"def __init__({parameters}):\n {lines}", given)  # noqa: S102 - names of fields alone
    made: Any = given["__init__"]
    made.__module__, made.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    made.__annotations__ = {each.name: each.type for each in own if each.init} | {"return": None}
    return made  # type: ignore[no-any-return]


def _key(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what makes a tuple of some attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda each: tuple(getattr(each, name) for name in names)


def _equality(cls: Any) -> Callable[[Any, Any], bool]:
    key = _key([each.name for each in fields(cls) if each.compare])

    def equal(self: Any, other: object) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return equal


def _hash(cls: Any) -> Callable[[Any], int]:
    marked = ((each, each.compare if each.hash is None else each.hash) for each in fields(cls))
    key = _key([each.name for each, counts in marked if counts])

    return lambda self: hash(key(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    if _is_fixed(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    if _is_fixed(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_fixed(self: Any, name: str) -> bool:
    """Return whether an attribute is a field; of a dataclass itself, nothing else may be set."""
    return "__dataclass_fields__" in type(self).__dict__ or name in self.__dataclass_fields__


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
