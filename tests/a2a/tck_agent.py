"""An agent for the conformance kit of A2A (a2aproject/a2a-tck, branch 1.0-dev): a real server behind a bridge.

    python -m tests.a2a.tck_agent          # prints the address; then, in a clone of the kit
    PYTHONPATH=. python run_tck.py --sut-host ADDRESS

The kit sends no credentials, asks for behaviour by the beginning of `messageId`, and repeats its ids. So the bridge
adds a token, makes each id unique, and adds our parameters to a message: the strategy `tck`, or a tool to wait for. All
else passes it unchanged. An answer that is a JSON object with the member `part` is sent as that part, because
strategies have no other way to answer with files.

In November 2026 (commit 357c4a8 of the kit, with push notifications) 239 pass, 21 are skipped, and 5 fail, each where
the kit contradicts A2A 1.0.1:

- CORE-SEND-003 over the three bindings: a part of an unknown media type is refused with ContentTypeNotSupportedError,
  which the kit expects and then counts as a failed operation.
- HTTP_JSON-SVC-001: the kit wants application/json where section 11.1 has application/a2a+json.
- GRPC-ERR-002: the kit wants UNIMPLEMENTED for VersionNotSupportedError where section 5.4 has FAILED_PRECONDITION.
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Final

import aiohttp
import grpc
from a2a.types import a2a_pb2 as pb
from aiohttp import web
from google.protobuf import json_format

from reasond_server.protocols.a2a import task_writer
from reasond_server.protocols.a2a.task_writer import write_answer
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig
from reasond_server.testing import FunctionModel, Reply, running_server
from reasond_server.types import CustomMetrics, FinishReason, Task, Thought, ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from reasond_server.llm.model import ChatRequest
    from reasond_server.strategies.strategy import RunContext, StrategyEvent

OWN: Final = "urn:reasond:reasoning:v1"
HTTP_PORT: Final = 9999
GRPC_PORT: Final = 9998
LONG_S: Final = 4.0
_ASK: Final = {"name": "ask", "description": "Asks the user.", "parameters": {"type": "object", "properties": {}}}
_FILE: Final = '{"part": {"raw": "dGNr", "filename": "output.txt", "mediaType": "text/plain"}}'
_URL: Final = '{"part": {"url": "https://example.com/output.txt", "filename": "output.txt", "mediaType": "text/plain"}}'
_ANSWERS: Final = {
    "tck-stream-artifact-chunked": "chunk-1 chunk-2",
    "tck-stream-artifact-text": "Streamed text content",
    "tck-stream-ordering-001": "Ordered output",
    "tck-stream-artifact-file": _FILE,
    "tck-artifact-file-url": _URL,
    "tck-artifact-file": _FILE,
    "tck-artifact-text": "Generated text content",
    "tck-artifact-data": '{"key": "value", "count": 42}',
    "tck-stream-001": "Stream hello from TCK",
    "tck-stream-003": "Stream task lifecycle",
    "tck-complete-task": "Hello from TCK",
    "tck-message-response": "Direct message response",
}
_numbers = count(1)


class Tck(ReasoningStrategy[StrategyConfig]):
    """Answers what the kit expects for the beginning of a message's id."""

    name: ClassVar[str] = "tck"
    description: ClassVar[str] = "Answers a conformance kit."
    config_type: ClassVar[type[StrategyConfig]] = StrategyConfig

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Answer without a model."""
        del context
        message_id = json.loads(task.echo_json)["messageId"]
        if message_id.startswith("test-resubscribe-message-id"):
            await asyncio.sleep(LONG_S)
        answer = next((text for start, text in _ANSWERS.items() if message_id.startswith(start)), "Done")
        metrics = CustomMetrics(data={})
        yield Step(detail=Thought(text="I look it up.", answer=answer), answer_found=True, metrics=metrics)
        yield Outcome(answer=answer, finish_reason=FinishReason.ANSWERED, metrics=metrics)


def write_part(content: str, *, is_json: bool) -> dict[str, Any]:
    """Return an answer as the part that it says that it is."""
    if content.startswith('{"part"'):
        part: dict[str, Any] = json.loads(content)["part"]
        return part
    return write_answer(content, is_json=is_json)


def answer_as_model(request: ChatRequest) -> Reply:
    """Ask the user until a message comes that is not one of the history."""
    said = [str(message.content) for message in request.messages]
    if len(said) > 1 and "TCK history message" not in said[-1] and "prerequisite" not in said[-1]:
        return Reply(text="Hello from TCK")
    call = ToolCall(call_id=f"call_{next(_numbers)}", name="ask", arguments_json="{}")
    return Reply(text="", tool_calls=(call,))


def shape(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with an id of its own, and what the kit wants by our names."""
    message_id = str(message.get("messageId", ""))
    if not message_id:
        return message
    own: dict[str, Any] = {"strategy": "tck"}
    if message_id.startswith("tck-input-required"):
        own = {"tools": [_ASK]}
    elif message_id.startswith("tck-artifact-data"):
        own["answer_schema"] = {"type": "object"}
    elif message_id.startswith("tck-message-response"):
        own["as_message"] = True
    shaped = {**message, "messageId": f"{message_id}-{next(_numbers)}"}
    return shaped if message.get("taskId") else {**shaped, "metadata": {**message.get("metadata", {}), OWN: own}}


