"""A progress bar on standard error, for what takes longer than a moment.

It is shown on a terminal only, and only once a second has passed, so that short work and pipes stay
clean. With rich it is a bar with the time left, without it one line that is updated in place.
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
def shown_progress(
    *, wanted: bool = True, unit: str = "layouts", per: int = 1
) -> Iterator[Progress | None]:
    """Yield what to call with how much is done and how much there is; None to show nothing.

    Args:
        wanted: Whether to show anything.
        unit: Of the numbers shown.
        per: How many of what is counted make one of the unit.
    """
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(unit, per)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    """Appears with the first update after the first second, and leaves no trace."""

    def __init__(self, unit: str, per: int) -> None:
        self.unit, self.per = unit, per
        self.started = time.perf_counter()
        self.shown: Any = None

    def update(self, done: int, whole: int) -> None:
        """Show how far it is."""
        done, whole = done // self.per, whole // self.per
        if time.perf_counter() - self.started < _AFTER_S:
            return
        if self.shown is None:
            self.shown = _rich_line(self.unit, whole) or _PlainLine(self.unit)
        self.shown.update(done, whole)

    def close(self) -> None:
        """Take it off the terminal."""
        if self.shown is not None:
            self.shown.close()


class _PlainLine:
    """One line, updated in place."""

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def update(self, done: int, whole: int) -> None:
        """Show how far it is."""
        text = f"\r{done:,} of {whole:,} {self.unit}, {100 * done // max(whole, 1)} %"
        print(text, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        print("\r\033[K", end="", file=sys.stderr, flush=True)


class _RichLine:
    """A bar of rich's."""

    def __init__(self, bar: Any, unit: str, whole: int) -> None:
        self.bar = bar
        self.task = bar.add_task(unit, total=whole)
        bar.start()

    def update(self, done: int, whole: int) -> None:
        """Show how far it is."""
        self.bar.update(self.task, completed=done, total=whole)

    def close(self) -> None:
        """Take the bar off the terminal."""
        self.bar.stop()


def _rich_line(unit: str, whole: int) -> _RichLine | None:
    """Return a bar of rich's, None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    columns = (
        TextColumn(unit),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
    return _RichLine(bar, unit, whole)
