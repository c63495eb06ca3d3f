"""An algorithm step by step as plain data, and the list of all algorithms."""

from __future__ import annotations

import re
from typing import Any, Final

from shardcost.collectives.exact.algorithms import ALGORITHMS
from shardcost.collectives.exact.closed_forms import SYMBOLS
from shardcost.collectives.exact.schedule import Ints
from shardcost.collectives.exact.simulate import Simulation
from shardcost.collectives.exact.stepped import Move, Stage, Stepped
from shardcost.units import format_bytes

_LETTER: Final = re.compile(r"[A-Za-z]")
_BRACKETS: Final = re.compile(r"\([^()]*\)")
_NOMINAL: Final = "simulated on links at their nominal rates, without latency"


def algorithms() -> list[dict[str, Any]]:
    """Return every algorithm: the collectives it is for, on how many ranks, and what it does."""
    listed: dict[str, dict[str, Any]] = {}
    for known in ALGORITHMS.values():
        entry: dict[str, Any] = {
            "name": known.name,
            "collectives": [],
            "title": known.title,
            "ranks": known.ranks,
            "takes": known.takes,
            "paper": known.paper,
        }
        listed.setdefault(known.name, entry)["collectives"].append(known.collective)
    return list(listed.values())


def as_data(found: Stepped) -> dict[str, Any]:
    """Return the steps, what everyone holds after each, the bytes of every pair and link."""
    steps, simulation = found.schedule, found.simulation
    return {
        "collective": steps.collective,
        "algorithm": steps.algorithm,
        "title": found.algorithm.title,
        "ranks": steps.ranks,
        "participants": _participants(found),
        "chunks": steps.chunks,
        "pieces": found.pieces,
        "shape": None if found.shape is None else list(found.shape),
        "size_bytes": found.size_bytes,
        "complete": found.complete,
        "owners": list(found.owners),
        "start": found.start_contributions.tolist(),
        "start_sets": _sets(found, found.start),
        "steps": [_stage_as_data(found, each) for each in found.stages],
        "links": [
            {"source": each.source, "target": each.target, "bytes": each.size_bytes}
            | ({} if each.route is None else {"route": list(each.route)})
            for each in found.lanes
        ],
        "totals": {
            "steps": found.traffic.steps,
            "bytes_per_rank": found.most_sent_bytes,
            "least_bytes_per_rank": found.least_sent_bytes,
            "sent": found.traffic.sent.tolist(),
            "received": found.traffic.received.tolist(),
            "time_s": None if simulation is None else simulation.time_s,
            "busiest": None if simulation is None else simulation.busiest.name,
            "utilisation": None if simulation is None else simulation.busiest.utilisation,
        },
        "topology": None if simulation is None else _topology_as_data(simulation),
        "formula": formula(found),
        "numbers": numbers(found),
        "symbols": _symbols(found),
        "paper": found.algorithm.paper,
        "notes": [] if simulation is None else [_NOMINAL],
    }


def formula(found: Stepped) -> str:
    """Return what an algorithm takes, as people write it: latency of steps, bytes over a rate."""
    steps, share = factor(found.form.steps), factor(found.form.port)
    return f"time = {steps}{_alpha(found)} + {share}M / B"


def numbers(found: Stepped) -> str:
    """Return the same with its numbers put in, all but the latency and the rate."""
    cost = found.cost
    return f"time = {cost.steps} x {_alpha(found)} + {format_bytes(cost.port_bytes)} / B"


def factor(expression: str) -> str:
    """Return an expression as the first factor of a product: in brackets if it is a sum.

    >>> factor("2*(n - 1)/n"), factor("h + 2"), factor("2*(2**h - 1)/2**h + 2")
    ('2 (n - 1)/n x ', '(h + 2) x ', '(2 (2^h - 1)/2^h + 2) x ')
    >>> factor("1")
    ''
    """
    if expression == "1":
        return ""
    bare = _BRACKETS.sub("", _BRACKETS.sub("", expression))
    text = expression.replace("**", "^").replace("*", " ")
    return f"({text}) x " if " + " in bare or " - " in bare else f"{text} x "


def _alpha(found: Stepped) -> str:
    """Return the latency of a step: half of it to a switch, which is half the way."""
    return "alpha/2" if found.cost.switch_steps else "alpha"


def _symbols(found: Stepped) -> list[dict[str, Any]]:
    """Return what stands in the formula; latency and rate are whatever links have."""
    used = set(_LETTER.findall(f"{found.form.steps} {found.form.port}"))
    known = {
        name: (found.symbols[name], symbol.meaning)
        for name, symbol in SYMBOLS.items()
        if name in used
    }
    known["M"] = (found.size_bytes, "bytes of each rank's buffer")
    rows = [{"symbol": name, "value": each[0], "meaning": each[1]} for name, each in known.items()]
    return [
        *rows,
        {"symbol": "alpha", "value": None, "meaning": "seconds from rank to rank"},
        {"symbol": "B", "value": None, "meaning": "bytes per second of a port, one way"},
    ]


def _participants(found: Stepped) -> list[dict[str, Any]]:
    ranks = found.schedule.ranks
    return [
        {
            "name": f"rank {index}" if index < ranks else "switch",
            "kind": "rank" if index < ranks else "switch",
            "place": None if found.places is None else found.places[index],
        }
        for index in range(found.schedule.participants)
    ]


def _stage_as_data(found: Stepped, stage: Stage) -> dict[str, Any]:
    return {
        "transfers": [_move_as_data(each) for each in stage.moves],
        "holds": stage.contributions.tolist(),
        "sets": _sets(found, stage.held),
        "start_s": stage.start_s,
        "end_s": stage.end_s,
    }


def _sets(found: Stepped, held: Ints) -> list[list[int]] | None:
    """Return whose contributions are in each chunk; None where they can only be its owner's."""
    return held.tolist() if found.mixes else None


def _move_as_data(move: Move) -> dict[str, Any]:
    return {
        "source": move.source,
        "target": move.target,
        "chunks": list(move.chunks),
        "bytes": move.size_bytes,
        "reduces": move.reduces,
    }


def _topology_as_data(simulation: Simulation) -> dict[str, Any]:
    topology = simulation.topology
    return {
        "name": topology.name,
        "places": [
            {"name": each.name, "kind": each.kind, "server": each.server}
            for each in topology.places
        ],
        "links": [
            {
                "a": link.source,
                "b": link.target,
                "bytes_per_s": link.bytes_per_s,
                "bytes": use.bytes_sent,
                "busy": use.busy,
                "utilisation": use.utilisation,
            }
            for link, use in zip(topology.links, simulation.links, strict=True)
        ],
    }
