"""Replies of a real server, cut at any byte: a cut reply is never taken for whole, and the received part is kept.

The reply with reasoning is cut at every byte, in both protocols; the others, which have the same form, at every 13th.
"""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ModelFailedError, ModelProtocolError, ModelUnavailableError
from reasond_server.llm.model import Finished, ModelFinish
from reasond_server.types import ToolCall
from tests.faults.backend import backend, call, request
from tests.faults.scripts import PATIENT
from tests.faults.upstream import upstream

if TYPE_CHECKING:
    from tests.faults.upstream import Conversation

REPLIES = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "recorded").glob("*.http"))}
ENDS = {
    "chat": re.compile(rb'"finish_reason":"[a-z_]+".*?\n\n'),
    "responses": re.compile(rb'"response.completed".*?\n\n'),
}
SLICES = 4
EVERY = {"think": 1, "answer": 13, "calls": 13}


def told_at(name: str) -> int:
    """Return the first cut after which the end of the answer has arrived."""
    found = ENDS[name.partition("-")[0]].search(REPLIES[name])
    assert found is not None, name
    return found.end()


def test_the_replies_are_there() -> None:
    assert set(REPLIES) == {f"{name}-{chain}" for name in ENDS for chain in ("answer", "think", "calls")}


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("name", REPLIES)
async def test_a_reply_cut_at_any_byte_has_a_named_outcome_and_keeps_what_came(name: str, part: int) -> None:
    whole, protocol = REPLIES[name], name.partition("-")[0]
    first = len(whole) * part // SLICES
    step = EVERY[name.partition("-")[2]]
    cuts = range(first, len(whole) * (part + 1) // SLICES + 1, step)

    async def cut(conversation: Conversation) -> None:
        await conversation.send(whole[: cuts[server.calls - 1]])

    lengths: list[int] = []
    async with upstream(cut) as server, backend(server, retries=PATIENT, protocol=protocol) as one:
        for end in cuts:
            outcome = await call(one.model, request("Six times seven?"))
            said = len(outcome.text) + len(outcome.reasoning)
            lengths.append(said)
            if end >= told_at(name):
                assert outcome.error is None, end
                assert outcome.finished.reason is (ModelFinish.TOOL_CALLS if "calls" in name else ModelFinish.STOP)
                continue
            assert not any(isinstance(event, Finished) for event in outcome.events), end
            has_called = any(isinstance(event, ToolCall) for event in outcome.events)
            if said or has_called:
                assert isinstance(outcome.error, ModelFailedError), end
                assert f"{said} characters of the answer had come" in outcome.error.message
            else:
                assert isinstance(outcome.error, (ModelUnavailableError, ModelProtocolError, ModelFailedError)), end
    assert lengths == list(accumulate(lengths, max)), "a longer reply never tells less"


@pytest.mark.parametrize("name", REPLIES)
async def test_events_before_a_cut_are_the_beginning_of_the_whole_reply(name: str) -> None:
    whole, protocol = REPLIES[name], name.partition("-")[0]
    # One cut after each event is enough: the test above checks that nothing is lost between them.
    cuts = [place.end() for place in re.finditer(rb"\n\n", whole)] + [len(whole)]

    async def cut(conversation: Conversation) -> None:
        await conversation.send(whole[: cuts[server.calls - 1]])

    async with upstream(cut) as server, backend(server, retries=PATIENT, protocol=protocol) as one:
        outcomes = [await call(one.model) for _ in cuts]
    last = outcomes[-1]
    assert last.error is None
    for outcome in outcomes:
        assert last.text.startswith(outcome.text)
        assert last.reasoning.startswith(outcome.reasoning)
    calls = [event for event in last.events if isinstance(event, ToolCall)]
    assert [one.name for one in calls] == (["add", "halve"] if "calls" in name else [])
    assert last.text.endswith("42</answer>") is ("calls" not in name)
