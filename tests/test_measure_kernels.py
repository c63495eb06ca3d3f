"""Kernels measured on this host, and constants fitted to tables of them."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardcost.calibrate.host_file import host_cluster, host_file
from shardcost.calibrate.kernels import CalibratedKernels, calibrate_kernels, profile_lines
from shardcost.catalog import PROFILE_FIRST_LINE
from shardcost.cli import main
from shardcost.cluster import Cluster
from shardcost.errors import FormatError
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.kernels.elementwise import elementwise_time_s
from shardcost.kernels.gemm import gemm_parts, gemm_time_s
from shardcost.kernels.receipts import traced_gemm
from shardcost.machine import CATALOG, by_profile, machine_of
from shardcost.machine.kernels import Fit, KernelConstants
from shardcost.machine.libraries import profile_in
from shardcost.measure.kernels.cases import FIELDS, KINDS, KernelCase, Limits, cases_for
from shardcost.measure.kernels.numpy_device import NumpyDevice
from shardcost.measure.kernels.session import HEADER, MeasuredKernels, measure
from shardcost.measure.kernels.timing import NotAvailableError, Times
from shardcost.receipt import Receipt
from shardcost.software import Software
from shardcost.traced import receipt
from shardcost.validate.kernels import cases
from shardcost.validate.validation import Stats, validate

H200 = "h200_sxm"
_HEADS = {"batch": 2, "heads": 2, "kv_heads": 1, "head_dim": 8}
GPU = Limits(("bf16", "fp8"), 12e9, 4e12, "graph", ("flash", "cudnn"), lasting_s=4.0)


class Synthetic:
    """A device whose kernels take what given constants say, with noise."""

    name, software = "NVIDIA H200", "torch 0"
    limits = GPU

    def __init__(self, on: KernelConstants, noise: float = 0.0) -> None:
        self.on, self.noise = on, noise
        self.random = np.random.default_rng(1)
        self.measured_cases: list[KernelCase] = []

    def measured(self, case: KernelCase) -> Times:
        """Return the time that the constants say."""
        self.measured_cases.append(case)
        if case.kind == "grouped_gemm":
            raise NotAvailableError("there is none")
        time_us = 1e6 * float(self._time_s(case)) * np.exp(self.noise * self.random.normal())
        return Times(time_us, time_us, time_us, 1)

    def _time_s(self, case: KernelCase) -> Any:
        heads = (case.heads, case.kv_heads, case.head_dim)
        if case.kind == "gemm":
            return gemm_time_s(self.on, case.dtype, case.m, case.n, case.k)
        if case.kind == "prefill":
            tokens = (case.query_tokens, case.context_tokens)
            return prefill_time_s(self.on, case.dtype, case.batch, *tokens, *heads)
        if case.kind == "decode":
            of = (case.batch, case.context_tokens, *heads)
            return decode_time_s(self.on, case.dtype, *of, section="flash_decode")
        return elementwise_time_s(self.on, case.bytes_moved)


def other_constants() -> KernelConstants:
    """Return the H200's kernels with constants that the catalog does not have."""
    on = machine_of(H200).kernels
    gemm = on.gemm("bf16")
    slower = gemm._replace(
        constants={**gemm.constants, "peak_share": 0.55, "memory_share": 0.7, "launch_us": 6.0}
    )
    plain = on.section("elementwise", "elementwise")
    copies = plain._replace(constants={**plain.constants, "memory_share": 0.6, "latency_us": 3.0})
    sections: Any = {("gemm", "bf16"): slower, ("elementwise", "elementwise"): copies}
    return replace(on, sections=sections)


def table_of(path: Path, device: Any, kinds: tuple[str, ...], only: int = 10**6) -> Table:
    """Return the table that measuring a device writes, of some rows."""
    table = MeasuredKernels(path, H200)
    device.limits = replace(device.limits, scale=0.25)
    measure(device, table, 600.0, kinds)
    table.close()
    found = read_table(path)
    return found.at(range(min(only, found.rows)))


