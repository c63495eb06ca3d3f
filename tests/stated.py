"""Figures of model cards, as precise as their authors print them."""

from __future__ import annotations

from typing import Any

import pytest


def as_stated(billion: float) -> Any:
    """Return a figure of a card: right to 2 %, or to half a unit of its last digit."""
    decimals = str(billion).partition(".")[2].rstrip("0")
    return pytest.approx(billion * 1e9, rel=0.02, abs=0.5e9 * 10 ** -len(decimals))
