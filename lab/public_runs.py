"""Public training runs against estimates of their stated layouts.

    python -m lab.public_runs docs/public_runs.md

``lab/public_runs.toml`` has the runs with their citations. No constant is fitted to them. The page
is written anew; a test holds each stated figure inside its estimate's interval.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lab.command import ended, parser_of
from shardcost import Cluster, Estimate, Layout, Model, Train, estimate
from shardcost.estimate.interval import interval_of
from shardcost.files import write_whole
from shardcost.units import format_time

FILE: Final = Path(__file__).parent / "public_runs.toml"
_PAGE: Final = """# Public runs

Training runs at scale that their authors describe well enough to repeat in an estimate. Layouts
and figures are theirs; what they leave open is named below the table. No constant was fitted to
these figures, except to those of MT-NLG and of BLOOM's sweep, which are among the measured tables.
`python -m lab.public_runs docs/public_runs.md` writes this page.

{table}

*Stated* is the authors' figure as a step time: rates are turned into one by the FLOPs that their
paper counts. *Ratio* is stated over estimated: above 1 the estimate is too fast.

{notes}
"""


class Compared(NamedTuple):
    """One run: what was stated, and what is estimated."""

    run: Mapping[str, Any]
    estimate: Estimate
    stated_s: float
    low_s: float
    high_s: float

    @property
    def is_inside(self) -> bool:
        """Whether the stated figure is within the estimate's interval."""
        return self.low_s <= self.stated_s <= self.high_s


def runs() -> list[Mapping[str, Any]]:
    """Return the runs of the file."""
    with FILE.open("rb") as file:
        return tomllib.load(file)["run"]  # type: ignore[no-any-return]


def compared(run: Mapping[str, Any]) -> Compared:
    """Return a run beside the estimate of its layout."""
    found = estimate(
        Model.named(run["model"]),
        Cluster.named(run["cluster"], run["network"]),
        Layout(**run["layout"]),
        Train(global_batch=run["batch"], sequence_length=run["tokens"], dtype=run["dtype"]),
        software=run["software"],
    )
    interval = interval_of(found)
    return Compared(
        run, found, _stated_s(run, found), float(interval.low_s), float(interval.high_s)
    )


def _stated_s(run: Mapping[str, Any], found: Estimate) -> float:
    """Return the stated figure as seconds of a step."""
    if "seconds" in run:
        return float(run["seconds"])
    rate: float = 1e12 * run.get("hardware_tflops", run.get("tflops", 0.0))
    if "mfu" in run:
        rate = run["mfu"] * float(found.cluster.device.peak(run["dtype"]))
    flops = found.hardware_flops if "hardware_tflops" in run else found.flops
    return float(flops) / (float(found.devices) * rate)


def _lines(results: Sequence[Compared]) -> Iterator[str]:
    yield "| run | layout, software | stated | estimated | interval | ratio | inside |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for each in results:
        cells = (
            each.run["name"],
            f"{each.estimate.layout.short()}, `{each.run['software']}`",
            format_time(each.stated_s),
            format_time(float(each.estimate.time_s)),
            f"{format_time(each.low_s)} to {format_time(each.high_s)}",
            f"{each.stated_s / float(each.estimate.time_s):.2f}",
            "yes" if each.is_inside else "no",
        )
        yield f"| {' | '.join(cells)} |"


def _notes(results: Sequence[Compared]) -> Iterator[str]:
    for each in results:
        assumed = f" Assumed: {each.run['assumed']}." if "assumed" in each.run else ""
        yield f"- {each.run['name']}: {each.run['source']}.{assumed}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = parser_of(__doc__)
    parser.add_argument("page", type=Path, help="the page to write (Markdown)")
    options = parser.parse_args(arguments)
    results = [compared(run) for run in runs()]
    table, notes = "\n".join(_lines(results)), "\n".join(_notes(results))
    write_whole(options.page, _PAGE.format(table=table, notes=notes))


if __name__ == "__main__":
    ended(main)
