"""Server processes that share one store and can die at any moment, and their network connections to clients."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.runs.run_driver import Driver
from tests.simulation.assembly import assemble
from tests.simulation.faulty_sessions import FaultySessions
from tests.simulation.virtual import OWNER
from tests.simulation.world import WORKS_ON, Tools, Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
    from types import FrameType

    from reasond_server.eventlog.store import (
        Append,
        Change,
        Checkpoint,
        Claim,
        ExecutionFilter,
        ExecutionStore,
        Lease,
        Recovery,
        Renewal,
        SessionClaim,
    )
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.runs.run import Run
    from reasond_server.turns.turn_service import TurnService
    from reasond_server.types import Execution, LoggedEvent, StreamEvent
    from tests.napping import NappingKind
    from tests.simulation.assembly import Parts
    from tests.simulation.world import World

ResultT = TypeVar("ResultT")
ServiceT = TypeVar("ServiceT")
_CALM_BETWEEN_S = 20.0
_SLOW_REENTRIES = 0.2
_WORK_ON_A_RUN = Driver.drive.__qualname__


def current_process() -> Process | None:
    """Return the process that owns the running code, or None."""
    process = OWNER.get()
    return process if isinstance(process, Process) else None


class CutError(Exception):
    """The connection ended without a status: the process at the other end has died."""


class Connection:
    """One call of a client: it receives the process's messages until the process dies."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[StreamEvent | BaseException | None] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    def deliver(self, item: StreamEvent | BaseException | None) -> None:
        """Deliver an event, the error that ended the call, or None at its end."""
        self._arrived.put_nowait(item)

    async def take(self) -> StreamEvent | None:
        """Return the next event, or None at the end.

        Raises:
          BaseException: the error that ended the call.
        """
        item = await self._arrived.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Disconnect, like a client whose connection was cut."""
        if self.task is not None:
            self.task.cancel()


class Process:
    """One life of a server process: a service on the common store, until it is stopped or dies."""

    def __init__(
        self,
        world: World,
        store: ExecutionStore,
        *,
        dies_at_point: int | None,
        napping_of: Callable[[World, Process], NappingKind],
    ) -> None:
        self.world = world
        self.name = world.new_id("p")
        self.is_dead = False
        self.is_stopping = False
        self.awake_since_s = 0.0
        self._dies_at = dies_at_point
        self._points = 0
        # Not a set: its order depends on addresses, so that the same seed would give another simulation.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._open: dict[Connection, None] = {}
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self)
        self.store = FaultyStore(store, self)
        self.parts = self._context.run(
            partial(assemble, process=self, napping=napping_of(world, self)),
            world,
            self.store,
            Upstream(world, self),
            Tools(world, self),
        )

    @property
    def holds(self) -> str:
        """The places and permits that it holds; empty if it holds none."""
        load, permits = self.parts.runner.load, [permit.name for permit in self.parts.permits]
        return f"{load} and the permits {permits}" if load.running or load.queued or permits else ""

    async def start(self) -> None:
        """Start leases, recovery and retention."""
        await self.spawn(self.parts.start())

    def spawn(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Run `work` as a task of this process; tasks that it starts belong to the process as well."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Register a task that dies with the process."""
        self._tasks[task] = None
        task.add_done_callback(lambda _: self._tasks.pop(task, None))

    async def point(self, what: str) -> None:
        """Mark a place where the process may die; if it is dead, the code after it does not run."""
        self._points += 1
        if not self.is_dead and (
            (self._points == self._dies_at and not self.world.has_calmed)
            or self.world.happens(self.world.rates.crash / 10, "crash by chance")
        ):
            self.die(what)
        if self.is_dead:
            raise asyncio.CancelledError

    def die(self, what: str) -> None:
        """End as after SIGKILL: no task continues, nothing more is written, no connection is closed properly."""
        self.is_dead = True
        self.world.happened["crash"] += 1
        self.world.note(f"{self.name} dies at {what}")
        for task in tuple(self._tasks):
            task.cancel()
        for connection in tuple(self._open):
            connection.deliver(CutError())
        self._open.clear()

    async def freeze(self, seconds: float) -> None:
        """Pause for `seconds`, as after SIGSTOP: no task and no timer of the process runs."""
        loop = self.world.loop
        self.world.note(f"{self.name} stands still for {seconds:.3f} s")
        loop.freeze(self)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.world.note(f"{self.name} wakes up")
            self.awake_since_s = loop.time()
            loop.thaw(self)

    async def stop(self) -> None:
        """End as after SIGTERM."""
        self.is_stopping = True
        # It may die while it stops.
        await asyncio.wait({self.spawn(self.parts.stop())})
        self.is_dead = True
        for connection in tuple(self._open):
            connection.deliver(CutError())

    def call(self, make: Callable[[ReasoningService], AsyncGenerator[StreamEvent, None]]) -> Connection:
        """Open a stream."""
        return self._connect(self._stream(make, self.parts.service, connection := Connection()), connection)

    def call_turns(self, make: Callable[[TurnService], AsyncGenerator[StreamEvent, None]]) -> Connection:
        """Open a stream of turns."""
        return self._connect(self._stream(make, self.parts.turns, connection := Connection()), connection)

    def ask(self, make: Callable[[ReasoningService], Awaitable[object]]) -> Connection:
        """Make a call without a stream; only its end is delivered."""
        return self._connect(self._unary(make, connection := Connection()), connection)

    def ask_parts(self, make: Callable[[Parts], Awaitable[object]]) -> Connection:
        """Make a call below the service, as the service of another kind of work would."""
        return self._connect(self._unary(lambda _: make(self.parts), connection := Connection()), connection)

    def _connect(self, work: Coroutine[Any, Any, None], connection: Connection) -> Connection:
        if self.is_dead:
            work.close()
            connection.deliver(CutError())
            return connection
        self._open[connection] = None
        connection.task = self.spawn(work)
        connection.task.add_done_callback(lambda _: self._open.pop(connection, None))
        return connection

    async def _stream(
        self, make: Callable[[ServiceT], AsyncGenerator[StreamEvent, None]], service: ServiceT, connection: Connection
    ) -> None:
        with self._answering(connection):
            async with aclosing(make(service)) as events:
                async for event in events:
                    await self.point("event sent")
                    connection.deliver(event)

    async def _unary(self, make: Callable[[ReasoningService], Awaitable[object]], connection: Connection) -> None:
        with self._answering(connection):
            await make(self.parts.service)

    @contextmanager
    def _answering(self, connection: Connection) -> Iterator[None]:
        """Deliver the outcome of the call, unless the client is gone."""
        how: BaseException | None = None
        try:
            yield
        except asyncio.CancelledError:
            how = CutError()
            raise
        except ReasondError as error:
            how = error
        except Exception as error:  # noqa: BLE001 - the client checks it
            how = error
        finally:
            if not self.is_dead:
                connection.deliver(how)


