"""Repairs of the demo model: one-line edits of the Python files in a prompt, one per call, failing lines first.

A prompt asks for a repair if its system message has the form of edits and its last user message ends with the line
`Attempt N`, N from 1. Each file is a section `<material>` below a line `File path:`. The Nth attempt is the Nth edit of
`mutations` over all files that are no tests, in the order of their cost and of their distance from what the rest of the
prompt names: failing lines and their functions first. What stands behind `PreviousCandidate:` is ignored, so all
attempts of a repair count in one list. Attempts beyond its end say that there is none left.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from reasond_server.base.syntax import parse_module_tree
from reasond_server.demo.mutations import Mutation, find_mutations
from reasond_server.llm.model import Message, Role
from reasond_server.types.values import value

_REPAIRER: Final = "who repairs code"
_REQUEST: Final = "Name the faulty lines"
_ATTEMPT: Final = re.compile(r"Attempt (\d{1,6})")
_HEADING: Final = re.compile(r"File (.+\.py):")
_TAG: Final = re.compile(r"<(material|observation|question)( [a-z]{1,64})?>")
_PREVIOUS: Final = "PreviousCandidate:"
_FRAME: Final = re.compile(r'(?:File "([^"\n]+\.py)", line |(?:^|\s)([\w./-]+\.py):)(\d{1,7})', re.MULTILINE)
_TEST_FILE: Final = re.compile(r"(?:.*/)?(?:tests?/.*|test_[^/]*|[^/]*_test|tests?|conftest|setup|noxfile)\.py")
_WORD: Final = re.compile(r"[^\W\d]\w*")

_ON_THE_LINE = 0.0
_IN_THE_FUNCTION = 1.0
_PER_CALL = 0.75
_MOST_CALLS = 4
_ELSEWHERE = 5.0


@value
class LineEdit:
    """Whole lines of a file and what takes their place; `search` occurs in the file exactly once."""

    path: str
    line: int
    search: str
    replace: str


def read_attempt(messages: Sequence[Message]) -> int:
    """Return the number of the attempt that a prompt asks for, 0 if it asks for no repair."""
    if not any(one.role is Role.SYSTEM and _REPAIRER in one.content for one in messages):
        return 0
    found = _ATTEMPT.fullmatch(_last_asked(messages).rstrip().rpartition("\n")[2])
    return int(found[1]) if found else 0


def write_repair(messages: Sequence[Message], attempt: int) -> str:
    """Return the reply with the edit of this attempt, in the form of a search and a replacement."""
    files, evidence = read_sources(_last_asked(messages))
    edits = _list_edits(tuple(files.items()), evidence)
    if attempt > len(edits):
        return (
            f"The demo model has no edit left: it knows {len(edits)} one-line edits of these files, by fixed rules. "
            "Anything else needs a language model."
        )
    edit = edits[attempt - 1]
    size = 7
    while any(mark * size in edit.search + edit.replace for mark in "<=>"):
        size += 1
    return (
        f"Edit {attempt} of {len(edits)} that fixed rules make, in line {edit.line} of {edit.path}.\n\n"
        f"{edit.path}\n{'<' * size} SEARCH\n{edit.search}\n{'=' * size}\n{edit.replace}\n{'>' * size} REPLACE\n"
    )


def _last_asked(messages: Sequence[Message]) -> str:
    return next((one.content for one in reversed(messages) if one.role is Role.USER), "")


# One repair asks some hundred times with the same files, and the list of a file takes a tenth of a second.
@lru_cache(maxsize=4)
def _list_edits(files: Sequence[tuple[str, str]], evidence: str) -> Sequence[LineEdit]:
    """Return the edits of all files, the most promising first."""
    sources = {path: source for path, source in files if not _TEST_FILE.fullmatch(path)}
    near = _Evidence(sources, evidence)
    found = [
        (mutation.cost + near.measure_distance(path, mutation), place, path, mutation)
        for path, source in sources.items()
        for place, mutation in enumerate(find_mutations(source))
    ]
    found.sort(key=lambda one: one[:3])
    seen: set[tuple[str, str]] = set()
    edits = []
    for _, _, path, mutation in found:
        changed = _apply(sources[path], mutation)
        if (path, changed) in seen or changed == sources[path] or not _is_python(changed):
            continue
        seen.add((path, changed))
        edits.append(_to_lines(path, sources[path], mutation))
    return edits


def read_sources(text: str) -> tuple[Mapping[str, str], str]:
    """Return the Python files of a prompt by path, and all else up to the form of edits or the previous candidate."""
    files: dict[str, str] = {}
    rest: list[str] = []
    lines = text.split("\n")
    place = 0
    while place < len(lines) and lines[place] != _PREVIOUS and not lines[place].startswith(_REQUEST):
        line = lines[place]
        place += 1
        if not (tag := _TAG.fullmatch(line)):
            # The number of the attempt must not change the order.
            rest += [] if _ATTEMPT.fullmatch(line) else [line]
            continue
        closing = f"</{tag[1]}{tag[2] or ''}>"
        end = next((one for one in range(place, len(lines)) if lines[one] == closing), len(lines))
        content = "\n".join(lines[place:end])
        heading = _HEADING.fullmatch(rest[-1]) if rest else None
        if heading:
            files.setdefault(heading[1], content)
        elif tag[1] != "material":
            rest.append(content)
        place = end + 1
    return files, "\n".join(rest)


class _Evidence:
    """What the evidence of a prompt says about where the fault is."""

    def __init__(self, sources: Mapping[str, str], evidence: str) -> None:
        self._lines: set[tuple[str, int]] = set()
        for match in _FRAME.finditer(evidence):
            named = match[1] or match[2]
            self._lines.update((path, int(match[3])) for path in sources if f"/{named}".endswith(f"/{path}"))
        words = set(_WORD.findall(evidence))
        names = {word.removeprefix("test_") for word in words if word.startswith("test_")}
        calls = dict(_list_calls(sources, self._lines))
        reached = {
            name for name in calls if name in words or any(one == name or one.startswith(f"{name}_") for one in names)
        }
        reached |= {name for name, (_, is_failing) in calls.items() if is_failing}
        self._distances: dict[str, float] = {}
        for depth in range(_MOST_CALLS):
            for name in reached:
                self._distances.setdefault(name, _IN_THE_FUNCTION + depth * _PER_CALL)
            reached = {called for name in reached for called in calls[name][0] if called in calls}

    def measure_distance(self, path: str, mutation: Mutation) -> float:
        """Return how far an edit is from what the evidence names, 0 for a failing line."""
        if (path, mutation.line) in self._lines:
            return _ON_THE_LINE
        return self._distances.get(mutation.function, _ELSEWHERE)


def _list_calls(
    sources: Mapping[str, str], lines: set[tuple[str, int]]
) -> Iterator[tuple[str, tuple[frozenset[str], bool]]]:
    """Yield each function with the names that it calls, and whether a failing line is in it."""
    for path, source in sources.items():
        try:
            tree = parse_module_tree(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                called = frozenset(_find_name(one.func) for one in ast.walk(node) if isinstance(one, ast.Call))
                own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                yield node.name, (called, any(one == path and line in own for one, line in lines))


def _find_name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _apply(source: str, mutation: Mutation) -> str:
    content = source.encode()
    return (content[: mutation.start] + mutation.text.encode() + content[mutation.end :]).decode()


def _is_python(source: str) -> bool:
    try:
        parse_module_tree(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _to_lines(path: str, source: str, mutation: Mutation) -> LineEdit:
    """Return the edit over whole lines, with as many lines around it as make it unique."""
    content = source.encode()
    start = content.rfind(b"\n", 0, mutation.start) + 1
    behind = content.find(b"\n", mutation.end)
    end = len(content) if behind < 0 else behind
    while content.count(content[start:end]) > 1:
        if start > 0:
            start = content.rfind(b"\n", 0, start - 1) + 1
        else:
            behind = content.find(b"\n", end + 1)
            end = len(content) if behind < 0 else behind
    before, after = content[start : mutation.start], content[mutation.end : end]
    return LineEdit(
        path=path,
        line=mutation.line,
        search=content[start:end].decode(),
        replace=(before + mutation.text.encode() + after).decode(),
    )
