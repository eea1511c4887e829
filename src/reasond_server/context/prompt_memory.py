"""What one prompt of a turn leaves for the next: messages, and the tokens of parts that stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from reasond_server.llm.model import Message, TokenCounter


class PromptMemory:
    """Keeps what was made for earlier prompts, for as long as it is made from the same.

    A message that is not made again keeps its JSON. Nothing here changes a prompt.
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Sequence[Message], TokenCounter, int]] = {}
        self._steps: dict[int, tuple[Sequence[Any], Sequence[Message]]] = {}

    def keep_part(
        self, source: str, messages: Sequence[Message], counter: TokenCounter, count: Callable[[], int]
    ) -> tuple[Sequence[Message], int]:
        """Return the messages of the part `source` as they were made first, and their tokens by `counter` then."""
        known = self._parts.get(source)
        if known is None or known[1] is not counter or known[0] != messages:
            known = self._parts[source] = (messages, counter, count())
        return known[0], known[2]

    def keep_step(self, place: int, key: Sequence[Any], make: Callable[[], Iterable[Message]]) -> Sequence[Message]:
        """Return the messages of the step number `place`; `key` is everything that they are made from."""
        known = self._steps.get(place)
        if known is None or known[0] != key:
            known = self._steps[place] = (key, tuple(make()))
        return known[1]
