"""ReasoningService: tasks that strategies solve, and the operations on executions of any kind."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import EXECUTE, EXECUTE_REPAIRS, READ_EXECUTIONS, READ_TURNS
from reasond_server.errors import InvalidRequestError, Violation, show
from reasond_server.grpc_api.reasoning_servicer import ReasoningServicer
from reasond_server.http_api.jsonrpc_calls import Method, Streaming
from reasond_server.http_api.params import (
    ExecuteParams,
    ExecutionParams,
    FollowExecutionParams,
    ListExecutionsParams,
    NoParams,
)
from reasond_server.services.declaration import Service, ServiceDeclaration
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.wire.json_mapping import execution_json, result_json, strategy_json, task_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from reasond_server.http_api.jsonrpc_calls import Cursor
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.types import Principal, StreamEvent

_ALIASES: Final = {f"reasoning.{strategy}": strategy for strategy in ("bounded_context", "chain_of_thought", "react")}

DECLARATION: Final = ServiceDeclaration(
    name="reasond.v1.ReasoningService",
    permissions={
        "Reason": EXECUTE,
        "ReasonIterations": EXECUTE,
        "ListStrategies": EXECUTE,
        "GetExecution": READ_EXECUTIONS,
        "FollowExecution": READ_EXECUTIONS,
        "CancelExecution": EXECUTE,
        "ListExecutions": READ_EXECUTIONS,
        "DeleteExecution": EXECUTE,
    },
    or_permissions={
        "CancelExecution": EXECUTE_REPAIRS,
        "DeleteExecution": EXECUTE_REPAIRS,
        "FollowExecution": READ_TURNS,
    },
    methods={
        "executions.cancel": "CancelExecution",
        "executions.delete": "DeleteExecution",
        "executions.follow": "FollowExecution",
        "executions.get": "GetExecution",
        "executions.list": "ListExecutions",
        "reasoning.execute": "Reason",
        "reasoning.list_strategies": "ListStrategies",
        **dict.fromkeys(_ALIASES, "Reason"),
    },
    aliases=_ALIASES,
)


def serve_reasoning(
    service: ReasoningService,
    *,
    max_send_bytes: int = 4 * 1024 * 1024,
    write_timeout_s: float = 30.0,
    observer: CallObserver = UNOBSERVED,
) -> Service:
    """Return ReasoningService for both transports; the limits are those of `ReasoningServicer`."""
    servicer = ReasoningServicer(
        service=service, max_send_bytes=max_send_bytes, write_timeout_s=write_timeout_s, observer=observer
    )
    methods = {
        "executions.cancel": _method("executions.cancel", ExecutionParams, partial(_cancel, service)),
        "executions.delete": _method("executions.delete", ExecutionParams, partial(_delete, service)),
        "executions.follow": Method(
            operation=DECLARATION.operation_of("executions.follow"),
            params=FollowExecutionParams,
            run=_refuse_answer,
            streaming=Streaming(
                operation=DECLARATION.operation("FollowExecution"), open=partial(_open_observation, service)
            ),
        ),
        "executions.get": _method("executions.get", ExecutionParams, partial(_get, service)),
        "executions.list": _method("executions.list", ListExecutionsParams, partial(_list, service)),
        "reasoning.list_strategies": _method("reasoning.list_strategies", NoParams, partial(_strategies, service)),
        "reasoning.execute": _executing("reasoning.execute", service, None),
        **{name: _executing(name, service, strategy) for name, strategy in DECLARATION.aliases.items()},
    }
    return Service(declaration=DECLARATION, register=servicer.register, methods=methods)


async def read_partial(service: ReasoningService, caller: Principal, execution_id: str) -> dict[str, Any]:
    """Return the partial result of a failed execution, in the form in which the error of its call shows it."""
    view = await service.get(caller, execution_id)
    return result_json(view.result, view.steps)


def _method(name: str, params: type, run: Callable[[Principal, Any], Awaitable[dict[str, Any]]]) -> Method:
    return Method(operation=DECLARATION.operation_of(name), params=params, run=run)


def _executing(name: str, service: ReasoningService, alias: str | None) -> Method:
    """Return the method that executes with the strategy `alias`; with None the request may name any strategy."""
    return Method(
        operation=DECLARATION.operation_of(name),
        params=ExecuteParams,
        run=partial(_execute, service, alias),
        streaming=Streaming(
            operation=DECLARATION.operation("ReasonIterations"), open=partial(_open_stream, service, alias)
        ),
    )


async def _execute(
    service: ReasoningService, alias: str | None, caller: Principal, params: ExecuteParams
) -> dict[str, Any]:
    params.refuse_stream_options()
    view = await service.execute(caller, params.task(alias), request_id=params.request_id or "")
    return result_json(view.result, view.steps)


def _open_stream(
    service: ReasoningService, alias: str | None, caller: Principal, params: ExecuteParams, cursor: Cursor | None
) -> AsyncGenerator[StreamEvent, None]:
    """Return the events of the execution that `cursor` names, or of a new one."""
    if cursor is not None:
        return service.desk.resume(
            caller,
            cursor.execution_id,
            after_sequence=cursor.after_sequence,
            include_deltas=params.include_deltas,
            keep_running=params.keep_running,
        )
    return service.stream(
        caller,
        params.task(alias),
        request_id=params.request_id or "",
        include_deltas=params.include_deltas,
        keep_running=params.keep_running,
    )


async def _refuse_answer(_caller: Principal, _params: FollowExecutionParams) -> dict[str, Any]:
    description = "must name text/event-stream: this method has events and no answer; executions.get returns the result"
    raise InvalidRequestError.of(Violation(field="Accept", description=description))


async def _open_observation(
    service: ReasoningService, caller: Principal, params: FollowExecutionParams, cursor: Cursor | None
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of the execution, after the last one that the client has."""
    after = params.after_sequence
    if cursor is not None:
        if cursor.execution_id != params.execution_id:
            description = f"is of the execution {cursor.execution_id}; the call names {show(params.execution_id)}"
            raise InvalidRequestError.of(Violation(field="Last-Event-ID", description=description))
        after = cursor.after_sequence
    observation = await service.everything.observe(
        caller, params.execution_id, after_sequence=after, include_deltas=params.include_deltas
    )
    async with aclosing(observation.events) as events:
        async for event in events:
            yield event


async def _strategies(service: ReasoningService, _caller: Principal, _params: NoParams) -> dict[str, Any]:
    return {
        "strategies": [strategy_json(info) for info in service.strategies()],
        "model": service.model_name,
        "warnings": list(service.model_warnings),
        "models": list(service.offered_models),
    }


async def _get(service: ReasoningService, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
    view = await service.get(caller, params.execution_id, with_task=True)
    return {
        "execution": execution_json(view.execution),
        "reasoning": result_json(view.result, view.steps),
        "task": None if view.task is None else task_json(view.task),
    }


async def _cancel(service: ReasoningService, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
    return {"execution": execution_json(await service.desk.cancel(caller, params.execution_id))}


async def _list(service: ReasoningService, caller: Principal, params: ListExecutionsParams) -> dict[str, Any]:
    page = await service.desk.list(
        caller,
        strategy=params.strategy,
        finish_reason=params.finish_reason,
        state=params.state,
        create_time_after=params.create_time_after,
        create_time_before=params.create_time_before,
        page_size=params.page_size,
        page_token=params.page_token,
    )
    return {
        "executions": [execution_json(execution) for execution in page.executions],
        "next_page_token": page.next_page_token,
    }


async def _delete(service: ReasoningService, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
    await service.desk.delete(caller, params.execution_id)
    return {}
