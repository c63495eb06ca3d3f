"""The receipts of kernels: the functions that price them, run on traced numbers.

No formula stands here. `traced_kernels` stands in for a device's constants, so that the functions
of `attention` and `elementwise` write their own receipts; `traced_gemm` runs those of `gemm` for
the likeliest tile shape, whose share in the mean over shapes is a term like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from types import SimpleNamespace
from typing import Any, Final

from shardcost.kernels import linear_attention
from shardcost.kernels.experts import Kernel, kernel_gemm_time_s, kernel_of, kernel_time_s
from shardcost.kernels.gemm import Parts, by_shape, gemm_parts
from shardcost.kernels.mla import LatentShape, attention_on, walk_time_s, warmed
from shardcost.machine.kernels import KernelConstants, KernelTable, Section, clock_hz
from shardcost.machine.linear_attention import KernelKind
from shardcost.receipt import SENT, Term
from shardcost.traced import Traced, step

MEANINGS: Final = {
    "launch_us": "launch in a CUDA graph, in us",
    "latency_us": "start and end of a kernel, in us",
    "block_us": "start and end of a block, in us",
    "row_us": "one more row of a tile, in us",
    "token_ns": "one more token of a block, in ns",
    "split_us": "adding up the parts of a split context, in us",
    "split_loss": "of the memory's rate, where a context is split",
    "split_tokens": "least tokens of a part",
    "split_blocks": "blocks up to which contexts are split",
    "slots_per_sm": "blocks that an SM runs at once",
    "alone_ratio": "a block alone on its SM, over one among others",
    "tail_power": "1: one after the other; large: the longer of the two",
    "overlap_power": "1: one after the other; large: the longer of the two",
    "memory_share": "of the nominal rate that is reached",
    "peak_share": "of the peak that is reached",
    "exponential_part": "of the time goes to the softmax",
    "in_steps": "between GEMMs that hold the clock down, over alone",
    "kv_weight": "how much a key counts among the bytes, over a query",
    "flop_ratio": "GEMMs of the gradients, over forward",
    "rate_ratio": "rate of the gradients, over forward",
    "bytes_ratio": "bytes of the gradients, over forward",
}
"""What a constant is, where its name does not say it."""
_SIZES: Final = {
    "tokens": "that the kernels see",
    "hidden": "width of the model",
    "inter": "width of an expert, on this rank",
    "experts": "of the layer",
    "top_k": "experts of a token",
    "pairs": "rows of this rank's experts",
    "active": "experts with any row",
    "busiest": "rows of the fullest expert",
    "rows": "of all experts",
    "groups": "experts with any row",
    "largest_group": "rows of the fullest expert",
}
"""What a size of expert kernels is."""


def source_of(section: Section) -> str:
    """Return who states a set of constants, how well it fits and from which device it is."""
    fit, origin = section.fit, section.inherited_from
    inherited = f"; inherited from {origin}" if origin else ""
    if fit.rows == 0:
        return f"{fit.source}{inherited}"
    error = f"median error {fit.median_pct:.1f} %, p90 {fit.p90_pct:.1f} %"
    return f"{fit.source}; {fit.rows:,} rows, {error}{inherited}"


def traced_kernels(on: KernelConstants, sources: Mapping[str, Any]) -> Any:
    """Return a device's constants as named numbers.

    >>> from shardcost.kernels.elementwise import elementwise_time_s
    >>> from shardcost.machine import machine_of
    >>> from shardcost.traced import receipt
    >>> h200 = machine_of("h200_sxm")
    >>> named = traced_kernels(h200.kernels, h200.cluster.sources)
    >>> moved = Traced.named(Term("bytes", 2.0**29, "bytes sent"))
    >>> receipt(elementwise_time_s(named, moved), "copy", "", "s").formula
    '1e-06 x latency_us + bytes / (memory_rate x memory_share)'

    Args:
        on: The constants.
        sources: Who states the figures of the datasheet, as a cluster has them.
    """
    device = on.device

    def stated(name: str, value: Any, unit: str, figure: str) -> Traced:
        source = str(sources.get(figure, ""))
        return Traced.named(Term(name, float(value), unit, "nominal", source, name))

    def peak(dtype: str) -> Traced:
        figure = f"device.peak_flop_per_s.{dtype}"
        return stated(f"peak_{dtype}", device.peak(dtype), "FLOP/s", figure)

    def section(table: KernelTable, *names: str) -> Section:
        plain = on.section(table, *names)
        return plain._replace(constants=_traced(plain.constants, source_of(plain)))

    return SimpleNamespace(
        section=section,
        clock_ratio=on.clock_ratio,
        sustained_share=lambda _: None,  # `shardcost.estimate.why` adds the limit where it decides
        in_steps=lambda _: 1.0,
        memo={},
        device=SimpleNamespace(
            sms=Traced.named(Term("SMs", float(device.sms), "")),
            memory_bytes_per_s=stated(
                "memory_rate", device.memory_bytes_per_s, "bytes/s", "device.memory_bytes_per_s"
            ),
            peak_flop_per_s=device.peak_flop_per_s,
            peak=peak,
            multiplied=device.multiplied,
            boost_clock_hz=clock_hz(device),
        ),
    )


def _traced(constants: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return constants as named numbers; tables inside tables likewise."""
    named: dict[str, Any] = {}
    for name, value in constants.items():
        if isinstance(value, Mapping):
            named[name] = _traced(value, source)
        elif isinstance(value, int | float):
            unit = "share" if name.endswith("_share") else ""
            term = Term(name, float(value), unit, MEANINGS.get(name, ""), source, name)
            named[name] = Traced.named(term)
    return named


