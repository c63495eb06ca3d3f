"""The validation page, written from tables that are made here, and what it rests on."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_validate import LIKE, written

from lab import refit_collectives, refit_engines
from lab.folds import folds
from lab.page import main
from lab.page_axes import DEGREES, MOST_BINS, SIZES, bins
from lab.page_plots import kind_in, pictured, shown
from lab.page_tables import KINDS, section
from lab.peers import compared, peers
from lab.sources import grouped, source_of
from shardcost import Cluster, catalog
from shardcost.catalog import Folder
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadValueError, FormatError, MissingExtraError, UnknownNameError
from shardcost.formats.tables import VALIDATED, Table, read_table
from shardcost.machine import CATALOG, machine_of
from shardcost.software import Software
from shardcost.validate import training
from shardcost.validate.predictions import Predictions
from shardcost.validate.shipped import shipped
from shardcost.validate.validation import Validation, errors_pct, split, stats, validate


def rows() -> list[dict[str, str]]:
    """Return rows of two systems, an engine and a network, all a tenth above what is predicted."""
    groups = [
        {"cluster": "h100_sxm", "num_gpus": "8"},
        {"cluster": "h100_sxm", "num_gpus": "2"},
        {"cluster": "b200_sxm", "num_gpus": "8"},
        {"cluster": "b200_sxm", "num_gpus": "8", "library": "vllm", "mode": "graph"},
        {"cluster": "l40s", "num_gpus": "4"},
        {"cluster": "h100_sxm", "num_gpus": "16", "nodes": "2", "network": "ib_8x400g"},
        {"cluster": "b200_sxm", "num_gpus": "16", "nodes": "2", "network": "ib_8x400g"},
    ]
    found = []
    for group in groups:
        for place in range(110):
            row = LIKE | {"library": "nccl"} | group
            size = 512 * 1.15**place
            cluster = Cluster.named(row["cluster"], row["network"] or None)
            time = collective_time(
                "all_reduce",
                size,
                cluster,
                int(row["num_gpus"]),
                int(row["nodes"]),
                library=row["library"],
            ).time_s
            found.append(row | {"size_bytes": f"{size}", "time_us": f"{1e6 * time / 0.9}"})
    return [*found, LIKE | {"cluster": "abacus"}]


def test_the_page_states_errors_by_every_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit_collectives, "_ROUNDS", 1)
    table = written(tmp_path, rows())
    target = tmp_path / "page.md"
    assert main([str(target), str(table)]) == 0
    text = target.read_text()
    assert f"    python -m lab.page {target} table.csv\n" in text.replace(" \\\n     ", "")
    assert "771 rows, 770 predicted, the rest skipped:" in text
    assert "- 1: cluster unknown: 'abacus'" in text
    assert "| NCCL family, one node | 440 | 10.0 | 10.0 | 10.0 | 10.0 | -10.0 |" in text
    assert "| nccl, h100_sxm | 220 | 10.0 / 10.0 |" in text
    assert "| h100_sxm | 2 GPUs | 110 |" in text
    assert "| h100_sxm | the whole system | 220 |" in text
    assert "| ib_8x400g | b200_sxm | 110 |" in text
    assert "| `mine` | not known here |" in text
    for line in text.splitlines():
        assert len(line) <= 100 or line.startswith("|"), line


def test_a_page_of_few_rows_says_what_it_lacks(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    assert main([str(target), str(written(tmp_path, rows()[:3]))]) == 0
    assert target.read_text().count("The table has no such rows.") == 11


def test_a_page_counts_no_row_twice(tmp_path: Path) -> None:
    table, target = overlap_table(tmp_path), tmp_path / "page.md"
    with pytest.raises(BadValueError, match=r"different files .*overlap\.csv"):
        main([str(target), str(table), str(table)])
    assert not target.exists()


OVERLAP = "dataset,gpu,m,n,k,ctas,gemm_us_alone,gemm_us_overlapped"


def overlap_table(folder: Path) -> Path:
    """Return a table of overlapped products: two shapes, three counts, times not far off."""
    lines = [
        f"own_h200_torch2.11,h200_sxm,{m},7168,8192,{ctas},{0.15 * m},{0.2 * m}"
        for m in (2048, 4096)
        for ctas in (1, 8, 32)
    ]
    path = folder / "overlap.csv"
    path.write_text("\n".join([OVERLAP, *lines, ""]))
    return path


def test_several_tables_have_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elementwise = tmp_path / "passes.csv"
    elementwise.write_text(
        "dataset,gpu,op,bytes,time_us\n"
        "own_h200_torch2.11,h200_sxm,copy,1048576,3\n"
        "own_h200_torch2.11,h200_sxm,dance,1048576,3\n"
    )
    monkeypatch.chdir(tmp_path)
    overlap_table(tmp_path)
    assert main(["page.md", "overlap.csv", "passes.csv"]) == 0
    told = capsys.readouterr()
    assert "overlap: shapes and multiprocessors left out" in told.err
    assert "left out" not in told.out
    text = Path("page.md").read_text()
    assert "\n    python -m lab.page page.md passes.csv overlap.csv\n" in text
    assert "| [Elementwise kernels](#elementwise-kernels) |" in text
    assert "| 1 of 2 |" in text
    assert "- 1: op unknown: 'dance'" in text
    assert "| overlap, h200_sxm | shapes | 6 |" in text
    assert "measured for this project" in text
    assert text.index("## Elementwise kernels") < text.index("## GEMMs beside a collective")
    assert "## Training" not in text


def test_every_validated_kind_has_a_section() -> None:
    assert set(KINDS) == set(VALIDATED)


def test_a_share_that_was_not_measured_is_not_shown(evidence: Path) -> None:
    table = read_table(evidence / "measured" / "comm_fraction.csv").where(
        lambda row: row["dataset"] == "tokenweave_prefill" and row["model"].startswith("Llama-3.3")
    )
    column = table.columns["comm_fraction_pct"]
    blanked = replace(table, columns={**table.columns, "comm_fraction_pct": ["", *column[1:]]})
    whole, less = (section(validate(each)).splitlines() for each in (table, blanked))
    assert table.rows > 1
    assert whole[-table.rows :][1:] == less[1 - table.rows :]
    assert "1 of these without a measurement" in "\n".join(less)


def test_splits_are_those_of_validate(tmp_path: Path) -> None:
    table = read_table(overlap_table(tmp_path))
    expected = validate(table, ("ctas",)).groups
    found = split(validate(table), ("ctas",))
    assert [each.stats for each in found] == [each.stats for each in expected]
    assert [each.key for each in found] == [{"ctas": "1"}, {"ctas": "8"}, {"ctas": "32"}]


def test_peers_state_what_can_be_checked() -> None:
    found = peers()
    assert len(found) > 20
    for peer in found:
        assert peer.source.startswith("https://"), peer
        assert peer.statistic in {"mean", "median", "max", "bound"}
        assert 0 < peer.error_pct[0] <= peer.error_pct[1]
        assert peer.table in {"", *VALIDATED}
        assert bool(peer.table) == bool(peer.where)
        assert peer.table or not peer.between
        if peer.rows:
            assert len(peer.here_pct) <= peer.rows
        for name in peer.where.get("dataset", ()):
            assert source_of(name)


def test_a_peer_is_compared_on_the_rows_that_it_is_about(tmp_path: Path) -> None:
    sizes = (2**10, 2**20, 2**30)
    made = [
        LIKE | {"cluster": "a100_sxm", "library": "nccl", "size_bytes": str(size), "time_us": "1e4"}
        for size in sizes
    ]
    validation = validate(read_table(written(tmp_path, made)))
    found = {each.peer.tool: each for each in compared(validation)}
    assert set(found) == {"Calculon", "llm-analysis"}  # of sizes from 1 MiB on
    errors = np.abs(errors_pct(validation))[1:]
    for each in found.values():
        assert each.rows == 2
        assert each.theirs_here_pct is None
        assert each.ours_pct == pytest.approx(errors.mean())


def datasets_behind(text: str) -> list[str]:
    """Return the data sets that the statement of a fit names."""
    listed = re.search(r"(?:rows|runs|layers) of (.*)", text)
    found = []
    for part in listed[1].split(", ") if listed else []:
        name = re.match(r"([\w.]+)(?=$|:|;| \()", part)
        if name is None:
            break
        found.append(name[1])
    return found


def test_names_in_a_statement() -> None:
    assert datasets_behind("fitted to 9 rows of a_1, b.2: median 3 %, p90 4 %") == ["a_1", "b.2"]
    assert datasets_behind("whole layers of a_1, one sequence of 8") == ["a_1"]


def fits() -> Iterator[str]:
    """Yield the statement of every fit in the catalog."""
    shelves: tuple[Folder, ...] = (
        "collectives",
        "gemm",
        "attention",
        "elementwise",
        "experts",
        "mla",
        "software",
    )
    for shelf in shelves:
        for _, content in catalog.contents(shelf):
            yield from statements(content)


def statements(content: Mapping[str, Any]) -> Iterator[str]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from statements(value)
        elif isinstance(value, list):
            yield from statements({str(i): each for i, each in enumerate(value)})
        elif name in {"fit", "source"} and "fitted" in str(value):
            yield value


def test_every_data_set_behind_a_constant_is_attributed(repository: Path) -> None:
    page = (repository / "docs" / "validation.md").read_text(encoding="utf-8")
    attributed = page.partition("## Where the measurements come from")[2]
    known = [text for text in fits() if not text.startswith("assumed")]
    assert len(known) > 50
    for text in known:
        names = datasets_behind(text)
        assert names, text
        for name in names:
            assert source_of(name).title in attributed, name


def test_every_measured_data_set_is_attributed(measured: Callable[[str], Path]) -> None:
    for kind in VALIDATED:
        table = read_table(measured(kind))
        for name in set(table.columns["dataset"]):
            assert source_of(name)


def test_an_unknown_data_set_is_said_to_be_unknown() -> None:
    with pytest.raises(UnknownNameError, match="dataset"):
        source_of("nobody")
    found, left = grouped(["nobody", "torchtitan"])
    assert left == ["nobody"]
    assert list(found.values()) == [["torchtitan"]]


RUN = {
    "dataset": "mine",
    "model": "gpt",
    "layers": "24",
    "hidden": "2048",
    "heads": "16",
    "kv_heads": "16",
    "ffn": "8192",
    "gated": "0",
    "vocab": "51200",
    "seq": "2048",
    "mbs": "1",
    "gbs": "32",
    "gpus": "8",
    "tp": "1",
    "pp": "1",
    "vp": "",
    "dp": "8",
    "cp": "1",
    "ep": "1",
    "sp": "0",
    "zero_fsdp": "",
    "recompute": "none",
    "dtype": "bf16",
    "framework": "Megatron-LM 0.12",
    "cluster": "b200_sxm",
    "network": "",
    "tp_overlap": "",
    "measured_step_s": "1",
    "notes": "",
}


def tabled(folder: Path, rows: Sequence[Mapping[str, str]]) -> Table:
    path = folder / "made.csv"
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join([*lines, ""]))
    return read_table(path)


def test_folds_of_frameworks_find_a_slowdown_that_all_rows_share(tmp_path: Path) -> None:
    software = Software.named("torchtitan")  # has no other constant
    run = RUN | {"framework": "torchtitan"}
    rows = []
    for tp, layers in product((1, 2, 4), (24, 32)):
        shape = {"model": f"gpt{layers}", "layers": str(layers), "tp": str(tp), "dp": str(8 // tp)}
        time = training.estimate_of(run | shape, replace(software, slowdown=1.2)).time_s
        rows.append(run | shape | {"measured_step_s": f"{float(time):.6f}"})
    rows.append(run | {"cluster": "abacus"})  # is not predicted, and left alone
    found = {each.left_out: each for each in folds(validate(tabled(tmp_path, rows)), print)}
    assert {each.of for each in found.values()} == {"training, torchtitan"}
    assert set(found) == {"a model", "a TP degree", "a framework", "a system"}
    for left_out in ("a model", "a TP degree"):
        assert np.abs(found[left_out].seen_pct).max() > 5
        assert np.abs(found[left_out].unseen_pct).max() < 1.5


def test_folds_of_engines_are_those_of_their_fits(tmp_path: Path) -> None:
    row = {name: RUN[name] for name in ("dataset", "model", "layers", "hidden", "heads")}
    row |= {name: RUN[name] for name in ("kv_heads", "ffn", "gated", "vocab")}
    row |= {"cluster": "h100_sxm", "gpu": "H100", "tp": "1", "pp": "1", "weight_dtype": "bf16"}
    row |= {"engine": "FasterTransformer", "batching": "static", "batch": "1"}
    row |= {"isl": "128", "osl": "32", "metric": "e2e_latency", "value": "100", "unit": "ms"}
    rows = [row | {"tp": tp, "value": value} for tp, value in (("1", "90"), ("2", "80"))]
    table = tabled(tmp_path, rows)
    found = {each.left_out: each for each in folds(validate(table), lambda _: None)}
    evidence = refit_engines.evidence_of([table], lambda _: True)["fastertransformer"]
    expected = []
    for tp in ("1", "2"):
        rest = evidence.where(lambda row, tp=tp: row["tp"] != tp)  # type: ignore[misc]
        constants = refit_engines.fitted("fastertransformer", rest)
        own = evidence.where(lambda row, tp=tp: row["tp"] == tp)  # type: ignore[misc]
        expected.append(100 * (own.ratios(constants)[0] - 1))
    assert found["a TP degree"].of == "inference, fastertransformer"
    assert found["a TP degree"].unseen_pct == pytest.approx(expected)


def test_engines_and_the_device_are_refitted_by_one_command(tmp_path: Path) -> None:
    row = {name: RUN[name] for name in ("dataset", "layers", "hidden", "heads")}
    row |= {name: RUN[name] for name in ("kv_heads", "ffn", "gated", "vocab")}
    row |= {"gpu": "", "tp": "1", "pp": "1", "weight_dtype": "bf16", "batching": "static"}
    row |= {"batch": "1", "isl": "128", "osl": "32", "metric": "e2e_latency", "unit": "ms"}
    rows = [row | {"model": "gpt", "cluster": "h100_sxm", "engine": "FasterTransformer"}]
    rows += [row | {"model": name, "cluster": "mi300x", "engine": "vLLM 0.5.0"} for name in "abc"]
    rows = [each | {"value": "55" if each["cluster"] == "h100_sxm" else "230"} for each in rows]
    for folder in ("software", "gemm", "attention", "elementwise"):
        (tmp_path / folder).mkdir()
    path = tabled(tmp_path, rows).path
    refit_engines.main([str(path), "--output", str(tmp_path)])
    engine = tomllib.loads((tmp_path / "software" / "fastertransformer.toml").read_text())
    assert engine["fit"]["rows"] == 1
    assert engine["fit"]["median_pct"] < 10
    gemm = tomllib.loads((tmp_path / "gemm" / "mi300x.toml").read_text())["vllm_2024_bf16"]
    attention = tomllib.loads((tmp_path / "attention" / "mi300x.toml").read_text())
    assert gemm["fit"]["rows"] == 2
    assert gemm["fit"]["median_pct"] < 5
    assert "on the other half the median error is" in gemm["fit"]["source"]
    assert attention["vllm_2024_prefill"]["launch_us"] == gemm["launch_us"]
    # What was tried is gone again, and comments of the file are kept.
    assert dict(catalog.contents("gemm"))["mi300x"]["vllm_2024_bf16"]["launch_us"] == 12.0
    assert (tmp_path / "gemm" / "mi300x.toml").read_text().startswith("# Constants fitted")


def test_a_left_out_device_runs_by_the_constants_that_any_other_would() -> None:
    """By architecture, vendor, capability and bandwidth: no vendor is out of reach."""
    left_out = machine_of("mi300x", fitted=CATALOG.without("mi300x")).kernels
    own = machine_of("mi300x").kernels.section("gemm", "bf16")
    assert left_out.section("gemm", "bf16").constants == own.constants
    assert left_out.section("gemm", "bf16").inherited_from is not None
    left_out = machine_of("h200_sxm", fitted=CATALOG.without("h200_sxm")).kernels
    assert left_out.section("gemm", "sharing").inherited_from is None


# The page of what ships, and its pictures.

PICTURES = {"predicted.svg", "by_size.svg", "by_degree.svg", "peers.svg"}


def shipped_page(folder: Path, monkeypatch: pytest.MonkeyPatch, *tables: str) -> Path:
    """Return the page of what ships, written quickly into a folder."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    assert main(["page.md", *tables, "--shipped", "--quick"]) == 0
    return folder / "page.md"


