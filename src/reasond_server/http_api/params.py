"""The parameters of the JSON-RPC methods: checks types, names and limits of texts; the core checks the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from reasond_server.errors import InvalidRequestError, Violation
from reasond_server.reasoning.requests import require_material, require_query
from reasond_server.types import Budget, FinishReason, Task
from reasond_server.violations import drop_surplus_unknown, violations_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_VIOLATIONS: Final = 20
_MAX_FIELD_CHARACTERS: Final = 120
_MANY: Final = 100
_NO_BUDGET: Final = Budget()
_STREAM_OPTIONS: Final = frozenset({"include_deltas", "keep_running"})
# Integers that every JSON parser represents exactly (RFC 8259, section 6).
_Whole = Annotated[int, Field(ge=-(2**53) + 1, le=2**53 - 1)]


class Params(BaseModel):
    """Base of all parameters: strict types, no unknown names."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NoParams(Params):
    """Parameters of a method that takes only the token."""


class BudgetParams(Params):
    """Limits on the spending of one execution; null sets no limit."""

    max_total_tokens: _Whole | None = None
    max_model_calls: _Whole | None = None
    max_tool_calls: _Whole | None = None
    # The core names it `max_elapsed`; JSON-RPC has another name.
    max_elapsed_ms: Annotated[_Whole, Field(ge=1)] | None = None

    def budget(self) -> Budget:
        """Return the budget in the core's terms."""
        return Budget(
            max_total_tokens=self.max_total_tokens,
            max_model_calls=self.max_model_calls,
            max_tool_calls=self.max_tool_calls,
            max_elapsed_s=None if self.max_elapsed_ms is None else self.max_elapsed_ms / 1000,
        )


class ExecuteParams(Params):
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
    include_deltas: bool = False
    keep_running: bool = False

    def task(self, alias: str | None) -> Task:
        """Return the task; `alias` is the strategy that the method's name selects.

        Raises:
            InvalidRequestError: `strategy` differs from the strategy of the method.
        """
        if alias and self.strategy not in {None, alias}:
            description = f"must be left out or {alias!r} here; 'reasoning.execute' takes any strategy"
            raise InvalidRequestError.of(Violation(field="strategy", description=description))
        return Task(
            query=self.query,
            material=self.material or "",
            strategy=alias or self.strategy,
            config=self.strategy_config or {},
            agent=self.agent,
            agent_capabilities=tuple(self.agent_capabilities or ()),
            budget=self.budget.budget() if self.budget else _NO_BUDGET,
        )

    def refuse_stream_options(self) -> None:
        """Reject options that only a stream supports.

        Raises:
            InvalidRequestError: such an option is set.
        """
        given = _STREAM_OPTIONS & self.model_fields_set
        if given:
            description = "needs a stream; ask for one with 'Accept: text/event-stream'"
            raise InvalidRequestError.of(*(Violation(field=name, description=description) for name in sorted(given)))


class ExecutionParams(Params):
    """Parameters of the methods about one execution."""

    execution_id: str = Field(min_length=1)


class ListExecutionsParams(Params):
    """Parameters of `executions.list`: filters and paging, as ListExecutionsRequest."""

    strategy: str = ""
    finish_reason: Annotated[FinishReason | None, Field(strict=False)] = None
    page_size: _Whole = 0
    page_token: str = ""


class GetCardParams(Params):
    """Parameters of `agent.get_card`; without an id, the card of this server is meant."""

    agent_id: str = ""


class ListAgentsParams(Params):
    """Parameters of `agent.list`: filter and paging, as ListAgentsRequest."""

    capabilities: list[str] = Field(default_factory=list, max_length=100)
    page_size: _Whole = 0
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
        within = {"budget": BudgetParams.model_fields}
        found = violations_of(error, known=kind.model_fields, within=within, most=_MAX_VIOLATIONS)
    raise InvalidRequestError.of(
        *(Violation(field=each.field[:_MAX_FIELD_CHARACTERS], description=each.description) for each in found)
    )
