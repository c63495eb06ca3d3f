"""What the validation page has of each kind of table: made from a table, or read off a page.

The page is put together from these parts (`lab.page`), so that those of some kinds can be made anew
and all others be taken over from the page as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from lab import markdown, page_collectives
from lab.command import Say
from lab.folds import Fold, folds
from lab.page_plots import Shown, kind_in, shown, words_in
from lab.page_tables import KINDS, section
from lab.peers import Compared, Peer, compared, peers
from lab.sheet import panels_of
from shardcost.errors import FormatError
from shardcost.validate.validation import Stats, Validation, of_headline, stats

SUMMARY: Final = "## Summary"
PICTURES: Final = "## In pictures"
PEERS: Final = "## Beside other cost models"
LEFT_OUT: Final = "## What was left out of the fit"
"""Where the part of the page begins that takes minutes to compute."""
ELSEWHERE: Final = """\
Others state their errors on rows that are not public, so that nothing can be put beside them:"""
CANNOT: Final = "### What this cannot show"
CAUTIONS: Final = "## What to mind about the rows"
SOURCES: Final = "## Where the measurements come from"
_PICTURE: Final = re.compile(r"!\[([^]]*)\.\]\([^)]*/(\w+\.svg)\)")
_NAME: Final = re.compile(r"`([^`]*)`")
WHOLE: Final = "; write the whole page, without --only"
"""What to do about a page that does not have the parts which this version writes."""


_TABLES_FROM: Final = len(["python", "-m", "lab.page", "docs/validation.md"])


class Part(NamedTuple):
    """What a page has of one kind of table."""

    summary: tuple[str, ...]
    """Its line of the summary, as cells; likewise below."""
    section: str
    beside: tuple[Compared, ...]
    """Other cost models' figures beside ours."""
    shown: Mapping[str, Shown]
    """What each picture has of it."""
    folds: tuple[tuple[str, ...], ...] = ()
    more_folds: str = ""
    """What collectives have beside folds."""


def made(validation: Validation, say: Say, *, refits: bool) -> Part:
    """Return the part of a validated table.

    Args:
        validation: Of the table.
        say: Told what is being done.
        refits: Whether constants are fitted without some of the rows, which takes minutes.
    """
    part = in_sample(validation)
    if not refits:
        return part
    every = [_fold_line(fold) for fold in folds(validation, say) if fold.unseen_pct.size]
    if validation.table.kind != "collectives":
        return part._replace(folds=tuple(every))
    more = page_collectives.left_out(validation.table, say)
    return part._replace(folds=tuple(every), more_folds=more)


def in_sample(validation: Validation) -> Part:
    """Return the part of a validated table without what was left out of the fit."""
    kind, own = KINDS[validation.table.kind], of_headline(validation)
    summary = (
        _linked(validation.table.kind),
        kind.what,
        f"{own.predicted:,} of {own.table.rows:,}",
        *markdown.figures(own.overall)[1:],
        markdown.inside(own.overall),
    )
    beside = tuple(map(_as_shown, compared(validation)))
    return Part(summary, section(validation), beside, shown(validation))


def _linked(kind: str) -> str:
    title = KINDS[kind].title
    return f"[{title}](#{title.lower().replace(' ', '-')})"


def _as_shown(each: Compared) -> Compared:
    """Return a comparison to the digit that the page has, which its picture is drawn from."""
    theirs = each.theirs_here_pct
    return each._replace(
        theirs_here_pct=None if theirs is None else round(theirs, 1),
        ours_pct=round(each.ours_pct, 1),
    )


def peer_line(each: Compared) -> tuple[str, ...]:
    """Return the cells of another cost model's figure beside ours."""
    theirs = "" if each.theirs_here_pct is None else f"{each.theirs_here_pct:.1f}"
    return (*_stated_line(each.peer), f"{each.rows:,}", theirs, f"**{each.ours_pct:.1f}**")


def _stated_line(peer: Peer) -> tuple[str, ...]:
    return (
        f"{peer_link(peer)} ({peer.version})",
        peer.quantity,
        ", ".join(f"`{name}`" for name in peer.where.get("dataset", ())) or "nccl-tests",
        peer.statistic,
        f"{peer.rows:,}" if peer.rows else "not stated",
        stated(peer),
    )


def peer_link(peer: Peer) -> str:
    """Return the name of a cost model as a link to its source."""
    return f"[{peer.tool}]({peer.source})"


