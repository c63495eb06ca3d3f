"""Fits the attention kernels of training frameworks to measured forward and backward passes.

    python -m lab.refit_training_attention lab/measured/own_h200_attention_kernels.csv
        --in-steps lab/measured/own_h200_attention_in_steps.csv
        --gemms lab/measured/own_h200_gemms_in_steps.csv

Training frameworks do not run the attention of serving engines: Transformer Engine runs cuDNN's,
PyTorch and the flash-attn package FlashAttention-2, which was written for Ampere's instructions and
reaches about a third of a Hopper GPU's peak (Shah et al., FlashAttention-3, arXiv:2407.08608). For
each kernel of the table the sections ``KERNEL_prefill`` and ``KERNEL_backward`` of
``catalog/attention/`` are written, with errors on sequence lengths left out printed beside those
in sample. The table was measured with causal attention in bf16 through PyTorch's
``scaled_dot_product_attention`` with one back end allowed at a time.

The second table has the same kernels between GEMMs of 4,096 x 12,288 x 12,288 that ran for seconds,
so that the board's power held the clock down, beside their time in a burst. ``in_steps`` is the
median ratio of the two, over rows in which GEMMs take most of the time, as they do in a step.

The third has GEMMs between copies, attention and waiting, whose watts the regulator gives to the
GEMMs, beside the same GEMMs without a gap: ``in_steps.rate`` of ``catalog/gemm/`` is the median
ratio of their rates, over the same choice of rows.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lab.catalog_files import CATALOG, fit_of, update
from lab.command import ended, parser_of
from lab.descent import descend, errors_pct, loss
from lab.parts import Mask, leave_out
from shardcost.cluster import Cluster
from shardcost.kernels.attention import prefill_time_s
from shardcost.machine.kernels import KernelConstants, KernelTable, Section, kernels_of
from shardcost.validate.predictions import Floats

_SHAPE: Final = {"tile_queries": 128, "tile_keys": 128, "kv_weight": 0.7}
_FORWARD: Final = {
    "launch_us": 10.0,
    "peak_share": 0.5,
    "block_us": 0.5,
    "alone_ratio": 1.2,
    "tail_power": 2.0,
    "memory_share": 0.5,
    "overlap_power": 1.5,
    "exponential_part": 0.3,
}
_BACKWARD: Final = {
    "rate_ratio": 0.9,
    "block_us": 10.0,
    "alone_ratio": 1.2,
    "tail_power": 2.0,
    "exponential_part": 0.3,
}
_COUNTED: Final = {"flop_ratio": 2.5, "bytes_ratio": 2.0}
"""Five products of matrices for two, and gradients beside what they are of."""
_PULL: Final = 1e-3
_MOST_GEMMS: Final = 0.65
"""Share of the time that GEMMs take in rows that stand for a step."""
BACKWARD: Final = "backward"

Row = Mapping[str, str]


def _with(
    on: KernelConstants, forward: Mapping[str, Any], backward: Mapping[str, Any]
) -> KernelConstants:
    sections: dict[tuple[KernelTable, str], Section] = {
        ("attention", name): on.section("attention", name)._replace(constants=constants)
        for name, constants in (("prefill", forward), ("backward", backward))
    }
    return replace(on, sections=sections)


def ratios(on: KernelConstants, rows: Sequence[Row]) -> Floats:
    """Return predicted over measured, of every row."""
    return np.array(
        [
            prefill_time_s(
                on,
                "bf16",
                int(row["batch"]),
                int(row["tokens"]),
                int(row["tokens"]),
                *(int(row[name]) for name in ("heads", "kv_heads", "head_dim")),
                backward=row["pass"] == BACKWARD,
            )
            * 1e6
            / float(row["time_us"])
            for row in rows
        ]
    )


def fitted(on: KernelConstants, rows: Sequence[Row]) -> KernelConstants:
    """Return the device with constants of the two passes that suit rows best."""
    forward = [row for row in rows if row["pass"] != BACKWARD]
    backward = [row for row in rows if row["pass"] == BACKWARD]
    gradients = {**_COUNTED, **_BACKWARD}
    first = descend(
        lambda trial: loss(ratios(_with(on, {**_SHAPE, **trial}, gradients), forward)),
        _FORWARD,
        _PULL,
    )
    second = descend(
        lambda trial: loss(ratios(_with(on, {**_SHAPE, **first}, {**_COUNTED, **trial}), backward)),
        _BACKWARD,
        _PULL,
    )
    return _with(on, {**_SHAPE, **first}, {**_COUNTED, **second})


def left_out(on: KernelConstants, rows: Sequence[Row]) -> Floats:
    """Return predicted over measured, of every row by a fit without its sequence length."""

    def tried(out: Mask) -> Floats:
        kept, gone = (
            [row for row, chosen in zip(rows, mask, strict=True) if chosen] for mask in (~out, out)
        )
        return ratios(fitted(on, kept), gone)

    return leave_out(np.array([row["tokens"] for row in rows]), tried)


def _ratio(rows: Sequence[Row], one: str, other: str) -> tuple[float, Floats]:
    """Return the median ratio of two columns, and the error of each row by the others', in %."""
    found = np.array([float(row[one]) / float(row[other]) for row in rows])
    others = np.array([np.median(np.delete(found, i)) for i in range(found.size)])
    return float(np.median(found)), 100 * np.abs(others / found - 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit every kernel of a table, print errors on lengths left out, and write the sections."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured attention of training (CSV)")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    parser.add_argument("--in-steps", type=Path, help="the same kernels between GEMMs (CSV)")
    parser.add_argument("--gemms", type=Path, help="GEMMs between other kernels (CSV)")
    options = parser.parse_args(arguments)
    table = _read(options.table)
    beside = _read(options.in_steps) if options.in_steps else []
    for gpu, kernel in sorted({(row["gpu"], row["kernel"]) for row in table}):
        rows = [row for row in table if (row["gpu"], row["kernel"]) == (gpu, kernel)]
        on = kernels_of(Cluster.named(gpu).device)
        found = fitted(on, rows)
        changes: dict[tuple[str, ...], Any] = {}
        for section, name in (("prefill", "forward"), ("backward", BACKWARD)):
            own = [row for row in rows if row["pass"] == name]
            errors = errors_pct(ratios(found, own))
            sets = ", ".join(sorted({row["dataset"] for row in own}))
            source = f"fitted by shardcost to measured rows of {sets}"
            fit = {**fit_of(source, errors, len(own)), "measured_with": kernel}
            constants = dict(found.section("attention", section).constants)
            held = [
                row
                for row in beside
                if (row["gpu"], row["kernel"], row["pass"]) == (gpu, kernel, name)
                and float(row["gemm_share"]) > _MOST_GEMMS
            ]
            if held:
                ratio, apart = _ratio(held, "time_us", "burst_us")
                constants["in_steps"] = round(ratio, 3)
                print(f"  in steps {ratio:.3f}; a row left out {np.median(apart):.1f} %")
            changes[(f"{kernel}_{section}",)] = {**constants, "fit": fit}
            print(f"{kernel} {name}: {errors[0]:.1f} % (median), {errors[1]:.1f} % (p90)")
        median, p90 = errors_pct(left_out(on, rows))
        print(f"  a sequence length left out: {median:.1f} % (median), {p90:.1f} % (p90)")
        file_name = Path("attention") / f"{gpu}.toml"
        update(CATALOG / file_name, changes, options.output / file_name)
    if options.gemms:
        _write_gemms(_read(options.gemms), options.output)


def _write_gemms(rows: Sequence[Row], output: Path) -> None:
    """Write how much faster GEMMs are between other kernels than without a gap."""
    for gpu in sorted({row["gpu"] for row in rows}):
        own = [row for row in rows if row["gpu"] == gpu and float(row["gemm_share"]) > _MOST_GEMMS]
        ratio, apart = _ratio(own, "alone_us", "time_us")
        sets = ", ".join(sorted({row["dataset"] for row in own}))
        errors = float(np.median(apart)), float(np.percentile(apart, 90))
        fit = fit_of(f"fitted by shardcost to measured rows of {sets}", errors, len(own))
        section = {"rate": round(ratio, 3), "fit": {**fit, "measured_with": "torch"}}
        file_name = Path("gemm") / f"{gpu}.toml"
        update(CATALOG / file_name, {("in_steps",): section}, output / file_name)
        print(f"GEMMs in steps: {ratio:.3f}; a row left out {errors[0]:.1f} %")


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    ended(main)
