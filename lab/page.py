"""The page ``docs/validation.md``: how far predictions are from measurements, written by command.

    make validate
    python -m lab.page docs/validation.md collectives.csv training.csv … --shipped

Its figures are computed and its pictures drawn; only what explains them is typed by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Final, NamedTuple

import numpy as np

from lab import markdown
from lab import page_collectives as validation_collectives
from lab.command import Say, add_tables, ended, joined, parser_of, say, tables_of
from lab.folds import Fold, folds
from lab.left_out import MOST_ROWS
from lab.page_plots import Picture, pictures
from lab.page_tables import KINDS, section
from lab.peers import Compared, Peer, compared, elsewhere
from lab.sources import SOURCES, Source, grouped, stands_for
from shardcost.files import write_whole
from shardcost.formats.tables import Table
from shardcost.validate.shipped import is_shipped
from shardcost.validate.validation import Stats, Validation, of_headline, stats, validate

LEFT_OUT: Final = "## What was left out of the fit"
"""Where the part of the page begins that takes minutes to compute."""

_OPENING: Final = """\
# Validation

How far shardcost is from what people measured. This page and its pictures are written by a command
and not by hand:

{command}

{made_from}

Errors are |predicted - measured| in percent of the measurement: half of the rows are closer than
the *median*, nine of ten closer than *p90*; *bias* is the mean with its sign, above 0 where
predictions are too slow, or too large; *inside* is the share of rows within their 90 % interval,
which [intervals](intervals.md) has for rows that were left out. Errors are in sample, that is of
constants that were fitted to these rows among others{up_to}."""

_UP_TO: Final = ",\nup to [what was left out of the fit](#what-was-left-out-of-the-fit)"

_SHIPPED_ALONE: Final = """\
`make validate` runs it. It is made from the {rows:,} rows that ship with shardcost
(`src/shardcost/validate/rows`), and from nothing else: what was measured for this project on one
H200, and single published figures, each with its citation. Where `SHARDCOST_EVIDENCE` names a
folder with more tables, `make validate` takes these too, and tries constants on rows that they
were not fitted to."""

_BOTH: Final = """\
`make validate` runs it on the tables in the folder that `SHARDCOST_EVIDENCE` names, which are not
part of the project, and on the rows that ship with shardcost (`src/shardcost/validate/rows`). A
data set that a table of the folder has is taken from there alone, so that no row counts twice;
what ships adds {rows} rows."""

_NAMED_ALONE: Final = """\
The tables are not part of the project."""

_REFITS: Final = """\
 The fits of the cross-validation need SciPy, and take a quarter of an hour."""

_PICTURES: Final = """\
## In pictures"""

_PEERS: Final = """\
## Beside other cost models

What others state on rows that are public, or were seen to do there, and what shardcost does on
those of them that the tables at hand have, by the same statistic of absolute errors. Where the
others' error of each row is published, *theirs, here* is over just the rows that ours is over."""

_ELSEWHERE: Final = """\
Others state their errors on rows that are not public, so that nothing can be put beside them:"""

_FOLDS: Final = """\
{title}

Constants are fitted without a part of the rows at a time (a model, a degree, a data set, a fifth of
the shapes), and tried on that part. *In sample* is the error of the catalog's constants on the same
rows, *left out* that of constants which had not seen them. *A system* is predicted by its datasheet
and the constants of its fallback device, as if nobody had measured it; *a framework* or *an engine*
by those of another. Of a data set of whole runs, {most} rows at most are taken, evenly, to fit."""

_CANNOT: Final = """\
### What this cannot show

Only the numbers were fitted without these rows. What the formulas are (which kernels an engine
runs, what overlaps, which terms a time has at all) was chosen with all of them in view; data sets
that measure something odd are read the way that made sense of them; and rows of one paper or one
machine share what leaving out a model or a degree does not take away. So errors on systems, models
and frameworks that were never looked at will be larger than these; how much larger, no fold
tells."""

