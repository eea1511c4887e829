"""Turns: the events of their logs, and what clients send and get.

A turn is one request of a conversation: the model calls tools of the server and of the client until it answers. While
it waits for its client, the turn is suspended. Its state is the fold of its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from reasond_server.types.executions import NOT_RECORDED, Event, ExecutionFailure, FinishReason, LastEvent, TextDelta
from reasond_server.types.kinds import EVENTS, FieldOptions, JsonText, Word
from reasond_server.types.steps import ToolCall, ToolResult
from reasond_server.types.tasks import Budget, HistoryMessage, Image
from reasond_server.types.usage import NOTHING, Usage
from reasond_server.types.values import Json, value


@value
class Session:
    """What executions that belong together share.

    Attributes:
        revision: 1 when the first execution starts, and one more at each further start and at each end.
        state: what the last execution that ended left for the next one; it is content of the caller.
        open_execution: the execution that runs or is suspended; empty if there is none.
        execution_count: how many executions were started in it.
        update_time: the time of the last start or end.
        expire_time: when it is no longer kept; while an execution is open it is kept longer.
    """

    session_id: str
    tenant: str
    revision: int
    state: Json
    open_execution: str
    execution_count: int
    create_time: datetime
    update_time: datetime
    expire_time: datetime


class ContextScope(StrEnum):
    """How long a block of context applies: in one model call of the turn, or in every call of the session."""

    TURN = "turn"
    SESSION = "session"


class ContextGoal(StrEnum):
    """What a prompt is for: to plan the next step, to write the answer from full results, or to summarise a result."""

    PLANNING = "planning"
    SYNTHESIS = "synthesis"
    SUMMARY = "summary"


class Rendering(StrEnum):
    """How a tool result appears in a prompt."""

    FULL = "full"
    PREVIEW = "preview"
    SUMMARY = "summary"
    HANDLE = "handle"


class CallKind(StrEnum):
    """What a client is asked for: the result of its tool, an approval, or what came of a call nobody knows about."""

    EXECUTE = "execute"
    APPROVE = "approve"
    RESOLVE = "resolve"


class LedgerState(StrEnum):
    """The state of one tool call of a turn."""

    EXPECTED = "expected"
    STARTED = "started"
    HANDED_OFF = "handed_off"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    NOT_RUN = "not_run"

    @property
    def is_closed(self) -> bool:
        """Whether the call has an outcome."""
        return self in _CLOSED


_CLOSED = frozenset({LedgerState.SUCCEEDED, LedgerState.FAILED, LedgerState.UNKNOWN, LedgerState.NOT_RUN})


@value
class ClientTool:
    """A tool that the client executes; `parameters_json` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters_json: JsonText


@value
class ContextBlock:
    """Text that the client adds to prompts under a `name`."""

    name: str
    scope: ContextScope
    text: str


@value
class ContextItem:
    """Something in a prompt: a part's source, `step:N` for the text of a reply, or the id of a call for its result.

    `tokens` are 0 for a part of the history that is left out.
    """

    source: Word
    rendering: Rendering
    tokens: int
    full_tokens: int


@value
class LoggedRendering:
    """How a result, a thought or a turn of the history is shown from now on; `source` names it as in ContextItem."""

    source: Word
    rendering: Rendering
    tokens: int
    full_tokens: int
    text: str = ""


@value
class PendingCall:
    """A call that the client has to settle.

    `idempotency_key` names the call: a client that repeats it gives the same key to the system that it acts on.
    `fingerprint` is a digest of the tool, its arguments and the `kind`.
    """

    call: ToolCall
    kind: CallKind
    idempotency_key: Word
    fingerprint: Word


@value
class Decision:  # same name: what a person decided, where the audit log has what the server decided
    """A person's decision about a call that needs approval; the model learns the `reason`."""

    call_id: Word
    is_approved: bool
    reason: str = ""


