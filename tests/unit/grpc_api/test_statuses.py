from __future__ import annotations

import base64

import grpc
import pytest

from reasond_server.errors.base import InternalError, Reason, ReasondError, SettingsError, Violation
from reasond_server.errors.limits import DrainingError, OverloadedError, RateLimitedError
from reasond_server.errors.model import (
    ContextExhaustedError,
    ModelFailedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RequestRefusedError,
)
from reasond_server.errors.reasons import build_error, list_error_classes
from reasond_server.errors.request import InvalidConfigError, InvalidRequestError, StrategyNotFoundError
from reasond_server.grpc_api.statuses import MAX_STATUS_BYTES, build_status, clip_message, find_pushback
from tests.unit.grpc_api.parts import details_of


@pytest.mark.parametrize("kind", list_error_classes().values())
def test_every_reason_becomes_its_code_with_error_info(kind: type[ReasondError]) -> None:
    error, reason = kind("what is wrong"), kind.declaration

    status = build_status(error, call_id="r-1")
    info = details_of(status)["ErrorInfo"]

    assert status.code == grpc.StatusCode[reason.grpc_status].value[0]
    assert (info.reason, info.domain, info.metadata["request_id"]) == (reason.name, "reasond", "r-1")
    assert status.message == ("internal error" if reason.name == "INTERNAL" else "what is wrong")


def test_a_protocol_with_reasons_of_its_own_is_told_them_in_its_domain() -> None:
    reason = Reason("TASK_NOT_FOUND", "NOT_FOUND", remedy="")
    status = build_status(ModelFailedError("it broke"), call_id="r", reason=reason, domain="example.org")
    info = details_of(status)["ErrorInfo"]
    assert (status.code, info.reason, info.domain) == (
        grpc.StatusCode.NOT_FOUND.value[0],
        *("TASK_NOT_FOUND", "example.org"),
    )


def test_the_message_says_what_to_do() -> None:
    assert build_status(ModelFailedError("it broke", remedy="Retry."), call_id="r").message == "it broke. Retry."


def test_a_fault_of_the_server_tells_its_request_id_and_nothing_more() -> None:
    error = InternalError("secret", violations=[Violation(field="secret", description="secret")])
    error.metadata["secret"] = "secret"

    status = build_status(error, call_id="r-1")

    assert "secret" not in str(status)
    assert dict(details_of(status)["ErrorInfo"].metadata) == {"request_id": "r-1"}


def test_a_fault_names_the_execution_whose_partial_result_was_kept() -> None:
    error = InternalError("secret")
    error.execution_id = "run-1"

    assert details_of(build_status(error, call_id="r"))["ErrorInfo"].metadata["execution_id"] == "run-1"


def test_the_operators_settings_do_not_cross_the_wire() -> None:
    status = build_status(SettingsError("/etc/secret"), call_id="r")

    assert (status.code, status.message) == (grpc.StatusCode.INTERNAL.value[0], "internal error")


def test_a_retry_delay_is_told_only_where_waiting_helps() -> None:
    draining = DrainingError("going down", retry_after_s=0.25)

    assert details_of(build_status(draining, call_id="r"))["RetryInfo"].retry_delay.ToMilliseconds() == 250
    assert "RetryInfo" not in details_of(build_status(RateLimitedError("never"), call_id="r"))


def test_a_negative_delay_becomes_none_at_all() -> None:
    error = RateLimitedError("now", retry_after_s=-1.0)

    assert details_of(build_status(error, call_id="r"))["RetryInfo"].retry_delay.ToMilliseconds() == 0


@pytest.mark.parametrize(
    ("error", "pushback"),
    [
        (OverloadedError("full"), "1000"),
        (OverloadedError("full", retry_after_s=0.0), "0"),
        (RateLimitedError("too many", retry_after_s=0.0001), "1"),
        (RateLimitedError("too many", retry_after_s=-1.0), "0"),
        (RateLimitedError("too many", retry_after_s=60.0), "60000"),
        (RateLimitedError("too many", retry_after_s=60.001), "-1"),
        (RateLimitedError("it never fits"), "-1"),
        (build_error("OVERLOADED", "it was full"), "-1"),
        (ModelFailedError("after tokens were spent"), "-1"),
        (RequestRefusedError("it would be refused again"), "-1"),
        (InternalError("a fault"), "-1"),
        # Nothing was spent, and when it helps nobody knows: the client's policy decides.
        (ModelUnavailableError("away"), ""),
        (ModelTimeoutError("late"), ""),
        # No policy retries these codes, and each -1 costs the client one of the tokens of its throttle.
        (StrategyNotFoundError("unknown"), ""),
        (InvalidRequestError("wrong"), ""),
        (ContextExhaustedError("too long"), ""),
    ],
    ids=lambda each: each.reason if isinstance(each, ReasondError) else each,
)
def test_a_refusal_tells_the_retries_of_grpc_when_they_may_come(error: ReasondError, pushback: str) -> None:
    assert find_pushback(error, left_s=None) == pushback


