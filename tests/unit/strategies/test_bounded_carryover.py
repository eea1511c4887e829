"""Bounded context with its carryovers: hybrid by default, summaries of truncated windows, repetition, and costs."""

from __future__ import annotations

import os
import re
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.context.carryover import SUMMARY_REQUEST
from reasond_server.demo.demo_model import DemoModel
from reasond_server.errors.model import ModelTimeoutError
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.testing import FunctionModel, Reply, ScriptedModel
from reasond_server.types import BoundedContextMetrics, BoundedContextStep, Budget, CostClass, FinishReason, Task, Usage

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatModel, ChatRequest

COUNTER = WordPieceCounter()
SIZES = {"chunk_size": 2048, "carryover_size": 512}
FILLER = "The road was long and the weather of that year was neither good nor bad for those who went. "


class Run:
    """The events of a run. The carryover is hybrid unless the configuration sets another one."""

    def __init__(self, details: list[BoundedContextStep], outcome: Outcome) -> None:
        self.details = details
        self.outcome = outcome
        self.ending = (outcome.answer, outcome.finish_reason)
        assert isinstance(outcome.metrics, BoundedContextMetrics)
        self.metrics = outcome.metrics


async def run(model: ChatModel, *, query: str = "How many gates?", material: str = "", **config: object) -> Run:
    checked = BoundedContextConfig.model_validate({**SIZES, **config})
    task = Task(query=query, material=material)
    BoundedContext().check(task, checked, model)
    details, outcome = [], None
    async for event in BoundedContext().run(task, RunContext(config=checked, model=model)):
        if isinstance(event, Step):
            assert isinstance(event.detail, BoundedContextStep)
            details.append(event.detail)
        elif isinstance(event, Outcome):
            outcome = event
    assert outcome is not None
    return Run(details, outcome)


def is_summary(request: ChatRequest) -> bool:
    return request.messages[-1].content == SUMMARY_REQUEST


def words(start: int, number: int = 3000) -> str:
    return " ".join(f"w{one}" for one in range(start, start + number))


async def test_prompts_begin_as_in_the_window_before_for_more_than_four_fifths_of_their_tokens() -> None:
    replies = [
        f"Thought about gate {n * 7919} in words of its own. <continue>Current Strategy: look at gate {n * 31}\n"
        f"Key Findings: gate {n} stands at mile {n * 13}\n- its keeper is number {n * 17}\nProgress: {n}</continue>"
        for n in range(19)
    ]
    with ScriptedModel([*replies, "<answer>3"]) as model:
        await run(model, chunk_size=4096, carryover_size=1024, max_iterations=20)
    sent = ["".join(message.content for message in request.messages) for request in model.requests[1:-1]]
    kept = [COUNTER.count_text(os.path.commonprefix(pair)) for pair in pairwise(sent)]  # noqa: RUF071 - texts, no paths
    assert sum(kept) > 0.8 * sum(map(COUNTER.count_text, sent[1:]))


async def test_findings_of_every_window_reach_the_last_one() -> None:
    replies = [f"Thought {n}. <continue>Key Findings: gate {n}\nProgress: {n} of 3</continue>" for n in range(3)]
    with ScriptedModel([*replies, "<answer>3"]) as model:
        made = await run(model)
    last = model.requests[-1].messages[1].content
    assert "Key Findings:\n- gate 0\n- gate 1\n- gate 2\nProgress: 2 of 3\n" in last
    assert "Opening:\nThought 0." in last
    assert "Latest:\nThought 2." in last
    assert made.metrics.carryover_calls == 0
    assert made.outcome.warnings == ()


@pytest.mark.parametrize("mode", ["hybrid", "summary"])
async def test_a_window_cut_at_its_limit_is_summarised_by_one_call_more(mode: str) -> None:
    summary = "<continue>Key Findings: four gates\nProgress: half</continue>"
    with ScriptedModel([words(0), summary, "<answer>4"]) as model:
        made = await run(model, carryover_mode=mode)
    first, asked, last = model.requests
    assert is_summary(asked)
    assert asked.messages[:2] == first.messages
    assert asked.messages[2].content == made.details[0].text
    assert asked.max_tokens <= 0.15 * (2048 - 512)
    for request in model.requests:
        assert COUNTER.count_prompt(request.messages) + request.max_tokens <= 2048
    assert "- four gates" in last.messages[1].content
    report = made.details[0].carryover_report
    assert report is not None
    assert report.has_own_call
    assert not report.fallback_reason
    assert report.before_tokens > report.after_tokens == made.details[0].carryover_tokens
    assert made.metrics.carryover_calls == 1
    assert made.metrics.total_iterations == 2
    assert made.ending == ("4", FinishReason.ANSWERED)
    assert made.outcome.warnings == ()


async def test_tail_never_costs_a_call() -> None:
    with ScriptedModel([words(0), words(5000), "<answer>4"]) as model:
        made = await run(model, carryover_mode="tail")
    assert made.metrics.carryover_calls == 0
    assert [detail.window_tokens for detail in made.details[:2]] == [2048, 2048]


