"""The tools that hosts see, and the tasks that their arguments ask for.

A schema is read by a language model, so it has what a model can fill in: no budgets, no images, no other agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, Field

from reasond_server.errors.base import Violation
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.params import ExecutionParams, Params
from reasond_server.http_api.repair_params import RepairParams
from reasond_server.requests.task_checks import require_material, require_query
from reasond_server.types import Task
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from reasond_server.reasoning.views import StrategyInfo
    from reasond_server.types import Json
    from reasond_server.types.repairs import RepairTask

READ_TOOL: Final = "read_execution"
REPAIR_TOOL: Final = "repair"
REASON_TOOL: Final = "reason"
REASON_METHOD: Final = "mcp.reason"
REPAIR_METHOD: Final = "mcp.repair"
READ_METHOD: Final = "executions.get"
_BACKGROUND: Final = "Return the id of the execution at once; read_execution has its answer later."
_HIDDEN: Final = frozenset({"budget", "request_id", "include_deltas", "keep_running"})
_REPAIR: Final = (
    "Find a patch that makes failing checks pass, or write a plan. Candidates are run in a sandbox. Give the files, or "
    "the id of a snapshot, and the checks as commands."
)


class ReasonArguments(Params):
    """Arguments of `reason`, and without `strategy` of `reason_<strategy>`."""

    query: Annotated[str, AfterValidator(require_query)] = Field(
        description="The question or task, whole: the conversation so far is not seen."
    )
    material: Annotated[str, AfterValidator(require_material)] = Field(
        "", description="A long text that the question is about."
    )
    system: str = Field("", description="Instructions for every call of the model.")
    model: str = Field("", description="A backend that the server offers; empty: its own model.")
    answer_schema: dict[str, Any] = Field({}, description="JSON Schema that the answer must satisfy.")
    strategy: str = Field("", description="How to reason; empty: the server chooses.")
    strategy_config: dict[str, Any] = Field({}, description="Parameters of the strategy.")
    background: bool = Field(default=False, description=_BACKGROUND)

    def task(self, strategy: str) -> Task:
        """Return the task; `strategy` is that of the tool, or empty.

        Raises:
            InvalidRequestError: the arguments of the tool of one strategy name another one.
        """
        if strategy and self.strategy not in {"", strategy}:
            description = f"must be left out or {strategy!r} here; the tool {REASON_TOOL!r} takes any strategy"
            raise InvalidRequestError.at("strategy", description)
        return Task(
            query=self.query,
            material=self.material,
            strategy=strategy or self.strategy or None,
            config=self.strategy_config,
            system=self.system,
            model=self.model or None,
            answer_schema=self.answer_schema or None,
        )


class RepairArguments(RepairParams):
    """Arguments of `repair`: a repair's parameters, but for those of `_HIDDEN`."""

    background: bool = Field(default=False, description=_BACKGROUND)

    def repair(self) -> RepairTask:
        """Return the repair.

        Raises:
            InvalidRequestError: there is no goal, or an argument that the tool has not.
        """
        given = sorted(_HIDDEN & self.model_fields_set)
        if given:
            raise InvalidRequestError.of(*(Violation(field=name, description="is no argument") for name in given))
        return self.build_task()


@value
class HostTool:
    """One tool: the method that serves it, and for `reason_<strategy>` the strategy."""

    name: str
    description: str
    schema: Json
    method: str
    strategy: str = ""


def list_host_tools(strategies: Iterable[StrategyInfo], *, has_repairs: bool) -> Mapping[str, HostTool]:
    """Return the tools by name: `reason`, one for each strategy, `repair` where it is served, `read_execution`."""
    infos = [*strategies]
    reason = _build_schema(ReasonArguments)
    names = [info.name for info in infos]
    reason["properties"]["strategy"]["enum"] = ["", *names]
    text = "Have a question worked on by a strategy of reasoning, step by step, and return the answer."
    offers = [HostTool(name=REASON_TOOL, description=text, schema=reason, method=REASON_METHOD)]
    for info in infos:
        own = _build_schema(ReasonArguments, frozenset({"strategy"}))
        config = {**info.config_schema}
        if "$defs" in config:
            own["$defs"] = config.pop("$defs")
        own["properties"]["strategy_config"] |= config
        offers.append(
            HostTool(
                name=f"{REASON_TOOL}_{info.name}",
                description=info.description,
                schema=own,
                method=REASON_METHOD,
                strategy=info.name,
            )
        )
    if has_repairs:
        repair = _build_schema(RepairArguments, _HIDDEN)
        offers.append(HostTool(name=REPAIR_TOOL, description=_REPAIR, schema=repair, method=REPAIR_METHOD))
    text = "Read an execution of this server: its state, and its answer or what failed."
    offers.append(HostTool(name=READ_TOOL, description=text, schema=_build_schema(ExecutionParams), method=READ_METHOD))
    return {offer.name: offer for offer in offers}


def _build_schema(kind: type[Params], hidden: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the JSON Schema of arguments without the `hidden` ones, and without what only repeats names."""
    schema: dict[str, Any] = _drop_titles(kind.model_json_schema())
    schema["properties"] = {name: value for name, value in schema["properties"].items() if name not in hidden}
    schema.pop("description", None)
    if hidden & _HIDDEN:
        schema["$defs"].pop("BudgetParams")
    return schema


def _drop_titles(schema: Any) -> Any:  # noqa: ANN401 - any part of a schema
    if isinstance(schema, list):
        return [_drop_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _drop_titles(part) for name, part in schema.items() if name != "title" or not isinstance(part, str)}
