"""The front-door function: worked cases, exact arithmetic, and what must hold for all inputs."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from shardcost import BadValueError, tensor_parallel_allreduce_cost
from shardcost.units import GIGA

arguments = strategies.allreduce_arguments()


def exact(call: dict[str, Any]) -> dict[str, Fraction]:
    """Return the four results in exact arithmetic, written down independently of the code."""
    n = call["num_gpus"]
    message = Fraction(call["batch_size"] * call["sequence_length"] * call["hidden_size"])
    message *= call.get("bytes_per_element", 2)
    sent = message * 2 * (n - 1) / n
    total = sent * call["num_layers"] * call.get("allreduces_per_layer", 2)
    bandwidth = Fraction(call.get("bandwidth_gb_per_sec", 300.0)) * GIGA
    return {
        "message_size_bytes": message,
        "comm_volume_per_allreduce_bytes": sent,
        "total_comm_volume_bytes": total,
        "total_comm_time_ms": total / bandwidth * 1000,
    }


def close(found: float, expected: float | Fraction) -> bool:
    """Return whether a float is within 1e-4, or 1e-12 relative, of what it should be."""
    difference = abs(Fraction(found) - Fraction(expected))
    return difference <= max(Fraction(1, 10_000), Fraction(expected) / 10**12)


def assert_close(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    assert type(found["message_size_bytes"]) is int
    assert found["message_size_bytes"] == expected["message_size_bytes"]
    for key in list(expected)[1:]:
        assert type(found[key]) is float
        assert close(found[key], expected[key]), key


def test_worked_example() -> None:
    # Llama 3 70B, one sequence of 4,096 tokens on 8 GPUs: 64 MiB x 1.75, 160 times, at 450 GB/s.
    cost = tensor_parallel_allreduce_cost(8192, 4096, 1, 8, 80, bandwidth_gb_per_sec=450.0)
    assert cost == {
        "message_size_bytes": 67_108_864,
        "comm_volume_per_allreduce_bytes": 117_440_512.0,
        "total_comm_volume_bytes": 18_790_481_920.0,
        "total_comm_time_ms": 41.7566,
    }


def test_worked_cases_of_the_evidence(evidence: Path) -> None:
    cases = json.loads((evidence / "vectors" / "allreduce_cost.json").read_text())
    assert cases
    for case in cases:
        assert_close(tensor_parallel_allreduce_cost(**case["arguments"]), case["expected"])


@given(arguments)
def test_equals_exact_arithmetic(call: dict[str, Any]) -> None:
    assert_close(tensor_parallel_allreduce_cost(**call), exact(call))


@given(arguments)
def test_one_gpu_sends_nothing(call: dict[str, Any]) -> None:
    cost = tensor_parallel_allreduce_cost(**call | {"num_gpus": 1})
    assert list(cost.values())[1:] == [0.0, 0.0, 0.0]
    assert cost["message_size_bytes"] == exact(call)["message_size_bytes"]


@given(arguments, st.integers(1, 64))
@pytest.mark.parametrize("name", ["batch_size", "bytes_per_element", "num_layers"])
def test_linear(name: str, call: dict[str, Any], factor: int) -> None:
    once: Any = tensor_parallel_allreduce_cost(**call)
    times: Any = tensor_parallel_allreduce_cost(**call | {name: call[name] * factor})
    slack = Fraction(1 + factor, 20_000)  # each side was rounded to 4 decimals
    for key in ("total_comm_volume_bytes", "total_comm_time_ms"):
        expected = Fraction(once[key]) * factor
        difference = abs(Fraction(times[key]) - expected)
        assert difference <= slack + expected / 10**12


@given(arguments)
def test_grows_with_gpus_below_two_messages(call: dict[str, Any]) -> None:
    fewer: Any = tensor_parallel_allreduce_cost(**call)
    more: Any = tensor_parallel_allreduce_cost(**call | {"num_gpus": call["num_gpus"] + 1})
    volume = "comm_volume_per_allreduce_bytes"
    assert fewer[volume] <= more[volume] <= 2 * more["message_size_bytes"]


@given(arguments, st.floats(0.01, 100))
def test_time_is_inverse_to_bandwidth(call: dict[str, Any], factor: float) -> None:
    cost = tensor_parallel_allreduce_cost(**call)
    scaled = call["bandwidth_gb_per_sec"] * factor
    other = tensor_parallel_allreduce_cost(**call | {"bandwidth_gb_per_sec": scaled})
    assert cost["total_comm_volume_bytes"] == other["total_comm_volume_bytes"]
    expected = exact(call)["total_comm_time_ms"] * Fraction(call["bandwidth_gb_per_sec"])
    assert close(other["total_comm_time_ms"], expected / Fraction(scaled))


@given(st.integers(1, 10**16), st.integers(1, 999), st.floats(1e-6, 1e6))
def test_rounds_to_four_decimals(size: int, gpus: int, bandwidth: float) -> None:
    cost = tensor_parallel_allreduce_cost(size, 1, 1, gpus, 1, 1, bandwidth, 1)
    sent = Fraction(size) * 2 * (gpus - 1) / gpus
    time_ms = sent / Fraction(bandwidth) / 10**6
    volume = cost["comm_volume_per_allreduce_bytes"]
    for value, true in ((volume, sent), (cost["total_comm_time_ms"], time_ms)):
        assert abs(Fraction(value) - true) <= Fraction(1, 20_000) + true / 10**15
        assert value == round(value, 4) or value > 4.5e11  # where floats hold fewer decimals


def test_no_layers_and_no_allreduces_cost_nothing() -> None:
    for free in ({"num_layers": 0}, {"num_layers": 4, "allreduces_per_layer": 0}):
        cost = tensor_parallel_allreduce_cost(64, 64, 1, 8, **free)
        assert cost["comm_volume_per_allreduce_bytes"] == 14336.0
        assert cost["total_comm_volume_bytes"] == cost["total_comm_time_ms"] == 0.0


def test_numpy_numbers_are_numbers() -> None:
    plain = tensor_parallel_allreduce_cost(64, 64, 1, 8, 2, 2, 300.0, 2)
    numbers: list[Any] = [np.int32(64), np.uint8(64), np.int64(1), 8, 2, 2, np.float32(300.0), 2]
    numpy = tensor_parallel_allreduce_cost(*numbers)
    assert plain == numpy
    assert {type(value) for value in numpy.values()} == {int, float}


def test_messages_beyond_floats_stay_exact() -> None:
    cost = tensor_parallel_allreduce_cost(10**9 + 7, 10**9 + 9, 10**9 + 21, 2, 1)
    assert cost["message_size_bytes"] == 2 * (10**9 + 7) * (10**9 + 9) * (10**9 + 21)


def test_results_beyond_floats_are_refused() -> None:
    with pytest.raises(BadValueError, match=r"1\.8e308 bytes"):
        tensor_parallel_allreduce_cost(10**200, 10**200, 1, 2, 1)
    with pytest.raises(BadValueError, match="bandwidth_gb_per_sec must be high enough"):
        tensor_parallel_allreduce_cost(10**9, 10**9, 1, 2, 1, bandwidth_gb_per_sec=5e-324)
