"""TurnService: conversations that use tools of the server and of the client, and their sessions."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import EXECUTE_TURNS, READ_TURNS
from reasond_server.grpc_api.turn_servicer import TurnServicer
from reasond_server.http_api.http_calls import Method, Streaming
from reasond_server.http_api.json_mapping import build_conversation_json, build_kind_json, build_turn_view_json
from reasond_server.http_api.params import (
    AttachTurnParams,
    ListSessionsParams,
    ListTurnsParams,
    ReadToolResultParams,
    ReenterTurnParams,
    SessionParams,
    StartTurnParams,
    TurnParams,
)
from reasond_server.services.declaration import Service, ServiceDeclaration
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.turns.turn_requests import check_part
from reasond_server.types import Cursor, Principal, StreamEvent
from reasond_server.types.turns import TurnState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from reasond_server.http_api.params import TurnStreamParams
    from reasond_server.turns.turn_service import TurnService, TurnView

DECLARATION: Final = ServiceDeclaration(
    name="reasond.v1.TurnService",
    permissions={
        "ExecuteTurn": EXECUTE_TURNS,
        "RunTurn": EXECUTE_TURNS,
        "GetTurn": READ_TURNS,
        "ListTurns": READ_TURNS,
        "CancelTurn": EXECUTE_TURNS,
        "DeleteTurn": EXECUTE_TURNS,
        "ReadToolResult": READ_TURNS,
        "GetSession": READ_TURNS,
        "ListSessions": READ_TURNS,
        "DeleteSession": EXECUTE_TURNS,
    },
    methods={
        "sessions.delete": "DeleteSession",
        "sessions.get": "GetSession",
        "sessions.list": "ListSessions",
        "turns.attach": "ExecuteTurn",
        "turns.cancel": "CancelTurn",
        "turns.delete": "DeleteTurn",
        "turns.get": "GetTurn",
        "turns.list": "ListTurns",
        "turns.read_tool_result": "ReadToolResult",
        "turns.reenter": "RunTurn",
        "turns.start": "RunTurn",
    },
)
_MAX_EXCERPT_BYTES: Final = 3 * 1024 * 1024


def build_turn_service(
    service: TurnService,
    *,
    max_send_bytes: int = 4 * 1024 * 1024,
    write_timeout_s: float = 30.0,
    observer: Observer = UNOBSERVED,
) -> Service:
    """Return TurnService for both transports; the limits are those of `TurnServicer`."""
    servicer = TurnServicer(
        service=service, max_send_bytes=max_send_bytes, write_timeout_s=write_timeout_s, observer=observer
    )
    methods = {
        "sessions.delete": DECLARATION.method("sessions.delete", SessionParams, partial(_delete_session, service)),
        "sessions.get": DECLARATION.method("sessions.get", SessionParams, partial(_get_session, service)),
        "sessions.list": DECLARATION.method("sessions.list", ListSessionsParams, partial(_list_sessions, service)),
        "turns.attach": _make_streamable(service, "turns.attach", AttachTurnParams, _attach, _read_cursor),
        "turns.cancel": DECLARATION.method("turns.cancel", TurnParams, partial(_cancel, service)),
        "turns.delete": DECLARATION.method("turns.delete", TurnParams, partial(_delete, service)),
        "turns.get": DECLARATION.method("turns.get", TurnParams, partial(_get, service)),
        "turns.list": DECLARATION.method("turns.list", ListTurnsParams, partial(_list, service)),
        "turns.read_tool_result": DECLARATION.method(
            "turns.read_tool_result", ReadToolResultParams, partial(_read, service)
        ),
        "turns.reenter": _make_streamable(
            service, "turns.reenter", ReenterTurnParams, _reenter, ReenterTurnParams.build_reentry
        ),
        "turns.start": _make_streamable(service, "turns.start", StartTurnParams, _start, StartTurnParams.build_start),
    }
    return Service(declaration=DECLARATION, register=servicer.register, methods=methods)


def _make_streamable(
    service: TurnService,
    name: str,
    params: type,
    run: Callable[[TurnService, Principal, Any], Awaitable[TurnView]],
    source_of: Callable[[Any], Any],
) -> Method:
    """Return a method that returns at the next exit of the turn, or streams the events of what `source_of` returns."""
    return Method(
        operation=DECLARATION.find_operation(name),
        params=params,
        run=partial(_run, service, run),
        streaming=Streaming(
            operation=DECLARATION.operation("ExecuteTurn"),
            open=partial(_open_stream, service, source_of),
            id_name="turn_id",
        ),
        read_partial=partial(_read_partial, service),
    )


async def _run(
    service: TurnService,
    run: Callable[[TurnService, Principal, Any], Awaitable[TurnView]],
    caller: Principal,
    params: TurnStreamParams,
) -> dict[str, Any]:
    params.refuse_stream_options()
    view = await run(service, caller, params)
    exit_mode = "client_tools" if view.turn.state is TurnState.AWAITING_CLIENT else "done"
    return {**build_turn_view_json(view.turn, view.result), "exit_mode": exit_mode}


def _open_stream(
    service: TurnService,
    source_of: Callable[[Any], Any],
    caller: Principal,
    params: TurnStreamParams,
    cursor: Cursor | None,
) -> AsyncGenerator[StreamEvent, None]:
    """Return the events of the turn that `cursor` names, or of the one that the parameters start or go on with."""
    request_id = "" if cursor is not None else getattr(params, "request_id", None) or ""
    return service.stream(
        caller,
        cursor or source_of(params),
        request_id=request_id,
        include_deltas=params.include_deltas,
        follow=params.follow,
    )


async def _start(service: TurnService, caller: Principal, params: StartTurnParams) -> TurnView:
    return await service.run(caller, params.build_start(), request_id=params.request_id or "")


async def _reenter(service: TurnService, caller: Principal, params: ReenterTurnParams) -> TurnView:
    return await service.run(caller, params.build_reentry())


async def _attach(service: TurnService, caller: Principal, params: AttachTurnParams) -> TurnView:
    """Wait for the next exit of the turn."""
    async with aclosing(service.stream(caller, _read_cursor(params))) as events:
        async for _ in events:
            pass
    return await service.get(caller, params.turn_id)


def _read_cursor(params: AttachTurnParams) -> Cursor:
    return Cursor(execution_id=params.turn_id, after_sequence=params.after_sequence)


async def _read_partial(service: TurnService, caller: Principal, turn_id: str) -> dict[str, Any]:
    """Return a failed turn, in the form in which the error of its call shows it."""
    view = await service.get(caller, turn_id)
    return build_turn_view_json(view.turn, view.result)


async def _get(service: TurnService, caller: Principal, params: TurnParams) -> dict[str, Any]:
    view = await service.get(caller, params.turn_id, with_conversation=True)
    conversation = view.conversation
    return {
        **build_turn_view_json(view.turn, view.result),
        "conversation": None if conversation is None else build_conversation_json(conversation),
    }


async def _list(service: TurnService, caller: Principal, params: ListTurnsParams) -> dict[str, Any]:
    page = await service.list(
        caller,
        session_id=params.session_id,
        state=params.state,
        page_size=params.page_size,
        page_token=params.page_token,
    )
    return {"turns": [build_kind_json(turn) for turn in page.turns], "next_page_token": page.next_page_token}


async def _cancel(service: TurnService, caller: Principal, params: TurnParams) -> dict[str, Any]:
    return {"turn": build_kind_json(await service.cancel(caller, params.turn_id))}


async def _delete(service: TurnService, caller: Principal, params: TurnParams) -> dict[str, Any]:
    await service.delete(caller, params.turn_id)
    return {}


async def _read(service: TurnService, caller: Principal, params: ReadToolResultParams) -> dict[str, Any]:
    part = params.build_part()
    check_part(part, max_bytes=params.max_bytes)
    most = min(params.max_bytes or _MAX_EXCERPT_BYTES, _MAX_EXCERPT_BYTES)
    return build_kind_json(await service.read_tool_result(caller, params.turn_id, params.call_id, part, max_bytes=most))


async def _get_session(service: TurnService, caller: Principal, params: SessionParams) -> dict[str, Any]:
    return {"session": build_kind_json(await service.get_session(caller, params.session_id))}


async def _list_sessions(service: TurnService, caller: Principal, params: ListSessionsParams) -> dict[str, Any]:
    page = await service.list_sessions(caller, page_size=params.page_size, page_token=params.page_token)
    return {
        "sessions": [build_kind_json(session) for session in page.sessions],
        "next_page_token": page.next_page_token,
    }


async def _delete_session(service: TurnService, caller: Principal, params: SessionParams) -> dict[str, Any]:
    await service.delete_session(caller, params.session_id)
    return {}
