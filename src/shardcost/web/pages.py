"""The files of the page, served by name from a fixed listing: no path is made from a request."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""Only files with one of these suffixes are served."""


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    zipped: bytes
    kind: str
    tag: str


def _asset(path: Path, content: bytes) -> Asset:
    tag = f'"{sha256(content).hexdigest()[:20]}"'
    zipped = gzip.compress(content, 6, mtime=0)
    return Asset(content, zipped, TYPES[path.suffix], tag)


class Assets:
    """The files of the folder by name, such as ``panels/ring.js``.

    A file that changes while the server runs is read again; added files are not seen. Some are
    `made` from content rather than read from the folder.
    """

    def __init__(self, made: Mapping[str, bytes], folder: Path = FOLDER) -> None:
        self.made = {name: _asset(Path(name), content) for name, content in made.items()}
        files = sorted(path for path in folder.rglob("*") if path.suffix in TYPES)
        self.paths = {path.relative_to(folder).as_posix(): path for path in files}
        self.loaded: dict[str, tuple[int, Asset]] = {}

    def find(self, name: str) -> Asset | None:
        """Return a file of the listing; None for any other name."""
        path = self.paths.get(name)
        if path is None:
            return self.made.get(name)
        try:
            changed = path.stat().st_mtime_ns
            known = self.loaded.get(name)
            if known is None or known[0] != changed:
                self.loaded[name] = known = changed, _asset(path, path.read_bytes())
        except OSError:
            return None
        return known[1]
