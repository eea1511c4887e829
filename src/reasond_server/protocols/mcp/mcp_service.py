"""The server of the package `mcp` over the methods of this one: tools, resources, tasks, and results for hosts.

To be imported where the extra `mcp` is. Each request stands for itself, whatever process it reaches: nothing is kept
between two of them but executions. Source: Model Context Protocol 2026-07-28, its extension for tasks (SEP-2663), and
2025-11-25 for older hosts.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestParams,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import to_json

from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import INTERNAL_MESSAGE, show
from reasond_server.http_api.exchange import find_exchange
from reasond_server.http_api.http_calls import convert_failure
from reasond_server.http_api.json_mapping import build_event_json, describe_step, is_logged, name_event
from reasond_server.protocols.mcp.mcp_arguments import READ_METHOD
from reasond_server.protocols.mcp.mcp_runs import STATE_FIELD, read_request_id, write_state
from reasond_server.types import Iteration, LastEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp_types import PaginatedRequestParams

    from reasond_server.http_api.exchange import Exchange
    from reasond_server.http_api.http_calls import Calls
    from reasond_server.protocols.mcp.mcp_arguments import HostTool

    Context = ServerRequestContext[Any, Any]
    from reasond_server.types import StreamEvent

_log = logging.getLogger("reasond.http")
TASKS: Final = "io.modelcontextprotocol/tasks"
_INSTRUCTIONS: Final = (
    "Tools that reason in several steps with a language model of their own. A call can take minutes: set background, "
    "and ask read_execution for the answer, where the host gives up earlier."
)
_NOT_FOUND: Final = "EXECUTION_NOT_FOUND"
_TEMPORARY: Final = frozenset({"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"})
ROOT: Final = "reasond://executions/"
JSON: Final = "application/json"
POLL_MS: Final = 1_000
_MOST_MESSAGE: Final = 500
_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})


class HostTaskParams(RequestParams):
    """The parameters of the methods about one task, which has the id of its execution."""

    task_id: str


def build_mcp_server(
    offers: Mapping[str, HostTool], *, version: str, open_calls: Callable[[Exchange | None], Calls]
) -> Server[Any]:
    """Return the server; `open_calls` returns the calls of one request, by its exchange over HTTP if it has one."""
    service = _McpService(offers, open_calls)
    # The package's type knows no tasks as results.
    call_tool: Any = service.call_tool
    server = Server(
        "reasond",
        version=version,
        instructions=_INSTRUCTIONS,
        on_list_tools=service.list_tools,
        on_call_tool=call_tool,
        on_list_resources=service.list_resources,
        on_list_resource_templates=service.list_templates,
        on_read_resource=service.read_resource,
        get_tool_input_schema=lambda name: offers[name].schema if name in offers else None,
    )
    for name, handler in (
        ("tasks/get", service.get_task),
        ("tasks/update", service.update_task),
        ("tasks/cancel", service.cancel_task),
    ):
        server.add_request_handler(name, HostTaskParams, handler)
    server.extensions = {TASKS: {}}
    # In place of the package's spans: a request has one of ours.
    server.middleware[:] = [_hide_faults]
    return server


async def _hide_faults(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Answer a fault with its request id alone; an older host would be told the text of any exception."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception as error:
        call_id = "" if ctx.request is None else find_exchange(ctx.request.scope).call_id
        _log.exception("%s failed", show(ctx.method), extra={"call_id": call_id})
        raise MCPError(INTERNAL_ERROR, INTERNAL_MESSAGE, {"request_id": call_id}) from error


class _McpService:
    """The handlers; each makes calls of methods, which check access, count and log as those of other protocols do."""

    def __init__(self, offers: Mapping[str, HostTool], open_calls: Callable[[Exchange | None], Calls]) -> None:
        self._offers = offers
        self._open_calls = open_calls

    def _open(self, context: Context) -> Calls:
        return self._open_calls(None if context.request is None else find_exchange(context.request.scope))

    async def list_tools(self, _context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        """Return all tools."""
        return ListToolsResult(
            tools=[
                Tool(
                    name=offer.name,
                    description=offer.description,
                    input_schema=dict(offer.schema),
                    annotations=ToolAnnotations(read_only_hint=offer.method == READ_METHOD, open_world_hint=False),
                )
                for offer in self._offers.values()
            ]
        )

    async def call_tool(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult | dict[str, Any]:
        """Call a tool; a run for a client that knows tasks becomes one, and is answered at once.

        Raises:
            MCPError: there is no such tool, the state is none of ours, or the server is at fault.
        """
        offer = self._offers.get(params.name)
        if offer is None:
            hint = suggest_nearest(params.name, self._offers)
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {show(params.name)}{hint}")
        calls = self._open(context)
        if offer.method != READ_METHOD:
            is_task = _knows_tasks(context)
            result = await self._run(context, calls, offer, params, is_task=is_task)
            told = result.structured_content if isinstance(result, CallToolResult) else None
            if is_task and _has_reason(told or {}, "PERMISSION_MISSING"):
                # Who may start work and read none of it gets the answer itself.
                result = await self._run(context, calls, offer, params, is_task=False)
            return result
        found = await self._read(calls, params.arguments or {})
        is_found = "error" not in found
        return write_execution(found["execution"], found["end"]) if is_found else write_failure(_require_told(found))

    async def _run(
        self, context: Context, calls: Calls, offer: HostTool, params: CallToolRequestParams, *, is_task: bool
    ) -> CallToolResult | InputRequiredResult | dict[str, Any]:
        arguments, state = params.arguments or {}, params.request_state or ""
        is_kept = is_task or arguments.get("background") is True
        may_return = is_kept or context.protocol_version in MODERN_PROTOCOL_VERSIONS
        request_id = read_request_id(state) or (may_return and f"mcp-{secrets.token_urlsafe(24)}") or ""
        request = {"arguments": arguments, "strategy": offer.strategy, "is_kept": is_kept}
        request |= {"request_id": request_id, "state": state}
        call, execution_id, end = calls.open(offer.method), "", None
        try:
            async with aclosing(call.events(request, None)) as events:
                async for event in events:
                    execution_id = event.execution_id
                    if isinstance(event.event, LastEvent):
                        end = read_end(event)
                    elif is_logged(event):
                        await context.session.report_progress(event.sequence, message=describe_progress(event))
        except Exception as error:  # noqa: BLE001 - every failure becomes an answer
            return write_failure(_require_told({"error": await call.explain(convert_failure(error))}), end)
        if end is not None:
            return write_answer(end)
        if is_task:
            found = await self._read(calls, {"execution_id": execution_id})
            return write_task(_require(found)["execution"], is_created=True)
        if is_kept:
            return write_handle(execution_id)
        return InputRequiredResult(request_state=write_state(execution_id, request_id))

    async def list_resources(self, context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        """Return a page of the caller's executions, newest first."""
        wanted = {"page_token": (params.cursor if params else None) or ""}
        page = _require(await self._answer(self._open(context), "executions.list", wanted))
        return ListResourcesResult(
            resources=[describe_resource(execution) for execution in page["executions"]],
            next_cursor=page["next_page_token"] or None,
        )

    async def list_templates(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """Return the address of executions."""
        template = ResourceTemplate(
            uri_template=f"{ROOT}{{execution_id}}",
            name="execution",
            description="An execution with its steps and its answer.",
            mime_type=JSON,
        )
        return ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """Return an execution with its steps.

        Raises:
            MCPError: the caller has no such execution.
        """
        uri = str(params.uri)
        found: Mapping[str, Any] | None = None
        if uri.startswith(ROOT):
            found = await self._read(self._open(context), {"execution_id": uri.removeprefix(ROOT)})
        if found is None or _has_reason(found, _NOT_FOUND):
            raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})
        shown = {"execution": _require(found)["execution"], "result": found["end"]}
        text = to_json(shown, inf_nan_mode="null").decode()
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=JSON, text=text)])

    async def get_task(self, context: Context, params: HostTaskParams) -> dict[str, Any]:
        """Return a task as it is now. Raises as `_find_task`."""
        found = await self._find_task(context, params)
        return write_task(found["execution"], found["end"])

    async def update_task(self, context: Context, params: HostTaskParams) -> dict[str, Any]:
        """Take input for a task, which none asks for. Raises as `_find_task`."""
        await self._find_task(context, params)
        return {}

    async def cancel_task(self, context: Context, params: HostTaskParams) -> dict[str, Any]:
        """Stop a task; one that has ended stays as it is. Raises as `_find_task`."""
        found = await self._find_task(context, params)
        if found["execution"]["end_time"] is None:
            _require(await self._answer(self._open(context), "executions.cancel", {"execution_id": params.task_id}))
        return {}

    async def _find_task(self, context: Context, params: HostTaskParams) -> Mapping[str, Any]:
        """Return the execution of a task, with its end.

        Raises:
            MCPError: the client does not know tasks, its header names another one, or its caller has no such task.
        """
        if not _knows_tasks(context):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"This method needs the extension {TASKS}", needed)
        request = context.request
        if request is not None and decode_header_value(request.headers.get(MCP_NAME_HEADER)) != params.task_id:
            # The package compares the header for the tools and resources that it knows.
            raise MCPError(HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} must be the taskId of the request")
        return _require(await self._read(self._open(context), {"execution_id": params.task_id}))

    async def _answer(self, calls: Calls, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the result of a method, or its error under the key `error`."""
        answer = await calls.call(method, dict(params))
        return answer if "error" in answer else answer["result"]

    async def _read(self, calls: Calls, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the `execution`, of reasoning or a repair, and its `end` so far; or the error."""
        found = await self._answer(calls, READ_METHOD, params)
        if not _has_reason(found, _NOT_FOUND):
            return {**found, "end": found.get("reasoning")}
        repair = await self._answer(calls, "repair.get", params)
        return {**repair, "end": repair.get("repair")} if "error" not in repair else found


def _knows_tasks(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in (
        (capabilities and capabilities.extensions) or {}
    )


def _has_reason(found: Mapping[str, Any], reason: str) -> bool:
    error: Mapping[str, Any] = found.get("error") or {}
    return bool(error.get("data", {}).get("reason") == reason)


def _require(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the result of a call that is no call of a tool.

    Raises:
        MCPError: the call failed.
    """
    if "error" not in found:
        return found
    error = _require_told(found)
    code = INTERNAL_ERROR if error["data"]["grpc_code"] in _TEMPORARY else INVALID_PARAMS
    raise MCPError(code, error["message"], error["data"])


def _require_told(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the error of a call that its caller can do something about.

    Raises:
        MCPError: it is a fault of the server, or the state is none that it gave.
    """
    error: Mapping[str, Any] = found["error"]
    if error["data"]["reason"] == "INTERNAL":
        raise MCPError(INTERNAL_ERROR, error["message"], error["data"])
    if any(each["field"] == STATE_FIELD for each in error["data"].get("violations", ())):
        raise MCPError(INVALID_PARAMS, "Invalid or expired requestState", error["data"])
    return error


def write_answer(result: Mapping[str, Any]) -> CallToolResult:
    """Return the end of a run, as its last event tells it, as the result of the call."""
    result = _leave_out_trace(result)
    error = result.get("error")
    if error:
        return write_failure({"message": error["message"], "data": {"reason": error["reason"]}}, result)
    is_json = result.get("answer_json") is not None
    text = to_json(result["answer_json"]).decode() if is_json else result.get("answer") or result.get("patch")
    return _write(text or f"The run ended without an answer: {result['finish_reason']}.", result)


def write_handle(execution_id: str) -> CallToolResult:
    """Return what a call in the background gets."""
    text = f"Execution {execution_id} has begun. Read it with read_execution, until its state is no longer running."
    return _write(text, {"execution_id": execution_id, "state": "running"})


def write_execution(execution: Mapping[str, Any], end: Mapping[str, Any] | None) -> CallToolResult:
    """Return an execution for who reads it, with its end once it has one; the steps are in the resource."""
    shown = {"execution": dict(execution), "result": None if end is None else _leave_out_trace(end)}
    if execution["state"] not in _ENDED or end is None:
        return _write(f"Execution {execution['execution_id']} is {execution['state']}.", shown)
    return write_answer(end).model_copy(update={"structured_content": shown, "is_error": False})


def write_failure(error: Mapping[str, Any], result: Mapping[str, Any] | None = None) -> CallToolResult:
    """Return a refusal or a failed run as the result of its call, so that the model can read it."""
    data = error["data"]
    text = f"{data['reason']}: {error['message']}\n{data.get('remedy', '')}".rstrip()
    return _write(text, result or {"error": dict(error)}, is_error=True)


def write_task(
    execution: Mapping[str, Any], end: Mapping[str, Any] | None = None, *, is_created: bool = False
) -> dict[str, Any]:
    """Return an execution as a task, whose handle is its id; of one that has ended with the result of its call."""
    state = execution["state"]
    status = {"succeeded": "completed", "failed": "completed", "cancelled": "cancelled"}.get(state, "working")
    task: dict[str, Any] = {
        "resultType": "task" if is_created else "complete",
        "taskId": execution["execution_id"],
        "createdAt": execution["create_time"],
        "lastUpdatedAt": execution["end_time"] or execution["create_time"],
        "ttlMs": _find_lifetime_ms(execution),
        "pollIntervalMs": POLL_MS,
    }
    if is_created or status != "completed":
        return task | {"status": "working" if is_created else status}
    error = (end or {}).get("error")
    if error and error["reason"] == "INTERNAL":
        # A task fails by a fault of the server alone; what a tool reports is a result.
        return {**task, "status": "failed", "error": {"code": -32603, "message": error["message"]}}
    result = write_answer(end or {"finish_reason": execution["finish_reason"]})
    return {**task, "status": status, "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}


def describe_resource(execution: Mapping[str, Any]) -> Resource:
    """Return an execution as a list of resources has it."""
    return Resource(
        uri=f"{ROOT}{execution['execution_id']}",
        name=execution["execution_id"],
        title=execution["question"] or None,
        description=f"{execution['strategy']}, {execution['state']}, {execution['create_time']}",
        mime_type=JSON,
    )


def describe_progress(event: StreamEvent) -> str:
    """Return what an event says to who waits: the beginning of its step, or its name."""
    step = describe_step(event.event) if isinstance(event.event, Iteration) else ""
    return step[:_MOST_MESSAGE] or f"{name_event(event)} ({event.execution_id})"


def read_end(event: StreamEvent) -> dict[str, Any]:
    """Return the members of a last event."""
    body: dict[str, Any] = build_event_json(event)[name_event(event)]
    return body


def _leave_out_trace(end: Mapping[str, Any]) -> dict[str, Any]:
    """Return an end as its last event tells it: a model is not to read a megabyte of steps."""
    return {name: value for name, value in end.items() if name != "trace"}


def _find_lifetime_ms(execution: Mapping[str, Any]) -> int | None:
    """Return for how long an execution is kept, from its beginning; None while it runs."""
    if execution["expire_time"] is None:
        return None
    kept = datetime.fromisoformat(execution["expire_time"]) - datetime.fromisoformat(execution["create_time"])
    return round(kept.total_seconds() * 1000)


def _write(text: str, result: Mapping[str, Any], *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], structured_content=dict(result), is_error=is_error)
