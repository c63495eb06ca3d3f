"""Measured rows as if another machine had run them: each is predicted, or skipped with a reason."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from shardcost.catalog import names
from shardcost.formats.tables import read_table
from shardcost.validate.validation import validate

KINDS: Final = (
    *("attention", "collectives", "collectives_scale", "decode", "dispatch", "elementwise_layer"),
    *("experts", "fp8_conversion", "gemm", "grouped_gemm", "inference", "jitter_steps"),
    *("layer_ops", "layers", "linear_attention", "memory", "memory_runs", "mla", "overlap"),
    *("sustained", "training", "training_runs"),
)
"""Tables whose rows name a machine, but for runs under load, which take seconds each."""
STRIDE: Final = 97
"""Of the rows that are moved: coprime to the numbers of shapes that tables go through."""


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_predicted_on_any_machine(
    kind: str, measured: Callable[[str], Path], tmp_path: Path
) -> None:
    with measured(kind).open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    column = "cluster" if "cluster" in rows[0] else "gpu"
    systems = names("clusters")
    moved = [
        {**rows[STRIDE * place % len(rows)], column: system} for place, system in enumerate(systems)
    ]
    path = tmp_path / f"{kind}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(moved)
    result = validate(read_table(path))
    predicted = int(np.isfinite(result.predictions.values).sum())
    assert predicted > 0
    assert predicted + sum(result.skipped.values()) == len(result.predictions.values)
    assert len(result.predictions.values) >= len(systems)
    assert all(result.skipped)
