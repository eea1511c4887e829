"""The innermost layer of a handler: reads and decodes requests, and encodes responses, inside the error guard.

grpc.aio itself would answer an invalid request with the text of a foreign exception, and a response over the send
limit with a status without details. It also reads the message of a unary request before any layer runs: that of an
unauthenticated caller too; and if the call ends without a message, it drops the call, and the client never gets a
status. So every handler is one for a stream of requests, which grpc.aio leaves unread; on the wire one message equals
a stream of one message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError

from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.guard import get_current_call
from reasond_server.grpc_api.handlers import Behaviour, Context, Handler, find_behaviour, make_handler, make_runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import Descriptor


MAX_FIELDS: Final = 50_000
"""More than any request needs: the 10,000 values that a configuration may hold have some four fields each."""

# A shorter message cannot hold so many fields: a field takes at least two bytes.
_NEVER_TOO_MANY_BYTES: Final = 2 * MAX_FIELDS
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED_64: 8, _FIXED_32: 4}
_CONTINUES: Final = 0x80
_SEVEN_BITS: Final = 0x7F
_LONGEST_VARINT: Final = 64


def may_unfold(raw: bytes) -> bool:
    """Return whether `raw` is long enough to hold more than MAX_FIELDS fields."""
    return len(raw) > _NEVER_TOO_MANY_BYTES


def require_few_fields(raw: bytes, kind: Descriptor | None) -> None:
    """Reject the bytes of a message of `kind` with more than MAX_FIELDS fields, including nested ones.

    Bytes that are not a message of that kind pass: the parser rejects them later. For an unknown kind (None), only
    the outermost fields are counted.

    Raises:
        InvalidRequestError: there are more fields.
    """
    try:
        count = _count(raw, kind)
    except (IndexError, ValueError):
        return
    if count > MAX_FIELDS:
        raise InvalidRequestError(
            f"Request validation failed: the {len(raw)} bytes of the request hold more than {MAX_FIELDS} fields",
            remedy="Send fewer values, such as list items, members of objects or capabilities.",
        )


def _count(raw: bytes, kind: Descriptor | None) -> int:
    """Return the number of fields; counting stops soon after MAX_FIELDS."""
    count = 0
    # Not recursive: the sender chooses the depth of nesting.
    waiting: list[tuple[int, int, Descriptor | None]] = [(0, len(raw), kind)]
    while waiting and count <= MAX_FIELDS:
        place, end, message = waiting.pop()
        while place < end and count <= MAX_FIELDS:
            count += 1
            tag, place = _read_varint(raw, place)
            wire = tag & 7
            if wire == _BYTES:
                size, place = _read_varint(raw, place)
                field = message.fields_by_number.get(tag >> 3) if message is not None else None
                if field is not None and field.message_type is not None:
                    waiting.append((place, min(place + size, end), field.message_type))
                elif field is not None and field.type not in {field.TYPE_STRING, field.TYPE_BYTES}:
                    # Packed numbers: each byte may be a number.
                    count += min(size, end - place)
                place += size
            elif wire == _VARINT:
                _, place = _read_varint(raw, place)
            else:
                # The start and the end of a group each count as a field: both have a tag.
                place += _FIXED_SIZES.get(wire, 0)
    return count


def _read_varint(raw: bytes, place: int) -> tuple[int, int]:
    """Return the number at `place` and the place after it.

    Raises:
        IndexError: the bytes end within the number.
        ValueError: the number has too many bytes.
    """
    byte = raw[place]
    if byte < _CONTINUES:
        return byte, place + 1
    number, shift = byte & _SEVEN_BITS, 7
    while byte >= _CONTINUES:
        place += 1
        byte = raw[place]
        number |= (byte & _SEVEN_BITS) << shift
        shift += 7
        if shift > _LONGEST_VARINT + 6:
            raise ValueError(shift)
    return number, place + 1


class Codec:
    """Parses and serializes messages; `max_send_bytes` bounds one response message."""

    def __init__(self, *, max_send_bytes: int) -> None:
        self._max_send_bytes = max_send_bytes

    def wrap(self, method: str, handler: Handler) -> Handler:
        """Return the handler of `method` (`/service/name`) for a stream of undecoded requests.

        A single message is coded in its function, streamed messages are coded by grpc.aio.
        """
        behaviour = make_runner(find_behaviour(handler), is_stream=handler.response_streaming)
        decode = _make_decoder(handler.request_deserializer, method)
        encode = self._make_encoder(handler.response_serializer)
        if not handler.request_streaming:
            behaviour = _add_reader(behaviour, decode)
        if not handler.response_streaming:
            behaviour = _add_encoder(behaviour, encode)
        return make_handler(
            behaviour,
            reads_stream=True,
            writes_stream=handler.response_streaming,
            decode=decode if handler.request_streaming else None,
            encode=encode if handler.response_streaming else None,
        )

    def _make_encoder(self, encode: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
        """Return `encode` with the send limit.

        The function raises InvalidRequestError if the message is too large: the caller can request less.
        """

        def encode_within_limit(message: Any) -> bytes:  # noqa: ANN401 - any message
            raw: bytes = encode(message) if encode else message
            size = len(raw)
            if size > self._max_send_bytes:
                raise InvalidRequestError(
                    f"the response holds {size} bytes, over the limit of {self._max_send_bytes} for one message",
                    remedy="Ask for less (trace_view, page_size), or have [server] max_send_bytes raised.",
                    metadata={"limit_provided": str(size), "limit_allowed": str(self._max_send_bytes)},
                )
            get_current_call().sent_bytes += size
            return raw

        return encode_within_limit


def _make_decoder(decode: Callable[[bytes], Any] | None, method: str) -> Callable[[bytes], Any]:
    """Return `decode` that raises InvalidRequestError for a message that is invalid or has too many fields."""

    def decode_or_refuse(raw: bytes) -> Any:  # noqa: ANN401 - any message
        get_current_call().received_bytes += len(raw)
        if may_unfold(raw):
            require_few_fields(raw, _find_request_type(method))
        try:
            return decode(raw) if decode else raw
        except DecodeError:
            message = f"Request validation failed: the {len(raw)} bytes of the request are not a message of this method"
            raise InvalidRequestError(
                message, remedy="Check the message type, that texts are UTF-8, and that objects nest at most 16 deep."
            ) from None

    return decode_or_refuse


def _find_request_type(method: str) -> Descriptor | None:
    """Return the request type of `method` (`/service/name`); None if no proto declares it."""
    try:
        return descriptor_pool.Default().FindMethodByName(method.removeprefix("/").replace("/", ".")).input_type
    except KeyError:
        return None


def _add_reader(behaviour: Behaviour, decode: Callable[[bytes], Any]) -> Behaviour:
    async def serve(_requests: object, context: Context) -> object:
        message: Any = await context.read()
        if message is grpc.aio.EOF:
            raise InvalidRequestError(
                "Request validation failed: the call ended without a message",
                remedy="Send one message, an empty one at least.",
            )
        # The same name, so that the bytes are freed before the call runs. To count many fields takes long.
        message = await asyncio.to_thread(decode, message) if may_unfold(message) else decode(message)
        return await behaviour(message, context)

    return serve


def _add_encoder(behaviour: Behaviour, encode: Callable[[Any], bytes]) -> Behaviour:
    async def serve(requests: object, context: Context) -> bytes:
        return encode(await behaviour(requests, context))

    return serve
