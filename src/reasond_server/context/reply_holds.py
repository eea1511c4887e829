"""What is held back of a reply while it comes, and when it is seen to be a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from reasond_server.context.replies import Fragment
from reasond_server.dialects.written_calls import may_begin_call

_LOOK_BEHIND: Final = 32
# A reply that ends with this much of one repeated piece is a loop: at least eight times the longest piece.
_LOOP_CHARACTERS: Final = 4096
_LONGEST_PIECE: Final = 512


class LoopWatch:
    """Notices a text that has become one piece over and over, 4,096 characters long.

    Attributes:
        is_found: whether it has.
    """

    def __init__(self) -> None:
        self._text = ""
        self._looked_at = 0
        self.is_found = False

    def take(self, text: str) -> None:
        """Take the next part of the text."""
        self._text += text
        if len(self._text) < max(_LOOP_CHARACTERS, self._looked_at + _LONGEST_PIECE):
            return
        self._text = tail = self._text[-_LOOP_CHARACTERS:]
        self._looked_at = len(tail)
        piece = len(tail) - _LONGEST_PIECE - tail.rfind(tail[-_LONGEST_PIECE:], 0, -1)
        self.is_found = self.is_found or (piece <= _LONGEST_PIECE and tail[piece:] == tail[:-piece])


class CallHold:
    """Holds fragments back from where a call may begin in the text."""

    def __init__(self) -> None:
        self._held: list[Fragment] = []
        self._line = ""

    def take(self, fragments: Sequence[Fragment]) -> Sequence[Fragment]:
        """Take the next fragments, and return those that no call can be in."""
        shown: list[Fragment] = []
        for fragment in fragments:
            if fragment.is_thinking:
                shown.append(fragment)
            elif fragment.text:
                self._held.append(fragment)
                self._advance(shown)
        return shown

    def _advance(self, shown: list[Fragment]) -> None:
        """Show what is held back up to where a call may begin."""
        text = "".join([each.text for each in self._held])
        at = may_begin_call(self._line + text)
        certain = len(text) if at is None else max(0, at - len(self._line))
        while self._held and certain:
            first = self._held.pop(0)
            shown.append(replace(first, text=first.text[:certain]))
            self._line = (self._line + first.text[:certain]).rpartition("\n")[2][-_LOOK_BEHIND:] or "\n"
            if len(first.text) > certain:
                self._held.insert(0, replace(first, text=first.text[certain:]))
            certain = max(0, certain - len(first.text))

    def release(self) -> Sequence[Fragment]:
        """Return the fragments that were held back."""
        held, self._held = self._held, []
        return held


class TextHold:
    """Holds text back until it is known whether it is the reasoning of a model whose prompt opens it.

    Attributes:
        is_used: whether it has held anything.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self.is_used = False
        self._held: list[Fragment] = []

    def take(self, fragments: Sequence[Fragment], *, has_taken_back: bool) -> Sequence[Fragment]:
        """Take the next fragments and return those that are known; text that was taken back is reasoning."""
        if not self._is_open:
            return fragments
        if not has_taken_back and not any(each.is_thinking for each in fragments):
            self._held += fragments
            self.is_used = self.is_used or bool(fragments)
            return ()
        return self.close(fragments, has_taken_back=has_taken_back)

    def close(self, fragments: Sequence[Fragment], *, has_taken_back: bool) -> Sequence[Fragment]:
        """Return all that was held, and the last fragments."""
        held, self._held, self._is_open = self._held, [], False
        if not held:
            return fragments
        return [*(Fragment(text=each.text, is_thinking=True) if has_taken_back else each for each in held), *fragments]
