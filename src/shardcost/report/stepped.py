"""An algorithm step by step as plain data, and the list of all algorithms."""

from __future__ import annotations

import re
from typing import Any, Final

from shardcost.collectives.exact.algorithms import ALGORITHMS
from shardcost.collectives.exact.closed_forms import SYMBOLS
from shardcost.collectives.exact.schedule import Ints
from shardcost.collectives.exact.simulate import Simulation
from shardcost.collectives.exact.stepped import AlphaBeta, Stage, Stepped
from shardcost.collectives.interval import interval_of
from shardcost.collectives.library_time import CollectiveTime
from shardcost.report.describe import attributes
from shardcost.report.how import how
from shardcost.units import format_bytes, format_rate, format_time

_LETTER: Final = re.compile(r"[A-Za-z]")
_BRACKETS: Final = re.compile(r"\([^()]*\)")
_NOMINAL: Final = "simulated on links at their nominal rates, without latency"


def algorithms() -> list[dict[str, Any]]:
    """Return every algorithm: the collectives it is for, on how many ranks, and what it does."""
    listed: dict[str, dict[str, Any]] = {}
    for known in ALGORITHMS.values():
        entry = {"name": known.name, "collectives": []}
        entry |= attributes(known, "title ranks takes paper")
        listed.setdefault(known.name, entry)["collectives"].append(known.collective)
    return list(listed.values())


def as_data(
    stepped: Stepped, model: AlphaBeta | None = None, predicted: CollectiveTime | None = None
) -> dict[str, Any]:
    """Return the steps, what everyone holds after each, the bytes of every pair and link.

    Args:
        stepped: The algorithm.
        model: Its closed form with the values of the machine.
        predicted: What the machine's library takes for the same collective.
    """
    steps, simulation = stepped.schedule, stepped.simulation
    return {
        **attributes(steps, "collective algorithm"),
        "title": stepped.algorithm.title,
        "ranks": steps.ranks,
        "participants": _participants(stepped),
        "chunks": steps.chunks,
        "pieces": stepped.pieces,
        "shape": stepped.shape and list(stepped.shape),
        **attributes(stepped, "size_bytes complete"),
        "owners": list(stepped.owners),
        "start": stepped.start_contributions.tolist(),
        "start_sets": _sets(stepped, stepped.start),
        "steps": [_stage_as_data(stepped, stage) for stage in stepped.stages],
        "links": [
            attributes(lane, "source target bytes=size_bytes")
            | ({} if lane.route is None else {"route": list(lane.route)})
            for lane in stepped.lanes
        ],
        "totals": {
            "steps": stepped.traffic.steps,
            "bytes_per_rank": stepped.most_sent_bytes,
            "least_bytes_per_rank": stepped.least_sent_bytes,
            "least_in_words": _least_in_words(stepped),
            "sent": stepped.traffic.sent.tolist(),
            "received": stepped.traffic.received.tolist(),
            "time_s": simulation and simulation.time_s,
            "busiest": simulation and simulation.busiest.name,
            "utilisation": simulation and simulation.busiest.utilisation,
        },
        "topology": simulation and _topology_as_data(simulation),
        "how": how(steps.collective, steps.algorithm),
        "formula": formula(stepped, model),
        "numbers": numbers(stepped, model),
        "symbols": _symbols(stepped, model),
        "model": model and model._asdict(),
        "predicted": predicted and _predicted_as_data(predicted),
        "paper": stepped.algorithm.paper,
        "notes": [] if simulation is None else [_NOMINAL],
    }


def formula(stepped: Stepped, model: AlphaBeta | None = None) -> str:
    """Return what an algorithm takes, as people write it: latency of steps, bytes over a rate.

    The bytes are those of the busiest port, or, where the machine is a mesh, of the busiest link.
    """
    form = stepped.form
    meshed = model is not None and model.wiring == "mesh"
    steps, share = factor(form.steps), factor((form.wire if meshed else "") or form.port)
    return f"time = {steps}{_alpha(stepped)} + {share}M / B"


