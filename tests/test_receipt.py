"""Receipts compute what they say, show it, and compute nothing else."""

from typing import Any

import numpy as np
import pytest

from shardcost.errors import BadValueError
from shardcost.receipt import Receipt, Term, evaluate, total
from shardcost.traced import Traced, receipts

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


def named(name: str, value: float, unit: str = "") -> Traced:
    return Traced.named(Term(name, value, unit))


def test_a_formula_run_on_traced_numbers_writes_its_receipt() -> None:
    size, ranks, rate = named("size", 64e6), named("ranks", 6), named("rate", 3e9)

    def parts(size: Any, ranks: Any, rate: Any) -> dict[str, Any]:
        levels = np.ceil(np.log2(ranks))
        wire = size / ranks * (2 * (ranks - 1) / np.minimum(rate, np.minimum(1e9, rate / 2)))
        hops = np.where(ranks > 4, levels * 1e-6, 0.0) + (ranks == 1) * 1e-3
        return {"wire": wire, "hops": hops, "both": np.sqrt((wire + hops) * (wire + hops))}

    plain = parts(64e6, 6, 3e9)
    for receipt in receipts(parts(size, ranks, rate), "s"):
        assert receipt.evaluate() == pytest.approx(receipt.value)
        assert receipt.value == pytest.approx(float(plain[receipt.name]))
    wire, hops, both = receipts(parts(size, ranks, rate), "s")
    assert wire.formula == "size / ranks x (2 x (ranks - 1) / min(rate, 1000000000, rate / 2))"
    assert hops.formula == "ceil(log2(ranks)) x 1e-06"
    assert both.formula == "sqrt((wire + hops) x (wire + hops))"
    assert [term.name for term in both.terms] == ["wire", "hops"]


@pytest.mark.parametrize(
    ("compute", "text"),
    [
        (lambda a, b: a - (b - 1) - b, "a - (b - 1) - b"),
        (lambda a, b: a / (b * a) / b, "a / (b x a) / b"),
        (lambda a, b: (a + b) ** 2 * a, "(a + b) ^ 2 x a"),
        (lambda a, b: 0 * a + 1 * b - 0, "b"),
        (lambda a, b: np.float64(3) * (a - a) + b / 1 + 0 / a, "b"),
        (lambda a, b: np.maximum(a, a) + np.minimum(b, np.minimum(a, 9)), "a + min(b, a, 9)"),
        (lambda a, b: (a * b) * (a + b), "a x b x (a + b)"),
    ],
)
def test_brackets_stand_where_they_are_needed(compute: Any, text: str) -> None:
    traced = receipts({"x": compute(named("a", 5), named("b", 7))}, "")[0]
    assert traced.formula == text
    assert traced.evaluate() == compute(5.0, 7.0)


def test_equal_rates_of_the_same_links_leave_no_ratio() -> None:
    link, links = named("link", 450e9, "bytes/s"), named("links", 450e9, "bytes/s")
    rate = named("rate", 300e9, "bytes/s")
    assert receipts({"x": rate * (link / links)}, "bytes/s")[0].formula == "rate"
    assert receipts({"x": rate / link}, "")[0].formula == "rate / link"


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(TypeError):
        np.arctan(named("a", 1.0))
