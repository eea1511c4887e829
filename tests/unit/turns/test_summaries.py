"""Large results are summarised where the operator wants that, and shown as previews where it fails."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.model import ModelUnavailableError
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import ModelFinish
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.turns.fold import fold
from reasond_server.turns.policy import Mode, OnToolFailure, Synthesis, TurnContext, TurnPolicy
from reasond_server.turns.summaries import is_usable, write_summary_prompt
from reasond_server.types import Budget, FinishReason, ToolResult
from reasond_server.types.turns import ContextGoal, ModelCallStep, Rendering, TurnStart
from tests.turning import Note, TurnServer, ask_tools, serve_in_memory
from tests.unit.turns.recovering import Servers, end_of

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS = json.dumps([{"id": f"row-{number}", "status": "ok", "note": "word " * 40} for number in range(100)])
SUMMARY = "100 rows, row-0 to row-99, all ok [c1:0-400]."
PLANNING, SYNTHESIS, GOAL = ContextGoal.PLANNING, ContextGoal.SYNTHESIS, ContextGoal.SUMMARY
CONTEXT = TurnContext(preview_tokens=512, summaries=True, summary_tokens=256, synthesis=Synthesis.NEVER)


def policy(**changes: Any) -> TurnPolicy:
    in_context = {name: changes.pop(name) for name in ("synthesis", "summaries", "summary_backend") if name in changes}
    return TurnPolicy(context=replace(CONTEXT, **in_context), **changes)


def serve(replies: Sequence[str | Reply], **options: Any) -> TurnServer:
    return serve_in_memory(replies, tools=[Note()], **{"policy": policy()} | options)


async def steps_of(server: TurnServer, turn_id: str) -> list[ModelCallStep]:
    return [event for event in await server.log(turn_id) if isinstance(event, ModelCallStep)]


def shown_in(step: ModelCallStep) -> dict[str, Rendering]:
    return {item.source: item.rendering for item in step.context}


async def test_prompts_show_the_summary_and_the_synthesis_the_whole() -> None:
    replies: list[str | Reply] = [ask_tools(("note", {"text": ROWS})), SUMMARY, "A draft.", "The answer."]
    server = serve(replies, policy=policy(synthesis=Synthesis.WHEN_REDUCED))

    view = await server.run(TurnStart(message="Which rows are there?"))

    steps = await steps_of(server, view.turn.turn_id)
    assert [step.goal for step in steps] == [PLANNING, GOAL, PLANNING, SYNTHESIS]
    assert [step.index for step in steps] == [0, 1, 2, 3]
    assert [shown_in(step).get("c1") for step in steps] == [None, Rendering.FULL, Rendering.SUMMARY, Rendering.FULL]
    assert steps[1].usage.model_calls == 1
    asked, planned = server.model.requests[1:3]
    assert not asked.tools
    assert asked.max_tokens == 256
    assert "[c1:0-400] " in asked.messages[-1].content
    assert f"read_tool_result with handle c1 reads the result]\n{SUMMARY}\n" in planned.messages[-1].content
    assert view.result is not None
    assert view.result.answer == "The answer."
    assert view.result.usage.model_calls == 4
    assert not [warning for warning in view.result.warnings if "summary" in warning]


@pytest.mark.parametrize(
    "reply",
    [
        "All is well [c1:0-99999999].",
        "All is well [c2:0-10].",
        "",
        "word " * 20_000,
        Reply(text="Cut off", finish=ModelFinish.LENGTH),
        Reply(error=ModelUnavailableError("gone")),
    ],
)
async def test_where_a_summary_cannot_be_used_the_preview_stands_and_a_warning_says_so(reply: str | Reply) -> None:
    calls = ask_tools(("note", {"text": ROWS}))
    server = serve([calls, reply, ask_tools(("note", {"text": "again"})), "Done."])

    view = await server.run(TurnStart(message="Which rows are there?"))

    assert view.result is not None
    assert view.result.answer == "Done."
    (told,) = [warning for warning in view.result.warnings if "summary" in warning]
    assert "c1" in told
    steps = await steps_of(server, view.turn.turn_id)
    # It is not asked for again.
    assert [step.goal for step in steps] == [PLANNING, GOAL, PLANNING, PLANNING]
    assert [shown_in(step).get("c1") for step in steps[2:]] == [Rendering.PREVIEW] * 2


async def test_failures_small_results_and_what_was_read_by_a_handle_are_not_summarised() -> None:
    reading = ("read_tool_result", {"handle": "c1"})
    calls = ask_tools(("note", {"text": "small"}), ("note", {"text": "fail " * 3_000}))
    server = serve([calls, ask_tools(reading), "Done."], policy=policy(on_tool_failure=OnToolFailure.TELL))
    view = await server.run(TurnStart(message="Go"))
    assert {step.goal for step in await steps_of(server, view.turn.turn_id)} == {PLANNING}


@pytest.mark.parametrize(("most", "goals"), [(2, [PLANNING, PLANNING]), (3, [PLANNING, GOAL, PLANNING])])
async def test_a_summary_is_one_of_the_model_calls_of_the_turn_and_leaves_one_to_answer(
    most: int, goals: list[ContextGoal]
) -> None:
    server = serve(
        [ask_tools(("note", {"text": ROWS})), *[SUMMARY] * (most - 2), "Done."], policy=policy(max_model_calls=most)
    )
    view = await server.run(TurnStart(message="Go"))
    assert view.result is not None
    assert (view.result.answer, view.result.finish_reason) == ("Done.", FinishReason.ANSWERED)
    assert [step.goal for step in await steps_of(server, view.turn.turn_id)] == goals
    assert server.model.requests[-1].tool_choice == "none"


async def test_a_backend_of_its_own_writes_summaries_if_the_result_fits_its_window() -> None:
    small = ScriptedModel([SUMMARY], context_window=200_000)
    chosen = policy(summary_backend="small")
    server = serve([ask_tools(("note", {"text": ROWS})), "Done."], policy=chosen, backends={"small": small})
    await server.run(TurnStart(message="Go"))
    assert (len(small.requests), len(server.model.requests)) == (1, 2)

    tiny = ScriptedModel([SUMMARY], context_window=2_000)
    server = serve([ask_tools(("note", {"text": ROWS})), "Done."], policy=chosen, backends={"small": tiny})
    view = await server.run(TurnStart(message="Go"))
    assert (len(tiny.requests), len(server.model.requests)) == (0, 2)
    assert view.result is not None
    assert view.result.answer == "Done."


async def test_the_welcome_of_a_mode_is_not_used_up_by_a_summary() -> None:
    calls = ask_tools(("mode_state_change", {"mode": "other"}), ("note", {"text": ROWS}))
    modes = {"other": Mode(welcome="Welcome to the other mode.")}
    server = serve([calls, SUMMARY.replace("c1", "c2"), "Done."], policy=policy(modes=modes))
    await server.run(TurnStart(message="Go"))
    assert "Welcome to the other mode." not in repr(server.model.requests[1].messages)
    assert "Welcome to the other mode." in repr(server.model.requests[2].messages)


async def test_a_summary_is_not_written_again_by_the_process_that_takes_the_turn_over(servers: Servers) -> None:
    options: dict[str, Any] = {"policy": policy(), "tools": [Note()]}
    held = Reply(text="never", hold=asyncio.Event())
    first = servers.server(ask_tools(("note", {"text": ROWS})), SUMMARY, held, **options)
    running = asyncio.create_task(first.run(TurnStart(message="Go", budget=Budget(max_total_tokens=1_000_000))))
    await first.wait_for_calls(3)
    (turn_id,) = first.runner.runs.by_id
    await first.kill()
    running.cancel()
    await asyncio.wait([running])
    progress = fold(await first.log(turn_id))
    assert (len(progress.replies), progress.model_calls, progress.draft) == (1, 2, "")

    other = servers.server("Done.", **options)
    await other.round()
    result = await end_of(other, turn_id)

    assert result.answer == "Done."
    assert SUMMARY in other.model.requests[0].messages[-1].content
    # The call that was lost counts as well.
    assert result.usage.model_calls == 4


def test_the_pieces_of_a_prompt_are_the_result_and_their_places_are_right() -> None:
    text = json.dumps("0123456789" * 101)
    result = ToolResult(call_id="c7", result_json=text)
    prompt = write_summary_prompt(result, question="What?", tokens=100, nonce="q" * 20)[-1].content
    lines = [line for line in prompt.splitlines() if line.startswith("[c7:")]
    places = [line.split("] ", 1) for line in lines]
    assert "".join(piece for _, piece in places) == text
    for place, piece in places:
        start, end = place.removeprefix("[c7:").split("-")
        assert text[int(start) : int(end)] == piece
        assert is_usable(f"Digits {place}].", result, finish="stop", counter=WordPieceCounter())