@pytest.mark.parametrize(
    "broken",
    ["", "Never.", Reply(error=ModelTimeoutError("late"), error_after=0)],
)
@pytest.mark.parametrize("mode", ["hybrid", "summary"])
async def test_a_summary_that_fails_leaves_facts_and_tail_and_says_so(mode: str, broken: str | Reply) -> None:
    cut = f"Result: north has one\n{words(0)}"
    with ScriptedModel([cut, broken, "<answer>4"]) as model:
        made = await run(model, carryover_mode=mode)
    notes = model.requests[-1].messages[1].content
    assert "- Result: north has one" in notes
    assert made.details[0].text.split()[-1] in notes
    report = made.details[0].carryover_report
    assert report is not None
    assert report.fallback_reason.startswith("the summary")
    (warning,) = made.outcome.warnings
    assert report.fallback_reason in warning
    assert made.ending == ("4", FinishReason.ANSWERED)


async def test_a_budget_without_room_for_the_summary_goes_on_without_it() -> None:
    inner = ScriptedModel([words(0)])
    made = await run(MeteredModel(model=inner, budget=Budget(max_model_calls=1)))
    assert made.details[0].carryover_report is not None
    assert "TOKEN_BUDGET_EXHAUSTED" in made.details[0].carryover_report.fallback_reason
    assert made.ending == ("", FinishReason.BUDGET_EXHAUSTED)


async def test_the_smallest_window_has_no_room_for_a_summary_and_says_so() -> None:
    with ScriptedModel([words(0), "<answer>4"]) as model:
        made = await run(model, chunk_size=1024)
    assert made.details[0].carryover_report is not None
    assert made.details[0].carryover_report.fallback_reason == "chunk_size leaves no room for a summary"
    assert model.requests[0].max_tokens == 1024 - COUNTER.count_prompt(model.requests[0].messages)


async def test_the_last_window_keeps_nothing_back_and_is_not_summarised() -> None:
    with ScriptedModel(["<continue>Progress: a</continue>", words(0)]) as model:
        made = await run(model, max_iterations=2)
    last = model.requests[-1]
    assert COUNTER.count_prompt(last.messages) + last.max_tokens == 2048
    assert made.outcome.finish_reason is FinishReason.MAX_ITERATIONS


async def test_the_usage_of_summaries_is_in_the_savings() -> None:
    cut, summary = words(0), "<continue>Progress: half</continue>"
    with ScriptedModel([cut, summary, "<answer>4"]) as model:
        made = await run(model)
    with ScriptedModel([cut, "<answer>4"]) as other:
        tail = await run(other, carryover_mode="tail")
    assert made.metrics.savings is not None
    assert tail.metrics.savings is not None
    assert made.metrics.savings.tokens_pct < tail.metrics.savings.tokens_pct
    assert made.metrics.reprompt_savings is not None


async def test_a_run_that_repeats_itself_is_told_to_answer_and_ends() -> None:
    model = FunctionModel(lambda _: "<continue>Progress: I am stuck</continue>")
    made = await run(model, max_iterations=50)
    assert len(model.requests) == 3
    assert ["end with <answer> now" in request.messages[1].content for request in model.requests] == [
        False,
        False,
        True,
    ]
    assert made.outcome.finish_reason is FinishReason.MAX_ITERATIONS
    (warning,) = made.outcome.warnings
    assert "repeated itself" in warning


async def test_a_run_that_makes_progress_is_left_alone() -> None:
    numbers = iter(range(100))
    model = FunctionModel(lambda _: f"Adding the next one gives a sum. <continue>Progress: {next(numbers)}</continue>")
    made = await run(model, max_iterations=50)
    assert len(model.requests) == 50
    assert made.outcome.warnings == ()


async def test_reading_windows_may_find_nothing_as_often_as_they_like() -> None:
    model = FunctionModel(
        lambda request: (
            "<answer>none" if "<passage" not in request.messages[1].content else "<continue>Nothing.</continue>"
        )
    )
    made = await run(model, material=FILLER * 400)
    assert made.metrics.reading_iterations > 3
    assert made.ending == ("none", FinishReason.ANSWERED)
    assert made.outcome.warnings == ()


@pytest.mark.parametrize("is_shown", [True, False])
async def test_an_answer_eaten_by_hidden_reasoning_is_truncated_and_the_tokens_are_named(*, is_shown: bool) -> None:
    eaten = FunctionModel(
        lambda request: (
            Reply(reasoning="".join(f"{n} " for n in range(request.max_tokens)), finish=ModelFinish.LENGTH)
            if is_shown
            else Reply(text="", finish=ModelFinish.LENGTH, usage=hidden_usage(request))
        )
    )
    made = await run(eaten, max_iterations=1)
    assert made.ending == ("", FinishReason.TRUNCATED)
    (warning,) = made.outcome.warnings
    tokens = eaten.requests[0].max_tokens
    assert f"Hidden reasoning took {tokens} of the {tokens} tokens" in warning


