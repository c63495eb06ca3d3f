"""The report on a search on one screen: the best layouts, why others lost, what would change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from shardcost.errors import Reason
from shardcost.estimate.interval import interval_of
from shardcost.estimate.result import BUBBLE, COMMUNICATION, HOST, STRAGGLERS, Estimate, part_name
from shardcost.options import AXES, departures
from shardcost.records import NamedTuple
from shardcost.report import interval
from shardcost.report.estimate import PHASES, as_remarks, explained, sizes
from shardcost.report.text import LABEL, heading, labelled, paragraph, sparkline, table, width
from shardcost.search.confidence import Held
from shardcost.search.found import Candidate, Found
from shardcost.search.objectives import Price
from shardcost.search.plan import Crossover, Plan
from shardcost.search.question import Question
from shardcost.search.relaxations import shortfall
from shardcost.search.stability import Stability
from shardcost.units import format_count, format_percent, format_time, format_tokens
from shardcost.workload import Decode, Prefill, Train, Workload

_LINES: Final = 45
"""Of the whole screen."""
_MOST_REASONS: Final = 8
_REMARK_LINES: Final = 8
_FEWEST_REASONS: Final = 3
_CROSSOVERS: Final = 4
_LEAST_CURVE: Final = 3
"""Values that are worth a curve."""
_FEWEST_CROSSOVERS: Final = 2
_LOSSES: Final = 4
_TOKENS: Final = 1e6
"""What money is counted for."""
_NARROWEST_CHOICES: Final = 20
_ROUNDING: Final = 1e-9
"""A share of the time that is nothing."""
_LENGTHS: Final = ("_tokens", "_length")
_HEADS: Final = {
    "software": "engine",
    "dtype": "dtype",
    "cache_dtype": "KV cache",
    "sequence_length": "sequence",
    "prompt_tokens": "prompt",
    "context_tokens": "context",
}
"""Columns of what the questions of a search differ in, beside models and machines."""
_TELLING: Final = (
    *("model", "cluster", *_HEADS, "gpus", "batch", "tp", "pp", "dp", "micro_batch", "ep", "cp"),
    *("recompute", "zero", "schedule", "sequence_parallel"),
)
"""Axes in the order in which their crossovers are worth a line."""


def as_text(plan: Plan, *, pareto: bool = False, explain: bool = False, notes: bool = False) -> str:
    """Return the report for a terminal."""
    best = plan.best[0].estimate
    remarks = as_remarks(best.caveats, plan.caveats, every=notes)
    closing = "\n".join(_few([paragraph(remark, "  ") for remark in remarks]))
    shown, common = _table(plan, plan.best, numbered=True)
    head = [paragraph(each, "  ") for each in (title(plan.found), *about(plan))]
    head[0] = heading(head[0])
    first = ["\n  ".join(head), shown + (f"\n{labelled('all', common)}" if common else "")]
    room = _LINES - sum(part.count("\n") + 2 for part in (*first, closing) if part)
    answers = _answers(plan)
    while len(answers) + _FEWEST_REASONS + 2 > room and plan.crossovers[_FEWEST_CROSSOVERS:]:
        plan = replace(plan, crossovers=_most_telling(plan.crossovers)[:-1])
        answers = _answers(plan)
    most = min(_MOST_REASONS, max(_FEWEST_REASONS, room - len(answers) - 2))
    lines = list(counted(plan.found.rejected, most))
    reasons = "\n".join(("Rejected, by first reason:", *lines)) if lines else ""
    sections = [*first, "\n".join(answers), reasons, closing]
    if pareto:
        sections.append(_front(plan))
    if explain:
        sections += explained(best)
    return "\n\n".join(filter(None, sections))


def _few(remarks: Sequence[str]) -> Iterator[str]:
    """Yield remarks as far as there is room for them, and how many there are beyond."""
    used = 0
    for number, remark in enumerate(remarks):
        used += remark.count("\n") + 1
        if used > _REMARK_LINES:
            yield f"Note: {len(remarks) - number} more (--json lists them)"
            return
        yield remark


def failure_as_text(plan: Plan) -> str:
    """Return why nothing is feasible, and what would be."""
    result = plan.found
    count = f"{result.considered:,} layout{'s' * (result.considered != 1)}"
    lines = [f"nothing feasible among {count}:"]
    lines += counted(result.rejected, _MOST_REASONS)
    lines.append(paragraph(shortfall(result), "  "))
    for each in plan.relaxations:
        said = f"feasible: {each.words}: {format_time(each.candidate.time_s)} per step"
        lines.append(paragraph(f"{said}, {in_words(each.candidate)}", "  "))
    return "\n".join(lines)


def in_words(candidate: Candidate) -> str:
    """Return a layout in one line: degrees, sizes and the choices that are not the default."""
    layout, work = candidate.layout, candidate.workload
    batch = f"micro-batch {layout.micro_batch}" if isinstance(work, Train) else ""
    return ", ".join(filter(None, (degrees(candidate), batch, *choices_of(candidate).values())))


def title(result: Found) -> str:
    """Return the question: phase, model and place."""
    questions = result.questions
    models = " or ".join(dict.fromkeys(each.model.name for each in questions))
    places = " or ".join(dict.fromkeys(each.place for each in questions))
    counts = dict.fromkeys(gpus for each in questions for gpus in each.space.gpus or ())
    return f"{PHASES[questions[0].workload.phase]} {models} on {_range(list(counts))} x {places}"


def _range(values: Sequence[int]) -> str:
    """Return one number, or the first and last of several."""
    return f"{values[0]:,}" if len(values) == 1 else f"{min(values):,} to {max(values):,}"


def about(plan: Plan) -> tuple[str, str]:
    """Return what was asked of the search, and how many layouts it found how fast."""
    result = plan.found
    question = result.questions[0]
    work, batches = sizes(question.workload), tuple(question.space.batch or ())
    for name in (axis for axis in _HEADS if axis.endswith(_LENGTHS)):
        for tokens in filter(None, [_differing(result.questions, name)]):
            work = work.replace(f"{tokens[0]} tokens", f"{' or '.join(tokens)} tokens", 1)
    if not isinstance(question.workload, Train) and len(batches) > 1:
        work = work.replace(f"batch {batches[0]:,}", f"batch {_range(batches)}", 1)
    works = {each.workload.formats_text: each.workload for each in result.questions}
    engines = " or ".join(_differing(result.questions, "software") or [question.software.name])
    wanted = f"{engines}, {work}, {' or '.join(works)}; best by"
    counted = f"{result.feasible:,} of {result.considered:,} layouts feasible"
    if result.skipped:
        counted += f", {result.skipped:,} of them too slow by a lower bound"
    speed = f"{result.seconds:.2f} s, {result.layouts_per_s:,.0f} layouts/s"
    return f"{wanted} {question.objective.aim.unit}", f"{counted}; {speed}"


def _differing(questions: Sequence[Question], axis: str) -> list[str]:
    """Return what the questions of a search have of an axis, in words; nothing if it is one."""
    values = dict.fromkeys(each.own[axis] for each in questions if axis in each.own)
    return [_worded(each) for each in values] if len(values) > 1 else []


def _worded(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


class _Column(NamedTuple):
    """One figure of the table."""

    head: str
    cell: Callable[[Candidate], str]
    right: bool = True
    spare: int = 0
    """Above 0 where others say the same; where the terminal is narrow, the highest goes first."""


def columns_of(plan: Plan, candidates: Sequence[Candidate]) -> Iterator[_Column]:
    """Yield the columns: what differs, sizes, figures of the phase, money or energy, memory."""
    questions = plan.found.questions
    if len({gpus for each in questions for gpus in each.space.gpus or ()}) > 1:
        yield _Column("GPUs", lambda one: f"{one.layout.devices:,}", spare=1)
    yield _Column("layout", degrees, right=False)
    pairs = {
        (*(each.own[name] for name in ("software", "dtype")), each.own.get("cache_dtype"))
        for each in questions
    }
    follows = len({pair[:-1] for pair in pairs}) == len(pairs)
    for axis in _varying(candidates):
        spare = 1 if axis == "cache_dtype" and follows else 0
        yield _Column(_HEADS[axis], partial(_of_question, axis), axis.endswith(_LENGTHS), spare)
    if isinstance(questions[0].workload, Train):
        yield _Column("mb", lambda one: f"{one.layout.micro_batch}")
    elif len(questions[0].space.batch or ()) > 1:
        yield _Column("batch", lambda one: f"{one.row['batch']:,}")
    yield from _figures(questions[0].workload)
    price = plan.price
    if plan.target is not None:
        yield from _of_the_run(plan)
    if price is not None:
        yield _Column(
            "cost/Mtok", lambda one: f"{money(one, price):.4g}", spare=5 * (plan.target is not None)
        )
    shown = questions[0].objective.aim.shown
    if shown is not None:
        yield _Column("per token", lambda one: shown(one.score))
    if plan.best[0].limits:
        holds = _Column("holds in", lambda one: _of_ten(min(each.share for each in one.limits)))
        yield holds._replace(spare=1)
    if len({each.cluster.device.memory_bytes for each in questions}) > 1:
        yield _Column("memory", lambda one: format_percent(one.memory_bytes / capacity(one)))
    else:
        yield _Column(f"GiB of {_gib(capacity(plan.best[0]))}", lambda one: _gib(one.memory_bytes))


def _varying(candidates: Sequence[Candidate]) -> list[str]:
    """Return what candidates are of different questions by, beside models and machines."""
    owns = [each.question.own for each in candidates]
    return [axis for axis in _HEADS if len({own.get(axis) for own in owns}) > 1]


def _of_question(axis: str, candidate: Candidate) -> str:
    return _worded(candidate.question.own[axis])


def _figures(work: Workload) -> Iterator[_Column]:
    per_gpu = _Column("tok/s/GPU", lambda one: format_tokens(one.estimate.tokens_per_s_per_gpu))
    if isinstance(work, Decode):
        yield _Column("TPOT", lambda one: format_time(one.estimate.tpot_s))
        user = _Column("tok/s/user", lambda one: format_tokens(one.estimate.tokens_per_s_per_user))
        yield user._replace(spare=2)
        yield per_gpu
        return
    time = "TTFT" if isinstance(work, Prefill) else "step"
    yield _Column(time, lambda one: format_time(one.time_s))
    yield per_gpu
    if isinstance(work, Train):
        yield _Column("TFLOP/s", lambda one: f"{one.estimate.tflops_per_gpu:.0f}", spare=3)
    yield _Column("MFU", lambda one: format_percent(one.estimate.mfu), spare=4)


def _of_the_run(plan: Plan) -> Iterator[_Column]:
    """Yield days and money of the whole training run."""
    from shardcost.report.run import figure

    def shown(one: Candidate, name: str) -> str:
        value = getattr(plan.run_of(one), name)
        return figure(value) if name == "days" else format_count(value)

    yield _Column("days", lambda one: shown(one, "days"))
    if plan.price is not None:
        yield _Column("cost", lambda one: shown(one, "cost"))


def _gib(size: float) -> str:
    return f"{size / 2**30:.4g}"


def capacity(candidate: Candidate) -> float:
    """Return the memory of the device that a candidate runs on, in bytes."""
    return float(candidate.question.cluster.device.memory_bytes)


def money(candidate: Candidate, price: Price) -> float:
    """Return what a million tokens cost."""
    return candidate.cost_per_token(price) * _TOKENS


def _table(
    plan: Plan, candidates: Sequence[Candidate], *, numbered: bool = False
) -> tuple[str, str]:
    """Return candidates as a table, and in words the choices that they share."""
    chosen = [choices_of(each, plan.found.questions) for each in candidates]
    for axis in _varying(candidates):  # a column has it
        for each in chosen:
            each.pop(axis)
    common = [word for word in chosen[0].values() if all(word in each.values() for each in chosen)]
    common = common if len(chosen) > 1 else []
    own = [
        "; ".join(
            filter(None, (", ".join(word for word in each.values() if word not in common), more))
        )
        for each, more in zip(chosen, map(_variants, candidates), strict=True)
    ]
    columns = list(columns_of(plan, candidates))
    if numbered:
        ranks = {id(each): str(rank) for rank, each in enumerate(candidates, 1)}
        columns.insert(0, _Column("", lambda one: ranks[id(one)], right=False))
    text = _with_choices(columns, candidates, own)
    while max(map(len, text.splitlines())) > width() and any(each.spare for each in columns):
        columns.remove(max(columns, key=lambda each: each.spare))
        text = _with_choices(columns, candidates, own)
    return text, ", ".join(common)


def _with_choices(
    columns: Sequence[_Column], candidates: Sequence[Candidate], own: Sequence[str]
) -> str:
    """Return a table; each candidate's own choices go below it where no room is left beside."""
    heads = [column.head for column in columns]
    rows = [[column.cell(each) for column in columns] for each in candidates]
    right = "".join(str(i) for i, column in enumerate(columns) if column.right)
    figures = table([*heads, ""], [[*row, ""] for row in rows], right)
    if not any(own):
        return figures
    beside = not any(each.variants for each in candidates)
    if beside and max(map(len, figures.splitlines())) + 2 + _NARROWEST_CHOICES <= width():
        wider = [[*row, words] for row, words in zip(rows, own, strict=True)]
        return table([*heads, "choices"], wider, right, _NARROWEST_CHOICES)
    head, *lines = figures.splitlines()
    below = [head]
    for line, words in zip(lines, own, strict=True):
        below += [line, paragraph(f"     {words}", "     ")] if words else [line]
    return "\n".join(below)


