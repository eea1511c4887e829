"""Decides whether a text in a fence is a whole file or parts of one, and puts parts into their places.

A text that lacks something of the file, or says that the rest is unchanged, is never the whole file. Whole functions,
classes and methods take the places of those with their names; what has no place of its own is refused.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from textwrap import dedent, indent
from typing import Final

from reasond_server.errors.base import show
from reasond_server.repair.edits.python_sources import PythonSourceError, is_python, parse_python
from reasond_server.types.values import value

_DOTS: Final = re.compile(r"\s*(?:#+|//+|/\*+|--|<!--|;+)?\s*(?:\.{3}|…)\s*(?:\*/|-->)?\s*")
_LEFT_OUT: Final = re.compile(
    r"\s*(?:#+|//+|/\*+|--|<!--|;+|\*|\.{3}|…|[\[(])[^\n]{0,120}?(?:"
    r"\b(?:rest|remainder) of\b|\bremaining (?:code|functions?|methods?|parts?|lines)\b|"
    r"\b(?:code|file|rest|functions?|methods?|imports?)\b.{0,30}\b(?:unchanged|(?:the )?same|as (?:before|is))\b|"
    r"\bunchanged\b|\bexisting (?:code|functions?|methods?)\b|\bsame as (?:before|above)\b|\bomitted\b|"
    r"\b(?:code|implementation) (?:goes )?here\b|\.{3}.{0,60}\b(?:rest|other|code|before)\b)",
    re.IGNORECASE,
)
_DEFINITION: Final = re.compile(
    r"([ \t]*)(?:(?:export|default|async|public|private|protected|static|final|abstract|pub|override)\s{1,4})*"
    r"(?:(?:func|function\*?|fn|def|class|struct|interface|enum|trait|module)\s{1,4}(?:\([^()]{0,80}\)\s{0,4})?([\w$]+)"
    r"|(?:const|let|var)\s{1,4}([\w$]+)\s{0,4}=\s{0,4}(?:async\s{0,4})?(?:function\b|\(|[\w$]+\s{0,4}=>)"
    r"|(?:[\w$<>\[\],.]{1,80}\s{1,4}){1,6}([\w$]+)\s{0,4}\([^;(){}]{0,200}\)\s{0,4}(?:throws [\w., ]{1,80})?\{)"
)
_KEYWORDS: Final = frozenset(("if", "for", "while", "switch", "catch", "return", "else", "new", "throw"))
_ENDS: Final = re.compile(r"[})\]]|end\b")
_LONGEST_REMARK: Final = 300
_MOST_NAMED: Final = 5
_FEWEST_LINES: Final = 4
_DefinitionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def find_left_out(text: str, known: str) -> str:
    """Return the first line that stands for lines left out, and that `known` does not have; empty if there is none."""
    lines = {line.strip() for line in known.split("\n")}
    for line in text.split("\n"):
        if (
            line.strip() not in lines
            and len(line) <= _LONGEST_REMARK
            and (_DOTS.fullmatch(line) or _LEFT_OUT.match(line))
        ):
            return line.strip()
    return ""


def merge_fence(path: str, old: str, new: str) -> str:
    """Return the file `old` with the text of a fence: the text itself if it is the whole file, or its parts put in.

    Raises:
        EditError: the text is neither.
    """
    if not old.strip():
        _require_all(path, new, old)
        return new
    if is_python(path):
        try:
            before = parse_python(old.encode())
        except (PythonSourceError, UnicodeEncodeError):
            before = None
        if before is not None:
            return _merge_python(path, old, dedent(new), before)
    return _merge_lines(path, old, new)


def list_names(path: str, text: str) -> Sequence[str]:
    """Return the names of the functions and classes at the outer level of a text."""
    if not is_python(path):
        return [part.name for part in _list_parts(text.split("\n"))]
    try:
        tree = parse_python(dedent(text).encode())
    except (PythonSourceError, UnicodeEncodeError):
        return ()
    return [node.name for node in tree.body if isinstance(node, _DefinitionNode)]


def _require_all(path: str, text: str, known: str) -> None:
    if left_out := find_left_out(text, known):
        raise EditError(
            f"The text of {show(path)} leaves lines out: {show(left_out)}. Write every line, or a block that names "
            "only the lines that change."
        )


def _merge_python(path: str, old: str, new: str, before: ast.Module) -> str:
    try:
        after = parse_python(new.encode())
    except (PythonSourceError, UnicodeEncodeError) as error:
        raise EditError(
            f"The fence of {show(path)} is no valid Python by itself: {error}. Write whole functions, or a block."
        ) from None
    lost = _list_lost(before, after)
    known = {ast.dump(node) for node in before.body}
    is_parts = all(
        isinstance(node, _DefinitionNode | ast.Import | ast.ImportFrom) or ast.dump(node) in known
        for node in after.body
    ) and any(isinstance(node, _DefinitionNode) for node in after.body)
    left_out = find_left_out(new, old)
    if not lost and not left_out and not (is_parts and _has_lost_comments(old, new)):
        return new
    if is_parts:
        return _PythonMerge(path, old, new, before).merge(after)
    if left_out or any(not name.startswith("import ") for name in lost):
        _refuse_part(path, [*lost, *([left_out] if left_out else [])])
    return new


def _refuse_part(path: str, lost: Sequence[str]) -> None:
    names = ", ".join(show(name) for name in lost[:_MOST_NAMED])
    raise EditError(
        f"The fence of {show(path)} is not the whole file: it lacks {names}. Write the whole file, whole functions "
        "that the file has, or a block."
    )


def _has_lost_comments(old: str, new: str) -> bool:
    lines = {line.strip() for line in new.split("\n")}
    return any(line.startswith("#") and line.strip() not in lines for line in old.split("\n"))


def _list_lost(before: ast.Module | ast.ClassDef, after: ast.Module | ast.ClassDef) -> Sequence[str]:
    """Return what the old body has and the new one lacks, the members of classes included."""
    there = Counter(map(_describe, after.body))
    lost = [name for node in before.body if not _take(there, name := _describe(node))]
    new = {node.name: node for node in after.body if isinstance(node, ast.ClassDef)}
    for node in before.body:
        if isinstance(node, ast.ClassDef) and node.name in new:
            lost += [f"{node.name}.{name}" for name in _list_lost(node, new[node.name])]
    return lost


def _take(names: Counter[str], name: str) -> bool:
    names[name] -= 1
    return names[name] >= 0


def _describe(node: ast.stmt) -> str:
    """Return what a statement is known by: its name, or its own text."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
        case ast.Import() | ast.ImportFrom():
            return "import " + ", ".join(sorted(alias.asname or alias.name for alias in node.names))
        case ast.Assign(targets=targets):
            return ", ".join(ast.unparse(target) for target in targets)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return ast.unparse(target)
        case ast.Expr(value=ast.Constant(value=str())):
            return "a docstring"
    return ast.unparse(node)[:80] if isinstance(node, ast.Expr) else f"a statement {type(node).__name__.lower()}"


