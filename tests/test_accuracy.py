"""Predictions against measurements, where there are any: the errors that the project promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from lab import cross_validation
from lab.command import joined
from lab.page_parts import Part, in_sample, peer_line, read
from lab.page_tables import KINDS
from lab.peers import compared
from lab.refit_collectives import usable
from shardcost.calibrate.fit import Curve
from shardcost.formats.tables import VALIDATED, Table, read_table
from shardcost.validate.validation import Stats, Validation, split, stats, validate

NUMBER = re.compile(r"[+-]?[0-9][0-9,]*(?:\.[0-9]+)?")
Validated = Callable[[str], Validation]


@pytest.fixture(scope="session")
def validated(measured: Callable[[str], Path]) -> Validated:
    """Return what validates a table by its kind, once."""

    @cache
    def found(kind: str) -> Validation:
        return validate(read_table(measured(kind)))

    return found


@pytest.fixture(scope="module")
def table(validated: Validated) -> Table:
    return validated("collectives").table


@pytest.fixture(scope="module")
def known(table: Table) -> list[Curve]:
    return usable([table])


def within(found: Stats, median_pct: float, p90_pct: float) -> bool:
    assert found.median_pct is not None
    assert found.p90_pct is not None
    return found.median_pct <= median_pct and found.p90_pct <= p90_pct


def by(found: Validation, *columns: str) -> dict[str, Stats]:
    """Return the errors by the values of some columns."""
    return {" ".join(each.key.values()): each.stats for each in split(found, columns)}


def at_most(found: float | None, limit: float) -> bool:
    assert found is not None
    return found <= limit


ELSEWHERE: Final = ("comm_fraction", "serving")
"""Kinds whose rows other tests look at: simulating every run under load takes minutes."""


@pytest.mark.parametrize("kind", [kind for kind in VALIDATED if kind not in ELSEWHERE])
def test_rows_are_predicted(validated: Validated, kind: str) -> None:
    found = validated(kind)
    assert found.table.rows
    assert found.predicted >= 0.95 * found.table.rows, found.skipped


def test_errors_by_kind_of_measurement(table: Table) -> None:
    promised = {
        "NCCL family, one node": (3.5, 12),
        "engines, graph, one node": (4, 15),
        "across nodes or racks": (10, 35),
        "eager": (6, 35),
        "single process": (12, 20),  # two tables whose launches differ by 1.7 times
    }
    found = validate(table, ("population",))
    assert found.predicted >= 0.97 * table.rows
    by_name = {each.key["population"]: each.stats for each in found.groups}
    for name, (median_pct, p90_pct) in promised.items():
        assert within(by_name[name], median_pct, p90_pct), (name, by_name[name])


def test_errors_on_groups_of_a_rack_and_under_xla(validated: Validated) -> None:
    found = validated("collectives_scale")
    assert found.predicted == found.table.rows
    rack, h100 = "openxla_gb300_nvl72", "openxla_h100"
    sets = by(found, "dataset", "collective")
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert within(sets[f"{rack} {collective}"], 5, 21), collective
    assert within(sets[f"{rack} send_recv"], 5, 12)
    assert within(by(found, "dataset")[h100], 15, 52)
    large = found.table.where(lambda row: int(row["size_bytes"]) >= 2**24)
    assert within(by(validate(large), "dataset")[h100], 7, 20)
    assert within(by(validate(large), "dataset")[rack], 5, 12)


@pytest.mark.refit
def test_errors_on_gpu_counts_that_were_left_out(known: list[Curve]) -> None:
    errors = [each.error_pct for each in cross_validation.gpu_counts(known)]
    assert within(stats(np.concatenate(errors)), 8, 22)


@pytest.mark.refit
def test_errors_on_systems_that_were_left_out(known: list[Curve]) -> None:
    switched = {"a100_sxm", "h100_sxm", "b200_sxm", "b300_sxm", "gb300_nvl72"}
    found = [each for each in cross_validation.systems(known) if each.system in switched]
    assert {each.system for each in found} == switched
    assert within(stats(np.concatenate([each.error_pct for each in found])), 10, 30)


def test_errors_of_products(validated: Validated) -> None:
    found = validated("gemm")
    assert within(found.overall, 6, 18)
    assert within(by(found, "dataset")["own_h200_torch2.11"], 5, 15)


def test_errors_of_attention(validated: Validated) -> None:
    phases = by(validated("attention"), "phase")
    assert at_most(phases["prefill"].median_pct, 8)
    assert at_most(phases["decode"].median_pct, 10)


def test_errors_of_layers(validated: Validated) -> None:
    passes = by(validated("layers"), "pass")
    assert set(passes) == {"forward", "backward"}
    for name, found in passes.items():
        assert within(found, 5, 12), name


def test_errors_of_decoded_layers(validated: Validated) -> None:
    sums = validated("decode").extra["layers"]
    assert sums["rows"] >= 90
    assert at_most(sums["median_pct"], 7)


def test_errors_beside_a_collective(validated: Validated) -> None:
    assert at_most(validated("overlap").overall.median_pct, 8)


def test_errors_of_memory(validated: Validated) -> None:
    found = validated("memory")
    assert found.extra["classified_pct"] >= 93
    assert at_most(found.overall.median_pct, 8)


def test_errors_of_training(validated: Validated) -> None:
    found = validated("training")
    assert found.predicted == found.table.rows, found.skipped
    means = {
        "korthikanti_table5": 3.5,
        "megatron_sc21_table1": 6,
        "vtrain_single_node": 10,
        "simumax_b200": 6,
    }
    medians = {"hf_ultrascale_nanotron": 12}
    sets = by(found, "dataset")
    assert sets.keys() >= means.keys() | medians.keys()
    for name, stats_of in sets.items():
        if name in means:
            assert at_most(stats_of.mean_pct, means[name]), (name, stats_of)
        else:
            assert at_most(stats_of.median_pct, medians.get(name, 15)), (name, stats_of)


def test_errors_beside_those_of_other_cost_models(validated: Validated) -> None:
    found = [each for kind in ("training", "inference") for each in compared(validated(kind))]
    assert len(found) >= 8
    for each in found:
        if each.peer.statistic != "max" and each.peer.rows and each.rows >= 10:
            assert each.ours_pct <= 1.25 * each.peer.error_pct[1], each


def test_errors_of_inference(validated: Validated) -> None:
    """Of latencies without load, and of the time per output token, by figure."""
    figures = by(validated("inference"), "metric")
    for name in ("e2e_latency", "prefill_latency", "tpot"):
        assert at_most(figures[name].median_pct, 15), (name, figures[name])


def test_shares_of_communication(validated: Validated) -> None:
    found = validated("comm_fraction")
    shares = [
        (float(row["comm_fraction_pct"]), value)
        for row, value in zip(found.table.records(), found.predictions.values, strict=True)
        if row["dataset"] == "tokenweave_prefill" and row["model"].startswith("Llama-3.3-70B")
    ]
    assert len(shares) >= 5
    for measured, predicted in shares:
        assert predicted == pytest.approx(measured, abs=5), (measured, predicted)


FURTHER: Final = {
    "collectives": "collectives_scale",
    "gemm": "gemm_xla",
    "training": "training_runs",
}
"""Tables that the page joins to others of their kind."""


def with_further(validated: Validated, measured: Callable[[str], Path], kind: str) -> Validation:
    if kind not in FURTHER:
        return validated(kind)
    (both,) = joined([validated(kind).table, read_table(measured(FURTHER[kind]))])
    return validate(both)


# Runs under load are simulated one by one, for minutes.
IN_SAMPLE: Final = [
    pytest.param(kind, marks=[pytest.mark.refit] if kind == "serving" else []) for kind in KINDS
]


@pytest.mark.parametrize("kind", IN_SAMPLE)
def test_the_validation_page_is_of_these_constants(
    kind: str, validated: Validated, measured: Callable[[str], Path], repository: Path
) -> None:
    """Written by its command after the last change of constants, and not touched by hand.

    Figures may differ a little: fits do, between machines and versions of SciPy.
    """
    docs = repository / "docs"
    shown = as_text(read(docs / "validation.md", docs / "validation").parts[kind])
    expected = as_text(in_sample(with_further(validated, measured, kind)))
    words = zip_longest(NUMBER.split(shown), NUMBER.split(expected))
    assert next((pair for pair in words if pair[0] != pair[1]), None) is None  # the first is enough
    for one, other in zip(NUMBER.findall(shown), NUMBER.findall(expected), strict=True):
        assert float(one.replace(",", "")) == pytest.approx(
            float(other.replace(",", "")), rel=0.05, abs=0.5
        )


def as_text(part: Part) -> str:
    """Return all that the page says of a kind of table, pictures in words."""
    pictures = (f"{name}: {', '.join(each.words)}" for name, each in sorted(part.shown.items()))
    beside = (" | ".join(peer_line(each)) for each in part.beside)
    return "\n".join([" | ".join(part.summary), part.section, *beside, *pictures])
