"""The text of an answer while it is written: what can be sent of it before its step is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from reasond_server.errors.executions import CursorExpiredError
from reasond_server.protocols.conversations import BETWEEN
from reasond_server.types import AnswerPlace, Iteration, TextDelta
from reasond_server.types.turns import ModelCallStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.protocols.followed_runs import FollowedRun


class LiveAnswer:
    """The answer that is being written: white space that may be its end is held back."""

    def __init__(self, edition: int) -> None:
        self.edition = edition
        self._told: list[str] = []
        self._held = ""
        self._at = 0

    @property
    def has_begun(self) -> bool:
        """Whether some of it was sent."""
        return bool(self._told)

    @property
    def written(self) -> str:
        """What was sent."""
        return "".join(self._told)

    def add(self, text: str, at: int) -> str:
        """Return what can be sent now that the text after the character `at` came; nothing after a gap."""
        if at != self._at:
            return ""
        self._at += len(text)
        text = self._held + text if self._told else text.lstrip()
        certain = text.rstrip()
        self._held = text[len(certain) :]
        if certain:
            self._told.append(certain)
        return certain

    def rest(self, text: str) -> str:
        """Return what was not sent yet of the whole `text`, which begins with what was."""
        return text[sum(map(len, self._told)) :]


def build_lost_error() -> CursorExpiredError:
    """Return the error for a client that has text of another edition (`AnswerPlace`)."""
    return CursorExpiredError(
        "The text that was told of the answer does not count any more: the process that wrote it was lost, or the "
        "model took it back",
        remedy="Read the response again from its start; a chat or a message is sent again.",
    )


class AnswerFrames(Protocol):
    """Writes what is told of one run, in the frames of a protocol."""

    def think(self, text: str) -> Iterator[bytes]:
        """Yield a piece of thinking."""

    def end_thinking(self) -> Iterator[bytes]:
        """Yield the end of the thinking, if some is open."""

    def say(self, text: str, *, is_whole: bool = True) -> Iterator[bytes]:
        """Yield a piece of the answer, which ends the thinking; `is_whole` with the last one."""


class AnswerTeller:
    """Tells the events of a run as thinking and text; text while it is written, where the log will begin with it.

    Attributes:
        said: the text that was told last.
    """

    def __init__(self, frames: AnswerFrames, *, shows_thinking: bool, shows_deltas: bool, is_live: bool = True) -> None:
        self._frames = frames
        self._shows_thinking = shows_thinking
        self._shows_deltas = shows_thinking and shows_deltas
        self._is_live = is_live
        self._draft: LiveAnswer | None = None
        self.said = ""

    def tell(self, run: FollowedRun, event: object) -> Iterator[bytes]:
        """Yield what `event` tells, which `run` takes.

        Raises:
            CursorExpiredError: text that was told of the answer does not count any more.
        """
        if isinstance(event, TextDelta) and event.place is not None and self._is_live:
            yield from self._show(event.text, event.place)
            return
        if isinstance(event, TextDelta) and not self._shows_deltas:
            return
        before = len(run.said)
        text = run.take(event)
        draft = self._draft
        if isinstance(event, Iteration | ModelCallStep):
            self._draft = None
            if draft is not None and draft.has_begun:
                yield from self._settle(draft, event)
                return
        if self._shows_thinking:
            is_piece = isinstance(event, TextDelta)
            if piece := text if is_piece else text.removesuffix(BETWEEN):
                yield from self._frames.think(piece)
            if text and not is_piece:
                yield from self._frames.end_thinking()
        for self.said in run.said[before:]:
            yield from self._frames.say(self.said)

    def _show(self, text: str, place: AnswerPlace) -> Iterator[bytes]:
        draft = self._draft = self._draft or LiveAnswer(place.edition)
        has_begun = draft.has_begun
        certain = draft.add(text, place.at)
        if certain and not has_begun and self._shows_thinking and place.thinking.strip():
            yield from self._frames.think(place.thinking.strip())
        if certain:
            yield from self._frames.say(certain, is_whole=False)

    def _settle(self, draft: LiveAnswer, step: Iteration | ModelCallStep) -> Iterator[bytes]:
        """Yield the rest of the text that was told while it was written."""
        text = step.text.strip() if isinstance(step, ModelCallStep) else getattr(step.detail, "answer", "")
        if text and draft.edition != step.edition:
            raise build_lost_error()
        self.said = text or draft.written
        yield from self._frames.say(draft.rest(self.said))

    def end(self, run: FollowedRun) -> Iterator[bytes]:
        """Yield what was not told yet of the thinking and the answer."""
        draft, self._draft = self._draft, None
        if draft is not None and draft.has_begun:
            self.said = run.content if run.content.startswith(draft.written) else draft.written
            yield from self._frames.say(draft.rest(self.said))
        yield from self._frames.end_thinking()
        if run.content not in {"", self.said}:
            yield from self._frames.say(run.content)