def stated(peer: Peer) -> str:
    """Return the error that a cost model states."""
    least, most = peer.error_pct
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def _fold_line(fold: Fold) -> tuple[str, ...]:
    seen, unseen = stats(np.asarray(fold.seen_pct)), stats(np.asarray(fold.unseen_pct))
    rows, bias = f"{unseen.rows:,}", markdown.figures(unseen)[-1]
    return fold.of, fold.left_out, rows, *_middle(seen), *_middle(unseen), bias


def _middle(errors: Stats) -> tuple[str, str]:
    _, median, _, p90, *_ = markdown.figures(errors)
    return median, p90


class Written(NamedTuple):
    """A page as it stands."""

    opening: str
    parts: Mapping[str, Part]
    """By kind of table."""
    refits: bool
    cautions: frozenset[str]
    datasets: frozenset[str]
    """That its sources name; one that ends in ``…`` stands for all that begin so."""

    @property
    def command(self) -> list[str]:
        """The words of the command that wrote it."""
        lines = [line for line in self.opening.splitlines() if line.startswith("    ")]
        return " ".join(lines).replace("\\", "").split()

    @property
    def named(self) -> bool:
        """Whether it is of tables that were named, after the page itself, beside what ships."""
        return any(not word.startswith("--") for word in self.command[_TABLES_FROM:])


def read(path: Path, folder: Path) -> Written:
    """Return the parts of a page.

    Args:
        path: Of the page.
        folder: Of its pictures.
    """
    opening, *rest = re.split(r"\n\n(?=## )", path.read_text(encoding="utf-8").rstrip("\n"))
    sections = {text.partition("\n")[0]: text for text in rest}
    missing = [name for name in (SUMMARY, CAUTIONS, SOURCES) if name not in sections]
    if missing:
        raise FormatError(str(path), f"has no section {missing[0]!r}{WHOLE}")
    summary = {cells[0]: cells for cells in markdown.rows_of(sections[SUMMARY])}
    left_out = sections.get(LEFT_OUT, "")
    tried = markdown.rows_of(left_out.partition("\n### ")[0])
    beside = _beside(path, sections.get(PEERS, ""))
    pictures = dict(_pictures(sections.get(PICTURES, ""), folder))
    parts = {}
    for kind, own in KINDS.items():
        if f"## {own.title}" not in sections:
            continue
        parts[kind] = Part(
            summary[_linked(kind)],
            sections[f"## {own.title}"],
            tuple(each for each in beside if each.peer.table == kind),
            {name: found[kind] for name, found in pictures.items() if kind in found},
            tuple(cells for cells in tried if cells[0].partition(",")[0] == kind),
            _more_folds(left_out) if kind == "collectives" else "",
        )
    bullets = re.split(r"\n(?=- )", sections[CAUTIONS].partition("\n\n")[2])
    names = [
        name for cells in markdown.rows_of(sections[SOURCES]) for name in _NAME.findall(cells[0])
    ]
    return Written(opening, parts, bool(left_out), frozenset(bullets), frozenset(names))


def _more_folds(left_out: str) -> str:
    """Return what stands between the table of folds and what they cannot show."""
    before = left_out.partition(f"\n\n{CANNOT}")[0]
    _, heading, rest = before.partition("\n\n### ")
    return f"{heading}{rest}".lstrip("\n")


def _beside(path: Path, text: str) -> list[Compared]:
    """Return the comparisons of the page's table, each with the figure that it is of."""
    found = []
    for cells in markdown.rows_of(text.partition(ELSEWHERE)[0]):
        peer = next((each for each in peers() if _stated_line(each) == cells[:6]), None)
        if peer is None:
            raise FormatError(str(path), f"has a figure of {cells[0]} that is not known{WHOLE}")
        rows, theirs, ours = cells[6:]
        here = float(theirs) if theirs else None
        found.append(Compared(peer, int(rows.replace(",", "")), here, float(ours.strip("*"))))
    return found


def _pictures(text: str, folder: Path) -> Iterator[tuple[str, dict[str, Shown]]]:
    """Yield what each picture has of each kind of table, by the picture's file."""
    for alt, name in _PICTURE.findall(text):
        panels = panels_of((folder / name).read_bytes())
        if not panels:
            raise FormatError(str(folder / name), f"is no sheet of panels{WHOLE}")
        words = words_in(name, alt.replace("\n", " "))
        kinds = dict.fromkeys([*map(kind_in, words), *panels])
        yield name, {kind: _taken(kind, words, panels.get(kind, ())) for kind in kinds}


def _taken(kind: str, words: Sequence[str], panels: Sequence[str]) -> Shown:
    own = tuple(word for word in words if kind_in(word) == kind)
    return Shown(own, tuple(_always(panel) for panel in panels))


def _always(panel: str) -> Callable[[], str]:
    return lambda: panel
