"""The report on a calibrated machine: what is of its collectives, then what is of its kernels."""

from __future__ import annotations

from typing import Any

from shardcost.calibrate.profile import Profile
from shardcost.report import calibrate, calibrate_kernels


def as_data(profile: Profile) -> dict[str, Any]:
    """Return the report as JSON has it."""
    data: dict[str, Any] = {}
    if profile.gathered is not None:
        shown = (profile.readings, profile.gathered, profile.calibrated)
        data = calibrate.as_data(profile.name, profile.file, *shown)
    if profile.kernels is not None:
        about = {"name": profile.name, "profile": profile.file, "based_on": profile.base.system}
        fits = calibrate_kernels.as_data(profile.kernels.results, profile.kernels.skipped)
        data |= {**about, **fits}
    return data


def as_text(profile: Profile) -> str:
    """Return the report for a terminal."""
    texts, target = [], profile.file or ""
    if profile.gathered is not None:
        shown = (profile.readings, profile.gathered, profile.calibrated)
        texts.append(calibrate.as_text(profile.name, target, *shown))
    if profile.kernels is not None:
        found, skipped = profile.kernels.results, profile.kernels.skipped
        head = f"{profile.name}: {sum(each.after.rows for each in found)} measured kernels"
        end = f"Profile: {target}. Every command takes it: --on {target}"
        texts.append("\n".join((head, "", calibrate_kernels.as_text(found, skipped), end)))
    return "\n\n".join(texts)
