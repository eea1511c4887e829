from __future__ import annotations

import re

from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from reasond import FinishReason, Metrics, Reasoning
from reasond.v1.strategies_pb2 import (
    AnswerVotes,
    BestOfNMetrics,
    BoundedContextMetrics,
    ChainOfVerificationMetrics,
    PlanAndSolveMetrics,
    ProgramOfThoughtMetrics,
    ReactMetrics,
    Savings,
    SavingsBaseline,
    ScoredAnswer,
    SelfConsistencyMetrics,
    SelfRefineMetrics,
    TreeOfThoughtMetrics,
)
from reasond_server.cli.show.figures import summarize


def last_of(**specific: object) -> str:
    result = Reasoning(
        finish_reason=FinishReason.FINISH_REASON_ANSWERED,
        metrics=Metrics(**specific),  # type: ignore[arg-type]  # fields of the message
    )
    return summarize(result)[-1]


def test_react_counts_cycles_and_calls_and_what_went_wrong() -> None:
    assert last_of(react=ReactMetrics(total_iterations=1, tool_calls=1)) == "1 cycle, 1 tool call"
    figures = ReactMetrics(total_iterations=4, tool_calls=5, failed_tool_calls=2, corrections=1, masked_observations=3)
    assert last_of(react=figures) == "4 cycles, 5 tool calls (2 failed), 1 correction, 3 masked"


def test_the_tree_tells_its_size_and_its_best_score() -> None:
    figures = TreeOfThoughtMetrics(
        nodes_evaluated=9, nodes_pruned=4, nodes_duplicate=2, depth_reached=3, best_score=0.876
    )
    assert last_of(tree_of_thought=figures) == "9 nodes judged, 4 pruned, 2 duplicate, depth 3, best score 0.88"


def test_votes_are_told_with_their_margin_and_an_abstention_as_such() -> None:
    votes = [AnswerVotes(answer=str(number), votes=5 - number) for number in range(5)]
    figures = SelfConsistencyMetrics(samples=15, votes=votes, margin=0.0667, is_stopped_early=True, saved_samples=9)
    assert last_of(self_consistency=figures) == (
        "15 samples: 5 for 0, 4 for 1, 3 for 2, 2 other answers; margin 7 %, decided early: 9 samples saved"
    )
    figures = SelfConsistencyMetrics(samples=7, votes=votes[:1], margin=1, is_stopped_early=True, error_bound=0.0373)
    assert last_of(self_consistency=figures).endswith("0 samples saved, another winner at most 3.73 % probable")
    silent = SelfConsistencyMetrics(samples=1, is_abstained=True)
    assert last_of(self_consistency=silent) == "1 sample: no votes; margin 0 %, no answer had votes enough"
    hostile = SelfConsistencyMetrics(samples=1, votes=[AnswerVotes(answer="\x1b[2J\nx" * 50, votes=1)])
    assert not {"\x1b", "\n"} & set(last_of(self_consistency=hostile))


def test_checks_of_a_draft_are_told_with_what_came_of_them() -> None:
    figures = ChainOfVerificationMetrics(questions=3, answered=2, is_revised=True)
    told = "3 questions about the draft, 2 answered; the draft was corrected"
    assert last_of(chain_of_verification=figures) == told
    told = "0 questions about the draft, 0 answered; the answer is that of the draft"
    assert last_of(chain_of_verification=ChainOfVerificationMetrics()) == told


def test_programs_are_told_with_their_time() -> None:
    figures = ProgramOfThoughtMetrics(attempts=2, failed_attempts=1, program_time=Duration(nanos=250_000_000))
    assert last_of(program_of_thought=figures) == "2 programs (1 without an answer), run for 250 ms"


def test_a_plan_is_told_by_its_steps() -> None:
    assert last_of(plan_and_solve=PlanAndSolveMetrics(is_planned=True, plan_steps=1)) == "a plan of 1 step"
    assert last_of(plan_and_solve=PlanAndSolveMetrics()) == "no plan"


def build_bounded(single_pct: float, resent_pct: float) -> list[str]:
    figures = BoundedContextMetrics(
        peak_window_tokens=900,
        is_window_exact=True,
        carryover_calls=2,
        savings=Savings(
            baseline=SavingsBaseline.SAVINGS_BASELINE_SINGLE_PASS, attention_pct=single_pct, is_measured=True
        ),
        reprompt_savings=Savings(
            baseline=SavingsBaseline.SAVINGS_BASELINE_REPROMPT, attention_pct=resent_pct, is_measured=True
        ),
    )
    return summarize(Reasoning(metrics=Metrics(bounded_context=figures)))[1:]