def test_no_retry_is_told_that_would_come_after_the_deadline() -> None:
    error = OverloadedError("full", retry_after_s=1.5)

    assert [find_pushback(error, left_s=left_s) for left_s in (1.5, 1.51, -1.0)] == ["-1", "1500", "-1"]


def test_no_wait_is_told_shorter_than_it_is() -> None:
    details = details_of(build_status(RateLimitedError("too many", retry_after_s=0.0004), call_id="r"))

    assert details["RetryInfo"].retry_delay.ToMilliseconds() == 1


def test_a_limit_names_who_has_reached_it() -> None:
    error = RateLimitedError("too many", metadata={"subject": "ann"})

    quota = details_of(build_status(error, call_id="r"))["QuotaFailure"].violations[0]

    assert (quota.subject, quota.description) == ("ann", "too many")


def test_a_precondition_names_its_reason() -> None:
    condition = details_of(build_status(ContextExhaustedError("too long"), call_id="r"))["PreconditionFailure"]

    assert (condition.violations[0].type, condition.violations[0].description) == ("CONTEXT_EXHAUSTED", "too long")


def test_violations_become_field_violations() -> None:
    error = InvalidConfigError.of(Violation(field="max_tokens", description="must be at least 100"))

    field = details_of(build_status(error, call_id="r"))["BadRequest"].field_violations[0]

    assert (field.field, field.description) == ("max_tokens", "must be at least 100")


def test_metadata_of_the_error_is_passed_on_but_never_replaces_what_the_transport_knows() -> None:
    error = StrategyNotFoundError("unknown", metadata={"available": "a,b", "request_id": "forged"})

    metadata = details_of(build_status(error, call_id="real"))["ErrorInfo"].metadata

    assert dict(metadata) == {"available": "a,b", "request_id": "real"}


@pytest.mark.parametrize("count", [1, 7, 30, 40, 1000])
@pytest.mark.parametrize("metadata", [0, 3, 100])
def test_a_status_never_exceeds_its_limit(count: int, metadata: int) -> None:
    violations = [Violation(field=f"f{number}" * 30, description="ü" * 300) for number in range(count)]
    values = {f"key_{number}": "v" * 300 for number in range(metadata)}
    error = InvalidRequestError("m" * 10_000, violations=violations, metadata=values, retry_after_s=1.0)
    error.execution_id = "e" * 1000

    status = build_status(error, call_id="r" * 128)

    assert status.ByteSize() <= MAX_STATUS_BYTES
    info = details_of(status)["ErrorInfo"]
    assert info.reason == "INVALID_REQUEST"
    assert info.metadata["request_id"] == "r" * 128


def test_violations_give_way_before_metadata() -> None:
    violations = [Violation(field="f" * 200, description="d" * 200)] * 50
    values = {f"key_{number}": "v" * 200 for number in range(8)}

    details = details_of(build_status(InvalidRequestError("m", violations=violations, metadata=values), call_id="r"))

    assert set(values) < set(details["ErrorInfo"].metadata)
    assert len(details["BadRequest"].field_violations) < 50
    assert details["ErrorInfo"].metadata["violations_total"] == "50"


@pytest.mark.parametrize("text", ["a" * 5000, "ü" * 5000, "\U0001f600" * 5000, "%" * 5000, "\n" * 5000])
def test_trailers_of_a_long_message_stay_under_eight_kibibytes(text: str) -> None:
    error = ModelFailedError(text, violations=[Violation(field="f", description="d" * 250)] * 100)
    status = build_status(error, call_id="r" * 128)

    encoded = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in status.message.encode())
    binary = len(base64.b64encode(status.SerializeToString()))

    assert encoded + binary + len("r" * 128) < 8192 - 512
    assert status.message.endswith("…")


def test_a_message_that_fits_is_not_touched() -> None:
    assert clip_message("all of 100 % is said — here") == "all of 100 % is said — here"


def test_a_lone_surrogate_does_not_break_the_status() -> None:
    error = StrategyNotFoundError("unknown \ud800", metadata={"name": "\ud800"})

    assert build_status(error, call_id="r").message == "unknown ?"