_CAUTIONS: Final = {
    "aic_l40s_sglang_0.5.12": """\
- Machines of one name differ. Two L40S machines in the tables are a factor of 5 apart with four
  GPUs, two RTX PRO 6000 machines a factor of 2.6 with two: one model of both is wrong on one.""",
    "vtrain_a100": """\
- `vtrain_a100` was measured with an NCCL years older than the other rows of the A100; it is
  predicted, and counted above, but its rows are not fitted.""",
    "aic_b60_oneccl_2021.17.2": """\
- oneCCL's all-gather rows count one rank's block, not the whole array: their times are those of a
  ring over n times the size that they state. They are read that way.""",
    "oci_b300_alltoall_16": """\
- Rows of the B300 across nodes beat the rate of the network that they name (8 x 400 Gb/s), which
  no prediction may: the ports were probably twice as fast.""",
    "own_h200_torch2.11": """\
- The largest products on the H200 ran at its power limit when measured alone, up to 9 % slower
  than in a mix.""",
    "flux_mlp": """\
- `flux_mlp` ran on eight L20 over PCIe, whose host bridges no other row covers.""",
    "hf_ultrascale_nanotron": """\
- Rows of `hf_ultrascale_nanotron` carry how fast the job itself gathered over its network, and are
  predicted with that: jobs differ more than networks do.""",
    "vtrain_single_node": """\
- `vtrain_…` states no vocabulary; 51,200 is assumed.""",
    "trtllm_static": """\
- Some throughputs of `trtllm_static` (large models, version 0.6.1, A100) are 4 to 13 times below
  what its other rows suggest; its eight L40S run over PCIe, of which the above holds.""",
    "domino_fig4": """\
- `domino_…` was read off figures, and `domino_fig4` does not state the tensor-parallel degree.""",
}
"""What to mind about rows, by the data set that it is about."""
_OUTLIERS: Final = """\
- First rows of some tables carry warm-up, and a few in the middle are outliers. All are in."""

_SOURCES: Final = """\
## Where the measurements come from

Only the rows in `src/shardcost/validate/rows` are part of the project. Constants name the data sets
that they were fitted to; these, and all others whose errors are above, were published in:"""

_DEFAULT: Final = "docs/validation.md"


class Origin(NamedTuple):
    """What a page is made from."""

    shipped_rows: int | None = 0
    """How many of its rows are from what ships alone; None where that was not asked for."""
    named: bool = True
    """Whether tables were named beside what ships."""
    refits: bool = True
    """Whether constants are fitted without some of the rows."""


class Page(NamedTuple):
    """A page and its pictures."""

    text: str
    """In Markdown."""
    pictures: Mapping[str, bytes]
    """Contents of SVG files by name, which go into `picture_folder`."""


def page(
    tables: Sequence[Table],
    target: str = _DEFAULT,
    say: Say = print,
    origin: Origin = Origin(None),  # noqa: B008 - it cannot be changed
) -> Page:
    """Return the page. With refits it takes minutes: constants are fitted without some rows.

    Args:
        tables: Measured tables, at most one of each kind.
        target: Where the page will be, for the command and the pictures that it shows.
        say: Told what is being done.
        origin: What the tables are, for what the page says of itself.
    """
    result = _validated(tables, say)
    drawn = {picture.name: picture.draw() for picture in pictures(result)}
    sections = [
        errors_in_sample(result, target, origin),
        *([_left_out(result, say)] if origin.refits else []),
        _cautions(result),
        _sources(result, origin),
    ]
    return Page("\n\n".join(sections) + "\n", drawn)


def picture_folder(target: str) -> Path:
    """Return the folder of a page's pictures: beside it, of its name."""
    return Path(target).with_suffix("")


def _validated(tables: Sequence[Table], say: Say) -> list[Validation]:
    order = list(KINDS)
    results = []
    for table in sorted(tables, key=lambda own: order.index(own.kind)):
        say(f"{table.kind}: {table.rows:,} rows")
        results.append(validate(table))
    return results


