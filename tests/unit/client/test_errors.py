from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import grpc
import pytest

import reasond
from reasond import AsyncClient, Client, ErrorReason, ReasondError
from reasond.errors import error_of
from reasond_server.errors.reasons import list_error_classes
from reasond_server.grpc_api.statuses import build_status

if TYPE_CHECKING:
    from tests.unit.client.conftest import Failure, ScriptedServer

REASONS = sorted(
    name.removeprefix("ERROR_REASON_")
    for name in ErrorReason.DESCRIPTOR.values_by_name
    if not name.endswith("UNSPECIFIED")
)


CLASSES = {
    reasond.InvalidRequestError: "INVALID_REQUEST INVALID_CONFIG PARSE_ERROR INVALID_JSONRPC METHOD_NOT_FOUND "
    "TOOL_RESULTS_UNEXPECTED",
    reasond.StrategyError: "STRATEGY_NOT_FOUND STRATEGY_NOT_SUPPORTED STRATEGY_REQUIRED",
    reasond.AuthenticationError: "TOKEN_MISSING TOKEN_INVALID TOKEN_EXPIRED",
    reasond.PermissionDeniedError: "PERMISSION_MISSING",
    reasond.ResourceExhaustedError: "RATE_LIMITED TOKEN_BUDGET_EXHAUSTED SLOW_CONSUMER STORE_FULL",
    reasond.UnavailableError: "OVERLOADED DRAINING STORE_UNAVAILABLE ISSUER_UNAVAILABLE ENGINE_UNAVAILABLE",
    reasond.NotFoundError: "EXECUTION_NOT_FOUND CURSOR_EXPIRED AGENT_NOT_FOUND TURN_NOT_FOUND SESSION_NOT_FOUND "
    "SNAPSHOT_NOT_FOUND",
    reasond.ConflictError: "REQUEST_ID_REUSED ETAG_MISMATCH TURN_LEASED TOOL_OUTCOME_UNKNOWN "
    "TOOL_NOT_REGISTERED TOOL_FAILED TOOL_RESULTS_MISSING HANDOFF_EXPIRED TURN_NOT_AWAITING "
    "NOT_REPRODUCED CHECK_UNUSABLE SANDBOX_UNAVAILABLE EXECUTION_RUNNING",
    reasond.ModelError: "CONTEXT_EXHAUSTED MODEL_UNAVAILABLE MODEL_RATE_LIMITED MODEL_TIMEOUT MODEL_FAILED "
    "MODEL_PROTOCOL CONTENT_FILTERED ANSWER_INVALID",
    reasond.InternalError: "INTERNAL NOT_RESUMABLE ENGINE_FAILED",
}


def test_every_reason_of_the_contract_has_the_class_that_callers_were_promised() -> None:
    promised = {reason: kind for kind, reasons in CLASSES.items() for reason in reasons.split()}
    assert sorted(promised) == REASONS
    for reason, kind in promised.items():
        code = grpc.StatusCode[list_error_classes()[reason].declaration.grpc_status]
        details = build_status(list_error_classes()[reason]("text"), call_id="c1").SerializeToString()
        assert type(error_of(code, "text", [("grpc-status-details-bin", details)])) is kind, reason


def test_every_error_class_is_exported() -> None:
    assert {kind.__name__ for kind in ReasondError.__subclasses__()} <= set(reasond.__all__)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        ("INVALID_ARGUMENT", "INVALID_CONFIG", reasond.InvalidRequestError),
        ("NOT_FOUND", "STRATEGY_NOT_FOUND", reasond.StrategyError),
        ("UNAUTHENTICATED", "TOKEN_EXPIRED", reasond.AuthenticationError),
        ("PERMISSION_DENIED", "PERMISSION_MISSING", reasond.PermissionDeniedError),
        ("RESOURCE_EXHAUSTED", "RATE_LIMITED", reasond.ResourceExhaustedError),
        ("RESOURCE_EXHAUSTED", "MODEL_RATE_LIMITED", reasond.ModelError),
        ("OUT_OF_RANGE", "CURSOR_EXPIRED", reasond.NotFoundError),
        ("ALREADY_EXISTS", "REQUEST_ID_REUSED", reasond.ConflictError),
        ("ABORTED", "MODEL_FAILED", reasond.ModelError),
        ("INTERNAL", "INTERNAL", reasond.InternalError),
    ],
)
async def test_the_class_follows_the_reason(
    server: ScriptedServer, failure: type[Failure], code: str, reason: str, kind: type[ReasondError]
) -> None:
    server.answers("DeleteAgent", failure(code=grpc.StatusCode[code], reason=reason))
    async with AsyncClient(server.target) as client:
        with pytest.raises(ReasondError) as caught:
            await client.delete_agent("a")
    assert type(caught.value) is kind
    assert caught.value.reason == reason
    assert caught.value.code is grpc.StatusCode[code]


