"""The tokens that a server's chat template adds to a prompt: first an allowance, later learnt from reported usage."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from reasond_server.errors.base import InternalError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message, TokenCounter
    from reasond_server.types import Json


_MOST_SEEN = 1_000_000_000
_DOUBTFUL_TOKENS = 64
_PROMPT_TOKENS, _MESSAGE_TOKENS = 64, 16
_MISSING = object()


@runtime_checkable
class Learner(Protocol):
    """A counter that corrects itself from the usage that servers report."""

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        """Correct the counts: the server reports that a prompt of `messages` had `reported` tokens."""


@runtime_checkable
class Forkable(Learner, Protocol):
    """A learner that each run copies, so that reports of other runs do not change the counts of the run.

    The same restored `snapshot` and the same reports in the same order give the same counts in every process.
    """

    def fork(self) -> TokenCounter:
        """Return a copy that learns on its own and passes its reports on to this counter."""

    def snapshot(self) -> Json:
        """Return what was learnt so far, as JSON. The snapshot and the kind of the counter determine every count."""

    def restore(self, snapshot: Json) -> None:
        """Replace what was learnt with `snapshot`; the counter that this one was forked from does not change.

        Raises:
            InternalError: `snapshot` is not of a counter of this kind; nothing is changed.
        """


def can_learn(counter: TokenCounter) -> TypeGuard[Learner]:
    """Return whether `counter` is a Learner, without `isinstance`, which would add 20 microseconds to every call."""
    return callable(getattr(counter, "learn", None))


def can_fork(counter: TokenCounter) -> TypeGuard[Forkable]:
    """Return whether `counter` is Forkable, without `isinstance` as well."""
    return can_learn(counter) and all(hasattr(counter, name) for name in ("fork", "snapshot", "restore"))


def make_fork(counter: TokenCounter) -> TokenCounter:
    """Return a fork of `counter`, or `counter` itself if it does not learn."""
    return counter.fork() if can_fork(counter) else counter


def read_number(snapshot: Json, name: str, *, least: float, most: float) -> Any:  # noqa: ANN401 - an int stays an int
    """Return a number of a snapshot.

    Raises:
        InternalError: the field is missing, is not a number, or is out of bounds.
    """
    value = snapshot.get(name) if isinstance(snapshot, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InternalError(
            f"what a token counter had learnt cannot be restored: {name!r} is missing or out of bounds",
            remedy="Let the run count with the same kind of counter as when it began.",
        )
    return value


@value
class SeenTemplate:
    """The largest number of tokens that a template added so far.

    Attributes:
        messages: the smallest number of messages of any prompt so far.
        added: tokens that the template added to a prompt of that size.
        each: tokens that it added for each further message; None until prompts of two sizes were reported.
    """

    messages: int
    added: int
    each: int | None = None

    def count_tokens(self, messages: int, *, guess: int) -> int:
        """Return the tokens added to `messages` messages; without `each`, a further message counts `guess` tokens."""
        return self.added + (guess if self.each is None else self.each) * max(0, messages - self.messages)

    def add_report(self, messages: int, added: int) -> SeenTemplate:
        """Return the maximum after one more call, in which `added` tokens were added to `messages` messages."""
        if messages == self.messages:
            return replace(self, added=max(self.added, added))
        each = -(-(added - self.added) // (messages - self.messages))
        each = max(each, self.each or 0)
        return (
            replace(self, each=each)
            if messages > self.messages
            else SeenTemplate(messages=messages, added=added, each=each)
        )


class TemplateAllowance:
    """Tokens for the markup around messages: some once, and some for each message.

    They are an upper guess, generous for the templates in common use, until the first usage is reported; then the
    largest number seen. A report of many more tokens is doubtful: it is used only if the next one confirms it.
    If several threads report at the same time, one of the reports may be lost, never more.
    """

    _parent: TemplateAllowance | None = None

    def __init__(self) -> None:
        self._seen: SeenTemplate | None = None
        self._has_doubt = False

    def count_tokens(self, messages: int) -> int:
        """Return the tokens that the template adds to `messages` messages."""
        if self._seen is not None:
            return self._seen.count_tokens(messages, guess=_MESSAGE_TOKENS)
        return _PROMPT_TOKENS + _MESSAGE_TOKENS * messages

    def learn(self, *, messages: int, text_tokens: int, reported: int) -> None:
        """Learn from a call. If it reports fewer tokens than its texts have, the prompt was cut: it is ignored."""
        if not messages or reported < text_tokens:
            return
        added = reported - text_tokens
        is_doubtful = added > self.count_tokens(messages) + _DOUBTFUL_TOKENS
        if is_doubtful and not self._has_doubt:
            self._has_doubt = True
        else:
            self._has_doubt = False
            seen = self._seen or SeenTemplate(messages=messages, added=added)
            self._seen = seen.add_report(messages, added)
        if self._parent is not None:
            self._parent.learn(messages=messages, text_tokens=text_tokens, reported=reported)

    def fork(self) -> TemplateAllowance:
        """Return a copy that learns on its own and passes its reports on to this one."""
        forked = copy(self)
        forked._parent = self  # noqa: SLF001 - another of the same class
        return forked

    def snapshot(self) -> Json:
        """Return what was learnt; `seen` is null before the first report."""
        return {"seen": None if self._seen is None else asdict(self._seen), "has_doubt": self._has_doubt}

    def restore(self, snapshot: Json) -> None:
        """Replace what was learnt with `snapshot`. Raises InternalError: as `Forkable.restore`."""
        seen: Any = snapshot.get("seen", _MISSING) if isinstance(snapshot, dict) else _MISSING
        if seen is None:
            self._seen = None
        else:
            has_each = isinstance(seen, dict) and seen.get("each") is not None
            names = ("messages", "added", "each") if has_each else ("messages", "added")
            self._seen = SeenTemplate(**{name: read_number(seen, name, least=0, most=_MOST_SEEN) for name in names})
        self._has_doubt = snapshot.get("has_doubt") is True