def test_the_page_of_what_ships_is_the_same_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = shipped_page(tmp_path / "one", monkeypatch)
    other = shipped_page(tmp_path / "other", monkeypatch)
    assert one.read_bytes() == other.read_bytes()
    names = {path.name for path in (tmp_path / "one" / "page").iterdir()}
    assert names >= PICTURES
    for name in names:
        content = (tmp_path / "one" / "page" / name).read_bytes()
        assert content == (tmp_path / "other" / "page" / name).read_bytes(), name
        assert content.startswith(b"<?xml")
        assert b"<dc:date>" not in content
        assert len(content) < 300_000, name


def test_the_page_of_what_ships_says_what_it_is_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shipped_page(tmp_path, monkeypatch).read_text(encoding="utf-8")
    assert "\n    python -m lab.page page.md --shipped --quick\n" in text
    assert "the 1,433 rows that ship with shardcost" in text
    assert "## What was left out of the fit" not in text
    assert "(#what-was-left-out-of-the-fit)" not in text
    for name in PICTURES:
        alt = re.search(rf"!\[([^]]{{60,}}\.)\]\(page/{name}\)", text)
        assert alt, name
    for line in text.splitlines():
        assert len(line) <= 100 or line.startswith("|"), line
    attributed = text.partition("## Where the measurements come from")[2]
    for statement in fits():
        for name in datasets_behind(statement):
            assert source_of(name).title in attributed, name


