"""The ReAct strategy, and the cycles of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from reasond_server.context.answers import find_marked_answer
from reasond_server.context.calls import LEAST_TOKENS, ModelReply, ReplyListener
from reasond_server.context.final_replies import split_untagged
from reasond_server.context.program_requests import requests_program
from reasond_server.context.sections import build_task_prompt
from reasond_server.context.step_records import CallRecord
from reasond_server.context.tags import TagKind, restore
from reasond_server.context.text_calls import INVENTED_OBSERVATION, UnreadableActionError, cut_invention, read_action
from reasond_server.context.vote_forms import find_value
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.model import ModelFinish, ToolSpec
from reasond_server.llm.wrapped_models import list_messages
from reasond_server.strategies.react import prompts as words
from reasond_server.strategies.react.conversation import Conversation
from reasond_server.strategies.react.tool_use import AnswerDemand, Offer, Offers, ToolUse, derive_handle, fit_offer
from reasond_server.strategies.strategy import (
    SHORTAGES,
    Outcome,
    ReasoningStrategy,
    Step,
    StrategyConfig,
    Temperature,
    Wrote,
    find_shortage_reason,
)
from reasond_server.tools.execution import refuse_call
from reasond_server.tools.read_result import READ_TOOL_RESULT
from reasond_server.types import CostClass, FinishReason, ReactMetrics, ReactStep, Task, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.context.replies import Fragment
    from reasond_server.errors.base import ReasondError
    from reasond_server.strategies.strategy import RunContext, StrategyEvent


class ReactConfig(StrategyConfig):
    """The parameters, with the defaults and ranges of seed 001; `max_tool_calls` is our own."""

    max_iterations: Annotated[
        int, Field(ge=1, le=50, description="Most thought-action-observation cycles; the last one must answer.")
    ] = 10
    max_tokens_per_step: Annotated[
        int, Field(ge=LEAST_TOKENS, le=8192, description="Most tokens the model may write per cycle.")
    ] = 2048
    temperature: Temperature = 0.7
    allow_tool_use: Annotated[
        bool, Field(description="Whether tools may be called; needs the permission reasoning:tools.")
    ] = False
    max_tool_calls: Annotated[int, Field(ge=0, le=50, description="Most tool calls in the whole run.")] = 10

    @property
    def uses_tools(self) -> bool:
        """Whether the run may call tools."""
        return self.allow_tool_use

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return self.max_iterations


_MAX_CORRECTIONS: Final = 2
_MAX_EMPTY_REPLIES: Final = 2
# A token rarely has more bytes than this. Metering reserves bytes if the counter only estimates.
_BYTES_PER_TOKEN: Final = 4


class React(ReasoningStrategy[ReactConfig]):
    """Cycles of one model call each. The tool calls of a reply are made one after the other before the next cycle.

    A model with native tools may make any number of tool calls in one reply. Other models write `<action>` in their
    text (`context.text_calls`): one call, which ends the reply. Only tools make observations: if a model writes an
    observation itself, the text is cut off and the model is asked again. A reply that breaks the protocol is answered
    with a correction, at most twice in a run. The same call with the same arguments may be made twice; the third one is
    refused, and the run must answer. The last cycle, and the first one without tool calls or budget left, offers no
    tools and must answer.

    Cost: at most `max_iterations` model calls and `max_tool_calls` tool calls. The prompt of call i has the question,
    the thoughts before it (G <= max_tokens_per_step each) and observations up to a share of the window
    (`react.conversation`): P_i <= q + (i - 1) * G + min(8192, W/3), and never more than the window W minus the room for
    output. So the input of a run is at most max_iterations * W. Memory: the conversation, and results of tools up to
    [tools] max_kept_bytes. Latency: the calls of the model and the tools are sequential.

    Failure modes: a model that does not follow the protocol uses up its cycles and must then answer (with warnings).
    The results of tools are trusted, so a malicious or wrong tool causes wrong answers. With `allow_tool_use` off, the
    run is a chain of thought in several calls. If the first prompt leaves fewer than 100 tokens of the window after all
    shortening, the run fails with CONTEXT_EXHAUSTED; if a later one does, it ends as TRUNCATED with what it has.

    Source: seed 001 (parameters, metrics, trace); Yao et al. 2022, arXiv 2210.03629; masking: arXiv 2508.21433.
    """

    name: ClassVar[str] = "react"
    description: ClassVar[str] = (
        "Thinks, calls tools and reads what they return, in turns: for questions that need calculations or facts from "
        "elsewhere."
    )
    config_type: ClassVar[type[ReactConfig]] = ReactConfig
    cost_class: ClassVar[CostClass | None] = CostClass.LINEAR
    cost_formula: ClassVar[str] = "at most max_iterations model calls and max_tool_calls tool calls"
    is_replayable: ClassVar[bool] = True

    def __init__(self) -> None:
        self._offers = Offers()

    async def run(self, task: Task, context: RunContext[ReactConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Run the cycles; see the base class.

        Raises:
            ContextExhaustedError: the first prompt does not fit the model's window.
            TokenBudgetExhaustedError: the budget does not cover the first call.
        """
        model, run = context.model, await start_run(task, context, self._offers)
        outcome: Outcome | None = None
        listener: ReplyListener | None = None
        while outcome is None:
            try:
                listener = listener or await run.prepare_call()
            except ContextExhaustedError as error:
                yield run.end_with(error)
                return
            events = model.stream(listener.request)
            try:
                async for event in events:
                    if text := _pick_text(listener.take(event)):
                        yield Wrote(text=text)
                    if listener.is_done:
                        break
            except SHORTAGES as error:
                yield run.end_with(error)
                return
            finally:
                await events.aclose()
            if listener.ask_again():
                continue
            rest, reply = listener.close(model.counter)
            if text := _pick_text(rest):
                yield Wrote(text=text)
            step, outcome = await run.take_reply(reply)
            listener = None
            yield step
        yield outcome


