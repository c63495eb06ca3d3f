"""What the benchmarks share: their one option, and one core to run on."""

from __future__ import annotations

import argparse
import os


def asked_for_json(description: str | None) -> bool:
    """Read the command line, stay on one core from now on, and return whether to print JSON."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return bool(options.json)