def hidden_usage(request: ChatRequest) -> Usage:
    return Usage(
        input_tokens=COUNTER.count_prompt(request.messages),
        output_tokens=request.max_tokens,
        reasoning_tokens=request.max_tokens,
        model_calls=1,
    )


def far_apart(
    first: str = "The bridge of Kel was built by the mason Orlo.",
    second: str = "The mason Orlo was born in the town of Vash.",
    paragraphs: int = 120,
) -> str:
    """Return a long text with evidence in its second part and in its second-to-last part."""
    filler = [
        f"{FILLER}That was day {number} of the journey, and nothing of note was seen." for number in range(paragraphs)
    ]
    filler[paragraphs // 10] = first
    filler[-paragraphs // 10] = second
    return "\n\n".join(filler)


async def test_evidence_of_two_far_segments_is_combined() -> None:
    def reply(request: ChatRequest) -> str:
        content = request.messages[1].content
        found = [one for one in ("built by the mason Orlo", "Orlo was born in the town of Vash") if one in content]
        if "<passage" in content:
            lines = "\n".join(found)
            return f"Read. <continue>Key Findings: {lines}</continue>" if found else "<continue>Nothing.</continue>"
        return "<answer>Vash</answer>" if len(found) == 2 else "<answer>unknown</answer>"

    made = await run(
        FunctionModel(reply), query="Where was the builder of the bridge of Kel born?", material=far_apart()
    )
    assert made.metrics.reading_iterations > 4
    assert made.ending == ("Vash", FinishReason.ANSWERED)


async def test_the_demo_model_answers_from_the_evidence_of_two_far_segments() -> None:
    evidence = (
        "The mason Orlo built the bridge of Kel.",
        "The builder of the bridge of Kel was born in the town of Vash.",
    )
    made = await run(
        DemoModel(),
        query="Which mason built the bridge of Kel, and in which town was the builder of the bridge of Kel born?",
        material=far_apart(*evidence),
    )
    assert made.metrics.reading_iterations > 4
    assert set(made.outcome.answer.splitlines()) == set(evidence)
    assert made.outcome.finish_reason is FinishReason.ANSWERED


async def test_128k_tokens_are_read_in_windows_of_8k() -> None:
    paragraph = "In the year {} the town of Kel repaired the gate with number {} of its long wall. "
    material = "".join(paragraph.format(number, number * 7) for number in range(6400))
    assert COUNTER.count_text(material) > 128_000
    seen: list[str] = []

    def reply(request: ChatRequest) -> str:
        content = request.messages[1].content
        if "<passage" not in content:
            return "<answer>done"
        seen.append(content.rpartition("<passage")[2].partition(">\n")[2].rpartition("\n</passage")[0])
        return f"<continue>Progress: {len(seen)} read</continue>"

    made = await run(FunctionModel(reply), material=material, chunk_size=8192, carryover_size=4096)
    assert "".join(seen) == material
    assert made.metrics.peak_window_tokens <= 8192
    assert made.metrics.reading_iterations == len(seen) <= 2 * 128_000 / (8192 - 4096 - 1024 - 1000)
    assert made.ending == ("done", FinishReason.ANSWERED)


def test_a_run_can_be_made_again_and_its_cost_is_linear() -> None:
    assert BoundedContext.is_replayable
    assert BoundedContext.cost_class is CostClass.LINEAR
    assert "max_iterations" in BoundedContext.cost_formula


@pytest.mark.parametrize("cut", range(1, 7))
async def test_recorded_replies_make_the_same_steps_and_calls_again_after_a_cut(cut: int) -> None:
    """A run ends after call `cut`. Another run receives the recorded replies, then calls the model again."""
    chosen: dict[str, Any] = {"max_iterations": 4, "chunk_size": 1280}
    whole = FunctionModel(wanderer)
    first = await run(whole, **chosen)
    recorded = [wanderer(request) for request in whole.requests]
    assert len(recorded) > cut
    replies = iter(recorded[:cut])
    again = FunctionModel(lambda request: next(replies, None) or wanderer(request))
    second = await run(again, **chosen)
    assert second.details == first.details
    assert second.ending == first.ending
    assert [without_nonce(one) for one in again.requests] == [without_nonce(one) for one in whole.requests]


def wanderer(request: ChatRequest) -> str:
    """Fill every window with words that depend on the prompt, and answer in the last window."""
    shown = without_nonce(request)
    start = zlib.crc32(shown.encode())
    if is_summary(request):
        return f"<continue>Key Findings: found {start}\nProgress: at {start}</continue>"
    return "<answer>done</answer>" if "end with <answer> now" in shown else words(start)


def without_nonce(request: ChatRequest) -> str:
    whole = "\n".join(message.content for message in request.messages)
    nonce = re.search(r"<question (\w+)>", whole)
    assert nonce is not None
    return whole.replace(nonce[1], "#")