@value
class _Part:
    """Lines from `begin` up to `end`, counted from 0, that a name stands for, and their indentation."""

    name: str
    begin: int
    end: int
    depth: str = ""


class _PythonMerge:
    """Puts the definitions of one text into another."""

    def __init__(self, path: str, old: str, new: str, before: ast.Module) -> None:
        self._path = path
        self._old_text = old
        self._old, self._new = old.split("\n"), new.split("\n")
        self._before = before
        self._replaced: dict[tuple[int, int], list[str]] = {}

    def merge(self, after: ast.Module) -> str:
        """Return the old text with the definitions and imports of the new one."""
        known = {ast.dump(node) for node in self._before.body}
        helpers: list[str] = []
        last: tuple[int, int] | None = None
        for node in after.body:
            if not isinstance(node, _DefinitionNode):
                if ast.dump(node) not in known:
                    self._insert_import(node)
                continue
            homes = self._find_homes(node)
            if not homes:
                helpers += [*self._cut(node), "", ""]
                continue
            if len(homes) > 1:
                raise EditError(
                    f"{show(self._path)} has {len(homes)} definitions of {show(node.name)}. Write a block that names "
                    "the lines."
                )
            last = self._put(node, homes[0], helpers) or last
            helpers = []
        if helpers and last is None:
            raise EditError(
                f"The fence has no function of {show(self._path)}, so its place there is not known. Write a block."
            )
        if helpers and last is not None:
            self._replaced[last] += ["", "", *helpers[:-2]]
        for (begin, end), lines in sorted(self._replaced.items(), reverse=True):
            self._old[begin:end] = lines
        return "\n".join(self._old)

    def _find_homes(self, node: _DefinitionNode) -> Sequence[_DefinitionNode]:
        """Return the definitions of that name at the outer level; if there are none, the methods of classes."""
        outer = [each for each in self._before.body if isinstance(each, _DefinitionNode) and each.name == node.name]
        if outer or isinstance(node, ast.ClassDef):
            return outer
        classes = [each for each in self._before.body if isinstance(each, ast.ClassDef)]
        return [
            member
            for each in classes
            for member in each.body
            if isinstance(member, _DefinitionNode) and member.name == node.name
        ]

    def _put(self, node: _DefinitionNode, home: _DefinitionNode, helpers: Sequence[str]) -> tuple[int, int] | None:
        """Put a definition in place of its old one; of a class that lacks members, the members."""
        if isinstance(node, ast.ClassDef) and isinstance(home, ast.ClassDef) and _list_lost(home, node):
            if helpers:
                raise EditError(
                    f"New functions above a part of the class {show(node.name)} have no place; write blocks."
                )
            self._put_members(node, home)
            return None
        if ast.dump(node) == ast.dump(home) and not helpers:
            return None
        lines = self._cut(node)
        _require_all(self._path, "\n".join(lines), self._old_text)
        span = _find_span(home)
        depth = self._old[home.lineno - 1][: home.col_offset]
        text = indent("\n".join([*helpers, *lines]), depth, lambda line: bool(line.strip()))
        self._replaced[span] = text.split("\n")
        return span

    def _put_members(self, node: ast.ClassDef, home: ast.ClassDef) -> None:
        known = {ast.dump(member) for member in home.body}
        for member in node.body:
            if ast.dump(member) in known or (isinstance(member, ast.Expr) and _describe(member) == "a docstring"):
                continue
            homes = [
                each
                for each in home.body
                if isinstance(member, _DefinitionNode)
                and isinstance(each, _DefinitionNode)
                and each.name == member.name
            ]
            if len(homes) != 1 or not isinstance(member, _DefinitionNode):
                raise EditError(
                    f"The class {show(node.name)} in the fence lacks members of the old one, and the place of "
                    f"{show(_describe(member))} is not known. Write the whole class, or a block."
                )
            lines = self._cut(member)
            _require_all(self._path, "\n".join(lines), self._old_text)
            depth = self._old[homes[0].lineno - 1][: homes[0].col_offset]
            text = indent(dedent("\n".join(lines)), depth, lambda line: bool(line.strip()))
            self._replaced[_find_span(homes[0])] = text.split("\n")

    def _cut(self, node: _DefinitionNode) -> list[str]:
        begin, end = _find_span(node)
        return self._new[begin:end]

    def _insert_import(self, node: ast.stmt) -> None:
        """Insert an import below the last one of the old text, or below its docstring."""
        place = 0
        for each in self._before.body:
            if isinstance(each, ast.Import | ast.ImportFrom) or (place == 0 and _describe(each) == "a docstring"):
                place = each.end_lineno or place
            else:
                break
        begin, end = node.lineno - 1, node.end_lineno or node.lineno
        self._replaced.setdefault((place, place), []).extend(self._new[begin:end])


