"""Commits the entries of all runs of the process in the background: one transaction at a time, for many logs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.eventlog.contract import TenantQuotaError
from reasond_server.telemetry.observers import UNOBSERVED, Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.eventlog.log import RunLog
    from reasond_server.eventlog.store import Append, ExecutionStore

_log = logging.getLogger("reasond.executions")
_MAX_PARTS = 256
# Limits the logs of unary runs, whose callers wait for no commit: if more of them wait, the store is slower than the
# runs. Each log keeps its run in memory, at least 9 KB, and the process does not return that memory to the system.
_MOST_WAITING = 128
_MOMENT_S = 0.02
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
# Longer than the longest wait, so that a writer that keeps failing reports again before the trouble expires.
_TROUBLE_S = 3.0
_LOOK_AGAIN_S = 1.0


def tell_nobody(part: Append) -> Append:
    """Return `part` as it is: nobody is told of it."""
    return part


@dataclass(eq=False, kw_only=True)
class LogWriter:
    """Collects the entries that are appended during a commit, and commits them next.

    If the store cannot be reached, the same transaction is tried again, after 50 ms at first and 2 s at most, until the
    store accepts or refuses it. `random` spreads the waits. While the store has not answered for `hangs_after_s`
    seconds, no new execution starts, because uncommitted entries stay in memory. `tell` adds the notices of a part.
    """

    store: ExecutionStore
    random: Callable[[], float]
    tell: Callable[[Append], Append] = tell_nobody
    observer: Observer = UNOBSERVED
    hangs_after_s: float = 5.0

    def __post_init__(self) -> None:
        self._waiting: dict[RunLog, None] = {}
        self._patient: list[RunLog] = []
        self._task: asyncio.Task[None] | None = None
        self._trouble: ReasondError | None = None
        self._trouble_s = 0.0
        self._asked_s: float | None = None
        self._progress = asyncio.Event()

    def submit(self, log: RunLog) -> None:
        """Commit the pending entries of `log` as soon as possible."""
        self._waiting[log] = None
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="log writer")

    def gather(self, log: RunLog) -> None:
        """Open `log` within 20 ms: nobody waits for it, and the entries appended by then share one commit.

        All logs that are gathered in this time share the transaction.
        """
        self._patient.append(log)
        if len(self._patient) == 1:
            asyncio.get_running_loop().call_later(_MOMENT_S, self._open_gathered)

    def require_store(self) -> None:
        """Refuse new work while the store cannot serve it.

        Raises:
            StoreUnavailableError: it could not be reached within the last 3 seconds, or does not answer.
            StoreFullError: it had no room within the last 3 seconds.
        """
        now_s = asyncio.get_running_loop().time()
        if self._asked_s is not None and now_s - self._asked_s > self.hangs_after_s:
            raise StoreUnavailableError(
                f"The store has not answered for {now_s - self._asked_s:.0f} s",
                remedy="Retry.",
                retry_after_s=_TROUBLE_S,
            )
        trouble = self._trouble
        if trouble is not None and now_s - self._trouble_s < _TROUBLE_S:
            error = trouble.copy()
            # The error may go to another caller, who must not learn whose entries the store refused.
            error.execution_id = None
            raise error

    async def wait_for_capacity(self) -> None:
        """Wait while more than 128 logs wait for the store, because they would fill the memory.

        Raises: as `require_store`, which is checked first and repeatedly during the wait.
        """
        self.require_store()
        while len(self._waiting) + len(self._patient) > _MOST_WAITING:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._progress.wait()
            self.require_store()

    def report(self, trouble: ReasondError | None) -> None:
        """Record that the store refused entries because of `trouble`; None means that it accepts entries again."""
        if (trouble is None) is not (self._trouble is None):
            state = "takes everything again" if trouble is None else "does not take what is written"
            _log.warning("the store of executions %s", state)
        if trouble is not None:
            self.observer.commit_failed(trouble.reason)
        self._trouble = trouble
        self._trouble_s = asyncio.get_running_loop().time()

    async def aclose(self, *, within_s: float) -> None:
        """Commit the remaining entries, for `within_s` seconds at most."""
        self._open_gathered()
        task = self._task
        if task is not None:
            await asyncio.wait({task}, timeout=within_s)
            await end_task(task)

    def _open_gathered(self) -> None:
        gathered, self._patient = self._patient, []
        for log in gathered:
            log.open()

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._commit_next()
                self._progress.set()
                self._progress.clear()
        finally:
            self._task = None

    async def _commit_next(self) -> None:
        logs = [*self._waiting][:_MAX_PARTS]
        batch: list[tuple[RunLog, Append]] = []
        for log in logs:
            del self._waiting[log]
            part = log.take()
            if part is not None:
                batch.append((log, self.tell(part)))
        if not batch:
            return
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        outcomes = await self._ask_store([part for _, part in batch])
        self.observer.commit_ended(sum(len(part.entries) for _, part in batch), loop.time() - since_s)
        for (log, part), error in zip(batch, outcomes, strict=True):
            if error is None:
                log.confirm()
                continue
            is_for_all = isinstance(error, StoreFullError | StoreUnavailableError)
            if part.creation is not None and is_for_all and not isinstance(error, TenantQuotaError):
                # No other execution could start either.
                self.report(error)
            else:
                self.observer.commit_failed(error.reason)
            log.close(error)

    async def _ask_store(self, parts: Sequence[Append]) -> Sequence[ReasondError | None]:
        """Return for each part None if it was accepted, otherwise the error that refused it."""
        try:
            return await self._append(parts)
        except Exception:  # noqa: BLE001 - a task of its own: nobody above could handle it
            _log.exception("event logs could not be written")
            return [
                InternalError("internal error") if part.creation is None else _build_unwritten_error() for part in parts
            ]

    async def _append(self, parts: Sequence[Append]) -> Sequence[ReasondError | None]:
        """Append `parts` and return the store's answer for each; repeat while the store cannot be reached.

        If the answer to an attempt was lost, the store accepts the same parts again without effect.
        """
        loop = asyncio.get_running_loop()
        wait_s = _FIRST_WAIT_S
        while True:
            self._asked_s = loop.time()
            try:
                outcomes = await self.store.append(parts)
            except StoreUnavailableError as error:
                self.report(error)
            else:
                self.report(None)
                return outcomes
            finally:
                self._asked_s = None
            await asyncio.sleep(wait_s * (0.5 + self.random() / 2))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def _build_unwritten_error() -> StoreUnavailableError:
    return StoreUnavailableError("The execution could not be written down", remedy="Retry.")
