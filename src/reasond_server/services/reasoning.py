"""ReasoningService: tasks that strategies solve."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import EXECUTE
from reasond_server.grpc_api.reasoning_servicer import ReasoningServicer
from reasond_server.http_api.http_calls import Method, Streaming
from reasond_server.http_api.json_mapping import build_kind_json, build_result_json
from reasond_server.http_api.params import ExecuteParams, NoParams
from reasond_server.reasoning.views import read_view
from reasond_server.services.declaration import Service, ServiceDeclaration
from reasond_server.telemetry.observers import UNOBSERVED, Observer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.types import Cursor, Principal, StreamEvent

_ALIASES: Final = {f"reasoning.{strategy}": strategy for strategy in ("bounded_context", "chain_of_thought", "react")}

DECLARATION: Final = ServiceDeclaration(
    name="reasond.v1.ReasoningService",
    permissions={"Reason": EXECUTE, "ReasonIterations": EXECUTE, "ListStrategies": EXECUTE},
    methods={
        "reasoning.execute": "Reason",
        "reasoning.list_strategies": "ListStrategies",
        **dict.fromkeys(_ALIASES, "Reason"),
    },
    aliases=_ALIASES,
)


def build_reasoning_service(
    service: ReasoningService,
    *,
    max_send_bytes: int = 4 * 1024 * 1024,
    write_timeout_s: float = 30.0,
    observer: Observer = UNOBSERVED,
) -> Service:
    """Return ReasoningService for both transports; the limits are those of `ReasoningServicer`."""
    servicer = ReasoningServicer(
        service=service, max_send_bytes=max_send_bytes, write_timeout_s=write_timeout_s, observer=observer
    )
    methods = {
        "reasoning.list_strategies": DECLARATION.method(
            "reasoning.list_strategies", NoParams, partial(_list_strategies, service)
        ),
        "reasoning.execute": _make_execute_method("reasoning.execute", service, None),
        **{name: _make_execute_method(name, service, strategy) for name, strategy in DECLARATION.aliases.items()},
    }
    return Service(declaration=DECLARATION, register=servicer.register, methods=methods)


async def read_partial(service: ReasoningService, caller: Principal, execution_id: str) -> dict[str, Any]:
    """Return the partial result of a failed execution, in the form in which the error of its call shows it."""
    view = await read_view(service.desk, caller, execution_id)
    return build_result_json(view.result, view.steps)


def _make_execute_method(name: str, service: ReasoningService, alias: str | None) -> Method:
    """Return the method that executes with the strategy `alias`; with None the request may name any strategy."""
    return Method(
        operation=DECLARATION.find_operation(name),
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
    view = await service.execute(caller, params.build_task(alias), request_id=params.request_id or "")
    return build_result_json(view.result, view.steps)


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
        params.build_task(alias),
        request_id=params.request_id or "",
        include_deltas=params.include_deltas,
        keep_running=params.keep_running,
    )


async def _list_strategies(service: ReasoningService, _caller: Principal, _params: NoParams) -> dict[str, Any]:
    return {
        "strategies": [build_kind_json(info) for info in service.strategies()],
        "model": service.model_name,
        "warnings": list(service.model_warnings),
        "models": list(service.offered_models),
    }
