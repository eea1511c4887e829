"""The one table from the reason of an error to the codes of both wires; plain data, imports no transport.

`reason` is the word that both wires carry (`google.rpc.ErrorInfo.reason`, `error.data.reason`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reasond_server.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.errors import ReasondError

INTERNAL_MESSAGE: Final = "internal error"
"""All that a caller learns of a fault of the server; the rest is in the log under the request id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """How one reason crosses the wires.

    `grpc_status` is the name of a gRPC status code, `jsonrpc_code` the code of JSON-RPC 2.0. `is_bare`
    says that the JSON-RPC message is `message` alone, because existing clients compare it word for word
    (seed 001); otherwise it is `full_message`.
    """

    reason: str
    grpc_status: str
    jsonrpc_code: int
    is_bare: bool = False


def _row(reason: str, grpc_status: str, jsonrpc_code: int = -32603, *, is_bare: bool = False) -> ErrorRow:
    return ErrorRow(reason=reason, grpc_status=grpc_status, jsonrpc_code=jsonrpc_code, is_bare=is_bare)


ERROR_ROWS: Final[tuple[ErrorRow, ...]] = (
    _row("INVALID_REQUEST", "INVALID_ARGUMENT", -32602, is_bare=True),
    _row("INVALID_CONFIG", "INVALID_ARGUMENT", -32602, is_bare=True),
    _row("PARSE_ERROR", "INVALID_ARGUMENT", -32700),
    _row("INVALID_JSONRPC", "INVALID_ARGUMENT", -32600),
    _row("METHOD_NOT_FOUND", "UNIMPLEMENTED", -32601),
    _row("STRATEGY_NOT_FOUND", "NOT_FOUND", -32001, is_bare=True),
    _row("STRATEGY_NOT_SUPPORTED", "FAILED_PRECONDITION", -32002, is_bare=True),
    _row("STRATEGY_REQUIRED", "FAILED_PRECONDITION", -32602),
    _row("TOKEN_MISSING", "UNAUTHENTICATED", is_bare=True),
    _row("TOKEN_INVALID", "UNAUTHENTICATED", is_bare=True),
    _row("TOKEN_EXPIRED", "UNAUTHENTICATED", is_bare=True),
    _row("PERMISSION_MISSING", "PERMISSION_DENIED", is_bare=True),
    _row("RATE_LIMITED", "RESOURCE_EXHAUSTED"),
    _row("TOKEN_BUDGET_EXHAUSTED", "RESOURCE_EXHAUSTED"),
    _row("OVERLOADED", "UNAVAILABLE"),
    _row("DRAINING", "UNAVAILABLE"),
    _row("STORE_UNAVAILABLE", "UNAVAILABLE"),
    _row("SLOW_CONSUMER", "RESOURCE_EXHAUSTED"),
    _row("STORE_FULL", "RESOURCE_EXHAUSTED"),
    _row("CONTEXT_EXHAUSTED", "FAILED_PRECONDITION"),
    _row("MODEL_UNAVAILABLE", "UNAVAILABLE"),
    _row("MODEL_RATE_LIMITED", "RESOURCE_EXHAUSTED"),
    _row("MODEL_TIMEOUT", "DEADLINE_EXCEEDED"),
    _row("MODEL_FAILED", "ABORTED"),
    _row("MODEL_PROTOCOL", "INTERNAL"),
    _row("CONTENT_FILTERED", "FAILED_PRECONDITION"),
    _row("REQUEST_ID_REUSED", "ALREADY_EXISTS"),
    _row("ETAG_MISMATCH", "ABORTED"),
    _row("TURN_LEASED", "ABORTED"),
    _row("TOOL_OUTCOME_UNKNOWN", "ABORTED"),
    _row("EXECUTION_NOT_FOUND", "NOT_FOUND"),
    _row("CURSOR_EXPIRED", "OUT_OF_RANGE"),
    _row("AGENT_NOT_FOUND", "NOT_FOUND"),
    _row("INTERNAL", "INTERNAL"),
)
"""Every reason of errors.proto, in its order."""

_BY_REASON: Final[Mapping[str, ErrorRow]] = {row.reason: row for row in ERROR_ROWS}


def row_of(error: ReasondError) -> ErrorRow:
    """Return the row of `error`; INTERNAL for what must not cross a wire and for reasons nobody declared."""
    if isinstance(error, SettingsError):
        return _BY_REASON["INTERNAL"]
    return _BY_REASON.get(error.reason, _BY_REASON["INTERNAL"])
