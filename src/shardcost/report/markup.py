"""HTML put together without ever trusting a text: whatever is not markup is escaped.

>>> element("p", "a < b", class_="note")
'<p class="note">a &lt; b</p>'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final
from unicodedata import category

_VOID: Final = frozenset({"meta", "br"})
_ADDRESS: Final = re.compile(r"https?://[^\s<>\"')]+[^\s<>\"').,;:]")
_KEPT: Final = "\n\t"
_UNSEEN: Final = "\N{REPLACEMENT CHARACTER}"


class Markup(str):
    """HTML, which needs no escaping any more."""

    __slots__ = ()


def visible(text: str) -> str:
    r"""Return a text with every character that controls rather than shows made a replacement one.

    >>> visible("a\x1bb") == "a\N{REPLACEMENT CHARACTER}b"
    True
    """
    if text.isprintable():
        return text
    return "".join(
        each if each in _KEPT or not category(each).startswith("C") else _UNSEEN for each in text
    )


def escaped(text: str) -> Markup:
    """Return a text as HTML; what is HTML already stays as it is."""
    return text if isinstance(text, Markup) else Markup(escape(visible(text)))


def element(tag: str, *inside: str, **attributes: str | None) -> Markup:
    """Return an element. Attributes end in an underscore where Python needs it, or have one inside.

    >>> element("td", Markup("<b>1</b>"), aria_label=None, colspan="2")
    '<td colspan="2"><b>1</b></td>'
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{named}>")
    return Markup(f"<{tag}{named}>{joined(inside)}</{tag}>")


def joined(pieces: Iterable[str], between: str = "") -> Markup:
    """Return pieces one after the other."""
    return Markup(escaped(between).join(map(escaped, pieces)))


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], right: str = ""
) -> Markup:
    """Return a table that scrolls by itself where it is too wide; its first cells are headings.

    `right` names the columns to align to the right, as the indices' digits: ``"12"``.
    """
    classes = ["number" if str(index) in right else None for index in range(len(head))]
    top = (
        element("th", cell, scope="col", class_=classes[i]) if cell else element("td")
        for i, cell in enumerate(head)
    )
    body = []
    for first, *others in rows:
        cells = zip(others, classes[1:], strict=True)
        heading = element("th", first, scope="row", class_=classes[0])
        body.append(element("tr", heading, *(element("td", c, class_=kind) for c, kind in cells)))
    head_of, body_of = element("thead", element("tr", *top)), element("tbody", *body)
    return scrolling(element("table", element("caption", caption), head_of, body_of), caption)


def scrolling(inside: str, label: str) -> Markup:
    """Return a box that scrolls by itself, by keyboard too."""
    return element("div", inside, class_="scroll", tabindex="0", role="region", aria_label=label)


def linked(text: str) -> Markup:
    """Return a text with the addresses in it as links.

    >>> linked("see https://example.org/a, p. 3")
    'see <a href="https://example.org/a" rel="noreferrer">https://example.org/a</a>, p. 3'
    """
    pieces: list[str] = []
    end = 0
    for match in _ADDRESS.finditer(text):
        link = element("a", match[0], href=match[0], rel="noreferrer")
        pieces += [text[end : match.start()], link]
        end = match.end()
    return joined([*pieces, text[end:]])
