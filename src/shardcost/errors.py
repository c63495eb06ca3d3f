"""The errors that shardcost raises, and how an offending value is shown.

Each error also is the built-in that a caller would catch anyway::

    Exception
    └── ShardcostError
        ├── BadValueError      (ValueError)   a value of the right type breaks its rule
        │   ├── UnknownNameError (LookupError)  a name that no catalog or table holds
        │   ├── InfeasibleError                 a layout that cannot be, with its `Reason`
        │   └── FormatError                     a file says something that cannot be
        ├── BadTypeError       (TypeError)    a value of the wrong type
        ├── UsageError         (ValueError)   an unknown option, a missing value
        ├── MissingExtraError  (ImportError)  a library that an extra brings along is missing
        └── LostWorkerError    (RuntimeError) workers of a search died, again and again

Every message is one line that names the value and the rule it breaks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

_SHOWN_CHARACTERS: Final = 60
_FEW_NAMES: Final = 8
"""Up to so many known names are all listed; of more, the nearest if any is near."""
_LISTED_CHARACTERS: Final = 300
"""Of known names, so that an error stays readable."""


def shown(value: object) -> str:
    """Show any value, however long or odd, as a short single line."""
    if getattr(value, "ndim", None) == 0:  # a NumPy number: show it as a plain one
        value = value.item()  # type: ignore[attr-defined]
    try:
        text = repr(value)
    except ValueError:  # an int beyond Python's limit on digits to print
        text = f"an integer of {value.bit_length()} bits"  # type: ignore[attr-defined]
    except RecursionError:
        text = f"a {type(value).__name__} nested too deeply to show"
    text = " ".join(text.split())
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    return text


def printable(text: str) -> str:
    r"""Return a text from outside as one line that a terminal shows and does not obey.

    >>> printable("a\x1b[31m\nb")
    'a?[31m?b'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


class ShardcostError(Exception):
    """Base of every error that shardcost raises on purpose."""


class _BrokenRuleError(ShardcostError):
    """What `argument` must be, and the `value` that is not.

    All three are positional arguments of the exception, so that it survives pickling.
    """

    def __init__(self, argument: str, value: object, rule: str) -> None:
        super().__init__(argument, value, rule)
        self.argument = argument
        self.value = value
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.argument} must be {self.rule}, got {shown(self.value)}"


class BadValueError(_BrokenRuleError, ValueError):
    """A value of the right type that breaks its rule: ``num_gpus must be … , got 0``."""


class BadTypeError(_BrokenRuleError, TypeError):
    """A value of the wrong type: ``num_gpus must be a whole number …, got '8'``."""

    def __str__(self) -> str:
        plain = self.value is None or isinstance(self.value, str)  # what is shown says so itself
        return super().__str__() + ("" if plain else f" ({type(self.value).__name__})")


class UnknownNameError(BadValueError, LookupError):
    """A name that is not among the known ones; names them if they are few, else the nearest."""

    def __init__(self, argument: str, value: object, known: Iterable[str], hint: str = "") -> None:
        self.known = sorted(known)
        self.hint = hint
        super().__init__(argument, value, "a known name")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.argument, self.value, self.known, self.hint)

    def __str__(self) -> str:
        from difflib import get_close_matches

        written = {each.lower(): each for each in self.known}
        matches = get_close_matches(str(self.value).lower(), written, n=3, cutoff=0.5)
        near = [written[each] for each in matches]
        if near and len(self.known) > _FEW_NAMES:
            way_out = "did you mean " + " or ".join(near) + "?"
        else:
            listed = ", ".join(self.known)
            if len(listed) > _LISTED_CHARACTERS:
                listed = listed[:_LISTED_CHARACTERS].rpartition(", ")[0] + ", …"
            way_out = f"known: {listed}"
        return f"unknown {self.argument} {shown(self.value)}; {way_out} {self.hint}".rstrip()


class Reason(NamedTuple):
    """Why a layout is infeasible; shown as its message."""

    code: str
    """Names the rule, whatever the values: stable, for programs."""
    message: str
    values: tuple[Any, ...] = ()
    """What the message states, in its order."""

    def __str__(self) -> str:
        return self.message


class Rule(NamedTuple):
    """A rule of feasibility, and what is said where it is broken.

    >>> Rule("heads_not_divisible_by_tp", "tp does not divide {} heads").reason(32).message
    'tp does not divide 32 heads'
    """

    code: str
    text: str

    def reason(self, *values: Any) -> Reason:
        """Return the reason that the rule gives for some values."""
        return Reason(self.code, self.text.format(*values), values)


class InfeasibleError(BadValueError):
    """A layout that cannot be, by itself or for a model, with the `Reason`."""

    def __init__(self, argument: str, value: object, reason: Reason, model: str = "") -> None:
        rule = f"possible for {model}: {reason}" if model else f"possible ({reason})"
        super().__init__(argument, value, rule)
        self.reason = reason
        self.model = model

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.argument, self.value, self.reason, self.model)


class FormatError(BadValueError):
    """A file whose content cannot be what it should be; names the file and the reason."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason, "readable")
        self.file = file
        self.reason = reason

    @classmethod
    def within(cls, file: str, error: ShardcostError) -> FormatError:
        """Return an error met while reading `file` as one that names the file."""
        return error if isinstance(error, cls) else cls(file, str(error))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.file, self.reason)

    def __str__(self) -> str:
        return printable(f"{self.file}: {self.reason}")


class UsageError(ShardcostError, ValueError):
    """A request that is not in order as a whole: an unknown option, a missing value."""


class MissingExtraError(ShardcostError, ImportError):
    """A library that only an extra of the package brings along is needed and not installed."""

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(f"{what} needs {library}: pip install 'shardcost[{extra}]'")
        self.parts = (what, library, extra)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self.parts


class LostWorkerError(ShardcostError, RuntimeError):
    """The workers of one task of a search died, again and again."""
