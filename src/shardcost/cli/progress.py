"""A progress bar on standard error, for what takes longer than a moment.

It is shown on a terminal only, and only once a second has passed, so that short work and pipes stay
clean. With rich it is a bar with the time left, without it one line that is updated in place.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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
    started = time.perf_counter()
    line: _RichLine | _PlainLine | None = None

    def update(done: int, whole: int) -> None:
        nonlocal line
        if time.perf_counter() - started >= _AFTER_S:
            if line is None:
                try:
                    line = _RichLine(unit)
                except ImportError:
                    line = _PlainLine(unit)
            line.update(done // per, whole // per)

    try:
        yield update
    finally:
        if line is not None:
            line.close()


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
    """A bar of rich's, where that is installed."""

    def __init__(self, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        left = (TextColumn("left"), TimeRemainingColumn())
        columns = (TextColumn(unit), BarColumn(), MofNCompleteColumn(), *left)
        self.bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task(unit)
        self.bar.start()

    def update(self, done: int, whole: int) -> None:
        """Show how far it is."""
        self.bar.update(self.task, completed=done, total=whole)

    def close(self) -> None:
        """Take the bar off the terminal."""
        self.bar.stop()
