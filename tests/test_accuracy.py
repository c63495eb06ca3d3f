"""Predictions against measurements, where there are any: the errors that the project promises."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from shardcost.evidence import cross_validation
from shardcost.evidence.fit import Curve
from shardcost.evidence.refit import usable
from shardcost.evidence.tables import Table, read_table
from shardcost.evidence.validate import Stats, stats, validate
from shardcost.report.validation_page import errors_in_sample

NUMBER = re.compile(r" [+-]?[0-9,]+(\.[0-9]+)? ")


@pytest.fixture(scope="module")
def table(evidence: Path) -> Table:
    return read_table(evidence / "measured" / "collectives.csv")


@pytest.fixture(scope="module")
def known(table: Table) -> list[Curve]:
    return usable([table])


def within(found: Stats, median_pct: float, p90_pct: float) -> bool:
    assert found.median_pct is not None
    assert found.p90_pct is not None
    return found.median_pct <= median_pct and found.p90_pct <= p90_pct


def test_errors_by_kind_of_measurement(table: Table) -> None:
    promised = {
        "NCCL family, one node": (4, 14),
        "engines, graph, one node": (5, 20),
        "across nodes or racks": (10, 35),
        "eager": (6, 35),
        "single process": (10, 20),
    }
    found = validate(table, ("population",))
    assert found.predicted >= 0.97 * table.rows
    by_name = {each.key["population"]: each.stats for each in found.groups}
    for name, (median_pct, p90_pct) in promised.items():
        assert within(by_name[name], median_pct, p90_pct), (name, by_name[name])


def test_errors_on_gpu_counts_that_were_left_out(known: list[Curve]) -> None:
    errors = [each.error_pct for each in cross_validation.gpu_counts(known)]
    assert within(stats(np.concatenate(errors)), 8, 22)


def test_errors_on_systems_that_were_left_out(known: list[Curve]) -> None:
    switched = {"a100_sxm", "h100_sxm", "b200_sxm", "b300_sxm", "gb300_nvl72"}
    found = [each for each in cross_validation.systems(known) if each.system in switched]
    assert {each.system for each in found} == switched
    assert within(stats(np.concatenate([each.error_pct for each in found])), 10, 30)


def test_the_validation_page_is_of_these_constants(table: Table, repository: Path) -> None:
    """Written by its command after the last change of constants, and not touched by hand.

    Figures may differ a little: fits do, between machines and versions of SciPy.
    """
    whole = (repository / "docs" / "validation.md").read_text(encoding="utf-8")
    shown = whole.partition("\n\n## What was left out")[0].split("|")
    expected = errors_in_sample(table).split("|")
    assert len(shown) == len(expected)
    for one, other in zip(shown, expected, strict=True):
        if NUMBER.fullmatch(one) and NUMBER.fullmatch(other):
            assert float(one.replace(",", "")) == pytest.approx(
                float(other.replace(",", "")), rel=0.05, abs=0.5
            )
        else:
            assert one == other
