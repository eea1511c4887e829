"""The standard health service: per service and for the server as a whole (""), ready or not.

Written here because grpcio-health-checking's own servicer starts as SERVING, holds a lock while it writes
to a watcher, and has a Watch that never ends, which holds the server's stop up for its whole grace.
"""
# ruff: noqa: N802 - the names of the methods are those of grpc.health.v1

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reasond_server.grpc_api.handlers import Context

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
_Response = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the base class is untyped
    """Answers Check, Watch and List: NOT_SERVING until `set_ready`, and for good after `begin_drain`."""

    def __init__(self, *, services: Iterable[str]) -> None:
        self._is_ready = dict.fromkeys(("", *services), False)
        self._is_draining = False
        self._changed = asyncio.Event()

    @property
    def is_draining(self) -> bool:
        """Whether the server is on its way out."""
        return self._is_draining

    def set_ready(self, *, is_ready: bool = True, service: str | None = None) -> None:
        """Report one service, or all of them and the server, as ready or not; nothing changes in a drain."""
        if self._is_draining:
            return
        for name in self._is_ready if service is None else (service,):
            self._is_ready[name] = is_ready
        self._announce()

    def begin_drain(self) -> None:
        """Report NOT_SERVING from now on and let every Watch end, so that the server can stop."""
        self._is_draining = True
        self._is_ready = dict.fromkeys(self._is_ready, False)
        self._announce()

    async def Check(self, request: Any, context: Context) -> Any:  # noqa: ANN401 - messages of an untyped package
        """Return the status of a service; NOT_FOUND for one that is not here."""
        if request.service not in self._is_ready:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {shown(request.service)}")
        return _Response(status=self._status(request.service))

    async def List(self, request: Any, context: Context) -> Any:  # noqa: ANN401 - messages of an untyped package
        """Return the status of every service."""
        del request, context
        statuses = {name: _Response(status=self._status(name)) for name in self._is_ready}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: Context) -> None:  # noqa: ANN401 - messages of an untyped package
        """Write the status now and whenever it changes, until the server drains."""
        last = None
        while True:
            # The event is taken before the status is read: a change in between wakes the wait at once.
            changed, is_last = self._changed, self._is_draining
            status = self._status(request.service)
            if status != last:
                await context.write(_Response(status=status))
                last = status
            if is_last:
                return
            await changed.wait()

    def _status(self, service: str) -> int:
        is_ready = self._is_ready.get(service)
        if is_ready is None:
            return int(_Response.SERVICE_UNKNOWN)
        return int(_Response.SERVING if is_ready else _Response.NOT_SERVING)

    def _announce(self) -> None:
        """Wake the watchers; each writes for itself, so that a stalled one holds up nobody."""
        self._changed.set()
        self._changed = asyncio.Event()