def degrees(candidate: Candidate) -> str:
    """Return the degrees above 1; virtual stages go with the schedule."""
    return replace(candidate.layout, virtual_stages=1).short()


def choices_of(candidate: Candidate, questions: Sequence[Question] = ()) -> dict[str, str]:
    """Return, by axis, the choices that are not the default, in words."""
    layout, own = candidate.layout, candidate.question
    choices: dict[str, str] = {}
    if len({each.model.name for each in questions}) > 1:
        choices["model"] = own.model.name
    if len({each.place for each in questions}) > 1:
        choices["cluster"] = own.place
    for axis in (each for each in _HEADS if _differing(questions, each)):
        value = _worded(own.own[axis])
        choices[axis] = (
            f"{_HEADS[axis]} {value}" if axis.endswith((*_LENGTHS, "cache_dtype")) else value
        )
    if layout.pp > 1 and isinstance(candidate.workload, Train):
        virtual_stages = f" x{layout.virtual_stages}" if layout.virtual_stages > 1 else ""
        choices["schedule"] = layout.schedule + virtual_stages
    if layout.cp > 1 and len(own.space.context_scheme or ()) > 1:
        choices["context_scheme"] = f"CP by {layout.context_scheme}"
    own_rules = ("schedule", "context_scheme")
    choices |= {name: said for name, said in departures(layout).items() if name not in own_rules}
    return choices | _overlap(candidate)


