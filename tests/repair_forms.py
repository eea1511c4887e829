"""Right repairs of programs in the forms in which models write them, and whether they are kept.

Each case of `benchmarks.repair_cases` with one fault is a program whose right repair is known. Every form writes that
repair as models do; it is kept if the reader makes exactly the repaired code of it and changes nothing else.
"""

from __future__ import annotations

import ast
import difflib
import json
from dataclasses import dataclass
from functools import cache
from html import escape
from textwrap import dedent, indent
from typing import TYPE_CHECKING, Final

from benchmarks.repair_cases import Laboratory, build_cases
from reasond_server.repair.edits.edit_application import EditError, apply_edits, list_candidates, read_reply
from reasond_server.repair.edits.protection import build_protection
from reasond_server.types.repairs import SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PATH: Final = "src/work.py"
TEST: Final = "tests/test_work.py"
OTHER: Final = "src/other.py"
_OTHER_TEXT: Final = 'LIMIT = 7\n\n\ndef greet(name):\n    """Greet somebody."""\n    return f"Hello {name}"\n'
_TEST_TEXT: Final = "from work import *\n\n\ndef test_it():\n    assert True\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A faulty program, its repair, and the parts that forms write."""

    bad: str
    good: str
    old: str
    new: str
    name: str
    function: str
    diff: Sequence[str]