@value
class TurnStart:
    """The request that starts a turn; an empty `session_id` is a turn without memory.

    If `if_revision` is set, the session must have that revision; 0 means that it must not exist yet.

    Attributes:
        system: instructions of the caller.
        history: what was said before, where no session keeps it.
        tool_choice: what the first reply must be: "auto" (or empty), "none", "required", or the name of a client tool.
        parallel_tool_calls: whether several calls of client tools may be handed off together.
        answer_schema_json: the JSON Schema that the answer must satisfy; empty: it is text.
        stop: strings that end the answer.
        images: what the message shows.
        temperature: sampling temperature; None: that of the server.
        seed: sampling seed, for models that take one.
        uses_server_tools: whether the model may also call tools of the server, where the caller is permitted to.
        echo_json: what the protocol of the request tells its clients of it again; nothing else reads it.
    """

    message: str
    session_id: str = ""
    if_revision: int | None = None
    material: str = ""
    mode: str | None = None
    client_tools: Sequence[ClientTool] = ()
    context: Sequence[ContextBlock] = ()
    budget: Budget = field(default_factory=Budget)
    system: str = ""
    history: Sequence[HistoryMessage] = ()
    tool_choice: Word = ""
    parallel_tool_calls: bool = True
    answer_schema_json: JsonText = ""
    stop: Sequence[str] = ()
    images: Sequence[Image] = ()
    temperature: float | None = None
    seed: int | None = None
    uses_server_tools: bool = True
    echo_json: JsonText = ""


@value
class TurnReentry:
    """The request that settles the pending calls of a turn, all of them at once; `echo_json` as in TurnStart."""

    turn_id: str
    etag: str
    results: Sequence[ToolResult] = ()
    decisions: Sequence[Decision] = ()
    echo_json: str = ""


@EVENTS.declare("turn_started", wire_tag="started", keys=("session_id", "mode", "model", "session_revision"))
@value
class TurnStarted(Event):
    """The first event of a turn; `session_revision` is that of the session after the start, 0 without a session."""

    session_id: Word
    mode: Word
    model: Word
    message: str
    session_revision: int = 0
    material: str = ""
    client_tools: Sequence[ClientTool] = ()
    context: Sequence[ContextBlock] = ()
    system: str = ""
    history: Sequence[HistoryMessage] = ()
    tool_choice: Word = ""
    parallel_tool_calls: bool = True
    answer_schema_json: JsonText = ""
    stop: Sequence[str] = ()
    images: Sequence[Image] = ()
    temperature: float | None = None
    seed: int | None = None
    uses_server_tools: bool = True
    echo_json: JsonText = ""


@EVENTS.declare(
    "model_call", keys=("index", "goal", "mode", "model", "usage", "elapsed_ms", "context", "tools", "text", "calls")
)
@value
class ModelCallStep(Event):
    """One model call with its reply; its `calls` are expected from now on.

    `provider_ids` are the ids of the calls on the wire to the model. `renderings` are those that this prompt
    introduced or changed. `blocks` names the context providers with the scope TURN whose text this call has consumed.
    `edition` is that of the text, if clients may see it being written (`AnswerPlace`); else -1.
    """

    index: int
    goal: ContextGoal
    mode: Word
    model: Word
    usage: Usage
    elapsed_s: float
    text: str
    thinking: str = ""
    finish: Word = ""
    context: Sequence[ContextItem] = ()
    tools: Sequence[str] = ()
    calls: Sequence[ToolCall] = ()
    provider_ids: Sequence[str] = ()
    renderings: Sequence[LoggedRendering] = ()
    blocks: Sequence[str] = ()
    edition: Annotated[int, FieldOptions(is_stored_only=True)] = -1


@EVENTS.declare(
    "turn_tool",
    wire_tag="tool",
    keys=("call_id", "tool", "state", "is_error", "result_bytes", "fingerprint", "elapsed_ms", "is_concurrent"),
)
@value
class ToolStep(Event):
    """A tool call of the server began or ended; the result is read with ReadToolResult."""

    call_id: Word
    tool: Word
    state: LedgerState
    fingerprint: Word = ""
    is_error: bool = False
    result_bytes: int = 0
    elapsed_s: float = 0.0
    result_json: JsonText = ""
    is_concurrent: bool = False


