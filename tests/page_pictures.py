"""Takes the pictures of the page that the documentation shows, from a server of its own.

python tests/page_pictures.py    # writes docs/images/page.png and docs/images/ring.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from browsing import FIRST, SIZES, Visits, browsing, serving
from PIL import Image

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
STEP: Final[dict[str, Any]] = {
    "model": "llama3-70b",
    "on": "h100_sxm",
    "network": "ib_8x400g",
    "gpus": 64,
    "tp": 8,
    "pp": 4,
    "zero": 1,
    "sequence_parallel": "true",
    "phase": "train",
    "batch": 64,
    "sequence_length": 4096,
    "timeline_of": "step",
}
RING_STEPS: Final = 4
COLOURS: Final = 128


def main() -> None:
    """Write the pictures."""
    SIZES["picture"] = (1400, 1100)
    with serving() as address, browsing() as browser:
        visits = Visits(browser, address)
        visit = visits("picture").open(STEP)
        visit.page.screenshot(path=FOLDER / "page.png")
        visit = visits("picture").open(FIRST).tab("ring")
        for _ in range(RING_STEPS):
            visit.click("#ring-step")
        visit.at("#panel-ring").screenshot(path=FOLDER / "ring.png")
        visits.end()
    for name in ("page", "ring"):  # a palette is a third of the bytes, and looks the same
        with Image.open(FOLDER / f"{name}.png") as picture:
            small = picture.convert("RGB").quantize(COLOURS)
        small.save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
