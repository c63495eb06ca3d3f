"""Algorithms of collectives in words: what each does, on how many ranks, what it costs, from where.

`FORMS` has, of every algorithm of every collective, the steps and the bytes through the busiest
port as a share of the buffer, as expressions that can be read and evaluated alike. Tests evaluate
them and hold them to `collectives.exact.closed_forms`. Where ranks are no power of two, or a
tree has a level with a single rank, another expression holds: the first whose condition is met.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import ceil, log2
from typing import Final, NamedTuple, TypeAlias

from shardcost.collectives.exact.algorithms import ALGORITHMS, Shape, algorithm_named, most_square

Values: TypeAlias = Mapping[str, int]
"""By symbol."""

SYMBOLS: Final = {
    "n": "ranks",
    "k": "pieces that follow each other",
    "X": "columns, or ranks of a node",
    "Y": "rows, or nodes",
    "h": "floor(log2 n)",
    "c": "ceil(log2 n)",
    "g": "floor(log2 (n - 1))",
    "e": "ranks in excess of a power of two",
    "f": "floor(log2 e) + 1",
    "b": "ones in the binary numbers 1 to n - 1",
}
_LETTER: Final = re.compile(r"[A-Za-z]")
_BRACKETS: Final = re.compile(r"\([^()]*\)")


class About(NamedTuple):
    """An algorithm in words."""

    title: str
    """What happens, in one line."""
    paper: str | None = None
    ranks: str = "any number"


class Entry(NamedTuple):
    """An algorithm, and the collectives that can be done by it."""

    name: str
    collectives: tuple[str, ...]
    about: About
    takes: str
    """Beside the ranks: ``chunks`` pieces of a pipeline, a ``shape``, or nothing: ``ranks``."""


class Form(NamedTuple):
    """What an algorithm costs, as expressions over `SYMBOLS`."""

    steps: str
    port_share: str
    """Bytes through the busiest port of each step, added up, over those of the buffer."""
    holds: Callable[[Values], bool] = lambda _: True


_PATARASUK: Final = (
    "Patarasuk, Yuan, 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations"
)
_THAKUR: Final = (
    "Thakur, Rabenseifner, Gropp, 2005, Optimization of collective communication operations in"
    " MPICH"
)
_BRUCK: Final = (
    "Bruck, Ho, Kipnis, Upfal, Weathersby, 1997, Efficient algorithms for all-to-all communications"
    " in multiport message-passing systems"
)
_CHAN: Final = (
    "Chan, Heimlich, Purkayastha, van de Geijn, 2007, Collective communication: theory, practice,"
    " and experience"
)
_SANDERS: Final = (
    "Sanders, Speck, Träff, 2009, Two-tree algorithms for full bandwidth broadcast, reduction and"
    " scan"
)
_MIKAMI: Final = (
    "Mikami et al., 2018, Massively distributed SGD: ImageNet/ResNet-50 training in a flash"
)
_KLENK: Final = (
    "Klenk, Jiang, Thorson, Dennison, 2020, An in-network architecture for accelerating"
    " shared-memory multiprocessor collectives"
)
_GRAHAM: Final = (
    "Graham et al., 2016, Scalable hierarchical aggregation protocol (SHArP): a hardware"
    " architecture for efficient data reduction"
)
_FOLDED: Final = "any number; those in excess of a power of two hand over to a neighbour first"
_IN_A_GRID: Final = "any number, as rows times columns; a prime number is a single row"
_ON_A_SWITCH: Final = "any number, all linked to one switch that adds up"

ABOUT: Final[Mapping[str, About]] = {
    "ring": About("each passes on to its neighbour what it last got", _PATARASUK),
    "bidirectional_ring": About("half of each block goes each way round", _PATARASUK),
    "recursive_doubling": About(
        "partners at distance 1, 2, 4, … exchange all they have", _THAKUR, _FOLDED
    ),
    "recursive_halving": About("partners at distance …, 4, 2, 1 exchange halves", _THAKUR, _FOLDED),
    "halving_doubling": About(
        "halves are exchanged and summed, then gathered by doubling (Rabenseifner)",
        _THAKUR,
        _FOLDED,
    ),
    "bruck": About("blocks travel by the bits of their distance, for any number", _BRUCK),
    "one_shot": About("everyone sends its whole buffer to everyone"),
    "two_shot": About("every block goes to its owner, and the sum from there to all"),
    "direct": About("everyone sends to everyone what it must, in one step"),
    "pairwise": About("everyone sends to everyone, one partner at a time", _THAKUR),
    "chain": About("from rank to rank along a chain, in pieces", _CHAN),
    "binomial": About("all who have the buffer give it to one more each, or backwards", _CHAN),
    "binary_tree": About("down, or up, a binary tree in pieces", _SANDERS),
    "double_binary_tree": About(
        "each half by its own tree; leaves of one are inner nodes of the other", _SANDERS
    ),
    "torus_2d": About("along rows, then along columns, by rings", _MIKAMI, _IN_A_GRID),
    "hierarchical": About("inside each node, then across nodes, by rings", _MIKAMI, _IN_A_GRID),
    "nvls": About(
        "the owner of a block loads its sum through the switch and stores it to all",
        _KLENK,
        _ON_A_SWITCH,
    ),
    "sharp": About(
        "the switch adds up the whole buffers and sends the sum to all", _GRAHAM, _ON_A_SWITCH
    ),
}

_OF_ONE: Final = {
    ("send_recv", "direct"): "everyone sends its buffer to the next rank",
    ("all_reduce", "binary_tree"): "up a binary tree in pieces, adding, then down",
    ("all_to_all", "torus_2d"): "along rows, then along columns, one partner at a time",
    ("all_to_all", "hierarchical"): "inside each node, then across nodes, one partner at a time",
}
"""What happens, where it is another thing in one collective than in the others."""


def _is_power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def _even(at: Values) -> bool:
    return _is_power_of_two(at["n"])


def _two(at: Values) -> bool:
    return at["n"] == 2


def _lone_child(at: Values) -> bool:
    """Return whether the ranks below the root of a double tree serve a single child at a step."""
    n = at["n"]
    return n > 2 and _is_power_of_two(n - 1) and (at["k"] == 1 or n == 3)


_RING: Final = (Form("n - 1", "(n - 1)/n"),)
_BOTH_WAYS: Final = (Form("2*(n - 1)", "2*(n - 1)/n"),)
_AT_ONCE: Final = (Form("1", "(n - 1)/n"),)
_BY_BITS: Final = (Form("c", "(n - 1)/n"),)
_GRID: Final = (Form("(X - 1) + (Y - 1)", "(n - 1)/n"),)
_GRID_BOTH: Final = (Form("2*(X - 1) + 2*(Y - 1)", "2*(n - 1)/n"),)
_GRID_EXCHANGE: Final = (Form("(X - 1) + (Y - 1)", "(X - 1)/X + (Y - 1)/Y"),)
_SWITCHED: Final = (Form("k + 1", "1 + 1/(n*k)"),)
_DOUBLING: Final = (
    Form("h", "(n - 1)/n", _even),
    Form("h + 2", "(2**h + 2**f + (h - f)*e + n - 2)/n"),
)
_CHAIN: Final = (Form("n - 2 + k", "(n - 2 + k)/k"),)
_BINOMIAL: Final = (Form("c", "c"),)
_TREE: Final = (
    Form("k", "1", _two),
    Form("h + k - 1", "(2*(h + k - 1) - 1)/k", _even),
    Form("h + k - 1", "2*(h + k - 1)/k"),
)
_DOUBLE_TREE: Final = (
    Form("g + k", "(2*(g + k) - 1)/(2*k)", _lone_child),
    Form("g + k", "(g + k)/k"),
)

FORMS: Final[Mapping[tuple[str, str], tuple[Form, ...]]] = {
    ("all_reduce", "ring"): _BOTH_WAYS,
    ("all_reduce", "bidirectional_ring"): _BOTH_WAYS,
    ("all_reduce", "recursive_doubling"): (Form("h", "h", _even), Form("h + 2", "h + 2")),
    ("all_reduce", "halving_doubling"): (
        Form("2*h", "2*(n - 1)/n", _even),
        Form("2*h + 2", "2*(2**h - 1)/2**h + 2"),
    ),
    ("all_reduce", "binary_tree"): (
        Form("2*k", "2", _two),
        Form("2*(h + k - 1)", "2*(2*(h + k - 1) - 1)/k", _even),
        Form("2*(h + k - 1)", "4*(h + k - 1)/k"),
    ),
    ("all_reduce", "double_binary_tree"): (
        Form("2*(g + k)", "(2*(g + k) - 1)/k", _lone_child),
        Form("2*(g + k)", "2*(g + k)/k"),
    ),
    ("all_reduce", "torus_2d"): _GRID_BOTH,
    ("all_reduce", "hierarchical"): _GRID_BOTH,
    ("all_reduce", "one_shot"): (Form("1", "n - 1"),),
    ("all_reduce", "two_shot"): (Form("2", "2*(n - 1)/n"),),
    ("all_reduce", "nvls"): (
        Form("k + 3", "2 + 2/n", lambda at: at["k"] == 1),
        Form("k + 3", "(4 + 1/n)/k", lambda at: at["k"] == 2),
        Form("k + 3", "(k + 3 + (k - 1)/n)/k"),
    ),
    ("all_reduce", "sharp"): (Form("k + 1", "(k + 1)/k"),),
    ("reduce_scatter", "ring"): _RING,
    ("reduce_scatter", "bidirectional_ring"): _RING,
    ("reduce_scatter", "recursive_halving"): _DOUBLING,
    ("reduce_scatter", "bruck"): _BY_BITS,
    ("reduce_scatter", "torus_2d"): _GRID,
    ("reduce_scatter", "hierarchical"): _GRID,
    ("reduce_scatter", "direct"): _AT_ONCE,
    ("reduce_scatter", "nvls"): _SWITCHED,
    ("all_gather", "ring"): _RING,
    ("all_gather", "bidirectional_ring"): _RING,
    ("all_gather", "recursive_doubling"): _DOUBLING,
    ("all_gather", "bruck"): _BY_BITS,
    ("all_gather", "torus_2d"): _GRID,
    ("all_gather", "hierarchical"): _GRID,
    ("all_gather", "direct"): _AT_ONCE,
    ("all_gather", "nvls"): _SWITCHED,
    ("all_to_all", "direct"): _AT_ONCE,
    ("all_to_all", "pairwise"): _RING,
    ("all_to_all", "bruck"): (Form("h", "h/2", _even), Form("c", "b/n")),
    ("all_to_all", "torus_2d"): _GRID_EXCHANGE,
    ("all_to_all", "hierarchical"): _GRID_EXCHANGE,
    ("broadcast", "chain"): _CHAIN,
    ("broadcast", "binomial"): _BINOMIAL,
    ("broadcast", "binary_tree"): _TREE,
    ("broadcast", "double_binary_tree"): _DOUBLE_TREE,
    ("reduce", "chain"): _CHAIN,
    ("reduce", "binomial"): _BINOMIAL,
    ("reduce", "binary_tree"): _TREE,
    ("reduce", "double_binary_tree"): _DOUBLE_TREE,
    ("send_recv", "direct"): (Form("1", "1"),),
}
"""By collective and algorithm, the cases in which each expression holds, the last in all others."""


def entries() -> tuple[Entry, ...]:
    """Return every algorithm with the collectives that can be done by it."""
    found: dict[str, list[str]] = {}
    for collective, name in ALGORITHMS:
        found.setdefault(name, []).append(collective)
    return tuple(
        Entry(name, tuple(several), ABOUT[name], ALGORITHMS[several[0], name].takes)
        for name, several in found.items()
    )


def about(collective: str, algorithm: str) -> About:
    """Return an algorithm in words, as it does one collective.

    >>> about("send_recv", "direct").title
    'everyone sends its buffer to the next rank'
    """
    algorithm_named(collective, algorithm)  # refuses what is none
    known = ABOUT[algorithm]
    return known._replace(title=_OF_ONE.get((collective, algorithm), known.title))


def form_of(
    collective: str, algorithm: str, ranks: int, chunks: int = 1, shape: Shape | None = None
) -> Form:
    """Return what an algorithm costs on so many ranks, more than one.

    >>> form_of("all_reduce", "ring", 8)[:2]
    ('2*(n - 1)', '2*(n - 1)/n')
    """
    algorithm_named(collective, algorithm)  # refuses what is none
    at = values_of(ranks, chunks, shape)
    return next(each for each in FORMS[collective, algorithm] if each.holds(at))


def values_of(ranks: int, chunks: int = 1, shape: Shape | None = None) -> Values:
    """Return what each symbol stands for among so many ranks, more than one."""
    rows, columns = most_square(ranks) if shape is None else shape
    rounds = ranks.bit_length() - 1
    excess = ranks - (1 << rounds)
    return {
        "n": ranks,
        "k": chunks,
        "X": columns,
        "Y": rows,
        "h": rounds,
        "c": ceil(log2(ranks)),
        "g": (ranks - 1).bit_length() - 1,
        "e": excess,
        "f": excess.bit_length(),
        "b": sum(each.bit_count() for each in range(ranks)),
    }


def symbols_in(form: Form) -> tuple[str, ...]:
    """Return the symbols that stand in a form, in the order of `SYMBOLS`."""
    used = set(_LETTER.findall(f"{form.steps} {form.port_share}"))
    return tuple(each for each in SYMBOLS if each in used)


def written(expression: str) -> str:
    """Return an expression as people write it.

    >>> written("2*(2**h - 1)/2**h + 2")
    '2 (2^h - 1)/2^h + 2'
    """
    return expression.replace("**", "^").replace("*", " ")


def factor(expression: str) -> str:
    """Return an expression as the first factor of a product: in brackets if it is a sum.

    >>> factor("2*(n - 1)/n"), factor("h + 2"), factor("(X - 1) + (Y - 1)")
    ('2 (n - 1)/n x ', '(h + 2) x ', '((X - 1) + (Y - 1)) x ')
    >>> factor("1")
    ''
    """
    if expression == "1":
        return ""
    bare = _BRACKETS.sub("", _BRACKETS.sub("", expression))
    text = written(expression)
    return f"({text}) x " if " + " in bare or " - " in bare else f"{text} x "
