"""Tables of residuals: interpolation near points, the formula away from them, sound in any file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcost.calibrate.calibrate import Calibrated, calibrated_library
from shardcost.calibrate.collective_tables import added_dip, monotone
from shardcost.calibrate.fit import Curve, Floats
from shardcost.calibrate.profile import as_profile
from shardcost.calibrate.residual import Points, fit_residuals
from shardcost.catalog import cluster_named
from shardcost.cli import main
from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.collectives.receipts import collective_receipt
from shardcost.errors import ShardcostError
from shardcost.machine import by_profile, machine_of
from shardcost.machine.libraries import CATALOG_LIBRARIES, profile_in
from shardcost.machine.residual import CollectiveTable, Residual
from shardcost.validate.collectives import CollectiveCase

SYSTEM = "h100_sxm"
SIZES = np.exp2(np.arange(10, 31, 0.5))
DENT = 0.15
"""How much slower and faster than its formula the machine is, in logarithms."""


def case_of(gpus: int) -> CollectiveCase:
    return CollectiveCase("all_reduce", SYSTEM, "", gpus, 1, "nccl", "graph", False)


def dent(sizes: Floats) -> Floats:
    """Return what no constant of the formula describes: a wave over sizes above 4 MiB."""
    above = np.maximum(0.0, np.log2(sizes) - 22)
    result: Floats = DENT * np.sin(2 * np.pi * above / 6)
    return result


def measured(gpus: int, sizes: Floats) -> Curve:
    case = case_of(gpus)
    noise = np.random.default_rng(gpus).normal(0, 0.003, len(sizes))
    times = case.time_s(sizes) * np.exp(dent(sizes) + noise)
    return Curve(case, sizes, times, frozenset({"synthetic"}))


@pytest.fixture(scope="module")
def dented() -> Calibrated:
    start = CATALOG_LIBRARIES.library(cluster_named(SYSTEM), "nccl")
    known = [measured(gpus, SIZES[::2]) for gpus in (4, 8)]
    return calibrated_library(known, start, SYSTEM)


@pytest.fixture(scope="module")
def profile(dented: Calibrated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "dented.toml"
    path.write_text(as_profile("dented", cluster_named(SYSTEM), [dented]), "utf-8")
    return path


def test_a_dent_is_interpolated(dented: Calibrated) -> None:
    """Sizes between those measured: by the table within the noise, by the formula alone not."""
    own = dented.calibration
    between = measured(8, SIZES[1::2])
    with_table = np.abs(between.error_pct(own))
    alone = np.abs(between.error_pct(replace(own, residuals=())))
    assert np.median(with_table) < 2
    assert with_table.max() < 6
    assert with_table.mean() < 0.5 * alone.mean()
    formula = dented.without_tables
    assert formula is not None
    assert dented.left_out.median_pct is not None
    assert formula.left_out.median_pct is not None
    assert dented.left_out.median_pct < formula.left_out.median_pct


def test_a_machine_without_a_dent_has_no_table() -> None:
    start = CATALOG_LIBRARIES.library(cluster_named(SYSTEM), "nccl")
    case = case_of(8)
    noise = np.random.default_rng(5).normal(0, 0.01, len(SIZES))
    curve = Curve(case, SIZES, case.time_s(SIZES) * np.exp(noise), frozenset({"synthetic"}))
    result = calibrated_library([curve], start, SYSTEM)
    assert result.calibration.residuals == ()
    assert result.without_tables is None


def test_away_from_points_the_formula_counts(dented: Calibrated) -> None:
    (table,) = dented.calibration.residuals
    assert abs(np.log(table.factor(2.0**26, 8, 1))) > 0.03
    assert table.factor(2.0**21, 8, 4096) == pytest.approx(1, abs=1e-3)
    assert replace(table, held=False).factor(2.0**300, 8, 1) == pytest.approx(1, abs=1e-3)
    assert table.nearness(SIZES[2], 8, 1) == pytest.approx(1)
    assert table.nearness(2.0**21, 8, 4096) < 0.01


def test_tables_are_of_what_was_measured(dented: Calibrated) -> None:
    """Another collective, a forced algorithm and another datasheet are priced by the formula."""
    machine = machine_of(SYSTEM).with_own(dented.calibration)
    assert collective_time("all_reduce", 2**26, machine, 8).factor != 1
    assert collective_time("all_gather", 2**21, machine, 8).factor == 1
    assert collective_time("all_reduce", 2**26, machine, 8, algorithm="ring").factor == 1
    assert collective_time("all_reduce", 2**26, machine, 1).time_s == 0
    other = replace(
        cluster_named(SYSTEM),
        tiers=tuple(
            replace(tier, bytes_per_s=2 * tier.bytes_per_s) for tier in cluster_named(SYSTEM).tiers
        ),
    )
    libraries = CATALOG_LIBRARIES.preferring([dented.calibration])
    assert libraries.library(cluster_named(SYSTEM), "nccl").residuals
    assert not libraries.library(other, "nccl").residuals


def test_a_network_has_tables_of_its_own() -> None:
    """They hold across domains, those of the library inside one; in arrays, cell by cell."""
    cluster = Cluster.named(SYSTEM, "ib_8x400g")
    machine = machine_of(cluster)
    slower, faster = (
        CollectiveTable(
            collective="all_reduce",
            library="nccl",
            mode="graph",
            residual=Residual(points=((28, 4, 1),), weights=(weight,), scales=(9, 9, 9)),
        )
        for weight in (0.2, -0.2)
    )
    both = machine.with_own(
        replace(machine.library("nccl"), residuals=(faster,)),
        replace(machine.network, residuals=(slower,)),
    )
    gpus = np.array([4, 16])
    inside, across = collective_time("all_reduce", 2.0**28, both, gpus).factor
    assert inside < 1 < across
    assert across == pytest.approx(np.exp(0.2))
    assert collective_time("all_reduce", 2.0**28, both, 16).factor == pytest.approx(across)


def test_arrays_are_priced_like_numbers(dented: Calibrated) -> None:
    machine = machine_of(SYSTEM).with_own(dented.calibration)
    gpus = np.array([[4], [8]])
    many = collective_time("all_reduce", SIZES, machine, gpus)
    for row, count in enumerate(gpus[:, 0]):
        for column, size in enumerate(SIZES):
            one = collective_time("all_reduce", float(size), machine, int(count))
            assert many.time_s[row, column] == pytest.approx(one.time_s, rel=1e-12)
            low_s = np.broadcast_to(many.interval.low_s, many.time_s.shape)[row, column]
            assert low_s == pytest.approx(one.interval.low_s, rel=1e-9)


def test_larger_messages_are_not_faster(dented: Calibrated) -> None:
    (table,) = dented.calibration.residuals
    sizes = np.exp2(np.arange(4, 36, 0.125))
    for gpus in (4, 8):
        curve = Curve(case_of(gpus), sizes, sizes, frozenset())
        alone = curve.result(replace(dented.calibration, residuals=()))
        assert added_dip(table, curve, alone.time_s, alone.weights) <= 0.03
    curve = Curve(case_of(8), sizes, sizes, frozenset())
    falling = replace(
        table,
        residual=Residual(points=((30, 3, 0),), weights=(-1.0,), scales=(0.5, 1, 1)),
        paths=(),
    )
    assert added_dip(falling, curve, curve.predicted_s()) > 0.03


def test_paths_and_collectives_are_told_apart() -> None:
    """What is known of one path says less of another, and the same of two collectives."""
    at = Residual(points=((20, 3, 0),), weights=(0.3,), scales=(9, 9, 9))
    own = CollectiveTable(
        collective="all_reduce",
        library="nccl",
        mode="graph",
        residual=at,
        paths=("ring LL",),
        other_path=0.2,
    )
    ll, simple = ("ring", "LL"), ("ring", "Simple")
    same, half, other = (
        np.log(own.factor(2.0**20, 8, 1, {ll: share, simple: 1 - share})) for share in (1, 0.5, 0)
    )
    assert same == pytest.approx(0.3)
    assert half == pytest.approx(0.18)
    assert other == pytest.approx(0.06)
    assert own.nearness(2.0**20, 8, 1, {ll: 0.0, simple: 3.0}) == pytest.approx(0.2)
    beside = replace(own, collective="all_gather", other_collective=0.5)
    elsewhere = replace(beside, mode="eager")
    every = (own, beside, elsewhere)
    assert np.log(own.factor(2.0**20, 8, 1, {ll: 1.0}, every)) == pytest.approx(0.45)
    weaker = replace(own, strength=0.5)
    assert np.log(weaker.factor(2.0**20, 8, 1, {ll: 1.0}, every)) == pytest.approx(0.225)


@settings(max_examples=100)
@given(st.floats(0, 40), st.floats(-1e3, 1e3), st.sampled_from((2, 4, 8)))
def test_no_table_is_faster_than_the_links(at: float, weight: float, gpus: int) -> None:
    own = CATALOG_LIBRARIES.library(cluster_named(SYSTEM), "nccl")
    residual = Residual(points=((at, 3, 0),), weights=(weight,), scales=(2, 2, 2))
    table = CollectiveTable(
        collective="all_reduce", library="nccl", mode="graph", residual=residual
    )
    machine = machine_of(SYSTEM).with_own(replace(own, residuals=(table,)))
    result = collective_time("all_reduce", SIZES, machine, gpus)
    assert np.isfinite(result.time_s).all()
    assert (result.time_s >= result.bound_s * (1 - 1e-12)).all()
    assert (result.interval.low_s <= result.time_s).all()
    assert (result.factor <= 3 * (1 + 1e-9)).all()


def test_a_receipt_has_the_residual_as_one_term(dented: Calibrated) -> None:
    machine = machine_of(SYSTEM).with_own(dented.calibration)
    result = collective_time("all_reduce", 2**26, machine, 8)
    shown = collective_receipt(result, "time", "Time")
    assert shown.value == pytest.approx(float(result.time_s))
    (term,) = (term for term in shown.terms if term.name == "measured")
    assert term.value == pytest.approx(float(result.factor))


def test_intervals_are_narrow_near_points_alone(dented: Calibrated) -> None:
    """Near points that of points left out with the table; away from them as without one."""
    own = dented.calibration

    def width(size: float, gpus: int, *, tables: bool) -> float:
        used = own if tables else replace(own, residuals=())
        machine = machine_of(SYSTEM).with_own(used)
        ends = collective_time("all_reduce", size, machine, gpus).interval
        return float(np.log(ends.high_s / ends.low_s))

    near = SIZES[32]
    assert width(near, 8, tables=True) < 0.8 * width(near, 8, tables=False)
    assert width(2.0**60, 8, tables=True) > 0.9 * width(2.0**60, 8, tables=False)


def test_a_profile_keeps_its_tables(
    dented: Calibrated, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = profile_in(profile)
    machine = machine_of(cluster)
    own = machine_of(SYSTEM).with_own(dented.calibration)
    for size in (2.0**14, 2.0**21, 2.0**27):
        one, other = (collective_time("all_reduce", size, each, 8) for each in (machine, own))
        assert one.factor == pytest.approx(other.factor, rel=1e-4)
    assert by_profile(cluster).libraries.has_tables
    assert (
        main(["collective", "all_reduce", "--size", "64MiB", "--gpus", "8", "--on", str(profile)])
        == 0
    )
    assert "measured on this machine: x" in capsys.readouterr().out


def test_validate_shows_the_formula_beside_the_table(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = measured(8, SIZES[1::2])
    head = "dataset,cluster,network,nodes,gpus_per_node,num_gpus,library,mode,single_process"
    lines = [
        f"own,{SYSTEM},,1,8,8,nccl,,0,all_reduce,float,{size:.0f},{1e6 * time:.3f}"
        for size, time in zip(curve.size_bytes, curve.time_s, strict=True)
    ]
    table = tmp_path / "collectives.csv"
    table.write_text("\n".join([f"{head},collective,dtype,size_bytes,time_us", *lines]), "utf-8")
    assert main(["validate", str(table), "--on", str(profile)]) == 0
    assert "Without the profile's tables of residuals" in capsys.readouterr().out


SOUND = """\
log2_bytes = [20.0]
log2_ranks = [3.0]
log2_nodes = [0.0]
weights = [0.1]
scales = [4.0, 1.0, 1.0]
"""
HOSTILE = {
    "log2_bytes = 5": "a list of numbers",
    "log2_bytes = [[20.0]]": "nested too deeply",
    "log2_bytes = [1e9]": "from -1000 to 1000",
    "log2_bytes = [20.0, 21.0]": "as many of each",
    "weights = [0.1, 0.2]": "as many as weights",
    'weights = ["a"]': "a number",
    "weights = [1e9]": "from -1000 to 1000",
    "weights = []": "1 to 400",
    "scales = [0.0, 1.0, 1.0]": "from 0.001",
    "scales = []": "1 to 6",
    "scales = [1.0]": "as many coordinates",
    'mode = "neither"': "graph",
    "held = 3": "held",
    "within_pct = -1.0": "within_pct",
    "surprise = 1": "surprise",
    'paths = ["ring LL", "ring LL"]': "as many as weights",
    "paths = [1]": "a list of names",
    "other_path = 2.0": "a share from 0 to 1",
}


@pytest.mark.parametrize("change", HOSTILE)
def test_unsound_tables_give_one_clear_line(change: str, profile: Path, tmp_path: Path) -> None:
    body = {line.partition(" =")[0]: line for line in SOUND.splitlines()}
    body |= {"mode": 'mode = "graph"'}
    body |= {line.partition(" =")[0]: line for line in change.splitlines()}
    text = profile.read_text("utf-8").split("[[library.residual]]")[0]
    entry = '[[library.residual]]\ncollective = "all_reduce"\nlibrary = "nccl"\n'
    path = tmp_path / "hostile.toml"
    path.write_text(text + entry + "\n".join(body.values()) + "\n", "utf-8")
    with pytest.raises(ShardcostError) as caught:
        profile_in(path)
    message = str(caught.value)
    assert HOSTILE[change] in message
    assert "hostile.toml" in message
    assert "\n" not in message


@pytest.mark.parametrize("residual", ["residual = 3", 'residual = ["a"]', "residual = [[1]]"])
def test_what_is_no_table_is_refused(residual: str, profile: Path, tmp_path: Path) -> None:
    text = profile.read_text("utf-8").split("[[library.residual]]")[0]
    path = tmp_path / "hostile.toml"
    path.write_text(text.replace('kind = "ring"', f'kind = "ring"\n{residual}'), "utf-8")
    with pytest.raises(ShardcostError, match="residual"):
        profile_in(path)


def test_a_sound_table_is_read(profile: Path, tmp_path: Path) -> None:
    text = profile.read_text("utf-8").split("[[library.residual]]")[0]
    entry = '[[library.residual]]\ncollective = "all_reduce"\nlibrary = "nccl"\nmode = "graph"\n'
    path = tmp_path / "sound.toml"
    path.write_text(text + entry + SOUND, "utf-8")
    machine = machine_of(Cluster.from_file(path))
    assert collective_time("all_reduce", 2**20, machine, 8).factor == pytest.approx(np.exp(0.1))


def residual_of(at: np.ndarray, log_ratios: np.ndarray) -> Residual | None:
    """Return the residual of one table; None where the formula alone does as well."""
    found = fit_residuals([Points(at, log_ratios)])
    return found.residuals()[0] if found else None


def test_spikes_do_not_bend_their_neighbours() -> None:
    at = np.stack([np.arange(10, 30.0), np.full(20, 3.0)], axis=1)
    smooth = 0.1 * np.sin(at[:, 0] / 4)
    spiky = smooth.copy()
    spiky[9] += 0.8
    result = residual_of(at, spiky)
    assert result is not None
    log_factors = np.log(result.factor(at[:, 0], at[:, 1]))
    assert np.abs(log_factors - smooth).max() < 0.06


def test_many_points_are_thinned() -> None:
    sizes = np.repeat(np.linspace(10, 30, 500), 3)
    at = np.stack([sizes, np.full(1500, 3.0)], axis=1)
    result = residual_of(at, 0.2 * np.sin(sizes / 3))
    assert result is not None
    assert len(result.points) <= 160
    assert np.log(result.factor(20.0, 3.0)) == pytest.approx(0.2 * np.sin(20 / 3), abs=0.03)


def test_noise_alone_gives_next_to_no_residual() -> None:
    at = np.stack([np.arange(10, 30.0), np.full(20, 3.0)], axis=1)
    result = residual_of(at, np.random.default_rng(1).normal(0, 0.02, 20))
    assert result is None or np.abs(np.log(result.factor(at[:, 0], 3.0))).max() < 0.02


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30))
def test_monotone_never_falls_and_keeps_what_is(values: list[float]) -> None:
    result = monotone(np.array(values))
    assert (np.diff(result) >= 0).all()
    assert monotone(np.sort(values)).tolist() == np.sort(values).tolist()
