"""The traces of turns: a span for each leg, linked to the leg before, and no content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reasond_server.telemetry.span_export import TracingOptions
from reasond_server.telemetry.spans import ATTRIBUTES
from reasond_server.testing import Reply, running_server
from reasond_server.types import ToolCall
from tests.contract.test_turns import OPEN_FILE, ask, model, reply, settle
from tests.spans import Spans, attributes_of, ids

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

SERVER = "reasond.v1.TurnService/"
START = {"message": "Read the heron file.", "client_tools": [OPEN_FILE], "session_id": "birds"}
COMPUTE = Reply(
    text="I compute.",
    tool_calls=(ToolCall(call_id="p", name="calculator", arguments_json='{"expression": "6*7"}'),),
)


async def take_legs(spans: Spans, replies: tuple[Any, ...], environ: dict[str, str] | None = None) -> str:
    """Run a turn to its first hand-off, settle that, and return the id of the turn once all spans have ended."""
    with model(*replies) as scripted:
        async with running_server(model=scripted, spans=spans.sink, environ=environ) as server:
            first = await ask(server, "grpc", "turns.start", START)
            await ask(server, "grpc", "turns.reenter", settle(first, ("c2", '"a heron at dusk"')))
            await spans.until(lambda one: len(one.find_named(SERVER)) == 2 and len(one.find_named("invoke_agent")) == 2)
            turn_id: str = first.turn["turn_id"]
            return turn_id


def both(*paths: str) -> Reply:
    """Return a reply that calls a tool of the server, then the client's."""
    return Reply(text="I look.", tool_calls=(*COMPUTE.tool_calls, *reply(*paths).tool_calls))


def points_at(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


async def test_each_leg_is_below_the_call_that_began_it_and_points_at_the_leg_before() -> None:
    spans = Spans()
    turn_id = await take_legs(spans, (both("heron.txt"), COMPUTE, "A heron."))
    step = ["chat scripted", "execute_tool calculator"]
    assert spans.tree() == [
        *(f"{SERVER}RunTurn", ["invoke_agent turn", ["step", step]]),
        *(f"{SERVER}RunTurn", ["invoke_agent turn", ["step", step, "step", ["chat scripted"]]]),
    ]
    first, second = spans.find_named("invoke_agent")
    assert points_at(first) == []
    assert points_at(second) == [ids(first)]
    for leg in (first, second):
        assert attributes_of(leg)["gen_ai.conversation.id"] == "birds"
        assert attributes_of(leg)["reasond.execution.id"] == turn_id
        assert attributes_of(leg)["gen_ai.operation.name"] == "invoke_agent"
        assert "reasond.execution.is_takeover" not in attributes_of(leg)
    exits = [
        (attributes_of(leg)["reasond.turn.exit"], attributes_of(leg)["reasond.turn.mode"]) for leg in (first, second)
    ]
    assert exits == [("client_tools", "default"), ("done", "default")]
    assert attributes_of(first)["reasond.handoff.calls"] == 1
    assert attributes_of(second)["reasond.finish_reason"] == "answered"
    assert [attributes_of(one)["reasond.step.index"] for one in spans.find_named("step")] == [0, 1, 2]
    assert [attributes_of(one)["reasond.execution.id"] for one in spans.find_named(SERVER)] == [turn_id] * 2


async def test_another_process_goes_on_with_a_leg_that_points_at_the_one_before(tmp_path: Path) -> None:
    environ = {"REASOND__STORE__URL": f"sqlite:///{tmp_path}/reasond.db"}
    before, after = Spans(), Spans()
    with model(reply("heron.txt"), "A heron.") as scripted:
        async with running_server(model=scripted, spans=before.sink, environ=environ) as server:
            first = await ask(server, "grpc", "turns.start", {**START, "session_id": ""})
        async with running_server(model=scripted, spans=after.sink, environ=environ) as server:
            await ask(server, "jsonrpc", "turns.reenter", settle(first, ("c1", '"a heron at dusk"')))
            await after.until(lambda one: one.find_named("invoke_agent"))
    leg = after.one("invoke_agent turn")
    assert points_at(leg) == [ids(before.one("invoke_agent turn"))]
    assert attributes_of(leg)["gen_ai.conversation.id"] == first.turn["turn_id"]
    assert ids(leg)[0] == ids(after.one("POST"))[0]


async def test_spans_of_turns_have_no_content_unless_the_operator_records_it() -> None:
    plain, full = Spans(), Spans(options=TracingOptions(has_content=True))
    for spans in (plain, full):
        await take_legs(spans, (both("heron.txt"), "A heron."))
    names = {name for span in full.all for name in attributes_of(span)}
    assert names <= set(ATTRIBUTES)
    said = [str([(one.name, attributes_of(one), one.events) for one in spans.all]) for spans in (plain, full)]
    assert [text.count("heron") > 0 for text in said] == [False, True]
    assert attributes_of(full.one("execute_tool"))["gen_ai.tool.call.arguments"] == '{"expression": "6*7"}'
    assert "gen_ai.tool.call.arguments" not in attributes_of(plain.one("execute_tool"))


async def test_a_turn_that_fails_or_is_cancelled_says_so_in_its_last_leg() -> None:
    spans = Spans()
    unknown = Reply(tool_calls=(ToolCall(call_id="p", name="the heron plan", arguments_json="{}"),))
    with model(unknown, reply("heron.txt")) as scripted:
        async with running_server(model=scripted, spans=spans.sink) as server:
            assert (await ask(server, "grpc", "turns.start", START)).reason == "TOOL_NOT_REGISTERED"
            left = await ask(server, "grpc", "turns.start", START)
            await ask(server, "grpc", "turns.cancel", {"turn_id": left.turn["turn_id"]})
            await spans.until(lambda one: len(one.find_named("invoke_agent")) == 3)
    failed, handed_off, cancelled = map(attributes_of, spans.find_named("invoke_agent"))
    assert (failed["reasond.turn.exit"], failed["error.type"]) == ("failed", "TOOL_NOT_REGISTERED")
    assert handed_off["reasond.turn.exit"] == "client_tools"
    assert cancelled["reasond.turn.exit"] == "cancelled"
    assert "heron" not in str([(one.name, attributes_of(one)) for one in spans.all])
