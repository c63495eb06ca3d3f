"""Public training runs at scale lie inside the intervals of their estimates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab import public_runs
from shardcost import catalog

PAGE = Path(__file__).parent.parent / "docs" / "public_runs.md"


@pytest.mark.parametrize("run", public_runs.runs(), ids=lambda run: str(run["name"]))
def test_a_public_run_is_inside_its_interval(run: Mapping[str, Any]) -> None:
    result = public_runs.compared(run)
    assert result.is_inside, (result.stated_s, result.low_s, result.high_s)


def test_the_page_of_public_runs_is_what_the_command_writes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    public_runs.main([str(page)])
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


def test_production_runs_of_2024_have_the_constants_of_megatron_core() -> None:
    """Nothing was fitted to them: a refit of Megatron Core is one of theirs."""
    tuned, plain = (catalog.raw("software", name) for name in ("megatron_core", "megatron_2024"))
    assert plain["constants"] == tuned["constants"]
