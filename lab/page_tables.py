"""One section of the validation page for each kind of measured table: the splits that matter.

Collectives have more to say (`lab.page_collectives`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from lab import markdown
from lab import page_collectives as validation_collectives
from shardcost.validate.validation import (
    FIGURE,
    Validation,
    columns_of,
    of_headline,
    rank,
    split,
    validate,
)


class Kind(NamedTuple):
    """How a kind of table is presented."""

    title: str
    what: str
    """What a row is, for the summary."""
    about: str
    splits: tuple[tuple[str, ...], ...] = ()
    """Columns, own or derived, by whose values errors are shown."""
    more: Callable[[Validation], Iterator[str]] | None = None
    """What such tables have beyond errors."""
    pictured: tuple[str, tuple[str, ...]] | None = None
    """Where pictures are of some rows alone: the column, own or derived, and the values of it that
    have panels of their own."""


def section(validation: Validation) -> str:
    """Return the section of a table."""
    kind, shown = KINDS[validation.table.kind], of_headline(validation)
    parts = [f"## {kind.title}", kind.about, *_counts(shown)]
    if validation.headline:
        parts += [
            markdown.grouped(split(validation, (FIGURE,))),
            f"By other columns, of `{validation.headline}` alone:",
        ]
    parts += _splits(shown, kind.splits)
    if kind.more is not None:
        parts.extend(kind.more(validation))
    return "\n\n".join(parts)


def _splits(validation: Validation, splits: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the errors by each split that tells rows apart; the first has all rows on top."""
    columns = set(columns_of(validation.table))
    known = [split(validation, by) for by in splits if columns.issuperset(by)]
    telling = [groups for groups in known if len(groups) > 1]
    if not telling:
        yield markdown.errors(("of",), [(("all rows",), validation.overall)])
    for place, groups in enumerate(telling):
        yield markdown.grouped(groups, None if place else validation.overall)


def _counts(validation: Validation) -> Iterator[str]:
    """Yield how many rows there are, are predicted and are skipped, with the reasons."""
    counted = f"{validation.table.rows:,} rows, {validation.predicted:,} predicted"
    if validation.unmeasured:
        counted += f", {validation.unmeasured:,} of these without a measurement"
    yield counted + (", the rest skipped:" if validation.skipped else "; none is skipped.")
    if validation.skipped:
        reasons = list(validation.skipped.items())
        lines = [f"- {count:,}: {reason}" for reason, count in reasons[:_REASONS]]
        rest = sum(count for _, count in reasons[_REASONS:])
        yield "\n".join([*lines, *([f"- {rest:,}: for other reasons"] if rest else [])])


_REASONS: Final = 8
"""How many reasons are shown."""


def _collectives(validation: Validation) -> Iterator[str]:
    yield validation_collectives.in_sample(validation)


def _decode(validation: Validation) -> Iterator[str]:
    """Yield the errors of sums over all parts of a layer."""
    yield "Whole layers, the sums of their parts:"
    lines = []
    for column, value, part in _parts(validation, "tp", "model"):
        layers = part.extra["layers"]
        if layers["rows"]:
            lines.append(_extra_line(column, value, layers, "rows"))
    yield markdown.table(("layers of", "rows", "median %", "p90 %"), lines, right=3)


def _memory(validation: Validation) -> Iterator[str]:
    """Yield the share of runs whose outcome is predicted right."""
    share = validation.extra["classified_pct"]
    yield f"Whether a run fits or runs out of memory is predicted right for {share:.1f} % of rows:"
    lines = [
        (f"{column} {value}", f"{part.table.rows:,}", f"{part.extra['classified_pct']:.1f}")
        for column, value, part in _parts(validation, "tp", "pp")
    ]
    yield markdown.table(("runs with", "rows", "right %"), lines, right=2)


def _training(validation: Validation) -> Iterator[str]:
    """Yield how much is lost by running the layout ranked first, and how well ranks agree."""
    yield _REGRET
    lines = [("all", *_regret_line("", "", validation.extra["regret"])[1:])]
    for column, value, part in _parts(validation, "dataset"):
        regret = part.extra["regret"]
        if regret["groups"]:
            lines.append(_regret_line(column, value, regret))
    head = ("questions of", "questions", "median %", "p90 %", "Spearman, median")
    yield markdown.table(head, lines, right=4)


def _regret_line(column: str, value: str, regret: Mapping[str, Any]) -> tuple[str, ...]:
    told = regret["spearman_median"]
    return *_extra_line(column, value, regret, "groups"), "" if told is None else f"{told:.2f}"


