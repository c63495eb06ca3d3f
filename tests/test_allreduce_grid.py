"""The twin for arrays equals the front-door function cell by cell, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from shardcost import (
    BadTypeError,
    BadValueError,
    tensor_parallel_allreduce_cost,
    tensor_parallel_allreduce_cost_grid,
)


@given(st.lists(strategies.allreduce_arguments(), min_size=1, max_size=8))
def test_equals_the_scalar_cell_by_cell(calls: list[dict[str, Any]]) -> None:
    columns = {name: np.array([call[name] for call in calls]) for name in calls[0]}
    grid: Any = tensor_parallel_allreduce_cost_grid(**columns)
    for index, call in enumerate(calls):
        cost = tensor_parallel_allreduce_cost(**call)
        assert {key: cells[index] for key, cells in grid.items()} == cost


@given(strategies.allreduce_arguments())
def test_takes_plain_numbers(call: dict[str, Any]) -> None:
    grid: Any = tensor_parallel_allreduce_cost_grid(**call)
    cost = tensor_parallel_allreduce_cost(**call)
    assert {key: cell[()] for key, cell in grid.items()} == cost


def test_open_grid_broadcasts() -> None:
    gpus, batch = np.array([1, 2, 3, 8]), np.array([[1], [64], [1000]])
    grid: Any = tensor_parallel_allreduce_cost_grid(4096, 2048, batch, gpus, 32)
    for cells in grid.values():
        assert cells.shape == (3, 4)
    assert grid["message_size_bytes"].dtype == np.int64
    for (i, j), time_ms in np.ndenumerate(grid["total_comm_time_ms"]):
        cost = tensor_parallel_allreduce_cost(4096, 2048, int(batch[i, 0]), int(gpus[j]), 32)
        assert time_ms == cost["total_comm_time_ms"]


def test_more_cells_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardcost import allreduce_grid

    monkeypatch.setattr(allreduce_grid, "CELLS_PER_BLOCK", 7)
    gpus = np.arange(1, 61).reshape(3, 20)
    grid: Any = tensor_parallel_allreduce_cost_grid(4096, 2048, 1, gpus, np.array([[1], [2], [3]]))
    for (i, j), total in np.ndenumerate(grid["total_comm_volume_bytes"]):
        cost = tensor_parallel_allreduce_cost(4096, 2048, 1, int(gpus[i, j]), i + 1)
        assert total == cost["total_comm_volume_bytes"]


def test_beyond_int64_stays_exact() -> None:
    big = [10**12 + 39, 7]
    grid: Any = tensor_parallel_allreduce_cost_grid(big, 10**9 + 7, 3, 7, 31)
    assert grid["message_size_bytes"].dtype == object
    for index, hidden in enumerate(big):
        cost = tensor_parallel_allreduce_cost(hidden, 10**9 + 7, 3, 7, 31)
        assert {key: cells[index] for key, cells in grid.items()} == cost


def test_empty_grid() -> None:
    grid: Any = tensor_parallel_allreduce_cost_grid(np.array([], dtype=int), 1, 1, 8, 1)
    assert grid["total_comm_time_ms"].shape == (0,)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"hidden_size": [8, 0]}, BadValueError, r"hidden_size\[1\] must be .* at least 1, got 0"),
    ({"num_gpus": [[1], [-3]]}, BadValueError, r"num_gpus\[1, 0\] must be .*, got -3"),
    ({"hidden_size": [8.0]}, BadTypeError, "hidden_size must be whole numbers"),
    ({"hidden_size": [True]}, BadTypeError, "hidden_size must be whole numbers"),
    ({"hidden_size": "8"}, BadTypeError, "hidden_size must be whole numbers"),
    ({"hidden_size": [[1], [2, 3]]}, BadTypeError, "hidden_size must be an array"),
    ({"batch_size": np.array([1, None])}, BadTypeError, r"batch_size\[1\] .* got None"),
    ({"batch_size": np.array([1, 10**30, -1])}, BadValueError, r"batch_size\[2\] .* got -1"),
    ({"num_gpus": [1, 2], "num_layers": [1, 2, 3]}, BadValueError, "able to broadcast"),
    ({"bandwidth_gb_per_sec": [1.0, np.nan]}, BadValueError, "bandwidth_gb_per_sec .* got nan"),
    ({"bandwidth_gb_per_sec": [np.inf]}, BadValueError, "bandwidth_gb_per_sec .* got inf"),
    ({"bandwidth_gb_per_sec": [0.0]}, BadValueError, "bandwidth_gb_per_sec .* got 0"),
    ({"bandwidth_gb_per_sec": ["1"]}, BadTypeError, "bandwidth_gb_per_sec must be finite"),
    ({"bandwidth_gb_per_sec": [5e-324], "batch_size": 10**12}, BadValueError, "high enough"),
    ({"num_layers": 10**400}, BadValueError, r"1\.8e308 bytes"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_cells_are_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    good = {"hidden_size": 8, "sequence_length": 8, "batch_size": 1, "num_gpus": 2, "num_layers": 2}
    with pytest.raises(error, match=message) as caught:
        tensor_parallel_allreduce_cost_grid(**good | change)
    assert "\n" not in str(caught.value)
