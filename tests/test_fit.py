"""Fitting constants: what was put in comes out, and what no row speaks of stays with the family."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_validate import LIKE, written

from lab import cross_validation
from lab import refit_collectives as refit
from lab.refit_collectives import as_toml, by_key, engines, networks, ring_libraries
from shardcost import catalog
from shardcost.calibrate.calibrate import calibrate
from shardcost.calibrate.fit import Curve, blank, curves, fitted_library, inside, starting_point
from shardcost.collectives.library_time import collective_time
from shardcost.errors import MissingExtraError
from shardcost.formats.tables import read_table
from shardcost.machine import machine_of
from shardcost.machine.constants import (
    Calibration,
    RingLibrary,
    from_file_content,
    in_file_units,
    stated,
)
from shardcost.machine.libraries import CATALOG_LIBRARIES, default_library
from shardcost.validate.collectives import CollectiveCase

SIZES = np.exp2(np.arange(9.0, 31.0))
USUAL = CollectiveCase(
    collective="all_reduce",
    cluster="h100_sxm",
    network="",
    gpus=8,
    nodes=1,
    library="nccl",
    mode="graph",
    single_process=False,
)


def curve(
    truth: Calibration | None, collective: str = "all_reduce", noise: float = 0.0, **asked: Any
) -> Curve:
    """Return a curve that a model measured, with some noise that is the same in every run."""
    case = USUAL._replace(collective=collective, **asked)
    wobble = np.random.default_rng(0).normal(0, noise, len(SIZES)) if noise else 0.0
    return Curve(
        case,
        SIZES,
        case.time_s(SIZES, case.machine().with_own(truth)) * np.exp(wobble),
        frozenset({"me"}),
    )


def slower(own: Calibration, factor: float) -> Calibration:
    """Return a library of which every part takes longer by a factor."""
    moved = {
        name: value / factor if name.endswith("_bytes_per_s") else value * factor
        for name, value in stated(own.constants).items()
        if name.endswith("_s")
    }
    return replace(with_constants(own, **moved), chooser="fastest")


def with_constants(own: Calibration, **changed: float) -> Calibration:
    """Return a calibration some of whose constants are others."""
    return replace(own, constants=type(own.constants)(**(stated(own.constants) | changed)))


def rows_of(known: Curve) -> list[dict[str, str]]:
    """Return a curve as rows of a table."""
    case = known.case
    like = LIKE | {
        "cluster": case.cluster,
        "library": case.library,
        "num_gpus": str(case.gpus),
        "collective": case.collective,
    }
    return [
        like | {"size_bytes": f"{size}", "time_us": f"{1e6 * time}"}
        for size, time in zip(known.size_bytes, known.time_s, strict=True)
    ]


def test_constants_that_were_put_in_are_found_again() -> None:
    own = CATALOG_LIBRARIES.library(catalog.cluster_named("h100_sxm"), "nccl")
    truth = with_constants(own, ll_base_s=9e-6, simple_bytes_per_s=250e9)
    known = [
        curve(truth, collective, gpus=gpus)
        for collective in ("all_reduce", "all_gather", "all_to_all")
        for gpus in (2, 4, 8)
    ]
    found = fitted_library(known, own)
    assert found.fit.median_pct < 0.5
    assert found.fit.rows == 9 * len(SIZES)
    constants = stated(found.constants)
    assert constants["ll_base_s"] == pytest.approx(9e-6, rel=0.05)
    assert constants["simple_bytes_per_s"] == pytest.approx(250e9, rel=0.05)


def test_outliers_do_not_bend_a_curve() -> None:
    own = CATALOG_LIBRARIES.library(catalog.cluster_named("a100_sxm"), "nccl")
    clean = curve(own, cluster="a100_sxm")
    times = clean.time_s.copy()
    times[[3, 11]] *= 10
    found = fitted_library([replace(clean, time_s=times)], own)
    assert np.median(np.abs(clean.error_pct(found))) < 1


def test_what_no_row_speaks_of_stays_where_it_was() -> None:
    start = blank(("h100_sxm", "nccl", "0"))
    own = CATALOG_LIBRARIES.library(catalog.cluster_named("h100_sxm"), "nccl")
    found = fitted_library([curve(own, gpus=2)], start)
    before, after = stated(start.constants), stated(found.constants)
    unused = "nvls_bytes_per_s"  # two GPUs never reduce in the switch
    assert after[unused] == pytest.approx(before[unused], rel=1e-6)
    assert after["ll_base_s"] != pytest.approx(before["ll_base_s"], rel=0.01)


def test_a_library_of_ones_own_works_through_its_constants(tmp_path: Path) -> None:
    """Gloo, MPI or anything else: fit a few measured points, then ask by any name."""
    nccl = CATALOG_LIBRARIES.library(catalog.cluster_named("a100_sxm"), "nccl")
    truth = replace(slower(nccl, 3.0), library="gloo")
    known = [curve(truth, cluster="a100_sxm", library="gloo", gpus=n, noise=0.02) for n in (2, 8)]
    table = read_table(written(tmp_path, [row for each in known for row in rows_of(each)]))
    mine = calibrate(curves(table))[0].calibration
    machine = machine_of("a100_sxm").with_own(mine)
    result = collective_time("all_reduce", 2**20, machine, 8, library="gloo")
    expected = known[1].time_s[SIZES == 2**20][0]
    assert result.time_s == pytest.approx(expected, rel=0.15)
    assert result.calibrations[0].library == "gloo"
    again = list(from_file_content(_read(as_toml("a100_sxm", [mine])), "mine.toml"))
    assert in_file_units(again[0].constants) == in_file_units(mine.constants)


def _read(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


def test_a_whole_table_is_refitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings, then engines, then networks, from curves of the catalog's own constants."""
    known = [curve(None, gpus=gpus) for gpus in (2, 4, 8)]
    known += [curve(None, gpus=8, library="vllm==0.24.0", mode=mode) for mode in ("graph", "eager")]
    known += [curve(None, gpus=16, nodes=2, network="ib_8x400g")]
    assert set(by_key(known)) == {("h100_sxm", "nccl", "0"), ("h100_sxm", "vllm", "0.19")}
    monkeypatch.setattr(refit, "_ROUNDS", 1)
    rings = ring_libraries(inside(known))
    assert rings["h100_sxm", "nccl", "0"].fit.median_pct < 3
    assert engines(inside(known))["h100_sxm", "vllm", "0.19"].fit.median_pct < 3
    wires = networks(known)
    assert wires["ib_8x400g", "network", "0"].fit.median_pct < 3


