"""JSON of any size, read a window at a time in bounded memory: `JsonStream`.

A trace has gigabytes, nearly all of them in one array. So the members of the outermost object are
decoded one by one, and arrays under a few names come in batches of elements. The standard
library's decoder does the work on a window of about 1 MiB: all elements that a window holds whole
are decoded in one go, since names that they share are then made once, and where that fails, one
by one. A value that is longer than its window is looked at again each time the window has doubled,
so that the time stays linear.

Nothing is trusted: NaN and infinities, numbers of absurd length, elements that are not JSON and a
file that is cut off are counted (`JsonStream.passed_over`), and nesting or values without bounds
are one clear error.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final, NoReturn

from shardcost.errors import FormatError
from shardcost.formats.opened import CutOffError, no_constant
from shardcost.formats.reading import PassedOver

MOST_BYTES: Final = 64 * 2**20
"""Of one value, as its text stands in memory."""
_MOST_PARTS: Final = 1_000_000
"""Of one value that is longer than a window: each may take 200 bytes once decoded."""
_MOST_BROKEN: Final = 1_000
"""So many elements may be no JSON before the rest is left alone."""
_MOST_UNSOUND: Final = 100_000
"""The same for elements with numbers that are none, which cost less to tell."""
_WINDOW: Final = 2**20
_NEAR_END: Final = 16
"""An error so near to the end of a window may be of the window: no literal is longer."""
_SEARCHED: Final = 2**16
_SPACE: Final = re.compile(r"[ \t\r\n]*").match
_BOUNDARY: Final = re.compile(r"\}\s*,\s*(?=\{)")
_UNTERMINATED: Final = "Unterminated string"


class _BrokenError(Exception):
    """What stands at the window's place is no JSON."""


class _CutError(Exception):
    """The text ends in the middle of something."""


class _UnsoundError(Exception):
    """A value has been read past that is JSON but for something in it."""


_STRICT: Final = JSONDecoder(strict=False, parse_constant=no_constant)
_LENIENT: Final = JSONDecoder(strict=False, parse_constant=lambda _: 0, parse_int=lambda _: 0)
"""Finds the end of a value that the other refuses."""


