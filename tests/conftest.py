"""Fixtures shared by all tests, and where optional further evidence is looked for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]

# The same examples in every run: a red test stays red until it is mended.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the folder of the project."""
    return REPOSITORY


@pytest.fixture(scope="session")
def evidence() -> Path:
    """Return the folder of further measurements and sample files; skip where there is none."""
    named = os.environ.get("SHARDCOST_EVIDENCE") or REPOSITORY.parent / "shared"
    folder = Path(named).parent if Path(named).name == "measured" else Path(named)
    if not (folder / "measured" / "collectives.csv").is_file():
        pytest.skip(f"no further evidence at {folder} (SHARDCOST_EVIDENCE names the folder)")
    return folder


@pytest.fixture
def tiny_config(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the config.json of a tiny Llama, with changes, to a folder."""

    def written(**changes: object) -> Path:
        config = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 32000,
        }
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        return tmp_path

    return written
