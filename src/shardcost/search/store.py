"""Results on disk: every feasible layout in one table, and a search that can be continued.

While a search runs, a folder beside its target holds what is done::

    results.parquet.parts/
        request.json           what was asked, and its fingerprint
        task-000123.parquet    feasible layouts of one task, if it has any
        task-000123.json       its counts and best ones, and a checksum of both files

A task is done when its ``.json`` is there and the checksum holds. Every file appears whole or not
at all, so a search may be killed at any time; started again, it runs what is missing. At the end
the parts are joined in the order of their tasks, into Parquet or CSV, so that the file is the same
however often and wherever they ran. A file that is there already is replaced only if that was
asked for when the search began.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardcost.errors import (
    BadTypeError,
    BadValueError,
    FormatError,
    MissingExtraError,
    Reason,
)
from shardcost.files import write_whole
from shardcost.search.fingerprint import differences, fingerprint, request_of
from shardcost.search.parts import Columns, Part
from shardcost.search.question import Question
from shardcost.search.table import frame_of
from shardcost.search.tasks import Answer, Task, Want

PARQUET: Final = ".parquet"
CSV: Final = ".csv"
_TABLES: Final = ("best", "front", "beyond", "smallest")
_COUNTS: Final = ("considered", "feasible", "skipped")
_MANIFEST: Final = "request.json"
_LOCK: Final = "lock"


class Store:
    """The results of one search on disk."""

    def __init__(
        self,
        out: str | Path,
        questions: tuple[Question, ...],
        want: Want,
        *,
        overwrite: bool = False,
    ) -> None:
        try:
            import polars  # noqa: F401
        except ImportError:
            raise MissingExtraError("a table of all layouts", "Polars", "table") from None
        self.target = _target(out)
        self.folder = self.target.with_name(self.target.name + ".parts")
        self._questions, self._want, self._overwrite = questions, want, overwrite
        self._full: set[int] = set()
        """Tasks that have rows."""

    @classmethod
    @contextmanager
    def opened(
        cls,
        out: str | Path | None,
        questions: tuple[Question, ...],
        want: Want,
        *,
        overwrite: bool = False,
    ) -> Iterator[Store | None]:
        """Hold a store for a search, if it has a target: no other search may use the folder.

        Args:
            out: The target.
            questions: What is asked.
            want: What is wanted of every task.
            overwrite: Replace a target that is there already.
        """
        if out is None:
            yield None
            return
        store = cls(out, questions, want, overwrite=overwrite)
        with ExitStack() as stack:
            try:
                if not store.folder.is_dir():
                    store._check_target({})
                store.folder.mkdir(exist_ok=True)
                stack.enter_context(_alone(store.folder))
            except OSError as error:
                raise _unwritable(store.folder, error) from None
            store._claim()
            yield store

    def finished(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Part]]:
        """Yield the tasks that are done, with what they amount to; forget damaged ones."""
        if not any(self.folder.glob("task-*.json")):
            return
        for task in tasks:
            part = self._read(task.number)
            if part is not None:
                yield task, part

    def add(self, answer: Answer) -> None:
        """Keep what a task amounts to."""
        rows, summary = self._paths(answer.task.number)
        text = json.dumps(summary_of(answer.part))
        if answer.rows:
            write_whole(rows, answer.rows)
            self._full.add(answer.task.number)
        write_whole(summary, json.dumps({"sum": _checksum(text, answer.rows), "part": text}))

    def finish(self) -> None:
        """Join all parts into the target, and remove them."""
        import polars as pl

        draft = self.folder / f"joined{self.target.suffix}"
        parts = [self._paths(number)[0] for number in sorted(self._full)]
        table = frame_of(self._questions, 0, {}).lazy()
        if parts:
            table = pl.scan_parquet(parts, glob=False)
        # In the order of the tasks, and a few parts in memory at a time.
        sink = table.sink_csv if self.target.suffix == CSV else table.sink_parquet
        try:
            sink(draft, maintain_order=True)
            draft.replace(self.target)
        except (OSError, pl.exceptions.PolarsError) as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)  # it would take the room that the next try needs
            raise _unwritable(self.target, error) from None
        for part in self.folder.glob("task-*"):  # what says whose they are goes last
            part.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _claim(self) -> None:
        """Make sure that what the folder holds is of this search."""
        manifest = self.folder / _MANIFEST
        request = request_of(self._questions, self._want)
        name = fingerprint(request)
        kept = _json(manifest)
        own = kept.get("fingerprint") == name
        if not own and any(self.folder.glob("task-*")):
            what = ", ".join(differences(request, kept.get("request")))
            raise BadValueError(
                "out",
                str(self.target),
                f"another file, or {self.folder} removed first: it holds parts of another "
                f"search (different: {what})",
            )
        self._check_target(kept if own else {})
        for draft in self.folder.glob(".*.tmp"):
            draft.unlink()
        content = {"fingerprint": name, "overwrite": self._overwrite, "request": request}
        write_whole(manifest, json.dumps(content, indent=1))

    def _check_target(self, kept: Mapping[str, Any]) -> None:
        """Raise if the target is there and is not to be replaced, by what was said now or before.

        Args:
            kept: What an earlier run of the same search has left behind.
        """
        self._overwrite = self._overwrite or bool(kept.get("overwrite"))
        if self.target.exists() and not self._overwrite:
            raise BadValueError(
                "out", str(self.target), "a new file, unless --overwrite (overwrite=True) is given"
            )

    def _paths(self, number: int) -> tuple[Path, Path]:
        name = f"task-{number:06d}"
        return self.folder / f"{name}.parquet", self.folder / f"{name}.json"

    def _read(self, number: int) -> Part | None:
        """Return what a task amounts to, if it is done and its files are as they were written."""
        rows, summary = self._paths(number)
        kept = _json(summary)
        content = b""
        with suppress(OSError):
            content = rows.read_bytes()
        text = kept.get("part")
        if not isinstance(text, str) or kept.get("sum") != _checksum(text, content):
            return None
        if content:
            self._full.add(number)
        return part_of_summary(json.loads(text))


def summary_of(part: Part) -> dict[str, Any]:
    """Return a part without its table as plain values."""
    tables: dict[str, Columns] = {name: getattr(part, name) for name in _TABLES}
    return {
        **{name: getattr(part, name) for name in _COUNTS},
        "rejected": [[*reason, count] for reason, count in part.rejected.items()],
        **{
            name: {key: each.tolist() for key, each in table.items()}
            for name, table in tables.items()
        },
        "by_axis": [[*key, score] for key, score in part.by_axis.items()],
    }


def part_of_summary(summary: dict[str, Any]) -> Part:
    """Return a part from its plain values.

    >>> part = Part(considered=3, best={"cell": np.array([7])}, by_axis={("tp", 8): 0.1})
    >>> again = part_of_summary(json.loads(json.dumps(summary_of(part))))
    >>> again.considered, again.best, dict(again.by_axis)
    (3, {'cell': array([7])}, {('tp', 8): 0.1})
    """
    values: dict[str, Any] = {name: summary[name] for name in _COUNTS}
    for name in _TABLES:
        values[name] = {column: np.array(each) for column, each in summary[name].items()}
    by_axis = {(axis, value): score for axis, value, score in summary["by_axis"]}
    rejected = Counter[Reason]()
    for code, message, stated, count in summary["rejected"]:
        rejected[Reason(code, message, tuple(stated))] = count
    return Part(rejected=rejected, by_axis=by_axis, **values)


def _target(out: str | Path) -> Path:
    """Return the file that a search is to write, if it can be one."""
    if not isinstance(out, str | Path):
        raise BadTypeError("out", out, "the name of a file")
    path = Path(out)
    if path.suffix not in {PARQUET, CSV}:
        raise BadValueError("out", str(out), f"a file name that ends in {PARQUET} or {CSV}")
    if path.is_dir():
        raise FormatError(str(path), "cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise FormatError(str(path), f"cannot be written: there is no folder {path.parent}")
    return path


def _checksum(text: str, rows: bytes) -> str:
    return hashlib.sha256(text.encode() + rows).hexdigest()


def _json(path: Path) -> dict[str, Any]:
    """Return what a file says; nothing where it is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, where the system has locks that end with a process."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        yield
        return
    with (folder / _LOCK).open("wb") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            rule = f"another file: a search that still runs writes to {folder}"
            raise BadValueError("out", str(folder), rule) from None
        yield


def _unwritable(path: Path, error: Exception) -> FormatError:
    said = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    return FormatError(str(path), f"cannot be written: {said}")
