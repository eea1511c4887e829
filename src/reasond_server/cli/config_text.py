"""Says where in a configuration file a section that was printed belongs, by its lines."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")


@value
class SectionPlace:
    """Where a section belongs: in place of the lines `first` to `last`, with the ranges `dropped` deleted.

    Lines are counted from 1. Without a section in the file, both are 0 and the new one belongs at its end.
    """

    first: int = 0
    last: int = 0
    dropped: Sequence[tuple[int, int]] = ()

    def describe(self, file: str) -> str:
        """Return the place in words."""
        if not self.first:
            return f"at the end of {file}"
        dropped = ", ".join(_describe_lines(*one) for one in self.dropped)
        return f"in place of {_describe_lines(self.first, self.last)} of {file}" + (
            f"; delete {dropped}" * bool(dropped)
        )

    def apply(self, text: str, section: str) -> str:
        """Return `text` with `section` in this place."""
        lines = text.splitlines()
        if not self.first:
            return "\n".join([*lines, "", section, ""])
        kept: list[str | None] = list(lines)
        for first, last in self.dropped:
            kept[first - 1 : last] = [None] * (last - first + 1)
        kept[self.first - 1 : self.last] = [section]
        return "\n".join([line for line in kept if line is not None] + [""])


def find_place(text: str, section: str, table: str) -> SectionPlace | None:
    """Return where `section`, the whole text of the table `[table]`, belongs in the TOML of `text`.

    None if that cannot be said in lines, as where the table is written in another way. What is returned was tried: with
    the section there, the file holds that table, and everything else as before.
    """
    parts = _list_parts(text)
    own = [part for part in parts if part[0] == table]
    inner = [part[1:] for part in parts if part[0] == f"{table}.capabilities"]
    place = SectionPlace(first=own[0][1], last=own[0][2], dropped=inner) if own else SectionPlace(dropped=inner)
    try:
        if _split(place.apply(text, section), table) == (_split(section, table)[0], _split(text, table)[1]):
            return place
    except tomllib.TOMLDecodeError:
        pass
    return None


def _list_parts(text: str) -> list[tuple[str, int, int]]:
    """Return the name, first and last line of each table; blank lines and comments before the next one are left out."""
    parts: list[tuple[str, int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header:
            parts.append((header[1].replace(" ", ""), number, number))
        elif parts and line.strip() and not line.lstrip().startswith("#"):
            parts[-1] = (*parts[-1][:2], number)
    return parts


def _split(text: str, table: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of `table` in `text` but for its `backends`, and everything else."""
    rest = tomllib.loads(text)
    node: Any = rest
    *outer, name = table.split(".")
    for part in outer:
        node = node.get(part, {})
    found = node.pop(name, {})
    if not isinstance(found, dict):
        return {}, rest
    others = found.pop("backends", None)
    if others is not None:
        node[name] = {"backends": others}
    return found, rest


def _describe_lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first}-{last}"
