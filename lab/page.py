"""The page ``docs/validation.md``: how far predictions are from measurements, written by command.

    make validate
    python -m lab.page docs/validation.md collectives.csv training.csv … --shipped
    python -m lab.page docs/validation.md training.csv --only training

With ``--only``, what the page and its pictures have of some kinds of table is made anew, and all
else is taken over from the page as it stands. Figures are computed and pictures drawn; only what
explains them is typed by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Final, NamedTuple

from lab import markdown
from lab.command import Say, add_tables, ended, joined, parser_of, say, tables_of
from lab.left_out import MOST_ROWS
from lab.page_parts import (
    CANNOT,
    CAUTIONS,
    ELSEWHERE,
    LEFT_OUT,
    PEERS,
    PICTURES,
    SOURCES,
    SUMMARY,
    WHOLE,
    Part,
    Written,
    made,
    peer_line,
    peer_link,
    read,
    stated,
)
from lab.page_plots import Picture, pictured
from lab.page_tables import KINDS
from lab.peers import Compared, elsewhere
from lab.sources import SOURCES as ALL_SOURCES
from lab.sources import Source, grouped, stands_for
from shardcost.errors import BadValueError, FormatError
from shardcost.files import write_whole
from shardcost.formats.tables import Table
from shardcost.validate.shipped import is_shipped
from shardcost.validate.validation import Validation, validate

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

_PEERS: Final = f"""\
{PEERS}

What others state on rows that are public, or were seen to do there, and what shardcost does on
those of them that the tables at hand have, by the same statistic of absolute errors. Where the
others' error of each row is published, *theirs, here* is over just the rows that ours is over."""

_FOLDS: Final = """\
{title}

Constants are fitted without a part of the rows at a time (a model, a degree, a data set, a fifth of
the shapes), and tried on that part. *In sample* is the error of the catalog's constants on the same
rows, *left out* that of constants which had not seen them. *A system* is predicted by its datasheet
and the constants of its fallback device, as if nobody had measured it; *a framework* or *an engine*
by those of another. Of a data set of whole runs, {most} rows at most are taken, evenly, to fit."""

_CANNOT: Final = f"""\
{CANNOT}

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
- The largest GEMMs on the H200 ran at its power limit when measured alone, up to 9 % slower
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

_SOURCES: Final = f"""\
{SOURCES}

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
    validations = _validated(tables, say)
    parts = [made(validation, say, refits=origin.refits) for validation in validations]
    every = {v.table.kind: part for v, part in zip(validations, parts, strict=True)}
    sets = _datasets(validations)
    text = [
        _in_sample(every, _opening(validations, target, origin), target),
        *([_left_out(every)] if origin.refits else []),
        _cautions(sets),
        _sources(sets, named=origin.named),
    ]
    return _page(text, every)


def renewed(
    before: Written, tables: Sequence[Table], target: str = _DEFAULT, say: Say = print
) -> Page:
    """Return a page with the parts of some kinds made anew and all else as it stands.

    Its opening is taken over, too, and data sets that a table no longer has stay among the sources:
    another kind may have them.

    Args:
        before: The page as it stands.
        tables: Measured tables of the kinds to make anew, at most one of each.
        target: Where the page is.
        say: Told what is being done.
    """
    validations = _validated(tables, say)
    new = {v.table.kind: made(v, say, refits=before.refits) for v in validations}
    every = {kind: new.get(kind, part) for kind, part in before.parts.items()}
    sets = _datasets(validations)
    text = [
        _in_sample(every, before.opening, target),
        *([_left_out(every)] if before.refits else []),
        _cautions(sets, before.cautions),
        _sources(sets | before.datasets, named=before.named),
    ]
    return _page(text, every)


def _page(text: Sequence[str], parts: Mapping[str, Part]) -> Page:
    drawn = {picture.name: picture.draw() for picture in _pictured(parts)}
    return Page("\n\n".join(text) + "\n", drawn)


def _pictured(parts: Mapping[str, Part]) -> list[Picture]:
    return pictured({kind: part.shown for kind, part in parts.items()}, _every_peer(parts))


def _every_peer(parts: Mapping[str, Part]) -> list[Compared]:
    return [comparison for part in parts.values() for comparison in part.beside]


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


