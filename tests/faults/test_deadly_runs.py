"""Real processes that end while they work on the same run: after the second one that took it over, it is given up."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from reasond.v1 import errors_pb2, execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from tests.faults.server_process import LIMIT_S, ServerProcess
from tests.faults.upstream import upstream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.upstream import Conversation

pytestmark = pytest.mark.slow

QUERY = json.dumps({"tag": "q0", "steps": [{"calls": 1, "tool": ""}]})


class SilentModel:
    """A model server that never answers, and tells that it was asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def answer(self, conversation: Conversation) -> None:
        """Keep the connection open until the caller is gone."""
        if not conversation.json.get("messages"):
            await conversation.answer("404 Not Found", b"{}")
            return
        self.asked.set()
        await asyncio.Event().wait()


async def test_a_run_that_ended_three_servers_is_failed_by_the_fourth(tmp_path: Path) -> None:
    model = SilentModel()
    async with asyncio.timeout(LIMIT_S), upstream(model.answer) as address:
        environ = {
            "REASOND__STORE__URL": f"sqlite:///{tmp_path / 'reasond.db'}",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": address.address,
            "REASOND__LLM__MODEL": "fake",
            "OPENAI_API_KEY": "none",
        }
        execution_id = ""
        for number in range(3):
            server = await ServerProcess.start(tmp_path, f"server{number}", environ).until_ready()
            try:
                if not execution_id:
                    execution_id = await start(server)
                await model.asked.wait()
            finally:
                server.kill()
            model.asked.clear()
        server = await ServerProcess.start(tmp_path, "server3", environ).until_ready()
        try:
            result = await follow(server, execution_id)
        finally:
            server.kill()
    assert result.finish_reason == execution_pb2.FINISH_REASON_FAILED
    assert result.error.reason == errors_pb2.ERROR_REASON_NOT_RESUMABLE
    assert "2 servers that went on with it ended before it got any further" in result.error.message
    assert not model.asked.is_set()


async def start(server: ServerProcess) -> str:
    """Start a run that goes on without its caller; return its id."""
    request = reasoning_service_pb2.ReasonIterationsRequest(request_id="r0", keep_running=True)
    request.task.query, request.task.strategy = QUERY, "listed"
    async for event in stream(server, request):
        return str(event.execution_id)
    raise AssertionError("the stream ended without an event")


async def follow(server: ServerProcess, execution_id: str) -> execution_pb2.Reasoning:
    """Return the result of a run."""
    request = reasoning_service_pb2.ReasonIterationsRequest()
    request.resume.execution_id = execution_id
    async for event in stream(server, request):
        if event.HasField("completed"):
            result: execution_pb2.Reasoning = event.completed
            return result
    raise AssertionError("the stream ended without a result")


async def stream(server: ServerProcess, request: Any) -> Any:
    metadata = (("authorization", f"Bearer {server.token}"),)
    async with grpc.aio.insecure_channel(server.target) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        async for event in stub.ReasonIterations(request, metadata=metadata):
            yield event
