"""What is computed: the options of a workload, and the `Workload` that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shardcost.request.errors import UsageError
from shardcost.request.values import flag, whole

if TYPE_CHECKING:
    from shardcost.workload import Workload

SIZES: Final = {
    "batch": "sequences over all replicas: of a training step, or at work at once",
    "sequence_length": "tokens of a sequence (--train)",
    "prompt_tokens": "new tokens of a sequence (--prefill)",
    "cached_tokens": "tokens of a sequence that are in the cache already (--prefill, 0)",
    "context_tokens": "tokens of a sequence in the cache when the step begins (--decode)",
    "new_tokens": "tokens per sequence and step (--decode, 1)",
    "document_tokens": "mean length of documents packed into a sequence (--train)",
}
"""Options that are counts."""
FORMATS: Final = {
    "dtype": "number format of the matrix products (bf16)",
    "cache_dtype": "number format of the key-value cache (--prefill, --decode, bf16)",
    "gradient_dtype": "number format of gradients (--train, fp32)",
    "optimizer": "adam or sgd (--train, adam)",
}
"""Options that are words."""
PHASES: Final[Mapping[str, Mapping[str, str]]] = {
    "train": {
        "batch": "global_batch",
        "sequence_length": "sequence_length",
        "document_tokens": "document_tokens",
        "dtype": "dtype",
        "gradient_dtype": "gradient_dtype",
        "optimizer": "optimizer",
        "adapters": "adapters",
    },
    "prefill": {
        "batch": "batch",
        "prompt_tokens": "prompt_tokens",
        "cached_tokens": "cached_tokens",
        "dtype": "dtype",
        "cache_dtype": "cache_dtype",
    },
    "decode": {
        "batch": "batch",
        "context_tokens": "context_tokens",
        "new_tokens": "new_tokens",
        "dtype": "dtype",
        "cache_dtype": "cache_dtype",
    },
}
"""The options of each kind of workload, with the field that each fills."""
NEEDED: Final = {
    "train": ("batch", "sequence_length"),
    "prefill": ("batch", "prompt_tokens"),
    "decode": ("batch", "context_tokens"),
}
"""The options that each kind of workload cannot do without."""


def workload_of(given: Any) -> Workload:
    """Return the workload that the options describe."""
    from shardcost.workload import Decode, Prefill, Train

    kinds: dict[str, Any] = {"train": Train, "prefill": Prefill, "decode": Decode}
    takes = PHASES[given.phase]
    missing = [flag(name) for name in NEEDED[given.phase] if getattr(given, name) is None]
    if missing:
        raise UsageError(f"--{given.phase} needs {' and '.join(missing)}")
    for name in (*SIZES, *FORMATS, "adapters"):
        if getattr(given, name) is not None and name not in takes:
            phases = " and ".join(f"--{phase}" for phase, own in PHASES.items() if name in own)
            raise UsageError(f"{flag(name)} is for {phases}, not --{given.phase}")
    values: dict[str, Any] = {}
    for name, field in takes.items():
        value = getattr(given, name)
        if value is not None:
            values[field] = whole(flag(name), value) if name in SIZES else value
    return kinds[given.phase](**values)  # type: ignore[no-any-return]
