"""Answers that must satisfy a JSON Schema: what the model is told of it, and how an answer is read."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.tools.json_parser import read_strict_json
from reasond_server.tools.json_schemas import build_validator
from reasond_server.tools.programs import clip_output
from reasond_server.tools.schema_steps import SchemaUnusableError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.tools.programs import ProgramResult
    from reasond_server.types import Json


_FENCED: Final = re.compile(r"\A\s*```[a-zA-Z]{0,10}[ \t]*\n(?P<inner>.*)\n[ \t]*```\s*\Z", re.DOTALL)


@value
class CheckedAnswer:
    """An answer that was checked: `json` is its compact form, `problems` say why there is none."""

    json: str = ""
    problems: Sequence[str] = ()


class AnswerSchema:
    """A schema that answers must satisfy; see `tools.json_schemas` for what is checked.

    Raises:
        SchemaUnusableError: it cannot be used; the text says why.
    """

    def __init__(self, schema: Json) -> None:
        # Read again, because the library knows only plain dictionaries and lists.
        self._find_violations = build_validator(json.loads(_write_compact(schema)))
        # A schema that cannot be evaluated at all is found here, before anything is spent.
        self._find_violations(None)

    def check(self, answer: str) -> CheckedAnswer:
        """Check `answer`; a fence of Markdown around the whole of it is ignored. It may take 0.2 s: use a thread."""
        fenced = _FENCED.match(answer)
        text = (fenced["inner"] if fenced else answer).strip()
        try:
            found = read_strict_json(text)
        except ValueError:
            return CheckedAnswer(problems=("it is not JSON, or something stands around the JSON",))
        try:
            violations = self._find_violations(found)
        except SchemaUnusableError as error:
            return CheckedAnswer(problems=(f"it cannot be checked: the schema {error}",))
        if violations:
            return CheckedAnswer(problems=[f"{each.field or 'the value'} {each.description}" for each in violations])
        return CheckedAnswer(json=_write_compact(found))


def write_schema_rule(schema: Json) -> str:
    """Return what the model is told of the schema of its answer."""
    return (
        "The final answer must be one JSON value that satisfies the JSON Schema below, with nothing around it; the way "
        f"to it may be plain text.\n{_write_compact(schema)}"
    )


def _write_compact(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"), default=dict)


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
