"""What stands between a strategy and its model and tools, so that a completed call is kept and never made again.

Every call has a key: what kind it is, a digest of what was asked, and how often the run had asked that before. A run
that is gone on with asks the same again, and is answered from the records.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Protocol

from reasond_server.errors import InternalError, ReasondError, ToolOutcomeUnknownError, shown
from reasond_server.llm.metering import MeteredModel
from reasond_server.llm.model import Finished, WrappedModel
from reasond_server.logs.store import Record
from reasond_server.runs.replay.occurrences import Occurrences
from reasond_server.runs.replay.recorded import (
    Hearing,
    RecordedCall,
    ReplayError,
    decode_call,
    decode_count,
    decode_result,
    digest_of_messages,
    digest_of_request,
    digest_of_texts,
    encode_call,
    encode_count,
    encode_result,
    usage_in,
)
from reasond_server.types import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, ToolSpec
    from reasond_server.tools.toolbox import Toolbox
    from reasond_server.types import ToolCall, ToolResult

_MODEL, _COUNT, _STARTED, _RESULT, _CUT = "model", "count", "tool-started", "tool-result", "cut"
_OF_TOOLS = (_STARTED, _RESULT)


class Recorder(Protocol):
    """Where records are appended: the log of the run."""

    async def wait_for_room(self) -> None:
        """Wait until little enough waits for a commit."""
        ...

    async def flush(self) -> None:
        """Wait until all that was appended is committed."""
        ...


class Journal:
    """The records of one run: those of its earlier life, and the new ones.

    `write` appends one. After `close` nothing is kept any more: what a strategy does while it is stopped is no
    completed call. Calls can be held back, one by one, before they are made.
    """

    def __init__(self, *, records: Iterable[Record] = (), write: Callable[[Record], None], recorder: Recorder) -> None:
        self._kept = {record.key: record.body for record in records}
        self._asked = Occurrences()
        # Exact for ever: a tool that runs twice cannot be taken back.
        self._acted: Counter[str] = Counter()
        self._has_tool_calls = any(key.startswith(_STARTED) for key in self._kept)
        self._write = write
        self._recorder = recorder
        self._is_closed = False
        self._is_closing = False
        self._acting = 0
        self._under_way = 0
        self._when_idle: Callable[[], None] | None = None
        self._released = asyncio.Event()
        self._released.set()
        self.recalled = 0

    @property
    def spent(self) -> Usage:
        """What all calls on record that were not taken yet were charged with."""
        return sum(map(usage_in, self._kept.values()), Usage())

    @property
    def has_tool_calls(self) -> bool:
        """Whether a tool call has begun, in this life of the run or an earlier one."""
        return self._has_tool_calls

    @property
    def is_acting(self) -> bool:
        """Whether a tool is at work."""
        return self._acting > 0

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Let a tool be at work while the context lasts."""
        self._acting += 1
        try:
            yield
        finally:
            self._acting -= 1

    @property
    def is_closing(self) -> bool:
        """Whether the run was stopped: a call that is closed now was broken off."""
        return self._is_closing

    @property
    def is_closed(self) -> bool:
        """Whether nothing is kept any more."""
        return self._is_closed

    def next_key(self, kind: str, digest: str) -> str:
        """Return the key of a call that begins now."""
        asked = f"{kind}:{digest}"
        if kind in _OF_TOOLS:
            self._has_tool_calls = True
            self._acted[asked] += 1
            return f"{asked}:{self._acted[asked]}"
        return f"{asked}:{self._asked.next_of(asked)}"

    def take(self, key: str) -> str | None:
        """Return what is on record under `key` and hold it no longer: nobody asks for the same key twice."""
        return self._kept.pop(key, None)

    def note(self, key: str, body: str) -> None:
        """Keep a call that was completed."""
        if not self._is_closed:
            self._write(Record(key=key, body=body))

    async def keep(self, key: str, body: str) -> None:
        """Do the same, and wait while too much waits for a commit."""
        self.note(key, body)
        await self._recorder.wait_for_room()

    async def keep_safely(self, key: str, body: str) -> None:
        """Do the same, and wait until it is committed."""
        self.note(key, body)
        await self._recorder.flush()

    def note_cut(self) -> None:
        """Keep nothing but what was spent until now, calls that were broken off included; also after `close`."""
        self._write(Record(key=self.next_key(_CUT, ""), body="{}"))

    def begin_to_close(self) -> None:
        """Keep only what ends by itself from now on."""
        self._is_closing = True

    def close(self) -> None:
        """Keep nothing from now on."""
        self._is_closed = True

    def hold(self, *, when_idle: Callable[[], None]) -> None:
        """Let no call begin until `release`; call `when_idle` once none is under way, which may be at once."""
        self._when_idle = when_idle
        self._released.clear()
        if not self._under_way:
            when_idle()

    def release(self) -> None:
        """Let calls begin again."""
        self._when_idle = None
        self._released.set()

    async def turn(self) -> None:
        """Wait while calls are held back."""
        await self._released.wait()

    @contextmanager
    def under_way(self) -> Iterator[None]:
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

    def __init__(self, *, model: MeteredModel, journal: Journal) -> None:
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
            ReplayError: the strategy asks for more of a call than it did before.
            ReasondError: as the model says, or said.
        """
        key = self._journal.next_key(_MODEL, digest_of_request(request))
        kept = self._journal.take(key)
        events = self._made(request, key) if kept is None else self._recalled(request, decode_call(kept))
        async with aclosing(events):
            async for event in events:
                yield event

    async def _made(self, request: ChatRequest, key: str) -> AsyncGenerator[ModelEvent, None]:
        """Call the model and keep what it answers before the strategy can act on it."""
        heard, finished = Hearing(), None
        await self._journal.turn()
        with self._journal.under_way():
            try:
                async with aclosing(self._model.stream(request)) as events:
                    async for event in events:
                        heard.hear(event)
                        if isinstance(event, Finished):
                            finished = event
                        else:
                            yield event
            except GeneratorExit:
                # The strategy has heard enough: for it the call is complete, unless it is closed with the run.
                if not self._journal.is_closing:
                    self._journal.note(key, self._body(heard))
                raise
            except ReasondError as error:
                await self._journal.keep(key, self._body(heard, error))
                raise
            if finished is not None:
                await self._journal.keep(key, self._body(heard))
        if finished is not None:
            yield finished

    def _body(self, heard: Hearing, error: ReasondError | None = None) -> str:
        return encode_call(
            RecordedCall(
                events=heard.events(), usage=self._model.last_call, error=error, is_clamped=self._model.is_clamped
            )
        )

    async def _recalled(self, request: ChatRequest, call: RecordedCall) -> AsyncGenerator[ModelEvent, None]:
        """Yield what is on record, book what it cost, and let the counter learn from it again."""
        last = call.events[-1] if call.events else None
        if isinstance(last, Finished):
            self._model.recall(call.usage, last.warnings, request=request, is_clamped=call.is_clamped)
        else:
            self._model.recall(call.usage, is_clamped=call.is_clamped)
        self._journal.recalled += 1
        for event in call.events:
            yield event
        if call.error is not None:
            raise call.error
        if not isinstance(last, Finished):
            raise ReplayError("the strategy asked for more of a model call than it did before the server went down")


class JournaledToolbox:
    """The tools of a run that can be gone on with: a call that has begun is on record before it has an effect.

    `hold` waits while the process cannot be sure that no other one is at work on the run.
    """

    def __init__(
        self, *, toolbox: Toolbox, journal: Journal, hold: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._toolbox = toolbox
        self._journal = journal
        self._hold = hold

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that may be called."""
        return self._toolbox.specs

    def is_idempotent(self, name: str) -> bool:
        """Return what the tool says."""
        return self._toolbox.is_idempotent(name)

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Take a call that was made in an earlier life of the run."""
        self._toolbox.restore(call, result)

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute `call`, or return what came of it when the run made it before.

        Raises:
            ToolOutcomeUnknownError: it had begun when a process died, and must not be made twice.
            ReasondError: as the tools say, or said.
        """
        self._require_open()
        digest = digest_of_texts(call.call_id, call.name, call.arguments_json)
        started, result = self._journal.next_key(_STARTED, digest), self._journal.next_key(_RESULT, digest)
        kept = self._journal.take(result)
        if kept is not None:
            return self._recalled(call, kept)
        await self._journal.turn()
        with self._journal.under_way():
            if self._journal.take(started) is None:
                await self._held()
                await self._journal.keep_safely(started, "{}")
            elif not self.is_idempotent(call.name):
                raise _unknown(call)
            # Once more: the commit may have taken long.
            await self._held()
            try:
                with self._journal.acting():
                    outcome = await self._toolbox.call(call)
            except ReasondError as error:
                await self._journal.keep_safely(result, encode_result(error))
                raise
            await self._journal.keep_safely(result, encode_result(outcome))
        return outcome

    async def _held(self) -> None:
        if self._hold is not None:
            await self._hold()
        # The run may have ended meanwhile, and a task that its strategy left behind may be what calls here.
        self._require_open()

    def _require_open(self) -> None:
        if self._journal.is_closed:
            raise InternalError("the run is over and calls no more tools")

    def _recalled(self, call: ToolCall, kept: str) -> ToolResult:
        outcome = decode_result(kept)
        self._journal.recalled += 1
        if isinstance(outcome, ReasondError):
            raise outcome
        self._toolbox.restore(call, outcome)
        return outcome


def _unknown(call: ToolCall) -> ToolOutcomeUnknownError:
    return ToolOutcomeUnknownError(
        f"The server went down while the tool {shown(call.name)} was at work; whether it did its part is not known",
        remedy="See for yourself, then ask again; what was done until then is kept.",
        metadata={"tool": call.name, "call_id": call.call_id},
    )
