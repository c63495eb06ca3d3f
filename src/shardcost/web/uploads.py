"""A file that was dropped on the page: what it is, what it means, and how the page can use it.

The readers of ``shardcost inspect`` take a path, so the file is written to a temporary folder under
a fixed name. The name that the browser sent is only shown.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, main_thread
from typing import Any, Final

from shardcost.calibrate.calibrate import Calibrated, calibrate
from shardcost.calibrate.gather import NotStatedError, Stated, UnplacedError, gathered
from shardcost.calibrate.profile import as_profile
from shardcost.catalog import cluster_named
from shardcost.catalog.reported import cluster_reporting
from shardcost.errors import FormatError, ShardcostError, printable
from shardcost.formats.detect import ModelFile, ProfileFile, TableFile, read_file, with_gpus
from shardcost.formats.hf_config import model_of_file
from shardcost.formats.kineto import Trace
from shardcost.formats.reading import MeasurementLog, Reading
from shardcost.inspect.files import Inspected, inspected
from shardcost.inspect.topology import TopologyInspection
from shardcost.report.inspect import as_data, as_text
from shardcost.web.limits import CALIBRATE_S

_MOST_NAME: Final = 80
_ANSI: Final = re.compile("\x1b\\[[01]m")
_MOST_PROFILE_NAME: Final = 64
_HINTS: Final = re.compile(r":? say --.*| \(a network between nodes: --network\)")
"""What the command line adds to a reason."""
_TERMINAL: Final = re.compile(r" \(--json has all\)|:\s+`shardcost\s+clusters`\s+lists\s+them")
"""What a report says to those in a terminal."""


def explain(name: str, content: bytes, stated: Stated | None = None) -> dict[str, Any]:
    """Return what a file is, what it means, and what the page can do with it.

    Args:
        name: What it is called.
        content: What it holds.
        stated: The machine that it was measured on, where the user says so.
    """
    stated = stated or Stated()
    cluster = None if stated.cluster is None else cluster_named(stated.cluster, stated.network)
    shown = shown_name(name)
    with TemporaryDirectory(prefix="shardcost-") as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        try:
            reading = with_gpus(_read(path, shown), stated.gpus)
            inspection = inspected([reading], cluster)[0]
        except FormatError as error:
            reason = error.reason if str(path) in error.file else str(error)
            raise FormatError(shown, reason.replace(str(path), shown)) from None
        measured: dict[str, Any] | None = None
        if isinstance(reading, MeasurementLog | TableFile | Trace):
            measured = _measured_on(reading, stated)
            use, words = _use_of_measurements(reading, stated)
        else:
            use, words = _use(reading, inspection, content)
        report = _renamed(as_data(inspection), str(path), shown)
        text = _ANSI.sub("", as_text(inspection)).replace(str(path), shown)
        text = _TERMINAL.sub("", text.replace("name it with --on", "choose it below"))
    return {
        "name": shown,
        "kind": reading.kind,
        "words": text.splitlines(),
        "report": report,
        "use": use,
        "words_on_use": words,
        "measured_on": measured,
    }


def shown_name(name: str) -> str:
    """Return what a file is called, as one short line without folders.

    >>> shown_name("logs/all_reduce.txt")
    'all_reduce.txt'
    """
    last = re.split(r"[/\\]", printable(name))[-1].strip()
    return last[-_MOST_NAME:] or "file"


def _read(path: Path, shown: str) -> Reading:
    reading = read_file(path)
    if isinstance(reading, ModelFile):
        content = json.loads(path.read_text("utf-8-sig"))
        return replace(reading, file=shown, model=model_of_file(_named(content, shown)))
    return reading if isinstance(reading, ProfileFile) else replace(reading, file=shown)


def _named(config: dict[str, Any], file: str) -> dict[str, Any]:
    """Return a config with a name: its own, else its file's."""
    name = file.removesuffix(".json").removesuffix("_config").removesuffix("-config")
    if config.get("_name_or_path") or name in {"", "config", "file"}:
        return config
    return {**config, "_name_or_path": name}