def test_a_page_joins_what_ships_with_what_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.csv").write_text(
        "dataset,gpu,op,bytes,time_us\nmine,h200_sxm,copy,1048576,3\n"
    )
    text = shipped_page(tmp_path, monkeypatch, "mine.csv").read_text(encoding="utf-8")
    assert "    python -m lab.page page.md mine.csv --shipped --quick\n" in text
    assert "no row counts twice; what ships adds 1,433 rows." in " ".join(text.split())
    assert "| 23 of 23 |" in text
    assert "| `mine` | not known here |" in text


def test_a_page_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    target = tmp_path / "page.md"
    with pytest.raises(
        MissingExtraError, match=r"needs matplotlib: pip install 'shardcost\[plot\]'"
    ):
        main([str(target), "--shipped", "--quick"])
    assert not target.exists()


def test_intervals_are_drawn() -> None:
    found = [validate(table) for table in shipped() if table.kind == "gemm"]
    drawn = {each.name: each for each in pictured({"gemm": shown(found[0])}, [])}
    inside = 100 * np.mean(found[0].inside)
    assert 85 < inside <= 100
    assert f"Rows inside: GEMMs {inside:.0f}\N{NO-BREAK SPACE}%" in drawn["intervals.svg"].alt
    content = drawn["intervals.svg"].draw()
    assert f"{inside:.0f} % inside".encode() in content
    assert b"90 % interval" in content
    assert content == drawn["intervals.svg"].draw()


