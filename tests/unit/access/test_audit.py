from __future__ import annotations

import logging
from contextvars import Context
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.access import audit
from reasond_server.access.permissions import Operation
from reasond_server.errors.access import IssuerUnavailableError, PermissionMissingError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import (
    DrainingError,
    OverloadedError,
    RateLimitedError,
    SlowConsumerError,
    StoreFullError,
    StoreUnavailableError,
)
from reasond_server.errors.model import ModelFailedError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types import Principal

if TYPE_CHECKING:
    from reasond_server.errors.base import ReasondError

ANN = Principal(subject="ann", tenant="acme", permissions=frozenset({"admin"}))


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="reasond.audit")


def read_audit(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str, str]]:
    records: list[dict[str, Any]] = [vars(record) for record in caplog.records]
    return [(each["operation"], each["outcome"], each["reason"], each["execution_id"]) for each in records]


def test_a_decision_is_told_once_by_whoever_ends_it_first(caplog: pytest.LogCaptureFixture) -> None:
    decision = audit.begin(Operation("Reason", "reasoning:execute"), principal=ANN, call_id="r")
    audit.concern("run-1")
    audit.refuse(RateLimitedError("too many"))
    decision.allow("run-2")
    decision.end(PermissionMissingError("no"))

    assert read_audit(caplog) == [("Reason", "allowed", "", "run-1")]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PermissionMissingError("no"), ("denied", "PERMISSION_MISSING")),
        (RateLimitedError("too many"), ("denied", "RATE_LIMITED")),
        (ExecutionNotFoundError("none"), ("denied", "EXECUTION_NOT_FOUND")),
        (InvalidRequestError("odd"), ("allowed", "")),
        (ModelFailedError("broken"), ("allowed", "")),
        (SlowConsumerError("slow"), ("allowed", "")),
        (StoreUnavailableError("gone"), ("unavailable", "STORE_UNAVAILABLE")),
        (IssuerUnavailableError("gone"), ("unavailable", "ISSUER_UNAVAILABLE")),
        (StoreFullError("full"), ("unavailable", "STORE_FULL")),
        (DrainingError("leaving"), ("unavailable", "DRAINING")),
        (OverloadedError("busy"), ("unavailable", "OVERLOADED")),
    ],
)
def test_what_refuses_a_caller_is_a_denial_what_refuses_anybody_an_outage_what_refuses_a_request_neither(
    error: ReasondError, outcome: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    audit.begin(Operation("Reason", "reasoning:execute"), principal=ANN)
    audit.refuse(error, "run-1")

    assert read_audit(caplog) == [("Reason", *outcome, "run-1")]


@pytest.mark.parametrize("written", ["a\nb", '","outcome":"allowed', "x" * 65, "what is the secret?"])
def test_what_a_caller_writes_for_an_id_is_not_repeated_unless_it_could_be_one(
    written: str, caplog: pytest.LogCaptureFixture
) -> None:
    audit.begin(Operation("GetExecution", "executions:read"), principal=ANN)
    audit.refuse(ExecutionNotFoundError("none"), written)

    assert read_audit(caplog) == [("GetExecution", "denied", "EXECUTION_NOT_FOUND", "malformed")]


def test_without_a_decision_there_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    nobody = Context()
    nobody.run(audit.concern, "run-1")
    nobody.run(audit.refuse, RateLimitedError("too many"), "run-1")

    assert read_audit(caplog) == []
