"""Chain of thought: one model call that thinks step by step and marks its answer (seed 001)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS, ReplyListener, measure_room
from reasond_server.context.final_replies import describe_silence, read_final_reply
from reasond_server.context.sections import build_task_prompt
from reasond_server.context.tags import TagKind, restore
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig, Wrote
from reasond_server.types import ChainOfThoughtMetrics, CostClass, Thought
from reasond_server.types.values import constructor_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.context.replies import Fragment
    from reasond_server.strategies.strategy import RunContext, StrategyEvent
    from reasond_server.types import Task

_make_metrics = constructor_of(ChainOfThoughtMetrics)
_make_outcome = constructor_of(Outcome)
_make_step = constructor_of(Step)
_make_thought = constructor_of(Thought)
_make_wrote = constructor_of(Wrote)

_RULES = (
    "Work out what <question> asks. Think step by step, then write <answer>the final answer</answer> and nothing "
    "after it."
)


class ChainOfThoughtConfig(StrategyConfig):
    """The parameters, with the defaults and ranges of seed 001."""

    max_tokens: Annotated[int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write.")] = 4096
    temperature: Annotated[
        float, Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Sampling temperature of the model.")
    ] = 0.7
    show_reasoning: Annotated[
        bool, Field(description="Whether the text before the answer is streamed, and the result has a trace.")
    ] = True


class ChainOfThought(ReasoningStrategy[ChainOfThoughtConfig]):
    """One call with question, material and all thinking.

    Cost: one call of P + G tokens: P for the prompt and G <= max_tokens of output. Its attention grows with
    (P + G)^2. Memory: the reply. Latency: the time of the model for G tokens.

    Failure modes: a prompt that leaves fewer than 100 tokens of the model's context window is refused before anything
    is spent. A prompt that leaves fewer than `max_tokens` reduces the limit, with a warning. A reply that was cut at
    its limit ends TRUNCATED and keeps the beginning of the answer. A reply without a tagged answer is the answer as a
    whole (ANSWERED_UNTAGGED). With `show_reasoning` off, no text before the answer leaves the strategy and the step is
    empty, so an untagged answer is returned only at the end.

    Source: seed 001 (parameters, metrics, trace); Wei et al. 2022, arXiv 2201.11903.
    """

    name: ClassVar[str] = "chain_of_thought"
    description: ClassVar[str] = (
        "Thinks step by step in a single model call: for questions that fit one context window."
    )
    config_type: ClassVar[type[ChainOfThoughtConfig]] = ChainOfThoughtConfig
    cost_class: ClassVar[CostClass | None] = CostClass.CONSTANT
    cost_formula: ClassVar[str] = "1 model call that writes at most max_tokens"
    is_replayable: ClassVar[bool] = True

    async def run(self, task: Task, context: RunContext[ChainOfThoughtConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Make one call; see the base class.

        Raises:
            ContextExhaustedError: the prompt leaves no room in the model's context window.
        """
        config, model = context.config, context.model
        messages = await build_task_prompt(task, instructions=_RULES, nonce=context.new_nonce())
        max_tokens, warnings = await measure_room(messages, max_tokens=config.max_tokens, model=model)
        listener = ReplyListener(
            messages=messages, max_tokens=max_tokens, temperature=config.temperature, kinds=(TagKind.ANSWER,)
        )
        is_asking = True
        while is_asking:
            events = model.stream(listener.request)
            try:
                async for event in events:
                    if text := _pick_visible(listener.take(event), config):
                        yield _make_wrote(text=text)
                    if listener.is_done:
                        break
            finally:
                await events.aclose()
            is_asking = listener.ask_again()
        rest, reply = listener.close(model.counter)
        if text := _pick_visible(rest, config):
            yield _make_wrote(text=text)
        ending = read_final_reply(reply)
        metrics = _make_metrics(
            temperature=config.temperature, max_tokens=max_tokens, finish_reason=str(reply.finish), model=model.name
        )
        thought = (
            _make_thought(text=ending.thought, answer=ending.answer)
            if config.show_reasoning
            else _make_thought(text="")
        )
        yield _make_step(detail=thought, answer_found=ending.is_answered, metrics=metrics)
        warnings = (*warnings, *describe_silence(reply, ending))
        answer = restore(ending.answer)
        yield _make_outcome(answer=answer, finish_reason=ending.finish_reason, metrics=metrics, warnings=warnings)


def _pick_visible(fragments: Sequence[Fragment], config: ChainOfThoughtConfig) -> str:
    """Return the text of one event that the caller may see."""
    if not fragments:
        return ""
    if not config.show_reasoning:
        fragments = [one for one in fragments if one.kind is TagKind.ANSWER and not one.is_thinking]
    return fragments[0].text if len(fragments) == 1 else "".join([one.text for one in fragments])
