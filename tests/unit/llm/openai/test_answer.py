from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ModelFailedError, ModelProtocolError
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.model import Finished, Text
from reasond_server.llm.openai.answer import AnswerReader, Deadline, StreamedAnswer, WaitLimits
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.chat import ChatCompletions
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.transport import build_lost_connection_fault
from reasond_server.telemetry.observers import UNOBSERVED
from tests.faults.backend import request
from tests.faults.upstream import DONE, GOOD, chunk

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = BackendOptions(name="main", model="m-1", base_url="http://host.example/v1")


class Pieces:
    """An answer in the given pieces, then its end or a failure."""

    def __init__(self, *pieces: bytes, breaks: bool = False) -> None:
        self.headers: dict[str, str] = {}
        self._pieces = deque(pieces)
        self._breaks = breaks
        self.is_closed = False

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        assert granted() >= 0
        if not self._pieces and self._breaks:
            raise build_lost_connection_fault(OPTIONS)
        return self._pieces.popleft() if self._pieces else b""

    async def aclose(self) -> None:
        self.is_closed = True


def answer(pieces: Pieces) -> StreamedAnswer:
    deadline = Deadline(timeouts=OPTIONS.timeouts, time_left_s=None, monotonic=time.monotonic)
    return StreamedAnswer(
        request=request(),
        warnings=("told",),
        options=OPTIONS,
        reader=AnswerReader(decoder=ChatCompletions().build_decoder(OPTIONS), stop=(), options=OPTIONS),
        upstream=pieces,
        limits=WaitLimits(timeouts=OPTIONS.timeouts, deadline=deadline, monotonic=time.monotonic),
        counter=ByteCounter(),
        observer=UNOBSERVED,
    )


async def test_each_read_is_one_batch_and_the_end_is_the_last() -> None:
    one = answer(Pieces(*GOOD))
    assert list(await one.read_events()) == [Text(text="Hello")]
    assert list(await one.read_events()) == [Text(text=" world")]
    batches = []
    while not one.is_over:
        batches.append(list(await one.read_events()))
    assert batches[:-1] == [[], [], []]
    (finished,) = batches[-1]
    assert isinstance(finished, Finished)
    assert finished.warnings == ("told",)


async def test_what_came_with_an_end_that_tells_no_reason_is_returned_before_that_is_a_fault() -> None:
    one = answer(Pieces(chunk("Hello") + DONE))
    assert list(await one.read_events()) == [Text(text="Hello")]
    with pytest.raises(UpstreamFaultError, match="without telling why"):
        await one.read_events()
    cut = answer(Pieces(b"".join(GOOD[:-1])))
    assert not any(isinstance(event, Finished) for event in await cut.read_events())


async def test_what_came_with_a_fault_is_returned_before_it_is_raised() -> None:
    one = answer(Pieces(chunk("Hello") + b"data: {\n\n"))
    assert list(await one.read_events()) == [Text(text="Hello")]
    with pytest.raises(UpstreamFaultError) as caught:
        await one.read_events()
    assert isinstance(caught.value.error, ModelProtocolError)
    assert not one.is_over


async def test_a_fault_before_anything_came_is_raised_at_once_and_may_be_tried_again() -> None:
    with pytest.raises(UpstreamFaultError) as caught:
        await answer(Pieces(breaks=True)).read_events()
    assert caught.value.retries > 0


async def test_a_connection_that_breaks_matters_only_before_the_finish_was_told() -> None:
    early = answer(Pieces(chunk("Hello"), breaks=True))
    await early.read_events()
    with pytest.raises(UpstreamFaultError) as caught:
        await early.read_events()
    assert isinstance(caught.value.error, ModelFailedError)
    late = answer(Pieces(chunk("Hello", finish="stop"), breaks=True))
    await late.read_events()
    assert isinstance((await late.read_events())[-1], Finished)


async def test_an_end_without_a_reason_returns_the_held_text_and_then_raises() -> None:
    one = answer(Pieces(chunk("<thi"), DONE))
    assert list(await one.read_events()) == []
    assert list(await one.read_events()) == []
    assert list(await one.read_events()) == [Text(text="<thi")]
    with pytest.raises(UpstreamFaultError, match="without telling why"):
        await one.read_events()


async def test_closing_lets_go_of_the_answer() -> None:
    pieces = Pieces()
    await answer(pieces).aclose()
    assert pieces.is_closed
