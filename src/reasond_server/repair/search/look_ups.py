"""Look-ups of the model while it writes a candidate: parts of files, and lines that match a text.

Look-ups read the snapshot alone, so they need no journal: the same call always has the same answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import show
from reasond_server.llm.model import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.types import ToolCall
    from reasond_server.types.repairs import SourceFile

MOST_LOOK_UPS: Final = 6
"""Look-ups of one candidate."""
_MOST_LINES: Final = 200
_MOST_HITS: Final = 50
_MOST_CHARACTERS: Final = 8_192
_MOST_LINE_CHARACTERS: Final = 300

LOOK_UPS: Final[Sequence[ToolSpec]] = (
    ToolSpec(
        name="grep",
        description="Lines of the project that contain a text, as path:line: text; at most 50.",
        parameters={
            "type": "object",
            "properties": {"text": {"type": "string"}, "path": {"type": "string", "description": "Part of the path"}},
            "required": ["text"],
        },
    ),
    ToolSpec(
        name="read_file",
        description="At most 200 lines of a file, from the line `start`, which counts from 1.",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}, "start": {"type": "integer"}},
            "required": ["path"],
        },
    ),
)


def look_up(files: Mapping[str, SourceFile], call: ToolCall) -> str:
    """Return what a look-up finds, at most 8,192 characters; a call that cannot be answered says why."""
    arguments: dict[str, Any] = json.loads(call.arguments_json)
    if call.name == "read_file":
        found = _read_lines(files, arguments.get("path"), arguments.get("start", 1))
    elif call.name == "grep":
        found = _find_lines(files, arguments.get("text"), arguments.get("path", ""))
    else:
        found = f"There is no tool {show(call.name)}; use read_file or grep."
    return found[:_MOST_CHARACTERS]


def _read_lines(files: Mapping[str, SourceFile], path: object, start: object) -> str:
    file = files.get(path) if isinstance(path, str) else None
    if file is None:
        hint = suggest_nearest(path, files) if isinstance(path, str) else ""
        return f"There is no file {show(path)}{hint}"
    if not isinstance(start, int) or start < 1:
        return f"start must be a whole number of at least 1, got {show(start)}"
    lines = file.content.decode("utf-8", "replace").splitlines()
    shown = lines[start - 1 : start - 1 + _MOST_LINES]
    if not shown:
        return f"{path} has {len(lines)} lines"
    return "\n".join(f"{number}: {line[:_MOST_LINE_CHARACTERS]}" for number, line in enumerate(shown, start))


def _find_lines(files: Mapping[str, SourceFile], text: object, within: object) -> str:
    if not isinstance(text, str) or not text:
        return "text must be a text that is not empty"
    hits: list[str] = []
    for path in sorted(files):
        if isinstance(within, str) and within not in path:
            continue
        for number, line in enumerate(files[path].content.decode("utf-8", "replace").splitlines(), 1):
            if text in line:
                hits.append(f"{path}:{number}: {line[:_MOST_LINE_CHARACTERS]}")
                if len(hits) == _MOST_HITS:
                    return "\n".join(hits)
    return "\n".join(hits) or f"No line contains {show(text)}"