def traced_gemm(
    on: KernelConstants, dtype: str, m: float, n: float, k: float, batch: float
) -> tuple[Any, Parts]:
    """Return the seconds of a GEMM as a traced number, and what it is made of."""
    parts = gemm_parts(on, dtype, m, n, k, batch=batch)
    source = source_of(parts.section)

    def fitted(name: str, value: Any, unit: str, meaning: str) -> Any:
        return Traced.named(Term(name, float(value), unit, meaning, source)) if value else 0.0

    def size(name: str, value: Any, meaning: str) -> Any:
        return Traced.named(Term(name, float(value), "", meaning))

    own, cut = parts.shape, parts.splits
    shape = own._replace(
        rows=size("tile_rows", own.rows, "of the likeliest tile shape"),
        columns=size("tile_columns", own.columns, "of the likeliest tile shape"),
        splits=size("splits", cut, "parts that k is cut into") if cut > 1 else 1,
        step_s=fitted("k_step", own.step_s, "s", "arithmetic or loads of a tile, per k"),
        start_s=fitted("start", own.start_s, "s", "of a tile"),
        split_s=fitted("split", own.split_s, "s", "of the kernel that adds up the parts"),
        split_element_s=fitted("split_element", own.split_element_s, "s", "of the result"),
        launch_s=fitted("launch", own.launch_s, "s", "in a CUDA graph"),
        memory_bytes_per_s=fitted(
            "memory_rate", own.memory_bytes_per_s, "bytes/s", "that is reached"
        ),
        input_bytes=Traced.named(Term("input", own.input_bytes, SENT, "an element")),
        weight_bytes=Traced.named(Term("weight", own.weight_bytes, SENT, "an element")),
        result_bytes=Traced.named(Term("result", own.result_bytes, SENT, "an element")),
        units=size("SMs", own.units, ""),
        wave_rounding=fitted("rounding", own.wave_rounding, "", "of a last wave's rest"),
    )
    rows, columns, depth = size("m", m, "tokens"), size("n", n, "columns"), size("k", k, "summed")
    count = size("batch", batch, "GEMMs in one launch") if batch != 1 else 1
    chosen = fitted("chosen", parts.chosen, "share", "of the likeliest shape in the mean")
    others = fitted("others", parts.others_s, "s", "what other tile shapes add to the mean")
    shape_s = by_shape(shape, rows, columns, depth, count).time_s
    mean_s = chosen * step("shape", shape_s, meaning="the likeliest shape") + others
    time_s = mean_s + shape.launch_s
    if parts.factor != 1:
        time_s = size("measured", parts.factor, "residual of the formula, on this machine") * time_s
    return time_s, parts


