"""Finds how unevenly trained routers prefer experts, from runs under load.

    python -m lab.refit_routing serving.csv

Where few tokens are decoded together, a step reads the weights of the experts that they touch, so
that TPOT over the number of users shows how many these are. A curve has the runs of one deployment
and lengths by users; what a step takes whatever the batch is free for each curve, since it says
nothing of routing. The skew (`shardcost.model.Experts.skew`) is the one of a row of values by which
the curves deviate least, unless TPOT itself, without anything that is free, is then predicted
worse. Each model is also predicted by the skew of the other models' curves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from lab.command import ended, parser_of, say
from shardcost.errors import ShardcostError
from shardcost.formats.tables import Row, Table, read_table
from shardcost.load.deployment import Deployment
from shardcost.model import Experts, Model
from shardcost.validate import serving
from shardcost.validate.predictions import Floats

SKEWS: Final = (0.01, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 1.6)
"""Values that are tried; the first is random routing."""
_FIGURE: Final = "tpot_mean_ms"
_MOST_USERS: Final = 256
"""Beyond these, nearly all experts are touched, and queues matter."""
_LEAST_POINTS: Final = 3
_CURVE: Final = (
    "dataset", "model", "weight_dtype", "engine", "version", "cluster", "tp", "dp", "ep",
    "isl", "osl",
)  # fmt: skip


def with_skew(model: Model, skew: float) -> Model:
    """Return a model whose router prefers experts as given."""
    blocks = tuple(
        replace(block, feed_forward=replace(block.feed_forward, skew=skew))
        if isinstance(block.feed_forward, Experts)
        else block
        for block in model.blocks
    )
    return replace(model, blocks=blocks)


def curves_of(table: Table) -> list[list[Row]]:
    """Return runs of closed loops with experts and without drafts, by curve."""
    curves: dict[tuple[str, ...], list[Row]] = {}
    for row in table.records():
        if (
            row["figure"] == _FIGURE
            and row.get("experts")
            and row["arrival"] == "closed"
            and row["deployment"] == "aggregated"
            and row.get("speculative") in ("", "0")
            and int(row["concurrency"]) <= _MOST_USERS
            and _runs(row)
        ):
            curves.setdefault(tuple(row[name] for name in _CURVE), []).append(row)
    return [rows for rows in curves.values() if len(rows) >= _LEAST_POINTS]


def _runs(row: Row) -> bool:
    try:
        predicted_ms(row, SKEWS[0])
    except ShardcostError:
        return False
    return True


def predicted_ms(row: Row, skew: float) -> float:
    """Return the TPOT of a run under a skew."""
    point = serving.point_of(row)
    pool = point.deployment.serving
    engine = replace(pool.engine, model=with_skew(pool.engine.model, skew))
    changed = point._replace(deployment=Deployment(replace(pool, engine=engine)))
    return serving.answer(changed)[_FIGURE]


def deviation_pct(predicted: Floats, measured: Floats) -> Floats:
    """Return the error of each point of a curve, in percent, with the offset that suits it best."""
    offsets = np.append(measured - predicted, 0.0)
    errors = np.abs((predicted + offsets[:, None]) / measured - 1)
    best: Floats = 100 * errors[np.argmin(errors.mean(axis=1))]
    return best


def error_pct(predicted: Floats, measured: Floats) -> Floats:
    """Return the error of each point of a curve, in percent."""
    found: Floats = 100 * np.abs(predicted / measured - 1)
    return found


class Curve(NamedTuple):
    """TPOT over the number of users, in milliseconds."""

    model: str
    measured: Floats
    by_skew: list[Floats]
    """Predicted, for each of `SKEWS`."""


def predicted(curves: Sequence[Sequence[Row]]) -> list[Curve]:
    """Return curves with what is predicted for each skew."""
    results = []
    for count, rows in enumerate(curves, 1):
        model = rows[0]["model"]
        say(f"curve {count} of {len(curves)}: {model}, {len(rows)} points")
        measured = np.array([float(row["measured"]) for row in rows])
        by_skew = [np.array([predicted_ms(row, skew) for row in rows]) for skew in SKEWS]
        results.append(Curve(model, measured, by_skew))
    return results


def errors_of(
    curves: Sequence[Curve], error: Callable[[Floats, Floats], Floats] = deviation_pct
) -> dict[str, Floats]:
    """Return the errors of all points of each model, a line for each of `SKEWS`."""
    errors: dict[str, list[Floats]] = {}
    for curve in curves:
        by_skew = [error(each, curve.measured) for each in curve.by_skew]
        errors.setdefault(curve.model, []).append(np.array(by_skew))
    return {model: np.concatenate(own, axis=1) for model, own in errors.items()}


def best_of(errors: Mapping[str, Floats]) -> int:
    """Return which of `SKEWS` suits models best, each model counting alike."""
    return int(np.argmin(np.mean([own.mean(axis=1) for own in errors.values()], axis=0)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the error of each model by skew, and by the skew of the others."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="of serving runs (CSV)")
    given = parser.parse_args(arguments)
    curves = predicted(curves_of(read_table(given.table)))
    errors = errors_of(curves)
    print("mean error of TPOT about its curve, %, by skew")
    print(f"{'model':<20} points " + " ".join(f"{skew:6.2f}" for skew in SKEWS) + "  left out")
    for model, own in errors.items():
        others = best_of({name: one for name, one in errors.items() if name != model})
        figures = " ".join(f"{value:6.2f}" for value in own.mean(axis=1))
        left_out = f"{own[others].mean():.2f} (skew {SKEWS[others]:g})"
        print(f"{model:<20} {own.shape[1]:6} {figures}  {left_out}")
    print(f"best over all models: {SKEWS[best_of(errors)]:g}")
    print("mean error of TPOT itself, %")
    itself = errors_of(curves, error_pct)
    for model, own in itself.items():
        figures = " ".join(f"{value:6.2f}" for value in own.mean(axis=1))
        print(f"{model:<20} {own.shape[1]:6} {figures}")
    print(f"best over all models: {SKEWS[best_of(itself)]:g}")


if __name__ == "__main__":
    ended(main)
