"""The sessions of a store as seen by one process: slow and sometimes unreachable, like its executions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.eventlog.store import SessionStore
    from reasond_server.types import Session
    from tests.simulation.world import World


class FaultySessions:
    """The sessions of `inner`; `do` runs an operation with the faults between a process and its store."""

    def __init__(self, inner: SessionStore, world: World, do: Callable[..., Awaitable[Any]]) -> None:
        self._inner = inner
        self._world = world
        self._do = do

    async def find(self, tenant: str, session_id: str) -> Session:
        """See SessionStore."""
        session: Session = await self._do("find session", self._inner.find, tenant, session_id)
        return session

    async def page(self, tenant: str, *, size: int, before: tuple[float, str] | None) -> Sequence[Session]:
        """See SessionStore."""

        async def page() -> Sequence[Session]:
            return await self._inner.page(tenant, size=size, before=before)

        sessions: Sequence[Session] = await self._do("page sessions", page)
        return sessions

    async def delete(self, tenant: str, session_id: str) -> None:
        """See SessionStore."""

        async def delete() -> None:
            await self._inner.delete(tenant, session_id)
            self._world.turns.was_deleted(session_id)

        await self._do("delete session", delete)
