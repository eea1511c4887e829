"""Refusals by the server: our error for each, and whether the call is repeated."""

from __future__ import annotations

import logging
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.model import (
    ContextExhaustedError,
    ModelError,
    ModelProtocolError,
    ModelRateLimitedError,
    ModelUnavailableError,
    PromptFilteredError,
    RequestRefusedError,
)
from reasond_server.llm.openai.backend_options import RetryPolicy
from reasond_server.llm.openai.retries import BreakerState
from tests.faults.backend import KEY, NOW, ask, backend, call, request
from tests.faults.upstream import GOOD, refusing, streaming, upstream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.upstream import Conversation

    Script = Callable[[Conversation], Awaitable[None]]
from tests.faults.scripts import SECRET, THRICE


def problem(**error: Any) -> dict[str, Any]:
    return {"error": {"message": SECRET} | error}


STARVED = "Could not finish the message because max_tokens or model output limit was reached."
CONTEXT = "This model's maximum context length is 4096 tokens"
REFUSALS: dict[str, tuple[str, Any, type[ModelError], int, str]] = {
    "400 context code": ("400 B", problem(code="context_length_exceeded"), ContextExhaustedError, 1, "context"),
    "400 context words": (
        "400 B",
        {"object": "error", "message": CONTEXT, "code": 400},
        ContextExhaustedError,
        1,
        "context",
    ),
    "400 llama.cpp": (
        "400 B",
        problem(code=400, type="exceed_context_size_error"),
        ContextExhaustedError,
        1,
        "context",
    ),
    "413": ("413 L", b"", ContextExhaustedError, 1, "context"),
    "400 azure filter": ("400 B", problem(code="content_filter"), PromptFilteredError, 1, "content filter"),
    "400 azure inner": (
        "400 B",
        problem(innererror={"code": "ResponsibleAIPolicyViolation"}),
        PromptFilteredError,
        1,
        "content filter",
    ),
    "400 parameter": ("400 B", problem(param="temperature"), RequestRefusedError, 1, "'temperature'"),
    "400 foreign parameter": ("400 B", problem(param=SECRET), RequestRefusedError, 1, "malformed"),
    "422 detail": ("422 U", {"detail": [{"msg": SECRET}]}, RequestRefusedError, 1, "malformed"),
    "400 after a generation": (
        "400 B",
        problem(code="json_validate_failed", failed_generation=SECRET),
        ModelProtocolError,
        1,
        "malformed",
    ),
    "400 starved": ("400 B", problem(message=STARVED), ModelProtocolError, 1, "Raise max_tokens"),
    "401": ("401 U", problem(code="invalid_api_key"), ModelUnavailableError, 1, "api_key_env"),
    "403": ("403 F", b"<html>", ModelUnavailableError, 1, "api_key_env"),
    "404": ("404 N", problem(code="model_not_found"), ModelUnavailableError, 1, "'m-1'"),
    "404 nothing": ("404 N", b"", ModelUnavailableError, 1, "base_url"),
    "402": ("402 P", b"", ModelRateLimitedError, 1, "quota"),
    "429 quota": ("429 T", problem(code="insufficient_quota"), ModelRateLimitedError, 1, "quota"),
    "429": ("429 T", problem(code="rate_limit_exceeded"), ModelRateLimitedError, 3, "for now"),
    "429 text": ("429 T", b"slow down", ModelRateLimitedError, 3, "for now"),
    "408": ("408 T", b"", ModelUnavailableError, 3, "HTTP 408"),
    "409": ("409 C", b"", ModelUnavailableError, 3, "HTTP 409"),
    "500": ("500 I", problem(), ModelUnavailableError, 3, "HTTP 500"),
    "503": ("503 S", b"<html>" + b"x" * 200_000, ModelUnavailableError, 3, "HTTP 503"),
    "529": ("529 O", problem(type="overloaded_error"), ModelUnavailableError, 3, "HTTP 529"),
    "307": ("307 R", b"", ModelUnavailableError, 1, "not followed"),
    "302": ("302 R", b"", ModelUnavailableError, 1, "not followed"),
}


