"""``shardcost estimate``: what one layout costs, or how cost changes with one of its sizes."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardcost.cli import options
from shardcost.errors import BadValueError, ShardcostError, UnknownNameError
from shardcost.scalars import whole_number

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate
    from shardcost.estimate.scaling import Scaling
    from shardcost.layout import Layout
    from shardcost.model import Model

_EXAMPLES: Final = """\
  shardcost estimate llama3-70b --on h100_sxm --network ib_8x400g --gpus 64 --tp 8 --pp 2 \\
      --train --batch 512 --sequence-length 4096
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --prefill --batch 1 --prompt-tokens 8192
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096
  shardcost estimate llama3-70b --on h100_sxm --decode --batch 64 --context-tokens 4096 \\
      --vary tp=1,2,4,8
  shardcost estimate path/to/config.json --on h100_sxm --tp 8 --decode --batch 8 \\
      --context-tokens 4096 --explain
"""
_DEGREES: Final = ("tp", "cp", "pp", "dp")
_LAYOUT: Final = {
    "tp": "tensor parallelism: GPUs that share each layer's matrices (1)",
    "cp": "context parallelism: GPUs that share each sequence (1)",
    "pp": "pipeline stages (1)",
    "dp": "data parallelism: replicas that divide the batch (what --gpus leaves, or 1)",
    "ep": "expert parallelism: GPUs, among those above, that experts are spread over (1)",
    "chunks": "model chunks per pipeline stage, with --schedule interleaved (1)",
    "micro_batch": "sequences that a replica works on at a time in training (1)",
    "zero": "ZeRO stage, 0 to 3: dp shards optimizer (1), gradients (2), weights (3) as well (0)",
    "shard_degree": "ranks that share what ZeRO shards (all of dp x cp)",
}
_WORDS: Final = {
    "recompute": "activations computed again: none, selective or full (none)",
    "schedule": "1f1b, interleaved or zero_bubble (1f1b)",
    "scheme": "how tp splits a product: 1d, 2d, 2.5d, 3d or weight_gathered (1d)",
    "context_scheme": "how cp works: ring, all_gather or ulysses (ring)",
    "order": "placement on the devices, nearest neighbours first (tp-cp-dp-pp)",
}
_VARIED: Final = ("gpus", "on", "network", "software", "imbalance", *_LAYOUT, *_WORDS)
"""What ``--vary`` may name besides the options of the workload."""


class WorldSizeError(BadValueError):
    """The degrees of a layout do not multiply to the number of GPUs."""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "estimate",
        "What a model costs under one layout: time by part, communication, memory.",
        _EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="catalog name, config.json or its folder")
    parser.add_argument(
        "--on", metavar="CLUSTER", help="catalog name or profile.toml; needed unless it varies"
    )
    parser.add_argument("--network", metavar="NET", help="catalog name: what joins the nodes")
    parser.add_argument("--gpus", metavar="N", help="GPUs in all (tp x cp x pp x dp)")
    parser.add_argument("--software", metavar="NAME", help="framework or engine, a catalog name")
    parser.add_argument(
        "--vary",
        metavar="NAME=A,B,…",
        help="a table over values of one option, such as tp=1,2,4,8 or batch=1,16,256",
    )
    parser.add_argument(
        "--explain", action="store_true", help="formulas, values, sources and errors seen"
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the timeline of the step for ui.perfetto.dev, .json or .json.gz (--train)",
    )
    layout = parser.add_argument_group("layout")
    for name, text in _LAYOUT.items():
        layout.add_argument(options.flag(name), metavar="N", help=text)
    for name, text in _WORDS.items():
        layout.add_argument(options.flag(name), metavar="NAME", help=text)
    layout.add_argument("--imbalance", metavar="X", help="fullest rank's tokens over the mean (1)")
    layout.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="spread activations between products over tp as well",
    )
    options.add_workload(parser)
    return parser


def run(given: Namespace) -> int:
    """Price one layout, or one for each value that varies, and print the report."""
    _check_trace(given)
    model = options.model(given.model)
    caveats = list(model.caveats) if options.is_file(given.model) else []
    if given.vary is not None:
        return _vary(given, model, caveats)
    from shardcost.report.estimate import as_data, as_text

    found = _estimate(given, model)
    if given.trace is not None:
        from shardcost.report.trace import write_timeline

        write_timeline(found, Path(given.trace))
    if given.json:
        explained = {"explanation": found.explain().splitlines()} if given.explain else {}
        options.print_json(as_data(found, caveats) | explained)
    else:
        print(as_text(found, caveats, explain=given.explain))
    return 0


def _check_trace(given: Namespace) -> None:
    """Raise where there is no one timeline to write, or its file is named as something else."""
    if given.trace is None:
        return
    if given.vary is not None:
        raise options.UsageError("--trace and --vary exclude each other: it shows one layout")
    if given.phase != "train":
        raise options.UsageError(f"--trace is for --train, not --{given.phase}")
    if not given.trace.endswith((".json", ".json.gz")):
        raise BadValueError("--trace", given.trace, "a file that ends in .json or .json.gz")


def _vary(given: Namespace, model: Model, caveats: list[str]) -> int:
    from shardcost.report.scaling import as_data, as_text

    if given.explain:
        raise options.UsageError("--explain and --vary exclude each other: it explains one layout")
    found = _scaling(given, model)
    if given.json:
        options.print_json(as_data(found, caveats))
    else:
        print(as_text(found, caveats))
    if found.feasible:
        return 0
    print(f"shardcost: no value of {found.name} is feasible, see the reasons", file=sys.stderr)
    return options.NOTHING_FEASIBLE


def _scaling(given: Namespace, model: Model) -> Scaling:
    """Return the rows of ``--vary``: every value's estimate, or why there is none."""
    from shardcost.estimate.scaling import Row, Scaling

    name, values = _varied(given)
    rows = []
    for value in values:
        each = Namespace(**{**vars(given), name: value})
        try:
            rows.append(Row(value, _estimate(each, model)))
        except _ImpossibleError as error:
            rows.append(Row(value, None, str(error.reason)))
    return Scaling(name, tuple(rows), given.phase)


