"""Executions, the events of their logs, and the events of streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from reasond_server.types.kinds import EVENTS, NOT_CONTENT, FieldOptions, Word
from reasond_server.types.metrics import Metrics
from reasond_server.types.steps import StepDetail
from reasond_server.types.tasks import StrategySource
from reasond_server.types.usage import NOTHING, Usage
from reasond_server.types.values import Json, value


class FinishReason(StrEnum):
    """How an execution ended; the comments of execution.proto explain each value."""

    ANSWERED = "answered"
    ANSWERED_UNTAGGED = "answered_untagged"
    MAX_ITERATIONS = "max_iterations"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TRUNCATED = "truncated"
    CONTENT_FILTERED = "content_filtered"
    CANCELLED = "cancelled"
    FAILED = "failed"
    EXPIRED = "expired"


NOT_RECORDED: Final = "The server keeps no content ([store] record_content): the texts of this execution are gone."


_NOT_KEPT: Final = "The message was not kept."


class ExecutionState(StrEnum):
    """Whether an execution runs, is suspended, or has ended with one of three results."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"

    @property
    def has_ended(self) -> bool:
        """Whether the log has its last event."""
        return self is not ExecutionState.RUNNING and self is not ExecutionState.SUSPENDED

    @classmethod
    def after(cls, reason: FinishReason) -> ExecutionState:
        """Return the state of an execution that ended for `reason`."""
        if reason is FinishReason.FAILED or reason is FinishReason.EXPIRED:
            return cls.FAILED
        return cls.CANCELLED if reason is FinishReason.CANCELLED else cls.SUCCEEDED


class Event:
    """Base of the events of a log. Each service declares its own kinds in `kinds.EVENTS`."""

    __slots__ = ()


class LastEvent(Event):
    """Base of the events that end a log, with the failure if there was one; each kind of work has one such event."""

    __slots__ = ()
    execution_id: str
    error: ExecutionFailure | None

    @property
    def headline(self) -> str:
        """One line of what came of it: of the answer, or the reason and the message of the error."""
        if self.error is not None:
            return self.error.headline
        answer: str = getattr(self, "answer", "")
        return write_headline(answer)


@EVENTS.declare("started")
@value
class ExecutionStarted(Event):
    """The first event of every log; `config` is the configuration after all levels of precedence are merged."""

    strategy: Word
    strategy_source: StrategySource
    model: Word
    config: Annotated[Json, NOT_CONTENT]


@EVENTS.declare("iteration")
@value
class Iteration(Event):
    """One completed step; `index` counts from 0. `edition` is that of its answer, if readers may see it being written.

    See `AnswerPlace`; -1 if nobody may. `logprobs_json` are the tokens of its answer, where they were asked for: rows
    of text, log probability, and rows of the likeliest in its place.
    """

    index: int
    answer_found: bool
    usage: Usage
    elapsed_s: float
    detail: StepDetail
    edition: Annotated[int, FieldOptions(is_stored_only=True)] = -1
    logprobs_json: Annotated[str, FieldOptions(is_stored_only=True)] = ""


@value
class AnswerPlace:
    """Where a text stands that is part of an answer: at the character `at`, after the whole `thinking`.

    The answer in the log begins with what was shown, if it has the same `edition`. It has a later one if the text was
    lost with its process, or turned out to be no part of it.
    """

    at: int
    thinking: str
    edition: int


@EVENTS.declare("delta", is_logged=False)
@value
class TextDelta:
    """Text that the model has just written in step `iteration_index`; never logged.

    It was written while `after_sequence` was the last event of the log. `place` is set for the text of an answer.
    """

    iteration_index: int
    text: str
    after_sequence: Annotated[int, FieldOptions(is_stored_only=True)] = field(default=0, compare=False)
    place: Annotated[AnswerPlace | None, FieldOptions(is_stored_only=True)] = field(default=None, compare=False)


@EVENTS.declare("heartbeat", is_logged=False)
@value
class Heartbeat:
    """Sent after a time without other events; never logged."""


@value
class ExecutionFailure:
    """The stored cause of a failed execution: a reason of errors.proto and the message."""

    reason: Word
    message: Annotated[str, FieldOptions(instead=_NOT_KEPT)]

    @property
    def headline(self) -> str:
        """The reason with the message, if that was kept, in one line."""
        return self.reason if self.message == _NOT_KEPT else write_headline(f"{self.reason}: {self.message}")


