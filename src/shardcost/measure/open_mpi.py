"""What Open MPI sends for a collective: messages by its algorithm's schedule, headers by protocol.

A message of up to the eager limit travels in one piece behind a short header. A longer one is
announced; the receiver answers where it is to go, the sender writes it there and says that it is
done (over TCP the writing is a fragment like any other). All header sizes are in
``open_mpi.toml``, with where they come from.

Which messages there are is counted from the schedules of `collectives.exact.algorithms`: in
each step, all chunks from one rank to another are one message. Chunks are whole elements, cut as
Open MPI cuts them, and where a buffer is too short for its algorithm another one runs.

`verified` holds the bytes that each rank was measured to send to these. Equality is exact: payload
and headers are whole numbers of bytes, and TCP counts them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.collectives.exact.algorithms import direct, open_mpi, recursive, ring, tree
from shardcost.collectives.exact.algorithms.plan import Plan, mirror, up_and_down
from shardcost.collectives.exact.schedule import Ints
from shardcost.errors import UnknownNameError
from shardcost.measure.job import ITEM_BYTES, Measurement

DEFAULT: Final = "default"
"""The algorithm that Open MPI chooses by itself."""


class Message(NamedTuple):
    """One message of a collective."""

    source: int
    target: int
    size_bytes: int


@dataclass(frozen=True, eq=False)
class RankTraffic:
    """What each rank sends for one collective."""

    payload_bytes: Ints
    messages: Ints
    header_bytes: Ints

    @property
    def sent_bytes(self) -> Ints:
        """Payload and headers."""
        return self.payload_bytes + self.header_bytes


class _Known(NamedTuple):
    """An algorithm whose messages are known."""

    plan: Callable[[int], Plan]
    lengths: Callable[[int, int], Ints] = open_mpi.early_first
    """Of the chunks, in elements, from the elements and the number of chunks."""
    needs: Callable[[int], int] = lambda _: 1
    """The least elements that it runs with, from the number of ranks."""
    otherwise: str = ""
    """What runs with fewer."""


def _whole(build: Callable[[int, int], Plan]) -> Callable[[int], Plan]:
    """Return a pipeline with the buffer in one piece: unless told to, Open MPI cuts none."""
    return lambda ranks: build(ranks, 1)


_KNOWN: Final[Mapping[tuple[str, str], _Known]] = {
    ("all_reduce", "ring"): _Known(
        open_mpi.ring_all_reduce, needs=lambda ranks: ranks, otherwise="recursive_doubling"
    ),
    ("all_reduce", "recursive_doubling"): _Known(recursive.doubling_all_reduce),
    ("all_reduce", "rabenseifner"): _Known(
        open_mpi.rabenseifner_all_reduce,
        open_mpi.halved,
        lambda ranks: len(recursive.folding(ranks).core),
        "linear",
    ),
    ("all_reduce", "linear"): _Known(up_and_down(open_mpi.linear_broadcast)),
    ("all_gather", "ring"): _Known(ring.all_gather),
    ("all_gather", "recursive_doubling"): _Known(open_mpi.doubling_all_gather),
    ("all_gather", "bruck"): _Known(recursive.bruck_all_gather),
    ("reduce_scatter", "ring"): _Known(ring.reduce_scatter),
    ("reduce_scatter", "recursive_halving"): _Known(open_mpi.halving_reduce_scatter),
    ("all_to_all", "linear"): _Known(direct.all_to_all),
    ("all_to_all", "pairwise"): _Known(direct.pairwise_all_to_all),
    ("broadcast", "linear"): _Known(open_mpi.linear_broadcast),
    ("broadcast", "binomial"): _Known(tree.binomial_broadcast),
    ("broadcast", "binary_tree"): _Known(_whole(tree.binary_broadcast)),
    ("broadcast", "pipeline"): _Known(_whole(tree.chain_broadcast)),
    ("reduce", "linear"): _Known(mirror(open_mpi.linear_broadcast)),
    ("reduce", "binomial"): _Known(open_mpi.binomial_reduce),
    ("reduce", "binary_tree"): _Known(_whole(mirror(tree.binary_broadcast))),
    ("reduce", "pipeline"): _Known(_whole(mirror(tree.chain_broadcast))),
}
VERIFIABLE: Final = tuple(_KNOWN)
"""The collectives and algorithms whose bytes can be told beforehand."""


FACTS: Final[dict[str, Any]] = tomllib.loads(
    (files(__package__) / "open_mpi.toml").read_text(encoding="utf-8")
)


def algorithms_of(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms that Open MPI can be told to use.

    >>> algorithms_of("all_reduce")[-1]
    'rabenseifner'
    """
    known = FACTS["algorithms"][collective]
    return (DEFAULT, *(name for name in known if name != "parameter"))