def _renamed(data: Any, path: str, shown: str) -> Any:
    """Return data with the shown name in place of the path."""
    if isinstance(data, dict):
        return {key: _renamed(value, path, shown) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_renamed(item, path, shown) for item in data]
    return data.replace(path, shown) if isinstance(data, str) else data


def _use(
    reading: Reading, inspection: Inspected, content: bytes
) -> tuple[dict[str, Any] | None, str]:
    """Return the request fields that the file stands for, and what that means."""
    if isinstance(reading, ModelFile):
        config = _named(json.loads(content.decode("utf-8-sig")), reading.file)
        return {"config": config}, f"{reading.model.name} as the model"
    if isinstance(reading, ProfileFile):
        profile = content.decode("utf-8-sig")
        return {"profile": profile}, f"{inspection.findings[0].name} as the machine"
    if isinstance(inspection.findings, TopologyInspection):
        findings = inspection.findings
        if findings.cluster is None:
            return None, "no machine of the catalog is like it"
        joined = "" if findings.network is None else f" with {findings.network}"
        fields = {"on": findings.cluster, "network": findings.network}
        return fields, f"{findings.cluster}{joined} as the machine"
    return None, "nothing in it that an estimate could use"


def _measured_on(reading: MeasurementLog | TableFile | Trace, stated: Stated) -> dict[str, Any]:
    """Return the machine that measurements are of, as far as they or the user say.

    `gpus` is a number where runs do not say how many took part: the user's, else that of the job,
    else 0.
    """
    runs = reading.runs if isinstance(reading, MeasurementLog) else ()
    devices = [run.device for run in runs if run.device]
    counted = bool(runs) and all(run.num_gpus for run in runs)
    gpus: int | None = None
    if isinstance(reading, Trace):
        devices, gpus = (
            [reading.device] if reading.device else [],
            stated.gpus or reading.world_size,
        )
    elif runs and not counted:
        gpus = stated.gpus or 0
    known = cluster_reporting(devices[0]) if devices else None
    return {
        "device": printable(devices[0])[:_MOST_NAME] if devices else None,
        "on": stated.cluster or known,
        "network": stated.network,
        "gpus": gpus,
    }


def _use_of_measurements(
    reading: MeasurementLog | TableFile | Trace, stated: Stated
) -> tuple[dict[str, Any] | None, str]:
    """Return the profile that is fitted to measured collectives, or why there is none yet."""
    try:
        with _at_most(CALIBRATE_S):
            measured = gathered([reading], stated)
            results = calibrate(measured.curves, lambda _: None)
        name = re.sub(
            r"[^A-Za-z0-9_.-]", "_", f"{measured.cluster.name}-calibrated-on-{reading.file}"
        )
        name = name[:_MOST_PROFILE_NAME]
        profile = as_profile(name, measured.cluster, results)
    except NotStatedError as error:
        return None, f"it {_HINTS.sub('', error.reason)}; choose the machine"
    except UnplacedError as error:
        reasons = [_HINTS.sub("; choose the network", reason) for reason in error.passed_over]
        return None, "; ".join(reasons) or "no collectives were measured in it"
    except ShardcostError as error:
        reason = error.reason if isinstance(error, FormatError) else str(error)
        return None, _HINTS.sub("", reason)
    points = f"{measured.points:,} measured point{'s' * (measured.points != 1)}"
    joined = "" if measured.cluster.network is None else f" with {measured.cluster.network.name}"
    words = f"{measured.cluster.name}{joined}, calibrated on {points}"
    return {"profile": profile}, ". ".join((words, *map(_errors, results)))


def _errors(result: Calibrated) -> str:
    """Return how far the constants of a library are off, before the fit and after it."""
    stages = (("before", result.before), ("after", result.after), ("left out", result.left_out))
    known = [(name, each.median_pct) for name, each in stages if each.median_pct is not None]
    said = ", ".join(f"{median:.1f} % {name}" for name, median in known)
    library = result.calibration.library
    return f"Median error of {'the network' if library == 'network' else library}: {said}"


class _TooLongError(ShardcostError):
    """A fit took too long."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise when the block takes longer, where the system has an alarm signal."""
    if not hasattr(signal, "setitimer") or current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TooLongError(f"it takes longer than the {seconds:g} s that the page gives it")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
