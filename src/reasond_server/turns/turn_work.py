"""Turns as a kind of work: the loop between the model and its tools, which goes on from the last event of its log.

Each step is an event. Before anything happens outside (a model call, a tool call, a hand-off), all events before it are
committed. A process that takes the turn over folds the log and goes on: nothing in the log is done again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from reasond_server.context.answer_schemas import SchemaCompiler
from reasond_server.context.final_replies import parse_cut_call
from reasond_server.context.tags import TagKind
from reasond_server.errors.base import show
from reasond_server.eventlog.store import ExecutionStore, Record, Recovery, SessionEnd
from reasond_server.runs.phase import OWN_ENDS, Phase
from reasond_server.runs.plan import Plan, build_foreign_plan_error, make_nonces
from reasond_server.runs.run import AnswerDraft, Run
from reasond_server.runs.run_journal import RepeatedSteps
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.turns.fold import TurnProgress, fold
from reasond_server.turns.history import TURN, EarlierTurns, read_history, warn_of_cut, warn_of_left_out
from reasond_server.turns.loop import RESERVED, TurnLoop, reservation_record
from reasond_server.turns.model_calls import UNPUBLISHED, is_sample
from reasond_server.turns.providers import ContextProvider, ProviderStates, build_providers
from reasond_server.turns.turn_tools import TurnTools
from reasond_server.turns.turn_views import name_exit, report_wait
from reasond_server.types import (
    NOTHING,
    Budget,
    FinishReason,
    Image,
    StrategySource,
    Usage,
    UsageSource,
    build_row,
    restore_history,
)
from reasond_server.types.kinds import settle_sequences
from reasond_server.types.turns import (
    ClientTool,
    ContextBlock,
    ContextGoal,
    ContextScope,
    HandedOff,
    ModelCallStep,
    TurnDelta,
    TurnResult,
    TurnStarted,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.base.clock import Clock
    from reasond_server.llm.model import ChatModel
    from reasond_server.runs.work import RunEnding, WorkRequest
    from reasond_server.tools.tool import ToolSource
    from reasond_server.turns.policy import TurnPolicy
    from reasond_server.types import Event, ExecutionFailure, Json, TextDelta

_CUT: Final = "cut"


@value
class TurnAssignment:
    """A turn as it was decided when it was started: its first event, and what is not part of it.

    `provided` are the states of the context providers that the session kept.
    """

    start: TurnStarted
    budget: Budget
    may_use_server_tools: bool
    provided: Mapping[str, Json] = field(default_factory=dict)


class TurnKind:
    """Makes the work of turns under `policy`: new work, or restored work that goes on from the log.

    Without `records_content` the store keeps no texts, and no turn can wait for its client.
    `providers` are the installed context providers, besides the built-in ones; `backends` are the models that modes may
    name. `observer` receives what happens to the turns.
    """

    kind: str = TURN
    keeps_plan: bool = False
    is_timed_at_work: bool = True

    def __init__(
        self,
        *,
        clock: Clock,
        store: ExecutionStore,
        tools: ToolSource,
        policy: TurnPolicy,
        records_content: bool = True,
        providers: Sequence[ContextProvider] = (),
        backends: Mapping[str, ChatModel] | None = None,
        observer: Observer = UNOBSERVED,
        schemas: SchemaCompiler | None = None,
    ) -> None:
        self.observer = observer
        self.schemas = schemas or SchemaCompiler()
        self._clock = clock
        self._store = store
        self._tools = tools
        self.policy = policy
        self.records_content = records_content
        self._providers = (*build_providers(policy), *providers)
        self._backends = backends or {}

    def create(self, assignment: TurnAssignment, request: WorkRequest) -> TurnWork:
        """Return new work."""
        return self._build(assignment, request)

    def revive(self, plan: Plan, recovery: Recovery) -> TurnWork:
        """Return work that goes on after the last event of the log.

        Raises:
            PlanError: the plan was written by another version of the server.
        """
        assignment = _read_assignment(plan.work)
        work = self._build(
            assignment,
            plan.to_request(recovery.execution, budget=assignment.budget),
        )
        for logged in recovery.events:
            work.apply_event(logged.event)
        work.steps.count = work.progress.model_calls
        work.most_usage = _read_reservation(recovery, work.progress.model_calls)
        work.records = recovery.records
        if recovery.was_suspended:
            report_wait(self.observer, recovery, now=self._clock.now())
        return work

    def shape_delta(self, delta: TextDelta, run: Run | None) -> TurnDelta:
        """Return the text, and whether a synthesis may still replace it."""
        is_draft = run is not None and isinstance(run.work, TurnWork) and run.work.is_draft
        return TurnDelta(iteration_index=delta.iteration_index, text=delta.text, is_draft=is_draft, place=delta.place)

    def is_pause(self, event: Event) -> bool:
        """Return whether the turn waits for its client from `event` on."""
        return isinstance(event, HandedOff)

    def write_off(self, recovery: Recovery, failure: ExecutionFailure, *, warnings: Sequence[str]) -> Sequence[Event]:
        """Return the end of a turn that cannot be resumed, after its first event if that is missing."""
        self.observer.turn_exited("failed")
        execution = recovery.execution
        progress = fold(logged.event for logged in recovery.events)
        last = recovery.events[-1].create_time if recovery.events else execution.create_time
        result = TurnResult(
            execution_id=execution.execution_id,
            answer="",
            finish_reason=FinishReason.FAILED,
            mode=progress.mode,
            model=execution.model,
            usage=execution.usage,
            elapsed_s=(last - execution.create_time).total_seconds(),
            warnings=tuple(warnings),
            error=failure,
        )
        if execution.last_sequence:
            return [result]
        return [TurnStarted(session_id=execution.session_id, mode="", model=execution.model, message=""), result]

    def _build(self, assignment: TurnAssignment, request: WorkRequest) -> TurnWork:
        budget, policy = assignment.budget, self.policy
        bounded = replace(
            policy,
            max_model_calls=min(policy.max_model_calls, budget.max_model_calls or policy.max_model_calls),
            max_tool_calls=policy.max_tool_calls
            if budget.max_tool_calls is None
            else min(policy.max_tool_calls, budget.max_tool_calls),
        )
        return TurnWork(
            assignment=assignment,
            request=request,
            providers=ProviderStates(self._providers, assignment.provided),
            clock=self._clock,
            store=self._store,
            tools=self._tools,
            policy=bounded,
            records_content=self.records_content,
            backends=self._backends,
            observer=self.observer,
            schemas=self.schemas,
        )


@dataclass(eq=False, kw_only=True)
class TurnWork:
    """The work on one turn; see `runs.run.Work`.

    Attributes:
        progress: how far the turn has come.
        providers: the states of the context providers.
        most_usage: what the turn may have spent if the reply of a model call was lost; nothing if none was.
        records: those of earlier lives.
    """

    assignment: TurnAssignment
    request: WorkRequest
    providers: ProviderStates
    clock: Clock
    store: ExecutionStore
    tools: ToolSource
    policy: TurnPolicy
    records_content: bool
    backends: Mapping[str, ChatModel]
    observer: Observer
    schemas: SchemaCompiler

    def __post_init__(self) -> None:
        self.kind = self.name = TURN
        self.source = StrategySource.REQUEST
        self.agent = TURN
        self.may_suspend = True
        self.steps = RepeatedSteps()
        self.metrics = None
        self.progress = TurnProgress()
        self.most_usage = NOTHING
        self.records: Sequence[Record] = ()
        self._loop: TurnLoop | None = None
        self._earlier = EarlierTurns()

    @property
    def is_draft(self) -> bool:
        """Whether a synthesis may replace what the model writes now."""
        return self._loop is not None and self._loop.is_draft

    @property
    def obstacle(self) -> str:
        """Empty: every process can go on with a turn."""
        return ""

    def describe(self) -> Json:
        """Return the first event and what else was decided, from which any process restores the turn."""
        known = self.assignment
        return {
            "turn": build_row(known.start),
            "budget": build_row(known.budget),
            "may_use_server_tools": known.may_use_server_tools,
            "provided": dict(known.provided),
        }

    def begin(self, run: Run) -> Event:
        """Return the first event."""
        start = replace(self.assignment.start, model=run.identity.model)
        self.apply_event(start)
        return start

    def apply_event(self, event: Event) -> None:
        """Take in the next event of the log."""
        self.progress.apply(event)
        self.providers.apply(event)

    async def work(self, run: Run) -> None:
        """Go on after the last event until the turn ends, suspends or is stopped; see `runs.run.Work`."""
        start = self.progress.start
        assert start is not None  # noqa: S101 - `begin` was called before, in this life or an earlier one
        tools = TurnTools(
            source=self.tools,
            policy=self.policy,
            client_tools=start.client_tools,
            execution_id=run.identity.execution_id,
            may_use_server_tools=self.assignment.may_use_server_tools,
            trace=run.trace,
        )
        for one in self.progress.ledger.values():
            if one.result is not None:
                tools.keep(one.call, one.result)
        self._charge_earlier_lives(run)
        if self.progress.handoff is None:
            # A turn whose hand-off has expired ends without a prompt.
            self._earlier = await read_history(self.store, run.identity, start)
        run.subscribers.draft = AnswerDraft(run.log.fence - self.progress.reentries)
        self._loop = TurnLoop(
            run=run,
            progress=self.progress,
            providers=self.providers,
            tools=tools,
            policy=self.policy,
            backends=self.backends,
            history=self._earlier.turns,
            nonce=make_nonces(run.mark)(),
            clock=self.clock,
            observer=self.observer,
            schemas=self.schemas,
            records=self.records,
            keeps_replies=self.records_content,
        )
        await self._loop.run_to_exit()

    def conclude(self, run: Run, ending: RunEnding) -> TurnResult:
        """Return the last event."""
        accounts = run.accounts
        has_draft = ending.finish_reason is FinishReason.BUDGET_EXHAUSTED
        draft = self.progress.draft if has_draft else ""
        self._log_cut_calls(run)
        result = TurnResult(
            execution_id=run.identity.execution_id,
            answer=ending.answer or draft,
            finish_reason=ending.finish_reason,
            mode=self.progress.mode,
            model=run.identity.model,
            usage=accounts.usage,
            elapsed_s=accounts.elapsed_s,
            warnings=(*accounts.warnings, *self.providers.warnings, *self._warn(), *ending.warnings),
            error=ending.to_failure(),
            stop_sequence=ending.stop_sequence,
        )
        self.apply_event(result)
        run.trace.note({"reasond.turn.exit": name_exit(ending.finish_reason), "reasond.turn.mode": self.progress.mode})
        run.log.session_end = self._describe_session()
        return result

    def _log_cut_calls(self, run: Run) -> None:
        """Append what calls had written when they were cut off; no prompt of a later turn has it."""
        for cut in run.accounts.model.take_cut_calls(is_stopped=run.cause not in OWN_ENDS):
            if cut.label == UNPUBLISHED:
                continue
            parsed = parse_cut_call(cut, kinds=(TagKind.ACTION,))
            step = ModelCallStep(
                index=self.progress.model_calls,
                goal=ContextGoal.PLANNING,
                mode=self.progress.mode,
                model=run.identity.model,
                usage=cut.usage,
                elapsed_s=cut.elapsed_s,
                text=parsed.text.strip(),
                thinking=parsed.thinking.strip(),
                finish=_CUT,
                edition=-1 if self._loop is None else self._loop.settle_draft(parsed.text, parsed.thinking),
            )
            run.append(step, now=self.clock.now())
            # The providers do not see it: what the call was told was not used.
            self.progress.apply(step)
            self.steps.add()

    def leave(self, run: Run) -> None:
        """Report how the turn left: by its end, or by a hand-off that is committed."""
        self._loop = None
        progress, observer = self.progress, self.observer
        if run.phase is Phase.SUSPENDED and progress.handoff is not None:
            observer.handed_off(len(progress.handoff.calls))
            observer.turn_exited("client_tools")
        elif run.phase is Phase.ENDED and progress.result is not None:
            observer.turn_exited(name_exit(progress.result.finish_reason))

    def _charge_earlier_lives(self, run: Run) -> None:
        """Let the budget count what earlier lives spent, and the whole reservation of a call whose reply was lost."""
        before, most = run.accounts.usage, self.most_usage
        lost = Usage(
            input_tokens=max(0, most.total_tokens - before.total_tokens),
            model_calls=max(0, most.model_calls - before.model_calls),
            source=UsageSource.ESTIMATED,
        )
        run.accounts.charge_again(before + lost if lost.model_calls or lost.total_tokens else before)

        async def reserve(tokens: int) -> None:
            if tokens:
                index = self.progress.model_calls
                usage = run.accounts.usage
                run.log.record(reservation_record(index, tokens, before=usage), usage=usage)
            await run.log.flush()

        run.accounts.model.before_call = reserve

    def _warn(self) -> Sequence[str]:
        """Return the warnings about what was left out or not summarised, and about a mode that is gone."""
        names, mode = self.progress.unsummarised, self.progress.mode
        shown = (one.step.context for one in self.progress.replies)
        warnings = [*warn_of_cut(self._earlier), *warn_of_left_out(shown)]
        if names:
            warnings.append(
                f"No summary could be used of {', '.join(names)}: it failed, was too long or cited what is not there."
            )
        if mode and self.policy.find_mode(mode) is None:
            warnings.append(
                f"The mode {show(mode)} of this session is no longer configured, so there were no tools of the server. "
                f"Start a turn with another mode, such as {show(self.policy.default_mode)}."
            )
        return warnings

    def _describe_session(self) -> SessionEnd | None:
        """Return what the turn leaves in its session; None without one."""
        start = self.progress.start
        if start is None or not start.session_id:
            return None
        state: dict[str, object] = {"mode": self.progress.mode}
        if self.records_content:
            state["providers"] = self.providers.describe()
        expire_time = self.clock.now() + timedelta(seconds=self.policy.session_retention_s)
        return SessionEnd(state=state, expire_time=expire_time)


def _read_reservation(recovery: Recovery, reply_count: int) -> Usage:
    """Return what may have been spent with the model call after the last reply; nothing if none was begun."""
    found = NOTHING
    for record in recovery.records:
        if is_sample(record, recovery.execution.execution_id, reply_count):
            found = NOTHING
        if record.key == f"{RESERVED}::{reply_count}":
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(record.body)
                found = Usage(input_tokens=int(row["most_tokens"]), model_calls=int(row["most_calls"]))
    return found


def _read_assignment(row: Any) -> TurnAssignment:  # noqa: ANN401 - JSON of any version
    try:
        turn = row["turn"]
        tools = tuple(ClientTool(**each) for each in turn["client_tools"])
        blocks = tuple(ContextBlock(**{**each, "scope": ContextScope(each["scope"])}) for each in turn["context"])
        said = restore_history(turn["history"])
        images = tuple(Image(**each) for each in turn.get("images", ()))
        start = TurnStarted(**{**turn, "client_tools": tools, "context": blocks, "history": said, "images": images})
        return TurnAssignment(
            start=settle_sequences(start),
            budget=Budget(**row["budget"]),
            may_use_server_tools=bool(row["may_use_server_tools"]),
            provided=dict(row["provided"]),
        )
    except (KeyError, TypeError, ValueError):
        raise build_foreign_plan_error() from None
