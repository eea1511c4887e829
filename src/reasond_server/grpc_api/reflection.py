"""Server reflection under both of its names: v1alpha, which grpcio-reflection has, and v1, which it lacks."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]  # shipped without py.typed
    reflection,
    reflection_pb2,
    reflection_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reasond_server.grpc_api.registering import GenericRegistry

V1_SERVICE: Final = "grpc.reflection.v1.ServerReflection"
V1ALPHA_SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"
_V1_FILE: Final = "grpc/reflection/v1/reflection.proto"


def add_reflection(server: GenericRegistry, services: Iterable[str]) -> None:
    """Let clients ask `server` for the protos of `services` and of reflection itself."""
    names = (*services, V1_SERVICE, V1ALPHA_SERVICE)
    servicer = reflection.aio.ReflectionServicer(names, pool=_Pools(_v1_pool()))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(V1_SERVICE, {"ServerReflectionInfo": handler}),)
    )


def _v1_pool() -> descriptor_pool.DescriptorPool:
    """Return a pool with the file of v1, whose messages are those of v1alpha under another package."""
    alpha = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    text = text_format.MessageToString(alpha).replace("grpc.reflection.v1alpha", "grpc.reflection.v1")
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    file.name = _V1_FILE
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _file_of_member(pool: Any, symbol: str) -> Any:  # noqa: ANN401 - pools and files come untyped
    """Return the file of the method or the value of an enum called `symbol`, which pools do not look for."""
    owner, _, name = symbol.rpartition(".")
    for find, members in ((pool.FindServiceByName, "methods_by_name"), (pool.FindEnumTypeByName, "values_by_name")):
        with suppress(KeyError):
            found = find(owner)
            if name in getattr(found, members):
                return found.file
    raise KeyError(symbol)


class _Pools:
    """The default pool, then one more; the file of v1 stays out of the process-wide pool of all packages."""

    def __init__(self, second: descriptor_pool.DescriptorPool) -> None:
        self._first: Any = descriptor_pool.Default()
        self._second = second

    def FindFileByName(self, name: str) -> Any:  # noqa: N802, ANN401 - the interface of a pool
        """Return a file by its path."""
        try:
            return self._first.FindFileByName(name)
        except KeyError:
            return self._second.FindFileByName(name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802, ANN401 - the interface of a pool
        """Return the file that declares a symbol, which may be a method or a value of an enum as well."""
        for pool in (self._first, self._second):
            for find in (pool.FindFileContainingSymbol, partial(_file_of_member, pool)):
                with suppress(KeyError):
                    return find(symbol)
        raise KeyError(symbol)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the rest of the interface
        return getattr(self._first, name)
