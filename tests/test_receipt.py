"""Receipts compute what they say, show it, and compute nothing else."""

import numpy as np
import pytest

from shardcost.errors import BadValueError
from shardcost.receipt import Receipt, Term, evaluate, total

ARRAYS = {"max": np.maximum, "min": np.minimum, "ceil": np.ceil, "log2": np.log2}


def test_a_receipt_computes_its_value_and_shows_how() -> None:
    terms = (
        Term("start", 2e-6, "s"),
        Term("levels", 5, ""),
        Term("hop_s", 1e-6, "s", source="fit", label="hop"),
        Term("floor_s", 9e-6, "s", source="fit"),
    )
    receipt = Receipt("time", "", 9e-6, "s", "max(floor_s, start + levels * hop_s)", terms)
    assert receipt.evaluate() == receipt.value
    assert receipt.formula == "max(floor s, start + levels x hop)"
    assert receipt.numbers == "max(9 us, 2 us + 5 x 1 us)"
    assert receipt.sources == ("fit",)


def test_a_sum_leaves_out_what_is_zero_and_keeps_its_parts() -> None:
    parts = [Receipt(name, "", value, "s") for name, value in (("a b", 1), ("c", 0), ("a_b", 2))]
    whole = total("time_s", "Time", "s", parts)
    assert (whole.expression, whole.value, whole.evaluate()) == ("a_b + a_b_2", 3, 3)
    assert [part.name for part in whole.parts] == ["a b", "a_b"]
    assert total("time_s", "Time", "s", []).evaluate() == 0


def test_an_expression_is_evaluated_on_arrays_too() -> None:
    ranks = np.array([2, 3, 8])
    levels = evaluate("max(1, ceil(log2(ranks))) ** 2 - -1", {"ranks": ranks}, ARRAYS)
    assert levels.tolist() == [2, 5, 10]


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "size.real",
        "sizes[0]",
        "open(size)",
        "max(size, key=size)",
        "lambda: 1",
        "'text'",
        "True and size",
        "unknown + 1",
        "size +",
    ],
)
def test_anything_but_arithmetic_over_known_names_is_refused(expression: str) -> None:
    with pytest.raises(BadValueError, match="expression must be arithmetic"):
        evaluate(expression, {"size": 1.0})
