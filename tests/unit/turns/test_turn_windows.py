"""Turns in small windows: what stays, what the trace tells of it, and that a long turn ends with an answer."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ContextExhaustedError
from reasond_server.testing import ScriptedModel
from reasond_server.turns.loop import UNKNOWN_WINDOW
from reasond_server.turns.policy import Synthesis, TurnContext, TurnPolicy
from reasond_server.types import FinishReason
from reasond_server.types.turns import ContextGoal, ModelCallStep, Rendering, TurnStart
from tests.turning import Note, NoteArguments, TurnServer, ask_tools, serve_in_memory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatRequest, ModelEvent
    from reasond_server.testing import Reply
    from reasond_server.tools.tool import ToolContext

SMALL = 8_192


class Rows(Note):
    """A tool with a long result for a short call."""

    async def call(self, arguments: NoteArguments, context: ToolContext) -> object:
        name = arguments.text or context.call_id
        return [{"id": f"{name}-{at}", "status": "ok", "note": "word " * 30} for at in range(60)]


def serve(calls: int, *answers: str, policy: TurnPolicy | None = None) -> TurnServer:
    """Return a server whose model calls the tool so many times, each in a reply of its own, and answers then."""
    asked = [ask_tools(("rows", {"text": f"list{at}"})) for at in range(calls)]
    return serve_in_memory([*asked, *answers], tools=[Rows(name="rows")], context_window=SMALL, policy=policy)


async def read_steps(server: TurnServer, turn_id: str) -> list[ModelCallStep]:
    return [event for event in await server.log(turn_id) if isinstance(event, ModelCallStep)]


def find_shown(step: ModelCallStep) -> list[Rendering]:
    return [item.rendering for item in step.context if item.source.startswith("c")]


async def test_results_that_the_model_has_not_seen_are_shown_as_previews_in_a_small_window() -> None:
    asked = ask_tools(*(("rows", {"text": f"list{at}"}) for at in range(8)))
    server = serve_in_memory([asked, "Done.", "Done."], tools=[Rows(name="rows")], context_window=SMALL)

    view = await server.run(TurnStart(message="Which rows are there?"))

    plans = [one for one in await read_steps(server, view.turn.turn_id) if one.goal is ContextGoal.PLANNING]
    assert find_shown(plans[-1]) == 8 * [Rendering.PREVIEW]


async def test_the_trace_tells_the_tokens_of_what_is_shown_and_not_of_what_was() -> None:
    server = serve(12, "Done.", "Done.")

    view = await server.run(TurnStart(message="Which rows are there?"))

    items = [item for step in await read_steps(server, view.turn.turn_id) for item in step.context]
    handles = [item for item in items if item.rendering is Rendering.HANDLE and item.source.startswith("c")]
    assert handles
    assert all(item.tokens < 100 < item.full_tokens for item in handles)


async def test_a_synthesis_in_a_small_window_shows_something_of_most_results() -> None:
    server = serve(12, "Done.", "Done.", policy=TurnPolicy(context=TurnContext(synthesis=Synthesis.ALWAYS)))

    view = await server.run(TurnStart(message="Which rows are there?"))

    last = (await read_steps(server, view.turn.turn_id))[-1]
    assert last.goal is ContextGoal.SYNTHESIS
    assert find_shown(last).count(Rendering.HANDLE) <= 3
    assert "more completely" not in server.model.requests[-1].messages[-1].content


async def test_a_long_turn_that_outgrows_its_window_ends_with_an_answer_and_says_so() -> None:
    """The arguments of calls stand in every later prompt. The script is as long as the turn that first outgrows it."""
    asked = [ask_tools(("note", {"text": f"{'argument ' * 60}{at}"})) for at in range(40)]
    warnings: Sequence[str] = ()
    for count in range(1, 41):
        server = serve_in_memory([*asked[:count], "All noted.", "All."], tools=[Note()], context_window=4_096)
        result = (await server.run(TurnStart(message="Note it"))).result
        assert result is not None
        assert (result.finish_reason, result.answer in {"All noted.", "All."}) == (FinishReason.ANSWERED, True)
        if warnings := result.warnings:
            break

    assert count < 40
    assert ["window" in text for text in warnings] == [True]
    forced = server.model.requests[count]
    assert forced.tool_choice == "none"
    assert "earlier steps with their calls are left out" in str(forced.messages)


class Told(ScriptedModel):
    """A model whose window nobody knows; its server refuses longer prompts, and tells the window or does not."""

    def __init__(self, replies: Sequence[str | Reply], *, window: int, is_told: bool) -> None:
        super().__init__(replies, has_native_tools=True)
        self.refused: list[int] = []
        self._window, self._is_told = window, is_told

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        size = self.counter.count_prompt(request.messages)
        if size + request.max_tokens > self._window:
            self.refused.append(size)
            metadata = {"status": "400"} | ({"context_window": str(self._window)} if self._is_told else {})
            raise ContextExhaustedError("the prompt does not fit", metadata=metadata)
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event


@pytest.mark.parametrize(("is_told", "most_refusals"), [(True, 1), (False, 8)])
async def test_a_turn_goes_on_in_the_window_that_a_refusal_teaches(*, is_told: bool, most_refusals: int) -> None:
    asked = [ask_tools(("rows", {"text": f"list{at}"})) for at in range(6)]
    model = Told([*asked, "Done.", "Done."], window=5_000, is_told=is_told)
    policy = TurnPolicy(context=TurnContext(synthesis=Synthesis.NEVER))
    server = serve_in_memory([], tools=[Rows(name="rows")], context_window=None, policy=policy, served=model)

    view = await server.run(TurnStart(message="Which rows are there?"))

    assert view.result is not None
    assert (view.result.answer, view.result.finish_reason) == ("Done.", FinishReason.ANSWERED)
    assert 1 <= len(model.refused) <= most_refusals
    assert any("refused a prompt as too long" in warning for warning in view.result.warnings)


async def test_a_history_has_its_share_where_nobody_knows_the_window() -> None:
    server = serve_in_memory(["one", "two", "three"], context_window=None)
    long = "word " * 100_000
    for _ in range(2):
        await server.run(TurnStart(session_id="s1", message="Read it.", material=long))

    view = await server.run(TurnStart(session_id="s1", message="And now?"))

    assert view.result is not None
    assert any("oldest exchange" in warning for warning in view.result.warnings), view.result.warnings
    size = server.model.counter.count_prompt(server.model.requests[-1].messages)
    assert size < UNKNOWN_WINDOW * TurnContext().history_share + 2_000
