"""The call for a summary continues the conversation of its window, keeps the limit, and never fails a run."""

from __future__ import annotations

import pytest

from reasond_server.context.carryover import (
    SUMMARY_REQUEST,
    Summary,
    bound_summary,
    build_summary_prompt,
    summarize,
)
from reasond_server.context.replies import ParsedReply
from reasond_server.context.tags import TagKind
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelFailedError, ModelTimeoutError
from reasond_server.llm.counting import ByteCounter, WordPieceCounter
from reasond_server.llm.model import Message, ModelFinish, Role
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.types import UsageSource

COUNTER = WordPieceCounter()
MESSAGES = (Message(role=Role.SYSTEM, content="Rules."), Message(role=Role.USER, content="How many gates?"))


def parsed_reply(
    text: str = "North has one,", *, content: str = "", kind: TagKind | None = None, thinking: str = ""
) -> ParsedReply:
    return ParsedReply(text=text, thinking=thinking, kind=kind, content=content, is_closed=False, is_cut=False)


async def ask(
    reply: str | Reply, *, parsed: ParsedReply | None = None, chunk_size: int = 1024, most_tokens: int = 76
) -> tuple[Summary, ScriptedModel]:
    model = ScriptedModel([reply])
    summary = await summarize(
        model=model,
        messages=MESSAGES,
        written=parsed or parsed_reply(),
        chunk_size=chunk_size,
        most_tokens=most_tokens,
        temperature=0.2,
    )
    return summary, model


async def test_the_call_is_the_next_turn_of_the_same_conversation() -> None:
    summary, model = await ask("<continue>Progress: half</continue>")
    (request,) = model.requests
    assert request.messages[:2] == MESSAGES
    assert [(one.role, one.content) for one in request.messages[2:]] == [
        (Role.ASSISTANT, "North has one,"),
        (Role.USER, SUMMARY_REQUEST),
    ]
    assert (request.max_tokens, request.temperature, request.stop) == (76, 0.2, ("</continue>",))
    assert summary.notes is not None
    assert summary.notes.content == "Progress: half"
    assert summary.usage is not None
    assert summary.usage.total_tokens <= 1024
    assert not summary.failure


def test_what_was_written_is_shown_as_it_was_with_its_tag_defused() -> None:
    cut = build_summary_prompt(MESSAGES, parsed_reply("Thus ", content="fo", kind=TagKind.ANSWER, thinking="Hm."))[2]
    assert (cut.content, cut.reasoning) == ("Thus &lt;answer>fo", "Hm.")
    hidden = build_summary_prompt(MESSAGES, parsed_reply("", thinking="Three so far."))[2]
    assert (hidden.content, hidden.reasoning) == ("Three so far.", "")


def test_a_summary_has_at_most_15_per_cent_of_what_a_window_writes() -> None:
    assert bound_summary(chunk_size=8192, carryover_size=4096) == 614
    assert bound_summary(chunk_size=1024, carryover_size=512) == 76


async def test_the_call_writes_no_more_than_its_window_leaves() -> None:
    text = "word " * 900
    _, model = await ask("<continue>Progress: half</continue>", parsed=parsed_reply(text))
    (request,) = model.requests
    assert request.max_tokens == 1024 - COUNTER.count_prompt(request.messages) < 76


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"parsed": parsed_reply("word " * 1000)}, "the window left no room for a summary"),
        ({"most_tokens": 0}, "chunk_size leaves no room for a summary"),
        ({"parsed": parsed_reply("")}, "the window left nothing to summarize"),
    ],
)
async def test_without_room_no_call_is_made(change: dict[str, object], failure: str) -> None:
    summary, model = await ask("unused", **change)  # type: ignore[arg-type] # the values have several types
    assert summary == Summary(failure=failure)
    assert not model.requests


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        ("", "the summary was empty"),
        ("<continue> </continue>", "the summary was empty"),
        ("I cannot.", "the summary had no notes in it"),
        (Reply(text="Progress: x", finish=ModelFinish.CONTENT_FILTER), "the summary was withheld by a content filter"),
    ],
)
async def test_a_reply_that_is_no_summary_is_paid_for_and_not_used(reply: str | Reply, failure: str) -> None:
    summary, _ = await ask(reply)
    assert (summary.notes, summary.failure) == (None, failure)
    assert summary.usage is not None
    assert summary.usage.model_calls == 1


async def test_fields_without_a_tag_are_a_summary() -> None:
    summary, _ = await ask("Progress: half\nNext Steps: east")
    assert summary.notes is not None


@pytest.mark.parametrize(
    ("error", "text", "charged"),
    [
        (ModelTimeoutError("late"), "", False),
        (ModelTimeoutError("late"), "Progress: ha", True),
        (ModelFailedError("broken"), "", True),
        (TokenBudgetExhaustedError("none left"), "", False),
    ],
)
async def test_a_call_that_fails_is_told_and_what_it_cost_is_counted(
    error: ReasondError, text: str, *, charged: bool
) -> None:
    summary, _ = await ask(Reply(text=text, error=error, error_after=len(text)))
    assert summary.failure == f"the summary call failed ({error.reason})"
    assert summary.notes is None
    assert (summary.usage is not None) is charged
    if summary.usage is not None:
        assert summary.usage.source is UsageSource.ESTIMATED
        assert summary.usage.output_tokens == COUNTER.count_text(text)


async def test_defects_of_our_own_pass_through() -> None:
    with pytest.raises(InternalError):
        await ask(Reply(error=InternalError("the run is over"), error_after=0))


async def test_an_inexact_counter_is_owned_up_to() -> None:
    model = ScriptedModel(["<continue>Progress: x</continue>"], counter=ByteCounter())
    summary = await summarize(
        model=model, messages=MESSAGES, written=parsed_reply(), chunk_size=2048, most_tokens=76, temperature=0.0
    )
    assert not summary.is_exact