def _find_span(node: _DefinitionNode) -> tuple[int, int]:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return first - 1, node.end_lineno or node.lineno


def _merge_lines(path: str, old: str, new: str) -> str:
    """Merge a text of a language without a parser here: by the lines at which definitions begin and end."""
    before, after = old.removesuffix("\n").split("\n"), new.removesuffix("\n").split("\n")
    left_out = find_left_out(new, old)
    names = Counter(_list_all_names(before)) - Counter(_list_all_names(after))
    kept = Counter(line.strip() for line in before if line.strip())
    count = sum(kept.values())
    most = Counter(line.strip() for line in after if line.strip())
    is_short = count >= _FEWEST_LINES and 2 * sum(most.values()) < count and 2 * sum((kept & most).values()) < count
    if not names and not left_out and not is_short:
        return new
    parts, old_parts = _list_parts(after), _group(_list_parts(before, is_deep=True))
    inside = {at for part in parts for at in range(part.begin, part.end)}
    foreign = [
        line
        for at, line in enumerate(after)
        if at not in inside
        and line.strip() not in kept
        and line.strip()
        and not find_left_out(line, old)
        and not line.strip().startswith(("//", "#", "/*", "*"))
    ]
    if not parts or foreign or any(len(old_parts.get(part.name, ())) != 1 for part in parts):
        _refuse_part(path, [*names, *([left_out] if left_out else []), *([] if names or left_out else ["most lines"])])
    for part in sorted(parts, key=lambda part: -old_parts[part.name][0].begin):
        home = old_parts[part.name][0]
        text = "\n".join(after[part.begin : part.end])
        _require_all(path, text, old)
        before[home.begin : home.end] = indent(dedent(text), home.depth, lambda line: bool(line.strip())).split("\n")
    return "".join(f"{line}\n" for line in before) if old.endswith("\n") else "\n".join(before)


