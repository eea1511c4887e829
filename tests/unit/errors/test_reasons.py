from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # shipped without py.typed

from reasond.v1 import errors_pb2
from reasond_server.errors import reasons
from reasond_server.errors.base import Reason, ReasondError, SettingsError
from reasond_server.errors.limits import LimitError, OverloadedError
from reasond_server.errors.model import ModelFailedError
from reasond_server.errors.reasons import build_error, list_error_classes
from reasond_server.grpc_api.statuses import build_status
from reasond_server.http_api.http_calls import build_error_object
from scripts.api_docs import errors_page, list_declared
from scripts.protos import read

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
ANSWER_INVALID          FAILED_PRECONDITION  -32603  full
REQUEST_ID_REUSED       ALREADY_EXISTS       -32603  full
ETAG_MISMATCH           ABORTED              -32603  full
TURN_LEASED             ABORTED              -32603  full
TOOL_OUTCOME_UNKNOWN    ABORTED              -32603  full
EXECUTION_NOT_FOUND     NOT_FOUND            -32603  full
CURSOR_EXPIRED          OUT_OF_RANGE         -32603  full
AGENT_NOT_FOUND         NOT_FOUND            -32603  full
NOT_RESUMABLE           ABORTED              -32603  full
INTERNAL                INTERNAL             -32603  full
ISSUER_UNAVAILABLE      UNAVAILABLE          -32603  full
TOOL_NOT_REGISTERED     FAILED_PRECONDITION  -32603  full
TOOL_FAILED             ABORTED              -32603  full
TOOL_RESULTS_MISSING    FAILED_PRECONDITION  -32602  full
TOOL_RESULTS_UNEXPECTED INVALID_ARGUMENT     -32602  full
HANDOFF_EXPIRED         FAILED_PRECONDITION  -32602  full
TURN_NOT_AWAITING       FAILED_PRECONDITION  -32602  full
TURN_NOT_FOUND          NOT_FOUND            -32602  full
SESSION_NOT_FOUND       NOT_FOUND            -32602  full
SNAPSHOT_NOT_FOUND      NOT_FOUND            -32603  full
NOT_REPRODUCED          FAILED_PRECONDITION  -32603  full
CHECK_UNUSABLE          FAILED_PRECONDITION  -32603  full
SANDBOX_UNAVAILABLE     FAILED_PRECONDITION  -32603  full
ENGINE_UNAVAILABLE      UNAVAILABLE          -32603  full
ENGINE_FAILED           ABORTED              -32603  full
EXECUTION_RUNNING       FAILED_PRECONDITION  -32603  full
"""


CLASSES = list_error_classes()


@pytest.mark.parametrize("line", CONTRACT.strip().splitlines(), ids=lambda line: line.split()[0])
def test_each_reason_is_the_contracts(line: str) -> None:
    name, grpc_status, code, form = line.split()
    declared = CLASSES[name].declaration

    assert (declared.name, declared.grpc_status, declared.jsonrpc_code) == (name, grpc_status, int(code))
    assert declared.is_bare == (form == "bare")


def test_every_reason_of_the_proto_has_an_exception_and_every_exception_a_reason() -> None:
    names = {name.removeprefix("ERROR_REASON_") for name, number in errors_pb2.ErrorReason.items() if number}
    assert set(CLASSES) == names
    assert {line.split()[0] for line in CONTRACT.strip().splitlines()} == names


def test_no_two_exceptions_share_a_reason() -> None:
    declared: list[type[ReasondError]] = [
        kind
        for branch in reasons.BRANCHES
        for kind in vars(branch).values()
        if isinstance(kind, type) and "declaration" in vars(kind) and kind.__module__ == branch.__name__
    ]

    assert len({kind.reason for kind in declared}) == len(declared)


def test_the_operators_settings_never_cross_a_wire() -> None:
    assert SettingsError("secret path").declaration.name == "INTERNAL"


def test_a_reason_that_nobody_declared_counts_as_internal() -> None:
    class StrangeError(ModelFailedError):
        reason = "STRANGE"

    assert StrangeError("strange").declaration.name == "INTERNAL"


def test_a_class_without_a_word_about_its_reason_has_that_of_the_class_above() -> None:
    class CloserError(ModelFailedError):
        pass

    assert CloserError("closer").declaration is ModelFailedError.declaration
    assert CloserError("closer").reason == "MODEL_FAILED"


def test_what_is_retried_after_unavailable_has_spent_nothing() -> None:
    unavailable = {name for name, kind in CLASSES.items() if kind.declaration.grpc_status == "UNAVAILABLE"}

    assert unavailable == {
        "OVERLOADED",
        "DRAINING",
        "STORE_UNAVAILABLE",
        "ISSUER_UNAVAILABLE",
        "MODEL_UNAVAILABLE",
        "ENGINE_UNAVAILABLE",
    }


def test_what_the_server_or_its_model_did_not_do_is_a_fault_and_what_the_caller_did_is_none() -> None:
    assert {name for name, kind in CLASSES.items() if kind.declaration.is_fault} == {
        "OVERLOADED",
        "DRAINING",
        "STORE_UNAVAILABLE",
        "ISSUER_UNAVAILABLE",
        "MODEL_UNAVAILABLE",
        "MODEL_TIMEOUT",
        "MODEL_FAILED",
        "MODEL_PROTOCOL",
        "NOT_RESUMABLE",
        "ENGINE_UNAVAILABLE",
        "ENGINE_FAILED",
        "INTERNAL",
    }


def test_an_error_says_when_to_come_back_unless_whoever_raises_it_knows_better() -> None:
    assert OverloadedError("full").retry_after_s == 1.0
    assert OverloadedError("full", retry_after_s=7.5).retry_after_s == 7.5
    assert ModelFailedError("broke").retry_after_s is None
    assert {name for name, kind in CLASSES.items() if kind.declaration.retry_after_s is not None} == {
        "OVERLOADED",
        "DRAINING",
        "STORE_UNAVAILABLE",
        "ISSUER_UNAVAILABLE",
        "ENGINE_UNAVAILABLE",
    }


def test_to_wait_does_not_change_how_an_execution_ended() -> None:
    assert build_error("OVERLOADED", "full").retry_after_s is None


def test_the_time_to_retry_stands_with_the_reasons_alone() -> None:
    """Code that raises an error passes a computed retry time, never a literal number."""
    sources = Path(reasons.__file__).parent.parent.rglob("*.py")
    assert [path.name for path in sources if re.search(r"retry_after_s=[0-9]", path.read_text("utf-8"))] == []


class BrandNewError(LimitError):
    """A reason as a release would add it: this class, and a value in errors.proto."""

    declaration = Reason("BRAND_NEW", "RESOURCE_EXHAUSTED", -32050, remedy="Wait.", is_quota=True, retry_after_s=3.0)


def test_a_reason_that_is_declared_once_is_known_to_both_wires_and_to_the_page() -> None:
    error = BrandNewError("too new", remedy="Come back.")

    status = build_status(error, call_id="c1")
    found = {detail.type_url.rpartition(".")[2]: detail for detail in status.details}
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    found["ErrorInfo"].Unpack(info)
    found["RetryInfo"].Unpack(retry)
    assert (status.code, status.message) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "too new. Come back.")
    assert (info.reason, retry.retry_delay.seconds, "QuotaFailure" in found) == ("BRAND_NEW", 3, True)

    assert build_error_object(error, call_id="c1") == {
        "code": -32050,
        "message": "too new. Come back.",
        "data": {
            "reason": "BRAND_NEW",
            "grpc_code": "RESOURCE_EXHAUSTED",
            "request_id": "c1",
            "retry_after_ms": 3000,
        },
    }

    files = read()
    (enum,) = (enum for file in files for enum in file.enums if enum.name == "ErrorReason")
    value = replace(enum.values[-1], name="ERROR_REASON_BRAND_NEW", comment="It is new.")
    changed = [
        replace(file, enums=[replace(one, values=[*one.values, value]) if one is enum else one for one in file.enums])
        for file in files
    ]
    page = errors_page(changed, [*list_declared(), BrandNewError.declaration])
    assert "| `BRAND_NEW` | `RESOURCE_EXHAUSTED` | -32050 |  | It is new. | Wait. |" in page