def traced_experts(
    on: KernelConstants, section: Section, dtype: str, sizes: Mapping[str, Any]
) -> Any:
    """Return the seconds of expert kernels as a traced number, GEMMs by their fastest tiles.

    Args:
        on: The constants of the device.
        section: Those of the kernel.
        dtype: The number format of the experts.
        sizes: The arguments of `shardcost.kernels.experts.kernel_time_s`, or, of a grouped GEMM by
            itself, of `kernel_gemm_time_s`.
    """
    formula: Any = kernel_time_s if "tokens" in sizes else kernel_gemm_time_s
    plain = kernel_of(on.device, dtype, section.constants)
    whole_s = formula(plain, **sizes, warm=False)
    heights, kernel = list(zip(plain.tile_rows, plain.step_s, strict=True)), plain
    for few in (*combinations(heights, 1), *combinations(heights, 2)):
        rows, steps = zip(*few, strict=True)
        kernel = plain._replace(tile_rows=rows, step_s=steps)
        if formula(kernel, **sizes, warm=False) == whole_s:
            break  # the other heights are slower for either GEMM
    named_sizes = {
        name: size if name in {"gated", "ep", "part"} else _size(name, size)
        for name, size in sizes.items()
    }
    return formula(_traced_kernel(kernel, source_of(section)), **named_sizes, warm=False)


def _size(name: str, value: Any) -> Traced:
    return Traced.named(Term(name, float(value), "", _SIZES.get(name, "")))


def _traced_kernel(kernel: Kernel, source: str) -> Kernel:
    """Return the constants of an expert kernel as named numbers."""

    def fitted(name: str, value: Any, unit: str, meaning: str) -> Any:
        return Traced.named(Term(name, float(value), unit, meaning, source)) if value else 0.0

    steps = tuple(
        fitted(f"k_step_{rows:.0f}", step_s, "s", f"of a tile of {rows:.0f} rows, per k")
        for rows, step_s in zip(kernel.tile_rows, kernel.step_s, strict=True)
    )
    return kernel._replace(
        step_s=steps,
        start_s=fitted("tile_start", kernel.start_s, "s", "of a tile"),
        units=_size("SMs", kernel.units),
        memory_bytes_per_s=fitted(
            "memory_rate", kernel.memory_bytes_per_s, "bytes/s", "that weights are read at"
        ),
        floor_s=fitted("floor", kernel.floor_s, "s", "of all small kernels"),
        expert_s=fitted("expert", kernel.expert_s, "s", "counting and offsets, for each expert"),
        token_s=fitted("token", kernel.token_s, "s", "top-k, for each token"),
        row_byte_s=fitted("row_byte", kernel.row_byte_s, "s", "passes over the rows, per byte"),
        blind_choice=fitted("blind", kernel.blind_choice, "share", "of heights chosen by all rows"),
        remote_rows=fitted("remote_rows", kernel.remote_rows, "share", "that are passed over too"),
        weight_bytes=fitted("weight", kernel.weight_bytes, SENT, "an element"),
    )


_STATE_SIZES: Final = {
    "batch": "sequences",
    "query_tokens": "of each",
    "k_heads": "of keys, on this rank",
    "k_dim": "of a key",
    "v_heads": "of values, on this rank",
    "v_dim": "of a value",
    "conv_channels": "on this rank",
    "conv_width": "taps",
    "state_bytes": "of an element of the state",
}
"""What a size of a layer with a fixed state is."""


