"""The outermost layer of every handler, and the state of the RPC in progress.

For every failure inside it, the peer gets a well-formed status and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from reasond_server.base.clock import CALL_ID_KEY, choose_call_id
from reasond_server.errors.base import INTERNAL_MESSAGE, InternalError, ReasondError, show
from reasond_server.errors.request import InvalidRequestError, MethodNotFoundError
from reasond_server.grpc_api.handlers import Behaviour, Context, Handler, Metadata, wrap_handler
from reasond_server.grpc_api.load_reports import LOAD_KEY, LOAD_SERVICE, LoadReports
from reasond_server.grpc_api.statuses import PUSHBACK_KEY, build_status, find_pushback
from reasond_server.telemetry.logs import emit_line
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.telemetry.propagation import TRACE_KEYS, TraceContext, read_trace
from reasond_server.telemetry.scope import Arrival, Scope, enter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # shipped without py.typed

    from reasond_server.grpc_api.listeners import MetadataCollector
    from reasond_server.telemetry.spans import OpenSpan, Tracing
    from reasond_server.types import Principal


STATUS_KEY: Final = "grpc-status-details-bin"
TRANSPORT: Final = "grpc"
QUIET_PREFIXES: Final = ("/grpc.health.", "/grpc.reflection.", f"/{LOAD_SERVICE}/")
# Codes that grpc sets by itself and that are faults; for our own errors, the reason decides.
_FAULTS: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
_AUTHORIZATION: Final = "authorization"
_KEYS: Final = TRACE_KEYS | {CALL_ID_KEY, _AUTHORIZATION}
_CODE_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
_log = logging.getLogger("reasond.grpc")


class ErrorGuard:
    """Gives every RPC a request id, a rich status if it fails, and one line in the access log.

    The text of foreign exceptions is only logged. If a handler ends with the CancelledError of a task of its own,
    the peer gets INTERNAL at once, because grpc.aio would send no status at all. The peer's cancellation is always
    raised again, because grpc.aio leaks memory with each one that is suppressed.
    """

    def __init__(
        self,
        *,
        new_call_id: Callable[[], str],
        collector: MetadataCollector | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        observer: Observer = UNOBSERVED,
        tracing: Tracing | None = None,
        load: LoadReports | None = None,
    ) -> None:
        self._load = load
        self._observer = observer
        self._new_call_id = new_call_id
        self._collector = collector
        self._monotonic = monotonic
        self._tracing = tracing
        # Its kind waits for no message.
        refuse: Handler = grpc.stream_stream_rpc_method_handler(self._refuse_too_large)
        self._too_large = wrap_handler(refuse, self._add_guard)
        self._running: set[asyncio.Task[Any]] = set()
        self._release: asyncio.Event | None = None

    @property
    def running(self) -> frozenset[asyncio.Task[Any]]:
        """The tasks of the RPCs in progress; `server.stop` returns before the last of them has ended."""
        return frozenset(self._running)

    @contextlib.contextmanager
    def hold_ends(self) -> Generator[None, None, None]:
        """Delay the end of every RPC while the context lasts: results may be ready, but peers wait for the status."""
        self._release = release = asyncio.Event()
        try:
            yield
        finally:
            self._release = None
            release.set()

    def begin_call(self, method: str, metadata: Metadata) -> Handler | None:
        """Begin the RPC of this task, with the ids and the tokens in its metadata.

        Returns a handler that refuses the call if its metadata are too large: they are not looked through.
        """
        if self._collector is not None and self._collector.note(metadata):
            begin(RpcCall(method=method, call_id=self._new_call_id(), tokens=()))
            return self._too_large
        known = [pair for pair in metadata if pair[0] in _KEYS]
        tokens = [str(value) for key, value in known if key == _AUTHORIZATION]
        if len(tokens) == len(known):
            begin(RpcCall(method=method, call_id=self._new_call_id(), tokens=tokens))
            return None
        given = [str(value) for key, value in known if key == CALL_ID_KEY]
        call_id = choose_call_id(given, new_call_id=self._new_call_id)
        begin(RpcCall(method=method, call_id=call_id, tokens=tokens, trace=read_trace(known)))
        return None

    def wrap(self, _method: str, handler: Handler) -> Handler:
        """Return `handler` inside the guard."""
        return wrap_handler(handler, self._add_guard)

    def refuse_unknown(self) -> Handler:
        """Return a handler that refuses a method that does not exist; its kind works for callers of every kind."""
        return wrap_handler(grpc.stream_stream_rpc_method_handler(_refuse_unknown), self._add_guard)

    async def _refuse_too_large(self, _requests: object, _context: Context) -> None:
        most = self._collector.max_metadata_bytes if self._collector is not None else 0
        description = (
            f"is over the limit of {most} bytes, at 32 bytes for each pair and its texts; "
            "send less, or have [server] max_metadata_bytes raised"
        )
        raise InvalidRequestError.at("metadata", description)

    def _add_guard(self, run: Behaviour) -> Behaviour:
        async def serve(requests: object, context: Context) -> object:
            call = get_current_call()
            enter(scope := Scope(call.call_id, call.trace))
            arrival = None if self._tracing is None else _begin_arrival(self._tracing, call, scope)
            # Set before anything can fail: grpc sends it with every status, including its own.
            context.set_trailing_metadata(self._build_trailers(call))
            task, started = _get_this_task(), self._monotonic()
            self._observer.rpc_began(call.method[1:])
            self._running.add(task)
            code, failure = "", None
            try:
                try:
                    answer = await run(requests, context)
                except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
                    if _needs_no_status(error, task):
                        raise
                    failure, status = _to_status(_convert_failure(error), call)
                if self._release is not None:
                    await self._release.wait()
                if failure is None:
                    if self._load is not None:
                        context.set_trailing_metadata(self._build_trailers(call))
                    return answer
                code = _announce(call, failure, status)
                pushback = find_pushback(failure, left_s=remaining_s(context))
                retry = ((PUSHBACK_KEY, pushback),) if pushback else ()
                trailers = (*self._build_trailers(call), (STATUS_KEY, status.SerializeToString()), *retry)
                await context.abort(grpc.StatusCode[code], status.message, trailing_metadata=trailers)
            except asyncio.CancelledError:
                code = code or _choose_cancellation_code(context)
                raise
            except grpc.aio.InternalError:
                code = code or "CANCELLED"
                await _leave(context)
            finally:
                self._running.discard(task)
                code = code or _get_code_set_on(context)
                span = None if arrival is None else arrival.finish()
                self._note_end(call, code, self._monotonic() - started)
                if span is not None:
                    _end(span, call, scope, code)
                # grpc.aio keeps this frame until the next garbage collection if an error is raised; the frames of the
                # failure, which may hold the request, must be freed before.
                del failure
            return None

        return serve

    def _build_trailers(self, call: RpcCall) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata that come with every status."""
        own = (CALL_ID_KEY, call.call_id)
        return (own,) if self._load is None else (own, (LOAD_KEY, self._load.latest))

    def _note_end(self, call: RpcCall, code: str, duration_s: float) -> None:
        method = call.method[1:]
        self._observer.call_ended(TRANSPORT, method, code, duration_s)
        self._observer.rpc_ended(method, code, received_bytes=call.received_bytes, sent_bytes=call.sent_bytes)
        if call.reason:
            self._observer.call_failed(TRANSPORT, call.reason)
        _log_access(call, code, duration_s)