class Bridge(grpc.GenericRpcHandler):
    """Passes calls to the server at `http` and `grpc`."""

    def __init__(self, http: str, target: str, token: str) -> None:
        self._http = http
        self._channel = grpc.aio.insecure_channel(target)
        self._token = f"Bearer {token}"
        self._session = aiohttp.ClientSession()

    async def pass_http(self, request: web.Request) -> web.StreamResponse:
        """Pass a request of HTTP."""
        body = await request.read()
        try:
            told = json.loads(body)
            carrier = told.get("params", told)
            carrier["message"] = shape(carrier["message"])
            body = json.dumps(told).encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        dropped = {"host", "content-length", "authorization", "transfer-encoding"}
        headers = {name: text for name, text in request.headers.items() if name.lower() not in dropped}
        headers["Authorization"] = self._token
        url = f"{self._http}{request.rel_url}"
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            kept = {name: text for name, text in answer.headers.items() if name.lower() not in dropped}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method of gRPC."""

        async def run(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            first: Any = await anext(aiter(requests))
            if handler_call_details.method.endswith("Message"):
                message = pb.SendMessageRequest.FromString(first)
                shaped = shape(json_format.MessageToDict(message.message))
                message.message.CopyFrom(json_format.ParseDict(shaped, pb.Message()))
                first = message.SerializeToString()
            metadata = [
                *((key, text) for key, text in handler_call_details.invocation_metadata if key.startswith("a2a-"))
            ]
            call: Any = self._channel.unary_stream(handler_call_details.method)(
                first, metadata=[*metadata, ("authorization", self._token)]
            )
            try:
                async for answer in call:
                    yield answer
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))

        return grpc.stream_stream_rpc_method_handler(run)


async def main(folder: str) -> None:
    """Serve until the program is ended; `folder` is for the store."""
    task_writer.write_answer = write_part
    environ = {
        "REASOND__A2A__ENABLED": "true",
        "REASOND__A2A__PUSH_HOSTS": '["example.com", "localhost", "127.0.0.1"]',
        "REASOND__A2A__PUSH_ALLOW_PRIVATE": "true",
        "REASOND__STORE__URL": f"sqlite:///{folder}/tck.db",
        "REASOND__SERVER__PUBLIC_HTTP_URL": f"http://127.0.0.1:{HTTP_PORT}",
        "REASOND__SERVER__PUBLIC_GRPC_URL": f"http://127.0.0.1:{GRPC_PORT}",
    }
    async with running_server(model=FunctionModel(answer_as_model), strategies=[Tck()], environ=environ) as listening:
        bridge = Bridge(listening.http, listening.grpc, listening.token)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", bridge.pass_http)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", HTTP_PORT).start()
        server = grpc.aio.server(handlers=(bridge,))
        server.add_insecure_port(f"127.0.0.1:{GRPC_PORT}")
        await server.start()
        print(f"http://127.0.0.1:{HTTP_PORT}", flush=True)  # noqa: T201 - what the user pastes
        await server.wait_for_termination()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(folder))
