"""Server responses that violate the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.model import (
    ContentFilteredError,
    ModelFailedError,
    ModelProtocolError,
    ModelRateLimitedError,
)
from reasond_server.llm.model import ModelFinish
from tests.faults.backend import SHORT, ask, request
from tests.faults.upstream import DONE, GOOD, chunk, event, streaming, upstream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.upstream import Conversation

    Script = Callable[[Conversation], Awaitable[None]]
from tests.faults.scripts import OPEN_HEAD, SECRET, THRICE

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


async def test_an_answer_of_the_requested_length_may_exceed_the_cap_for_bytes_without_content() -> None:
    words = [chunk(f"word{number} ") for number in range(500)]
    assert sum(map(len, words)) > 16_384
    async with upstream(streaming(*words, chunk(finish="stop"))) as server:
        outcome = await ask(server, request(max_tokens=500), max_response_bytes=16_384)
        assert outcome.error is None
        assert outcome.text.endswith("word499 ")


async def test_content_beyond_the_requested_length_does_not_raise_the_cap() -> None:
    async def endless(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD)
        while not conversation.gone.is_set():
            await conversation.send(chunk("word " * 40) * 20)

    async with upstream(endless) as server:
        outcome = await ask(server, request(max_tokens=10), max_response_bytes=16_384)
        assert isinstance(outcome.error, ModelProtocolError)
        assert f"more than {16_384 + 10 * 2048} bytes" in outcome.error.message
        await server.conversations[0].until_gone()


@pytest.mark.parametrize("line", [b":\n", b"\n", b"\r", b"data: {}\r\n\r\n", event({"choices": []})])
async def test_lines_without_content_are_bounded_by_their_number_too(line: bytes) -> None:
    async def many(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + line * 400)
        await conversation.gone.wait()

    async with upstream(many) as server:
        outcome = await ask(server, timeouts=SHORT, max_response_bytes=16_384)
        assert isinstance(outcome.error, ModelProtocolError)
        assert "more than 16384 bytes in one answer, at 64 more for each line" in outcome.error.message


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


async def test_a_content_filter_inside_the_stream_is_reported_as_such() -> None:
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
        event({"choices": [{"index": 0, "delta": {"content": True, "tool_calls": "no"}}]}),
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
