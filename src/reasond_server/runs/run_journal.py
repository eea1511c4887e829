"""What stands between a run's work and its model, so that a completed call is kept and never made again.

Every call has a key: what kind it is, a digest of what was asked, and how often the run had asked that before. A run
that is gone on with asks the same again, and is answered from the records. Effects (`runs.effects`) are kept alike.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors import ReasondError
from reasond_server.llm.metering import MeteredModel
from reasond_server.llm.model import Finished, ModelFinish, WrappedModel
from reasond_server.logs.store import Record
from reasond_server.runs.recorded_calls import (
    AnswerParts,
    RecordedCall,
    decode_call,
    decode_count,
    digest_of_messages,
    digest_of_request,
    encode_call,
    encode_count,
    usage_in,
)
from reasond_server.types import NOTHING, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent

_MODEL: Final = "model"
_COUNT: Final = "count"
_CUT: Final = "cut::1"
STARTED: Final = "-started"
"""How the kind of a record ends that says that an effect has begun."""
RESULT: Final = "-result"
"""How the kind of a record ends that holds what came of an effect."""
_HASHED_CHARACTERS: Final = 15


def sum_spent(records: Iterable[Record]) -> Usage:
    """Return what the model calls on record were charged with.

    Raises:
        ReplayError: one cannot be read.
    """
    return sum((usage_in(record.body) for record in records if record.key.startswith(f"{_MODEL}:")), NOTHING)


class RecordSink(Protocol):
    """Where records are appended: the log of the run."""

    async def wait_for_room(self) -> None:
        """Wait until little enough waits for a commit."""
        ...

    async def flush(self) -> None:
        """Wait until all that was appended is committed."""
        ...


class RunJournal:
    """The records of one run: those of its earlier life, and the new ones.

    `write` appends one. After `close` nothing is kept any more: what a strategy does while it is stopped is no
    completed call. Calls can be held back, one by one, before they are made.

    Attributes:
        has_effects: whether an effect has begun, in this life of the run or an earlier one.
        is_closing: the run was stopped: a call that is closed now was broken off, and no effect begins.
        is_closed: nothing is kept any more.
        recalled: how many calls and effects were answered from the records.
        spent: what the calls on record were charged with that were not asked for again.
        has_diverged: the run was seen to do something else than before: its code or configuration has changed since.
    """

    def __init__(self, *, records: Sequence[Record] = (), write: Callable[[Record], None], sink: RecordSink) -> None:
        self._kept = {record.key: record.body for record in records}
        # By 60 bits of the digest: two askings that share them begin to count above each other, in every life alike.
        self._asked: Counter[int] = Counter()
        # Whole keys: an effect that comes twice cannot be taken back.
        self._begun: Counter[str] = Counter()
        self.has_effects = any(key.partition(":")[0].endswith(STARTED) for key in self._kept)
        self._write = write
        self._sink = sink
        self.is_closed = False
        self.is_closing = False
        self._acting = 0
        self._under_way = 0
        self._when_idle: Callable[[], None] | None = None
        self._released = asyncio.Event()
        self._released.set()
        self.recalled = 0
        self.spent = sum_spent(records)
        self.has_diverged = False

    @property
    def has_unclaimed_effects(self) -> bool:
        """Whether an earlier life began effects that this one has not asked for."""
        return any(key.partition(":")[0].endswith(STARTED) for key in self._kept)

    @property
    def is_acting(self) -> bool:
        """Whether an effect is under way."""
        return self._acting > 0

    @contextmanager
    def act(self) -> Iterator[None]:
        """Let an effect be under way while the context lasts."""
        self._acting += 1
        try:
            yield
        finally:
            self._acting -= 1

    def next_key(self, kind: str, digest: str) -> str:
        """Return the key of a call that begins now; `digest` is hexadecimal."""
        asked = int(digest[:_HASHED_CHARACTERS], 16) + (kind == _COUNT)
        self._asked[asked] = number = self._asked[asked] + 1
        return f"{kind}:{digest}:{number}"

    def next_effect(self, kind: str, digest: str) -> str:
        """Return how the keys of an effect that begins now end: those of its start and of its result."""
        self.has_effects = True
        asked = f"{kind}:{digest}"
        self._begun[asked] = number = self._begun[asked] + 1
        return f"{digest}:{number}"

    def take(self, key: str) -> str | None:
        """Return what is on record under `key` and hold it no longer: nobody asks for the same key twice."""
        return self._kept.pop(key, None)

    def recall(self, usage: Usage) -> None:
        """Note that a call or an effect was answered from its record; the run books its `usage` itself from now on."""
        self.recalled += 1
        self.spent -= usage

    def note(self, key: str, body: str) -> None:
        """Keep a call that was completed."""
        if not self.is_closed:
            self._write(Record(key=key, body=body))

    async def keep(self, key: str, body: str) -> None:
        """Do the same, and wait while too much waits for a commit."""
        self.note(key, body)
        await self._sink.wait_for_room()

    async def keep_safely(self, key: str, body: str) -> None:
        """Do the same, and wait until it is committed."""
        self.note(key, body)
        await self._sink.flush()

    def note_cut(self) -> None:
        """Keep nothing but what was spent until now, calls that were broken off included; also after `close`."""
        self._write(Record(key=_CUT, body="{}"))

    def begin_to_close(self) -> None:
        """Keep only what ends by itself from now on."""
        self.is_closing = True

    def close(self) -> None:
        """Keep nothing from now on."""
        self.is_closing = self.is_closed = True

    def hold_calls(self, *, when_idle: Callable[[], None]) -> None:
        """Let no call begin until `release_calls`; call `when_idle` once none is under way, which may be at once."""
        self._when_idle = when_idle
        self._released.clear()
        if not self._under_way:
            when_idle()

    def release_calls(self) -> None:
        """Let calls begin again."""
        self._when_idle = None
        self._released.set()

    async def wait_for_turn(self) -> None:
        """Wait while calls are held back."""
        await self._released.wait()

    @contextmanager
    def open_call(self) -> Iterator[None]:
        """Count a call while it is made and until it is on record."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way and self._when_idle is not None:
                self._when_idle()


