"""``shardcost check``: is what was measured as it should be, and what does it look like if not."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardcost import options as table
from shardcost import values
from shardcost.cli import options
from shardcost.errors import FormatError, UsageError
from shardcost.option import ABOUT_PHASES, PHASES, flag
from shardcost.request import cluster_of

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.estimate.result import Estimate
    from shardcost.formats.detect import TableFile
    from shardcost.inspect.files import Inspected

_EXAMPLES: Final = """\
  shardcost check all_reduce.txt --on h100_sxm
  shardcost check two_nodes.txt --on h100_sxm --network ib_8x400g --json
  shardcost check measured.csv --on my-cluster.toml
  shardcost check rank*.json.gz --on h100_sxm --network ib_8x400g
  shardcost check rank0.json.gz --on h100_sxm --model llama3-70b --tp 8 --gpus 8 \\
      --prefill --batch 1 --prompt-tokens 8192
"""
_LAYOUT_OF_TRACE: Final = (*table.LAYOUT, *table.WORKLOAD)


def parser() -> options.Parser:
    """Return the parser of this command."""
    text = (
        "Compare measured collectives, or traces, with what the machine should show, and name what"
        " they look like where they are slow. Exit code 0: all fine; 1: something is not; 2: bad"
        " input, or nothing to compare with."
    )
    parser = options.Parser("check", text, _EXAMPLES)
    add = parser.add_argument
    add(
        "files", nargs="+", metavar="FILE", help="logs or tables of collectives, or profiler traces"
    )
    add("--on", metavar="CLUSTER", help=f"{table.ON.help} (what a file names)")
    add("--model", metavar="MODEL", help="of a trace: compare its exposed communication as well")
    options.add_options(parser, table.MACHINE[2:])
    options.add_options(parser.add_argument_group("layout of a trace"), table.LAYOUT)
    group = parser.add_argument_group("workload of a trace")
    for phase, words in ABOUT_PHASES.items():
        group.add_argument(flag(phase), dest="phase", action="store_const", const=phase, help=words)
    options.add_options(group, table.WORKLOAD)
    return parser


def run(given: Namespace) -> int:
    """Print the verdict on each file; traces are of ranks of one job."""
    from shardcost.formats.detect import TableFile, read_file, with_gpus
    from shardcost.formats.kineto import Trace
    from shardcost.formats.reading import MeasurementLog
    from shardcost.inspect.files import inspected
    from shardcost.inspect.verdict import FINE, UNKNOWN
    from shardcost.report.inspect import checks_as_data, checks_as_text

    if given.on is None and given.set is not None:
        raise UsageError("--set needs --on CLUSTER, whose figures it changes")
    cluster = cluster_of(vars(given), options.OnDisk()) if given.on else None
    gpus = values.count("--gpus", given.gpus)
    readings = [read_file(Path(file)) for file in given.files]
    for reading in readings:
        if not isinstance(reading, MeasurementLog | TableFile | Trace):
            rule = f"of kind {reading.kind}, not a log or table of collectives or a trace"
            raise FormatError(reading.file, f"{rule} (`shardcost inspect` explains it)")
    estimate = _estimate(given, any(isinstance(reading, Trace) for reading in readings))
    if estimate is None:  # else it counts those of the layout
        readings = [with_gpus(reading, gpus) for reading in readings]
    tables = [reading for reading in readings if isinstance(reading, TableFile)]
    others = [reading for reading in readings if not isinstance(reading, TableFile)]
    results = [_judged(each, estimate) for each in inspected(others, cluster, given.network)]
    results += [_table(each, cluster, given.network) for each in tables]
    if given.json:
        options.print_json(checks_as_data(results))
    else:
        print(checks_as_text(results))
    verdicts = {each.verdict.verdict for each in results if each.verdict is not None}
    if verdicts <= {FINE}:
        return 0
    return 2 if verdicts <= {FINE, UNKNOWN} else 1


def _table(reading: TableFile, cluster: Cluster | None, network: str | None) -> Inspected:
    from shardcost.inspect import collective_table
    from shardcost.inspect.files import Inspected
    from shardcost.inspect.verdict import judged

    log, findings = collective_table.inspected(reading, cluster, network)
    return Inspected((log,), findings, judged(findings))


def _judged(each: Inspected, estimate: Estimate | None) -> Inspected:
    from shardcost.inspect.trace import TraceFindings
    from shardcost.inspect.trace_verdict import judged

    if isinstance(each.findings, TraceFindings):
        return replace(each, verdict=judged(each.findings, estimate))
    return each


def _estimate(given: Namespace, has_traces: bool) -> Estimate | None:  # noqa: FBT001
    """Return the cost of the layout that a trace is of; None where no option says so."""
    described = (*_LAYOUT_OF_TRACE, table.SOFTWARE)
    named = [row.flag for row in described if getattr(given, row.name) is not None]
    wanted = ["--model"] * (given.model is not None) + [f"--{given.phase}"] * bool(given.phase)
    wanted += named
    if not wanted:
        return None
    if not has_traces:
        raise UsageError(f"{wanted[0]} is for traces; no file is one")
    if given.model is None or given.phase is None:
        phases = ", ".join(flag(phase) for phase in PHASES)
        raise UsageError(f"the layout of a trace needs --model MODEL and one of {phases}")
    from shardcost.request import estimate_of

    return estimate_of(vars(given), options.OnDisk())
