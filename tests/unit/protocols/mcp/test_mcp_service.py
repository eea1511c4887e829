"""The tools of this server in hosts of MCP: both versions of the protocol, states, tasks, access and limits."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema_rs
import pytest
from mcp.shared.exceptions import MCPError

from reasond_server.cli.commands.keys import create
from reasond_server.errors.model import ModelFailedError
from reasond_server.protocols.mcp import mcp_runs
from reasond_server.testing import FunctionModel, Reply, running_server
from tests.http_clients import make_http_client
from tests.unit.protocols.mcp.hosting import QUESTION, TASKS, answer, hosting, json_of, send, text_of

if TYPE_CHECKING:
    from pathlib import Path


MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
OFF = {"REASOND__MCP__ENABLED": "false"}


def reply(text: str = "6 times 7 is 42.<answer>42</answer>") -> FunctionModel:
    return FunctionModel(lambda _: text)


def hold(event: asyncio.Event) -> FunctionModel:
    """Return a model that answers once `event` is set."""
    return FunctionModel(lambda _: Reply(text="42", hold=event))


@MODES
async def test_a_tool_answers_and_tells_its_steps(mode: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - the package's
        told.append((progress, message))

    async with running_server(model=reply()) as listening, hosting(listening, mode=mode) as host:
        result = await host.call_tool("reason", QUESTION, progress_callback=note)
        read = await host.call_tool("read_execution", {"execution_id": result.structured_content["execution_id"]})
    assert (text_of(result), result.is_error) == ("42", False)
    assert result.structured_content["strategy_used"] == "chain_of_thought"
    assert text_of(read) == "42"
    assert read.structured_content["execution"]["wire"] == "mcp"
    # The steps are in the resource alone.
    assert read.structured_content["result"] == result.structured_content
    assert [place for place, _ in told] == sorted({place for place, _ in told})
    assert told[-1][1] == "6 times 7 is 42."


@MODES
async def test_each_strategy_is_a_tool_with_its_parameters(mode: str) -> None:
    async with running_server(model=reply()) as listening, hosting(listening, mode=mode) as host:
        tools = {tool.name: tool for tool in (await host.list_tools()).tools}
        result = await host.call_tool("reason_self_consistency", {**QUESTION, "strategy_config": {"samples": 3}})
        wrong = await host.call_tool("reason_self_consistency", {**QUESTION, "strategy_config": {"sample": 3}})
        other = await host.call_tool("reason_self_consistency", {**QUESTION, "strategy": "react"})
    for tool in tools.values():
        jsonschema_rs.validator_for(dict(tool.input_schema))
    assert {"reason", "reason_react", "reason_direct", "read_execution"} <= tools.keys()
    assert "repair" not in tools
    assert "samples" in tools["reason_self_consistency"].input_schema["properties"]["strategy_config"]["properties"]
    assert result.structured_content["metrics"]["usage"]["model_calls"] >= 2
    assert (wrong.is_error, "sample is not" in text_of(wrong)) == (True, True)
    assert (other.is_error, "strategy" in text_of(other)) == (True, True)


@MODES
async def test_what_a_model_got_wrong_is_a_result_that_it_can_read(mode: str) -> None:
    async with running_server(model=reply()) as listening, hosting(listening, mode=mode) as host:
        for arguments in ({}, {"query": ""}, {"query": 7}, {**QUESTION, "budget": {}}, {**QUESTION, "qeury": "x"}):
            result = await host.call_tool("reason", arguments)
            assert (result.is_error, text_of(result).startswith("INVALID_REQUEST: ")) == (True, True), arguments
        absent = await host.call_tool("read_execution", {"execution_id": "nothing"})
        assert (absent.is_error, text_of(absent).startswith("EXECUTION_NOT_FOUND: ")) == (True, True)
        with pytest.raises(MCPError, match="Unknown tool: 'reson'; did you mean 'reason'"):
            await host.call_tool("reson", QUESTION)
        with pytest.raises(MCPError, match="Resource not found"):
            await host.read_resource("reasond://executions/nothing")
        with pytest.raises(MCPError, match="Resource not found"):
            await host.read_resource("file:///etc/passwd")


@MODES
async def test_a_fault_tells_nothing_of_its_cause(mode: str) -> None:
    def fail(_request: object) -> str:
        message = "a secret of the inside"
        raise TypeError(message)

    async with running_server(model=FunctionModel(fail)) as listening, hosting(listening, mode=mode) as host:
        with pytest.raises(MCPError) as raised:
            await host.call_tool("reason", QUESTION)
    assert (raised.value.code, "secret" in repr(raised.value.error)) == (-32603, False)


@MODES
async def test_executions_are_resources(mode: str) -> None:
    async with running_server(model=reply()) as listening, hosting(listening, mode=mode) as host:
        result = await host.call_tool("reason", QUESTION)
        (found,) = (await host.list_resources()).resources
        told = json_of(await host.read_resource(found.uri))
        (template,) = (await host.list_resource_templates()).resource_templates
    execution_id = result.structured_content["execution_id"]
    assert (
        found.uri == f"reasond://executions/{execution_id}" == template.uri_template.format(execution_id=execution_id)
    )
    assert found.title == QUESTION["query"]
    assert told["result"]["trace"][0]["content"] == "6 times 7 is 42."


@MODES
async def test_a_call_in_the_background_is_read_later(mode: str) -> None:
    ready = asyncio.Event()
    async with running_server(model=hold(ready)) as listening, hosting(listening, mode=mode) as host:
        begun = await host.call_tool("reason_direct", {**QUESTION, "background": True})
        execution_id = begun.structured_content["execution_id"]
        early = await host.call_tool("read_execution", {"execution_id": execution_id})
        assert text_of(early) == f"Execution {execution_id} is running."
        ready.set()
        while (late := await host.call_tool("read_execution", {"execution_id": execution_id})).structured_content[
            "execution"
        ]["state"] == "running":
            pass
    assert text_of(late) == "42"


async def test_an_answer_by_a_schema_is_json_and_a_failed_run_is_told_by_its_reason() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with running_server(model=reply('<answer>{"n": 42}</answer>')) as listening, hosting(listening) as host:
        result = await host.call_tool("reason", {**QUESTION, "answer_schema": schema})
    assert (json.loads(text_of(result)), result.structured_content["answer_json"]) == ({"n": 42}, {"n": 42})
    failing = FunctionModel(lambda _: Reply(error=ModelFailedError("The model is down")))
    async with running_server(model=failing) as listening, hosting(listening) as host:
        failed = await host.call_tool("reason_direct", QUESTION)
        read = await host.call_tool("read_execution", {"execution_id": failed.structured_content["execution_id"]})
        task = await answer(listening, "tasks/get", {"taskId": failed.structured_content["execution_id"]})
    assert (failed.is_error, text_of(failed).startswith("MODEL_FAILED: The model is down")) == (True, True)
    assert (read.is_error, text_of(read).partition(":")[0]) == (False, "MODEL_FAILED")
    assert (task["status"], task["result"]["isError"]) == ("completed", True)


async def test_a_host_that_leaves_cancels_its_call() -> None:
    async with running_server(model=hold(asyncio.Event())) as listening, hosting(listening) as host:
        started = asyncio.Event()

        async def note(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - the package's
            started.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: host.call_tool("reason_direct", QUESTION, progress_callback=note))
            await started.wait()
            tasks.cancel_scope.cancel()
        while "cancelled" not in ((await host.list_resources()).resources[0].description or ""):
            pass


async def test_a_long_call_is_held_by_states_that_nobody_can_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mcp_runs, "HOLD_S", 0.01)
    ready, calls = asyncio.Event(), []
    environ = {"REASOND_CONFIG": "/dev/null", "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json")}
    create(subject="other", permission=["reasoning:execute"], config=None, environ=environ)
    other = capsys.readouterr().out.strip()

    def count(_request: object) -> Reply:
        calls.append(1)
        return Reply(text="42", hold=ready)

    async with running_server(model=FunctionModel(count), environ=environ) as listening:
        asked = {"name": "reason_direct", "arguments": QUESTION}
        held = (await send(listening, "tools/call", asked)).json()["result"]
        state = held["requestState"]
        assert held["resultType"] == "input_required"
        changed = [*(state[:at] + ("A" if state[at] != "A" else "B") + state[at + 1 :] for at in range(len(state)))]
        for bad in (*changed[::7], changed[-1], state[:-1], state + "A", "", "x"):
            refused = (await send(listening, "tools/call", {**asked, "requestState": bad})).json()
            if bad:
                assert refused["error"]["code"] == -32602, bad
        foreign = (await send(listening, "tools/call", {**asked, "requestState": state}, token=other)).json()
        assert foreign["error"]["message"] == "Invalid or expired requestState"
        differing = {**asked, "arguments": {"query": "What is 7 times 7?"}, "requestState": state}
        result = (await send(listening, "tools/call", differing)).json()["result"]
        assert (result["isError"], "REQUEST_ID_REUSED" in result["content"][0]["text"]) == (True, True)
        # The state "" is none: that was a call of its own.
        assert len(calls) == 2
        ready.set()
        whole: dict[str, Any] = {}
        while whole.get("resultType") != "complete":
            whole = (await send(listening, "tools/call", {**asked, "requestState": state})).json()["result"]
        assert (whole["content"][0]["text"], len(calls)) == ("42", 2)


async def test_a_client_comes_back_by_itself_until_the_answer_is_there_and_it_is_paid_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_runs, "HOLD_S", 0.2)
    monkeypatch.setattr(mcp_runs, "_HOLDS", 1_000_000)
    ready, calls = [asyncio.Event() for _ in range(3)], []

    def wait(_request: object) -> Reply:
        calls.append(1)
        at = len(calls) - 1
        answer_of_call = "41" if at == 0 else "42"
        return Reply(text=f"<answer>{answer_of_call}</answer>", hold=ready[at] if at < len(ready) else None)

    strategy = {**QUESTION, "strategy_config": {"samples": 3}}
    async with running_server(model=FunctionModel(wait)) as listening:
        asked = {"name": "reason_self_consistency", "arguments": strategy}
        rounds: dict[str, Any] = (await send(listening, "tools/call", asked)).json()["result"]
        again = {**asked, "requestState": rounds["requestState"]}
        for event in ready:
            rounds = (await send(listening, "tools/call", again)).json()["result"]
            assert rounds["resultType"] == "input_required"
            event.set()
        # From here on the last calls are held to their end, as a client sends ten at most.
        monkeypatch.setattr(mcp_runs, "_HOLDS", 1)
        async with hosting(listening) as host:
            while rounds["resultType"] == "input_required":
                rounds = (await send(listening, "tools/call", again)).json()["result"]
            # The client of the package sends a call again by itself.
            result = await host.call_tool("reason_self_consistency", {**QUESTION, "strategy_config": {"samples": 2}})
    assert rounds["content"][0]["text"] == text_of(result) == "42"
    assert rounds["structuredContent"]["metrics"]["usage"]["model_calls"] == 3


async def test_a_call_of_a_client_that_knows_tasks_is_one() -> None:
    ready = asyncio.Event()
    async with running_server(model=hold(ready)) as listening:
        asked = {"name": "reason_direct", "arguments": QUESTION}
        task = await answer(listening, "tools/call", asked)
        handle = {"taskId": task["taskId"]}
        assert (task["resultType"], task["status"], task["ttlMs"]) == ("task", "working", None)
        assert (await answer(listening, "tasks/get", handle))["status"] == "working"
        assert (await answer(listening, "tasks/update", {**handle, "inputResponses": {}}))["resultType"] == "complete"
        ready.set()
        while (found := await answer(listening, "tasks/get", handle))["status"] == "working":
            pass
        assert (found["status"], found["result"]["content"][0]["text"]) == ("completed", "42")
        assert found["ttlMs"] >= 3_600_000
        ready.clear()
        stopped = {"taskId": (await answer(listening, "tools/call", asked))["taskId"]}
        for _ in range(2):
            assert (await answer(listening, "tasks/cancel", stopped))["resultType"] == "complete"
        assert (await answer(listening, "tasks/get", stopped))["status"] == "cancelled"
        assert (await answer(listening, "tasks/get", {"taskId": "nothing"}))["code"] == -32602
        assert (await answer(listening, "tasks/list"))["code"] == -32601
        unknowing = (await send(listening, "tasks/get", handle)).json()["error"]
        assert (unknowing["code"], unknowing["data"]["requiredCapabilities"]) == (-32021, {"extensions": {TASKS: {}}})
        discovered = await answer(listening, "server/discover")
        assert discovered["capabilities"]["extensions"] == {TASKS: {}}


async def test_access_and_limits_are_those_of_every_other_protocol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {
        "REASOND_CONFIG": "/dev/null",
        "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json"),
        "REASOND__LIMITS__REQUESTS_PER_MINUTE": "3",
        "REASOND__SERVER__MAX_HTTP_BODY_BYTES": "65536",
    }
    keys = {}
    for subject, permissions in (
        ("chains", ["reasoning:execute:chain_of_thought"]),
        ("reader", ["executions:read"]),
    ):
        create(subject=subject, permission=permissions, config=None, environ=environ)
        keys[subject] = capsys.readouterr().out.strip()
    async with running_server(model=reply(), environ=environ) as listening:
        asked = {"name": "reason", "arguments": QUESTION}
        whole = await answer(listening, "tools/call", asked)
        foreign = {"execution_id": whole["taskId"]}
        for headers in ({"authorization": ""}, {"authorization": "Bearer sk-reasond-wrong"}):
            refused = await send(listening, "tools/list", headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        async with hosting(listening, token=keys["chains"]) as host:
            assert text_of(await host.call_tool("reason", QUESTION)) == "42"
            other = await host.call_tool("reason_react", QUESTION)
            assert (other.is_error, text_of(other).startswith("PERMISSION_MISSING")) == (True, True)
            later = await host.call_tool("reason", {**QUESTION, "background": True})
            assert text_of(later).startswith("PERMISSION_MISSING: ")
            unread = await host.call_tool("read_execution", foreign)
            assert (unread.is_error, text_of(unread).startswith("PERMISSION_MISSING")) == (True, True)
            # Who may read no task gets the answer in its place.
            read = await answer(listening, "tools/call", asked, token=keys["chains"])
            assert (read["resultType"], read["content"][0]["text"]) == ("complete", "42")
            results = [await host.call_tool("reason", QUESTION) for _ in range(4)]
            assert text_of(results[-1]).startswith("RATE_LIMITED")
        assert (await answer(listening, "tasks/get", {"taskId": whole["taskId"]}, token=keys["chains"]))[
            "code"
        ] == -32602
        async with hosting(listening, token=keys["reader"]) as host:
            refused_call = await host.call_tool("reason", QUESTION)
            assert text_of(refused_call).startswith("PERMISSION_MISSING")
        large = await send(listening, "tools/call", {"name": "reason", "arguments": {"query": "x" * 70_000}})
        assert large.status_code == 413


async def test_a_principal_of_another_tenant_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"REASOND_CONFIG": "/dev/null", "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json")}
    create(
        subject="other", permission=["reasoning:execute", "executions:read"], config=None, environ=environ, tenant="far"
    )
    key = capsys.readouterr().out.strip()
    async with running_server(model=reply(), environ=environ) as listening:
        async with hosting(listening) as host:
            execution_id = (await host.call_tool("reason", QUESTION)).structured_content["execution_id"]
        async with hosting(listening, token=key) as host:
            found = await host.call_tool("read_execution", {"execution_id": execution_id})
            assert text_of(found).startswith("EXECUTION_NOT_FOUND")
            assert (await host.list_resources()).resources == []
            with pytest.raises(MCPError, match="Resource not found"):
                await host.read_resource(f"reasond://executions/{execution_id}")
        handle = {"taskId": execution_id}
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert (await answer(listening, method, handle, token=key))["code"] == -32602


async def test_a_body_that_unfolds_is_counted_before_the_package_reads_it() -> None:
    async with running_server(model=reply()) as listening, make_http_client() as client:
        headers = {
            "authorization": f"Bearer {listening.token}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        for body in (b"[" + b"[]," * 1_000_000 + b"[]]", b"[" * 5_000, b"{", b"\xff"):
            refused = await client.post(f"{listening.http}/mcp", content=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"], refused.json()["id"]) == (400, -32700, None)


async def test_pages_of_other_sites_and_other_methods_are_refused() -> None:
    async with running_server(
        model=reply(), environ={"REASOND__SERVER__CORS_ORIGINS": '["https://good.example"]'}
    ) as on:
        for origin, status in (
            ("https://evil.example", 403),
            ("http://127.0.0.1.evil.example", 403),
            ("null", 403),
            ("https://good.example", 200),
            ("http://localhost:3000", 200),
            ("http://[::1]:3000", 200),
        ):
            assert (await send(on, "tools/list", headers={"origin": origin})).status_code == status, origin
    async with running_server(model=reply(), environ=OFF) as off:
        assert (await send(off, "tools/list")).status_code == 404


async def test_a_state_and_a_task_are_good_at_another_process_over_the_same_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], postgres_url: str
) -> None:
    monkeypatch.setattr(mcp_runs, "HOLD_S", 0.01)
    # On a busy machine the run is old before it is asked about, and would be waited for.
    monkeypatch.setattr(mcp_runs, "_HOLDS", 1e9)
    ready = asyncio.Event()
    environ = {
        "REASOND_CONFIG": "/dev/null",
        "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json"),
        "REASOND__STORE__URL": postgres_url,
    }
    create(subject="host", permission=["reasoning:execute", "executions:read"], config=None, environ=environ)
    key = capsys.readouterr().out.strip()
    asked = {"name": "reason_direct", "arguments": QUESTION}
    async with (
        running_server(model=hold(ready), environ=environ) as one,
        running_server(model=reply("other"), environ=environ) as two,
    ):
        task = await answer(one, "tools/call", asked, token=key)
        held = (await send(one, "tools/call", asked, token=key)).json()["result"]
        again = {**asked, "requestState": held["requestState"]}
        assert (await send(two, "tools/call", again, token=key)).json()["result"]["resultType"] == "input_required"
        assert (await answer(two, "tasks/get", {"taskId": task["taskId"]}, token=key))["status"] == "working"
        ready.set()
        # On a busy machine no answer can be read within the short time.
        monkeypatch.setattr(mcp_runs, "HOLD_S", 60.0)
        whole = (await send(two, "tools/call", again, token=key)).json()["result"]
        while (found := await answer(two, "tasks/get", {"taskId": task["taskId"]}, token=key))["status"] == "working":  # noqa: ASYNC110 - the state is read
            await asyncio.sleep(0.05)
    assert whole["content"] == found["result"]["content"] == [{"type": "text", "text": "42"}]
