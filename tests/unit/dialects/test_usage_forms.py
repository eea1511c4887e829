"""Reports of usage: none of them is read as less than it can mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.dialects.usage_forms import ReportedUsage, find_usages, merge_reports, read_number, read_report

FORMS: dict[str, tuple[dict[str, Any], tuple[int, int, int, int]]] = {
    "plain": ({"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 109}, (100, 9, 0, 0)),
    "reasoning within": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 90,
            "total_tokens": 190,
            "completion_tokens_details": {"reasoning_tokens": 70},
        },
        (100, 90, 0, 70),
    ),
    "reasoning beside": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 9,
            "total_tokens": 179,
            "completion_tokens_details": {"reasoning_tokens": 70},
        },
        (100, 79, 0, 70),
    ),
    "reasoning beside without a total": (
        {"prompt_tokens": 100, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 70}},
        (100, 79, 0, 70),
    ),
    "thoughts in the total": ({"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 179}, (100, 79, 0, 0)),
    "gemini": (
        {"promptTokenCount": 100, "candidatesTokenCount": 9, "thoughtsTokenCount": 70, "totalTokenCount": 179},
        (100, 79, 0, 70),
    ),
    "anthropic": (
        {"input_tokens": 3, "output_tokens": 9, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 100},
        (5103, 9, 5000, 0),
    ),
    "anthropic through a gateway": (
        {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12, "cache_read_input_tokens": 5000},
        (5003, 9, 5000, 0),
    ),
    "cache within": (
        {"prompt_tokens": 5103, "completion_tokens": 9, "total_tokens": 5112, "cache_read_input_tokens": 5000},
        (5103, 9, 5000, 0),
    ),
    "cached details": (
        {"prompt_tokens": 5103, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5000}},
        (5103, 9, 5000, 0),
    ),
    "deepseek": (
        {"prompt_tokens": 100, "completion_tokens": 9, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36},
        (100, 9, 64, 0),
    ),
    "deepseek without its sum": (
        {"completion_tokens": 9, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36},
        (100, 9, 64, 0),
    ),
    "texts": ({"prompt_tokens": "1,100", "completion_tokens": "9.0", "total_tokens": 1109.0}, (1100, 9, 0, 0)),
    "only a total and the output": ({"completion_tokens": 9, "total_tokens": 109}, (100, 9, 0, 0)),
    "llama.cpp": ({"prompt_n": 10, "cache_n": 90, "predicted_n": 9}, (100, 9, 90, 0)),
    "ollama": ({"prompt_eval_count": 100, "eval_count": 9}, (100, 9, 0, 0)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_gateways_have_one_reading(form: str) -> None:
    report, (prompt, output, cached, reasoning) = FORMS[form]
    found = read_report(report)
    assert found is not None
    assert (found.prompt, found.output, found.cached, found.reasoning) == (prompt, output, cached, reasoning)


@pytest.mark.parametrize(
    "report", [None, {}, [], "9", 7, {"prompt_tokens": None, "completion_tokens": 0}, {"total_tokens": -1}]
)
def test_what_tells_no_tokens_is_no_report(report: object) -> None:
    assert read_report(report) is None


@pytest.mark.parametrize(
    "report",
    [
        {"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 50},
        {
            "prompt_tokens": 100,
            "completion_tokens": 9,
            "total_tokens": 109,
            "completion_tokens_details": {"reasoning_tokens": 70},
        },
    ],
)
def test_a_contradiction_is_told_and_the_larger_figures_count(report: dict[str, Any]) -> None:
    found = read_report(report)
    assert found is not None
    assert ["contradicts itself" in doubt for doubt in found.doubts] == [True]
    assert found.prompt + found.output >= 109


@pytest.mark.parametrize(
    ("told", "number"),
    [
        (9, 9),
        ("9", 9),
        (9.0, 9),
        ("1,234", 1234),
        (True, 0),
        ("nine", 0),
        (-9, 0),
        (float("nan"), 0),
        (float("inf"), 0),
        (None, 0),
        ([9], 0),
    ],
)
def test_a_count_may_be_a_text_or_have_a_point(told: object, number: int) -> None:
    assert read_number(told) == number


@pytest.mark.parametrize(
    "holder",
    [{"usage": 1}, {"x_groq": {"usage": 1}}, {"usageMetadata": 1}, {"message": {"usage": 1}}, {"timings": 1}],
)
def test_reports_are_found_where_gateways_put_them(holder: dict[str, Any]) -> None:
    assert list(find_usages(holder)) == [1]


def test_of_several_reports_of_a_stream_the_largest_numbers_count() -> None:
    first = merge_reports(
        {}, {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 60}}
    )
    second = merge_reports(first, {"completion_tokens": 9, "prompt_tokens_details": None})
    assert read_report(merge_reports(second, None)) == ReportedUsage(prompt=100, output=9, cached=60, doubts=[])


COUNTS = st.integers(0, 10**6)


@given(prompt=COUNTS, output=COUNTS, reasoning=COUNTS, cached=COUNTS, extra=COUNTS)
def test_no_report_is_read_as_less_than_its_total_or_its_sum(
    prompt: int, output: int, reasoning: int, cached: int, extra: int
) -> None:
    report = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output + extra,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    found = read_report(report)
    if found is None:
        assert prompt + output + extra == 0
        return
    assert found.prompt + found.output >= prompt + output + extra
    assert found.reasoning <= found.output
    assert found.cached <= found.prompt
