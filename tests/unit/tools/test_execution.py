from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, ClassVar

import pytest
from pydantic import Field

from reasond_server.errors.base import InternalError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.tools.execution import RunToolbox, ToolLimits, refuse_call, require_tool
from reasond_server.tools.read_result import READ_TOOL_RESULT
from reasond_server.tools.tool import ModelledTool, Tool, ToolArguments, ToolContext, ToolFailedError
from reasond_server.types import ToolCall, ToolResult
from tests.unit.telemetry.parts import metrics, values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class EchoArguments(ToolArguments):
    text: str = Field(default="", max_length=100_000)


class Echo(ModelledTool[EchoArguments]):
    """Does what the test chooses."""

    name: ClassVar[str] = "echo"
    description: ClassVar[str] = "Says it again."
    arguments_type: ClassVar[type[ToolArguments]] = EchoArguments
    is_idempotent = True

    def __init__(
        self, work: Callable[[str], Awaitable[object]] | None = None, *, timeout_s: float | None = None
    ) -> None:
        self._work = work
        self.timeout_s = timeout_s
        self.contexts: list[ToolContext] = []

    async def call(self, arguments: EchoArguments, context: ToolContext) -> object:
        self.contexts.append(context)
        return {"said": arguments.text} if self._work is None else await self._work(arguments.text)


def call(arguments: str = "{}", *, name: str = "echo", call_id: str = "c1") -> ToolCall:
    return ToolCall(call_id=call_id, name=name, arguments_json=arguments)


def box(*tools: Tool, max_calls: int | None = None, **limits: float) -> RunToolbox:
    return RunToolbox(tools=tools, limits=ToolLimits(**limits), max_calls=max_calls)  # type: ignore[arg-type]  # the limits are int and float


def message_of(result: ToolResult) -> str:
    assert result.is_error
    told = json.loads(result.result_json)
    return f"{told['error']}: {told['message']}"


async def test_a_call_returns_the_tools_result_as_json_and_tells_the_tool_its_ids_its_key_and_its_time() -> None:
    echo = Echo()
    toolbox = RunToolbox(tools=[echo], limits=ToolLimits(timeout_s=7.0), max_calls=None, execution_id="e1")
    result = await toolbox.call(call('{"text": "hi"}'), idempotency_key="k1")
    assert result == ToolResult(call_id="c1", result_json='{"said":"hi"}')
    assert echo.contexts == [ToolContext(call_id="c1", timeout_s=7.0, execution_id="e1", idempotency_key="k1")]


def test_a_toolbox_offers_its_tools_by_name_and_the_one_that_reads_results() -> None:
    assert [spec.name for spec in box(Echo()).specs] == ["echo", READ_TOOL_RESULT]
    assert box(Echo()).specs[0].parameters["properties"]["text"]["type"] == "string"
    assert box().specs == ()


def test_a_run_hears_of_its_tools_once_whatever_they_say_of_themselves_later() -> None:
    toolbox = box(Echo())
    assert toolbox.specs is toolbox.specs


def test_only_what_says_so_is_idempotent() -> None:
    class Once(Echo):
        name: ClassVar[str] = "once"
        is_idempotent = False

    tools = box(Echo(), Once())
    assert [tools.is_idempotent(name) for name in ("echo", "once", "unknown")] == [True, False, False]


async def test_an_unknown_tool_is_an_error_that_names_the_nearest_and_all() -> None:
    message = message_of(await box(Echo()).call(call(name="ecko")))
    assert message == "unknown_tool: there is no tool 'ecko'; did you mean 'echo'? Tools are: echo"
    assert "mean" not in message_of(await box(Echo()).call(call(name="x" * 10_000 + "\u202e")))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{", "no valid JSON"),
        ("[1]", "must be a JSON object, and are an array"),
        ("null", "and are null"),
        ('"a"', "and are a string"),
        ("7", "and are a number"),
        ("true", "and are a truth value"),
        ('{"text": NaN}', "no valid JSON"),
        ('{"text": 5}', "text must be a string, got 5"),
        ('{"txet": "a"}', "txet is not known; did you mean 'text'?"),
    ],
)
async def test_wrong_arguments_never_reach_the_tool_and_the_error_says_what_is_wrong(arguments: str, told: str) -> None:
    echo = Echo()
    message = message_of(await box(echo).call(call(arguments)))
    assert message.startswith("invalid_arguments: ")
    assert told in message
    assert '"properties"' in message
    assert not echo.contexts


