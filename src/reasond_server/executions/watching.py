"""Who wants to know of changes to which execution, within one process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from reasond_server.executions.store import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Watchers:
    """Calls back on the event loop; belongs to one loop and is used on it only."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[Change], None]]] = {}

    @contextmanager
    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> Iterator[None]:
        """Call `notify` for each change of the execution while the context lasts."""
        self._callbacks.setdefault(execution_id, []).append(notify)
        try:
            yield
        finally:
            callbacks = self._callbacks[execution_id]
            callbacks.remove(notify)
            if not callbacks:
                del self._callbacks[execution_id]

    def tell(self, execution_ids: Iterable[str], change: Change) -> None:
        """Tell those who watch one of the executions."""
        for execution_id in execution_ids:
            for notify in tuple(self._callbacks.get(execution_id, ())):
                notify(change)

    def tell_all(self) -> None:
        """Tell everybody that their execution may have grown."""
        self.tell(tuple(self._callbacks), Change.GREW)
