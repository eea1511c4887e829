"""What happens to a strategy's answer before the client gets it: stop strings cut it, and it must satisfy a schema."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import measure_room, stream_reply, take_reply
from reasond_server.context.sections import build_prompt
from reasond_server.context.tags import TagKind, restore
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import (
    AnswerInvalidError,
    ContextExhaustedError,
    ModelUnavailableError,
    RequestRefusedError,
)
from reasond_server.errors.request import InvalidRequestError
from reasond_server.llm.model import ChatModel, Message, ModelFinish, can_enforce_schema
from reasond_server.llm.stop_filter import StopFilter
from reasond_server.tools.schema_steps import SchemaUnusableError
from reasond_server.types import FinishReason, Json, Task
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from reasond_server.context.answer_schemas import AnswerSchema, SchemaCompiler
    from reasond_server.strategies.strategy import Outcome

_MOST_TOKENS: Final = 4096
_MOST_THOUGHT_CHARACTERS: Final = 6_000
_TEMPERATURE: Final = 0.0
_WHOLE: Final = (FinishReason.ANSWERED, FinishReason.ANSWERED_UNTAGGED, FinishReason.MAX_ITERATIONS)
_NOTES: Final = "<notes> has an answer to <question> that does not satisfy the JSON Schema above, and says why. "
_RULES: Final = _NOTES + "Correct it: write <answer>the JSON value</answer> and nothing else."
_ENFORCED_RULES: Final = _NOTES + "Correct it: write the JSON value and nothing else."


@value
class FinishedAnswer:
    """The outcome of a strategy with its last answer; `error` is set if the answer does not satisfy the schema.

    `stop_sequence` is the stop string that ended the answer.
    """

    outcome: Outcome
    json: str = ""
    error: AnswerInvalidError | None = None
    stop_sequence: str = ""


async def check_schema(schema: Json, *, schemas: SchemaCompiler, tenant: str) -> None:
    """Refuse a schema that cannot be used.

    Raises:
        InvalidRequestError: it cannot be used.
        OverloadedError: too many requests wait for this.
    """
    with _refuse_unusable():
        await schemas.check(schema, tenant=tenant)


@contextmanager
def _refuse_unusable() -> Generator[None, None, None]:
    try:
        yield
    except SchemaUnusableError as error:
        raise InvalidRequestError.at("answer_schema", str(error)) from None


async def finish_answer(
    outcome: Outcome,
    task: Task,
    *,
    model: ChatModel,
    window: int | None,
    new_nonce: Callable[[], str],
    schemas: SchemaCompiler,
    thoughts: str = "",
) -> FinishedAnswer:
    """Return the outcome with the answer that `task` asks for.

    The model has thought freely. An answer that does not satisfy the schema is brought into its form by one more call
    of `model`, of at most `window` tokens, which reads the `thoughts` that led to it. Where the model's server enforces
    schemas, it holds this call to the schema.

    Raises:
        ReasondError: the call failed.
    """
    matched = ""
    if task.stop and outcome.answer:
        answer, matched = cut_at_stop(outcome.answer, task.stop)
        outcome = replace(outcome, answer=answer)
    if task.answer_schema is None:
        return FinishedAnswer(outcome=outcome, stop_sequence=matched)
    with _refuse_unusable():
        schema = await schemas.compile(task.answer_schema)
    checked = await asyncio.to_thread(schema.check, outcome.answer)
    if checked.json:
        return FinishedAnswer(outcome=outcome, json=checked.json)
    problems = "; ".join(checked.problems)
    if outcome.finish_reason not in _WHOLE or not outcome.answer:
        return FinishedAnswer(outcome=_warn(outcome, f"The answer does not satisfy answer_schema: {problems}."))
    correction = _Correction(
        task=task, answer=outcome.answer, problems=checked.problems, thoughts=thoughts, model=model, nonce=new_nonce()
    )
    return await _write_again(outcome, schema, correction, problems=problems, window=window)


async def _write_again(
    outcome: Outcome, schema: AnswerSchema, correction: _Correction, *, problems: str, window: int | None
) -> FinishedAnswer:
    """Return the outcome with what the correction wrote, or the error if that does not satisfy the schema either."""
    try:
        corrected = await correction.write(window)
    except TokenBudgetExhaustedError as refusal:
        why = f"it was not corrected: {refusal.message}."
        warning = f"The answer does not satisfy answer_schema ({problems}), and {why}"
        return FinishedAnswer(outcome=replace(_warn(outcome, warning), finish_reason=FinishReason.BUDGET_EXHAUSTED))
    except ContextExhaustedError as refusal:
        return FinishedAnswer(outcome=outcome, error=_build_error(problems, f"It was not corrected: {refusal.message}"))
    again = await asyncio.to_thread(schema.check, corrected)
    if again.json:
        warning = (
            f"The answer did not satisfy answer_schema ({problems}); one more model call corrected it{correction.how}."
        )
        return FinishedAnswer(outcome=_warn(replace(outcome, answer=again.json), warning), json=again.json)
    problem = correction.fault or "; ".join(again.problems)
    error = _build_error(problems, f"After a correction{correction.how}: {problem}")
    return FinishedAnswer(outcome=outcome, error=error)


def _build_error(problems: str, then: str) -> AnswerInvalidError:
    return AnswerInvalidError(
        f"The answer does not satisfy answer_schema: {problems}. {then}",
        remedy="Read the answer with GetExecution; make the schema simpler, or use a stronger model.",
    )


def cut_at_stop(answer: str, stop: Sequence[str]) -> tuple[str, str]:
    """Return the part of `answer` before the first of the `stop` strings, without white space at its end, and that one.

    It is empty if `answer` has none of them.
    """
    ending = StopFilter(stop)
    kept = ending.feed(answer)
    return (answer, "") if ending.matched is None else (kept.rstrip(), ending.matched)


def _warn(outcome: Outcome, warning: str) -> Outcome:
    return replace(outcome, warnings=(*outcome.warnings, warning))


@dataclass(eq=False, kw_only=True)
class _Correction:
    """One more call that brings `answer` into the form of the schema, which the preface of the model has.

    Attributes:
        how: who held the call to the schema, in words that follow a verb.
        fault: why what was written cannot be whole; empty if it can.
    """

    task: Task
    answer: str
    problems: Sequence[str]
    thoughts: str
    model: ChatModel
    nonce: str
    how: str = ""
    fault: str = ""

    async def write(self, window: int | None) -> str:
        """Return what the model wrote; a server that refuses to enforce the schema is asked without it.

        Raises:
            ReasondError: the call failed, or has no room.
        """
        if can_enforce_schema(self.model):
            try:
                written = await self._call(window, schema=self.task.answer_schema)
            except (RequestRefusedError, ModelUnavailableError):
                self.how = ", which the model's server would not hold to the schema"
            else:
                self.how = ", held to the schema by the model's server"
                return written
        return await self._call(window, schema=None)

    async def _call(self, window: int | None, *, schema: Json | None) -> str:
        kinds = () if schema else (TagKind.ANSWER,)
        try:
            messages, most = await self._fit(window, thoughts=self.thoughts[-_MOST_THOUGHT_CHARACTERS:], schema=schema)
        except ContextExhaustedError:
            messages, most = await self._fit(window, thoughts="", schema=schema)
        call = stream_reply(
            model=self.model,
            messages=messages,
            max_tokens=most,
            temperature=_TEMPERATURE,
            kinds=kinds,
            json_schema=schema,
        )
        reply = await take_reply(call)
        if reply.finish is ModelFinish.LENGTH:
            self.fault = f"it was cut off after {reply.usage.output_tokens} tokens"
        return restore((reply.parsed.content or reply.parsed.text).strip())

    async def _fit(self, window: int | None, *, thoughts: str, schema: Json | None) -> tuple[Sequence[Message], int]:
        """Return the prompt, and the tokens that may be written after it."""
        found = "\n".join(f"- {problem}" for problem in self.problems)
        before = f"What led to it:\n{thoughts}\n\n" if thoughts else ""
        messages = build_prompt(
            instructions=_ENFORCED_RULES if schema else _RULES,
            question=self.task.query,
            nonce=self.nonce,
            notes=f"{before}The answer:\n{self.answer}\n\nProblems:\n{found}",
        )
        most, _ = await measure_room(messages, max_tokens=_MOST_TOKENS, model=self.model, limit=window)
        return messages, most