def numbers(stepped: Stepped, model: AlphaBeta | None = None) -> str:
    """Return the same with its numbers put in; latency and rate are those of a machine, if any."""
    cost = stepped.cost
    meshed = model is not None and model.wiring == "mesh"
    steps, size = cost.steps, format_bytes(cost.wire_bytes if meshed else cost.port_bytes)
    if model is None:
        return f"time = {steps} x {_alpha(stepped)} + {size} / B"
    alpha = f"{format_time(model.alpha_s)}{'/2' if cost.switch_steps else ''}"
    rate, time = format_rate(model.bytes_per_s), format_time(model.time_s)
    return f"time = {steps} x {alpha} + {size} / {rate} = {time}"


def _predicted_as_data(predicted: CollectiveTime) -> dict[str, Any]:
    """Return what the machine's library takes: time, interval and path."""
    ends = interval_of(predicted)
    return {
        **attributes(predicted, "library algorithm protocol mode"),
        "time_s": float(predicted.time_s),
        "low_s": float(ends.low_s),
        "high_s": float(ends.high_s),
    }


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


def _alpha(stepped: Stepped) -> str:
    """Return the latency of a step: half of it to a switch, which is half the way."""
    return "alpha/2" if stepped.cost.switch_steps else "alpha"


def _symbols(stepped: Stepped, model: AlphaBeta | None) -> list[dict[str, Any]]:
    """Return what stands in the formula; without a machine, latency and rate are left open."""
    used = set(_LETTER.findall(f"{stepped.form.steps} {stepped.form.port}"))
    known: dict[str, tuple[float | None, str]] = {
        name: (stepped.symbols[name], symbol.meaning)
        for name, symbol in SYMBOLS.items()
        if name in used
    }
    known["M"] = (stepped.size_bytes, "bytes of each rank's buffer")
    known["alpha"] = (model and model.alpha_s, "seconds from rank to rank")
    known["B"] = (model and model.bytes_per_s, "bytes per second of a port, one way")
    return [
        {"symbol": name, "value": value, "meaning": text} for name, (value, text) in known.items()
    ]


def _participants(stepped: Stepped) -> list[dict[str, Any]]:
    ranks = stepped.schedule.ranks
    return [
        {
            "name": f"rank {index}" if index < ranks else "switch",
            "kind": "rank" if index < ranks else "switch",
            "place": None if stepped.simulation is None else stepped.simulation.places[index],
        }
        for index in range(stepped.schedule.participants)
    ]


def _stage_as_data(stepped: Stepped, stage: Stage) -> dict[str, Any]:
    return {
        "phase": _phase(stepped, stage),
        "transfers": [
            attributes(move, "source target chunks bytes=size_bytes reduces")
            | {"chunks": list(move.chunks)}
            for move in stage.moves
        ],
        "holds": stage.contributions.tolist(),
        "sets": _sets(stepped, stage.masks),
        **attributes(stage, "start_s end_s"),
    }


def _phase(stepped: Stepped, stage: Stage) -> str | None:
    """Return what a step is part of, where an algorithm has phases."""
    phases = stepped.algorithm.phases
    if phases is None:
        return None
    adding = [move.reduces for move in stage.moves]
    if any(adding) and not all(adding):
        return "both phases at once, in a pipeline"
    return phases[0] if all(adding) else phases[1]


def _least_in_words(stepped: Stepped) -> str | None:
    """Return what each rank must send at the least, by the algorithm that sends no more."""
    collective = stepped.schedule.collective
    if stepped.least_sent_bytes is None:
        return None
    least = ALGORITHMS.get((collective, "ring")) or ALGORITHMS[collective, "direct"]
    share = factor(least.forms[-1].port).removesuffix(" x ")
    return f"{share} of the buffer" if share else "the buffer"


def _sets(stepped: Stepped, masks: Ints) -> list[list[int]] | None:
    """Return whose contributions are in each chunk; None where they can only be its owner's."""
    return masks.tolist() if stepped.mixes else None


def _topology_as_data(simulation: Simulation) -> dict[str, Any]:
    topology = simulation.topology
    return {
        "name": topology.name,
        "places": [attributes(place, "name kind server") for place in topology.places],
        "links": [
            attributes(link, "a=source b=target bytes_per_s")
            | attributes(use, "bytes=bytes_sent busy utilisation")
            for link, use in zip(topology.links, simulation.links, strict=True)
        ],
    }
