"""What an option is: the name, how its values are read, what its help says.

The table of all options is `shardcost.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from shardcost import values
from shardcost.records import dataclass
from shardcost.scalars import whole_number
from shardcost.workload import Decode, Prefill, Train

Kind = Literal[
    "whole", "number", "flag", "word", "name", "size", "sweep", "time", "share", "price", "fix",
    "lengths", "switch", "figures", "amount", "hours", "rate",
]  # fmt: skip
Axis = Literal["", "degree", "size", "choice", "fixed", "question"]
PHASES: Final[Mapping[str, Any]] = {"train": Train, "prefill": Prefill, "decode": Decode}
"""Each phase with the workload that it is."""
ABOUT_PHASES: Final = {
    "train": "one optimizer step",
    "prefill": "one forward pass over prompts",
    "decode": "one decoding step of every sequence",
}
Reader: TypeAlias = Callable[[str, Any], Any]
_READERS: Final[Mapping[str, Reader]] = {
    "whole": values.whole,
    "number": values.number,
    "flag": values.truth,
    "size": values.size,
    "sweep": values.sizes,
    "time": values.time,
    "share": values.share,
    "lengths": values.lengths,
    "switch": values.switch,
    "amount": values.amount,
    "hours": values.hours,
    "rate": values.rate,
}
"""How a value of a kind is read; all others are texts."""
_METAVARS: Final[Mapping[str, str]] = {
    "whole": "N",
    "word": "NAME",
    "name": "NAME",
    "size": "BYTES",
    "sweep": "A:B[:X]",
    "time": "TIME",
    "share": "P",
    "lengths": "TOKENS",
    "switch": "on|off",
    "figures": "NAME=VALUE",
    "amount": "N",
    "hours": "HOURS",
    "rate": "RATE",
}
_FEW: Final = 5
"""Up to so many choices are listed in the help."""


def flag(name: str) -> str:
    """Return a name as the option of the command line."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, eq=False)
class Option:
    """One option."""

    name: str
    """In Python, in JSON and in links; ``--name`` with hyphens on the command line."""
    kind: Kind
    label: str
    """On the page."""
    help: str
    """What it is; choices, phases and default are added from the fields that it sets."""
    nouns: tuple[Any, ...] = ()
    """The nouns of which it sets a field."""
    renamed: Mapping[Any, str] = field(default_factory=dict)
    """The field by noun, where it is not called as the option is."""
    phases: tuple[str, ...] = ()
    """In which it means something; those of its nouns, or all, if empty."""
    otherwise: str = ""
    """What holds where it is left out, in words, if that is not the field's default."""
    preset: Any = None
    """The default of an option that sets no field."""
    allowed: tuple[Any, ...] = ()
    """All that it may be, where the field does not say so."""
    fewest: int = 1
    """The least whole number that it may be, where it sets no field."""
    limit: str = ""
    """The field of a search's constraints that it sets."""
    several: str = ""
    """What more a search takes: several values of it."""
    axis: Axis = ""
    """As an axis of a search: a degree of parallelism, another number, a choice that is free, one
    that is fixed unless values are given, or one that no layout has: a question for each value."""
    free_in: tuple[str, ...] = ()
    """Phases in which a search tries every choice; those of the option if empty."""
    said: str = ""
    """How a value that is not the default is said of a layout."""
    place: Literal["", "slider", "main", "more"] = ""
    """Where the page has it."""
    start: Mapping[str, int] = field(default_factory=dict)
    """Where the page begins, by phase."""
    example: str = ""
    """What the page shows where it is empty: no value that is in force, hence "e.g."."""

    @property
    def flag(self) -> str:
        """As the command line has it."""
        return flag(self.name)

    @property
    def metavar(self) -> str:
        """What stands for its value in the help."""
        return _METAVARS.get(self.kind, "X")

    def field_of(self, noun: Any) -> Field[Any]:
        """Return the field of a noun that it sets."""
        name = self.renamed.get(noun, self.name)
        return next(known for known in fields(noun) if known.name == name)

    @cached_property
    def _fields(self) -> list[Field[Any]]:
        return [self.field_of(noun) for noun in self.nouns]

    @cached_property
    def applies_to(self) -> tuple[str, ...]:
        """Phases in which it means something."""
        own = tuple(phase for phase, noun in PHASES.items() if noun in self.nouns)
        return self.phases or own or tuple(PHASES)

    @cached_property
    def required(self) -> bool:
        """Whether its nouns cannot do without it."""
        return any(known.default is MISSING for known in self._fields)

    @cached_property
    def default(self) -> Any:
        """What it is where it is left out; None where that is not one value."""
        if not self._fields:
            return self.preset
        return None if self.required else self._fields[0].default

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """All that it may be, the default first; empty where that is no list."""
        known = self._fields[0].metadata.get("choices", ()) if self._fields else ()
        flags = (False, True) if self.kind == "flag" else ()
        return tuple(
            sorted(self.allowed or known or flags, key=lambda value: value != self.default)
        )

    def free_choices(self, phase: str) -> tuple[Any, ...]:
        """Return the choices that a search tries in a phase; none where it has no choice."""
        free = self.axis == "choice" and phase in (self.free_in or self.applies_to)
        return self.choices if free else ()

    @cached_property
    def least(self) -> int:
        """The least whole number that it may be."""
        if not self._fields:
            return self.fewest
        return int(self._fields[0].metadata.get("least", 1))

    @cached_property
    def most(self) -> int | None:
        """The most that it may be, where its field or its choices say so."""
        if self.kind == "whole" and self.choices:
            return int(max(self.choices))
        return self._fields[0].metadata.get("most") if self._fields else None

    def rule(self, name: str, value: Any) -> Any:
        """Return a value if the field may have it; an error calls it `name`."""
        if self._fields:
            keep: Reader = self._fields[0].metadata["rule"]
            return keep(name, value)
        return whole_number(name, value, self.fewest) if self.kind == "whole" else value

    def read(self, value: Any, name: str = "") -> Any:
        """Return a value, text or typed, as the field has it; an error names the option."""
        name = name or self.flag
        reader: Reader = _READERS.get(self.kind, values.text)
        return self.rule(name, reader(name, value))

    def read_several(self, value: Any, name: str = "") -> list[Any]:
        """Return several values, numbers also as ``A..B``."""
        name = name or self.flag
        if self.axis in {"degree", "size"} or (self.axis == "question" and self.kind == "whole"):
            return values.wholes(name, value)
        empty = "none" if self.kind == "whole" and self.default is None else None
        return [
            None if empty and one == empty else self.read(one, name)
            for one in values.several(name, value)
        ]

    def described(self, choices: Iterable[str] = ()) -> str:
        """Return the help: what it is, its choices, the phases that have it and the default.

        Args:
            choices: Names that the option takes and that the table does not know.
        """
        known = list(map(str, choices or (self.choices if self.kind == "word" else ())))
        listed = 1 < len(known) <= _FEW or (choices and known)
        named = f": {', '.join(known[:-1])} or {known[-1]}" if listed else ""
        usual, notes = self.default, []
        if len(self.applies_to) < len(PHASES):
            notes += [flag(phase) for phase in self.applies_to]
        if self.otherwise or not (usual is None or usual is False):
            notes.append(
                self.otherwise or (f"{usual:g}" if isinstance(usual, float) else str(usual))
            )
        return f"{self.help}{named}" + (f" ({', '.join(notes)})" if notes else "")
