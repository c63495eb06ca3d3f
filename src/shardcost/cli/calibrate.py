"""``shardcost calibrate``: a user's own cluster or engine, from the results that they have."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardcost import values
from shardcost.cli import deployment, options
from shardcost.errors import BadValueError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardcost.formats.reading import Reading
    from shardcost.formats.serving_results import ServingResults

_EXAMPLES: Final = """\
  shardcost calibrate all_reduce.txt --name my-cluster
  shardcost calibrate rank*.json.gz --name my-cluster --on h100_sxm
  shardcost calibrate two-nodes.txt --name my-cluster --on h100_sxm --network ib_8x400g
  shardcost collective all_reduce --size 64MiB --gpus 8 --on my-cluster.toml
  shardcost calibrate vllm-*.json --name my-vllm --model llama3-8b --on h100_sxm --software vllm
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "calibrate",
        "Fit the constants of collectives to your own measurements, few or many, and write a"
        " profile that every command takes with --on. Files: whatever `shardcost inspect` knows to"
        " hold times of collectives. From results of serving benchmarks: the host's constants of"
        " the engine that served, as a file that every command takes with --software.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="logs, traces, measured tables")
    add("--name", required=True, help="of the profile or engine: NAME.toml is written")
    add("--on", metavar="CLUSTER", help="catalog name of the machine, where files do not say it")
    add("--network", metavar="NET", help="catalog name: what joins the nodes")
    add("--gpus", metavar="N", help="GPUs that took part, where files do not say")
    add("--library", metavar="NAME", help="of the collectives, likewise (nccl)")
    add("--output", metavar="FILE.toml", help="where to write it (NAME.toml)")
    deployment.add_options(parser)
    return parser


def run(given: Namespace) -> int:
    """Read the files, fit, write what was fitted and print what it rests on."""
    from shardcost.catalog import checked_profile_name
    from shardcost.cli.progress import shown_progress
    from shardcost.formats.detect import read_file, with_gpus
    from shardcost.formats.reading import no_tick
    from shardcost.formats.serving_results import ServingResults

    name = checked_profile_name(given.name)  # before files of gigabytes are read
    gpus = values.count("--gpus", given.gpus)
    with shown_progress(wanted=not given.json, unit="MB", per=10**6) as tick:
        readings = [with_gpus(read_file(Path(file), tick or no_tick), gpus) for file in given.files]
    served = [reading for reading in readings if isinstance(reading, ServingResults)]
    if served and len(served) < len(readings):
        raise UsageError("results of serving benchmarks and other files are calibrated apart")
    return _engine(given, name, served) if served else _cluster(given, name, readings)


def _cluster(given: Namespace, name: str, readings: Sequence[Reading]) -> int:
    """Fit the constants of a cluster's collectives."""
    from shardcost.calibrate.calibrate import calibrate
    from shardcost.calibrate.gather import Stated, gathered
    from shardcost.calibrate.profile import as_profile
    from shardcost.catalog import PROFILE_FIRST_LINE
    from shardcost.files import write_whole
    from shardcost.report.calibrate import as_data, as_text

    wanted = deployment.requested(given)
    if wanted:
        raise UsageError(f"{wanted[0]} is for results of serving benchmarks; no file has any")
    target = _target(given.output or f"{name}.toml", PROFILE_FIRST_LINE)
    points = gathered(readings, Stated(given.on, given.network, given.library))
    results = calibrate(points.curves, _say if sys.stderr.isatty() else lambda _: None)
    write_whole(target, as_profile(name, points.cluster, results))
    shown = (name, str(target), readings, points, results)
    return options.print_report(given, lambda: as_data(*shown), lambda: as_text(*shown))


def _engine(given: Namespace, name: str, readings: Sequence[ServingResults]) -> int:
    """Fit the host's constants of a serving engine."""
    from shardcost.calibrate.serving import calibrate, fit_of
    from shardcost.calibrate.software_file import (
        FIRST_LINE,
        as_software_file,
        checked_software_name,
    )
    from shardcost.files import write_whole
    from shardcost.report.calibrate_serving import as_data, as_text
    from shardcost.report.inspect_serving import in_words

    if given.library is not None:
        raise UsageError("--library is for times of collectives; no file has any")
    target = _target(given.output or f"{checked_software_name(name)}.toml", FIRST_LINE)
    runs = [run for reading in readings for run in reading.runs]
    served_by = deployment.deployment_of(given, runs)
    result = calibrate(served_by, runs, _say if sys.stderr.isatty() else lambda _: None)
    write_whole(target, as_software_file(name, result.software, fit_of(result)))
    shown = (name, str(target), in_words(served_by), readings, result)
    return options.print_report(given, lambda: as_data(*shown), lambda: as_text(*shown))


def _target(text: str, first_line: str) -> Path:
    """Return where to write: never over a file that this command did not write."""
    from shardcost.formats.opened import head_of

    path = Path(text)
    if path.suffix != ".toml":
        raise BadValueError("--output", text, "a file that ends in .toml")
    if path.exists() and not head_of(path).startswith(first_line):
        raise BadValueError("--output", text, "a new file, or a profile to write anew")
    return path


def _say(text: str) -> None:
    print(f"{text} …", file=sys.stderr, flush=True)
