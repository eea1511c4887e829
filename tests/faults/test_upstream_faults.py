"""Every way in which a model server is known to go wrong, on a real socket, and what the adapter makes of it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors import (
    ContentFilteredError,
    ContextExhaustedError,
    ModelError,
    ModelFailedError,
    ModelProtocolError,
    ModelRateLimitedError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from reasond_server.llm.model import Finished, ModelFinish, ReasoningText, Text, ToolCall
from reasond_server.llm.openai.breaker import BreakerState
from reasond_server.llm.openai.options import RetryPolicy, Timeouts
from reasond_server.types import Usage, UsageSource
from tests.faults.backend import KEY, NOW, SHORT, ask, backend, call, request
from tests.faults.upstream import DONE, GOOD, STREAM_HEAD, chunk, event, refusing, streaming, upstream, usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.upstream import Conversation

    Script = Callable[[Conversation], Awaitable[None]]

SECRET = "the provider's own words"
THRICE = RetryPolicy(max_attempts=3)
PATIENT = RetryPolicy(max_attempts=1, breaker_window=100_000)
OPEN_HEAD = STREAM_HEAD + b"connection: close\r\n\r\n"


async def hang(conversation: Conversation) -> None:
    await conversation.until_gone()


async def hang_after_headers(conversation: Conversation) -> None:
    await conversation.send(OPEN_HEAD)
    await conversation.until_gone()


async def hang_after_text(conversation: Conversation) -> None:
    await conversation.send(OPEN_HEAD + chunk("Hello"))
    await conversation.until_gone()


async def abort_at_once(conversation: Conversation) -> None:
    conversation.abort()


async def abort_after_text(conversation: Conversation) -> None:
    await conversation.send(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n")
    piece = chunk("Hello")
    await conversation.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    await conversation.send(b"ff\r\ndata: ")


def drip(piece: bytes) -> Script:
    async def script(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + chunk("Hello"))
        while not conversation.gone.is_set():
            await conversation.send(piece)
            await asyncio.sleep(0.01)  # the pace of the drip, not a wait for anything

    return script


# Waiting


async def test_a_server_that_never_answers_is_left_after_the_first_token_time() -> None:
    async with upstream(hang) as server:
        outcome = await ask(server, timeouts=SHORT)
        assert isinstance(outcome.error, ModelTimeoutError)
        assert "did not begin to answer within 0.2 s" in outcome.error.message
        await server.conversations[0].until_gone()


async def test_a_server_that_sends_headers_only_is_left_after_the_first_token_time() -> None:
    async with upstream(hang_after_headers) as server:
        outcome = await ask(server, timeouts=SHORT)
        assert isinstance(outcome.error, ModelTimeoutError)
        await server.conversations[0].until_gone()


async def test_a_hang_is_tried_again_as_often_as_allowed() -> None:
    async with upstream(hang) as server:
        outcome = await ask(server, timeouts=SHORT, retries=THRICE)
        assert isinstance(outcome.error, ModelTimeoutError)
        assert server.calls == 3


async def test_a_hang_that_ends_with_the_second_attempt_is_no_error() -> None:
    async with upstream(hang, streaming(*GOOD)) as server, backend(server, timeouts=SHORT, retries=THRICE) as one:
        outcome = await call(one.model)
        assert outcome.text == "Hello world"
        assert one.sleep.waits == [pytest.approx(0.375)]


async def test_a_server_that_falls_silent_after_text_fails_the_call_and_the_text_stays() -> None:
    async with upstream(hang_after_text) as server:
        outcome = await ask(server, timeouts=SHORT, retries=THRICE)
        assert isinstance(outcome.error, ModelFailedError)
        assert "5 characters of the answer had come" in outcome.error.message
        assert outcome.text == "Hello"
        assert server.calls == 1
        await server.conversations[0].until_gone()


@pytest.mark.parametrize(
    "piece",
    [
        b": ping\n\n",
        b"\n",
        event({"choices": []}),
        chunk(""),
        event({"choices": [{"index": 0, "delta": {"content": None}}]}),
    ],
    ids=["comment", "blank", "no choices", "empty text", "null text"],
)
async def test_keep_alives_do_not_count_as_content(piece: bytes) -> None:
    async with upstream(drip(piece)) as server:
        outcome = await ask(server, timeouts=SHORT)
        assert isinstance(outcome.error, ModelFailedError)
        assert "went silent within 0.2 s" in outcome.error.message


async def test_a_drip_of_content_is_ended_by_the_total_time() -> None:
    async with upstream(drip(chunk("x"))) as server:
        outcome = await ask(server, timeouts=Timeouts(idle_s=5.0, total_s=0.3))
        assert isinstance(outcome.error, ModelFailedError)
        assert "did not end its answer within 0.3 s" in outcome.error.message
        assert outcome.text.startswith("Hellox")
        await server.conversations[0].until_gone()


async def test_arguments_of_a_tool_call_count_as_content() -> None:
    call_part = {"index": 0, "id": "c", "function": {"name": "f", "arguments": " "}}
    piece = event({"choices": [{"index": 0, "delta": {"tool_calls": [call_part]}}]})
    async with upstream(drip(piece)) as server:
        outcome = await ask(server, timeouts=Timeouts(idle_s=0.1, total_s=0.4))
        assert isinstance(outcome.error, ModelFailedError)
        assert "timeouts.total_s" in outcome.error.metadata["limit"]


async def test_the_callers_deadline_less_a_margin_bounds_the_call_and_is_no_fault_of_the_backend() -> None:
    policy = RetryPolicy(max_attempts=3, breaker_window=1)
    async with upstream(hang) as server, backend(server, retries=policy) as one:
        outcome = await call(one.model, request(time_left_s=0.2))
        assert isinstance(outcome.error, ModelTimeoutError)
        assert outcome.error.metadata == {"limit": "the caller's deadline", "seconds": "0.19"}
        assert server.calls == 1
        assert one.model.health is BreakerState.CLOSED


async def test_a_connection_that_is_not_taken_is_left_after_the_connect_time() -> None:
    # 240.0.0.0/4 is reserved: where it is not refused at once, nothing answers.
    async with backend("http://240.0.0.1:9/v1", timeouts=SHORT) as one:
        outcome = await call(one.model)
        assert isinstance(outcome.error, (ModelTimeoutError, ModelUnavailableError))


# Connections that end


async def test_a_refused_connection_says_that_nothing_was_spent() -> None:
    async with upstream(hang) as server:
        address = server.address
    async with backend(address, retries=THRICE) as one:
        outcome = await call(one.model)
        assert isinstance(outcome.error, ModelUnavailableError)
        assert "cannot be reached" in outcome.error.message
        assert len(one.sleep.waits) == 2


async def test_a_name_that_does_not_resolve_says_that_nothing_was_spent() -> None:
    async with backend("http://no-such-host.invalid/v1") as one:
        outcome = await call(one.model)
        assert isinstance(outcome.error, ModelUnavailableError)
        assert "no-such-host.invalid" in outcome.error.message


async def test_plain_http_where_tls_is_meant_is_not_tried_again() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server, backend(address, retries=THRICE) as one:
        outcome = await call(one.model)
        assert isinstance(outcome.error, ModelUnavailableError)
        assert "TLS" in outcome.error.message
        assert not one.sleep.waits


async def test_a_connection_that_ends_before_the_answer_is_tried_again() -> None:
    async with upstream(abort_at_once, streaming(*GOOD)) as server:
        outcome = await ask(server, retries=THRICE)
        assert outcome.text == "Hello world"
        assert server.calls == 2


async def test_an_abort_in_the_middle_of_the_text_fails_the_call_and_is_not_tried_again() -> None:
    async with upstream(abort_after_text) as server:
        outcome = await ask(server, retries=THRICE)
        assert isinstance(outcome.error, ModelFailedError)
        assert outcome.text == "Hello"
        assert server.calls == 1


async def test_a_stream_cut_at_any_byte_never_looks_complete_and_keeps_the_text_that_came() -> None:
    whole = b"".join((chunk("Hello"), chunk(" wor\u00e9"), chunk(finish="stop"), usage(5, 2), DONE))
    finish_at = whole.index(b'"stop"')
    finish_ends_at = whole.index(b"\n\n", finish_at) + 2
    ends = range(len(whole) + 1)
    async with upstream(*[streaming(whole[:end]) for end in ends]) as server, backend(server, retries=PATIENT) as one:
        for end in ends:
            outcome = await call(one.model)
            if end >= finish_ends_at:
                assert outcome.error is None, end
                assert outcome.finished.reason is ModelFinish.STOP
            else:
                assert isinstance(outcome.error, ModelProtocolError), end
                assert not any(isinstance(one, Finished) for one in outcome.events)
            assert "Hello wor\u00e9".startswith(outcome.text)
            assert outcome.text or end < len(chunk("Hello"))


def cut_chunked(framed: bytes) -> Script:
    async def script(conversation: Conversation) -> None:
        await conversation.send(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + framed)

    return script


async def test_a_stream_cut_inside_its_chunked_encoding_is_an_error_at_every_byte() -> None:
    body = chunk("Hello") + chunk(finish="stop") + DONE
    framed = b"".join(f"{len(one):x}\r\n".encode() + one + b"\r\n" for one in (body[:20], body[20:])) + b"0\r\n\r\n"
    finish_ends_at = framed.index(b"\n\n", framed.index(b'"stop"')) + 2
    ends = range(len(framed) + 1)
    async with (
        upstream(*[cut_chunked(framed[:end]) for end in ends]) as server,
        backend(server, retries=PATIENT) as one,
    ):
        for end in ends:
            outcome = await call(one.model)
            if end < finish_ends_at:
                expected = ModelFailedError if outcome.text else ModelUnavailableError
                assert isinstance(outcome.error, expected), end
            else:
                assert outcome.error is None, end


async def test_a_clean_end_without_a_finish_reason_is_tried_again_once_if_nothing_came() -> None:
    async with upstream(streaming(event({"choices": []}))) as server:
        outcome = await ask(server, retries=THRICE)
        assert isinstance(outcome.error, ModelProtocolError)
        assert "without telling why it stopped" in outcome.error.message
        assert server.calls == 2


async def test_done_without_a_finish_reason_is_an_error_because_a_limit_may_have_cut_the_answer() -> None:
    async with upstream(streaming(chunk("Hello"), DONE)) as server:
        outcome = await ask(server, retries=THRICE)
        assert isinstance(outcome.error, ModelProtocolError)
        assert outcome.text == "Hello"
        assert server.calls == 1


async def test_what_goes_wrong_after_the_finish_reason_does_not_matter() -> None:
    async def hang_after_finish(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + chunk("Hello") + chunk(finish="stop"))
        await conversation.until_gone()

    async with upstream(hang_after_finish) as server:
        outcome = await ask(server, timeouts=SHORT)
        assert outcome.finished.reason is ModelFinish.STOP
        assert outcome.finished.usage.source is UsageSource.ESTIMATED


# Content that is not what the protocol says

MALFORMED = {
    "json": b'data: {"choices": [{"delta"\n\n',
    "utf-8": b'data: {"choices": [{"delta": {"content": "\xff\xfe"}}]}\n\n',
    "no object": b"data: 7\n\n",
    "depth": b"data: " + b"[" * 10_000 + b"\n\n",
    "huge line": b"data: " + b"x" * 5_000,
    "huge line in lines": b"".join(b"data: " + b"x" * 5_000 + b"\n" for _ in range(3)),
    "huge answer": b": " + b"x" * 1000 + b"\n" + (b": " + b"x" * 1000 + b"\n") * 20,
}


@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_content_after_text_keeps_the_text_and_is_a_breach_of_protocol(wrong: bytes) -> None:
    limits: dict[str, Any] = {"max_line_bytes": 4096, "max_response_bytes": 16_384}
    async with upstream(streaming(chunk("Hello"), wrong, chunk(finish="stop"))) as server:
        outcome = await ask(server, retries=THRICE, **limits)
        assert isinstance(outcome.error, ModelProtocolError)
        assert outcome.text == "Hello"
        assert server.calls == 1


@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_content_before_any_text_is_tried_again_once(wrong: bytes) -> None:
    limits: dict[str, Any] = {"max_line_bytes": 4096, "max_response_bytes": 16_384}
    async with upstream(streaming(wrong)) as server:
        outcome = await ask(server, retries=THRICE, **limits)
        assert isinstance(outcome.error, ModelProtocolError)
        assert server.calls == 2


async def test_an_endless_line_is_left_at_the_limit_not_at_the_end() -> None:
    async def endless(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + b"data: ")
        while not conversation.gone.is_set():
            await conversation.send(b"x" * 65_536)

    async with upstream(endless) as server:
        outcome = await ask(server, max_line_bytes=100_000)
        assert isinstance(outcome.error, ModelProtocolError)
        assert "more than 100000 bytes" in outcome.error.message
        await server.conversations[0].until_gone()


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/html; charset=utf-8", b"<html>login</html>"),
        ("application/json", b'{"choices": [{"message": {"content": "whole"}}]}'),
        ("application/json", b"not json"),
        ("text/event-stream", b"<html>login</html>"),
        ("text/plain", b"OK"),
    ],
)
async def test_a_success_that_is_no_stream_of_events_is_a_breach_of_protocol(content_type: str, body: bytes) -> None:
    async with upstream(no_stream(content_type, body)) as server:
        outcome = await ask(server)
        assert isinstance(outcome.error, ModelProtocolError)
        assert "login" not in outcome.error.full_message


def no_stream(content_type: str, body: bytes) -> Script:
    async def script(conversation: Conversation) -> None:
        await conversation.answer("200 OK", body, f"content-type: {content_type}")

    return script


async def test_an_error_with_a_status_of_success_is_that_error() -> None:
    body = b'{"error": {"message": "no", "code": "rate_limit_exceeded"}}'
    async with upstream(no_stream("application/json", body)) as server:
        assert isinstance((await ask(server)).error, ModelRateLimitedError)


async def test_an_answer_that_is_not_http_is_a_breach_of_protocol() -> None:
    async def ssh(conversation: Conversation) -> None:
        await conversation.send(b"SSH-2.0-OpenSSH_9.6\r\n")

    async with upstream(ssh) as server:
        assert isinstance((await ask(server)).error, ModelProtocolError)


ERRORS_IN_STREAM = {
    "object": event({"error": {"message": SECRET}}),
    "text": event({"error": SECRET}),
    "named": b'event: error\ndata: {"message": "the provider\'s own words"}\n\n',
    "finish": chunk(finish="error"),
    "status": event(
        {"error": {"message": SECRET, "code": 502}, "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}
    ),
}


@pytest.mark.parametrize("wrong", ERRORS_IN_STREAM.values(), ids=ERRORS_IN_STREAM)
async def test_an_error_inside_the_stream_fails_the_call_and_the_text_stays(wrong: bytes) -> None:
    async with upstream(streaming(chunk("Hello"), wrong, chunk(" again"), chunk(finish="stop"))) as server:
        outcome = await ask(server, retries=THRICE)
        assert isinstance(outcome.error, ModelFailedError)
        assert SECRET not in outcome.error.full_message
        assert outcome.text == "Hello"
        assert server.calls == 1


@pytest.mark.parametrize("wrong", ERRORS_IN_STREAM.values(), ids=ERRORS_IN_STREAM)
async def test_an_error_inside_the_stream_before_any_text_is_tried_again(wrong: bytes) -> None:
    async with upstream(streaming(wrong), streaming(*GOOD)) as server:
        assert (await ask(server, retries=THRICE)).text == "Hello world"


async def test_a_content_filter_inside_the_stream_is_told_as_such() -> None:
    wrong = event({"error": {"message": SECRET, "code": "content_filter"}})
    async with upstream(streaming(chunk("Hello"), wrong)) as server:
        outcome = await ask(server, retries=THRICE)
        assert isinstance(outcome.error, ContentFilteredError)
        assert outcome.text == "Hello"


@pytest.mark.parametrize(
    "harmless",
    [
        event({"choices": []}),
        event({"choices": None}),
        event({}),
        event({"choices": "x"}),
        event({"choices": [None, 3]}),
        event({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}),
        event({"choices": [{"index": 1, "delta": {"content": "the second choice"}, "finish_reason": "stop"}]}),
        event({"choices": [{"index": 0, "delta": {"content": 7, "tool_calls": "no"}}]}),
        b"event: ping\ndata: {}\n\n",
        b": comment\n\n",
        b"id: 7\nretry: 1\n\n",
    ],
)
async def test_chunks_without_a_choice_are_passed_over(harmless: bytes) -> None:
    async with upstream(streaming(harmless, chunk("Hello"), harmless, chunk(finish="stop"), harmless, DONE)) as server:
        outcome = await ask(server)
        assert outcome.error is None
        assert outcome.text == "Hello"
        assert outcome.finished.reason is ModelFinish.STOP


# Refusals


def problem(**error: Any) -> dict[str, Any]:
    return {"error": {"message": SECRET} | error}


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
    "400 azure filter": ("400 B", problem(code="content_filter"), ContentFilteredError, 1, "content filter"),
    "400 azure inner": (
        "400 B",
        problem(innererror={"code": "ResponsibleAIPolicyViolation"}),
        ContentFilteredError,
        1,
        "content filter",
    ),
    "400 parameter": ("400 B", problem(param="temperature"), ModelProtocolError, 1, "'temperature'"),
    "400 foreign parameter": ("400 B", problem(param=SECRET), ModelProtocolError, 1, "malformed"),
    "422 detail": ("422 U", {"detail": [{"msg": SECRET}]}, ModelProtocolError, 1, "malformed"),
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


async def test_a_refusal_whose_body_never_ends_is_still_told() -> None:
    async def drip_refusal(conversation: Conversation) -> None:
        await conversation.send(b"HTTP/1.1 401 U\r\ncontent-length: 1000\r\n\r\n{")
        await conversation.until_gone()

    async with upstream(drip_refusal) as server:
        outcome = await ask(server)
        assert isinstance(outcome.error, ModelUnavailableError)
        assert "api_key_env" in outcome.error.full_message


async def test_the_providers_words_are_in_the_log_at_debug_level_only(caplog: pytest.LogCaptureFixture) -> None:
    async with upstream(refusing("400 B", problem())) as server:
        with caplog.at_level(logging.DEBUG, "reasond.llm"):
            await ask(server)
    said = [record for record in caplog.records if "provider" in record.getMessage()]
    assert said
    assert all(record.levelno == logging.DEBUG for record in said)
    assert KEY not in caplog.text


# Retry-After

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


# Endings and usage


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", ModelFinish.STOP),
        ("eos", ModelFinish.STOP),
        ("length", ModelFinish.LENGTH),
        ("max_tokens", ModelFinish.LENGTH),
        ("content_filter", ModelFinish.CONTENT_FILTER),
    ],
)
async def test_the_reason_of_the_end_is_passed_on(finish: str, reason: ModelFinish) -> None:
    async with upstream(streaming(chunk("Hello"), chunk(finish=finish), DONE)) as server:
        assert (await ask(server)).finished.reason is reason


async def test_a_refusal_of_the_model_is_text_that_ends_as_filtered() -> None:
    said = event({"choices": [{"index": 0, "delta": {"refusal": "I will not."}}]})
    async with upstream(streaming(said, chunk(finish="stop"), DONE)) as server:
        outcome = await ask(server)
        assert outcome.text == "I will not."
        assert outcome.finished.reason is ModelFinish.CONTENT_FILTER


async def test_no_choices_with_a_finish_and_no_text_is_an_empty_answer() -> None:
    async with upstream(streaming(chunk(finish="stop"), DONE)) as server:
        outcome = await ask(server)
        assert outcome.text == ""
        assert outcome.finished.reason is ModelFinish.STOP


USAGES: dict[str, tuple[object, Usage]] = {
    "whole": (
        {
            "prompt_tokens": 40,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        Usage(input_tokens=40, output_tokens=9, cached_input_tokens=8, reasoning_tokens=3, model_calls=1),
    ),
    "deepseek": (
        {"prompt_tokens": 40, "completion_tokens": 9, "prompt_cache_hit_tokens": 50},
        Usage(input_tokens=40, output_tokens=9, cached_input_tokens=40, model_calls=1),
    ),
    "no output": (
        {"prompt_tokens": 40, "completion_tokens": 0},
        Usage(input_tokens=40, output_tokens=5, model_calls=1, source=UsageSource.PARTIAL),
    ),
    "no prompt": (
        {"completion_tokens": 9},
        Usage(input_tokens=90, output_tokens=9, model_calls=1, source=UsageSource.PARTIAL),
    ),
}
NO_USAGES: tuple[object, ...] = (
    None,
    {},
    [],
    "x",
    {"prompt_tokens": -1},
    {"prompt_tokens": "7"},
    {"prompt_tokens": 1e9, "completion_tokens": True},
)
USAGES |= {
    f"wrong {wrong}": (wrong, Usage(input_tokens=90, output_tokens=5, model_calls=1, source=UsageSource.ESTIMATED))
    for wrong in NO_USAGES
}


@pytest.mark.parametrize(("reported", "expected"), USAGES.values(), ids=USAGES)
async def test_usage_is_as_reported_where_it_can_be_believed_and_counted_here_otherwise(
    reported: object, expected: Usage
) -> None:
    events = (chunk("Hello"), chunk(finish="stop"), event({"choices": [], "usage": reported}), DONE)
    async with upstream(streaming(*events)) as server:
        assert (await ask(server)).finished.usage == expected


async def test_usage_is_read_from_wherever_it_stands() -> None:
    spent = {"prompt_tokens": 40, "completion_tokens": 9}
    first = event(
        {
            "choices": [{"index": 0, "delta": {"content": "Hello"}}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 1},
        }
    )
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": spent}]})
    async with upstream(streaming(first, last, DONE)) as server:
        assert (await ask(server)).finished.usage == Usage(input_tokens=40, output_tokens=9, model_calls=1)


async def test_a_prompt_that_the_server_cut_is_warned_of() -> None:
    long = "word " * 2000
    events = (chunk("Hello"), chunk(finish="stop"), usage(1000, 1), DONE)
    async with upstream(streaming(*events)) as server:
        (warning,) = (await ask(server, request(long))).finished.warnings
    assert warning.startswith("The prompt was truncated upstream: the model server reports 1000 tokens")


async def test_parameters_that_were_left_out_are_named_in_the_result() -> None:
    from reasond_server.llm.profiles import ModelProfile  # noqa: PLC0415 - only this test names a profile

    async with upstream(streaming(*GOOD)) as server:
        outcome = await ask(server, request(seed=3), profile=ModelProfile(sampling=False))
    assert [warning.partition(" ")[0] for warning in outcome.finished.warnings] == ["temperature", "seed"]


# Stop strings and coalescing


async def test_a_stop_string_ends_the_call_here_if_the_server_ignores_it() -> None:
    async def ignore_stop(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + chunk("answer</a") + chunk("nswer> and on and"))
        await conversation.until_gone()

    async with upstream(ignore_stop) as server:
        outcome = await ask(server, request(stop=["</answer>"]))
        assert outcome.text == "answer"
        assert outcome.finished.reason is ModelFinish.STOP
        assert outcome.finished.matched_stop == "</answer>"
        assert outcome.finished.usage.source is UsageSource.ESTIMATED
        await server.conversations[0].until_gone()


async def test_text_held_back_for_a_stop_string_is_not_lost_at_a_fault() -> None:
    async with upstream(streaming(chunk("answer</a"))) as server:
        outcome = await ask(server, request(stop=["</answer>"]))
        assert outcome.text == "answer</a"
        assert isinstance(outcome.error, ModelProtocolError)


async def test_all_text_of_one_read_is_one_event() -> None:
    async with upstream(streaming(*[chunk("ab") for _ in range(50)], chunk(finish="stop"), DONE)) as server:
        outcome = await ask(server)
        assert outcome.text == "ab" * 50
        assert sum(isinstance(one, Text) for one in outcome.events) <= 3


async def test_reasoning_and_calls_of_tools_come_in_their_order() -> None:
    def delta(**fields: Any) -> bytes:
        return event({"choices": [{"index": 0, "delta": fields}]})

    events = (
        delta(reasoning_content="hm"),
        delta(content="<thi"),
        delta(content="nk>so</think>\n\nHello"),
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
        chunk(finish="tool_calls"),
        DONE,
    )
    async with upstream(streaming(*events)) as server:
        outcome = await ask(server)
    assert outcome.reasoning == "hmso"
    assert outcome.text == "Hello"
    assert outcome.events[-2] == ToolCall(call_id="a", name="f", arguments_json='{"x":1}')
    assert outcome.finished.reason is ModelFinish.TOOL_CALLS
    assert isinstance(outcome.events[0], ReasoningText)


# Letting go


async def test_closing_the_stream_closes_the_connection() -> None:
    async with upstream(drip(chunk("x"))) as server, backend(server) as one:
        async with aclosing(one.model.stream(request())) as events:
            await anext(events)
        await server.conversations[0].until_gone()


@pytest.mark.parametrize("script", [hang, hang_after_headers, hang_after_text])
async def test_cancelling_the_call_closes_the_connection_at_any_stage(script: Script) -> None:
    async with upstream(script) as server, backend(server, retries=THRICE) as one:
        task = asyncio.create_task(call(one.model))
        async with asyncio.timeout(5):
            await server.came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.conversations[0].until_gone()
        assert server.calls == 1


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's advice above 1 MiB
async def test_a_server_that_never_reads_a_long_request_does_not_hold_the_call() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        del reader  # not before: without its reader a connection ends
        writer.transport.abort()

    over = asyncio.Event()
    server = await asyncio.start_server(ignore, "127.0.0.1", 0, limit=1024)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server, backend(address, timeouts=SHORT) as one:
        async with asyncio.timeout(5):
            outcome = await call(one.model, request("x" * 20_000_000))
        assert isinstance(outcome.error, ModelTimeoutError)
        over.set()


async def test_a_whole_answer_leaves_its_connection_for_the_next() -> None:
    async def keep(conversation: Conversation) -> None:
        whole = b"".join(GOOD)
        framed = f"{len(whole):x}\r\n".encode() + whole + b"\r\n0\r\n\r\n"
        await conversation.send(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + framed)
        await conversation.until_gone()

    async with upstream(keep) as server, backend(server) as one:
        assert (await call(one.model)).text == "Hello world"
        assert not server.conversations[0].gone.is_set()
        await one.model.aclose()
        await server.conversations[0].until_gone()


async def test_no_more_calls_than_allowed_reach_the_backend_at_once() -> None:
    async with upstream(hang, streaming(*GOOD)) as server, backend(server, max_concurrency=1) as one:
        first = asyncio.create_task(call(one.model))
        async with asyncio.timeout(5):
            await server.came.wait()
        waiting = await call(one.model, request(time_left_s=0.1))
        assert isinstance(waiting.error, ModelUnavailableError)
        assert waiting.error.metadata == {"max_concurrency": "1"}
        assert server.calls == 1
        second = asyncio.create_task(call(one.model))
        first.cancel()
        assert (await second).text == "Hello world"