class JournaledModel(WrappedModel[MeteredModel]):
    """The model of a run that can be gone on with."""

    def __init__(self, *, model: MeteredModel, journal: RunJournal) -> None:
        super().__init__(model=model)
        self._journal = journal

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return what the model's server counts, or counted: it decides how material is cut."""
        key = self._journal.next_key(_COUNT, digest_of_messages(messages))
        kept = self._journal.take(key)
        if kept is not None:
            return decode_count(kept)
        count = await self._model.count_exactly(messages)
        if count is not None:
            await self._journal.keep(key, encode_count(count))
        return count

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model, or yield what it answered when the run made this call before.

        Raises:
            ReasondError: as the model says, or said.
        """
        key = self._journal.next_key(_MODEL, digest_of_request(request))
        kept = self._journal.take(key)
        events = self._call(request, key) if kept is None else self._recall(request, decode_call(kept))
        async with aclosing(events):
            async for event in events:
                yield event

    async def _call(self, request: ChatRequest, key: str) -> AsyncGenerator[ModelEvent, None]:
        """Call the model and keep what it answers before the strategy can act on it."""
        heard, finished = AnswerParts(), None
        await self._journal.wait_for_turn()
        with self._journal.open_call():
            try:
                async with aclosing(self._model.stream(request)) as events:
                    async for event in events:
                        heard.add(event)
                        if isinstance(event, Finished):
                            finished = event
                        else:
                            yield event
            except (GeneratorExit, asyncio.CancelledError) as left:
                # Closed by the strategy, which has heard enough, the call is complete; closed with the run only where
                # its answer was whole: whoever goes on is not to pay for it again.
                is_enough = isinstance(left, GeneratorExit) and not self._journal.is_closing
                if is_enough or finished is not None:
                    self._journal.note(key, self._body(heard))
                raise
            except ReasondError as error:
                # Of a run that is stopped it may be an echo of that.
                if not self._journal.is_closing:
                    await self._journal.keep(key, self._body(heard, error))
                raise
            if finished is not None:
                await self._journal.keep(key, self._body(heard))
        if finished is not None:
            yield finished

    def _body(self, heard: AnswerParts, error: ReasondError | None = None) -> str:
        return encode_call(
            RecordedCall(
                events=heard.join(), usage=self._model.last_call, error=error, is_clamped=self._model.is_clamped
            )
        )

    async def _recall(self, request: ChatRequest, call: RecordedCall) -> AsyncGenerator[ModelEvent, None]:
        """Yield what is on record, book what it cost, and let the counter learn from it again."""
        last = call.events[-1] if call.events else None
        if isinstance(last, Finished):
            self._model.recall(call.usage, last.warnings, request=request, is_clamped=call.is_clamped)
        else:
            self._model.recall(call.usage, is_clamped=call.is_clamped)
        self._journal.recall(call.usage)
        for event in call.events:
            yield event
        if call.error is not None:
            raise call.error
        if not isinstance(last, Finished):
            # The strategy had heard enough then. It asks for more now, and there is none.
            self._journal.has_diverged = True
            yield Finished(reason=ModelFinish.STOP, usage=call.usage)