def errors_in_sample(
    validations: Sequence[Validation],
    target: str = _DEFAULT,
    origin: Origin = Origin(),  # noqa: B008 - it cannot be changed
) -> str:
    """Return the first part of the page: all errors of the catalog's constants."""
    shown = {picture.name: _picture(picture, target) for picture in pictures(validations)}
    beside = shown.pop("peers.svg", "")
    sections = [
        _opening(validations, target, origin),
        _summary(validations),
        *([_PICTURES, *shown.values()] if shown else []),
        _peers(validations, beside),
        *(section(validation) for validation in validations),
    ]
    return "\n\n".join(sections)


def _opening(validations: Sequence[Validation], target: str, origin: Origin) -> str:
    rows = origin.shipped_rows
    if rows is None:
        made_from = _NAMED_ALONE
    elif origin.named:
        made_from = _BOTH.format(rows=f"{rows:,}" if rows else "no")
    else:
        made_from = _SHIPPED_ALONE.format(rows=rows)
    return _OPENING.format(
        command=_command(validations, target, origin),
        made_from=_filled(made_from + (_REFITS if origin.refits else "")),
        up_to=_UP_TO if origin.refits else "",
    )


def _command(validations: Sequence[Validation], target: str, origin: Origin) -> str:
    """Return the command that writes the page, as a block of code."""
    named = [
        validation.table.path.name for validation in validations if not is_shipped(validation.table)
    ]
    shipped = [] if origin.shipped_rows is None else ["--shipped"]
    quick = [] if origin.refits else ["--quick"]
    words = [f"python -m lab.page {target}", *named, *shipped, *quick]
    lines = fill(" ".join(words), 90, break_long_words=False, break_on_hyphens=False).splitlines()
    return " \\\n".join(f"    {'  ' * (i > 0)}{line}" for i, line in enumerate(lines))


def _picture(each: Picture, target: str) -> str:
    """Return a picture with its caption."""
    link = f"![{each.alt}.]({picture_folder(target).name}/{each.name})"
    return f"{_filled(link)}\n\n{each.caption}"


def _filled(text: str) -> str:
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _summary(validations: Sequence[Validation]) -> str:
    lines = [
        (
            f"[{KINDS[validation.table.kind].title}](#{_anchor(KINDS[validation.table.kind].title)})",
            KINDS[validation.table.kind].what,
            f"{validation.predicted:,} of {validation.table.rows:,}",
            *markdown.figures(validation.overall)[1:],
            markdown.inside(validation.overall),
        )
        for validation in map(of_headline, validations)
    ]
    head = ("table", "a row is the", "rows predicted", *markdown.ERRORS, markdown.INSIDE)
    return "## Summary\n\n" + markdown.table(head, lines, right=2 + len(markdown.ERRORS))


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _peers(validations: Sequence[Validation], picture: str) -> str:
    every = [comparison for validation in validations for comparison in compared(validation)]
    head = ("tool", "of", "rows of", "statistic", "their rows", "theirs %")
    lines = [_peer_line(comparison) for comparison in every]
    stated = [
        (_linked(peer), peer.quantity, peer.statistic, _stated(peer), peer.version)
        for peer in elsewhere()
    ]
    parts = [
        _PEERS,
        *([picture] if picture else []),
        markdown.table((*head, "rows here", "theirs, here %", "ours %"), lines, right=5)
        if lines
        else markdown.NO_ROWS,
        _ELSEWHERE,
        markdown.table(("tool", "of", "statistic", "stated %", "in"), stated, right=0),
    ]
    return "\n\n".join(parts)


def _peer_line(each: Compared) -> tuple[str, ...]:
    peer = each.peer
    theirs = "" if each.theirs_here_pct is None else f"{each.theirs_here_pct:.1f}"
    return (
        f"{_linked(peer)} ({peer.version})",
        peer.quantity,
        ", ".join(f"`{name}`" for name in peer.where.get("dataset", ())) or "nccl-tests",
        peer.statistic,
        f"{peer.rows:,}" if peer.rows else "not stated",
        _stated(peer),
        f"{each.rows:,}",
        theirs,
        f"**{each.ours_pct:.1f}**",
    )


