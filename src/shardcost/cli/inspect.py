"""``shardcost inspect``: what files mean."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardcost import values
from shardcost.cli import deployment, options
from shardcost.errors import BadValueError, ShardcostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardcost.formats.reading import Reading
    from shardcost.formats.serving_results import ServingResults
    from shardcost.inspect.files import Inspected
    from shardcost.load.deployment import Deployment

_EXAMPLES: Final = """\
  shardcost inspect config.json
  shardcost inspect all_reduce.txt
  shardcost inspect rank0.json.gz rank1.json.gz --on h100_sxm
  shardcost inspect topo.txt --json
  shardcost inspect topo.txt --write-machine mine.toml
  shardcost inspect vllm-bench.json --model llama3-8b --on h100_sxm --tp 1 --software vllm
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    from shardcost.formats.detect import KINDS

    text = f"Read files and say what they mean. Known by their content: {KINDS}."
    parser = options.Parser("inspect", text, _EXAMPLES)
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="files, or the folder of a model with config.json")
    add("--on", metavar="CLUSTER", help="the machine, where a file does not say it: catalog name")
    add("--network", metavar="NET", help="catalog name: what joins the nodes")
    add("--gpus", metavar="N", help="GPUs that took part, where a log does not say")
    add(
        "--write-machine",
        metavar="FILE",
        help="write the machine of a topology file as a cluster file, .toml, which --on takes",
    )
    deployment.add_options(parser)
    return parser


def run(given: Namespace) -> int:
    """Print what each file was understood to be; a file that is not ends the command with 2."""
    from shardcost.cli.progress import shown_progress
    from shardcost.formats.detect import read_file, with_gpus
    from shardcost.formats.kineto import Trace
    from shardcost.formats.reading import no_tick
    from shardcost.formats.serving_results import ServingResults
    from shardcost.inspect.files import inspected
    from shardcost.report.inspect import as_data, as_text

    cluster = options.OnDisk().cluster(given.on, given.network) if given.on else None
    gpus = values.count("--gpus", given.gpus)
    results: list[Inspected] = []
    traces: list[Reading] = []
    served: list[ServingResults] = []
    refused: list[ShardcostError] = []
    with shown_progress(wanted=not given.json, unit="MB", per=10**6) as tick:
        for file in given.files:
            try:
                reading = with_gpus(read_file(Path(file), tick or no_tick), gpus)
                if isinstance(reading, Trace):  # ranks of one job, which make sense together
                    traces.append(reading)
                elif isinstance(reading, ServingResults):  # whose engine they name together
                    served.append(reading)
                else:
                    results += inspected([reading], cluster, given.network)
            except ShardcostError as error:
                refused.append(error)
    results += inspected(traces, cluster, given.network)
    results += inspected(served, deployment=_deployment(given, served))
    if not results:
        raise refused[0]
    written = _written(given, results)
    if given.json:
        documents = [as_data(each) for each in results]
        options.print_json(documents[0] if len(given.files) == 1 else {"files": documents})
    else:
        print("\n\n".join(as_text(each) for each in results))
        if written is not None:
            print(f"\nMachine: {written}")
    for reason in refused:
        print(f"shardcost: {reason}", file=sys.stderr)
    return 2 if refused else 0


def _written(given: Namespace, results: Sequence[Inspected]) -> str | None:
    """Write the machine of a topology file; return the option that takes it."""
    if given.write_machine is None:
        return None
    from shardcost.files import write_whole
    from shardcost.inspect.machine_file import machine_file
    from shardcost.inspect.topology import TopologyInspection

    found = [each.findings for each in results if isinstance(each.findings, TopologyInspection)]
    if len(found) != 1:
        raise UsageError(f"--write-machine is for one topology file, got {len(found)}")
    path = Path(given.write_machine)
    if path.suffix != ".toml":
        raise BadValueError("--write-machine", given.write_machine, "a file that ends in .toml")
    inspection = replace(found[0], network=given.network or found[0].network)
    write_whole(path, machine_file(inspection, path.stem))
    return f"--on {given.write_machine}"


def _deployment(given: Namespace, served: Sequence[ServingResults]) -> Deployment | None:
    """Return what serving benchmarks were run on; None where no option says so."""
    wanted = deployment.requested(given)
    if wanted and not served:
        raise UsageError(f"{wanted[0]} is for results of serving benchmarks; no file has any")
    if not wanted:
        return None
    return deployment.deployment_of(given, [run for each in served for run in each.runs])
