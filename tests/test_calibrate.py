"""Calibration on a user's own measurements: from few points, with its certainty, as a profile."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import run_error, run_json, run_text
from test_fit import SIZES, curve, rows_of, slower, with_constants
from test_validate import written

from lab.cross_validation import LeftOut
from lab.few_points import all_points, few_points, six_points
from shardcost import Cluster, catalog, cli, collective_time
from shardcost.calibrate.calibrate import calibrate
from shardcost.calibrate.fit import Curve
from shardcost.calibrate.gather import Stated, gathered
from shardcost.calibrate.profile import as_profile
from shardcost.errors import FormatError
from shardcost.formats.reading import MeasurementLog, Point, Run
from shardcost.formats.tables import read_table
from shardcost.machine import machine_of
from shardcost.machine.constants import Calibration, in_file_units, stated
from shardcost.machine.libraries import CATALOG_LIBRARIES, profile_calibrations

H100 = catalog.cluster_named("h100_sxm")
NCCL = CATALOG_LIBRARIES.library(H100, "nccl")


def log_of(known: Curve, device: str = "NVIDIA H100 80GB HBM3") -> str:
    """Return a curve as nccl-tests prints it."""
    case = known.case
    ranks = "\n".join(
        f"#  Rank {i:2d} Group  0 Pid {7000 + i} on node{i * case.nodes // case.gpus}"
        f" device {i:2d} [0x04] {device}"
        for i in range(case.gpus)
    )
    rows = []
    for size, time in zip(known.size_bytes, known.time_s, strict=True):
        algbw = size / time / 1e9
        half = f"{1e6 * time:.2f} {algbw:.2f} {1.75 * algbw:.2f} 0"
        rows.append(f"{int(size)} {int(size) // 4} float sum -1 {half} {half}")
    return (
        "# nccl-tests version 2.13.13 nccl-headers=22706 nccl-library=22706\n"
        f"# Collective test starting: {case.collective}_perf\n"
        f"# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592\n#\n# Using devices\n{ranks}\n#\n"
        "#                                          out-of-place              in-place\n"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        "#   (B)  (elements)               (us)  (GB/s)  (GB/s)         (us)  (GB/s)  (GB/s)\n"
        + "\n".join(rows)
        + "\n# Out of bounds values : 0 OK\n"
    )


def few(truth: Calibration, **asked: Any) -> Curve:
    """Return six points of a curve that a truth would show."""
    return six_points(curve(truth, noise=0.01, **asked))[0]


def test_six_points_carry_to_other_sizes_and_counts() -> None:
    truth = replace(slower(NCCL, 1.3), chooser=NCCL.chooser)
    found = calibrate([few(truth)])[0].calibration
    for gpus in (2, 4, 8):
        tried = curve(truth, gpus=gpus)
        assert np.median(np.abs(tried.error_pct(found))) < 8
        assert np.median(np.abs(tried.error_pct(NCCL))) > 20  # as it was before


def test_points_left_out_are_predicted_by_fits_that_did_not_see_them() -> None:
    """A fit with as many constants as points would have no error on the points themselves."""
    known = curve(slower(NCCL, 1.3), noise=0.2)
    found = calibrate([replace(known, size_bytes=SIZES[:8], time_s=known.time_s[:8])])[0]
    assert found.left_out.rows == 8
    assert found.after.median_pct is not None
    assert found.left_out.median_pct is not None
    assert found.left_out.median_pct > found.after.median_pct
    assert found.counts_left_out.rows == 0  # there is one count only


def test_constants_that_no_point_speaks_of_say_so() -> None:
    found = calibrate([curve(NCCL, gpus=2, noise=0.01)])[0]
    by_name = {one.name: one for one in found.constants}
    assert by_name["ll_base_s"].measured
    assert not by_name["nvls_base_s"].measured  # two GPUs never reduce in the switch
    assert not by_name["p2p_base_s"].measured  # all-to-all has kernels of its own
    assert by_name["ll_base_s"].plus_minus_pct < by_name["p2p_base_s"].plus_minus_pct


def test_more_points_make_constants_surer() -> None:
    one = calibrate([few(NCCL)])[0]
    many = calibrate([curve(NCCL, gpus=gpus, noise=0.01) for gpus in (2, 4, 8)])[0]
    for before, after in zip(one.constants, many.constants, strict=True):
        assert after.plus_minus_pct <= before.plus_minus_pct * 1.05


def test_the_next_measurement_is_of_what_is_least_known() -> None:
    further = calibrate([curve(NCCL, gpus=gpus, noise=0.01) for gpus in (2, 4, 8)])[0].further
    assert further is not None
    assert further.then_pct < further.now_pct
    assert further.collective == "all_to_all"  # whose kernels no all-reduce shows


def test_the_next_measurement_does_narrow_predictions() -> None:
    known = [few(NCCL)]
    first = calibrate(known)[0].further
    assert first is not None
    case = known[0].case._replace(collective=first.collective, gpus=first.gpus)
    size = np.array([float(first.size_bytes)])
    added = Curve(case, size, case.time_s(size, case.machine().with_own(NCCL)), frozenset({"me"}))
    second = calibrate([*known, added])[0].further
    assert second is not None
    assert second.now_pct < first.now_pct


def test_a_network_is_fitted_to_what_crosses_it() -> None:
    network = Cluster.named("h100_sxm", "ib_8x400g")
    wire = machine_of(network).network
    lame = with_constants(wire, efficiency=0.5)
    case = curve(None).case._replace(network="ib_8x400g", gpus=16, nodes=2)
    known = Curve(case, SIZES, case.time_s(SIZES, case.machine().with_own(lame)), frozenset({"me"}))
    found = calibrate([known])
    assert [each.calibration.library for each in found] == ["network"]
    assert stated(found[0].calibration.constants)["efficiency"] == pytest.approx(0.5, rel=0.05)
    text = as_profile("mine", network, found)
    assert tomllib.loads(text)["network"] == "ib_8x400g"


def test_a_library_unknown_to_the_catalog_starts_from_the_usual_one() -> None:
    known = curve(slower(NCCL, 2.0))
    mpi = replace(known, case=known.case._replace(library="mpi"))
    found = calibrate([mpi])[0]
    assert found.started_from == "nccl on h100_sxm"
    assert found.after.median_pct is not None
    assert found.after.median_pct < 5


def test_what_was_calibrated_is_read_back_equal(tmp_path: Path) -> None:
    found = calibrate([few(slower(NCCL, 1.3))])
    path = tmp_path / "mine.toml"
    path.write_text(as_profile("mine", H100, found))
    cluster = Cluster.from_file(path)
    (again,) = profile_calibrations(cluster)
    assert again.system == "mine"
    expected = in_file_units(found[0].calibration.constants)
    assert in_file_units(again.constants) == expected
    assert again.fit.low_pct == pytest.approx(found[0].calibration.fit.low_pct, abs=0.01)
    assert (cluster.system, cluster.device) == ("h100_sxm", H100.device)


def test_every_command_takes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = slower(NCCL, 1.5)
    log = tmp_path / "log.txt"
    log.write_text(log_of(curve(truth)))
    profile = tmp_path / "mine.toml"
    told = run_json(capsys, "calibrate", log, "--name", "mine", "--output", profile)
    assert told["based_on"] == "h100_sxm"
    assert told["points"] == len(SIZES)
    assert told["calibrated"][0]["after"]["median_pct"] < 3
    assert told["calibrated"][0]["measure_next"]["gpus"] in {2, 4, 8}
    asked = ("collective", "all_reduce", "--size", "64MiB", "--gpus", "8", "--on")
    mine = run_json(capsys, *asked, profile)
    usual = run_json(capsys, *asked, "h100_sxm")
    assert mine["time_s"] == pytest.approx(1.5 * usual["time_s"], rel=0.1)
    model = ("llama3-70b", "--prefill", "--batch", "4", "--prompt-tokens", "8192", "--on")
    slow = run_json(capsys, "estimate", *model, profile, "--tp", "8")
    fast = run_json(capsys, "estimate", *model, "h100_sxm", "--tp", "8")
    assert slow["time_s"] > fast["time_s"] * 1.05
    assert "mine" in run_text(capsys, "plan", *model, str(profile), "--gpus", "8")
    front = ("allreduce", "--model", "llama3-70b", "--gpus", "8", "--on", str(profile))
    assert "mine" in run_text(capsys, *front)


def test_a_profile_survives_another_process(tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "mine.toml"
    path.write_text(as_profile("mine", H100, calibrate([few(slower(NCCL, 1.5))])))
    cluster = Cluster.from_profile(path)
    again = pickle.loads(pickle.dumps(cluster))
    there = collective_time("all_reduce", 2**26, again, gpus=8)
    here = collective_time("all_reduce", 2**26, cluster, gpus=8)
    assert there.time_s == here.time_s
    assert any("mine" in each.system for each in there.calibrations)


def test_tables_are_calibrated_on_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = [curve(slower(NCCL, 1.2), gpus=gpus) for gpus in (4, 8)]
    table = written(tmp_path, [row for each in known for row in rows_of(each)])
    told = run_json(
        capsys, "calibrate", table, "--name", "mine", "--output", tmp_path / "mine.toml"
    )
    assert told["points"] == 2 * len(SIZES)
    assert told["calibrated"][0]["gpu_counts_left_out"]["rows"] == 2 * len(SIZES)


def test_validate_predicts_by_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = slower(NCCL, 1.5)
    rows = [row for gpus in (4, 8) for row in rows_of(curve(truth, gpus=gpus))]
    other = rows_of(curve(None, cluster="a100_sxm"))
    table = written(tmp_path, rows + other)
    profile = tmp_path / "mine.toml"
    profile.write_text(as_profile("mine", H100, calibrate([curve(truth)])))
    words = ("validate", table, "--by", "cluster", "--json")
    without, within = (run_json(capsys, *words, *more) for more in ((), ("--on", profile)))
    errors = [
        {each["key"]["cluster"]: each["median_pct"] for each in told["tables"][0]["groups"]}
        for told in (without, within)
    ]
    assert errors[0]["h100_sxm"] > 20
    assert errors[1]["h100_sxm"] < 5
    assert errors[0]["a100_sxm"] == errors[1]["a100_sxm"] < 0.1


def test_what_is_missing_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_config: Callable[..., Path]
) -> None:
    log = tmp_path / "log.txt"
    words = ("calibrate", str(log), "--name", "mine", "--output", str(tmp_path / "mine.toml"))
    log.write_text(log_of(curve(NCCL), device="NVIDIA Q9000"))
    assert "say --on CLUSTER" in run_error(capsys, *words)
    assert run_json(capsys, *words, "--on", "h100")["based_on"] == "h100_sxm"
    message = run_error(capsys, "calibrate", str(tiny_config()), "--name", "mine")
    assert "holds no measured collectives" in message


@pytest.mark.parametrize(
    ("name", "said"),
    [("h100_sxm", "the catalog does not have"), ("a b", "letters"), ("../x", "letters")],
)
def test_names_of_profiles(capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    assert said in run_error(capsys, "calibrate", "x.txt", "--name", name)


def test_no_file_but_a_profile_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(log_of(curve(NCCL)))
    target = tmp_path / "precious.toml"
    target.write_text("[project]\n")
    words = ("calibrate", str(log), "--name", "mine", "--output", str(target))
    assert "a new file" in run_error(capsys, *words)
    assert target.read_text() == "[project]\n"
    target.unlink()
    run_text(capsys, *words)
    run_text(capsys, *words)  # a profile may be written anew


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no file of the catalog"),
        ("name = 'x'\nbased_on = 'h100_sxm'\n", "library is missing"),
        ("name = 'x'\nbased_on = 'h999'\nlibrary = []\n", "h999"),
        ("name = 'x'\nbased_on = 'h100'\nlibrary = []\nodd = 1\n", "unknown key odd"),
        ("name = 3\nbased_on = 'h100'\nlibrary = []\n", "name must be str"),
        ("name = ", "not TOML"),
        ("a = " + "[" * 5000, "nested too deeply"),
    ],
)
def test_broken_profiles_are_one_clear_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(FormatError, match=said):
        Cluster.from_profile(path)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("", "kind is missing"),
        ("kind = 'ring'\nconstants = {fill = 1}\n", "constants of nccl lack ll_base_us"),
        ("kind = 'ring'\nconstants = {odd_us = 1}\n", "constants of nccl: unknown key odd_us"),
        ("kind = 'odd'\n", "odd"),
    ],
)
def test_broken_libraries_of_a_profile_name_it(tmp_path: Path, entry: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"name = 'x'\nbased_on = 'h100'\n[[library]]\nname = 'nccl'\n{entry}")
    with pytest.raises(FormatError, match=f"profile x: .*{said}"):
        collective_time("all_reduce", 1024, Cluster.from_profile(path), gpus=8)


def test_groups_of_ranks_that_lie_apart_are_not_taken_for_neighbours() -> None:
    points = tuple(Point(2**power, 1e-4) for power in range(10, 20))
    near = Run(collective="all_reduce", num_gpus=8, device="NVIDIA H100 80GB HBM3", points=points)
    log = MeasurementLog(file="x", kind="kineto", runs=(near, replace(near, stride=8)))
    found = gathered([log], Stated())
    assert found.points == len(points)
    assert list(found.passed_over.values()) == [len(points)]


def test_a_profile_is_shown_like_any_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(as_profile("mine", H100, calibrate([few(NCCL)])))
    assert run_json(capsys, "clusters", path)["based_on"] == "h100_sxm"


def test_one_bad_file_does_not_keep_others_from_being_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, profile = tmp_path / "log.txt", tmp_path / "mine.toml"
    log.write_text(log_of(curve(NCCL)))
    profile.write_text("name = 'x'\nbased_on = 'h100'\n[[library]]\nname = 'nccl'\n")
    assert cli.main(["inspect", str(profile), str(log), str(tmp_path / "none")]) == 2
    out, err = capsys.readouterr()
    assert "all_reduce on 8 GPUs" in out
    assert [line.partition(": ")[2].partition(":")[0] for line in err.splitlines()] == [
        str(profile),
        str(tmp_path / "none"),
    ]


def test_a_path_has_all_of_its_constants_or_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = as_profile("mine", H100, calibrate([few(NCCL)]))
    kept = [line for line in text.splitlines() if not line.startswith("nvls_gb_per_s")]
    path.write_text("\n".join(kept))
    with pytest.raises(FormatError, match="nvls_bytes_per_s must be given together with"):
        collective_time("all_reduce", 2**26, Cluster.from_profile(path), gpus=8)


def errors(found: Sequence[LeftOut]) -> tuple[float, float]:
    """Return the median error and the error that nine in ten stay below."""
    sizes = np.abs(np.concatenate([each.error_pct for each in found]))
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


LINKED = ("a100_sxm", "b200_sxm", "b300_sxm", "gb300_nvl72", "h100_sxm", "v100_cube")


@pytest.mark.parametrize(
    "systems",
    [
        pytest.param(("a100_sxm", "b300_sxm"), id="two"),
        pytest.param((), id="all", marks=pytest.mark.refit),
    ],
)
def test_six_points_of_a_system_new_to_the_catalog_suffice(
    systems: tuple[str, ...], evidence: Path
) -> None:
    table = read_table(evidence / "measured" / "collectives.csv")
    found = list(few_points(table.where(lambda row: not systems or row["cluster"] in systems)))
    median, p90 = errors(found)
    assert median < 8
    assert p90 < 25
    for system in systems or LINKED:
        median, p90 = errors([each for each in found if each.system == system])
        assert median < 8, system
        assert p90 < 25, system


@pytest.mark.refit
def test_all_points_of_a_system_new_to_the_catalog(evidence: Path) -> None:
    median, p90 = errors(list(all_points(read_table(evidence / "measured" / "collectives.csv"))))
    assert median < 3.5
    assert p90 < 12


def test_the_example_of_the_documentation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], repository: Path
) -> None:
    log = repository / "docs" / "examples" / "all_reduce-8.txt"
    profile = tmp_path / "my-cluster.toml"
    told = run_json(capsys, "calibrate", log, "--name", "my-cluster", "--output", profile)
    (nccl,) = told["calibrated"]
    assert (told["based_on"], nccl["started_from"]) == ("h200_sxm", "the family of h200_sxm")
    assert nccl["before"]["median_pct"] > 10
    assert nccl["after"]["median_pct"] < 3
    assert nccl["left_out"]["rows"] == 6
    kind = run_json(capsys, "inspect", profile)
    assert (kind["kind"], kind["based_on"]) == ("profile", "h200_sxm")
