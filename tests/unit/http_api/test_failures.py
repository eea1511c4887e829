from __future__ import annotations

import asyncio

import pytest

from reasond_server.errors.base import InternalError, SettingsError, Violation
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import InvalidRequestError, StrategyNotFoundError, StrategyRequiredError
from reasond_server.http_api.http_calls import build_error_object, convert_failure


def test_an_error_is_its_code_its_message_and_what_programs_need() -> None:
    error = OverloadedError("100 executions run, as many as may", remedy="Retry.", retry_after_s=1.5)
    assert build_error_object(error, call_id="r1") == {
        "code": -32603,
        "message": "100 executions run, as many as may. Retry.",
        "data": {"reason": "OVERLOADED", "grpc_code": "UNAVAILABLE", "request_id": "r1", "retry_after_ms": 1500},
    }


def test_violations_are_listed() -> None:
    error = InvalidRequestError.of(Violation(field="query", description="is required"))
    assert build_error_object(error, call_id="r1") == {
        "code": -32602,
        "message": "Request validation failed: query is required",
        "data": {
            "reason": "INVALID_REQUEST",
            "grpc_code": "INVALID_ARGUMENT",
            "request_id": "r1",
            "violations": [{"field": "query", "description": "is required"}],
        },
    }


def test_where_seed_001_fixes_the_message_the_remedy_stands_beside_it() -> None:
    shown = build_error_object(StrategyNotFoundError("Strategy not found: 'x'", remedy="There are: 'y'."), call_id="r1")
    assert (shown["code"], shown["message"]) == (-32001, "Strategy not found: 'x'")
    assert shown["data"]["remedy"] == "There are: 'y'."
    other = build_error_object(StrategyRequiredError("No strategy is named", remedy="Name one."), call_id="r1")
    assert other["message"] == "No strategy is named. Name one."
    assert "remedy" not in other["data"]


def test_a_partial_result_is_passed_on() -> None:
    shown = build_error_object(OverloadedError("x"), call_id="r1", partial={"answer": ""})
    assert shown["data"]["partial"] == {"answer": ""}


@pytest.mark.parametrize(
    "error",
    [
        InternalError("secret cause", remedy="secret remedy", violations=[Violation(field="s", description="t")]),
        SettingsError("secret path"),
    ],
)
def test_a_fault_of_the_server_tells_its_request_id_alone(error: InternalError | SettingsError) -> None:
    assert build_error_object(error, call_id="r1") == {
        "code": -32603,
        "message": "internal error",
        "data": {"reason": "INTERNAL", "grpc_code": "INTERNAL", "request_id": "r1"},
    }


async def test_foreign_errors_become_faults_that_keep_their_cause() -> None:
    cause = ValueError("secret")
    fault = convert_failure(cause)
    assert fault.reason == "INTERNAL"
    assert fault.__cause__ is cause
    assert "secret" not in fault.full_message
    ours = OverloadedError("x")
    assert convert_failure(ours) is ours


async def test_a_stray_cancellation_is_a_fault_and_ones_own_is_raised_again() -> None:
    assert convert_failure(asyncio.CancelledError()).reason == "INTERNAL"

    async def wait_for_cancellation() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            convert_failure(error)

    task = asyncio.create_task(wait_for_cancellation())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
