from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ContextExhaustedError, ModelUnavailableError
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, Role, Text, ToolSpec
from reasond_server.llm.openai.backend_options import BackendOptions, RetryPolicy
from reasond_server.llm.openai.chat import ChatCompletions
from reasond_server.llm.openai.openai_model import OpenAIModel
from reasond_server.llm.openai.retries import BreakerState
from reasond_server.llm.openai.transport import OpenAITransport
from reasond_server.llm.profiles import ModelProfile
from reasond_server.types import Budget, ToolCall, UsageSource
from tests.faults.backend import backend, request
from tests.faults.upstream import DONE, STREAM_HEAD, Conversation, chunk, event, refusing, streaming, upstream
from tests.unit.telemetry.parts import metrics, values

if TYPE_CHECKING:
    from collections.abc import Sequence


async def test_a_model_tells_what_its_options_say() -> None:
    async with backend("http://127.0.0.1:9/v1", profile=ModelProfile(context_window=4096)) as one:
        assert (one.model.name, one.model.context_window, one.model.warnings) == ("m-1", 4096, ())
        assert isinstance(one.model.counter, ByteCounter)
        assert await one.model.count_exactly([]) is None


async def test_the_servers_count_is_asked_where_there_is_a_way() -> None:
    async def count(messages: Sequence[Message]) -> int | None:
        return len(messages)

    async with upstream(streaming()) as server:
        options = BackendOptions(name="main", model="m-1", base_url=server.address)
        model = OpenAIModel(
            options=options,
            counter=ByteCounter(),
            protocol=ChatCompletions(),
            transport=OpenAITransport(options=options, now=lambda: 0.0),
            monotonic=lambda: 0.0,
            random=lambda: 0.0,
            count=count,
        )
        assert await model.count_exactly([Message(role=Role.USER, content="x")] * 3) == 3
        await model.aclose()


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_names_of_tools_that_the_server_does_not_take_are_shortened_on_the_way(protocol: str) -> None:
    names = [f"mcp__a_server_with_a_long_name__{'very_' * 12}much_{place}" for place in range(2)]
    tools = [ToolSpec(name=name, description="", parameters={"type": "object"}) for name in (*names, "short")]
    earlier = Message(
        role=Role.ASSISTANT, content="", tool_calls=[ToolCall(call_id="c0", name=names[0], arguments_json="{}")]
    )
    result = Message(role=Role.TOOL, content="found", tool_call_id="c0")
    asked = ChatRequest(messages=[earlier, result], max_tokens=100, tools=tools, tool_choice=names[1])

    async def call_the_forced(conversation: Conversation) -> None:
        body = json.loads(conversation.body)
        forced = body["tool_choice"].get("function", body["tool_choice"])["name"]
        if protocol == "responses":
            item = {"type": "function_call", "call_id": "c1", "name": forced, "arguments": "{}"}
            done = {"type": "response.output_item.done", "output_index": 0, "item": item}
            ended = {"type": "response.completed", "response": {"status": "completed", "output": [item]}}
            await streaming(event(done), event(ended))(conversation)
        else:
            call = {"index": 0, "id": "c1", "function": {"name": forced, "arguments": "{}"}}
            await streaming(chunk(delta={"tool_calls": [call]}), chunk(finish="tool_calls"), DONE)(conversation)

    for is_long, sent in ((False, 64), (True, len(names[0]))):
        profile = ModelProfile(long_tool_names=is_long)
        async with (
            upstream(call_the_forced) as server,
            backend(server.address, profile=profile, protocol=protocol) as one,
        ):
            called = [each async for each in one.model.stream(asked) if isinstance(each, ToolCall)]
        assert [each.name for each in called] == [names[1]]
        body = json.loads(server.conversations[0].body)
        offered = [tool.get("function", tool)["name"] for tool in body["tools"]]
        assert ([len(name) for name in offered], len(set(offered))) == ([sent, sent, len("short")], 3)
        assert offered[0] in json.dumps(body.get("messages") or body["input"])


async def test_a_server_that_ignores_the_limit_is_closed_there_by_the_meter() -> None:
    async def endless(conversation: Conversation) -> None:
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n")
        while not conversation.gone.is_set():
            await conversation.send(chunk("0123456789"))

    async with upstream(endless) as server, backend(server) as one:
        metered = MeteredModel(model=one.model, budget=Budget())
        events = [event async for event in metered.stream(request(max_tokens=25))]
        assert "".join(event.text for event in events if isinstance(event, Text)) == "0123456789012345678901234"
        assert isinstance(events[-1], Finished)
        assert events[-1].reason is ModelFinish.LENGTH
        assert metered.usage.source is UsageSource.ESTIMATED
        await server.conversations[0].until_gone()