def test_cases_cover_every_kind_from_the_beginning_on() -> None:
    every = cases_for(GPU)
    assert {case.kind for case in every} == set(KINDS)
    assert {case.kind for case in every[:40]} == set(KINDS)
    assert len(set(every)) == len(every)
    assert all(case.bytes_moved <= GPU.most_bytes for case in every)
    gemms = [case for case in every if case.kind == "gemm" and case.dtype == "bf16"]
    few, many = (
        sum(low <= case.m < high for case in gemms) for low, high in ((1, 128), (128, 16385))
    )
    assert 0.5 < few / many < 2  # spread over the logarithm of m
    assert all(case.k % 16 == case.n % 16 == 0 for case in gemms)  # what fp8 kernels need


def test_bytes_and_operations_are_counted() -> None:
    gemm = KernelCase("gemm", "bf16", m=2, n=3, k=4)
    assert (gemm.flops, gemm.bytes_moved) == (48, 52)
    decode = KernelCase(
        "decode",
        "bf16",
        batch=2,
        heads=8,
        kv_heads=2,
        head_dim=4,
        query_tokens=1,
        context_tokens=16,
    )
    assert decode.bytes_moved == 2 * 2 * 4 * (2 * 8 + 2 * 2 * 16)
    assert KernelCase("add", "fp32", tokens=5, width=7).bytes_moved == 3 * 4 * 35


def test_numpy_measures_every_kind_but_grouped_gemms() -> None:
    device = NumpyDevice()
    small = {
        "gemm": {"m": 4, "n": 8, "k": 16},
        "prefill": {**_HEADS, "query_tokens": 4, "context_tokens": 4},
        "decode": {**_HEADS, "query_tokens": 1, "context_tokens": 9},
    }
    for kind in KINDS:
        sizes: Any = small.get(kind, {"tokens": 2, "width": 8, "m": 8, "n": 8, "k": 8, "groups": 2})
        case = KernelCase(kind, "fp32", "call", **sizes)
        if kind == "grouped_gemm":
            with pytest.raises(NotAvailableError, match="no grouped GEMM"):
                device.measured(case)
        else:
            times = device.measured(case)
            assert 0 < times.min_us <= times.time_us <= times.p90_us


def test_torch_measures_the_cpu() -> None:
    pytest.importorskip("torch")
    from shardcost.measure.kernels.torch_device import torch_device

    device = torch_device(cpu=True)
    assert device is not None
    for case in (
        KernelCase("gemm", "fp32", "call", m=4, n=8, k=16),
        KernelCase(
            "prefill", "fp32", "call", "flash", batch=1, heads=4, kv_heads=2, head_dim=16,
            query_tokens=8, context_tokens=8,
        ),
        KernelCase("rms_norm", "fp32", "call", tokens=2, width=8),
        KernelCase("silu_mul", "fp32", "call", tokens=2, width=8),
    ):  # fmt: skip
        assert device.measured(case).time_us > 0


def test_the_command_measures_this_host_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "kernels.csv"
    words = ["measure", "kernels", "--cpu", "--kinds", "copy", "--output", str(target)]
    assert main([*words, "--minutes", "0.01"]) == 0
    rows = list(csv.DictReader(target.read_text().splitlines()))
    assert {row["gpu"] for row in rows} == {"cpu"}
    assert main([*words, "--minutes", "0.002"]) == 2  # the file is there
    capsys.readouterr()
    assert main([*words, "--minutes", "0.002", "--append"]) == 0
    more = list(csv.DictReader(target.read_text().splitlines()))
    assert more[: len(rows)] == rows
    keys = [tuple(row[name] for name in FIELDS) for row in more]
    assert len(set(keys)) == len(keys)  # nothing twice
    assert "were there already" in capsys.readouterr().out


def test_a_table_keeps_what_was_measured_and_leaves_out_what_is_not_available(
    tmp_path: Path,
) -> None:
    device = Synthetic(machine_of(H200).kernels)
    device.limits = replace(GPU, scale=0.02)
    path = tmp_path / "k.csv"
    table = MeasuredKernels(path, H200)
    outcome = measure(device, table, 600.0)
    table.close()
    tried = [case for case in device.measured_cases if case.kind == "grouped_gemm"]
    assert len(tried) == 3  # then it is given up
    assert sum(outcome.skipped.values()) == 6
    again = MeasuredKernels(path, H200, append=True)
    assert measure(device, again, 600.0).already == table.rows
    again.close()
    none = MeasuredKernels(tmp_path / "none.csv", H200)
    late = measure(device, none, 0.0)
    assert late.out_of_time == len(cases_for(device.limits))
    assert not none.rows
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="not the header"):
        MeasuredKernels(tmp_path / "other.csv", H200, append=True)


