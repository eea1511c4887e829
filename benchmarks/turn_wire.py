"""Measure how long a server's event loop stands still while clients send tool results of 2 MB over the wires.

`benchmarks.turn_stalls` runs it. The server listens in this process, its client is a process of its own
(`python -m benchmarks.turn_wire WIRE ADDRESS TOKEN`), which does a step for each line that it reads.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
import httpx
from google.protobuf import json_format

from benchmarks.instant import InstantModel
from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turn_service_pb2_grpc
from reasond_server.llm.model import Finished, ModelFinish, Role, Text
from reasond_server.testing import running_server
from reasond_server.types import ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from reasond_server.llm.model import ChatRequest, ModelEvent

    Measure = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]

SIZE: Final = 2_000_000
CALLS: Final = 5
WIRES: Final = {"grpc": "gRPC", "http": "HTTP"}
WRITINGS: Final = {"latin": "ASCII", "han": "other writing"}
_LINES: Final = {
    "latin": "light is refracted by glass in its own degree ",
    "han": "光在玻璃中各以其度折射 红者最少 紫者最多 ",
}
MOST: Final = {"grpc": 1, "http": 3}
"""How many results of 2 MB a message may hold: at most 4 MiB over gRPC, 8 MiB over HTTP."""
_STEPS: Final = {
    "start": "hand-off",
    "over": "five times 2 MB, refused",
    "send": "{most} times 2 MB, to the end",
    "read": "read whole",
}


def make_text(writing: str) -> str:
    """Return JSON of at most 2 MB; "han" has no character of ASCII in its texts."""
    row = {"id": 100_000, "status": "ok", "note": _LINES[writing]}
    size = len(json.dumps(row, ensure_ascii=False).encode()) + 2
    rows = [{**row, "id": 100_000 + number} for number in range(SIZE // size - 1)]
    return json.dumps(rows, ensure_ascii=False)


class AtOnceModel(InstantModel):
    """Calls a tool of the client three times in its first reply, and answers after the results."""

    name = "at-once"
    context_window = 32_768  # type: ignore[assignment]  # None in the class above
    has_native_tools = True

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the tool, or answer."""
        usage = Usage(input_tokens=512, output_tokens=16, model_calls=1)
        if any(message.role is Role.TOOL for message in request.messages):
            yield Text(text="done")
            yield Finished(reason=ModelFinish.STOP, usage=usage)
            return
        for number in range(CALLS):
            yield ToolCall(call_id=f"call_{number}", name="fetch", arguments_json="{}")
        yield Finished(reason=ModelFinish.TOOL_CALLS, usage=usage)


async def measure_wires(folder: str, measure: Measure, rounds: int) -> None:
    """Let clients of both wires do each step `rounds` times and once before; `measure` takes each of them."""
    environ = {"REASOND__STORE__URL": f"sqlite:///{folder}/wire.db"}
    async with running_server(model=AtOnceModel(), environ=environ) as server, AsyncExitStack() as stack:
        for wire, name in WIRES.items():
            address = server.grpc if wire == "grpc" else server.http
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.turn_wire", wire, address, server.token),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.callback(client.kill)
            await _do(client, "ready")
            for writing, of in WRITINGS.items():
                for number in range(rounds + 1):
                    for step, what in _STEPS.items():
                        told = f"{name}, {of}: {what.format(most=MOST[wire])}" if number else ""
                        await measure(told, lambda line=f"{step} {writing}", client=client: _do(client, line))  # type: ignore[misc]


async def _do(client: asyncio.subprocess.Process, line: str) -> None:
    """Let the client do a step, and wait until it has."""
    assert client.stdin is not None  # noqa: S101 - it is a pipe
    assert client.stdout is not None  # noqa: S101 - as above
    client.stdin.write(f"{line}\n".encode())
    await client.stdin.drain()
    answer = (await client.stdout.readline()).decode().strip()
    if answer != "done":
        raise SystemExit(f"the client could not do {line!r}: {answer}")


