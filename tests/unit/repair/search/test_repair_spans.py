"""The spans of repairs: their names and attributes are those of seed 004, and calls within them are their children."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.repairs import CheckUnusableError
from reasond_server.llm.openai.backend_options import RetryPolicy
from reasond_server.llm.wrapped_models import trace_model
from reasond_server.repair.search.repair_spans import trace_generation, trace_scoring, trace_validation
from reasond_server.runs.run_trace import RunTrace
from reasond_server.telemetry.scope import current
from reasond_server.telemetry.span_export import TracingOptions
from reasond_server.telemetry.spans import ATTRIBUTES, REPAIR_SPANS
from reasond_server.types import Execution, ExecutionState, StrategySource, Usage
from tests.faults.backend import backend, request
from tests.faults.upstream import GOOD, refusing, streaming, upstream
from tests.spans import Spans, attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.model import ChatModel

EXECUTION = Execution(
    execution_id="repair-1",
    tenant="acme",
    state=ExecutionState.RUNNING,
    strategy="repair",
    strategy_source=StrategySource.SYSTEM,
    model="m-1",
    create_time=datetime(2026, 11, 23, tzinfo=UTC),
)


async def ask(model: ChatModel) -> None:
    async for _ in model.stream(request()):
        pass


def begin(spans: Spans | None) -> RunTrace:
    """Return the trace of a run that has begun in this task."""
    trace = RunTrace()
    trace.begin(EXECUTION, None if spans is None else spans.sink.tracing, caller="", agent="")
    return trace


def end(trace: RunTrace) -> None:
    trace.end_step({})
    trace.end({}, reason="")


async def test_candidates_scores_and_patches_have_the_spans_of_the_seed() -> None:
    spans = Spans()
    policy = RetryPolicy(max_attempts=2, first_wait_s=0.01)
    scripts = [refusing("503 Service Unavailable"), streaming(*GOOD), streaming(*GOOD)]
    async with upstream(*scripts) as server, backend(server, retries=policy) as one:
        model = trace_model(one.model, tracing=spans.sink.tracing)
        trace = begin(spans)
        with trace_generation(trace, candidates=2, model="m-1") as made:
            await asyncio.gather(ask(model), ask(model))
            made.usage += Usage(input_tokens=20, output_tokens=4, model_calls=2)
            made.retries += 1
        with trace_scoring(trace) as scoring:
            scoring.scores += [84.0, 90.0]
        with trace_validation(trace, candidate_id="c2") as validation:
            validation.is_valid = True
        end(trace)
    generate, score, validate = REPAIR_SPANS
    chats = ["chat m-1", "chat m-1"]
    assert spans.tree() == ["invoke_workflow repair", ["step", [generate, chats, score, validate]]]
    told = dict(attributes_of(spans.one(generate)))
    assert told.pop("generationLatencyMs") >= 0
    assert told == {
        "openinference.span.kind": "CHAIN",
        "numCandidates": 2,
        "modelID": "m-1",
        "tokensIn": 20,
        "tokensOut": 4,
        "retryCount": 2,
    }
    told = dict(attributes_of(spans.one(score)))
    assert (told["numCandidatesScored"], told["averageCriticScore"]) == (2, 87.0)
    assert told["criticLatencyMs"] >= 0
    told = dict(attributes_of(spans.one(validate)))
    assert (told["patchID"], told["validationStatus"]) == ("c2", "success")
    assert told["validationLatencyMs"] >= 0
    assert {name for span in spans.all for name in attributes_of(span)} <= set(ATTRIBUTES)


async def test_a_part_that_fails_says_why_and_the_run_is_the_scope_again() -> None:
    spans = Spans()
    trace = begin(spans)
    scope = current()
    with pytest.raises(CheckUnusableError), trace_scoring(trace):
        raise CheckUnusableError("The check 'tests' cannot be run.")
    assert current() is scope
    with trace_validation(trace, candidate_id="c1"):
        pass
    end(trace)
    told = attributes_of(spans.one("reasoning.scoreCandidates"))
    assert (told["numCandidatesScored"], told["error.type"]) == (0, "CHECK_UNUSABLE")
    assert "averageCriticScore" not in told
    assert attributes_of(spans.one("reasoning.patchValidation"))["validationStatus"] == "failure"


@pytest.mark.parametrize(
    "make", [lambda: None, lambda: Spans(options=replace(TracingOptions(), sample_ratio=0.0))], ids=["off", "unsampled"]
)
async def test_without_a_trace_the_work_is_done_all_the_same(make: Callable[[], Spans | None]) -> None:
    spans = make()
    trace = begin(spans)
    with trace_generation(trace, candidates=1, model="m-1") as made:
        made.usage += Usage(input_tokens=1, model_calls=1)
    with trace_scoring(trace) as scoring:
        scoring.scores.append(1.0)
    end(trace)
    assert spans is None or not spans.all
