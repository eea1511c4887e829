"""ExecutionService: what the other services started, looked up, observed, listed, cancelled and deleted.

google.longrunning.Operations is the same once more, for clients that wait for operations (AIP-151).
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import EXECUTE, EXECUTE_REPAIRS, EXECUTE_TURNS, READ_EXECUTIONS, READ_TURNS
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.execution_servicer import SERVICE, ExecutionServicer, OperationsServicer
from reasond_server.http_api.http_calls import Method, Streaming, check_cursor
from reasond_server.http_api.json_mapping import (
    build_execution_json,
    build_kind_json,
    build_result_json,
    build_task_json,
)
from reasond_server.http_api.params import ExecutionParams, FollowExecutionParams, ListCallsParams, ListExecutionsParams
from reasond_server.reasoning.views import read_view
from reasond_server.services.declaration import Service, ServiceDeclaration
from reasond_server.telemetry.observers import UNOBSERVED, Observer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.types import Cursor, Principal, StreamEvent

DECLARATION: Final = ServiceDeclaration(
    name="reasond.v1.ExecutionService",
    permissions={
        "GetExecution": READ_EXECUTIONS,
        "FollowExecution": READ_EXECUTIONS,
        "CancelExecution": EXECUTE,
        "ListExecutions": READ_EXECUTIONS,
        "ListModelCalls": READ_EXECUTIONS,
        "DeleteExecution": EXECUTE,
    },
    or_permissions={
        "CancelExecution": (EXECUTE_REPAIRS,),
        "DeleteExecution": (EXECUTE_REPAIRS,),
        "FollowExecution": (READ_TURNS,),
        "ListModelCalls": (READ_TURNS,),
    },
    methods={
        "executions.cancel": "CancelExecution",
        "executions.delete": "DeleteExecution",
        "executions.follow": "FollowExecution",
        "executions.get": "GetExecution",
        "executions.list": "ListExecutions",
        "executions.list_calls": "ListModelCalls",
    },
)


def build_execution_service(
    desk: ExecutionDesk,
    observed: ExecutionDesk,
    *,
    max_send_bytes: int = 4 * 1024 * 1024,
    write_timeout_s: float = 30.0,
    observer: Observer = UNOBSERVED,
) -> Service:
    """Return ExecutionService for both transports; the desks and the limits are those of `ExecutionServicer`."""
    servicer = ExecutionServicer(
        desk=desk, observed=observed, max_send_bytes=max_send_bytes, write_timeout_s=write_timeout_s, observer=observer
    )
    follow = Method(
        operation=DECLARATION.find_operation("executions.follow"),
        params=FollowExecutionParams,
        run=_refuse_answer,
        streaming=Streaming(operation=DECLARATION.operation("FollowExecution"), open=partial(_observe, observed)),
    )
    methods = {
        "executions.cancel": DECLARATION.method("executions.cancel", ExecutionParams, partial(_cancel, desk)),
        "executions.delete": DECLARATION.method("executions.delete", ExecutionParams, partial(_delete, desk)),
        "executions.follow": follow,
        "executions.get": DECLARATION.method("executions.get", ExecutionParams, partial(_get, desk)),
        "executions.list": DECLARATION.method("executions.list", ListExecutionsParams, partial(_list, desk)),
        "executions.list_calls": DECLARATION.method(
            "executions.list_calls", ListCallsParams, partial(_list_calls, observed)
        ),
    }
    return Service(declaration=DECLARATION, register=servicer.register, methods=methods)


async def _refuse_answer(_caller: Principal, _params: FollowExecutionParams) -> dict[str, Any]:
    description = "must name text/event-stream: this method has events and no answer; executions.get returns the result"
    raise InvalidRequestError.at("Accept", description)


async def _observe(
    observed: ExecutionDesk, caller: Principal, params: FollowExecutionParams, cursor: Cursor | None
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of the execution, after the last one that the client has."""
    after = params.after_sequence
    if cursor is not None:
        check_cursor(cursor, params.execution_id)
        after = cursor.after_sequence
    observation = await observed.observe(
        caller, params.execution_id, after_sequence=after, include_deltas=params.include_deltas
    )
    async with aclosing(observation.events) as events:
        async for event in events:
            yield event


async def _get(desk: ExecutionDesk, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
    view = await read_view(desk, caller, params.execution_id, with_task=True)
    return {
        "execution": build_execution_json(view.execution),
        "reasoning": build_result_json(view.result, view.steps),
        "task": None if view.task is None else build_task_json(view.task),
    }


async def _cancel(desk: ExecutionDesk, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
    return {"execution": build_execution_json(await desk.cancel(caller, params.execution_id))}


async def _list(desk: ExecutionDesk, caller: Principal, params: ListExecutionsParams) -> dict[str, Any]:
    page = await desk.list(
        caller,
        strategy=params.strategy,
        finish_reason=params.finish_reason,
        state=params.state,
        create_time_after=params.create_time_after,
        create_time_before=params.create_time_before,
        text=params.text,
        page_size=params.page_size,
        page_token=params.page_token,
    )
    return {
        "executions": [build_execution_json(execution) for execution in page.executions],
        "next_page_token": page.next_page_token,
    }


async def _list_calls(observed: ExecutionDesk, caller: Principal, params: ListCallsParams) -> dict[str, Any]:
    page = await observed.list_calls(
        caller, params.execution_id, page_size=params.page_size, page_token=params.page_token
    )
    return {"calls": [build_kind_json(call) for call in page.calls], "next_page_token": page.next_page_token}


async def _delete(desk: ExecutionDesk, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
    await desk.delete(caller, params.execution_id)
    return {}


_READING: Final = ("GetOperation", "ListOperations", "WaitOperation")
_ENDING: Final = ("CancelOperation", "DeleteOperation")
OPERATIONS: Final = ServiceDeclaration(
    name=SERVICE.full_name,
    permissions={**dict.fromkeys(_READING, READ_EXECUTIONS), **dict.fromkeys(_ENDING, EXECUTE)},
    or_permissions={
        **dict.fromkeys(_READING, (READ_TURNS,)),
        **dict.fromkeys(_ENDING, (EXECUTE_REPAIRS, EXECUTE_TURNS)),
    },
)


def build_operations_service(observed: ExecutionDesk, used: ExecutionDesk) -> Service:
    """Return google.longrunning.Operations for gRPC; the desks are those of `OperationsServicer`."""
    servicer = OperationsServicer(observed=observed, used=used)
    return Service(declaration=OPERATIONS, register=servicer.register, methods={})
