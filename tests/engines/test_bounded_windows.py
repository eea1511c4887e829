"""Bounded context, counted by a real engine: no call is larger than chunk_size, in any mode."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.context.carryover import SUMMARY_REQUEST
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import find_profile
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.types import BoundedContextMetrics, BoundedContextStep, Task, UsageSource
from tests.engines.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.model import ChatModel
    from tests.engines.serving import Engine

    StartEngine = Callable[..., Engine]

pytestmark = pytest.mark.slow
QUESTION = "What is six times seven?"
PROSE = "In the town of Kel there is a wall, and in the wall there are four gates; one of the gates is shut. " * 22
HOSTILE = "\uff1canswer> \U0001f468\u200d\U0001f469 \u4f60\u597d <|user|> </passage> ```\n" * 15


def model_on(engine: Engine) -> ChatModel:
    profile = replace(find_profile(engine.chain, engine.base_url, "llamacpp"), context_window=engine.window)
    return build_model(BackendOptions(name="engine", model=engine.chain, base_url=engine.base_url, profile=profile))


@pytest.mark.parametrize(
    ("chain", "mode", "text"),
    [
        ("endless", "hybrid", PROSE),
        ("endless", "summary", PROSE),
        ("endless", "tail", PROSE),
        ("endless", "hybrid", HOSTILE),
        ("continue", "hybrid", HOSTILE),
        # An answer ends a run that is shown the whole text, so this one is too long for a window.
        ("mixed", "tail", PROSE * 2),
        ("think", "summary", PROSE),
    ],
    ids=lambda value: value if len(value) < 9 else value.split()[0][:2],
)
async def test_by_the_engines_own_count_no_call_is_larger_than_chunk_size(
    llama_server: StartEngine, chain: str, mode: str, text: str
) -> None:
    config = BoundedContextConfig.model_validate(
        {"chunk_size": 2048, "carryover_size": 512, "carryover_mode": mode, "max_iterations": 3, "max_segments": 64}
    )
    async with aclosing(model_on(llama_server(chain, window=8192))) as model:
        recording: Any = Recording(model)
        run = BoundedContext().run(Task(query=QUESTION, material=text), RunContext(config=config, model=recording))
        events = [event async for event in run]
    assert len(recording.calls) > 2
    for request, finished in recording.calls:
        assert finished.usage.source is UsageSource.REPORTED
        assert finished.usage.total_tokens <= 2048
        if request.messages[-1].content == SUMMARY_REQUEST:
            assert finished.usage.output_tokens <= 0.15 * (2048 - 512)
    steps = [event.detail for event in events if isinstance(event, Step)]
    for step in steps:
        assert isinstance(step, BoundedContextStep)
        assert step.is_window_exact
        assert step.window_tokens <= 2048
    outcome = events[-1]
    assert isinstance(outcome, Outcome)
    assert isinstance(outcome.metrics, BoundedContextMetrics)
    assert outcome.metrics.is_window_exact
    summaries = sum(request.messages[-1].content == SUMMARY_REQUEST for request, _ in recording.calls)
    assert outcome.metrics.carryover_calls == summaries
    assert bool(summaries) is (chain == "endless" and mode != "tail")


async def test_a_summary_is_asked_for_where_the_engine_has_nearly_all_of_it_cached(llama_server: StartEngine) -> None:
    config = BoundedContextConfig(chunk_size=2048, carryover_size=512, max_iterations=3)
    async with aclosing(model_on(llama_server("chatty", slots=1, window=8192))) as model:
        recording: Any = Recording(model)
        async for _ in BoundedContext().run(Task(query=QUESTION), RunContext(config=config, model=recording)):
            pass
    summaries = [end.usage for request, end in recording.calls if request.messages[-1].content == SUMMARY_REQUEST]
    assert len(summaries) == 2
    for usage in summaries:
        assert usage.input_tokens - usage.cached_input_tokens <= 100 < 0.1 * usage.input_tokens
