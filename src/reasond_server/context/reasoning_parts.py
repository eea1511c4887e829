"""Inputs of the prompt of a model call, and the report on it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from reasond_server.types.policy_sections import PolicySection
from reasond_server.types.turns import ContextGoal, ContextItem, Rendering
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.context.step_records import PromptMemory, ReasoningStepRecord
    from reasond_server.llm.model import Message, TokenCounter


@value
class ContextSettings(PolicySection):
    """How results are shown; without `preview_above_tokens` none is shown as a preview."""

    preview_above_tokens: Annotated[
        int | None,
        Field(ge=64, le=8192, description="Results with more tokens are shown as previews while planning."),
    ] = 256
    preview_tokens: Annotated[int, Field(ge=128, le=16_384, description="Most tokens of a preview.")] = 1_024
    error_tokens: Annotated[
        int,
        Field(
            ge=64,
            le=8192,
            description="Errors are shown whole up to so many tokens, beyond that as previews.",
        ),
    ] = 1_024
    clear_at_least_tokens: Annotated[
        int,
        Field(
            ge=0,
            le=131_072,
            description="Results are left out of prompts in batches of at least so many tokens, because each change "
            "of the beginning of a prompt costs the model's cache.",
        ),
    ] = 4_096
    keep_recent: Annotated[
        int,
        Field(
            ge=0,
            le=50,
            description="Newest results that are left out last, besides those that the model has not seen yet.",
        ),
    ] = 3
    history_share: Annotated[
        float,
        Field(ge=0, le=0.9, description="Most of a prompt that earlier turns of the session may take, 0-0.9."),
    ] = 0.25


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
        is_last: whether the model has to answer: then whole steps may be left out, the oldest first.
        may_exceed_budget: whether a prompt that is too long after everything was left out is returned all the same.
        renderings: how results, thoughts and turns were shown before, by their sources: what earlier calls gave back.
        settings: how results are shown.
        most_result_tokens: if the results take more tokens together, the oldest are left out until about half of it is
            taken, but none of those that `keep_recent` keeps; None means no limit besides that of the prompt.
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
    is_last: bool = False
    may_exceed_budget: bool = False
    renderings: Mapping[str, StoredRendering] = field(default_factory=dict)
    settings: ContextSettings = field(default_factory=ContextSettings)
    most_result_tokens: int | None = None
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