def test_bounded_context_tells_its_calls_for_carryovers_and_both_baselines() -> None:
    lines = build_bounded(40, 50)
    assert lines[0] == "largest window: 900 tokens (counted by the model's own tokenizer); 2 calls for carryovers alone"
    assert lines[1].startswith("saved against one call that holds everything: attention +40.0 %")
    assert lines[2].startswith("saved against calls that resend everything: attention +50.0 %")
    assert len(lines) == 3


def test_savings_that_are_estimated_say_so() -> None:
    savings = Savings(baseline=SavingsBaseline.SAVINGS_BASELINE_SINGLE_PASS, attention_pct=40)
    figures = BoundedContextMetrics(savings=savings)
    lines = summarize(Reasoning(metrics=Metrics(bounded_context=figures)))
    assert lines[-1].endswith(" (estimated)")


def test_what_was_saved_is_told_once_where_both_baselines_are_alike() -> None:
    (_, line) = build_bounded(50, 50)
    assert line.startswith(
        "saved against one call that holds everything, or calls that resend everything: attention +50.0 %"
    )


PERCENT = st.floats(-400, 100)


@given(attention=PERCENT, kv_read=PERCENT, peak=PERCENT, tokens=PERCENT)
def test_the_line_of_savings_has_the_figures_of_the_api_with_their_signs(
    attention: float, kv_read: float, peak: float, tokens: float
) -> None:
    savings = Savings(
        baseline=SavingsBaseline.SAVINGS_BASELINE_SINGLE_PASS,
        attention_pct=attention,
        kv_read_pct=kv_read,
        peak_context_pct=peak,
        tokens_pct=tokens,
        is_measured=True,
    )
    line = summarize(Reasoning(metrics=Metrics(bounded_context=BoundedContextMetrics(savings=savings))))[-1]
    assert line.startswith("saved against one call that holds everything: ")
    told = dict(re.findall(r"(?:: |, )([A-Za-z][A-Za-z -]*) ([+-]?[0-9.]+) %", line))
    figures = {"attention": attention, "KV-cache reads": kv_read, "peak context": peak, "tokens": tokens}
    assert {word: float(figure) for word, figure in told.items()} == {
        word: round(figure, 1) for word, figure in figures.items()
    }
    assert all(figure[0] in "+-" or figure == "0" for figure in told.values())
    assert ("(minus: more was spent)" in line) == any(round(figure, 1) < 0 for figure in figures.values())


def test_a_line_that_is_estimated_and_tells_of_more_spent_says_both() -> None:
    savings = Savings(baseline=SavingsBaseline.SAVINGS_BASELINE_SINGLE_PASS, attention_pct=40, tokens_pct=-61)
    figures = BoundedContextMetrics(savings=savings)
    assert summarize(Reasoning(metrics=Metrics(bounded_context=figures)))[-1] == (
        "saved against one call that holds everything: attention +40.0 %, KV-cache reads 0 %, peak context 0 %, "
        "tokens -61.0 % (estimated; minus: more was spent)"
    )


def test_the_answers_of_best_of_n_are_told_with_their_scores_and_votes() -> None:
    answers = [ScoredAnswer(answer="42", votes=1, score=0.9), ScoredAnswer(answer="41", votes=2)]
    assert last_of(best_of_n=BestOfNMetrics(samples=3, judgements=1, answers=answers)) == (
        "3 samples, 1 judgement: 42 (score 0.90, 1 vote), 41 (not judged, 2 votes)"
    )
    silent = BestOfNMetrics(samples=1, is_abstained=True)
    assert last_of(best_of_n=silent) == "1 sample, 0 judgements: no answers; no answer had score enough"
    hostile = BestOfNMetrics(samples=5, answers=[ScoredAnswer(answer="\x1b[2J\nx" * 50, votes=1)] * 5)
    assert not {"\x1b", "\n"} & set(last_of(best_of_n=hostile))


def test_the_end_of_self_refine_is_told() -> None:
    assert last_of(self_refine=SelfRefineMetrics(critiques=2, revisions=1, is_passed=True)) == (
        "2 critiques, 1 revision; the last critique found nothing"
    )
    assert last_of(self_refine=SelfRefineMetrics(critiques=1, revisions=1, is_repeated=True)) == (
        "1 critique, 1 revision; the last revision repeated an answer"
    )
    assert last_of(self_refine=SelfRefineMetrics()) == "0 critiques, 0 revisions"
