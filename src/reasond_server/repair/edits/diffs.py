"""Reads diffs, JSON and tags in replies as edits: unified diffs, patches of apply_patch, objects.

Line numbers of hunks are hints: models count badly. Their context is what finds the place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from reasond_server.errors.base import show
from reasond_server.repair.edits.parts import Edit, EditError, EditForm

_HUNK: Final = re.compile(
    r"@@(?:[ \t]*-(\d{1,9})(?:,\d{1,9})?[ \t]+\+\d{1,9}(?:,\d{1,9})?[ \t]*@@)?[ \t]*(.*?)[ \t]*(?:@@)?"
)
_GIT: Final = re.compile(r"diff --git a/(.{1,300}?) b/(.{1,300})")
_PATCH_LINE: Final = re.compile(
    r"\*{3} (Begin Patch|End Patch|End of File|(?:Update|Add|Delete) File: ?.+|Move to: ?.+)"
)
_HEAD_WORDS: Final = ("index ", "new file mode", "deleted file mode", "old mode", "new mode", "similarity index")
_DEEPEST: Final = 4
_NOWHERE: Final = "/dev/null"
_PATHS: Final = ("path", "file", "file_path", "filepath", "filename", "file_name", "target_file")
_OLD: Final = ("search", "old", "old_string", "old_str", "old_text", "old_code", "find", "original", "before", "anchor")
_NEW: Final = ("replace", "new", "new_string", "new_str", "new_text", "new_code", "replacement", "after", "updated")
_WHOLE: Final = ("content", "contents", "new_content", "file_text", "code")
_CALLS: Final = ("tool_call", "function_call", "tool_use")
_TAGS: Final = frozenset((*_PATHS, *_OLD, *_NEW, *_WHOLE, *_CALLS))
_HOLDERS: Final = frozenset(("file", "diff", "edit", "code"))
_TAG: Final = re.compile(
    r"<([a-z_]{3,16})(?:[ \t]+(?:path|name|file)=[\"']([^\"'\n]{1,300})[\"'])?[ \t]*>", re.IGNORECASE
)
_MOST_TAGS: Final = 400
_UNTAGGED: Final = re.compile(r"^[ \t]{0,12}(?:`{3}|~{3}|<{5}|-{5,} ?SEARCH)", re.MULTILINE)
_LISTS: Final = (
    *("arguments", "input", "parameters"),
    *("edits", "changes", "files", "patches", "operations", "replacements", "edit", "diff"),
)


def begins_diff(lines: Sequence[str], at: int) -> bool:
    """Return whether a diff begins at a line outside fences."""
    line = lines[at]
    if line.startswith("--- "):
        return at + 1 < len(lines) and lines[at + 1].startswith("+++ ")
    return bool(
        _GIT.fullmatch(line) or _PATCH_LINE.fullmatch(line) or (line.startswith("@@ ") and _is_changed(lines, at))
    )


def _is_changed(lines: Sequence[str], at: int) -> bool:
    return any(line.startswith(("+", "-")) for line in lines[at + 1 : at + 12])


def is_diff(lines: Sequence[str], info: str) -> bool:
    """Return whether the content of a fence is a diff, by the word of the fence or by itself."""
    words = info.casefold().split()
    has_sign = any(line.startswith(("+", "-")) for line in lines)
    if words and words[0] in {"diff", "patch", "udiff", "diff-fenced"}:
        return has_sign
    return any(
        begins_diff(lines, at) or (line.startswith("@@ -") and _HUNK.fullmatch(line) is not None and has_sign)
        for at, line in enumerate(lines)
        if line.startswith(("--- ", "diff --git ", "*** ", "@@"))
    )


def read_diff(lines: Sequence[str], *, path: str, mention: str, is_fenced: bool) -> tuple[Sequence[Edit], int]:
    """Return the edits of the diff at the beginning of `lines`, and of how many lines it consists.

    `path` and `mention` name the file where the diff has no head. In a fence all lines belong to it.

    Raises:
        EditError: it asks for what cannot be done, such as to rename a file.
    """
    reader = _DiffReader(lines, path=path, mention=mention, is_fenced=is_fenced)
    reader.read()
    return reader.edits, reader.at


class _DiffReader:
    def __init__(self, lines: Sequence[str], *, path: str, mention: str, is_fenced: bool) -> None:
        self._lines = lines
        self._path, self._mention, self._is_fenced = path, mention, is_fenced
        self._is_named = False
        self._is_new = False
        self._hunk: list[str] | None = [] if is_fenced else None
        self._line: int | None = None
        self._section = ""
        self.at = 0
        self.edits: list[Edit] = []

    def read(self) -> None:
        """Read all lines that belong to the diff."""
        while self.at < len(self._lines) and self._take(self._lines[self.at]):
            self.at += 1
        self._flush()

    def _take(self, line: str) -> bool:
        """Read one line; return whether it belongs to the diff."""
        if line.startswith("--- ") and self.at + 1 < len(self._lines) and self._lines[self.at + 1].startswith("+++ "):
            self._begin(_read_name(line[4:]), _read_name(self._lines[self.at + 1][4:]))
            self.at += 1
        elif found := _GIT.fullmatch(line):
            self._flush()
            self._path, self._is_named, self._is_new, self._hunk = found[2], True, False, None
        elif line.startswith(("rename from", "rename to", "*** Move to:", "copy from", "Binary files")):
            raise EditError(
                f"A diff cannot rename a file here: {show(line)}. Delete the old file, and write the new one."
            )
        elif found := _PATCH_LINE.fullmatch(line):
            self._take_patch_line(found[1])
        elif line.startswith("@@") and (found := _HUNK.fullmatch(line)):
            self._flush()
            self._hunk = []
            self._line, self._section = int(found[1]) if found[1] else None, found[2]
        elif self._hunk is None:
            return line.startswith(_HEAD_WORDS) or not line.strip() or self._is_fenced
        elif line.startswith("\\ "):
            pass
        elif not line or line[0] in " +-\t" or self._is_fenced:
            self._hunk.append(line)
        else:
            return False
        return True

    def _begin(self, old: str, new: str) -> None:
        self._flush()
        self._is_named, self._is_new, self._hunk = True, old == _NOWHERE, None
        self._path = old if new == _NOWHERE else new
        if new == _NOWHERE:
            self.edits.append(Edit(path=old, form=EditForm.DIFF, is_named=True))
            self._path = ""

    def _take_patch_line(self, words: str) -> None:
        self._flush()
        verb, _, path = words.partition(" File:")
        self._hunk = None
        if path:
            self._path, self._is_named, self._is_new = path.strip(), True, verb == "Add"
            self._hunk = [] if verb in {"Add", "Update"} else None
        if verb == "Delete" and path:
            self.edits.append(Edit(path=path.strip(), form=EditForm.DIFF, is_named=True))

    def _flush(self) -> None:
        """End the hunk that was read."""
        hunk, self._hunk = self._hunk, None
        line, section, self._line, self._section = self._line, self._section, None, ""
        if not hunk or not any(each.startswith(("+", "-")) for each in hunk):
            return
        if self.edits and self.edits[-1].text is None and not self._path:
            return
        old = [_cut_sign(each) for each in hunk if not each.startswith("+")]
        new = [_cut_sign(each) for each in hunk if not each.startswith("-")]
        changed = [at for at, each in enumerate(hunk) if each.startswith(("+", "-"))]
        edit = Edit(path=self._path, form=EditForm.DIFF, is_named=self._is_named, mention=self._mention)
        is_whole = self._is_new and not any(line.strip() for line in old)
        self.edits.append(
            Edit(
                path=edit.path,
                anchor=None if is_whole else join_lines(old),
                text=join_lines(new),
                form=EditForm.DIFF,
                is_named=edit.is_named,
                mention=edit.mention,
                lead=changed[0],
                trail=len(hunk) - 1 - changed[-1],
                line=line,
                section=section,
            )
        )


def _cut_sign(line: str) -> str:
    return line[1:] if line[:1] in {" ", "+", "-"} else line


def _read_name(text: str) -> str:
    """Return the path of a head without its time and its prefix."""
    name = text.partition("\t")[0].strip().strip('"')
    return name[2:] if name.startswith(("a/", "b/")) else name


def read_json(text: str) -> Sequence[Edit]:
    """Return the edits that a text is as JSON; none if it is no JSON, or has no edits."""
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        return ()
    try:
        found = json.loads(stripped, strict=False)
    except (ValueError, RecursionError):
        return ()
    return list(_list_json(found, depth=0))


def read_tags(text: str) -> Sequence[Edit]:
    """Return the edits that a text has in tags, such as those of tools: `<path>`, `<search>` and `<replace>`.

    None where it has fences or blocks, which may hold such tags as code, a tag that is not closed, or lines to search
    for without those that take their place.
    """
    edits: list[Edit] = []
    path = old = ""
    for name, attribute, content in [] if _UNTAGGED.search(text) else _list_tags(text):
        path = attribute or path
        if name in _CALLS:
            edits += read_json(content)
        elif name in _WHOLE or attribute:
            edits.append(Edit(path=path, text=_end(content), form=EditForm.JSON, is_named=bool(path)))
        elif name in _PATHS:
            path = content.strip()
        elif name in _OLD:
            if old:
                return ()
            old = content
        elif old:
            edits.append(Edit(path=path, anchor=_end(old), text=_end(content), form=EditForm.JSON, is_named=bool(path)))
            old = ""
    return () if old else edits


def _list_tags(text: str) -> Sequence[tuple[str, str, str]]:
    """Return the tags that have no tags within: name, path of an attribute, content; none if one is not closed."""
    found: list[tuple[str, str, str]] = []
    at, path = 0, ""
    for _ in range(_MOST_TAGS):
        tag = _TAG.search(text, at)
        if tag is None:
            return found
        name, at = tag[1].lower(), tag.end()
        if name not in _TAGS:
            continue
        end = text.find(f"</{tag[1]}>", at)
        if end < 0:
            return ()
        path = tag[2] or path
        if name in _HOLDERS and _TAG.search(text, at, end):
            continue
        found.append((name, path if tag[2] or name in _WHOLE else "", text[at:end].removeprefix("\n")))
        at, path = end, "" if name in _WHOLE else path
    return ()


def _list_json(found: object, *, depth: int, path: str = "") -> Iterator[Edit]:
    if depth > _DEEPEST:
        return
    if isinstance(found, str) and found.lstrip().startswith("{") and depth:
        yield from read_json(found)
    if isinstance(found, list):
        for each in found:
            yield from _list_json(each, depth=depth + 1, path=path)
    if not isinstance(found, dict):
        return
    named = _get_text(found, _PATHS) or path
    old, new, whole = _get_text(found, _OLD), _get_text(found, _NEW), _get_text(found, _WHOLE)
    if named and old and new is not None:
        yield Edit(path=named, anchor=_end(old), text=_end(new), form=EditForm.JSON, is_named=True)
    elif named and whole is not None:
        yield Edit(path=named, text=_end(whole), form=EditForm.JSON, is_named=True)
    else:
        for key in _LISTS:
            yield from _list_json(found.get(key), depth=depth + 1, path=named)
        is_map = not named and all(isinstance(each, str) and "." in key for key, each in found.items())
        for key, each in found.items() if is_map else ():
            yield Edit(path=key, text=_end(each), form=EditForm.JSON, is_named=True)


def _get_text(found: Mapping[str, object], keys: Sequence[str]) -> str | None:
    texts = [each for key in keys if isinstance(each := found.get(key), str)]
    lists = [each for key in keys if isinstance(each := found.get(key), list) and all(isinstance(x, str) for x in each)]
    return texts[0] if texts else "\n".join(lists[0]) if lists else None


def _end(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def join_lines(lines: Sequence[str]) -> str:
    """Return lines as a text in which each one ends."""
    return "".join(f"{line}\n" for line in lines)