def forced(collective: str, algorithm: str) -> dict[str, str]:
    """Return the parameters that make Open MPI use an algorithm, by name."""
    if algorithm not in algorithms_of(collective):
        raise UnknownNameError(f"algorithm of {collective}", algorithm, algorithms_of(collective))
    if algorithm == DEFAULT:
        return {}
    known = FACTS["algorithms"][collective]
    return {
        "coll_tuned_use_dynamic_rules": "1",
        f"coll_tuned_{known['parameter']}_algorithm": str(known[algorithm]),
    }


def messages(
    collective: str, algorithm: str, ranks: int, elements: int, item_bytes: int
) -> list[Message]:
    """Return every message of one collective.

    >>> messages("all_reduce", "ring", 2, 3, 4)[:2]
    [Message(source=0, target=1, size_bytes=8), Message(source=1, target=0, size_bytes=4)]
    """
    if (collective, algorithm) not in _KNOWN:
        names = [name for of, name in _KNOWN if of == collective]
        raise UnknownNameError(f"algorithm of {collective} to verify", algorithm, names)
    if ranks == 1:
        return []
    known = _KNOWN[collective, algorithm]
    if elements < known.needs(ranks):
        return messages(collective, known.otherwise, ranks, elements, item_bytes)
    plan = known.plan(ranks)
    buffer = elements * ranks if collective == "all_to_all" else elements
    lengths = known.lengths(buffer, plan.chunks) * item_bytes
    sends: list[Message] = []
    for step in plan.steps:
        pairs = np.zeros((ranks, ranks), dtype=np.int64)
        np.add.at(pairs, (step.source, step.target), lengths[step.chunk])
        lanes = np.unique(np.stack([step.source, step.target], axis=1), axis=0).tolist()
        sends += [Message(a, b, int(pairs[a, b])) for a, b in lanes]
    return sends


def rank_traffic(
    collective: str, algorithm: str, ranks: int, elements: int, item_bytes: int
) -> RankTraffic:
    """Return what each rank sends for one collective: payload, messages, headers.

    >>> rank_traffic("all_reduce", "linear", 3, 256, 4).sent_bytes.tolist()
    [2092, 1046, 1046]
    """
    payload, count, headers = (np.zeros(ranks, dtype=np.int64) for _ in range(3))
    eager, rendezvous = _overhead("eager"), _overhead("rendezvous")
    limits = FACTS["eager"]
    most = limits["limit_bytes"] - limits["largest_header_bytes"]
    for source, target, size_bytes in messages(collective, algorithm, ranks, elements, item_bytes):
        there, back = eager if size_bytes <= most else rendezvous
        payload[source] += size_bytes
        count[source] += 1
        headers[source] += there
        headers[target] += back
    return RankTraffic(payload, count, headers)


def _overhead(protocol: str) -> tuple[int, int]:
    """Return the header bytes of one message, from its sender and from its receiver.

    >>> _overhead("eager"), _overhead("rendezvous")
    ((22, 0), (96, 64))
    """
    of = {name: header["bytes"] for name, header in FACTS["headers"].items()}
    there, back = (
        sum(of[name] for fragment in FACTS["protocols"][protocol][side] for name in fragment)
        for side in ("sender", "receiver")
    )
    return there, back


class Totals(NamedTuple):
    """Of all ranks together: what they were to send, and what they sent."""

    payload_bytes: int
    messages: int
    header_bytes: int
    measured_bytes: int


@dataclass(frozen=True, eq=False)
class Verified:
    """One collective: what each rank was to send, and what it sent."""

    measurement: Measurement
    algorithm: str
    predicted: RankTraffic

    @property
    def measured_bytes(self) -> list[int]:
        """By rank."""
        return self.measurement.sent_bytes or []

    @property
    def totals(self) -> Totals:
        """Sums over ranks."""
        wanted = self.predicted
        columns = wanted.payload_bytes, wanted.messages, wanted.header_bytes, self.measured_bytes
        return Totals(*(int(sum(by_rank)) for by_rank in columns))

    @property
    def differing(self) -> list[Difference]:
        """Every rank that sent something else than the schedule says."""
        sent = dict(enumerate(self.measured_bytes))
        return [
            Difference(rank, sent.get(rank, 0), wanted)
            for rank, wanted in enumerate(self.predicted.sent_bytes.tolist())
            if sent.get(rank) != wanted
        ]

    @property
    def ok(self) -> bool:
        """Whether every rank sent exactly what the schedule says."""
        return not self.differing


class Difference(NamedTuple):
    """A rank that sent something else; 0 where nothing is known of it."""

    rank: int
    measured_bytes: int
    predicted_bytes: int


def verified(measurement: Measurement, algorithm: str) -> Verified:
    """Return a measurement beside what the schedule says."""
    predicted = rank_traffic(
        measurement.collective,
        algorithm,
        measurement.ranks,
        measurement.elements,
        ITEM_BYTES[measurement.dtype],
    )
    return Verified(measurement, algorithm, predicted)
