"""``shardcost collective``: what it prints, that its arithmetic holds, and how it fails.

The fitted constants change whenever they are fitted anew, so nothing here states a time: structure,
units and widths are held, and every formula is evaluated and compared with the model.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from itertools import pairwise, product

import pytest
from running import run_error, run_json, run_text

from shardcost import Cluster, catalog
from shardcost.collectives import ALGORITHMS, PROTOCOLS
from shardcost.collectives.library_time import COLLECTIVES, CollectiveTime, collective_time
from shardcost.collectives.paths import total
from shardcost.collectives.receipts import MEANINGS, path_receipts
from shardcost.collectives.tuner import PathName
from shardcost.errors import ShardcostError
from shardcost.machine import machine_of
from shardcost.machine.constants import Calibration, NetworkConstants
from shardcost.machine.libraries import CATALOG_LIBRARIES, ENGINES, TUNER, catalog_calibrations
from shardcost.receipt import evaluate
from shardcost.report.collective import title

ASK = ("collective", "all_reduce", "--gpus", "8", "--on", "h100_sxm")
UNITS = {
    **{f"{prefix}s": scale for prefix, scale in (("n", 1e-9), ("u", 1e-6), ("m", 1e-3), ("", 1))},
    **{f"{prefix}B/s": 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}B": 1024**power for power, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti"))},
}
QUANTITY = re.compile(r"([0-9.]+) ([numkKMGT]?i?(?:B/s|B|s))\b")


def printed_value(text: str) -> float:
    """Return what a printed formula comes to: ``64 MiB / 450 GB/s`` in seconds."""
    plain = re.sub(r"(?<=[0-9]),(?=[0-9])", "", text)
    numbers = QUANTITY.sub(lambda found: f"({found[1]} * {UNITS[found[2]]})", plain)
    return float(evaluate(numbers.replace(" x ", " * ").replace("^", "**"), {}))


def some_network() -> Calibration:
    """Return made-up constants of a network: the formulas are tested, not the fit."""
    kinds = {"efficiency": 0.8, "ll_port_bytes_per_s": 1e9}
    made_up = {f.name: kinds.get(f.name, 5e-6) for f in fields(NetworkConstants)}
    return Calibration(
        system="ib_8x400g",
        library="network",
        constants=NetworkConstants(**made_up),
        fit=catalog_calibrations()[0].fit,
    )


def predictions() -> Iterator[CollectiveTime]:
    """Yield a prediction of every library on every kind of system, inside a domain and across.

    A system stands for all that have the same libraries on the same kind of links.
    """
    kinds: dict[tuple[str, ...], Cluster] = {}
    for name in catalog.names("clusters"):
        cluster = Cluster.named(name, "ib_8x400g")
        tier = cluster.tiers[-1]
        links = (tier.kind, str(tier.in_switch_reduction), str(tier.peer_access))
        kinds.setdefault((*links, *CATALOG_LIBRARIES.names(cluster)), cluster)
    for cluster in kinds.values():
        whole = cluster.tiers[-1].gpus
        machine = machine_of(cluster).with_own(some_network())
        libraries = CATALOG_LIBRARIES.names(cluster)
        for library, collective in product([*libraries, TUNER], COLLECTIVES):
            if library in ENGINES and collective != "all_reduce":
                continue  # theirs are those of the library they fall back to
            for gpus, size, mode in (
                (2, 1000, "graph"),
                (max(2, whole // 2), 2**26, "graph"),
                (whole, 1000, "graph"),
                (whole, 2**26, "graph"),
                (whole, 2**16, "eager"),
                (2 * whole, 1000, "graph"),
                (2 * whole, 2**26, "graph"),
                (9 * whole - 1, 2**26, "graph"),
            ):
                with suppress(ShardcostError):  # a library need not have every collective and mode
                    yield collective_time(
                        collective, size, machine, gpus, library=library, mode=mode
                    )


def test_every_part_of_every_path_is_explained_by_the_formula_that_computed_it() -> None:
    seen: set[PathName] = set()
    terms: set[str] = set()
    for result in predictions():
        for path in result.paths:
            terms |= checked_terms(result, path)
            seen.add(path)
    assert {algorithm for algorithm, _ in seen} == set(ALGORITHMS)
    assert {protocol for _, protocol in seen} == set(PROTOCOLS)
    assert MEANINGS.keys() <= terms


def checked_terms(result: CollectiveTime, path: PathName) -> set[str]:
    """Return the terms of a path, checked to come to what the model computes, as printed too."""
    scale = float(total(result.paths[path]))
    parts = path_receipts(result, path)
    assert [part.name for part in parts] == list(result.paths[path])
    for part in parts:
        where = f"{part.name} of {path}, {title(result, '?')}"
        assert part.value == pytest.approx(float(result.paths[path][part.name]), rel=1e-9), where
        assert part.evaluate() == pytest.approx(part.value, rel=1e-9, abs=1e-15), where
        printed = printed_value(part.numbers)
        assert printed == pytest.approx(part.value, rel=2e-3, abs=2e-3 * scale), where
    return {term.name for part in parts for term in part.terms}


def test_the_default_view_has_the_answer_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    text = run_text(capsys, *ASK, "--size", "64MiB")
    assert text.startswith("all_reduce of 64 MiB over 8 x h100_sxm, nccl\n")
    for figure, unit in {
        "time": r"[mu]s",
        "algbw": "GB/s",
        "busbw": "GB/s",
        "link": "GB/s",
        "share of link": "%",
    }.items():
        assert re.search(rf"^{figure} +[0-9.,]+ {unit}  \S", text, re.MULTILINE), figure
    found = run_json(capsys, *ASK, "--size", "64MiB")
    assert ALGORITHMS[found["algorithm"]].split(":")[0] in text
    assert "nvswitch links of h100_sxm" in text
    assert len(found["alternatives"]) > 1
    for each in found["alternatives"]:
        assert f"\n{each['algorithm']} {each['protocol']} " in text
    fit = r"^Fit of nccl on h100_sxm: [0-9,]+ rows, median error [0-9.]+ %, p90 [0-9.]+ %$"
    assert re.search(fit, text, re.MULTILINE)
    assert found["calibrations"][0]["fit"]["source"] not in " ".join(text.split())
    assert len(text.splitlines()) <= 30


VIEWS = [
    ("--size", "64MiB"),
    ("--size", "64MiB", "--explain"),
    ("--size", "250KiB", "--explain", "--library", "vllm"),
    ("--size", "250KiB", "--explain", "--library", "sglang==0.5.10", "--mode", "eager"),
    ("--size", "8", "--explain", "--library", TUNER),
    ("--sweep", "8:8GiB"),
    ("--sweep", "8:8GiB", "--library", "vllm"),
    ("--size", "1GiB", "--explain", "--gpus", "32", "--network", "ib_8x400g", "--library", TUNER),
    ("--size", "1GiB", "--explain", "--on", "rtx4090"),
    ("--size", "1MiB", "--explain", "--on", "l40s", "--library", "vllm"),
    ("--size", "64KiB", "--explain", "--on", "mi300x", "--gpus", "4"),
    ("--size", "64KiB", "--explain", "--on", "v100_cube", "--gpus", "4"),
    (
        *("--size", "1GiB", "--explain", "--on", "gb200_nvl72", "--gpus", "144"),
        *("--network", "ib_1x400g_per_gpu"),
    ),
    (
        *("--sweep", "8:8GiB", "--on", "gb200_nvl72", "--gpus", "144"),
        *("--network", "ib_1x400g_per_gpu"),
    ),
    ("--size", "1MiB", "--gpus", "1", "--explain"),
    ("--size", "1MiB", "--algorithm", "ring", "--explain"),
    ("--sweep", "8:8GiB", "--algorithm", "Ring", "--protocol", "ll128"),
]


@pytest.mark.parametrize("words", VIEWS, ids=" ".join)
def test_every_view_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for line in run_text(capsys, *ASK, *words).splitlines():
        assert len(line) <= 80 or "://" in line, line  # an address cannot be broken
        assert line == line.rstrip()


@pytest.mark.parametrize(
    "words", [words for words in VIEWS if "--explain" in words and "1" not in words], ids=" ".join
)
def test_the_explanation_is_the_answer_taken_apart(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    found = run_json(capsys, *ASK, *words)
    own = next(
        each
        for each in found["alternatives"]
        if (each["algorithm"], each["protocol"]) == (found["algorithm"], found["protocol"])
    )
    assert sum(found["parts"].values()) == pytest.approx(own["time_s"])
    mean = sum(each["weight"] * each["time_s"] for each in found["alternatives"])
    assert mean == pytest.approx(found["time_s"])
    text = run_text(capsys, *ASK, *words)
    flat = " ".join(text.split())
    assert f"Why {found['algorithm']} {found['protocol']}: {found['why']}." in flat
    for part in found["formulas"]:
        assert re.search(rf"^{part['name']} +[0-9.,]+ [num]?s  \S", text, re.MULTILINE), part
        assert part["formula"].split()[0] in flat
    assert re.search(r"^sum +[0-9.,]+ [num]?s  of ", text, re.MULTILINE)
    near_a_switch = sum(each["weight"] > 1e-3 for each in found["alternatives"]) > 1
    assert bool(re.search(r"^time +[0-9.,]+ [num]?s  = 0\.", text, re.MULTILINE)) == near_a_switch
    if found["calibrations"]:
        assert "\n[1] " in text
        assert found["calibrations"][0]["stated_by"] in flat


def test_near_a_switch_the_paths_are_weighed(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*ASK, "--library", "vllm", "--size")
    sizes = [f"{kib}KiB" for kib in range(16, 1025, 16)]
    mixed = [
        size
        for size in sizes
        if max(each["weight"] for each in run_json(capsys, *words, size)["alternatives"]) < 0.9
    ]
    assert 0 < len(mixed) < len(sizes) / 2
    assert "near a switch, so a mean: " in run_text(capsys, *words, mixed[0])


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, *ASK, "--size", "64MiB")
    assert list(found) == [
        *("collective", "system", "network", "gpus", "nodes", "domains", "library", "mode"),
        "forced",
        *(
            "size_bytes",
            "time_s",
            "measured_over_formula",
            "low_s",
            "high_s",
            "interval",
            "algorithm",
            "protocol",
            "bound_s",
        ),
        *("algbw_bytes_per_s", "busbw_bytes_per_s", "link_share", "link"),
        *("alternatives", "parts", "formulas", "why", "notes", "provenance", "calibrations"),
    ]
    result = collective_time("all_reduce", 2**26, "h100_sxm", gpus=8)
    assert found["time_s"] == float(result.time_s)
    assert found["parts"] == result.parts()
    assert found["busbw_bytes_per_s"] == pytest.approx(2**26 / found["time_s"] * 2 * 7 / 8)
    assert found["link_share"] == found["busbw_bytes_per_s"] / found["link"]["bytes_per_s"]
    times = [each["time_s"] for each in found["alternatives"]]
    assert times == sorted(times)
    own = found["calibrations"][0]
    assert (own["system"], own["library"]) == ("h100_sxm", "nccl")
    assert own["constants"]["ll_base_s"] < 1e-3
    assert {"rows", "median_pct", "p90_pct", "source"} <= set(own["fit"])


def test_what_is_forced_runs_and_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*ASK, "--algorithm", "Ring", "--protocol", "ll128")
    found = run_json(capsys, *words, "--size", "64MiB")
    assert found["forced"] == {"algorithm": "ring", "protocol": "LL128"}
    assert (found["algorithm"], found["protocol"]) == ("ring", "LL128")
    free = run_json(capsys, *ASK, "--size", "64MiB")["alternatives"]
    (ring,) = (each for each in free if (each["algorithm"], each["protocol"]) == ("ring", "LL128"))
    assert found["time_s"] == ring["time_s"]
    assert "forced to ring LL128" in run_text(capsys, *words, "--size", "64MiB")
    sweep = run_json(capsys, *words, "--sweep", "1KiB:1GiB")
    assert {(row["algorithm"], row["protocol"]) for row in sweep["rows"]} == {("ring", "LL128")}
    assert "forced to ring LL128" in run_text(capsys, *words, "--sweep", "1KiB:1GiB")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--algorithm", "tree"), "nvls or ring for all_reduce of nccl over 8 GPUs in one domain"),
        (("--algorithm", "nvls", "--protocol", "LL"), "protocol must be Simple"),
        (("--algorithm", "one_shot"), "nvls or ring for all_reduce of nccl"),
        (("--library", "vllm", "--algorithm", "nvls_tree"), "multicast or nvls or one_shot"),
        (("--algorithm", "rings"), "unknown algorithm 'rings'; did you mean ring"),
        (("--protocol", "ll64"), "unknown protocol 'll64'; known: LL, LL128, Simple, direct"),
    ],
)
def test_a_path_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    error = run_error(capsys, *ASK, "--size", "1MiB", *words)
    assert said in error
    assert words[-1].lower() in error.lower()


def test_forcing_is_not_for_rules_or_dispatch(capsys: pytest.CaptureFixture[str]) -> None:
    forced = ("--algorithm", "ring")
    assert "exclude each other" in run_error(capsys, *ASK, "--tuner", "rules.csv", *forced)
    words = ("--tokens", "8", "--hidden", "8", "--topk", "2", "--experts", "8")
    asked = ("collective", "dispatch", "--gpus", "8", "--on", "h100_sxm", *words, *forced)
    assert "--algorithm is not for dispatch" in run_error(capsys, *asked)


def test_a_sweep_is_one_prediction_per_size(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, *ASK, "--sweep", "8:8GiB")
    rows = found["rows"]
    assert [row["size_bytes"] for row in rows] == [2**power for power in range(3, 34)]
    assert found["plot"] is None
    one = run_json(capsys, *ASK, "--size", "1MiB")
    row = next(row for row in rows if row["size_bytes"] == 2**20)
    assert row == pytest.approx({name: one[name] for name in row})
    text = run_text(capsys, *ASK, "--sweep", "8:8GiB")
    paths = [(row["algorithm"], row["protocol"]) for row in rows]
    switches = sum(one != other for one, other in pairwise(paths))
    assert switches > 0
    assert text.count("<- switch") == switches
    assert re.search(r"^ *64 MiB +[0-9.]+ us  \w+ \w+ +[0-9.]+ GB/s +[0-9.]+ GB/s", text, re.M)


@pytest.mark.parametrize(
    ("sweep", "sizes"),
    [
        ("8:64", [8, 16, 32, 64]),
        ("8:100", [8, 16, 32, 64, 100]),
        ("1kB:1MB:10", [1000, 10_000, 100_000, 1_000_000]),
        ("1KiB:2KiB:8", [1024, 2048]),
    ],
)
def test_a_sweep_includes_both_ends(
    capsys: pytest.CaptureFixture[str], sweep: str, sizes: list[int]
) -> None:
    rows = run_json(capsys, *ASK, "--sweep", sweep)["rows"]
    assert [row["size_bytes"] for row in rows] == sizes


@pytest.mark.parametrize("name", ["all_reduce", "all-reduce", "allreduce", "AllReduce"])
def test_a_collective_has_many_spellings(capsys: pytest.CaptureFixture[str], name: str) -> None:
    found = run_json(capsys, "collective", name, *ASK[2:], "--size", "1MiB")
    assert found["collective"] == "all_reduce"


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_is_answered(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = run_text(capsys, "collective", name, *ASK[2:], "--size", "1MiB", "--explain")
    assert text.startswith(f"{name} of 1 MiB over 8 x h100_sxm, nccl\n")


@pytest.mark.parametrize(
    ("cluster", "library"), [("h100_sxm", "nccl"), ("mi300x", "rccl"), ("arc_b60", "oneccl")]
)
def test_the_library_is_the_vendors_unless_named(
    capsys: pytest.CaptureFixture[str], cluster: str, library: str
) -> None:
    assert run_json(capsys, *ASK, "--on", cluster, "--size", "1MiB")["library"] == library


@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
def test_across_nodes_an_engine_falls_back(
    capsys: pytest.CaptureFixture[str], library: str
) -> None:
    words = (*ASK, "--gpus", "16", "--network", "ib_8x400g", "--size", "64KiB")
    found = run_json(capsys, *words, "--library", library)
    assert "direct" not in {each["protocol"] for each in found["alternatives"]}
    assert found["why"].startswith(f"{library} has no kernel of its own for this group")


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("vllm", r"vllm since [0-9.]+ prefers one_shot up to [0-9]+ KiB, .*; beyond, NCCL runs"),
        ("sglang==0.5.10", r"sglang 0\.5\.10 prefers one_shot up to "),
        ("trtllm", "trtllm tunes its choice, so the fastest "),
        ("nccl", "NCCL runs what its own model puts lowest"),
    ],
)
def test_the_rule_of_the_choice_is_named(
    capsys: pytest.CaptureFixture[str], library: str, said: str
) -> None:
    found = run_json(capsys, *ASK, "--size", "64KiB", "--library", library)
    assert re.match(said, found["why"])


@pytest.mark.parametrize(
    ("collective", "words", "name"),
    [
        ("send_recv", ("--on", "mi300x"), "full_mesh links of mi300x, GPU to GPU"),
        ("send_recv", (), "nvswitch links of h100_sxm, per GPU"),
        ("all_to_all", ("--gpus", "16", "--network", "ib_8x400g"), "ib_8x400g, per GPU"),
        ("all_gather", ("--gpus", "16", "--network", "ib_8x400g"), "ib_8x400g, per node"),
    ],
)
def test_the_link_is_the_slowest_on_the_way(
    capsys: pytest.CaptureFixture[str], collective: str, words: tuple[str, ...], name: str
) -> None:
    found = run_json(capsys, "collective", collective, *ASK[2:], *words, "--size", "1MiB")
    assert found["link"]["name"].endswith(name)


def test_a_path_that_nccl_rules_out_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    one_per_node = ("--nodes", "8", "--network", "ib_8x400g", "--size", "64MiB")
    found = run_json(capsys, *ASK, *one_per_node)
    assert not {"nvls", "nvls_tree"} & {each["algorithm"] for each in found["alternatives"]}


def test_one_gpu_by_itself_sends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*ASK, "--gpus", "1")
    found = run_json(capsys, *words, "--size", "1MiB")
    assert (found["time_s"], found["algbw_bytes_per_s"], found["parts"]) == (0, 0, {})
    assert "sends nothing" in run_text(capsys, *words, "--size", "1MiB")
    assert {row["time_s"] for row in run_json(capsys, *words, "--sweep", "8:64")["rows"]} == {0}
    assert "sends nothing" in run_error(capsys, *words, "--plot", "never.png")


def test_inherited_constants_are_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    known = {each.system for each in catalog_calibrations() if each.library == "nccl"}
    clusters = (Cluster.named(name) for name in catalog.names("clusters"))
    unmeasured = next(
        c.name for c in clusters if c.name not in known and "nccl" in CATALOG_LIBRARIES.names(c)
    )
    text = run_text(capsys, *ASK, "--on", unmeasured, "--gpus", "2", "--size", "1MiB")
    assert f"no measurements for nccl on {unmeasured}" in " ".join(text.split())


def test_extrapolation_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    notes = run_json(capsys, *ASK, "--size", "1TiB")["notes"]
    assert any(note.endswith("; extrapolated") for note in notes)


def test_beyond_a_domain_the_network_is_the_link(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpus", "16", "--network", "ib_8x400g", "--size", "1GiB", "--library", TUNER)
    found = run_json(capsys, *ASK, *words)
    assert (found["nodes"], found["domains"], found["network"]) == (2, 2, "ib_8x400g")
    assert found["link"]["name"].startswith("network ports of ib_8x400g")
    assert "on 2 nodes (ib_8x400g)" in run_text(capsys, *ASK, *words)
    spread = run_json(capsys, *ASK, *words, "--nodes", "4")
    assert spread["domains"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("collective", "allgater", *ASK[2:], "--size", "1"), "known: all_gather, all_reduce, "),
        ((*ASK, "--size", "0"), "--size must be at least 1 byte, got '0'"),
        ((*ASK, "--size", "-5"), "--size must be a size with its unit"),
        ((*ASK, "--size", "many"), "--size must be a size with its unit"),
        ((*ASK, "--size", "64M"), "write MiB for"),
        ((*ASK, "--size", "1.5"), "a whole number of bytes"),
        ((*ASK, "--size", "1", "--gpus", "eight"), "--gpus must be a whole number"),
        ((*ASK, "--size", "1", "--gpus", "0"), "gpus must be a whole number of at least 1"),
        ((*ASK, "--size", "1", "--gpus", "16", "--nodes", "1"), "at most 8 on 1 node"),
        ((*ASK, "--size", "1", "--gpus", "16"), "name a network for more"),
        ((*ASK, "--size", "1", "--on", "mi300x", "--library", "nccl"), "known: generic, rccl"),
        (
            (*ASK, "--size", "1", "--on", "gaudi3", "--library", "hccl"),
            "known: generic",
        ),
        ((*ASK, "--size", "1", "--library", "mpi"), "nccl-tuner"),
        ((*ASK, "--size", "1", "--mode", "slow"), "unknown mode 'slow'; known: eager, graph"),
        ((*ASK, "--size", "1", "--mode", "eager"), "no eager rows were measured"),
        (("collective", "broadcast", *ASK[2:], "--size", "1", "--library", TUNER), "all_gather"),
        (ASK, "missing --size"),
        ((*ASK, "--size", "1", "--sweep", "8:16"), "--size and --sweep exclude each other"),
        ((*ASK, "--size", "1", "--plot", "x.png"), "--size and --plot exclude each other"),
        ((*ASK, "--explain", "--sweep", "8:16"), "it explains one --size"),
        ((*ASK, "--sweep", "8"), "two sizes like 8:8GiB"),
        ((*ASK, "--sweep", "8:8"), "from a smaller size to a larger one"),
        ((*ASK, "--sweep", "0:8"), "at least 1 byte"),
        ((*ASK, "--sweep", "8:16:1"), "with a factor of at least 2"),
        ((*ASK, "--sweep", "8:16:x"), "the factor of --sweep must be a whole number"),
        (("collective", "all_reduce", "--size", "1", "--on", "h100_sxm"), "--gpus"),
    ],
)
def test_bad_input_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in run_error(capsys, *words)


def test_an_answer_loads_nothing_heavy() -> None:
    code = (
        "import sys; from shardcost.cli import main;"
        f" code = main([*{ASK!r}, '--size', '1MiB', '--explain']);"
        " heavy = {'matplotlib', 'scipy', 'networkx'} & set(sys.modules);"
        " sys.exit(code or str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
