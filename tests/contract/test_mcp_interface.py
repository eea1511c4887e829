"""A call of a tool of MCP is a call like any other: audit lines, the access log, metrics and spans; repairs are one."""

from __future__ import annotations

import logging

import pytest

from reasond_server.testing import FunctionModel, ScriptedModel, running_server
from tests.contract.repair_calls import EDIT, TASK, repairing_server
from tests.http_clients import make_http_client
from tests.spans import Spans, attributes_of
from tests.unit.protocols.mcp.hosting import QUESTION, answer, hosting, json_of, send, text_of


async def test_tools_leave_the_lines_the_counts_and_the_spans_of_calls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    spans = Spans()
    model = FunctionModel(lambda _: "6 times 7 is 42.<answer>42</answer>")
    async with running_server(model=model, spans=spans.sink) as listening:
        asked = {"name": "reason", "arguments": QUESTION}
        whole = (await send(listening, "tools/call", asked)).json()["result"]["structuredContent"]
        await send(listening, "tools/call", {**asked, "arguments": {"query": ""}})
        await answer(listening, "tasks/get", {"taskId": whole["execution_id"]})
        await send(listening, "tools/list")
        async with make_http_client(headers={"authorization": f"Bearer {listening.token}"}) as client:
            metrics = (await client.get(f"{listening.http}/metrics")).text
        await spans.until(lambda one: len(one.find_named("POST /mcp")) == 4)
    audit = [vars(record) for record in caplog.records if record.name == "reasond.audit"]
    assert [(line["operation"], line["outcome"], line["execution_id"]) for line in audit] == [
        ("ReasonIterations", "allowed", whole["execution_id"]),
        ("ReasonIterations", "allowed", ""),
        ("GetExecution", "allowed", whole["execution_id"]),
    ]
    access = [vars(record) for record in caplog.records if record.name == "reasond.http"]
    assert [(line["method"], line["status"], line["reason"]) for line in access[:4]] == [
        ("mcp.reason", 200, ""),
        ("mcp.reason", 200, "INVALID_REQUEST"),
        ("executions.get", 200, ""),
        ("", 200, ""),
    ]
    for sample in (
        'reasond_calls_total{code="OK",method="mcp.reason",transport="mcp"} 1.0',
        'reasond_calls_total{code="INVALID_ARGUMENT",method="mcp.reason",transport="mcp"} 1.0',
        'reasond_calls_total{code="OK",method="executions.get",transport="mcp"} 1.0',
        'reasond_errors_total{reason="INVALID_REQUEST",transport="mcp"} 1.0',
        'reasond_http_requests_total{route="/mcp",status="200"} 4.0',
        'reasond_streams_open{transport="mcp"} 0.0',
    ):
        assert sample in metrics, sample
    assert spans.tree()[:2] == ["POST /mcp", ["invoke_workflow chain_of_thought", ["step", ["chat function"]]]]
    own = attributes_of(spans.find_named("POST /mcp")[0])
    assert (own["rpc.system.name"], own["rpc.method"]) == ("mcp", "mcp.reason")
    assert own["reasond.execution.id"] == whole["execution_id"]
    assert "6 times 7" not in str([[attributes_of(span)] for span in spans.all])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_repair_is_a_tool_with_its_candidates_as_progress(mode: str) -> None:
    told: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - the package's
        told.append(message)

    async with repairing_server(ScriptedModel([EDIT])) as listening, hosting(listening, mode=mode) as host:
        result = await host.call_tool("repair", {**TASK}, progress_callback=note)
        execution_id = result.structured_content["execution_id"]
        read = await host.call_tool("read_execution", {"execution_id": execution_id})
        whole = json_of(await host.read_resource(f"reasond://executions/{execution_id}"))
        wrong = await host.call_tool("repair", {**TASK, "goal": "fixx"})
        hidden = await host.call_tool("repair", {**TASK, "keep_running": True, "budget": {"max_model_calls": 1}})
        task = await answer(listening, "tasks/get", {"taskId": execution_id})
    assert "-    return a - b\n+    return a + b" in text_of(result)
    assert result.structured_content["is_accepted"]
    assert (text_of(read), whole["result"]["patch"]) == (text_of(result), text_of(result))
    assert [str(message).partition(" ")[0] for message in told[:4]] == ["started", "baseline", "candidate", "critique"]
    assert (wrong.is_error, "goal" in text_of(wrong)) == (True, True)
    assert (hidden.is_error, "budget is no argument; keep_running is no argument" in text_of(hidden)) == (True, True)
    assert (task["status"], task["result"]["content"][0]["text"]) == ("completed", text_of(result))


@pytest.mark.slow
async def test_a_repair_is_a_task_that_can_be_stopped() -> None:
    async with repairing_server(ScriptedModel([EDIT])) as listening:
        task = await answer(listening, "tools/call", {"name": "repair", "arguments": {**TASK}})
        assert task["status"] == "working"
        handle = {"taskId": task["taskId"]}
        assert (await answer(listening, "tasks/cancel", handle))["resultType"] == "complete"
        assert (await answer(listening, "tasks/get", handle))["status"] in {"cancelled", "completed"}