def test_nothing_predicted_is_nothing_drawn(tmp_path: Path) -> None:
    path = tmp_path / "passes.csv"
    path.write_text("dataset,gpu,op,bytes,time_us\nmine,h200_sxm,dance,1048576,3\n")
    assert pictured({"elementwise": shown(validate(read_table(path)))}, []) == []


def test_many_values_are_pooled_over_equal_ratios() -> None:
    values = np.concatenate([[np.nan], np.geomspace(1, 2.0**24, 200)])
    pooled = bins(values)
    assert len(pooled.members) == MOST_BINS == pooled.middles.size
    assert sorted(np.concatenate(pooled.members).tolist()) == list(range(1, 201))
    assert pooled.middles[1:] / pooled.middles[:-1] == pytest.approx(np.full(MOST_BINS - 1, 4))


def test_every_validated_kind_has_a_size() -> None:
    assert set(SIZES) == set(VALIDATED)
    assert set(DEGREES) <= set(VALIDATED)


# A page made anew in part.


def overlap_rows(folder: Path, times: float) -> None:
    """Write a table of overlapped products whose times are so many times those of `overlap_table`.

    With one shape less, so that counts change as well as errors.
    """
    head, *lines = overlap_table(folder).read_text().split()
    kept = [line.split(",") for line in lines[:-1]]
    changed = [",".join([*cells[:-1], str(times * float(cells[-1]))]) for cells in kept]
    (folder / "overlap.csv").write_text("\n".join([head, *changed, ""]))


