"""RPCs with the JSON of the protos, by their annotations google.api.http: read, called and written as Envoy does it.

The handlers are those of the servicers without the layers of gRPC: whoever calls them has checked the caller. The JSON
is read here because `json_format` takes more than it: an array for a message, 1.5 for an enum, two spellings of one
field; it drops what is no Base64, fails at whole numbers that no float holds, names neither place nor value, and takes
ten times as long.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.api import annotations_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from google.protobuf import descriptor_pool, duration_pb2, json_format, struct_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from reasond.v1.execution_pb2 import ExecutionCursor
from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import DOMAIN, Reason, ReasondError, show
from reasond_server.grpc_api.guard import RpcCall, begin
from reasond_server.grpc_api.handlers import Handler, find_behaviour, make_runner
from reasond_server.grpc_api.message_codec import require_few_fields
from reasond_server.grpc_api.requests import invalid
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
T = TypeVar("T")

_NUMBER: Final = re.compile(r"-?\d{1,40}(\.\d{1,40})?([eE][-+]?\d{1,3})?", re.ASCII)
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_MOMENT: Final = re.compile(r"[-+.:\dTZs]{1,64}", re.ASCII)
_MAX_NAME: Final = 64
_ANY_JSON: Final = "google.protobuf.Value"


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


def read_message(
    kind: Descriptor, fields: Mapping[str, Any], *, path: str = "", ignores_unknown: bool = False
) -> Message:
    """Return a message of this kind with the `fields`; `path` stands before their names in errors.

    With `ignores_unknown` fields that no message here has are left out, as protocols want it whose versions add some.

    Raises:
        InvalidRequestError: there is no such field, it is set twice, or it takes other values.
    """
    by_name = _find_fields(kind)
    given_by: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, given in fields.items():
        place = path + (name if name.isidentifier() and len(name) <= _MAX_NAME else show(name))
        field = by_name.get(name)
        if field is None and ignores_unknown:
            continue
        if field is None:
            raise invalid(place, f"is no field of this request{suggest_nearest(name, kind.fields_by_name)}")
        if given is None and (field.message_type is None or field.message_type.full_name != _ANY_JSON):
            continue
        # Of a oneof, one field can be set.
        other = given_by.setdefault((field.containing_oneof or field).full_name, name)
        if other != name:
            raise invalid(place, f"cannot stand beside {path}{other}; leave one of them out")
        found[field.name] = _read_field(field, given, place, ignores_unknown=ignores_unknown)
    return GetMessageClass(kind)(**found)


def nest_query(request: Descriptor, query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the fields in a query as JSON; `range.offset` is a field of the message `range`.

    Raises:
        InvalidRequestError: there is no such field, or it stands there twice.
    """
    fields: dict[str, Any] = {}
    for path, text in query:
        place = fields
        kind: Descriptor | None = request
        field: FieldDescriptor | None = None
        for name in path.split("."):
            if field is not None:
                place, kind = place.setdefault(field.name, {}), _find_part(field)
            field = None if kind is None else _find_fields(kind).get(name)
            if field is None:
                break
        if field is None or _find_part(field) is not None:
            hint = suggest_nearest(path, request.fields_by_name)
            raise invalid(show(path), f"is no parameter of this address{hint}")
        if _is_repeated(field):
            place.setdefault(field.name, []).append(text)
        elif field.name in place:
            raise invalid(path, "stands in the query twice")
        else:
            is_word = field.type == FieldDescriptor.TYPE_BOOL and text in {"true", "false"}
            place[field.name] = text == "true" if is_word else text
    return fields


