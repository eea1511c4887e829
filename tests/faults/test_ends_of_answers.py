"""Model servers that write the closing tag themselves: usage and finish sent soon after the tag are still used."""

from __future__ import annotations

import json
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, DeadlineExceededError, FinishReason
from reasond import UsageSource as ToldSource
from reasond_server.context.calls import ModelReply, stream_reply
from reasond_server.context.sections import build_prompt
from reasond_server.llm.model import ModelFinish
from reasond_server.testing import running_server
from reasond_server.types import Usage, UsageSource
from tests.faults.backend import backend
from tests.faults.scripts import OPEN_HEAD, SECRET, drip
from tests.faults.speech import SPEECHES
from tests.faults.upstream import DONE, chunk, event, streaming, upstream
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from reasond import Reasoning
    from reasond_server.assembly.app import Listening
    from tests.faults.speech import Speech
    from tests.faults.upstream import Conversation, Upstream

    Script = Callable[[Conversation], Awaitable[None]]

MESSAGES = build_prompt(instructions="Work.", question="What?", nonce="n" * 28)
TOLD = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 7},
}
ANSWER = ("So it is", " <answer>42</ans", "wer>")
STRATEGIES = (
    "chain_of_thought",
    "chain_of_verification",
    "react",
    "self_consistency",
    "bounded_context",
    "tree_of_thought",
    "plan_and_solve",
    "best_of_n",
    "self_refine",
)


def answering(*after: bytes, then: Script | None = None) -> Script:
    """Return a script that writes an answer with its closing tag, then `after`, and then runs `then`."""

    async def script(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD)
        for piece in (*map(chunk, ANSWER), *after):
            await conversation.send(piece)
        if then is not None:
            await then(conversation)

    return script


async def silent(conversation: Conversation) -> None:
    await conversation.until_gone()


async def hear_reply(server: Upstream, **options: Any) -> ModelReply:
    """Return the reply of one call of a model over `server`."""
    async with backend(server, **options) as one:
        call = stream_reply(model=one.model, messages=MESSAGES, max_tokens=100, temperature=0.5)
        async with aclosing(call) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    return piece
    pytest.fail("no reply")


@pytest.mark.parametrize("speech", SPEECHES, ids=[speech.protocol for speech in SPEECHES])
async def test_usage_that_is_told_after_the_closing_tag_is_the_servers(speech: Speech) -> None:
    said = (*map(speech.text, ANSWER), speech.text("\n\n"), speech.end(usage=speech.usage(100, 20)))
    async with upstream(streaming(*said)) as server:
        reply = await hear_reply(server, protocol=speech.protocol)
    assert reply.usage == Usage(input_tokens=100, output_tokens=20, model_calls=1)
    assert (reply.parsed.content, reply.finish) == ("42", ModelFinish.STOP)


async def test_cached_and_reasoning_tokens_that_are_told_after_the_closing_tag_are_kept() -> None:
    end = (chunk(" That is all."), chunk(finish="length"), event({"choices": [], "usage": TOLD}), DONE)
    async with upstream(answering(*end)) as server:
        reply = await hear_reply(server)
    expected = Usage(input_tokens=100, output_tokens=20, cached_input_tokens=64, reasoning_tokens=7, model_calls=1)
    assert (reply.usage, reply.finish, reply.parsed.is_closed) == (expected, ModelFinish.STOP, True)


async def test_a_server_that_writes_on_after_the_closing_tag_is_cut_and_counted_here() -> None:
    async def on_and_on(conversation: Conversation) -> None:
        while not conversation.gone.is_set():
            await conversation.send(chunk("and on " * 10))

    async with upstream(answering(then=on_and_on)) as server:
        reply = await hear_reply(server)
        assert (reply.usage.source, reply.parsed.content) == (UsageSource.ESTIMATED, "42")
        assert reply.finish is ModelFinish.STOP
        await server.conversations[0].until_gone()


