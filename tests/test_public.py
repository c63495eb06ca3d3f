"""What is public, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shardcost


def test_all_is_what_is_public() -> None:
    assert shardcost.__all__ == sorted(shardcost.__all__)
    assert set(shardcost.__all__) == {"__version__", *shardcost._HOME_OF}
    for name in shardcost.__all__:
        assert getattr(shardcost, name) is not None
    assert dir(shardcost) == shardcost.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = shardcost.nothing


def test_the_import_is_light() -> None:
    code = (
        "import sys; before = set(sys.modules); import shardcost;"
        " print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"numpy", "argparse", "json", "dataclasses", "tomllib", "inspect", "fractions"}
    loaded = set(done.stdout.split())
    assert not heavy & loaded
    assert loaded - set(sys.stdlib_module_names) == {"shardcost"}


def test_the_front_door_needs_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import shardcost.allreduce;"
        " new = {name.split('.')[0] for name in set(sys.modules) - before};"
        " print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["shardcost"]
