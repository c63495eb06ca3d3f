"""The reports of ``shardcost inspect``, by the module for each kind of file, and ``check``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from shardcost.cluster import Cluster
from shardcost.formats.detect import ModelFile, TableFile
from shardcost.formats.nccl_tuner import TunerFile
from shardcost.formats.reading import MeasurementLog, Reading
from shardcost.formats.serving_results import ServingResults
from shardcost.formats.tables import unknown_columns
from shardcost.inspect.files import Inspected
from shardcost.inspect.topology import GraphInspection, TopologyInspection
from shardcost.inspect.trace import TraceFindings
from shardcost.inspect.verdict import FINE, SLOW, UNEVEN, UNKNOWN
from shardcost.machine.constants import Calibration, in_file_units
from shardcost.report import inspect_log, inspect_serving, inspect_topology, inspect_trace, tuner
from shardcost.report.describe import attributes, model_as_data, model_as_text
from shardcost.report.inspect_log import summary, unread_in_words
from shardcost.report.inspect_trace import summary as trace_summary
from shardcost.report.text import heading, paragraph, paragraphs, table
from shardcost.report.verdict import as_data as verdict_as_data
from shardcost.report.verdict import as_text as verdict_as_text
from shardcost.units import format_bytes

_MOST_NAMED: Final = 6
"""Values of a column that are named; of more, the first."""
_TELLING: Final = ("dataset", "cluster", "gpu", "library", "collective", "model", "engine")
"""Columns whose values say what a table is about."""
_UNSEEN: Final = re.compile(
    "\x1b(?!\\[[01]m)|[\0-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]|[\U000e0000-\U000e0fff]"
)
"""Characters that a terminal would obey, but for those that begin and end bold print."""


def _own_report(inspected: Inspected) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the module that reports a kind of file, and on what; None for kinds reported here."""
    reading, findings = inspected.reading, inspected.findings
    if isinstance(findings, TopologyInspection | GraphInspection):
        return inspect_topology, (findings,)
    if isinstance(findings, TraceFindings):
        return inspect_trace, (findings,)
    if isinstance(reading, MeasurementLog):
        return inspect_log, (reading, findings, inspected.verdict)
    return (inspect_serving, (reading, findings)) if isinstance(reading, ServingResults) else None


def as_data(inspected: Inspected) -> dict[str, Any]:
    """Return what a file means as plain data."""
    own = _own_report(inspected)
    if own is not None:
        found: dict[str, Any] = own[0].as_data(*own[1])
        return found
    reading = inspected.reading
    if isinstance(reading, TunerFile):
        return tuner.file_as_data(reading)
    data = attributes(reading, "file kind")
    if isinstance(reading, ModelFile):
        data["model"] = model_as_data(reading.model)
    elif isinstance(reading, TableFile):
        data |= {"table": reading.table.kind, "rows": reading.table.file_row_count}
        data["values"] = {name: sorted(values) for name, values in _values(reading).items()}
    else:
        cluster, calibrations = inspected.findings
        data |= attributes(cluster, "name based_on")
        data["network"] = cluster.network.name if cluster.network else None
        data["libraries"] = [
            attributes(own, "library system")
            | attributes(own.fit, "points=rows median_pct p90_pct")
            | {"constants": in_file_units(own.constants)}
            for own in calibrations
        ]
    return data


def as_text(inspected: Inspected) -> str:
    """Return what a file means for a terminal, without characters that would control it."""
    return printed(_as_text(inspected))


def printed(text: str) -> str:
    """Return a text without characters that would control a terminal."""
    return _UNSEEN.sub("?", text)


def _as_text(inspected: Inspected) -> str:
    own, reading = _own_report(inspected), inspected.reading
    if own is not None:
        return str(own[0].as_text(*own[1]))
    if isinstance(reading, TunerFile):
        return tuner.file_as_text(reading)
    if isinstance(reading, ModelFile):
        return f"{reading.file}: a Hugging Face model config\n\n{model_as_text(reading.model)}"
    if isinstance(reading, TableFile):
        return _table_as_text(reading)
    return _profile_as_text(reading, *inspected.findings)


