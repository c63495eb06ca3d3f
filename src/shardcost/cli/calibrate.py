"""``shardcost calibrate``: a user's own cluster or engine, from the results that they have."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from shardcost import values
from shardcost.cli import deployment, options
from shardcost.errors import BadValueError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardcost.formats.detect import TableFile
    from shardcost.formats.reading import Reading
    from shardcost.formats.serving_results import ServingResults

    Shown: TypeAlias = tuple[Callable[[], Any], Callable[[], str]]
    """A report, as data and as text."""

_EXAMPLES: Final = """\
  shardcost calibrate all_reduce.txt --name my-cluster
  shardcost calibrate rank*.json.gz --name my-cluster --on h100_sxm
  shardcost calibrate two-nodes.txt --name my-cluster --on h100_sxm --network ib_8x400g
  shardcost collective all_reduce --size 64MiB --gpus 8 --on my-cluster.toml
  shardcost calibrate kernels.csv all_reduce.txt --name my-cluster
  shardcost calibrate steps.csv --name my-cluster
  shardcost calibrate vllm-*.json --name my-vllm --model llama3-8b --on h100_sxm --software vllm
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "calibrate",
        "Fit the constants of collectives and kernels to your own measurements, few or many, and"
        " write a profile that every command takes with --on. Files: whatever `shardcost inspect`"
        " knows to hold times of collectives, and tables of `shardcost measure kernels`. From"
        " results of serving benchmarks: the host's constants of"
        " the engine that served, as a file that every command takes with --software. From a table"
        " of step times of training runs: slowdown and overhead of the framework, likewise.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="logs, traces, measured tables")
    add(
        "--name",
        required=True,
        help="of the profile or engine: NAME.toml is written (NAME-software.toml for step times)",
    )
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
    steps = [reading for reading in readings if _is_table(reading, "training")]
    others = [
        each for each in readings if not isinstance(each, ServingResults) and each not in steps
    ]
    _check_options(given, served, steps, others)
    # One file each: the cluster's profile, the engine that served on it, the training framework.
    several = bool(served) + bool(steps) + bool(others) > 1
    parts: dict[str, Shown] = {}
    if others:
        parts["cluster"] = _cluster(given, name, others)
    if served:
        engine = f"{name}-engine" if several else name
        parts["software"] = _engine(given, engine, served, alone=not several)
    if steps:
        profile = _output(given, name) if others else None
        parts["training"] = _steps(given, f"{name}-software", steps, profile, use=not served)
    if not several:
        return options.print_report(given, *next(iter(parts.values())))
    return options.print_report(
        given,
        lambda: {key: data() for key, (data, _) in parts.items()},
        lambda: "\n\n".join(text() for _, text in parts.values()),
    )


def _check_options(
    given: Namespace, served: Sequence[Any], steps: Sequence[Any], others: Sequence[Any]
) -> None:
    """Raise for options about files that are not there."""
    wanted = deployment.requested(given)
    if steps:
        wanted = [flag for flag in wanted if flag != "--software"]
    if wanted and not served:
        raise UsageError(f"{wanted[0]} is for results of serving benchmarks; no file has any")
    if given.library is not None and not others:
        raise UsageError("--library is for times of collectives; no file has any")


def _output(given: Namespace, name: str) -> str:
    return str(given.output or f"{name}.toml")


def _cluster(given: Namespace, name: str, readings: Sequence[Reading]) -> Shown:
    """Fit the constants of a cluster's kernels, collectives or both; return the report."""
    from shardcost.calibrate.gather import Stated
    from shardcost.calibrate.profile import Profile
    from shardcost.catalog import PROFILE_FIRST_LINE
    from shardcost.measure.kernels.timing import cores, memory_bytes
    from shardcost.report.calibrate import as_data, as_text

    target = _target(_output(given, name), PROFILE_FIRST_LINE)
    gpus = values.count("--gpus", given.gpus)
    stated = Stated(given.on, given.network, given.library, gpus)
    say = _say if sys.stderr.isatty() else lambda _: None
    profile = Profile.of(readings, name, stated, say, (cores(), memory_bytes())).write(target)
    return lambda: as_data(profile), lambda: as_text(profile)


def _is_table(reading: Reading, kind: str) -> TypeGuard[TableFile]:
    from shardcost.formats.detect import TableFile

    return isinstance(reading, TableFile) and reading.table.kind == kind


def _engine(
    given: Namespace, name: str, readings: Sequence[ServingResults], *, alone: bool
) -> Shown:
    """Fit the host's constants of a serving engine; return the report."""
    from shardcost.calibrate.serving import calibrate, fit_of
    from shardcost.calibrate.software_file import (
        FIRST_LINE,
        as_software_file,
        checked_software_name,
    )
    from shardcost.files import write_whole
    from shardcost.report.calibrate_software import serving_as_data, serving_as_text
    from shardcost.report.inspect_serving import in_words

    output = given.output if alone else None
    target = _target(output or f"{checked_software_name(name)}.toml", FIRST_LINE)
    runs = [run for reading in readings for run in reading.runs]
    served_by = deployment.deployment_of(given, runs)
    result = calibrate(served_by, runs, _say if sys.stderr.isatty() else lambda _: None)
    write_whole(target, as_software_file(name, result.software, fit_of(result)))
    shown = (name, str(target), in_words(served_by), readings, result)
    return lambda: serving_as_data(*shown), lambda: serving_as_text(*shown)


def _steps(
    given: Namespace,
    name: str,
    readings: Sequence[TableFile],
    profile: str | None,
    *,
    use: bool,
) -> Shown:
    """Fit a framework's constants to step times; return the report.

    Args:
        given: The options.
        name: Of the software.
        readings: Tables of training runs.
        profile: The file that the same call wrote for their machine, if it did.
        use: Whether ``--software`` is the framework; else it is a serving engine.
    """
    from shardcost.calibrate.software_file import (
        FIRST_LINE,
        as_software_file,
        checked_software_name,
    )
    from shardcost.calibrate.steps import calibrate, fit_of
    from shardcost.files import write_whole
    from shardcost.report.calibrate_software import steps_as_data, steps_as_text

    output = given.output if profile is None and use else None
    target = _target(output or f"{checked_software_name(name)}.toml", FIRST_LINE)
    on = profile or given.on
    if on is None and given.network is not None:
        raise UsageError("--network of step times needs --on CLUSTER (or a column network)")
    finder = options.OnDisk()
    result = calibrate(
        [reading.table for reading in readings],
        None if on is None else finder.cluster(on, given.network),
        finder.software(given.software) if use and given.software is not None else None,
        _say if sys.stderr.isatty() else lambda _: None,
    )
    write_whole(target, as_software_file(name, result.software, fit_of(result)))
    shown = (name, str(target), readings, result)
    return lambda: steps_as_data(*shown), lambda: steps_as_text(*shown)


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