def _pick_text(fragments: Sequence[Fragment]) -> str:
    """Return the text that the caller may see: all but tool calls."""
    return "".join([one.text for one in fragments if one.kind is not TagKind.ACTION])


@dataclass(slots=True, kw_only=True)
class ReactRun:
    """The state of one run between two cycles; `best` is the last tagged answer, complete or not."""

    task: Task
    context: RunContext[ReactConfig]
    conversation: Conversation
    specs: Sequence[ToolSpec]
    tool_use: ToolUse
    cycles: int = 0
    best: str = ""
    due: AnswerDemand | None = None
    corrections: int = 0
    answered_at: int | None = None
    empty_in_a_row: int = 0
    used_tokens: int = 0
    has_partial_result: bool = False
    _last_metrics: ReactMetrics | None = None

    async def prepare_call(self) -> ReplyListener:
        """Prepare the call of the next cycle; it demands an answer if one is due.

        Raises:
            ContextExhaustedError: the conversation does not fit.
        """
        if self.due is None and self.cycles >= self.context.config.max_iterations - 1:
            self._demand(FinishReason.MAX_ITERATIONS)
        prompt, room = await self._fit()
        if self.due is None and self._is_budget_short(prompt, room):
            warning = "The budget left room for one more call, which had to answer."
            self._demand(FinishReason.BUDGET_EXHAUSTED, warning)
            _, room = await self._fit()
        if self.due is not None:
            kinds: tuple[TagKind, ...] = (TagKind.ANSWER,)
        elif not self.specs:
            kinds = (TagKind.ANSWER, TagKind.CONTINUE)
        else:
            kinds = (TagKind.ANSWER,) if self.conversation.is_native else (TagKind.ANSWER, TagKind.ACTION)
        return ReplyListener(
            messages=self.conversation.messages,
            max_tokens=room,
            temperature=self.context.config.temperature,
            kinds=kinds,
            tools=self._list_offered(),
            described=self.specs,
            tool_choice="auto" if self.due is None else "none",
            before=list_messages((), self.context.model.counter),
        )

    async def take_reply(self, reply: ModelReply) -> tuple[Step, Outcome | None]:
        """Handle a reply; return its step, and the outcome if it is the last reply."""
        self.used_tokens += reply.spent.total_tokens
        parsed = reply.parsed
        has_words = bool((parsed.text + parsed.content).strip())
        self.empty_in_a_row = 0 if has_words or reply.calls else self.empty_in_a_row + 1
        answer = parsed.content.strip() if parsed.kind is TagKind.ANSWER else ""
        self.best = answer or self.best
        invented = cut_invention(parsed.text) if self.specs else None
        ending = self._find_ending(reply, answer, is_invented=invented is not None)
        if ending is not None:
            return ending
        if invented is not None and not reply.calls:
            return self._correct(reply, INVENTED_OBSERVATION, thought=invented), None
        if reply.is_call_unread:
            return self._correct(reply, words.UNREAD_CALL), None
        if reply.calls:
            calls = [(self.tool_use.mint(call), call.call_id) for call in reply.calls]
            return await self._act(reply, calls, text=invented), None
        if parsed.kind is TagKind.ACTION and parsed.is_closed:
            return await self._act_in_text(reply), None
        return self._take_words(reply)

    def _find_ending(self, reply: ModelReply, answer: str, *, is_invented: bool) -> tuple[Step, Outcome] | None:
        """Return the last step and the outcome if `reply` ends the run, else None."""
        is_due = self.due is not None
        if reply.finish is ModelFinish.CONTENT_FILTER:
            return self._build_end(reply, answer, FinishReason.CONTENT_FILTERED)
        if answer and reply.parsed.is_closed and (is_due or not is_invented):
            return self._end_answered(reply, answer, is_invented=is_invented)
        if is_due:
            return self._end_forced(reply, answer)
        if self.empty_in_a_row == _MAX_EMPTY_REPLIES:
            return self._build_end(reply, self.best, FinishReason.TRUNCATED, _describe_emptiness(reply))
        return None

    def end_with(self, error: ReasondError) -> Outcome:
        """Return the outcome of a run that a shortage stops after its first cycle; before that, raise `error`."""
        if not self.cycles:
            raise error
        return self.build_outcome(self.best, find_shortage_reason(error), error.full_message)

    def build_outcome(self, answer: str, finish_reason: FinishReason, *warnings: str) -> Outcome:
        """Return the outcome, with a warning that explains why the run had to answer."""
        before = (self.due.warning,) if self.due is not None and self.due.warning else ()
        return Outcome(
            answer=restore(answer),
            finish_reason=finish_reason,
            metrics=self._build_metrics(),
            warnings=tuple(dict.fromkeys((*before, *warnings))),
        )

    def _take_words(self, reply: ModelReply) -> tuple[Step, Outcome | None]:
        """Handle a reply without a tool call and without a complete answer."""
        parsed = reply.parsed
        if reply.finish is ModelFinish.LENGTH or parsed.is_cut:
            return self._go_on(reply, words.CUT_OFF.format(tokens=self.context.config.max_tokens_per_step)), None
        if parsed.kind is TagKind.CONTINUE and parsed.content.strip() != words.BETWEEN_TAGS:
            announced = find_marked_answer(parsed.written)
            if announced == parsed.content.strip() and find_value(announced):
                return self._build_end(reply, announced, FinishReason.ANSWERED_UNTAGGED, is_answered=True)
            return self._go_on(reply, words.GO_ON), None
        text = parsed.text.strip()
        is_prose = not self.specs or self.conversation.is_native
        answer = self._find_answer(text) if is_prose else find_marked_answer(text)
        if answer:
            return self._build_end(reply, answer, FinishReason.ANSWERED_UNTAGGED, is_answered=True)
        return self._correct(reply, words.NO_ACTION if text else words.NOTHING_WRITTEN), None

    def _find_answer(self, text: str) -> str:
        """Return the answer of an untagged text."""
        return split_untagged(text, is_program=requests_program(self.task.query))[1]

    def _end_answered(self, reply: ModelReply, answer: str, *, is_invented: bool) -> tuple[Step, Outcome]:
        warnings = ("The answer follows an observation that the model made up.",) if is_invented else ()
        return self._build_end(reply, answer, FinishReason.ANSWERED, *warnings, is_answered=True)

    def _end_forced(self, reply: ModelReply, answer: str) -> tuple[Step, Outcome]:
        """End with the reply of the call that had to answer; its tool calls are not made."""
        reason = self.due.finish_reason if self.due is not None else FinishReason.MAX_ITERATIONS
        if answer or reply.finish is ModelFinish.LENGTH:
            empty = () if answer or reply.parsed.text.strip() else (_describe_emptiness(reply),)
            return self._build_end(reply, answer or self.best, FinishReason.TRUNCATED, *empty)
        written = reply.parsed.text.strip()
        if not written and not reply.calls:
            return self._build_end(reply, self.best, FinishReason.TRUNCATED, _describe_emptiness(reply))
        text = written.partition("<action")[0].strip()
        flaw = "did not mark an answer" if text else "asked for a tool and did not answer"
        return self._build_end(reply, self._find_answer(text) or self.best, reason, f"The last call {flaw}.")

    def _build_end(
        self, reply: ModelReply, answer: str, reason: FinishReason, *warnings: str, is_answered: bool = False
    ) -> tuple[Step, Outcome]:
        """Return the last step and the outcome; tool calls in the reply are shown as refused."""
        if is_answered:
            self.answered_at = self.cycles
        thought = _read_thought(reply)
        if reason is FinishReason.ANSWERED_UNTAGGED and answer == reply.parsed.text.strip():
            thought = reply.parsed.thinking.strip() or thought
        refused = [(self.tool_use.mint(call), "the run had to answer, and makes no more calls") for call in reply.calls]
        step = self._build_step(
            thought, tuple((call, refuse_call(call, "not_called", why)) for call, why in refused), is_answered
        )
        return step, self.build_outcome(answer, reason, *warnings)

    def _go_on(self, reply: ModelReply, said: str) -> Step:
        """Add the reply and our message `said` to the conversation, and return the step."""
        parsed = reply.parsed
        self.conversation.add(text=parsed.text + parsed.content, reasoning=parsed.thinking, said=said)
        return self._build_step(_read_thought(reply))

    def _correct(self, reply: ModelReply, said: str, *, thought: str | None = None) -> Step:
        """Ask again after a reply that broke the protocol; after too many such replies, demand an answer."""
        text = reply.parsed.text if thought is None else thought
        may_correct = self.corrections < _MAX_CORRECTIONS
        self.conversation.add(text=text, reasoning=reply.parsed.thinking, said=said if may_correct else "")
        if may_correct:
            self.corrections += 1
        else:
            warning = "The model kept breaking the protocol of calls, and had to answer."
            self._demand(FinishReason.MAX_ITERATIONS, warning)
        return self._build_step(_read_thought(reply) if thought is None else thought)

    async def _act_in_text(self, reply: ModelReply) -> Step:
        try:
            tools = {spec.name: spec.parameters for spec in self.specs}
            call = read_action(reply.parsed.content, call_id="", tools=tools)
        except UnreadableActionError as error:
            return self._correct(reply, words.tell_unread(str(error), reply.parsed.content))
        return await self._act(reply, [(self.tool_use.mint(call), "")])

    async def _act(self, reply: ModelReply, calls: Sequence[tuple[ToolCall, str]], *, text: str | None = None) -> Step:
        """Make the tool calls of a reply in order and store their results; `text` replaces the text of the reply."""
        if not self.specs:
            return self._refuse_calls(reply, [call for call, _ in calls])
        made: list[tuple[ToolCall, ToolResult]] = []
        records: list[CallRecord] = []
        notes: list[str] = []
        for call, provider_id in calls:
            result, note = await self.tool_use.make(call)
            made.append((call, result))
            self.has_partial_result |= READ_TOOL_RESULT in result.result_json
            # A failure cannot be read again.
            handle = "" if result.is_error else derive_handle(call)
            records.append(CallRecord(call=call, result=result, handle=handle, wire_id=provider_id))
            notes.append(note)
        self.conversation.add(
            text=reply.parsed.text if text is None else text,
            reasoning=reply.parsed.thinking,
            calls=records,
            said="\n".join(filter(None, notes)),
        )
        if (stop := self.tool_use.stop) is not None:
            self._demand(stop.finish_reason, stop.warning)
        return self._build_step(_read_thought(reply), tuple(made))

    def _refuse_calls(self, reply: ModelReply, calls: Sequence[ToolCall]) -> Step:
        """Refuse the calls of a run that has no tools."""
        results = [refuse_call(call, "not_allowed", "tools may not be called in this run") for call in calls]
        step = self._correct(reply, "There are no tools in this run. " + words.NOTHING_WRITTEN)
        detail = ReactStep(thought=_read_thought(reply), actions=tuple(calls), observations=tuple(results))
        return Step(detail=detail, answer_found=step.answer_found, metrics=step.metrics)

    def _demand(self, reason: FinishReason, warning: str = "") -> None:
        """Make the next call the last one, which must answer."""
        self.due = AnswerDemand(finish_reason=reason, warning=warning)
        self.conversation.end_with(words.ANSWER_NOW)

    def _list_offered(self) -> Sequence[ToolSpec]:
        """Return the tools to send with the call; the last call sends them only because some providers require it.

        Some providers refuse a history with tool calls if the list of tools is missing (anthropic-sdk-python #494). So
        the list stays, and `tool_choice` forbids its use. The tool that reads results is offered once one is not shown
        whole: before, models imitate it.
        """
        if not self.conversation.is_native or (self.due is not None and not self.conversation.has_native_calls):
            return ()
        if self.conversation.masked or self.has_partial_result:
            return self.specs
        return [spec for spec in self.specs if spec.name != READ_TOOL_RESULT]

    async def _fit(self) -> tuple[int, int]:
        """Make the prompt; return its tokens and the most tokens of output."""
        window, wanted = self.context.model.context_window, self.context.config.max_tokens_per_step
        prompt, room = await self.conversation.fit(window=window, writing_tokens=wanted, least_tokens=LEAST_TOKENS)
        if room < LEAST_TOKENS:
            raise ContextExhaustedError(
                f"the conversation has {prompt} tokens, which leaves {max(room, 0)} of the model's context window of "
                f"{window}; at least {LEAST_TOKENS} are needed",
                remedy="Shorten query or material, lower max_iterations or max_tokens_per_step, or use the strategy "
                "'bounded_context', which reads long material in segments.",
                metadata={"prompt_tokens": str(prompt), "context_window": str(window)},
            )
        return prompt, room

    def _is_budget_short(self, prompt: int, room: int) -> bool:
        """Return whether the budget may not cover another call after this one, so that this one must answer."""
        budget = self.task.budget
        if budget.max_model_calls is not None and self.cycles >= budget.max_model_calls - 1:
            return True
        if budget.max_total_tokens is None:
            return False
        reserved = prompt if self.context.model.counter.is_exact else prompt * _BYTES_PER_TOKEN
        return budget.max_total_tokens - self.used_tokens < 2 * reserved + 3 * room

    def _build_step(
        self,
        thought: str,
        made: Sequence[tuple[ToolCall, ToolResult]] = (),
        is_answered: bool = False,  # noqa: FBT001, FBT002 - private
    ) -> Step:
        self.cycles += 1
        detail = ReactStep(
            thought=thought, actions=tuple(call for call, _ in made), observations=tuple(result for _, result in made)
        )
        return Step(detail=detail, answer_found=is_answered, metrics=self._build_metrics())

    def _build_metrics(self) -> ReactMetrics:
        config = self.context.config
        metrics = ReactMetrics(
            total_iterations=self.cycles,
            answer_found_at_iteration=self.answered_at,
            temperature=config.temperature,
            max_iterations=config.max_iterations,
            tool_calls=self.tool_use.made,
            failed_tool_calls=self.tool_use.failed,
            corrections=self.corrections,
            masked_observations=self.conversation.masked,
        )
        # The outcome usually has the metrics of the last step, and the same object is not validated again.
        if self._last_metrics is None or metrics != self._last_metrics:
            self._last_metrics = metrics
        return self._last_metrics


