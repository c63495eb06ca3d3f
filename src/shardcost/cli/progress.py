"""A progress bar on standard error, for searches that take longer than a moment.

It is shown on a terminal only, and only once a second has passed, so that short searches and pipes
stay clean. With rich it is a bar with the time left, without it one line that is updated in place.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from shardcost.search.run import Progress

_AFTER_S: Final = 1.0


@contextmanager
def shown_progress(*, wanted: bool = True) -> Iterator[Progress | None]:
    """Yield what to call with the cells done and all cells; None where nothing is to be shown."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    """Appears with the first update after the first second, and leaves no trace."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.shown: Any = None

    def update(self, done: int, cells: int) -> None:
        """Show how far it is."""
        if time.perf_counter() - self.started < _AFTER_S:
            return
        if self.shown is None:
            self.shown = _rich_line(cells) or _PlainLine()
        self.shown.update(done, cells)

    def close(self) -> None:
        """Take it off the terminal."""
        if self.shown is not None:
            self.shown.close()


class _PlainLine:
    """One line, updated in place."""

    def update(self, done: int, cells: int) -> None:
        """Show how far it is."""
        share = 100 * done // max(cells, 1)
        print(f"\r{done:,} of {cells:,} layouts, {share} %", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        print("\r\033[K", end="", file=sys.stderr, flush=True)


class _RichLine:
    """A bar of rich's."""

    def __init__(self, bar: Any, cells: int) -> None:
        self.bar = bar
        self.task = bar.add_task("layouts", total=cells)
        bar.start()

    def update(self, done: int, cells: int) -> None:
        """Show how far it is."""
        self.bar.update(self.task, completed=done, total=cells)

    def close(self) -> None:
        """Take the bar off the terminal."""
        self.bar.stop()


def _rich_line(cells: int) -> _RichLine | None:
    """Return a bar of rich's, None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    columns = (
        TextColumn("layouts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return _RichLine(RichProgress(*columns, console=Console(stderr=True), transient=True), cells)
