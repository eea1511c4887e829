"""Reasoning that a server leaves in the content: `<think>…</think>` at its very beginning."""

from __future__ import annotations

from reasond_server.llm.model import ReasoningText, Text

_OPEN = "<think>"
_CLOSE = "</think>"
_MAX_BLANK = 64


class ThinkSplitter:
    """Tells reasoning from answer, however the text is cut; later tags are text like any other."""

    def __init__(self) -> None:
        self._held = ""
        self._is_open: bool | None = None
        self._is_answer_begun = True

    def feed(self, piece: str) -> list[Text | ReasoningText]:
        """Take the next piece of content and return what is decided."""
        if self._is_open is None:
            self._held += piece
            return self._begin()
        if self._is_open:
            self._held += piece
            return self._inside()
        return self._answer(piece)

    def flush(self) -> list[Text | ReasoningText]:
        """Return what was held back: the content ended."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [ReasoningText(text=held)] if self._is_open else [Text(text=held)]

    def _begin(self) -> list[Text | ReasoningText]:
        start = self._held.lstrip()
        is_at_start = len(self._held) - len(start) <= _MAX_BLANK
        if is_at_start and start.startswith(_OPEN):
            self._is_open = True
            self._held = start.removeprefix(_OPEN)
            return self._inside()
        if is_at_start and _OPEN.startswith(start):
            return []
        self._is_open = False
        return self.flush()

    def _inside(self) -> list[Text | ReasoningText]:
        thought, close, rest = self._held.partition(_CLOSE)
        if close:
            self._is_open, self._held, self._is_answer_begun = False, "", False
            thoughts: list[Text | ReasoningText] = [ReasoningText(text=thought)] if thought else []
            return thoughts + self._answer(rest)
        kept = _undecided(thought)
        self._held = thought[len(thought) - kept :]
        thought = thought[: len(thought) - kept]
        return [ReasoningText(text=thought)] if thought else []

    def _answer(self, piece: str) -> list[Text | ReasoningText]:
        """Return the piece as answer, without the blank between the closing tag and the answer."""
        if not self._is_answer_begun:
            piece = piece.lstrip()
            self._is_answer_begun = bool(piece)
        return [Text(text=piece)] if piece else []


def _undecided(text: str) -> int:
    """Return the length of the longest end of `text` that begins the closing tag."""
    lengths = range(min(len(_CLOSE) - 1, len(text)), 0, -1)
    return next((length for length in lengths if _CLOSE.startswith(text[-length:])), 0)
