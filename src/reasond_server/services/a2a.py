"""A2A: one set of operations behind JSON-RPC, HTTP+JSON and gRPC, with the permissions of our own RPCs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.access.permissions import EXECUTE, READ_EXECUTIONS, READ_TURNS
from reasond_server.errors.base import ReasondError, SettingsError
from reasond_server.grpc_api.stream_writer import StreamWriter
from reasond_server.grpc_api.transcoding import describe_status
from reasond_server.http_api.exchange import PathRoutes
from reasond_server.http_api.http_calls import Method, Methods, Streaming, describe_failure, read_cursor
from reasond_server.http_api.params import Params
from reasond_server.protocols.a2a.a2a_endpoint import A2A_ROOT, HTTP_ROOT, A2aEndpoint, require_version
from reasond_server.protocols.a2a.a2a_errors import A2aError, translate_error
from reasond_server.protocols.a2a.task_service import Tasks, Update
from reasond_server.protocols.asked_runs import AskedRuns
from reasond_server.protocols.model_catalogue import ModelCatalogue
from reasond_server.protocols.wire_errors import STATUSES
from reasond_server.services.declaration import Service, ServiceDeclaration
from reasond_server.services.turns import DECLARATION as TURNS
from reasond_server.types import Budget, Cursor, Principal
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.http_api.http_app import Interface
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.telemetry.observers import Observer
    from reasond_server.turns.turn_service import TurnService
    from reasond_server.webhooks.outbox import TaskReceivers

Json = Mapping[str, Any]
Answer = Callable[[Tasks, Principal, Json], Awaitable[dict[str, Any]]]
Stream = Callable[[Tasks, Principal, Json, Cursor | None], AsyncGenerator[Update, None]]
_PUSH: Final = "/tasks/{taskId}/pushNotificationConfigs"
# By the names of gRPC and JSON-RPC: the permission, the address of HTTP+JSON, and the operation.
_ANSWERS: Final[Mapping[str, tuple[str, str, str, Answer]]] = {
    "SendMessage": (EXECUTE, "POST", "/message:send", Tasks.send),
    "GetTask": (READ_EXECUTIONS, "GET", "/tasks/{id}", Tasks.get),
    "ListTasks": (READ_EXECUTIONS, "GET", "/tasks", Tasks.list),
    "CancelTask": (EXECUTE, "POST", "/tasks/{id}:cancel", Tasks.cancel),
    "GetExtendedAgentCard": (EXECUTE, "GET", "/extendedAgentCard", Tasks.get_card),
    "CreateTaskPushNotificationConfig": (EXECUTE, "POST", _PUSH, Tasks.create_push),
    "GetTaskPushNotificationConfig": (READ_EXECUTIONS, "GET", f"{_PUSH}/{{id}}", Tasks.get_push),
    "ListTaskPushNotificationConfigs": (READ_EXECUTIONS, "GET", _PUSH, Tasks.list_push),
    "DeleteTaskPushNotificationConfig": (EXECUTE, "DELETE", f"{_PUSH}/{{id}}", Tasks.delete_push),
}
_STREAMS: Final[Mapping[str, tuple[str, str, str, Stream]]] = {
    "SendStreamingMessage": (EXECUTE, "POST", "/message:stream", Tasks.stream),
    "SubscribeToTask": (READ_EXECUTIONS, "GET", "/tasks/{id}:subscribe", Tasks.subscribe),
}
_TABLE: Final = [(name, *row[:3]) for name, row in (*_ANSWERS.items(), *_STREAMS.items())]
_ROUTES: Final = [
    # The operation of JSON-RPC stands in the body.
    *(("POST", path, "") for path in (A2A_ROOT, A2A_ROOT[:-1])),
    *((verb, f"{HTTP_ROOT}{path}", name) for name, _, verb, path in _TABLE),
    ("POST", f"{HTTP_ROOT}/tasks/{{id}}:subscribe", "SubscribeToTask"),
]
A2A_PATHS: Final = tuple(dict.fromkeys(path for _, path, _ in _ROUTES))
"""The paths that metrics name."""
DECLARATION: Final = ServiceDeclaration(
    name="lf.a2a.v1.A2AService",
    permissions={name: permission for name, permission, *_ in _TABLE},
    or_permissions={name: (READ_TURNS,) for name, permission, *_ in _TABLE if permission == READ_EXECUTIONS},
)


class A2aParams(Params):
    """The parameters of an operation as JSON, which the protos of A2A check; `is_long` says that this takes long."""

    given: dict[str, Any]
    is_long: bool


@value
class A2aInterface:
    """The bindings of A2A: `grpc` for the gRPC server, `http` for the paths below /a2a/."""

    grpc: Service
    http: Interface


def build_a2a_interface(
    reasoning: ReasoningService,
    turns: TurnService,
    *,
    desk: ExecutionDesk,
    budget: Budget,
    receivers: TaskReceivers | None,
    write_timeout_s: float,
    observer: Observer,
) -> A2aInterface:
    """Return the bindings of A2A; `desk` finds executions of every kind, `budget` bounds tasks that name none.

    `receivers` keep what clients name for their tasks; None if the operator allows none.

    Raises:
        SettingsError: the package with the messages of A2A is not installed.
    """
    try:
        from reasond_server.grpc_api.a2a_servicer import make_handlers, read_json  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SettingsError(
            "[a2a] enabled is true, but a2a-sdk cannot be imported", remedy="Install reasond-server[a2a]."
        ) from error
    catalogue = ModelCatalogue(strategies=reasoning.strategies(), offers_auto=reasoning.offers_auto)
    runs = AskedRuns(reasoning=reasoning, turns=turns, turn_operation=TURNS.operation("RunTurn"))
    tasks = Tasks(runs=runs, desk=desk, catalogue=catalogue, budget=budget, receivers=receivers)
    answers = {name: partial(answer, tasks) for name, (*_, answer) in _ANSWERS.items()}
    streams = {name: partial(stream, tasks) for name, (*_, stream) in _STREAMS.items()}
    writer = StreamWriter(write_timeout_s=write_timeout_s, observer=observer, id_name="id of the task")
    handlers = make_handlers(answers=answers, streams=streams, begin=_begin, translate=translate_error, writer=writer)
    methods = {name: _make_method(name, read_json, answers, streams) for name in DECLARATION.permissions}
    routes = PathRoutes(_ROUTES, hint=f"JSON-RPC is at {A2A_ROOT}, HTTP+JSON at {HTTP_ROOT}")
    service = Service(
        declaration=DECLARATION,
        register=lambda table: table.add_registered_method_handlers(DECLARATION.name, handlers),
        methods={},
    )
    return A2aInterface(
        grpc=service, http=partial(A2aEndpoint, routes, Methods([methods]), _describe_http, _describe_rpc)
    )


def _make_method(
    name: str,
    read: Callable[..., Awaitable[Json]],
    answers: Mapping[str, Callable[[Principal, Json], Awaitable[dict[str, Any]]]],
    streams: Mapping[str, Callable[[Principal, Json, Cursor | None], AsyncGenerator[Update, None]]],
) -> Method:
    """Return an operation for HTTP, whose parameters `read` checks."""

    async def run(caller: Principal, params: A2aParams) -> dict[str, Any]:
        return await answers[name](caller, await read(name, params.given, is_long=params.is_long))

    async def follow(caller: Principal, params: A2aParams, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        given = await read(name, params.given, is_long=params.is_long)
        async with aclosing(streams[name](caller, given, cursor)) as updates:
            async for update in updates:
                yield update

    operation = DECLARATION.operation(name)
    streaming = Streaming(operation=operation, open=follow) if name in streams else None
    return Method(operation=operation, params=A2aParams, run=run, streaming=streaming)


def _begin(metadata: Mapping[str, str]) -> Cursor | None:
    """Check the version that a call of gRPC names, and return the place at which it resumes.

    Raises:
        ReasondError: one of them is refused.
    """
    require_version(metadata.get("a2a-version"))
    return None if (place := metadata.get("last-event-id")) is None else read_cursor(place)


def _describe_http(error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return an error as HTTP+JSON has it: {status, headers, body, frame} (AIP-193)."""
    told, reason, domain = translate_error(error)
    status = describe_status(told, call_id, reason=reason, domain=domain, keeps_names=False)
    code = (isinstance(error, A2aError) and error.status) or STATUSES.get(reason.grpc_status, 500)
    return describe_failure(error, code, to_json({"error": {**status, "code": code, "status": reason.grpc_status}}))


def _describe_rpc(
    rpc_id: object, error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return an error as JSON-RPC has it: {status, headers, body, frame}."""
    told, reason, domain = translate_error(error)
    status = describe_status(told, call_id, reason=reason, domain=domain, keeps_names=False)
    shown = {"code": reason.jsonrpc_code, "message": status["message"], "data": status["details"]}
    code = (isinstance(error, A2aError) and error.status) or 200
    return describe_failure(error, code, to_json({"jsonrpc": "2.0", "id": rpc_id, "error": shown}))
