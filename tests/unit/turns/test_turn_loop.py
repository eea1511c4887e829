"""The loop of a turn: its two exits, the ledger, failures and limits (seed 003, sections 4, 7, 8 and 11)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.turns import (
    ToolFailedInTurnError,
    ToolNotRegisteredError,
    ToolResultsMissingError,
    ToolResultsUnexpectedError,
    TurnLeasedError,
    TurnNotAwaitingError,
)
from reasond_server.llm.model import ModelFinish
from reasond_server.testing import Reply
from reasond_server.turns.policy import Mode, OnToolFailure, TurnPolicy
from reasond_server.types import Budget, FinishReason, ToolCall, ToolResult
from reasond_server.types.turns import (
    CallKind,
    ContextBlock,
    ContextScope,
    Decision,
    HandedOff,
    LedgerState,
    ModeChange,
    ModelCallStep,
    Reentered,
    ToolStep,
    TurnReentry,
    TurnResult,
    TurnStart,
    TurnStarted,
    TurnState,
)
from tests.turning import CALLER, Note, TurnServer, ask_tools, client_tool, serve_in_memory, settle

if TYPE_CHECKING:
    from reasond_server.turns.turn_service import TurnView


def states_of(view: TurnView) -> dict[str, LedgerState]:
    return {one.call_id: one.state for one in view.turn.ledger}


async def test_normal_turn_completion() -> None:
    server = serve_in_memory(["Forty-two."])

    view = await server.run(TurnStart(message="What is six times seven?"))

    assert view.result is not None
    assert (view.turn.state, view.result.answer) == (TurnState.SUCCEEDED, "Forty-two.")
    assert view.result.usage.model_calls == 1
    kinds = [type(event) for event in await server.log(view.turn.turn_id)]
    assert kinds == [TurnStarted, ModelCallStep, TurnResult]


async def test_exit_mode_2_client_continuation() -> None:
    server = serve_in_memory([ask_tools(("open_file", {"path": "a.txt"})), "It says hello."])

    view = await server.run(TurnStart(message="Read a.txt", client_tools=[client_tool()]))

    handoff = view.turn.handoff
    assert view.turn.state is TurnState.AWAITING_CLIENT
    assert view.result is None
    assert handoff is not None
    assert [(one.call.call_id, one.kind) for one in handoff.calls] == [("c1", CallKind.EXECUTE)]
    assert not server.runner.runs.by_id

    view = await server.run(settle(view.turn.turn_id, handoff, lambda _: "hello"))

    assert view.result is not None
    assert view.result.answer == "It says hello."
    assert states_of(view) == {"c1": LedgerState.SUCCEEDED}
    assert view.turn.usage.model_calls == 2
    assert '"hello"' in server.model.requests[-1].messages[-1].content
    log = await server.log(view.turn.turn_id)
    assert [type(event) for event in log] == [
        TurnStarted,
        ModelCallStep,
        HandedOff,
        Reentered,
        ModelCallStep,
        TurnResult,
    ]


async def test_server_tool_continuation() -> None:
    note = Note()
    server = serve_in_memory([ask_tools(("note", {"text": "one"}), ("note", {"text": "two"})), "Done."], tools=[note])

    view = await server.run(TurnStart(message="Note one and two"))

    assert [text for text, _ in note.calls] == ["one", "two"]
    assert len({key for _, key in note.calls}) == 2
    steps = [event for event in await server.log(view.turn.turn_id) if isinstance(event, ToolStep)]
    assert [(step.call_id, step.state) for step in steps] == [
        ("c1", LedgerState.STARTED),
        ("c1", LedgerState.SUCCEEDED),
        ("c2", LedgerState.STARTED),
        ("c2", LedgerState.SUCCEEDED),
    ]
    assert view.result is not None
    assert view.result.answer == "Done."


async def test_a_mixed_reply_runs_server_tools_first_and_shows_results_in_the_order_of_the_calls() -> None:
    note = Note()
    asked = ask_tools(("open_file", {"path": "a"}), ("note", {"text": "n"}))
    server = serve_in_memory([asked, "Both done."], tools=[note])

    view = await server.run(TurnStart(message="Do both", client_tools=[client_tool()]))
    assert len(note.calls) == 1
    assert view.turn.handoff is not None
    assert [one.call.call_id for one in view.turn.handoff.calls] == ["c1"]
    await server.run(settle(view.turn.turn_id, view.turn.handoff, lambda _: "the file"))

    shown = [m.content for m in server.model.requests[-1].messages if m.role == "tool"]
    assert "the file" in shown[0]
    assert "noted" in shown[1]


async def test_registry_enforcement_a_tool_that_was_not_offered_is_a_hard_error_and_the_steps_stay() -> None:
    server = serve_in_memory([ask_tools(("format_disk", {}))])

    with pytest.raises(ToolNotRegisteredError, match="format_disk") as caught:
        await server.run(TurnStart(message="Do it", client_tools=[client_tool()]))

    assert caught.value.execution_id is not None
    view = await server.service.get(CALLER, caught.value.execution_id)
    assert view.turn.state is TurnState.FAILED
    assert len(view.turn.ledger) == 1


async def test_the_first_failure_of_a_tool_ends_the_turn_and_the_other_calls_do_not_run() -> None:
    note = Note()
    server = serve_in_memory(
        [ask_tools(("note", {"text": "fail"}), ("note", {"text": "two"}), ("open_file", {"path": "x"}))], tools=[note]
    )

    with pytest.raises(ToolFailedInTurnError, match="in the call c1: the disk is full") as caught:
        await server.run(TurnStart(message="Go", client_tools=[client_tool()]))

    assert len(note.calls) == 1
    view = await server.service.get(CALLER, str(caught.value.execution_id))
    assert states_of(view) == {"c1": LedgerState.FAILED, "c2": LedgerState.NOT_RUN, "c3": LedgerState.NOT_RUN}


async def test_the_model_is_told_of_a_failure_where_the_operator_wants_that() -> None:
    note = Note()
    policy = TurnPolicy(on_tool_failure=OnToolFailure.TELL)
    server = serve_in_memory(
        [ask_tools(("note", {"text": "fail"}), ("note", {"text": "two"})), "One failed."], tools=[note], policy=policy
    )

    view = await server.run(TurnStart(message="Go"))

    assert view.result is not None
    assert view.result.answer == "One failed."
    assert states_of(view) == {"c1": LedgerState.FAILED, "c2": LedgerState.SUCCEEDED}


async def test_a_call_with_arguments_that_do_not_fit_is_not_handed_off_and_the_model_is_told() -> None:
    asked = [ask_tools(("open_file", {"file": "a"})), ask_tools(("open_file", {"path": "a"}))]
    server = serve_in_memory([*asked, "Read."])

    view = await server.run(TurnStart(message="Read", client_tools=[client_tool()]))

    assert states_of(view) == {"c1": LedgerState.NOT_RUN, "c2": LedgerState.HANDED_OFF}
    assert "path is required" in server.model.requests[-1].messages[-1].content


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "1e999", '"\\ud800"', "[" * 5000, "1" * 5000 + "x", "'a'"])
async def test_no_client_gets_arguments_that_its_parser_refuses(odd: str) -> None:
    call = ToolCall(call_id="1", name="lookup", arguments_json=f'{{"key": {odd}}}')
    server = serve_in_memory([Reply(tool_calls=(call,)), "I was told."])

    view = await server.run(TurnStart(message="Look.", client_tools=(client_tool("lookup"),)))

    assert view.turn.state is TurnState.SUCCEEDED, view.turn.handoff
    assert "no valid JSON" in server.model.requests[1].messages[-1].content


async def test_mid_turn_mode_change() -> None:
    policy = TurnPolicy(
        modes={
            "default": Mode(tools=("note",)),
            "write": Mode(instructions="Write well.", tools=("pen",), welcome="You have a pen."),
        }
    )
    server = serve_in_memory(
        [
            ask_tools(("mode_state_change", {"mode": "write"}), ("note", {"text": "n"})),
            ask_tools(("pen", {"text": "p"})),
            "Written.",
        ],
        tools=[Note(), Note(name="pen")],
        policy=policy,
    )

    view = await server.run(TurnStart(session_id="s1", message="Write"))

    first, second, third = server.model.requests
    assert [tool.name for tool in first.tools] == ["mode_state_change", "note"]
    assert [tool.name for tool in second.tools] == ["mode_state_change", "pen"]
    assert "Write well." in second.messages[0].content
    assert "You have a pen." in second.messages[-1].content
    assert not any("You have a pen." in message.content for message in third.messages)
    changes = [event for event in await server.log(view.turn.turn_id) if isinstance(event, ModeChange)]
    assert [(one.old_mode, one.new_mode) for one in changes] == [("default", "write")]
    assert view.turn.mode == "write"
    assert (await server.service.get_session(CALLER, "s1")).mode == "write"


async def test_bootstrap_is_consumed_by_the_first_reply_and_not_repeated_in_the_next_turn() -> None:
    policy = TurnPolicy(modes={"default": Mode(welcome="Welcome aboard.")})
    server = serve_in_memory(["Hello.", "Again."], policy=policy)

    await server.run(TurnStart(session_id="s1", message="Hi"))
    await server.run(TurnStart(session_id="s1", message="Hi again"))

    first, second = server.model.requests
    assert "Welcome aboard." in first.messages[-1].content
    assert not any("Welcome aboard." in message.content for message in second.messages)


async def test_turn_context_clearing() -> None:
    note = Note()
    server = serve_in_memory([ask_tools(("note", {"text": "n"})), "One.", "Two."], tools=[note])
    blocks = [
        ContextBlock(name="here", scope=ContextScope.TURN, text="The cursor is in line 7."),
        ContextBlock(name="house", scope=ContextScope.SESSION, text="Use tabs."),
    ]

    await server.run(TurnStart(session_id="s1", message="One", context=blocks))
    await server.run(TurnStart(session_id="s1", message="Two"))

    texts = ["\n".join(message.content for message in request.messages) for request in server.model.requests]
    assert ["The cursor is in line 7." in text for text in texts] == [True, False, False]
    assert ["Use tabs." in text for text in texts] == [True, True, True]


async def test_the_history_of_a_session_has_calls_and_results_in_pairs() -> None:
    server = serve_in_memory([ask_tools(("note", {"text": "first"})), "Noted.", "You noted first."], tools=[Note()])

    await server.run(TurnStart(session_id="s1", message="Note first"))
    view = await server.run(TurnStart(session_id="s1", message="What did I note?"))

    last = server.model.requests[-1].messages
    assert [message.role for message in last] == ["system", "user", "assistant", "tool", "assistant", "user"]
    session = await server.service.get_session(CALLER, "s1")
    assert (session.revision, session.turn_count, session.open_turn_id) == (4, 2, "")
    assert view.turn.session_id == "s1"


async def test_a_session_has_one_open_turn_and_the_second_start_names_it() -> None:
    server = serve_in_memory([ask_tools(("open_file", {"path": "a"}))])
    view = await server.run(TurnStart(session_id="s1", message="Go", client_tools=[client_tool()]))

    with pytest.raises(TurnLeasedError, match=view.turn.turn_id) as caught:
        await server.run(TurnStart(session_id="s1", message="Go on"))

    assert caught.value.retry_after_s is None
    await server.service.cancel(CALLER, view.turn.turn_id)
    assert (await server.service.get_session(CALLER, "s1")).open_turn_id == ""


async def test_re_entry_verification_failures() -> None:
    server = serve_in_memory([ask_tools(("open_file", {"path": "a"}), ("open_file", {"path": "b"})), "Read."])
    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()]))
    handoff = view.turn.handoff
    assert handoff is not None
    whole = settle(view.turn.turn_id, handoff)

    with pytest.raises(ToolResultsMissingError, match="c2"):
        await server.run(TurnReentry(turn_id=whole.turn_id, etag=whole.etag, results=whole.results[:1]))
    odd = [*whole.results, whole.results[0], ToolResult(call_id="c9", result_json="1")]
    decisions = [Decision(call_id="c1", is_approved=True)]
    with pytest.raises(ToolResultsUnexpectedError) as caught:
        await server.run(TurnReentry(turn_id=whole.turn_id, etag=whole.etag, results=odd, decisions=decisions))
    assert [one.field for one in caught.value.violations] == [
        "results[2].call_id",
        "results[3].call_id",
        "decisions[0].call_id",
    ]
    broken = [ToolResult(call_id=one.call_id, result_json="{") for one in whole.results]
    with pytest.raises(ToolResultsUnexpectedError, match="JSON"):
        await server.run(TurnReentry(turn_id=whole.turn_id, etag=whole.etag, results=broken))

    view = await server.run(whole)
    assert view.result is not None
    assert view.result.answer == "Read."


async def test_the_same_re_entry_again_replays_the_events_that_followed_it() -> None:
    server = serve_in_memory([ask_tools(("open_file", {"path": "a"})), "Read."])
    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()]))
    assert view.turn.handoff is not None
    reentry = settle(view.turn.turn_id, view.turn.handoff)

    first, again = await server.events(reentry), await server.events(reentry)

    assert first == again
    assert [type(event.event) for event in first] == [Reentered, ModelCallStep, TurnResult]
    assert len(server.model.requests) == 2
    with pytest.raises(TurnNotAwaitingError):
        await server.run(TurnReentry(turn_id=view.turn.turn_id, etag="another", results=reentry.results))


async def test_a_server_tool_that_needs_approval_runs_only_once_it_is_approved() -> None:
    note = Note()
    policy = TurnPolicy(needs_approval=("note",))
    asked = ask_tools(("note", {"text": "yes"}), ("note", {"text": "no"}))
    server = serve_in_memory([asked, "Half done."], tools=[note], policy=policy)
    view = await server.run(TurnStart(message="Go"))
    handoff = view.turn.handoff
    assert handoff is not None
    assert [one.kind for one in handoff.calls] == [CallKind.APPROVE, CallKind.APPROVE]
    assert note.calls == []

    view = await server.run(
        TurnReentry(
            turn_id=view.turn.turn_id,
            etag=handoff.etag,
            decisions=[
                Decision(call_id="c1", is_approved=True),
                Decision(call_id="c2", is_approved=False, reason="Not today."),
            ],
        )
    )

    assert [text for text, _ in note.calls] == ["yes"]
    assert note.calls[0][1] == handoff.calls[0].idempotency_key
    assert states_of(view) == {"c1": LedgerState.SUCCEEDED, "c2": LedgerState.NOT_RUN}
    assert "Not today." in server.model.requests[-1].messages[-1].content


async def test_who_may_go_on_with_turns_may_refuse_a_call_and_needs_a_permission_of_its_own_to_approve_one() -> None:
    """The etag stays good for somebody who may."""
    note = Note()
    server = serve_in_memory(
        [ask_tools(("note", {"text": "yes"})), "Done."], tools=[note], policy=TurnPolicy(needs_approval=("note",))
    )
    view = await server.run(TurnStart(message="Go"))
    handoff = view.turn.handoff
    assert handoff is not None
    approval = settle(view.turn.turn_id, handoff)

    for permissions in ({"turns:execute"}, {"turns:execute", "reasoning:tools"}):
        caller = replace(CALLER, permissions=frozenset(permissions))
        with pytest.raises(PermissionMissingError, match="'turns:approve'"):
            await server.service.run(caller, approval)
    assert note.calls == []

    approver = replace(CALLER, permissions=frozenset({"turns:execute", "turns:approve"}))
    view = await server.service.run(approver, approval)
    assert [text for text, _ in note.calls] == ["yes"]
    assert states_of(view) == {"c1": LedgerState.SUCCEEDED}


async def test_a_call_is_refused_without_the_permission_to_approve() -> None:
    note = Note()
    server = serve_in_memory(
        [ask_tools(("note", {"text": "yes"})), "Done."], tools=[note], policy=TurnPolicy(needs_approval=("note",))
    )
    view = await server.run(TurnStart(message="Go"))
    handoff = view.turn.handoff
    assert handoff is not None
    caller = replace(CALLER, permissions=frozenset({"turns:execute"}))
    refusal = Decision(call_id="c1", is_approved=False)

    view = await server.service.run(
        caller, TurnReentry(turn_id=view.turn.turn_id, etag=handoff.etag, decisions=[refusal])
    )

    assert states_of(view) == {"c1": LedgerState.NOT_RUN}
    assert note.calls == []


async def test_a_mode_that_was_taken_out_of_the_configuration_opens_no_tools_and_is_told() -> None:
    policy = TurnPolicy(modes={"plan": Mode(tools=())}, default_mode="act")
    first = serve_in_memory(["Planned."], tools=[Note()], policy=policy)
    await first.run(TurnStart(message="Plan", session_id="s", mode="plan"))
    later = TurnServer(
        first.store, ["Go on.", ask_tools(("note", {"text": "x"})), "Noted."], tools=[Note()], time=first.time
    )

    view = await later.run(TurnStart(message="Go on", session_id="s"))

    assert later.model.requests[-1].tools == ()
    assert view.result is not None
    assert [("'plan'" in text, "'default'" in text) for text in view.result.warnings] == [(True, True)]
    view = await later.run(TurnStart(message="Note it", session_id="s", mode="default"))
    assert view.result is not None
    assert (view.result.warnings, states_of(view)) == ((), {"c1": LedgerState.SUCCEEDED})


async def test_a_turn_that_waits_while_its_mode_is_taken_away_goes_on_without_tools_of_the_server() -> None:
    policy = TurnPolicy(modes={"plan": Mode(tools=())}, default_mode="act")
    first = serve_in_memory([ask_tools(("open_file", {"path": "a"}))], tools=[Note()], policy=policy)
    view = await first.run(TurnStart(message="Plan", mode="plan", client_tools=[client_tool()]))
    later = TurnServer(first.store, ["Done."], tools=[Note()], time=first.time)
    assert view.turn.handoff is not None

    view = await later.run(settle(view.turn.turn_id, view.turn.handoff))

    assert "note" not in [spec.name for spec in later.model.requests[-1].tools]
    assert view.result is not None
    assert len(view.result.warnings) == 1


async def test_a_tool_that_was_not_offered_is_told_to_the_model_where_failures_are_told() -> None:
    note = Note()
    asked = ask_tools(("notes", {}), ("note", {"text": "one"}))
    policy = TurnPolicy(on_tool_failure=OnToolFailure.TELL)
    server = serve_in_memory([asked, "Done."], tools=[note], policy=policy)

    view = await server.run(TurnStart(message="Go"))

    assert states_of(view) == {"c1": LedgerState.NOT_RUN, "c2": LedgerState.SUCCEEDED}
    said = [m.content for m in server.model.requests[-1].messages if m.role == "tool"]
    assert "there is no tool 'notes'; did you mean 'note'?" in said[0]
    assert len(note.calls) == 1


async def test_a_result_of_a_server_tool_that_is_too_large_is_told_to_the_model_and_the_turn_goes_on() -> None:
    note = Note()
    server = serve_in_memory(
        [ask_tools(("note", {"text": "x" * 70_000})), "I ask for less."],
        tools=[note],
        policy=TurnPolicy(max_result_bytes=65_536),
    )

    view = await server.run(TurnStart(message="Go"))

    assert view.result is not None
    assert (view.result.answer, len(note.calls)) == ("I ask for less.", 1)
    [said] = [m.content for m in server.model.requests[-1].messages if m.role == "tool"]
    assert "result of 70012 bytes was not taken: a result may have 65536" in said


async def test_the_last_call_that_is_allowed_must_answer() -> None:
    replies = [ask_tools(("note", {"text": str(number)})) for number in range(3)]
    server = serve_in_memory([*replies, "Enough."], tools=[Note()], policy=TurnPolicy(max_tool_calls=3))

    view = await server.run(TurnStart(message="Go"))

    assert server.model.requests[-1].tool_choice == "none"
    assert view.result is not None
    assert (view.result.answer, view.result.finish_reason) == ("Enough.", FinishReason.ANSWERED)
    assert ["all of its 3 tool calls" in warning for warning in view.result.warnings] == [True]


async def test_an_answer_that_the_number_of_model_calls_forced_is_told_and_one_that_came_by_itself_is_not() -> None:
    for calls, is_told in ((2, True), (3, False)):
        server = serve_in_memory(
            [ask_tools(("note", {"text": "one"})), "Enough."],
            tools=[Note()],
            policy=TurnPolicy(max_model_calls=calls),
        )

        view = await server.run(TurnStart(message="Go"))

        assert view.result is not None
        assert view.result.answer == "Enough."
        assert bool(view.result.warnings) is is_told


async def test_a_last_reply_that_asks_for_a_tool_again_is_not_called_answered() -> None:
    asked = ask_tools(("note", {"text": "two"}), text="I note two.")
    replies = [ask_tools(("note", {"text": "one"})), asked]
    server = serve_in_memory(replies, tools=[Note()], policy=TurnPolicy(max_tool_calls=1))

    view = await server.run(TurnStart(message="Go"))

    assert view.result is not None
    assert view.result.finish_reason is FinishReason.MAX_ITERATIONS
    assert view.result.warnings


@pytest.mark.parametrize("finish", [ModelFinish.STOP, ModelFinish.LENGTH])
async def test_an_empty_last_reply_is_no_answer_and_no_earlier_thought_becomes_one(finish: ModelFinish) -> None:
    # A reply that stops without a word is asked for again, twice.
    times = 3 if finish is ModelFinish.STOP else 1
    asked = ask_tools(("note", {"text": "one"}), text="I note it first.")
    server = serve_in_memory([asked, *[Reply(text="  ", finish=finish)] * times], tools=[Note()])

    view = await server.run(TurnStart(message="Go"))

    assert view.result is not None
    assert (view.result.answer, view.result.finish_reason) == ("", FinishReason.TRUNCATED)
    assert ["no text" in warning for warning in view.result.warnings] == [True]


async def test_calls_beyond_the_limits_of_a_reply_and_of_the_turn_are_closed_without_running() -> None:
    note = Note()
    asked = ask_tools(*(("note", {"text": str(number)}) for number in range(5)))
    policy = TurnPolicy(max_calls_per_reply=3, max_tool_calls=2)
    server = serve_in_memory([asked, "Enough."], tools=[note], policy=policy)

    view = await server.run(TurnStart(message="Go"))

    assert len(note.calls) == 2
    assert list(states_of(view).values()) == [LedgerState.SUCCEEDED] * 2 + [LedgerState.NOT_RUN] * 3


@pytest.mark.parametrize("may_run_together", [True, False])
async def test_the_log_tells_which_calls_of_tools_ran_at_the_same_time(*, may_run_together: bool) -> None:
    asked = [ask_tools(("note", {"text": "a"}), ("note", {"text": "b"})), ask_tools(("note", {"text": "c"}))]
    tools = [Note(is_idempotent=may_run_together)]
    server = serve_in_memory([*asked, "Done."], tools=tools, policy=TurnPolicy(tool_parallelism=4))

    view = await server.run(TurnStart(message="Go"))

    steps = [each for each in await server.log(view.turn.turn_id) if isinstance(each, ToolStep)]
    assert len(steps) == 6
    for step in steps:
        assert step.is_concurrent is (may_run_together and step.call_id in {"c1", "c2"})


@pytest.mark.parametrize("most", [0, 1, 2, 3])
@pytest.mark.parametrize("by_request", [False, True])
@pytest.mark.parametrize(
    "names", [("note",) * 4, ("open_file",) * 4, ("ask",) * 4, ("ask", "open_file", "note", "note")]
)
async def test_no_more_tools_are_called_than_a_turn_may_wherever_they_run(
    *, most: int, by_request: bool, names: tuple[str, ...]
) -> None:
    note, ask = Note(is_idempotent=True), Note(name="ask")
    arguments = {"open_file": {"path": "a"}}
    asked = ask_tools(*((name, arguments.get(name, {"text": str(number)})) for number, name in enumerate(names)))
    policy = TurnPolicy(tool_parallelism=4, needs_approval=("ask",), max_tool_calls=9 if by_request else most)
    budget = Budget(max_tool_calls=most if by_request else None)
    server = serve_in_memory([asked, "Enough."], tools=[note, ask], policy=policy)

    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()], budget=budget))
    handed = () if view.turn.handoff is None else view.turn.handoff.calls
    if view.turn.handoff is not None:
        view = await server.run(settle(view.turn.turn_id, view.turn.handoff))

    assert list(states_of(view).values()) == [LedgerState.SUCCEEDED] * most + [LedgerState.NOT_RUN] * (4 - most)
    at_client = sum(one.kind is CallKind.EXECUTE for one in handed)
    assert len(note.calls) + len(ask.calls) + at_client == most