class FaultyStore:
    """The store as seen by one process: slow, sometimes unreachable, with lost answers and lost notices."""

    is_durable = True
    is_shared = True

    def __init__(self, inner: ExecutionStore, process: Process) -> None:
        self.sessions = FaultySessions(inner.sessions, process.world, self._do)
        self._inner = inner
        self.room = inner.room
        self._process = process
        self._world = process.world
        self._outage_until_s = 0.0

    async def find_claim(self, tenant: str, request_id: str) -> Claim | None:
        """See ExecutionStore."""
        return await self._do("find_claim", self._inner.find_claim, tenant, request_id)

    async def read_checkpoint(self, tenant: str, execution_id: str, *, with_records: bool = True) -> Checkpoint:
        """See ExecutionStore."""
        read = partial(self._inner.read_checkpoint, with_records=with_records)
        return await self._do("read_checkpoint", read, tenant, execution_id)

    async def create(
        self,
        execution: Execution,
        *,
        digest: str,
        plan: str,
        lease: Lease,
        inherits: str = "",
        session: SessionClaim | None = None,
    ) -> Claim:
        """See ExecutionStore."""

        async def create() -> Claim:
            claim = await self._inner.create(
                execution, digest=digest, plan=plan, lease=lease, inherits=inherits, session=session
            )
            if claim.execution_id == execution.execution_id:
                self._world.was_created(execution.execution_id, execution.request_id, plan, inherits)
                self._world.was_leased([execution.execution_id], lease.seconds, self._process)
                if session is not None:
                    self._world.turns.has_entered(execution, session)
            self._world.note(
                f"create {execution.execution_id} {inherits!r} {execution.request_id}: {claim.execution_id}"
            )
            await self._check_request_id(execution.request_id)
            return claim

        return await self._do("create", create)

    async def release(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._world.note(f"release {execution_id}")
        await self._do("release", self._inner.release, tenant, execution_id)

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        """See ExecutionStore."""

        async def append() -> Sequence[ReasondError | None]:
            refusals = await self._inner.append(batch)
            for part, refused in zip(batch, refusals, strict=True):
                what = f"{part.version} {len(part.entries)} {part.execution.finish_reason or ''}"
                self._world.note(f"append {part.execution.execution_id} {what} {refused!r}")
                if refused is None and part.creation is not None:
                    name, lease = part.execution.execution_id, part.creation.lease
                    self._world.was_created(name, "", str(part.creation.plan), "")
                    self._world.was_leased([name], lease.seconds, self._process)
                if refused is None:
                    self._world.was_committed(part)
                    self._world.turns.was_committed(part)
            return refusals

        return await self._do("append", append)

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """See ExecutionStore."""
        return await self._do("find", self._inner.find, tenant, execution_id)

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        """See ExecutionStore."""

        async def read() -> Sequence[LoggedEvent]:
            return await self._inner.read(tenant, execution_id, after=after, limit=limit)

        return await self._do("read", read)

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        """See ExecutionStore."""

        async def page() -> Sequence[Execution]:
            return await self._inner.page(tenant, wanted, size=size, before=before)

        return await self._do("page", page)

    async def delete(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""

        async def delete() -> None:
            request_id = (await self._inner.find(tenant, execution_id)).request_id
            claim = await self._inner.find_claim(tenant, request_id) if request_id else None
            await self._inner.delete(tenant, execution_id)
            self._world.was_deleted(execution_id, request_id if claim and claim.execution_id == execution_id else "")

        await self._do("delete", delete)

    async def renew(self, lease: Lease, fences: Mapping[str, int]) -> Renewal:
        """See ExecutionStore."""

        async def renew() -> Renewal:
            told = await self._inner.renew(lease, fences)
            self._world.was_leased([name for name in fences if name not in told.lost], lease.seconds, self._process)
            return told

        return await self._do("renew", renew)

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        """See ExecutionStore."""

        async def recover() -> Sequence[Recovery]:
            found = await self._inner.recover(lease, limit=limit)
            self._world.happened["recovery"] += len(found)
            for one in found:
                self._world.interrupted.add(one.execution.execution_id)
            self._world.was_leased([one.execution.execution_id for one in found], lease.seconds, self._process)
            self._world.note(f"{self._process.name} recovers {[one.execution.execution_id for one in found]}")
            return found

        return await self._do("recover", recover)

    async def wake(
        self, lease: Lease, tenant: str, execution_id: str, *, event: LoggedEvent | None = None
    ) -> Recovery | None:
        """See ExecutionStore."""

        async def wake() -> Recovery | None:
            if event is not None and self._world.happens(_SLOW_REENTRIES, "slow re-entry"):
                # Others settle the same hand-off meanwhile, and perhaps the next one.
                await asyncio.sleep(self._world.chance.random() * 40)
            found = await self._inner.wake(lease, tenant, execution_id, event=event)
            if found is not None:
                self._world.happened["woken by a call"] += 1
                self._world.was_leased([execution_id], lease.seconds, self._process)
                self._world.note(f"{self._process.name} wakes {execution_id}")
            return found

        return await self._do("wake", wake)

    async def request_cancel(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._do("request_cancel", self._inner.request_cancel, tenant, execution_id)

    async def request_keep(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._do("request_keep", self._inner.request_keep, tenant, execution_id)

    async def announce(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._do("announce", self._inner.announce, tenant, execution_id)

    async def forget(self, *, limit: int) -> int:
        """See ExecutionStore."""

        async def forget() -> int:
            count = await self._inner.forget(limit=limit)
            self._world.require_kept()
            return count

        return await self._do("forget", forget)

    @contextmanager
    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> Iterator[None]:
        """See ExecutionStore; notices may be lost here, and a dead process receives none."""

        def tell(change: Change) -> None:
            if self._process.is_dead or self._world.happens(self._world.rates.lost_notice, "lost notice"):
                return
            asyncio.get_running_loop().call_soon(notify, change, context=self._process._context.copy())

        with self._inner.watch(execution_id, tell):
            yield

    async def aclose(self) -> None:
        """Do nothing: the store outlives the process."""

    async def _do(self, what: str, operation: Callable[..., Awaitable[ResultT]], *arguments: object) -> ResultT:
        """Run `operation` with the possible faults between a process and its store."""
        world, process = self._world, self._process
        world.expire()
        await process.point(f"before {what}")
        await world.latency(world.rates.slowest_store_s)
        # There is a calm period between two outages, so that waiting operations succeed.
        if world.loop.time() > self._outage_until_s + _CALM_BETWEEN_S and world.happens(world.rates.outage, "outage"):
            self._outage_until_s = world.loop.time() + world.rates.outage_s
        if world.happens(world.rates.refused, "refused") or world.loop.time() < self._outage_until_s:
            self._refuse()
        await process.point(f"in {what}")
        result = await operation(*arguments)
        await process.point(f"after {what}")
        if world.happens(world.rates.lost_answer, "lost answer"):
            self._refuse()
        await world.latency(world.rates.slowest_store_s)
        await process.point(f"back from {what}")
        return result

    def _refuse(self) -> NoReturn:
        if self._world.has_calmed:
            self._outage_until_s = 0.0
        raise StoreUnavailableError("the store is out of reach", retry_after_s=1.0)

    async def _check_request_id(self, request_id: str) -> None:
        """Check that at most one execution runs for a request id."""
        if not request_id:
            return
        running = [
            execution.execution_id
            for execution in self._world.all_executions()
            if execution.request_id == request_id and not execution.state.has_ended
        ]
        if len(running) > 1:
            self._world.report(f"{running} run for the request id {request_id!r}")


def _worked_on_by(work: Coroutine[Any, Any, Any]) -> str:
    """Return the execution whose strategy a task will run; asyncio sets the name of the task only later."""
    frame: FrameType | None = getattr(work, "cr_frame", None)
    if frame is None or frame.f_code.co_qualname != _WORK_ON_A_RUN:
        return ""
    run: Run = frame.f_locals["run"]
    return run.log.execution.execution_id


def task_factory(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    """Make a task that belongs to the process of the current context."""
    context = options.get("context")
    context = contextvars.copy_context() if context is None else context
    process = context.run(current_process)
    execution_id = _worked_on_by(work)
    if execution_id:
        context.run(WORKS_ON.set, execution_id)
    task = asyncio.Task(work, loop=loop, **{**options, "context": context})
    if process is not None:
        process.adopt(task)
        if process.is_dead:
            task.cancel()
    return task
