"""Every report is counted once in its own metric, and no value from outside makes a new series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.telemetry.catalogue import CATALOGUE
from reasond_server.telemetry.observers import UNOBSERVED, ProcessFacts, ServerSnapshot
from reasond_server.types import BoundedContextMetrics, Savings, SavingsBaseline, Usage
from tests.unit.telemetry.parts import metrics, values

if TYPE_CHECKING:
    from reasond_server.telemetry.observers import Observer

REASON = "reasond.v1.ReasoningService/Reason"


def build_savings(pct: float) -> BoundedContextMetrics:
    savings = Savings(
        baseline=SavingsBaseline.SINGLE_PASS, attention_pct=pct, kv_read_pct=0, tokens_pct=-50, peak_context_pct=0
    )
    return BoundedContextMetrics(
        iterations=(),
        carryover_compressions=0,
        savings=savings,
        capacity_tokens=1,
        effective_capacity_tokens=1,
        is_window_exact=True,
    )


def tell_everything(observer: Observer, word: str) -> None:
    """Make each report once, with `word` wherever callers, models or other programs choose the value."""
    observer.rpc_began(word)
    observer.call_ended("grpc", word, word, 0.1)
    observer.rpc_ended(word, word, received_bytes=1, sent_bytes=1)
    observer.call_failed("grpc", word)
    observer.stream_opened("grpc")
    observer.stream_closed("grpc")
    observer.slow_consumer("grpc")
    observer.http_answered(word, 200)
    observer.spending(word, word)(Usage(input_tokens=1, output_tokens=1, cached_input_tokens=1, reasoning_tokens=1))
    observer.run_left(word, word, steps=1)
    observer.run_handed(word)
    observer.run_recovered(word)
    observer.queue_left(word, 0.1)
    observer.commit_ended(1, 0.1)
    observer.commit_failed(word)
    observer.first_content(word, 0.1)
    observer.model_call_ended(word, word, 0.1)
    observer.attempt_repeated(word, word)
    observer.waited_for_room(word, 0.1)
    observer.usage_corrected(word, "partial")
    observer.caller_refused("rate")
    observer.tokens_reserved(1)
    observer.tokens_settled(1, 1)
    observer.tool_called(word, word, 0.1)
    observer.turn_exited(word)
    observer.handed_off(2)
    observer.turn_reentered(word)
    observer.handoff_settled(word, 0.1)
    observer.outcome_unknown()
    observer.context_built(word, word, 7)
    observer.iteration_ended()
    observer.candidates_changed(3)
    observer.candidate_scored(84.0)
    observer.terminated_early()
    observer.check_ended("bwrap", word, 0.1)


@pytest.mark.slow
def test_ten_thousand_odd_words_add_no_series() -> None:
    counted = metrics()
    tell_everything(counted, "odd")
    before = set(values(counted))
    for number in range(10_000):
        tell_everything(counted, f'odd {number}\n"}} 1e99 {"x" * (number % 300)}')
    after = values(counted)
    assert set(after) == before
    assert after["reasond_calls_total other other grpc"] == 10_001


@pytest.mark.slow
@given(word=st.text())
def test_no_word_gets_a_series_or_breaks_the_counting(word: str) -> None:
    counted = metrics()
    tell_everything(counted, word)
    names = {text for text in values(counted) if "other" not in text}
    tell_everything(counted, f"{word}!")
    assert {text for text in values(counted) if "other" not in text} == names


def test_with_metrics_off_everything_may_be_told_too() -> None:
    tell_everything(UNOBSERVED, "anything")
    UNOBSERVED.watch_breaker("llm", lambda: "closed")


def test_a_call_is_counted_by_method_and_code_and_timed() -> None:
    counted = metrics()
    counted.call_ended("grpc", REASON, "OK", 0.02)
    counted.call_ended("grpc", REASON, "OK", 0.03)
    counted.call_ended("jsonrpc", "reasoning.execute", "INTERNAL", 400.0)
    found = values(counted)
    assert found[f"reasond_calls_total OK {REASON} grpc"] == 2
    assert found["reasond_calls_total INTERNAL reasoning.execute jsonrpc"] == 1
    assert found[f"reasond_call_duration_seconds_sum OK {REASON} grpc"] == pytest.approx(0.05)
    assert found[f"reasond_call_duration_seconds_bucket OK 0.02 {REASON} grpc"] == 1
    assert found[f"reasond_call_duration_seconds_bucket OK +Inf {REASON} grpc"] == 2
    assert found["reasond_call_duration_seconds_bucket INTERNAL 327.68 reasoning.execute jsonrpc"] == 0
    assert found["reasond_call_duration_seconds_count INTERNAL reasoning.execute jsonrpc"] == 1


@pytest.mark.slow
@given(told=st.lists(st.lists(st.floats(0, 1000), max_size=5), max_size=5))
def test_a_histogram_holds_what_it_was_told_however_often_it_is_read(told: list[list[float]]) -> None:
    counted = metrics()
    for batch in told:
        for seconds in batch:
            counted.first_content("demo", seconds)
        values(counted)
    found, flat = values(counted), [seconds for batch in told for seconds in batch]
    for bound in CATALOGUE["reasond_model_first_content_seconds"].buckets if flat else ():
        below = sum(seconds <= bound for seconds in flat)
        assert found[f"reasond_model_first_content_seconds_bucket {bound} demo"] == below
    assert found.get("reasond_model_first_content_seconds_count demo", 0) == len(flat)
    assert found.get("reasond_model_first_content_seconds_sum demo", 0) == pytest.approx(sum(flat))


def test_a_denial_is_counted_by_its_kind_once() -> None:
    counted = metrics()
    counted.call_failed("grpc", "TOKEN_MISSING")
    counted.call_failed("grpc", "INTERNAL")
    counted.caller_refused("budget")
    found = values(counted)
    assert found["reasond_denials_total authentication"] == 1
    assert found["reasond_denials_total budget"] == 1
    assert found["reasond_denials_total overload"] == 0
    assert sum(value for name, value in found.items() if name.startswith("reasond_denials_total")) == 2


def test_tokens_are_counted_by_strategy_model_and_kind() -> None:
    counted = metrics()
    spend = counted.spending("chain_of_thought", "demo")
    spend(Usage(input_tokens=10, output_tokens=3))
    spend(Usage(input_tokens=10, output_tokens=3, cached_input_tokens=4, reasoning_tokens=2))
    found = values(counted)
    kinds = ("input", "output", "cached_input", "reasoning")
    assert [found[f"reasond_tokens_total {kind} demo chain_of_thought"] for kind in kinds] == [20, 6, 4, 2]


def test_a_run_that_another_process_goes_on_with_counts_its_steps_and_no_end() -> None:
    counted = metrics()
    counted.run_left("chain_of_thought", "", steps=3)
    counted.run_handed("handed_over")
    found = values(counted)
    assert found["reasond_steps_total chain_of_thought"] == 3
    assert "reasond_executions_total answered chain_of_thought" not in found
    assert not any(name.startswith("reasond_execution_duration_seconds_count") for name in found)


def test_what_was_saved_is_told_as_a_ratio_that_is_never_negative() -> None:
    counted = metrics()
    counted.run_left("bounded_context", "answered", steps=2, duration_s=1.0, metrics=build_savings(75.0))
    found = values(counted)
    assert found["reasond_compute_ratio_sum single_pass attention"] == pytest.approx(0.25)
    assert found["reasond_compute_ratio_sum single_pass tokens"] == pytest.approx(1.5)
    assert found["reasond_compute_ratio_count single_pass kv_read"] == 1


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_what_a_run_without_a_result_saved_is_not_told(ending: str) -> None:
    counted = metrics()
    counted.run_left("bounded_context", ending, steps=2, duration_s=1.0, metrics=build_savings(75.0))
    assert not any(name.startswith("reasond_compute_ratio") for name in values(counted))


def test_budgets_tell_what_came_back_and_what_was_too_much() -> None:
    counted = metrics()
    for reserved, used in ((100, 40), (100, 130), (10, 10)):
        counted.tokens_reserved(reserved)
        counted.tokens_settled(reserved, used)
    found = values(counted)
    events = ("reserved", "settled", "refunded", "overdrawn")
    assert [found[f"reasond_budget_tokens_total {event}"] for event in events] == [210, 180, 60, 30]


def test_a_tool_of_an_mcp_server_is_counted_under_its_name_or_its_server() -> None:
    counted = metrics()
    for tool in ("files__read", "files__anything", "other__read", "calculator", "rm -rf"):
        counted.tool_called(tool, "ok", 0.01)
    found = values(counted)
    names = {name.split()[-1]: value for name, value in found.items() if name.startswith("reasond_tool_calls_total")}
    assert names == {"files__read": 1, "files__other": 1, "calculator": 1, "other": 2}


def test_programs_of_tasks_are_counted_with_their_time_by_how_they_ended() -> None:
    counted = metrics()
    for outcome, duration_s in (("ok", 0.5), ("ok", 1.5), ("limited", 10.0), ("not_run", 0.0)):
        counted.program_ended(outcome, duration_s)
    found = values(counted)
    assert found["reasond_program_duration_seconds_count ok"] == 2
    assert found["reasond_program_duration_seconds_sum ok"] == 2.0
    assert found["reasond_program_duration_seconds_count limited"] == 1
    assert found["reasond_program_duration_seconds_count not_run"] == 1


def test_a_sample_takes_over_how_the_server_is_and_how_its_breakers_are() -> None:
    counted, state = metrics(), ["closed"]
    counted.watch_breaker("llm", lambda: state[0])
    seen = ServerSnapshot(rpcs=3, http_requests=2, running=5, queued=4, places=9, is_ready=True, is_draining=False)
    found = values(counted, seen)
    assert found["reasond_calls_in_flight grpc"] == 3
    assert found["reasond_calls_in_flight http"] == 2
    assert (found["reasond_executions_running"], found["reasond_executions_queued"]) == (5, 4)
    assert (found["reasond_ready"], found["reasond_draining"], found["reasond_execution_places"]) == (1, 0, 9)
    assert found["reasond_model_breaker_state llm closed"] == 1
    state[0] = "open"
    found = values(counted, ServerSnapshot(is_draining=True, is_limits_degraded=True))
    assert found["reasond_model_breaker_state llm closed"] == 0
    assert found["reasond_model_breaker_state llm open"] == 1
    assert (found["reasond_ready"], found["reasond_draining"], found["reasond_limits_degraded"]) == (0, 1, 1)


def test_the_cpu_time_of_the_process_never_goes_down() -> None:
    counted = metrics()
    for cpu_s in (2.0, 5.0, 4.0, 6.0):
        counted.sample_process(ProcessFacts(cpu_s=cpu_s, resident_bytes=7, open_files=3, most_files=9, started_s=1.0))
    counted.sample_process(ProcessFacts(cpu_s=6.0, resident_bytes=None, open_files=None, most_files=9, started_s=1.0))
    found = values(counted)
    assert found["process_cpu_seconds_total"] == 6
    assert (found["process_resident_memory_bytes"], found["process_open_fds"], found["process_max_fds"]) == (7, 3, 9)


def test_every_metric_of_the_catalogue_is_made_and_no_other() -> None:
    counted = metrics()
    tell_everything(counted, "chain_of_thought")
    made = {family.name for family in counted.registry.collect()}
    assert made == set(CATALOGUE)


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in CATALOGUE.values():
        assert metric.name.startswith(("reasond_", "process_"))
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket", "_created"))
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert {"subject", "tenant", "execution_id", "request_id", "call_id", "le"}.isdisjoint(metric.labels)
        assert list(metric.buckets) == sorted(metric.buckets)


def test_the_versions_are_told() -> None:
    assert next(name for name in values(metrics()) if name.startswith("reasond_build_info")).endswith(" 1.2.3")


def test_turns_and_their_hand_offs_are_counted() -> None:
    counted = metrics()
    for exit_ in ("client_tools", "done"):
        counted.turn_exited(exit_)
    counted.handed_off(3)
    counted.handed_off(2)
    counted.set_awaiting(12)
    counted.handoff_settled("settled", 90.0)
    counted.turn_reentered("accepted")
    counted.turn_reentered("ETAG_MISMATCH")
    counted.outcome_unknown()
    counted.context_built("planning", "preview", 700)
    found = values(counted)
    assert found["reasond_turns_total client_tools"] == found["reasond_turns_total done"] == 1
    assert found["reasond_turns_awaiting"] == 12
    assert (found["reasond_handoffs_total handed_off"], found["reasond_handoffs_total settled"]) == (2, 1)
    assert found["reasond_handoff_calls_total"] == 5
    assert found["reasond_handoff_wait_seconds_sum settled"] == 90
    assert (found["reasond_reentries_total accepted"], found["reasond_reentries_total ETAG_MISMATCH"]) == (1, 1)
    assert found["reasond_tool_outcomes_unknown_total"] == 1
    assert found["reasond_context_tokens_total planning preview"] == 700


def test_repairs_are_counted_under_the_names_of_seed_004() -> None:
    counted = metrics()
    counted.iteration_ended()
    counted.candidates_changed(5)
    counted.candidates_changed(-2)
    for score in (30.0, 84.0, 100.0):
        counted.candidate_scored(score)
    counted.terminated_early()
    counted.check_ended("landlock", "timed_out", 2.0)
    found = values(counted)
    assert found["reasond_repair_reflection_iterations_total"] == 1
    assert found["reasond_repair_candidates_active"] == 3
    assert (found["reasond_repair_critic_score_count"], found["reasond_repair_critic_score_sum"]) == (3, 214)
    assert found["reasond_repair_critic_score_bucket 84.0"] == 2
    assert found["reasond_repair_early_terminations_total"] == 1
    assert found["reasond_repair_check_duration_seconds_sum landlock timed_out"] == 2


def test_uses_of_api_keys_are_counted_by_the_id_of_the_key() -> None:
    counted = metrics()
    for outcome in ("accepted", "accepted", "canary"):
        counted.api_key_used("k3v9zpx7mt2c", outcome)
    found = values(counted)
    assert found["reasond_api_key_uses_total k3v9zpx7mt2c accepted"] == 2
    assert found["reasond_api_key_uses_total k3v9zpx7mt2c other"] == 1
