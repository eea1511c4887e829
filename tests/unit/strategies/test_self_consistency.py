"""Self-consistency: samples, votes, and each way in which a run can end."""

from __future__ import annotations

import asyncio
from math import log
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.samples import build_ladder
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContextExhaustedError, ModelFailedError, ModelUnavailableError
from reasond_server.errors.request import InvalidConfigError, InvalidRequestError
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.self_consistency import NO_LOGPROBS, SelfConsistency, SelfConsistencyConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step, StrategyEvent
from reasond_server.testing import FunctionModel, Reply, ScriptedModel
from reasond_server.types import (
    NOTHING,
    AnswerVotes,
    Budget,
    FinishReason,
    Sample,
    SelfConsistencyMetrics,
    Task,
    TokenChance,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatModel, ChatRequest


NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"


def tag(*answers: str) -> list[str]:
    return [f"Hm. <answer>{answer}</answer>" for answer in answers]


async def run(
    model: ChatModel, *, material: str = "", budget: Budget | None = None, **config: object
) -> tuple[list[Sample], Outcome]:
    task = Task(query="6 times 7?", material=material, budget=budget or Budget())
    checked = SelfConsistencyConfig.model_validate(config)
    SelfConsistency().check(task, checked, model)
    context = RunContext(config=checked, model=model, new_nonce=lambda: NONCE)
    events: list[StrategyEvent] = [event async for event in SelfConsistency().run(task, context)]
    *steps, outcome = events
    assert isinstance(outcome, Outcome)
    samples = []
    for step in steps:
        assert isinstance(step, Step)
        assert isinstance(step.detail, Sample)
        assert step.answer_found == bool(step.detail.normalized_answer)
        samples.append(step.detail)
    return samples, outcome


def metrics(outcome: Outcome) -> SelfConsistencyMetrics:
    assert isinstance(outcome.metrics, SelfConsistencyMetrics)
    return outcome.metrics


async def test_the_majority_of_normalised_answers_wins_in_the_words_of_its_first_sample() -> None:
    with ScriptedModel(tag("41", "42.0", "**42**", "x", "42")) as model:
        samples, outcome = await run(model)
    assert (outcome.answer, outcome.finish_reason, outcome.warnings) == ("42.0", FinishReason.ANSWERED, ())
    assert [sample.normalized_answer for sample in samples] == ["41", "42", "42", "x", "42"]
    assert samples[0] == Sample(text="Hm.", answer="41", normalized_answer="41", temperature=0.7)
    votes = (AnswerVotes(answer="42", votes=3), AnswerVotes(answer="41", votes=1), AnswerVotes(answer="x", votes=1))
    assert outcome.metrics == SelfConsistencyMetrics(samples=5, votes=votes, margin=0.4, is_stopped_early=False)


async def test_sampling_stops_when_the_vote_is_decided() -> None:
    with ScriptedModel(tag("42", "42", "42")) as model:
        _, outcome = await run(model)
    assert (metrics(outcome).is_stopped_early, metrics(outcome).samples, metrics(outcome).margin) == (True, 3, 1.0)


async def test_a_vote_that_stays_open_goes_on_by_as_many_as_can_decide_it() -> None:
    with ScriptedModel(tag("1", "2", "1", "1", "1")) as model:
        samples, outcome = await run(model, samples=7)
    assert (outcome.answer, len(samples)) == ("1", 5)
    assert metrics(outcome).is_stopped_early


async def test_with_a_confidence_sampling_stops_before_the_vote_is_certain_and_tells_what_that_risks() -> None:
    model = FunctionModel(lambda _: "Hm. <answer>42</answer>")
    samples, outcome = await run(model, samples=40, confidence=0.95)
    assert (outcome.answer, len(model.requests)) == ("42", 7)
    assert {sample.temperature for sample in samples} == {0.7}
    assert (metrics(outcome).is_stopped_early, metrics(outcome).saved_samples) == (True, 33)
    assert 0 < metrics(outcome).error_bound <= 0.05


async def test_a_confidence_waits_for_the_agreement_that_is_asked_for() -> None:
    with ScriptedModel(tag("1", "x", "1", "y", "1", "z", "1", "1", "1", "1", "1", "1")) as model:
        _, outcome = await run(model, samples=20, confidence=0.9, min_agreement=0.75)
    assert (outcome.answer, metrics(outcome).votes[0].votes) == ("1", 9)


async def test_json_answers_vote_by_their_values() -> None:
    replies = tag(
        '{"a": 1, "b": [2.50]}', '```json\n{"b": [2.5], "a": 1.0}\n```', '{"a": 1, "b": [2]}', '{"b":[25e-1],"a":1}'
    )
    with ScriptedModel(replies) as model:
        _, outcome = await run(model)
    assert (outcome.answer, metrics(outcome).votes[0].votes) == ('{"a": 1, "b": [2.50]}', 3)


async def test_all_samples_share_one_prompt_and_differ_in_temperature() -> None:
    with ScriptedModel(tag("1", "2", "3", "4", "5")) as model:
        samples, outcome = await run(model, temperature=1.0)
    assert len({request.messages for request in model.requests}) == 1
    assert [request.temperature for request in model.requests] == [1.0, 0.85, 1.15, 0.7, 1.3]
    assert [sample.temperature for sample in samples] == [1.0, 0.85, 1.15, 0.7, 1.3]
    assert outcome.answer == "1"


async def test_a_sample_is_asked_as_a_plain_question_is_and_what_to_do_stands_behind_all_texts() -> None:
    """In front of the question, and with "as short as it can be", the instruction made able models skip the steps."""
    with ScriptedModel(tag("42")) as model:
        await run(model, samples=1, material="The wall.")
    rules, asked = (message.content for message in model.requests[0].messages)
    assert "<answer>" not in rules
    assert asked.startswith(f"<material {NONCE}>\nThe wall.\n</material {NONCE}>\n<question {NONCE}>\n6 times 7?\n")
    instruction = asked.rpartition(f"</question {NONCE}>\n")[2]
    assert instruction.startswith("Work it out step by step first")
    assert instruction.endswith("</answer>")


async def test_a_sample_without_a_tag_votes_with_its_answer_and_not_with_its_prose() -> None:
    replies = [
        "Six times seven is six sevens, which we add.\n\nSo 6 * 7 = 42.",
        "Seven and seven is 14. Twice more, and we are at three times 14, that is 42.\nThus it is **42**.",
    ]
    with ScriptedModel(replies) as model:
        samples, outcome = await run(model, samples=3)
    assert [sample.normalized_answer for sample in samples] == ["42", "42"]
    assert (outcome.answer, outcome.finish_reason) == ("42", FinishReason.ANSWERED_UNTAGGED)
    assert metrics(outcome).is_stopped_early


async def test_a_program_without_a_tag_is_an_answer_however_long_it_is() -> None:
    program = f"```python\ndef f(x):\n    return {' + '.join('x' * 99)}\n```"
    reply = f"First a function, which adds:\n\n{program}\n\nIt prints\n```\n99\n```\nas it should."
    with ScriptedModel([reply, reply.replace("First", "Now")]) as model:
        samples, outcome = await run(model, samples=3)
    assert (outcome.answer, outcome.finish_reason) == (program, FinishReason.ANSWERED_UNTAGGED)
    assert metrics(outcome).votes[0].votes == len(samples) == 2


async def test_others_begin_when_the_first_writes_so_that_its_prompt_is_cached() -> None:
    hold, begun, began = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def reply(_: ChatRequest) -> Reply:
        begun.set()
        if len(model.requests) == 3:
            began.set()
        first = len(model.requests) == 1
        return Reply(text="So it is. <answer>1</answer>", hold=hold, hold_after=0 if first else 1)

    model = FunctionModel(reply)
    task = asyncio.create_task(run(model))
    await begun.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(model.requests) == 1
    hold.set()
    await began.wait()
    _, outcome = await task
    assert outcome.answer == "1"


async def test_others_do_not_wait_for_a_first_that_says_nothing() -> None:
    """Only the third sample releases the first one. It begins although the first has produced nothing for a second."""
    hold = asyncio.Event()

    def reply(_: ChatRequest) -> Reply:
        if len(model.requests) == 3:
            hold.set()
        return Reply(text="<answer>1</answer>", hold=hold)

    model = FunctionModel(reply)
    _, outcome = await run(model)
    assert outcome.answer == "1"


async def test_below_the_agreement_nothing_is_answered_and_the_counts_are_told() -> None:
    with ScriptedModel(tag("1", "2", "1", "3")) as model:
        samples, outcome = await run(model, samples=5, min_agreement=0.7)
    assert (outcome.answer, outcome.finish_reason) == ("", FinishReason.MAX_ITERATIONS)
    assert metrics(outcome).is_abstained
    assert metrics(outcome).is_stopped_early
    assert len(samples) == 4
    assert outcome.warnings == ("No answer was given: the best has 2 of 4 votes, and min_agreement 0.7 asks for more.",)


async def test_agreement_must_be_certain_before_sampling_stops() -> None:
    with ScriptedModel(tag("1", "1", "1", "1")) as model:
        _, outcome = await run(model, samples=5, min_agreement=0.8)
    assert outcome.answer == "1"


async def test_a_tie_goes_to_the_answer_that_came_first() -> None:
    with ScriptedModel(tag("2", "1", "1", "2")) as model:
        _, outcome = await run(model, samples=4)
    assert (outcome.answer, metrics(outcome).margin) == ("2", 0.0)


async def test_untagged_answers_vote_too_and_say_so() -> None:
    with ScriptedModel(["The answer is 42.", "So \\boxed{42}"]) as model:
        samples, outcome = await run(model, samples=3)
    assert (outcome.answer, outcome.finish_reason) == ("42", FinishReason.ANSWERED_UNTAGGED)
    assert [sample.text for sample in samples] == ["The answer is 42.", "So \\boxed{42}"]


async def test_what_was_cut_or_is_silent_casts_no_vote() -> None:
    replies: list[str | Reply] = [
        Reply(text="So <answer>4", finish=ModelFinish.LENGTH),
        Reply(text="Hm " * 300),
        Reply(text="x", finish=ModelFinish.CONTENT_FILTER),
        *tag("42"),
    ]
    with ScriptedModel(replies) as model:
        samples, outcome = await run(model)
    assert outcome.answer == "42"
    assert [sample.normalized_answer for sample in samples] == ["", "", "", "42"]
    assert outcome.warnings == (
        "1 of 4 samples were withheld by a content filter and cast no vote.",
        "2 of 4 samples ended without a whole answer and cast no vote.",
    )


@pytest.mark.parametrize(
    ("last", "reason"),
    [(ModelFinish.CONTENT_FILTER, FinishReason.CONTENT_FILTERED), (ModelFinish.LENGTH, FinishReason.TRUNCATED)],
)
async def test_a_run_whose_samples_were_all_withheld_says_so(last: ModelFinish, reason: FinishReason) -> None:
    with ScriptedModel([Reply(text="x", finish=ModelFinish.CONTENT_FILTER), Reply(text="x", finish=last)]) as model:
        _, outcome = await run(model, samples=2)
    assert (outcome.answer, outcome.finish_reason) == ("", reason)


async def test_samples_that_ask_for_the_same_are_told_apart_whichever_begins_first() -> None:
    with ScriptedModel([Reply(text="Hm", finish=ModelFinish.LENGTH)] * 3) as model:
        await run(model, samples=3, temperature=2.0)
    assert [request.temperature for request in model.requests].count(2.0) == 2
    assert [request.label for request in model.requests] == ["sample 0", "sample 1", "sample 2"]


async def test_without_any_answer_the_run_is_truncated() -> None:
    with ScriptedModel([Reply(text="Hm", finish=ModelFinish.LENGTH)] * 2) as model:
        _, outcome = await run(model, samples=2)
    assert (outcome.answer, outcome.finish_reason) == ("", FinishReason.TRUNCATED)


async def test_failed_samples_are_counted_and_cost_no_more_than_themselves() -> None:
    failed = Reply(text="Hm", error=ModelFailedError("gone"))
    with ScriptedModel([*tag("1"), failed, *tag("1")]) as model:
        _, outcome = await run(model)
    assert outcome.answer == "1"
    assert outcome.warnings == ("1 of 3 samples failed (MODEL_FAILED) and cast no vote.",)


async def test_a_model_that_fails_in_a_whole_wave_is_not_asked_again() -> None:
    errors = [ModelUnavailableError(f"down {place}") for place in range(3)]
    with ScriptedModel([Reply(error=error) for error in errors]) as model, pytest.raises(ModelUnavailableError) as told:
        await run(model)
    assert told.value is errors[0]


async def test_a_budget_of_calls_ends_the_vote_with_what_there_is() -> None:
    with ScriptedModel(tag("1", "2")) as scripted:
        metered = MeteredModel(model=scripted, budget=Budget(max_model_calls=2))
        samples, outcome = await run(metered, budget=Budget(max_model_calls=2))
    assert (outcome.answer, outcome.finish_reason, len(samples)) == ("1", FinishReason.BUDGET_EXHAUSTED, 2)
    assert not metrics(outcome).is_stopped_early


@pytest.mark.slow
@given(total=st.integers(1, 6000), long=st.integers(1, 300))
def test_no_budget_of_tokens_is_exceeded_and_no_sample_but_the_first_cut_by_it(total: int, long: int) -> None:
    model = FunctionModel(lambda _: f"{'so ' * long}<answer>{len(model.requests) % 3}</answer>")
    budget = Budget(max_total_tokens=total)
    metered = MeteredModel(model=model, budget=budget)
    try:
        _, outcome = asyncio.run(run(metered, budget=budget, samples=20, max_tokens=400))
    except TokenBudgetExhaustedError:
        assert not metered.usage.model_calls
        return
    assert metered.usage.total_tokens <= total
    assert all(request.max_tokens == 400 for request in model.requests[1:])
    if len(model.requests) < 20 and not metrics(outcome).is_stopped_early:
        assert outcome.finish_reason is FinishReason.BUDGET_EXHAUSTED


@pytest.mark.parametrize(("limit", "waves"), [(2000, [400] * 3), (4096, [819] * 3), (600, [256] * 2)])
async def test_a_limit_of_what_is_written_leaves_every_sample_its_share(limit: int, waves: list[int]) -> None:
    model = FunctionModel(lambda _: "Six times seven is 42. <answer>42</answer>")
    budget = Budget(max_output_tokens=limit)
    samples, outcome = await run(MeteredModel(model=model, budget=budget), budget=budget, samples=5)
    assert (outcome.answer, outcome.finish_reason, len(samples)) == ("42", FinishReason.ANSWERED, 3)
    assert [request.max_tokens for request in model.requests][: len(waves)] == waves


@pytest.mark.slow
@given(limit=st.integers(1, 3000), long=st.integers(1, 400))
def test_no_limit_of_what_is_written_is_exceeded(limit: int, long: int) -> None:
    model = FunctionModel(lambda _: f"{'so ' * long}<answer>{len(model.requests) % 3}</answer>")
    budget = Budget(max_output_tokens=limit)
    metered = MeteredModel(model=model, budget=budget)
    asyncio.run(run(metered, budget=budget, samples=20))
    assert metered.usage.output_tokens <= limit
    assert metered.usage.model_calls >= 1


async def test_a_budget_that_covers_no_call_is_an_error() -> None:
    with ScriptedModel([]) as scripted, pytest.raises(TokenBudgetExhaustedError):
        await run(MeteredModel(model=scripted, budget=Budget(max_total_tokens=5)), budget=Budget(max_total_tokens=5))


async def test_a_budget_that_only_the_meter_knows_ends_the_vote_too() -> None:
    with ScriptedModel(tag("1", "2")) as scripted:
        samples, outcome = await run(MeteredModel(model=scripted, budget=Budget(max_model_calls=2)))
    assert (outcome.finish_reason, len(samples), outcome.warnings) == (FinishReason.BUDGET_EXHAUSTED, 2, ())


@pytest.mark.parametrize("replies", [["Hm"], tag("1")])
async def test_an_abstention_out_of_budget_names_the_budget(replies: Sequence[str]) -> None:
    with ScriptedModel(replies[:1]) as scripted:
        budget = Budget(max_model_calls=1)
        _, outcome = await run(MeteredModel(model=scripted, budget=budget), budget=budget, min_agreement=0.0)
    assert outcome.finish_reason is FinishReason.BUDGET_EXHAUSTED


def test_a_temperature_of_zero_is_refused_for_more_than_one_sample() -> None:
    model = ScriptedModel([])
    with pytest.raises(InvalidConfigError, match=r"temperature must be above 0 with 2 samples"):
        SelfConsistency().check(Task(query="?"), SelfConsistencyConfig(samples=2, temperature=0.0), model)
    SelfConsistency().check(Task(query="?"), SelfConsistencyConfig(samples=1, temperature=0.0), model)


async def test_a_prompt_that_fills_the_window_is_refused_and_names_bounded_context() -> None:
    with ScriptedModel([], context_window=400) as model, pytest.raises(ContextExhaustedError) as raised:
        await run(model, material="wall " * 300)
    assert "'bounded_context'" in raised.value.remedy


async def test_a_small_room_lowers_what_a_sample_may_write_and_says_so() -> None:
    with ScriptedModel(tag("1"), context_window=1000) as model:
        _, outcome = await run(model, samples=1)
    (warning,) = outcome.warnings
    assert warning.startswith(f"A call could write only {model.requests[0].max_tokens} of 4096 tokens")


async def test_long_material_is_prepared_beside_the_event_loop() -> None:
    with ScriptedModel(tag("1", "1")) as model:
        _, outcome = await run(model, samples=3, material="wall " * 20_000, budget=Budget(max_total_tokens=10**6))
    assert outcome.answer == "1"


@pytest.mark.slow
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_the_order_in_which_samples_end_changes_nothing(one: list[int], other: list[int]) -> None:
    assert asyncio.run(_log(one)) == asyncio.run(_log(other))


async def _log(turns: list[int]) -> str:
    """Return all events of a run with the usage of each step; `turns` gives the loop turns of each call."""

    class Slow(FunctionModel):
        async def stream(self, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - as the base class
            place = len(self.requests)
            async for event in super().stream(request):
                for _ in range(turns[place % len(turns)]):
                    await asyncio.sleep(0)
                yield event

    model = Slow(lambda request: f"{'so ' * len(model.requests)}<answer>{round(request.temperature * 10) % 3}</answer>")
    budget = Budget(max_total_tokens=4000)
    metered = MeteredModel(model=model, budget=budget)
    context = RunContext(
        config=SelfConsistencyConfig(samples=11, max_tokens=300),
        model=metered,
        new_nonce=lambda: NONCE,
        monotonic=lambda: 0.0,
    )
    task = Task(query="6 times 7?", budget=budget)
    events = [event async for event in SelfConsistency().run(task, context)]
    return repr((events, metered.usage))


async def test_each_sample_is_a_step_when_it_ends_with_its_own_cost_and_time() -> None:
    hold, seconds = asyncio.Event(), iter(range(1, 100))

    def reply(request: ChatRequest) -> Reply:
        is_last = request.label == "sample 2"
        text = f"{'so ' * len(model.requests)}<answer>{request.label}</answer>"
        return Reply(text=text, hold=hold if is_last else None, hold_after=0)

    model = FunctionModel(reply)
    metered = MeteredModel(model=model, budget=Budget())
    config = SelfConsistencyConfig(samples=5)
    context = RunContext(config=config, model=metered, new_nonce=lambda: NONCE, monotonic=lambda: float(next(seconds)))
    events = SelfConsistency().run(Task(query="6 times 7?"), context)
    first, second = [await anext(events), await anext(events)]
    hold.set()
    steps = [step for step in [first, second, *[event async for event in events]] if isinstance(step, Step)]
    assert [step.elapsed_s for step in steps[:3]] == [1.0, 2.0, 3.0]
    assert [step.usage.model_calls for step in steps if step.usage] == [1] * 5
    written = [step.usage.output_tokens for step in steps if step.usage]
    assert len(set(written)) > 1
    assert sum((step.usage for step in steps if step.usage), NOTHING) == metered.usage


async def test_cancelling_the_run_closes_every_call() -> None:
    hold = asyncio.Event()
    began = asyncio.Event()

    def reply(_: ChatRequest) -> Reply:
        if len(model.requests) == 3:
            began.set()
        return Reply(text="So it is. <answer>1</answer>", hold=hold, hold_after=1)

    model = FunctionModel(reply)
    task = asyncio.create_task(run(model))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (model.open_calls, model.closed) == (0, 3)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.slow
@given(samples=st.integers(1, 24), kinds=st.integers(1, 30), seed=st.integers(0, 99))
def test_the_calls_keep_to_the_formula_of_the_cost(samples: int, kinds: int, seed: int) -> None:
    model = FunctionModel(lambda _: f"<answer>{(len(model.requests) * 7 + seed) % kinds}</answer>")
    asyncio.run(run(model, samples=samples))
    assert (samples + 1) // 2 <= len(model.requests) <= samples


async def test_an_agreement_that_is_out_of_reach_costs_fewer_calls_than_half() -> None:
    with ScriptedModel(["<answer>1</answer>", "<answer>2</answer>"]) as model:
        _, outcome = await run(model, samples=5, min_agreement=1.0)
    assert not outcome.answer
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    "silent",
    ["No end. " * 40, Reply(error=ModelFailedError("gone"))],
    ids=["without an answer", "failed"],
)
async def test_agreement_is_a_share_of_the_samples_taken_and_not_of_those_that_answered(silent: str | Reply) -> None:
    with ScriptedModel(["<answer>42</answer>", *[silent] * 4]) as model:
        _, outcome = await run(model, samples=5, min_agreement=0.4)
    assert (outcome.answer, outcome.finish_reason) == ("", FinishReason.MAX_ITERATIONS)
    assert (metrics(outcome).is_abstained, metrics(outcome).margin) == (True, 1 / len(model.requests))
    assert f"the best has 1 of 1 votes in {len(model.requests)} samples" in " ".join(outcome.warnings)


@given(temperature=st.floats(0.001, 2.0), samples=st.integers(1, 40))
def test_the_ladder_stays_near_its_middle_and_is_never_greedy(temperature: float, samples: int) -> None:
    rungs = build_ladder(temperature, samples)
    assert len(rungs) == samples
    assert rungs[0] == pytest.approx(temperature, abs=1e-4)
    assert all(min(0.05, temperature) - 1e-4 <= rung <= 2.0 for rung in rungs)
    assert all(abs(rung - temperature) <= max(0.3 * temperature, 0.05) + 1e-4 for rung in rungs)
    if samples > 1 and temperature > 0.2:
        assert len(set(rungs)) > 1


@pytest.mark.parametrize("query", ["", "  \n"])
async def test_an_empty_question_is_refused_without_a_server_too(query: str) -> None:
    with ScriptedModel([]) as model, pytest.raises(InvalidRequestError, match="query must not be empty"):
        await SelfConsistency().reason(query, model=model)


def make_sure_votes(*votes: tuple[str, float]) -> FunctionModel:
    """Return a model whose samples give answers with tokens of a probability."""
    given = iter(votes)

    def reply(_: ChatRequest) -> Reply:
        answer, chance = next(given)
        return Reply(text=f"Hm. <answer>{answer}</answer>", tokens=[TokenChance(text="Hm", logprob=log(chance))] * 3)

    model = FunctionModel(reply)
    model.most_logprobs = 5
    return model


async def test_a_vote_weighs_what_the_model_is_sure_of() -> None:
    votes = [("1", 0.2), ("1", 0.3), ("2", 0.9), ("3", 0.3)]
    model = make_sure_votes(*votes)
    samples, outcome = await run(model, samples=4, weigh_votes=True)
    assert outcome.answer == "2"
    assert [sample.weight for sample in samples] == [pytest.approx(chance) for _, chance in votes]
    assert [(each.answer, each.votes) for each in metrics(outcome).votes] == [("2", 1), ("1", 2), ("3", 1)]
    assert metrics(outcome).margin == pytest.approx(0.4 / 1.7)
    _, outcome = await run(make_sure_votes(*votes), samples=4)
    assert outcome.answer == "1"


async def test_without_probabilities_votes_count_alike_and_it_is_told() -> None:
    with ScriptedModel(tag("1", "1")) as model:
        samples, outcome = await run(model, samples=3, weigh_votes=True)
    assert (outcome.answer, samples[0].weight) == ("1", None)
    assert NO_LOGPROBS in outcome.warnings


async def test_a_bound_that_counts_votes_is_refused_for_weighed_ones() -> None:
    with pytest.raises(InvalidConfigError, match="weigh_votes"):
        await run(ScriptedModel([]), weigh_votes=True, confidence=0.9)
