"""A2A: one set of operations behind JSON-RPC, HTTP+JSON and gRPC, with the permissions of our own RPCs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict

from reasond_server.access.permissions import EXECUTE, READ_EXECUTIONS, READ_TURNS
from reasond_server.errors.base import SettingsError
from reasond_server.http_api.http_calls import Method, Methods, Streaming, read_cursor
from reasond_server.http_api.params import Params
from reasond_server.protocols.a2a.a2a_endpoint import A2aEndpoint, require_version
from reasond_server.protocols.a2a.a2a_errors import A2aError, A2aReason, tell_error
from reasond_server.protocols.a2a.task_service import Tasks, Update
from reasond_server.protocols.asked_runs import AskedRuns
from reasond_server.protocols.model_catalogue import ModelCatalogue
from reasond_server.services.declaration import Service, ServiceDeclaration
from reasond_server.services.turns import DECLARATION as TURNS
from reasond_server.types import Cursor, Principal
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.http_api.http_app import Interface
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.turns.turn_service import TurnService
    from reasond_server.types import Budget
    from reasond_server.webhooks.task_receivers import TaskReceivers

Json = Mapping[str, Any]
Answer = Callable[[Principal, Json], Awaitable[dict[str, Any]]]
Stream = Callable[[Principal, Json, Cursor | None], AsyncGenerator[Update, None]]
_READING: Final = (
    "GetTask",
    "ListTasks",
    "SubscribeToTask",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
)
_CHANGING: Final = (
    "SendMessage",
    "SendStreamingMessage",
    "CancelTask",
    "GetExtendedAgentCard",
    "CreateTaskPushNotificationConfig",
    "DeleteTaskPushNotificationConfig",
)
DECLARATION: Final = ServiceDeclaration(
    name="lf.a2a.v1.A2AService",
    permissions={**dict.fromkeys(_CHANGING, EXECUTE), **dict.fromkeys(_READING, READ_EXECUTIONS)},
    or_permissions=dict.fromkeys(_READING, (READ_TURNS,)),
)


class A2aParams(Params):
    """The parameters of an operation as JSON, which the protos of A2A check."""

    model_config = ConfigDict(extra="allow")


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
    receivers: TaskReceivers | None,
    write_timeout_s: float,
    observer: CallObserver,
) -> A2aInterface:
    """Return the bindings of A2A; `desk` finds executions of every kind, `budget` bounds tasks that name none.

    `receivers` keep what clients name for their tasks; None if the operator allows none.

    Raises:
        SettingsError: the package with the messages of A2A is not installed.
    """
    try:
        from reasond_server.grpc_api.a2a_servicer import A2aOperations, A2aServicer, check_json  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SettingsError(
            "[a2a] enabled is true, but a2a-sdk cannot be imported", remedy="Install reasond-server[a2a]."
        ) from error
    catalogue = ModelCatalogue(strategies=reasoning.strategies(), offers_auto=reasoning.offers_auto)
    runs = AskedRuns(reasoning=reasoning, turns=turns, turn_operation=TURNS.operation("RunTurn"))
    tasks = Tasks(runs=runs, desk=desk, catalogue=catalogue, budget=budget, receivers=receivers)
    answers, streams = (
        _list_answers(tasks),
        {"SendStreamingMessage": tasks.stream, "SubscribeToTask": tasks.subscribe},
    )
    operations = A2aOperations(
        answer=answers, follow=streams, read_cursor=read_cursor, require_version=require_version, tell_error=tell_error
    )
    servicer = A2aServicer(operations=operations, write_timeout_s=write_timeout_s, observer=observer)
    methods = {
        name: _make_method(name, partial(check_json, name), answers.get(name), streams.get(name))
        for name in DECLARATION.permissions
    }
    service = Service(declaration=DECLARATION, register=servicer.register, methods={})
    return A2aInterface(grpc=service, http=partial(A2aEndpoint, Methods([methods])))


def _list_answers(tasks: Tasks) -> Mapping[str, Answer]:
    """Return the operations that answer once, by their names."""

    async def no_card(_caller: Principal, _params: Json) -> dict[str, Any]:
        problem, remedy = "This server has no extended card", "Its public card tells all."
        raise A2aError(A2aReason.UNSUPPORTED_OPERATION, problem, remedy=remedy)

    return {
        "SendMessage": tasks.send,
        "GetTask": tasks.get,
        "ListTasks": tasks.list,
        "CancelTask": tasks.cancel,
        "GetExtendedAgentCard": no_card,
        "CreateTaskPushNotificationConfig": tasks.create_push,
        "GetTaskPushNotificationConfig": tasks.get_push,
        "ListTaskPushNotificationConfigs": tasks.list_push,
        "DeleteTaskPushNotificationConfig": tasks.delete_push,
    }


def _make_method(name: str, check: Callable[[Json], Json], answer: Answer | None, stream: Stream | None) -> Method:
    """Return an operation for HTTP: its parameters are checked by `check`."""
    operation = DECLARATION.operation(name)

    async def run(caller: Principal, params: A2aParams) -> dict[str, Any]:
        if answer is None:
            raise A2aError(A2aReason.UNSUPPORTED_OPERATION, "This operation has a stream and no answer")
        return await answer(caller, check(params.model_extra or {}))

    def follow(caller: Principal, params: A2aParams, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        assert stream is not None  # noqa: S101 - only streams are opened
        return stream(caller, check(params.model_extra or {}), cursor)

    streaming = None if stream is None else Streaming(operation=operation, open=follow)
    return Method(operation=operation, params=A2aParams, run=run, streaming=streaming)
