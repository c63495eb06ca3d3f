"""Writes a profile: what was calibrated, in the form that every command reads (``--on FILE``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardcost.calibrate.calibrate import Calibrated
from shardcost.calibrate.kernels import CalibratedKernels, profile_lines
from shardcost.catalog import PROFILE_FIRST_LINE, checked_profile_name
from shardcost.cluster import Cluster
from shardcost.files import quoted
from shardcost.machine.constants import (
    Calibration,
    EngineLibrary,
    FrameworkLibrary,
    NetworkConstants,
    RingLibrary,
    in_file_name,
    in_file_units,
)
from shardcost.machine.residual import COORDINATES, CollectiveTable

_KIND_NAMES: Final = {
    RingLibrary: "ring",
    EngineLibrary: "direct",
    FrameworkLibrary: "framework",
    NetworkConstants: "wire",
}
_LEAST_PCT: Final = 0.01
"""What two digits can say; an error of 0 is none."""
_RANGES: Final = ("least_gpus", "most_gpus", "least_bytes", "most_bytes")


def as_profile(
    name: str,
    cluster: Cluster,
    calibrated: Sequence[Calibrated],
    kernels: Sequence[CalibratedKernels] = (),
) -> str:
    """Return the profile of a cluster of the catalog that was calibrated.

    Args:
        name: Of the profile.
        cluster: The cluster that it describes more closely, with its network if there is one.
        calibrated: The libraries and the network that were calibrated on it.
        kernels: The kernels that were.
    """
    lines = [
        PROFILE_FIRST_LINE,
        "# Written by `shardcost calibrate`; give it to any command: --on FILE.",
        f'name = "{checked_profile_name(name)}"',
        f'based_on = "{cluster.name}"',
    ]
    if cluster.network is not None:
        lines.append(f'network = "{cluster.network.name}"')
    for entry in calibrated:
        network = isinstance(entry.calibration.constants, NetworkConstants)
        lines += entry_lines(entry.calibration, entry.calibration.system if network else "")
        lines += ["", "[library.confidence_pct] # nine times in ten within so many percent"]
        lines += [
            f"{in_file_name(one.name)} = {one.plus_minus_pct:.1f}"
            + ("" if one.measured else " # as in the family: no point says more")
            for one in entry.constants
        ]
        lines += [line for one in entry.calibration.residuals for line in _table_lines(one)]
    lines += profile_lines(kernels)
    return "\n".join(lines) + "\n"


def entry_lines(calibration: Calibration, system: str = "") -> list[str]:
    """Return a calibration as the lines of a file; `system` where it is not the file's own."""
    fit = calibration.fit
    collectives = ", ".join(map(quoted, fit.collectives))
    ends = {"low_pct": fit.low_pct, "high_pct": fit.high_pct}
    return [
        "",
        "[[library]]",
        f"name = {quoted(calibration.library)}",
        *([f"system = {quoted(system)}"] if system else []),
        f'kind = "{_KIND_NAMES[type(calibration.constants)]}"',
        f'since = "{calibration.since}"',
        f'chooser = "{calibration.chooser}"',
        "",
        "[library.fit]",
        f"source = {quoted(fit.source)}",
        f"rows = {fit.rows}",
        f"median_pct = {max(_LEAST_PCT, fit.median_pct):.2f}",
        f"p90_pct = {max(_LEAST_PCT, fit.p90_pct):.2f}",
        *(f"{name} = {getattr(fit, name)}" for name in _RANGES),
        f"collectives = [{collectives}]",
        *(f"{name} = {value:.2f}" for name, value in ends.items() if value is not None),
        "",
        "[library.constants]",
        *(f"{name} = {value!r}" for name, value in in_file_units(calibration.constants).items()),
    ]


def _table_lines(table: CollectiveTable) -> list[str]:
    """Return a table of residuals as the lines of a file."""
    columns = zip(COORDINATES, zip(*table.residual.points, strict=True), strict=True)
    return [
        "",
        "[[library.residual]] # measured over predicted, around measured points",
        f"collective = {quoted(table.collective)}",
        f"library = {quoted(table.library)}",
        f"mode = {quoted(table.mode)}",
        f"held = {str(table.held).lower()}",
        *([] if table.within_pct is None else [f"within_pct = {table.within_pct:.2f}"]),
        f"scales = [{', '.join(f'{scale:g}' for scale in table.residual.scales)}]",
        *(f"{name} = [{', '.join(f'{x:g}' for x in column)}]" for name, column in columns),
        f"weights = [{', '.join(f'{weight!r}' for weight in table.residual.weights)}]",
    ]