def _list_all_names(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        found = _match_definition(line)
        if found is not None:
            yield found[1]


def _match_definition(line: str) -> tuple[str, str] | None:
    """Return the indentation and the name of the definition that a line begins; None if it begins none."""
    found = _DEFINITION.match(line[:400])
    name = next((group for group in found.groups()[1:] if group), "") if found else ""
    return None if found is None or name in _KEYWORDS else (found[1], name)


def _list_parts(lines: Sequence[str], *, is_deep: bool = False) -> Sequence[_Part]:
    """Return the definitions that end with a closing line of their own indentation; the outer ones, or all."""
    parts: list[_Part] = []
    end_of_last = 0
    for at, line in enumerate(lines):
        found = _match_definition(line)
        if found is None or (at < end_of_last and not is_deep):
            continue
        depth, name = found
        end = next(
            (
                place + 1
                for place in range(at, min(len(lines), at + 2000))
                if (place > at and lines[place].startswith(depth) and _ENDS.match(lines[place], len(depth)))
                or (place == at and line.rstrip().endswith("}"))
            ),
            None,
        )
        if end is not None:
            parts.append(_Part(name=name, begin=at, end=end, depth=depth))
            end_of_last = end
    return parts


def _group(parts: Sequence[_Part]) -> Mapping[str, Sequence[_Part]]:
    groups: dict[str, list[_Part]] = {}
    for part in parts:
        groups.setdefault(part.name, []).append(part)
    return groups


class EditError(Exception):
    """A reply that cannot be used; the text says why and how to mend it, and is fit to be shown to the model."""


class EditForm(StrEnum):
    """In which form an edit was written."""

    BLOCK = "a SEARCH/REPLACE block"
    DIFF = "a diff"
    JSON = "an object of JSON"
    FENCE = "a fence"


@value
class Edit:
    """One change of a file: whole lines in place of an anchor, a whole file without one, or without text a deletion.

    Attributes:
        path: the file; empty where the reply names none.
        anchor: the lines to search for.
        text: the lines that take their place, or those of a fence: a whole file, or whole parts of it.
        form: how it was written.
        is_named: whether the reply gives the path as a part of the edit, not only in the line above.
        mention: the line of prose above an edit without a path.
        lead: lines of context at the beginning of the anchor.
        trail: lines of context at its end.
        line: where the anchor begins, as the reply says, from 1.
        section: a line above the place, as the reply says.
    """

    path: str
    anchor: str | None = None
    text: str | None = None
    form: EditForm = EditForm.BLOCK
    is_named: bool = False
    mention: str = ""
    lead: int = 0
    trail: int = 0
    line: int | None = None
    section: str = ""


@value
class EditReply:
    """A reply of the model: its reasoning and prose, and its edits, at least one, in order."""

    thought: str
    edits: Sequence[Edit]
