"""The headers of one request; none is read before somebody asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_JSON: Final = "application/json"
# More digits are over every limit already, and reading thousands of them would take time.
_MOST_DIGITS: Final = 20


class RequestHeaders:
    """Values by name, in the order in which they came; `raw` are headers as ASGI has them, names in lower case."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._raw = raw

    def getlist(self, name: bytes) -> list[str]:
        """Return all values of a header; none where there is none."""
        # Latin-1, as HTTP has it: every byte is a character.
        return [value.decode("latin-1") for key, value in self._raw if key == name]

    def first(self, name: bytes) -> str | None:
        """Return the first value of a header; None where there is none."""
        values = self.getlist(name)
        return values[0] if values else None

    def declared_bytes(self) -> int | None:
        """Return how long the body is by Content-Length; None where that says nothing, or is no number."""
        length = self.first(b"content-length")
        return int(length[:_MOST_DIGITS]) if length and length.isdecimal() else None

    def say_json(self) -> bool:
        """Return whether there is one Content-Type, and it is that of JSON."""
        types = self.getlist(b"content-type")
        return len(types) == 1 and types[0].partition(";")[0].strip().lower() == _JSON
