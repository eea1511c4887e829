"""Receivers that clients name for their tasks, by unmodified clients of a2a-sdk over all three bindings."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf import json_format

from reasond_server.cli.commands.keys import create
from reasond_server.errors.base import SettingsError
from tests.receivers import receiving
from tests.unit.protocols.a2a.agents import BINDINGS, SEARCH, say, serve_agent, settle
from tests.unit.protocols.a2a.test_turns import Searching, begin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from reasond_server.llm.model import ChatModel
    from tests.receivers import Message as Told
    from tests.unit.protocols.a2a.agents import AgentSite

HOSTS = {"REASOND__A2A__PUSH_HOSTS": '["127.0.0.1", "hooks.example.com"]', "REASOND__A2A__PUSH_ALLOW_PRIVATE": "true"}


@asynccontextmanager
async def serve(folder: Path, model: ChatModel | None = None, **environ: str) -> AsyncIterator[AgentSite]:
    settings = {"REASOND__STORE__URL": f"sqlite:///{folder}/r.db", **HOSTS, **environ}
    async with serve_agent(model, environ=settings) as site:
        yield site


def name(url: str, config_id: str = "mine", **fields: Any) -> TaskPushNotificationConfig:
    secret = AuthenticationInfo(scheme="Bearer", credentials="s3cret")
    return TaskPushNotificationConfig(id=config_id, url=url, token="t0ken", authentication=secret, **fields)


def read(message: Told) -> Mapping[str, Any]:
    """Return the task that a receiver was told."""
    assert message.headers["authorization"] == "Bearer s3cret"
    assert message.headers["x-a2a-notification-token"] == "t0ken"
    assert message.headers["content-type"] == "application/json"
    (task,) = json.loads(message.body).values()
    return dict(task)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_receiver_is_named_read_without_its_secrets_listed_and_removed(binding: str, tmp_path: Path) -> None:
    async with serve(tmp_path, Searching()) as site:
        assert site.card.capabilities.push_notifications
        waiting = await begin(site, binding)
        client, context = site.clients[binding], site.context()
        made = await client.create_task_push_notification_config(
            name("https://hooks.example.com/a", task_id=waiting.id), context=context
        )
        one = GetTaskPushNotificationConfigRequest(task_id=waiting.id, id="mine")
        found = await client.get_task_push_notification_config(one, context=context)
        assert found == made
        assert (found.task_id, found.id, found.url) == (waiting.id, "mine", "https://hooks.example.com/a")
        assert (found.token, found.authentication.scheme, found.authentication.credentials) == ("", "Bearer", "")
        every = ListTaskPushNotificationConfigsRequest(task_id=waiting.id)
        assert [*(await client.list_task_push_notification_configs(every, context=context)).configs] == [found]
        removal = DeleteTaskPushNotificationConfigRequest(task_id=waiting.id, id="mine")
        for _ in range(2):
            await client.delete_task_push_notification_config(removal, context=context)
        with pytest.raises(TaskNotFoundError, match="mine"):
            await client.get_task_push_notification_config(one, context=context)
        assert not (await client.list_task_push_notification_configs(every, context=context)).configs


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("binding", BINDINGS)
async def test_whom_a_message_names_is_told_that_the_task_waits_and_how_it_ended(
    binding: str, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    more = {"REASOND__STORE__URL": request.getfixturevalue("postgres_url")} if store == "postgres" else {}
    async with receiving() as receiver, serve(tmp_path, Searching(), **more) as site:
        config = name(receiver.url)
        message = say("Find it.", message_id="m1", own={"tools": [SEARCH]})
        updates = await site.send(binding, message, task_push_notification_config=config)
        task_id = updates[0].task.id
        (first,) = await receiver.wait_for(1)
        told = read(first)
        assert (told["id"], told["status"]["state"]) == (task_id, "TASK_STATE_INPUT_REQUIRED")
        calls = told["status"]["message"]["parts"][1]["data"]
        data = {"toolResults": [{"callId": calls["toolCalls"][0]["callId"], "result": 7}], "etag": calls["etag"]}
        done = await site.ask(binding, settle(data, message_id="m2", task_id=task_id))
        _, last = await receiver.wait_for(2)
        told = read(last)
        assert json_format.ParseDict(dict(told), type(done)()) == done
        assert first.id != last.id


async def test_who_is_named_late_is_told_at_once_and_who_was_removed_is_not(tmp_path: Path) -> None:
    async with receiving() as receiver, receiving() as other, serve(tmp_path) as site:
        task = await site.ask("GRPC", say("Six by seven?", message_id="m1"))
        client, context = site.clients["GRPC"], site.context()
        for _ in range(2):
            await client.create_task_push_notification_config(name(receiver.url, task_id=task.id), context=context)
        (message, *_) = await receiver.wait_for(1)
        assert read(message)["status"]["state"] == "TASK_STATE_COMPLETED"
        second = await site.ask("GRPC", say("And eight?", message_id="m2"))
        gone = name(other.url, task_id=second.id)
        await client.create_task_push_notification_config(gone, context=context)
        (told,) = await other.wait_for(1)
        assert read(told)["id"] == second.id
        assert {read(each)["id"] for each in receiver.messages} == {task.id}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"url": "https://elsewhere.example.com/"}, "url"),
        ({"url": "ftp://127.0.0.1/"}, "url"),
        ({"url": "https://me:pass@127.0.0.1/"}, "url"),
        ({"url": "no url"}, "url"),
        ({"url": "https://127.0.0.1/", "id": "a/b"}, "id"),
        ({"url": "https://127.0.0.1/", "id": "a" * 129}, "id"),
        ({"url": "https://127.0.0.1/", "token": "a\r\nHost: b"}, "authentication"),
        ({"url": "https://127.0.0.1/", "authentication": {"scheme": "Bearer", "credentials": "é"}}, "authentication"),
        ({"id": "mine"}, "url"),
    ],
)
async def test_a_receiver_that_could_not_be_told_is_refused_before_the_task_begins(
    config: dict[str, Any], field: str, tmp_path: Path
) -> None:
    async with serve(tmp_path) as site:
        task = await site.ask("GRPC", say("Six by seven?", message_id="m1"))
        sent = {"message": {"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "And eight?"}]}}
        for path, body in (
            (f"tasks/{task.id}/pushNotificationConfigs", config),
            ("message:send", {**sent, "configuration": {"taskPushNotificationConfig": config}}),
        ):
            answer = (await site.http.post(f"/a2a/v1/{path}", json=body)).json()
            found = [each["field"] for each in answer["error"]["details"][1]["fieldViolations"]]
            assert [each.rpartition(".")[2] for each in found] == [field], answer
        assert (await site.http.get("/a2a/v1/tasks")).json()["totalSize"] == 1


async def test_a_task_has_at_most_ten_receivers_and_its_caller_alone_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"REASOND_CONFIG": "/dev/null", "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json")}
    create(subject="eve", permission=["admin"], tenant="else", config=None, environ=environ)
    eve = capsys.readouterr().out.strip()
    async with serve(tmp_path, Searching(), **environ) as site:
        waiting = await begin(site, "JSONRPC")
        client, url = site.clients["JSONRPC"], "https://hooks.example.com/a"
        for number in (*range(10), 3):
            config = name(url, f"n{number}", task_id=waiting.id)
            await client.create_task_push_notification_config(config, context=site.context())
        with pytest.raises(InvalidParamsError, match="at most 10"):
            await client.create_task_push_notification_config(
                name(url, "n10", task_id=waiting.id), context=site.context()
            )
        with pytest.raises(TaskNotFoundError):
            await client.create_task_push_notification_config(
                name(url, task_id=waiting.id), context=site.context(token=eve)
            )


async def test_clients_that_race_for_the_last_receivers_are_told_the_truth(tmp_path: Path) -> None:
    """As many receivers are listed as were taken, at most ten, and who was there before stays."""
    async with serve(tmp_path) as site:
        task = await site.ask("GRPC", say("Six by seven?", message_id="m1"))
        client, context = site.clients["GRPC"], site.context()

        async def take(config_id: str) -> str:
            config = name("https://hooks.example.com/a", config_id, task_id=task.id)
            try:
                await client.create_task_push_notification_config(config, context=context)
            except InvalidParamsError:
                return ""
            return config_id

        before = [await take(f"z{number}") for number in range(7)]
        raced = await asyncio.gather(*(take(f"a{number}") for number in range(12)))
        every = ListTaskPushNotificationConfigsRequest(task_id=task.id)
        listed = (await client.list_task_push_notification_configs(every, context=context)).configs
        assert {each.id for each in listed} == {*before, *filter(None, raced)}
        assert len(before) <= len(listed) <= 10


async def test_hosts_need_a_store_that_outlives_the_process() -> None:
    with pytest.raises(SettingsError, match="push_hosts"):
        async with serve_agent(environ=HOSTS):
            pass


async def test_an_allowed_host_with_a_private_address_is_not_connected_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving() as receiver, serve(tmp_path, REASOND__A2A__PUSH_ALLOW_PRIVATE="false") as site:
        config = name(receiver.url.replace("http:", "https:"))
        await site.send("GRPC", say("Six by seven?", message_id="m1"), task_push_notification_config=config)
        async with asyncio.timeout(120):
            while "may not be connected to" not in caplog.text:  # noqa: ASYNC110 - a log tells nobody
                await asyncio.sleep(0.02)
        assert not receiver.messages
        assert "s3cret" not in caplog.text


async def test_receivers_are_deleted_with_their_task(tmp_path: Path) -> None:
    async with serve(tmp_path, Searching()) as site:
        waiting = await begin(site, "GRPC")
        client, context = site.clients["GRPC"], site.context()
        config = name("https://hooks.example.com/a", task_id=waiting.id)
        await client.create_task_push_notification_config(config, context=context)
        call = {"jsonrpc": "2.0", "id": 1, "method": "turns.delete", "params": {"turn_id": waiting.id}}
        assert "result" in (await site.http.post("/api/v1/jsonrpc", json=call)).json()
        with closing(sqlite3.connect(tmp_path / "r.db")) as rows:
            assert rows.execute("SELECT count(*) FROM payloads").fetchone() == (0,)
