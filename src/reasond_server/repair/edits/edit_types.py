"""The edits of a reply, as they were written."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence


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
