from __future__ import annotations

import json
from typing import Any

import pytest

from reasond_server.errors.base import InternalError, ReasondError, Violation
from reasond_server.errors.limits import DrainingError, StoreFullError, TokenBudgetExhaustedError
from reasond_server.errors.model import ModelFailedError, ModelUnavailableError
from reasond_server.errors.reasons import list_error_classes
from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.wire_errors import describe_error


def describe(error: ReasondError) -> tuple[int, dict[str, Any], dict[str, str]]:
    found = describe_error(error, "call-1")
    headers = {name.decode(): value.decode() for name, value in found["headers"]}
    return found["status"], json.loads(found["body"])["error"], headers


@pytest.mark.parametrize("reason", sorted(list_error_classes()))
def test_every_reason_has_a_status_and_its_name_as_code(reason: str) -> None:
    kind = list_error_classes()[reason]
    status, error, headers = describe(kind("what went wrong"))
    assert 400 <= status < 600
    assert (error["code"], set(error)) == (reason, {"message", "type", "param", "code", "reasond"})
    assert (status >= 500) == kind.declaration.is_fault == (error["type"] == "server_error")
    assert headers["x-should-retry"] in {"true", "false"}


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (DrainingError("x"), 503, "true"),
        (ModelUnavailableError("x"), 503, "true"),
        (ModelFailedError("x"), 500, "false"),
        (TokenBudgetExhaustedError("x"), 429, "false"),
        (TokenBudgetExhaustedError("x", retry_after_s=0.25), 429, "true"),
        (StoreFullError("x"), 429, "false"),
        (InvalidRequestError("x"), 400, "false"),
    ],
)
def test_clients_are_told_where_a_retry_helps(error: ReasondError, status: int, retry: str) -> None:
    found, _, headers = describe(error)
    assert (found, headers["x-should-retry"]) == (status, retry)
    if error.retry_after_s is not None:
        assert int(headers["retry-after"]) >= error.retry_after_s
        assert int(headers["retry-after-ms"]) == error.retry_after_s * 1000


def test_a_fault_tells_nothing_but_the_id_of_the_call() -> None:
    error = InternalError("the secret is 5", violations=[Violation(field="f", description="secret")])
    status, shown, _ = describe(error)
    assert status == 500
    assert shown == {
        "message": "internal error",
        "type": "server_error",
        "param": None,
        "code": "INTERNAL",
        "reasond": {"request_id": "call-1"},
    }


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("query", "messages"),
        ("history[3].text", "messages"),
        ("budget.max_output_tokens", "max_completion_tokens"),
        ("budget.max_total_tokens", "reasond.budget.max_total_tokens"),
        ("answer_schema", "response_format.json_schema.schema"),
        ("stop[0]", "stop[0]"),
        ("messages.0.role", "messages.0.role"),
    ],
)
def test_fields_have_the_names_that_the_caller_used(field: str, param: str) -> None:
    _, error, _ = describe(InvalidRequestError.of(Violation(field=field, description="is wrong")))
    assert error["param"] == param
    assert error["reasond"]["violations"] == [{"param": param, "message": "is wrong"}]
