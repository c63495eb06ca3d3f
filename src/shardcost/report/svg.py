"""A picture as SVG inside a page: several of them there share no ids and no style.

matplotlib names the parts of every picture alike. Here ids that nothing refers to are dropped and
the others are named after the picture; the size is left to the page. A timeline has thousands of
bars, written one by one: those of one look that follow each other become one path.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree as ET

from shardcost.report.markup import Markup
from shardcost.report.sketch import Sketch, drawn

_SVG: Final = "{http://www.w3.org/2000/svg}"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_REFERENCE: Final = re.compile(r"url\(#([^)]*)\)")
_LEFT_OUT: Final = (f"{_SVG}metadata", f"{_SVG}style")
_UNUSED: Final = ("width", "height", "version")
_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")


def inline(sketch: Sketch, name: str, label: str, style: str) -> Markup:
    """Return a picture without its title as an element of a page.

    Args:
        sketch: What is drawn.
        name: Unique in the page: begins all ids of the picture.
        label: What it shows, for those who do not see it.
        style: How large it may be.
    """
    root = ET.fromstring(drawn(sketch._replace(title=""), "svg"))  # noqa: S314 -- our own
    for part in [*root.iter()]:
        for child in [*part]:
            if child.tag in _LEFT_OUT:
                part.remove(child)
        _close_up(part)
    used = {each for part in root.iter() for each in _references(part)}
    for part in root.iter():
        _rename(part, name, used)
    for attribute in _UNUSED:
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("class", "picture")
    root.set("style", style)
    for part in root.iter():
        _merge_paths(part)
        part.tag = part.tag.removeprefix(_SVG)
    return Markup(ET.tostring(root, encoding="unicode"))


def _references(part: ET.Element) -> list[str]:
    """Return the ids that an element refers to."""
    found = [each for value in part.attrib.values() for each in _REFERENCE.findall(value)]
    return found + ([part.attrib[_LINK][1:]] if _LINK in part.attrib else [])


def _rename(part: ET.Element, name: str, used: set[str]) -> None:
    own = part.attrib.pop("id", None)
    link = part.attrib.pop(_LINK, None)
    for key, value in part.attrib.items():
        renamed = _REFERENCE.sub(rf"url(#{name}-\1)", value)
        part.set(key, _shorter(renamed) if key == "d" else renamed)
    if own in used:
        part.set("id", f"{name}-{own}")
    if link is not None:
        part.set("href", f"#{name}-{link[1:]}")


def _shorter(path: str) -> str:
    """Return a path to hundredths of a point: nobody sees more, and a page is carried by mail."""
    rounded = _NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), path)
    return " ".join(rounded.split())


def _close_up(part: ET.Element) -> None:
    """Drop the indentation inside an element."""
    if part.tag != f"{_SVG}text" and not (part.text or "").strip():
        part.text = None
        for child in part:
            child.tail = None


def _merge_paths(part: ET.Element) -> None:
    """Join the paths inside an element that follow each other and look alike."""
    kept: list[ET.Element] = []
    pieces: dict[int, list[str]] = {}
    for child in part:
        if kept and _alike(kept[-1], child):
            pieces[id(kept[-1])].append(child.get("d", ""))
        else:
            kept.append(child)
            pieces[id(child)] = [child.get("d", "")]
    for child in kept:
        if len(pieces[id(child)]) > 1:
            child.set("d", " ".join(pieces[id(child)]))
    part[:] = kept


def _alike(one: ET.Element, other: ET.Element) -> bool:
    """Return whether two elements are paths that differ in nothing but where they are."""
    if not one.tag.endswith("path") or one.tag != other.tag or "id" in one.attrib | other.attrib:
        return False
    looks = ({k: v for k, v in each.attrib.items() if k != "d"} for each in (one, other))
    return next(looks) == next(looks)
