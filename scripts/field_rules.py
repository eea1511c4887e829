"""What fields of requests may hold, as keywords of JSON Schema, from what the server itself checks by.

OpenAPI (`openapi`) and the options of protovalidate (`rule_options`) are written from them. `maxBytes` is no keyword:
the bytes of a text in UTF-8. A rule never refuses what the server takes, nor what it answers; what depends on settings
is left out.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from reasond_server.executions import desk
from reasond_server.repair.search.repair_policy import RepairDefaults
from reasond_server.repair.service import repair_service as repairs
from reasond_server.requests import task_checks as tasks
from reasond_server.turns import turn_requests as turns

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength")


def _limit_text(most: int, least: int = 0) -> dict[str, Any]:
    return {"maxLength": most, **({"minLength": least} if least else {})}


def _limit_list(most: int, **items: int) -> dict[str, Any]:
    return {"maxItems": most, **({"items": items} if items else {})}


_AT_LEAST_0: Final = {"minimum": 0}
_AT_LEAST_1: Final = {"minimum": 1}
_WORDS: Final = _limit_text(tasks.MAX_QUERY_CHARACTERS, 1)
_STOP: Final = _limit_list(tasks.MAX_STOPS, **_limit_text(tasks.MAX_STOP_CHARACTERS, 1))
_REQUEST_ID: Final = _limit_text(tasks.MAX_REQUEST_ID_CHARACTERS)
_MATERIAL: Final = {"maxBytes": tasks.MAX_MATERIAL_BYTES}
_ISSUE: Final = _limit_text(repairs.MAX_ISSUE_CHARACTERS)
_RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "Budget.max_model_calls": _AT_LEAST_1,
    "Budget.max_tool_calls": _AT_LEAST_0,
    "Budget.max_total_tokens": _AT_LEAST_1,
    "Budget.max_output_tokens": _AT_LEAST_1,
    "ReasoningTask.query": _WORDS,
    "ReasoningTask.material": _MATERIAL,
    "ReasoningTask.agent": _limit_text(tasks.MAX_NAME_CHARACTERS),
    "ReasoningTask.agent_capabilities": _limit_list(tasks.MAX_CAPABILITIES, maxLength=tasks.MAX_NAME_CHARACTERS),
    "ReasoningTask.system": _limit_text(tasks.MAX_SYSTEM_CHARACTERS),
    "ReasoningTask.stop": _STOP,
    "ReasoningTask.images": _limit_list(tasks.MAX_IMAGES),
    "ReasonRequest.request_id": _REQUEST_ID,
    "ReasonIterationsRequest.request_id": _REQUEST_ID,
    "ListAgentsRequest.page_size": _AT_LEAST_0,
    "ListExecutionsRequest.page_size": _AT_LEAST_0,
    "ListExecutionsRequest.text": _limit_text(desk.MAX_SEARCH_CHARACTERS),
    "ListModelCallsRequest.page_size": _AT_LEAST_0,
    "ListStrategiesRequest.page_size": _AT_LEAST_0,
    "ListTurnsRequest.page_size": _AT_LEAST_0,
    "ListSessionsRequest.page_size": _AT_LEAST_0,
    "TurnStart.message": _WORDS,
    "TurnStart.session_id": _limit_text(tasks.MAX_REQUEST_ID_CHARACTERS),
    "TurnStart.material": _MATERIAL,
    "TurnStart.system": _limit_text(tasks.MAX_SYSTEM_CHARACTERS),
    "TurnStart.context": _limit_list(turns.MAX_BLOCKS),
    "TurnStart.stop": _STOP,
    "TurnStart.images": _limit_list(tasks.MAX_IMAGES),
    "TurnStart.temperature": {"minimum": 0, "maximum": turns.MAX_TEMPERATURE},
    "ContextBlock.name": _limit_text(turns.MAX_BLOCK_NAME_CHARACTERS, 1),
    "ContextBlock.text": _limit_text(turns.MAX_BLOCK_CHARACTERS),
    "ClientTool.description": _limit_text(turns.MAX_TOOL_DESCRIPTION_CHARACTERS),
    "TurnReentry.results": _limit_list(turns.MAX_SETTLED_CALLS),
    "TurnReentry.decisions": _limit_list(turns.MAX_SETTLED_CALLS),
    "Decision.reason": _limit_text(turns.MAX_REASON_CHARACTERS),
    "ExecuteTurnRequest.request_id": _REQUEST_ID,
    "RunTurnRequest.request_id": _REQUEST_ID,
    "CharacterRange.offset": _AT_LEAST_0,
    "CharacterRange.limit": _AT_LEAST_0,
    "ReadToolResultRequest.json_pointer": _limit_text(turns.MAX_PART_CHARACTERS),
    "ReadToolResultRequest.contains": _limit_text(turns.MAX_PART_CHARACTERS, 1),
    "ReadToolResultRequest.max_bytes": _AT_LEAST_0,
    "RepairTask.description": _limit_text(tasks.MAX_QUERY_CHARACTERS),
    "RepairTask.checks": _limit_list(repairs.MAX_CHECKS),
    "RepairTask.editable": _limit_list(repairs.MAX_PATTERNS, **_limit_text(repairs.MAX_PATTERN_CHARACTERS, 1)),
    "Check.argv": _limit_list(repairs.MAX_ARGUMENTS, **_limit_text(repairs.MAX_ARGUMENT_CHARACTERS)),
    "CriticReport.issues": _limit_list(repairs.MAX_ISSUES),
    "CriticReport.test_outcomes": _limit_list(repairs.MAX_ISSUES),
    "SuiteOutcome.suite_name": _ISSUE,
    "SuiteOutcome.coverage": {"minimum": 0, "maximum": 100},
    "RepairRequest.request_id": _REQUEST_ID,
    "RepairStepsRequest.request_id": _REQUEST_ID,
}


def list_rules(messages: Container[str]) -> dict[str, Mapping[str, Any]]:
    """Return the rules of the fields of `messages` by `Message.field`; strategies have those of their parameters."""
    rules = {**_RULES, **dict(_read_schema("RepairConfig", TypeAdapter(RepairDefaults).json_schema()))}
    for strategy in entry_points(group="reasond.strategies"):
        message = f"{strategy.name.title().replace('_', '')}Config"
        if message in messages:
            rules |= _read_schema(message, strategy.load()().get_config_schema())
    return rules


def _read_schema(message: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the bounds of each property that has some."""
    for name, about in schema["properties"].items():
        [own] = [each for each in about.get("anyOf", [about]) if each.get("type") != "null"]
        if bounds := {key: own[key] for key in _BOUNDS if key in own}:
            yield f"{message}.{name}", bounds
