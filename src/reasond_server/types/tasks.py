"""A client's task, its budget, the caller, and the choices of `auto` that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from reasond_server.types.steps import ToolCall, ToolResult
from reasond_server.types.values import Json, value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class StrategySource(StrEnum):
    """The level of precedence that chose the strategy; AUTO is the rule that the operator enabled."""

    REQUEST = "request"
    AGENT = "agent"
    SYSTEM = "system"
    AUTO = "auto"


@value
class Budget:
    """Bounds on one execution; None sets no bound. `max_output_tokens` bounds what all calls together write."""

    max_total_tokens: int | None = None
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_elapsed_s: float | None = None
    max_output_tokens: int | None = None


NO_BUDGET: Final = Budget()
"""The budget of a task that sets none."""


class Speaker(StrEnum):
    """The author of an earlier message of a conversation."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@value
class Image:
    """An image that the question is about; `base64` is its content."""

    media_type: str
    base64: str


@value
class HistoryMessage:
    """An earlier message of the conversation that a task continues.

    A user says a `text` and shows `images`. The assistant says a text after its `reasoning`, and calls tools. A message
    of the role TOOL has the results of calls.
    """

    role: Speaker
    text: str = ""
    images: Sequence[Image] = ()
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_results: Sequence[ToolResult] = ()

    def list_texts(self) -> Sequence[str]:
        """Return all that it says, for those who count."""
        if not (self.tool_calls or self.tool_results):
            return self.text, self.reasoning
        return (
            self.text,
            self.reasoning,
            *(text for call in self.tool_calls for text in (call.name, call.arguments_json)),
            *(result.result_json for result in self.tool_results),
        )


def restore_history(rows: Iterable[Mapping[str, Any]]) -> tuple[HistoryMessage, ...]:
    """Return the messages in `rows`, which `build_row` made; what an older release did not write is left out.

    Raises:
        KeyError, TypeError, ValueError: a row is no message.
    """
    return tuple(
        HistoryMessage(
            role=Speaker(row["role"]),
            text=row["text"],
            images=tuple(Image(**each) for each in row.get("images", ())),
            reasoning=row.get("reasoning", ""),
            tool_calls=tuple(ToolCall(**each) for each in row.get("tool_calls", ())),
            tool_results=tuple(ToolResult(**each) for each in row.get("tool_results", ())),
        )
        for row in rows
    )


@value
class Task:
    """The task of a client; `reasoning.requests` checks the lengths of its texts.

    Attributes:
        query: the question.
        material: the long text that the question is about.
        strategy: the name of a strategy.
        config: only the parameters that the request set.
        agent: the id of a registered agent.
        agent_capabilities: they can only narrow the choice of the strategy.
        budget: bounds on what the execution may spend.
        system: instructions of the application, part of every model call.
        history: the earlier messages of the conversation, the oldest first, part of every model call.
        model: the name of a backend that the operator offers; None: the server's.
        stop: strings that end the answer; the answer does not contain them.
        answer_schema: the JSON Schema (draft 2020-12) that the answer must satisfy; None: the answer is text.
        images: the images that the question is about, part of every model call.
        echo_json: what the protocol of the request tells its clients of it again; nothing else reads it.
    """

    query: str
    material: str = ""
    strategy: str | None = None
    config: Json = field(default_factory=dict)
    agent: str | None = None
    agent_capabilities: Sequence[str] = ()
    budget: Budget = NO_BUDGET
    system: str = ""
    history: Sequence[HistoryMessage] = ()
    model: str | None = None
    stop: Sequence[str] = ()
    answer_schema: Json | None = None
    images: Sequence[Image] = ()
    echo_json: str = ""

    @property
    def has_options(self) -> bool:
        """Whether it says more than its question, its text, its strategy and its budget."""
        return bool(
            self.system
            or self.history
            or self.stop
            or self.images
            or self.echo_json
            or self.model is not None
            or self.answer_schema is not None
        )

    @property
    def text_characters(self) -> int:
        """The length of all its texts, which says whether building or counting a prompt takes long."""
        characters = len(self.query) + len(self.material)
        if self.system or self.history:
            characters += len(self.system) + sum(
                [len(text) for message in self.history for text in message.list_texts()]
            )
        return characters


def build_row(asked: DataclassInstance) -> dict[str, Any]:
    """Return the fields of what a client asked for, for digests and plans; without options a task has none for them.

    Values within them are written by `write_value` when the row is: a history may have ten thousand messages.
    """
    if type(asked) is Task and not asked.has_options:
        # Written out, because most executions have such a task.
        return {
            "query": asked.query,
            "material": asked.material,
            "strategy": asked.strategy,
            "config": asked.config,
            "agent": asked.agent,
            "agent_capabilities": asked.agent_capabilities,
            "budget": {
                "max_total_tokens": asked.budget.max_total_tokens,
                "max_model_calls": asked.budget.max_model_calls,
                "max_tool_calls": asked.budget.max_tool_calls,
                "max_elapsed_s": asked.budget.max_elapsed_s,
                "max_output_tokens": asked.budget.max_output_tokens,
            },
        }
    return {each.name: getattr(asked, each.name) for each in fields(asked)}


def write_value(found: object) -> object:
    """Return a value that is none of JSON as one: for encoders, which ask this of each that they do not know."""
    if is_dataclass(found) and not isinstance(found, type):
        return build_row(found)
    return dict(found) if isinstance(found, Mapping) else str(found)


@value
class Principal:
    """The caller as the verified token names it, never as a field of the request names it.

    `key_id` is the id of the API key that it called with; empty for other tokens and certificates.
    """

    subject: str
    tenant: str
    permissions: frozenset[str]
    key_id: str = ""


class TaskForm(StrEnum):
    """What a task is made of, beside its question."""

    QUESTION = "question"
    MATERIAL = "material"
    SCHEMA = "schema"


@value
class MeasuredChoice:
    """The strategy with its parameters, and the figures that justify it, in a sentence."""

    strategy: str
    config: Mapping[str, Any]
    why: str


def find_form(task: Task) -> TaskForm:
    """Return the form of `task`."""
    if task.answer_schema is not None:
        return TaskForm.SCHEMA
    return TaskForm.MATERIAL if task.material else TaskForm.QUESTION
