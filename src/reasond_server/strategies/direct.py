"""Direct: the question as it is, in one model call, without a word of ours."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS, ModelReply, measure_room, stream_reply
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import ChatModel, Message, ModelFinish, Role, find_most_logprobs
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig, Temperature, Wrote
from reasond_server.types import CostClass, CustomMetrics, FinishReason, Task, Thought, TokenChance

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.strategies.strategy import RunContext, StrategyEvent

_ENDS = {
    ModelFinish.STOP: FinishReason.ANSWERED,
    ModelFinish.CONTENT_FILTER: FinishReason.CONTENT_FILTERED,
}


class DirectConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    max_tokens: Annotated[int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write.")] = 4096
    temperature: Temperature = 0.0
    top_logprobs: Annotated[
        int | None,
        Field(
            ge=0, le=20, description="Likeliest tokens told in each place of the answer; null: no log probabilities."
        ),
    ] = None


class Direct(ReasoningStrategy[DirectConfig]):
    """One call with question and material, and nothing else: what every other strategy is measured against.

    Cost: one call of P + G tokens: P for question and material and G <= max_tokens of output. Memory: the reply.
    Latency: the time of the model for G tokens.

    Failure modes: a prompt that leaves fewer than 100 tokens of the model's context window is refused before anything
    is spent. The whole reply is the answer, its steps included; hidden reasoning is not. The material stands behind the
    question without a fence, so instructions in it are followed as if they were the caller's.
    """

    name: ClassVar[str] = "direct"
    description: ClassVar[str] = (
        "Asks the model as it is, in one call: the plain answer, and the measure of the others."
    )
    config_type: ClassVar[type[DirectConfig]] = DirectConfig
    cost_class: ClassVar[CostClass | None] = CostClass.CONSTANT
    cost_formula: ClassVar[str] = "1 model call that writes at most max_tokens"
    is_plain: ClassVar[bool] = True
    shows_answer: ClassVar[bool] = True
    is_replayable: ClassVar[bool] = True

    def check(self, task: Task, config: DirectConfig, model: ChatModel) -> None:  # noqa: ARG002 - as the base class has it
        """Refuse log probabilities that the model server does not tell.

        Raises:
            InvalidConfigError: it tells none.
        """
        if config.top_logprobs is not None and not find_most_logprobs(model):
            text = "must be left out: the server of this model tells no log probabilities"
            raise InvalidConfigError.at("top_logprobs", text)

    async def run(self, task: Task, context: RunContext[DirectConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Make one call; see the base class.

        Raises:
            ContextExhaustedError: the prompt leaves no room in the model's context window.
        """
        config, model = context.config, context.model
        text = f"{task.query}\n\n{task.material}" if task.material else task.query
        messages = (Message(role=Role.USER, content=text),)
        room, warnings = await measure_room(messages, max_tokens=config.max_tokens, model=model)
        call = stream_reply(
            model=model,
            messages=messages,
            max_tokens=room,
            temperature=config.temperature,
            kinds=(),
            top_logprobs=config.top_logprobs,
        )
        thinking: list[str] = []
        async with aclosing(call) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                elif piece.is_thinking:
                    thinking.append(piece.text)
                else:
                    yield Wrote(text=piece.text, thinking=thinking)
        answer = reply.parsed.text.strip()
        finish = _ENDS.get(reply.finish, FinishReason.TRUNCATED) if answer else FinishReason.TRUNCATED
        metrics = CustomMetrics(data={"max_tokens": room, "temperature": config.temperature})
        thought = Thought(text=reply.parsed.thinking.strip(), answer=answer)
        tokens = _find_tokens(reply.tokens, answer)
        yield Step(detail=thought, answer_found=finish is FinishReason.ANSWERED, metrics=metrics, tokens=tokens)
        relevant = warnings if "max_tokens" in config.model_fields_set or reply.finish is ModelFinish.LENGTH else ()
        yield Outcome(answer=answer, finish_reason=finish, metrics=metrics, warnings=relevant)


def _find_tokens(tokens: Sequence[TokenChance], answer: str) -> Sequence[TokenChance]:
    """Return those of `tokens` that have a part of `answer`, which ends the reply: reasoning may stand before it."""
    left = len("".join(each.text for each in tokens).rstrip())
    begin = left - len(answer)
    kept: list[TokenChance] = []
    at = 0
    for each in tokens:
        if begin < at + len(each.text) and at < left:
            kept.append(each)
        at += len(each.text)
    return tuple(kept)