def test_calibration_recovers_known_constants(tmp_path: Path) -> None:
    """On points that the fit did not see, constants that are not the catalog's are found."""
    pytest.importorskip("scipy")
    truth = other_constants()
    table = table_of(tmp_path / "k.csv", Synthetic(truth, noise=0.01), ("gemm", "copy", "add"))
    table = table.where(lambda row: row["dtype"] == "bf16")
    results, skipped = calibrate_kernels([table], Cluster.named(H200))
    found = {result.title: result for result in results}
    assert set(found) == {"GEMM bf16", "copy, add"}
    assert sum(skipped.values()) == 5  # burst and sustained
    for result in results:
        before, median, p90 = (
            each or 0.0
            for each in (
                result.before.median_pct,
                result.left_out.median_pct,
                result.left_out.p90_pct,
            )
        )
        assert before > 10
        assert 0 < median < 2
        assert 0 < p90 < 5
    moved = found["copy, add"].moved
    assert moved["memory_share"][1] == pytest.approx(0.6, rel=0.05)
    assert found["GEMM bf16"].moved["launch_us"][1] == pytest.approx(6.0, rel=0.15)


def profile_of(tmp_path: Path, extra: str = "") -> Path:
    """Return a profile with calibrated GEMMs that have a residual, and copies."""
    pytest.importorskip("scipy")
    table = table_of(tmp_path / "k.csv", Synthetic(other_constants(), 0.1), ("gemm", "copy"))
    only = table.where(lambda row: row["dtype"] == "bf16")
    results, _ = calibrate_kernels([only], Cluster.named(H200))
    text = f'{PROFILE_FIRST_LINE}\nname = "mine"\nbased_on = "{H200}"\n'
    path = tmp_path / "mine.toml"
    path.write_text(text + "\n".join(profile_lines(results)) + "\n" + extra)
    return path


def test_attention_of_torch_is_not_that_of_an_engine(tmp_path: Path) -> None:
    flash = machine_of(H200).kernels.section("attention", "flash_decode")
    text = f'{PROFILE_FIRST_LINE}\nname = "mine"\nbased_on = "{H200}"\n'
    slow = {**flash.constants, "grouped": {**flash.constants["grouped"], "launch_us": 99.0}}
    none, decode = Stats(0), flash._replace(name="decode", constants=slow)
    entry = CalibratedKernels(
        key=("attention", "decode"),
        title="decode flash",
        section=decode._replace(fit=Fit("x", 9, 1.0, 2.0, "flash2")),
        started_from=H200,
        before=none,
        inherited=none,
        after=none,
        formula_left_out=none,
        left_out=none,
        moved={},
    )
    path = tmp_path / "mine.toml"
    path.write_text(text + "\n".join(profile_lines([entry])) + "\n")
    cluster = profile_in(path)
    for software, own in ((None, True), ("torch", True), ("vllm", False), ("trtllm", False)):
        named = None if software is None else Software.named(software)
        constants = machine_of(cluster, named).kernels.section("attention", "decode").constants
        assert (constants["grouped"]["launch_us"] == 99) == own, software


def read_errors(path: Path, on: Path | None) -> float:
    """Return the median error of 16-bit GEMMs of a table, by the catalog or by a profile."""
    fitted = CATALOG if on is None else by_profile(profile_in(on))
    only = read_table(path).where(lambda row: row["kind"] == "gemm" and row["dtype"] == "bf16")
    return validate(only, [], fitted=fitted).overall.median_pct or 0.0