async def test_the_time_left_reaches_the_model() -> None:
    async with upstream(streaming()) as server, backend(server) as one:
        metered = MeteredModel(model=one.model, budget=Budget(), time_left=lambda: 0.0)
        with pytest.raises(Exception, match=r"within 0 s|none ended in time"):
            _ = [event async for event in metered.stream(request())]
        assert server.calls == 0


async def test_calls_that_are_left_with_content_count_for_the_health_of_the_backend() -> None:
    policy = RetryPolicy(max_attempts=1, breaker_window=4, breaker_ratio=0.5)
    good = streaming(chunk("enough"), chunk(" and more"))
    scripts = [refusing("500 Internal Server Error"), *[good] * 4, refusing("500 Internal Server Error"), good]
    async with upstream(*scripts) as server, backend(server, retries=policy) as one:
        for _ in scripts:
            try:
                async with aclosing(one.model.stream(request())) as events:
                    await anext(events)
            except ModelUnavailableError:
                continue
        assert one.model.health is BreakerState.CLOSED
        assert server.calls == len(scripts)


async def test_what_the_adapter_does_beside_a_call_is_told() -> None:
    counted = metrics()
    scripts = [refusing("503 Service Unavailable"), streaming(chunk("x"), chunk(finish="stop"), DONE)]
    async with (
        upstream(*scripts) as server,
        backend(server, retries=RetryPolicy(max_attempts=2), observer=counted, max_concurrency=1) as one,
    ):

        async def call() -> None:
            assert [event async for event in one.model.stream(request())]

        await asyncio.gather(call(), call())
    found = values(counted)
    assert found["reasond_model_retries_total main MODEL_UNAVAILABLE"] == 1
    assert found["reasond_model_usage_mended_total main estimated"] == 2
    assert found["reasond_model_room_wait_seconds_count main"] >= 1


async def test_an_attempt_that_the_open_breaker_refuses_is_not_counted_as_repeated() -> None:
    counted = metrics()
    policy = RetryPolicy(max_attempts=3, breaker_window=1)
    async with (
        upstream(refusing("503 Service Unavailable")) as server,
        backend(server, retries=policy, observer=counted) as one,
    ):
        with pytest.raises(ModelUnavailableError, match="left alone"):
            _ = [event async for event in one.model.stream(request())]
        assert server.calls == 1
    assert not any(name.startswith("reasond_model_retries_total") for name in values(counted))


@pytest.mark.parametrize(
    ("report", "wait_s"),
    [
        ({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 3.0),
        ({"error": "Model org/name is currently loading", "estimated_time": 20.0}, 20.0),
        ({"error": "Model is warming up", "estimated_time": 1e9}, 3.0),
        ({"detail": "The model is LOADING", "estimated_time": "soon"}, 3.0),
    ],
)
async def test_a_server_that_loads_its_model_is_waited_for_and_not_taken_for_broken(
    report: object, wait_s: float
) -> None:
    policy = RetryPolicy(max_attempts=2, breaker_window=1)
    loading = refusing("503 Service Unavailable", report)
    scripts = [loading, streaming(chunk("x"), chunk(finish="stop"), DONE), loading, loading]
    async with upstream(*scripts) as server, backend(server, retries=policy) as one:
        assert [event async for event in one.model.stream(request())]
        with pytest.raises(ModelUnavailableError, match="still loading its model") as refused:
            _ = [event async for event in one.model.stream(request())]
        assert one.model.health is BreakerState.CLOSED
    assert refused.value.retry_after_s == wait_s
    assert [int(wait) for wait in one.sleep.waits] == [wait_s, wait_s]


async def test_an_overloaded_server_is_not_taken_for_one_that_loads() -> None:
    report = {"error": {"code": 503, "message": "Overloaded while downloading", "type": "unavailable_error"}}
    async with (
        upstream(refusing("503 Service Unavailable", report)) as server,
        backend(server, retries=RetryPolicy(max_attempts=1, breaker_window=1)) as one,
    ):
        with pytest.raises(ModelUnavailableError, match="failed"):
            _ = [event async for event in one.model.stream(request())]
        assert one.model.health is BreakerState.OPEN


async def test_a_window_that_the_server_tells_in_a_refusal_is_known_from_then_on() -> None:
    told = {"error": {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError"}}
    async with upstream(refusing("400 B", told)) as server, backend(server) as one:
        with pytest.raises(ContextExhaustedError) as refused:
            _ = [event async for event in one.model.stream(request())]
        assert refused.value.metadata["context_window"] == "4096"
        assert one.model.context_window == 4096
