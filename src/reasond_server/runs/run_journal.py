"""Records the completed calls between a run's work and its model, so that no call is made twice.

Every call has a key: its kind, a digest of the request, and the number of equal requests of the run so far. A resumed
run makes the same requests again and gets the answers from the records. Effects (`runs.effects`) are recorded likewise.
Its steps are counted, and those that it repeats are compared with the ones that its earlier lives logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors.base import ReasondError, show
from reasond_server.eventlog.store import Record
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import Finished, ModelFinish, ReasoningText, Text, WrappedModel
from reasond_server.runs.recorded_calls import (
    AnswerParts,
    RecordedCall,
    compute_messages_digest,
    compute_older_digest,
    compute_request_digest,
    decode_call,
    decode_count,
    encode_call,
    encode_count,
    read_settings,
    read_usage,
)
from reasond_server.types import NOTHING, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent


_MODEL: Final = "model"
_COUNT: Final = "count"
_CUT: Final = "cut::1"
STARTED: Final = "-started"
"""The suffix of the kind of a record which says that an effect has begun."""
RESULT: Final = "-result"
"""The suffix of the kind of a record that holds the result of an effect."""
_HASHED_CHARACTERS: Final = 15


def sum_spent(records: Iterable[Record]) -> Usage:
    """Return the usage of all recorded model calls.

    Raises:
        ReplayError: a record cannot be read. The result of an effect may be any JSON; it is read only when needed.
    """
    read = (record.body for record in records if not record.key.partition(":")[0].endswith(RESULT))
    return sum(map(read_usage, read), NOTHING)


class RecordSink(Protocol):
    """Where records are appended: the log of the run."""

    async def wait_for_room(self) -> None:
        """Wait while too many entries wait for a commit."""

    async def flush(self) -> None:
        """Wait until all appended entries are committed."""


class RunJournal:
    """The records of one run: those of its earlier lives, and the new ones.

    `write` appends one. After `close` nothing is recorded: a call that ends while work is stopped is not
    complete. New calls can be held back before they are made.

    Attributes:
        has_effects: whether an effect has begun, in this life of the run or an earlier one.
        is_closing: the run was stopped: a call that is closed now was interrupted, and no effect begins.
        is_closed: nothing is recorded any more.
        recalled: how many calls and effects were replayed from the records.
        spent: the usage of the recorded calls that this life has not repeated yet.
        has_diverged: the run does not repeat what it did before: its code or configuration has changed.
        other_settings: parameters of replayed calls that are others now: by name the recorded value and today's.
    """

    def __init__(self, *, records: Sequence[Record] = (), write: Callable[[Record], None], sink: RecordSink) -> None:
        self._kept = {record.key: record.body for record in records}
        # Counts by 60 bits of the digest. Two requests that share these bits share a counter, in every life alike.
        self._asked: Counter[int] = Counter()
        # Whole keys, without such collisions: an effect that happens twice cannot be undone.
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
        self.other_settings: dict[str, tuple[object, object]] = {}

    @property
    def has_unclaimed_effects(self) -> bool:
        """Whether an earlier life began effects that this one has not repeated."""
        return any(key.partition(":")[0].endswith(STARTED) for key in self._kept)

    @property
    def is_acting(self) -> bool:
        """Whether an effect is in progress."""
        return self._acting > 0

    @contextmanager
    def act(self) -> Iterator[None]:
        """Mark an effect as in progress while the context lasts."""
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
        """Return the common suffix of the two keys of an effect that begins now: of its start and of its result."""
        self.has_effects = True
        asked = f"{kind}:{digest}"
        self._begun[asked] = number = self._begun[asked] + 1
        return f"{digest}:{number}"

    def take(self, key: str) -> str | None:
        """Remove and return the body of the record with `key`, or None; each key is needed only once."""
        return self._kept.pop(key, None)

    def take_call(self, key: str, request: ChatRequest) -> RecordedCall | None:
        """Remove and return the model call with `key`, or the one that an older release recorded for the `request`."""
        if not self._kept:
            return None
        older = self.next_key(_MODEL, compute_older_digest(request))
        kept = self.take(key) or self.take(older)
        if kept is None:
            return None
        call, now = decode_call(kept), read_settings(request)
        for name, before in call.settings.items():
            if before != now.get(name):
                self.other_settings.setdefault(name, (before, now.get(name)))
        return call

    def recall(self, usage: Usage) -> None:
        """Count a replay of a record; from now on the run itself accounts for its `usage`."""
        self.recalled += 1
        self.spent -= usage

    def note(self, key: str, body: str) -> None:
        """Record a completed call, unless the journal is closed."""
        if not self.is_closed:
            self._write(Record(key=key, body=body))

    async def keep(self, key: str, body: str) -> None:
        """Record as `note` does, and wait while too many entries wait for a commit."""
        self.note(key, body)
        await self._sink.wait_for_room()

    async def keep_safely(self, key: str, body: str) -> None:
        """Record as `note` does, and wait until the record is committed."""
        self.note(key, body)
        await self._sink.flush()

    def note_cut(self) -> None:
        """Record only the usage up to now, interrupted calls included; allowed after `close`."""
        self._write(Record(key=_CUT, body="{}"))

    def begin_to_close(self) -> None:
        """From now on record only calls that end by themselves."""
        self.is_closing = True

    def close(self) -> None:
        """Record nothing from now on."""
        self.is_closing = self.is_closed = True

    def hold_calls(self, *, when_idle: Callable[[], None]) -> None:
        """Hold new calls back until `release_calls`; call `when_idle` once no call is open, which may be at once."""
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
        """Count a call as open until it is recorded."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way and self._when_idle is not None:
                self._when_idle()


