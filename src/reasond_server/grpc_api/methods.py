"""The RPCs that there are, and the names of their status codes: the words of labels."""

from __future__ import annotations

from typing import Final

import grpc

from reasond.v1 import agent_service_pb2, reasoning_service_pb2

_FOREIGN: Final = (
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/List",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)

METHODS: Final = (
    *(
        f"{service.full_name}/{method.name}"
        for file in (reasoning_service_pb2, agent_service_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ),
    *_FOREIGN,
)
"""Every RPC as its path says it, without the slash before it."""

CODES: Final = tuple(code.name for code in grpc.StatusCode)
"""The names of the status codes."""