def _varied(given: Namespace) -> tuple[str, list[str]]:
    """Return the name and the values of ``--vary NAME=A,B,…``."""
    match = re.fullmatch(r"([^=]+)=(.+)", given.vary)
    if not match:
        raise BadValueError("--vary", given.vary, "a name and values, like tp=1,2,4,8")
    name = match[1].strip().removeprefix("--").replace("-", "_")
    known = (*_VARIED, *(each for each in options.PHASES[given.phase] if each != "adapters"))
    if name not in known:
        raise UnknownNameError("name in --vary", name, known)
    values = [value.strip() for value in match[2].split(",")]
    if not all(values):
        raise BadValueError("--vary", given.vary, "without empty values, like tp=1,2,4,8")
    return name, list(dict.fromkeys(values))


class _ImpossibleError(ShardcostError):
    """A question in good order whose answer is that it cannot be done."""

    def __init__(self, reason: ShardcostError) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)


def _estimate(given: Namespace, model: Model) -> Estimate:
    from shardcost.estimate import estimate
    from shardcost.software import Software

    if given.on is None:
        raise options.UsageError("missing --on CLUSTER (`shardcost clusters` lists them)")
    cluster = options.cluster(given.on, given.network)
    software = None if given.software is None else Software.named(given.software)
    workload = options.workload(given)
    try:
        layout = _layout(given)
    except BadValueError as error:
        if isinstance(error, WorldSizeError) or error.argument == "Layout":
            raise _ImpossibleError(error) from None
        raise
    try:
        return estimate(model, cluster, layout, workload, software=software)
    except ShardcostError as error:
        raise _ImpossibleError(error) from None


def _layout(given: Namespace) -> Layout:
    from shardcost.layout import Layout

    values: dict[str, Any] = {}
    for name in _LAYOUT:
        text = getattr(given, name)
        if text is not None:
            values[name] = options.whole(options.flag(name), text)
    for name in _WORDS:
        if getattr(given, name) is not None:
            values[name] = getattr(given, name)
    if given.imbalance is not None:
        values["imbalance"] = options.number("--imbalance", given.imbalance)
    for name in _DEGREES:
        if name in values:
            whole_number(options.flag(name), values[name], 1)
    if given.gpus is not None:
        gpus = whole_number("--gpus", options.whole("--gpus", given.gpus), 1)
        values["dp"] = _replicas(gpus, values)
    return Layout(sequence_parallel=given.sequence_parallel, **values)


def _replicas(gpus: int, degrees: Mapping[str, int]) -> int:
    """Return the data parallelism that fills the GPUs; the degrees given must allow one."""
    names = [name for name in _DEGREES if name != "dp" or name in degrees]
    sizes = [degrees.get(name, 1) for name in names]
    product = 1
    for size in sizes:
        product *= size
    written = f"{' x '.join(names)} = {' x '.join(map(str, sizes))} = {product}"
    if "dp" in degrees:
        if product != gpus:
            raise WorldSizeError("--gpus", gpus, written)
        return degrees["dp"]
    if gpus % product:
        raise WorldSizeError("--gpus", gpus, f"a multiple of {written}")
    return gpus // product