def _values(reading: TableFile) -> dict[str, Counter[str]]:
    """Return how often each value of the telling columns occurs."""
    columns = reading.table.columns
    return {name: Counter(columns[name]) for name in _TELLING if name in columns}


def _table_as_text(reading: TableFile) -> str:
    rows = []
    for name, values in _values(reading).items():
        some = ", ".join(value or "(blank)" for value, _ in values.most_common(_MOST_NAMED))
        rows.append((name, str(len(values)), some + ", …" * (len(values) > _MOST_NAMED)))
    file, kind = reading.file, reading.table.kind
    unknown = unknown_columns(reading.table)
    uses = [f"shardcost validate {file}: predicts every row and reports the errors."]
    if unknown:
        uses = [f"Columns that predictions do not understand yet: {', '.join(unknown)}."]
    elif kind == "collectives":
        uses.append(f"shardcost calibrate {file} --name NAME: a profile of the machine.")
    title = f"{file}: a measured table of {kind}, {reading.table.file_row_count:,} rows"
    shown = table(("column", "values", "which, most frequent first"), rows, right="1")
    return f"{title}\n\n{shown}\n\n{paragraphs(uses)}"


def _profile_as_text(
    reading: Reading, cluster: Cluster, calibrations: tuple[Calibration, ...]
) -> str:
    joined = f", joined by {cluster.network.name}" if cluster.network else ""
    rows = []
    for own in calibrations:
        fit, is_network = own.fit, own.library == "network"
        name = f"network {own.system}" if is_network else own.library
        gpus = _range(f"{fit.least_gpus}", f"{fit.most_gpus}")
        sizes = _range(format_bytes(fit.least_bytes), format_bytes(fit.most_bytes))
        errors = f"{fit.median_pct:.1f} / {fit.p90_pct:.1f} %"
        rows.append((name, str(fit.rows), gpus, sizes, errors))
    head = ("calibrated", "points", "GPUs", "sizes", "error, median / p90")
    title = f"{reading.file}: the profile {cluster.name}, {cluster.based_on} calibrated{joined}"
    use = f"Every command takes it: --on {reading.file}"
    return f"{title}\n\n{table(head, rows, right='1')}\n\n{use}"


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def checks_as_data(results: Sequence[Inspected]) -> dict[str, Any]:
    """Return the verdicts beside all that the files say; of several, the worst at the top."""
    documents = [
        as_data(each) | ({} if each.verdict is None else verdict_as_data(each.verdict))
        for each in results
    ]
    if len(documents) == 1:
        return documents[0]
    found = {document["verdict"] for document in documents}
    worst = next(each for each in (SLOW, UNEVEN, UNKNOWN, FINE) if each in found)
    causes = [cause for document in documents for cause in document["causes"]]
    return {"verdict": worst, "causes": causes, "files": documents}


def checks_as_text(results: Sequence[Inspected]) -> str:
    """Return the verdicts for a terminal."""
    return printed("\n\n".join(map(_check_as_text, results)))


def _check_as_text(each: Inspected) -> str:
    findings = each.findings
    files = ", ".join(reading.file for reading in each.readings)
    said = []
    if isinstance(findings, TraceFindings):
        what = trace_summary(findings)
    else:
        what = summary(findings[0])
        more = len(findings) - 1
        what += f" And {more} more curve{'s' * (more > 1)}." * (more > 0)
        if each.reading.kind == "measured-table":  # of logs, other output is not read either
            said = unread_in_words(each.reading.unread)
    head = heading(paragraph(f"{files}: {what}", "  "))
    verdict = "" if each.verdict is None else verdict_as_text(each.verdict)
    return "\n".join(filter(None, (head, verdict, paragraphs(said))))
