"""Answers that must satisfy a JSON Schema: what the model is told of it, and how an answer is read, however dressed."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.base.asyncio_tasks import FairSemaphore
from reasond_server.dialects.code_blocks import read_blocks
from reasond_server.tools.json_parser import read_strict_json
from reasond_server.tools.json_schemas import build_validator
from reasond_server.tools.programs import ProgramResult, clip_output
from reasond_server.tools.schema_steps import SchemaUnusableError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reasond_server.types import Json

_WRAPPERS: Final = frozenset(
    ("answer", "final_answer", "result", "output", "response", "json", "data", "value", "properties")
)
_MOST_CHARACTERS: Final = 50_000
_MOST_VALUES: Final = 5
# Of a string only line feeds are escaped; around strings, comments and commas before a bracket are dropped, Python's
# words read, and names put into quotes.
_TOKEN: Final = re.compile(
    r'"(?P<string>(?:[^"\\]|\\.)*)"|\u201c(?P<curly>[^"\\\n\u201d]*)\u201d|(?<=[{,\s])(?P<name>[A-Za-z_]\w{0,63})(?=\s{0,8}:)|(?P<comment>//[^\n]*|/\*.{0,2000}?\*/|(?<![\w\]}"])#[^\n]*)|'
    r"(?P<comma>,(?=(?:\s++|//[^\n]*+|/\*[^*]{0,200}+\*/)*+[}\]]))"
    r"|(?P<word>\b(?:True|False|None|NaN|undefined)\b)|'(?P<single>(?:[^'\\\n]|\\.)*)'",
    re.DOTALL,
)
_REFERENCE: Final = re.compile(r"\[\d{1,3}\]")
_WORDS: Final = {"True": "true", "False": "false", "None": "null", "NaN": "null", "undefined": "null"}


def read_dressed(text: str) -> Iterator[Sequence[object]]:
    """Yield the values that `text` may be, in groups: the values of one group are equally likely."""
    text = text.strip().strip("\ufeff").strip()
    is_long = len(text) > _MOST_CHARACTERS
    parts = [[text], [block.text for block in read_blocks(text)], [] if is_long else list(_cut_out(text))]
    for group in parts:
        yield [value for part in group for value in _read(part)]
    for group in [] if is_long else parts:
        yield [value for part in group for value in _read(_TOKEN.sub(_write_token, part))]


def unwrap(value: object) -> object:
    """Return what stands in a member such as "answer", in a list of one, or in a string; else `value` itself."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)).casefold() in _WRAPPERS:
        return next(iter(value.values()))
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    if isinstance(value, str):
        return next(iter(_read(value)), value)
    return value


def _read(text: str) -> Sequence[object]:
    """Return the value of a text that is JSON, in a list; an empty list for any other text."""
    try:
        return [read_strict_json(text.strip())]
    except ValueError:
        return []


def _write_token(found: re.Match[str]) -> str:
    if found["comment"] is not None or found["comma"] is not None:
        return ""
    if (word := found["word"]) is not None:
        return _WORDS[word]
    if (name := found["name"] or found["curly"]) is not None:
        return f'"{name}"'
    if (string := found["string"]) is not None:
        return '"' + string.replace("\n", "\\n").replace("\t", "\\t") + '"'
    if (single := found["single"]) is not None:
        return '"' + single.replace("\\'", "'").replace('"', '\\"') + '"'
    return found[0]


def _cut_out(text: str) -> Iterator[str]:
    """Yield the outermost objects and lists of a text, 5 at most."""
    depth, start, count, is_string, is_escaped = 0, 0, 0, False, False
    for place, char in enumerate(text):
        if is_string:
            is_string = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"' and depth:
            is_string = True
        elif char in "{[":
            start = start if depth else place
            depth += 1
        elif char in "}]" and depth:
            depth -= 1
            if not depth and not _REFERENCE.fullmatch(text, start, place + 1):
                yield text[start : place + 1]
                count += 1
                if count == _MOST_VALUES:
                    return


_MOST_WAITING: Final = 256
_NO_JSON: Final = "it is not JSON, or something stands around the JSON"
_SEVERAL: Final = "it holds several JSON values that satisfy it: write the one that is the answer"


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
        """Check `answer`, and what it is without its dressings, see `dressed_json`. It may take 1 s: use a thread."""
        problems: Sequence[str] = ()
        for group in read_dressed(answer):
            try:
                checked = self._choose(group)
            except SchemaUnusableError as error:
                return CheckedAnswer(problems=(f"it cannot be checked: the schema {error}",))
            if checked is not None and (checked.json or checked.problems == (_SEVERAL,)):
                return checked
            if checked is not None and not problems:
                problems = checked.problems
        return CheckedAnswer(problems=problems or (_NO_JSON,))

    def _choose(self, values: Sequence[object]) -> CheckedAnswer | None:
        """Return the only value that satisfies the schema, or what is wrong with the first; None without a value."""
        for group in (values, [unwrap(each) for each in values]):
            right = {_write_compact(each) for each in group if not self._find_violations(each)}
            if right:
                return CheckedAnswer(json=right.pop()) if len(right) == 1 else CheckedAnswer(problems=(_SEVERAL,))
        if not values:
            return None
        found = self._find_violations(values[0])
        return CheckedAnswer(problems=[f"{each.field or 'the value'} {each.description}" for each in found])


class SchemaCompiler:
    """Compiles the schemas of callers in a thread, one at a time.

    A compilation holds the interpreter for up to 0.2 s: the event loop has its turn between two of them.
    """

    def __init__(self, *, build: Callable[[Json], AnswerSchema] = AnswerSchema) -> None:
        self._build = build
        self._lock = asyncio.Lock()
        self._turns = FairSemaphore(
            permits=1, most_waiting=_MOST_WAITING, waiters="requests with a schema that is to be checked"
        )

    async def check(self, schema: Json, *, tenant: str) -> None:
        """Compile `schema` for a request that has not begun; tenants take turns.

        Raises:
            SchemaUnusableError: it cannot be used; the text says why.
            OverloadedError: too many requests wait for this.
        """
        async with self._turns.acquire(tenant):
            await self.compile(schema)

    async def compile(self, schema: Json) -> AnswerSchema:
        """Return the compiled `schema` of a run, which has waited for its place before.

        Raises:
            SchemaUnusableError: as `check`.
        """
        await self._lock.acquire()
        # A thread goes on when its caller has left, and holds the lock until it ends.
        working = asyncio.ensure_future(asyncio.to_thread(self._build, schema))
        working.add_done_callback(self._note_end)
        return await asyncio.shield(working)

    def _note_end(self, working: asyncio.Future[AnswerSchema]) -> None:
        self._lock.release()
        if not working.cancelled():
            # Nobody retrieves it when the caller has left.
            working.exception()


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
    note = f"The check was ended: it took {result.exceeded}.\n" if result.exceeded else ""
    is_right = result.exit_code == 0 and not result.exceeded
    return VerifiedAnswer(is_right=is_right, printed=(note + clip_output(result.output.strip())).strip())
