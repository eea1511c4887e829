"""Who wants to know of changes to which execution, within one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.logs.store import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager


class Watchers:
    """Calls back on the event loop; belongs to one loop and is used on it only."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[Change], None]]] = {}

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """Call `notify` for each change of the execution while the context lasts."""
        return _Watch(self._callbacks, execution_id, notify)

    def are_watching(self, execution_id: str) -> bool:
        """Whether anybody wants to know of the execution."""
        return execution_id in self._callbacks

    def tell(self, execution_ids: Iterable[str], change: Change) -> None:
        """Tell those who watch one of the executions."""
        for execution_id in execution_ids:
            for notify in tuple(self._callbacks.get(execution_id, ())):
                notify(change)

    def tell_all(self) -> None:
        """Tell everybody that their execution may have grown."""
        self.tell(tuple(self._callbacks), Change.GREW)


class _Watch:
    """One who watches. No generator: every run is watched, and most are over in a moment."""

    __slots__ = ("_callbacks", "_id", "_notify")

    def __init__(
        self, callbacks: dict[str, list[Callable[[Change], None]]], execution_id: str, notify: Callable[[Change], None]
    ) -> None:
        self._callbacks = callbacks
        self._id = execution_id
        self._notify = notify

    def __enter__(self) -> None:
        self._callbacks.setdefault(self._id, []).append(self._notify)

    def __exit__(self, *_: object) -> None:
        callbacks = self._callbacks[self._id]
        callbacks.remove(self._notify)
        if not callbacks:
            del self._callbacks[self._id]
