"""Runs commands as a user would, and holds their form: output on one stream, errors in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardcost import cli


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Return the one JSON document that a command prints."""
    assert cli.main([*map(str, words), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def run_text(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command prints."""
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def run_error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line with which a command refuses."""
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err
