"""Chain of thought: one model call that thinks step by step and marks its answer."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS, ModelReply, measure_room, stream_reply
from reasond_server.context.final_replies import STEPS_FIRST, describe_silence, fit_instruction, read_final_reply
from reasond_server.context.program_requests import requests_program
from reasond_server.context.sections import build_task_prompt
from reasond_server.context.tags import TagKind, restore
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig, Temperature, Wrote
from reasond_server.types import ChainOfThoughtMetrics, CostClass, Task, Thought

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.strategies.strategy import RunContext, StrategyEvent


class ChainOfThoughtConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    max_tokens: Annotated[int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write.")] = 4096
    temperature: Temperature = 0.7
    show_reasoning: Annotated[
        bool, Field(description="Whether the text before the answer is streamed, and the result has a trace.")
    ] = True


class ChainOfThought(ReasoningStrategy[ChainOfThoughtConfig]):
    """One call with question, material and all thinking.

    Cost: one call of P + G tokens: P for the prompt and G <= max_tokens of output. Its attention grows with
    (P + G)^2. Memory: the reply. Latency: the time of the model for G tokens.

    Failure modes: a prompt that leaves fewer than 100 tokens of the model's context window is refused before anything
    is spent. A prompt that leaves fewer than `max_tokens` reduces the limit, with a warning if somebody had set it or
    the reply was cut. A reply that was cut at
    its limit ends TRUNCATED and keeps the beginning of the answer. Of a reply without a tag, the
    answer that it names is the answer, else the whole (ANSWERED_UNTAGGED). With `show_reasoning` off, no text before
    the answer leaves the strategy and the step is empty, so an untagged answer is returned only at the end.

    Source: Wei et al. 2022, arXiv 2201.11903.
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
        is_program = requests_program(task.query)
        asked = fit_instruction(STEPS_FIRST, is_program=is_program)
        messages = await build_task_prompt(task, instructions=asked, nonce=context.new_nonce())
        room, warnings = await measure_room(messages, max_tokens=config.max_tokens, model=model)
        kinds = (TagKind.ANSWER,)
        call = stream_reply(
            model=model, messages=messages, max_tokens=room, temperature=config.temperature, kinds=kinds
        )
        async with aclosing(call) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                elif config.show_reasoning or (piece.kind is TagKind.ANSWER and not piece.is_thinking):
                    yield Wrote(text=piece.text)
        final = read_final_reply(reply, is_program=is_program)
        metrics = ChainOfThoughtMetrics(
            temperature=config.temperature, max_tokens=room, finish_reason=str(reply.finish), model=model.name
        )
        thought = Thought(text=final.thought, answer=final.answer) if config.show_reasoning else Thought(text="")
        yield Step(detail=thought, answer_found=final.is_answered, metrics=metrics)
        relevant = warnings if "max_tokens" in config.model_fields_set or reply.finish is ModelFinish.LENGTH else ()
        warnings = (*relevant, *describe_silence(reply, final))
        answer = restore(final.answer)
        yield Outcome(answer=answer, finish_reason=final.finish_reason, metrics=metrics, warnings=warnings)