def _variants(candidate: Candidate) -> str:
    """Return how many layouts of the same degrees come near one, and what they differ in."""
    if not candidate.variants:
        return ""
    labels = (AXES[axis].label for axis in candidate.varied)
    words = (each if each[1:] != each[1:].lower() else each.lower() for each in labels)
    return f"+{candidate.variants} variant{'s' * (candidate.variants > 1)}: {', '.join(words)}"


def _overlap(candidate: Candidate) -> dict[str, str]:
    """Return how communication is hidden, where the search has a choice in it."""
    layout, choices = candidate.layout, {}
    groups = {"tp_overlap": layout.tp, "dp_overlap": layout.dp * layout.cp}
    for name, ranks in groups.items():
        if ranks > 1 and len(getattr(candidate.question.space, name)) > 1:
            value = getattr(candidate.family, name)
            said = {True: "on", False: "off"}.get(value, value)
            choices[name] = f"{name.replace('_', ' ')} {said}"
    return choices


def answers_of(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the lines on the best: what bounds it, who comes next, what would change it."""
    best = plan.best[0].estimate
    known = interval_of(best)
    yield "time", _bounds(best)
    yield "interval", f"{interval.in_short(known)}: {interval.shares(known, best.time_s)}"
    if plan.best[0].limits:
        yield "limits", "; ".join(map(_holds, plan.best[0].limits))
    if plan.largest_batch is not None:
        yield "batch", _largest(plan.largest_batch)
    run = plan.run_of(plan.best[0])
    if run is not None:
        from shardcost.report.run import lines as lines_of_run

        yield from lines_of_run(run)
    if plan.losses:
        yield "runner-up", _runner_up(plan)
    if plan.gains:
        gains = [
            f"{gain.what} {gain.faster_pct:.1f} %{'' if number else ' faster'}"
            + (f" ({gain.note})" if gain.note else "")
            for number, gain in enumerate(plan.gains)
        ]
        yield "+10 %", ", ".join(gains)
    for number, each in enumerate(_most_telling(plan.crossovers)):
        yield "" if number else "axes", _with_curve(each)
    if plan.stability is not None and plan.stability.layouts > 1:
        yield "stability", _steady(plan.stability)


def _answers(plan: Plan) -> list[str]:
    """Return the same as lines of a terminal."""
    return [line for pair in answers_of(plan) for line in labelled(*pair).splitlines()]


def _holds(held: Held) -> str:
    return f"{held.said}: holds in {_of_ten(held.share)} cases"


def _largest(found: Candidate) -> str:
    """Return the largest batch within the limits, with its figures."""
    batch, work = found.row["batch"], found.workload
    end = ", the largest given" if batch == max(found.question.space.batch or ()) else ""
    name, time_s = "TTFT", found.time_s
    if isinstance(work, Decode):
        name, time_s = "TPOT", found.time_s / work.kept_tokens
    rate = format_tokens(found.figures.tokens_per_s_per_gpu)
    return (
        f"largest within the limits: {batch:,}{end} ({name} {format_time(time_s)},"
        f" {rate} tokens/s/GPU)"
    )


def _of_ten(share: float) -> str:
    return f"{round(10 * share)} of 10"


def _with_curve(crossover: Crossover) -> str:
    """Return what an axis leads to, with the best score of each number drawn where it has room.

    Heights are from 0, and low is good.
    """
    known = [(value, score) for value, score in crossover.best if score is not None]
    values = [value for value, _ in known]
    if len(known) < _LEAST_CURVE or not all(type(each) is int for each in values):
        return crossover.words
    drawn = sparkline([score for _, score in known], mark=values.index(crossover.value))
    whole = f"{crossover.words} ({values[0]:,} to {values[-1]:,}: {drawn})"
    return whole if len(whole) <= width() - LABEL else crossover.words


def _most_telling(crossovers: Sequence[Crossover]) -> tuple[Crossover, ...]:
    """Return the few axes whose crossovers are worth a line."""

    def place(each: Crossover) -> int:
        return _TELLING.index(each.axis) if each.axis in _TELLING else len(_TELLING)

    compared = [each for each in crossovers if sum(score is not None for _, score in each.best) > 1]
    return tuple(sorted(compared, key=place)[:_CROSSOVERS])


def _bounds(estimate: Estimate) -> str:
    """Return where the time of the best goes."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for part, seconds in estimate.parts_s.items():
        share = float(seconds / estimate.time_s)
        group, name = "compute", part_name(part)
        if part.endswith(COMMUNICATION):
            group, name = "communication", part.removesuffix(COMMUNICATION).upper()
        elif part in {BUBBLE, HOST, STRAGGLERS}:
            group, name = part, ""
        if share >= 5e-4:
            groups.setdefault(group, []).append((name, share))
    totals = {group: sum(share for _, share in parts) for group, parts in groups.items()}
    said = []
    for group in sorted(totals, key=lambda group: -totals[group]):
        inside = sorted(groups[group], key=lambda item: -item[1])
        listed = ", ".join(f"{name} {100 * share:.1f}" for name, share in inside if name)
        said.append(f"{group} {format_percent(totals[group])}" + (f" ({listed})" if listed else ""))
    return ", ".join(said)


def _runner_up(plan: Plan) -> str:
    """Return how far the second is behind, and by which parts, in the objective's unit."""
    first, second = plan.found.best[:2]
    aim = first.question.objective.aim
    more = second.score - first.score
    least = 1e-3 * max(abs(more), _ROUNDING * first.score)
    parts = [each for each in plan.losses if abs(each.lost_score) > least][:_LOSSES]
    forms = {"batch": "batch {:,}", "gpus": "{:,} GPUs"}
    differing = [name for name in forms if first.row[name] != second.row[name]]
    other_sizes = " and ".join(forms[name].format(second.row[name]) for name in differing)
    said = f"{format_percent(second.behind(first))} behind"
    said += f" with {other_sizes}" if other_sizes else ""
    if not parts:
        return f"{said}; same parts of the step"

    def signed(score: float) -> str:
        return ("+" if score >= 0 else "-") + aim.said(abs(score))

    listed = ", ".join(f"{part_name(each.part)} {signed(each.lost_score)}" for each in parts)
    what = "step" if aim.weight is None else aim.worse
    return f"{said}; its {what} differs by {signed(more)}: {listed}"


def _steady(stability: Stability) -> str:
    draws = f"{stability.draws} Monte Carlo draws of the model error"
    text = f"stays first in {stability.first_stays_pct:.0f} % of {draws}"
    if stability.first_stays_pct < 100:
        text += f", at most {stability.worst_loss_pct:.1f} % behind in 90 % of them"
    if stability.changed >= 0.05:
        text += f"; on average {stability.changed:.1f} of the {stability.shown} shown drop out"
    return text


def counted(rejected: Mapping[Reason, int], most: int) -> Iterator[str]:
    """Yield the most frequent reasons with their counts, and the rest as one."""
    listed = [(reason.message, count) for reason, count in rejected.items()]
    if len(listed) > most:
        rest = listed[most - 1 :]
        others = f"{len(rest)} other reasons (--json lists them)"
        listed = [*listed[: most - 1], (others, sum(count for _, count in rest))]
    wide = max((len(f"{count:,}") for _, count in listed), default=0)
    for reason, count in listed:
        yield f"  {count:>{wide},}  {reason}"


def _front(plan: Plan) -> str:
    work = plan.found.questions[0].workload
    axes = {
        "train": "step time against GPUs, or against memory where GPUs are given",
        "prefill": "tokens/s/GPU against TTFT",
        "decode": "tokens/s/GPU against tokens/s/user",
    }[work.phase]
    shown, common = _table(plan, plan.found.front)
    count = f"{len(plan.found.front)} layout{'s' * (len(plan.found.front) != 1)}"
    title = heading(f"Pareto front, {count}: {axes}")
    return "\n".join(filter(None, (title, shown, labelled("all", common) if common else "")))