def _linked(peer: Peer) -> str:
    return f"[{peer.tool}]({peer.source})"


def _stated(peer: Peer) -> str:
    least, most = peer.error_pct
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def _left_out(validations: Sequence[Validation], say: Say) -> str:
    every = [fold for validation in validations for fold in folds(validation, say)]
    collectives = [
        validation.table for validation in validations if validation.table.kind == "collectives"
    ]
    parts = [
        _FOLDS.format(title=LEFT_OUT, most=MOST_ROWS),
        _folds(every),
        *(validation_collectives.left_out(table, say) for table in collectives),
        _CANNOT,
    ]
    return "\n\n".join(parts)


def _folds(every: Sequence[Fold]) -> str:
    if not every:
        return markdown.NO_ROWS
    lines = [_fold_line(fold.of, fold.left_out, fold) for fold in every if fold.unseen_pct.size]
    head = ("constants of", "left out", "rows", "in sample: median %", "p90 %")
    return markdown.table((*head, "left out: median %", "p90 %", "bias %"), lines, right=6)


def _fold_line(of: str, left_out: str, fold: Fold) -> tuple[str, ...]:
    seen, unseen = stats(np.asarray(fold.seen_pct)), stats(np.asarray(fold.unseen_pct))
    return (
        of,
        left_out,
        f"{unseen.rows:,}",
        *_middle(seen),
        *_middle(unseen),
        markdown.figures(unseen)[-1],
    )


def _middle(errors: Stats) -> tuple[str, str]:
    _, median, _, p90, *_ = markdown.figures(errors)
    return median, p90


def _cautions(validations: Sequence[Validation]) -> str:
    """Return what to mind about the data sets of the tables."""
    sets = _datasets(validations)
    said = [text for name, text in _CAUTIONS.items() if name in sets]
    return "## What to mind about the rows\n\n" + "\n".join([*said, _OUTLIERS])


def _sources(validations: Sequence[Validation], origin: Origin) -> str:
    """Return who published the rows, and the rows behind constants even where they are not here."""
    known, unknown = grouped(_datasets(validations))
    if not origin.named:
        known = {source: list(source.datasets) for source in SOURCES}
    lines = [_source_line(source, names) for source, names in known.items()]
    lines += [(f"`{name}`", "not known here", "", "") for name in unknown]
    head = ("data sets", "published in", "licence, where stated", "what")
    return f"{_SOURCES}\n\n{markdown.table(head, lines, right=0)}"


def _source_line(source: Source, names: Sequence[str]) -> tuple[str, ...]:
    shown = [
        name for name in source.datasets if name in names or any(stands_for(name, n) for n in names)
    ]
    where = f"[{source.title}]({source.url})" if source.url else source.title
    return ", ".join(f"`{name}`" for name in shown), where, source.licence, source.about


def _datasets(validations: Sequence[Validation]) -> set[str]:
    return {
        name
        for validation in validations
        for name in validation.table.columns.get("dataset", [])
        if name
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its pictures, the page last: it shows nothing that is not there."""
    parser = parser_of(__doc__)
    parser.add_argument("page", help="Markdown file to write, its pictures in a folder beside it")
    add_tables(parser)
    parser.add_argument(
        "--quick", action="store_true", help="without cross-validation: seconds, and no SciPy"
    )
    options = parser.parse_args(arguments)
    tables = tables_of(options)
    rows = sum(table.rows for table in tables.shipped) if options.shipped else None
    origin = Origin(rows, named=bool(tables.named), refits=not options.quick)
    made = page(joined([*tables.named, *tables.shipped]), options.page, say, origin)
    folder = picture_folder(options.page)
    if made.pictures:
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.pictures.items():
        write_whole(folder / name, content)
    write_whole(Path(options.page), made.text)
    return 0


if __name__ == "__main__":
    ended(main)