@cache
def list_programs(count: int) -> Sequence[Program]:
    """Return that many programs; to make them, hundreds of processes try changed code."""
    # Of the repairs of the cases, four in five are one change.
    cases = build_cases(Laboratory(), faults=1, limit=count + count // 2)
    made = (_make_program(case.stages[0], case.stages[-1]) for case in cases)
    return [program for program in made if program is not None][:count]


def _make_program(bad: str, good: str) -> Program | None:
    bad, good = f"# Work.\n{bad.rstrip()}\n", f"# Work.\n{good.rstrip()}\n"
    before, after = bad.splitlines(keepends=True), good.splitlines(keepends=True)
    changes = [
        each for each in difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes() if each[0] != "equal"
    ]
    if len(changes) != 1:
        return None
    _, begin, end, new_begin, new_end = changes[0]
    if end == begin or new_end == new_begin:
        return None
    for extra in range(8):
        lead, trail = min(extra, begin), min(extra, len(before) - end)
        old = "".join(before[begin - lead : end + trail])
        if bad.count(old) == 1 and f"\n{bad}".count(f"\n{old}") == 1:
            break
    else:
        return None
    inner = next(
        (
            node
            for node in ast.parse(good).body
            if isinstance(node, ast.FunctionDef) and node.lineno <= new_begin + 1 <= (node.end_lineno or 0)
        ),
        None,
    )
    if inner is None:
        return None
    first = min([inner.lineno, *(each.lineno for each in inner.decorator_list)])
    return Program(
        bad=bad,
        good=good,
        old=old,
        new="".join(after[new_begin - lead : new_end + trail]),
        name=inner.name,
        function="".join(after[first - 1 : inner.end_lineno]),
        diff=list(difflib.unified_diff(before, after, f"a/{PATH}", f"b/{PATH}"))[2:],
    )


def _block(program: Program, *, old: str | None = None, new: str | None = None) -> str:
    before, after = program.old if old is None else old, program.new if new is None else new
    return f"<<<<<<< SEARCH\n{before}=======\n{after}>>>>>>> REPLACE\n"


def _flat(text: str) -> str:
    return dedent(text)


def _wide(text: str) -> str:
    return f"\n{text}\n"


def _trailing(text: str) -> str:
    return text.replace("\n", "  \n")


def _tabs(text: str) -> str:
    lines = text.split("\n")
    depths = [len(line) - len(line.lstrip(" ")) for line in lines]
    return "\n".join("\t" * (depth // 4) + line.lstrip(" ") for depth, line in zip(depths, lines, strict=True))


def _halve(text: str) -> str:
    lines = text.split("\n")
    depths = [len(line) - len(line.lstrip(" ")) for line in lines]
    return "\n".join(" " * (depth // 2) + line.lstrip(" ") for depth, line in zip(depths, lines, strict=True))


def _diff(program: Program, *, head: str = f"--- a/{PATH}\n+++ b/{PATH}\n", shift: int = 0) -> str:
    hunks = list(program.diff)
    if shift:
        hunks = [f"@@ -{shift},3 +{shift},9 @@\n" if line.startswith("@@") else line for line in hunks]
    return head + "".join(hunks)


def _patch(program: Program) -> str:
    lines = "".join(line for line in program.diff if not line.startswith("@@"))
    return f"*** Begin Patch\n*** Update File: {PATH}\n@@\n{lines}*** End Patch\n"


def _patch_by_name(program: Program) -> str:
    removed = [line for line in program.diff if line[0] in "+-" and not line.startswith("@@")]
    head = program.function.splitlines()[0] if not program.function.startswith("@") else f"def {program.name}"
    context = "".join(line for line in program.diff if not line.startswith("@@"))
    return f"*** Begin Patch\n*** Update File: {PATH}\n@@ {head}\n{context if removed else ''}*** End Patch"


def _json(program: Program, **keys: str) -> str:
    names = {"path": "path", "search": "search", "replace": "replace"} | keys
    return json.dumps({names["path"]: PATH, names["search"]: program.old, names["replace"]: program.new}, indent=1)


_NONCE: Final = "qzkvhwbnmcjtrxplaoysdgeufiqh"
_WRONG: Final = "    pass\n"
_BARE_HUNK: Final = "@@ @@\n"
_PLAIN: Final = f"--- {PATH}\n+++ {PATH}\n"
_DATED: Final = f"--- {PATH}\t2024-01-01 10:00\n+++ {PATH}\t2024-01-02 10:00\n"
_GIT: Final = f"diff --git a/{PATH} b/{PATH}\nindex 1111..2222 100644\n--- a/{PATH}\n+++ b/{PATH}\n"


def _tool_call(arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'edit_file', 'arguments': arguments})}\n</tool_call>"


def _tag(name: str, text: str) -> str:
    return f"<{name}>\n{text}</{name}>"


def _number(text: str) -> str:
    return "".join(f"{number:4d} | {line}" for number, line in enumerate(text.splitlines(keepends=True), start=1))


FORMS: Final[Mapping[str, Callable[[Program], str]]] = {
    "block": lambda p: f"{PATH}\n{_block(p)}",
    "block in a fence": lambda p: f"The fault is here.\n\n```python\n{PATH}\n{_block(p)}```\n",
    "block, path above the fence": lambda p: f"{PATH}\n```python\n{_block(p)}```\n",
    "block, path in the fence": lambda p: f"```python {PATH}\n{_block(p)}```",
    "block, path behind the mark": lambda p: _block(p).replace("SEARCH", f"SEARCH {PATH}"),
    "block, path behind a colon": lambda p: _block(p).replace("SEARCH", f"SEARCH: {PATH}"),
    "block, path in the first line": lambda p: _block(p).replace("SEARCH\n", f"SEARCH\n{PATH}\n"),
    "block, bold path": lambda p: f"**{PATH}**:\n{_block(p)}",
    "block, heading": lambda p: f"### `{PATH}`\n\n```\n{_block(p)}```",
    "block, File:": lambda p: f"File: {PATH}\n{_block(p)}",
    "block, File without colon": lambda p: f"File {PATH}:\n{_block(p)}",
    "block, path in prose": lambda p: f"In `{PATH}` change this:\n\n{_block(p)}",
    "block, name of the file alone": lambda p: f"work.py\n{_block(p)}",
    "block, a/ before the path": lambda p: f"a/{PATH}\n{_block(p)}",
    "block, absolute path": lambda p: f"/home/me/project/{PATH}\n{_block(p)}",
    "block, ./ before the path": lambda p: f"./{PATH}\n{_block(p)}",
    "block, path of the example": lambda p: f"path/to/file.py\n{_block(p)}",
    "block, no path": lambda p: f"I mend it.\n\n{_block(p)}",
    "block, no path, in a fence": lambda p: f"```\n{_block(p)}```\n",
    "block, marks of git": lambda p: f"{PATH}\n<<<<<<< HEAD\n{p.old}=======\n{p.new}>>>>>>> updated\n",
    "block, ORIGINAL and UPDATED": lambda p: f"{PATH}\n<<<<<<< ORIGINAL\n{p.old}=======\n{p.new}>>>>>>> UPDATED\n",
    "block, marks of lines": lambda p: f"{PATH}\n------- SEARCH\n{p.old}=======\n{p.new}+++++++ REPLACE\n",
    "block, shorter marks": lambda p: f"{PATH}\n<<<<< SEARCH\n{p.old}=====\n{p.new}>>>>> REPLACE\n",
    "block, no closing mark in a fence": lambda p: f"{PATH}\n```\n<<<<<<< SEARCH\n{p.old}=======\n{p.new}```\n",
    "block, fence not closed": lambda p: f"```\n{PATH}\n{_block(p)}",
    "block, blank lines at its ends": lambda p: f"{PATH}\n{_block(p, old=_wide(p.old), new=_wide(p.new))}",
    "block, blank lines in the search alone": lambda p: f"{PATH}\n{_block(p, old=_wide(p.old))}",
    "block, without indentation": lambda p: f"{PATH}\n{_block(p, old=_flat(p.old), new=_flat(p.new))}",
    "block, with tabs": lambda p: f"{PATH}\n{_block(p, old=_tabs(p.old), new=_tabs(p.new))}",
    "block, half the indentation": lambda p: f"{PATH}\n{_block(p, old=_halve(p.old), new=_halve(p.new))}",
    "block, deeper": lambda p: f"{PATH}\n{_block(p, old=indent(p.old, '  '), new=indent(p.new, '  '))}",
    "block, first line without indentation": lambda p: (
        f"{PATH}\n{_block(p, old=p.old.lstrip(' '), new=p.new.lstrip(' '))}"
    ),
    "block, spaces at the ends of lines": lambda p: f"{PATH}\n{_block(p, old=_trailing(p.old))}",
    "block, CRLF": lambda p: f"{PATH}\n{_block(p)}".replace("\n", "\r\n"),
    "block in a list": lambda p: f"1. {PATH}\n" + indent(f"```python\n{_block(p)}```\n", "   "),
    "diff": lambda p: f"```diff\n{_diff(p)}```",
    "diff, bare": _diff,
    "diff, bare between prose": lambda p: f"I mend it.\n\n{_diff(p)}\nIt works now.\n",
    "diff, git's head": lambda p: f"```diff\n{_diff(p, head=_GIT)}```",
    "diff, without a/": lambda p: f"```diff\n{_diff(p, head=_PLAIN)}```",
    "diff, times in the head": lambda p: f"```diff\n{_diff(p, head=_DATED)}```",
    "diff, wrong numbers": lambda p: f"```diff\n{_diff(p, shift=900)}```",
    "diff, @@ without numbers": lambda p: f"```diff\n{_diff(p).replace(p.diff[0], _BARE_HUNK)}```",
    "diff, no head, path above": lambda p: f"{PATH}\n```diff\n{_diff(p, head='')}```",
    "diff, no head, no path": lambda p: f"```diff\n{_diff(p, head='')}```",
    "diff, signs alone": lambda p: f"{PATH}:\n```diff\n{''.join(p.diff[1:])}```",
    "diff, in a fence of python": lambda p: f"```python\n{_diff(p)}```",
    "diff, fence not closed": lambda p: f"```diff\n{_diff(p)}",
    "apply_patch": _patch,
    "apply_patch in a fence": lambda p: f"```\n{_patch(p)}```",
    "apply_patch with a name": _patch_by_name,
    "JSON": _json,
    "JSON in a fence": lambda p: f"```json\n{_json(p)}\n```",
    "JSON, old_string": lambda p: _json(p, path="file_path", search="old_string", replace="new_string"),
    "JSON, list of edits": lambda p: json.dumps({"edits": [{"file": PATH, "search": p.old, "replace": p.new}]}),
    "JSON, whole file": lambda p: json.dumps({"path": PATH, "content": p.good}),
    "whole file, path in the fence": lambda p: f"```python {PATH}\n{p.good}```",
    "whole file, path above": lambda p: f"{PATH}\n```python\n{p.good}```",
    "whole file, File path:": lambda p: f"File {PATH}:\n```python\n{p.good}```",
    "whole file, path in a comment": lambda p: f"```python\n# {PATH}\n{p.good}```",
    "whole file, name in a comment": lambda p: f"```python\n# work.py\n{p.good}```",
    "whole file, corrected file": lambda p: f"Here is the corrected `work.py`:\n\n```python\n{p.good}```",
    "whole file, corrected code": lambda p: f"Here is the corrected code:\n\n```python\n{p.good}```\n\nIt works now.",
    "whole file, old one first": lambda p: f"The code:\n```python\n{p.bad}```\nCorrected:\n```python\n{p.good}```",
    "whole file, fence not closed": lambda p: f"```python {PATH}\n{p.good}",
    "function": lambda p: f"Here is the corrected `{p.name}`:\n\n```python\n{p.function}```",
    "function, path above": lambda p: f"{PATH}\n\n```python\n{p.function}```",
    "function, path in the fence": lambda p: f"```python {PATH}\n{p.function}```",
    "function, path in a comment": lambda p: f"```python\n# {PATH}\n{p.function}```",
    "function, rest unchanged": lambda p: (
        f"```python {PATH}\n{p.function}\n\n# ... rest of the file unchanged ...\n```"
    ),
    "function, In f change": lambda p: f"In `{p.name}` change this:\n\n```python\n{p.function}```",
    "lines, change and to": lambda p: f"In {PATH} change\n```python\n{p.old}```\nto\n```python\n{p.new}```",
    "lines, replace and with": lambda p: (
        f"Replace this:\n\n```python\n{p.old}```\n\nwith this:\n\n```python\n{p.new}```"
    ),
    "candidates": lambda p: f"Candidate 1:\n{PATH}\n{_block(p)}\nCandidate 2:\n{PATH}\n{_block(p, new=_WRONG)}",
    "second candidate": lambda p: f"Candidate 1:\nI do not know.\n\nCandidate 2:\n{PATH}\n{_block(p)}",
    "after its reasoning": lambda p: f"<think>\nPerhaps\n{PATH}\n{_block(p, new=_WRONG)}</think>\n{PATH}\n{_block(p)}",
    "tool call": lambda p: _tool_call({"path": PATH, "old_string": p.old, "new_string": p.new}),
    "tool call, arguments as text": lambda p: _tool_call(_json(p)),
    "tags": lambda p: f"<edit>\n<path>{PATH}</path>\n{_tag('search', p.old)}\n{_tag('replace', p.new)}\n</edit>",
    "tags, old and new": lambda p: f"<file>{PATH}</file>\n{_tag('old', p.old)}\n{_tag('new', p.new)}",
    "tags without path": lambda p: f"{_tag('search', p.old)}\n{_tag('replace', p.new)}",
    "tags of a tool": lambda p: f"<write_to_file>\n<path>{PATH}</path>\n{_tag('content', p.good)}\n</write_to_file>",
    "tag of a file": lambda p: f'<file path="{PATH}">\n{p.good}</file>',
    "tag of a file around a fence": lambda p: f'<file path="{PATH}">\n```python\n{p.good}```\n</file>',
    "block in tags": lambda p: f"<path>{PATH}</path>\n<diff>\n{_block(p)}</diff>",
    "block, place of its lines": lambda p: f"{PATH}\n{_block(p, old=f':start_line:3{chr(10)}-------{chr(10)}{p.old}')}",
    "block, quoted": lambda p: indent(f"{PATH}\n{_block(p)}", "> ", lambda _: True),
    "block, marks as entities": lambda p: f"{PATH}\n{escape(_block(p), quote=False)}",
    "block, numbered lines": lambda p: f"{PATH}\n{_block(p, old=_number(p.old), new=_number(p.new))}",
    "block, then the whole file": lambda p: f"{PATH}\n{_block(p)}\nAs a whole:\n\n```python {PATH}\n{p.good}```",
    "block, told twice": lambda p: f"{PATH}\n{_block(p)}\nTo sum up:\n\n{PATH}\n{_block(p)}",
    "block, SEARCH: and REPLACE:": lambda p: f"{PATH}\nSEARCH:\n```python\n{p.old}```\nREPLACE:\n```python\n{p.new}```",
    "lines, Original and Fixed": lambda p: f"{PATH}\n\nOriginal:\n```\n{p.old}```\nFixed:\n```\n{p.new}```",
    "diff, then the whole file": lambda p: f"```diff\n{_diff(p)}```\n\nThe file:\n\n```python {PATH}\n{p.good}```",
    "whole file, here-document": lambda p: f"```bash\ncat > {PATH} <<'EOF'\n{p.good}EOF\n```",
    "whole file, numbered lines": lambda p: f"```python {PATH}\n{_number(p.good)}```",
    "whole file, path in a docstring": lambda p: f'```python\n"""{PATH}"""\n{p.good}```',
    "whole file, File: in the fence": lambda p: f"```python\nFile: {PATH}\n{p.good}```",
    "fence of the prompt": lambda p: f"```python {PATH}\n<material {_NONCE}>\n{p.good}</material {_NONCE}>\n```",
}


def read_form(program: Program, form: str) -> str:
    """Return why a form of a program's repair was not kept; empty if it was."""
    texts = {PATH: program.bad, TEST: _TEST_TEXT, OTHER: _OTHER_TEXT}
    files = {path: SourceFile(path=path, content=text.encode()) for path, text in texts.items()}
    problem = "nothing was read"
    for text in list_candidates(FORMS[form](program)):
        try:
            changes = apply_edits(files, read_reply(text).edits, protected=build_protection(()))
        except EditError as error:
            problem = str(error)
            continue
        if changes.keys() != {PATH} or changes[PATH] is None:
            return f"it changed {', '.join(changes)}"
        changed = (changes[PATH] or b"").decode()
        return "" if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(program.good)) else f"another text:\n{changed}"
    return problem
