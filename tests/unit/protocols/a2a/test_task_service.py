"""Tasks of A2A, by unmodified clients of a2a-sdk over all three bindings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from a2a.types import ListTasksRequest, TaskState
from a2a.utils.errors import InvalidParamsError
from google.protobuf import json_format

from tests.unit.protocols.a2a.agents import BINDINGS, read_answer, read_own, say, serve_agent

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_becomes_a_task_that_every_binding_reads(binding: str) -> None:
    async with serve_agent() as site:
        updates = await site.send(binding, say("What is 6 times 7?", message_id="m1"))
        assert [update.WhichOneof("payload") for update in updates] == [
            "task",
            "artifact_update",
            "artifact_update",
            "status_update",
        ]
        assert updates[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        assert [read_own(getattr(each, each.WhichOneof("payload")))["generation"] for each in updates] == [1, 2, 3, 3]
        tasks = [await site.get(other, updates[0].task.id) for other in BINDINGS]
    assert tasks[0] == tasks[1] == tasks[2]
    assert read_answer(tasks[0]) == "42"
    assert [message.message_id for message in tasks[0].history] == ["m1"]
    assert tasks[0].context_id == updates[-1].status_update.context_id != ""


async def test_the_same_message_of_the_same_caller_is_the_same_task() -> None:
    async with serve_agent() as site:
        message = say("What is 6 times 7?", message_id="m1", context_id="talk")
        ids = {(await site.ask(binding, message)).id for binding in BINDINGS}
        other = await site.ask("GRPC", say("What is 6 times 7?", message_id="m2"))
    assert len(ids) == 1
    assert other.id not in ids


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_numbers_that_json_has_not_are_refused_over_grpc(number: float) -> None:
    async with serve_agent() as site:
        in_data, in_metadata = say("Six by seven?", message_id="m1"), say("Six by seven?", message_id="m2")
        in_data.parts.add().data.number_value = number
        in_metadata.metadata["size"] = number
        for message in (in_data, in_metadata):
            with pytest.raises(InvalidParamsError, match="finite numbers"):
                await site.send("GRPC", message)


async def test_a_time_beyond_the_calendar_is_refused_over_grpc() -> None:
    async with serve_agent() as site:
        request = ListTasksRequest()
        request.status_timestamp_after.seconds = 10**17
        with pytest.raises(InvalidParamsError, match="years 1 to 9999"):
            await site.clients["GRPC"].list_tasks(request, context=site.context())


def nest(levels: int, inner: Any) -> Any:
    for _ in range(levels):
        inner = {"a": inner}
    return inner


@pytest.mark.parametrize("data", [10**400, [-(10**400)], nest(27, 1)])
async def test_data_that_no_client_of_grpc_could_read_again_is_refused(data: Any) -> None:
    async with serve_agent() as site:
        part = {"text": "Six by seven?"}
        for message in (
            {"messageId": "m1", "role": "ROLE_USER", "parts": [part, {"data": data}]},
            {"messageId": "m2", "role": "ROLE_USER", "parts": [part], "metadata": {"size": data}},
        ):
            answer = await site.http.post("/a2a/v1/message:send", json={"message": message})
            assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT"), answer.text
        listed = await site.clients["GRPC"].list_tasks(ListTasksRequest(), context=site.context())
        assert not listed.tasks


async def test_data_of_the_deepest_form_is_read_on_every_binding() -> None:
    async with serve_agent() as site:
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "How deep?"}, {"data": nest(26, 1)}]}
        answer = await site.http.post("/a2a/v1/message:send", json={"message": message})
        assert answer.status_code == 200, answer.text
        for binding in BINDINGS:
            listed = await site.clients[binding].list_tasks(ListTasksRequest(history_length=9), context=site.context())
            assert json_format.MessageToDict(listed.tasks[0].history[0].parts[1].data) == nest(26, 1)


async def test_a_message_without_bounds_gets_those_of_the_operator_and_keeps_its_own() -> None:
    owns: Sequence[dict[str, Any] | None] = (None, {"budget": {}}, {"budget": {"max_total_tokens": 9_000}})
    async with serve_agent(environ={"REASOND__A2A__MAX_TOTAL_TOKENS": "1"}) as site:
        tasks = [
            await site.ask("GRPC", say("Six by seven?", message_id=f"m{n}", own=own)) for n, own in enumerate(owns)
        ]
    failed, completed = TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_COMPLETED
    assert [one.status.state for one in tasks] == [failed, failed, completed]
