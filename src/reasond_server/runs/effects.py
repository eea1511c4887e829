"""Effects of a run, which must not happen twice: each is recorded before it begins and after it has ended."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from reasond_server.errors.base import InternalError, show
from reasond_server.errors.executions import NotResumableError
from reasond_server.errors.turns import ToolOutcomeUnknownError
from reasond_server.runs.run_journal import RESULT, STARTED, RunJournal
from reasond_server.types import NOTHING


@dataclass(eq=False, kw_only=True)
class Effects:
    """The effects of one run; without a `journal` none is recorded, because nobody can resume the run.

    `nonce` is the first nonce of the run. Together with the tenant it determines the idempotency keys, which are the
    same in every life of the run, and in an execution that inherits its records. `wait_for_lease` waits while another
    process may be executing the run.

    Attributes:
        is_replayed: the work repeats itself from its beginning in each life. While a recorded effect is not yet
            repeated, a different one that is not idempotent is refused, because both would have happened. Work that
            resumes from its last step does not repeat earlier effects.
    """

    nonce: str
    tenant: str
    journal: RunJournal | None
    wait_for_lease: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self._count = 0
        self.is_replayed = False

    @property
    def has_begun(self) -> bool:
        """Whether an effect has begun, in this life of the run or an earlier one."""
        return self._count > 0 if self.journal is None else self.journal.has_effects

    def begin(self, kind: str, digest: str, *, is_idempotent: bool) -> JournaledEffect:
        """Return an effect, which begins when its context is entered; equal effects are numbered in call order.

        `kind` is a word without a colon, and `digest` identifies the action. Both are stored, so neither may contain
        content.

        Raises:
            InternalError: the run is over.
        """
        self.require_open()
        self._count += 1
        occurrence = f"{digest}:{self._count}" if self.journal is None else self.journal.next_effect(kind, digest)
        return JournaledEffect(
            effects=self, journal=self.journal, kind=kind, occurrence=occurrence, is_idempotent=is_idempotent
        )

    def derive_key(self, occurrence: str) -> str:
        """Return the idempotency key of an effect: 64 hexadecimal digits that nobody can guess."""
        return hmac.digest(self.nonce.encode(), f"{self.tenant}\0{occurrence}".encode(), hashlib.sha256).hex()

    def require_open(self) -> None:
        """Refuse to begin an effect after the run was stopped; a task that its work left behind may still try.

        Raises:
            InternalError: the run was stopped.
        """
        if self.journal is not None and self.journal.is_closing:
            raise InternalError("the run is over and calls no more tools")

    async def require_lease(self) -> None:
        """Wait until no other process can be executing the run. Raises as `require_open`."""
        if self.wait_for_lease is not None:
            await self.wait_for_lease()
        self.require_open()


class JournaledEffect:
    """One effect, as an asynchronous context: its body happens once, even if the process dies.

    If an earlier life completed the effect, `recorded` is the text that `complete` got then, and the body has nothing
    to do. Otherwise entering the context records that the effect has begun, and `complete` records its result. Without
    a call of `complete` the effect stays begun: the next life repeats it if it is idempotent, and fails otherwise.

    Attributes:
        recorded: the result from an earlier life; None if the effect has to be done now.
    """

    def __init__(
        self, effects: Effects, journal: RunJournal | None, *, kind: str, occurrence: str, is_idempotent: bool
    ) -> None:
        self._effects = effects
        self._journal = journal
        self._kind = kind
        self._occurrence = occurrence
        self._is_idempotent = is_idempotent
        self._open = ExitStack()
        self._act = ExitStack()
        self.recorded: str | None = None

    @property
    def idempotency_key(self) -> str:
        """The idempotency key, by which another system recognises a repeated request."""
        return self._effects.derive_key(f"{self._kind}:{self._occurrence}")

    async def __aenter__(self) -> Self:
        """Begin the effect, or find its recorded result.

        Raises:
            ToolOutcomeUnknownError: it was begun in an earlier life, is not idempotent, and its outcome is unknown.
            NotResumableError: it is not idempotent, and an earlier life began a different effect instead.
            InternalError: the run is over.
        """
        if self._journal is None:
            await self._effects.require_lease()
            return self
        self.recorded = self._journal.take(f"{self._kind}{RESULT}:{self._occurrence}")
        if self.recorded is not None:
            self._journal.take(f"{self._kind}{STARTED}:{self._occurrence}")
            self._journal.recall(NOTHING)
            return self
        await self._journal.wait_for_turn()
        self._open.enter_context(self._journal.open_call())
        try:
            await self._keep_start(self._journal)
        except BaseException:
            self._open.close()
            raise
        self._act.enter_context(self._journal.act())
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the context; the record stays as it is."""
        self._act.close()
        self._open.close()

    async def complete(self, body: str) -> None:
        """Record `body`, JSON text, as the result; return once it is committed."""
        # The effect itself is over: the run may be stopped while this waits for the commit.
        self._act.close()
        if self._journal is not None and self.recorded is None:
            await self._journal.keep_safely(f"{self._kind}{RESULT}:{self._occurrence}", body)

    async def _keep_start(self, journal: RunJournal) -> None:
        key = f"{self._kind}{STARTED}:{self._occurrence}"
        if journal.take(key) is None:
            if not self._is_idempotent and self._effects.is_replayed and journal.has_unclaimed_effects:
                raise NotResumableError(
                    f"After the server went down the run asked for another effect of kind {show(self._kind)} than "
                    "before: its code or configuration has changed, and both would have happened",
                    remedy="See what was done, then start the task again; what was done until then is kept.",
                )
            await self._effects.require_lease()
            await journal.keep_safely(key, "{}")
        elif not self._is_idempotent:
            raise ToolOutcomeUnknownError(
                f"The server went down during an effect of kind {show(self._kind)}; whether it happened is not known",
                remedy="See for yourself, then ask again; what was done until then is kept.",
            )
        # Checked again, because the commit may have taken long.
        await self._effects.require_lease()
