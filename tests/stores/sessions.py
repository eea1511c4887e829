"""Checks of sessions; a part of `ExecutionStoreConformance`."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from reasond_server.errors.base import InternalError
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.turns import EtagMismatchError, SessionNotFoundError, TurnLeasedError
from reasond_server.eventlog.store import Creation, ExecutionFilter, Lease, SessionClaim, SessionEnd
from reasond_server.types import Execution, FinishReason, Json, Session
from tests.stores.expectations import StoreContractError, expect_refusal, nothing, raises, same
from tests.stores.logs import KEPT_S, LEASE_S, START, HandWrittenLog, first_event, step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.errors.base import ReasondError
    from reasond_server.eventlog.store import Append, Claim, ExecutionStore

_STARTERS = 32
_SESSION_S = 1000.0
_NOTHING: Json = {}
_HOSTILE = ("", "\x00", "\ud800", "a" * 5000, "'; DROP TABLE sessions; --", "%s :name")


class SessionChecks:
    """Checks of `store`; `pass_time` lets seconds pass, `tenant` belongs to this check only."""

    CHECKS: ClassVar[tuple[str, ...]] = (
        "makes_a_session_with_its_first_execution",
        "hands_the_state_on",
        "lets_one_execution_of_a_session_be_open",
        "lets_one_of_many_starts_win",
        "lets_one_of_many_revisions_win",
        "compares_the_revision",
        "answers_a_known_request_before_the_session",
        "lets_one_of_many_same_requests_enter",
        "frees_a_session_whatever_ends_its_execution",
        "frees_a_session_whose_execution_is_given_up",
        "ends_a_session_once",
        "keeps_executions_as_long_as_their_session",
        "forgets_a_session_at_its_time",
        "keeps_a_session_that_is_open",
        "lists_sessions_and_their_executions",
        "deletes_a_session_with_its_executions",
        "keeps_sessions_of_tenants_apart",
        "refuses_sessions_that_do_not_fit",
    )

    def __init__(self, store: ExecutionStore, *, pass_time: Callable[[float], Awaitable[None]], tenant: str) -> None:
        self._store = store
        self._pass = pass_time
        self._tenant = tenant
        self._now = START

    async def makes_a_session_with_its_first_execution(self) -> None:
        """The first execution makes the session, which names it as open."""
        log, claim = self._log(), await self._claim_and_expect_nothing("s")
        await self._create(log, claim)
        expected = Session(
            session_id="s",
            tenant=self._tenant,
            revision=1,
            state={},
            open_execution=log.name[1],
            execution_count=1,
            create_time=START,
            update_time=START,
            expire_time=START + timedelta(seconds=_SESSION_S),
        )
        same(await self._find(), expected)
        same((await self._store.find(*log.name)).session_id, "s")
        nothing(await log.write(first_event()))
        same(await self._find(), expected)

    async def hands_the_state_on(self) -> None:
        """The append that ends an execution stores the state, frees the session and raises its revision."""
        log = await self._begin()
        await self._let_pass(5)
        state = {"history": ["ä", 1, None, {"a": 0.5}], "empty": {}}
        nothing(await self._end(log, state=state, expires_in_s=_SESSION_S))
        found = await self._find()
        same((found.revision, found.state, found.open_execution, found.execution_count), (2, state, "", 1))
        same((found.create_time, found.update_time), (START, self._now))
        same(found.expire_time, self._now + timedelta(seconds=_SESSION_S))
        second = await self._begin()
        found = await self._find()
        same((found.revision, found.state, found.open_execution), (3, state, second.name[1]))
        nothing(await self._end(second, state=None))
        found = await self._find()
        same((found.revision, found.state, found.open_execution, found.execution_count), (4, state, "", 2))

    async def lets_one_execution_of_a_session_be_open(self) -> None:
        """A second start is refused, whether the first execution runs or is suspended, and creates nothing."""
        log = await self._begin()
        for is_running in (True, False):
            error = await self._expect_refused_start(TurnLeasedError, "s")
            same(error.metadata, {"session_id": "s", "turn_id": log.name[1]})
            same(error.retry_after_s is not None, is_running)
            same([one.execution_id for one in await self._page()], [log.name[1]])
            same((await self._find()).revision, 1)
            if is_running:
                nothing(await log.suspend(step()))
        await self._begin("other")
        found = await self._store.wake(Lease(owner="two", seconds=LEASE_S), *log.name)
        if found is not None:
            log.go_on(found)
        await self._expect_refused_start(TurnLeasedError, "s")
        nothing(await self._end(log))
        await self._begin()

    async def lets_one_of_many_starts_win(self) -> None:
        """Of many starts at once one succeeds; the revision counts each start and each end, without gaps."""
        for round_number in range(3):
            logs = [self._log() for _ in range(_STARTERS)]
            outcomes = await asyncio.gather(*(self._create(log, self._claim()) for log in logs), return_exceptions=True)
            winners = [log for log, outcome in zip(logs, outcomes, strict=True) if not isinstance(outcome, Exception)]
            refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            same((len(winners), {type(error) for error in refused}), (1, {TurnLeasedError}))
            found = await self._find()
            same((found.revision, found.open_execution), (2 * round_number + 1, winners[0].name[1]))
            nothing(await winners[0].write(first_event()))
            nothing(await self._end(winners[0]))
        same(len(await self._page()), 3)
        same(((await self._find()).revision, (await self._find()).execution_count), (6, 3))

    async def lets_one_of_many_revisions_win(self) -> None:
        """Of many callers that read the same revision one starts; the others learn that it has moved on."""
        nothing(await self._end(await self._begin()))

        async def start() -> None:
            log = self._log()
            await self._create(log, self._claim(if_revision=2))
            nothing(await log.write(first_event()))
            nothing(await self._end(log))

        outcomes = await asyncio.gather(*(start() for _ in range(_STARTERS)), return_exceptions=True)
        same(outcomes.count(None), 1)
        others = {type(outcome) for outcome in outcomes if outcome is not None}
        same(others <= {TurnLeasedError, EtagMismatchError}, True)
        same((await self._find()).revision, 4)

    async def compares_the_revision(self) -> None:
        """`if_revision` must be the present revision; 0 stands for a session that does not exist."""
        error = await self._expect_refused_start(EtagMismatchError, "s", if_revision=1)
        same((error.metadata["revision"], error.metadata["if_revision"]), ("0", "1"))
        await raises(SessionNotFoundError, self._find())
        log = self._log()
        await self._create(log, self._claim(if_revision=0))
        nothing(await log.write(first_event()))
        await self._expect_refused_start(TurnLeasedError, "s", if_revision=1)
        nothing(await self._end(log))
        for wrong in (0, 1, 3):
            error = await self._expect_refused_start(EtagMismatchError, "s", if_revision=wrong)
            same(("2" in error.message, str(wrong) in error.message), (True, True))
        await self._create(self._log(), self._claim(if_revision=2))
        same((await self._find()).revision, 3)

    async def answers_a_known_request_before_the_session(self) -> None:
        """A request id that was used is answered although the session is busy or its revision has changed."""
        first = self._log(request_id="r")
        claim = await self._create(first, self._claim(if_revision=0))
        same(claim.execution_id, first.name[1])
        same(await self._create(first, self._claim(if_revision=0)), claim)
        again = await self._create(self._log(request_id="r"), self._claim(if_revision=0), digest="other")
        same((again.execution_id, again.digest), (first.name[1], "d"))
        same((await self._find()).revision, 1)
        elsewhere = self._log(request_id="r", session_id="new")
        same((await self._create(elsewhere, self._claim("new"))).execution_id, first.name[1])
        await raises(SessionNotFoundError, self._find("new"))
        nothing(await first.write(first_event()))
        nothing(await self._end(first))
        same((await self._create(self._log(request_id="r"), self._claim(if_revision=0))).execution_id, first.name[1])
        same((await self._find()).revision, 2)

    async def lets_one_of_many_same_requests_enter(self) -> None:
        """The same request many times at once enters once, and all callers get the same answer."""
        logs = [self._log(request_id="race") for _ in range(_STARTERS)]
        claims = await asyncio.gather(*(self._create(log, self._claim(if_revision=0)) for log in logs))
        same(len({claim.execution_id for claim in claims}), 1)
        same(((await self._find()).open_execution, (await self._find()).revision), (claims[0].execution_id, 1))

    async def frees_a_session_whatever_ends_its_execution(self) -> None:
        """An execution that ends without a SessionEnd, by whatever process, frees its session and keeps its state."""
        nothing(await self._end(await self._begin(), state={"n": 1}))
        log = await self._begin()
        await self._let_pass(LEASE_S + 1)
        (found,) = await self._store.recover(Lease(owner="two", seconds=LEASE_S), limit=9)
        log.go_on(found)
        nothing(await log.write(log.result(FinishReason.FAILED)))
        session = await self._find()
        same((session.revision, session.open_execution, session.state), (4, "", {"n": 1}))
        await self._begin()

    async def frees_a_session_whose_execution_is_given_up(self) -> None:
        """A deleted execution, and an open one whose request id is released, leave their session free."""
        deleted = await self._begin()
        await self._store.delete(*deleted.name)
        same((await self._find()).open_execution, "")
        given_up = self._log(request_id="r")
        await self._create(given_up, self._claim())
        nothing(await given_up.write(first_event()))
        await self._store.release(*given_up.name)
        same((await self._find()).open_execution, "")
        log = await self._begin()
        nothing(await self._end(given_up, state={"of": "another"}))
        session = await self._find()
        same((session.open_execution, session.state, session.revision), (log.name[1], {}, 3))

    async def ends_a_session_once(self) -> None:
        """An end whose answer was lost may be repeated; a refused end changes nothing."""
        log = await self._begin()
        part = self._ending(log, state={"n": 1})
        expect_refusal(InternalError, (await self._store.append([replace(part, version=9)]))[0])
        same((await self._find()).revision, 1)
        same([*await self._store.append([part]), *await self._store.append([part])], [None, None])
        same(((await self._find()).revision, (await self._find()).state), (2, {"n": 1}))
        one, other = await self._begin("one"), await self._begin("other")
        parts = [self._ending(one, state={"n": 2}), other.part(step())]
        other.took(parts[1])
        same(list(await self._store.append([*parts, self._ending(other, state={"n": 3})])), [None, None, None])
        same([(await self._find(name)).state for name in ("one", "other")], [{"n": 2}, {"n": 3}])

    async def keeps_executions_as_long_as_their_session(self) -> None:
        """The ended executions of a session expire with it, however long each was to be kept at its end."""
        first = await self._begin()
        nothing(await self._end(first, expires_in_s=_SESSION_S))
        until = self._now + timedelta(seconds=_SESSION_S)
        same((await self._store.find(*first.name)).expire_time, until)
        await self._let_pass(_SESSION_S - 1)
        await self._store.forget(limit=9)
        second = await self._begin()
        nothing(await self._end(second, expires_in_s=_SESSION_S))
        until = self._now + timedelta(seconds=_SESSION_S)
        same([one.expire_time for one in await self._page(session_id="s")], [until, until])
        await self._let_pass(_SESSION_S - 1)
        await self._store.forget(limit=9)
        same(len(await self._page(session_id="s")), 2)
        await self._let_pass(1)
        same(len(await self._page(session_id="s")), 0)
        await raises(CursorExpiredError, self._store.find(*first.name))

    async def forgets_a_session_at_its_time(self) -> None:
        """A session that has expired does not exist, even before it is removed; its successor begins anew."""
        old = await self._begin()
        nothing(await self._end(old, state={"n": 1}))
        await self._let_pass(_SESSION_S + 1)
        await raises(SessionNotFoundError, self._find())
        await raises(SessionNotFoundError, self._store.sessions.delete(self._tenant, "s"))
        same(list(await self._store.sessions.page(self._tenant, size=9, before=None)), [])
        log = self._log()
        await self._create(log, self._claim(if_revision=0))
        found = await self._find()
        same((found.revision, found.state, found.execution_count, found.create_time), (1, {}, 1, self._now))
        nothing(await log.write(first_event()))
        nothing(await self._end(log))
        await raises(CursorExpiredError, self._store.find(*old.name))
        await self._store.forget(limit=9)
        same((await self._find()).revision, 2)
        await self._let_pass(_SESSION_S + 1)
        await self._store.forget(limit=9)
        await raises(SessionNotFoundError, self._find())

    async def keeps_a_session_that_is_open(self) -> None:
        """A session does not expire while one of its executions is open."""
        log = await self._begin()
        nothing(await log.suspend(step()))
        await self._let_pass(10 * _SESSION_S)
        await self._store.forget(limit=9)
        same((await self._find()).open_execution, log.name[1])
        await self._expect_refused_start(TurnLeasedError, "s")
        found = await self._store.wake(Lease(owner="two", seconds=LEASE_S), *log.name)
        if found is not None:
            log.go_on(found)
        nothing(await self._end(log, state={"n": 1}))
        same((await self._find()).state, {"n": 1})

    async def lists_sessions_and_their_executions(self) -> None:
        """Sessions are listed latest update first; executions can be listed by session."""
        logs = []
        for name in ("a", "b", "c"):
            await self._let_pass(1)
            logs.append(await self._begin(name))
        await self._let_pass(1)
        nothing(await self._end(logs[0]))
        seen: list[str] = []
        before = None
        while page := await self._store.sessions.page(self._tenant, size=2, before=before):
            seen += [session.session_id for session in page]
            before = (page[-1].update_time.timestamp(), page[-1].session_id)
        same(seen, ["a", "c", "b"])
        alone = self._log(session_id="")
        await alone.create()
        same([one.execution_id for one in await self._page(session_id="b")], [logs[1].name[1]])
        same(len(await self._page(session_id="unknown")), 0)
        same(len(await self._page()), 4)

    async def deletes_a_session_with_its_executions(self) -> None:
        """A session is deleted with its executions and their request ids, but not while one is open."""
        first = self._log(request_id="r")
        await self._create(first, self._claim())
        nothing(await first.write(first_event()))
        await raises(TurnLeasedError, self._store.sessions.delete(self._tenant, "s"))
        nothing(await self._end(first))
        second, other = await self._begin(), await self._begin("other")
        nothing(await second.suspend(step()))
        await raises(TurnLeasedError, self._store.sessions.delete(self._tenant, "s"))
        await self._store.delete(*second.name)
        await self._store.sessions.delete(self._tenant, "s")
        await raises(SessionNotFoundError, self._find())
        await raises(SessionNotFoundError, self._store.sessions.delete(self._tenant, "s"))
        await raises(ExecutionNotFoundError, self._store.find(*first.name))
        nothing(await self._store.find_claim(self._tenant, "r"))
        same([one.execution_id for one in await self._page()], [other.name[1]])
        await self._create(self._log(), self._claim(if_revision=0))

    async def keeps_sessions_of_tenants_apart(self) -> None:
        """Tenants may use the same session id, and see only their own session."""
        mine, stranger = await self._begin(), uuid.uuid4().hex
        await raises(SessionNotFoundError, self._store.sessions.find(stranger, "s"))
        await raises(SessionNotFoundError, self._store.sessions.delete(stranger, "s"))
        same(list(await self._store.sessions.page(stranger, size=9, before=None)), [])
        theirs = HandWrittenLog.new(self._store, tenant=stranger)
        theirs.execution = replace(theirs.execution, session_id="s")
        await self._create(theirs, self._claim(if_revision=0))
        same((await self._store.sessions.find(stranger, "s")).open_execution, theirs.name[1])
        same((await self._find()).open_execution, mine.name[1])
        for name in _HOSTILE:
            await raises(SessionNotFoundError, self._store.sessions.find(self._tenant, name))
            await raises(SessionNotFoundError, self._store.sessions.find(name, "s"))
            await raises(SessionNotFoundError, self._store.sessions.delete(self._tenant, name))
            await self._store.sessions.page(name, size=1, before=(1.0, name))
            same(len(await self._page(session_id=name or "none")), 0)

    async def refuses_sessions_that_do_not_fit(self) -> None:
        """The execution names the session that it claims; one that an append creates has none."""
        await raises(InternalError, self._create(self._log(session_id="x"), self._claim("y")))
        await raises(InternalError, self._create(self._log(session_id=""), self._claim("")))
        await raises(InternalError, self._log().create())
        log = self._log()
        creation = Creation(plan="{}", lease=Lease(owner="one", seconds=LEASE_S))
        part = replace(log.part(first_event()), creation=creation)
        expect_refusal(InternalError, (await self._store.append([part]))[0])

    def _log(self, *, session_id: str = "s", request_id: str = "") -> HandWrittenLog:
        log = HandWrittenLog.new(self._store, tenant=self._tenant, request_id=request_id)
        log.execution = replace(log.execution, session_id=session_id)
        return log

    def _claim(self, session_id: str = "s", *, if_revision: int | None = None) -> SessionClaim:
        expire_time = self._now + timedelta(seconds=_SESSION_S)
        return SessionClaim(session_id=session_id, expire_time=expire_time, if_revision=if_revision)

    async def _claim_and_expect_nothing(self, session_id: str) -> SessionClaim:
        await raises(SessionNotFoundError, self._find(session_id))
        return self._claim(session_id)

    async def _create(self, log: HandWrittenLog, claim: SessionClaim, *, digest: str = "d") -> Claim:
        lease = Lease(owner="one", seconds=LEASE_S)
        return await self._store.create(log.execution, digest=digest, plan="{}", lease=lease, session=claim)

    async def _begin(self, session_id: str = "s") -> HandWrittenLog:
        """Return a running log of the session with its first event."""
        log = self._log(session_id=session_id)
        await self._create(log, self._claim(session_id))
        nothing(await log.write(first_event()))
        return log

    def _ending(self, log: HandWrittenLog, *, state: Json | None = None, expires_in_s: float = _SESSION_S) -> Append:
        part = log.part(log.result())
        kept_until = self._now + timedelta(seconds=KEPT_S)
        execution = replace(part.execution, end_time=self._now, expire_time=kept_until)
        expire_time = self._now + timedelta(seconds=expires_in_s)
        end = None if state is None else SessionEnd(state=state, expire_time=expire_time)
        return replace(part, execution=execution, session_end=end)

    async def _end(
        self, log: HandWrittenLog, *, state: Json | None = _NOTHING, expires_in_s: float = _SESSION_S
    ) -> ReasondError | None:
        part = self._ending(log, state=state, expires_in_s=expires_in_s)
        (refused,) = await self._store.append([part])
        if refused is None:
            log.took(part)
        return refused

    async def _expect_refused_start(
        self, kind: type[ReasondError], session_id: str, *, if_revision: int | None = None
    ) -> ReasondError:
        log = self._log(session_id=session_id)
        try:
            await self._create(log, self._claim(session_id, if_revision=if_revision))
        except kind as error:
            await raises(ExecutionNotFoundError, self._store.find(*log.name))
            return error
        raise StoreContractError(f"expected {kind.__name__}")

    async def _find(self, session_id: str = "s") -> Session:
        return await self._store.sessions.find(self._tenant, session_id)

    async def _page(self, *, session_id: str = "") -> Sequence[Execution]:
        return await self._store.page(self._tenant, ExecutionFilter(session_id=session_id), size=99, before=None)

    async def _let_pass(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        await self._pass(seconds)
