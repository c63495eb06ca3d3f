"""``shardcost measure kernels``: single kernels on this host's GPU or CPU, as a table."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardcost import values
from shardcost.cli import options
from shardcost.errors import BadValueError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from shardcost.measure.kernels.session import Outcome
    from shardcost.measure.kernels.timing import MeasuredDevice

_EXAMPLES: Final = """\
  shardcost measure kernels
  shardcost measure kernels --minutes 2 --kinds gemm,copy --output products.csv
  shardcost measure kernels --append            (continues where kernels.csv ends)
  shardcost calibrate kernels.csv --name my-gpu
"""
_OUTPUT: Final = "kernels.csv"
_MOST_MINUTES: Final = 24 * 60
_LONGEST_NAME: Final = 100


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "measure kernels",
        "Time GEMMs, grouped GEMMs, attention and elementwise kernels on this host's GPU, or on its"
        " CPU where torch sees no GPU, and write a table of their times.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("--minutes", metavar="X", default="5", help="how long to measure at most (5)")
    add("--kinds", metavar="A,B,…", help="gemm, grouped_gemm, prefill, decode, copy, … (all)")
    add("--on", metavar="CLUSTER", help="catalog name of the machine, where its GPU does not tell")
    add("--cpu", action="store_true", help="measure the CPU although there is a GPU")
    add("--output", metavar="FILE", default=_OUTPUT, help=f"the table ({_OUTPUT})")
    add("--append", action="store_true", help="continue a table that is there already")
    add("--force", action="store_true", help="replace a file that is there already")
    return parser


def run(given: Namespace) -> int:
    """Measure, write each row as it comes, say what was measured and what was not."""
    from shardcost.cli.progress import shown_progress
    from shardcost.measure.kernels.cases import KINDS
    from shardcost.measure.kernels.session import MeasuredKernels, measure
    from shardcost.report.measure import kernels_as_data, kernels_as_text

    if given.append and given.force:
        raise UsageError("--append and --force exclude each other; give one")
    minutes = values.number("--minutes", given.minutes)
    if not 0 < minutes <= _MOST_MINUTES:
        raise BadValueError("--minutes", given.minutes, f"above 0, at most {_MOST_MINUTES}")
    kinds = KINDS if given.kinds is None else tuple(values.several("--kinds", given.kinds))
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownNameError("--kinds", kind, KINDS)
    from shardcost.measure.kernels.numpy_device import NumpyDevice
    from shardcost.measure.kernels.torch_device import torch_device

    device = torch_device(cpu=given.cpu) or NumpyDevice()
    gpu = _cluster(given.on, device)
    table = MeasuredKernels(Path(given.output), gpu, append=given.append, force=given.force)
    outcome: Outcome | None = None
    try:
        with shown_progress(unit="kernels") as progress:
            outcome = measure(device, table, 60 * minutes, kinds, progress)
    except KeyboardInterrupt:
        print(f"shardcost: interrupted; {table.rows} rows are in {table.path}", file=sys.stderr)
        return 130
    finally:
        table.close()
    shown = (device.name, device.software, gpu, str(table.path), table.rows, outcome)
    return options.print_report(
        given, lambda: kernels_as_data(*shown), lambda: kernels_as_text(*shown)
    )


def _cluster(named: str | None, device: MeasuredDevice) -> str:
    """Return the catalog's name of what is measured; ``cpu`` for a host without a GPU."""
    from shardcost.catalog.reported import cluster_reporting
    from shardcost.cluster import Cluster

    if named is not None:
        if len(named) > _LONGEST_NAME or not named.isprintable():
            rule = f"a name of at most {_LONGEST_NAME} printable characters"
            raise BadValueError("--on", named, rule)
        Cluster.named(named)
        return named
    if device.limits.mode == "call":
        return "cpu"
    return cluster_reporting(device.name) or "unknown"
