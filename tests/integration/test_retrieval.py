"""Retrieval searches only the text of its own run: no index is shared between runs."""

from __future__ import annotations

import asyncio

import reasond
from reasond_server.testing import running_server

FILLER = "The garden was laid out in squares. Every square had a hedge around it. "
SECRET = "7731"
TEXT = FILLER * 20 + f"The code of the north vault is {SECRET}. " + FILLER * 20
OTHER = FILLER * 20 + "The north vault has a code that nobody wrote down. " + FILLER * 20
QUESTION = "What is the code of the north vault?"


async def test_a_text_of_one_run_is_found_by_no_other_not_even_of_the_same_caller() -> None:
    async with running_server() as listening, reasond.AsyncClient(listening.grpc, token=listening.token) as client:
        knowing = await client.reason(
            QUESTION, strategy="bounded_context", material=TEXT, trace_view=reasond.TraceView.TRACE_VIEW_FULL
        )
        texts = [TEXT, OTHER, OTHER, ""]
        found = await asyncio.gather(
            *(
                client.reason(
                    QUESTION, strategy="bounded_context", material=text, trace_view=reasond.TraceView.TRACE_VIEW_FULL
                )
                for text in texts
            )
        )

    assert SECRET in knowing.answer
    assert [SECRET in str(one) for one in found] == [True, False, False, False]
