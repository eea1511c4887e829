"""The scenario driver of the Python client; clients/README.md describes what it reads and writes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from google.protobuf import json_format

import reasond
from reasond.v1.execution_pb2 import ReasoningTask

LOGGED = ("started", "iteration", "completed")


class TokenFile:
    """A token provider that reads a file each time it is asked."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.reads = 0

    def __call__(self) -> str:
        self.reads += 1
        return self._path.read_text("utf-8")


def arguments_of(task: ReasoningTask) -> dict[str, Any]:
    """Return the arguments of the client's methods for a task."""
    config = task.WhichOneof("config")
    return {
        "query": task.query,
        "strategy": task.strategy if task.HasField("strategy") else None,
        "config": getattr(task, config) if config else None,
        "budget": task.budget if task.HasField("budget") else None,
    }


async def stream(client: reasond.AsyncClient, request: dict[str, Any], answer: dict[str, Any]) -> None:
    """Read a stream to its end, or leave it after the event that the request names."""
    options = request["options"]
    is_left = request["action"] == "cancel"
    events = client.reason_iterations(
        **arguments_of(json_format.ParseDict(request["task"], ReasoningTask())),
        request_id=options.get("request_id"),
        keep_running=not is_left,
        reconnect=not is_left,
        timeout_s=options.get("deadline_s"),
    )
    async for event in events:
        answer["execution_id"] = event.execution_id
        if event.WhichOneof("event") in LOGGED:
            answer["sequences"].append(event.sequence)
        if is_left and event.sequence >= options["cancel_after_sequence"]:
            break
    if events.result is not None:
        take_result(events.result, answer)


def take_result(result: reasond.Reasoning, answer: dict[str, Any]) -> None:
    """Note a result."""
    answer["answer"] = result.answer
    answer["finish_reason"] = reasond.FinishReason.Name(result.finish_reason)
    answer["execution_id"] = result.execution_id


async def execute(client: reasond.AsyncClient, request: dict[str, Any], answer: dict[str, Any]) -> None:
    """Make a call of Reason."""
    options = request["options"]
    task = arguments_of(json_format.ParseDict(request["task"], ReasoningTask()))
    take_result(
        await client.reason(**task, request_id=options.get("request_id"), timeout_s=options.get("deadline_s")), answer
    )


async def list_strategies(client: reasond.AsyncClient, _request: dict[str, Any], answer: dict[str, Any]) -> None:
    """List the strategies."""
    listed = await client.list_strategies()
    answer["answer"] = ",".join(sorted(each.name for each in listed.strategies))


async def take_turn(client: reasond.AsyncClient, request: dict[str, Any], answer: dict[str, Any]) -> None:
    """Run a turn with the tool `add`."""

    @reasond.client_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        answer["tool_calls"].append("add")
        answer["tool_results"].append(json.dumps(a + b))
        return a + b

    options = request["options"]
    result = await client.turn(
        request["task"]["query"],
        tools=[add],
        request_id=options.get("request_id"),
        timeout_s=options.get("deadline_s"),
    )
    answer["answer"] = result.answer
    answer["finish_reason"] = reasond.FinishReason.Name(result.finish_reason)
    answer["execution_id"] = result.turn_id


ACTIONS = {
    "execute": execute,
    "stream": stream,
    "cancel": stream,
    "strategies": list_strategies,
    "turn": take_turn,
}


async def work_out(request: dict[str, Any]) -> None:
    """Work a request out and write its answer."""
    answer: dict[str, Any] = {
        "name": request["name"],
        "outcome": "ok",
        "sequences": [],
        "answer": "",
        "finish_reason": "",
        "execution_id": "",
        "code": "",
        "reason": "",
        "violations": [],
        "retry_after_s": None,
        "tool_calls": [],
        "tool_results": [],
        "token_reads": 0,
    }
    provider = TokenFile(request["token_file"]) if request["token_file"] else None
    # Otherwise gRPC would share the connections of equal targets, and keep them after the client is closed.
    options = {"grpc.use_local_subchannel_pool": 1}
    async with reasond.AsyncClient(request["target"], token=provider or request["token"], options=options) as client:
        try:
            await ACTIONS[request["action"]](client, request, answer)
        except reasond.ReasondError as error:
            answer |= {
                "outcome": "error",
                "code": error.code.name,
                "reason": error.reason,
                "violations": [each._asdict() for each in error.violations],
                "retry_after_s": error.retry_after,
                "execution_id": error.execution_id or answer["execution_id"],
            }
    if provider is not None:
        answer["token_reads"] = provider.reads
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


async def main() -> None:
    """Work out all requests side by side."""
    async with asyncio.TaskGroup() as tasks:
        while line := await asyncio.to_thread(sys.stdin.readline):
            tasks.create_task(work_out(json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main())