def _comm_fraction(validation: Validation) -> Iterator[str]:
    """Yield the shares that were measured with most care, one by one."""
    lines = []
    shown = zip(
        validation.table.records(), validation.measured, validation.predictions.values, strict=True
    )
    for row, measured, value in shown:
        careful = row["dataset"] == "tokenweave_prefill" and row["model"].startswith("Llama-3.3")
        if careful and np.isfinite(value - measured):
            shares = (float(measured), float(value))
            tokens = row.get("tokens_or_seq", "").partition(".")[0]
            lines.append((tokens, *(f"{x:.1f}" for x in (*shares, shares[1] - shares[0]))))
    if lines:
        yield _SHARES
        head = ("tokens", "measured %", "predicted %", "apart, points")
        yield markdown.table(head, lines, right=4)


def _parts(validation: Validation, *columns: str) -> Iterator[tuple[str, str, Validation]]:
    """Yield the validation of the rows of each value of each column."""
    for column in columns:
        cells = validation.table.columns.get(column, [])
        for value in sorted(set(cells), key=rank):
            rows = validation.table.where(lambda row, c=column, v=value: row[c] == v)  # type: ignore[misc]
            yield column, value, validate(rows)


def _extra_line(column: str, value: str, figures: Mapping[str, Any], count: str) -> tuple[str, ...]:
    of = value if column in {"dataset", "model"} else f"{column} {value}"
    if not figures[count]:
        return of, "0", "", ""
    return of, f"{figures[count]:,}", f"{figures['median_pct']:.1f}", f"{figures['p90_pct']:.1f}"


_REGRET: Final = """\
*Regret*: among runs of one data set with the same model, sequence, devices and batch, and at least
three layouts, how much slower the layout that shardcost ranks first was than the best measured
one; *Spearman*: how far the order of the layouts agrees with the measured one, 1 where it is the
same."""

_SHARES: Final = """\
The share of tensor-parallel communication in prompts of Llama 3.3 70B on four H100 (`tokenweave`,
measured by leaving the all-reduces out):"""

