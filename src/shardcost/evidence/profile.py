"""Writes a profile: what was calibrated, in the form that every command reads (``--on FILE``)."""

from __future__ import annotations

from collections.abc import Sequence

from shardcost.catalog.profile import FIRST_LINE, checked_name
from shardcost.cluster import Cluster
from shardcost.collectives.calibration import in_file_name
from shardcost.collectives.paths import Wire
from shardcost.evidence.calibrate import Calibrated
from shardcost.evidence.refit import entry_lines


def as_profile(name: str, cluster: Cluster, found: Sequence[Calibrated]) -> str:
    """Return the profile of a cluster of the catalog that was calibrated.

    Args:
        name: Of the profile.
        cluster: The cluster that it describes more closely, with its network if there is one.
        found: What was calibrated on it.
    """
    lines = [
        FIRST_LINE,
        "# Written by `shardcost calibrate`; give it to any command: --on FILE.",
        f'name = "{checked_name(name)}"',
        f'based_on = "{cluster.name}"',
    ]
    if cluster.network is not None:
        lines.append(f'network = "{cluster.network.name}"')
    for each in found:
        network = isinstance(each.calibration.constants, Wire)
        lines += entry_lines(each.calibration, each.calibration.system if network else "")
        lines += ["", "[library.confidence_pct] # nine times in ten within so many percent"]
        lines += [
            f"{in_file_name(one.name)} = {one.plus_minus_pct:.1f}"
            + ("" if one.measured else " # as in the family: no point says more")
            for one in each.constants
        ]
    return "\n".join(lines) + "\n"
