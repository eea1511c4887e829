"""Servers that apply stop strings to hidden reasoning: a call that ends there is repeated without stop strings."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, FinishReason
from reasond import Budget as CallerBudget
from reasond_server.context.calls import ModelReply, stream_reply
from reasond_server.context.sections import build_prompt
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ModelFinish
from reasond_server.runs.run_journal import JournaledModel, RunJournal
from reasond_server.testing import running_server
from reasond_server.types import Budget
from tests.faults.backend import backend
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, event, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from reasond_server.assembly.app import Listening
    from reasond_server.eventlog.store import Record
    from reasond_server.llm.model import ChatModel
    from tests.faults.upstream import Conversation, Upstream

MESSAGES = build_prompt(instructions="Work.", question="What?", nonce="n" * 28)
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
ANSWER = "Thought 1: six times seven. <answer>42</answer>"
THOUGHT = "The form is <answer>…</answer>, so I end with 42."


def report_usage(output: int) -> bytes:
    details = {"reasoning_tokens": min(output, 10)}
    return event(
        {
            "choices": [],
            "usage": {"prompt_tokens": 50, "completion_tokens": output, "completion_tokens_details": details},
        }
    )


def thinking(*, is_shown: bool = True, is_answer_there: bool = True) -> Callable[[Conversation], Awaitable[None]]:
    """Return a script that applies stop strings to its reasoning too, as servers without reasoning support do."""

    async def script(conversation: Conversation) -> None:
        stops = conversation.json.get("stop", [])
        thought = min((THOUGHT.partition(word)[0] for word in stops), key=len, default=THOUGHT)
        is_cut = thought != THOUGHT
        pieces = [event({"choices": [{"index": 0, "delta": {"reasoning_content": thought}}]})] if is_shown else []
        if is_answer_there and not is_cut:
            pieces.append(chunk(ANSWER))
        pieces += [chunk(finish="stop"), report_usage(10 if is_cut else 20), DONE]
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + b"".join(pieces))

    return script


@asynccontextmanager
async def serving(server: Upstream, **more: str) -> AsyncIterator[Listening]:
    environ = {
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": "m-1",
        "REASOND__LLM__BASE_URL": server.address,
        "REASOND__LLM__API_KEY_ENV": "",
    }
    async with running_server(environ=environ | more) as listening:
        yield listening


async def hear_reply(model: Any) -> ModelReply:
    async with aclosing(stream_reply(model=model, messages=MESSAGES, max_tokens=100, temperature=0.5)) as pieces:
        async for piece in pieces:
            if isinstance(piece, ModelReply):
                return piece
    pytest.fail("no reply")


@pytest.mark.parametrize("is_shown", [True, False], ids=["shown", "told by its tokens"])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_model_that_thinks_of_the_closing_tag_answers_all_the_same(strategy: str, *, is_shown: bool) -> None:
    async with upstream(thinking(is_shown=is_shown)) as server, serving(server) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            first = await client.reason("What is 6 * 7?", strategy=strategy)
            calls = server.calls
            second = await client.reason("What is 6 * 7?", strategy=strategy)
        assert (first.answer, FinishReason.Name(first.finish_reason)) == ("42", "FINISH_REASON_ANSWERED")
        assert [warning for warning in first.warnings if "without stop strings" in warning]
        assert first.metrics.usage.model_calls == calls
        # The adapter remembers this for the backend: no call is repeated any more, and there is no warning.
        assert second.answer == "42"
        assert not [warning for warning in second.warnings if "stop strings" in warning]
        later = [conversation.json for conversation in server.conversations[calls:]]
        assert later
        assert not [body for body in later if "stop" in body]


async def test_a_model_that_only_thinks_is_asked_once_more_and_never_again() -> None:
    async with upstream(thinking(is_answer_there=False)) as server, backend(server) as one:
        reply = await hear_reply(one.model)
        assert (server.calls, reply.finish, reply.is_only_hidden_reasoning) == (2, ModelFinish.STOP, True)
        assert (reply.usage.output_tokens, reply.cut_usage.output_tokens) == (20, 10)
        again = await hear_reply(one.model)
    assert (server.calls, again.cut_usage.model_calls) == (3, 0)


class Records:
    """A run's log, as far as its journal needs it."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def wait_for_room(self) -> None:
        return

    async def flush(self) -> None:
        return

    def journal(self, model: ChatModel) -> JournaledModel:
        kept, self.records = self.records, []
        journal = RunJournal(records=kept, write=self.records.append, sink=self)
        return JournaledModel(model=MeteredModel(model=model, budget=Budget()), journal=journal)


async def test_a_resumed_run_is_answered_from_the_records_of_both_calls() -> None:
    log = Records()
    async with upstream(thinking()) as server, backend(server) as one:
        before = await hear_reply(log.journal(one.model))
        assert (server.calls, len(log.records), before.parsed.content) == (2, 2, "42")
        assert await hear_reply(log.journal(one.model)) == before
    assert server.calls == 2


async def test_a_budget_without_a_further_call_ends_the_run_for_that_reason() -> None:
    async with upstream(thinking()) as server, serving(server) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            reasoning = await client.reason(
                "What?", strategy="chain_of_thought", budget=CallerBudget(max_model_calls=1)
            )
        assert (server.calls, FinishReason.Name(reasoning.finish_reason)) == (1, "FINISH_REASON_BUDGET_EXHAUSTED")
