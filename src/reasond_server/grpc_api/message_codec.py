"""The innermost layer of a handler: reads and decodes requests, and encodes responses, inside the error guard.

grpc.aio itself would answer an invalid request with the text of a foreign exception, and a response over the send
limit with a status without details. It also reads the message of a unary request before any layer runs: that of an
unauthenticated caller too; and if the call ends without a message, it drops the call, and the client never gets a
status. So every handler is one for a stream of requests, which grpc.aio leaves unread; on the wire one message equals
a stream of one message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError

from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.handlers import behaviour_of, make_handler, runner_of
from reasond_server.grpc_api.unfolding import may_unfold, require_few_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import Descriptor

    from reasond_server.grpc_api.handlers import Behaviour, Context, Handler


class Codec:
    """Parses and serializes messages; `max_send_bytes` bounds one response message."""

    def __init__(self, *, max_send_bytes: int) -> None:
        self._max_send_bytes = max_send_bytes

    def wrap(self, method: str, handler: Handler) -> Handler:
        """Return the handler of `method` (`/service/name`) for a stream of undecoded requests.

        A single message is coded in its function, streamed messages are coded by grpc.aio.
        """
        behaviour = runner_of(behaviour_of(handler), is_stream=handler.response_streaming)
        decode = _decoding(handler.request_deserializer, method)
        encode = self._encoding(handler.response_serializer)
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

    def _encoding(self, encode: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
        """Return `encode` with the send limit.

        The function raises InvalidRequestError if the message is too large: the caller can request less.
        """

        def encode_within_limit(message: Any) -> bytes:  # noqa: ANN401 - any message
            raw: bytes = encode(message) if encode else message
            if len(raw) > self._max_send_bytes:
                raise InvalidRequestError(
                    f"the response holds {len(raw)} bytes, over the limit of {self._max_send_bytes} for one message",
                    remedy="Ask for less (trace_view, page_size), or have [server] max_send_bytes raised.",
                    metadata={"limit_provided": str(len(raw)), "limit_allowed": str(self._max_send_bytes)},
                )
            return raw

        return encode_within_limit


def _decoding(decode: Callable[[bytes], Any] | None, method: str) -> Callable[[bytes], Any]:
    """Return `decode` that raises InvalidRequestError for a message that is invalid or has too many fields."""

    def decode_or_refuse(raw: bytes) -> Any:  # noqa: ANN401 - any message
        if may_unfold(raw):
            require_few_fields(raw, _input_of(method))
        try:
            return decode(raw) if decode else raw
        except DecodeError:
            message = f"Request validation failed: the {len(raw)} bytes of the request are not a message of this method"
            raise InvalidRequestError(
                message, remedy="Check the message type, that texts are UTF-8, and that objects nest at most 16 deep."
            ) from None

    return decode_or_refuse


def _input_of(method: str) -> Descriptor | None:
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
        # The same name, so that the bytes are freed before the call runs.
        message = decode(message)
        return await behaviour(message, context)

    return serve


def _add_encoder(behaviour: Behaviour, encode: Callable[[Any], bytes]) -> Behaviour:
    async def serve(requests: object, context: Context) -> bytes:
        return encode(await behaviour(requests, context))

    return serve