def test_a_profile_prices_by_its_kernels(tmp_path: Path) -> None:
    path = profile_of(tmp_path)
    on = machine_of(profile_in(path)).kernels
    assert on.gemm("bf16").constants["launch_us"] > 4
    assert on.gemm("fp8").constants == machine_of(H200).kernels.gemm("fp8").constants
    shapes = np.array([[64.0, 4096, 4096], [8192.0, 8192, 1024]]).T
    many = gemm_time_s(on, "bf16", *shapes)
    for place, shape in enumerate(shapes.T.tolist()):
        assert gemm_time_s(on, "bf16", *shape) == pytest.approx(many[place])
        m, n, k = shape
        traced, parts = traced_gemm(on, "bf16", m, n, k, 1)
        written: Receipt = receipt(traced, "gemm", "", "s")
        assert written.value == pytest.approx(parts.time_s)
    # Far from all that was measured the formula is left alone.
    assert gemm_parts(on, "bf16", 2**40, 2**40, 2**40).factor == pytest.approx(1, abs=0.05)
    table = tmp_path / "k.csv"
    plain, own = (read_errors(table, on=each) for each in (None, path))
    assert own < 0.5 * plain
    assert main(["estimate", "llama3-8b", "--on", str(path), "--decode", "--batch", "8",
                 "--context-tokens", "1024", "--why", "tpot_s"]) == 0  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('table = "gemm"', 'table = "gem"', "a table and section"),
        ('section = "bf16"', 'section = "nvfp4"', "a table and section"),
        ("peak_share = ", "peak_share = -", "peak_share of gemm bf16"),
        ("memory_share = ", "memory_share = 7", "from 1e-06 to 1"),
        ("launch_us = ", "launch_us = nan #", "launch_us"),
        ("launch_us = ", "lunch_us = ", "launch_us too"),
        ("tiles = [[", "tiles = [[0, 1], [", "tiles"),
        ("rows = ", "raws = ", "key of fit"),
        ("[kernels.fit]", "[kernels.fid]", "fit too"),
        ("[kernels.constants]", "[kernels.constants.deeper]", "nested too deeply"),
        ('table = "elementwise"', 'table = "gemm"\n#', "a table and section"),
    ],
)
def test_hostile_kernels_of_a_profile_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    path = tmp_path / "mine.toml"
    constants = machine_of(H200).kernels.gemm("bf16").constants
    copies = machine_of(H200).kernels.section("elementwise", "elementwise").constants
    lines = [PROFILE_FIRST_LINE, 'name = "mine"', f'based_on = "{H200}"']
    for table, name, own in (("gemm", "bf16", constants), ("elementwise", "elementwise", copies)):
        lines += ["[[kernels]]", f'table = "{table}"', f'section = "{name}"']
        lines += ["[kernels.fit]", 'source = "x"', "rows = 9", "median_pct = 1.0", "p90_pct = 2.0"]
        lines += ["[kernels.constants]", *(f"{key} = {value!r}" for key, value in own.items())]
    text = "\n".join(lines)
    path.write_text(text)
    profile_in(path)
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert main(["clusters", str(path)]) == 2 or main(
        ["estimate", "llama3-8b", "--on", str(path), "--decode", "--batch", "1",
         "--context-tokens", "64"]
    ) == 2  # fmt: skip
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) <= 2
    assert "Traceback" not in error


def test_a_cpu_becomes_a_hardware_file(tmp_path: Path) -> None:
    """A GEMM's rate is the peak, a large copy's the bandwidth; a model is priced on it."""
    pytest.importorskip("scipy")
    path = tmp_path / "cpu.csv"
    rng = np.random.default_rng(2)
    lines = [",".join(HEADER)]
    for case in cases_for(NumpyDevice().limits):
        if case.kind not in ("gemm", "copy"):
            continue
        seconds = 1e-6 + case.bytes_moved / 20e9 + (case.flops if case.kind == "gemm" else 0) / 1e11
        time_us = f"{1e6 * seconds * np.exp(0.02 * rng.normal()):.3f}"
        cells = (
            "cpu",
            "A CPU",
            "numpy",
            *case.cells(),
            case.bytes_moved,
            5,
            time_us,
            time_us,
            time_us,
        )
        lines.append(",".join(map(str, cells)))
    path.write_text("\n".join(lines) + "\n")
    table = read_table(path)
    cluster = host_cluster("my-host", [table], 4, 16 * 2**30)
    assert cluster.device.memory_bytes_per_s == pytest.approx(20e9, rel=0.1)
    assert cluster.device.peak("fp32") == pytest.approx(1e11, rel=0.2)
    results, _ = calibrate_kernels([table], cluster)
    target = tmp_path / "my-host.toml"
    target.write_text(host_file("my-host", [table], 4, 16 * 2**30, results))
    found = machine_of(profile_in(target)).kernels
    assert found.gemm("fp32").fit.rows == sum(kind == "gemm" for kind in table.columns["kind"])
    assert gemm_time_s(found, "fp32", 1, 4096, 4096) == pytest.approx(4 * 4096**2 / 20e9, rel=0.5)
    words = ["estimate", "llama3.2-1b", "--on", str(target), "--decode", "--batch", "1"]
    assert main([*words, "--context-tokens", "256"]) == 0


