"""``shardcost calibrate``: a profile of a user's own cluster, from the logs that they have."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from shardcost import values
from shardcost.cli import options
from shardcost.errors import BadValueError

_EXAMPLES: Final = """\
  shardcost calibrate all_reduce.txt --name my-cluster
  shardcost calibrate rank*.json.gz --name my-cluster --on h100_sxm
  shardcost calibrate two-nodes.txt --name my-cluster --on h100_sxm --network ib_8x400g
  shardcost collective all_reduce --size 64MiB --gpus 8 --on my-cluster.toml
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "calibrate",
        "Fit the constants of collectives to your own measurements, few or many, and write a"
        " profile that every command takes with --on. Files: whatever `shardcost inspect` knows to"
        " hold times of collectives.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="logs, traces, measured tables")
    add("--name", required=True, help="of the profile: NAME.toml is written")
    add("--on", metavar="CLUSTER", help="catalog name of the machine, where files do not say it")
    add("--network", metavar="NET", help="catalog name: what joins the nodes")
    add("--gpus", metavar="N", help="GPUs that took part, where files do not say")
    add("--library", metavar="NAME", help="of the collectives, likewise (nccl)")
    add("--output", metavar="FILE.toml", help="where to write it (NAME.toml)")
    return parser


def run(given: Namespace) -> int:
    """Read the files, fit, write the profile and print what it rests on."""
    from shardcost.calibrate.calibrate import calibrate
    from shardcost.calibrate.gather import Stated, gathered
    from shardcost.calibrate.profile import as_profile
    from shardcost.catalog import checked_profile_name
    from shardcost.cli.progress import shown_progress
    from shardcost.files import write_whole
    from shardcost.formats.detect import read_file, with_gpus
    from shardcost.formats.reading import no_tick
    from shardcost.report.calibrate import as_data, as_text

    name = checked_profile_name(given.name)
    target = _target(given.output or f"{name}.toml")
    gpus = values.count("--gpus", given.gpus)
    with shown_progress(wanted=not given.json, unit="MB", per=10**6) as tick:
        readings = [with_gpus(read_file(Path(file), tick or no_tick), gpus) for file in given.files]
    points = gathered(readings, Stated(given.on, given.network, given.library))
    results = calibrate(points.curves, _say if sys.stderr.isatty() else lambda _: None)
    write_whole(target, as_profile(name, points.cluster, results))
    shown = (name, str(target), readings, points, results)
    return options.print_report(given, lambda: as_data(*shown), lambda: as_text(*shown))


def _target(text: str) -> Path:
    """Return where to write the profile: never over a file that is not one."""
    from shardcost.catalog import PROFILE_FIRST_LINE
    from shardcost.formats.opened import head_of

    path = Path(text)
    if path.suffix != ".toml":
        raise BadValueError("--output", text, "a file that ends in .toml")
    if path.exists() and not head_of(path).startswith(PROFILE_FIRST_LINE):
        raise BadValueError("--output", text, "a new file, or a profile to write anew")
    return path


def _say(text: str) -> None:
    print(f"{text} …", file=sys.stderr, flush=True)
