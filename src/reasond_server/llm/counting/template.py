"""What a server's chat template adds to the texts of a prompt: allowed for at first, later learnt from usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message


@runtime_checkable
class Learner(Protocol):
    """A counter that gets better by hearing what calls really had."""

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        """Take note that a prompt of `messages` had `reported` tokens, as the server says."""
        ...


class TemplateAllowance:
    """Tokens for the marks around messages: `prompt_tokens` once and `message_tokens` for each.

    A configured allowance (`is_configured`) is taken for true and stays. Any other is an upper guess, generous for
    the templates in common use, until the first usage is reported; then it is the most that was seen per message.
    Learning from several threads at once may miss one of their reports, never more.
    """

    def __init__(self, *, message_tokens: int = 16, prompt_tokens: int = 64, is_configured: bool = False) -> None:
        self._message_tokens = message_tokens
        self._prompt_tokens = prompt_tokens
        self.is_configured = is_configured
        self._seen: int | None = None

    def tokens(self, messages: int) -> int:
        """Return what is added to `messages` messages."""
        if self._seen is not None:
            return self._seen * messages
        return self._prompt_tokens + self._message_tokens * messages

    def learn(self, *, messages: int, text_tokens: int, reported: int) -> None:
        """Take note of a call: fewer tokens than its texts have tell of a cut prompt, and nothing of the template."""
        if self.is_configured or not messages or reported < text_tokens:
            return
        added = -(-(reported - text_tokens) // messages)
        self._seen = max(added, self._seen or 0)
