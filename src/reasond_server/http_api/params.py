"""The parameters of the JSON-RPC methods: checks types, names and limits of texts; the core checks the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from reasond_server.base.violations import drop_surplus_unknown, list_violations
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.requests.task_checks import require_material, require_query
from reasond_server.types import (
    NO_BUDGET,
    Budget,
    ExecutionState,
    FinishReason,
    HistoryMessage,
    Image,
    Speaker,
    Task,
    ToolCall,
    ToolResult,
)
from reasond_server.types.turns import (
    ClientTool,
    ContextBlock,
    ContextScope,
    Decision,
    ResultPart,
    TurnReentry,
    TurnStart,
)

_MAX_VIOLATIONS: Final = 20
_MAX_FIELD_CHARACTERS: Final = 120
_MANY: Final = 100
# A bound on work before the core checks its own, smaller bounds.
_MOST_ITEMS: Final = 1_000
_STREAM_OPTIONS: Final = frozenset({"follow", "include_deltas", "keep_running"})

Whole = Annotated[int, Field(ge=-(2**53) + 1, le=2**53 - 1)]
"""Integers that every JSON parser represents exactly (RFC 8259, section 6)."""


def _read_moment(given: object) -> object:
    """Return a time by RFC 3339; what is no text is left to the type."""
    if not isinstance(given, str):
        return given
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"must be a time such as 2026-11-23T10:00:00Z, got {show(given)}")
    return moment


Moment = Annotated[datetime, BeforeValidator(_read_moment)]
"""A time as text, with its offset from UTC (RFC 3339)."""


class Params(BaseModel):
    """Base of all parameters: strict types, no unknown names."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


class NoParams(Params):
    """Parameters of a method that takes only the token."""


class BudgetParams(Params):
    """Limits on the spending of one execution; null sets no limit."""

    max_total_tokens: Whole | None = None
    max_model_calls: Whole | None = None
    max_tool_calls: Whole | None = None
    max_output_tokens: Whole | None = None
    # The core names it `max_elapsed`; JSON-RPC has another name.
    max_elapsed_ms: Annotated[Whole, Field(ge=1)] | None = None

    def build_budget(self) -> Budget:
        """Return the budget in the core's terms."""
        return Budget(
            max_total_tokens=self.max_total_tokens,
            max_model_calls=self.max_model_calls,
            max_tool_calls=self.max_tool_calls,
            max_output_tokens=self.max_output_tokens,
            max_elapsed_s=None if self.max_elapsed_ms is None else self.max_elapsed_ms / 1000,
        )


class ImageParams(Params):
    """An image that the question is about."""

    media_type: str
    data: str


def _read_images(images: Iterable[ImageParams]) -> tuple[Image, ...]:
    return tuple(Image(media_type=each.media_type, base64=each.data) for each in images)


class ToolCallParams(Params):
    """A call that the model made, as the steps of a result show it."""

    call_id: str = ""
    tool: str = ""
    arguments_json: str = ""

    def build_call(self) -> ToolCall:
        """Return the call in the core's terms."""
        return ToolCall(call_id=self.call_id, name=self.tool, arguments_json=self.arguments_json)


class ToolResultParams(Params):
    """The result of a call as JSON text."""

    call_id: str = ""
    result_json: str = ""
    is_error: bool = False

    def build_result(self) -> ToolResult:
        """Return the result in the core's terms."""
        return ToolResult(call_id=self.call_id, result_json=self.result_json, is_error=self.is_error)


