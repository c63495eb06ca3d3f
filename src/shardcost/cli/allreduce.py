"""``shardcost allreduce``: the front-door function, with sizes of a model of the catalog."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Final

from shardcost import values
from shardcost.allreduce import tensor_parallel_allreduce_cost
from shardcost.cli import options
from shardcost.dtypes import BITS, canonical_dtype
from shardcost.errors import BadValueError, UsageError
from shardcost.report.allreduce import BOUND, Input, as_data, as_text, receipts

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.model import Model

_EXAMPLES: Final = """\
  shardcost allreduce --hidden-size 8192 --sequence-length 4096 --batch 1 --gpus 8 --layers 80
  shardcost allreduce llama3-70b --on h100_sxm --gpus 8
  shardcost allreduce llama3-70b --on h100_sxm --gpus 8 --explain
  shardcost allreduce llama3-405b --on h100_sxm --network ib_8x400g --gpus 16 --json
  shardcost allreduce path/to/config.json --gpus 4 --bandwidth 400Gb/s
"""
_SIZES: Final = {
    "hidden_size": "width of the activation, in elements",
    "sequence_length": "tokens per sequence (with a model: 4096 unless given)",
    "batch_size": "sequences per batch (with a model: 1 unless given)",
    "num_gpus": "GPUs that share each layer",
    "num_layers": "transformer layers",
    "bytes_per_element": "bytes of one element of the activation (2 unless given)",
    "allreduces_per_layer": "2 for a serial block (unless given), 1 for a parallel one",
}
_NAMES: Final = {"batch_size": "--batch", "num_gpus": "--gpus", "num_layers": "--layers"}
"""Options as the other commands have them, of arguments that the function calls otherwise."""
_WITH_MODEL: Final = {"sequence_length": 4096, "batch_size": 1}
_OPTIONAL: Final = ("bytes_per_element", "bandwidth_gb_per_sec", "allreduces_per_layer")
_DEFAULTS: Final = dict(
    zip(_OPTIONAL, tensor_parallel_allreduce_cost.__defaults__ or (), strict=True)
)
"""The function's own defaults, so that the command line cannot differ from it."""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "allreduce",
        "What the all-reduces of one tensor-parallel forward pass cost each GPU, on a ring.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("positional", nargs="?", metavar="MODEL", help="catalog name or config.json: fills sizes")
    for name, text in _SIZES.items():
        add(*dict.fromkeys((_own(name), _flag(name))), dest=name, metavar="N", help=text)
    add("--dtype", help="number format of the activation, instead of its bytes")
    add("--bandwidth-gb-per-sec", metavar="X", help="per GPU and direction, 1e9 bytes/s (300)")
    add("--bandwidth", metavar="RATE", help="the same with its unit: 450GB/s, 400Gb/s")
    add("--model", metavar="MODEL", help="the same as MODEL")
    add("--on", metavar="CLUSTER", help="catalog name or file.toml: fills the bandwidth")
    add("--network", help="catalog name or file.toml: for groups larger than one domain of --on")
    add("--explain", action="store_true", help="formulas, values and sources of every figure")
    return parser


def run(given: Namespace) -> int:
    """Gather the inputs, price them, print the report."""
    if given.positional is not None:
        if given.model is not None:
            raise UsageError("MODEL and --model exclude each other; give one")
        given.model = given.positional
    finder = options.OnDisk()
    model = finder.model(given.model) if given.model is not None else None
    inputs = _sizes(given, model)
    num_gpus = inputs["num_gpus"].value
    if given.on is None and given.network is not None:
        raise UsageError("--network needs --on CLUSTER, whose nodes it connects")
    cluster = None if given.on is None else finder.cluster(given.on, given.network)
    inputs["bandwidth_gb_per_sec"] = _bandwidth(given, cluster, num_gpus)
    cost = tensor_parallel_allreduce_cost(**{name: each.value for name, each in inputs.items()})
    uneven = {heads for heads in (model.attention_heads if model else ()) if heads % num_gpus}
    notes = [
        f"{heads} attention heads do not divide evenly over {num_gpus} GPUs." for heads in uneven
    ]
    if cluster and not cluster.tiers[0].peer_access and num_gpus > 1:
        notes.append(f"{cluster.name} has no peer access: data is copied through the host.")
    notes = [*notes, BOUND]
    if model is not None:
        notes = [*finder.caveats, *notes]
    place = f"{num_gpus} x {cluster.name}" if cluster else f"{num_gpus} GPUs"
    title = f"All-reduces of {model.name if model else 'a transformer'} on {place}"
    explained = receipts(inputs) if given.explain else ()
    return options.print_report(
        given,
        lambda: as_data(inputs, cost, notes, explained),
        lambda: as_text(title, inputs, cost, notes, explained),
    )


def _sizes(given: Namespace, model: Model | None) -> dict[str, Input]:
    """Return every whole-number argument: the option, else the model's, else the default."""
    inputs: dict[str, Input] = {}
    missing = []
    for name in _SIZES:
        text = getattr(given, name)
        if text is not None:
            inputs[name] = Input(values.whole(_own(name), text), "option")
        elif name == "bytes_per_element" and given.dtype is not None:
            dtype = canonical_dtype(given.dtype, "--dtype")
            if BITS[dtype] % 8:
                raise BadValueError("--dtype", given.dtype, "a format of whole bytes")
            inputs[name] = Input(BITS[dtype] // 8, f"number format {dtype}")
        elif model is not None and name in {"hidden_size", "num_layers", "allreduces_per_layer"}:
            inputs[name] = Input(getattr(model, name), f"model {model.name}", model.source)
        elif name in _DEFAULTS:
            inputs[name] = Input(_DEFAULTS[name], "default")
        elif model is not None and name in _WITH_MODEL:
            inputs[name] = Input(_WITH_MODEL[name], "default")
        else:
            missing.append(_own(name))
    if given.dtype is not None and given.bytes_per_element is not None:
        raise UsageError("--dtype and --bytes-per-element exclude each other; give one")
    if missing:
        way_out = "" if model else " (or MODEL, which fills sizes from the catalog)"
        raise UsageError(f"missing {', '.join(missing)}{way_out}")
    return inputs


def _bandwidth(given: Namespace, cluster: Cluster | None, num_gpus: int) -> Input:
    """Return the bandwidth: the option, else the cluster's, else the function's default."""
    if given.bandwidth is not None and given.bandwidth_gb_per_sec is not None:
        raise UsageError("--bandwidth and --bandwidth-gb-per-sec exclude each other; give one")
    if given.bandwidth is not None:
        from shardcost.units import parse_rate

        return Input(parse_rate(given.bandwidth, "--bandwidth") / 1e9, "option")
    if given.bandwidth_gb_per_sec is not None:
        return Input(values.number("--bandwidth-gb-per-sec", given.bandwidth_gb_per_sec), "option")
    if cluster is None:
        origin = "default: NVLink of an A100, nominal, one direction"
        return Input(_DEFAULTS["bandwidth_gb_per_sec"], origin)
    link = cluster.slowest_ring_link(num_gpus)
    return Input(link.bytes_per_s / 1e9, link.name, str(link.source))


def _own(name: str) -> str:
    """Return the option of an argument as the other commands call it."""
    return _NAMES.get(name, _flag(name))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
