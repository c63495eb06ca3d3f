"""Recorded requests: when each came, how long its prompt and its output were.

Three forms are known by how they begin:

* a table with the columns ``arrival_s,prompt_tokens,output_tokens`` and, where wanted,
  ``prefix_hashes``: numbers of the prompt's blocks of 512 tokens, separated by spaces, alike where
  two prompts begin alike;
* the columns ``TIMESTAMP,ContextTokens,GeneratedTokens`` of Azure's public traces of language model
  inference (Patel et al. 2024, Splitwise, arXiv:2311.18677);
* JSON objects, one a line, with ``timestamp`` in milliseconds, ``input_length``, ``output_length``
  and ``hash_ids``, as Mooncake's traces have them (Qin et al. 2024, arXiv:2407.00079).

Requests without a prompt or without an output are passed over and counted. Everything else that
cannot be is an error that names line and column.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import FormatError, shown
from shardcost.formats.opened import chunks_of, parse_object
from shardcost.formats.reading import PassedOver, Reading, Tick, no_tick

KIND: Final = "request-trace"
MOST_BYTES: Final = 128 * 2**20
"""A hundred thousand requests with prefixes have 40 MiB."""
MOST_REQUESTS: Final = 2_000_000
_MOST_TOKENS: Final = 100_000_000
_MOST_BLOCKS: Final = 200_000
"""Of one prompt: a hundred million tokens."""
_LATEST_S: Final = 1e11
"""Of an arrival: 3000 years, beyond any clock's zero."""
_BLOCK_TOKENS: Final = 512
_WHOLE: Final = re.compile(r"[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[0-9]{1,19}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?")
_NOTHING: Final = "requests without a prompt or an output"


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestTrace(Reading):
    """Requests in the order of their arrival, the first at time 0."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    prefixes: Sequence[Sequence[int]] | None
    """Numbers of each prompt's blocks, from its beginning; None where the file has none."""
    prefix_block_tokens: int = _BLOCK_TOKENS

    def __len__(self) -> int:
        return len(self.arrival_s)


class _Columns(NamedTuple):
    """Where a form has what, and how its times are read."""

    arrival: str
    prompt: str
    output: str
    prefixes: str
    seconds: Callable[[Any], float]


class _Recorded(NamedTuple):
    arrival_s: float
    prompt: int
    output: int
    prefixes: tuple[int, ...]


def read(path: Path, tick: Tick = no_tick) -> RequestTrace:
    """Return the requests that a file holds, plain or gzipped."""
    with chunks_of(path, tick, MOST_BYTES) as chunks:
        content = b"".join(chunks)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(str(path), f"is not UTF-8 text (byte {error.start})") from None
    return of_text(text, str(path))


def of_text(text: str, file: str = "the trace") -> RequestTrace:
    r"""Return the requests that a text holds.

    >>> trace = of_text("arrival_s,prompt_tokens,output_tokens\n3,100,20\n3.5,200,10\n")
    >>> trace.arrival_s.tolist(), trace.prompt_tokens.tolist()
    ([0.0, 0.5], [100, 200])
    """
    if len(text) > MOST_BYTES:
        raise FormatError(file, f"is larger than {MOST_BYTES // 2**20} MiB")
    lines = text.splitlines()
    passed_over = PassedOver()
    records = _objects if text.lstrip()[:1] == "{" else _rows
    requests: list[_Recorded] = []
    for number, each in records(lines, file):
        if len(requests) >= MOST_REQUESTS:
            raise FormatError(file, f"has more than {MOST_REQUESTS:,} requests")
        if each.prompt and each.output:
            requests.append(each)
        else:
            passed_over.add(number, _NOTHING)
    if not requests:
        raise FormatError(file, "has no requests")
    arrival_s = np.array([each.arrival_s for each in requests])
    order = np.argsort(arrival_s, kind="stable")
    prefixes = [requests[i].prefixes for i in order]
    return RequestTrace(
        file=file,
        kind=KIND,
        unread=passed_over.unread(),
        arrival_s=arrival_s[order] - arrival_s.min(),
        prompt_tokens=np.array([each.prompt for each in requests])[order],
        output_tokens=np.array([each.output for each in requests])[order],
        prefixes=prefixes if any(prefixes) else None,
    )


# ------------------------------------------------------------------------------------ a table


