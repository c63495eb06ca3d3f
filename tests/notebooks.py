"""The example notebook of the documentation, executed: for test_notebook and `make examples`.

python tests/notebooks.py              # writes what its cells show now into docs/notebook.ipynb
python tests/notebooks.py FILE.ipynb   # the same into another file
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "notebook.ipynb"
_LONGEST_S = 300


def executed() -> str:
    """Return the notebook with what its cells show now, as the text of its file."""
    import nbformat
    from nbclient import NotebookClient

    read: Any = nbformat.read  # which has no types
    notebook = read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=_LONGEST_S,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK
    target.write_text(executed(), encoding="utf-8")