def _in_sample(parts: Mapping[str, Part], opening: str, target: str) -> str:
    shown = {picture.name: _picture(picture, target) for picture in _pictured(parts)}
    beside = shown.pop("peers.svg", "")
    sections = [
        opening,
        _summary(parts),
        *([PICTURES, *shown.values()] if shown else []),
        _peers(_every_peer(parts), beside),
        *(part.section for part in parts.values()),
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


def _summary(parts: Mapping[str, Part]) -> str:
    lines = [part.summary for part in parts.values()]
    head = ("table", "a row is the", "rows predicted", *markdown.ERRORS, markdown.INSIDE)
    return f"{SUMMARY}\n\n" + markdown.table(head, lines, right=2 + len(markdown.ERRORS))


def _peers(every: Sequence[Compared], picture: str) -> str:
    head = ("tool", "of", "rows of", "statistic", "their rows", "theirs %")
    lines = [peer_line(comparison) for comparison in every]
    rest = [
        (peer_link(peer), peer.quantity, peer.statistic, stated(peer), peer.version)
        for peer in elsewhere()
    ]
    parts = [
        _PEERS,
        *([picture] if picture else []),
        markdown.table((*head, "rows here", "theirs, here %", "ours %"), lines, right=5)
        if lines
        else markdown.NO_ROWS,
        ELSEWHERE,
        markdown.table(("tool", "of", "statistic", "stated %", "in"), rest, right=0),
    ]
    return "\n\n".join(parts)


def _left_out(parts: Mapping[str, Part]) -> str:
    lines = [line for part in parts.values() for line in part.folds]
    head = ("constants of", "left out", "rows", "in sample: median %", "p90 %")
    texts = [
        _FOLDS.format(title=LEFT_OUT, most=MOST_ROWS),
        markdown.table((*head, "left out: median %", "p90 %", "bias %"), lines, right=6)
        if lines
        else markdown.NO_ROWS,
        *(part.more_folds for part in parts.values() if part.more_folds),
        _CANNOT,
    ]
    return "\n\n".join(texts)


def _cautions(sets: Collection[str], before: Collection[str] = ()) -> str:
    """Return what to mind about data sets, beside what a page says of others."""
    said = [text for name, text in _CAUTIONS.items() if name in sets or text in before]
    return f"{CAUTIONS}\n\n" + "\n".join([*said, _OUTLIERS])


def _sources(sets: Collection[str], *, named: bool) -> str:
    """Return who published the rows, and the rows behind constants even where they are not here."""
    known, unknown = grouped(sets)
    if not named:
        known = {source: list(source.datasets) for source in ALL_SOURCES}
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
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(KINDS),
        metavar="KIND",
        help="make what the page has of these kinds of table anew, and take over all else",
    )
    options = parser.parse_args(arguments)
    made_page = _renewed_page(options) if options.only else _whole_page(options)
    folder = picture_folder(options.page)
    if made_page.pictures:
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in made_page.pictures.items():
        write_whole(folder / name, content)
    write_whole(Path(options.page), made_page.text)
    return 0


def _whole_page(options: argparse.Namespace) -> Page:
    tables = tables_of(options)
    rows = sum(table.rows for table in tables.shipped) if options.shipped else None
    origin = Origin(rows, named=bool(tables.named), refits=not options.quick)
    return page(joined([*tables.named, *tables.shipped]), options.page, say, origin)


def _renewed_page(options: argparse.Namespace) -> Page:
    """Return a page made anew in part, by the options that it was written with."""
    before = read(Path(options.page), picture_folder(options.page))
    unknown = before.cautions - {*_CAUTIONS.values(), _OUTLIERS}
    if unknown:
        raise FormatError(options.page, f"has a caution of its own: {min(unknown)!r}{WHOLE}")
    options.shipped = "--shipped" in before.command
    every = tables_of(options)
    named, shipped = (
        [table for table in tables if table.kind in options.only]
        for tables in (every.named, every.shipped)
    )
    for table in named:
        if table.path.name not in before.command:
            raise BadValueError("table", str(table.path), f"one that {options.page} is made from")
    tables = joined([*named, *shipped])
    known = {table.kind for table in tables} & set(before.parts)
    for kind in options.only:
        if kind not in known:
            raise BadValueError("--only", kind, f"a kind of {options.page}, with a table")
    return renewed(before, tables, options.page, say)


if __name__ == "__main__":
    ended(main)