def test_the_catalog_is_written_anew_from_a_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for gpus in (2, 8) for row in rows_of(curve(None, gpus=gpus))]
    table = written(tmp_path, rows)
    (tmp_path / "collectives").mkdir()
    monkeypatch.setattr(refit, "FOLDER", tmp_path / "collectives")
    monkeypatch.setattr(refit, "_ROUNDS", 1)
    refit.main([str(table)])
    assert "h100_sxm nccl 0" in capsys.readouterr().out
    content = _read((tmp_path / "collectives" / "h100_sxm.toml").read_text())
    assert [each.library for each in from_file_content(content, "f")] == ["nccl"]


def test_what_is_left_out_is_predicted_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refit, "_ROUNDS", 1)
    known = [curve(None, gpus=gpus, cluster="h100_sxm") for gpus in (2, 4, 8)]
    counts = list(cross_validation.gpu_counts(known))
    assert [each.what for each in counts] == ["2 GPUs", "4 GPUs", "8 GPUs"]
    assert np.median(np.abs(counts[1].error_pct)) < 10
    sibling = [curve(None, gpus=gpus, cluster="b200_sxm") for gpus in (2, 8)]
    whole = list(cross_validation.systems([*known, *known, *sibling]))
    assert [each.system for each in whole] == ["h100_sxm"], "of the other there are too few rows"
    assert np.abs(whole[0].error_pct).max() > 1, "predicted by its family, not by itself"
    across = [
        curve(None, cluster=name, gpus=16, nodes=2, network="ib_8x400g")
        for name in ("h100_sxm", "b200_sxm")
    ]
    assert [each.what for each in cross_validation.networks(across)] == ["b200_sxm", "h100_sxm"]
    other = curve(None, cluster="h100_sxm", gpus=16, nodes=2, network="roce_8x400g")
    more = curve(None, cluster="h100_sxm", gpus=32, nodes=4, network="roce_8x400g")
    kinds = [
        (each.system, each.what) for each in cross_validation.networks([across[0], other, more])
    ]
    assert kinds == [
        ("ib_8x400g", "the whole network"),
        ("roce_8x400g", "the whole network"),
        ("roce_8x400g", "2 nodes"),
        ("roce_8x400g", "4 nodes"),
    ]


def test_a_start_without_a_family_has_every_constant_of_its_system() -> None:
    for name in ("h100_sxm", "l40s", "mi300x"):
        cluster = catalog.cluster_named(name)
        own = CATALOG_LIBRARIES.library(cluster, default_library(cluster))
        assert set(stated(starting_point(RingLibrary, cluster))) == set(stated(own.constants))


def test_without_scipy_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    own = CATALOG_LIBRARIES.library(catalog.cluster_named("h100_sxm"), "nccl")
    with pytest.raises(MissingExtraError, match=r"pip install 'shardcost\[fit\]'"):
        fitted_library([curve(own)], own)
