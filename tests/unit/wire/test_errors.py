from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond.v1 import errors_pb2
from reasond_server import errors
from reasond_server.wire.errors import ERROR_ROWS, ErrorRow, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# contract.md, "Errors: one table, both wires", one line for each reason.
CONTRACT = """
INVALID_REQUEST         INVALID_ARGUMENT     -32602  bare
INVALID_CONFIG          INVALID_ARGUMENT     -32602  bare
PARSE_ERROR             INVALID_ARGUMENT     -32700  full
INVALID_JSONRPC         INVALID_ARGUMENT     -32600  full
METHOD_NOT_FOUND        UNIMPLEMENTED        -32601  full
STRATEGY_NOT_FOUND      NOT_FOUND            -32001  bare
STRATEGY_NOT_SUPPORTED  FAILED_PRECONDITION  -32002  bare
STRATEGY_REQUIRED       FAILED_PRECONDITION  -32602  full
TOKEN_MISSING           UNAUTHENTICATED      -32603  bare
TOKEN_INVALID           UNAUTHENTICATED      -32603  bare
TOKEN_EXPIRED           UNAUTHENTICATED      -32603  bare
PERMISSION_MISSING      PERMISSION_DENIED    -32603  bare
RATE_LIMITED            RESOURCE_EXHAUSTED   -32603  full
TOKEN_BUDGET_EXHAUSTED  RESOURCE_EXHAUSTED   -32603  full
OVERLOADED              UNAVAILABLE          -32603  full
DRAINING                UNAVAILABLE          -32603  full
STORE_UNAVAILABLE       UNAVAILABLE          -32603  full
SLOW_CONSUMER           RESOURCE_EXHAUSTED   -32603  full
STORE_FULL              RESOURCE_EXHAUSTED   -32603  full
CONTEXT_EXHAUSTED       FAILED_PRECONDITION  -32603  full
MODEL_UNAVAILABLE       UNAVAILABLE          -32603  full
MODEL_RATE_LIMITED      RESOURCE_EXHAUSTED   -32603  full
MODEL_TIMEOUT           DEADLINE_EXCEEDED    -32603  full
MODEL_FAILED            ABORTED              -32603  full
MODEL_PROTOCOL          INTERNAL             -32603  full
CONTENT_FILTERED        FAILED_PRECONDITION  -32603  full
REQUEST_ID_REUSED       ALREADY_EXISTS       -32603  full
ETAG_MISMATCH           ABORTED              -32603  full
TURN_LEASED             ABORTED              -32603  full
TOOL_OUTCOME_UNKNOWN    ABORTED              -32603  full
EXECUTION_NOT_FOUND     NOT_FOUND            -32603  full
CURSOR_EXPIRED          OUT_OF_RANGE         -32603  full
AGENT_NOT_FOUND         NOT_FOUND            -32603  full
INTERNAL                INTERNAL             -32603  full
"""


def _descendants(base: type[errors.ReasondError]) -> Iterator[type[errors.ReasondError]]:
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _descendants(child)


CLASSES = {
    child.reason: child
    for child in _descendants(errors.ReasondError)
    if "reason" in vars(child) and child is not errors.SettingsError
}
PROTO_REASONS = {name.removeprefix("ERROR_REASON_") for name, number in errors_pb2.ErrorReason.items() if number}


@pytest.mark.parametrize("line", CONTRACT.strip().splitlines(), ids=lambda line: line.split()[0])
def test_each_row_is_the_contracts(line: str) -> None:
    reason, grpc_status, code, form = line.split()
    error = CLASSES[reason]("what is wrong", remedy="what to do")

    row = row_of(error)

    assert row == ErrorRow(reason=reason, grpc_status=grpc_status, jsonrpc_code=int(code), is_bare=form == "bare")


def test_the_table_has_exactly_the_reasons_of_the_proto_in_its_order() -> None:
    assert [row.reason for row in ERROR_ROWS] == [
        name.removeprefix("ERROR_REASON_")
        for name, number in sorted(errors_pb2.ErrorReason.items(), key=lambda item: item[1])
        if number
    ]


def test_every_reason_of_the_proto_has_an_exception_and_every_exception_a_reason() -> None:
    assert set(CLASSES) == PROTO_REASONS


def test_no_two_exceptions_share_a_reason() -> None:
    declared = [
        child
        for child in _descendants(errors.ReasondError)
        if "reason" in vars(child) and child is not errors.SettingsError
    ]

    assert len(declared) == len(CLASSES)


def test_the_operators_settings_never_cross_a_wire() -> None:
    assert row_of(errors.SettingsError("secret path")).reason == "INTERNAL"


def test_a_reason_that_nobody_declared_counts_as_internal() -> None:
    class StrangeError(errors.ReasondError):
        reason = "STRANGE"

    assert row_of(StrangeError("strange")).reason == "INTERNAL"


def test_what_is_retried_after_unavailable_has_spent_nothing() -> None:
    unavailable = {row.reason for row in ERROR_ROWS if row.grpc_status == "UNAVAILABLE"}

    assert unavailable == {"OVERLOADED", "DRAINING", "STORE_UNAVAILABLE", "MODEL_UNAVAILABLE"}
