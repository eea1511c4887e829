"""The headers of one request, taken apart once: every layer asks for some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class RequestHeaders:
    """Values by name, in the order in which they came; `raw` are headers as ASGI has them, names in lower case."""

    __slots__ = ("_values",)

    def __init__(self, raw: Iterable[tuple[bytes, bytes]] = ()) -> None:
        values: dict[str, list[str]] = {}
        for name, value in raw:
            # Latin-1, as HTTP has it: every byte is a character.
            values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        self._values = values

    def getlist(self, name: str) -> list[str]:
        """Return all values of a header; none where there is none."""
        return list(self._values.get(name, ()))

    def get(self, name: str, default: str = "") -> str:
        """Return the first value of a header."""
        found = self._values.get(name)
        return found[0] if found else default

    def __contains__(self, name: str) -> bool:
        """Return whether there is a header of that name."""
        return name in self._values