class JsonStream:
    """The members of a JSON object, or the elements of a JSON array, as they come.

    Args:
        chunks: The bytes.
        file: Its name, for errors.
        arrays: Names of members whose elements are wanted in batches.
        restart: How an element of those arrays begins: where one is no JSON, reading goes on at
            the next place that looks like this.
        thinned: What leaves out, of the text of elements that stand one after the other, those
            that are not wanted. Decoding is what takes time, and telling is much faster. What it
            leaves is decoded; where that fails, all of it.
    """

    def __init__(
        self,
        chunks: Iterable[bytes],
        file: str,
        arrays: Container[str],
        restart: re.Pattern[str] | None = None,
        thinned: Callable[[str], str] = str,
    ) -> None:
        self.file = file
        self.passed_over = PassedOver()
        self._arrays = arrays
        self._restart = restart
        self._thinned = thinned
        self._broken = 0
        self._unsound = 0
        self._window = _Window(chunks, file)

    @property
    def line(self) -> int:
        """The line that has been reached."""
        return self._window.line_here

    def parts(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield names with values: one value a member, many at a time of the arrays.

        A bare array has the name ``""``.
        """
        window = self._window
        first = window.peek()
        if first not in {"[", "{"}:
            raise FormatError(self.file, "is not a JSON object or array")
        try:
            window.at += 1
            yield from self._elements("") if first == "[" else self._members()
            if window.peek():
                self.passed_over.add(self.line, "text after the end of the JSON")
        except _CutError:
            why = window.damage or f"the file is cut off (byte {window.byte_here})"
            self.passed_over.add(self.line, why)
        except _BrokenError as error:
            reason = f"the rest, from what is not JSON: {error} (byte {window.byte_here})"
            self.passed_over.add(self.line, reason)

    def _members(self) -> Iterator[tuple[str, list[Any]]]:
        window = self._window
        while True:
            mark = window.needed()
            if mark == "}":
                window.at += 1
                return
            if mark == ",":
                window.at += 1
                continue
            if mark != '"':
                raise _BrokenError("Expecting property name enclosed in double quotes")
            name = window.value()
            if window.needed() != ":":
                raise _BrokenError("Expecting ':' delimiter")
            window.at += 1
            if window.needed() == "[" and name in self._arrays:
                window.at += 1
                yield from self._elements(name)
                continue
            try:
                value = window.value()
            except _UnsoundError as error:
                self.passed_over.add(self.line, f"{name[:40]} {error}")
            else:
                yield name, [value]

    def _elements(self, name: str) -> Iterator[tuple[str, list[Any]]]:
        window = self._window
        while True:
            mark = window.needed()
            if mark == "]":
                window.at += 1
                return
            if mark == ",":
                window.at += 1
                continue
            until = window.boundary()
            batch = window.batch(until, self._thinned)
            if batch is None:
                batch = self._singly(window.dropped + until)
            if batch:
                yield name, batch

    def _singly(self, until: int) -> list[Any]:
        """Return elements up to a place in the text, decoded one by one, and at least one."""
        window = self._window
        values: list[Any] = []
        while True:
            try:
                values.append(window.value())
            except _UnsoundError as error:
                self.passed_over.add(self.line, f"an element {error}")
                self._unsound += 1
                if self._unsound > _MOST_UNSOUND and not values:
                    raise _BrokenError("too many elements of this kind") from None
            except (_BrokenError, _CutError) as error:
                if values:  # they are handed over first; the error comes back
                    return values
                self._skip(error)
            if window.peek() == ",":
                window.at += 1
            if window.peek() in {"]", ""} or window.dropped + window.at >= until:
                return values

    def _skip(self, error: _BrokenError | _CutError) -> None:
        """Go to where the next element seems to begin."""
        self._broken += 1
        if isinstance(error, _CutError) or not self._restart or self._broken > _MOST_BROKEN:
            raise error
        line = self.line
        if not self._window.skip_to(self._restart):
            raise _CutError
        self.passed_over.add(line, f"an element is not JSON: {error}")


class _Window:
    """The part of the text at hand, and the place in it that has been reached."""

    def __init__(self, chunks: Iterable[bytes], file: str) -> None:
        self.text = ""
        self.at = 0
        self.dropped = 0
        """Characters before the window."""
        self.damage = ""
        """Why the bytes ended too soon, where they did."""
        self._file = file
        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._ended = False
        self._line, self._lines_until = 1, 0
        self._bytes = 0

    @property
    def line_here(self) -> int:
        """The line of the place."""
        self._line += self.text.count("\n", self._lines_until, self.at)
        self._lines_until = self.at
        return self._line

    @property
    def byte_here(self) -> int:
        """How many bytes stand before the place."""
        return self._bytes - len(self.text[self.at :].encode("utf-8", errors="replace"))

    def peek(self) -> str:
        """Return the next character that is not blank, and go there; nothing at the end."""
        while True:
            self.at = _SPACE(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                return ""

    def needed(self) -> str:
        """Return what `peek` does, where something has to come."""
        mark = self.peek()
        if not mark:
            raise _CutError
        return mark

    def value(self) -> Any:
        """Return the value at the place and go past it."""
        decoder, unsound = _STRICT, ""
        while True:
            try:
                value, end = decoder.raw_decode(self.text, self.at)
            except RecursionError:
                self._too_deep()
            except JSONDecodeError as error:
                if (
                    (error.pos >= len(self.text) - _NEAR_END) or error.msg.startswith(_UNTERMINATED)
                ) and self._more():
                    continue
                if error.pos >= len(self.text) or error.msg.startswith(_UNTERMINATED):
                    raise _CutError from None
                raise _BrokenError(error.msg) from None
            except ValueError as error:
                decoder, unsound = _LENIENT, str(error)
                continue
            near = end > len(self.text) - _NEAR_END
            if near and isinstance(value, int | float) and self._more():  # a number may go on
                continue
            self.at = end
            if unsound:
                said = "a number of absurd length" if "digits" in unsound else ""
                raise _UnsoundError(f"holds {said}" if said else unsound)
            return value

    def boundary(self) -> int:
        """Return the last place in reach at which one element seems to end and another begin.

        Where elements are no objects, that is at the last comma.
        """
        if len(self.text) - self.at < _WINDOW // 2:
            self._more()
        until = min(len(self.text), self.at + 2 * _WINDOW)
        start = max(self.at, until - _SEARCHED)
        last = max(self.at, self.text.rfind(",", start, until))
        for boundary in _BOUNDARY.finditer(self.text, start, until):
            last = boundary.start() + 1
        return last

    def batch(self, until: int, thinned: Callable[[str], str]) -> list[Any] | None:
        """Return the elements up to a place and go past them; None where that fails."""
        text = self.text[self.at : until]
        if not text:
            return None
        fewer = thinned(text)
        values, end = self._decoded(fewer)
        if fewer is not text and end != len(fewer):
            values, end = self._decoded(text)
            fewer = text
        if end < 0:
            return None
        # Where the array ends before that place, its own bracket was met instead of ours.
        self.at = until if end == len(fewer) else self.at + end
        return values

    def _decoded(self, text: str) -> tuple[list[Any], int]:
        """Return elements and where they end, before the text does if their array ends; else -1."""
        try:
            values, end = _STRICT.raw_decode(f"[{text}]")
        except RecursionError:
            self._too_deep()
        except ValueError:
            return [], -1
        return values, end - 2

    def skip_to(self, pattern: re.Pattern[str]) -> bool:
        """Go to the next place that looks like a pattern; return whether there is one."""
        self.at += 1
        while True:
            match = pattern.search(self.text, self.at)
            if match:
                self.at = match.start()
                return True
            self.at = max(self.at, len(self.text) - _NEAR_END * _NEAR_END)
            if not self._more():
                self.at = len(self.text)
                return False

    def _more(self) -> bool:
        """Read on, at least as much as is left; return whether there was anything."""
        if self._ended:
            return False
        self._line = self.line_here
        self.dropped += self.at
        left = self.text[self.at :]
        self.text, self.at, self._lines_until = left, 0, 0
        self._check(left)
        read: list[str] = []
        room = max(len(left), 1)
        while room > 0 and not self._ended:
            try:
                chunk = next(self._chunks, None)
            except CutOffError as error:
                self.damage, chunk = error.reason, None
            self._ended = chunk is None
            self._bytes += len(chunk or b"")
            read.append(self._decode(chunk or b"", self._ended))
            room -= len(read[-1])
        self.text = "".join([left, *read])
        return len(self.text) > len(left)

    def _check(self, left: str) -> None:
        """Raise if one value is too long to be held, or has too many parts."""
        if len(left) <= _WINDOW:
            return
        where = f"line {self._line}: one value"
        if sys.getsizeof(left) > MOST_BYTES:
            raise FormatError(self._file, f"{where} is larger than {MOST_BYTES // 2**20} MiB")
        if sum(map(left.count, ",[{")) > _MOST_PARTS:
            raise FormatError(self._file, f"{where} has more than {_MOST_PARTS:,} parts")

    def _too_deep(self) -> NoReturn:
        reason = f"line {self.line_here} is nested too deeply"
        raise FormatError(self._file, reason) from None
