"""A2A: one set of operations behind JSON-RPC, HTTP+JSON and gRPC, with the permissions of our own RPCs."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import EXECUTE, READ_EXECUTIONS, READ_TURNS
from reasond_server.errors.base import SettingsError
from reasond_server.http_api.http_calls import Method, Methods, Streaming, read_cursor
from reasond_server.http_api.params import read_params
from reasond_server.protocols.a2a.a2a_endpoint import A2aEndpoint, require_version
from reasond_server.protocols.a2a.a2a_errors import UNSUPPORTED_OPERATION, A2aError, tell_error
from reasond_server.protocols.a2a.a2a_params import AnyParams, ListTasksParams, SendParams, TaskParams
from reasond_server.protocols.a2a.task_service import Tasks, build_push_error, refuse
from reasond_server.protocols.asked_runs import AskedRuns
from reasond_server.protocols.model_catalogue import ModelCatalogue
from reasond_server.services.declaration import Service, ServiceDeclaration
from reasond_server.services.turns import DECLARATION as TURNS
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from reasond_server.errors.base import ReasondError
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.http_api.http_app import Interface
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.turns.turn_service import TurnService
    from reasond_server.types import Budget, Principal

_PUSH: Final = (
    "CreateTaskPushNotificationConfig",
    "DeleteTaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
)
_READING: Final = ("GetTask", "ListTasks", "SubscribeToTask", *_PUSH)
DECLARATION: Final = ServiceDeclaration(
    name="lf.a2a.v1.A2AService",
    permissions={
        **dict.fromkeys(("SendMessage", "SendStreamingMessage", "CancelTask", "GetExtendedAgentCard"), EXECUTE),
        **dict.fromkeys(_READING, READ_EXECUTIONS),
    },
    or_permissions=dict.fromkeys(_READING, (READ_TURNS,)),
)


@value
class A2aInterface:
    """The bindings of A2A: `grpc` for the gRPC server, `http` for the paths below /a2a/."""

    grpc: Service
    http: Interface


def serve_a2a(
    reasoning: ReasoningService,
    turns: TurnService,
    *,
    desk: ExecutionDesk,
    budget: Budget,
    write_timeout_s: float,
    observer: CallObserver,
) -> A2aInterface:
    """Return the bindings of A2A; `desk` finds executions of every kind, `budget` bounds tasks that name none.

    Raises:
        SettingsError: the package with the messages of A2A is not installed.
    """
    try:
        from reasond_server.grpc_api.a2a_servicer import A2aOperations, A2aServicer  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SettingsError(
            "[a2a] enabled is true, but a2a-sdk cannot be imported", remedy="Install reasond-server[a2a]."
        ) from error
    catalogue = ModelCatalogue(strategies=reasoning.strategies(), offers_auto=reasoning.offers_auto)
    runs = AskedRuns(reasoning=reasoning, turns=turns, turn_operation=TURNS.operation("RunTurn"))
    methods = _list_methods(Tasks(runs=runs, desk=desk, catalogue=catalogue, budget=budget))
    operations = A2aOperations(
        answer={name: partial(_answer, method) for name, method in methods.items()},
        follow={name: partial(_follow, each, each.streaming) for name, each in methods.items() if each.streaming},
        require_version=require_version,
        tell_error=_tell_error,
    )
    servicer = A2aServicer(operations=operations, write_timeout_s=write_timeout_s, observer=observer)
    service = Service(declaration=DECLARATION, register=servicer.register, methods={})
    return A2aInterface(grpc=service, http=partial(A2aEndpoint, Methods([methods])))


def _list_methods(tasks: Tasks) -> Mapping[str, Method]:
    no_card = A2aError(UNSUPPORTED_OPERATION, "This server has no extended card", remedy="Its public card tells all.")
    no_answer = A2aError(UNSUPPORTED_OPERATION, "This operation has a stream and no answer")
    answers: Mapping[str, tuple[type[Any], Any]] = {
        "SendMessage": (SendParams, tasks.send),
        "GetTask": (TaskParams, tasks.get),
        "ListTasks": (ListTasksParams, tasks.list),
        "CancelTask": (TaskParams, tasks.cancel),
        "GetExtendedAgentCard": (AnyParams, partial(refuse, no_card)),
        **dict.fromkeys(_PUSH, (AnyParams, partial(refuse, build_push_error()))),
    }
    streams: Mapping[str, tuple[type[Any], Any]] = {
        "SendStreamingMessage": (SendParams, tasks.stream),
        "SubscribeToTask": (TaskParams, tasks.subscribe),
    }
    methods = {
        name: Method(operation=DECLARATION.operation(name), params=params, run=run)
        for name, (params, run) in answers.items()
    }
    for name, (params, opened) in streams.items():
        operation = DECLARATION.operation(name)
        streaming = Streaming(operation=operation, open=opened)
        run = partial(refuse, no_answer)
        methods[name] = Method(operation=operation, params=params, run=run, streaming=streaming)
    return methods


async def _answer(method: Method, caller: Principal, params: dict[str, Any]) -> dict[str, Any]:
    return await method.run(caller, read_params(method.params, params))


async def _follow(
    method: Method, streaming: Streaming, caller: Principal, params: dict[str, Any], last_event_id: str | None
) -> AsyncGenerator[dict[str, Any] | None, None]:
    cursor = None if last_event_id is None else read_cursor(last_event_id)
    async with aclosing(streaming.open(caller, read_params(method.params, params), cursor)) as updates:
        async for update in updates:
            yield update.body


def _tell_error(error: ReasondError, call_id: str) -> tuple[str, str, list[dict[str, Any]]]:
    shown = tell_error(error, call_id)
    return shown.grpc_status, shown.message, shown.details
