"""Every row of the table in docs/operations/upstream-faults.md, in both protocols, on a server with that fault."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.model import (
    ContextExhaustedError,
    ModelError,
    ModelFailedError,
    ModelProtocolError,
    ModelRateLimitedError,
    ModelTimeoutError,
    ModelUnavailableError,
    PromptFilteredError,
    RequestRefusedError,
)
from reasond_server.llm.model import Finished, ModelFinish
from reasond_server.llm.openai.backend_options import RetryPolicy, Timeouts
from reasond_server.llm.openai.retries import BreakerState
from reasond_server.types import ToolCall, Usage, UsageSource
from tests.faults.backend import NOW, SHORT, ask, backend, call, request
from tests.faults.scripts import (
    OPEN_HEAD,
    SECRET,
    THRICE,
    abort_at_once,
    drip,
    hang,
    hang_after_headers,
)
from tests.faults.speech import CALL_ID, SPEECHES, Speech
from tests.faults.upstream import STREAM_HEAD, event, refusing, streaming, upstream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.upstream import Conversation, Upstream

    Script = Callable[[Conversation], Awaitable[None]]

BOTH = pytest.mark.parametrize("speech", SPEECHES, ids=lambda speech: speech.protocol)
NOTHINGS = {f"{one.protocol} {name}": (one, nothing) for one in SPEECHES for name, nothing in one.nothings.items()}
ERRORS = {f"{one.protocol} {form}": (one, error) for one in SPEECHES for form, error in one.errors(SECRET).items()}
LIMITS: dict[str, Any] = {"max_line_bytes": 4096, "max_response_bytes": 16_384}
MALFORMED = {
    "json": b'data: {"type": "response.output_text.delta", "delta"\n\n',
    "utf-8": b'data: {"type": "x", "delta": "\xff\xfe"}\n\n',
    "no object": b"data: 7\n\n",
    "depth": b"data: " + b"[" * 10_000 + b"\n\n",
    "huge line": b"data: " + b"x" * 5_000,
    "huge answer": (b": " + b"x" * 1000 + b"\n") * 20,
}


def good(speech: Speech) -> Script:
    return streaming(speech.text("Hello"), speech.text(" world"), speech.end(usage=speech.usage(10, 2)))


async def ask_checked(server: Upstream, speech: Speech, asked_for: Any = None, **options: Any) -> Any:
    outcome = await ask(server, asked_for, protocol=speech.protocol, **options)
    assert all(one.head.startswith(f"POST {speech.path} ") for one in server.conversations)
    return outcome


@BOTH
async def test_a_clean_end_that_told_no_reason_is_a_breach_and_the_text_stays(speech: Speech) -> None:
    async with upstream(streaming(speech.thought("hm"), speech.text("Hello"))) as server:
        outcome = await ask_checked(server, speech, retries=THRICE)
        assert isinstance(outcome.error, ModelProtocolError)
        assert (outcome.text, outcome.reasoning, server.calls) == ("Hello", "hm", 1)
        assert not any(isinstance(one, Finished) for one in outcome.events)
    async with upstream(streaming(*speech.nothings.values()), good(speech)) as server:
        assert (await ask_checked(server, speech, retries=THRICE)).text == "Hello world"


@BOTH
async def test_a_text_that_was_held_back_for_a_tag_is_not_lost_where_the_answer_breaks_off(speech: Speech) -> None:
    async with upstream(streaming(speech.text("<thi"))) as server:
        outcome = await ask_checked(server, speech, retries=THRICE)
        assert (outcome.text, server.calls) == ("<thi", 1)
        assert isinstance(outcome.error, ModelProtocolError)


@BOTH
async def test_an_abort_before_the_answer_is_made_good_and_one_within_it_is_told(speech: Speech) -> None:
    async def abort(conversation: Conversation) -> None:
        piece = speech.text("Hello")
        framed = f"{len(piece):x}\r\n".encode() + piece + b"\r\nff\r\ndata: "
        await conversation.send(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + framed)

    async with upstream(abort_at_once, abort) as server:
        outcome = await ask_checked(server, speech, retries=THRICE)
        assert isinstance(outcome.error, ModelFailedError)
        assert "5 characters of the answer had come" in outcome.error.message
        assert (outcome.text, server.calls) == ("Hello", 2)


@BOTH
@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_content_is_tried_again_once_and_only_before_any_text(speech: Speech, wrong: bytes) -> None:
    async with upstream(streaming(wrong)) as server:
        assert isinstance((await ask_checked(server, speech, retries=THRICE, **LIMITS)).error, ModelProtocolError)
        assert server.calls == 2
    async with upstream(streaming(speech.text("Hello"), wrong, speech.end())) as server:
        outcome = await ask_checked(server, speech, retries=THRICE, **LIMITS)
        assert isinstance(outcome.error, ModelProtocolError)
        assert (outcome.text, server.calls) == ("Hello", 1)


@pytest.mark.parametrize(("speech", "wrong"), ERRORS.values(), ids=ERRORS)
async def test_an_error_in_the_stream_is_that_error_in_our_words(speech: Speech, wrong: bytes) -> None:
    async with upstream(streaming(speech.text("Hello"), wrong, speech.end())) as server:
        outcome = await ask_checked(server, speech, retries=THRICE)
        assert isinstance(outcome.error, ModelFailedError)
        assert SECRET not in outcome.error.full_message
        assert (outcome.text, server.calls) == ("Hello", 1)
    async with upstream(streaming(wrong), good(speech)) as server:
        assert (await ask_checked(server, speech, retries=THRICE)).text == "Hello world"


@pytest.mark.parametrize(("speech", "nothing"), NOTHINGS.values(), ids=NOTHINGS)
async def test_events_without_content_are_passed_over_and_hold_nothing_open(speech: Speech, nothing: bytes) -> None:
    async with upstream(streaming(nothing, speech.text("Hello"), nothing, speech.end())) as server:
        outcome = await ask_checked(server, speech)
        assert (outcome.text, outcome.finished.reason) == ("Hello", ModelFinish.STOP)
    async with upstream(endless(speech.text("Hello"), nothing)) as server:
        outcome = await ask_checked(server, speech, timeouts=SHORT)
        assert "went silent within 0.5 s" in outcome.error.message
        assert outcome.text == "Hello"


def endless(first: bytes, then: bytes) -> Script:
    async def script(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + first)
        while not conversation.gone.is_set():
            await conversation.send(then)
            await asyncio.sleep(0.01)  # the pace of the drip, not a wait for anything

    return script


@BOTH
async def test_a_success_in_html_is_a_breach(speech: Speech) -> None:
    async def page(conversation: Conversation) -> None:
        await conversation.answer("200 OK", b"<html>login</html>", "content-type: text/html")

    async with upstream(page) as server:
        outcome = await ask_checked(server, speech, retries=THRICE)
        assert isinstance(outcome.error, ModelProtocolError)
        assert "HTML" in outcome.error.message
        assert server.calls == 2


@BOTH
async def test_a_drip_of_content_is_ended_by_the_total_time(speech: Speech) -> None:
    async with upstream(endless(speech.text("Hello"), speech.text("x"))) as server:
        outcome = await ask_checked(server, speech, timeouts=Timeouts(idle_s=5.0, total_s=0.4))
        assert isinstance(outcome.error, ModelFailedError)
        assert "did not end its answer within 0.4 s" in outcome.error.message
        assert outcome.text.startswith("Hello")
        await server.conversations[0].until_gone()


@BOTH
async def test_pieces_of_a_tool_call_count_as_content(speech: Speech) -> None:
    begun, piece = speech.call("f", " ")
    async with upstream(endless(begun, piece)) as server:
        outcome = await ask_checked(server, speech, timeouts=Timeouts(idle_s=0.2, total_s=0.6))
        assert outcome.error.metadata["limit"] == "timeouts.total_s"


@BOTH
async def test_an_endless_line_is_left_at_its_limit(speech: Speech) -> None:
    async def line(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + b"data: ")
        while not conversation.gone.is_set():
            await conversation.send(b"x" * 65_536)

    async with upstream(line) as server:
        outcome = await ask_checked(server, speech, max_line_bytes=100_000)
        assert "more than 100000 bytes" in outcome.error.message
        await server.conversations[0].until_gone()


STATUSES: dict[str, tuple[str, object, type[ModelError], int]] = {
    "500": ("500 I", b"", ModelUnavailableError, 3),
    "409": ("409 C", b"", ModelUnavailableError, 3),
    "408": ("408 T", b"", ModelUnavailableError, 3),
    "429": ("429 T", b"", ModelRateLimitedError, 3),
    "429 quota": ("429 T", {"error": {"code": "insufficient_quota"}}, ModelRateLimitedError, 1),
    "400 context": ("400 B", {"error": {"code": "context_length_exceeded"}}, ContextExhaustedError, 1),
    "400 filter": ("400 B", {"error": {"code": "content_filter"}}, PromptFilteredError, 1),
    "400": ("400 B", {"error": {"message": SECRET}}, RequestRefusedError, 1),
    "401": ("401 U", b"", ModelUnavailableError, 1),
    "404": ("404 N", b"", ModelUnavailableError, 1),
    "307": ("307 R", b"", ModelUnavailableError, 1),
}


@BOTH
@pytest.mark.parametrize(("status", "body", "kind", "calls"), STATUSES.values(), ids=STATUSES)
async def test_a_refusal_is_tried_again_only_where_that_can_help(
    speech: Speech, status: str, body: object, kind: type[ModelError], calls: int
) -> None:
    async with upstream(refusing(status, body, "location: http://127.0.0.1:1/v1")) as server:
        outcome = await ask_checked(server, speech, retries=THRICE)
        assert type(outcome.error) is kind
        assert SECRET not in outcome.error.full_message
        assert server.calls == calls


WAITS = {
    "seconds": ("retry-after: 2", 2.25),
    "date": (f"retry-after: {formatdate(NOW + 3, usegmt=True)}", 3.25),
    "milliseconds": ("retry-after-ms: 1500", 1.75),
    "long": ("retry-after: 121", 121.25),
    "zero": ("retry-after: 0", 0.375),
    "absent": ("x: y", 0.375),
}


@BOTH
@pytest.mark.parametrize(("header", "wait"), WAITS.values(), ids=WAITS)
async def test_the_wait_that_a_server_asks_for_is_kept(speech: Speech, header: str, wait: float) -> None:
    async with (
        upstream(refusing("429 T", b"", header), good(speech)) as server,
        backend(server, retries=THRICE, protocol=speech.protocol) as one,
    ):
        assert (await call(one.model)).text == "Hello world"
        assert one.sleep.waits == [pytest.approx(wait)]


@BOTH
async def test_a_wait_beyond_the_deadline_fails_now_and_says_how_long(speech: Speech) -> None:
    async with upstream(refusing("429 T", b"", "retry-after: 30")) as server:
        outcome = await ask_checked(server, speech, request(time_left_s=20.0), retries=THRICE)
        assert (type(outcome.error), outcome.error.retry_after_s) == (ModelRateLimitedError, 30.0)
        assert server.calls == 1


@BOTH
@pytest.mark.parametrize("silence", [hang, hang_after_headers])
async def test_a_hang_is_tried_again_within_the_limits_and_said_to_have_perhaps_cost(
    speech: Speech, silence: Script
) -> None:
    async with upstream(silence) as server:
        outcome = await ask_checked(server, speech, timeouts=SHORT, retries=THRICE)
        assert isinstance(outcome.error, ModelTimeoutError)
        assert server.calls == 3
    async with upstream(silence, refusing("503 S"), good(speech)) as server:
        outcome = await ask_checked(server, speech, timeouts=SHORT, retries=THRICE)
        assert outcome.text == "Hello world"
        (warning,) = outcome.finished.warnings
        assert warning.startswith("1 attempt before this answer was given up")
        assert not any("idempotency-key" in one.head.lower() for one in server.conversations)


@BOTH
async def test_a_burst_of_failures_is_hardly_repeated_and_then_the_backend_rests(speech: Speech) -> None:
    policy = RetryPolicy(max_attempts=3, breaker_window=20)
    async with (
        upstream(refusing("500 I")) as server,
        backend(server, retries=policy, protocol=speech.protocol) as one,
    ):
        for _ in range(100):
            assert isinstance((await call(one.model)).error, ModelUnavailableError)
        assert server.calls <= 20 * 1.1 + 3
        assert one.model.health is BreakerState.OPEN


@BOTH
async def test_cancelling_and_closing_let_the_server_know(speech: Speech) -> None:
    async with upstream(drip(speech.text("x"))) as server, backend(server, protocol=speech.protocol) as one:
        async with aclosing(one.model.stream(request())) as events:
            await anext(events)
        await server.conversations[0].until_gone()
    async with upstream(hang) as server, backend(server, protocol=speech.protocol) as one:
        task = asyncio.create_task(call(one.model))
        async with asyncio.timeout(120):
            await server.came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.conversations[0].until_gone()


@BOTH
@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_was_cut_says_so_and_its_unfinished_call_is_dropped(speech: Speech, reason: str) -> None:
    parts = (speech.text("Hello"), *speech.call("f", '{"x"', ":1"))
    async with upstream(streaming(*parts, speech.end(reason))) as server:
        outcome = await ask_checked(server, speech)
        assert outcome.finished.reason is ModelFinish(reason)
        assert outcome.text == "Hello"
        assert not any(isinstance(one, ToolCall) for one in outcome.events)


@BOTH
async def test_a_call_is_passed_on_whole_and_never_from_an_answer_that_broke_off(speech: Speech) -> None:
    parts = speech.call("f", '{"x"', ":1}")
    whole = ToolCall(call_id=CALL_ID, name="f", arguments_json='{"x":1}')
    done = {"type": "function_call", "id": "f1", "call_id": CALL_ID, "name": "f", "arguments": '{"x":1}'}
    ended = b"" if speech.protocol == "chat" else item_done(done)
    async with upstream(streaming(*parts, ended, speech.end())) as server:
        outcome = await ask_checked(server, speech)
        assert outcome.events[0] == whole
        assert outcome.finished.reason is ModelFinish.TOOL_CALLS
    async with upstream(streaming(*parts)) as server:
        outcome = await ask_checked(server, speech)
        assert not outcome.events
        assert isinstance(outcome.error, ModelProtocolError)


def item_done(item: dict[str, str]) -> bytes:
    return event({"type": "response.output_item.done", "output_index": 0, "item": item})


@BOTH
async def test_a_refusal_in_words_is_text_that_ends_as_filtered(speech: Speech) -> None:
    async with upstream(streaming(speech.refusal("I will not."), speech.end())) as server:
        outcome = await ask_checked(server, speech)
        assert (outcome.text, outcome.finished.reason) == ("I will not.", ModelFinish.CONTENT_FILTER)


USAGES: dict[str, tuple[object, object, Usage]] = {
    "whole": (40, 9, Usage(input_tokens=40, output_tokens=9, model_calls=1)),
    "texts": ("40", "9", Usage(input_tokens=40, output_tokens=9, model_calls=1)),
    "no output": (40, 0, Usage(input_tokens=40, output_tokens=5, model_calls=1, source=UsageSource.PARTIAL)),
    "no prompt": (0, 9, Usage(input_tokens=90, output_tokens=9, model_calls=1, source=UsageSource.PARTIAL)),
}
USAGES |= {
    f"wrong {wrong!r}": (
        wrong,
        wrong,
        Usage(input_tokens=90, output_tokens=5, model_calls=1, source=UsageSource.ESTIMATED),
    )
    for wrong in (-1, "seven", 1e9, True, 10**12, None)
}


@BOTH
@pytest.mark.parametrize(("read", "written", "expected"), USAGES.values(), ids=USAGES)
async def test_usage_is_reported_mended_or_counted_here(
    speech: Speech, read: object, written: object, expected: Usage
) -> None:
    async with upstream(streaming(speech.text("Hello"), speech.end(usage=speech.usage(read, written)))) as server:
        assert (await ask_checked(server, speech)).finished.usage == expected


@BOTH
async def test_a_prompt_that_was_cut_upstream_is_warned_of(speech: Speech) -> None:
    async with upstream(streaming(speech.text("Hello"), speech.end(usage=speech.usage(1000, 1)))) as server:
        (warning,) = (await ask_checked(server, speech, request("word " * 2000))).finished.warnings
        assert warning.startswith("The prompt was truncated upstream")
