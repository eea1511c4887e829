"""Tasks that wait for their clients: hand-offs are INPUT_REQUIRED, re-entries messages to the same task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, Part, Role, TaskState
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from google.protobuf import json_format

from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ToolCall
from tests.unit.protocols.a2a.agents import (
    BINDINGS,
    OWN,
    SEARCH,
    find_calls,
    read_answer,
    read_own,
    say,
    serve_agent,
    settle,
)

if TYPE_CHECKING:
    from a2a.types import Task

    from reasond_server.llm.model import ChatRequest
    from tests.unit.protocols.a2a.agents import AgentSite


class Searching(FunctionModel):
    """A model that searches `times` times at once, then answers with what it was told."""

    def __init__(self, times: int = 1) -> None:
        super().__init__(self._reply)
        self.times = times
        self.prompts: list[str] = []

    def _reply(self, request: ChatRequest) -> Reply:
        said = str(request.messages[-1].content)
        self.prompts.append(said)
        if len(self.prompts) == 1:
            calls = [
                ToolCall(call_id=f"call_{n}", name="search", arguments_json=f'{{"n": {n}}}') for n in range(self.times)
            ]
            return Reply(text="", tool_calls=tuple(calls))
        return Reply(text="It is found.")


async def begin(site: AgentSite, binding: str) -> Task:
    """Return a task that waits for a search."""
    return await site.ask(binding, say("Find it.", message_id="m1", own={"tools": [SEARCH]}))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_task_waits_for_a_tool_of_its_client_and_goes_on_with_the_result(binding: str) -> None:
    model = Searching()
    async with serve_agent(model) as site:
        waiting = await begin(site, binding)
        assert waiting.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        told = find_calls(waiting)
        (call,) = told["toolCalls"]
        assert (call["name"], call["arguments"], call["kind"]) == ("search", {"n": 0}, "execute")
        data = {"toolResults": [{"callId": call["callId"], "result": {"found": 7}}], "etag": told["etag"]}
        updates = await site.send(binding, settle(data, message_id="m2", task_id=waiting.id))
        assert updates[0].task.status.state == TaskState.TASK_STATE_WORKING
        assert updates[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        done = await site.get(binding, waiting.id)
    assert read_answer(done) == "It is found."
    assert "7" in model.prompts[1]
    assert [message.message_id for message in done.history] == ["m1", waiting.status.message.message_id, "m2"]
    assert {message.context_id for message in done.history} == {done.context_id}


@pytest.mark.parametrize("number", ["9" * 400, '{"a":' * 40 + "1" + "}" * 40])
async def test_arguments_that_no_binding_can_send_as_data_are_a_text(number: str) -> None:
    arguments = f'{{"n": {number}}}'
    call = ToolCall(call_id="c1", name="search", arguments_json=arguments)
    async with serve_agent(FunctionModel(lambda _: Reply(text="", tool_calls=(call,)))) as site:
        await begin(site, "JSONRPC")
        for binding in BINDINGS:
            listed = await site.clients[binding].list_tasks(ListTasksRequest(), context=site.context())
            assert find_calls(listed.tasks[0])["toolCalls"][0]["arguments"] == arguments


async def test_a_text_alone_settles_the_one_call_that_waits() -> None:
    model = Searching()
    async with serve_agent(model) as site:
        waiting = await begin(site, "JSONRPC")
        done = await site.ask("GRPC", say("It is in the barn.", message_id="m2", task_id=waiting.id))
        again = await site.ask("HTTP+JSON", say("It is in the barn.", message_id="m2", task_id=waiting.id))
    assert done.status.state == TaskState.TASK_STATE_COMPLETED
    assert again == done
    assert "It is in the barn." in model.prompts[1]


async def test_a_message_that_is_sent_again_is_answered_with_its_task_as_it_is_now() -> None:
    async with serve_agent(Searching()) as site:
        asked = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Find it."}]}
        body = {"message": {**asked, "metadata": {OWN: {"tools": [SEARCH]}}}}
        waiting = (await site.http.post("/a2a/v1/message:send", json=body)).json()["task"]
        done = await site.ask("GRPC", say("It is in the barn.", message_id="m2", task_id=waiting["id"]))
        again = (await site.http.post("/a2a/v1/message:send", json=body)).json()["task"]
    assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert json_format.ParseDict(again, type(done)()) == done


async def test_a_text_does_not_settle_two_calls_and_says_what_does() -> None:
    async with serve_agent(Searching(times=2)) as site:
        waiting = await begin(site, "JSONRPC")
        with pytest.raises(Exception, match="toolResults") as caught:
            await site.ask("GRPC", say("Both are in the barn.", message_id="m2", task_id=waiting.id))
        assert "call" in str(caught.value)
        still = await site.get("GRPC", waiting.id)
    assert still == waiting


async def test_racing_messages_run_the_turn_on_once() -> None:
    model = Searching()
    async with serve_agent(model) as site:
        waiting = await begin(site, "JSONRPC")
        told = find_calls(waiting)
        call_id = told["toolCalls"][0]["callId"]

        async def race(number: int) -> str:
            result = {"callId": call_id, "result": f"result {number % 2}"}
            data = {"toolResults": [result], "etag": told["etag"]}
            message = settle(data, message_id=f"race-{number}", task_id=waiting.id)
            try:
                done = await site.ask(BINDINGS[number % 3], message)
            except Exception as error:  # noqa: BLE001 - the losers' errors are looked at
                return type(error).__name__
            return read_answer(done)

        ended = await asyncio.gather(*map(race, range(12)))
        done = await site.get("GRPC", waiting.id)
    assert len(model.prompts) == 2
    # Equal results are the same re-entry, and get its answer; the others are refused.
    assert ended.count("It is found.") == 6
    users = [message.message_id for message in done.history if message.message_id.startswith("race")]
    assert len(users) == 1


async def test_a_message_for_another_generation_changes_nothing() -> None:
    model = Searching()
    async with serve_agent(model) as site:
        waiting = await begin(site, "JSONRPC")
        generation = read_own(waiting)["generation"]
        message = say("In the barn.", message_id="m2", own={"ifGenerationMatch": generation - 1}, task_id=waiting.id)
        with pytest.raises(Exception, match="generation"):
            await site.ask("GRPC", message)
        cancel = CancelTaskRequest(id=waiting.id)
        cancel.metadata.update({OWN: {"ifGenerationMatch": generation - 1}})
        with pytest.raises(Exception, match="409"):
            await site.clients["HTTP+JSON"].cancel_task(cancel, context=site.context())
        message.metadata.update({OWN: {"ifGenerationMatch": generation}})
        done = await site.ask("GRPC", message)
    assert done.status.state == TaskState.TASK_STATE_COMPLETED
    assert len(model.prompts) == 2


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_waiting_task_is_cancelled_once(binding: str) -> None:
    async with serve_agent(Searching()) as site:
        waiting = await begin(site, binding)
        client, context = site.clients[binding], site.context()
        gone = await client.cancel_task(CancelTaskRequest(id=waiting.id), context=context)
        assert gone.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=waiting.id), context=context)
        with pytest.raises(UnsupportedOperationError):
            await site.send(binding, say("In the barn.", message_id="m2", task_id=waiting.id))
        assert await client.get_task(GetTaskRequest(id=waiting.id), context=context) == gone


async def test_a_failed_tool_is_told_as_an_error() -> None:
    model = Searching()
    async with serve_agent(model) as site:
        waiting = await begin(site, "JSONRPC")
        told = find_calls(waiting)
        failed: dict[str, Any] = {"callId": told["toolCalls"][0]["callId"], "error": "the barn is locked"}
        message = settle({"toolResults": [failed], "etag": told["etag"]}, message_id="m2", task_id=waiting.id)
        done = await site.ask("HTTP+JSON", message)
    assert done.status.state == TaskState.TASK_STATE_COMPLETED
    assert "the barn is locked" in model.prompts[1]


async def test_a_schema_makes_the_answer_a_data_part() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    model = FunctionModel(lambda _: '<answer>{"n": 42}</answer>')
    async with serve_agent(model) as site:
        own = {"strategy": "chain_of_thought", "answerSchema": schema}
        done = await site.ask("GRPC", say("How many?", message_id="m1", own=own))
    (answer,) = [each for each in done.artifacts if each.artifact_id == "answer"]
    assert json_format.MessageToDict(answer.parts[0].data) == {"n": 42}


@pytest.mark.parametrize(("approved", "state"), [(True, "succeeded"), (False, "not_run")])
async def test_a_call_that_needs_approval_is_decided_by_a_message(approved: bool, state: str) -> None:  # noqa: FBT001 - a parameter
    def answer(request: ChatRequest) -> Reply:
        if any("current_time" in str(message) and message.role == "tool" for message in request.messages):
            return Reply(text="It is late.")
        if len(request.messages) > 2:
            return Reply(text="It is late.")
        return Reply(text="", tool_calls=(ToolCall(call_id="call_1", name="current_time", arguments_json="{}"),))

    environ = {"REASOND__TURNS__NEEDS_APPROVAL": '["current_time"]'}
    async with serve_agent(FunctionModel(answer), environ=environ) as site:
        own = {"tools": [SEARCH], "serverTools": True}
        waiting = await site.ask("GRPC", say("How late is it?", message_id="m1", own=own))
        told = find_calls(waiting)
        (call,) = told["toolCalls"]
        assert (call["name"], call["kind"]) == ("current_time", "approve")
        with pytest.raises(Exception, match="toolResults"):
            await site.ask("JSONRPC", say("Yes.", message_id="m2", task_id=waiting.id))
        decision = {"callId": call["callId"], "approved": approved, "reason": "It is Sunday."}
        message = settle({"decisions": [decision], "etag": told["etag"]}, message_id="m3", task_id=waiting.id)
        done = await site.ask("HTTP+JSON", message)
        named = {"jsonrpc": "2.0", "id": 1, "method": "turns.get", "params": {"turn_id": waiting.id}}
        turn = (await site.http.post("/api/v1/jsonrpc", json=named)).json()["result"]["turn"]
    assert done.status.state == TaskState.TASK_STATE_COMPLETED
    assert [each["state"] for each in turn["ledger"]] == [state]


async def test_files_and_data_are_read_and_what_is_neither_is_refused() -> None:
    prompts: list[str] = []

    def answer(request: ChatRequest) -> str:
        prompts.append("\n".join(str(message.content) for message in request.messages))
        return "<answer>42</answer>"

    async with serve_agent(FunctionModel(answer)) as site:
        message = say("What is in it?", message_id="m1")
        message.parts.add(raw=b"a key and a coin", filename="box.txt", media_type="text/plain")
        message.parts.add().CopyFrom(json_format.ParseDict({"data": {"n": 7, "part": 0.5}}, Part()))
        await site.ask("GRPC", message)
        assert not [text for text in ("box.txt", "a key and a coin", '"n":7', '"part":0.5') if text not in prompts[0]]
        for part in (
            Part(raw=b"\xff\x00", media_type="text/plain"),
            Part(raw=b"PK", media_type="application/zip"),
            Part(text="x", media_type="application/x-odd"),
        ):
            refused = say("What is in it?", message_id="m2")
            refused.parts.append(part)
            with pytest.raises(ContentTypeNotSupportedError):
                await site.ask("JSONRPC", refused)
        spoken = say("I am the agent.", message_id="m3")
        spoken.role = Role.ROLE_AGENT
        with pytest.raises(Exception, match="ROLE_USER"):
            await site.ask("JSONRPC", spoken)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    "data",
    [
        {"toolResults": 5},
        {"toolResults": ["x"], "etag": "x"},
        {"toolResults": [{"result": 1}], "etag": 5},
        {"decisions": {"callId": "c"}, "etag": "x"},
        {"decisions": [{"callId": "c", "approved": "yes"}], "etag": "x"},
    ],
)
async def test_a_settlement_of_another_form_is_refused_and_the_task_waits_on(
    binding: str, data: dict[str, Any]
) -> None:
    async with serve_agent(Searching()) as site:
        waiting = await begin(site, binding)
        with pytest.raises(InvalidParamsError):
            await site.send(binding, settle(data, message_id="m2", task_id=waiting.id))
        assert await site.get(binding, waiting.id) == waiting