@EVENTS.declare("mode_change")
@value
class ModeChange(Event):
    """The mode that is in force from the next model call."""

    call_id: Word
    old_mode: Word
    new_mode: Word


@EVENTS.declare("handed_off")
@value
class HandedOff(Event):
    """The turn waits for its client until `expire_time`; a re-entry names `etag`."""

    etag: Word
    expire_time: datetime
    calls: Sequence[PendingCall]


@EVENTS.declare("reentered", keys=("etag", "call_ids"))
@value
class Reentered(Event):
    """The client settled all pending calls. `digest` tells a repeated re-entry from another one."""

    etag: Word
    digest: Word
    call_ids: Sequence[Word]
    results: Sequence[ToolResult] = ()
    decisions: Sequence[Decision] = ()
    echo_json: JsonText = ""


@EVENTS.declare("turn_completed", wire_tag="completed")
@value
class TurnResult(LastEvent):
    """The last event of a turn; `mode` is the one that the next turn of the session begins in.

    `stop_sequence` is the stop string that ended the answer.
    """

    execution_id: Annotated[str, FieldOptions(is_content=False, wire_name="turn_id")]
    answer: str
    finish_reason: FinishReason
    mode: Word
    model: Word
    usage: Usage
    elapsed_s: float
    warnings: Annotated[Sequence[str], FieldOptions(instead=(NOT_RECORDED,))] = ()
    error: ExecutionFailure | None = None
    stop_sequence: Annotated[str, FieldOptions(is_stored_only=True)] = ""


@EVENTS.declare("turn_delta", wire_tag="delta", is_logged=False)
@value
class TurnDelta(TextDelta):
    """Text that the model has just written in model call `iteration_index`; a synthesis may still replace a draft."""

    is_draft: bool = False


class TurnState(StrEnum):
    """What a turn does, or how it ended."""

    RUNNING = "running"
    AWAITING_CLIENT = "awaiting_client"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@value
class LedgerEntry:
    """One tool call of a turn for callers: its state and the size of its result.

    Arguments and results of more than 4,096 bytes are empty here. `refusal` is what a person said who refused the call.
    """

    call_id: Word
    tool: Word
    state: LedgerState
    is_error: bool = False
    result_bytes: int = 0
    arguments_json: str = ""
    result_json: str = ""
    refusal: str = ""


@value
class TurnConversation:
    """What was said to a turn; `left_out_messages` of the oldest of its history are not told."""

    system: str
    history: Sequence[HistoryMessage]
    message: str
    material: str
    context: Sequence[ContextBlock]
    left_out_messages: int = 0


@value
class Turn:
    """A turn for callers, without its content but for its calls and the lines of lists; `ledger` is empty in lists."""

    turn_id: Word
    session_id: Word
    state: TurnState
    mode: Word
    model: Word
    create_time: datetime
    handoff: HandedOff | None = None
    ledger: Sequence[LedgerEntry] = ()
    end_time: datetime | None = None
    expire_time: datetime | None = None
    usage: Usage = NOTHING
    last_sequence: int = 0
    request_id: Word = ""
    question: str = ""
    outcome: str = ""
    client: Word = ""
    wire: Word = ""
    finish_reason: FinishReason | None = None


@value
class SessionView:
    """A session for callers."""

    session_id: Word
    revision: int
    mode: Word
    open_turn_id: Word
    turn_count: int
    create_time: datetime
    update_time: datetime
    expire_time: datetime


@value
class TextHit:
    """A place in a result that contains the wanted text; `offset` counts characters."""

    offset: int
    text: str


@value
class ResultPart:
    """Which part of a tool result to read; by default all of it. `limit` 0 means no limit of its own."""

    offset: int = 0
    limit: int = 0
    json_pointer: str | None = None
    contains: str | None = None


@value
class ResultExcerpt:
    """A part of a tool result: text that begins at character `offset`; `next_offset` is 0 at the end."""

    text: str
    total_characters: int
    offset: int = 0
    next_offset: int = 0
    hits: Sequence[TextHit] = ()
    is_error: bool = False