class JournaledModel(WrappedModel[MeteredModel]):
    """The model of a run that can be resumed."""

    def __init__(self, *, model: MeteredModel, journal: RunJournal) -> None:
        super().__init__(model=model)
        self._journal = journal

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the token count of the model's server, recorded because it decides how material is cut."""
        key = self._journal.next_key(_COUNT, compute_messages_digest(messages))
        kept = self._journal.take(key)
        if kept is not None:
            return decode_count(kept)
        count = await self._model.count_exactly(messages)
        if count is not None:
            await self._journal.keep(key, encode_count(count))
        return count

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model, or replay the recorded answer if an earlier life of the run made this call.

        Raises:
            ReasondError: the error that the model raises, or that was recorded.
        """
        key = self._journal.next_key(_MODEL, compute_request_digest(request))
        kept = self._journal.take_call(key, request)
        events = self._call(request, key) if kept is None else self._recall(request, kept)
        async with aclosing(events):
            async for event in events:
                yield event

    async def _call(self, request: ChatRequest, key: str) -> AsyncGenerator[ModelEvent, None]:
        """Call the model and record the answer before the work receives its end."""
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
                # If the work closed the call, it needs no more text: the call is complete. If the run was stopped,
                # the call is complete only if its whole answer had arrived; then a resumed run must not pay again.
                is_enough = isinstance(left, GeneratorExit) and not self._journal.is_closing
                if is_enough or finished is not None:
                    self._journal.note(key, self._write_body(request, heard))
                raise
            except ReasondError as error:
                # In a run that is being stopped, the stop itself may have caused the error.
                if not self._journal.is_closing:
                    await self._journal.keep(key, self._write_body(request, heard, error))
                raise
            if finished is not None:
                await self._journal.keep(key, self._write_body(request, heard))
        if finished is not None:
            yield finished

    def _write_body(self, request: ChatRequest, heard: AnswerParts, error: ReasondError | None = None) -> str:
        return encode_call(
            RecordedCall(
                events=heard.join(),
                usage=self._model.last_call,
                error=error,
                is_clamped=self._model.is_clamped,
                lost_tokens=self._model.last_lost_tokens,
                settings=read_settings(request),
            )
        )

    async def _recall(self, request: ChatRequest, call: RecordedCall) -> AsyncGenerator[ModelEvent, None]:
        """Yield the recorded events, account for their usage, and let the counter learn from them again."""
        last = call.events[-1] if call.events else None
        if isinstance(last, Finished):
            warnings, learnt_from = last.warnings, request
        else:
            warnings, learnt_from = (), None
        self._model.recall(
            call.usage, warnings, request=learnt_from, is_clamped=call.is_clamped, lost_tokens=call.lost_tokens
        )
        self._journal.recall(call.usage)
        for event in call.events:
            yield event
        if call.error is not None:
            said = "".join(event.text for event in call.events if isinstance(event, Text))
            thoughts = "".join(event.text for event in call.events if isinstance(event, ReasoningText))
            self._model.recall_cut(said, thoughts, call.usage)
            raise call.error
        if not isinstance(last, Finished):
            # In the earlier life the work closed the call here. Now it wants more, and the record has no more.
            self._journal.has_diverged = True
            yield Finished(reason=ModelFinish.STOP, usage=call.usage)


_CHANGED: Final = (
    "The server went down after {steps} steps, and the one that went on did not do the same again, because its code or "
    "configuration is another: those steps stand as they were, later ones and the result were worked out anew."
)

_OTHER_SETTINGS: Final = (
    "The server went down and its configuration or release is another: answers that were paid before were used again, "
    "though such calls have other parameters now ({settings})."
)

_log = logging.getLogger("reasond.executions")


class RepeatedSteps:
    """The steps of one run. `known` are the digests of those that its earlier lives logged, in their order.

    Attributes:
        count: steps so far, in all lives of the execution.
        new_count: steps of this life; negative while it repeats logged ones.
    """

    def __init__(self, known: Sequence[bytes] = ()) -> None:
        self.count = 0
        self.new_count = -len(known)
        self._known = known
        self._has_diverged = False

    def add(self) -> None:
        """Count one more step."""
        self.count += 1
        self.new_count += 1

    def compare(self, digest: bytes) -> None:
        """Compare the next step, which is logged already (`new_count` is negative), with the logged one."""
        if digest != self._known[self.count]:
            self._has_diverged = True

    def close(self) -> None:
        """Note that the work has an outcome; it did not repeat its steps if some are still missing."""
        if self.new_count < 0:
            self._has_diverged = True

    def list_changes(self, journal: RunJournal | None, *, execution_id: str) -> Sequence[str]:
        """Return warnings for the caller if the run did not repeat its logged steps, or its recorded calls."""
        warnings: list[str] = []
        if self._has_diverged or (journal is not None and journal.has_diverged):
            _log.warning("work did not repeat its steps", extra={"execution_id": execution_id})
            warnings.append(_CHANGED.format(steps=len(self._known)))
        if journal is not None and journal.other_settings:
            changes = (f"{name} {show(was)}, now {show(now)}" for name, (was, now) in journal.other_settings.items())
            warnings.append(_OTHER_SETTINGS.format(settings="; ".join(changes)))
        return tuple(warnings)
