"""What profiler traces call things: kernels that communicate, and the arguments of collectives.

PyTorch notes on each collective kernel what was asked for: the call's name, elements in and out,
their type, the process group and its ranks. Sizes are elements, lists may be strings that are
shortened with ``...``, and older versions say none of it on the kernel.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardcost.formats.reading import canonical_collective

UNKNOWN: Final = "unknown"
_MOST_ELEMENTS: Final = 2**50
_MOST_RANKS: Final = 10_000_000
_LONGEST_NAME: Final = 80
_LONGEST_RANKS: Final = 256
_RANKS_SHOWN: Final = 40
_COMMUNICATES: Final = ("ncclkernel", "nccldevkernel", "ncclsym", "rccl", "nvshmem", "deep_ep")
_ALL_REDUCES: Final = (
    "cross_device_reduce",
    "multimem_all_reduce",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
)
"""Kernels by which engines add up over the links without a library."""
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_TYPES: Final[Mapping[str, tuple[str, int]]] = {
    "bfloat16": ("bf16", 2),
    "half": ("fp16", 2),
    "float": ("fp32", 4),
    "double": ("fp64", 8),
    "byte": ("uint8", 1),
    "unsigned char": ("uint8", 1),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "bool": ("bool", 1),
    "short": ("int16", 2),
    "uint16": ("uint16", 2),
    "int": ("int32", 4),
    "uint32": ("uint32", 4),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "uint64": ("uint64", 8),
    "complexfloat": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "float8_e4m3fn": ("fp8", 1),
    "float8_e5m2": ("fp8", 1),
    "float8_e4m3fnuz": ("fp8", 1),
    "float8_e5m2fnuz": ("fp8", 1),
    "float8_e8m0fnu": ("fp8", 1),
}
"""Bytes of PyTorch's number formats, by their names in lower case."""
DTYPES: Final[Mapping[str, str]] = {
    "bf16": "BFloat16",
    "fp16": "Half",
    "fp32": "Float",
    "fp64": "Double",
    "fp8": "Float8_e4m3fn",
    "int8": "Char",
    "uint8": "Byte",
}
"""PyTorch's names of shardcost's number formats."""


class CommGroup(NamedTuple):
    """A process group. What a trace does not say is empty or 0."""

    name: str = ""
    description: str = ""
    size: int = 0
    ranks: str = ""
    """As written: a list, shortened where it is long."""

    @property
    def stride(self) -> int:
        """How far apart its ranks are, 0 where that is unknown or uneven.

        >>> CommGroup("3", "dp", 4, "[0, 8, 16, 24]").stride
        8
        """
        numbers = [int(number) for number in _NUMBER.findall(self.ranks.partition("...")[0])]
        steps = {after - before for before, after in itertools.pairwise(numbers)}
        return steps.pop() if len(steps) == 1 and min(steps) > 0 else 0

    @property
    def purpose(self) -> str:
        """What it is for, as it says itself; empty where it does not."""
        return "" if self.description == "undefined" else self.description


class Kind(NamedTuple):
    """What calls of a collective have in common."""

    collective: str
    """As shardcost calls it; as the trace does where shardcost has no such collective."""
    group: CommGroup
    dtype: str = ""


class Call(NamedTuple):
    """What a trace says about one call."""

    kind: Kind
    seq: int
    """Its number in its group, -1 where none is given."""
    size_bytes: int
    """As nccl-tests counts, 0 where it is unknown."""
    doubt: str = ""
    """Why its size was not understood."""


def communicates(name: str) -> bool:
    """Return whether a kernel of this name communicates.

    >>> communicates("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)")
    True
    """
    bare = name[:_LONGEST_NAME].lower()
    return bare.startswith("nccl") or any(word in bare for word in (*_COMMUNICATES, *_ALL_REDUCES))


def collective_of_kernel(name: str) -> str:
    """Return the collective that a kernel's name tells, ``unknown`` where it tells none."""
    bare = name[:_LONGEST_NAME]
    if any(word in bare for word in _ALL_REDUCES):
        return "all_reduce"
    return canonical_collective(bare) or UNKNOWN


def collective_of_call(name: str) -> str:
    """Return the collective that a call's name tells, or the name itself."""
    return canonical_collective(name) or plain(name, _LONGEST_NAME).lower()