class HistoryParams(Params):
    """An earlier message of the conversation."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    images: list[ImageParams] = Field(default_factory=list)
    reasoning: str = ""
    tool_calls: list[ToolCallParams] = Field(default_factory=list)
    tool_results: list[ToolResultParams] = Field(default_factory=list)


def _read_history(messages: Iterable[HistoryParams]) -> Iterator[HistoryMessage]:
    return (
        HistoryMessage(
            role=Speaker(each.role),
            text=each.text,
            images=_read_images(each.images) if each.images else (),
            reasoning=each.reasoning,
            tool_calls=tuple([call.build_call() for call in each.tool_calls]) if each.tool_calls else (),
            tool_results=tuple([one.build_result() for one in each.tool_results]) if each.tool_results else (),
        )
        for each in messages
    )


class StreamableParams(Params):
    """Parameters of a method that can stream."""

    def refuse_stream_options(self) -> None:
        """Reject options that only a stream supports.

        Raises:
            InvalidRequestError: such an option is set.
        """
        if not _STREAM_OPTIONS.isdisjoint(self.model_fields_set):
            given = _STREAM_OPTIONS & self.model_fields_set
            description = "needs a stream; ask for one with 'Accept: text/event-stream'"
            raise InvalidRequestError.of(*(Violation(field=name, description=description) for name in sorted(given)))


class ExecuteParams(StreamableParams):
    """Parameters of `reasoning.execute` and its aliases: four of seed 001, and our own, from `material` on.

    `include_deltas` and `keep_running` are for streams only. A missing query counts as an empty one, so that
    both get the same error.
    """

    query: Annotated[str, AfterValidator(require_query)] = ""
    strategy: str | None = None
    strategy_config: dict[str, Any] | None = None
    agent_capabilities: list[str] | None = None
    material: Annotated[str, AfterValidator(require_material)] | None = None
    agent: str | None = None
    budget: BudgetParams | None = None
    request_id: str | None = None
    system: str = ""
    history: list[HistoryParams] | None = None
    model: str | None = None
    stop: Annotated[list[str], Field(max_length=_MOST_ITEMS)] | None = None
    answer_schema: dict[str, Any] | None = None
    images: Annotated[list[ImageParams], Field(max_length=_MOST_ITEMS)] | None = None
    include_deltas: bool = False
    keep_running: bool = False

    def build_task(self, alias: str | None) -> Task:
        """Return the task; `alias` is the strategy that the method's name selects.

        Raises:
            InvalidRequestError: `strategy` differs from the strategy of the method.
        """
        strategy, history, images = self.strategy, self.history, self.images
        if alias and strategy not in {None, alias}:
            description = f"must be left out or {alias!r} here; 'reasoning.execute' takes any strategy"
            raise InvalidRequestError.at("strategy", description)
        return Task(
            query=self.query,
            material=self.material or "",
            strategy=alias or strategy,
            config=self.strategy_config or {},
            agent=self.agent,
            agent_capabilities=tuple(self.agent_capabilities or ()),
            budget=self.budget.build_budget() if self.budget else NO_BUDGET,
            system=self.system,
            history=tuple(_read_history(history)) if history else (),
            model=self.model,
            stop=tuple(self.stop or ()),
            answer_schema=self.answer_schema,
            images=_read_images(images) if images else (),
        )


class ExecutionParams(Params):
    """Parameters of the methods about one execution."""

    execution_id: str = Field(min_length=1)


class FollowExecutionParams(ExecutionParams):
    """Parameters of `executions.follow`, as FollowExecutionRequest; the core checks the place."""

    after_sequence: Whole = 0
    include_deltas: bool = False


class ListExecutionsParams(Params):
    """Parameters of `executions.list`: filters and paging, as ListExecutionsRequest."""

    strategy: str = ""
    finish_reason: Annotated[FinishReason | None, Field(strict=False)] = None
    state: Annotated[ExecutionState | None, Field(strict=False)] = None
    create_time_after: Moment | None = None
    create_time_before: Moment | None = None
    text: str = ""
    page_size: Whole = 0
    page_token: str = ""


class ListCallsParams(ExecutionParams):
    """Parameters of `executions.list_calls`, as ListModelCallsRequest."""

    page_size: Whole = 0
    page_token: str = ""


class GetCardParams(Params):
    """Parameters of `agent.get_card`; without an id, the card of this server is meant."""

    agent_id: str = ""


class ListAgentsParams(Params):
    """Parameters of `agent.list`: filter and paging, as ListAgentsRequest."""

    capabilities: list[str] = Field(default_factory=list, max_length=100)
    page_size: Whole = 0
    page_token: str = ""


class ClientToolParams(Params):
    """A tool that the client executes; the core checks its parts."""

    name: str = ""
    description: str = ""
    parameters_json: str = ""


class ContextBlockParams(Params):
    """Text that the client adds to prompts; the core checks its parts."""

    name: str = ""
    scope: Annotated[ContextScope, Field(strict=False)] = ContextScope.TURN
    text: str = ""


class TurnStreamParams(StreamableParams):
    """Options of a stream of turn events."""

    include_deltas: bool = False
    follow: bool = False


class StartTurnParams(TurnStreamParams):
    """Parameters of `turns.start`, as TurnStart; a missing message counts as an empty one."""

    message: str = ""
    session_id: str = ""
    if_revision: Whole | None = None
    material: str = ""
    mode: str | None = None
    client_tools: list[ClientToolParams] = Field(default_factory=list, max_length=_MOST_ITEMS)
    context: list[ContextBlockParams] = Field(default_factory=list, max_length=_MOST_ITEMS)
    budget: BudgetParams | None = None
    system: str = ""
    history: list[HistoryParams] = Field(default_factory=list)
    tool_choice: str = ""
    parallel_tool_calls: bool = True
    answer_schema_json: str = ""
    stop: Annotated[list[str], Field(max_length=_MOST_ITEMS)] = Field(default_factory=list)
    images: Annotated[list[ImageParams], Field(max_length=_MOST_ITEMS)] = Field(default_factory=list)
    temperature: float | None = None
    seed: Whole | None = None
    request_id: str | None = None

    def build_start(self) -> TurnStart:
        """Return the start of the turn."""
        return TurnStart(
            message=self.message,
            session_id=self.session_id,
            if_revision=self.if_revision,
            material=self.material,
            mode=self.mode,
            client_tools=tuple(
                ClientTool(name=each.name, description=each.description, parameters_json=each.parameters_json)
                for each in self.client_tools
            ),
            context=tuple(ContextBlock(name=each.name, scope=each.scope, text=each.text) for each in self.context),
            budget=self.budget.build_budget() if self.budget else NO_BUDGET,
            system=self.system,
            history=tuple(_read_history(self.history)),
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            answer_schema_json=self.answer_schema_json,
            stop=tuple(self.stop),
            images=_read_images(self.images),
            temperature=self.temperature,
            seed=self.seed,
        )


class DecisionParams(Params):
    """A decision about a call that needs approval."""

    call_id: str = ""
    is_approved: bool
    reason: str = ""


class ReenterTurnParams(TurnStreamParams):
    """Parameters of `turns.reenter`, as TurnReentry."""

    turn_id: str = ""
    etag: str = ""
    results: list[ToolResultParams] = Field(default_factory=list, max_length=_MOST_ITEMS)
    decisions: list[DecisionParams] = Field(default_factory=list, max_length=_MOST_ITEMS)

    def build_reentry(self) -> TurnReentry:
        """Return the results and decisions."""
        return TurnReentry(
            turn_id=self.turn_id,
            etag=self.etag,
            results=tuple(each.build_result() for each in self.results),
            decisions=tuple(
                Decision(call_id=each.call_id, is_approved=each.is_approved, reason=each.reason)
                for each in self.decisions
            ),
        )


class AttachTurnParams(TurnStreamParams):
    """Parameters of `turns.attach`: a turn, and the last event of it that is known."""

    turn_id: str = Field(min_length=1)
    after_sequence: Annotated[Whole, Field(ge=0)] = 0


class TurnParams(Params):
    """Parameters of the methods about one turn."""

    turn_id: str = Field(min_length=1)


class ListTurnsParams(Params):
    """Parameters of `turns.list`: filter and paging, as ListTurnsRequest."""

    session_id: str = ""
    state: Annotated[ExecutionState | None, Field(strict=False)] = None
    page_size: Whole = 0
    page_token: str = ""


class ReadToolResultParams(TurnParams):
    """Parameters of `turns.read_tool_result`: a range, a JSON pointer or a text to find, of which one may be given."""

    call_id: str = Field(min_length=1)
    offset: Whole | None = None
    limit: Whole | None = None
    json_pointer: str | None = None
    contains: str | None = None
    max_bytes: Whole = 0

    def build_part(self) -> ResultPart:
        """Return the part to read.

        Raises:
            InvalidRequestError: more than one kind of part is given.
        """
        parts = {"offset": (self.offset, self.limit) != (None, None)}
        parts |= {"json_pointer": self.json_pointer is not None, "contains": self.contains is not None}
        given = [name for name, is_given in parts.items() if is_given]
        if len(given) > 1:
            description = f"cannot be combined with {given[0]}; leave one out"
            raise InvalidRequestError.at(given[1], description)
        return ResultPart(
            offset=self.offset or 0, limit=self.limit or 0, json_pointer=self.json_pointer, contains=self.contains
        )


class SessionParams(Params):
    """Parameters of the methods about one session."""

    session_id: str = Field(min_length=1)


class ListSessionsParams(Params):
    """Parameters of `sessions.list`: paging, as ListSessionsRequest."""

    page_size: Whole = 0
    page_token: str = ""


ParamsT = TypeVar("ParamsT", bound=Params)


def read_params(kind: type[ParamsT], params: Mapping[str, Any]) -> ParamsT:
    """Return `params` as `kind`.

    Raises:
        InvalidRequestError: with one violation per problem, at most 20, in our own words.
    """
    try:
        # Counted first: most requests have few members, and so few unknown ones.
        few = params if len(params) <= _MANY else drop_surplus_unknown(params, kind.model_fields)
        return kind.model_validate(few)
    except ValidationError as error:
        found = list_violations(error, model=kind, most=_MAX_VIOLATIONS)
    raise InvalidRequestError.of(
        *(Violation(field=each.field[:_MAX_FIELD_CHARACTERS], description=each.description) for each in found)
    )
