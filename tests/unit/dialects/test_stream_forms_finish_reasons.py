"""The words of gateways for the end of an answer, and the warning about words that nobody knows."""

from __future__ import annotations

import pytest

from reasond_server.dialects.stream_forms import FinishKind, choose_worst, find_known_finish, read_finish


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("stop", FinishKind.STOP),
        ("END_TURN", FinishKind.STOP),
        ("FinishReason.STOP", FinishKind.STOP),
        ("FINISH_REASON_MAX_TOKENS", FinishKind.LENGTH),
        ("model_context_window_exceeded", FinishKind.LENGTH),
        ("tool-calls", FinishKind.TOOL_CALLS),
        ("RECITATION", FinishKind.CONTENT_FILTER),
        ("guardrail_intervened", FinishKind.CONTENT_FILTER),
        ("insufficient_system_resource", FinishKind.FAILED),
    ],
)
def test_words_of_gateways_have_their_meaning_without_a_warning(told: str, kind: FinishKind) -> None:
    assert read_finish(told) == (kind, "")


@pytest.mark.parametrize("told", ["pause_turn", "OTHER", "eos of the moon", 5, 0, True, {"type": "stop"}, ["stop"]])
def test_what_nobody_knows_is_an_incomplete_answer_and_is_told(told: object) -> None:
    found = read_finish(told)
    assert found is not None
    assert found[0] is FinishKind.LENGTH
    assert str(told)[:8] in found[1]


@pytest.mark.parametrize("told", [None, "", "null", "None", False])
def test_a_reason_that_is_none_ends_nothing(told: object) -> None:
    assert read_finish(told) is None


def test_the_worst_reason_of_a_stream_counts() -> None:
    assert choose_worst([FinishKind.LENGTH, FinishKind.STOP]) is FinishKind.LENGTH
    assert choose_worst([FinishKind.STOP, FinishKind.CONTENT_FILTER, FinishKind.LENGTH]) is FinishKind.CONTENT_FILTER
    assert choose_worst([FinishKind.STOP, FinishKind.TOOL_CALLS]) is FinishKind.TOOL_CALLS


def test_a_second_word_counts_only_if_it_is_known() -> None:
    assert find_known_finish("MAX_TOKENS") is FinishKind.LENGTH
    assert find_known_finish("whatever") is None
    assert find_known_finish(7) is None
