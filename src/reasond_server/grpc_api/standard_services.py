"""The standard services: health per service and for the server as a whole (""), reflection as v1 and v1alpha.

Health is implemented here because the servicer of grpcio-health-checking starts as SERVING, holds a lock while it
writes to a watcher, and has a Watch that never ends, which delays the server's stop by the whole grace. Reflection v1
is implemented here because grpcio-reflection lacks it.
"""
# ruff: noqa: N802 - the names of the methods are those of grpc.health.v1

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]  # shipped without py.typed
    reflection,
    reflection_pb2,
    reflection_pb2_grpc,
)

from reasond_server.errors.base import show
from reasond_server.grpc_api.load_reports import LOAD_SERVICE, add_load_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reasond_server.grpc_api.handlers import Context, MethodTable


HEALTH_SERVICE: Final = "grpc.health.v1.Health"
_Response = health_pb2.HealthCheckResponse


STANDARD_METHODS: Final = (
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/List",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    f"{LOAD_SERVICE}/StreamCoreMetrics",
)
"""Every RPC of the standard services: its path without the leading slash."""


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the base class is untyped
    """Answers Check, Watch and List: NOT_SERVING until `set_ready`, and permanently in a drain.

    Load balancers use Check and List and need time to redirect calls, so `begin_drain` changes these first. Clients
    use Watch on their own connection. On NOT_SERVING they stop calling at once, and fail their calls if they have no
    other address. So `end_watches` reports it only just before the connection closes.
    """

    def __init__(self, *, services: Iterable[str]) -> None:
        self._is_ready = dict.fromkeys(("", *services), False)
        self._is_draining = False
        self._is_watched = True
        self._changed = asyncio.Event()

    @property
    def is_draining(self) -> bool:
        """Whether the server is draining."""
        return self._is_draining

    def set_ready(self, *, is_ready: bool = True, service: str | None = None) -> None:
        """Report one service, or all services and the server, as ready or not; has no effect in a drain."""
        if self._is_draining:
            return
        for name in self._is_ready if service is None else (service,):
            self._is_ready[name] = is_ready
        self._announce()

    def begin_drain(self) -> None:
        """Answer Check and List with NOT_SERVING from now on; watchers are not notified yet."""
        self._is_draining = True

    def end_watches(self) -> None:
        """Write NOT_SERVING to every Watch and end it, so that the server can stop."""
        self.begin_drain()
        self._is_watched = False
        self._is_ready = dict.fromkeys(self._is_ready, False)
        self._announce()

    async def Check(self, request: Any, context: Context) -> Any:  # noqa: ANN401 - messages of an untyped package
        """Return the status of a service; NOT_FOUND for an unknown service."""
        if request.service not in self._is_ready:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {show(request.service)}")
        return _Response(status=self._find_status_of_check(request.service))

    async def List(self, request: Any, context: Context) -> Any:  # noqa: ANN401 - messages of an untyped package
        """Return the status of every service."""
        del request, context
        statuses = {name: _Response(status=self._find_status_of_check(name)) for name in self._is_ready}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: Context) -> None:  # noqa: ANN401 - messages of an untyped package
        """Write the status now and whenever it changes, until the listeners close."""
        last = None
        while True:
            # The event is read before the status: a change in between then ends the wait at once.
            changed, is_last = self._changed, not self._is_watched
            status = self._find_status(request.service)
            if status != last:
                await context.write(_Response(status=status))
                last = status
            if is_last:
                return
            await changed.wait()

    def _find_status_of_check(self, service: str) -> int:
        return int(_Response.NOT_SERVING) if self._is_draining else self._find_status(service)

    def _find_status(self, service: str) -> int:
        is_ready = self._is_ready.get(service)
        if is_ready is None:
            return int(_Response.SERVICE_UNKNOWN)
        return int(_Response.SERVING if is_ready else _Response.NOT_SERVING)

    def _announce(self) -> None:
        """Wake the watchers; each writes in its own task, so that a stalled watcher does not block others."""
        self._changed.set()
        self._changed = asyncio.Event()


V1_SERVICE: Final = "grpc.reflection.v1.ServerReflection"
V1ALPHA_SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"
_V1_FILE: Final = "grpc/reflection/v1/reflection.proto"


def add_reflection(methods: MethodTable, services: Iterable[str]) -> None:
    """Let clients ask the server of `methods` for the protos of `services` and of reflection itself."""
    names = (*services, V1_SERVICE, V1ALPHA_SERVICE)
    servicer = reflection.aio.ReflectionServicer(names, pool=_Pools(_build_own_pool()))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, methods)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods.add_registered_method_handlers(V1_SERVICE, {"ServerReflectionInfo": handler})


def _build_own_pool() -> descriptor_pool.DescriptorPool:
    """Return a pool with the files of load reports, and of v1: the messages of v1alpha in another package."""
    alpha = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    text = text_format.MessageToString(alpha).replace("grpc.reflection.v1alpha", "grpc.reflection.v1")
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    file.name = _V1_FILE
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    add_load_files(pool)
    return pool


def _find_file_of_member(pool: Any, symbol: str) -> Any:  # noqa: ANN401 - pools and files come untyped
    """Return the file of the method or the value of an enum called `symbol`, which pools do not find."""
    owner, _, name = symbol.rpartition(".")
    for find, members in ((pool.FindServiceByName, "methods_by_name"), (pool.FindEnumTypeByName, "values_by_name")):
        with suppress(KeyError):
            found = find(owner)
            if name in getattr(found, members):
                return found.file
    raise KeyError(symbol)


class _Pools:
    """The default pool, then a second one: its files must not be added to the process-wide pool."""

    def __init__(self, second: descriptor_pool.DescriptorPool) -> None:
        self._first: Any = descriptor_pool.Default()
        self._second = second

    def FindFileByName(self, name: str) -> Any:  # noqa: ANN401 - the interface of a pool
        """Return a file by its path."""
        try:
            return self._first.FindFileByName(name)
        except KeyError:
            return self._second.FindFileByName(name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: ANN401 - the interface of a pool
        """Return the file that declares a symbol, which may be a method or a value of an enum as well."""
        for pool in (self._first, self._second):
            for find in (pool.FindFileContainingSymbol, partial(_find_file_of_member, pool)):
                with suppress(KeyError):
                    return find(symbol)
        raise KeyError(symbol)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the rest of the interface
        return getattr(self._first, name)
