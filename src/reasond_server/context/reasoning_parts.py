"""What the prompt of a model call is made from, and what is told about it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from reasond_server.types.turns import ContextGoal
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.context.prompt_memory import PromptMemory
    from reasond_server.context.step_records import ReasoningStepRecord
    from reasond_server.llm.model import Message, TokenCounter
    from reasond_server.types.turns import ContextItem, Rendering


@value
class ContextSettings:
    """How results are shown.

    Attributes:
        preview_above_tokens: a new result with more tokens is shown as a preview; None means that none is.
        preview_tokens: most tokens of a preview.
        error_tokens: a failed result is whole up to so many tokens, and a preview of as many above.
        clear_at_least_tokens: if results must be left out, so many tokens of them are, because each time the
            provider's cache of the prompt is lost.
        keep_recent: so many of the newest results, and in any case those of the newest step, are left out last.
        history_share: most of the budget that earlier turns may take.
        most_result_tokens: if the results take more tokens together, the oldest are left out until about half of it is
            taken, but none of those that `keep_recent` keeps; None means no limit besides that of the prompt.
    """

    preview_above_tokens: int | None = 256
    preview_tokens: int = 1_024
    error_tokens: int = 1_024
    clear_at_least_tokens: int = 4_096
    keep_recent: int = 3
    history_share: float = 0.25
    most_result_tokens: int | None = None


@value
class PromptPart:
    """Messages from one source, such as "system", "message", "history:TURN", "mode" or the name of a provider."""

    source: str
    messages: Sequence[Message]


@value
class StoredRendering:
    """How something was shown, to be shown so again: `text` is what stands in the fence, empty if it is shown whole.

    `tokens` are those of what is shown, `full_tokens` those of the whole, by the counter of that call.
    """

    rendering: Rendering
    tokens: int
    full_tokens: int
    text: str = ""


@value
class ContextReport:
    """What a prompt is made of.

    Attributes:
        items: everything in it, in the order of the prompt.
        prompt_tokens: the tokens of all messages, the template's overhead included.
        is_reduced: whether something is not shown whole.
        is_break: whether something is shown otherwise than in an earlier call, so that the earlier prompt is no longer
            the beginning of this one.
    """

    items: Sequence[ContextItem]
    prompt_tokens: int
    is_reduced: bool
    is_break: bool


@value
class ContextInputs:
    """Everything that a prompt depends on.

    Attributes:
        opening: what every call of the session begins with, the system message first.
        history: earlier turns, the oldest first; each is a group that is shown whole or left out.
        question: the message of this turn.
        records: the steps of this turn in their order.
        tail: what belongs to this call alone; it stands last and is never stored.
        goal: what the call is for.
        budget_tokens: most tokens of all messages together; None if the window is unknown. Tools that are sent beside
            the messages are counted by the caller.
        may_exceed_budget: whether a prompt that is too long after everything was left out is returned all the same.
        renderings: how results, thoughts and turns were shown before, by their sources: what earlier calls gave back.
        settings: how results are shown.
        query: the words by which previews choose.
        counter: counts the model's tokens.
        nonce: the random mark of the fences, the same in all calls of the turn.
        is_native: whether tool calls have the provider's form.
        memory: keeps what does not change between the calls of a turn; the prompt is the same with and without it.
    """

    opening: Sequence[PromptPart]
    question: Sequence[PromptPart]
    records: Sequence[ReasoningStepRecord]
    counter: TokenCounter
    nonce: str
    is_native: bool
    history: Sequence[PromptPart] = ()
    tail: Sequence[PromptPart] = ()
    goal: ContextGoal = ContextGoal.PLANNING
    budget_tokens: int | None = None
    may_exceed_budget: bool = False
    renderings: Mapping[str, StoredRendering] = field(default_factory=dict)
    settings: ContextSettings = field(default_factory=ContextSettings)
    query: str = ""
    memory: PromptMemory | None = None

    @property
    def characters(self) -> int:
        """The characters to work on, for `context.calls.run_by_size`."""
        parts = (*self.opening, *self.history, *self.question, *self.tail)
        texts = [len(message.content) for part in parts for message in part.messages]
        results = [len(call.result.result_json) for record in self.records for call in record.calls if call.result]
        return sum(texts) + sum(results)


@value
class ReasoningContext:
    """The messages of a call, what they are made of, and the renderings that are new or changed.

    The caller stores the renderings with the call and gives all of them to the next one.
    """

    messages: Sequence[Message]
    report: ContextReport
    renderings: Mapping[str, StoredRendering]
