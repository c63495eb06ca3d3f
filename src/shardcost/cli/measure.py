"""``shardcost measure``: real collectives among real ranks, as a table."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardcost import values
from shardcost.cli import options
from shardcost.errors import BadValueError, UnknownNameError, UsageError
from shardcost.units import parse_time

if TYPE_CHECKING:
    from shardcost.measure.job import Measurement
    from shardcost.measure.session import Session
    from shardcost.measure.table import Measured

_EXAMPLES: Final = """\
  shardcost measure --ranks 2,4 --sizes 1KiB:16MiB:4
  shardcost measure --ranks 8 --algorithm ring,rabenseifner --output rings.csv
  shardcost measure --verify-bytes --ranks 2,3,4,8
  shardcost measure --backend gloo --ranks 2 --collective all_reduce,all_gather
  torchrun --nnodes 2 --nproc-per-node 8 … -m shardcost measure --backend nccl --cluster h100_sxm
"""
_SIZES: Final = "1KiB:16MiB:4"
_SIZES_TO_VERIFY: Final = "1028,100000,1MiB"
"""In one piece, of odd length; in one piece or not, by algorithm; not in one piece."""
_OUTPUT: Final = "measured.csv"
_RUNS: Final = ("iterations", "warmup")
_MOST_RUNS: Final = 1_000_000
_LONGEST_NAME: Final = 100
_DTYPES: Final = {"fp32": "float", "fp64": "double", "fp16": "half", "bf16": "bfloat16"}
"""What nccl-tests, and so the table, calls a number format."""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "measure",
        "Run real collectives among real ranks and write a table of their times and bytes.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("--backend", default="mpi", help="mpi (Open MPI), gloo or nccl (both of torch) (mpi)")
    add(
        "--collective",
        metavar="A,B,…",
        default="all_reduce",
        help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce (all_reduce)",
    )
    add(
        "--sizes",
        metavar="A:B[:X]",
        help=f"from A to B, each X (2) times the last, or a list; whole buffers ({_SIZES})",
    )
    add("--ranks", metavar="N,M,…", help="numbers of ranks on this host; A..B doubles (2,4)")
    add(
        "--algorithm",
        metavar="A,B,…",
        help="of Open MPI: ring, recursive_doubling, rabenseifner, linear, … (default: its own)",
    )
    add("--transport", default="tcp", help="of Open MPI: tcp (bytes are counted) or shared (tcp)")
    add("--dtype", default="float", help="number format of the elements (float)")
    add("--iterations", metavar="N", default="20", help="timed runs of each measurement (20)")
    add("--warmup", metavar="N", default="3", help="runs before them (3)")
    add("--output", metavar="FILE", help=f"the table ({_OUTPUT}; none with --verify-bytes)")
    add("--append", action="store_true", help="add to a table that is there already")
    add("--force", action="store_true", help="replace a file that is there already")
    add("--cluster", default="local", help="what the table's column of that name says (local)")
    add("--network", default="", help="likewise")
    add("--timeout", default="5min", help="how long the ranks may be silent (5min)")
    add(
        "--verify-bytes",
        action="store_true",
        help="hold the bytes of every rank to the algorithm's schedule; exit code 1 if any differ",
    )
    return parser


def run(given: Namespace) -> int:
    """Measure, write each row as it comes, print the results."""
    from contextlib import nullcontext

    from shardcost.measure.launch import ended_by_signals

    if given.verify_bytes and given.backend != "mpi":
        raise BadValueError("--backend", given.backend, "mpi with --verify-bytes")
    if given.append and given.force:
        raise UsageError("--append and --force exclude each other; give one")
    if given.verify_bytes and given.output is None and (given.append or given.force):
        raise UsageError("--verify-bytes writes a table only to an --output that is given")
    for name in ("cluster", "network"):
        text = getattr(given, name)
        if len(text) > _LONGEST_NAME or not text.isprintable():
            rule = f"a name of at most {_LONGEST_NAME} printable characters"
            raise BadValueError(f"--{name}", text, rule)
    session = _session(given)
    if given.verify_bytes:
        _check_verifiable(session)
    session.check_installed()
    table = _table(given) if session.writes else None
    measured: list[tuple[str, Measurement]] = []
    try:
        with nullcontext() if session.joins else ended_by_signals():
            _measure(session, table, measured)
    except KeyboardInterrupt:
        print(f"shardcost: interrupted{_kept(table)}", file=sys.stderr)
        return 130
    finally:
        if table is not None:
            table.close()
    return _report(given, session, table, measured) if session.writes else 0


def _measure(
    session: Session, table: Measured | None, measured: list[tuple[str, Measurement]]
) -> None:
    """Run everything; what was measured so far is in the table at any time."""
    from contextlib import closing

    from shardcost.cli.progress import shown_progress
    from shardcost.measure.launch import RanksFailedError

    with (
        shown_progress(wanted=session.writes, unit="measurements") as progress,
        closing(session.measurements()) as all_,
    ):
        try:
            for algorithm, measurement in all_:
                measured.append((algorithm, measurement))
                if table is not None:
                    table.add(measurement, algorithm)
                if progress is not None:
                    progress(len(measured), session.points)
        except RanksFailedError as error:
            raise RanksFailedError(f"{error}{_kept(table)}") from None


def _kept(table: Measured | None) -> str:
    if table is None or not table.rows:
        return ""
    rows = "1 row is" if table.rows == 1 else f"{table.rows} rows are"
    return f"; {rows} in {table.path}"


def _report(
    given: Namespace,
    session: Session,
    table: Measured | None,
    measured: list[tuple[str, Measurement]],
) -> int:
    from shardcost.measure.open_mpi import verified
    from shardcost.report.measure import as_data, checks_as_text, times_as_text

    checks = [verified(one, name) for name, one in measured] if given.verify_bytes else []
    if given.json:
        output = None if table is None else table.path
        options.print_json(as_data(measured, checks, output, session.uncounted))
    else:
        print(checks_as_text(checks) if given.verify_bytes else times_as_text(measured))
        if table is not None:
            print(f"{table.rows} row{'s' * (table.rows != 1)} in {table.path}")
        if session.uncounted is not None:
            print(f"Bytes sent are left out: {session.uncounted}")
    return 0 if all(check.ok for check in checks) else 1


def _check_verifiable(session: Session) -> None:
    """Raise if the bytes of any of it cannot be known beforehand, or not be counted."""
    from shardcost.measure.open_mpi import messages

    if session.uncounted is not None:
        raise UsageError(f"--verify-bytes cannot be: {session.uncounted}")
    if not session.algorithms:
        raise UsageError("--verify-bytes: these collectives have no algorithm in common")
    for collective in session.job.collectives:
        for algorithm in session.algorithms:
            messages(collective, algorithm, 2, 2, 1)


def _algorithms(given: Namespace, collectives: tuple[str, ...]) -> tuple[str, ...]:
    """Return those named; if none are, all that can be verified, or Open MPI's own choice."""
    from shardcost.measure.open_mpi import DEFAULT, VERIFIABLE

    if given.algorithm is not None:
        return tuple(values.several("--algorithm", given.algorithm))
    if not given.verify_bytes:
        return (DEFAULT,)
    names = dict.fromkeys(name for _, name in VERIFIABLE)
    return tuple(name for name in names if all((one, name) in VERIFIABLE for one in collectives))


