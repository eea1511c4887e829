"""A2A over gRPC: converts messages to the JSON of A2A and back, and calls the operations; decides nothing.

The messages are those of a2a-sdk: a second registration of `lf.a2a.v1` in one process would be refused by protobuf.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from reasond_server.errors.base import Reason, ReasondError, Violation
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.guard import get_current_call, get_current_principal
from reasond_server.grpc_api.handlers import Context, Handler, make_handler
from reasond_server.grpc_api.statuses import build_status
from reasond_server.grpc_api.stream_writer import Placed, StreamWriter
from reasond_server.grpc_api.transcoding import read_message
from reasond_server.requests.payloads import restore_whole

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.message import Message

    from reasond_server.types import Cursor, Principal

SERVICE: Final = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
# Above the data of a part are four levels, and protobuf reads 26 of them within a list of tasks.
_MOST_LEVELS: Final = 30
# Longer messages take milliseconds to convert.
_LONG_BYTES: Final = 16 * 1024

Json = Mapping[str, Any]


class _Update(Placed, Protocol):
    """An update of a stream as JSON; None for a sign of life."""

    @property
    def body(self) -> dict[str, Any] | None:
        """The update."""


def make_handlers(
    *,
    answers: Mapping[str, Callable[[Principal, Json], Awaitable[dict[str, Any]]]],
    streams: Mapping[str, Callable[[Principal, Json, Cursor | None], AsyncGenerator[_Update, None]]],
    begin: Callable[[Mapping[str, str]], Cursor | None],
    translate: Callable[[ReasondError], tuple[ReasondError, Reason, str]],
    writer: StreamWriter,
) -> Mapping[str, Handler]:
    """Return the RPCs of the operations that answer once, and of those that stream, by their names.

    `begin` takes the metadata of a call, and returns the place at which its client resumes. `translate` returns an
    error in the words of A2A, its reason, and the domain of that.
    """

    def describe(error: ReasondError, *, call_id: str) -> Any:  # noqa: ANN401 - a message without types
        told, reason, domain = translate(error)
        return build_status(told, call_id=call_id, reason=reason, domain=domain)

    def enter(context: Context) -> Cursor | None:
        get_current_call().describe = describe
        return begin({key: str(text) for key, text in context.invocation_metadata() or ()})

    def make(method: MethodDescriptor) -> Handler:
        kind = method.output_type

        async def run(request: Message, context: Context) -> Message:
            enter(context)
            return read_message(kind, await answers[method.name](get_current_principal(), await _read_long(request)))

        async def write(request: Message, context: Context) -> None:
            cursor = enter(context)
            updates = streams[method.name](get_current_principal(), await _read_long(request), cursor)
            await writer.write(updates, context, lambda each: each.body and read_message(kind, each.body))

        return make_handler(
            write if method.name in streams else run,
            reads_stream=False,
            writes_stream=method.name in streams,
            decode=GetMessageClass(method.input_type).FromString,
            encode=GetMessageClass(kind).SerializeToString,
        )

    return {method.name: make(method) for method in SERVICE.methods}


async def read_json(operation: str, given: Json, *, is_long: bool) -> Json:
    """Return the parameters of an operation as its proto has them; members that it does not have are left out.

    Raises:
        InvalidRequestError: a member has another form, or one is missing that must be there.
    """

    def read() -> Json:
        kind = SERVICE.methods_by_name[operation].input_type
        return _read(read_message(kind, given, ignores_unknown=True))

    return await asyncio.to_thread(read) if is_long else read()


async def _read_long(request: Message) -> Json:
    """Return a request as JSON; a long one does not block the event loop. Raises as `read_json`."""
    return await asyncio.to_thread(_read, request) if request.ByteSize() > _LONG_BYTES else _read(request)


def _read(request: Message) -> Json:
    """Return a request as JSON, with its whole numbers. Raises as `read_json`."""
    try:
        validate_proto_required_fields(request)
    except InvalidParamsError as error:
        missing = (error.data or {}).get("errors", ())
        raise InvalidRequestError.of(
            *(Violation(field=each["field"], description="must be given, as A2A 1.0 has it") for each in missing)
        ) from None
    try:
        found = json_format.MessageToDict(request)
    except (json_format.SerializeToJsonError, ValueError, OverflowError):
        raise InvalidRequestError.at("request", "must have finite numbers, and times in the years 1 to 9999") from None
    for holder in (found, found.get("configuration", {})):
        if (length := holder.get("historyLength", 0)) < 0:
            raise InvalidRequestError.at("historyLength", f"must be at least 0, got {length}")
    try:
        whole: Json = restore_whole(found, levels=_MOST_LEVELS)
    except ValueError as error:
        raise InvalidRequestError.at("params", str(error)) from None
    return whole
