"""Errors on record: figures of a validation kept in a file, so that a change for the worse is seen.

The file is TOML: for each kind of table, the figures of all its rows and those of each data set. A
figure has grown when it is above the recorded one by more than a tenth, and by more than a tenth of
a percentage point: less than that is noise of rounding. Rows that are no longer predicted count as
well, else skipping the worst would pass for an improvement.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lab import catalog_files
from lab.catalog_files import inline
from lab.command import ended, parser_of, say
from shardcost.errors import FormatError, printable
from shardcost.files import read_text, write_whole
from shardcost.validate.shipped import shipped
from shardcost.validate.validation import Validation, errors_pct, of_headline, stats, validate

_MOST_BYTES: Final = 2**20
_COUNTS: Final = ("rows", "predicted")
_ERRORS: Final = ("median_pct", "mean_pct", "p90_pct")
_SHARE: Final = 0.1
"""How much of a recorded error may be added before it has grown."""
_POINTS: Final = 0.1
"""How many percentage points may be added, whatever the error."""
_HEAD: Final = (
    "Errors of the measurements that ship with shardcost, by table and data set, in percent of the",
    "measurement. Written by `python -m lab.record FILE`; a figure that grows by more than a tenth",
    "fails `python -m lab.record FILE --check`.",
)


class Figures(NamedTuple):
    """How many rows there are and are predicted, and their errors; None where none is compared."""

    rows: int
    predicted: int
    median_pct: float | None = None
    mean_pct: float | None = None
    p90_pct: float | None = None


Place = tuple[str, str]
"""A kind of table and a data set of it; an empty name stands for all of its rows."""
Record = Mapping[Place, Figures]


def figures(validations: Sequence[Validation]) -> Record:
    """Return the figures of validations, at most one of each kind: overall and by data set."""
    record: dict[Place, Figures] = {}
    for validation in map(of_headline, validations):
        names = np.array(
            validation.table.columns.get("dataset", [""] * validation.table.rows), dtype=object
        )
        everything = np.full(validation.table.rows, fill_value=True)
        record[validation.table.kind, ""] = _figures(validation, everything)
        for name in sorted(set(names) - {""}):
            record[validation.table.kind, name] = _figures(validation, names == name)
    return record


def _figures(validation: Validation, members: Any) -> Figures:
    skipped = np.array([bool(reason) for reason in validation.predictions.reasons], dtype=bool)
    errors = stats(errors_pct(validation)[members])
    return Figures(
        rows=int(members.sum()),
        predicted=int((members & ~skipped).sum()),
        **{name: _rounded(getattr(errors, name)) for name in _ERRORS},
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def worsened(now: Record, recorded: Record) -> list[str]:
    """Return a line for each figure that is worse than recorded; what is not on record is free."""
    return [line for place, figure in recorded.items() for line in _worse(place, now, figure)]


def _worse(place: Place, now: Record, recorded: Figures) -> Iterator[str]:
    kind, name = place
    where = f"{kind}, {name or 'all rows'}"
    result = now.get(place, Figures(0, 0))
    for count in _COUNTS:
        there, before = getattr(result, count), getattr(recorded, count)
        if there < before:
            yield f"{where}: {count} {there:,}, recorded {before:,}"
    for error in _ERRORS:
        there, before = getattr(result, error), getattr(recorded, error)
        if before is None or not result.predicted:
            continue  # that nothing is predicted is told by the counts
        if there is None:
            yield f"{where}: {error} of no measurement, recorded {before:.2f}"
        elif there > limit(before):
            yield f"{where}: {error} {there:.2f}, recorded {before:.2f}"


def limit(recorded_pct: float) -> float:
    """Return how large an error may be that was recorded so.

    >>> limit(10.0), limit(0.5)
    (11.0, 0.6)
    """
    return max((1 + _SHARE) * recorded_pct, recorded_pct + _POINTS)


def as_toml(record: Record) -> str:
    """Return a record as the content of its file."""
    content: dict[str, Any] = {}
    for (kind, name), value in record.items():
        entry = inline({k: v for k, v in value._asdict().items() if v is not None})
        part = content.setdefault(kind, {})
        if name:
            part.setdefault("datasets", {})[printable(name)] = entry
        else:
            part["all"] = entry
    return catalog_files.as_toml(_HEAD, content)


def read_record(path: Path) -> Record:
    """Return the record that a file holds."""
    try:
        content = tomllib.loads(read_text(path, _MOST_BYTES))
    except tomllib.TOMLDecodeError as error:
        raise FormatError(str(path), f"is not TOML: {error}") from None
    record: dict[Place, Figures] = {}
    for kind, part in content.items():
        if not isinstance(part, dict) or not isinstance(part.get("datasets", {}), dict):
            raise FormatError(str(path), f"[{kind}] is not the record of a kind of table")
        record[kind, ""] = _read(path, kind, "all", part.get("all"))
        for name, value in part.get("datasets", {}).items():
            record[kind, name] = _read(path, kind, name, value)
    return record


def _read(path: Path, kind: str, name: str, value: Any) -> Figures:
    """Return the figures of one line, if it has them all and they are numbers."""
    cells = value if isinstance(value, dict) else {}
    counts = [type(cells.get(name)) is int for name in _COUNTS]
    errors = [isinstance(cells.get(name, 0.0), int | float) for name in _ERRORS]
    if not all(counts + errors) or set(cells) - {*_COUNTS, *_ERRORS}:
        known = ", ".join((*_COUNTS, *_ERRORS))
        raise FormatError(str(path), f"[{kind}] {name} is not a record of {known}")
    return Figures(**cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the errors of what ships, or compare them with those on record."""
    parser = parser_of(__doc__)
    parser.add_argument("record", type=Path, help="TOML file")
    parser.add_argument(
        "--check", action="store_true", help="compare, and exit with 1 where an error has grown"
    )
    options = parser.parse_args(arguments)
    recorded = read_record(options.record) if options.check else None
    now = figures([validate(table) for table in shipped()])
    if recorded is None:
        write_whole(options.record, as_toml(now))
        return 0
    worse = worsened(now, recorded)
    for line in worse:
        say(f"worse than on record: {line}")
    if not worse:
        say(f"no error is larger than on record ({options.record})")
    return int(bool(worse))


if __name__ == "__main__":
    ended(main)
