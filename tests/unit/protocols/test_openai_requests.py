from __future__ import annotations

from typing import Any

import pytest

from reasond_server.protocols.openai_requests import read_bounds, read_offer
from reasond_server.protocols.wire_params import ReasondParams
from reasond_server.types import NO_BUDGET

OF_CHAT = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
OF_RESPONSES = [{"type": "function", "name": name} for name in ("f", "g")]


@pytest.mark.parametrize("tools", [OF_CHAT, OF_RESPONSES])
@pytest.mark.parametrize(
    ("choice", "names", "forced"),
    [
        (None, ["f", "g"], ""),
        ("auto", ["f", "g"], ""),
        ("none", [], ""),
        ("required", ["f", "g"], "required"),
        ("g", ["f", "g"], "g"),
        ({"type": "function", "function": {"name": "f"}}, ["f", "g"], "f"),
        ({"type": "function", "name": "f"}, ["f", "g"], "f"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, ["g"], ""),
        ({"type": "allowed_tools", "mode": "required", "tools": [OF_CHAT[1]]}, ["g"], "required"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": OF_CHAT[:1]}},
            ["f"],
            "required",
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "g"}}]},
            },
            ["g"],
            "",
        ),
    ],
)
def test_a_choice_of_tools_means_the_same_on_both_wires(
    tools: list[Any], choice: object, names: list[str], forced: str
) -> None:
    offer = read_offer(tools, choice)
    assert ([tool.name for tool in offer.tools], offer.choice) == (names, forced)
    assert not offer.problems


@pytest.mark.parametrize("choice", ["h", "requird", 5, ["f"], {"name": "h"}, {"function": {"name": "h"}}, True])
def test_a_choice_of_what_is_not_offered_is_refused_with_its_name(choice: object) -> None:
    (problem,) = read_offer(OF_CHAT, choice).problems
    assert problem.field == "tool_choice"
    assert "name a function that is offered" in problem.description


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"function": 5},
        {"tools": 5},
        {"tools": [5]},
        {"tools": [{"function": "f"}, {"name": ["f"]}, {"type": "mcp"}]},
        {"allowed_tools": []},
    ],
)
def test_a_choice_without_a_name_forces_nothing(choice: object) -> None:
    offer = read_offer(OF_CHAT, choice)
    assert not offer.choice
    assert not offer.problems


def test_a_call_that_is_forced_without_a_tool_is_told_to_have_no_effect() -> None:
    offer = read_offer([], "required")
    assert (offer.tools, offer.choice) == ([], "")
    assert "no tool is offered" in offer.warnings[0]


@pytest.mark.parametrize(
    "tool",
    [{"type": "function", "function": 5}, {"type": ["function"]}, {"type": "web_search"}, {"type": 5}, {"type": "mcp"}],
)
def test_a_tool_that_is_no_function_is_not_offered_and_told(tool: dict[str, Any]) -> None:
    offer = read_offer([tool, *OF_CHAT], "auto")
    assert [one.name for one in offer.tools] == ["f", "g"]
    assert "is not offered" in offer.warnings[0]


def test_bounds_that_mean_none_are_none_and_the_lowest_one_counts() -> None:
    assert read_bounds(ReasondParams(), -1, 0, None) == NO_BUDGET
    assert read_bounds(ReasondParams(), 90, None, 80).max_output_tokens == 80
    assert read_bounds(ReasondParams(), tool_calls=0).max_tool_calls == 0