@EVENTS.declare("result", wire_tag="completed")
@value
class Result(LastEvent):
    """The last event of the log of a reasoning execution, `Reasoning` in the proto. The log holds the steps.

    `finish_reason` is None only in the partial result of an execution that still runs. `answer_json` is the answer as
    compact JSON, if the task has an `answer_schema` and the answer satisfies it; else it is empty. `stop_sequence` is
    the stop string that ended the answer.
    """

    execution_id: Word
    answer: str
    strategy_used: Word
    strategy_source: StrategySource
    finish_reason: FinishReason | None
    metrics: Metrics
    warnings: Annotated[Sequence[str], FieldOptions(instead=(NOT_RECORDED,))]
    model: Word
    error: ExecutionFailure | None = None
    answer_json: str = ""
    stop_sequence: Annotated[str, FieldOptions(is_stored_only=True)] = ""


@value
class LoggedEvent:
    """An event at its place in the log; `sequence` counts from 1 without gaps."""

    sequence: int
    create_time: datetime
    event: Event


# A tuple takes a third of the time to make: one is made per event and subscriber, and it is short-lived.
class StreamEvent(NamedTuple):
    """One event of a stream; deltas and heartbeats repeat the sequence number of the last logged event."""

    execution_id: str
    sequence: int
    create_time: datetime
    event: Event | TextDelta | Heartbeat


@value
class Cursor:
    """A place in the log of an execution: the last event that the client has received, 0 for none."""

    execution_id: str
    after_sequence: int = 0


@value
class Execution:
    """An execution without its content but for one line of it; the owner is the tenant that started it.

    `kind` names the service that runs it. A suspended execution resumes at `wake_time`; without one it waits for a
    call. `session_id` is empty if it belongs to no session.

    Attributes:
        question: the first line of what was asked, and `outcome` what came of it; empty where no content is kept.
        client: the subject of the token that started it.
        wire: the transport that started it, as metrics name it.
    """

    execution_id: str
    tenant: str
    state: ExecutionState
    strategy: str
    strategy_source: StrategySource
    model: str
    create_time: datetime
    request_id: str = ""
    finish_reason: FinishReason | None = None
    end_time: datetime | None = None
    expire_time: datetime | None = None
    last_sequence: int = 0
    usage: Usage = NOTHING
    kind: str = "reasoning"
    wake_time: datetime | None = None
    session_id: str = ""
    question: str = ""
    outcome: str = ""
    client: str = ""
    wire: str = ""


@value
class PromptMessage:
    """A message of a prompt: its text, with the calls of tools that it has, and how many images it has."""

    role: Word
    text: str
    images: int = 0


@value
class ModelCall:
    """What a model was sent and what came back.

    `number` counts the calls of the execution from 1, in the order in which they ended, which was at `create_time`.
    `outcome` is how the model says that it ended, "closed" if the work left it, or the reason of an error.
    `left_out_characters` of the texts are not kept.
    """

    number: int
    create_time: datetime
    elapsed_s: float
    model: Word
    label: Word
    prompt: Sequence[PromptMessage]
    tools: Sequence[Word]
    max_tokens: int
    temperature: float
    text: str
    thinking: str
    tool_calls: Sequence[str]
    usage: Usage
    outcome: Word
    left_out_characters: int = 0

    @property
    def characters(self) -> int:
        """How many characters its texts have."""
        texts = (self.text, self.thinking, *self.tool_calls, *(each.text for each in self.prompt))
        return sum(map(len, texts))


_MOST_CHARACTERS: Final = 200
_LOOKED_AT: Final = 600
"""How many characters of a text are looked at: it may have two million."""


def write_headline(text: str) -> str:
    """Return the first line of `text` that says something: at most 200 characters, all of them printable."""
    for line in text.lstrip()[:_LOOKED_AT].splitlines():
        kept = " ".join(line.split())
        if not kept.isprintable():
            kept = "".join(filter(str.isprintable, kept))
        if kept:
            return kept if len(kept) <= _MOST_CHARACTERS else f"{kept[: _MOST_CHARACTERS - 1]}…"
    return ""
