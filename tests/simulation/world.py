"""State that processes and clients of a simulation share: chance, time, model, tools, and all observed events."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from reasond_server.errors.model import ModelFailedError
from reasond_server.errors.turns import SessionNotFoundError
from reasond_server.eventlog.store import ExecutionFilter, Record
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import Finished, ModelFinish, Text
from reasond_server.runs.run_factory import MAX_FRUITLESS_TAKEOVERS
from reasond_server.types import ExecutionState, LoggedEvent, ToolResult, Usage
from tests.simulation.questions import CALCULATOR, CALCULATOR_SPEC, courses, reply_to, run_calculator
from tests.simulation.questions import marker_of as request_marker
from tests.simulation.scripted import is_of_list
from tests.simulation.turn_checks import TurnChecks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import Append
    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter, ToolSpec
    from reasond_server.reasoning.service import ExecutionView
    from reasond_server.tools.tool import KeyedToolbox, Tool
    from reasond_server.types import Execution, Session, StreamEvent, ToolCall
    from tests.simulation.processes import Process
    from tests.simulation.questions import Question
    from tests.simulation.virtual import VirtualLoop

ResultT = TypeVar("ResultT")
TENANT = "acme"
REPEATABLE_TOOL = "look_up"
WORKS_ON: contextvars.ContextVar[str] = contextvars.ContextVar("execution", default="")
# An open stream is closed a tenth of a lease after the last moment at which a call may begin, or after the process
# has resumed; clocks differ by a few per cent of a lease.
CLOSED_WITHIN_S = 2.5


class ViolationError(AssertionError):
    """A required condition does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of faults: probabilities per operation or per call, and seconds."""

    crash: float = 0.015
    freeze: float = 0.0
    outage: float = 0.0
    outage_s: float = 0.0
    lost_answer: float = 0.01
    refused: float = 0.01
    lost_notice: float = 0.3
    model_failure: float = 0.02
    slowest_store_s: float = 0.05
    slowest_model_s: float = 2.0

    @classmethod
    def of(cls, chance: random.Random) -> Rates:
        """Return the rates of one simulation: often no faults of some kind, sometimes many of all kinds."""
        return cls(
            crash=chance.choice((0.0, 0.005, 0.02, 0.05)),
            freeze=chance.choice((0.0, 0.0, 0.02, 0.1)),
            outage=chance.choice((0.0, 0.0, 0.005, 0.02)),
            outage_s=chance.choice((3.0, 20.0, 40.0)),
            lost_answer=chance.choice((0.0, 0.0, 0.02)),
            refused=chance.choice((0.0, 0.0, 0.02)),
            lost_notice=chance.choice((0.0, 0.3, 1.0)),
            model_failure=chance.choice((0.0, 0.0, 0.03)),
            slowest_store_s=chance.choice((0.0, 0.02, 0.5)),
            slowest_model_s=chance.choice((0.01, 1.0, 8.0, 20.0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The holder of an execution's lease: since when, and until when unless it is renewed."""

    process: str
    since_s: float
    until_s: float


