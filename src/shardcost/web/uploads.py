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

from shardcost.calibrate.calibrate import calibrate
from shardcost.calibrate.gather import Stated, gathered
from shardcost.calibrate.profile import as_profile
from shardcost.errors import FormatError, ShardcostError, printable
from shardcost.formats.detect import ModelFile, ProfileFile, TableFile, read_file
from shardcost.formats.hf_config import model_of_file
from shardcost.formats.kineto import Trace
from shardcost.formats.reading import MeasurementLog, Reading
from shardcost.inspect.files import Inspected, inspected
from shardcost.inspect.topology import TopologyInspection
from shardcost.report.inspect import as_data, as_text
from shardcost.web.limits import CALIBRATE_S

_MOST_NAME: Final = 80
_ANSI: Final = re.compile("\x1b\\[[01]m")
_PROFILE_NAME: Final = "measured"


def explain(name: str, content: bytes) -> dict[str, Any]:
    """Return what a file is, what it means, and what the page can do with it."""
    shown = shown_name(name)
    with TemporaryDirectory(prefix="shardcost-") as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        try:
            reading = _read(path, shown)
            inspection = inspected([reading])[0]
        except FormatError as error:
            reason = error.reason if str(path) in error.file else str(error)
            raise FormatError(shown, reason.replace(str(path), shown)) from None
        use, words = _use(reading, inspection, content)
        report = _renamed(as_data(inspection), str(path), shown)
        text = _ANSI.sub("", as_text(inspection)).replace(str(path), shown)
    return {
        "name": shown,
        "kind": reading.kind,
        "words": text.splitlines(),
        "report": report,
        "use": use,
        "words_on_use": words,
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
        return {"config": config}, f"takes {reading.model.name} as the model"
    if isinstance(reading, ProfileFile):
        profile = content.decode("utf-8-sig")
        return {"profile": profile}, f"takes {inspection.findings[0].name} as the cluster"
    if isinstance(inspection.findings, TopologyInspection):
        findings = inspection.findings
        if findings.cluster is None:
            return None, "matches no cluster of the catalog"
        joined = "" if findings.network is None else f" with {findings.network}"
        fields = {"on": findings.cluster, "network": findings.network}
        return fields, f"takes {findings.cluster}{joined} as the cluster"
    if isinstance(reading, MeasurementLog | TableFile | Trace):
        return _use_of_measurements(reading)
    return None, "has nothing that an estimate could use"


def _use_of_measurements(reading: Reading) -> tuple[dict[str, Any] | None, str]:
    """Return the profile that is fitted to measured collectives."""
    try:
        with _at_most(CALIBRATE_S):
            measured = gathered([reading], Stated())
            results = calibrate(measured.curves, lambda _: None)
        profile = as_profile(_PROFILE_NAME, measured.cluster, results)
    except ShardcostError as error:
        return None, f"cannot be calibrated on: {error}"
    points = f"{measured.points:,} measured point{'s' * (measured.points != 1)}"
    return {"profile": profile}, f"takes {measured.cluster.name} as the cluster, fitted to {points}"


class _TooLongError(ShardcostError):
    """A fit took too long."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise when the block takes longer, where the system has an alarm signal."""
    if not hasattr(signal, "setitimer") or current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TooLongError(f"it takes longer than {seconds:g} s; `shardcost calibrate` has time")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
