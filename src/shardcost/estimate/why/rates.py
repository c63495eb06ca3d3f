"""Why the figures of the whole are as they are: rates, utilisation, energy, operations counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from shardcost.estimate.result import FLOP_CONVENTION, Estimate
from shardcost.estimate.why.error import over_time, range_error, run_error, time_part, time_term
from shardcost.estimate.why.reason import Part, Why, cited, reason, stated_by
from shardcost.estimate.why.time import end_of_interval, time
from shardcost.program.flops import flop_passes, tokens_with_logits
from shardcost.receipt import Term, flop
from shardcost.units import format_flops, format_percent, format_time
from shardcost.workload import Decode, Prefill


def whole_figures(found: Estimate) -> Iterator[str]:
    """Yield the figures of the whole that an estimate has."""
    yield from ("time_s", "low_s", "high_s", "tokens_per_s", "tokens_per_s_per_gpu")
    if isinstance(found.workload, Prefill):
        yield "ttft_s"
    if isinstance(found.workload, Decode):
        yield from ("tpot_s", "tokens_per_s_per_user")
    yield from ("mfu", "mfu_full_attention", "hfu")
    if found.energy_j is not None:
        yield "energy_j"
    yield from ("comm_share", "flops", "flops_full_attention", "hardware_flops")


def _devices(found: Estimate) -> Term:
    return Term("GPUs", float(found.devices), "", found.layout.short())


def _tokens(found: Estimate) -> Term:
    return Term("tokens", float(found.workload.tokens), "tokens", "computed in a step, all GPUs")


def _tokens_per_s(found: Estimate) -> Why:
    terms = [_tokens(found), time_term(found)]
    title = "Tokens per second, all GPUs together"
    value = found.tokens_per_s
    return over_time(found, "tokens_per_s", title, value, "tokens/s", "tokens / time", terms)


def _per_gpu(found: Estimate) -> Why:
    terms = [_tokens(found), time_term(found), _devices(found)]
    return over_time(
        found,
        "tokens_per_s_per_gpu",
        "Tokens per second and GPU",
        found.tokens_per_s_per_gpu,
        "tokens/s",
        "tokens / time / GPUs",
        terms,
        parts=[Part("tokens_per_s", "tokens per second", float(found.tokens_per_s), "tokens/s")],
    )


def _ttft(found: Estimate) -> Why:
    terms = [time_term(found)]
    return reason(
        "ttft_s",
        "Time to the first token of a prompt, nothing else running",
        found.ttft_s,
        "s",
        "time",
        terms,
        parts=[time_part(found)],
        error=run_error(found, "s"),
    )


def _new_tokens(found: Estimate) -> Term:
    work = found.workload
    if not isinstance(work, Decode):
        raise TypeError(type(work).__name__)
    return Term("new_tokens", float(work.new_tokens), "", "per sequence and step")


def _tpot(found: Estimate) -> Why:
    new = _new_tokens(found)
    return reason(
        "tpot_s",
        "Time per output token of one sequence",
        found.tpot_s,
        "s",
        "time / new_tokens",
        [time_term(found), new],
        parts=[time_part(found)],
        error=run_error(found, "s", times=1 / new.value),
    )


def _per_user(found: Estimate) -> Why:
    return over_time(
        found,
        "tokens_per_s_per_user",
        "Output tokens per second of one sequence",
        found.tokens_per_s_per_user,
        "tokens/s",
        "new_tokens / time",
        [_new_tokens(found), time_term(found)],
        parts=[Part("tpot_s", "time per output token", float(found.tpot_s), "s")],
    )


def _utilisation(figure: str, title: str, counted: str) -> Callable[[Estimate], Why]:
    """Return the function that says why a utilisation is what it is."""

    def of(found: Estimate) -> Why:
        device, dtype = found.cluster.device, found.workload.dtype
        flops = float(getattr(found, counted))
        terms = [
            Term("FLOP", flops, "FLOP", _COUNTED[counted]),
            time_term(found),
            _devices(found),
            Term(
                "peak",
                float(device.peak(dtype)),
                "FLOP/s",
                f"dense, {dtype}",
                stated_by(found.cluster, f"device.peak_flop_per_s.{dtype}"),
            ),
        ]
        return over_time(
            found,
            figure,
            title,
            getattr(found, figure),
            "share",
            "FLOP / (time * GPUs * peak)",
            terms,
            parts=[Part(counted, "FLOP", flops, "FLOP")],
            words=utilisation_in_words(found),
        )

    return of


_COUNTED: Final = {
    "flops": f"of the model: {FLOP_CONVENTION}",
    "flops_full_attention": "of the model, attention over all pairs of tokens",
    "hardware_flops": "that the devices make, recomputation and copies included",
}


def utilisation_in_words(found: Estimate) -> str:
    """Return how MFU and HFU come about, with their values."""
    device, dtype = found.cluster.device, found.workload.dtype
    stated = cited(found.cluster, f"device.peak_flop_per_s.{dtype}")
    return (
        "model FLOP / (time x GPUs x peak)"
        f" = {flop(found.flops)} / ({format_time(found.time_s)} x {found.devices:,}"
        f" x {format_flops(device.peak(dtype))}) = {format_percent(found.mfu)};"
        f" FLOP: {FLOP_CONVENTION}."
        f" HFU counts what the devices make, {flop(found.hardware_flops)}:"
        f" {format_percent(found.hfu)}{stated.replace('(', '(peak: ', 1)}"
    )


def _energy(found: Estimate) -> Why:
    power = float(found.cluster.device.power_w or 0.0)
    stated = stated_by(found.cluster, "device.power_w")
    terms = [
        Term("power", power, "W", "rated, of one board", stated),
        _devices(found),
        time_term(found),
    ]
    return reason(
        "energy_j",
        "Energy of a step at most, all boards at their rated power",
        found.energy_j,
        "J",
        "power * GPUs * time",
        terms,
        parts=[time_part(found)],
        error=run_error(found, "J", times=power * float(found.devices)),
    )


def _comm_share(found: Estimate) -> Why:
    waits = float(sum(found.exposed_s.values()))
    terms = [Term("waiting", waits, "s", "for communication that nothing hides"), time_term(found)]
    return reason(
        "comm_share",
        "Part of a step in which a rank waits for communication",
        found.comm_share,
        "share",
        "waiting / time",
        terms,
        parts=[
            Part("comm.exposed_s", "waiting", waits, "s"),
            time_part(found),
        ],
        error=range_error(found, "comm_share", "share"),
    )


def _model_flops(figure: str) -> Callable[[Estimate], Why]:
    def of(found: Estimate) -> Why:
        model, work = found.model, found.workload
        flops = float(getattr(found, figure))
        passes, attention_passes = flop_passes(work)
        hidden = model.hidden_size
        weights = sum(block.count * block.matrix_parameters(hidden) for block in model.blocks)
        answered = tokens_with_logits(work)
        head = 2.0 * model.hidden_size * model.vocab_size * answered
        tokens = float(work.tokens)
        matrices = passes * (2.0 * tokens * float(weights) + float(head))
        attention = (flops - matrices) / attention_passes / tokens
        pairs = "causal pairs" if figure == "flops" else "all pairs"
        terms = [
            Term("passes", passes, "", "over the matrices: forward, and backward if trained"),
            Term("attention_passes", attention_passes, "", "over attention, likewise"),
            Term("tokens", tokens, "", "computed in a step"),
            Term("weights", float(weights), "weights", "that a token meets in the layers"),
            Term("attention", attention, "FLOP", f"per token, over {pairs}"),
            Term("hidden", float(model.hidden_size), ""),
            Term("vocabulary", float(model.vocab_size), ""),
            Term("answered", float(answered), "", "tokens that meet the head"),
        ]
        expression = (
            "passes * (tokens * 2 * weights + 2 * hidden * vocabulary * answered)"
            " + attention_passes * tokens * attention"
        )
        title = f"FLOP of the model in a step, {pairs}"
        return reason(figure, title, flops, "FLOP", expression, terms, words=FLOP_CONVENTION)

    return of


def _hardware_flops(found: Estimate) -> Why:
    layout = found.layout
    copies = layout.tp * layout.cp * layout.dp
    terms = [
        Term("rank", float(found.hardware_flops / copies), "FLOP", "on one rank of every stage"),
        Term("tp", float(layout.tp), ""),
        Term("cp", float(layout.cp), ""),
        Term("dp", float(layout.dp), ""),
    ]
    return reason(
        "hardware_flops",
        "FLOP that the devices make in a step",
        found.hardware_flops,
        "FLOP",
        "rank * tp * cp * dp",
        terms,
        words="the products and attention of all passes, recomputation and copies included",
    )


WHOLE: Final[Mapping[str, Callable[[Estimate], Why]]] = {
    "time_s": time,
    "low_s": lambda found: end_of_interval(found, "low_s"),
    "high_s": lambda found: end_of_interval(found, "high_s"),
    "tokens_per_s": _tokens_per_s,
    "tokens_per_s_per_gpu": _per_gpu,
    "ttft_s": _ttft,
    "tpot_s": _tpot,
    "tokens_per_s_per_user": _per_user,
    "mfu": _utilisation("mfu", "Model FLOP utilisation, causal pairs", "flops"),
    "mfu_full_attention": _utilisation(
        "mfu_full_attention", "Model FLOP utilisation, all pairs", "flops_full_attention"
    ),
    "hfu": _utilisation("hfu", "Hardware FLOP utilisation", "hardware_flops"),
    "energy_j": _energy,
    "comm_share": _comm_share,
    "flops": _model_flops("flops"),
    "flops_full_attention": _model_flops("flops_full_attention"),
    "hardware_flops": _hardware_flops,
}
