"""The adapter, the counters and the strategies with llama.cpp's own server, which runs models made for the tests."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient
from reasond.v1 import execution_pb2, strategies_pb2
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import ByteCounter, EstimatingCounter
from reasond_server.llm.model import (
    ChatModel,
    ChatRequest,
    Finished,
    Message,
    ModelFinish,
    ReasoningText,
    Role,
    Text,
)
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import find_profile
from reasond_server.testing import running_server
from reasond_server.types import UsageSource
from tests.engines.recording import Recording

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from tests.engines.serving import Engine

    StartEngine = Callable[..., Engine]

pytestmark = pytest.mark.slow
CANCELS = 60
FREED_LIMIT_S = 180.0
CLOSING = ("</answer>", "</continue>")
QUESTION = "What is six times seven?"
PROMPT = (Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content=QUESTION))


@asynccontextmanager
async def model_of(engine: Engine, **options: Any) -> AsyncIterator[ChatModel]:
    """Open the adapter for the engine, as the configuration would build it."""
    profile = replace(find_profile(engine.chain, engine.base_url, "llamacpp"), context_window=engine.window)
    backend = BackendOptions(name="engine", model=engine.chain, base_url=engine.base_url, profile=profile)
    model = build_model(backend, **options)
    try:
        yield model
    finally:
        await model.aclose()


async def call_model(model: ChatModel, **changes: Any) -> tuple[str, str, Finished]:
    """Return the text, the hidden reasoning and the end of a call at temperature 0."""
    request = ChatRequest(**{"messages": PROMPT, "max_tokens": 60, "temperature": 0.0, **changes})
    async with aclosing(model.stream(request)) as stream:
        events = [event async for event in stream]
    finished = events[-1]
    assert isinstance(finished, Finished)
    text = "".join(event.text for event in events if isinstance(event, Text))
    return text, "".join(event.text for event in events if isinstance(event, ReasoningText)), finished


async def test_text_streams_and_ends_with_the_engines_own_usage(llama_server: StartEngine) -> None:
    engine = llama_server("answer")
    async with model_of(engine) as model:
        text, reasoning, finished = await call_model(model)
    assert text == "Let me see: six times seven makes<answer>42</answer>"
    assert not reasoning
    assert finished.reason is ModelFinish.STOP
    assert finished.usage.source is UsageSource.REPORTED
    assert finished.usage.output_tokens == 12
    assert not finished.warnings


async def test_a_closing_tag_stops_the_engine_and_is_left_out(llama_server: StartEngine) -> None:
    async with model_of(llama_server("answer")) as model:
        text, _, finished = await call_model(model, stop=CLOSING)
    assert text == "Let me see: six times seven makes<answer>42"
    assert finished.reason is ModelFinish.STOP
    assert finished.usage.output_tokens < 12


async def test_a_repeated_prompt_is_reported_as_cached(llama_server: StartEngine) -> None:
    async with model_of(llama_server("answer", slots=1)) as model:
        await call_model(model)
        _, _, finished = await call_model(model)
    assert finished.usage.cached_input_tokens == finished.usage.input_tokens - 1


async def test_hidden_reasoning_is_separate_from_the_answer(llama_server: StartEngine) -> None:
    async with model_of(llama_server("think")) as model:
        text, reasoning, _ = await call_model(model)
    assert (text, reasoning) == ("<answer>42</answer>", " Hm, easy")


async def test_a_json_schema_binds_the_engine(llama_server: StartEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["42"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    async with model_of(llama_server("answer")) as model:
        text, _, _ = await call_model(model, json_schema=schema, max_tokens=200)
    assert json.loads(text) == {"answer": "42"}


async def test_the_limit_of_tokens_is_the_engines_own(llama_server: StartEngine) -> None:
    async with model_of(llama_server("endless")) as model:
        text, _, finished = await call_model(model, max_tokens=17)
    assert finished.reason is ModelFinish.LENGTH
    assert finished.usage.output_tokens == 17 == len(text.split())


async def test_a_prompt_beyond_the_window_is_an_exhausted_context(llama_server: StartEngine) -> None:
    long = Message(role=Role.USER, content="x" * 5000)
    async with model_of(llama_server("answer")) as model:
        with pytest.raises(ContextExhaustedError):
            await call_model(model, messages=[long])


TEXTS = (
    "",
    "What is the sum of one and one?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich",
    "你好 \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301",
    "<answer>42</answer> <|user|> <|assistant|></s><s> <unk>",
    "\n\n  \t  def f(x):\n    return {x: [1, 2, 3]}\n",
)


@pytest.mark.parametrize("text", TEXTS)
async def test_the_servers_count_is_what_it_reports_and_bytes_are_above_it(
    llama_server: StartEngine, text: str
) -> None:
    prompt = [Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content=text or " ")]
    async with model_of(llama_server("answer")) as model:
        counted = await model.count_exactly(prompt)
        _, _, finished = await call_model(model, messages=prompt)
    assert counted == finished.usage.input_tokens
    assert ByteCounter().count_prompt(prompt) >= counted
    assert ByteCounter(message_overhead=1, prompt_overhead=2).count_prompt(prompt) >= counted


async def test_an_estimate_learns_from_the_engine_that_it_was_far_too_low(llama_server: StartEngine) -> None:
    prompt = [Message(role=Role.USER, content="zygomorphic quaggas " * 50)]
    async with model_of(llama_server("answer"), counter_kind="estimate") as model:
        assert isinstance(model.counter, EstimatingCounter)
        assert model.counter.count_prompt(prompt) < 1000
        # Such a high ratio of tokens per letter is only trusted after a second call with the same report.
        for _ in range(2):
            _, _, finished = await call_model(model, messages=prompt)
            model.counter.learn(prompt, finished.usage.input_tokens)
        assert 950 < finished.usage.input_tokens <= model.counter.count_prompt(prompt)


async def test_closing_a_stream_frees_the_engine_long_before_it_is_done(
    llama_server: StartEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = llama_server("endless", slots=1, window=32_768)
    written = engine.tokens_written()
    freed_s = []
    async with model_of(engine) as model:
        for _ in range(CANCELS):
            request = ChatRequest(messages=PROMPT, max_tokens=32_000, temperature=0.0)
            async with aclosing(model.stream(request)) as events:
                async for event in events:
                    assert isinstance(event, Text)
                    break
                assert await asyncio.to_thread(engine.busy_slots) == 1
                left = time.perf_counter()
            await asyncio.to_thread(_await_idle, engine)
            freed_s.append(time.perf_counter() - left)
    # A slot that was not freed would have written 32,000 tokens for each call.
    assert engine.tokens_written() - written < CANCELS * 16_000
    cuts = quantiles(freed_s, n=100)
    with capsys.disabled():
        print(f"\n{CANCELS} cancels: slot free after p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms")  # noqa: T201 - a measurement, not judged


def _await_idle(engine: Engine) -> None:
    limit = time.monotonic() + FREED_LIMIT_S
    while engine.busy_slots():
        assert time.monotonic() < limit, "the engine still works on a call that was closed"


async def test_chain_of_thought_answers_over_grpc(llama_server: StartEngine) -> None:
    async with (
        model_of(llama_server("think")) as model,
        running_server(model=model) as server,
        AsyncClient(server.grpc, token=server.token) as client,
    ):
        reasoning = await client.reason(QUESTION, strategy="chain_of_thought")
    assert reasoning.answer == "42"
    assert reasoning.finish_reason == execution_pb2.FINISH_REASON_ANSWERED
    assert reasoning.metrics.usage.input_tokens > 0


@pytest.mark.parametrize("strategy", ["chain_of_thought", "self_consistency", "best_of_n"])
async def test_an_engine_that_thinks_in_prose_answers_by_the_schema_in_one_more_call(
    llama_server: StartEngine, strategy: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"count": {"enum": [42]}, "unit": {"enum": ["dogs"]}},
        "required": ["count", "unit"],
        "additionalProperties": False,
    }
    async with (
        model_of(llama_server("answer")) as model,
        running_server(model=model) as server,
        AsyncClient(server.grpc, token=server.token) as client,
    ):
        reasoning = await client.reason(QUESTION, strategy=strategy, answer_schema=schema)
    assert json.loads(reasoning.answer_json) == {"count": 42, "unit": "dogs"}
    assert any("held to the schema by the model's server" in warning for warning in reasoning.warnings)


async def test_a_model_that_writes_nothing_is_reported_as_such(llama_server: StartEngine) -> None:
    async with (
        model_of(llama_server("silent")) as model,
        running_server(model=model) as server,
        AsyncClient(server.grpc, token=server.token) as client,
    ):
        reasoning = await client.reason(QUESTION, strategy="chain_of_thought")
    assert reasoning.finish_reason == execution_pb2.FINISH_REASON_TRUNCATED
    assert "The model wrote nothing." in reasoning.warnings


async def run_bounded(
    engine: Engine, *, material: str = "", chunk_size: int = 2048, **options: Any
) -> tuple[execution_pb2.Reasoning, Sequence[tuple[ChatRequest, Finished]]]:
    """Run bounded context over gRPC and return its result and its model calls."""
    async with model_of(engine, **options) as model:
        recording: Any = Recording(model)
        async with (
            running_server(model=recording) as server,
            AsyncClient(server.grpc, token=server.token) as client,
        ):
            config = strategies_pb2.BoundedContextConfig(
                chunk_size=chunk_size,
                carryover_size=512,
                carryover_mode=strategies_pb2.CARRYOVER_MODE_TAIL,
                temperature=0.0,
            )
            reasoning = await client.reason(
                QUESTION, material=material, config=config, trace_view=execution_pb2.TRACE_VIEW_FULL
            )
        return reasoning, recording.calls


PROSE = "In the town of Kel there is a wall, and in the wall there are four gates; one of the gates is shut. " * 60


@pytest.mark.parametrize("chain", ["answer", "continue", "endless", "think", "untagged", "mixed"])
async def test_no_window_is_larger_than_chunk_size_by_the_engines_own_tokenizer(
    llama_server: StartEngine, chain: str
) -> None:
    reasoning, calls = await run_bounded(llama_server(chain, window=8192), material=PROSE)
    assert len(calls) > 4
    for _, finished in calls:
        assert finished.usage.source is UsageSource.REPORTED
        assert finished.usage.total_tokens <= 2048
    assert len(calls) == len(reasoning.trace)
    assert all(iteration.bounded_context.is_window_exact for iteration in reasoning.trace)
    if chain == "endless":
        assert {finished.usage.total_tokens for _, finished in calls} == {2048}


async def test_an_estimate_that_was_too_low_keeps_to_chunk_size_once_it_has_learnt(llama_server: StartEngine) -> None:
    reasoning, calls = await run_bounded(llama_server("answer", window=8192), material=PROSE, counter_kind="estimate")
    first, *others = [finished.usage.total_tokens for _, finished in calls]
    assert first > 2048
    assert len(others) > 2
    assert max(others) <= 2048
    assert not any(iteration.bounded_context.is_window_exact for iteration in reasoning.trace)


async def test_bytes_keep_to_chunk_size_from_the_first_call(llama_server: StartEngine) -> None:
    engine = llama_server("answer", window=8192)
    _, calls = await run_bounded(engine, material=PROSE, chunk_size=4096, counter_kind="bytes")
    assert len(calls) > 2
    assert max(finished.usage.total_tokens for _, finished in calls) <= 4096