def _begin_arrival(tracing: Tracing, call: RpcCall, scope: Scope) -> Arrival | None:
    """Return the `Arrival` that begins the span of an RPC; None for probes and reflection."""
    if call.method.startswith(QUIET_PREFIXES):
        return None
    name = call.method.removeprefix("/")
    attributes = {"rpc.system.name": "grpc", "rpc.method": name, "reasond.request.id": call.call_id}
    return Arrival(tracing=tracing, scope=scope, name=name, attributes=attributes)


def _end(span: OpenSpan, call: RpcCall, scope: Scope, code: str) -> None:
    """End the span of an RPC with its status."""
    span.set({"rpc.response.status_code": code})
    if scope.execution_id:
        span.set({"reasond.execution.id": scope.execution_id})
    if call.reason == "METHOD_NOT_FOUND":
        # Callers can invent any number of method names.
        span.set({"rpc.method": "_OTHER"})
        span.rename("_OTHER")
    if code != "OK":
        span.fail(call.reason or code, is_fault=call.is_fault if call.reason else code in _FAULTS)
    span.end()


def _needs_no_status(error: BaseException, task: asyncio.Task[Any]) -> bool:
    """Whether `error` needs no status: the peer of the call in `task` has left, or has a status already."""
    if isinstance(error, asyncio.CancelledError):
        # grpc.aio cancels this task when the peer leaves; any other CancelledError comes from elsewhere.
        return bool(task.cancelling())
    return isinstance(error, (grpc.aio.InternalError, grpc.aio.AbortError))


