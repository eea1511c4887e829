"""What holds of all three bindings: versions, tenants, errors, lists, streams read again, what operators see."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from a2a.types import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.protobuf.timestamp_pb2 import Timestamp

from reasond_server.cli.commands.keys import create
from reasond_server.errors.base import SettingsError
from reasond_server.errors.model import ModelFailedError
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server
from tests.http_clients import make_http_client
from tests.spans import Spans, attributes_of
from tests.unit.protocols.a2a.agents import BINDINGS, SEARCH, connect, read_answer, read_own, say, serve_agent
from tests.unit.protocols.a2a.test_turns import Searching, begin

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = "What is 6 times 7?"
RPC = {"jsonrpc": "2.0", "id": 1}
SENT = {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": QUESTION}]}}


@pytest.mark.parametrize("version", ["0.3", "1.1", "99.0", "", "1"])
@pytest.mark.parametrize("binding", BINDINGS)
async def test_another_version_is_refused_by_its_name(binding: str, version: str) -> None:
    async with serve_agent() as site:
        context = site.context(version=version)
        with pytest.raises(VersionNotSupportedError):
            await site.send(binding, say(QUESTION, message_id="m1"), context=context)
        with pytest.raises(VersionNotSupportedError):
            await site.clients[binding].get_task(GetTaskRequest(id="x"), context=context)
        listed = await site.clients[binding].list_tasks(ListTasksRequest(), context=site.context())
    assert not listed.tasks


async def test_a_version_may_stand_in_the_query_and_a_missing_one_is_0_3() -> None:
    async with serve_agent() as site:
        del site.http.headers["a2a-version"]
        refused = await site.http.get("/a2a/v1/tasks")
        taken = await site.http.get("/a2a/v1/tasks?A2A-Version=1.0")
    assert refused.status_code == 400
    assert "0.3" in refused.json()["error"]["message"]
    assert refused.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"
    assert taken.json() == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_task_of_another_tenant_is_not_found(
    binding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"REASOND_CONFIG": "/dev/null", "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json")}
    create(subject="eve", permission=["admin"], tenant="else", config=None, environ=environ)
    key = capsys.readouterr().out.strip()
    async with serve_agent(Searching(), environ=environ) as site:
        waiting = await begin(site, "JSONRPC")
        client, eve = site.clients[binding], site.context(token=key)
        message = say("In the barn.", message_id="m2", task_id=waiting.id)
        refer = say("And now?", message_id="m3", reference_task_ids=[waiting.id])
        for refused in (
            client.get_task(GetTaskRequest(id=waiting.id), context=eve),
            client.cancel_task(CancelTaskRequest(id=waiting.id), context=eve),
            site.send(binding, message, context=eve),
            site.send(binding, refer, context=eve),
            anext(client.subscribe(SubscribeToTaskRequest(id=waiting.id), context=eve)),
        ):
            with pytest.raises(TaskNotFoundError):
                await refused
        listed = await client.list_tasks(ListTasksRequest(), context=eve)
        assert not listed.tasks
        again = await site.send(binding, say("Find it.", message_id="m1", own={"tools": [SEARCH]}), context=eve)
        assert again[0].task.id != waiting.id
        assert await site.get(binding, waiting.id) == waiting


async def test_two_callers_of_one_tenant_may_choose_the_same_message_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"REASOND_CONFIG": "/dev/null", "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json")}
    keys = []
    for subject in ("ann", "bob"):
        create(subject=subject, permission=["admin"], tenant="house", config=None, environ=environ)
        keys.append(capsys.readouterr().out.strip())
    async with serve_agent(environ=environ) as site:
        ids = []
        for number, key in enumerate(keys):
            message = say(f"What is 6 times {number}?", message_id="m1")
            ids.append((await site.send("GRPC", message, context=site.context(token=key)))[0].task.id)
        assert (await site.get("GRPC", ids[0], token=keys[1])).id == ids[0]
        with pytest.raises(Exception, match="messageId"):
            await site.send("JSONRPC", say("What is 6 times 8?", message_id="m1"), context=site.context(token=keys[0]))
    assert ids[0] != ids[1]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_what_is_not_offered_is_refused_by_its_name(binding: str) -> None:
    async with serve_agent() as site:
        client, context = site.clients[binding], site.context()
        config = TaskPushNotificationConfig(task_id="x", id="p", url="https://example.com/hook")
        with pytest.raises(PushNotificationNotSupportedError):
            await client.create_task_push_notification_config(config, context=context)
        with pytest.raises(PushNotificationNotSupportedError):
            await site.send(binding, say(QUESTION, message_id="m1"), task_push_notification_config=config)
        site.card.capabilities.extended_agent_card = True
        with pytest.raises(UnsupportedOperationError):
            await client.get_extended_agent_card(GetExtendedAgentCardRequest(), context=context)
        far = say(QUESTION, message_id="m2")
        far.parts.add().CopyFrom(Part(url="https://example.com/x.png", media_type="image/png"))
        with pytest.raises(ContentTypeNotSupportedError):
            await site.send(binding, far)
        message = say(QUESTION, message_id="m3", own={"strategi": "direct"})
        with pytest.raises(Exception, match="strategy"):
            await site.send(binding, message)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_is_read_again_from_any_update(binding: str) -> None:
    async with serve_agent() as site:
        updates = await site.send(binding, say(QUESTION, message_id="m1"))
        task_id, client = updates[0].task.id, site.clients[binding]
        with pytest.raises(UnsupportedOperationError):
            await anext(client.subscribe(SubscribeToTaskRequest(id=task_id), context=site.context()))
        for after in (0, 1, 2, 3):
            context = site.context(**{"last-event-id": f"{task_id}:{after}"})
            again = [each async for each in client.subscribe(SubscribeToTaskRequest(id=task_id), context=context)]
            assert again == updates[{0: 1, 1: 1, 2: 2, 3: 4}[after] :]
            assert await site.send(binding, say(QUESTION, message_id="m1"), context=context) == again
        for wrong in ("else:1", f"{task_id}:x", f"{task_id}:9"):
            context = site.context(**{"last-event-id": wrong})
            with pytest.raises(Exception, match=r"Last-Event-ID|after_sequence"):
                await anext(client.subscribe(SubscribeToTaskRequest(id=task_id), context=context))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_subscriber_sees_a_task_to_its_end_and_leaves_it_alone(binding: str) -> None:
    held = asyncio.Event()
    model = FunctionModel(lambda _: Reply(text="It is so.<answer>42</answer>", hold=held))
    async with serve_agent(model) as site:
        body = {**SENT, "configuration": {"returnImmediately": True}}
        task = (await site.http.post("/a2a/v1/message:send", json=body)).json()["task"]
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        wanted = SubscribeToTaskRequest(id=task["id"])
        # A generator, though the package says iterator.
        subscribed: Any = site.clients[binding].subscribe(wanted, context=site.context())
        async with aclosing(subscribed) as left:
            assert (await anext(left)).task.status.state == TaskState.TASK_STATE_WORKING
        updates = site.clients[binding].subscribe(wanted, context=site.context())
        first = await anext(updates)
        held.set()
        rest = [each async for each in updates]
        done = await site.get(binding, task["id"])
    assert first.task.id == task["id"]
    assert rest[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert read_answer(done) == "42"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_tasks_are_listed_by_context_and_state_in_pages(binding: str) -> None:
    async with serve_agent(Searching()) as site:
        waiting = await begin(site, binding)
        talk = [
            (await site.ask(binding, say(f"{QUESTION} {n}", message_id=f"t{n}", context_id="talk"))).id
            for n in range(3)
        ]
        client, context = site.clients[binding], site.context()

        async def listing(**filters: Any) -> Any:
            return await client.list_tasks(ListTasksRequest(**filters), context=context)

        everything = await listing()
        assert [task.id for task in everything.tasks] == [*reversed(talk), waiting.id]
        assert not any(task.artifacts or task.history for task in everything.tasks)
        assert (everything.page_size, everything.total_size, everything.next_page_token) == (50, 4, "")
        first = await listing(page_size=3)
        assert first.total_size == 4
        second = await listing(page_size=3, page_token=first.next_page_token)
        assert [task.id for task in (*first.tasks, *second.tasks)] == [task.id for task in everything.tasks]
        assert [task.id for task in (await listing(context_id="talk")).tasks] == [*reversed(talk)]
        found = (
            await listing(status=TaskState.TASK_STATE_INPUT_REQUIRED, include_artifacts=True, history_length=1)
        ).tasks
        assert [(task.id, len(task.history)) for task in found] == [(waiting.id, 1)]
        late = Timestamp()
        late.FromJsonString("2999-01-01T00:00:00Z")
        assert [task.id for task in (await listing(status_timestamp_after=late)).tasks] == [waiting.id]
        with pytest.raises(InvalidParamsError):
            await listing(page_size=1000)
        with pytest.raises(InvalidParamsError):
            await listing(status=TaskState.TASK_STATE_REJECTED)


async def test_a_message_may_go_on_from_an_earlier_task() -> None:
    prompts: list[str] = []

    def answer(request: Any) -> str:
        prompts.append("\n".join(str(message.content) for message in request.messages))
        return "<answer>42</answer>"

    async with serve_agent(FunctionModel(answer)) as site:
        first = await site.ask("GRPC", say(QUESTION, message_id="m1", context_id="talk"))
        await site.ask("JSONRPC", say("And that plus 1?", message_id="m2", reference_task_ids=[first.id]))
    assert QUESTION in prompts[1]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_failed_task_says_why(binding: str) -> None:
    model = FunctionModel(lambda _: Reply(error=ModelFailedError("The model server is on fire")))
    async with serve_agent(model) as site:
        updates = await site.send(binding, say(QUESTION, message_id="m1"))
        task = await site.get(binding, updates[0].task.id)
    assert updates[-1].status_update.status.state == TaskState.TASK_STATE_FAILED
    assert "on fire" in task.status.message.parts[0].text
    assert read_own(task)["finishReason"] == "failed"


async def test_a_whole_answer_of_a_failed_task_is_the_task() -> None:
    model = FunctionModel(lambda _: Reply(error=ModelFailedError("The model server is on fire")))
    async with serve_agent(model) as site:
        answer = await site.http.post("/a2a/", json={**RPC, "method": "SendMessage", "params": SENT})
    assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_FAILED"


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        ({"method": "GET", "url": "/a2a/v1/nothing"}, 404, "INVALID_REQUEST"),
        ({"method": "GET", "url": "/a2a/v2/tasks"}, 404, "INVALID_REQUEST"),
        ({"method": "PUT", "url": "/a2a/v1/tasks"}, 405, "INVALID_REQUEST"),
        ({"method": "GET", "url": "/a2a/"}, 405, "INVALID_REQUEST"),
        ({"method": "POST", "url": "/a2a/v1/message:send", "content": "{"}, 400, "PARSE_ERROR"),
        ({"method": "POST", "url": "/a2a/v1/message:send", "content": "[]"}, 400, "INVALID_PARAMS"),
        ({"method": "POST", "url": "/a2a/v1/message:send", "content": "{}"}, 400, "INVALID_PARAMS"),
        ({"method": "GET", "url": "/a2a/v1/tasks?pageSize=x"}, 400, "INVALID_PARAMS"),
        ({"method": "GET", "url": "/a2a/v1/tasks?pageSize=0"}, 400, "INVALID_PARAMS"),
        ({"method": "GET", "url": "/a2a/v1/tasks?includeArtifacts=yes"}, 400, "INVALID_PARAMS"),
        ({"method": "GET", "url": "/a2a/v1/tasks?status=WORKING"}, 400, "INVALID_PARAMS"),
        ({"method": "GET", "url": "/a2a/v1/tasks?historyLength=-1"}, 400, "INVALID_PARAMS"),
        (
            {
                "method": "POST",
                "url": "/a2a/v1/message:send",
                "content": '{"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"metadata": {"a": 1}}]}}',
            },
            400,
            "CONTENT_TYPE_NOT_SUPPORTED",
        ),
        ({"method": "GET", "url": "/a2a/v1/tasks/gone"}, 404, "TASK_NOT_FOUND"),
        ({"method": "POST", "url": "/a2a/v1/tasks/gone:cancel"}, 404, "TASK_NOT_FOUND"),
        (
            {"method": "DELETE", "url": "/a2a/v1/tasks/x/pushNotificationConfigs/y"},
            400,
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
        ),
        (
            {
                "method": "POST",
                "url": "/a2a/v1/message:send",
                "content": "x",
                "headers": {"content-type": "text/plain"},
            },
            415,
            "CONTENT_TYPE_NOT_SUPPORTED",
        ),
        ({"method": "GET", "url": "/a2a/v1/tasks", "headers": {"authorization": "Bearer no"}}, 401, "TOKEN_INVALID"),
    ],
)
async def test_errors_of_http_have_one_form(request_: dict[str, Any], status: int, reason: str) -> None:
    headers = {"content-type": "application/json", **request_.pop("headers", {})}
    async with serve_agent() as site:
        answer = await site.http.request(**request_, headers=headers)
    error = answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"
    assert (answer.status_code, error["code"]) == (status, status)
    assert error["details"][0]["reason"] == reason
    assert error["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{", -32700),
        ("{}", -32600),
        (json.dumps({**RPC, "method": "message/send"}), -32601),
        (json.dumps({**RPC, "method": "SendMessage", "params": {}}), -32602),
        (json.dumps({**RPC, "method": "SendMessage", "params": []}), -32602),
        (json.dumps({**RPC, "method": "SendStreamingMessage", "params": {}}), -32602),
        (json.dumps({**RPC, "method": "GetTask", "params": {"id": "gone"}}), -32001),
        (json.dumps({**RPC, "method": "SubscribeToTask", "params": {"id": "gone"}}), -32001),
        (json.dumps({**RPC, "method": "GetExtendedAgentCard"}), -32004),
    ],
)
async def test_errors_of_json_rpc_have_their_codes(body: str, code: int) -> None:
    async with serve_agent() as site:
        answer = await site.http.post("/a2a/", content=body, headers={"content-type": "application/a2a+json"})
        text = await site.http.post("/a2a/", content=body, headers={"content-type": "text/plain"})
    assert answer.json()["error"]["code"] == code
    assert text.json()["error"]["code"] == -32005


async def test_calls_need_permissions_and_leave_lines_counts_and_spans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    environ = {
        "REASOND_CONFIG": "/dev/null",
        "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json"),
        "REASOND__A2A__ENABLED": "true",
    }
    create(subject="reader", permission=["executions:read"], tenant="house", config=None, environ=environ)
    reader = capsys.readouterr().out.strip()
    create(subject="asker", permission=["reasoning:execute"], tenant="house", config=None, environ=environ)
    asker = capsys.readouterr().out.strip()
    caplog.set_level(logging.INFO)
    spans = Spans()
    model = ScriptedModel(["<answer>42</answer>"] * 3)
    async with (
        running_server(model=model, environ=environ, spans=spans.sink) as listening,
        connect(listening.http, listening.token) as site,
    ):
        tasks = {}
        for binding in BINDINGS:
            caplog.clear()
            updates = await site.send(
                binding, say(QUESTION, message_id=f"m-{binding}"), context=site.context(token=asker)
            )
            tasks[binding] = updates[0].task.id
            tools = say("Find it.", message_id="tools", own={"tools": [SEARCH]})
            for refused in (
                site.send(binding, say(QUESTION, message_id="no"), context=site.context(token=reader)),
                site.get(binding, tasks[binding], token=asker),
                site.send(binding, tools, context=site.context(token=asker)),
            ):
                with pytest.raises(Exception, match=r"403|[Pp]ermission"):
                    await refused
            assert (await site.get(binding, tasks[binding], token=reader)).id == tasks[binding]
            lines = [vars(record) for record in caplog.records if record.name == "reasond.audit"]
            assert [(line["operation"], line["outcome"], line["execution_id"]) for line in lines] == [
                ("SendStreamingMessage", "allowed", tasks[binding]),
                ("SendStreamingMessage", "denied", ""),
                ("GetTask", "denied", ""),
                ("SendStreamingMessage", "denied", ""),
                ("GetTask", "allowed", tasks[binding]),
            ]
        text = (await site.http.get("/metrics")).text
        site.http.headers["authorization"] = f"Bearer {reader}"
        listed = await site.http.post("/api/v1/jsonrpc", json={**RPC, "method": "executions.list", "params": {}})
        await spans.until(lambda one: len(one.find_named("invoke_workflow")) == 3)
    for sample in (
        'reasond_calls_total{code="OK",method="SendStreamingMessage",transport="a2a"} 2.0',
        'reasond_calls_total{code="OK",method="lf.a2a.v1.A2AService/SendStreamingMessage",transport="grpc"} 1.0',
        'reasond_streams_open{transport="a2a"} 0.0',
        'reasond_http_requests_total{route="/a2a/v1/message:stream",status="200"} 1.0',
        'reasond_http_requests_total{route="/a2a/v1/tasks/{id}",status="200"} 1.0',
    ):
        assert sample in text, [line for line in text.splitlines() if "a2a" in line]
    wires = {row["execution_id"]: row["wire"] for row in listed.json()["result"]["executions"]}
    assert wires == {tasks["JSONRPC"]: "a2a", tasks["GRPC"]: "grpc", tasks["HTTP+JSON"]: "a2a"}
    told = attributes_of(spans.find_named("POST /a2a/v1/message:stream")[0])
    assert (told["rpc.system.name"], told["rpc.method"]) == ("a2a", "SendStreamingMessage")


async def test_a_store_without_content_has_tasks_without_messages() -> None:
    async with serve_agent(environ={"REASOND__STORE__RECORD_CONTENT": "false"}) as site:
        updates = await site.send("GRPC", say(QUESTION, message_id="m1", context_id="talk"))
        task = await site.get("JSONRPC", updates[0].task.id)
        other = {"message": {**SENT["message"], "messageId": "m2"}}
        whole = (await site.http.post("/a2a/v1/message:send", json=other)).json()["task"]
    assert updates[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert [each["parts"] for each in whole["artifacts"]] == [[{"text": "42"}], [{"text": "6 times 7 is 42."}]]
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert QUESTION not in str(task)


async def test_without_the_package_the_server_does_not_start_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "reasond_server.grpc_api.a2a_servicer", None)
    with pytest.raises(SettingsError, match="a2a-sdk cannot be imported") as caught:
        async with serve_agent():
            pass
    assert caught.value.remedy == "Install reasond-server[a2a]."


async def test_the_card_names_the_bindings_only_where_they_are_served() -> None:
    async with running_server(model=ScriptedModel([])) as listening, make_http_client(base_url=listening.http) as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
        nothing = await http.post("/a2a/", json={**RPC, "method": "SendMessage", "params": SENT})
    assert [each["protocolBinding"] for each in card["supportedInterfaces"]] == [
        "urn:reasond:jsonrpc:v1",
        "urn:reasond:grpc:v1",
    ]
    assert nothing.status_code == 404
    async with serve_agent() as site:
        bindings = [each.protocol_binding for each in site.card.supported_interfaces]
    assert bindings == [*BINDINGS, "urn:reasond:jsonrpc:v1", "urn:reasond:grpc:v1"]