@pytest.mark.parametrize("then", [silent, drip(b": ping\n\n"), drip(chunk("x"))], ids=["silence", "pings", "a drip"])
async def test_a_server_that_does_not_end_after_the_closing_tag_is_not_waited_for_long(then: Script) -> None:
    async with upstream(answering(then=then)) as server:
        reply = await hear_reply(server)
        assert (reply.usage.source, reply.parsed.content) == (UsageSource.ESTIMATED, "42")
        assert reply.finish is ModelFinish.STOP
        await server.conversations[0].until_gone()


async def breaking(conversation: Conversation) -> None:
    conversation.abort()


@pytest.mark.parametrize(
    "script",
    [
        answering(),
        answering(then=breaking),
        answering(b"data: {nonsense\n\n"),
        answering(event({"error": {"message": SECRET}})),
        streaming(*map(chunk, ANSWER), event({"error": {"message": SECRET}})),
    ],
    ids=["no reason", "a break", "nonsense", "an error", "an error at once"],
)
async def test_a_fault_after_the_closing_tag_does_not_fail_the_answer(script: Script) -> None:
    async with upstream(script) as server:
        reply = await hear_reply(server)
    assert (reply.usage.source, reply.parsed.content) == (UsageSource.ESTIMATED, "42")
    assert (reply.finish, server.calls) == (ModelFinish.STOP, 1)


@asynccontextmanager
async def serving(server: Upstream) -> AsyncIterator[Listening]:
    environ = {
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": "m-1",
        "REASOND__LLM__BASE_URL": server.address,
        "REASOND__LLM__API_KEY_ENV": "",
    }
    async with running_server(environ=environ) as listening:
        yield listening


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_counts_the_usage_reported_after_the_tag(strategy: str) -> None:
    end = (chunk("\n"), chunk(finish="stop"), event({"choices": [], "usage": TOLD}), DONE)
    async with upstream(answering(*end)) as server, serving(server) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            usage = (await client.reason("What is 6 * 7?", strategy=strategy)).metrics.usage
        assert server.calls
        assert usage.model_calls == server.calls
        assert (usage.input_tokens, usage.output_tokens) == (100 * server.calls, 20 * server.calls)
        assert (usage.cached_input_tokens, usage.reasoning_tokens) == (64 * server.calls, 7 * server.calls)
        assert ToldSource.Name(usage.source) == "USAGE_SOURCE_REPORTED"


async def end_at_deadline(client: AsyncClient, strategy: str) -> Reasoning:
    """Return what there is at the deadline: a later one where a busy machine answers only after the client gave up."""
    for timeout_s in (5.0, 20.0):
        with suppress(DeadlineExceededError):
            return await client.reason("What is 6 * 7?", strategy=strategy, timeout_s=timeout_s)
    return await client.reason("What is 6 * 7?", strategy=strategy, timeout_s=80.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_deadline_within_an_answer_ends_with_what_there_is_on_both_wires(strategy: str) -> None:
    async with upstream(drip(chunk("x"))) as server, serving(server) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            reasoning = await end_at_deadline(client, strategy)
        assert FinishReason.Name(reasoning.finish_reason) == "FINISH_REASON_BUDGET_EXHAUSTED"
        assert reasoning.metrics.usage.model_calls
        params = {"query": "What?", "strategy": strategy, "budget": {"max_elapsed_ms": 500}}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
        async with make_http_client(headers={"authorization": f"Bearer {listening.token}"}) as http:
            answer = json.loads((await http.post(f"{listening.http}/api/v1/jsonrpc", json=asked)).content)
        assert "error" not in answer, answer
        assert answer["result"]["finish_reason"] == "budget_exhausted"
        for conversation in server.conversations:
            await conversation.until_gone()


async def test_a_deadline_before_a_later_call_answers_ends_with_what_there_is() -> None:
    thinking = streaming(chunk("<continue>more</continue>"), chunk(finish="stop"), event({"usage": TOLD}), DONE)
    async with upstream(thinking, silent) as server, serving(server) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            reasoning = await client.reason("What is 6 * 7?", strategy="bounded_context", timeout_s=5.0)
        assert FinishReason.Name(reasoning.finish_reason) == "FINISH_REASON_BUDGET_EXHAUSTED"
        assert (server.calls, len(reasoning.warnings)) == (2, 1)
