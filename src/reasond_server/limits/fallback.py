"""What happens to limits that several servers share while Redis cannot be reached."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from redis.exceptions import RedisError

from reasond_server.awake import awake_for
from reasond_server.errors import ReasondError, StoreUnavailableError
from reasond_server.limits.requests import given_back
from reasond_server.limits.tokens import Reservation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from reasond_server.limits.concurrency import Rest
    from reasond_server.limits.health import SharedHealth
    from reasond_server.limits.requests import Admission, Denial
    from reasond_server.limits.tokens import TokenLedger

T = TypeVar("T")
OnFailure = Literal["local", "closed", "open"]
FAILURES: Final = (RedisError, OSError, TimeoutError)
_UNLIMITED: Final = "unlimited"


class Fallback:
    """Asks what is shared, within `timeout_s` of an event loop that is awake; else does what the operator decided.

    `local` keeps the limits that each server was given for itself, `closed` refuses, `open` lets everything through.
    """

    def __init__(self, *, health: SharedHealth, on_failure: OnFailure, timeout_s: float = 0.05) -> None:
        self._health = health
        self._on_failure = on_failure
        self._timeout_s = timeout_s

    async def attempt(self, shared: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do `shared` if that is possible; what is not done then is no loss that could be helped."""

        async def leave() -> object:
            return None

        await Fallback(health=self._health, on_failure="local", timeout_s=self._timeout_s).ask(
            shared, local=leave, unlimited=lambda: None
        )

    async def ask(
        self,
        shared: Callable[[], Coroutine[Any, Any, T]],
        *,
        local: Callable[[], Awaitable[T]],
        unlimited: Callable[[], T],
    ) -> T:
        """Return what `shared` says, else what `local` or `unlimited` does.

        Raises:
            StoreUnavailableError: nothing can be asked, and the operator wants nothing let through then.
        """
        if self._health.may_try():
            try:
                async with awake_for(self._timeout_s):
                    found = await shared()
            except FAILURES as error:
                self._health.failed(error)
            except ReasondError:
                # A refusal is an answer: it must not leave a caller with the local limits besides.
                self._health.worked()
                raise
            else:
                self._health.worked()
                return found
        if self._on_failure == "local":
            return await local()
        if self._on_failure == "open":
            return unlimited()
        raise StoreUnavailableError("Limits cannot be checked at present", remedy="Retry after the time given.")


class FallbackLedger:
    """A ledger over a shared and a local one. A reservation is settled where it was made."""

    def __init__(self, *, shared: TokenLedger, local: TokenLedger, fallback: Fallback) -> None:
        self._shared = shared
        self._local = local
        self._fallback = fallback
        self._made_locally: set[str] = set()

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """See TokenLedger. Raises as `Fallback.ask` besides."""

        async def reserve_locally() -> Reservation:
            reservation = await self._local.reserve(caller, least=least, most=most)
            self._made_locally.add(reservation.id)
            return reservation

        return await self._fallback.ask(
            lambda: _coroutine(self._shared.reserve(caller, least=least, most=most)),
            local=reserve_locally,
            unlimited=lambda: Reservation(id=_UNLIMITED, caller=caller, tokens=most),
        )

    async def settle(self, reservation: Reservation, *, used: int) -> None:
        """See TokenLedger; what cannot be settled stays spent."""
        if reservation.id == _UNLIMITED:
            return
        if reservation.id in self._made_locally:
            self._made_locally.discard(reservation.id)
            await self._local.settle(reservation, used=used)
            return

        await self._fallback.attempt(lambda: _coroutine(self._shared.settle(reservation, used=used)))


class FallbackAdmission:
    """Admits over a shared and a local admission. A place is given back where it was taken."""

    def __init__(self, *, shared: Admission, local: Admission, fallback: Fallback) -> None:
        self._shared = shared
        self._local = local
        self._fallback = fallback
        self._taken_locally: set[str] = set()

    async def admit(self, caller: str, place: str, *, weight: int) -> Denial | None:
        """See Admission. Raises as `Fallback.ask` besides."""

        async def admit_locally() -> Denial | None:
            denial = await self._local.admit(caller, place, weight=weight)
            if denial is None and place:
                self._taken_locally.add(place)
            elif place:
                await given_back(self, caller, place)
            return denial

        return await self._fallback.ask(
            lambda: _coroutine(self._shared.admit(caller, place, weight=weight)),
            local=admit_locally,
            unlimited=lambda: None,
        )

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """See Admission; what cannot be shared is counted here, also where nothing would be admitted now."""

        async def move_locally() -> None:
            await self._local.move(caller, place, earlier=earlier)
            self._taken_locally.add(place)

        try:
            await self._fallback.ask(
                lambda: _coroutine(self._shared.move(caller, place, earlier=earlier)),
                local=move_locally,
                unlimited=lambda: None,
            )
        except StoreUnavailableError:
            await move_locally()

    def give_back(self, caller: str, place: str) -> Rest | None:
        """See Admission; what cannot be given back lapses."""
        rest = None
        if place in self._taken_locally:
            self._taken_locally.discard(place)
            rest = self._local.give_back(caller, place)
        # Also after that: Redis may have given a place whose answer came too late.
        shared = self._shared.give_back(caller, place)
        return rest if shared is None else partial(self._attempt_both, rest, shared)

    async def _attempt_both(self, local: Rest | None, shared: Rest) -> None:
        if local is not None:
            await local()
        await self._fallback.attempt(shared)


async def _coroutine(work: Awaitable[T]) -> T:
    return await work
