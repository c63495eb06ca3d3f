"""The ``$ shardcost …`` blocks of the documentation: for test_docs and `make examples`.

python tests/console_blocks.py    # writes what each command prints now into its block, and what
                                  # each cell of the example notebook shows
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

import notebooks

from shardcost.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELIDED = "…\n"
BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)", re.DOTALL)


def commands(block: str) -> list[tuple[str, str]]:
    """Return each command of a console block with the output shown below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def folder_in(path: Path) -> Path:
    """Return a folder with all that the project's has, in which commands may write files."""
    for entry in ROOT.iterdir():
        (path / entry.name).symlink_to(entry)
    return path


def output_of(command: str) -> str:
    """Return what a command prints on both streams at 80 columns."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        main(shlex.split(command)[1:])
    return stream.getvalue()


def as_shown(output: str, shown: str) -> str:
    """Return an output as a page shows it: only the first lines where it ends in a line "…"."""
    if not shown.endswith(ELIDED):
        return output
    lines = output.splitlines(keepends=True)
    return "".join(lines[: shown.count("\n") - 1]) + ELIDED


def _rewritten(block: str) -> str:
    return "".join(
        f"$ {command}\n"
        + (as_shown(output_of(command), shown) if command.startswith("shardcost ") else shown)
        for command, shown in commands(block)
    )


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(folder_in(Path(name))):
        for page in PAGES:
            text = page.read_text()
            new = BLOCK.sub(lambda match: _rewritten(match.group(0)), text)
            if new != text:
                page.write_text(new)
                print(page.relative_to(ROOT))
    notebooks.NOTEBOOK.write_text(notebooks.executed(), encoding="utf-8")
