"""A folder of measured requests: ``runs.csv``, and for each of its runs a file of its requests.

``runs.csv`` says what each run served with; ``RUN.csv`` has a request a row: when it arrived, how
long its prompt and its output were, when its first and its last token came, in seconds of one
clock. Together they are a table with a row for each request and each of two figures: the time to
its first token and to its last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardcost.errors import BadValueError, FormatError, shown
from shardcost.files import is_file
from shardcost.formats.tables import RUNS, Row, Table, number, opened_csv

FIGURES: Final[Mapping[str, str]] = {"ttft_ms": "first_token_s", "e2e_ms": "finished_s"}
"""What is measured of a request, and the column with the time at which it ends."""
MOST_REQUESTS: Final = 100_000
"""Of all runs: each has two rows with the cells of its run."""
_STATED: Final = ("arrival_s", "prompt_tokens", "output_tokens")
_KNOWN: Final = frozenset((*_STATED, "queued_s", "scheduled_s", *FIGURES.values()))
_OWN: Final = ("request", *_STATED, "figure", "measured")
_NAME: Final = re.compile(r"[\w+-][\w.+-]{0,199}", re.ASCII)
_SHOWN: Final = 12
_LATEST_S: Final = 1e11
_MOST_TOKENS: Final = 100_000_000
_TOKENS: Final = f"a whole number from 1 to {_MOST_TOKENS}"
_SECONDS: Final = f"a number from 0 to {_LATEST_S:g}"


def by_request(runs: Table, folder: Path) -> Table:
    """Return the requests of a table of runs, a row for each figure of each request.

    Rows have the cells of their run beside those of the request; a run is its own data set unless
    it names one.

    Args:
        runs: What ``runs.csv`` holds.
        folder: Where the files of its runs are.
    """
    names = runs.columns["run"]
    for name in names:
        if not _NAME.fullmatch(name):
            rule = "letters, digits, _, -, + and dots: its requests are in a file of its name"
            raise FormatError(str(folder), f"has a run {shown(name)}, which must be of {rule}")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise FormatError(str(folder), f"has the run {shown(twice[0])} twice")
    missing = [f"{name}.csv" for name in names if not is_file(folder / f"{name}.csv")]
    if missing:
        named = ", ".join(missing[:_SHOWN]) + ", …" * (len(missing) > _SHOWN)
        raise FormatError(str(folder), f"lacks the requests of runs: {named}")
    beside = [name for name in dict.fromkeys((*runs.columns, "dataset")) if name not in _OWN]
    columns: dict[str, list[str]] = {name: [] for name in (*beside, *_OWN)}
    origins: list[int] = []
    requests = 0
    for run in runs.records():
        stated = {"dataset": run["run"], **{name: cell for name, cell in run.items() if cell}}
        for place, request in enumerate(_requests(folder / f"{run['run']}.csv")):
            for figure, ends in FIGURES.items():
                own = (str(place), *(request[name] for name in _STATED), figure)
                cells = (*(stated.get(name, "") for name in beside), *own, _span_ms(request, ends))
                for column, cell in zip(columns.values(), cells, strict=True):
                    column.append(cell)
                origins.append(requests)
            requests += 1
            if requests > MOST_REQUESTS:
                raise FormatError(str(folder), f"has over {MOST_REQUESTS:,} requests")
    return replace(runs, columns=columns, rows=len(origins), origins=origins)


def files_of(table: Table) -> list[Path]:
    """Return the files that a table of requests was read from."""
    folder = table.path.parent if table.path.name == RUNS else table.path
    names = dict.fromkeys(table.columns["run"])
    return [folder / RUNS, *(folder / f"{name}.csv" for name in names)]


def _requests(path: Path) -> list[dict[str, str]]:
    """Return the checked requests of one run."""
    head, records = opened_csv(path)
    missing = [name for name in _STATED if name not in head]
    if missing:
        raise FormatError(str(path), f"line 1 lacks the columns {', '.join(missing)}")
    unknown = [name for name in head if name not in _KNOWN]
    if unknown:
        reason = f"has columns that are not understood: {', '.join(map(shown, unknown))}"
        raise FormatError(str(path), reason)
    requests = [dict(zip(head, record, strict=True)) for record in records]
    if not requests:
        raise FormatError(str(path), "has no requests")
    for place, request in enumerate(requests):
        try:
            _check(request)
        except BadValueError as error:
            raise FormatError(str(path), f"request {place}: {error}") from None
    return requests


def _check(request: Row) -> None:
    """Raise where a request cannot be: one that is left out would change all others."""
    for name in ("prompt_tokens", "output_tokens"):
        if number(request, name, 0, _MOST_TOKENS, _TOKENS) % 1:
            raise BadValueError(name, request[name], _TOKENS)
    for name in ("arrival_s", *FIGURES.values()):
        if name == "arrival_s" or request.get(name):
            number(request, name, -1e-9, _LATEST_S, _SECONDS)


def _span_ms(request: Row, ends: str) -> str:
    """Return the milliseconds from a request's arrival on; blank where its end is not stated."""
    if not request.get(ends):
        return ""
    return f"{1e3 * (float(request[ends]) - float(request['arrival_s'])):.6f}"
