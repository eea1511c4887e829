"""RPCs with the JSON of the protos, by their annotations google.api.http: read, called and written as Envoy does it.

The handlers are those of the servicers without the layers of gRPC: whoever calls them has checked the caller.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from google.api import annotations_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from google.protobuf import descriptor_pool, json_format

from reasond.v1.execution_pb2 import ExecutionCursor
from reasond_server.errors.base import DOMAIN, Reason, ReasondError
from reasond_server.grpc_api.guard import RpcCall, begin
from reasond_server.grpc_api.handlers import Handler, find_behaviour, make_runner
from reasond_server.grpc_api.json_reader import nest_query, read_message
from reasond_server.grpc_api.message_codec import require_few_fields
from reasond_server.grpc_api.statuses import build_status
from reasond_server.types.kinds import EVENTS
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.descriptor_pb2 import MethodOptions
    from google.protobuf.message import Message

    from reasond_server.types import Cursor, Principal

REST: Final = "rest"
"""The name of this transport in metrics."""
# A list of 100 executions has 13 KiB, and takes 2 ms to write.
_LONG_BYTES: Final = 64 * 1024
_UNLOGGED: Final = frozenset(kind.wire_tag for kind in EVENTS.kinds.values() if not kind.is_logged)


@value
class HttpBinding:
    """One address of an RPC: the method of HTTP, and the template of the path with the fields in braces.

    With `takes_body` the other fields stand in the body, else in the query.
    """

    verb: str
    template: str
    takes_body: bool


def list_bindings(options: MethodOptions) -> Sequence[HttpBinding]:
    """Return the addresses that the options of an RPC declare."""
    rule = options.Extensions[annotations_pb2.http]
    return [
        HttpBinding(verb=verb.upper(), template=getattr(each, verb), takes_body=bool(each.body))
        for each in (rule, *rule.additional_bindings)
        if (verb := each.WhichOneof("pattern")) is not None
    ]


def find_method(path: str) -> MethodDescriptor:
    """Return the RPC at `/service/name`."""
    return descriptor_pool.Default().FindMethodByName(path.removeprefix("/").replace("/", "."))


class TranscodedRpcs:
    """Collects the RPCs of services in place of a server's `MethodTable`."""

    def __init__(self) -> None:
        self.found: dict[str, TranscodedRpc] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[object]) -> None:
        """Ignore them, as `MethodTable` does."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Add the `handlers` of a service by their paths."""
        for name, handler in handlers.items():
            self.found[f"/{service}/{name}"] = TranscodedRpc(f"/{service}/{name}", handler)


class TranscodedRpc:
    """One RPC at the path `/service/name`."""

    def __init__(self, path: str, handler: Handler) -> None:
        method = find_method(path)
        self._path = path
        self.bindings = list_bindings(method.GetOptions())
        self._kind = method.input_type
        self.is_stream = handler.response_streaming
        self._run = make_runner(find_behaviour(handler), is_stream=self.is_stream)

    async def call(
        self,
        caller: Principal,
        call_id: str,
        given: Mapping[str, Any],
        *,
        query: Iterable[tuple[str, str]],
        is_long: bool,
        cursor: Cursor | None,
        write: Callable[[dict[str, Any], str], Awaitable[None]],
    ) -> dict[str, Any]:
        """Return the response; that of a stream goes to `write`, each message with the id by which it is resumed.

        `given` are the fields in body and path, `query` those in the query; what `is_long` is read in a thread. With a
        `cursor` a stream has what follows it, whatever the request asks for.

        Raises:
            ReasondError: the request is none of this RPC, or the call failed.
        """
        begin(RpcCall(method=self._path, call_id=call_id, principal=caller, transport=REST))
        fields = {**nest_query(self._kind, query), **given}
        request = await asyncio.to_thread(self._read_long, fields) if is_long else read_message(self._kind, fields)
        if cursor is not None:
            _resume(request, cursor)
        answer = await self._run(request, _Context(write))
        return {} if self.is_stream else await _write_json(answer)

    def _read_long(self, fields: Mapping[str, Any]) -> Message:
        message = read_message(self._kind, fields)
        require_few_fields(message.SerializeToString(), self._kind)
        return message


class _Context:
    """What servicers use of the context of an RPC."""

    def __init__(self, write: Callable[[dict[str, Any], str], Awaitable[None]]) -> None:
        self._write = write

    async def write(self, message: Message) -> None:
        await self._write(await _write_json(message), _find_place(message))

    def time_remaining(self) -> None:
        """Return that there is no deadline."""


def _resume(request: Any, cursor: Cursor) -> None:  # noqa: ANN401 - of the request of any stream
    """Make a request ask for what follows `cursor`."""
    for field in request.DESCRIPTOR.fields:
        if field.message_type is ExecutionCursor.DESCRIPTOR:
            request.ClearField("request_id")
            request = getattr(request, field.name)
    request.execution_id, request.after_sequence = cursor.execution_id, cursor.after_sequence


def _find_place(message: Any) -> str:  # noqa: ANN401 - of any stream
    """Return the id of an event as Last-Event-ID has it; empty for one that is in no log."""
    kind = message.WhichOneof("event")
    fields = message.DESCRIPTOR.fields_by_name
    if "sequence" not in fields:
        return _find_place(getattr(message, kind))
    log = message.turn_id if "turn_id" in fields else message.execution_id
    return "" if kind in _UNLOGGED else f"{log}:{message.sequence}"


def describe_status(
    error: ReasondError, call_id: str, *, reason: Reason | None = None, domain: str = DOMAIN, keeps_names: bool = True
) -> dict[str, Any]:
    """Return `error` as the JSON of its google.rpc.Status; see `build_status`.

    The fields have the names of JSON, or with `keeps_names` those of the protos.
    """
    status = build_status(error, call_id=call_id, reason=reason, domain=domain)
    return json_format.MessageToDict(status, preserving_proto_field_name=keeps_names)


async def _write_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON; a long one does not block the event loop."""
    is_long = message.ByteSize() > _LONG_BYTES
    return await asyncio.to_thread(_to_json, message) if is_long else _to_json(message)


def _to_json(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)
