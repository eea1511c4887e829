"""How the rows of each type are fed to a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.reports import answers, chats, documents, repairs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.reports.rows import Row
    from tests.reports.site import Site

TRIALS: Final[Mapping[str, Callable[[Site, Row], Awaitable[list[str]]]]] = {
    "chat": chats.try_chat,
    "signature": chats.try_signature,
    "v1": chats.try_v1,
    "vote": answers.try_vote,
    "extract": answers.try_extract,
    "judge": answers.try_judge,
    "schema": answers.try_schema,
    "questions": answers.try_questions,
    "program": answers.try_program,
    "repair": repairs.try_repair,
    "document": documents.try_document,
}


async def try_row(site: Site, row: Row) -> list[str]:
    """Feed one row to the server; return what is wrong with what it makes of it, empty for nothing."""
    return await TRIALS[row.type](site, row)