def _session(given: Namespace) -> Session:
    from shardcost.measure.job import Job
    from shardcost.measure.session import Session, ranks_of_torchrun
    from shardcost.measure.torch_rank import BACKENDS

    only_bytes = given.verify_bytes and given.output is None
    runs = {name: values.whole(f"--{name}", getattr(given, name)) for name in _RUNS}
    for name, count in runs.items():
        if not 0 <= count <= _MOST_RUNS:
            raise BadValueError(f"--{name}", count, f"between 0 and {_MOST_RUNS:,}")
    if runs["iterations"] < 1:
        raise BadValueError("--iterations", runs["iterations"], "at least 1")
    names = values.several("--collective", given.collective)
    sizes = _SIZES_TO_VERIFY if given.verify_bytes else _SIZES
    job = Job(
        collectives=tuple(dict.fromkeys(name.lower().replace("-", "_") for name in names)),
        sizes_bytes=tuple(_sizes(sizes if given.sizes is None else given.sizes)),
        dtype=_dtype(given.dtype),
        **(dict.fromkeys(_RUNS, 0) if only_bytes else runs),
        counts_bytes=True,
    )
    timeout_s = parse_time(given.timeout, "--timeout")
    if not 1 <= timeout_s <= 86400:
        raise BadValueError("--timeout", given.timeout, "between 1s and 24h")
    started = ranks_of_torchrun() if given.backend in BACKENDS else None
    ranks = (str(started) if started else "2,4") if given.ranks is None else given.ranks
    return Session(
        backend=given.backend,
        ranks=tuple(values.wholes("--ranks", ranks)),
        algorithms=_algorithms(given, job.collectives),
        transport=given.transport,
        job=job,
        timeout_s=timeout_s,
    )


def _table(given: Namespace) -> Measured | None:
    from shardcost.measure.table import Measured

    if given.verify_bytes and given.output is None:
        return None
    path = Path(given.output if given.output is not None else _OUTPUT)
    return Measured(path, given.cluster, given.network, append=given.append, force=given.force)


def _dtype(text: str) -> str:
    """Return what nccl-tests calls a number format."""
    from shardcost.dtypes import canonical_dtype
    from shardcost.measure.job import ITEM_BYTES

    if text.lower() in ITEM_BYTES:
        return text.lower()
    known = _DTYPES.get(canonical_dtype(text, "--dtype"))
    if known is None:
        raise UnknownNameError("--dtype", text, ITEM_BYTES)
    return known


def _sizes(text: str) -> list[int]:
    """Return the sizes of ``A,B,…``, of which any may be a range as ``--sweep`` takes it."""
    sizes: list[int] = []
    for part in values.several("--sizes", text):
        several = ":" in part or ".." in part
        sizes += values.sizes("--sizes", part) if several else [values.size("--sizes", part)]
    return list(dict.fromkeys(sizes))
