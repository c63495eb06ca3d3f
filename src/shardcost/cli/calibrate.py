"""``shardcost calibrate``: a user's own cluster or engine, from the results that they have."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeGuard

from shardcost import values
from shardcost.cli import deployment, options
from shardcost.errors import BadValueError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardcost.calibrate.calibrate import Calibrated
    from shardcost.calibrate.gather import Gathered
    from shardcost.calibrate.kernels import CalibratedKernels
    from shardcost.cluster import Cluster
    from shardcost.formats.detect import TableFile
    from shardcost.formats.reading import Reading
    from shardcost.formats.serving_results import ServingResults
    from shardcost.formats.tables import Table

    Shown: TypeAlias = tuple[Callable[[], Any], Callable[[], str]]
    """A report, as data and as text."""

_EXAMPLES: Final = """\
  shardcost calibrate all_reduce.txt --name my-cluster
  shardcost calibrate rank*.json.gz --name my-cluster --on h100_sxm
  shardcost calibrate two-nodes.txt --name my-cluster --on h100_sxm --network ib_8x400g
  shardcost collective all_reduce --size 64MiB --gpus 8 --on my-cluster.toml
  shardcost calibrate kernels.csv all_reduce.txt --name my-cluster
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
    others = [reading for reading in readings if not isinstance(reading, ServingResults)]
    if not served:
        return options.print_report(given, *_cluster(given, name, others))
    if not others:
        return options.print_report(given, *_engine(given, name, served))
    # Two files: the cluster's profile, and the engine that served on it.
    cluster = _cluster(given, name, others, both=True)
    engine = _engine(given, f"{name}-engine", served, both=True)
    return options.print_report(
        given,
        lambda: {"cluster": cluster[0](), "software": engine[0]()},
        lambda: f"{cluster[1]()}\n\n{engine[1]()}",
    )


def _cluster(
    given: Namespace, name: str, readings: Sequence[Reading], *, both: bool = False
) -> Shown:
    """Fit the constants of a cluster's kernels, collectives or both; return the report."""
    from shardcost.calibrate.profile import as_profile
    from shardcost.catalog import PROFILE_FIRST_LINE
    from shardcost.files import write_whole
    from shardcost.report import calibrate, calibrate_kernels

    wanted = deployment.requested(given)
    if wanted and not both:
        raise UsageError(f"{wanted[0]} is for results of serving benchmarks; no file has any")
    target = _target(given.output or f"{name}.toml", PROFILE_FIRST_LINE)
    tables = [each.table for each in readings if _has_kernels(each)]
    rest = [each for each in readings if not _has_kernels(each)]
    collectives = _collectives(given, rest) if rest else None
    kernels = _kernels(given, name, tables, collectives) if tables else None
    if kernels is not None and kernels.text is not None:
        text = kernels.text
    else:
        points, results = collectives or (None, [])
        cluster = points.cluster if points is not None else kernels.cluster  # type: ignore[union-attr]
        text = as_profile(name, cluster, results, kernels.results if kernels else ())
    write_whole(target, text)
    data: list[Callable[[], Any]] = []
    texts: list[Callable[[], str]] = []
    if collectives is not None:
        shown = (name, str(target), rest, *collectives)
        data.append(lambda: calibrate.as_data(*shown))
        texts.append(lambda: calibrate.as_text(*shown))
    if kernels is not None:
        found, skipped = kernels.results, kernels.skipped
        head = f"{name}: {sum(each.after.rows for each in found)} measured kernels"
        end = f"Profile: {target}. Every command takes it: --on {target}"
        about = {"name": name, "profile": str(target), "based_on": kernels.cluster.system}
        data.append(lambda: {**about, **calibrate_kernels.as_data(found, skipped)})
        texts.append(lambda: "\n".join((head, "", calibrate_kernels.as_text(found, skipped), end)))
    return (
        lambda: {key: value for each in data for key, value in each().items()},
        lambda: "\n\n".join(each() for each in texts),
    )


class _Kernels(NamedTuple):
    """Calibrated kernels, and the machine that they are of."""

    cluster: Cluster
    results: list[CalibratedKernels]
    skipped: dict[str, int]
    text: str | None = None
    """A hardware file of its own, where the machine is none of the catalog's."""


def _has_kernels(reading: Reading) -> TypeGuard[TableFile]:
    from shardcost.formats.detect import TableFile

    return isinstance(reading, TableFile) and reading.table.kind == "kernels"


def _collectives(
    given: Namespace, readings: Sequence[Reading]
) -> tuple[Gathered, list[Calibrated]]:
    from shardcost.calibrate.calibrate import calibrate
    from shardcost.calibrate.gather import Stated, gathered

    points = gathered(readings, Stated(given.on, given.network, given.library))
    return points, calibrate(points.curves, _say if sys.stderr.isatty() else lambda _: None)


def _kernels(
    given: Namespace,
    name: str,
    tables: Sequence[Table],
    collectives: tuple[Gathered, list[Calibrated]] | None,
) -> _Kernels:
    """Fit kernels, on the machine that was named, that collectives are of, or that tables name."""
    from shardcost.calibrate.host_file import host_cluster, host_file, is_of_cpu
    from shardcost.calibrate.kernels import calibrate_kernels
    from shardcost.cluster import Cluster
    from shardcost.formats.tables import check_columns
    from shardcost.measure.kernels.host import cores, memory_bytes

    say = _say if sys.stderr.isatty() else lambda _: None
    for table in tables:
        check_columns(table)
    if all(map(is_of_cpu, tables)) and given.on is None and collectives is None:
        host = (cores(), memory_bytes())
        cluster = host_cluster(name, tables, *host)
        results, skipped = calibrate_kernels(tables, cluster, say)
        return _Kernels(cluster, results, skipped, host_file(name, tables, *host, results))
    if collectives is not None:
        cluster = collectives[0].cluster
    elif given.on is not None:
        cluster = options.cluster(given.on, given.network)
    else:
        named = sorted({gpu for table in tables for gpu in table.columns["gpu"]})
        if len(named) > 1:
            raise BadValueError("machines measured on (say --on one of them)", named, "one")
        if named == ["unknown"]:
            raise UsageError("the table does not say which machine it is of: say --on CLUSTER")
        cluster = Cluster.named(named[0], given.network)
    results, skipped = calibrate_kernels(tables, cluster, say)
    return _Kernels(cluster, results, skipped)


def _engine(
    given: Namespace, name: str, readings: Sequence[ServingResults], *, both: bool = False
) -> Shown:
    """Fit the host's constants of a serving engine; return the report."""
    from shardcost.calibrate.serving import calibrate, fit_of
    from shardcost.calibrate.software_file import (
        FIRST_LINE,
        as_software_file,
        checked_software_name,
    )
    from shardcost.files import write_whole
    from shardcost.report.calibrate_serving import as_data, as_text
    from shardcost.report.inspect_serving import in_words

    if given.library is not None and not both:
        raise UsageError("--library is for times of collectives; no file has any")
    output = None if both else given.output
    target = _target(output or f"{checked_software_name(name)}.toml", FIRST_LINE)
    runs = [run for reading in readings for run in reading.runs]
    served_by = deployment.deployment_of(given, runs)
    result = calibrate(served_by, runs, _say if sys.stderr.isatty() else lambda _: None)
    write_whole(target, as_software_file(name, result.software, fit_of(result)))
    shown = (name, str(target), in_words(served_by), readings, result)
    return lambda: as_data(*shown), lambda: as_text(*shown)


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