async def start_run(task: Task, context: RunContext[ReactConfig], offers: Offers) -> ReactRun:
    """Return a run before its first call; all runs of the server share `offers`.

    Raises:
        ContextExhaustedError: the tools alone exceed their share of the window.
    """
    config, nonce = context.config, context.new_nonce()
    may_call = config.allow_tool_use and config.max_tool_calls > 0 and task.budget.max_tool_calls != 0
    offer = Offer()
    if may_call:
        offered = offers.make(context.tools.specs)
        offer = fit_offer(offered, counter=context.model.counter, window=context.model.context_window)
    specs = offer.specs
    is_native = bool(specs) and context.model.has_native_tools
    opening = await build_task_prompt(
        task,
        instructions=words.write_instructions(specs, is_native=is_native),
        nonce=nonce,
        rules=words.list_tools(specs) if specs and not is_native else "",
    )
    conversation = Conversation(opening=opening, nonce=nonce, is_native=is_native, model=context.model, offer=offer)
    allowed = task.budget.max_tool_calls
    tool_use = ToolUse(
        tools=context.tools,
        most=config.max_tool_calls if allowed is None else min(config.max_tool_calls, allowed),
        is_budgets=allowed is not None and allowed < config.max_tool_calls,
    )
    return ReactRun(task=task, context=context, conversation=conversation, specs=specs, tool_use=tool_use)


def _read_thought(reply: ModelReply) -> str:
    """Return the thought of a reply, hidden reasoning first, without the action."""
    parsed = reply.parsed
    text = parsed.text + (parsed.content if parsed.kind is TagKind.CONTINUE else "")
    return "\n\n".join(part for part in (parsed.thinking.strip(), text.strip()) if part)


def _describe_emptiness(reply: ModelReply) -> str:
    tokens = reply.usage.reasoning_tokens
    if tokens:
        return f"The model wrote no answer: {tokens} tokens of hidden reasoning used max_tokens_per_step up."
    return "The model wrote nothing."
