"""How the model is divided: the options of a layout, and the `Layout` that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shardcost.request import values
from shardcost.request.errors import WorldSizeError
from shardcost.request.values import flag
from shardcost.scalars import whole_number

if TYPE_CHECKING:
    from shardcost.layout import Layout

_DEGREES: Final = ("tp", "cp", "pp", "dp")
COUNTS: Final = {
    "tp": "tensor parallelism: GPUs that share each layer's matrices (1)",
    "cp": "context parallelism: GPUs that share each sequence (1)",
    "pp": "pipeline stages (1)",
    "dp": "data parallelism: replicas that divide the batch (what --gpus leaves, or 1)",
    "ep": "expert parallelism: GPUs, among those above, that experts are spread over (1)",
    "virtual_stages": "virtual stages per pipeline stage, with --schedule interleaved (1)",
    "micro_batch": "sequences that a replica works on at a time in training (1)",
    "zero": "ZeRO stage, 0 to 3: dp shards optimizer (1), gradients (2), weights (3) as well (0)",
    "shard_degree": "ranks that share what ZeRO shards (all of dp x cp)",
}
"""Options that are whole numbers."""
WORDS: Final = {
    "recompute": "activations computed again: none, selective or full (none)",
    "schedule": "1f1b, interleaved or zero_bubble (1f1b)",
    "scheme": "how tp splits a product: 1d, 2d, 2.5d, 3d or weight_gathered (1d)",
    "context_scheme": "how cp works: ring, all_gather or ulysses (ring)",
    "order": "placement on the devices, nearest neighbours first (tp-cp-dp-pp)",
}
"""Options that are words."""


def layout_of(given: Any) -> Layout:
    """Return the layout that the options describe; GPUs that no degree takes are replicas."""
    from shardcost.layout import Layout

    found: dict[str, Any] = {}
    for name in COUNTS:
        text = getattr(given, name)
        if text is not None:
            found[name] = values.whole(flag(name), text)
    for name in WORDS:
        if getattr(given, name) is not None:
            found[name] = getattr(given, name)
    if given.imbalance is not None:
        found["imbalance"] = values.number("--imbalance", given.imbalance)
    for name in _DEGREES:
        if name in found:
            whole_number(flag(name), found[name], 1)
    if given.gpus is not None:
        gpus = whole_number("--gpus", values.whole("--gpus", given.gpus), 1)
        found["dp"] = _replicas(gpus, found)
    return Layout(sequence_parallel=given.sequence_parallel, **found)


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
