"""Every limit on what a request may ask for, in one place."""

from __future__ import annotations

from typing import Final

JSON_BYTES: Final = 2**20
"""Of a body of JSON, a pasted config or profile in it included."""
FILE_BYTES: Final = 16 * 2**20
"""Of a file that is dropped on the page."""
BODY_S: Final = 10.0
"""Within so many seconds a body has to arrive, however slowly it is sent."""
MOST_VALUES: Final = 64
"""In one list."""
MOST_COUNT: Final = 10**9
"""Of any whole number in a question: beyond it products of several overflow 64 bits."""
MOST_CHARACTERS: Final = 200
"""Of a name or a word."""
