"""What a server's chat template adds to the texts of a prompt: allowed for at first, later learnt from usage."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from reasond_server.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message, TokenCounter
    from reasond_server.types import Json


_MOST_SEEN = 1_000_000_000


@runtime_checkable
class Learner(Protocol):
    """A counter that corrects itself by the usage that servers report."""

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        """Correct the counts: the server says that a prompt of `messages` had `reported` tokens."""
        ...


@runtime_checkable
class Forkable(Learner, Protocol):
    """A learner of which each run takes a copy, so that reports of other runs do not change its counts.

    With the same `snapshot` restored and the same reports in the same order, a run is counted alike in any process.
    """

    def fork(self) -> TokenCounter:
        """Return a copy that learns by itself and passes its reports on to this counter."""
        ...

    def snapshot(self) -> Json:
        """Return what was learnt so far, as JSON. It and the kind of the counter determine every count."""
        ...

    def restore(self, snapshot: Json) -> None:
        """Replace what was learnt by `snapshot`; the counter that this one was forked from is not told.

        Raises:
            InternalError: it is no snapshot of a counter of this kind; nothing is changed.
        """
        ...


def can_learn(counter: TokenCounter) -> TypeGuard[Learner]:
    """Return whether `counter` is a Learner; `isinstance` would take 20 microseconds of every model call."""
    return callable(getattr(counter, "learn", None))


def can_fork(counter: TokenCounter) -> TypeGuard[Forkable]:
    """Return whether `counter` is Forkable; as cheap as `can_learn`."""
    kind = type(counter)
    return can_learn(counter) and hasattr(kind, "fork") and hasattr(kind, "snapshot") and hasattr(kind, "restore")


def fork_of(counter: TokenCounter) -> TokenCounter:
    """Return a fork of `counter`, or the counter itself where it learns nothing."""
    return counter.fork() if can_fork(counter) else counter


def read_number(snapshot: Json, name: str, *, least: float, most: float) -> Any:  # noqa: ANN401 - an int stays an int
    """Return a number of a snapshot.

    Raises:
        InternalError: it is missing, no number, or out of bounds.
    """
    value = snapshot.get(name) if isinstance(snapshot, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InternalError(
            f"what a token counter had learnt cannot be restored: {name!r} is missing or out of bounds",
            remedy="Let the run count with the same kind of counter as when it began.",
        )
    return value


class TemplateAllowance:
    """Tokens for the marks around messages: `prompt_tokens` once and `message_tokens` for each.

    A configured allowance (`is_configured`) is taken for true and stays. Any other is an upper guess, generous for
    the templates in common use, until the first usage is reported; then it is the most that was seen per message.
    Learning from several threads at once may miss one of their reports, never more.
    """

    _parent: TemplateAllowance | None = None

    def __init__(self, *, message_tokens: int = 16, prompt_tokens: int = 64, is_configured: bool = False) -> None:
        self._message_tokens = message_tokens
        self._prompt_tokens = prompt_tokens
        self.is_configured = is_configured
        self._seen: int | None = None

    def count_tokens(self, messages: int) -> int:
        """Return what is added to `messages` messages."""
        if self._seen is not None:
            return self._seen * messages
        return self._prompt_tokens + self._message_tokens * messages

    def learn(self, *, messages: int, text_tokens: int, reported: int) -> None:
        """Learn from a call. Fewer tokens than its texts have mean a cut prompt and say nothing of the template."""
        if self.is_configured or not messages or reported < text_tokens:
            return
        added = -(-(reported - text_tokens) // messages)
        self._seen = max(added, self._seen or 0)
        if self._parent is not None:
            self._parent.learn(messages=messages, text_tokens=text_tokens, reported=reported)

    def fork(self) -> TemplateAllowance:
        """Return a copy that learns by itself and passes its reports on to this one."""
        forked = copy(self)
        forked._parent = self  # noqa: SLF001 - another of the same class
        return forked

    def snapshot(self) -> Json:
        """Return what was learnt: `seen` tokens of each message, null for nothing yet."""
        return {"seen": self._seen}

    def restore(self, snapshot: Json) -> None:
        """Replace what was learnt by `snapshot`. Raises InternalError: as `Forkable.restore`."""
        is_new = isinstance(snapshot, dict) and snapshot.get("seen", 0) is None
        self._seen = None if is_new else int(read_number(snapshot, "seen", least=0, most=_MOST_SEEN))
