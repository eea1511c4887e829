"""The rows of the corpus: what models and gateways were reported to write, and the right reading of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES: Final = (
    "chat",
    "signature",
    "v1",
    "vote",
    "extract",
    "judge",
    "schema",
    "questions",
    "program",
    "repair",
    "document",
)
_ROWS: Final = Path(__file__).parent / "rows"
_NEEDED: Final = {"id", "kind", "source", "input", "right"}
_ALLOWED: Final = _NEEDED | {"red"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One report.

    Attributes:
        type: how it is fed to the server, see `trials`.
        id: identifies it in the corpus.
        kind: what goes wrong, in the words of its table.
        source: owner/repository#number of the public threads, or "own".
        input: what the model, the gateway or the client says.
        right: what the server must make of it.
        red: why it is still wrong; empty for a row that holds.
    """

    type: str
    id: str
    kind: str
    source: str
    input: dict[str, Any]
    right: dict[str, Any]
    red: str = ""


def load_rows(kind: str = "") -> Sequence[Row]:
    """Return the rows of one type, or all of them.

    Raises:
        ValueError: a row lacks a member, has an unknown one, or the id of another row.
    """
    rows = [row for each in TYPES if not kind or each == kind for row in _load_file(each)]
    ids = [row.id for row in rows]
    if twice := {each for each in ids if ids.count(each) > 1}:
        raise ValueError(f"several rows are called {sorted(twice)}: give each row an id of its own")
    return rows


def _load_file(kind: str) -> list[Row]:
    rows = []
    for number, line in enumerate((_ROWS / f"{kind}.jsonl").read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        found = json.loads(line)
        if found.keys() - _ALLOWED or _NEEDED - found.keys():
            raise ValueError(f"{kind}.jsonl, line {number}: a row has {sorted(_NEEDED)}, and may have 'red'")
        rows.append(Row(type=kind, **found))
    return rows