@cache
def _find_fields(kind: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Return the fields by both of their names."""
    return {field.json_name: field for field in kind.fields} | {field.name: field for field in kind.fields}


def _find_part(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a field that holds a single one; None where JSON has a text, a number or a list."""
    kind = field.message_type
    return kind if kind is not None and kind.full_name not in _RULES and not _is_repeated(field) else None


def _is_repeated(field: FieldDescriptor) -> bool:
    """Return whether there may be several values; `label` and `is_repeated` are not in all releases of protobuf."""
    return bool(field.default_value == [])


def _read_field(field: FieldDescriptor, value: object, place: str, *, ignores_unknown: bool) -> object:
    """Return what a field takes, one value or several."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        if not isinstance(value, dict):
            raise invalid(place, f"must be an object, got {show(value)}")
        read = partial(_read_value, kind.fields_by_name["value"], ignores_unknown=ignores_unknown)
        return {key: read(each, f"{place}[{show(key)}]") for key, each in value.items()}
    if _is_repeated(field):
        if not isinstance(value, list):
            raise invalid(place, f"must be a list, got {show(value)}")
        read = partial(_read_value, field, ignores_unknown=ignores_unknown)
        return [read(each, f"{place}[{index}]") for index, each in enumerate(value)]
    return _read_value(field, value, place, ignores_unknown=ignores_unknown)


def _read_value(field: FieldDescriptor, value: object, place: str, *, ignores_unknown: bool) -> object:
    """Return one value of a field."""
    kind = field.message_type
    if kind is not None and kind.full_name not in _RULES:
        if not isinstance(value, dict):
            raise invalid(place, f"must be an object, got {show(value)}")
        return read_message(kind, value, path=f"{place}.", ignores_unknown=ignores_unknown)
    read: Callable[[object], object]
    if field.enum_type is not None:
        names = field.enum_type.values_by_name
        if isinstance(value, str) and value in names:
            return names[value].number
        # The servicers check numbers, as those of gRPC.
        wanted, read = f"one of {', '.join(names)}", partial(_read_whole, bits=31)
    else:
        wanted, read = _RULES[field.type if kind is None else kind.full_name]
    try:
        return read(value)
    except (ValueError, OverflowError):
        raise invalid(place, f"must be {wanted}, got {show(value)}") from None


def _take(kind: type[T], value: object) -> T:
    """Return the value if it is of this type.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, kind):
        return value
    raise ValueError(kind.__name__)


def _read_whole(value: object, bits: int) -> int:
    """Return a whole number of so many bits and a sign, from a number or from text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value) if re.search("[.eE]", value) else int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError("no whole number")
    if not -(2**bits) <= value < 2**bits:
        raise ValueError("out of range")
    return int(value)


def _read_number(value: object) -> float:
    is_text = isinstance(value, str) and (value in _NO_NUMBERS or _NUMBER.fullmatch(value) is not None)
    if isinstance(value, bool) or not (is_text or isinstance(value, int | float)):
        raise ValueError("no number")
    return float(value)  # type: ignore[arg-type]  # mypy does not see that it is a number or text


def _read_base64(value: object) -> bytes:
    """Return what Base64 of either alphabet holds, with or without its padding."""
    text = _take(str, value)
    return b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)


def _read_struct(value: object) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(_take(dict, value))
    return struct


def _read_any(value: Any) -> struct_pb2.Value:  # noqa: ANN401 - any JSON
    struct = struct_pb2.Struct()
    struct.update({_ANY_JSON: value})
    return struct.fields[_ANY_JSON]


def _read_time(
    kind: type[duration_pb2.Duration | timestamp_pb2.Timestamp], value: object
) -> duration_pb2.Duration | timestamp_pb2.Timestamp:
    text, message = _take(str, value), kind()
    if not _MOMENT.fullmatch(text):
        raise ValueError("no time")
    message.FromJsonString(text)
    return message


# What a value must be, by the type of its field, and what reads it or raises ValueError or OverflowError.
_RULES: Final[Mapping[int | str, tuple[str, Callable[[object], object]]]] = {
    FieldDescriptor.TYPE_STRING: ("a string", partial(_take, str)),
    FieldDescriptor.TYPE_BOOL: ("true or false", partial(_take, bool)),
    FieldDescriptor.TYPE_BYTES: ("Base64", _read_base64),
    FieldDescriptor.TYPE_DOUBLE: ("a number up to 1.8e308", _read_number),
    FieldDescriptor.TYPE_INT32: ("a whole number of 32 bits", partial(_read_whole, bits=31)),
    FieldDescriptor.TYPE_INT64: ("a whole number of 64 bits", partial(_read_whole, bits=63)),
    "google.protobuf.Struct": ("an object with numbers up to 1.8e308", _read_struct),
    _ANY_JSON: ("a JSON value with numbers up to 1.8e308", _read_any),
    "google.protobuf.Duration": ("a duration in seconds such as 1.5s", partial(_read_time, duration_pb2.Duration)),
    "google.protobuf.Timestamp": ("a time such as 2026-11-23T10:00:00Z", partial(_read_time, timestamp_pb2.Timestamp)),
}
