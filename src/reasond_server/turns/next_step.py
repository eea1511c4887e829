"""The next step of a turn: a pure function of its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from reasond_server.errors.base import ReasondError, show
from reasond_server.errors.turns import ToolFailedInTurnError, ToolNotRegisteredError, ToolOutcomeUnknownError
from reasond_server.llm.model import ModelFinish
from reasond_server.tools.execution import describe_unknown, has_failed, read_failure
from reasond_server.turns.policy import OnToolFailure, OnUnknownOutcome, Synthesis, TurnPolicy
from reasond_server.turns.turn_prompts import LAST
from reasond_server.types import FinishReason
from reasond_server.types.turns import CallKind, ContextGoal, LedgerState, ModelCallStep
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.turns.fold import LedgerCall, TurnProgress
    from reasond_server.turns.turn_tools import TurnTools


@value
class CallModel:
    """Call the model; with `is_last` it must answer.

    `tool_choice` is that of the call. `problems` are what is wrong with the answer that it wrote before.
    """

    goal: ContextGoal = ContextGoal.PLANNING
    is_last: bool = False
    tool_choice: str = ""
    problems: str = ""


@value
class RunTools:
    """Execute these calls of server tools, at once where there are several."""

    calls: Sequence[LedgerCall]


@value
class CloseCall:
    """Record an outcome of a call that is not made: `state`, and for the model `kind` and `message`."""

    call: LedgerCall
    state: LedgerState
    kind: str
    message: str


@value
class HandOff:
    """Ask the client for these calls."""

    calls: Sequence[tuple[LedgerCall, CallKind]]


@value
class Finish:
    """End the turn with `answer` and what is to be said about it, or with `error`."""

    answer: str = ""
    reason: FinishReason = FinishReason.ANSWERED
    error: ReasondError | None = None
    warnings: tuple[str, ...] = ()


NextStep: TypeAlias = CallModel | RunTools | CloseCall | HandOff | Finish


def choose_step(progress: TurnProgress, *, tools: TurnTools, policy: TurnPolicy) -> NextStep:
    """Return what the turn does next; the client has settled everything that it was asked for."""
    if not progress.replies:
        choice = "" if progress.start is None else progress.start.tool_choice
        return CallModel(is_last=policy.max_model_calls <= 1, tool_choice=choice)
    last = progress.replies[-1]
    calls = last.calls
    if last.step.goal is ContextGoal.PLANNING and calls:
        return _settle(progress, calls, tools, policy) or _plan(progress, policy)
    return _answer(progress, policy)


def _plan(progress: TurnProgress, policy: TurnPolicy) -> NextStep:
    """Call the model again; the last call that is allowed must answer."""
    made = progress.model_calls
    if made >= policy.max_model_calls:
        warning = f"The turn made all of its {policy.max_model_calls} model calls and has no answer."
        return Finish(answer=progress.draft, reason=FinishReason.MAX_ITERATIONS, warnings=(warning,))
    is_last = made >= policy.max_model_calls - 1 or progress.made_calls >= policy.max_tool_calls
    return CallModel(is_last=is_last)


def _answer(progress: TurnProgress, policy: TurnPolicy) -> NextStep:
    """End with the text of the last reply, if need be after it was written from full results."""
    last = progress.replies[-1].step
    is_plan, text = last.goal is ContextGoal.PLANNING, last.text.strip()
    may_synthesise = is_plan and bool(progress.ledger) and progress.model_calls < policy.max_model_calls
    is_wanted = policy.context.synthesis is Synthesis.ALWAYS or (
        policy.context.synthesis is Synthesis.WHEN_REDUCED and progress.was_reduced
    )
    if may_synthesise and is_wanted:
        return CallModel(goal=ContextGoal.SYNTHESIS, is_last=True)
    reason = _map_reason(last)
    if not is_plan and reason is not FinishReason.ANSWERED and progress.written_answer:
        return keep_draft(progress, policy, f"it was not written whole ({reason.value})")
    silence = () if text else (_describe_silence(last),)
    return Finish(answer=text, reason=reason, warnings=(*silence, *_tell_forced(progress, policy)))


def keep_draft(progress: TurnProgress, policy: TurnPolicy, why: str = "") -> Finish:
    """End with the answer that was written before its synthesis; `why` says why that failed, if it did."""
    noted = (f"The answer is the draft from shortened results, because its last version failed: {why}",) if why else ()
    return Finish(answer=progress.written_answer, warnings=(*noted, *_tell_forced(progress, policy)))


def _map_reason(last: ModelCallStep) -> FinishReason:
    if last.finish == ModelFinish.CONTENT_FILTER.value:
        return FinishReason.CONTENT_FILTERED
    if last.finish == ModelFinish.TOOL_CALLS.value:
        # It had to answer and asked for a tool instead; its text is no more than a thought.
        return FinishReason.MAX_ITERATIONS
    is_cut = last.finish == ModelFinish.LENGTH.value or not last.text.strip()
    return FinishReason.TRUNCATED if is_cut else FinishReason.ANSWERED


def _describe_silence(last: ModelCallStep) -> str:
    """Return the warning about a last reply without text."""
    tokens = last.usage.reasoning_tokens
    if tokens:
        return f"The model wrote no answer: {tokens} tokens of hidden reasoning left none. Raise [turns] max_tokens."
    return "The last reply of the model has no text, so the turn has no answer."


def _tell_forced(progress: TurnProgress, policy: TurnPolicy) -> tuple[str, ...]:
    """Return the warning about an answer that the model had to give although it might have called more tools."""
    last = next(one.step for one in reversed(progress.replies) if one.step.goal is ContextGoal.PLANNING)
    if not last.tools or LAST not in {item.source for item in last.context}:
        return ()
    if progress.ledger and progress.made_calls >= policy.max_tool_calls:
        why = f"The turn made all of its {policy.max_tool_calls} tool calls"
    elif progress.model_calls >= policy.max_model_calls:
        why = f"The turn made all of its {policy.max_model_calls} model calls"
    else:
        why = "Further steps do not fit the model's context window"
    return (f"{why}, so the model had to answer from what it knew.",)


def _settle(
    progress: TurnProgress,
    calls: Sequence[LedgerCall],
    tools: TurnTools,
    policy: TurnPolicy,
) -> NextStep | None:
    """Return what settles the next open call of the reply; None if all have an outcome."""
    offered = progress.replies[-1].step.tools
    foreign = [one for one in calls if one.call.name not in offered and one.state is LedgerState.EXPECTED]
    if foreign and policy.on_tool_failure is OnToolFailure.STOP:
        return Finish(error=_refuse_foreign(foreign[0], offered), reason=FinishReason.FAILED)
    if foreign:
        message = describe_unknown(foreign[0].call.name, offered)
        return CloseCall(call=foreign[0], state=LedgerState.NOT_RUN, kind="unknown_tool", message=message)
    culprit = _find_culprit(calls, tools, policy)
    for one in calls:
        if one.result is None and (step := _close(one, culprit, progress, tools, policy)) is not None:
            return step
    if culprit is not None:
        return Finish(error=_stop_for(culprit), reason=FinishReason.FAILED)
    if due := [one for one in calls if _is_for_server(one, tools)]:
        return RunTools(calls=_take_batch(due, tools, policy.tool_parallelism))
    pending = [(one, _classify_call(one, tools)) for one in calls if one.result is None]
    if progress.start is not None and not progress.start.parallel_tool_calls:
        pending = pending[:1]
    return HandOff(calls=pending) if pending else None


def _close(
    one: LedgerCall,
    culprit: LedgerCall | None,
    progress: TurnProgress,
    tools: TurnTools,
    policy: TurnPolicy,
) -> CloseCall | None:
    """Return the outcome of a call that is not made; None if it is made, or its outcome is open."""
    if one.state is LedgerState.STARTED and not tools.is_idempotent(one.call.name):
        return CloseCall(call=one, state=LedgerState.UNKNOWN, kind="outcome_unknown", message="")
    if one.state is not LedgerState.EXPECTED:
        return None
    calls = list(progress.replies[-1].calls)
    place = calls.index(one)
    # Those before it that are open are made first, whether here, at the client or after an approval.
    made = progress.made_calls + sum(each.state is LedgerState.EXPECTED for each in calls[:place])
    refused = ""
    if culprit is not None:
        refused = f"the call {culprit.call.call_id} ended the turn"
    elif one.is_approved is False:
        refused = f"a person refused the call: {one.refusal or 'no reason was given'}"
    elif place >= policy.max_calls_per_reply:
        refused = f"a reply may have {policy.max_calls_per_reply} calls"
    elif one.is_approved is None and made >= policy.max_tool_calls:
        refused = f"the turn has made all of its {policy.max_tool_calls} tool calls; answer from what you know"
    elif tools.is_clients(one.call.name):
        refused = tools.find_mistakes(one.call)
    if refused:
        return CloseCall(call=one, state=LedgerState.NOT_RUN, kind="not_called", message=refused)
    return None


def _is_for_server(one: LedgerCall, tools: TurnTools) -> bool:
    """Return whether the server has to make the call now."""
    if one.result is not None or tools.is_clients(one.call.name):
        return False
    if one.state is LedgerState.STARTED:
        return True
    return one.state is LedgerState.EXPECTED and (one.is_approved is True or not tools.needs_approval(one.call.name))


def _classify_call(one: LedgerCall, tools: TurnTools) -> CallKind:
    if one.state is LedgerState.UNKNOWN:
        return CallKind.RESOLVE
    return CallKind.EXECUTE if tools.is_clients(one.call.name) else CallKind.APPROVE


def _take_batch(due: Sequence[LedgerCall], tools: TurnTools, parallelism: int) -> Sequence[LedgerCall]:
    """Return the first call, with those after it that may run beside it: idempotent ones up to a barrier."""
    batch = [due[0]]
    for one in due[1:parallelism]:
        if not (tools.is_idempotent(batch[0].call.name) and tools.is_idempotent(one.call.name)):
            break
        batch.append(one)
    return batch


def _find_culprit(calls: Sequence[LedgerCall], tools: TurnTools, policy: TurnPolicy) -> LedgerCall | None:
    """Return the call that ends the turn, as the operator has decided: a failed one, or one of unknown outcome."""
    is_strict = policy.on_tool_failure is OnToolFailure.STOP
    may_ask = policy.on_unknown_outcome is OnUnknownOutcome.ASK
    for one in calls:
        if one.state is LedgerState.UNKNOWN and one.result is None and not may_ask:
            return one
        if is_strict and _has_failed(one, tools):
            return one
    return None


def _has_failed(one: LedgerCall, tools: TurnTools) -> bool:
    """Return whether a server tool failed; a mistake of the model or an error that the client reported is none."""
    if one.result is None or one.state is not LedgerState.FAILED or tools.is_clients(one.call.name):
        return False
    return one.kind is not CallKind.RESOLVE and has_failed(one.result)


def _refuse_foreign(one: LedgerCall, offered: Sequence[str]) -> ReasondError:
    name, names = one.call.name, ", ".join(offered) or "no tools"
    return ToolNotRegisteredError(
        f"The model called {show(name)}, which it was not offered. Offered: {names}",
        metadata={"tool": name, "call_id": one.call.call_id},
    )


def _stop_for(one: LedgerCall) -> ReasondError:
    """Return the error with which the call ends the turn."""
    facts = {"call_id": one.call.call_id, "tool": one.call.name}
    if one.state is LedgerState.UNKNOWN:
        return ToolOutcomeUnknownError(
            f"The server went down while the tool {show(one.call.name)} was at work in the call {one.call.call_id}; "
            "whether it did its part is not known",
            remedy='See for yourself, then start another turn; the session is usable. With on_unknown_outcome = "ask" '
            "the turn asks its client instead.",
            metadata=facts,
        )
    said = read_failure(one.result)
    return ToolFailedInTurnError(
        f"The tool {show(one.call.name)} failed in the call {one.call.call_id}" + (f": {said}" if said else ""),
        remedy="Read its result with ReadToolResult, mend the cause and start another turn in the session.",
        metadata=facts,
    )
