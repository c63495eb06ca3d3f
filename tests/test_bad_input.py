"""Bad input: each gives its one clear line, from the function and from the command line."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shardcost import ShardcostError, tensor_parallel_allreduce_cost
from shardcost.allreduce import LEAST
from shardcost.cli import main
from shardcost.errors import shown

GOOD: dict[str, Any] = {
    "hidden_size": 64,
    "sequence_length": 64,
    "batch_size": 1,
    "num_gpus": 8,
    "num_layers": 2,
}
NOT_WHOLE: list[Any] = [
    -1, True, False, 3.5, 8.0, "8", "", None, float("nan"), float("inf"), [8], (8,), {}, b"8", 1j,
    Decimal(8), Fraction(3, 2), object, np.bool_(True), np.float64(8), np.array([8]), -(10**5000),
]  # fmt: skip
NOT_BANDWIDTH: list[Any] = [
    0, 0.0, -1, -300.0, float("nan"), float("inf"), float("-inf"), 10**400, True, "300", None,
    [300.0], 1j, np.float32("nan"), np.array([300.0]), Decimal(300),
]  # fmt: skip
THROUGH_FUNCTION = [
    *((name, value) for name in LEAST for value in NOT_WHOLE),
    *((name, 0) for name, least in LEAST.items() if least == 1),
    *(("bandwidth_gb_per_sec", value) for value in NOT_BANDWIDTH),
]

NOT_WHOLE_TEXT = [
    "-1", "-5", "3.5", "8.0", "eight", "", " ", "nan", "inf", "-inf", "1e-3", "1.5e0",
    "4q", "True", "None", "0x10", "1,000", "1_000", "٨", "8 8", "8;", "9" * 301,
    "\x00", "8\n8", "--json",
]  # fmt: skip
NOT_BANDWIDTH_TEXT = ["0", "-1", "nan", "inf", "-inf", "1e400", "fast", "", "300GB/s", "0x12"]
NOT_RATE_TEXT = [
    "450", "450GB", "0GB/s", "-1GB/s", "450gb/s", "450G/s", "nanGB/s", "", "GB/s", "450 GB / s",
    "450XB/s", "1e999GB/s", "450GB/s/s", "450GB/h",
]  # fmt: skip
FULL = [
    word for name, value in GOOD.items() for word in (f"--{name.replace('_', '-')}", str(value))
]
THROUGH_COMMAND_LINE = [
    *(
        ["allreduce", *FULL, f"--{name.replace('_', '-')}", text]
        for name in LEAST
        for text in NOT_WHOLE_TEXT
    ),
    *(["allreduce", *FULL, f"--{n.replace('_', '-')}", "0"] for n, least in LEAST.items() if least),
    *(["allreduce", *FULL, "--bandwidth-gb-per-sec", text] for text in NOT_BANDWIDTH_TEXT),
    *(["allreduce", *FULL, "--bandwidth", text] for text in NOT_RATE_TEXT),
    *(["allreduce", *FULL[:i], *FULL[i + 2 :]] for i in range(0, len(FULL), 2)),
    ["allreduce"],
    ["allreduce", "--model", "llama3-70b"],
    ["allreduce", *FULL, "extra"],
    ["allreduce", *FULL, "--no-such-option"],
    ["allreduce", *FULL, "--hidden", "8"],
    ["allreduce", *FULL, "--hidden-size"],
    ["allreduce", *FULL, "--bandwidth", "1GB/s", "--bandwidth-gb-per-sec", "1"],
    ["allreduce", *FULL, "--dtype", "bf16", "--bytes-per-element", "2"],
    ["allreduce", *FULL, "--dtype", "fp4"],
    ["allreduce", *FULL, "--dtype", "bf17"],
    ["allreduce", *FULL, "--network", "ib_8x400g"],
    ["allreduce", *FULL, "--on", "h1000"],
    ["allreduce", *FULL, "--on", ""],
    ["allreduce", *FULL, "--on", "h100_sxm", "--network", "carrier-pigeon"],
    ["allreduce", "--model", "lama3-70b", "--gpus", "8"],
    ["allreduce", "--model", "", "--gpus", "8"],
    ["allreduce", "--model", "no/such/config.json", "--gpus", "8"],
    ["allreduce", "--model", "a\x00b.json", "--gpus", "8"],
    ["allreduce", "--model", "llama3-70b", "--on", "h100_sxm", "--gpus", "16"],
    ["allreduce", "--model", "llama3-70b", "--gpus", "0"],
    ["models", "lama"],
    ["models", "a", "b"],
    ["clusters", "h1000"],
    ["clusters", "../secret"],
    ["inspect"],
    ["inspect", "no/such/file"],
    ["inspect", "/dev/null"],
    ["inspect", ""],
    ["alreduce"],
    ["--frobnicate"],
    ["-x", "allreduce"],
    ["", ""],
]


def test_enough_is_tried() -> None:
    assert len(THROUGH_FUNCTION) + len(THROUGH_COMMAND_LINE) >= 200


@pytest.mark.parametrize(("name", "value"), THROUGH_FUNCTION, ids=shown)
def test_function_names_argument_value_and_rule(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        tensor_parallel_allreduce_cost(**GOOD | {name: value})
    message = str(caught.value)
    assert isinstance(caught.value, ShardcostError)
    assert message.startswith(f"{name} must be ")
    assert "number" in message
    assert f"got {shown(value)}" in message
    assert "\n" not in message


@pytest.mark.parametrize("words", THROUGH_COMMAND_LINE, ids=shown)
def test_command_line_fails_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words)
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("shardcost: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert len(err) < 400