async def test_empty_arguments_are_an_empty_object() -> None:
    assert (await box(Echo()).call(call("  "))).result_json == '{"said":""}'


async def test_the_text_of_foreign_exceptions_goes_to_the_log_and_not_to_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_: str) -> object:
        raise RuntimeError("password=hunter2")

    with caplog.at_level(logging.ERROR, "reasond.tools"):
        message = message_of(await box(Echo(fail)).call(call()))
    assert "hunter2" not in message
    assert "the tool 'echo' failed" in message
    assert "hunter2" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_no_exception_of_a_tool_ends_more_than_its_call(error: BaseException) -> None:
    async def ending(_: str) -> object:
        raise error

    assert "failed: " in message_of(await box(Echo(ending)).call(call()))


async def test_what_a_tool_says_of_its_failure_is_for_the_model() -> None:
    async def failing(_: str) -> object:
        raise ToolFailedError("no such word\ud800")

    assert message_of(await box(Echo(failing)).call(call())) == "failed: no such word?"

    async def silent(_: str) -> object:
        raise ToolFailedError

    assert message_of(await box(Echo(silent)).call(call())) == "failed: the tool failed and did not say why"


async def test_a_tool_that_takes_too_long_is_stopped_and_the_model_told() -> None:
    stopped = asyncio.Event()

    async def endless(_: str) -> object:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return None

    message = message_of(await box(Echo(endless, timeout_s=0.01)).call(call()))
    assert message == "timeout: the tool 'echo' took longer than 0.01 s and was stopped"
    assert stopped.is_set()


async def test_a_tool_that_does_not_stop_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    async def stubborn(_: str) -> object:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return None

    assert "timeout" in message_of(await box(Echo(stubborn, timeout_s=0.01)).call(call()))
    assert "left behind" in caplog.text
    release.set()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("tool echo")))


async def test_cancelling_the_run_cancels_the_tool_and_goes_on_up() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(_: str) -> object:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return None

    work = asyncio.create_task(box(Echo(endless)).call(call()))
    await began.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert ended.is_set()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("tool echo")]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), b"bytes", {"a": float("inf")}])
async def test_a_result_that_is_no_json_is_an_error(value: object) -> None:
    async def odd(_: str) -> object:
        return value

    assert "something that is no JSON" in message_of(await box(Echo(odd)).call(call()))


async def test_a_result_nested_without_end_is_an_error() -> None:
    async def nest(_: str) -> object:
        value: list[object] = []
        value.append(value)
        return value

    assert "no JSON" in message_of(await box(Echo(nest)).call(call()))


async def test_a_long_result_is_shown_in_part_and_read_by_its_handle() -> None:
    tools = box(Echo(), max_shown_bytes=512)
    text = "".join(f"line {number}\n" for number in range(5_000))
    shown = json.loads((await tools.call(call(json.dumps({"text": text}), call_id="c7"))).result_json)
    assert shown["handle"] == "c7"
    assert shown["begins"].startswith('{"said":"line 0')
    assert shown["ends"].endswith('4999\\n"}')
    assert len(json.dumps(shown)) < 1_200
    read = call('{"handle": "c7", "contains": "line 4321"}', name=READ_TOOL_RESULT, call_id="c8")
    hits = json.loads((await tools.call(read)).result_json)["hits"]
    assert "line 4321" in hits[0]["text"]


async def test_what_was_read_is_never_shortened_to_a_handle_again() -> None:
    tools = box(Echo(), max_shown_bytes=512)
    await tools.call(call(json.dumps({"text": "x" * 9_000})))
    read = call('{"handle": "c1", "limit": 8000}', name=READ_TOOL_RESULT, call_id="c2")
    assert len(json.loads((await tools.call(read)).result_json)["text"]) == 8_000


