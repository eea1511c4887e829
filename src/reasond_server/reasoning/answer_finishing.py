"""What happens to a strategy's answer before the client gets it: stop strings cut it, and it must satisfy a schema."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.context.answer_schemas import AnswerSchema
from reasond_server.context.calls import ModelReply, hear, measure_room
from reasond_server.context.sections import build_prompt
from reasond_server.context.tags import TagKind, restore
from reasond_server.errors.base import Violation
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import AnswerInvalidError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.llm.stop_filter import StopFilter
from reasond_server.tools.schema_steps import SchemaUnusableError
from reasond_server.types import FinishReason
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.model import ChatModel
    from reasond_server.strategies.strategy import Outcome
    from reasond_server.types import Json, Task

_MOST_TOKENS: Final = 4096
_TEMPERATURE: Final = 0.0
_WHOLE: Final = (FinishReason.ANSWERED, FinishReason.ANSWERED_UNTAGGED, FinishReason.MAX_ITERATIONS)
_RULES: Final = (
    "<notes> has an answer to <question> that does not satisfy the JSON Schema above, and says why. Correct it: write "
    "<answer>the JSON value</answer> and nothing else."
)


@value
class FinishedAnswer:
    """The outcome of a strategy with its last answer; `error` is set if the answer does not satisfy the schema."""

    outcome: Outcome
    json: str = ""
    error: AnswerInvalidError | None = None


def compile_schema(schema: Json) -> AnswerSchema:
    """Return the schema for checking answers; it may take 0.2 s, so call it in a thread.

    Raises:
        InvalidRequestError: it cannot be used.
    """
    try:
        return AnswerSchema(schema)
    except SchemaUnusableError as error:
        raise InvalidRequestError.of(Violation(field="answer_schema", description=str(error))) from None


async def finish_answer(
    outcome: Outcome, task: Task, *, model: ChatModel, window: int | None, new_nonce: Callable[[], str]
) -> FinishedAnswer:
    """Return the outcome with the answer that `task` asks for.

    An answer that does not satisfy the schema is corrected by one more call of `model`, of at most `window` tokens.

    Raises:
        ReasondError: the call failed.
    """
    if task.stop and outcome.answer:
        outcome = replace(outcome, answer=cut_at_stop(outcome.answer, task.stop))
    if task.answer_schema is None:
        return FinishedAnswer(outcome=outcome)
    schema = await asyncio.to_thread(compile_schema, task.answer_schema)
    checked = await asyncio.to_thread(schema.check, outcome.answer)
    if checked.json:
        return FinishedAnswer(outcome=outcome, json=checked.json)
    told = "; ".join(checked.problems)
    if outcome.finish_reason not in _WHOLE or not outcome.answer:
        return FinishedAnswer(outcome=_warn(outcome, f"The answer does not satisfy answer_schema: {told}."))
    try:
        corrected = await _correct(
            task.query, outcome.answer, checked.problems, model=model, window=window, nonce=new_nonce()
        )
    except TokenBudgetExhaustedError as refusal:
        warning = f"The answer does not satisfy answer_schema ({told}), and it was not corrected: {refusal.message}."
        return FinishedAnswer(outcome=replace(_warn(outcome, warning), finish_reason=FinishReason.BUDGET_EXHAUSTED))
    again = await asyncio.to_thread(schema.check, corrected)
    if again.json:
        warning = f"The answer did not satisfy answer_schema ({told}); one more model call corrected it."
        return FinishedAnswer(outcome=_warn(replace(outcome, answer=again.json), warning), json=again.json)
    problem = "; ".join(again.problems)
    error = AnswerInvalidError(
        f"The answer does not satisfy answer_schema: {told}. After a correction: {problem}",
        remedy="Read the answer with GetExecution; make the schema simpler, or use a stronger model.",
    )
    return FinishedAnswer(outcome=outcome, error=error)


def cut_at_stop(answer: str, stop: Sequence[str]) -> str:
    """Return the part of `answer` before the first of the `stop` strings, without white space at its end."""
    ending = StopFilter(stop)
    kept = ending.feed(answer)
    return kept.rstrip() if ending.matched is not None else answer


def _warn(outcome: Outcome, warning: str) -> Outcome:
    return replace(outcome, warnings=(*outcome.warnings, warning))


async def _correct(
    question: str, answer: str, problems: Sequence[str], *, model: ChatModel, window: int | None, nonce: str
) -> str:
    """Ask the model once to bring `answer` into the form of the schema, which its preface has; return what it wrote."""
    found = "\n".join(f"- {problem}" for problem in problems)
    messages = build_prompt(
        instructions=_RULES, question=question, nonce=nonce, notes=f"The answer:\n{answer}\n\nProblems:\n{found}"
    )
    most, _ = await measure_room(messages, max_tokens=_MOST_TOKENS, model=model, limit=window)
    written = ""
    call = hear(model=model, messages=messages, max_tokens=most, temperature=_TEMPERATURE, kinds=(TagKind.ANSWER,))
    async with aclosing(call) as pieces:
        async for piece in pieces:
            if isinstance(piece, ModelReply):
                written = piece.parsed.content or piece.parsed.text
    return restore(written.strip())
