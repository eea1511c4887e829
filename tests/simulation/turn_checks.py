"""What must hold for turns and sessions at every moment of a simulation, and for the log of each turn at its end."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from reasond_server.llm.model import Finished, Role
from reasond_server.runs.phase import Phase
from reasond_server.turns.fold import TurnProgress, fold
from reasond_server.turns.providers import TurnBlocks
from reasond_server.turns.turn_tools import MODE_STATE_CHANGE
from reasond_server.types import ExecutionState, FinishReason, LoggedEvent, Usage
from reasond_server.types.turns import (
    HandedOff,
    LedgerState,
    ModeChange,
    ModelCallStep,
    Reentered,
    ToolStep,
    TurnResult,
    TurnStarted,
)
from tests.simulation.turn_scripts import WELCOME, count_replies, marks_of, policy_by_chance, reply_to_turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import Append, SessionClaim
    from reasond_server.llm.model import ChatRequest, ModelEvent
    from reasond_server.tools.tool import ToolContext
    from reasond_server.types import Event, Execution
    from tests.simulation.processes import Process
    from tests.simulation.turn_scripts import TurnScript
    from tests.simulation.world import World

# After its last commit, a suspended run leaves its process within this time, if the store can be reached.
_LETS_GO_WITHIN_S = 120.0
_ENDS_WAITING = {FinishReason.EXPIRED, FinishReason.CANCELLED}
_MAY_FOLLOW = {
    LedgerState.STARTED: {LedgerState.EXPECTED},
    LedgerState.SUCCEEDED: {LedgerState.STARTED},
    LedgerState.FAILED: {LedgerState.STARTED},
    LedgerState.UNKNOWN: {LedgerState.STARTED},
    LedgerState.NOT_RUN: {LedgerState.EXPECTED, LedgerState.HANDED_OFF},
}


@dataclass(slots=True)
class SessionFacts:
    """What is known of a session: its revision, when it ends, and its turns."""

    revision: int
    until: datetime
    turns: dict[str, None] = field(default_factory=dict)


class TurnChecks:
    """The turns of one simulation, their sessions, and what was seen of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.policy = policy_by_chance(world.chance, retention_s=world.retention_s)
        self.scripts: dict[str, TurnScript] = {}
        self.turns: dict[str, TurnScript] = {}
        self.sessions: dict[str, SessionFacts] = {}
        self.sent: set[tuple[str, str]] = set()
        self.counted: Counter[str] = Counter()
        self._attempts: Counter[tuple[str, int]] = Counter()
        self._effects: Counter[tuple[str, str]] = Counter()
        self._keys: dict[str, tuple[str, str]] = {}
        self._cut: set[str] = set()
        self._suspended_s: dict[str, float] = {}
        self._ended: set[str] = set()
        self._revisions: dict[str, int] = {}

    def was_created(self, turn_id: str, plan: Mapping[str, dict[str, str]]) -> None:
        """Record whose turn it is."""
        self.turns[turn_id] = self.scripts[plan["turn"]["message"].split()[-1]]
        self._revisions[turn_id] = int(plan["turn"]["session_revision"])

    def has_entered(self, execution: Execution, claim: SessionClaim) -> None:
        """Check the session that an execution has just entered."""
        world, name, turn_id = self._world, claim.session_id, execution.execution_id
        facts = self.sessions.get(name)
        if facts is not None and turn_id in facts.turns:
            return
        if facts is None or facts.until <= world.loop.now():
            facts = self.sessions[name] = SessionFacts(0, claim.expire_time)
        facts.turns[turn_id] = None
        facts.revision += 1
        facts.until = max(facts.until, claim.expire_time)
        self._check_revision(name, facts)
        if self._revisions.get(turn_id) != facts.revision:
            world.report(f"{turn_id} was made for revision {self._revisions.get(turn_id)} of {name}: {facts.revision}")
        is_open = [
            one.execution_id
            for one in world.all_executions()
            if one.session_id == name and not one.state.has_ended and one.execution_id in facts.turns
        ]
        if is_open != [turn_id]:
            world.report(f"{is_open} are open in the session {name}, which {turn_id} has entered")
        self._prolong(facts)

    def was_committed(self, part: Append) -> None:
        """Check the session of a turn that has just ended, and note one that has suspended."""
        turn_id, session_id = part.execution.execution_id, part.execution.session_id
        self._check_switches(turn_id, part)
        if part.execution.state is ExecutionState.SUSPENDED:
            self._suspended_s[turn_id] = self._world.loop.time()
        else:
            # It was woken; if it suspends again, the time counts from that commit.
            self._suspended_s.pop(turn_id, None)
        if not part.execution.state.has_ended or turn_id in self._ended:
            return
        self._ended.add(turn_id)
        facts = self.sessions.get(session_id)
        if facts is None or turn_id not in facts.turns:
            return
        facts.revision += 1
        if part.session_end is not None:
            facts.until = part.session_end.expire_time
        self._check_revision(session_id, facts)
        self._prolong(facts)

    def _check_switches(self, turn_id: str, part: Append) -> None:
        """Check that a switch of the mode is committed with the result of the tool that asks for it."""
        entries = [one.event if isinstance(one, LoggedEvent) else None for one in part.entries]
        for one, then in zip_longest(entries, entries[1:]):
            if not isinstance(one, ToolStep) or one.tool != MODE_STATE_CHANGE:
                continue
            if one.state is LedgerState.SUCCEEDED:
                self._world.happened["mode switched"] += 1
                if not isinstance(then, ModeChange) or then.call_id != one.call_id:
                    self._world.report(f"the switch {one.call_id} of {turn_id} is committed without its change: {then}")

    def was_deleted(self, session_id: str) -> None:
        """Record that a session is gone with its turns."""
        for turn_id in self.sessions.pop(session_id, SessionFacts(0, self._world.loop.now())).turns:
            self._world.was_deleted(turn_id, "")

    def _check_revision(self, session_id: str, facts: SessionFacts) -> None:
        if facts.until <= self._world.loop.now():
            return
        session = self._world.session_of(session_id)
        if session is None:
            self._world.report(f"the session {session_id} is gone before its time")
        elif session.revision != facts.revision:
            self._world.report(f"the session {session_id} has revision {session.revision}, not {facts.revision}")

    def _prolong(self, facts: SessionFacts) -> None:
        self._world.prolong(facts.turns, facts.until)

    def begin_effect(self, turn_id: str, context: ToolContext, *, tool: str, of: str) -> None:
        """Check that the log lets a tool begin: its call was started, and nothing is known of its outcome."""
        world, call_id = self._world, context.call_id
        if world.is_gone(turn_id):
            return
        progress = self._fold(turn_id)
        one = progress.ledger.get(call_id)
        if one is None or one.state is not LedgerState.STARTED:
            state = "unknown to the log" if one is None else one.state.value
            world.report(f"the call {call_id} of {turn_id} has its effect while it is {state}")
        elif (one.call.name, json.loads(one.call.arguments_json)["of"]) != (tool, of):
            world.report(f"the call {call_id} of {turn_id} is {one.call}, and {tool} got {of!r}")
        elif tool not in progress.replies[-1].step.tools:
            world.report(f"the call {call_id} of {turn_id} is of {tool}, which the model was not offered")
        known = self._keys.setdefault(context.idempotency_key, (call_id, of))
        if known != (call_id, of):
            world.report(f"the call {call_id} of {turn_id} for {of} has the key of {known}")

    def count_effect(self, turn_id: str, call_id: str, *, is_idempotent: bool) -> None:
        """Count an effect; one that may not be repeated happens once."""
        self._effects[turn_id, call_id] += 1
        self._world.note(f"effect {call_id} of {turn_id}")
        self._world.happened["effect of a turn"] += 1
        if not is_idempotent and self._effects[turn_id, call_id] > 1:
            self._world.report(f"the call {call_id} of {turn_id} had its effect twice")

    def reply(self, turn_id: str, request: ChatRequest) -> Sequence[ModelEvent]:
        """Return the model's reply to a prompt, after all that must hold of it."""
        script, index = self.turns[turn_id], count_replies(request, turn_id)
        self._check_pairs(turn_id, request)
        if not self._world.is_gone(turn_id):
            self._check_prompt(turn_id, request, index)
        self._attempts[turn_id, index] += 1
        events, is_cut = reply_to_turn(request, script, turn_id, index, self._attempts[turn_id, index])
        if is_cut:
            self._cut.add(turn_id)
        last = events[-1]
        assert isinstance(last, Finished)
        self.counted[turn_id] += last.usage.total_tokens
        most = script.start.budget.max_total_tokens
        if most is not None and self.counted[turn_id] > most:
            self._world.report(f"the calls of {turn_id} cost {self.counted[turn_id]} tokens of {most}")
        return events

    def _check_prompt(self, turn_id: str, request: ChatRequest, index: int) -> None:
        """Check a prompt against the committed log."""
        world, progress = self._world, self._fold(turn_id)
        made = len(progress.replies)
        if made != index and turn_id not in self._cut:
            world.report(f"the model is called for reply {index} of {turn_id}, whose log has {made}")
        if progress.handoff is not None or progress.result is not None:
            world.report(f"the model is called for {turn_id}, which waits or has ended")
        last_calls = progress.replies[-1].calls if progress.replies else ()
        if still_open := [one.call.call_id for one in last_calls if one.result is None]:
            world.report(f"the model is called for {turn_id} while {still_open} have no outcome")
        self._check_blocks(turn_id, request, progress)

    def _check_blocks(self, turn_id: str, request: ChatRequest, progress: TurnProgress) -> None:
        """Check that a prompt has the blocks of context that apply now, and no other."""
        world, script, made = self._world, self.turns[turn_id], len(progress.replies)
        text = "\n".join(message.content for message in request.messages)
        for other in self.scripts.values():
            for passing in other.passing:
                if (passing in text) is not (other is script and made == 0):
                    world.report(f"{passing!r} is {'' if passing in text else 'not '}in prompt {made} of {turn_id}")
        assert progress.start is not None
        for block in progress.start.context:
            if block.name == "lasting" and block.text not in text:
                world.report(f"{block.text!r} is not in prompt {made} of {turn_id}")
        armed = _find_armed(logged.event for logged in world.log_of(turn_id))
        shown = {name for name in self.policy.modes if f"{WELCOME}{name}" in text}
        wanted = {armed} if armed and self.policy.modes[armed].welcome else set[str]()
        # Until its first reply, a turn may show what the turn before it did not.
        if shown != wanted and (made or armed):
            world.report(f"prompt {made} of {turn_id} introduces the modes {shown}, armed are {wanted}")

    def _check_pairs(self, turn_id: str, request: ChatRequest) -> None:
        """Check that each tool call of a prompt is followed by its result, and that nothing else is between."""
        waiting: list[str] = []
        seen: set[str] = set()
        for message in request.messages:
            if message.role is Role.TOOL:
                if message.tool_call_id not in waiting:
                    self._world.report(f"a prompt of {turn_id} has a result of {message.tool_call_id!r} without call")
                else:
                    waiting.remove(message.tool_call_id)
                continue
            ids = [call.call_id for call in message.tool_calls]
            if waiting or len({*ids}) < len(ids) or not seen.isdisjoint(ids):
                self._world.report(f"a prompt of {turn_id} leaves {waiting} open, or repeats one of {ids}")
            seen.update(ids)
            waiting = ids
        if waiting:
            self._world.report(f"a prompt of {turn_id} ends with the open calls {waiting}")

    def _fold(self, turn_id: str) -> TurnProgress:
        return fold(logged.event for logged in self._world.log_of(turn_id))

    def check_holding(self, process: Process) -> None:
        """Check that a process holds nothing for turns that wait."""
        now_s = self._world.loop.time()
        for turn_id, run in process.parts.runner.runs.by_id.items():
            since_s = max(self._suspended_s.get(turn_id, now_s), process.awake_since_s)
            if run.phase is Phase.SUSPENDED and now_s - since_s > _LETS_GO_WITHIN_S:
                self._world.report(f"{process.name} has {turn_id} still, suspended for {now_s - since_s:.0f} s")

    def judge_sessions(self) -> None:
        """Check all sessions at the end, when every turn has ended."""
        now = self._world.loop.now()
        for name, facts in self.sessions.items():
            session = self._world.session_of(name)
            if facts.until > now and (session is None or session.revision != facts.revision or session.open_execution):
                self._world.report(f"at the end the session {name} is {session}, expected is revision {facts.revision}")

    def judge(self, turn_id: str) -> None:
        """Check the whole log of a turn that has ended."""
        logged = self._world.log_of(turn_id)
        events = [one.event for one in logged]
        if type(events[0]) is not TurnStarted or not isinstance(result := events[-1], TurnResult):
            self._world.report(f"the log of {turn_id} is {[type(event).__name__ for event in events]}")
            return
        try:
            self._judge_order(turn_id, events)
        except KeyError as error:
            self._world.report(f"the log of {turn_id} names a call that nobody made: {error}")
            return
        self._judge_handoffs(turn_id, logged, result)
        self._judge_result(turn_id, logged, result)

    def _judge_order(self, turn_id: str, events: Sequence[Event]) -> None:
        """Check that each event may follow those before it."""
        progress, report = TurnProgress(), self._world.report
        for event in events:
            if isinstance(event, TurnStarted | TurnResult) and (progress.start is None) is isinstance(
                event, TurnResult
            ):
                report(f"the log of {turn_id} begins or ends twice")
            if isinstance(event, ModelCallStep):
                marks = marks_of(event.text)
                is_own = len(marks) == 1 and marks[0][:2] == (turn_id, len(progress.replies))
                if event.index != len(progress.replies) or (not is_own and turn_id not in self._cut):
                    report(f"reply {len(progress.replies)} of {turn_id} is {event.index}, {event.text!r}")
                if event.mode != progress.mode:
                    report(f"reply {event.index} of {turn_id} is in mode {event.mode}, not {progress.mode}")
                # A call that was cut off has brought nothing that a later prompt would miss.
                is_taken = event.finish != "cut" and event.index == 0
                if (TurnBlocks.name in event.blocks) is not is_taken:
                    report(f"reply {event.index} of {turn_id} has consumed {event.blocks}")
            if isinstance(event, ToolStep):
                before = progress.ledger[event.call_id].state
                if before not in _MAY_FOLLOW[event.state]:
                    report(f"the call {event.call_id} of {turn_id} is {event.state} after {before}")
            if isinstance(event, ModeChange) and event.old_mode != progress.mode:
                report(f"the mode of {turn_id} changes from {event.old_mode}, and was {progress.mode}")
            progress.apply(event)

    def _judge_handoffs(self, turn_id: str, logged: Sequence[LoggedEvent], result: TurnResult) -> None:
        """Check that each hand-off was settled by one re-entry that a client sent, or ended the turn."""
        report = self._world.report
        handed = [one.event for one in logged if isinstance(one.event, HandedOff)]
        if len({one.etag for one in handed}) < len(handed):
            report(f"{turn_id} has an etag twice")
        for one, after in pairwise(logged):
            event, then = one.event, after.event
            if isinstance(then, Reentered):
                self._judge_reentry(turn_id, event, then, after.create_time)
            elif isinstance(event, HandedOff) and result.finish_reason not in _ENDS_WAITING:
                report(f"the hand-off of {turn_id} was followed by {then} and the end {result.finish_reason}")
        if result.finish_reason is FinishReason.EXPIRED and (
            not handed or handed[-1].expire_time > logged[-1].create_time
        ):
            report(f"{turn_id} has expired before its time {handed[-1:]}")

    def _judge_reentry(self, turn_id: str, before: Event, event: Reentered, at: datetime) -> None:
        if not isinstance(before, HandedOff) or before.etag != event.etag:
            self._world.report(f"{turn_id} was re-entered after {before}")
        elif at >= before.expire_time:
            self._world.report(f"{turn_id} was re-entered at {at}, after {before.expire_time}")
        if (turn_id, event.digest) not in self.sent:
            self._world.report(f"{turn_id} was re-entered with what nobody sent: {event}")

    def _judge_result(self, turn_id: str, logged: Sequence[LoggedEvent], result: TurnResult) -> None:
        """Check the end: the usage, the reason, and that waiting did not count towards the time limit."""
        world, script = self._world, self.turns[turn_id]
        world.happened[f"turn {result.finish_reason}"] += 1
        if result.error is not None:
            world.happened[f"turn failed {result.error.reason}"] += 1
            is_fault = result.error.reason in {"INTERNAL", "NOT_RESUMABLE"}
            if is_fault and not world.is_given_up(result.error.message):
                world.report(f"{turn_id} failed: {result.error}")
        spent = sum((one.event.usage for one in logged if isinstance(one.event, ModelCallStep)), Usage())
        if not spent.total_tokens <= self.counted[turn_id]:
            world.report(f"the log of {turn_id} has {spent}, the model counted {self.counted[turn_id]}")
        if result.usage.total_tokens < spent.total_tokens:
            world.report(f"the replies of {turn_id} cost {spent}, the whole {result.usage}")
        most = script.start.budget.max_total_tokens
        if most is not None and result.usage.total_tokens > most:
            world.report(f"{turn_id} says that it took {result.usage.total_tokens} tokens of {most}")
        waited_s = sum(
            (after.create_time - one.create_time).total_seconds()
            for one, after in pairwise(logged)
            if isinstance(one.event, HandedOff)
        )
        # Another process may have written the first event, long after the execution was created.
        active_s = (logged[-1].create_time - world.find(turn_id).create_time).total_seconds() - waited_s
        is_timed_out = any("was stopped after" in warning for warning in result.warnings)
        # Clocks of processes differ in their rates, and a call may be stopped before the time that it would take.
        if is_timed_out and active_s < 0.8 * self.policy.max_active_s:
            world.report(f"{turn_id} was stopped after {active_s:.1f} s of work, {waited_s:.1f} s of waiting")


def _find_armed(events: Iterable[Event]) -> str:
    """Return the mode that the next prompt has to introduce; empty if none, or if only an earlier turn knows it."""
    armed = ""
    for event in events:
        if isinstance(event, TurnStarted) and event.session_revision <= 1:
            armed = event.mode
        elif isinstance(event, ModeChange) and event.new_mode != event.old_mode:
            armed = event.new_mode
        elif isinstance(event, ModelCallStep):
            armed = ""
    return armed