KINDS: Final[Mapping[str, Kind]] = {
    "collectives": Kind(
        "Collectives",
        "time of one collective",
        "How the times are made up is in [collectives](collectives.md).",
        (),
        _collectives,
    ),
    "gemm": Kind(
        "GEMMs",
        "time of one GEMM",
        "One GEMM of *m* rows, by device and number format, and by *m*.",
        (("dataset",), ("gpu", "dtype"), ("m_band",)),
    ),
    "attention": Kind(
        "Attention",
        "time of one attention kernel",
        "One kernel, of a prompt (*prefill*, causal) or of one new token for each sequence"
        " (*decode*).",
        (("gpu", "phase"),),
    ),
    "elementwise": Kind(
        "Elementwise kernels",
        "time of one kernel",
        "Copies and sums from a kilobyte to gigabytes.",
        (("op",),),
    ),
    "elementwise_layer": Kind(
        "Elementwise kernels of a layer",
        "time of one kernel",
        "Norms, activation, rotary embedding and softmax, by tokens and width.",
        (("op",), ("op", "width")),
    ),
    "experts": Kind(
        "Experts",
        "time of the experts of one layer",
        "The experts of one mixture-of-experts layer on one GPU, from the router's logits to the"
        "\npartial output, by family of kernels.",
        (("gpu", "weights"), ("family",), ("rows_per_expert",)),
    ),
    "mla": Kind(
        "Latent attention",
        "time of a kernel, a module or an absorption GEMM",
        "Multi-head latent attention of one rank: the attention kernel, the whole block from hidden"
        "\nstates to partial output, or one of the two GEMMs that absorb the up-projections.",
        (("gpu", "scope"), ("scope", "phase", "form"), ("family",)),
    ),
    "grouped_gemm": Kind(
        "Grouped GEMMs",
        "time of one grouped GEMM",
        "The rows of many experts by the weights of each, in one launch.",
        (("routing",), ("rows_per_expert",)),
    ),
    "fp8_conversion": Kind(
        "fp8 GEMMs and their conversion",
        "time of one kernel",
        "An fp8 GEMM, the conversion of its input, the norm before it, and both in one kernel.",
        (("figure",), ("m_band",)),
    ),
    "sustained": Kind(
        "GEMMs under a power limit",
        "time of one GEMM",
        "A GEMM after a pause (*burst*), and in seconds without a gap (*sustained*).",
        (("figure", "dtype"),),
    ),
    "linear_attention": Kind(
        "Linear attention",
        "time of one kernel",
        "Convolution, scan and step of layers with a fixed state on one GPU, by kernel of engines.",
        (("gpu",), ("part_and_phase",), ("family",), ("library", "op")),
    ),
    "layers": Kind(
        "Layers",
        "time of one rank's share of a layer",
        "One rank's share of one transformer layer in PyTorch, all-reduces left out: *forward* from"
        "\na CUDA graph, *backward* kernel by kernel.",
        (("pass", "tp"), ("model", "pass")),
    ),
    "decode": Kind(
        "Decoded layers",
        "time of one kernel of a decoded layer",
        "The parts of one rank's share of a layer that decodes one token for each sequence.",
        (("part",), ("tp",)),
        _decode,
    ),
    "overlap": Kind(
        "GEMMs beside a collective",
        "time of a GEMM while another kernel runs",
        "A GEMM while a kernel like a collective's holds *ctas* multiprocessors.",
        (("ctas",),),
    ),
    "layer_ops": Kind(
        "Operators of a layer",
        "time of one operator",
        "Single operators by tensor-parallel degree, as several projects measured them.",
        (("dataset",), ("tp",), ("op",)),
    ),
    "memory": Kind(
        "Memory",
        "memory allocated by a training run",
        "What runs had allocated between two steps, and which ran out of memory.",
        (("tp",), ("pp",)),
        _memory,
    ),
    "memory_runs": Kind(
        "Peak memory",
        "peak memory of a training run's last rank",
        "What the last rank of Megatron-LM's functional tests held at its peak (*peak_bytes*), and"
        "\nbetween two steps (*allocated_bytes*).",
        (("family",), ("test_family",), ("gpu",)),
    ),
    "training": Kind(
        "Training",
        "step time of a training run",
        "Whole training runs, by data set, by degrees, and by framework (*software*, as the catalog"
        "\nnames it).",
        (("dataset",), ("software",), ("tp",), ("pp",)),
        _training,
    ),
    "inference": Kind(
        "Inference",
        "latency or throughput of an inference run",
        "Whole inference runs, by engine (*software*, as the catalog names it) and figure. Times to"
        "\nthe first token (*ttft*) under load contain queueing; the time per output token (*tpot*)"
        "\ntells more.",
        (("dataset",), ("software", "metric"), ("tp",), ("cluster",)),
    ),
    "serving": Kind(
        "Serving",
        "figure of a run under load",
        "Engines with many users at once: time to the first token (*ttft*), per output token"
        "\n(*tpot*), between two tokens (*itl*) and from end to end (*e2e*), as means or"
        "\npercentiles, and throughput.",
        (
            ("deployment", "kind", "measure"),
            ("software", "measure"),
            ("model", "measure"),
            ("tp", "measure"),
        ),
        pictured=("measure", ("tpot", "ttft")),
    ),
    "requests": Kind(
        "Single requests",
        "time from the arrival of a request to its last token",
        "Runs of an engine, simulated with the arrivals and lengths of their requests: when each"
        "\nrequest had its first token (*ttft_ms*) and its last (*e2e_ms*).",
        (("run",), ("model",)),
    ),
    "comm_fraction": Kind(
        "Shares of communication",
        "share of time in tensor-parallel communication",
        "Errors are in percent of the share, which is in percent itself.",
        (("dataset",),),
        _comm_fraction,
    ),
    "dispatch": Kind(
        "Dispatch and combine",
        "time of dispatch or combine",
        "The exchange around experts, as one GPU sees it, by libraries and their kernels.",
        (("cluster", "library"), ("kernel", "phase"), ("num_gpus",), ("token_band",)),
    ),
    "jitter": Kind(
        "Jitter of all-reduces",
        "99th percentile of single all-reduces over their median",
        "How single all-reduces across nodes scatter, by nodes, size and algorithm: their 99th"
        "\npercentile over their median (*p99_rel*), and the 90th (*p90_rel*), which follows from"
        "\nthe same constants.",
        (("nodes",), ("size_bytes",), ("ran",)),
    ),
    "jitter_steps": Kind(
        "Jitter of training steps",
        "99th percentile of the steps of a run over their median",
        "How the steps of one training run scatter, by number of GPUs and by who ran it: their 99th"
        "\npercentile over their median (*p99_over_median*), and the 90th, which follows from the"
        "\nsame constant.",
        (("gpus",), ("submitter",), ("logged",)),
    ),
}
"""Every kind of table that the page knows, in the page's order."""