def traced_linear_attention(
    on: KernelConstants,
    section: Section,
    kind: KernelKind,
    of: tuple[str, str, str],
    sizes: linear_attention.Sizes,
    *,
    backward: bool,
) -> Any:
    """Return the seconds of a kernel of linear attention as a traced number.

    Args:
        on: The constants of the device.
        section: Those of the kernel.
        kind: The kernel.
        of: Rule, part and phase.
        sizes: The layer and its tokens.
        backward: The pass of the gradients.
    """
    op, part, phase = of
    plain = linear_attention.kernel_of(on.device, part, phase, section.constants, kind)
    source = source_of(section)

    def fitted(name: str, value: Any, unit: str, meaning: str) -> Any:
        return Traced.named(Term(name, float(value), unit, meaning, source)) if value else 0.0

    per = "FLOP" if part == "scan" else "byte"
    kernel = plain._replace(
        floor_s=fitted("floor", plain.floor_s, "s", "start and end of the kernels"),
        ramp_s=fitted("ramp", plain.ramp_s, "s", "of the first tile of tokens"),
        link_s=fitted("link", plain.link_s, "s", "of one chunk or token after another"),
        chains=fitted("chains_at_once", plain.chains, "", "heads that all SMs run together"),
        work_s=fitted("work_rate", plain.work_s, "s", f"on all SMs, per {per}"),
        byte_s=fitted("memory_byte", plain.byte_s, "s", "from memory, per byte"),
        spilled=fitted("spilled", plain.spilled, "share", "of the values between the kernels"),
        kept=fitted("kept", plain.kept, "share", "of the last tokens, for each drafted one"),
    )
    named = linear_attention.Sizes(
        *(
            Traced.named(Term(name, float(value), "", _STATE_SIZES[name])) if value else 0
            for name, value in sizes._asdict().items()
        )
    )
    work = linear_attention.work_of(kernel, op, part, phase, named, backward=backward)
    return linear_attention.kernel_time_s(kernel, work, warm=False)


def traced_latent(
    on: KernelConstants,
    section: Section,
    kind: tuple[str, str, str, str, str, str],
    sizes: Mapping[str, Any],
    shape: LatentShape,
    *,
    causal: bool,
) -> Any:
    """Return the seconds of latent attention as a traced number.

    Args:
        on: The constants of the device.
        section: Those of the kernel.
        kind: Kernel, phase, form, number formats of products and cache, and library, as
            `shardcost.kernels.mla.attention_on` takes them.
        sizes: The sizes that `shardcost.kernels.mla.walk_time_s` takes.
        shape: The sizes of the model's attention.
        causal: Whether a new token sees only itself and those before it.
    """
    plain, source = warmed(attention_on(on, *kind), warm=False), source_of(section)

    def fitted(name: str, value: Any, unit: str, meaning: str) -> Any:
        return Traced.named(Term(name, float(value), unit, meaning, source)) if value else 0.0

    rate = fitted("memory_rate", plain.cached.memory_bytes_per_s, "bytes/s", "that is reached")
    kernel = plain._replace(
        floor_s=fitted("floor", plain.floor_s, "s", "of the kernel and the cache's write"),
        start_s=fitted("start", plain.start_s, "s", "of a block"),
        key_s=fitted("key", plain.key_s, "s", "one more key of a block by itself"),
        flop_per_s=fitted("SM_rate", plain.flop_per_s, "FLOP/s", "of one SM, that is reached"),
        cached=plain.cached._replace(memory_bytes_per_s=rate),
        row_passes=fitted("row_passes", plain.row_passes, "", "over queries and outputs"),
        split_s=fitted("split", plain.split_s, "s", "adding up one more part of a context"),
        most_splits=fitted("most_splits", plain.most_splits, "", "parts of a context"),
        units=_size("SMs", plain.units),
    )
    named_sizes = {name: _size(name, size) for name, size in sizes.items()}
    return walk_time_s(kernel, kind[2], shape=shape, causal=causal, **named_sizes)
