"""How a window of bounded context ends the run, if it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.context.tags import TagKind
from reasond_server.llm.model import ModelFinish
from reasond_server.types import FinishReason

if TYPE_CHECKING:
    from reasond_server.context.calls import Reply
    from reasond_server.context.replies import Parsed
    from reasond_server.context.windows import Window

_MOST_EMPTY_REPLIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the run ends and with what."""

    answer: str
    finish_reason: FinishReason
    warning: str = ""

    @property
    def is_answered(self) -> bool:
        """Whether the model gave an answer by itself."""
        return self.finish_reason in {FinishReason.ANSWERED, FinishReason.ANSWERED_UNTAGGED}


class Judge:
    """Decides after each window; `best` is the last answer that was marked, whole or not."""

    def __init__(self) -> None:
        self.best = ""
        self._empty_in_a_row = 0

    def judge(self, window: Window, reply: Reply) -> Ending | None:
        """Return how `reply` ends the run; None to go on."""
        parsed = reply.parsed
        content = parsed.content.strip()
        answer = content if parsed.kind is TagKind.ANSWER else ""
        self.best = answer or self.best
        self._empty_in_a_row = 0 if parsed.written else self._empty_in_a_row + 1
        if reply.finish is ModelFinish.CONTENT_FILTER:
            return Ending(answer=self.best, finish_reason=FinishReason.CONTENT_FILTERED)
        if answer and parsed.is_closed and window.may_answer:
            return Ending(answer=answer, finish_reason=FinishReason.ANSWERED)
        # Once may be an accident of sampling; twice in a row every further window would be paid for nothing.
        if self._empty_in_a_row == _MOST_EMPTY_REPLIES or (window.is_last and is_eaten(reply)):
            return self._truncated(reply)
        if window.reading is None and reply.finish is ModelFinish.STOP and _is_untagged(parsed):
            return Ending(answer=parsed.text.strip(), finish_reason=FinishReason.ANSWERED_UNTAGGED)
        if window.is_last:
            last = content or parsed.written or self.best
            return Ending(answer=last, finish_reason=FinishReason.MAX_ITERATIONS)
        return None

    def _truncated(self, reply: Reply) -> Ending:
        """Return the end of a run whose model wrote nothing to be read, with the reason where it is known."""
        warning = "The model wrote nothing in two windows in a row."
        if is_eaten(reply):
            warning = (
                f"Hidden reasoning took {reasoning_tokens(reply)} of the {reply.usage.output_tokens} tokens that the "
                "model wrote in its last window and left none for the answer: raise chunk_size, or lower the "
                "model's reasoning effort."
            )
        return Ending(answer=self.best, finish_reason=FinishReason.TRUNCATED, warning=warning)


def is_eaten(reply: Reply) -> bool:
    """Return whether hidden reasoning is all that the model wrote."""
    parsed = reply.parsed
    nothing_to_read = not (parsed.text.strip() or parsed.content.strip())
    return nothing_to_read and bool(reply.usage.reasoning_tokens or parsed.thinking.strip())


def reasoning_tokens(reply: Reply) -> int:
    """Return the tokens of hidden reasoning: as reported, or all output where none are told apart."""
    return reply.usage.reasoning_tokens or reply.usage.output_tokens


def _is_untagged(parsed: Parsed) -> bool:
    """Return whether the reply has text and no marked content, so that the text is what the model has to say."""
    return bool(parsed.text.strip()) and not parsed.content.strip()
