"""Sets of questions with their right answers, one JSON object a line, in our form and in those of known libraries.

| form | its fields | what is read |
| --- | --- | --- |
| ours | `question`, and `answer`, `schema`, `pattern` or `tests` | see docs/guides/evaluation.md |
| GSM8K | `question`, `answer` with `#### 42` at its end | the number |
| inspect-ai | `input`, `target`, perhaps `choices` and `id` | text, or a choice if there are some |
| lm-eval and Hugging Face | `question`, `choices`, `answer` or `answerKey` as a number or a letter | a choice |
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import SettingsError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_ITEMS: Final = 1_000_000
"""Most items of a set."""

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SOLUTION: Final = re.compile(r"####\s*(\S.*)\s*$")
_NUMBER: Final = re.compile(r"[-+]?[$€£]?\d[\d,]*(?:\.\d+)?%?")
_OTHER_NAMES: Final = {"input": "question", "prompt": "question", "target": "answer", "answerKey": "answer"}
_SHOWN: Final = 60


class Grader(StrEnum):
    """How an answer is compared with the right one."""

    NUMBER = "number"
    CHOICE = "choice"
    TEXT = "text"
    PATTERN = "pattern"
    JSON = "json"
    PYTHON = "python"
    JUDGE = "judge"


@value
class Item:
    """One question with its right answer.

    Attributes:
        item_id: its name in reports; of those without one the number of the line.
        right: the right answer; for JSON the value as JSON, empty where its schema alone decides.
        kind: a label by which reports are divided; empty for none.
        choices: the texts of the choices, in the order of their letters.
        schema: the JSON Schema of the answer; None for none.
        pattern: the regular expression that finds the right answer.
        tests: Python code that fails if the program of the answer, which stands before it, is wrong.
    """

    item_id: str
    question: str
    grader: Grader
    right: str = ""
    material: str = ""
    system: str = ""
    kind: str = ""
    choices: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    pattern: str = ""
    tests: str = ""

    @property
    def asked(self) -> str:
        """The question as it is sent: with the choices by their letters."""
        if not self.choices:
            return self.question
        lines = [f"{letter}) {text}" for letter, text in zip(_LETTERS, self.choices, strict=False)]
        return "\n".join([self.question, *lines, "Answer with the letter of the right choice."])


def read_items(path: Path, *, grader: Grader | None = None) -> Sequence[Item]:
    """Read a set; `grader` overrides the one that follows from what an item has.

    Raises:
        SettingsError: the file cannot be read, or a line is no item; the error names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise SettingsError(f"the set {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"the set {str(path)!r} is not UTF-8 text (byte {error.start})") from None
    items = [_read_line(line, number, grader) for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise SettingsError(f"the set {str(path)!r} has no items", remedy="One JSON object a line.")
    if len(items) > MAX_ITEMS:
        raise SettingsError(f"the set has {len(items):,} items; at most {MAX_ITEMS:,} are compared")
    seen: dict[str, int] = {}
    for number, item in enumerate(items, 1):
        if item.item_id in seen:
            other = seen[item.item_id]
            raise SettingsError(f"the items {other} and {number} have the same id {item.item_id[:_SHOWN]!r}")
        seen[item.item_id] = number
    return items


def _read_line(line: str, number: int, grader: Grader | None) -> Item:
    example = 'Such as {"question": "What is 6 times 7?", "answer": "42"}.'
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise SettingsError(f"line {number} of the set is no JSON", remedy=example) from None
    if not isinstance(found, dict):
        raise SettingsError(f"line {number} of the set is no JSON object", remedy=example)
    fields = {_OTHER_NAMES.get(str(name), str(name)): each for name, each in found.items()}
    try:
        return _read_item(fields, number, grader)
    except ValueError as error:
        raise SettingsError(f"line {number} of the set: {error}", remedy=example) from None


def _read_item(fields: Mapping[str, Any], number: int, grader: Grader | None) -> Item:
    question = _read_text(fields, "question")
    if not question.strip():
        raise ValueError("it has no question")
    choices = _read_choices(fields.get("choices"))
    right = _read_right(fields.get("answer"), choices)
    schema = fields.get("schema")
    if schema is not None and not isinstance(schema, dict):
        raise ValueError("its schema is no JSON object")
    pattern, tests = _read_text(fields, "pattern"), _read_text(fields, "tests")
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"its pattern is no regular expression ({error.msg})") from None
    item = Item(
        item_id=str(fields.get("id", number)),
        question=question,
        grader=grader or _read_grader(fields) or _choose_grader(right, choices, schema, pattern, tests),
        right=right,
        material=_read_text(fields, "material"),
        system=_read_text(fields, "system"),
        kind=_read_text(fields, "kind"),
        choices=choices,
        schema=schema,
        pattern=pattern,
        tests=tests,
    )
    needs = {Grader.PATTERN: pattern, Grader.PYTHON: tests, Grader.JSON: schema or right, Grader.CHOICE: choices}
    if not needs.get(item.grader, right):
        raise ValueError(f"it has nothing that the grader {item.grader.value!r} can compare an answer with")
    return item


def _read_grader(fields: Mapping[str, Any]) -> Grader | None:
    name = fields.get("grader")
    if name is None:
        return None
    if name not in list(Grader):
        raise ValueError(f"there is no grader {str(name)[:_SHOWN]!r}; there are {', '.join(Grader)}")
    return Grader(name)


def _choose_grader(right: str, choices: Sequence[str], schema: object, pattern: str, tests: str) -> Grader:
    for has, grader in ((tests, Grader.PYTHON), (schema, Grader.JSON), (pattern, Grader.PATTERN)):
        if has:
            return grader
    if choices:
        return Grader.CHOICE
    return Grader.NUMBER if _NUMBER.fullmatch(right.strip()) else Grader.TEXT


def _read_text(fields: Mapping[str, Any], name: str) -> str:
    found = fields.get(name, "")
    if not isinstance(found, str):
        raise ValueError(f"its {name} is no text")  # noqa: TRY004 - what is wrong is a value of a file
    return found


def _read_choices(found: object) -> Sequence[str]:
    """Read the choices: a list of texts, or, as ARC has them, an object with `text` and perhaps `label`."""
    if isinstance(found, dict):
        found = found.get("text")
    if found is None:
        return ()
    if not isinstance(found, list) or not 1 < len(found) <= len(_LETTERS):
        raise ValueError(f"its choices are no list of 2 to {len(_LETTERS)} texts")
    return tuple(map(str, found))


def _read_right(found: object, choices: Sequence[str]) -> str:
    """Return the right answer as text; of choices their letter."""
    if isinstance(found, list):
        found = found[0] if len(found) == 1 else json.dumps(found, ensure_ascii=False)
    if choices:
        return _read_letter(found, choices)
    if found is None:
        return ""
    if isinstance(found, str):
        solution = _SOLUTION.search(found)
        return solution[1].strip() if solution else found
    return json.dumps(found, ensure_ascii=False)


def _read_letter(found: object, choices: Sequence[str]) -> str:
    letters = _LETTERS[: len(choices)]
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < len(choices):
        return letters[found]
    if isinstance(found, str):
        if found.strip().upper() in tuple(letters):
            return found.strip().upper()
        if found in choices:
            return letters[list(choices).index(found)]
        if found.isdecimal() and int(found) < len(choices):
            return letters[int(found)]
    raise ValueError(f"its answer {str(found)[:_SHOWN]!r} names none of its {len(choices)} choices")