def test_validate_predicts_measured_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of(tmp_path / "k.csv", Synthetic(machine_of(H200).kernels), ("gemm", "copy"))
    known = cases(table)
    assert not any(known.reasons)
    assert main(["validate", str(tmp_path / "k.csv")]) == 0
    said = " ".join(capsys.readouterr().out.split())  # where a line breaks depends on the path
    assert f"{table.rows} rows, {table.rows} predicted, 0 skipped" in said
    assert "gemm, fp8" in said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("h200_sxm,,,gemm,bf16,graph,,0,8,8", "m must be"),
        ("h200_sxm,,,gemm,bf16,graph,,8,8,x", "k must be"),
        ("h200_sxm,,,conv,bf16,graph,,8,8,8", "unknown kind"),
        ("h200_sxm,,,gemm,bf16,graph,,8,8,8", "fewer than 6 points"),
        ("unknown,,,gemm,bf16,graph,,8,8,8", "say --on CLUSTER"),
    ],
)
def test_bad_tables_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, said: str
) -> None:
    path = tmp_path / "bad.csv"
    rest = "," * (len(HEADER) - 1 - row.count(",") - 2) + "5,5,5"
    path.write_text(f"{','.join(HEADER)}\n{row}{rest}\n")
    assert main(["calibrate", str(path), "--name", "mine"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert "Traceback" not in error


LATER = {
    "GEMM, bf16 and fp8": ("gemm",),
    "attention: decode, prefill by cuDNN": ("decode", "prefill"),
    "elementwise": ("copy", "add", "rms_norm", "silu_mul"),
    "grouped GEMM (not fitted)": ("grouped_gemm",),
}
"""Kernels of the table of the documentation, each with its kinds."""


def test_the_documentation_states_what_a_later_run_shows(tmp_path: Path, repository: Path) -> None:
    """The profile of one run predicts another run, at sizes that the first did not have."""
    pytest.importorskip("scipy")
    first, later = (
        read_table(repository / "lab" / "measured" / f"own_h200_kernels{name}.csv")
        for name in ("", "_later")
    )
    seen = {tuple(row[name] for name in FIELDS) for row in first.records()}
    later = later.where(
        lambda row: (
            row["mode"] == "graph"
            and (row["kind"] != "prefill" or row["kernel"] == "cudnn")
            and tuple(row[name] for name in FIELDS) not in seen
        )
    )
    results, _ = calibrate_kernels([first], Cluster.named(H200))
    text = f'{PROFILE_FIRST_LINE}\nname = "mine"\nbased_on = "{H200}"\n'
    path = tmp_path / "mine.toml"
    path.write_text(text + "\n".join(profile_lines(results)) + "\n")
    page = (repository / "docs" / "calibration.md").read_text(encoding="utf-8")
    for what, kinds in LATER.items():
        own = later.at([at for at, kind in enumerate(later.columns["kind"]) if kind in kinds])
        figures = [float(own.rows)]
        for fitted in (by_profile(profile_in(path)), CATALOG):
            errors = validate(own, [], fitted=fitted).overall
            figures += [errors.median_pct or 0.0, errors.p90_pct or 0.0]
        line = next(line for line in page.splitlines() if line.startswith(f"| {what} |"))
        stated = [float(word) for word in re.findall(r"[0-9.]+", line.partition(" | ")[2])]
        assert stated[0] == figures[0]
        assert stated == pytest.approx(figures, rel=0.03, abs=0.15)
