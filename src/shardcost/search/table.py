"""All feasible layouts as a table in the words of users: `packed` returns it as Parquet.

Whoever prices some layouts also packs their table, so that what travels is small and the process
that keeps the results only has to write them down. The table needs Polars.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardcost.options import QUESTIONS, SOFTWARE
from shardcost.search.objectives import Figures
from shardcost.search.parts import Columns
from shardcost.search.question import Question
from shardcost.search.space import CHOICES, DEGREES, SIZES
from shardcost.workload import Decode, Train

if TYPE_CHECKING:
    import polars as pl

    Schema = dict[str, pl.DataType]


def schema_of(questions: tuple[Question, ...]) -> Schema:
    """Return the columns of a search's table, the same for all of its tasks.

    Words are kept as numbers of a fixed list (Enum), which every reader of Parquet takes for text.
    """
    import polars as pl

    found: Schema = {
        name: pl.Enum(list(dict.fromkeys(word for word in words if word is not None)))
        for name, words in _nouns(questions)
    }
    found |= {name: pl.Int64() for name in (*_lengths(questions), *DEGREES, *SIZES)}
    for name in CHOICES:
        values = dict.fromkeys(value for each in questions for value in getattr(each.space, name))
        found[name] = _kind(list(values))
    figures = ["time_s", "memory_bytes", "score", "tokens_per_s_per_gpu"]
    if any(isinstance(each.workload, Decode) for each in questions):
        figures.append("tokens_per_s_per_user")
    if any(each.prompts for each in questions):
        figures.append("ttft_s")
    return found | {name: pl.Float64() for name in figures}


def frame_of(questions: tuple[Question, ...], number: int, columns: Columns) -> pl.DataFrame:
    """Return some rows of one question as users read them.

    Args:
        questions: All questions of the search.
        number: Which of them the rows are of.
        columns: The rows, as a `Part` has them.
    """
    import polars as pl

    schema = schema_of(questions)
    if not columns:
        return pl.DataFrame(schema=schema)
    question = questions[number]
    numbers = {name: columns[name] for name in (*DEGREES, *SIZES)}
    if isinstance(question.workload, Train):
        numbers["batch"] = np.full_like(numbers["batch"], question.workload.global_batch)
    frame = pl.DataFrame(numbers | _figures(question, columns))
    kinds = {name: schema[name] for name in CHOICES}
    choices = pl.DataFrame(question.families, schema=kinds, orient="row")[columns["family"]]
    nouns = [
        pl.lit(words[number], dtype=schema[name]).alias(name) for name, words in _nouns(questions)
    ]
    nouns += [pl.lit(question.own[name]).alias(name) for name in _lengths(questions)]
    return frame.hstack(choices).with_columns(nouns).select(list(schema)).cast(pl.Schema(schema))


def packed(questions: tuple[Question, ...], number: int, columns: Columns) -> bytes:
    """Return some rows of one question as a Parquet file; nothing where there is no row."""
    if not columns:
        return b""
    file = io.BytesIO()
    frame_of(questions, number, columns).write_parquet(file)
    return file.getvalue()


def _nouns(questions: tuple[Question, ...]) -> Iterator[tuple[str, list[str | None]]]:
    """Yield what the columns of nouns say of each question."""
    clusters = [each.cluster for each in questions]
    yield "model", [each.model.name for each in questions]
    yield "cluster", [each.name for each in clusters]
    yield "network", [each.network.name if each.network else None for each in clusters]
    for name in (SOFTWARE.name, *_workload_axes(questions, "word")):
        yield name, [each.own[name] for each in questions]


def _lengths(questions: tuple[Question, ...]) -> list[str]:
    """Return the columns of tokens in a sequence."""
    return _workload_axes(questions, "whole")


def _workload_axes(questions: tuple[Question, ...], kind: str) -> list[str]:
    """Return what workloads may differ in, of one kind of option."""
    own = questions[0].own
    rows = (option for option in QUESTIONS if option is not SOFTWARE and option.kind == kind)
    return [option.name for option in rows if option.name in own]


def _kind(values: list[Any]) -> pl.DataType:
    """Return the type of a column of choices."""
    import polars as pl

    if all(isinstance(value, bool) for value in values):
        return pl.Boolean()
    return pl.Enum(values) if all(isinstance(value, str) for value in values) else pl.Int64()


def _figures(question: Question, columns: Columns) -> Columns:
    tokens = question.workload_of(columns["batch"]).tokens
    figures = Figures(columns["time_s"], columns["memory_bytes"], columns["gpus"], tokens)
    kept = ("time_s", "memory_bytes", "score", *(("ttft_s",) if question.prompts else ()))
    shown: Columns = {name: columns[name] for name in kept}
    shown["tokens_per_s_per_gpu"] = figures.tokens_per_s_per_gpu
    if isinstance(question.workload, Decode):
        shown["tokens_per_s_per_user"] = question.workload.kept_tokens / columns["time_s"]
    return shown
