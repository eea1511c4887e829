"""Connection faults: silence, slow content, cuts, and closing by the client."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ModelFailedError, ModelProtocolError, ModelTimeoutError, ModelUnavailableError
from reasond_server.llm.model import Finished, ModelFinish
from reasond_server.llm.openai.backend_options import RetryPolicy, Timeouts
from reasond_server.llm.openai.retries import BreakerState
from reasond_server.types import UsageSource
from tests.accepting import accepting
from tests.faults.backend import SHORT, ask, backend, call, request
from tests.faults.upstream import DONE, GOOD, STREAM_HEAD, chunk, event, streaming, upstream, usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.upstream import Conversation

    Script = Callable[[Conversation], Awaitable[None]]
from tests.faults.scripts import (
    OPEN_HEAD,
    PATIENT,
    THRICE,
    abort_after_text,
    abort_at_once,
    drip,
    hang,
    hang_after_headers,
    hang_after_text,
)

CONNECTIONS = Path("/proc/net/tcp")
IS_LISTED = CONNECTIONS.exists()


async def test_a_server_that_never_answers_is_left_after_the_first_token_time() -> None:
    async with upstream(hang) as server:
        outcome = await ask(server, timeouts=SHORT)
        assert isinstance(outcome.error, ModelTimeoutError)
        assert "did not begin to answer within 0.5 s" in outcome.error.message
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
        assert "went silent within 0.5 s" in outcome.error.message


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
        outcome = await ask(server, timeouts=Timeouts(idle_s=2.0, total_s=2.5))
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
    # 240.0.0.0/4 is reserved: a connection is refused at once or never answered.
    async with backend("http://240.0.0.1:9/v1", timeouts=SHORT) as one:
        outcome = await call(one.model)
        assert isinstance(outcome.error, (ModelTimeoutError, ModelUnavailableError))


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

    async with accepting(plain) as port, backend(f"https://127.0.0.1:{port}/v1", retries=THRICE) as one:
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
    # The last event of a stream may lack its blank line.
    finish_ends_at = whole.index(b"\n\n", finish_at)
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


async def test_faults_after_the_finish_reason_are_ignored() -> None:
    async def hang_after_finish(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + chunk("Hello") + chunk(finish="stop"))
        await conversation.until_gone()

    async with upstream(hang_after_finish) as server:
        outcome = await ask(server, timeouts=SHORT)
        assert outcome.finished.reason is ModelFinish.STOP
        assert outcome.finished.usage.source is UsageSource.ESTIMATED


async def test_closing_the_stream_closes_the_connection() -> None:
    async with upstream(drip(chunk("x"))) as server, backend(server) as one:
        async with aclosing(one.model.stream(request())) as events:
            await anext(events)
        await server.conversations[0].until_gone()


@pytest.mark.parametrize("script", [hang, hang_after_headers, hang_after_text])
async def test_cancelling_the_call_closes_the_connection_at_any_stage(script: Script) -> None:
    async with upstream(script) as server, backend(server, retries=THRICE) as one:
        task = asyncio.create_task(call(one.model))
        async with asyncio.timeout(120):
            await server.came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.conversations[0].until_gone()
        assert server.calls == 1


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's advice above 1 MiB
@pytest.mark.parametrize(
    ("timeouts", "setting"),
    [
        (SHORT, "timeouts.first_token_s"),
        (Timeouts(first_token_s=1.0, total_s=0.5), "timeouts.total_s"),
    ],
)
@pytest.mark.parametrize("size", [2_000_000, 20_000_000])
async def test_a_server_that_never_reads_a_long_request_holds_neither_the_call_nor_a_connection(
    size: int, timeouts: Timeouts, setting: str
) -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        port = deaf.getsockname()[1]
        async with backend(f"http://127.0.0.1:{port}/v1", timeouts=timeouts) as one:
            async with asyncio.timeout(120):
                outcome = await call(one.model, request("x" * size))
                assert isinstance(outcome.error, ModelTimeoutError)
                assert outcome.error.metadata["limit"] == setting
            if hasattr(socket, "TCP_USER_TIMEOUT") and IS_LISTED:
                async with asyncio.timeout(120):
                    while unsent_to(port):  # noqa: ASYNC110 - the system's own timer ends it, without any event
                        await asyncio.sleep(0.02)


def unsent_to(port: int) -> bool:
    """Return whether a socket of this machine, open or closed, still holds unsent bytes for that port."""
    rows = [line.split() for line in CONNECTIONS.read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and int(row[4].partition(":")[0], 16) for row in rows)


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
        async with asyncio.timeout(120):
            await server.came.wait()
        waiting = await call(one.model, request(time_left_s=0.1))
        assert isinstance(waiting.error, ModelUnavailableError)
        assert waiting.error.metadata == {"max_concurrency": "1"}
        assert server.calls == 1
        second = asyncio.create_task(call(one.model))
        first.cancel()
        assert (await second).text == "Hello world"
