"""The validation page, written from a table that is made here."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_validate import LIKE, written

from shardcost import Cluster, cli
from shardcost.collectives.silicon import collective_time


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


def test_the_page_states_errors_by_every_split(tmp_path: Path) -> None:
    table = written(tmp_path, rows())
    target = tmp_path / "page.md"
    assert cli.main(["validate", str(table), "--page", str(target)]) == 0
    text = target.read_text()
    assert "771 rows, 770 predicted:" in text
    assert "1 skipped: cluster unknown: 'abacus'" in text
    assert "| NCCL family, one node | 440 | 10.0 | 10.0 | -10.0 |" in text
    assert "| nccl, h100_sxm | alpha-beta line | 220 |" in text
    assert "| h100_sxm | 2 GPUs | 110 |" in text
    assert "| h100_sxm | the whole system | 220 |" in text
    assert "| ib_8x400g | b200_sxm | 110 |" in text
    for line in text.splitlines():
        assert len(line) <= 100, line


def test_a_page_of_few_rows_says_what_it_lacks(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    assert cli.main(["validate", str(written(tmp_path, rows()[:3])), "--page", str(target)]) == 0
    assert target.read_text().count("The table has no such rows.") == 6


def test_the_page_is_not_written_over_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(tmp_path, rows()[:2])
    assert cli.main(["validate", str(table), "--page", str(table)]) == 2
    assert "is the measured table itself" in capsys.readouterr().err
