"""Fixtures shared by all tests, and where optional further evidence is looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]

# The same examples in every run: a red test stays red until it is mended.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the folder of the project."""
    return REPOSITORY


@pytest.fixture(scope="session")
def evidence() -> Path:
    """Return the folder of further measurements and sample files; skip where there is none."""
    folder = Path(os.environ.get("SHARDCOST_EVIDENCE", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no further evidence at {folder} (SHARDCOST_EVIDENCE names the folder)")
    return folder