def _convert_failure(error: BaseException) -> ReasondError:
    """Return the error to send to the peer; no foreign text may reach it."""
    if isinstance(error, ReasondError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return _build_fault("a task inside the handler was cancelled", error)
    return _build_fault("unexpected error in the handler", error)


def _build_fault(message: str, cause: BaseException) -> InternalError:
    fault = InternalError(message)
    fault.__cause__ = cause
    return fault


async def _refuse_unknown(_requests: object, _context: Context) -> None:
    raise MethodNotFoundError(
        f"Method not found: {show(get_current_call().method)}", remedy="Server reflection lists the methods that exist."
    )


def _announce(call: RpcCall, failure: ReasondError, status: Status) -> str:
    """Log a fault of the server with its traceback; return the name of the status code."""
    call.reason, call.is_fault = failure.declaration.name, failure.declaration.is_fault
    if call.reason == "INTERNAL":
        extra = {"method": call.method, "call_id": call.call_id}
        _log.error("%s failed", call.method, exc_info=failure, extra=extra)
    return _CODE_NAMES[status.code]


def _to_status(failure: ReasondError, call: RpcCall) -> tuple[ReasondError, Status]:
    """Return the failure and its status; a failure that fits no status becomes a fault of the server."""
    try:
        return failure, call.describe(failure, call_id=call.call_id)
    except Exception as error:  # noqa: BLE001 - grpc.aio would send its text to the peer
        fault = _build_fault("a failure could not be told", error)
        return fault, build_status(fault, call_id=call.call_id)


async def _leave(context: Context) -> None:
    """End a call after a write to the peer failed; nearly always the peer has left.

    Raises:
        grpc.aio.AbortError: the peer is still connected and gets INTERNAL.
        asyncio.CancelledError: the peer has left; grpc.aio then ends the call without a log line.
    """
    with contextlib.suppress(grpc.aio.InternalError, grpc.aio.UsageError):
        await context.abort(grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE)
    raise asyncio.CancelledError


def _get_this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:  # pragma: no cover - grpc.aio runs every handler in a task
        message = "an RPC runs outside a task"
        raise InternalError(message)
    return task


# The client's deadline is earlier than ours by the travel time of its request.
_TRAVEL_S = 0.2


def _choose_cancellation_code(context: Context) -> str:
    remaining = remaining_s(context)
    return "DEADLINE_EXCEEDED" if remaining is not None and remaining <= _TRAVEL_S else "CANCELLED"


def _get_code_set_on(context: Context) -> str:
    code: Any = context.code()
    if code is None:
        return "OK"
    return code.name if isinstance(code, grpc.StatusCode) else _CODE_NAMES.get(code, "UNKNOWN")


def _log_access(call: RpcCall, code: str, duration_s: float) -> None:
    """Write the access log line: caller, method and outcome, but no content."""
    level = logging.DEBUG if call.method.startswith(QUIET_PREFIXES) else logging.INFO
    subject = call.principal.subject if call.principal else ""
    # Callers can invent names of any length.
    method = show(call.method) if call.reason == "METHOD_NOT_FOUND" else call.method
    fields: dict[str, str | float] = {
        "method": method,
        "code": code,
        "reason": call.reason,
        "duration_ms": round(duration_s * 1000, 3),
        "call_id": call.call_id,
        "subject": subject,
    }
    emit_line(_log, level, "%s %s", method, code, fields=fields)


@dataclass(slots=True, kw_only=True)
class RpcCall:
    """One RPC. `trace` is the trace context of its caller; `reason` and `is_fault` tell how it failed.

    `describe` makes the status of a failure.

    `tokens` are its authorization headers, until they are checked; `principal` is its caller from then on; `transport`
    is its name in metrics. `received_bytes` and `sent_bytes` are those of its messages so far.
    """

    method: str
    call_id: str
    trace: TraceContext | None = None
    tokens: Sequence[str] = ()
    principal: Principal | None = None
    reason: str = ""
    is_fault: bool = False
    describe: Callable[..., Status] = build_status
    transport: str = TRANSPORT
    received_bytes: int = 0
    sent_bytes: int = 0


_CURRENT: Final[ContextVar[RpcCall]] = ContextVar("reasond_rpc_call")


def begin(call: RpcCall) -> None:
    """Set `call` as the RPC in progress; each RPC has its own context."""
    _CURRENT.set(call)


def get_current_call() -> RpcCall:
    """Return the RPC in progress.

    Raises:
        InternalError: nobody called `begin`.
    """
    call = _CURRENT.get(None)
    if call is None:
        message = "a servicer was called outside the guard"
        raise InternalError(message)
    return call


def get_current_principal() -> Principal:
    """Return the principal of the caller.

    Raises:
        InternalError: the method is exempt from authentication.
    """
    call = get_current_call()
    if call.principal is None:
        message = f"{call.method} asks who calls but is exempt from authentication"
        raise InternalError(message)
    return call.principal


def remaining_s(context: Context) -> float | None:
    """Return the seconds until the caller's deadline; None if there is none."""
    remaining: Any = context.time_remaining()
    return None if remaining is None else float(remaining)
