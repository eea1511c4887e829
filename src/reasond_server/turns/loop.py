"""The loop of a turn in one process: it does one step after another until the turn ends, suspends or is stopped."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.context.calls import LEAST_TOKENS
from reasond_server.context.text_calls import bound_specs, clean_call, write_tools
from reasond_server.errors.base import ReasondError, show
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import AnswerInvalidError, ContextExhaustedError, ModelError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.errors.turns import HandoffExpiredError
from reasond_server.eventlog.store import Record
from reasond_server.llm.counting.requests import count_extras
from reasond_server.llm.model import ChatModel, ChatRequest, ToolSpec, can_enforce_schema, find_image_tokens
from reasond_server.reasoning.answer_finishing import cut_at_stop
from reasond_server.runs.phase import Phase, Trigger
from reasond_server.runs.run_driver import make_carriable
from reasond_server.runs.work import RunEnding, build_error_ending
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.tools.execution import TOO_LARGE
from reasond_server.tools.results import to_error_text
from reasond_server.turns.handoff import build_handoff, derive_call_key, take_fingerprint
from reasond_server.turns.history import EndedTurn, write_history
from reasond_server.turns.model_calls import CORRECTION_TOKENS, ModelCaller, ToolVotes, TurnReply
from reasond_server.turns.next_step import CallModel, CloseCall, Finish, HandOff, RunTools, choose_step, keep_draft
from reasond_server.turns.policy import Synthesis, TurnPolicy
from reasond_server.turns.summaries import Summariser
from reasond_server.turns.turn_prompts import build_context, build_inputs, log_renderings
from reasond_server.turns.turn_tools import MODE_STATE_CHANGE, TurnTools
from reasond_server.turns.turn_views import report_context
from reasond_server.types import NOTHING, Event, FinishReason, Json, ToolCall, ToolResult, Usage
from reasond_server.types.turns import (
    CallKind,
    ContextGoal,
    ContextScope,
    LedgerState,
    ModeChange,
    ModelCallStep,
    ToolStep,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.base.clock import Clock
    from reasond_server.context.answer_schemas import SchemaCompiler
    from reasond_server.context.reasoning_parts import ContextInputs, PromptPart, ReasoningContext
    from reasond_server.llm.metered_model import MeteredModel
    from reasond_server.runs.run import Run
    from reasond_server.turns.fold import LedgerCall, TurnProgress
    from reasond_server.turns.next_step import NextStep
    from reasond_server.turns.providers import ProvidedText, ProviderStates
    from reasond_server.types.turns import ContextItem

RESERVED: Final = "reserved"
"""The beginning of the key of a record: tokens are reserved for the model call with the number that follows."""

UNKNOWN_WINDOW: Final = 131_072
"""Tokens of a window that nobody knows: most models have as many, and others tell theirs when they refuse a prompt."""

_LEAST_WINDOW: Final = 1_024
_NARROWED: Final = "The server of {model} refused a prompt as too long: the turn went on within {window} tokens."
_MOST_SYNTHESES: Final = 2
_SMALL_RESULTS_BYTES: Final = 1_024
"""Results of this size together are always shown whole, so that nobody has to read one in parts."""
_EXPIRED: Final = "the client did not settle the call in time"
_TOO_LARGE: Final = (
    "the tool was called, but its result of {size} bytes was not taken: {whose} may have {most}; ask for less"
)


@dataclass(eq=False, kw_only=True)
class TurnLoop:
    """Works on one turn in one life of its execution.

    `records` are those of earlier lives; replies are recorded if it `keeps_replies`.
    `nonce` marks the fences of its prompts, `history` are the ended turns of its session, `providers` have taken in all
    events of the log, `backends` are the models that modes may name.

    Attributes:
        is_draft: whether a synthesis may replace what the model writes now.
    """

    run: Run
    progress: TurnProgress
    providers: ProviderStates
    tools: TurnTools
    policy: TurnPolicy
    backends: Mapping[str, ChatModel]
    history: Sequence[EndedTurn]
    nonce: str
    clock: Clock
    schemas: SchemaCompiler
    records: Sequence[Record] = ()
    keeps_replies: bool = True
    observer: Observer = UNOBSERVED

    def __post_init__(self) -> None:
        self._written: dict[str, Sequence[PromptPart]] = {}
        self._narrowed: dict[str, int] = {}
        start = self.progress.start
        seed = None if start is None else start.seed
        asked = None if start is None else start.temperature
        temperature = self.policy.temperature if asked is None else asked
        # Replies at temperature 0, or with one seed, are all the same.
        self._samples = self.policy.samples if temperature and seed is None else 1
        self._caller = ModelCaller(self.run, backends=self.backends, temperature=temperature, seed=seed)
        self._summariser = Summariser(caller=self._caller, policy=self.policy, nonce=self.nonce, clock=self.clock)
        self.is_draft = False

    async def run_to_exit(self) -> None:
        """Do the steps until the turn ends, suspends or is stopped.

        Raises:
            ReasondError: a step failed, and the turn with it.
        """
        run = self.run
        if self.progress.handoff is not None:
            self._expire()
            return
        while run.phase is Phase.WORKING:
            if run.leaves_at_checkpoint is not None and run.reach_checkpoint():
                return
            try:
                await self._do(choose_step(self.progress, tools=self.tools, policy=self.policy))
            except ReasondError as error:
                run.report_end(make_carriable(error), trigger=Trigger.FAIL)
                raise

    async def _do(self, step: NextStep) -> None:
        """Do one step. Raises as `run_to_exit`."""
        if isinstance(step, CallModel):
            await self._call_or_keep(step)
        elif isinstance(step, RunTools):
            await self._run_tools(step.calls)
        elif isinstance(step, CloseCall):
            self._close_call(step.call, step.state, step.kind, step.message)
        elif isinstance(step, HandOff):
            self._hand_off(step)
        else:
            await self._finish(step)

    async def _call_or_keep(self, step: CallModel) -> None:
        """Call the model; where a synthesis fails, the answer that stands already is the turn's. Raises as `ask`."""
        try:
            await self._call_model(step)
        except ModelError as error:
            is_failure = build_error_ending(error, usage=self.run.accounts.usage).error is not None
            if not (_has_draft(step) and is_failure and self.progress.written_answer):
                raise
            await self._finish(keep_draft(self.progress, self.policy, error.full_message))

    async def _call_model(self, step: CallModel) -> None:
        """Call the model of the mode and log its reply; the calls in it are expected from then on."""
        self.run.trace.end_step()
        index, mode = self.progress.model_calls, self.policy.mode_in_force(self.progress.mode)
        model = self._caller.switch_to(mode.backend)
        # Some providers refuse a history with tool calls if the list of tools is missing, so the last call has it too.
        offered = self.tools.offered_in(mode, with_own=self._offers_own(), with_reading=self._offers_reading())
        provided = self.providers.render(step.goal, is_first=not self.progress.replies)
        room, inputs = self._fit(step, model, offered, provided)
        try:
            context = await build_context(inputs)
        except ContextExhaustedError as error:
            if self.progress.replies and not step.is_last:
                await self._call_model(replace(step, is_last=True))
                return
            raise _tell_tools(error, offered, model, window=self._find_window(model)) if offered else error from None
        if _has_draft(step) and not self._is_worth_a_call(context):
            await self._finish(keep_draft(self.progress, self.policy))
            return
        if not step.is_last and await self._summarise(inputs, context):
            return
        self.is_draft = not step.is_last and self._may_be_rewritten(context)
        since_s, before = self.clock.monotonic(), model.usage
        votes = self._open_vote(step, index) if offered else None
        try:
            reply = await self._ask(step, model, context, offered, room, votes=votes)
        except ContextExhaustedError as error:
            shown = sum(item.tokens for item in context.report.items)
            if not self._narrow(model, error, before=shown + room) or _has_draft(step):
                raise
            await self._call_model(step)
            return
        calls = self._mint(reply.calls)
        self._append(
            ModelCallStep(
                index=index,
                goal=step.goal,
                mode=self.progress.mode,
                model=model.name,
                usage=model.usage - before + (NOTHING if votes is None else votes.usage),
                elapsed_s=self.clock.monotonic() - since_s,
                text=reply.text,
                thinking=reply.thinking,
                finish=reply.finish,
                context=context.report.items,
                tools=tuple(sorted({spec.name for spec in offered})),
                calls=calls,
                provider_ids=tuple(call.call_id for call in reply.calls),
                renderings=log_renderings(context.renderings),
                blocks=tuple(one.name for one in provided if one.scope is ContextScope.TURN),
                edition=self.settle_draft(reply.text, reply.thinking),
            )
        )
        self._report_call(index, step.goal, context, calls)

    async def _ask(
        self,
        step: CallModel,
        model: MeteredModel,
        context: ReasoningContext,
        offered: Sequence[ToolSpec],
        room: int,
        *,
        votes: ToolVotes | None,
    ) -> TurnReply:
        """Return the model's reply to `context`, of at most `room` tokens; of several, the one that wins the votes."""
        schema = self._find_enforced(model) if step.problems else None
        ask = partial(
            self._caller.ask,
            context.messages,
            # Servers that enforce a schema take no tools beside it, and no history of theirs needs the list.
            tools=() if schema else offered,
            max_tokens=room,
            is_last=step.is_last or step.tool_choice == "none",
            index=self.progress.model_calls,
            is_answer=self.shows_answer,
            tool_choice=step.tool_choice,
            json_schema=schema,
        )
        if votes is None:
            return await ask()
        while not votes.is_settled:
            before = model.usage
            try:
                reply = await ask(is_published=False)
            except (ModelError, TokenBudgetExhaustedError):
                if not votes.replies:
                    raise
                break
            record = votes.add(reply, model.usage - before)
            if self.keeps_replies:
                self.run.log.record(record, usage=self.run.accounts.usage)
        self.run.subscribers.publish(votes.index, votes.winner.text)
        return votes.winner

    @property
    def shows_answer(self) -> bool:
        """Whether the text of the model call is what the client gets, and nothing cuts it or replaces it."""
        start = self.progress.start
        return not (self.is_draft or start is None or start.stop or start.answer_schema_json)

    def settle_draft(self, text: str, thinking: str) -> int:
        """Return the edition of a reply (`AnswerPlace`)."""
        return self.run.subscribers.draft.settle(text, thinking) if self.shows_answer else -1

    def _open_vote(self, step: CallModel, index: int) -> ToolVotes | None:
        """Return the vote on the calls of a reply, with what earlier lives have got; None if one reply is enough."""
        if self._samples == 1 or _must_answer(step):
            return None
        votes = ToolVotes(turn_id=self.run.identity.execution_id, index=index, samples=self._samples)
        votes.restore(self.records)
        return votes

    def _report_call(self, index: int, goal: ContextGoal, context: ReasoningContext, calls: Sequence[ToolCall]) -> None:
        self.run.trace.note_step({"reasond.step.index": index})
        results = self.progress.ledger.keys() - {call.call_id for call in calls}
        report_context(self.observer, context.report.items, goal=goal, results=results)

    async def _summarise(self, inputs: ContextInputs, context: ReasoningContext) -> bool:
        """Return whether a summary was written and logged; the next step makes the prompt again, with it."""
        summary = await self._summariser.summarise_one(self.progress, inputs, context)
        if summary is not None:
            self._append(summary)
        return summary is not None

    def _fit(
        self, step: CallModel, model: ChatModel, offered: Sequence[ToolSpec], provided: Sequence[ProvidedText]
    ) -> tuple[int, ContextInputs]:
        """Return the tokens that the model may write, and the inputs of the prompt; it has the rest of the window."""
        window = self._find_window(model)
        wanted = max(LEAST_TOKENS, min(self.policy.max_tokens, window // 2))
        beside = _count_tools(offered, model) if model.has_native_tools else CORRECTION_TOKENS
        budget_tokens = window - wanted - beside - self._bound_images(model)
        inputs = build_inputs(
            self.progress,
            history=self._write_history(model),
            provided=provided,
            specs=offered,
            goal=step.goal,
            is_last=step.is_last,
            said=_say_to_model(step),
            budget_tokens=budget_tokens,
            model=model,
            settings=self.policy.context,
            nonce=self.nonce,
        )
        return wanted, inputs

    def _find_window(self, model: ChatModel) -> int:
        """Return the window that prompts for `model` fit: the known one, what a refusal left, or the default."""
        return min(model.context_window or UNKNOWN_WINDOW, self._narrowed.get(model.name, UNKNOWN_WINDOW))

    def _narrow(self, model: ChatModel, error: ContextExhaustedError, *, before: int) -> bool:
        """Fit further prompts to a smaller window than `before`, after the server refused one; False: none is left."""
        reported, before = int(error.metadata.get("context_window", 0)), min(before, self._find_window(model))
        window = reported if 0 < reported < before else before * 3 // 4
        if window < _LEAST_WINDOW:
            return False
        self._narrowed[model.name] = window
        model_warnings = self.run.accounts.model.warnings_of_calls
        model_warnings[_NARROWED.format(model=show(model.name), window=window)] = None
        return True

    def _bound_images(self, model: ChatModel) -> int:
        """Return the most tokens of the images that the client has sent.

        Raises:
            InvalidRequestError: the message has images, and the model takes none.
        """
        start, tokens = self.progress.start, find_image_tokens(model)
        if start is None:
            return 0
        if start.images and not tokens:
            text = f"are not taken by the model {model.name!r}; leave them out, or use another mode"
            raise InvalidRequestError.at("images", text)
        return tokens * (len(start.images) + sum(len(message.images) for message in start.history))

    def _write_history(self, model: ChatModel) -> Sequence[PromptPart]:
        """Return the earlier turns as they stand in prompts of `model`; they are written once for each model."""
        written = self._written.get(model.name)
        if written is None:
            written = self._written[model.name] = write_history(self.history, nonce=self.nonce, model=model)
        return written

    def _offers_own(self) -> bool:
        """Return whether the model may read results in parts and switch modes: no client's list grows for nothing."""
        start = self.progress.start
        return start is None or start.uses_server_tools or self.progress.kept_bytes > _SMALL_RESULTS_BYTES

    def _offers_reading(self) -> bool:
        """Return whether there is a result that may have to be read in parts: a model imitates the tool before.

        Once a session has had one, the tool stays: another list of tools is another beginning of every prompt.
        """
        seen = (self.progress, *(turn.progress for turn in self.history))
        return any(progress.kept_bytes > _SMALL_RESULTS_BYTES for progress in seen)

    def _may_be_rewritten(self, context: ReasoningContext) -> bool:
        """Return whether a synthesis follows if the model answers now."""
        if self.policy.context.synthesis is Synthesis.WHEN_REDUCED:
            return context.report.is_reduced
        return self.policy.context.synthesis is Synthesis.ALWAYS

    def _is_worth_a_call(self, context: ReasoningContext) -> bool:
        """Return whether the prompt of a synthesis shows more of the results than the one before it did."""
        if self.policy.context.synthesis is Synthesis.ALWAYS or not self.progress.written_answer:
            return True
        return self._count_results(context.report.items) > self._count_results(self.progress.replies[-1].step.context)

    def _count_results(self, items: Sequence[ContextItem]) -> int:
        """Return the tokens of the results of the turn among `items`."""
        return sum(item.tokens for item in items if item.source in self.progress.ledger)

    def _mint(self, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Return the calls with ids of ours; the provider's may be empty, duplicate or used before."""
        first = len(self.progress.ledger) + 1
        return tuple(clean_call(call, call_id=f"c{first + place}") for place, call in enumerate(calls))

    async def _run_tools(self, calls: Sequence[LedgerCall]) -> None:
        """Execute calls of server tools: each has begun in the log before it begins, and its outcome follows."""
        for one in calls:
            if one.state is LedgerState.EXPECTED:
                self._append(self._tell(one, LedgerState.STARTED, is_concurrent=len(calls) > 1))
        await self.run.log.flush()
        await self.run.effects.require_lease()
        with self._act():
            results = await asyncio.gather(*(self._run_tool(one) for one in calls))
        for one, (result, elapsed_s) in zip(calls, results, strict=True):
            self._take_result(one, result, elapsed_s, is_concurrent=len(calls) > 1)

    async def _run_tool(self, one: LedgerCall) -> tuple[ToolResult, float]:
        """Execute one call; return its result and the seconds that it took."""
        since_s = self.clock.monotonic()
        key = derive_call_key(one.call, self.run.effects.derive_key)
        result = await self.tools.call(one.call, idempotency_key=key)
        return result, self.clock.monotonic() - since_s

    def _take_result(self, one: LedgerCall, result: ToolResult, elapsed_s: float, *, is_concurrent: bool) -> None:
        """Log the outcome of a call; if it switched the mode, log that too."""
        size = len(result.result_json.encode())
        policy, whose = self.policy, "a result"
        most = policy.max_result_bytes
        if size <= most and self.progress.kept_bytes + size > policy.max_kept_bytes:
            most, whose = policy.max_kept_bytes, "all results of the turn together"
        if size > most or whose != "a result":
            text = to_error_text(TOO_LARGE, _TOO_LARGE.format(size=size, whose=whose, most=most))
            result = ToolResult(call_id=result.call_id, result_json=text, is_error=True)
        state = LedgerState.FAILED if result.is_error else LedgerState.SUCCEEDED
        event = self._tell(one, state, result=result, elapsed_s=elapsed_s, is_concurrent=is_concurrent)
        self._append(event)
        if one.call.name == MODE_STATE_CHANGE and not result.is_error:
            new_mode: str = json.loads(result.result_json)["mode"]
            self._append(ModeChange(call_id=one.call.call_id, old_mode=self.progress.mode, new_mode=new_mode))

    def _close_call(self, one: LedgerCall, state: LedgerState, kind: str, message: str) -> None:
        """Log the outcome of a call that is not made, or that nobody knows."""
        result = None
        if state is LedgerState.UNKNOWN:
            self.observer.outcome_unknown()
        else:
            result = ToolResult(call_id=one.call.call_id, result_json=to_error_text(kind, message), is_error=True)
        self._append(self._tell(one, state, result=result))

    def _hand_off(self, step: HandOff) -> None:
        """Suspend the turn until its client has settled the calls, or until the hand-off expires."""
        run, now = self.run, self.clock.now()
        expire_time = now + timedelta(seconds=self.policy.handoff_ttl_s)
        event = build_handoff(
            step.calls,
            derive_key=run.effects.derive_key,
            sequence=run.log.last_sequence + 1,
            expire_time=expire_time,
        )
        if run.suspend(event, now=now, wake_time=expire_time):
            self._take_in(event)
            facts = {"reasond.handoff.calls": len(event.calls), "reasond.turn.mode": self.progress.mode}
            run.trace.note({"reasond.turn.exit": "client_tools", **facts})

    def _expire(self) -> None:
        """End a turn whose client did not come back; the calls get errors, so that the session stays usable."""
        handoff = self.progress.handoff
        assert handoff is not None  # noqa: S101 - the caller looked
        for pending in handoff.calls:
            one = self.progress.ledger[pending.call.call_id]
            # Nobody knows whether a call ran whose outcome the client was asked for.
            if pending.kind is not CallKind.RESOLVE:
                self._close_call(one, LedgerState.NOT_RUN, "expired", _EXPIRED)
        error = HandoffExpiredError(
            f"The client settled none of the {len(handoff.calls)} pending calls until {handoff.expire_time.isoformat()}"
        )
        self.run.report_end(RunEnding(finish_reason=FinishReason.EXPIRED, error=error), trigger=Trigger.FAIL)

    async def _finish(self, step: Finish) -> None:
        """End the turn; an answer that breaks its schema is written again first, by one or two model calls."""
        if step.error is not None:
            raise step.error
        start, answer, matched = self.progress.start, step.answer, ""
        if start is not None and start.stop:
            answer, matched = cut_at_stop(answer, start.stop)
        if start is not None and start.answer_schema_json and step.reason is FinishReason.ANSWERED:
            schema = await self.schemas.compile(json.loads(start.answer_schema_json))
            checked = await asyncio.to_thread(schema.check, answer)
            if not checked.json:
                await self._call_model(self._correct("; ".join(checked.problems)))
                return
            answer = checked.json
        ending = RunEnding(finish_reason=step.reason, answer=answer, warnings=step.warnings, stop_sequence=matched)
        self.run.report_end(ending)

    def _find_enforced(self, model: ChatModel) -> Json | None:
        """Return the schema of the answer, if the server of `model` holds a reply to it."""
        start = self.progress.start
        if start is None or not start.answer_schema_json or not can_enforce_schema(model):
            return None
        schema: Json = json.loads(start.answer_schema_json)
        return schema

    def _correct(self, problems: str) -> CallModel:
        """Return the call that writes the answer again.

        Raises:
            AnswerInvalidError: there are no more calls for it.
        """
        written = sum(one.step.goal is ContextGoal.SYNTHESIS for one in self.progress.replies)
        if written < _MOST_SYNTHESES and self.progress.model_calls < self.policy.max_model_calls:
            return CallModel(goal=ContextGoal.SYNTHESIS, is_last=True, problems=problems)
        raise AnswerInvalidError(
            f"The answer does not satisfy its schema: {problems}",
            remedy="Read the replies of the turn; make the schema simpler, or use a stronger model.",
        )

    def _tell(
        self,
        one: LedgerCall,
        state: LedgerState,
        *,
        result: ToolResult | None = None,
        elapsed_s: float = 0.0,
        is_concurrent: bool = False,
    ) -> ToolStep:
        kind = CallKind.APPROVE if self.tools.needs_approval(one.call.name) else CallKind.EXECUTE
        return ToolStep(
            call_id=one.call.call_id,
            tool=one.call.name,
            state=state,
            fingerprint=take_fingerprint(one.call, kind),
            is_error=result is not None and result.is_error,
            result_bytes=0 if result is None else len(result.result_json.encode()),
            elapsed_s=elapsed_s,
            result_json="" if result is None else result.result_json,
            is_concurrent=is_concurrent,
        )

    def _append(self, event: Event) -> None:
        """Append `event` to the log and take it in."""
        self.run.append(event, now=self.clock.now())
        self._take_in(event)
        if isinstance(event, ModelCallStep):
            self.run.work.steps.add()

    def _take_in(self, event: Event) -> None:
        self.progress.apply(event)
        self.providers.apply(event)

    def _act(self) -> AbstractContextManager[Any]:
        """Mark tool calls as in progress: a process that loses its store lets them end, as they cannot be undone."""
        return nullcontext() if self.run.journal is None else self.run.journal.act()


def _must_answer(step: CallModel) -> bool:
    """Return whether the reply to the call has no calls of tools, so that there is nothing to vote on."""
    return step.is_last or step.goal is not ContextGoal.PLANNING or step.tool_choice == "none"


def _has_draft(step: CallModel) -> bool:
    """Return whether the step only writes a draft again, which stands if it fails."""
    return step.goal is ContextGoal.SYNTHESIS and not step.problems


def _say_to_model(step: CallModel) -> str:
    """Return what the prompt of the call ends with; empty for nothing of its own."""
    if step.problems:
        return (
            f"Your last reply cannot be used: {step.problems}. Write the final answer again, by its JSON Schema alone."
        )
    if step.tool_choice in {"", "auto", "none"}:
        return ""
    return f"Reply with a call of {'a tool' if step.tool_choice == 'required' else step.tool_choice} now."


def _count_tools(specs: Sequence[ToolSpec], model: ChatModel) -> int:
    """Return the tokens of the tools, in the form in which `model` gets them."""
    if model.has_native_tools:
        return count_extras(ChatRequest(messages=(), max_tokens=1, tools=specs), model.counter)
    return model.counter.count_text(write_tools(bound_specs(specs)))


def _tell_tools(
    error: ContextExhaustedError, offered: Sequence[ToolSpec], model: ChatModel, *, window: int
) -> ContextExhaustedError:
    """Return `error` with the tokens that the offered tools take of the window."""
    tokens = _count_tools(offered, model)
    return ContextExhaustedError(
        f"{error.message}; the {len(offered)} tools that are offered take {tokens} of the window of {window} tokens",
        remedy=error.remedy,
        metadata={**error.metadata, "tools_tokens": str(tokens)},
    )


def reservation_record(index: int, tokens: int, *, before: Usage) -> Record:
    """Return the record which says that `tokens` are reserved for model call `index`; `before` is spent already.

    It holds what the turn may have spent once the call is over, because a later life knows no more if the call is lost.
    """
    most = {"most_tokens": before.total_tokens + tokens, "most_calls": before.model_calls + 1}
    return Record(key=f"{RESERVED}::{index}", body=json.dumps({"v": 1, **most}))
