"""The table of JSON-RPC methods that services bring; knows what a method is, and none by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

    from reasond_server.access.permissions import Operation
    from reasond_server.http_api.cursors import Cursor
    from reasond_server.http_api.params import Params
    from reasond_server.types import Principal, StreamEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How a method answers with events: what its caller must be allowed, and what yields them.

    `open` takes the caller, the parameters, and the place to resume at; None starts anew.
    """

    operation: Operation
    open: Callable[[Principal, Any, Cursor | None], AsyncGenerator[StreamEvent, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: what its caller must be allowed, what it takes and what it does."""

    operation: Operation
    params: type[Params]
    run: Callable[[Principal, Any], Awaitable[dict[str, Any]]]
    streaming: Streaming | None = None


class Methods:
    """The methods of all services by name.

    `read_partial` returns what an execution that failed has left for its caller; it raises where that is gone.
    """

    def __init__(
        self,
        tables: Iterable[Mapping[str, Method]],
        *,
        read_partial: Callable[[Principal, str], Awaitable[dict[str, Any]]],
    ) -> None:
        self._methods = {name: method for table in tables for name, method in table.items()}
        self.read_partial = read_partial

    @property
    def names(self) -> Iterable[str]:
        """The names of all methods."""
        return self._methods.keys()

    def get(self, name: str) -> Method | None:
        """Return the method called `name`, if there is one."""
        return self._methods.get(name)