@pytest.mark.parametrize(("status", "body", "kind", "calls", "says"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_is_told_in_our_words_and_tried_again_only_where_that_can_help(
    status: str, body: object, kind: type[ModelError], calls: int, says: str
) -> None:
    async with upstream(streaming(*GOOD)) as elsewhere:
        location = f"location: {elsewhere.address}/chat/completions"
        async with upstream(refusing(status, body, location)) as server:
            outcome = await ask(server, retries=THRICE)
            assert type(outcome.error) is kind
            assert says in outcome.error.full_message
            assert SECRET not in outcome.error.full_message
            assert KEY not in repr(outcome.error) + outcome.error.full_message
            assert server.calls == calls
        assert elsewhere.calls == 0


async def test_a_refusal_whose_body_never_ends_is_still_reported() -> None:
    async def drip_refusal(conversation: Conversation) -> None:
        await conversation.send(b"HTTP/1.1 401 U\r\ncontent-length: 1000\r\n\r\n{")
        await conversation.until_gone()

    async with upstream(drip_refusal) as server:
        outcome = await ask(server)
        assert isinstance(outcome.error, ModelUnavailableError)
        assert "api_key_env" in outcome.error.full_message


async def test_the_log_has_the_providers_error_names_and_no_sentence(caplog: pytest.LogCaptureFixture) -> None:
    told = problem(type="invalid_request_error", code="bad_value", param=f"the question: {SECRET}")
    async with upstream(refusing("400 B", told)) as server:
        with caplog.at_level(logging.DEBUG, "reasond.llm"):
            await ask(server)
    said = [record for record in caplog.records if "invalid_request_error" in record.getMessage()]
    assert [record.getMessage() for record in said] == [
        "model backend 'main': status 400, type invalid_request_error, code bad_value"
    ]
    assert said[0].levelno == logging.DEBUG
    assert SECRET not in caplog.text
    assert KEY not in caplog.text


WAITS: dict[str, tuple[str, float]] = {
    "seconds": ("retry-after: 7", 7.25),
    "fraction": ("retry-after: 1.5", 1.75),
    "milliseconds": ("retry-after-ms: 1500", 1.75),
    "date": (f"retry-after: {formatdate(NOW + 9, usegmt=True)}", 9.25),
    "long": ("retry-after: 121", 121.25),
    "past date": (f"retry-after: {formatdate(NOW - 9, usegmt=True)}", 0.375),
    "zero": ("retry-after: 0", 0.375),
    "negative": ("retry-after: -3", 0.375),
    "nonsense": ("retry-after: soon", 0.375),
    "no number": ("retry-after: nan", 0.375),
    "absent": ("x: y", 0.375),
}


@pytest.mark.parametrize("status", ["429 T", "503 S"])
@pytest.mark.parametrize(("header", "wait"), WAITS.values(), ids=WAITS)
async def test_the_wait_that_a_server_asks_for_is_kept_and_a_little_more(status: str, header: str, wait: float) -> None:
    async with (
        upstream(refusing(status, b"", header), streaming(*GOOD)) as server,
        backend(server, retries=THRICE) as one,
    ):
        assert (await call(one.model)).text == "Hello world"
        assert one.sleep.waits == [pytest.approx(wait)]


async def test_a_wait_longer_than_the_time_left_fails_now_and_says_how_long() -> None:
    async with upstream(refusing("429 T", b"", "retry-after: 30")) as server, backend(server, retries=THRICE) as one:
        outcome = await call(one.model, request(time_left_s=20.0))
        assert isinstance(outcome.error, ModelRateLimitedError)
        assert outcome.error.retry_after_s == 30.0
        assert server.calls == 1
        assert not one.sleep.waits


async def test_many_failing_calls_are_hardly_repeated_and_then_the_backend_is_left_alone() -> None:
    policy = RetryPolicy(max_attempts=3, breaker_window=1000)
    async with upstream(refusing("500 I")) as server, backend(server, retries=policy) as one:
        for _ in range(100):
            await call(one.model)
        assert server.calls <= 100 + 3 + 100 * 0.1 + 1


async def test_a_failing_backend_is_left_alone_and_probed_by_one_call() -> None:
    policy = RetryPolicy(max_attempts=1, breaker_window=4, breaker_cooldown_s=0.1)
    async with upstream(*[refusing("500 I")] * 2, streaming(*GOOD)) as server, backend(server, retries=policy) as one:
        for _ in range(2):
            await call(one.model)
        assert one.model.health.value == "open"
        outcome = await call(one.model)
        assert isinstance(outcome.error, ModelUnavailableError)
        assert outcome.error.retry_after_s == pytest.approx(0.1, abs=0.1)
        assert server.calls == 2
        one.clock.ahead_s = 1.0
        assert (await call(one.model)).text == "Hello world"
        assert one.model.health is BreakerState.CLOSED
