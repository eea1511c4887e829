"""A model whose every call begins with a preface: the instructions and the earlier messages of the caller."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.llm.counting.learners import can_fork
from reasond_server.llm.counting.requests import bound_images
from reasond_server.llm.model import ChatModel, ImagePart, Message, Role, WrappedModel
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.counting.learners import Forkable
    from reasond_server.llm.model import ChatRequest, ModelEvent, TokenCounter
    from reasond_server.types import Json

_TALKERS: Final = (Role.USER, Role.ASSISTANT)


@value
class Preface:
    """What precedes the prompts of a strategy: `system` its instructions, `history` its first other message.

    `images` become part of the strategy's first message of the user.
    Neighbouring messages of one author are joined: many chat templates accept only authors in turn.
    """

    system: str = ""
    history: Sequence[Message] = ()
    images: Sequence[ImagePart] = ()

    def apply(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return `messages` after the preface."""
        has_rules = bool(messages) and messages[0].role is Role.SYSTEM
        rules, rest = (messages[0].content, messages[1:]) if has_rules else ("", messages)
        system = "\n\n".join(part for part in (self.system, rules) if part)
        first = (Message(role=Role.SYSTEM, content=system),) if system else ()
        return (*first, *join_neighbours(*self.history, *(self._add_images(rest) if self.images else rest)))

    def _add_images(self, messages: Sequence[Message]) -> Sequence[Message]:
        at = next((place for place, each in enumerate(messages) if each.role is Role.USER), None)
        if at is None:
            return messages
        return (*messages[:at], replace(messages[at], images=(*messages[at].images, *self.images)), *messages[at + 1 :])


def join_neighbours(*messages: Message) -> list[Message]:
    """Return `messages` with neighbours of one author joined, unless they call tools."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last.role is message.role and last.role in _TALKERS and not last.tool_calls:
            joined[-1] = replace(
                message,
                content=f"{last.content}\n\n{message.content}" if last.content else message.content,
                reasoning="\n\n".join(text for text in (last.reasoning, message.reasoning) if text),
                images=(*last.images, *message.images),
            )
        else:
            joined.append(message)
    return joined


class PrefacedModel(WrappedModel[ChatModel]):
    """The model, with `preface` before the messages of each call and of each count."""

    def __init__(self, *, model: ChatModel, preface: Preface) -> None:
        super().__init__(model=model)
        self._preface = preface
        self._counter = preface_counter(model.counter, preface)

    @property
    def counter(self) -> TokenCounter:
        """Counter of the model; the tokens of a prompt include the preface."""
        return self._counter

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the server's count of the preface and `messages`, None if it does not count."""
        # Servers count texts.
        return None if self._preface.images else await self._model.count_exactly(self._preface.apply(messages))

    def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model. Raises the errors of the inner model."""
        return self._model.stream(replace(request, messages=self._preface.apply(request.messages)))


class PrefacedCounter:
    """A counter that adds the preface to every prompt."""

    def __init__(self, counter: TokenCounter, preface: Preface) -> None:
        self._inner = counter
        self._preface = preface

    @property
    def is_exact(self) -> bool:
        """Whether the counts are the model's own."""
        return self._inner.is_exact

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone."""
        return self._inner.count_text(text)

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the input tokens of a call with the preface and `messages`."""
        whole = self._preface.apply(messages)
        return self._inner.count_prompt(whole) + bound_images(whole)

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` with at most `tokens` tokens."""
        return self._inner.head(text, tokens)

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` with at most `tokens` tokens."""
        return self._inner.tail(text, tokens)

    def list_messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages of the prompt, those of the preface included."""
        return self._preface.apply(messages)


def list_messages(messages: Sequence[Message], counter: TokenCounter) -> Sequence[Message]:
    """Return all messages of the prompt that `counter` counts as `messages`."""
    return counter.list_messages(messages) if isinstance(counter, PrefacedCounter) else messages


class ForkablePrefacedCounter(PrefacedCounter):
    """The same over a counter that learns; reports are passed on with the preface."""

    def __init__(self, counter: TokenCounter, preface: Preface, *, learner: Forkable) -> None:
        super().__init__(counter, preface)
        self._learner = learner

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        """See `Learner.learn`."""
        self._learner.learn(self._preface.apply(messages), reported)

    def fork(self) -> TokenCounter:
        """See `Forkable.fork`."""
        return preface_counter(self._learner.fork(), self._preface)

    def snapshot(self) -> Json:
        """See `Forkable.snapshot`."""
        return self._learner.snapshot()

    def restore(self, snapshot: Json) -> None:
        """See `Forkable.restore`."""
        self._learner.restore(snapshot)


def preface_counter(counter: TokenCounter, preface: Preface) -> TokenCounter:
    """Return a counter that adds `preface` to every prompt, and learns if `counter` does."""
    learner = counter if can_fork(counter) else None
    if learner is None:
        return PrefacedCounter(counter, preface)
    return ForkablePrefacedCounter(counter, preface, learner=learner)