def _rows(lines: list[str], file: str) -> Iterator[tuple[int, _Recorded]]:
    """Yield the requests of a table, each with the number of its line."""
    table = csv.reader(lines, strict=True)
    try:
        head = [name.strip().lower() for name in next(table, [])]
        form = _form_of(head, file)
        places = {name: head.index(name) for name in form[:4] if name in head}
        for cells in table:
            if not any(cell.strip() for cell in cells):
                continue
            number = table.line_num
            if len(cells) != len(head):
                reason = f"line {number} has {len(cells)} cells, its header {len(head)}"
                raise FormatError(file, reason)
            row = {name: cells[place].strip() for name, place in places.items()}
            yield number, _request(form, row, file, number)
    except csv.Error as error:
        raise FormatError(file, f"line {table.line_num} is no CSV: {error}") from None


def _form_of(head: list[str], file: str) -> _Columns:
    """Return the form that a header is of; each column must be there once."""
    for form in _TABLES:
        if set(form[:3]) <= set(head):
            double = next((name for name in form[:4] if head.count(name) > 1), None)
            if double:
                raise FormatError(file, f"has the column {double} twice")
            return form
    known = " or ".join(",".join(form[:3]) for form in _TABLES)
    reason = f"begins with {shown(','.join(head))}; requests have the columns {known}, or are JSON"
    raise FormatError(file, reason)


def _request(form: _Columns, row: Mapping[str, Any], file: str, number: int) -> _Recorded:
    """Return one request; an error names the line and the column."""

    def refuse(column: str, rule: str) -> NoReturn:
        reason = f"line {number}, {column} must be {rule}, got {shown(row.get(column))}"
        raise FormatError(file, reason)

    def tokens(column: str) -> int:
        value = _whole(row.get(column))
        if value is None or value > _MOST_TOKENS:
            refuse(column, f"a whole number from 0 to {_MOST_TOKENS}")
        return value

    try:
        arrival_s = form.seconds(row.get(form.arrival))
    except (ValueError, OverflowError):
        refuse(form.arrival, _TIMES[form.seconds])
    if not 0 <= arrival_s <= _LATEST_S:
        refuse(form.arrival, _TIMES[form.seconds])
    blocks = row.get(form.prefixes) or ()
    if isinstance(blocks, str):
        blocks = blocks.split()
    if not isinstance(blocks, list | tuple) or len(blocks) > _MOST_BLOCKS:
        refuse(form.prefixes, f"numbers of at most {_MOST_BLOCKS} blocks")
    numbers = tuple(map(_whole, blocks))
    if None in numbers:
        refuse(form.prefixes, "whole numbers of blocks")
    prompt, output = tokens(form.prompt), tokens(form.output)
    return _Recorded(arrival_s, prompt, output, numbers)  # type: ignore[arg-type]


def _whole(value: Any) -> int | None:
    """Return a whole number of at least 0; None for anything else."""
    if isinstance(value, str):
        return int(value) if _WHOLE.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _seconds(value: Any) -> float:
    """Return seconds since some beginning."""
    if isinstance(value, str):
        if not _DECIMAL.fullmatch(value):
            raise ValueError(value)
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(value)  # noqa: TRY004 -- one error for all that is no time
    return float(value)


def _milliseconds(value: Any) -> float:
    return _seconds(value) / 1e3


def _clock(value: Any) -> float:
    """Return a date with its time of day as seconds; without a zone it is UTC."""
    if not isinstance(value, str) or len(value) > 64:
        raise ValueError(value)
    when = datetime.fromisoformat(value)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


_TIMES: Final[Mapping[Callable[[Any], float], str]] = {
    _seconds: "seconds of at least 0",
    _milliseconds: "milliseconds of at least 0",
    _clock: "a date and time from 1970 on, like 2023-11-16 18:15:46.68",
}
_OWN: Final = _Columns("arrival_s", "prompt_tokens", "output_tokens", "prefix_hashes", _seconds)
_AZURE: Final = _Columns("timestamp", "contexttokens", "generatedtokens", "", _clock)
_MOONCAKE: Final = _Columns("timestamp", "input_length", "output_length", "hash_ids", _milliseconds)
_TABLES: Final = (_OWN, _AZURE)


# ------------------------------------------------------------------------------ JSON, by line


def _objects(lines: list[str], file: str) -> Iterator[tuple[int, _Recorded]]:
    """Yield the requests of JSON objects, one a line, each with the number of its line."""
    wanted = _MOONCAKE[:3]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            members = parse_object(line, file)
        except FormatError as error:
            reason = error.reason.removeprefix("line 1 ")
            raise FormatError(file, f"line {number} {reason}") from None
        missing = [name for name in wanted if name not in members]
        if missing:
            reason = f"line {number} has no {' and no '.join(missing)}"
            raise FormatError(file, reason)
        yield number, _request(_MOONCAKE, members, file, number)
