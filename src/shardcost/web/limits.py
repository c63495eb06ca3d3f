"""Every limit on what a request may ask for and take, in one place."""

from __future__ import annotations

from typing import Final

JSON_BYTES: Final = 2**20
"""Of a body of JSON, a pasted config or profile in it included."""
FILE_BYTES: Final = 16 * 2**20
"""Of a file that is dropped on the page."""
HEAD_S: Final = 10.0
"""Within so many seconds the head of a request has to arrive, or twice that on a connection that
was used before."""
ANSWER_LOOKS: Final = 12
"""Within so many times that an answer has to be taken."""
BODY_S: Final = 10.0
"""Within so many seconds a body has to arrive, however slowly it is sent."""
CONNECTIONS: Final = 512
"""At a time."""

MOST_VALUES: Final = 64
"""In one list."""
MOST_COUNT: Final = 10**9
"""Of any whole number in a question."""
MOST_BYTES: Final = 2**53
"""Of a size: beyond it a browser has no whole numbers."""
MOST_NUMBER: Final = 1e12
"""Of any other number."""
MOST_CHARACTERS: Final = 200
"""Of a name or a word."""
MOST_CELLS: Final = 20_000_000
"""Layouts that one search may look at."""
MOST_PASSES: Final = 100_000
"""Passes of micro-batches through stages in a step that is drawn, of which a part is shown."""
MOST_WRITTEN_PASSES: Final = 10_000
"""The same of a step that is written in full, as a trace."""

START_S: Final = 60.0
"""A process that computes may take so long to begin, on a machine that is busy."""
QUESTION_S: Final = 10.0
"""One question may be computed for so long."""
FILE_S: Final = 20.0
"""One file may be read and calibrated on for so long."""
CALIBRATE_S: Final = 12.0
"""Of that, constants may be fitted for so long; otherwise the file is only explained."""
SEARCH_S: Final = 120.0
"""One search may run for so long."""
MEMORY_BYTES: Final = 2 * 2**30
"""That one process of those that compute may have."""
RETIRE_BYTES: Final = 2**30
"""A process that has had more than this is replaced by a new one: its caches are full."""

QUESTIONS_WAITING: Final = 400
"""Questions that may wait for their turn."""
FILES: Final = 2
"""Files that are read at a time."""
FILES_WAITING: Final = 8
SEARCHES: Final = 2
"""Searches that run at a time."""
SEARCHES_WAITING: Final = 8
UNASKED_S: Final = 15.0
"""A search that nobody asks about for so long is ended: whoever began it has left."""
KEPT_S: Final = 300.0
"""What a search found is kept for so long."""
KEPT_SEARCHES: Final = 32
REMEMBERED: Final = 512
"""Answers that are kept to be given again."""
REMEMBERED_BYTES: Final = 2**17
"""Of one such answer and its question, at most."""
