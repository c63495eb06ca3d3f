"""Which kind of file this is, by its content, and what it holds: `read_file`.

Names of files say little (``out.txt``, ``log``, ``slurm-1234.out``), so each reader is asked in
turn whether a file begins like one of its own. The order matters only where one kind's beginning
could be taken for another's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Final

from shardcost.errors import FormatError, shown
from shardcost.files import is_file, is_folder, read_text
from shardcost.formats import osu
from shardcost.formats.hf_config import looks_like_hf_config, model_of_file
from shardcost.formats.opened import MOST_JSON_BYTES, chunks_of, head_of, parse_object
from shardcost.formats.reading import MeasurementLog, Reading, Tick, no_tick
from shardcost.formats.tables import RUNS, Table, begins_like_a_table, read_table
from shardcost.model import Model

READERS: Final = (
    "nccl_xml",
    "kineto",
    "nccl_tests_json",
    "nccl_inspector",
    "serving_results",
    "osu",
    "nccl_tests",
    "nvidia_smi",
    "nccl_tuner",
)
"""Modules of this package, each with `looks_like` and `read`."""
KINDS: Final = (
    "Hugging Face config.json, nccl-tests or rccl-tests output (text or JSON), NCCL Inspector"
    " JSONL, OSU output, PyTorch profiler trace, nvidia-smi topo -m, NCCL topology or graph XML,"
    " NCCL tuner CSV, results of serving benchmarks (vllm bench serve, sglang.bench_serving,"
    " genai-perf, inference-perf), a measured table, a shardcost profile"
)
_CATALOG_FILE: Final = re.compile(
    r"^\[(?:device|choices|\[block\])|^nic_rate_gbit_per_s", re.MULTILINE
)
_PROFILE: Final = re.compile(r"^[ \t]*+based_on[ \t]*+=", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ModelFile(Reading):
    """The config of a model."""

    model: Model


@dataclass(frozen=True, kw_only=True)
class TableFile(Reading):
    """A measured table."""

    table: Table


@dataclass(frozen=True, kw_only=True)
class ProfileFile(Reading):
    """A profile of a cluster."""

    path: Path


def read_file(path: Path, tick: Tick = no_tick) -> Reading:
    """Return what a file holds, or the folder of a model or of measured requests."""
    path = _in_folder(path) if is_folder(path) else path
    file = str(path)
    head = head_of(path)
    if not head.strip():
        with chunks_of(path) as chunks:
            next(chunks, b"")  # a damaged file says so
        reason = f"begins with {len(head):,} blanks and nothing else" if head else "is empty"
        raise FormatError(file, reason)
    for name in READERS:
        module = import_module(f"shardcost.formats.{name}")
        if module.looks_like(head):
            reading: Reading = module.read(path, tick)
            return reading
    if begins_like_a_table(head):
        return TableFile(file=file, kind="measured-table", table=read_table(path, strict=False))
    if _PROFILE.search(head) and not head.lstrip().startswith("{"):
        return ProfileFile(file=file, kind="profile", path=path)
    if head.lstrip().startswith("{"):
        if not looks_like_hf_config(parse_object(read_text(path, MOST_JSON_BYTES), file)):
            raise FormatError(file, f"is JSON, but not of a kind that is read: {KINDS}")
        return ModelFile(file=file, kind="hf-config", model=model_of_file(path))
    if _CATALOG_FILE.search(head):
        reason = "looks like a catalog file: `shardcost clusters`, `software` or `models` show it"
        raise FormatError(file, reason)
    first = head.strip().splitlines()[0]
    raise FormatError(file, f"begins like no kind of file that is read ({shown(first)}): {KINDS}")


def _in_folder(path: Path) -> Path:
    """Return what of a folder is read."""
    for name in (RUNS, "config.json"):
        if is_file(path / name):
            return path / name
    raise FormatError(str(path), f"is a folder without config.json or {RUNS}")


def with_gpus(reading: Reading, gpus: int | None) -> Reading:
    """Return a log whose runs that do not say how many GPUs took part have that number."""
    if not isinstance(reading, MeasurementLog) or gpus is None:
        return reading
    if reading.kind == "osu":  # whose sizes are of one rank
        runs = tuple(osu.with_ranks(run, gpus) for run in reading.runs)
    else:
        runs = tuple(replace(run, num_gpus=run.num_gpus or gpus) for run in reading.runs)
    return replace(reading, runs=runs)