def test_an_error_carries_all_that_the_server_said(server: ScriptedServer, failure: type[Failure]) -> None:
    refused = failure(
        code=grpc.StatusCode.INVALID_ARGUMENT,
        message="Request validation failed: query must not be empty",
        reason="INVALID_REQUEST",
        metadata={"limit_allowed": "100000", "execution_id": "exec-1"},
        violations=[("task.query", "must not be empty")],
        retry_after=1.5,
    )
    server.answers("Reason", refused)
    with Client(server.target) as client, pytest.raises(reasond.InvalidRequestError) as caught:
        client.reason("")
    error = caught.value
    assert error.message == "Request validation failed: query must not be empty"
    assert str(error) == "INVALID_REQUEST: Request validation failed: query must not be empty"
    assert error.violations == [("task.query", "must not be empty")]
    assert error.violations[0].field == "task.query"
    assert error.retry_after == 1.5
    assert error.metadata == {"limit_allowed": "100000", "execution_id": "exec-1"}
    assert error.execution_id == "exec-1"
    assert isinstance(error.__cause__, grpc.RpcError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, reasond.UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, reasond.DeadlineExceededError),
        (grpc.StatusCode.CANCELLED, reasond.CallCancelledError),
        (grpc.StatusCode.UNKNOWN, reasond.InternalError),
        (grpc.StatusCode.UNIMPLEMENTED, ReasondError),
    ],
)
async def test_an_answer_without_details_is_classed_by_its_code(
    server: ScriptedServer, failure: type[Failure], code: grpc.StatusCode, kind: type[ReasondError]
) -> None:
    server.answers("DeleteAgent", failure(code=code, message="from a proxy"))
    async with AsyncClient(server.target) as client:
        with pytest.raises(ReasondError) as caught:
            await client.delete_agent("a")
    assert type(caught.value) is kind
    assert (caught.value.reason, caught.value.message) == (code.name, "from a proxy")
    assert caught.value.violations == []
    assert caught.value.retry_after is None
    assert caught.value.execution_id is None


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"", b"\x1a\x05\x0a\x01x\x12\xff"])
async def test_damaged_details_never_hide_the_status(
    server: ScriptedServer, failure: type[Failure], raw: bytes
) -> None:
    server.answers("DeleteAgent", failure(code=grpc.StatusCode.NOT_FOUND, raw_details=raw))
    async with AsyncClient(server.target) as client:
        with pytest.raises(reasond.NotFoundError, match="it failed"):
            await client.delete_agent("a")


async def test_a_reason_of_another_domain_is_not_taken_for_ours(server: ScriptedServer, failure: type[Failure]) -> None:
    foreign = failure(code=grpc.StatusCode.PERMISSION_DENIED, reason="MODEL_FAILED", domain="mesh.example")
    server.answers("DeleteAgent", foreign)
    async with AsyncClient(server.target) as client:
        with pytest.raises(reasond.PermissionDeniedError) as caught:
            await client.delete_agent("a")
    assert caught.value.reason == "PERMISSION_DENIED"


async def test_a_reason_that_a_newer_server_invented_is_kept(server: ScriptedServer, failure: type[Failure]) -> None:
    server.answers("DeleteAgent", failure(code=grpc.StatusCode.ABORTED, reason="BRAND_NEW"))
    async with AsyncClient(server.target) as client:
        with pytest.raises(reasond.ConflictError) as caught:
            await client.delete_agent("a")
    assert caught.value.reason == "BRAND_NEW"


def test_a_failure_without_code_or_text_is_an_internal_error() -> None:
    error = error_of(None, None, None)
    assert type(error) is reasond.InternalError
    assert str(error) == "UNKNOWN"


def test_an_error_survives_pickling() -> None:
    error = error_of(grpc.StatusCode.UNAVAILABLE, "down", ())
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - the same line makes the bytes
    assert type(copy) is reasond.UnavailableError
    assert (copy.message, copy.reason, copy.code) == ("down", "UNAVAILABLE", grpc.StatusCode.UNAVAILABLE)
