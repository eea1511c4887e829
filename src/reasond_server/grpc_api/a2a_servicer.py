"""A2A over gRPC: converts messages to the JSON of A2A and back, and calls the operations; decides nothing.

The messages are those of a2a-sdk: a second registration of `lf.a2a.v1` in one process would be refused by protobuf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf import any_pb2, empty_pb2, json_format
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.guard import TRANSPORT, get_current_call, get_current_principal
from reasond_server.grpc_api.statuses import MAX_STATUS_BYTES, clip_message
from reasond_server.grpc_api.stream_writer import StallWatch
from reasond_server.requests.payloads import restore_whole
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.message import Message

    from reasond_server.errors.base import ReasondError
    from reasond_server.grpc_api.handlers import Context, Handler, MethodTable
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.types import Cursor, Principal

SERVICE: Final = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
_VERSION_KEY: Final = "a2a-version"
_CURSOR_KEY: Final = "last-event-id"
_ANY_STATE: Final = "TASK_STATE_UNSPECIFIED"
_FIELD: Final = re.compile(r"Failed to parse (\w+) field")
# Above the data of a part are four levels, and protobuf reads 26 of them within a list of tasks.
_MOST_LEVELS: Final = 30

Json = Mapping[str, Any]


class _Update(Protocol):
    """An update of a stream as JSON; None for a sign of life."""

    @property
    def body(self) -> dict[str, Any] | None:
        """The update."""
        ...


@value
class A2aOperations:
    """What the RPCs call, by their names.

    Attributes:
        answer: takes the caller and the request as JSON, and returns the answer as JSON.
        follow: takes the place of the last update that the client has, too; yields updates.
        read_cursor: reads that place.
        require_version: refuses a version.
        tell_error: returns an error as (name of the gRPC status, message, details of google.rpc as JSON, another code).
    """

    answer: Mapping[str, Callable[[Principal, Json], Awaitable[dict[str, Any]]]]
    follow: Mapping[str, Callable[[Principal, Json, Cursor | None], AsyncGenerator[_Update, None]]]
    read_cursor: Callable[[str], Cursor]
    require_version: Callable[[str | None], None]
    tell_error: Callable[[ReasondError, str], tuple[str, str, list[dict[str, Any]], int]]


class A2aServicer:
    """Serves `lf.a2a.v1.A2AService`; a client that takes no update within `write_timeout_s` seconds is left."""

    def __init__(self, *, operations: A2aOperations, write_timeout_s: float, observer: CallObserver) -> None:
        self._operations = operations
        self._write_timeout_s = write_timeout_s
        self._observer = observer

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        handlers = {method.name: self._make_handler(method) for method in SERVICE.methods}
        methods.add_registered_method_handlers(SERVICE.full_name, handlers)

    def _make_handler(self, method: MethodDescriptor) -> Handler:
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        codec: dict[str, Any] = {
            "request_deserializer": request.FromString,
            "response_serializer": response.SerializeToString,
        }
        follow = self._operations.follow.get(method.name)
        if follow is not None:

            async def write(message: Message, context: Context) -> None:
                cursor = self._enter(context)
                updates = follow(get_current_principal(), _check(message), cursor)
                await self._write(updates, context, response)

            return grpc.unary_stream_rpc_method_handler(write, **codec)
        answer = self._operations.answer[method.name]

        async def run(message: Message, context: Context) -> Message:
            self._enter(context)
            return _to_message(await answer(get_current_principal(), _check(message)), response)

        return grpc.unary_unary_rpc_method_handler(run, **codec)

    def _enter(self, context: Context) -> Cursor | None:
        """Let errors be told in A2A's way, check the version, and return the place to resume at."""
        get_current_call().describe = self._build_status
        metadata = {key: str(text) for key, text in context.invocation_metadata() or ()}
        self._operations.require_version(metadata.get(_VERSION_KEY))
        place = metadata.get(_CURSOR_KEY)
        return None if place is None else self._operations.read_cursor(place)

    async def _write(self, updates: AsyncGenerator[_Update, None], context: Context, response: type[Message]) -> None:
        self._observer.stream_opened(TRANSPORT)
        try:
            with StallWatch(limit_s=self._write_timeout_s) as watch:
                async with aclosing(updates):
                    async for update in updates:
                        if update.body is not None:
                            await watch.write_within(context.write(_to_message(update.body, response)))
        finally:
            self._observer.stream_closed(TRANSPORT)

    def _build_status(self, error: ReasondError, *, call_id: str) -> status_pb2.Status:
        """Return the status of an error; details that do not fit the trailers are left out."""
        name, message, details, _ = self._operations.tell_error(error, call_id)
        status = status_pb2.Status(code=grpc.StatusCode[name].value[0], message=clip_message(message))
        for detail in details:
            kind = getattr(error_details_pb2, str(detail["@type"]).rpartition(".")[2])
            packed = any_pb2.Any()
            packed.Pack(json_format.ParseDict({k: v for k, v in detail.items() if k != "@type"}, kind()))
            if status.ByteSize() + packed.ByteSize() < MAX_STATUS_BYTES:
                status.details.append(packed)
        return status


def check_json(operation: str, given: Json) -> Json:
    """Return the parameters of an operation as its proto has them; members that it does not have are left out.

    Raises:
        InvalidRequestError: a member has another form, or one is missing that must be there.
    """
    request = GetMessageClass(SERVICE.methods_by_name[operation].input_type)()
    try:
        json_format.ParseDict(dict(given), request, ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, OverflowError) as error:
        # Its own words are not passed on, but where it stopped reading.
        field = ".".join(_FIELD.findall(str(error))) or "params"
        raise InvalidRequestError.of(Violation(field=field, description="does not have the form of A2A 1.0")) from None
    found = _check(request)
    # The parser leaves out names of states that it does not know, and a list without a filter has all tasks.
    if given.get("status", _ANY_STATE) != _ANY_STATE and "status" not in found:
        text = f"must be a state by the names of A2A 1.0, got {show(given['status'])}"
        raise InvalidRequestError.of(Violation(field="status", description=text))
    return found


def _check(request: Message) -> Json:
    """Return a request as JSON, with its whole numbers. Raises as `check_json`."""
    try:
        validate_proto_required_fields(request)
    except InvalidParamsError as error:
        missing = (error.data or {}).get("errors", ())
        raise InvalidRequestError.of(
            *(Violation(field=each["field"], description="must be given, as A2A 1.0 has it") for each in missing)
        ) from None
    try:
        found: Json = restore_whole(_to_json(request), levels=_MOST_LEVELS)
    except ValueError as error:
        raise InvalidRequestError.of(Violation(field="params", description=str(error))) from None
    for holder in (found, found.get("configuration", {})):
        if (length := holder.get("historyLength", 0)) < 0:
            raise InvalidRequestError.of(
                Violation(field="historyLength", description=f"must be at least 0, got {length}")
            )
    return found


def _to_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON.

    Raises:
        InvalidRequestError: a number is not finite, or a time none of the years 1 to 9999.
    """
    try:
        return json_format.MessageToDict(message)
    except (json_format.SerializeToJsonError, ValueError, OverflowError):
        text = "must have finite numbers, and times in the years 1 to 9999"
        raise InvalidRequestError.of(Violation(field="request", description=text)) from None


def _to_message(body: dict[str, Any], kind: type[Message]) -> Message:
    return kind() if kind is empty_pb2.Empty else json_format.ParseDict(body, kind())
