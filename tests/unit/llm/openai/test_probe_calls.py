from __future__ import annotations

import pytest

from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.probe_calls import ProbeClient, ProbeReply
from tests.unit.llm.openai.odd_server import WORDS, Manners, odd_server

BODY = {"messages": [{"role": "user", "content": "Count."}]}


async def ask(manners: Manners, *, limit_s: float = 10.0) -> ProbeReply:
    with odd_server(manners) as base_url:
        options = BackendOptions(name="llm", model="m", base_url=base_url)
        async with ProbeClient(options=options, limit_s=limit_s) as client:
            return await client.chat(BODY)


async def test_a_stream_is_read_to_its_end() -> None:
    reply = await ask(Manners())
    assert (reply.is_ok, reply.text.split(), reply.finish, reply.tokens) == (True, WORDS, "stop", len(WORDS))
    assert reply.outcome == "10 tokens, finish_reason 'stop'"


async def test_an_endless_stream_is_closed_by_us() -> None:
    reply = await ask(Manners(repeats=1000))
    assert reply.is_cut
    assert reply.outcome == "64 tokens, closed by us"


async def test_no_key_means_no_header() -> None:
    manners = Manners()
    await ask(manners)
    assert not any(name.lower() == "authorization" for header in manners.headers for name in header)


async def test_a_huge_error_is_read_in_part_only() -> None:
    reply = await ask(Manners(status=500, error="x" * 1_000_000))
    assert reply.outcome == "HTTP 500: no JSON (application/json)"


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        {"choices": None},
        {"choices": [None, {}, {"delta": None}, {"delta": {"content": 1, "tool_calls": [None, {"function": None}]}}]},
        {"choices": [{"delta": {"tool_calls": {"function": 1}}, "finish_reason": 3, "stop_reason": 128_001}]},
        {"usage": [], "error": None},
    ],
)
def test_whatever_comes_is_read_without_a_fault(event: object) -> None:
    reply = ProbeReply(status=200)
    reply.take(event)
    assert reply == ProbeReply(status=200)


def test_an_error_inside_a_stream_is_an_error() -> None:
    reply = ProbeReply(status=200)
    reply.take({"error": {"message": "boom"}})
    assert not reply.is_ok
    assert reply.outcome == "HTTP 200: boom"


async def test_documents_that_are_no_json_are_none() -> None:
    with odd_server(Manners(documents={"/props": {"a": 1}})) as base_url:
        options = BackendOptions(name="llm", model="m", base_url=base_url)
        async with ProbeClient(options=options, limit_s=5) as client:
            assert await client.get("/props") == {"a": 1}
            assert await client.get("/nothing") is None
            assert await client.post("/nothing", {}) is None
    async with ProbeClient(options=options, limit_s=5) as client:
        assert await client.get("/props") is None
