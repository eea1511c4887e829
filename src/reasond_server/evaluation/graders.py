"""Verdicts: whether an answer is right, read as generously for every strategy as a person would read it.

What no rule can compare is judged by a model that sees the right answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Protocol

import reasond
from reasond_server.context.answers import extract_answer
from reasond_server.context.vote_forms import normalize_answer
from reasond_server.dialects.code_blocks import choose_python, read_blocks
from reasond_server.evaluation.items import Grader, Item
from reasond_server.tools.json_schemas import build_validator
from reasond_server.tools.programs import NO_PROGRAMS, ProgramRunner
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond import AsyncClient

_SCHEMA: Final = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "is_same": {"type": "boolean"}},
    "required": ["reason", "is_same"],
    "additionalProperties": False,
}


@dataclass(eq=False, kw_only=True)
class ModelJudge:
    """Asks a model whether an answer says the same as the right one, once for equal answers.

    Args:
        model: the name of the judge's backend; empty for the server's own model.

    Attributes:
        tokens: what all judgements of this process took.
    """

    client: AsyncClient
    model: str = ""
    timeout_s: float = 600.0
    tokens: int = field(default=0, init=False)

    async def __call__(self, item: Item, answer: str) -> Grade:
        """Return the verdict; see the port."""
        parts = {"question": item.asked, "right_answer": item.right, "answer_to_judge": answer}
        material = json.dumps(parts, ensure_ascii=False, indent=1)
        digest = hashlib.sha256(f"{self.model}\n{material}".encode()).hexdigest()[:40]
        try:
            result = await self.client.reason(
                "Does answer_to_judge give the same final answer to the question as right_answer? Wording, form and "
                "length do not count; what is asked for must be the same.",
                material=material,
                strategy="chain_of_thought",
                config={"temperature": 0.0},
                model=self.model or None,
                answer_schema=_SCHEMA,
                request_id=f"eval-judge-{digest}",
                timeout_s=self.timeout_s,
            )
        except (reasond.ModelError, reasond.DeadlineExceededError) as error:
            return Grade(is_right=False, note=f"not judged: {error.message}")
        self.tokens += result.metrics.total_tokens
        if not result.answer_json:
            return Grade(is_right=False, note="not judged: the judge's answer could not be read")
        found = json.loads(result.answer_json)
        return Grade(is_right=found["is_same"], note=f"judge: {found['reason']}")


_NUMBER: Final = re.compile(r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])")
_CHOICE: Final = re.compile(r"(?<![A-Za-z0-9])\(?([A-Z])\)?(?![A-Za-z0-9'])")
_TEST_LIMIT_S: Final = 20.0
_SHOWN: Final = 300
# A double is off by at most 1.2e-16 of its value after one operation: this is room for eight.
_DOUBLE_PRECISION: Final = 10**15


@value
class Grade:
    """Whether an answer is right, and why not where that is not plain."""

    is_right: bool
    note: str = ""


class Judge(Protocol):
    """Judges whether an answer to a question says the same as the right one."""

    async def __call__(self, item: Item, answer: str) -> Grade:
        """Return the verdict; a judgement that cannot be read is a note and not right."""


@dataclass(eq=False, kw_only=True)
class Graders:
    """Grades answers.

    Args:
        programs: runs the tests of programs.
        judge: for items of the grader `judge`; None refuses them.
    """

    programs: ProgramRunner = NO_PROGRAMS
    judge: Judge | None = None

    def find_obstacle(self, items: Sequence[Item]) -> str:
        """Return why some of `items` cannot be graded here, in a sentence; empty if all can."""
        wanted = {item.grader for item in items}
        if Grader.PYTHON in wanted and not self.programs.is_available:
            return "Some items have tests in Python, and there is no sandbox to run them in"
        if Grader.JUDGE in wanted and self.judge is None:
            return "Some items are for a judge, and none is named"
        return ""

    async def grade(self, item: Item, *, answer: str, answer_json: str = "") -> Grade:
        """Return the verdict on an answer; an empty one is wrong.

        Raises:
            SandboxUnavailableError: the tests could not be run.
        """
        if not answer.strip() and not answer_json:
            return Grade(is_right=False, note="there is no answer")
        if item.grader is Grader.PYTHON:
            return await self._run_tests(item, answer)
        if item.grader is Grader.JSON:
            return _grade_json(item, answer_json or answer)
        if item.grader is Grader.JUDGE and self.judge is not None:
            return await self.judge(item, answer)
        return Grade(is_right=_COMPARE[item.grader](answer, item))

    async def _run_tests(self, item: Item, answer: str) -> Grade:
        source = f"{_read_program(answer)}\n\n{item.tests}\n"
        result = await self.programs.run(source, material=item.material, most_s=_TEST_LIMIT_S)
        if result.exceeded:
            return Grade(is_right=False, note=f"the program took {result.exceeded}")
        if result.exit_code:
            return Grade(is_right=False, note=result.output.strip()[-_SHOWN:])
        return Grade(is_right=True)


def _read(answer: str) -> str:
    return normalize_answer(extract_answer(answer) or answer)


def _is_text(answer: str, item: Item) -> bool:
    return _read(answer) == normalize_answer(item.right)


def _has_pattern(answer: str, item: Item) -> bool:
    return re.search(item.pattern, answer) is not None


def _has_number(answer: str, item: Item) -> bool:
    """Return whether the conclusion of `answer` is the right number, or else the last number that it has is."""
    if _is_text(answer, item):
        return True
    wanted, found = _find_last_number(item.right), _find_last_number(extract_answer(answer) or answer)
    return wanted is not None and found is not None and is_same_number(wanted, found)


def is_same_number(wanted: Fraction, found: Fraction) -> bool:
    """Return whether a number is the wanted one; what a double is off by, as in 0.1 + 0.2, does not count."""
    return wanted == found or (found.denominator > 1 and abs(wanted - found) <= abs(wanted) / _DOUBLE_PRECISION)


def _find_last_number(text: str) -> Fraction | None:
    found = _NUMBER.findall(text)
    return Fraction(found[-1].replace(",", "").replace("\u2212", "-")) if found else None


def _is_choice(answer: str, item: Item) -> bool:
    return _read_choice(answer, item) == item.right


def _read_choice(answer: str, item: Item) -> str:
    """Return the letter of the choice that `answer` names by letter or by text; empty if it names none."""
    conclusion = extract_answer(answer) or answer
    found = _CHOICE.findall(conclusion)
    if found:
        # "A" also begins sentences; at the end of a conclusion it is a choice.
        return str(found[-1])
    folded = conclusion.casefold().strip(" .*`\"'")
    if len(folded) == 1:
        return folded.upper()
    named = [number for number, text in enumerate(item.choices) if text.casefold() in folded]
    return chr(ord("A") + named[0]) if len(named) == 1 else ""


def _grade_json(item: Item, answer: str) -> Grade:
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return Grade(is_right=False, note="the answer is no JSON")
    if item.schema is not None and (problems := build_validator(dict(item.schema))(found)):
        return Grade(is_right=False, note=f"{problems[0].field}: {problems[0].description}"[:_SHOWN])
    return Grade(is_right=not item.right or found == json.loads(item.right))


def _read_program(answer: str) -> str:
    """Return the program in `answer`: its fenced blocks one after the other, or else all of it.

    Beside blocks that are marked as Python others, such as what an example prints, are left out.
    """
    return "\n\n".join(block.text for block in choose_python(read_blocks(answer))) or answer


_COMPARE: Final[Mapping[Grader, Callable[[str, Item], bool]]] = {
    Grader.NUMBER: _has_number,
    Grader.CHOICE: _is_choice,
    Grader.TEXT: _is_text,
    Grader.PATTERN: _has_pattern,
}
