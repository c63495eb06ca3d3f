"""What profiler traces call things: kernels that communicate, and the arguments of collectives.

PyTorch notes on each collective kernel what was asked for: the call's name, elements in and out,
their type, the process group and its ranks. Sizes are elements, lists may be strings that are
shortened with ``...``, and older versions say none of it on the kernel.

Then the CPU operation that launched the kernel says it (`Launched`). It is found by the ``External
id`` that a kernel shares with it or, through the launch that shares the kernel's ``correlation``,
as the one that was running on the launching thread. Any of them may stand before or after the
others in the file, so all are kept, in columns, and joined at the end.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Mapping
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.formats.reading import canonical_collective

Whole = NDArray[np.int64]
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
    most = max(count or 0 for count in elements)
    if None in elements or most > _MOST_ELEMENTS:
        return 0, "collectives whose number of elements makes no sense"
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
    shape = shapes[0] if isinstance(shapes, list) and shapes else None
    elements = 0
    if isinstance(shape, list) and shape and collective != "all_gather":
        elements = prod(whole(side) or 0 for side in shape[:16])
    size = elements * width if elements <= _MOST_ELEMENTS else 0
    return Call(Kind(collective, CommGroup(), dtype), -1, size)


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
    shown = (letter if letter.isprintable() else " " for letter in text[:longest])
    return " ".join("".join(shown).split())


def _ranks(value: Any) -> str:
    if isinstance(value, list):
        shown = [str(rank) for rank in value[:_RANKS_SHOWN] if isinstance(rank, int)]
        value = f"[{', '.join(shown)}{', ...' if len(value) > _RANKS_SHOWN else ''}]"
    if not isinstance(value, str):
        return ""
    text = plain(value, _LONGEST_RANKS)
    return text if len(value) <= _LONGEST_RANKS else text.rpartition(",")[0] + ", ..."


class Columns:
    """Whole numbers and floats in columns, added row by row."""

    def __init__(self, types: str) -> None:
        self.columns = [array(code) for code in types]

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, *row: float) -> None:
        """Add a row."""
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)  # type: ignore[arg-type]

    def arrays(self) -> list[NDArray[Any]]:
        """Return the columns, which nothing can be added to any more."""
        types = {"q": np.int64, "d": np.float64}
        return [
            np.frombuffer(column, types[column.typecode])
            if column
            else np.zeros(0, types[column.typecode])
            for column in self.columns
        ]


class Launched:
    """CPU operations that launch collectives, found by what a kernel knows of them.

    Columns of operations are thread, start, end, external id, and what they say of their call,
    which is `said`; those of launches are correlation, thread and start.
    """

    def __init__(self, operations: Columns, launches: Columns) -> None:
        self.thread, self.start, self.end, self.external, *self.said = operations.arrays()
        launched = launches.arrays()
        self._by_external = np.argsort(self.external, kind="stable")
        order = np.argsort(launched[0], kind="stable")
        self.launch, self.launch_thread, self.launch_start = (column[order] for column in launched)

    def operation_of(self, external: Whole, correlation: Whole) -> Whole:
        """Return the number of each kernel's operation, -1 where there is none.

        Where both ids are the same number, the external one is not that of an operation.
        """
        none = np.full(len(external), -1)
        if not len(self.thread):
            return none
        place, same = _looked_up(self.external[self._by_external], external)
        sure = same & (external > 0) & (external != correlation)
        return np.where(sure, self._by_external[place], self._running(correlation))

    def _running(self, correlation: Whole) -> Whole:
        """Return which operation ran on the launching thread when a kernel was launched."""
        if not len(self.launch):
            return np.full(len(correlation), -1)
        place, launched = _looked_up(self.launch, correlation)
        when, where = self.launch_start[place], self.launch_thread[place]
        # Operations and launches in one order: before each launch stands what began last.
        count = len(self.start)
        late = np.repeat([0, 1], [count, len(when)])
        times, threads = np.append(self.start, when), np.append(self.thread, where)
        order = np.lexsort((late, times, threads))
        last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        candidate = np.empty(len(when), dtype=np.int64)
        is_launch = order >= count
        candidate[order[is_launch] - count] = np.where(last < 0, -1, order[last])[is_launch]
        inside = (self.thread[candidate] == where) & (when <= self.end[candidate])
        sound = launched & (correlation > 0) & (candidate >= 0) & inside
        return np.where(sound, candidate, -1)


def _looked_up(keys: Whole, wanted: Whole) -> tuple[Whole, NDArray[np.bool_]]:
    """Return where each wanted number stands among sorted keys, and whether it does."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted
