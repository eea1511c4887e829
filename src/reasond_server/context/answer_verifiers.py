"""What tells right answers from wrong ones without a model: the schema of the answer, or a program of the caller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from reasond_server.tools.programs import clip_output
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.context.answer_schemas import AnswerSchema
    from reasond_server.tools.programs import ProgramResult


class AnswerCheck(Protocol):
    """Runs a program that checks answers, as `ProgramRunner.run` does."""

    async def __call__(self, *, answer: str) -> ProgramResult:
        """Run it with `answer` in its file answer.txt."""
        ...


@value
class VerifiedAnswer:
    """Whether an answer is right, and what its check printed."""

    is_right: bool
    printed: str = ""


async def verify_by_schema(schema: AnswerSchema, answer: str) -> VerifiedAnswer:
    """Return whether `answer` is JSON that satisfies `schema`."""
    found = await asyncio.to_thread(schema.check, answer)
    return VerifiedAnswer(is_right=bool(found.json))


async def verify_by_program(check: AnswerCheck, answer: str) -> VerifiedAnswer:
    """Return whether the program accepts `answer`: it exits with 0, and within its limits.

    Raises:
        SandboxUnavailableError: it could not be run.
    """
    result = await check(answer=answer)
    told = f"The check was ended: it took {result.exceeded}.\n" if result.exceeded else ""
    is_right = result.exit_code == 0 and not result.exceeded
    return VerifiedAnswer(is_right=is_right, printed=(told + clip_output(result.output.strip())).strip())
