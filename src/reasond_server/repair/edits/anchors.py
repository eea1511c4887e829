"""Finds the lines that an edit means, as models copy them: with another indentation, or blank lines at their ends.

What was copied differently is shifted as a whole, and the new lines with it. Nothing is found by likeness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from reasond_server.types.values import value

MOST_COUNTED: Final = 20
"""Places of an anchor are counted up to one more."""


@value
class AnchorPlace:
    """Where an anchor begins, counted from 0, how many lines it has there, and the lines that take their place."""

    at: int
    count: int
    lines: Sequence[str]


@value
class Anchor:
    """The lines to search for, those that take their place, and what else is known of the place.

    `lead` and `trail` are the lines of context at both ends, which a diff may have wrong; `line` counts from 1 and
    `section` is a line above the place: they choose among several.
    """

    old: Sequence[str]
    new: Sequence[str]
    lead: int = 0
    trail: int = 0
    line: int | None = None
    section: str = ""


def find_places(texts: Sequence[str], anchor: Anchor) -> Sequence[AnchorPlace]:
    """Return the places that an anchor may mean, at most one more than 20; one place is certain.

    Lines as they are come first, then without blank lines at their ends, then with another indentation, then without
    wrong context.
    """
    for form in _list_forms(anchor):
        if not any(line.strip() for line in form.old):
            continue
        for find in (_find_exact, _find_shifted):
            places = find(texts, form)
            if places:
                return _choose(texts, places, anchor)
    return _find_exact(texts, anchor) if anchor.old else ()


def _list_forms(anchor: Anchor) -> Sequence[Anchor]:
    forms = [anchor, _strip_blank(anchor)]
    if anchor.lead or anchor.trail:
        end, new_end = len(anchor.old) - anchor.trail, len(anchor.new) - anchor.trail
        forms.append(_strip_blank(Anchor(old=anchor.old[anchor.lead : end], new=anchor.new[anchor.lead : new_end])))
    return forms


def _strip_blank(anchor: Anchor) -> Anchor:
    """Return the anchor without blank lines at its ends, and the new lines without as many."""
    old_lead, old_trail = _count_blank(anchor.old), _count_blank(anchor.old[::-1])
    new_lead, new_trail = min(_count_blank(anchor.new), old_lead), min(_count_blank(anchor.new[::-1]), old_trail)
    old = anchor.old[old_lead : max(old_lead, len(anchor.old) - old_trail)]
    return Anchor(old=old, new=anchor.new[new_lead : max(new_lead, len(anchor.new) - new_trail)])


def _count_blank(lines: Sequence[str]) -> int:
    """Return how many blank lines stand at the beginning."""
    return next((at for at, line in enumerate(lines) if line.strip()), len(lines))


def _find_exact(texts: Sequence[str], anchor: Anchor) -> Sequence[AnchorPlace]:
    return [
        AnchorPlace(at=at, count=len(anchor.old), lines=anchor.new) for at in _search(texts, anchor.old, str.rstrip)
    ]


def _find_shifted(texts: Sequence[str], anchor: Anchor) -> Sequence[AnchorPlace]:
    """Return the places where only the indentation differs: each line of one depth alike, or that of the first line."""
    places = []
    for at in _search(texts, anchor.old, str.strip):
        there = texts[at : at + len(anchor.old)]
        for skipped in (0, 1):
            depths = _compare_depths(anchor.old[skipped:], there[skipped:])
            if depths is None or (skipped and any(mine != real for mine, real in depths.items())):
                continue
            new = list(anchor.new)
            first = [_swap_indent(new[0], there[0])] if skipped and new and _has_same_depth(new[0], anchor.old) else []
            places.append(
                AnchorPlace(at=at, count=len(there), lines=first + [_shift(line, depths) for line in new[len(first) :]])
            )
            break
    return places


def _search(texts: Sequence[str], wanted: Sequence[str], strip: Callable[[str], str]) -> Sequence[int]:
    """Return the numbers of the lines, from 0, at which `wanted` begins, in linear time."""
    whole = "\n" + "".join(f"{strip(line)}\n" for line in texts)
    lines = "\n" + "".join(f"{strip(line)}\n" for line in wanted)
    places: list[int] = []
    at = whole.find(lines)
    while at >= 0 and len(places) <= MOST_COUNTED:
        places.append(at)
        at = whole.find(lines, at + 1)
    return [whole.count("\n", 0, place) for place in places]


def _choose(texts: Sequence[str], places: Sequence[AnchorPlace], anchor: Anchor) -> Sequence[AnchorPlace]:
    """Return the place that line or section name, if they name one; otherwise all."""
    if len(places) == 1:
        return places
    if anchor.section:
        heads = [at for at, line in enumerate(texts) if line.strip() == anchor.section]
        below = [place for place in places if len(heads) == 1 and place.at > heads[0]]
        if below:
            return below[:1]
    exact = [place for place in places if anchor.line is not None and place.at == anchor.line - 1]
    return exact or places


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _swap_indent(line: str, other: str) -> str:
    return _indent(other) + line.lstrip()


def _has_same_depth(line: str, old: Sequence[str]) -> bool:
    return _indent(line) == _indent(old[0])


def _compare_depths(old: Sequence[str], there: Sequence[str]) -> Mapping[str, str] | None:
    """Return the indentations of the file by those of the anchor; None if one does not follow from the other."""
    depths: dict[str, str] = {}
    for mine, real in zip(old, there, strict=True):
        if mine.strip() and depths.setdefault(_indent(mine), _indent(real)) != _indent(real):
            return None
    if not depths or len(set(depths.values())) != len(depths):
        return None
    known = sorted(depths, key=len)
    is_ordered = all(len(depths[less]) < len(depths[more]) for less, more in pairwise(known))
    return depths if is_ordered else None


def _shift(line: str, depths: Mapping[str, str]) -> str:
    """Return a new line with the indentation that its own one stands for."""
    if not line.strip():
        return line
    mine = _indent(line)
    if mine in depths:
        return depths[mine] + line.lstrip()
    base = max((depth for depth in depths if mine.startswith(depth)), key=len, default=None)
    if base is None:
        # It stands further left than every line of the anchor.
        least = min(depths, key=len)
        lost = len(least) - len(mine)
        return depths[least][: max(0, len(depths[least]) - lost)] + line.lstrip()
    return depths[base] + _convert(mine[len(base) :], depths) + line.lstrip()


def _convert(rest: str, depths: Mapping[str, str]) -> str:
    """Return the deeper part of an indentation in the unit of the file, where two known depths tell both units."""
    known = sorted(depths, key=len)
    units = [
        (more[len(less) :], depths[more][len(depths[less]) :])
        for less, more in pairwise(known)
        if more.startswith(less) and depths[more].startswith(depths[less])
    ]
    if not units and known[0] and depths[known[0]].strip(" ") != known[0].strip(" "):
        units = [(known[0], depths[known[0]])]
    for mine, real in units:
        if mine and len(rest) % len(mine) == 0 and rest == mine * (len(rest) // len(mine)):
            return real * (len(rest) // len(mine))
    return rest