async def test_a_result_beyond_the_tools_own_limit_is_cut_and_says_so() -> None:
    echo = Echo()
    echo.max_output_bytes = 1_000
    shown = json.loads((await box(echo).call(call(json.dumps({"text": "\u20ac" * 900})))).result_json)
    assert shown["more"].endswith("its end is lost")
    assert shown["total_characters"] < 400


async def test_a_result_is_kept_whole_up_to_what_is_kept_for_a_run() -> None:
    """Most tools set no `max_output_bytes` of their own; docs/guides/tools.md promises the whole result."""

    async def write_much(_text: str) -> object:
        return {"said": "x" * 2_000_000}

    shown = json.loads((await box(Echo(write_much)).call(call())).result_json)
    assert "its end is lost" not in shown["more"]
    assert shown["total_characters"] > 2_000_000
    echo = Echo(write_much)
    for echo.max_output_bytes in (None, 3_000_000):
        tools = box(echo, max_kept_bytes=1_500_000)
        shown = json.loads((await tools.call(call())).result_json)
        assert shown["more"].endswith("its end is lost")
        read = call('{"handle": "c1", "offset": 1499000}', name=READ_TOOL_RESULT, call_id="c2")
        assert json.loads((await tools.call(read)).result_json)["total_characters"] == 1_500_000


async def test_calls_beyond_the_budget_are_refused_before_anything_runs() -> None:
    echo = Echo()
    tools = box(echo, max_calls=2)
    await tools.call(call())
    await tools.call(call(name="unknown"))
    with pytest.raises(TokenBudgetExhaustedError, match="max_tool_calls is 2"):
        await tools.call(call())
    assert len(echo.contexts) == 1


async def test_calls_of_an_earlier_life_count_and_can_be_read() -> None:
    tools = box(Echo(), max_calls=3)
    tools.restore(call(call_id="c1"), ToolResult(call_id="c1", result_json='{"said":"before"}'))
    tools.restore(call(call_id="c2"), refuse_call(call(call_id="c2"), "failed", "no"))
    read = await tools.call(call('{"handle": "c1"}', name=READ_TOOL_RESULT, call_id="c3"))
    assert json.loads(read.result_json)["text"] == '{"said":"before"}'
    with pytest.raises(TokenBudgetExhaustedError):
        await tools.call(call())


async def test_a_check_that_breaks_is_an_error_result(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        name, description, parameters = "broken", "Breaks.", {"type": "object"}
        timeout_s, max_output_bytes, is_idempotent = None, 10, False

        def violations(self, _: object) -> object:
            raise RecursionError

        async def invoke(self, _: object, __: object) -> object:
            raise AssertionError

    tool = Broken()
    assert isinstance(tool, Tool)
    message = message_of(await box(tool).call(call(name="broken")))
    assert "the arguments could not be checked against the tool's schema" in message
    assert "could not be checked" in caplog.text


def test_what_is_no_tool_is_refused_with_its_name() -> None:
    class Misnamed(Echo):
        name: ClassVar[str] = "no spaces"

    for wrong in (object(), Misnamed()):
        with pytest.raises(InternalError, match="is no tool"):
            require_tool(wrong)


async def test_each_call_is_told_with_what_came_of_it() -> None:
    async def fail(_text: str) -> object:
        raise ToolFailedError("no")

    counted = metrics()
    limits = ToolLimits()
    await RunToolbox(tools=[Echo(fail)], limits=limits, max_calls=None, observer=counted).call(call())
    toolbox = RunToolbox(tools=[Echo()], limits=limits, max_calls=3, observer=counted)
    for one in (call(), call(name="rm"), call("[")):
        await toolbox.call(one)
    with pytest.raises(TokenBudgetExhaustedError):
        await toolbox.call(call())
    found = {name: value for name, value in values(counted).items() if name.startswith("reasond_tool_calls_total")}
    outcomes = {"failed": "echo", "ok": "echo", "unknown_tool": "other", "invalid_arguments": "echo", "refused": "echo"}
    assert found == {f"reasond_tool_calls_total {outcome} {tool}": 1 for outcome, tool in outcomes.items()}
