"""RPCs that are no service of ours, and the names of status codes: words of labels."""

from __future__ import annotations

from typing import Final

import grpc

FOREIGN_METHODS: Final = (
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/List",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
"""Every RPC of the standard services as its path says it, without the slash before it."""

CODES: Final = tuple(code.name for code in grpc.StatusCode)
"""The names of the status codes."""