class World:
    """The shared state of one simulation; every choice is drawn from `chance`."""

    def __init__(self, seed: int, loop: VirtualLoop, *, tells: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.tells = tells
        self.loop = loop
        self.chance = random.Random(f"world {seed}")  # noqa: S311 - a seeded, repeatable sequence
        self.rates = Rates.of(self.chance)
        self.has_calmed = False
        self.trace = hashlib.sha256()
        self.happened: Counter[str] = Counter()
        self.violations: list[str] = []
        self.seen: dict[str, dict[int, StreamEvent]] = defaultdict(dict)
        self.begun: Counter[str] = Counter()
        self.committed: dict[str, set[str]] = defaultdict(set)
        self.deleted: set[str] = set()
        self.keys: dict[str, ToolCall] = {}
        self.effects: Counter[str] = Counter()
        self.questions: dict[str, Question] = {}
        # Tags with a failed call: their runs differ from the undisturbed ones.
        self.failed: set[str] = set()
        self.retention_s = self.chance.choice((100_000.0, 100_000.0, 60.0, 5.0))
        self.created: set[str] = set()
        self.expired: set[str] = set()
        self._expiries: dict[str, datetime] = {}
        self._holders: dict[str, str] = {}
        self.on_end: Callable[[str], None] = lambda _: None
        self.store = MemoryExecutionStore(max_bytes=64 * 1024 * 1024, now=loop.now, monotonic=loop.time)
        self.answers: dict[str, list[ExecutionView]] = defaultdict(list)
        self.interrupted: set[str] = set()
        self.leases: dict[str, Holder] = {}
        self._left_alone: set[str] = set()
        self._tags: dict[str, str] = {}
        self._ids = 0
        self.turns = TurnChecks(self)
        self.repairs: set[str] = set()

    def note(self, what: str) -> None:
        """Add `what` to the trace, by which two runs of one seed are compared."""
        if self.tells is not None:
            self.tells(f"{self.loop.passed_s:10.3f}  {what}")
        self.trace.update(f"{self.loop.passed_s:.9f} {what}\n".encode())

    def report(self, what: str) -> None:
        """Record a violation."""
        self.note(what)
        self.violations.append(f"after {self.loop.passed_s:.3f} s: {what}")

    def is_given_up(self, message: str) -> bool:
        """Whether a run says that two processes that went on with it ended, as it may where enough of them did."""
        ended = self.happened["crash"] + self.happened["freeze"]
        return "ended before it got any further" in message and ended > MAX_FRUITLESS_TAKEOVERS

    def new_id(self, prefix: str) -> str:
        """Return a unique name."""
        self._ids += 1
        return f"{prefix}{self._ids}"

    def happens(self, rate: float, what: str) -> bool:
        """Return whether a fault occurs now, with probability `rate`."""
        if self.has_calmed or self.chance.random() >= rate:
            return False
        self.happened[what] += 1
        self.note(what)
        return True

    async def latency(self, most_s: float) -> None:
        """Wait for up to `most_s` seconds, often not at all."""
        await asyncio.sleep(self.chance.choice((0.0, 0.0, self.chance.random() * most_s)))

    def saw(self, event: StreamEvent) -> None:
        """Compare an event that a client received with the committed one, and with that of any other client."""
        if not self.is_gone(event.execution_id) and event.sequence > len(self.log_of(event.execution_id)):
            self.report(f"event {event.sequence} of {event.execution_id} was seen before it was committed")
        before = self.seen[event.execution_id].setdefault(event.sequence, event)
        if before != event:
            self.report(f"event {event.sequence} of {event.execution_id} was {before} and is {event}")

    def check_answer(self, view: ExecutionView) -> None:
        """Check that the steps of a whole answer are those that clients have seen."""
        execution_id = view.execution.execution_id
        self.answers[execution_id].append(view)
        for step in view.steps:
            seen = self.seen[execution_id].get(step.index + 2)
            if seen is not None and seen.event != step:
                self.report(f"step {step.index} of {execution_id} was seen as {seen.event} and is {step}")

    def was_committed(self, part: Append) -> None:
        """Record which replies are committed; each names its prompt."""
        execution_id = part.execution.execution_id
        if part.execution.state is ExecutionState.SUSPENDED:
            self.happened["suspended"] += 1
            self.leases.pop(execution_id, None)
        for entry in part.entries:
            if isinstance(entry, Record):
                self.committed[execution_id].add(entry.body)
        if (
            part.execution.expire_time is not None
            and not self.is_gone(execution_id)
            and execution_id not in self._expiries
        ):
            self._expiries[execution_id] = part.execution.expire_time
            # Its retention may have ended while it waited for the commit.
            if not self.is_gone(execution_id):
                self.on_end(execution_id)

    def is_gone(self, execution_id: str) -> bool:
        """Return whether a log was deleted or has expired."""
        self.expire()
        return execution_id in self.deleted or execution_id in self.expired

    def expire(self) -> None:
        """Record which executions have expired, and forget the effects of their request ids."""
        now = self.loop.now()
        for execution_id in [one for one, until in self._expiries.items() if until <= now]:
            del self._expiries[execution_id]
            if execution_id in self.deleted:
                continue
            self.happened["expired"] += 1
            self.expired.add(execution_id)
            self.committed.pop(execution_id, None)
            request_id = next((name for name, holder in self._holders.items() if holder == execution_id), "")
            if request_id:
                self._forget_effects(request_id)

    def require_kept(self) -> None:
        """Check that only deleted and expired executions are gone."""
        self.expire()
        kept = {execution.execution_id for execution in self.all_executions()}
        for execution_id in sorted(self.created - kept - self.deleted - self.expired):
            self.report(f"{execution_id} is gone, but nobody deleted it and its time is not over")
            self.deleted.add(execution_id)

    def was_leased(self, execution_ids: Sequence[str], seconds: float, process: Process) -> None:
        """Record which process may work on executions, and for how long."""
        now_s = self.loop.time()
        for execution_id in execution_ids:
            before = self.leases.get(execution_id)
            is_same = before is not None and before.process == process.name
            since_s = before.since_s if before is not None and is_same else now_s
            self.leases[execution_id] = Holder(process=process.name, since_s=since_s, until_s=now_s + seconds)

    def require_right(self, process: Process, execution_id: str, what: str) -> None:
        """Check at the start of a call that no other process has the lease or can get it.

        Executions that nobody can resume, and those that their caller deleted, are exempt: no other process will make
        their calls.
        """
        holder = self.leases.get(execution_id)
        if holder is None or execution_id in self._left_alone or execution_id in self.deleted:
            return
        now_s = self.loop.time()
        if holder.process != process.name:
            self.report(f"{process.name} began {what} of {execution_id}, whose lease {holder.process} has")
        elif now_s >= holder.until_s:
            self.report(f"{process.name} began {what} of {execution_id} {now_s - holder.until_s:.3f} s too late")

    def require_closed(self, process: Process, execution_id: str, what: str) -> None:
        """Check during a call that it ends soon after another process has got the lease."""
        holder = self.leases.get(execution_id)
        if holder is None or execution_id in self._left_alone or holder.process == process.name:
            return
        passed_s = self.loop.time() - max(holder.since_s, process.awake_since_s)
        if passed_s > CLOSED_WITHIN_S:
            self.report(f"{process.name} reads {what} of {execution_id}, {passed_s:.3f} s after it was taken over")

    def was_created(self, execution_id: str, request_id: str, plan: str, inherits: str) -> None:
        """Record the question of an execution, the execution that it inherits from, and whether it can be resumed."""
        kept = json.loads(plan)
        # The execution that held the request id before may have expired in the meantime.
        self.expire()
        self.created.add(execution_id)
        if request_id:
            self._holders[request_id] = execution_id
        if "reason" in kept:
            self._left_alone.add(execution_id)
        elif "turn" in kept:
            self.turns.was_created(execution_id, kept)
        elif "repair" in kept:
            self.repairs.add(execution_id)
        elif "task" in kept:
            self._tags[execution_id] = kept["task"]["agent_capabilities"][0]
        if inherits:
            self.interrupted.add(execution_id)
            self.committed[execution_id] |= self.committed[inherits]

    def tag_of(self, execution_id: str) -> str:
        """Return the tag of an execution's question; empty if nobody could come back for the answer."""
        return self._tags.get(execution_id, "")

    def was_deleted(self, execution_id: str, request_id: str) -> None:
        """Record that an execution is gone; if it held a request id, forget the effects of that id."""
        self.note(f"delete {execution_id} {request_id}")
        self.deleted.add(execution_id)
        self.committed.pop(execution_id, None)
        if request_id:
            self._forget_effects(request_id)

    def _forget_effects(self, request_id: str) -> None:
        """Forget the effects of a request id whose holder is gone: they may happen again."""
        tag = request_id.removeprefix("r-")
        for execution in self.all_executions():
            if execution.request_id == request_id:
                self.committed.pop(execution.execution_id, None)
        for effect in [effect for effect in self.effects if f'"{tag}/' in effect]:
            del self.effects[effect]

    def all_executions(self) -> Sequence[Execution]:
        """Return every stored execution."""
        return at_once(self.store.page(TENANT, ExecutionFilter(), size=1000, before=None))

    def session_of(self, session_id: str) -> Session | None:
        """Return a stored session; None if there is none."""
        try:
            return at_once(self.store.sessions.find(TENANT, session_id))
        except SessionNotFoundError:
            return None

    def is_suspended(self, execution_id: str) -> bool:
        """Return whether a stored execution is suspended."""
        return self.find(execution_id).state is ExecutionState.SUSPENDED

    def find(self, execution_id: str) -> Execution:
        """Return a stored execution."""
        return at_once(self.store.find(TENANT, execution_id))

    def prolong(self, execution_ids: Iterable[str], until: datetime) -> None:
        """Record that ended executions are kept as long as their session."""
        self.expire()
        for execution_id in execution_ids:
            if execution_id in self._expiries:
                self._expiries[execution_id] = max(self._expiries[execution_id], until)

    def log_of(self, execution_id: str) -> Sequence[LoggedEvent]:
        """Return the committed entries of a log."""
        return at_once(self.store.read(TENANT, execution_id))

    def has_on_record(self, execution_id: str, marker: str) -> str:
        """Return the execution if its own records hold as many calls with `marker` as an undisturbed run makes."""
        question = self.questions.get(self.tag_of(execution_id))
        most = 1 if question is None else courses()[question.strategy, question.config].asked.get(marker, 1)
        found = sum(marker in body for body in self.committed.get(execution_id, ()))
        return execution_id if found >= most else ""

    def is_on_record(self, marker: str) -> str:
        """Return the execution whose records hold a call that ended with `marker`, unless it was deleted."""
        self.expire()
        for execution_id, bodies in tuple(self.committed.items()):
            if not self.is_gone(execution_id) and any(marker in body for body in bodies):
                return execution_id
        return ""


def at_once(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of `work`, which must not wait; the memory store never does."""
    try:
        work.send(None)
    except StopIteration as done:
        result: ResultT = done.value
        return result
    raise ViolationError("the memory store waited")


def marker_of(prompt: str) -> str:
    """Return the text that only the reply to `prompt` contains."""
    return f"reply-{hashlib.sha256(prompt.encode()).hexdigest()[:16]}"


def usage_of(prompt: str) -> Usage:
    """Return the usage of a completed call with `prompt`, which is always the same."""
    return Usage(
        input_tokens=WordPieceCounter().count_text(prompt),
        output_tokens=WordPieceCounter().count_text(f"{marker_of(prompt)} done"),
        model_calls=1,
    )


class Upstream:
    """The model as seen by one process; all processes use the same server."""

    name = "upstream"
    warnings: Sequence[str] = ()
    context_window = 32_768
    has_native_tools = True

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    @property
    def counter(self) -> TokenCounter:
        """Return the counter of word pieces."""
        return WordPieceCounter()

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the counter's count."""
        return self.counter.count_prompt(messages)

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer in two pieces, or fail."""
        world, execution_id = self._world, WORKS_ON.get()
        await self._process.point("model called")
        what = self._begin(request, execution_id)
        is_of_turn = execution_id in world.turns.turns
        events = world.turns.reply(execution_id, request) if is_of_turn else await _reply_to(request)
        await world.latency(world.rates.slowest_model_s)
        world.require_closed(self._process, execution_id, what)
        await self._process.point("model answers")
        yield events[0]
        await world.latency(world.rates.slowest_model_s)
        world.require_closed(self._process, execution_id, what)
        if world.happens(world.rates.model_failure, "model failure"):
            world.failed.add(world.tag_of(execution_id))
            raise ModelFailedError("the model failed")
        for event in events[1:]:
            yield event

    def _begin(self, request: ChatRequest, execution_id: str) -> str:
        """Record the start of a call and check that it is allowed; return the name of the call."""
        world, tag = self._world, self._world.tag_of(execution_id)
        prompt = request.messages[-1].content
        is_listed = is_of_list(prompt)
        what = f"the call {prompt!r}" if is_listed else f"the call {request_marker(request)} of {tag}"
        world.require_right(self._process, execution_id, what)
        if execution_id in world.turns.turns:
            world.note(what)
            return what
        if is_listed:
            tag = prompt.partition("/")[0]
            earlier = world.is_on_record(f"{marker_of(prompt)} done")
        else:
            earlier = world.has_on_record(execution_id, request_marker(request))
        if earlier:
            world.report(f"{what} was completed and committed by {earlier}, and was sent again")
        world.begun[tag] += 1
        world.note(what)
        return what


async def _reply_to(request: ChatRequest) -> Sequence[ModelEvent]:
    prompt = request.messages[-1].content
    if not is_of_list(prompt):
        return await reply_to(request)
    return [
        Text(text=marker_of(prompt)),
        Text(text=" done"),
        Finished(reason=ModelFinish.STOP, usage=usage_of(prompt)),
    ]


class Tools:
    """The tools of one process: one whose effect must not happen twice, and one that may be repeated."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def open_toolbox(
        self, *, max_calls: int | None, execution_id: str = "", also: Sequence[Tool] = (), keeps_whole: bool = False
    ) -> KeyedToolbox:
        """Return this object: calls are not counted per run here."""
        del max_calls, execution_id, also, keeps_whole
        return self

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that are offered to the model; the listed strategy calls others itself."""
        return (CALCULATOR_SPEC,)

    def is_idempotent(self, name: str) -> bool:
        """Return whether a call with an unknown outcome may be repeated."""
        question = self._world.questions.get(self._world.tag_of(WORKS_ON.get()))
        return name == REPEATABLE_TOOL or (question is not None and question.has_repeatable_tools)

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Do nothing: calls are not counted here."""

    async def call(self, call: ToolCall, *, idempotency_key: str = "") -> ToolResult:
        """Cause the effect, after which the process may crash; the same key means the same call, in any process."""
        world = self._world
        world.require_right(self._process, WORKS_ON.get(), f"the tool call {call.name} {call.arguments_json}")
        await world.latency(0.5)
        await self._process.point("tool called")
        effect = f"{call.name} {call.arguments_json}"
        if world.keys.setdefault(idempotency_key, call) != call:
            world.report(f"{call} has the key of {world.keys[idempotency_key]}")
        if call.name == CALCULATOR:
            whose = world.tag_of(WORKS_ON.get()) or WORKS_ON.get()
            effect = f'{call.name} "{whose}/{call.call_id}" {call.arguments_json}'
        # A process that was frozen may have started for a request that has expired since.
        world.effects[effect] += not world.is_gone(WORKS_ON.get())
        world.note(f"effect {effect}")
        if not self.is_idempotent(call.name) and world.effects[effect] > 1:
            world.report(f"the tool call {effect} had its effect twice")
        await self._process.point("tool answers")
        await world.latency(0.5)
        if call.name == CALCULATOR:
            return run_calculator(call)
        return ToolResult(call_id=call.call_id, result_json=json.dumps({"of": call.arguments_json}))
