"""A server is killed during a task of A2A; another process over its store has the task, and goes on with it once."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from a2a.types import Task, TaskState
from google.protobuf import json_format

from tests.faults.turn_servers import PATIENCE_S, ask_tool, open_servers
from tests.faults.turn_servers import say as reply
from tests.receivers import receiving
from tests.unit.protocols.a2a.agents import BINDINGS, SEARCH, connect, find_calls, read_answer, say, settle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.turn_servers import Asked, TurnServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]
A2A = {
    "REASOND__A2A__ENABLED": "true",
    "REASOND__A2A__PUSH_HOSTS": '["127.0.0.1"]',
    "REASOND__A2A__PUSH_ALLOW_PRIVATE": "true",
}


def answer(asked: Asked) -> bytes:
    """Search first, if that is offered, then answer."""
    is_turn = "search" in asked.prompt
    return ask_tool(("search", {"n": 1})) if is_turn and not asked.results else reply("It is so.<answer>42</answer>")


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'reasond.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


def reach(server: TurnServer) -> tuple[str, str]:
    return f"http://{server.served.http}", server.served.token


async def test_a_task_survives_the_process_that_works_on_it(store_url: str, tmp_path: Path) -> None:
    message = say("What is 6 times 7?", message_id="m1", context_id="talk")
    async with (
        receiving() as receiver,
        open_servers(tmp_path, store_url, answer) as servers,
        asyncio.timeout(PATIENCE_S),
    ):
        servers.takes_s = lambda: 3_600.0
        async with servers.server(**A2A) as first:
            async with connect(*reach(first)) as site:
                wanted = {
                    "returnImmediately": True,
                    "taskPushNotificationConfig": {"url": receiver.url, "token": "mine"},
                }
                body = {"message": json_format.MessageToDict(message), "configuration": wanted}
                started = (await site.http.post("/a2a/v1/message:send", json=body)).json()["task"]["id"]
            while not servers.asked:  # noqa: ASYNC110 - the model tells nobody
                await asyncio.sleep(0.01)
            first.kill()
        servers.takes_s = lambda: 0.0
        async with servers.server(**A2A) as second, connect(*reach(second)) as site:
            found = await site.get("JSONRPC", started)
            assert found.context_id == "talk"
            done = [await site.ask(binding, message) for binding in BINDINGS]
            (told,) = await receiver.wait_for(1)
    assert told.headers["x-a2a-notification-token"] == "mine"
    assert json_format.ParseDict(json.loads(told.body)["task"], Task()) == done[0]
    assert done[0] == done[1] == done[2]
    assert done[0].id == started
    assert done[0].status.state == TaskState.TASK_STATE_COMPLETED
    assert read_answer(done[0]) == "42"
    assert [one.message_id for one in done[0].history] == ["m1"]


async def test_a_task_that_waits_is_gone_on_with_elsewhere_and_once(store_url: str, tmp_path: Path) -> None:
    async with open_servers(tmp_path, store_url, answer) as servers, asyncio.timeout(PATIENCE_S):
        async with servers.server(**A2A) as first:
            async with connect(*reach(first)) as site:
                waiting = await site.ask("JSONRPC", say("Find it.", message_id="m1", own={"tools": [SEARCH]}))
            first.kill()
        async with servers.server(**A2A) as second, connect(*reach(second)) as site:
            assert await site.get("HTTP+JSON", waiting.id) == waiting
            told = find_calls(waiting)
            result = {"callId": told["toolCalls"][0]["callId"], "result": "in the barn"}
            data = {"toolResults": [result], "etag": told["etag"]}
            raced = [
                site.ask(binding, settle(data, message_id=f"m2-{n}", task_id=waiting.id))
                for n, binding in enumerate(BINDINGS * 2)
            ]
            done = await asyncio.gather(*raced)
            log = await second.read_log(waiting.id)
    assert {task.status.state for task in done} == {TaskState.TASK_STATE_COMPLETED}
    assert [each.WhichOneof("event") for each in log].count("reentered") == 1
    assert len(servers.asked) == 2
    assert len(done[0].history) == 3