def several_tables(folder: Path) -> list[str]:
    """Write tables of four kinds with peers, several panels and folds; return their names."""
    folder.mkdir()
    written(folder, [LIKE | {"cluster": "h100_sxm", "size_bytes": "65536", "time_us": "20"}])
    overlap_table(folder)
    (folder / "passes.csv").write_text(
        "dataset,gpu,op,bytes,time_us\n"
        "own_h200_torch2.11,h200_sxm,copy,1048576,3\n"
        "nobody,h200_sxm,copy,16777216,9\n"
    )
    runs = [RUN | {"dataset": "vtrain_single_node", "tp": tp, "dp": dp} for tp, dp in ("18", "24")]
    tabled(folder, runs)
    return ["overlap.csv", "passes.csv", "made.csv", "table.csv"]


def files_of_page(folder: Path) -> dict[str, bytes]:
    paths = [folder / "page.md", *sorted((folder / "page").iterdir())]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("options", [[], ["--shipped", "--quick"]])
def test_a_page_made_anew_in_part_is_the_whole_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    names = several_tables(tmp_path / "one")
    several_tables(tmp_path / "other")
    monkeypatch.chdir(tmp_path / "one")
    assert main(["page.md", *names, *options]) == 0
    before = files_of_page(tmp_path / "one")
    overlap_rows(tmp_path / "one", 1.5)
    assert main(["page.md", "overlap.csv", "--only", "overlap"]) == 0
    monkeypatch.chdir(tmp_path / "other")
    overlap_rows(tmp_path / "other", 1.5)
    assert main(["page.md", *names, *options]) == 0
    after, whole = files_of_page(tmp_path / "one"), files_of_page(tmp_path / "other")
    assert after == whole
    assert {name for name in whole if whole[name] != before[name]} >= {"page.md", "predicted.svg"}
    assert (
        b"| [vTrain](https://arxiv.org/abs/2312.12391) (profiles the target GPU) |"
        in (after["page.md"])
    )
    assert (b"### Collectives: a system" in after["page.md"]) == ("--quick" not in options)
    assert b"`nobody` | not known here" in after["page.md"]


