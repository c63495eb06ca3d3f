"""Fixtures shared by all tests, and where optional further evidence is looked for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:  # only tests of the page need a browser and what drives it
    from browsing import Visit, Visits
    from playwright.sync_api import Browser

REPOSITORY = Path(__file__).resolve().parents[1]

# The same examples in every run: a red test stays red until it is mended.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


SLOW = frozenset(
    "test_accuracy test_advice test_api test_api_load test_api_page test_api_schema"
    " test_backends test_calibrate test_calibrate_steps test_cli_load test_cli_plan"
    " test_collective_curves test_completion test_docs test_fit test_footing"
    " test_hardware_files test_hf_config test_hostile_files test_inference_evidence"
    " test_layer_evidence test_load_queues test_load_steady test_logs test_measure"
    " test_measure_kernels test_notebook test_page test_page_adjusted test_page_files"
    " test_page_load test_page_looks test_page_plan test_page_views test_pictures"
    " test_plan_load test_plot test_pruning test_release test_report test_search"
    " test_search_answers test_search_engines test_serving_evidence test_serving_results"
    " test_stepped test_timeline_views test_topology_files test_traces test_tuner_files"
    " test_user_catalog test_validate test_validation_page".split()
)
"""Files of tests beyond the core: they start processes, drive a browser, draw, fit, search,
simulate or read damaged files."""

collect_ignore = ["data/user_script.py"]  # it is run as a user would, not imported


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the files of slow tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("quick") and collection_path.stem in SLOW else None


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


@pytest.fixture(scope="session")
def measured(evidence: Path) -> Callable[[str], Path]:
    """Return what finds a measured table by its kind; skip where there is none.

    Some kinds are in a folder of their own.
    """

    def found(kind: str) -> Path:
        folders = [evidence / "measured" / more for more in ("", "more")]
        places = [folder / name for folder in folders for name in (f"{kind}.csv", kind)]
        if not any(path.exists() for path in places):
            pytest.skip(f"no measured {kind} at {folders[0]}")
        return next(path for path in places if path.exists())

    return found


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


@pytest.fixture(scope="module")  # while it is driven, no other event loop may run here
def browser() -> Iterator[Browser]:
    """Return a real browser; skip, or fail where one is required, if there is none."""
    from browsing import browsing

    with browsing() as found:
        yield found


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Return the address of a real server of the page."""
    from browsing import serving

    with serving() as found:
        yield found


@pytest.fixture
def visits(browser: Browser, address: str) -> Iterator[Visits]:
    """Return what opens the page for somebody new; anything that goes wrong fails the test."""
    from browsing import Visits

    made = Visits(browser, address)
    yield made
    made.end()


@pytest.fixture
def visit(visits: Visits) -> Visit:
    """Return a visit to the page on a wide screen."""
    return visits()
