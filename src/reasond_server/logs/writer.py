"""Commits what all runs of the process append, beside them: one transaction at a time, for as many logs as wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from reasond_server.errors import InternalError, StoreFullError, StoreUnavailableError
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.errors import ReasondError
    from reasond_server.logs.log import RunLog
    from reasond_server.logs.store import Append, ExecutionStore
    from reasond_server.telemetry.observers import RunObserver

_log = logging.getLogger("reasond.executions")
_MAX_PARTS = 256
# Logs of unary runs, whose callers wait for no commit: more than that and the store is slower than the runs. Each holds
# its run, 9 KB at least, in memory that the process keeps for good.
_MOST_WAITING = 128
_MOMENT_S = 0.02
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
# Longer than the longest wait: whoever still tries renews the bad news.
_TROUBLE_S = 3.0
_LOOK_AGAIN_S = 1.0


class LogWriter:
    """Gathers what is appended while a commit is under way, and commits it next.

    Where the store cannot be reached the same transaction is tried again, after 50 ms at first and 2 s at most, until
    it is taken or refused. `random` spreads the waits. A store that has not answered for `hangs_after_s` seconds takes
    no new executions: what is not committed stays in memory.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        random: Callable[[], float],
        observer: RunObserver = UNOBSERVED,
        hangs_after_s: float = 5.0,
    ) -> None:
        self._observer = observer
        self._hangs_after_s = hangs_after_s
        self._store = store
        self._random = random
        self._waiting: dict[RunLog, None] = {}
        self._patient: list[RunLog] = []
        self._task: asyncio.Task[None] | None = None
        self._trouble: ReasondError | None = None
        self._trouble_s = 0.0
        self._asked_s: float | None = None
        self._progress = asyncio.Event()

    def submit(self, log: RunLog) -> None:
        """Commit what is pending in `log` as soon as may be."""
        self._waiting[log] = None
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="log writer")

    def gather(self, log: RunLog) -> None:
        """Open `log` in 20 ms at most: nobody waits for it, and what came to it by then is committed in one go.

        All logs that are gathered meanwhile share the transaction.
        """
        self._patient.append(log)
        if len(self._patient) == 1:
            asyncio.get_running_loop().call_later(_MOMENT_S, self._open_gathered)

    def require_store(self) -> None:
        """Refuse what needs the store while it is of no use.

        Raises:
            StoreUnavailableError: it could not be reached, a moment ago, or does not answer.
            StoreFullError: it had no room, a moment ago.
        """
        now_s = asyncio.get_running_loop().time()
        if self._asked_s is not None and now_s - self._asked_s > self._hangs_after_s:
            raise StoreUnavailableError(
                f"The store has not answered for {now_s - self._asked_s:.0f} s",
                remedy="Retry.",
                retry_after_s=_TROUBLE_S,
            )
        trouble = self._trouble
        if trouble is not None and now_s - self._trouble_s < _TROUBLE_S:
            error = trouble.copy()
            # Whose entries the store did not take is nobody else's business.
            error.execution_id = None
            raise error

    async def wait_for_capacity(self) -> None:
        """Wait while 128 logs wait for the store: more would fill the memory.

        Raises: as `require_store`, which is asked before and again and again meanwhile.
        """
        self.require_store()
        while len(self._waiting) + len(self._patient) > _MOST_WAITING:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._progress.wait()
            self.require_store()

    def report(self, trouble: ReasondError | None) -> None:
        """Take note that the store did not take something, because of `trouble`, or that it does again."""
        if (trouble is None) is not (self._trouble is None):
            told = "takes everything again" if trouble is None else "does not take what is written"
            _log.warning("the store of executions %s", told)
        if trouble is not None:
            self._observer.commit_failed(trouble.reason)
        self._trouble = trouble
        self._trouble_s = asyncio.get_running_loop().time()

    async def aclose(self, *, within_s: float) -> None:
        """Commit what is left, for `within_s` seconds at most."""
        self._open_gathered()
        task = self._task
        if task is not None:
            await asyncio.wait({task}, timeout=within_s)
            task.cancel()
            await asyncio.wait({task})

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
                batch.append((log, part))
        if not batch:
            return
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        outcomes = await self._ask_store([part for _, part in batch])
        self._observer.commit_ended(sum(len(part.entries) for _, part in batch), loop.time() - since_s)
        for (log, part), error in zip(batch, outcomes, strict=True):
            if error is None:
                log.confirm()
                continue
            if part.creation is not None and isinstance(error, StoreFullError | StoreUnavailableError):
                # Nothing else could be begun either.
                self.report(error)
            else:
                self._observer.commit_failed(error.reason)
            log.close(error)

    async def _ask_store(self, parts: Sequence[Append]) -> Sequence[ReasondError | None]:
        """Return what comes of each part: None where it was taken, else why not."""
        try:
            return await self._append(parts)
        except Exception:  # noqa: BLE001 - a task of its own: nobody above could handle it
            _log.exception("event logs could not be written")
            return [
                InternalError("internal error") if part.creation is None else _build_unwritten_error() for part in parts
            ]

    async def _append(self, parts: Sequence[Append]) -> Sequence[ReasondError | None]:
        """Return what the store says to each part, asked again and again while it cannot be reached.

        What was taken in an attempt whose answer was lost is taken again.
        """
        loop = asyncio.get_running_loop()
        wait_s = _FIRST_WAIT_S
        while True:
            self._asked_s = loop.time()
            try:
                outcomes = await self._store.append(parts)
            except StoreUnavailableError as error:
                self.report(error)
            else:
                self.report(None)
                return outcomes
            finally:
                self._asked_s = None
            await asyncio.sleep(wait_s * (0.5 + self._random() / 2))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def _build_unwritten_error() -> StoreUnavailableError:
    return StoreUnavailableError("The execution could not be written down", remedy="Retry.")
