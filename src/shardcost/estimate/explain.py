"""Where the figures of an estimate come from, as text: the answers of `why` to the main questions.

Of every kind of work the heaviest operation is shown: the largest GEMM, attention, an elementwise
kernel, and the collective on which most time is spent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from shardcost.checks import is_array
from shardcost.errors import BadTypeError
from shardcost.estimate.pieces import PassParts
from shardcost.estimate.result import BUBBLE, STRAGGLERS, Estimate, part_name
from shardcost.estimate.why import Why, why
from shardcost.estimate.why.answer import brief
from shardcost.kernels.receipts import source_of
from shardcost.machine.constants import Calibration
from shardcost.machine.dispatch import Resolved
from shardcost.machine.kernels import Section
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Elementwise,
    Gemm,
    LatentCore,
    StateKernel,
)
from shardcost.units import format_time
from shardcost.workload import Train

_GLUE: Final = "\N{NO-BREAK SPACE}"
_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:%|[kMGTPE]?(?:FLOP|B)\b|[kMGT]?iB\b|[nmu]?s\b))")
_HEAVIEST: Final = {
    "Largest GEMM": Gemm,
    "Attention": AttentionCore | LatentCore,
    "Linear attention": StateKernel,
    "Elementwise": Elementwise,
    "Heaviest collective": Collective,
}
_PASSES: Final = {"forward": "forward", "backward": "backward", "weight gradients": "weight"}


def explanation(estimate: Estimate, width: int = 80) -> str:
    """Return where the figures of one estimate come from, as lines of at most `width` characters.

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    if is_array(estimate.time_s):
        layout = estimate.layout
        raise BadTypeError("layout", layout, "one layout, not an array of them, to explain")
    lines: list[str] = []
    for label, text in _paragraphs(estimate):
        glued = _UNIT.sub(_GLUE, f"{label}: {text}")
        wrapped = wrap(
            glued, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        lines += [line.replace(_GLUE, " ") for line in wrapped]
    return "\n".join(lines)


def _paragraphs(estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield "Time", _said(why(estimate, "time_s"), cited=False)
    if BUBBLE in estimate.parts_s and estimate.layout.pp > 1:
        yield "Bubble", _said(why(estimate, f"parts.{BUBBLE}"))
    if estimate.parts_s.get(STRAGGLERS):
        yield "Slowest rank", _said(why(estimate, f"parts.{STRAGGLERS}"))
    if estimate.p99_step_s is not None:
        yield "Slow steps", _said(why(estimate, "p99_step_s"))
    yield "Layer", _layer(estimate)
    entries = estimate.operations
    for label, kind in _HEAVIEST.items():
        priced = {
            name: float(entry.total_s)
            for name, entry in entries.items()
            if isinstance(entry.op, kind) and entry.seconds
        }
        if priced:
            name = max(priced, key=lambda each: priced[each])
            yield label, f"{name}, {_said(why(estimate, f'op.{name}'))}"
    yield "Memory", _said(why(estimate, "memory_bytes"))
    utilisation, hardware = why(estimate, "mfu"), why(estimate, "hfu")
    yield "MFU", f"{_said(utilisation)}. HFU: {hardware.numbers} = {hardware.text}"
    yield "Software", _software(estimate)


def _said(answer: Why, *, cited: bool = True) -> str:
    """Return an answer in a paragraph: formula, values, words, and who states the constants."""
    steps = dict.fromkeys((answer.formula, answer.numbers, answer.text))
    said = " = ".join(steps) + (f"; {answer.words}" if answer.words else "")
    fitted = [_source(constants) for constants in answer.constants]
    sources = "; ".join(dict.fromkeys(map(brief, fitted or answer.sources)))
    return f"{said}. Source: {sources}" if cited and sources else said


def _source(constants: Section | Calibration | Resolved) -> str:
    if isinstance(constants, Section):
        return source_of(constants)
    if isinstance(constants, Resolved):
        return f"{constants.kernel.title}: {constants.source}"
    return f"{constants.title}: {constants.source()}"


def _layer(estimate: Estimate) -> str:
    """Return what one layer takes in each pass, and what starting its kernels takes."""
    software = estimate.program.setting.software
    said = []
    for name, phase in _PASSES.items():
        if name != "forward" and not isinstance(estimate.workload, Train):
            continue
        parts = PassParts.of(estimate.ledger.shares, phase)
        compute = [
            f"{part_name(kind)} {format_time(s)}" for kind, s in parts.compute_s.items() if s
        ]
        waits = [f"{group} waits {format_time(s)}" for group, s in parts.exposed_s.items() if s]
        text = f"{name} {' + '.join([*compute, *waits])} = {format_time(parts.time.device_s)}"
        if software.launch == "eager":
            text += f" ({parts.time.kernels:.0f} kernels)"
        said.append(text)
    return "; ".join(said)


def _software(estimate: Estimate) -> str:
    software = estimate.program.setting.software
    launch = "CUDA graph" if software.launch == "graph" else "eager launch"
    slower = f", kernels {software.slowdown:.3g} times as long as alone"
    return (
        f"{software.title}: {software.attention} attention, tensor-parallel overlap"
        f" {software.tp_overlap}, {launch}, {format_time(software.step_overhead_s)} of overhead a"
        f" step{slower if software.slowdown != 1 else ''} ({brief(software.source)})."
        f" Constants: {brief(software.fit_text)}"
    )
