"""The report of ``shardcost check``: the verdict on each file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardcost.inspect.files import Inspected
from shardcost.inspect.trace import TraceFindings
from shardcost.inspect.verdict import FINE, SLOW, UNEVEN, UNKNOWN
from shardcost.report import inspect
from shardcost.report.inspect_log import summary, unread_in_words
from shardcost.report.inspect_trace import summary as trace_summary
from shardcost.report.text import heading, paragraph, paragraphs
from shardcost.report.verdict import as_data as verdict_as_data
from shardcost.report.verdict import as_text as verdict_as_text


def as_data(results: Sequence[Inspected]) -> dict[str, Any]:
    """Return the verdicts beside all that the files say; of several, the worst at the top."""
    documents = [_one_as_data(each) for each in results]
    if len(documents) == 1:
        return documents[0]
    found = {document["verdict"] for document in documents}
    worst = next(each for each in (SLOW, UNEVEN, UNKNOWN, FINE) if each in found)
    causes = [cause for document in documents for cause in document["causes"]]
    return {"verdict": worst, "causes": causes, "files": documents}


def _one_as_data(each: Inspected) -> dict[str, Any]:
    data = inspect.as_data(each)
    return data if each.verdict is None else {**data, **verdict_as_data(each.verdict)}


def as_text(results: Sequence[Inspected]) -> str:
    """Return the verdicts for a terminal."""
    return inspect.printed("\n\n".join(map(_one_as_text, results)))


def _one_as_text(each: Inspected) -> str:
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