def call_of(args: Mapping[str, Any]) -> Call | None:
    """Return what the arguments of a kernel or CPU operation say; None where they say nothing."""
    name = args.get("Collective name")
    if not isinstance(name, str) or not name:
        return None
    dtype, width = _type(args.get("dtype"))
    group = group_of(
        args.get("Process Group Name"),
        args.get("Process Group Description"),
        args.get("Group size"),
        args.get("Process Group Ranks"),
    )
    size, doubt = _size(args, width)
    kind = Kind(collective_of_call(name), group, dtype)
    seq = whole(args.get("Seq"))
    return Call(kind, -1 if seq is None else seq, size, doubt)


def _size(args: Mapping[str, Any], width: int) -> tuple[int, str]:
    """Return the bytes of the larger of what goes in and what comes out."""
    counts = [args[name] for name in ("In msg nelems", "Out msg nelems") if name in args]
    elements = [whole(count) for count in counts]
    if not counts:
        return 0, ""
    if None in elements or max(count or 0 for count in elements) > _MOST_ELEMENTS:
        return 0, "collectives whose number of elements makes no sense"
    most = max(count or 0 for count in elements)
    if most and not width:
        return 0, "collectives of an unknown number format"
    return most * width, ""


def call_of_annotation(name: str, args: Mapping[str, Any]) -> Call:
    """Return what an annotation such as ``nccl:all_reduce`` says, which has the input's shape.

    The input of an all-gather is one rank's part; how many parts there are it does not say.
    """
    collective = collective_of_call(name.removeprefix("nccl:"))
    types, shapes = args.get("Input type"), args.get("Input Dims")
    first_type = types[0] if isinstance(types, list) and types else None
    dtype, width = _type(first_type)
    size = 0
    if isinstance(shapes, list) and shapes and isinstance(shapes[0], list):
        size = _elements(shapes[0]) * width
    if collective == "all_gather":
        size = 0
    return Call(Kind(collective, CommGroup(), dtype), -1, size)


def _elements(shape: Sequence[Any]) -> int:
    if not shape or isinstance(shape[0], list):
        return 0
    product = 1
    for side in shape[:16]:
        product *= whole(side) or 0
        if product > _MOST_ELEMENTS:
            return 0
    return product


def group_of(name: Any, description: Any, size: Any, ranks: Any) -> CommGroup:
    """Return a process group from what a trace says about it, in whatever types."""
    text = _ranks(ranks)
    count = whole(size)
    if count is None and text and "..." not in text:
        count = len(_NUMBER.findall(text))
    if count is None or count > _MOST_RANKS:
        count = 0
    return CommGroup(_text(name), _text(description), count, text)


def listed_groups(listed: Any) -> dict[str, CommGroup]:
    """Return the process groups that a trace lists, by name."""
    groups = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict):
            names = ("pg_name", "pg_desc", "pg_size", "ranks")
            group = group_of(*(entry.get(name) for name in names))
            groups[group.name] = group
    return groups


def completed(group: CommGroup, listed: Mapping[str, CommGroup]) -> CommGroup:
    """Return a group with what the list of groups adds to it."""
    more = listed.get(group.name)
    if not group.name or more is None:
        return group
    return CommGroup(
        group.name,
        group.description or more.description,
        group.size or more.size,
        group.ranks or more.ranks,
    )


def whole(value: Any) -> int | None:
    """Return a count, which may stand in a string; None where it is none."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        return None
    return value


def _type(name: Any) -> tuple[str, int]:
    if not isinstance(name, str):
        return "", 0
    bare = name[:_LONGEST_NAME].lower().removeprefix("c10::").removeprefix("torch.")
    return _TYPES.get(bare, (plain(bare, _LONGEST_NAME), 0))


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 2**62 else ""
    return plain(value, _LONGEST_NAME) if isinstance(value, str) else ""


def plain(text: str, longest: int) -> str:
    """Return a text from outside as one line that a terminal shows as it is."""
    words = "".join(
        character if character.isprintable() else " " for character in text[:longest]
    ).split()
    return " ".join(words)


def _ranks(value: Any) -> str:
    if isinstance(value, list):
        shown = [str(rank) for rank in value[:_RANKS_SHOWN] if isinstance(rank, int)]
        value = f"[{', '.join(shown)}{', ...' if len(value) > _RANKS_SHOWN else ''}]"
    if not isinstance(value, str):
        return ""
    text = plain(value, _LONGEST_RANKS)
    return text if len(value) <= _LONGEST_RANKS else text.rpartition(",")[0] + ", ..."
