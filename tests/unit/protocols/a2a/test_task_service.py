"""Tasks of A2A, by unmodified clients of a2a-sdk over all three bindings."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
from a2a.types import ListTasksRequest, SendMessageRequest, TaskState
from a2a.utils.errors import InvalidParamsError
from google.protobuf import json_format

from reasond_server.executions.desk import ExecutionDesk
from reasond_server.testing import FunctionModel, Reply
from tests.unit.protocols.a2a.agents import BINDINGS, OWN, read_answer, read_own, say, serve_agent

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
            {"messageId": "m2", "role": "ROLE_USER", "parts": [part], "metadata": {"size": nest(2, data)}},
        ):
            answer = await site.http.post("/a2a/v1/message:send", json={"message": message})
            assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT"), answer.text
        listed = await site.clients["GRPC"].list_tasks(ListTasksRequest(), context=site.context())
        assert not listed.tasks


async def test_data_of_the_deepest_form_is_read_on_every_binding() -> None:
    async with serve_agent() as site:
        message = {
            "messageId": "m1",
            "role": "ROLE_USER",
            "parts": [{"text": "How deep?"}, {"data": nest(26, 1)}],
            "metadata": {"size": nest(27, 1)},
        }
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


@pytest.mark.parametrize("binding", BINDINGS)
async def test_text_is_told_while_it_is_written_and_replaced_by_its_step(binding: str) -> None:
    held = asyncio.Event()
    pieces = ("Six times ", "seven is ", "42.<answer>42</answer>")
    async with serve_agent(FunctionModel(lambda _: Reply(pieces=pieces, hold=held))) as site:
        message = say("Six by seven?", message_id="m1", own={"includeDeltas": True})
        told: list[Any] = []
        task_id = ""
        request = SendMessageRequest(message=message)
        async for update in site.clients[binding].send_message(request, context=site.context()):
            held.set()
            task_id = task_id or update.task.id
            if update.HasField("artifact_update"):
                told.append(update.artifact_update)
        *drafts, step, answer = told
        assert [each.append for each in drafts] == [False, *[True] * (len(drafts) - 1)]
        assert "".join(each.artifact.parts[0].text for each in drafts).startswith("Six times seven is 42.")
        assert {each.artifact.artifact_id for each in (*drafts, step)} == {"steps"}
        assert (step.append, answer.artifact.artifact_id) == (False, "answer")
        task = await site.get(binding, task_id)
        plain = await site.send(binding, say("Six by seven?", message_id="m2"))
    assert [*task.artifacts[1].parts] == [*step.artifact.parts]
    assert len(plain) == 4


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_answer_comes_as_a_message_where_that_is_asked(binding: str) -> None:
    async with serve_agent() as site:
        (only,) = await site.send(binding, say("Six by seven?", message_id="m1", own={"asMessage": True}))
        message = {"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "Six by seven?"}]}
        body = {"message": {**message, "metadata": {OWN: {"asMessage": True}}}}
        whole = (await site.http.post("/a2a/v1/message:send", json=body)).json()
        task = await site.get(binding, only.message.task_id)
    assert (only.message.parts[0].text, whole["message"]["parts"]) == ("42", [{"text": "42"}])
    assert only.message.context_id == task.context_id


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_id_that_another_message_has_is_refused_with_what_to_do(binding: str) -> None:
    async with serve_agent() as site:
        await site.send(binding, say("Six by seven?", message_id="m1"))
        with pytest.raises(InvalidParamsError, match="messageId was used before"):
            await site.send(binding, say("Six by eight?", message_id="m1"))


async def test_a_list_reads_no_more_tasks_than_its_page_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_agent() as site:
        for number in range(4):
            await site.ask("GRPC", say("Six by seven?", message_id=f"m{number}"))
        reads: list[str] = []
        read = ExecutionDesk.read

        async def count(self: ExecutionDesk, caller: Any, task_id: str, **options: Any) -> Any:
            reads.append(task_id)
            return await read(self, caller, task_id, **options)

        monkeypatch.setattr(ExecutionDesk, "read", count)
        request = ListTasksRequest(context_id="nothing", page_size=2)
        first = await site.clients["GRPC"].list_tasks(request, context=site.context())
        assert (len(first.tasks), len(reads), bool(first.next_page_token)) == (0, 2, True)