class Wire(Protocol):
    """Calls the turn service; returns the answer as JSON-RPC has it, and the status of a refusal or ""."""

    def ask(self, method: str, params: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """Call `method`, a name of JSON-RPC."""
        ...


class GrpcWire:
    """The gRPC wire. See `Wire`."""

    _RPCS: Final = {
        "turns.start": ("RunTurn", "start"),
        "turns.reenter": ("RunTurn", "reentry"),
        "turns.get": ("GetTurn", ""),
        "turns.read_tool_result": ("ReadToolResult", ""),
    }

    def __init__(self, address: str, token: str) -> None:
        most = [("grpc.max_receive_message_length", -1)]
        self._stub = turn_service_pb2_grpc.TurnServiceStub(grpc.insecure_channel(address, most))
        self._metadata = [("authorization", f"Bearer {token}")]

    def ask(self, method: str, params: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """Call `method`."""
        rpc, holder = self._RPCS[method]
        request = json_format.ParseDict({holder: params} if holder else dict(params), getattr(pb, f"{rpc}Request")())
        try:
            response = getattr(self._stub, rpc)(request, metadata=self._metadata, timeout=300)
        except grpc.RpcError as error:
            return {}, error.code().name
        return json_format.MessageToDict(response, preserving_proto_field_name=True), ""


class HttpWire:
    """The JSON-RPC wire. See `Wire`."""

    def __init__(self, address: str, token: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=300, headers={"authorization": f"Bearer {token}"})

    def ask(self, method: str, params: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """Call `method`."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self._client.post("/api/v1/jsonrpc", json=body)
        if answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            return {}, "RESOURCE_EXHAUSTED"
        found = answer.json()
        return found.get("result", {}), found["error"]["data"]["grpc_code"] if "error" in found else ""


def do_steps(wire: Wire, most: int) -> None:
    """Do the step of each line of the standard input; a message may hold `most` results of 2 MB."""
    turn: Any = {}
    for line in sys.stdin:
        step, _, writing = line.strip().partition(" ")
        problem = ""
        if step == "start":
            fetch = {"name": "fetch", "description": "Fetches.", "parameters_json": '{"type":"object"}'}
            body, problem = wire.ask("turns.start", {"message": "Which rows failed?", "client_tools": [fetch]})
            turn = body["turn"]
        elif step == "over":
            problem = _send_all(wire, turn, make_text(writing))
        elif step == "send":
            texts = [make_text(writing) if number < most else "1" for number in range(CALLS)]
            body, problem = wire.ask("turns.reenter", _settle(turn, *texts))
            problem = problem or ("" if body["result"]["answer"] == "done" else "no answer")
        elif step == "read":
            params = {"turn_id": turn["turn_id"], "call_id": "c1"}
            body, problem = wire.ask("turns.read_tool_result", params)
            problem = problem or ("" if body["text"] == make_text(writing) else "the result is not what was sent")
        print(problem or "done", flush=True)


def _send_all(wire: Wire, turn: Any, text: str) -> str:  # noqa: ANN401 - JSON
    """Send a result of 2 MB for each call, see that it is refused and nothing consumed; return what is wrong."""
    _, status = wire.ask("turns.reenter", _settle(turn, *[text] * CALLS))
    body, _ = wire.ask("turns.get", {"turn_id": turn["turn_id"]})
    if status != "RESOURCE_EXHAUSTED":
        return f"{CALLS} results of 2 MB got {status!r}"
    return "" if body["turn"]["handoff"] == turn["handoff"] else "the hand-off is not what it was"


def _settle(turn: Any, *texts: str) -> dict[str, Any]:  # noqa: ANN401 - JSON
    results = [{"call_id": f"c{number + 1}", "result_json": text} for number, text in enumerate(texts)]
    return {"turn_id": turn["turn_id"], "etag": turn["handoff"]["etag"], "results": results}


def main() -> int:
    """Be a client."""
    wire, address, token = sys.argv[1:]
    do_steps(GrpcWire(address, token) if wire == "grpc" else HttpWire(address, token), MOST[wire])
    return 0


if __name__ == "__main__":
    sys.exit(main())