def test_of_a_page_only_what_it_has_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = several_tables(tmp_path / "one")
    monkeypatch.chdir(tmp_path / "one")
    assert main(["page.md", *names]) == 0
    before = files_of_page(tmp_path / "one")
    with pytest.raises(BadValueError, match=r"a kind of page\.md, with a table, got 'training'"):
        main(["page.md", "overlap.csv", "--only", "overlap", "training"])
    Path("renamed.csv").write_bytes(Path("overlap.csv").read_bytes())
    with pytest.raises(BadValueError, match=r"one that page\.md is made from, got 'renamed\.csv'"):
        main(["page.md", "renamed.csv", "--only", "overlap"])
    assert files_of_page(tmp_path / "one") == before
    Path("page/by_size.svg").write_text("<svg/>")
    with pytest.raises(FormatError, match="is no sheet of panels; write the whole page"):
        main(["page.md", "overlap.csv", "--only", "overlap"])


def test_pictures_of_serving_tell_figures_apart() -> None:
    row = {"figure": "", "measured": "10", "concurrency": "8", "experts": ""}
    figures = ["tpot_mean_ms", "tpot_p99_ms", "ttft_mean_ms", "requests_per_s"]
    rows = [row | {"figure": figure} for figure in figures]
    columns = {name: [each[name] for each in rows] for name in row}
    values = np.array([10.5, 10.6, 20.0, 30.0])
    measured = np.full(4, 10.0)
    validation = Validation(
        table=Table("serving", Path("serving.csv"), columns, 4),
        predictions=Predictions(values, [""] * 4),
        measured=measured,
        low=values - 1,
        high=values + 1,
        inside=np.abs(values - measured) < 1,
        skipped={},
        unmeasured=0,
        overall=stats(10 * (values - measured)),
        headline="",
        groups=(),
        extra={},
    )
    found = shown(validation)["predicted.svg"]
    assert found.words == (
        "Serving (TPOT) 100\N{NO-BREAK SPACE}%",
        "Serving (TTFT) 0\N{NO-BREAK SPACE}%",
    )
    assert "Serving (TPOT), 2 rows" in found.panels[0]()
    assert all(kind_in(word) == "serving" for word in found.words)
    assert {"kind", "measure"} <= set(KINDS["serving"].splits[0])
